/* image_png.c: the chunks of a PNG file.
 *
 * A chunk is a length, a name, that many bytes, and a CRC of name and bytes. IHDR is first, then PLTE and tRNS if any,
 * one or several IDAT with the compressed rows, IEND last. Other chunks are skipped if their name begins with a
 * lower-case letter (ancillary) and are an error otherwise. The CRC of every chunk is verified, skipped ones
 * included. */
#include "data/readers/image.h"

#include "tarn_features.h"

#if TARN__HAVE_ZLIB

#include <string.h>
#include <zlib.h>

#define INPUT_BYTES ((size_t)16 << 10)
#define MAX_INFLATION 1032 /* deflate's maximum ratio: bytes out per byte in */

/* The state of a file being read; too large for the stack. */
typedef struct png {
    tarn__data_input *file;
    tarn__png_info info;
    char name[5];      /* of the current chunk */
    int64_t begin;     /* its position in the file */
    uint32_t left;     /* bytes of it not read yet */
    unsigned long crc; /* of its name and the bytes read so far */
    z_stream stream;
    bool has_ended; /* the zlib stream of the rows */
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

/* Reads the length and name of the next chunk. */
static bool begin_chunk(png *p)
{
    unsigned char head[8];
    p->begin = p->file->at;
    if (!tarn__data_input_read(p->file, head, 8, "the head of a chunk"))
        return false;
    p->left = big32(head);
    memcpy(p->name, head + 4, 4);
    for (int i = 4; i < 8; i++)
        if (!((head[i] | 32) >= 'a' && (head[i] | 32) <= 'z'))
            return tarn__data_input_bad(p->file, p->begin + 4, "%02x %02x %02x %02x is not a chunk name", head[4],
                                        head[5], head[6], head[7]);
    if ((int64_t)p->left + 4 > tarn__data_input_remaining(p->file))
        return tarn__data_input_bad(
            p->file, p->begin, "chunk %s has %u bytes, more than the file has left; is it complete?", p->name, p->left);
    p->crc = crc32(0, head + 4, 4);
    return true;
}

/* Reads bytes of the chunk, which has at least `count` left. */
static bool read_chunk(png *p, unsigned char *memory, size_t count)
{
    if (!tarn__data_input_read(p->file, memory, count, p->name))
        return false;
    p->crc = crc32(p->crc, memory, (unsigned)count);
    p->left -= (uint32_t)count;
    return true;
}

/* Skips the rest of the chunk and verifies its CRC. */
static bool end_chunk(png *p)
{
    unsigned char memory[1024];
    while (p->left > 0)
        if (!read_chunk(p, memory, p->left < sizeof(memory) ? p->left : sizeof(memory)))
            return false;
    if (!tarn__data_input_read(p->file, memory, 4, "a chunk's checksum"))
        return false;
    return big32(memory) == p->crc ||
           tarn__data_input_bad(p->file, p->begin, "chunk %s is damaged: its checksum is %08x, not %08lx", p->name,
                                big32(memory), p->crc);
}

/* Reads a complete chunk of min to max bytes. */
static bool read_whole_chunk(png *p, unsigned char *memory, uint32_t min, uint32_t max)
{
    if (p->left < min || p->left > max)
        return tarn__data_input_bad(p->file, p->begin, "chunk %s has %u bytes; it must have %u to %u", p->name, p->left,
                                    min, max);
    return read_chunk(p, memory, p->left) && end_chunk(p);
}

/* ---- header and palette ------------------------------------------------------------------------------------------ */

/* The combinations of depth and colour type that PNG allows. */
static bool is_valid_format(int depth, int colour)
{
    bool small = depth == 1 || depth == 2 || depth == 4, large = depth == 8 || depth == 16;
    return colour == 0   ? small || large
           : colour == 3 ? small || depth == 8
                         : (colour == 2 || colour == 4 || colour == 6) && large;
}

/* Reads the signature and IHDR, which must come first. */
static bool read_ihdr(png *p)
{
    unsigned char rest[6], head[13];
    if (!tarn__data_input_read(p->file, rest, 6, "the signature of a PNG file"))
        return false;
    if (memcmp(rest, "NG\r\n\x1A\n", 6) != 0)
        return tarn__data_input_bad(p->file, 2, "the signature of a PNG file is damaged; was it copied as text?");
    if (!begin_chunk(p))
        return false;
    if (!is_named(p, "IHDR"))
        return tarn__data_input_bad(p->file, p->begin, "chunk %s comes first, not IHDR", p->name);
    if (!read_whole_chunk(p, head, 13, 13) || !tarn__image_check_size(p->file, 16, big32(head + 4), big32(head)))
        return false;
    if (!is_valid_format(head[8], head[9]))
        return tarn__data_input_bad(p->file, 24, "depth %d with colour type %d is not valid in PNG", head[8], head[9]);
    if (head[10] || head[11] || head[12] > 1)
        return tarn__data_input_bad(p->file, 26,
                                    "compression %d, filter method %d, interlacing %d; they must be 0, 0 and 0 or 1",
                                    head[10], head[11], head[12]);
    p->info = (tarn__png_info){.width = big32(head),
                               .height = big32(head + 4),
                               .depth = head[8],
                               .colour = head[9],
                               .is_interlaced = head[12] == 1};
    return true;
}

/* Reads PLTE. A true-colour image may have one as a suggestion; it is checked and not used. */
static bool read_palette(png *p)
{
    unsigned char colours[3 * 256];
    tarn__png_info *info = &p->info;
    uint32_t max = info->colour & TARN__PNG_PALETTE ? 3u << info->depth : sizeof(colours), bytes = p->left;
    if (!(info->colour & TARN__PNG_COLOUR) || info->palette_count > 0 || info->has_transparency || bytes % 3 != 0)
        return tarn__data_input_bad(p->file, p->begin, "chunk PLTE is out of order, or its %u bytes are not colours",
                                    bytes);
    if (!read_whole_chunk(p, colours, 3, max))
        return false;
    info->palette_count = (int)(bytes / 3);
    for (int i = 0; i < info->palette_count; i++) {
        memcpy(info->palette[i], colours + 3 * i, 3);
        info->palette[i][3] = 255;
    }
    return true;
}

/* Reads tRNS: alpha of palette entries, or one colour (grey or RGB, 16 bits each) that is transparent. */
static bool read_transparency(png *p)
{
    unsigned char values[256];
    tarn__png_info *info = &p->info;
    bool is_palette = info->colour & TARN__PNG_PALETTE;
    uint32_t bytes = p->left, exact = info->colour & TARN__PNG_COLOUR ? 6 : 2;
    if (info->colour & TARN__PNG_ALPHA || info->has_transparency || (is_palette && info->palette_count == 0))
        return tarn__data_input_bad(p->file, p->begin, "chunk tRNS is out of order");
    if (!read_whole_chunk(p, values, is_palette ? 1 : exact, is_palette ? (uint32_t)info->palette_count : exact))
        return false;
    info->has_transparency = true;
    for (uint32_t i = 0; is_palette && i < bytes; i++)
        info->palette[i][3] = values[i];
    for (uint32_t i = 0; !is_palette && i < exact / 2; i++) {
        info->transparent[i] = (unsigned)values[2 * i] << 8 | values[2 * i + 1];
        if (info->transparent[i] >> info->depth != 0)
            return tarn__data_input_bad(p->file, p->begin, "chunk tRNS has the sample %u, too large for %d bits",
                                        info->transparent[i], info->depth);
    }
    return true;
}

/* Reads chunks up to the first IDAT, which is then the current chunk. */
static bool read_up_to_rows(png *p)
{
    for (;;) {
        if (!begin_chunk(p))
            return false;
        if (is_named(p, "IDAT"))
            break;
        /* Bit 5 of the first letter: small letters are chunks that a reader may skip. */
        bool is_ancillary = (p->name[0] & 32) != 0;
        bool good = is_named(p, "PLTE")   ? read_palette(p)
                    : is_named(p, "tRNS") ? read_transparency(p)
                                          : is_ancillary && end_chunk(p);
        if (!good)
            return tarn_failed()
                       ? false
                       : tarn__data_input_bad(p->file, p->begin, "chunk %s is not allowed before the image", p->name);
    }
    if (p->info.colour & TARN__PNG_PALETTE && p->info.palette_count == 0)
        return tarn__data_input_bad(p->file, p->begin, "the image uses a palette, but chunk PLTE is missing");
    return true;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Refills zlib's input from this IDAT or the next one. */
static bool refill(png *p)
{
    while (p->stream.avail_in == 0 && p->left == 0) {
        if (!end_chunk(p) || !begin_chunk(p))
            return false;
        if (!is_named(p, "IDAT"))
            return tarn__data_input_bad(p->file, p->begin, "chunk %s comes before the end of the compressed image",
                                        p->name);
    }
    if (p->stream.avail_in > 0)
        return true;
    size_t count = p->left < INPUT_BYTES ? p->left : INPUT_BYTES;
    p->stream.next_in = p->input;
    p->stream.avail_in = (unsigned)count;
    return read_chunk(p, p->input, count);
}

/* Inflates exactly `count` bytes (tarn__png_next_fn). */
static bool next_bytes(void *memory, size_t count, void *ctx)
{
    png *p = ctx;
    p->stream.next_out = memory;
    p->stream.avail_out = (unsigned)count;
    while (p->stream.avail_out > 0) {
        if (p->has_ended)
            return tarn__data_input_bad(p->file, p->file->at, "the compressed image ends before its last row");
        if (!refill(p))
            return false;
        int result = inflate(&p->stream, Z_NO_FLUSH);
        p->has_ended = result == Z_STREAM_END;
        if (result != Z_OK && result != Z_STREAM_END)
            return tarn__data_input_bad(p->file, p->file->at - p->stream.avail_in,
                                        "the compressed image is damaged: %s",
                                        p->stream.msg ? p->stream.msg : "no reason given");
    }
    return true;
}

/* After the last row: the zlib stream must end, with its own checksum, and the chunk with it. */
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
            return tarn__data_input_bad(p->file, p->file->at - p->stream.avail_in,
                                        "the compressed image is damaged at its end: %s",
                                        p->stream.msg ? p->stream.msg : "no reason given");
    }
    if (p->stream.avail_out == 0 || p->stream.avail_in > 0 || p->left > 0)
        return tarn__data_input_bad(p->file, p->file->at - p->stream.avail_in,
                                    "the compressed image continues after its last row");
    return end_chunk(p);
}

