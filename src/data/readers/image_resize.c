/* image_resize.c: antialiased bilinear resizing, with the weights and the rounding of Pillow, and so of torchvision.
 *
 * Separable: rows first, rounded to u8, then columns; Pillow may take the columns first. Weights are integers of
 * WEIGHT_BITS bits, so results do not depend on the order of sums, on threads or on the processor. */
#include <math.h>
#include <string.h>

#include "data/readers/image.h"

enum { WEIGHT_BITS = 22 }; /* sums of 255 · weight fit into 31 bits */

/* Weights of one axis: result pixel i is the sum of weight[i · stride + k] · source[first[i] + k], k < count[i]. */
typedef struct taps {
    int64_t *first, *count; /* [to] */
    int32_t *weight;        /* [to, stride] */
    int64_t stride;
    void *memory; /* of all three, owned */
    size_t bytes;
} taps;

/* A triangle filter two pixels wide, in the pixels of the smaller image: an enlarged image is interpolated linearly,
 * and a reduced one averages all of its pixels. Pixel i covers i to i + 1, its centre is at i + 0.5. `row` is scratch
 * for the weights of a pixel. */
static void compute_pixel(taps *t, int64_t slot, int64_t index, int64_t from, int64_t to, double *row)
{
    double scale = (double)from / (double)to, reach = scale > 1 ? scale : 1, sum = 0,
           centre = ((double)index + 0.5) * scale;
    int64_t low = (int64_t)(centre - reach + 0.5), high = (int64_t)(centre + reach + 0.5);
    low = low < 0 ? 0 : low;
    high = high > from ? from : high;
    for (int64_t i = low; i < high; i++) {
        double distance = fabs(((double)i - centre + 0.5) * (1 / reach));
        row[i - low] = distance < 1 ? 1 - distance : 0;
        sum += row[i - low];
    }
    t->first[slot] = low;
    t->count[slot] = high - low;
    for (int64_t k = 0; k < high - low; k++)
        t->weight[slot * t->stride + k] = (int32_t)(0.5 + row[k] * (1 / sum) * (1 << WEIGHT_BITS));
}

/* The weights of result pixels begin … begin + kept - 1 of `to`. False with an error. */
static bool compute_taps(taps *t, int64_t from, int64_t to, int64_t begin, int64_t kept)
{
    t->stride = 2 * (int64_t)ceil(from > to ? (double)from / (double)to : 1) + 1;
    t->bytes =
        (size_t)kept * (2 * sizeof(int64_t) + (size_t)t->stride * sizeof(int32_t)) + (size_t)t->stride * sizeof(double);
    t->memory = tarn__alloc(t->bytes);
    if (!t->memory)
        return false;
    double *row = t->memory;
    t->first = (int64_t *)(row + t->stride);
    t->count = t->first + kept;
    t->weight = (int32_t *)(t->count + kept);
    for (int64_t i = 0; i < kept; i++)
        compute_pixel(t, i, begin + i, from, to, row);
    return true;
}

static uint8_t rounded(int32_t sum)
{
    int32_t value = sum >> WEIGHT_BITS;
    return (uint8_t)(value > 255 ? 255 : value < 0 ? 0 : value);
}

static void resize_row(const taps *t, const uint8_t *from, uint8_t *to, int64_t kept)
{
    for (int64_t x = 0; x < kept; x++) {
        const uint8_t *pixel = from + t->first[x];
        const int32_t *weight = t->weight + x * t->stride;
        int32_t sum = 1 << (WEIGHT_BITS - 1);
        for (int64_t k = 0; k < t->count[x]; k++)
            sum += weight[k] * pixel[k];
        to[x] = rounded(sum);
    }
}

