/* image_pnm.c: PGM and PPM images.
 *
 * "P5", width, height, maximum value, then the samples, (H, W, C): decimal (P2, P3), or one byte each, two big-endian
 * ones where the maximum is above 255 (P5, P6). Samples are scaled to 0 … 255, rounded to nearest. */
#include <string.h>

#include "data/readers/image.h"

#define BUFFER 4096

/* A buffered reader: samples are read byte by byte. */
typedef struct reader {
    tarn__data_input *input;
    int64_t before; /* position of the buffer's first byte in the contents */
    size_t at, count;
    unsigned char buffer[BUFFER];
} reader;

/* The header of an image. */
typedef struct header {
    int channels;
    bool is_text;
    int64_t width, height, max_value;
} header;

/* Position of the next byte in the contents, for errors. */
static int64_t position(const reader *r)
{
    return r->before + (int64_t)r->at;
}

/* Peeks at the next byte; -1 at the end of the file, or with an error. */
static int peek(reader *r)
{
    if (r->at == r->count) {
        int64_t start = r->input->at, got = tarn__data_input_read_some(r->input, r->buffer, BUFFER);
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

/* Skips whitespace and comments, from # to the end of the line. Returns the number of bytes. */
static int64_t skip_space(reader *r)
{
    int64_t begin = position(r);
    for (bool in_comment = false; in_comment ? peek(r) >= 0 : is_space(peek(r)) || peek(r) == '#'; r->at++)
        in_comment = peek(r) == '#' || (in_comment && peek(r) != '\n' && peek(r) != '\r');
    return position(r) - begin;
}

/* Reads an integer of at most `max`, preceded by whitespace. `what` names it in errors. */
static bool read_number(reader *r, int64_t max, const char *what, int64_t *number)
{
    if (skip_space(r) == 0 && peek(r) >= 0)
        return tarn__data_input_bad(r->input, position(r), "whitespace is missing before %s", what);
    int64_t begin = position(r), value = 0;
    for (; peek(r) >= '0' && peek(r) <= '9'; r->at++) {
        value = value * 10 + peek(r) - '0';
        if (value > max)
            return tarn__data_input_bad(r->input, begin, "%s is above %lld", what, (long long)max);
    }
    if (tarn_failed())
        return false;
    if (position(r) == begin)
        return tarn__data_input_bad(r->input, begin, "%s%s", what,
                                    peek(r) < 0 ? " is missing: the file ends here" : " is not an integer");
    *number = value;
    return true;
}

/* Checks that the samples can fit into the rest of the file. A decimal sample takes at least two bytes, the last one
 * one. */
static bool check_length(const reader *r, const header *h)
{
    uint64_t samples = (uint64_t)h->channels * (uint64_t)h->width * (uint64_t)h->height; /* at most 3 · 2^27 */
    uint64_t needed = h->is_text ? 2 * samples - 1 : samples * (h->max_value > 255 ? 2 : 1);
    uint64_t left = (uint64_t)tarn__data_input_remaining(r->input) + (r->count - r->at);
    return needed <= left ||
           tarn__data_input_bad(
               r->input, position(r),
               "%lld x %lld pixels need %llu more bytes, but at most %llu follow; is the file complete?",
               (long long)h->width, (long long)h->height, (unsigned long long)needed, (unsigned long long)left);
}

/* Reads the header after its two magic bytes. */
static bool read_header(reader *r, char kind, header *h)
{
    *h = (header){.channels = kind == '2' || kind == '5' ? 1 : 3, .is_text = kind < '4'};
    if (!read_number(r, INT32_MAX, "the width", &h->width) || !read_number(r, INT32_MAX, "the height", &h->height) ||
        !tarn__image_check_size(r->input, position(r), (uint64_t)h->height, (uint64_t)h->width) ||
        !read_number(r, 65535, "the largest value", &h->max_value))
        return false;
    if (h->max_value < 1)
        return tarn__data_input_bad(r->input, position(r) - 1, "the largest value is 0");
    if (!h->is_text) { /* one byte of whitespace and no comment: samples may look like one */
        if (!is_space(peek(r)))
            return tarn_failed()
                       ? false
                       : tarn__data_input_bad(r->input, position(r), "whitespace is missing after the largest value");
        r->at++;
    }
    return check_length(r, h);
}

/* Reads the next sample, 0 … max_value. */
static bool read_sample(reader *r, const header *h, int64_t *sample)
{
    int64_t begin = position(r);
    if (h->is_text)
        return read_number(r, h->max_value, "a sample", sample);
    *sample = 0;
    for (int i = 0; i < (h->max_value > 255 ? 2 : 1); i++, r->at++) {
        if (peek(r) < 0)
            return tarn_failed()
                       ? false
                       : tarn__data_input_bad(r->input, position(r), "the file ends here, inside the samples");
        *sample = *sample << 8 | peek(r);
    }
    return *sample <= h->max_value ||
           tarn__data_input_bad(r->input, begin, "a sample is %lld, above the largest value %lld", (long long)*sample,
                                (long long)h->max_value);
}

/* Reads all samples, (H, W, C), into planes (C, H, W). The file must end after them. */
static bool read_samples(reader *r, const header *h, uint8_t *to)
{
    int64_t plane = h->width * h->height, sample;
    for (int64_t i = 0; i < plane; i++)
        for (int c = 0; c < h->channels; c++) {
            if (!read_sample(r, h, &sample))
                return false;
            to[c * plane + i] = (uint8_t)((sample * 255 + h->max_value / 2) / h->max_value);
        }
    if (h->is_text)
        skip_space(r);
    if (peek(r) >= 0)
        return tarn__data_input_bad(r->input, position(r), "the image ends here, but more bytes follow");
    return !tarn_failed();
}

bool tarn__image_read_pnm(tarn__data_input *input, char kind, tarn_array *image)
{
    header h;
    reader r = {.input = input, .before = input->at};
    if (kind == '1' || kind == '4' || kind == '7')
        return tarn__data_input_bad(input, 0, "P%c (%s) is not supported; P2, P3, P5 and P6 are", kind,
                                    kind == '7' ? "PAM" : "a bitmap");
    return read_header(&r, kind, &h) && tarn__image_alloc(image, h.channels, h.height, h.width) &&
           read_samples(&r, &h, image->data);
}