/* Allocates the image and decodes its rows. */
static bool read_rows(png *p, tarn_array *image)
{
    const tarn__png_info *info = &p->info;
    uint64_t bytes = tarn__png_bytes(info);
    /* Before the image is allocated: the file must be large enough to inflate to all rows. */
    if (bytes / MAX_INFLATION > (uint64_t)tarn__data_input_remaining(p->file))
        return tarn__data_input_bad(p->file, 16, "%lld x %lld pixels are %llu bytes, more than the file can hold",
                                    (long long)info->width, (long long)info->height, (unsigned long long)bytes);
    return tarn__image_alloc(image, tarn__png_channels(info), info->height, info->width) &&
           tarn__png_read_rows(info, p->file, next_bytes, p, image) && end_rows(p);
}

/* Skips the chunks after the image up to IEND, where the file must end. */
static bool read_trailing_chunks(png *p)
{
    do {
        if (!begin_chunk(p))
            return false;
        bool is_ancillary = (p->name[0] & 32) != 0,
             is_empty = p->left == 0 && (is_named(p, "IDAT") || is_named(p, "IEND"));
        if (!is_ancillary && !is_empty)
            return tarn__data_input_bad(p->file, p->begin, "chunk %s is not allowed after the image", p->name);
        if (!end_chunk(p))
            return false;
    } while (!is_named(p, "IEND"));
    return tarn__data_input_expect_end(p->file, "the chunks");
}

bool tarn__image_read_png(tarn__data_input *input_file, tarn_array *image)
{
    png *p = tarn__alloc(sizeof(*p));
    if (!p)
        return false;
    p->file = input_file;
    bool good =
        inflateInit(&p->stream) == Z_OK || tarn__raise(TARN_ERROR_MEMORY, "%s: %s: no memory for the decompressor",
                                                       input_file->function, input_file->path);
    good = good && read_ihdr(p) && read_up_to_rows(p) && read_rows(p, image) && read_trailing_chunks(p);
    inflateEnd(&p->stream);
    tarn__release(p, sizeof(*p));
    return good;
}

#else

bool tarn__image_read_png(tarn__data_input *input_file, tarn_array *image)
{
    (void)image;
    return tarn__raise(
        TARN_ERROR_UNSUPPORTED,
        "%s: %s is a PNG image, but tarn was built without zlib; install zlib1g-dev and build again, or save "
        "it as PGM or PPM",
        input_file->function, input_file->path);
}

#endif
