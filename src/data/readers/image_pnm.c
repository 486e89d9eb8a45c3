/* image_pnm.c: PGM and PPM images: "P5", width, height, the largest value, then the samples: as numbers in words (P2,
 * P3), or as one byte each, two where the largest value is above 255 (P5, P6). Samples are brought to 0 ... 255. */
#include <string.h>

#include "data/readers/image.h"

#define BUFFER 4096

typedef struct reader {
    tarn__data_input *source;
    int64_t before; /* bytes of the contents before those in the buffer */
    size_t at, count;
    unsigned char buffer[BUFFER];
} reader;

typedef struct header {
    int channels;
    bool is_text;
    int64_t width, height, largest;
} header;

static int64_t position(const reader *r)
{
    return r->before + (int64_t)r->at;
}

/* The byte that comes next, and stays; -1 at the end of the file, or with an error raised. */
static int peek(reader *r)
{
    if (r->at == r->count) {
        int64_t start = r->source->at, got = tarn__data_input_read_some(r->source, r->buffer, BUFFER);
        if (got <= 0)
            return -1;
        r->before = start;
        r->at = 0;
        r->count = (size_t)got;
    }
    return r->buffer[r->at];
}

static bool is_space(int c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Goes over white space and comments, which begin with # and end with their line. How many bytes it was. */
static int64_t skip_space(reader *r)
{
    int64_t begin = position(r);
    for (bool in_comment = false; in_comment ? peek(r) >= 0 : is_space(peek(r)) || peek(r) == '#'; r->at++)
        in_comment = peek(r) == '#' || (in_comment && peek(r) != '\n' && peek(r) != '\r');
    return position(r) - begin;
}

/* A whole number up to `most`, and what it is, for errors. White space must come before it. */
static bool read_number(reader *r, int64_t most, const char *what, int64_t *number)
{
    if (skip_space(r) == 0 && peek(r) >= 0)
        return tarn__data_input_bad(r->source, position(r), "white space is missing before %s", what);
    int64_t begin = position(r), value = 0;
    for (; peek(r) >= '0' && peek(r) <= '9'; r->at++) {
        value = value * 10 + peek(r) - '0';
        if (value > most)
            return tarn__data_input_bad(r->source, begin, "%s is above %lld", what, (long long)most);
    }
    if (tarn_failed())
        return false;
    if (position(r) == begin)
        return tarn__data_input_bad(r->source, begin, "%s%s", what,
                                    peek(r) < 0 ? " is missing: the file ends here" : " is no whole number");
    *number = value;
    return true;
}

/* Samples of text take two bytes at least, but for the last. */
static bool check_length(const reader *r, const header *h)
{
    uint64_t samples = (uint64_t)h->channels * (uint64_t)h->width * (uint64_t)h->height; /* at most 3 · 2^27 */
    uint64_t needed = h->is_text ? 2 * samples - 1 : samples * (h->largest > 255 ? 2 : 1);
    uint64_t left = (uint64_t)tarn__data_input_remaining(r->source) + (r->count - r->at);
    return needed <= left ||
           tarn__data_input_bad(
               r->source, position(r),
               "%lld x %lld pixels need %llu more bytes, but at most %llu follow; is the file complete?",
               (long long)h->width, (long long)h->height, (unsigned long long)needed, (unsigned long long)left);
}

static bool read_header(reader *r, char kind, header *h)
{
    *h = (header){.channels = kind == '2' || kind == '5' ? 1 : 3, .is_text = kind < '4'};
    if (!read_number(r, INT32_MAX, "the width", &h->width) || !read_number(r, INT32_MAX, "the height", &h->height) ||
        !tarn__image_check_size(r->source, position(r), (uint64_t)h->height, (uint64_t)h->width) ||
        !read_number(r, 65535, "the largest value", &h->largest))
        return false;
    if (h->largest < 1)
        return tarn__data_input_bad(r->source, position(r) - 1, "the largest value is 0");
    if (!h->is_text) { /* one byte of white space, and no comment: the samples may look like one */
        if (!is_space(peek(r)))
            return tarn_failed()
                       ? false
                       : tarn__data_input_bad(r->source, position(r), "white space is missing after the largest value");
        r->at++;
    }
    return check_length(r, h);
}

/* The next sample as the file has it. */
static bool read_sample(reader *r, const header *h, int64_t *sample)
{
    int64_t begin = position(r);
    if (h->is_text)
        return read_number(r, h->largest, "a sample", sample);
    *sample = 0;
    for (int i = 0; i < (h->largest > 255 ? 2 : 1); i++, r->at++) {
        if (peek(r) < 0)
            return tarn_failed()
                       ? false
                       : tarn__data_input_bad(r->source, position(r), "the file ends here, inside the samples");
        *sample = *sample << 8 | peek(r);
    }
    return *sample <= h->largest ||
           tarn__data_input_bad(r->source, begin, "a sample is %lld, above the largest value %lld", (long long)*sample,
                                (long long)h->largest);
}

/* [H, W, C] in the file becomes [C, H, W]. */
static bool read_samples(reader *r, const header *h, uint8_t *to)
{
    int64_t plane = h->width * h->height, sample;
    for (int64_t i = 0; i < plane; i++)
        for (int c = 0; c < h->channels; c++) {
            if (!read_sample(r, h, &sample))
                return false;
            to[c * plane + i] = (uint8_t)((sample * 255 + h->largest / 2) / h->largest);
        }
    if (h->is_text)
        skip_space(r);
    if (peek(r) >= 0)
        return tarn__data_input_bad(r->source, position(r), "the image ends here, but the file goes on");
    return !tarn_failed();
}

bool tarn__image_read_pnm(tarn__data_input *source, char kind, tarn_array *image)
{
    header h;
    reader r = {.source = source, .before = source->at};
    if (kind == '1' || kind == '4' || kind == '7')
        return tarn__data_input_bad(source, 0, "a file of kind P%c (%s) is not read; P2, P3, P5 and P6 are", kind,
                                    kind == '7' ? "PAM" : "a bitmap");
    return read_header(&r, kind, &h) && tarn__image_alloc(image, h.channels, h.height, h.width) &&
           read_samples(&r, &h, image->data);
}
