/* image_png.c: the chunks of a PNG file: a length, a name, that many bytes, and a checksum of name and bytes. IHDR is
 * first, then PLTE and tRNS where there are some, one or several IDAT that hold the packed rows, and IEND is last; the
 * rest may be left out where the name begins with a small letter. Every checksum is looked at, of chunks that are left
 * out too. */
#include "data/readers/image_png.h"

#include "tarn_features.h"

#if TARN__HAVE_ZLIB

#include <string.h>
#include <zlib.h>

#define INPUT_BYTES ((size_t)16 << 10)
#define MOST_INFLATION 1032 /* deflate makes at most so many bytes of one */

typedef struct png {
    tarn__data_input *source;
    tarn__png_info form;
    char name[5];      /* of the chunk that is being read */
    int64_t begin;     /* its first byte */
    uint32_t left;     /* bytes of it that were not read */
    unsigned long crc; /* of its name and of what was read */
    z_stream stream;
    bool has_ended; /* the packed rows have */
    unsigned char input[INPUT_BYTES];
} png;

static uint32_t big32(const unsigned char *from)
{
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

static bool is_named(const png *p, const char *name)
{
    return memcmp(p->name, name, 4) == 0;
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

static bool begin_chunk(png *p)
{
    unsigned char head[8];
    p->begin = p->source->at;
    if (!tarn__data_input_read(p->source, head, 8, "the head of a chunk"))
        return false;
    p->left = big32(head);
    memcpy(p->name, head + 4, 4);
    for (int i = 4; i < 8; i++)
        if (!((head[i] | 32) >= 'a' && (head[i] | 32) <= 'z'))
            return tarn__data_input_bad(p->source, p->begin + 4, "%02x %02x %02x %02x is no name of a chunk", head[4],
                                        head[5], head[6], head[7]);
    if ((int64_t)p->left + 4 > tarn__data_input_remaining(p->source))
        return tarn__data_input_bad(p->source, p->begin,
                                    "chunk %s has %u bytes, more than the file still can; is it complete?", p->name,
                                    p->left);
    p->crc = crc32(0, head + 4, 4);
    return true;
}

/* Reads bytes of the chunk; it has as many. */
static bool read_chunk(png *p, unsigned char *memory, size_t count)
{
    if (!tarn__data_input_read(p->source, memory, count, p->name))
        return false;
    p->crc = crc32(p->crc, memory, (unsigned)count);
    p->left -= (uint32_t)count;
    return true;
}

/* Goes over what is left of it and checks its sum. */
static bool end_chunk(png *p)
{
    unsigned char memory[1024];
    while (p->left > 0)
        if (!read_chunk(p, memory, p->left < sizeof(memory) ? p->left : sizeof(memory)))
            return false;
    if (!tarn__data_input_read(p->source, memory, 4, "a chunk's checksum"))
        return false;
    return big32(memory) == p->crc ||
           tarn__data_input_bad(p->source, p->begin, "chunk %s is damaged: its checksum is %08x, not %08lx", p->name,
                                big32(memory), p->crc);
}

/* A whole chunk of a length that must be within bounds. */
static bool whole_chunk(png *p, unsigned char *memory, uint32_t least, uint32_t most)
{
    if (p->left < least || p->left > most)
        return tarn__data_input_bad(p->source, p->begin, "chunk %s has %u bytes; it must have %u to %u", p->name,
                                    p->left, least, most);
    return read_chunk(p, memory, p->left) && end_chunk(p);
}

/* ---- what comes before the rows ---------------------------------------------------------------------------------- */

static bool is_good_kind(int depth, int colour)
{
    bool small = depth == 1 || depth == 2 || depth == 4, large = depth == 8 || depth == 16;
    return colour == 0   ? small || large
           : colour == 3 ? small || depth == 8
                         : (colour == 2 || colour == 4 || colour == 6) && large;
}

static bool read_head(png *p)
{
    unsigned char rest[6], head[13];
    if (!tarn__data_input_read(p->source, rest, 6, "the signature of a PNG file"))
        return false;
    if (memcmp(rest, "NG\r\n\x1A\n", 6) != 0)
        return tarn__data_input_bad(p->source, 2, "the signature of a PNG file is damaged; was it copied as text?");
    if (!begin_chunk(p))
        return false;
    if (!is_named(p, "IHDR"))
        return tarn__data_input_bad(p->source, p->begin, "chunk %s comes first, not IHDR", p->name);
    if (!whole_chunk(p, head, 13, 13) || !tarn__image_check_size(p->source, 16, big32(head + 4), big32(head)))
        return false;
    if (!is_good_kind(head[8], head[9]))
        return tarn__data_input_bad(p->source, 24, "there are no PNG files of depth %d and colour type %d", head[8],
                                    head[9]);
    if (head[10] || head[11] || head[12] > 1)
        return tarn__data_input_bad(p->source, 26,
                                    "compression %d, filter method %d and interlacing %d are not 0, 0 and 0 or 1",
                                    head[10], head[11], head[12]);
    p->form = (tarn__png_info){.width = big32(head),
                               .height = big32(head + 4),
                               .depth = head[8],
                               .colour = head[9],
                               .is_interlaced = head[12] == 1};
    return true;
}

static bool read_palette(png *p)
{
    unsigned char colours[3 * 256];
    tarn__png_info *form = &p->form;
    uint32_t most = form->colour & TARN__PNG_PALETTE ? 3u << form->depth : sizeof(colours), bytes = p->left;
    if (!(form->colour & TARN__PNG_COLOUR) || form->palette_count > 0 || form->has_transparency || bytes % 3 != 0)
        return tarn__data_input_bad(p->source, p->begin,
                                    "chunk PLTE has no place here, or %u bytes, which are no colours", bytes);
    if (!whole_chunk(p, colours, 3, most))
        return false;
    form->palette_count = (int)(bytes / 3);
    for (int i = 0; i < form->palette_count; i++) {
        memcpy(form->palette[i], colours + 3 * i, 3);
        form->palette[i][3] = 255;
    }
    return true;
}

static bool read_transparency(png *p)
{
    unsigned char values[256];
    tarn__png_info *form = &p->form;
    bool is_palette = form->colour & TARN__PNG_PALETTE;
    uint32_t bytes = p->left, exact = form->colour & TARN__PNG_COLOUR ? 6 : 2;
    if (form->colour & TARN__PNG_ALPHA || form->has_transparency || (is_palette && form->palette_count == 0))
        return tarn__data_input_bad(p->source, p->begin, "chunk tRNS has no place here");
    if (!whole_chunk(p, values, is_palette ? 1 : exact, is_palette ? (uint32_t)form->palette_count : exact))
        return false;
    form->has_transparency = true;
    for (uint32_t i = 0; is_palette && i < bytes; i++)
        form->palette[i][3] = values[i];
    for (uint32_t i = 0; !is_palette && i < exact / 2; i++) {
        form->transparent[i] = (unsigned)values[2 * i] << 8 | values[2 * i + 1];
        if (form->transparent[i] >> form->depth != 0)
            return tarn__data_input_bad(p->source, p->begin, "chunk tRNS has the sample %u, too large for %d bits",
                                        form->transparent[i], form->depth);
    }
    return true;
}

/* Chunks up to the first of the rows, which is begun. */
static bool read_up_to_rows(png *p)
{
    for (;;) {
        if (!begin_chunk(p))
            return false;
        if (is_named(p, "IDAT"))
            break;
        bool may_go = (p->name[0] & 32) != 0;
        bool good = is_named(p, "PLTE")   ? read_palette(p)
                    : is_named(p, "tRNS") ? read_transparency(p)
                                          : may_go && end_chunk(p);
        if (!good)
            return tarn_failed()
                       ? false
                       : tarn__data_input_bad(p->source, p->begin, "chunk %s has no place before the image", p->name);
    }
    if (p->form.colour & TARN__PNG_PALETTE && p->form.palette_count == 0)
        return tarn__data_input_bad(p->source, p->begin,
                                    "the image has colours of a palette, but there is no chunk PLTE");
    return true;
}

/* ---- the rows ---------------------------------------------------------------------------------------------------- */

/* Makes sure that there is input, from this chunk or the next. */
static bool refill(png *p)
{
    while (p->stream.avail_in == 0 && p->left == 0) {
        if (!end_chunk(p) || !begin_chunk(p))
            return false;
        if (!is_named(p, "IDAT"))
            return tarn__data_input_bad(p->source, p->begin, "chunk %s comes before the packed image has ended",
                                        p->name);
    }
    if (p->stream.avail_in > 0)
        return true;
    size_t count = p->left < INPUT_BYTES ? p->left : INPUT_BYTES;
    p->stream.next_in = p->input;
    p->stream.avail_in = (unsigned)count;
    return read_chunk(p, p->input, count);
}

static bool next_bytes(void *memory, size_t count, void *ctx)
{
    png *p = ctx;
    p->stream.next_out = memory;
    p->stream.avail_out = (unsigned)count;
    while (p->stream.avail_out > 0) {
        if (p->has_ended)
            return tarn__data_input_bad(p->source, p->source->at, "the packed image ends before its last row");
        if (!refill(p))
            return false;
        int result = inflate(&p->stream, Z_NO_FLUSH);
        p->has_ended = result == Z_STREAM_END;
        if (result != Z_OK && result != Z_STREAM_END)
            return tarn__data_input_bad(p->source, p->source->at - p->stream.avail_in,
                                        "the packed image is damaged: %s",
                                        p->stream.msg ? p->stream.msg : "no reason given");
    }
    return true;
}

/* After the last row: the packed data end, with their own checksum, and nothing follows them in the chunk. */
static bool end_rows(png *p)
{
    unsigned char beyond;
    p->stream.next_out = &beyond;
    p->stream.avail_out = 1;
    while (!p->has_ended && p->stream.avail_out > 0) {
        if (!refill(p))
            return false;
        int result = inflate(&p->stream, Z_NO_FLUSH);
        p->has_ended = result == Z_STREAM_END;
        if (result != Z_OK && result != Z_STREAM_END)
            return tarn__data_input_bad(p->source, p->source->at - p->stream.avail_in,
                                        "the packed image is damaged at its end: %s",
                                        p->stream.msg ? p->stream.msg : "no reason given");
    }
    if (p->stream.avail_out == 0 || p->stream.avail_in > 0 || p->left > 0)
        return tarn__data_input_bad(p->source, p->source->at - p->stream.avail_in,
                                    "the packed image goes on after its last row");
    return end_chunk(p);
}

static bool read_rows(png *p, tarn_array *image)
{
    const tarn__png_info *form = &p->form;
    uint64_t bytes = tarn__png_bytes(form);
    if (bytes / MOST_INFLATION > (uint64_t)tarn__data_input_remaining(p->source))
        return tarn__data_input_bad(p->source, 16,
                                    "%lld x %lld pixels unpack to %llu bytes, more than the file can hold",
                                    (long long)form->width, (long long)form->height, (unsigned long long)bytes);
    return tarn__image_alloc(image, tarn__png_channels(form), form->height, form->width) &&
           tarn__png_read_rows(form, p->source, next_bytes, p, image) && end_rows(p);
}

static bool read_to_the_end(png *p)
{
    do {
        if (!begin_chunk(p))
            return false;
        bool may_go = (p->name[0] & 32) != 0, is_empty = p->left == 0 && (is_named(p, "IDAT") || is_named(p, "IEND"));
        if (!may_go && !is_empty)
            return tarn__data_input_bad(p->source, p->begin, "chunk %s has no place after the image", p->name);
        if (!end_chunk(p))
            return false;
    } while (!is_named(p, "IEND"));
    return tarn__data_input_expect_end(p->source, "the chunks");
}

bool tarn__image_read_png(tarn__data_input *source, tarn_array *image)
{
    png *p = tarn__alloc(sizeof(*p));
    if (!p)
        return false;
    p->source = source;
    bool good =
        inflateInit(&p->stream) == Z_OK ||
        tarn__raise(TARN_ERROR_MEMORY, "%s: %s: no memory for the decompressor", source->function, source->path);
    good = good && read_head(p) && read_up_to_rows(p) && read_rows(p, image) && read_to_the_end(p);
    inflateEnd(&p->stream);
    tarn__release(p, sizeof(*p));
    return good;
}

#else

bool tarn__image_read_png(tarn__data_input *source, tarn_array *image)
{
    (void)image;
    return tarn__raise(
        TARN_ERROR_UNSUPPORTED,
        "%s: %s is a PNG image, and tarn was built without zlib; install zlib1g-dev and build again, or save "
        "it as PGM or PPM",
        source->function, source->path);
}

#endif
