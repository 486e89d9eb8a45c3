/* image_convert.c: resizing images, and conversion between grey, colour and alpha.
 *
 * Resizing is separable: lines first into f64 (H, W'), then columns into u8 (H', W'). Results do not depend on threads:
 * each is one sum in a fixed order. */
#include <math.h>

#include "data/readers/image.h"

/* Checks that the image is u8 (C, H, W) within the limits, and that the result is another array. */
static bool check_image(const char *function, const tarn_array *image, const tarn_array *result)
{
    if (tarn_failed())
        return false;
    if (!image || !image->data || !result || image == result)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           !image            ? "the image is NULL"
                           : !image->data    ? "the image has no data"
                           : image == result ? "the result cannot be the image itself"
                                             : "the result pointer is NULL");
    const tarn_shape *shape = &image->shape;
    if (image->dtype != TARN_U8)
        return tarn__raise(TARN_ERROR_DTYPE, "%s: the image must be u8", function);
    if (shape->rank != 3 || shape->size[0] < 1 || shape->size[0] > 4)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: the image must be [C, H, W] with 1 to 4 channels, but has %d axes%s",
                           function, shape->rank, shape->rank == 3 ? " and another number of channels" : "");
    for (int i = 1; i < 3; i++)
        if (shape->size[i] < 1 || shape->size[i] > TARN__MAX_IMAGE_SIDE)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: the image has %lld pixels on axis %d; 1 to %d are allowed",
                               function, (long long)shape->size[i], i, TARN__MAX_IMAGE_SIDE);
    return true;
}

/* ---- size -------------------------------------------------------------------------------------------------------- */

/* The source pixels of one result pixel and their weights: a triangle filter two pixels wide, in the pixels of the
 * smaller image. So an enlarged image is interpolated linearly, and a reduced one averages all of its pixels
 * (antialiasing). */
typedef struct taps {
    int64_t first, count;
    double *weight; /* [count], sum 1; borrowed scratch */
} taps;

/* Upper bound of taps.count for all pixels of an axis. */
static int64_t max_taps(int64_t from, int64_t to)
{
    return 2 * (from / to + 1) + 3;
}

/* Taps of result pixel `index`. Pixel i covers i to i + 1, its centre is at i + 0.5. */
static void compute_taps(taps *t, int64_t index, int64_t from, int64_t to)
{
    double scale = (double)from / (double)to, reach = scale > 1 ? scale : 1, centre = ((double)index + .5) * scale,
           sum = 0;
    int64_t low = (int64_t)ceil(centre - reach - .5), high = (int64_t)floor(centre + reach - .5);
    t->first = low < 0 ? 0 : low;
    high = high > from - 1 ? from - 1 : high;
    t->count = high - t->first + 1;
    for (int64_t i = 0; i < t->count; i++) {
        double distance = fabs((double)(t->first + i) + .5 - centre) / reach;
        t->weight[i] = distance < 1 ? 1 - distance : 0;
        sum += t->weight[i];
    }
    for (int64_t i = 0; i < t->count; i++)
        t->weight[i] /= sum;
}

/* u8 (rows, from) → f64 (rows, to). */
static void resize_across(const uint8_t *image, int64_t rows, int64_t from, int64_t to, taps *t, double *result)
{
    for (int64_t x = 0; x < to; x++) {
        compute_taps(t, x, from, to);
        for (int64_t y = 0; y < rows; y++) {
            const uint8_t *pixel = image + y * from + t->first;
            double sum = 0;
            for (int64_t i = 0; i < t->count; i++)
                sum += t->weight[i] * pixel[i];
            result[y * to + x] = sum;
        }
    }
}

/* f64 (from, columns) → u8 (to, columns), rounded to nearest. */
static void resize_down(const double *image, int64_t columns, int64_t from, int64_t to, taps *t, uint8_t *result)
{
    for (int64_t y = 0; y < to; y++) {
        compute_taps(t, y, from, to);
        for (int64_t x = 0; x < columns; x++) {
            double sum = .5;
            for (int64_t i = 0; i < t->count; i++)
                sum += t->weight[i] * image[(t->first + i) * columns + x];
            result[y * columns + x] = (uint8_t)(sum > 255 ? 255 : sum);
        }
    }
}

/* Cost: H · W' · taps + H' · W' · taps multiplications per channel. */
bool tarn_image_resize(const tarn_array *image, int64_t height, int64_t width, tarn_array *resized)
{
    if (!check_image("image_resize", image, resized))
        return false;
    if (height < 1 || width < 1 || height > TARN__MAX_IMAGE_SIDE || width > TARN__MAX_IMAGE_SIDE)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "image_resize: %lld x %lld pixels (height x width) are out of range; 1 to %d per side",
                           (long long)height, (long long)width, TARN__MAX_IMAGE_SIDE);
    *resized = (tarn_array){0};
    int64_t channels = image->shape.size[0], rows = image->shape.size[1], columns = image->shape.size[2];
    int64_t across = max_taps(columns, width), down = max_taps(rows, height);
    size_t weights = sizeof(double) * (size_t)(across > down ? across : down),
           between_bytes = sizeof(double) * (size_t)(rows * width);
    taps t = {.weight = tarn__alloc(weights)};
    double *between = t.weight ? tarn__alloc(between_bytes) : NULL; /* [rows, width] */
    bool good = between && tarn__image_alloc(resized, channels, height, width);
    for (int64_t c = 0; good && c < channels; c++) {
        resize_across((const uint8_t *)image->data + c * rows * columns, rows, columns, width, &t, between);
        resize_down(between, width, rows, height, &t, (uint8_t *)resized->data + c * height * width);
    }
    tarn__release(between, between ? between_bytes : 0);
    tarn__release(t.weight, t.weight ? weights : 0);
    return good;
}

/* ---- channels ---------------------------------------------------------------------------------------------------- */

/* Red, green and blue of a pixel, composed over white where it is transparent. */
static void on_white(const uint8_t *pixel, int64_t plane, int64_t channels, unsigned *colour)
{
    bool has_alpha = channels == 2 || channels == 4;
    unsigned alpha = has_alpha ? pixel[(channels - 1) * plane] : 255;
    for (int c = 0; c < 3; c++) {
        unsigned value = pixel[channels > 2 ? c * plane : 0];
        colour[c] = (value * alpha + 255 * (255 - alpha) + 127) / 255;
    }
}

/* Alpha is composed over white first, then colour is converted. */
bool tarn_image_convert(const tarn_array *image, int64_t channels, tarn_array *converted)
{
    if (!check_image("image_convert", image, converted))
        return false;
    if (channels != 1 && channels != 3)
        return tarn__raise(TARN_ERROR_ARGUMENT, "image_convert: channels is %lld; it must be 1 (grey) or 3 (colour)",
                           (long long)channels);
    int64_t from = image->shape.size[0], plane = image->shape.size[1] * image->shape.size[2];
    const uint8_t *pixel = image->data;
    if (!tarn__image_alloc(converted, channels, image->shape.size[1], image->shape.size[2]))
        return false;
    uint8_t *to = converted->data;
    for (int64_t i = 0; i < plane; i++) {
        unsigned colour[3];
        on_white(pixel + i, plane, from, colour);
        for (int c = 0; channels == 3 && c < 3; c++)
            to[c * plane + i] = (uint8_t)colour[c];
        if (channels == 1) /* luma of ITU-R BT.601, in 16-bit fixed point */
            to[i] = (uint8_t)((19595 * colour[0] + 38470 * colour[1] + 7471 * colour[2] + 32768) >> 16);
    }
    return true;
}
