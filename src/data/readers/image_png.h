/* image_png.h: the interface between the two halves of the PNG reader: image_png.c reads chunks and inflates them,
 * image_png_filter.c turns the bytes into pixels. */
#ifndef TARN__DATA_IMAGE_PNG_H
#define TARN__DATA_IMAGE_PNG_H

#include "data/readers/image.h"

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
