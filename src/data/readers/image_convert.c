/* image_convert.c: images in another size, and in grey or colour. */
#include <math.h>

#include "data/readers/image.h"

/* The image is u8 [C, H, W] of sizes that are allowed, and the result has a place of its own. */
static bool check_image(const char *function, const tarn_array *image, const tarn_array *result)
{
    if (tarn_failed())
        return false;
    if (!image || !image->data || !result || image == result)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           !image            ? "the image is NULL"
                           : !image->data    ? "the image has no data"
                           : image == result ? "the result cannot be the image itself"
                                             : "the place for the result is NULL");
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

/* The pixels that one pixel of the result is made of, weighted by a triangle about its middle: as wide as two pixels of
 * whichever image has the larger ones. So an image that grows is interpolated, and in one that shrinks every pixel
 * counts. */
typedef struct taps {
    int64_t first, count;
    double *weight; /* adding up to 1 */
} taps;

static int64_t most_taps(int64_t from, int64_t to)
{
    return 2 * (from / to + 1) + 3;
}

static void weigh(taps *t, int64_t index, int64_t from, int64_t to)
{
    double scale = (double)from / (double)to, reach = scale > 1 ? scale : 1, middle = ((double)index + .5) * scale,
           sum = 0;
    int64_t low = (int64_t)ceil(middle - reach - .5), high = (int64_t)floor(middle + reach - .5);
    t->first = low < 0 ? 0 : low;
    high = high > from - 1 ? from - 1 : high;
    t->count = high - t->first + 1;
    for (int64_t i = 0; i < t->count; i++) {
        double distance = fabs((double)(t->first + i) + .5 - middle) / reach;
        t->weight[i] = distance < 1 ? 1 - distance : 0;
        sum += t->weight[i];
    }
    for (int64_t i = 0; i < t->count; i++)
        t->weight[i] /= sum;
}

/* [rows, from] of u8 → [rows, to] of f64. */
static void resize_across(const uint8_t *image, int64_t rows, int64_t from, int64_t to, taps *t, double *result)
{
    for (int64_t x = 0; x < to; x++) {
        weigh(t, x, from, to);
        for (int64_t y = 0; y < rows; y++) {
            const uint8_t *pixel = image + y * from + t->first;
            double sum = 0;
            for (int64_t i = 0; i < t->count; i++)
                sum += t->weight[i] * pixel[i];
            result[y * to + x] = sum;
        }
    }
}

/* [from, columns] of f64 → [to, columns] of u8. */
static void resize_down(const double *image, int64_t columns, int64_t from, int64_t to, taps *t, uint8_t *result)
{
    for (int64_t y = 0; y < to; y++) {
        weigh(t, y, from, to);
        for (int64_t x = 0; x < columns; x++) {
            double sum = .5;
            for (int64_t i = 0; i < t->count; i++)
                sum += t->weight[i] * image[(t->first + i) * columns + x];
            result[y * columns + x] = (uint8_t)(sum > 255 ? 255 : sum);
        }
    }
}

bool tarn_image_resize(const tarn_array *image, int64_t height, int64_t width, tarn_array *resized)
{
    if (!check_image("image_resize", image, resized))
        return false;
    if (height < 1 || width < 1 || height > TARN__MAX_IMAGE_SIDE || width > TARN__MAX_IMAGE_SIDE)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "image_resize: %lld x %lld pixels (height x width) cannot be made; 1 to %d a side can",
                           (long long)height, (long long)width, TARN__MAX_IMAGE_SIDE);
    *resized = (tarn_array){0};
    int64_t channels = image->shape.size[0], rows = image->shape.size[1], columns = image->shape.size[2];
    int64_t across = most_taps(columns, width), down = most_taps(rows, height);
    size_t weights = sizeof(double) * (size_t)(across > down ? across : down),
           middle = sizeof(double) * (size_t)(rows * width);
    taps t = {.weight = tarn__alloc(weights)};
    double *between = t.weight ? tarn__alloc(middle) : NULL; /* [rows, width] */
    bool good = between && tarn__image_alloc(resized, channels, height, width);
    for (int64_t c = 0; good && c < channels; c++) {
        resize_across((const uint8_t *)image->data + c * rows * columns, rows, columns, width, &t, between);
        resize_down(between, width, rows, height, &t, (uint8_t *)resized->data + c * height * width);
    }
    tarn__release(between, between ? middle : 0);
    tarn__release(t.weight, t.weight ? weights : 0);
    return good;
}

/* ---- channels ---------------------------------------------------------------------------------------------------- */

/* A pixel's red, green and blue as they look on white paper. */
static void on_white(const uint8_t *pixel, int64_t plane, int64_t channels, unsigned *colour)
{
    bool has_alpha = channels == 2 || channels == 4;
    unsigned alpha = has_alpha ? pixel[(channels - 1) * plane] : 255;
    for (int c = 0; c < 3; c++) {
        unsigned value = pixel[channels > 2 ? c * plane : 0];
        colour[c] = (value * alpha + 255 * (255 - alpha) + 127) / 255;
    }
}

bool tarn_image_convert(const tarn_array *image, int64_t channels, tarn_array *converted)
{
    if (!check_image("image_convert", image, converted))
        return false;
    if (channels != 1 && channels != 3)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "image_convert: an image is made grey (1 channel) or coloured (3), not %lld",
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
        if (channels == 1) /* 0.299, 0.587 and 0.114 in 65536ths: what television calls brightness */
            to[i] = (uint8_t)((19595 * colour[0] + 38470 * colour[1] + 7471 * colour[2] + 32768) >> 16);
    }
    return true;
}
