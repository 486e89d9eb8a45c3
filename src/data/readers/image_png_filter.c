/* image_png_filter.c: the rows of a PNG.
 *
 * Each row begins with the number of its filter: its bytes are differences to a prediction from the bytes to the left
 * and above. An interlaced file (Adam7) holds seven reduced images, each a grid of pixels of the full one. */
#include <stdlib.h>
#include <string.h>

#include "data/readers/image.h"

/* A grid of pixels: every `across`-th from `left`, every `down`-th row from `top`. */
typedef struct grid {
    int left, top, across, down;
} grid;

/* The passes of Adam7, in file order. */
static const grid passes[7] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                               {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
static const grid whole = {0, 0, 1, 1};

/* Number of grid points along an axis of `size` pixels. */
static int64_t count_on(int64_t size, int first, int step)
{
    return size > first ? (size - first + step - 1) / step : 0;
}

/* Bytes of a row without its filter byte; samples below 8 bits are packed. */
static size_t row_bytes(const tarn__png_info *info, int64_t width)
{
    return ((size_t)width * (size_t)(tarn__png_samples(info) * info->depth) + 7) / 8;
}

/* A palette image has one sample per pixel, the index; otherwise the colour type's bits decide. */
int tarn__png_samples(const tarn__png_info *info)
{
    return info->colour & TARN__PNG_PALETTE
               ? 1
               : (info->colour & TARN__PNG_COLOUR ? 3 : 1) + (info->colour & TARN__PNG_ALPHA ? 1 : 0);
}

int tarn__png_channels(const tarn__png_info *info)
{
    return (info->colour & TARN__PNG_COLOUR ? 3 : 1) +
           (info->colour & TARN__PNG_ALPHA || info->has_transparency ? 1 : 0);
}

/* A pass without columns has no rows in the file either. */
uint64_t tarn__png_bytes(const tarn__png_info *info)
{
    uint64_t bytes = 0;
    for (int i = 0; i < (info->is_interlaced ? 7 : 1); i++) {
        const grid *g = info->is_interlaced ? &passes[i] : &whole;
        int64_t across = count_on(info->width, g->left, g->across), down = count_on(info->height, g->top, g->down);
        bytes += across ? (uint64_t)down * (1 + row_bytes(info, across)) : 0;
    }
    return bytes;
}

/* ---- filters ----------------------------------------------------------------------------------------------------- */

/* The Paeth predictor: of left, above and corner (above left) the one nearest to left + above - corner. The order of
 * the comparisons is part of the format. */
static int paeth(int left, int above, int corner)
{
    int to_left = abs(above - corner), to_above = abs(left - corner), to_corner = abs(left + above - 2 * corner);
    return to_left <= to_above && to_left <= to_corner ? left : to_above <= to_corner ? above : corner;
}

/* Undoes a filter in place: adds the prediction to each byte. `stride` is the distance between neighbouring pixels in
 * bytes, at least 1. Neighbours outside the image are 0. */
static void unfilter(int filter, unsigned char *row, const unsigned char *above, size_t count, size_t stride)
{
    for (size_t i = 0; i < count; i++) {
        int left = i >= stride ? row[i - stride] : 0, corner = i >= stride ? above[i - stride] : 0;
        int prediction = filter == 1   ? left
                         : filter == 2 ? above[i]
                         : filter == 3 ? (left + above[i]) / 2
                         : filter == 4 ? paeth(left, above[i], corner)
                                       : 0;
        row[i] = (unsigned char)(row[i] + prediction);
    }
}

/* ---- pixels ------------------------------------------------------------------------------------------------------ */

/* Sample i of a row, at the file's depth; packed samples start at the high bits. */
static unsigned sample_at(const unsigned char *row, int depth, int64_t i)
{
    if (depth == 16)
        return (unsigned)row[2 * i] << 8 | row[2 * i + 1];
    if (depth == 8)
        return row[i];
    int64_t bit = i * depth;
    return (unsigned)row[bit / 8] >> (8 - depth - bit % 8) & ((1u << depth) - 1);
}

/* Scales a sample to 0 … 255. 16 bits keep their high byte, as libpng's strip_16. */
static unsigned char to_byte(unsigned sample, int depth)
{
    /* 255 is a multiple of 1, 3, 15 and itself */
    return (unsigned char)(depth == 16 ? sample >> 8 : sample * 255 / ((1u << depth) - 1));
}

/* Decodes pixel i into its channels. False when its index is outside the palette. */
static bool read_pixel(const tarn__png_info *info, const unsigned char *row, int64_t i, unsigned char *channel)
{
    int samples = tarn__png_samples(info);
    if (info->colour & TARN__PNG_PALETTE) {
        unsigned index = sample_at(row, info->depth, i);
        if (index >= (unsigned)info->palette_count)
            return false;
        memcpy(channel, info->palette[index], 4);
        return true;
    }
    bool is_transparent = true;
    for (int s = 0; s < samples; s++) {
        unsigned sample = sample_at(row, info->depth, i * samples + s);
        channel[s] = to_byte(sample, info->depth);
        is_transparent = is_transparent && s < 3 && sample == info->transparent[s];
    }
    if (info->has_transparency)
        channel[samples] = is_transparent ? 0 : 255;
    return true;
}

/* Decodes a row of a grid into the planes of the image, (C, H, W). */
static bool write_row(const tarn__png_info *info, const unsigned char *row, const grid *g, int64_t y, tarn_array *image)
{
    int64_t plane = info->width * info->height;
    int channels = (int)image->shape.size[0];
    uint8_t *to = (uint8_t *)image->data + y * info->width;
    for (int64_t x = g->left, i = 0; x < info->width; x += g->across, i++) {
        unsigned char channel[4];
        if (!read_pixel(info, row, i, channel))
            return false;
        for (int c = 0; c < channels; c++)
            to[c * plane + x] = channel[c];
    }
    return true;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Two row buffers, swapped after each row: the current one and the one above, zeros at first. Both begin with the byte
 * of the filter. */
typedef struct pair {
    unsigned char *row, *above;
    size_t bytes;
} pair;

/* Decodes one grid: the full image, or a pass of Adam7. A grid without pixels has no bytes in the file. */
static bool read_grid(const tarn__png_info *info, const tarn__data_input *input, const grid *g, pair *rows,
                      tarn__png_next_fn next, void *ctx, tarn_array *image)
{
    size_t bits = (size_t)(tarn__png_samples(info) * info->depth),
           count = row_bytes(info, count_on(info->width, g->left, g->across));
    memset(rows->above, 0, rows->bytes);
    for (int64_t y = g->top; count > 0 && y < info->height; y += g->down) {
        if (!next(rows->row, 1 + count, ctx))
            return false;
        if (rows->row[0] > 4)
            return tarn__data_input_bad(input, input->at, "row %lld has filter %d; it must be 0 to 4", (long long)y,
                                        rows->row[0]);
        unfilter(rows->row[0], rows->row + 1, rows->above + 1, count, bits < 8 ? 1 : bits / 8);
        if (!write_row(info, rows->row + 1, g, y, image))
            return tarn__data_input_bad(input, input->at, "row %lld has a colour outside the palette of %d",
                                        (long long)y, info->palette_count);
        unsigned char *swapped = rows->above;
        rows->above = rows->row;
        rows->row = swapped;
    }
    return true;
}

/* Decodes the full image, or the seven passes one after the other; rows of all passes share two buffers. */
bool tarn__png_read_rows(const tarn__png_info *info, const tarn__data_input *input, tarn__png_next_fn next, void *ctx,
                         tarn_array *image)
{
    size_t bytes = 1 + row_bytes(info, info->width);
    unsigned char *memory = tarn__alloc(2 * bytes);
    bool good = memory != NULL;
    pair rows = {memory, memory ? memory + bytes : NULL, bytes};
    for (int i = 0; good && i < (info->is_interlaced ? 7 : 1); i++)
        good = read_grid(info, input, info->is_interlaced ? &passes[i] : &whole, &rows, next, ctx, image);
    tarn__release(memory, 2 * bytes);
    return good;
}
