/* image.c: image files as arrays; the format is recognized by the first two bytes, not by the name. */
#include "data/readers/image.h"

#include <string.h>

/* height · width cannot overflow: both are bounded first. */
bool tarn__image_check_size(const tarn__data_input *input, int64_t byte, uint64_t height, uint64_t width)
{
    if (height < 1 || width < 1)
        return tarn__data_input_bad(input, byte,
                                    "the image has %llu x %llu pixels (width x height); it needs at least one",
                                    (unsigned long long)width, (unsigned long long)height);
    if (height > TARN__MAX_IMAGE_SIDE || width > TARN__MAX_IMAGE_SIDE ||
        height * width > (uint64_t)TARN__MAX_IMAGE_PIXELS)
        return tarn__data_input_bad(
            input, byte,
            "the image has %llu x %llu pixels (width x height); at most %d per side and %lld in all are supported",
            (unsigned long long)width, (unsigned long long)height, TARN__MAX_IMAGE_SIDE,
            (long long)TARN__MAX_IMAGE_PIXELS);
    return true;
}

/* Zeroed; *image is empty with an error. */
bool tarn__image_alloc(tarn_array *image, int64_t channels, int64_t height, int64_t width)
{
    *image = (tarn_array){NULL, TARN_SHAPE(channels, height, width), TARN_U8};
    image->data = tarn__alloc(tarn__array_bytes(image));
    if (!image->data)
        *image = (tarn_array){0};
    return image->data != NULL;
}

/* Reads a NumPy file of u8, (H, W) or (C, H, W). (H, W) becomes (1, H, W). */
static bool read_npy(const char *path, tarn_array *image)
{
    if (!tarn_npy_load(path, image))
        return tarn__raise_within("image_load");
    const tarn_shape *shape = &image->shape;
    if (image->dtype != TARN_U8)
        return tarn__raise(TARN_ERROR_DTYPE, "image_load: %s holds %s; an image is u8, 0 to 255", path,
                           tarn_dtype_name(image->dtype));
    if (shape->rank == 2)
        image->shape = TARN_SHAPE(1, shape->size[0], shape->size[1]);
    if (shape->rank != 3 || shape->size[0] < 1 || shape->size[0] > 4 || shape->size[1] < 1 || shape->size[2] < 1)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "image_load: %s is not an image [C, H, W] of 1 to 4 channels or [H, W]; for [H, W, C] save "
                           "x.transpose(2, 0, 1)",
                           path);
    return true;
}

/* Raises an error that names the format of a file that cannot be read. Returns false. */
static bool raise_unsupported(const tarn__data_input *input, const unsigned char *magic)
{
    static const struct {
        const char *magic, *name;
    } kinds[] = {{"GI", "a GIF image"},
                 {"BM", "a BMP image"},
                 {"II", "a TIFF image"},
                 {"MM", "a TIFF image"},
                 {"RI", "a WebP image"}};
    const char *name = "an unknown format";
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (memcmp(magic, kinds[i].magic, 2) == 0)
            name = kinds[i].name;
    return tarn__raise(TARN_ERROR_FORMAT,
                       "image_load: %s: byte 0: %02x %02x begins %s; PNG, JPEG, PGM, PPM and .npy are supported",
                       input->path, magic[0], magic[1], name);
}

/* Reads a file by its first two bytes. */
static bool load(const char *path, tarn_array *image)
{
    tarn__data_input input;
    unsigned char magic[2] = {0};
    bool good = tarn__data_input_open(&input, "image_load", path) &&
                tarn__data_input_read(&input, magic, 2, "the beginning of an image");
    bool is_npy = magic[0] == 0x93 && magic[1] == 'N';
    if (good && magic[0] == 0x89 && magic[1] == 'P')
        good = tarn__image_read_png(&input, image);
    else if (good && magic[0] == 0xFF && magic[1] == 0xD8)
        good = tarn__image_read_jpeg(&input, image);
    else if (good && magic[0] == 'P' && magic[1] >= '1' && magic[1] <= '7')
        good = tarn__image_read_pnm(&input, (char)magic[1], image);
    else if (good && !is_npy)
        good = raise_unsupported(&input, magic);
    /* .npy files are opened again by their own reader. */
    tarn__data_input_close(&input);
    return good && (!is_npy || read_npy(path, image));
}

/* *image belongs to the caller, and is empty with an error. */
bool tarn_image_load(const char *path, tarn_array *image)
{
    if (tarn_failed())
        return false;
    if (!image)
        return tarn__raise(TARN_ERROR_ARGUMENT, "image_load: image is NULL");
    *image = (tarn_array){0};
    if (load(path, image))
        return true;
    tarn_array_free(image);
    return false;
}
