/* image_convert.c: conversion of images between grey, colour and alpha. */
#include "data/readers/image.h"

/* What the public functions of images have in common; `result` may not be the image. */
bool tarn__image_check(const char *function, const tarn_array *image, const tarn_array *result)
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
    if (!tarn__image_check("image_convert", image, converted))
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
