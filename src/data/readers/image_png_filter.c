/* image_png_filter.c: a PNG's rows. Each begins with the number of its filter, which says what was taken from its
 * bytes: nothing, or what the bytes to the left and above would predict. An interlaced file holds seven small images,
 * each a grid of pixels of the whole one. */
#include <stdlib.h>
#include <string.h>

#include "data/readers/image_png.h"

/* A grid of pixels: every `across`th from `left` on, every `down`th row from `top` on. */
typedef struct grid {
    int left, top, across, down;
} grid;

static const grid passes[7] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                               {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
static const grid whole = {0, 0, 1, 1};

/* How many of `size` are on a grid. */
static int64_t count_on(int64_t size, int first, int step)
{
    return size > first ? (size - first + step - 1) / step : 0;
}

static size_t row_bytes(const tarn__png_info *form, int64_t width)
{
    return ((size_t)width * (size_t)(tarn__png_samples(form) * form->depth) + 7) / 8;
}

int tarn__png_samples(const tarn__png_info *form)
{
    return form->colour & TARN__PNG_PALETTE
               ? 1
               : (form->colour & TARN__PNG_COLOUR ? 3 : 1) + (form->colour & TARN__PNG_ALPHA ? 1 : 0);
}

int tarn__png_channels(const tarn__png_info *form)
{
    return (form->colour & TARN__PNG_COLOUR ? 3 : 1) +
           (form->colour & TARN__PNG_ALPHA || form->has_transparency ? 1 : 0);
}

uint64_t tarn__png_bytes(const tarn__png_info *form)
{
    uint64_t bytes = 0;
    for (int i = 0; i < (form->is_interlaced ? 7 : 1); i++) {
        const grid *g = form->is_interlaced ? &passes[i] : &whole;
        int64_t across = count_on(form->width, g->left, g->across), down = count_on(form->height, g->top, g->down);
        bytes += across ? (uint64_t)down * (1 + row_bytes(form, across)) : 0;
    }
    return bytes;
}

/* ---- filters ----------------------------------------------------------------------------------------------------- */

/* The neighbour, left, above or above left, that is nearest to left + above - above left. */
static int nearest(int left, int above, int corner)
{
    int to_left = abs(above - corner), to_above = abs(left - corner), to_corner = abs(left + above - 2 * corner);
    return to_left <= to_above && to_left <= to_corner ? left : to_above <= to_corner ? above : corner;
}

/* Puts back what the filter took. `reach` bytes lie between neighbours; what is outside counts as 0. */
static void unfilter(int filter, unsigned char *row, const unsigned char *above, size_t count, size_t reach)
{
    for (size_t i = 0; i < count; i++) {
        int left = i >= reach ? row[i - reach] : 0, corner = i >= reach ? above[i - reach] : 0;
        int guess = filter == 1   ? left
                    : filter == 2 ? above[i]
                    : filter == 3 ? (left + above[i]) / 2
                    : filter == 4 ? nearest(left, above[i], corner)
                                  : 0;
        row[i] = (unsigned char)(row[i] + guess);
    }
}

/* ---- pixels ------------------------------------------------------------------------------------------------------ */

/* Sample `i` of a row, as the file has it. */
static unsigned sample_at(const unsigned char *row, int depth, int64_t i)
{
    if (depth == 16)
        return (unsigned)row[2 * i] << 8 | row[2 * i + 1];
    if (depth == 8)
        return row[i];
    int64_t bit = i * depth;
    return (unsigned)row[bit / 8] >> (8 - depth - bit % 8) & ((1u << depth) - 1);
}

static unsigned char to_byte(unsigned sample, int depth)
{
    /* 255 is a multiple of 1, 3, 15 and itself */
    return (unsigned char)(depth == 16 ? sample >> 8 : sample * 255 / ((1u << depth) - 1));
}

/* The channels of pixel `i`. False when its colour is not in the palette. */
static bool read_pixel(const tarn__png_info *form, const unsigned char *row, int64_t i, unsigned char *channel)
{
    int samples = tarn__png_samples(form);
    if (form->colour & TARN__PNG_PALETTE) {
        unsigned index = sample_at(row, form->depth, i);
        if (index >= (unsigned)form->palette_count)
            return false;
        memcpy(channel, form->palette[index], 4);
        return true;
    }
    bool is_transparent = true;
    for (int s = 0; s < samples; s++) {
        unsigned sample = sample_at(row, form->depth, i * samples + s);
        channel[s] = to_byte(sample, form->depth);
        is_transparent = is_transparent && s < 3 && sample == form->transparent[s];
    }
    if (form->has_transparency)
        channel[samples] = is_transparent ? 0 : 255;
    return true;
}

/* A row of a grid into the planes of the image. */
static bool place_row(const tarn__png_info *form, const unsigned char *row, const grid *g, int64_t y, tarn_array *image)
{
    int64_t plane = form->width * form->height;
    int channels = (int)image->shape.size[0];
    uint8_t *to = (uint8_t *)image->data + y * form->width;
    for (int64_t x = g->left, i = 0; x < form->width; x += g->across, i++) {
        unsigned char channel[4];
        if (!read_pixel(form, row, i, channel))
            return false;
        for (int c = 0; c < channels; c++)
            to[c * plane + x] = channel[c];
    }
    return true;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Two rows, of `bytes` and one for the filter, take turns: the one being read and the one above, which is zeros at
 * first. */
typedef struct pair {
    unsigned char *row, *above;
    size_t bytes;
} pair;

static bool read_grid(const tarn__png_info *form, const tarn__data_input *source, const grid *g, pair *rows,
                      tarn__png_next_fn next, void *ctx, tarn_array *image)
{
    size_t bits = (size_t)(tarn__png_samples(form) * form->depth),
           count = row_bytes(form, count_on(form->width, g->left, g->across));
    memset(rows->above, 0, rows->bytes);
    for (int64_t y = g->top; count > 0 && y < form->height; y += g->down) {
        if (!next(rows->row, 1 + count, ctx))
            return false;
        if (rows->row[0] > 4)
            return tarn__data_input_bad(source, source->at, "row %lld has filter %d; there are 0 to 4", (long long)y,
                                        rows->row[0]);
        unfilter(rows->row[0], rows->row + 1, rows->above + 1, count, bits < 8 ? 1 : bits / 8);
        if (!place_row(form, rows->row + 1, g, y, image))
            return tarn__data_input_bad(source, source->at, "row %lld has a colour that is not among the palette's %d",
                                        (long long)y, form->palette_count);
        unsigned char *held = rows->above;
        rows->above = rows->row;
        rows->row = held;
    }
    return true;
}

bool tarn__png_read_rows(const tarn__png_info *form, const tarn__data_input *source, tarn__png_next_fn next, void *ctx,
                         tarn_array *image)
{
    size_t bytes = 1 + row_bytes(form, form->width);
    unsigned char *memory = tarn__alloc(2 * bytes);
    bool good = memory != NULL;
    pair rows = {memory, memory ? memory + bytes : NULL, bytes};
    for (int i = 0; good && i < (form->is_interlaced ? 7 : 1); i++)
        good = read_grid(form, source, form->is_interlaced ? &passes[i] : &whole, &rows, next, ctx, image);
    tarn__release(memory, 2 * bytes);
    return good;
}