/* Row y of the result from rows of `width` pixels; `sums`, [width], is scratch. */
static void resize_column(const taps *t, int64_t y, const uint8_t *rows, int64_t width, int32_t *sums, uint8_t *to)
{
    for (int64_t x = 0; x < width; x++)
        sums[x] = 1 << (WEIGHT_BITS - 1);
    for (int64_t k = 0; k < t->count[y]; k++) {
        const uint8_t *row = rows + (t->first[y] + k) * width;
        int32_t weight = t->weight[y * t->stride + k];
        for (int64_t x = 0; x < width; x++)
            sums[x] += weight * row[x];
    }
    for (int64_t x = 0; x < width; x++)
        to[x] = rounded(sums[x]);
}

bool tarn__image_resample(const tarn_array *image, const tarn__image_box *crop, int64_t height, int64_t width,
                          const tarn__image_box *kept, uint8_t *to)
{
    int64_t channels = image->shape.size[0], rows = image->shape.size[1], columns = image->shape.size[2];
    taps across = {0}, down = {0};
    bool good = compute_taps(&across, crop->width, width, kept->left, kept->width) &&
                compute_taps(&down, crop->height, height, kept->top, kept->height);
    /* only the rows that a kept one needs */
    int64_t first = good ? down.first[0] : 0,
            last = good ? down.first[kept->height - 1] + down.count[kept->height - 1] : 0;
    size_t sums_bytes = sizeof(int32_t) * (size_t)kept->width,
           between_bytes = (size_t)(last - first) * (size_t)kept->width;
    int32_t *sums = good ? tarn__alloc(sums_bytes) : NULL;
    uint8_t *between = sums ? tarn__alloc(between_bytes) : NULL; /* [last - first, kept->width] */
    for (int64_t i = 0; between && i < kept->height; i++)
        down.first[i] -= first;
    for (int64_t c = 0; between && c < channels; c++) {
        const uint8_t *from = (const uint8_t *)image->data + (c * rows + crop->top + first) * columns + crop->left;
        for (int64_t y = 0; y < last - first; y++)
            resize_row(&across, from + y * columns, between + y * kept->width, kept->width);
        for (int64_t y = 0; y < kept->height; y++)
            resize_column(&down, y, between, kept->width, sums, to + (c * kept->height + y) * kept->width);
    }
    good = between != NULL;
    tarn__release(between, between ? between_bytes : 0);
    tarn__release(sums, sums ? sums_bytes : 0);
    tarn__release(down.memory, down.memory ? down.bytes : 0);
    tarn__release(across.memory, across.memory ? across.bytes : 0);
    return good;
}

/* The longer side is rounded down, the margins half to even. */
void tarn__image_fit(int64_t height, int64_t width, int64_t side, int64_t *resized_height, int64_t *resized_width,
                     tarn__image_box *kept)
{
    bool is_wide = width > height;
    *resized_height = is_wide ? side : side * height / width;
    *resized_width = is_wide ? side * width / height : side;
    *kept = (tarn__image_box){.top = (int64_t)nearbyint((double)(*resized_height - side) / 2),
                              .left = (int64_t)nearbyint((double)(*resized_width - side) / 2),
                              .height = side,
                              .width = side};
}

bool tarn_image_resize(const tarn_array *image, int64_t height, int64_t width, tarn_array *resized)
{
    if (!tarn__image_check("image_resize", image, resized))
        return false;
    if (height < 1 || width < 1 || height > TARN__MAX_IMAGE_SIDE || width > TARN__MAX_IMAGE_SIDE)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "image_resize: %lld x %lld pixels (height x width) are out of range; 1 to %d per side",
                           (long long)height, (long long)width, TARN__MAX_IMAGE_SIDE);
    if (!tarn__image_alloc(resized, image->shape.size[0], height, width))
        return false;
    bool good =
        tarn__image_resample(image, &(tarn__image_box){.height = image->shape.size[1], .width = image->shape.size[2]},
                             height, width, &(tarn__image_box){.height = height, .width = width}, resized->data);
    if (!good)
        tarn_array_free(resized);
    return good;
}
