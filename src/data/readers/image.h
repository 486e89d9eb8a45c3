/* image.h: shared parts of the image readers, and of the two halves of the PNG reader.
 *
 * Files are not trusted: sizes are checked against the limits below and against the bytes that can still follow before
 * memory is allocated. Images are u8 (C, H, W): C is 1 for grey, 3 for colour, one more with alpha. */
#ifndef TARN__DATA_IMAGE_H
#define TARN__DATA_IMAGE_H

#include "data/dataset.h"
#include "data/readers/input.h"

#define TARN__MAX_IMAGE_SIDE 32768                /* pixels per side */
#define TARN__MAX_IMAGE_PIXELS ((int64_t)1 << 27) /* per image */

/* Checks the sizes in a header; `byte` is their position, for errors. */
bool tarn__image_check_size(const tarn__data_input *input, int64_t byte, uint64_t height, uint64_t width);

/* Allocates an image, u8 (C, H, W), zeroed. The caller owns it. On failure the array is empty. */
bool tarn__image_alloc(tarn_array *image, int64_t channels, int64_t height, int64_t width);

/* Readers. The first two bytes, which identify the format, have been consumed. The caller frees the image, on failure
 * too. */
bool tarn__image_read_png(tarn__data_input *input, tarn_array *image);
bool tarn__image_read_pnm(tarn__data_input *input, char kind, tarn_array *image); /* 'P' and kind, '1' to '7' */
bool tarn__image_read_jpeg(tarn__data_input *input, tarn_array *image);

/* The orientation in a JPEG's EXIF marker: 1 (upright) to 8; 1 if it has none or is damaged. */
int tarn__exif_orientation(const unsigned char *exif, size_t count);

/* Turns an image upright. False with an error; the image is then unchanged. */
bool tarn__image_orient(tarn_array *image, int orientation);

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Raises an error unless the image is u8 (C, H, W) within the limits and the result is another array. */
bool tarn__image_check(const char *function, const tarn_array *image, const tarn_array *result);

/* A rectangle of pixels. */
typedef struct tarn__image_box {
    int64_t top, left, height, width;
} tarn__image_box;

/* Crops `crop` from an image, resizes it to height x width and writes the part `kept` of the result, u8 (C,
 * kept.height, kept.width), to `to`. All boxes must be in range. False with an error. */
bool tarn__image_resample(const tarn_array *image, const tarn__image_box *crop, int64_t height, int64_t width,
                          const tarn__image_box *kept, uint8_t *to);

/* The size with the shorter side `side`, and its centre of side x side pixels: as torchvision's Resize and
 * CenterCrop. */
void tarn__image_fit(int64_t height, int64_t width, int64_t side, int64_t *resized_height, int64_t *resized_width,
                     tarn__image_box *kept);

/* ---- PNG --------------------------------------------------------------------------------------------------------- */

/* The interface between the two halves of the PNG reader: image_png.c reads chunks and inflates them,
 * image_png_filter.c turns the bytes into pixels. */

/* Bits of a colour type, as in IHDR. */
#define TARN__PNG_PALETTE 1
#define TARN__PNG_COLOUR 2
#define TARN__PNG_ALPHA 4

/* The contents of IHDR, PLTE and tRNS. */
typedef struct tarn__png_info {
    int64_t width, height;
    int depth;  /* bits of a sample: 1, 2, 4, 8, 16 */
    int colour; /* colour type: TARN__PNG_* */
    bool is_interlaced;
    int palette_count;
    unsigned char palette[256][4]; /* red, green, blue, alpha */
    bool has_transparency;         /* alpha of palette entries, or one transparent colour: */
    unsigned transparent[3];       /* as samples */
} tarn__png_info;

/* Samples per pixel in the file, and channels of the resulting image. */
int tarn__png_samples(const tarn__png_info *info);
int tarn__png_channels(const tarn__png_info *info);

/* Bytes of all rows after inflating, filter bytes included. */
uint64_t tarn__png_bytes(const tarn__png_info *info);

/* Writes the next inflated bytes to `memory`. False with an error. */
typedef bool (*tarn__png_next_fn)(void *memory, size_t count, void *ctx);

/* Decodes all rows into an image of tarn__png_channels() channels. `input` is for errors. False with an error. */
bool tarn__png_read_rows(const tarn__png_info *info, const tarn__data_input *input, tarn__png_next_fn next, void *ctx,
                         tarn_array *image);

#endif
