/* image.c: image files as arrays, by what their first two bytes say they are. */
#include "data/readers/image.h"

#include <string.h>

bool tarn__image_check_size(const tarn__data_input *source, int64_t byte, uint64_t height, uint64_t width)
{
    if (height < 1 || width < 1)
        return tarn__data_input_bad(source, byte,
                                    "the image has %llu x %llu pixels (width x height); it needs one at least",
                                    (unsigned long long)width, (unsigned long long)height);
    if (height > TARN__MAX_IMAGE_SIDE || width > TARN__MAX_IMAGE_SIDE ||
        height * width > (uint64_t)TARN__MAX_IMAGE_PIXELS)
        return tarn__data_input_bad(
            source, byte,
            "the image has %llu x %llu pixels (width x height); at most %d a side and %lld in all are read",
            (unsigned long long)width, (unsigned long long)height, TARN__MAX_IMAGE_SIDE,
            (long long)TARN__MAX_IMAGE_PIXELS);
    return true;
}

bool tarn__image_alloc(tarn_array *image, int64_t channels, int64_t height, int64_t width)
{
    *image = (tarn_array){NULL, TARN_SHAPE(channels, height, width), TARN_U8};
    image->data = tarn__alloc(tarn__array_bytes(image));
    if (!image->data)
        *image = (tarn_array){0};
    return image->data != NULL;
}

/* A NumPy file, [H, W] or [C, H, W] of u8. */
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
                           "image_load: %s holds no image [C, H, W] of 1 to 4 channels, or [H, W]; for [H, W, C] save "
                           "x.transpose(2, 0, 1)",
                           path);
    return true;
}

/* What the file is not, in words, where its beginning says so. */
static bool refuse_kind(const tarn__data_input *source, const unsigned char *magic)
{
    static const struct {
        const char *magic, *name;
    } kinds[] = {{"\xFF\xD8", "a JPEG image"}, {"GI", "a GIF image"},  {"BM", "a BMP image"},
                 {"II", "a TIFF image"},       {"MM", "a TIFF image"}, {"RI", "a WebP image"}};
    const char *name = "no image that tarn knows";
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (memcmp(magic, kinds[i].magic, 2) == 0)
            name = kinds[i].name;
    return tarn__raise(TARN_ERROR_FORMAT,
                       "image_load: %s: byte 0: %02x %02x begins %s; PNG, PGM, PPM and .npy files are read",
                       source->path, magic[0], magic[1], name);
}

static bool load(const char *path, tarn_array *image)
{
    tarn__data_input source;
    unsigned char magic[2] = {0};
    bool good = tarn__data_input_open(&source, "image_load", path) &&
                tarn__data_input_read(&source, magic, 2, "the beginning of an image");
    bool is_npy = magic[0] == 0x93 && magic[1] == 'N';
    if (good && magic[0] == 0x89 && magic[1] == 'P')
        good = tarn__image_read_png(&source, image);
    else if (good && magic[0] == 'P' && magic[1] >= '1' && magic[1] <= '7')
        good = tarn__image_read_pnm(&source, (char)magic[1], image);
    else if (good && !is_npy)
        good = refuse_kind(&source, magic);
    tarn__data_input_close(&source);
    return good && (!is_npy || read_npy(path, image));
}

bool tarn_image_load(const char *path, tarn_array *image)
{
    if (tarn_failed())
        return false;
    if (!image)
        return tarn__raise(TARN_ERROR_ARGUMENT, "image_load: the place for the image is NULL");
    *image = (tarn_array){0};
    if (load(path, image))
        return true;
    tarn_array_free(image);
    return false;
}
