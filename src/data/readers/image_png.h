/* image_png.h: a PNG file between its two halves: image_png.c reads chunks and unpacks them, image_png_filter.c makes
 * pixels of the bytes. */
#ifndef TARN__DATA_IMAGE_PNG_H
#define TARN__DATA_IMAGE_PNG_H

#include "data/readers/image.h"

/* The bits of a colour type. */
#define TARN__PNG_PALETTE 1
#define TARN__PNG_COLOUR 2
#define TARN__PNG_ALPHA 4

/* What a file says of its pixels. */
typedef struct tarn__png_info {
    int64_t width, height;
    int depth;  /* bits of a sample: 1, 2, 4, 8, 16 */
    int colour; /* the type's bits */
    bool is_interlaced;
    int palette_count;
    unsigned char palette[256][4]; /* red, green, blue, alpha */
    bool has_transparency;         /* of the palette's colours, or one colour of the others: */
    unsigned transparent[3];       /* as samples */
} tarn__png_info;

/* Samples of a pixel in the file, and channels of the image it becomes. */
int tarn__png_samples(const tarn__png_info *form);
int tarn__png_channels(const tarn__png_info *form);

/* Bytes of all rows, unpacked. */
uint64_t tarn__png_bytes(const tarn__png_info *form);

/* Writes the next unpacked bytes; false with an error raised. */
typedef bool (*tarn__png_next_fn)(void *memory, size_t count, void *ctx);

/* Makes the pixels of all rows. */
bool tarn__png_read_rows(const tarn__png_info *form, const tarn__data_input *source, tarn__png_next_fn next, void *ctx,
                         tarn_array *image);

#endif
