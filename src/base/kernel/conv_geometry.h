/* conv_geometry.h: a convolution as GEMMs on im2col matrices: the size of a chunk, and the rows of the result that a
 * band of image rows needs. Views and launches are the backend's.
 *
 * A chunk is some images, or a band of rows of one image. "Image" is x or its gradient, "result" is y or its
 * gradient. */
#ifndef TARN__CONV_GEOMETRY_H
#define TARN__CONV_GEOMETRY_H

#include "base/kernel/call.h"

/* Height, then width. */
typedef struct tarn__conv_geometry {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    int64_t image[2], result[2]; /* rows and columns */
} tarn__conv_geometry;

/* Views are (N, C, H, W); `weight` gives the kernel size. */
tarn__conv_geometry tarn__conv_geometry_of(const tarn__conv2d *params, const tarn__view *image,
                                           const tarn__view *result, const tarn__view *weight);

/* Items whose im2col columns of `bytes` bytes each fit `limit` bytes; at least one. */
int64_t tarn__conv_items_in(int64_t limit, int64_t bytes);

/* `count` items in as few chunks of at most `limit` as possible, of equal size but for the last. Returns the size; no
 * items are one chunk of one. */
int64_t tarn__conv_even_chunk(int64_t count, int64_t limit);

/* dgrad: rows of the result whose windows touch a band of image rows; all rows for a whole image. None where `rows` is
 * 0: the gradient of the band is 0. */
void tarn__conv_result_rows(const tarn__conv_geometry *g, int64_t image_row, int64_t image_rows, int64_t *row,
                            int64_t *rows);

/* dgrad: the most rows of the result that any band of that many image rows needs. */
int64_t tarn__conv_max_result_rows(const tarn__conv_geometry *g, int64_t image_rows);

/* dgrad: image rows of a band that needs at most `rows` rows of the result; more where the kernel itself reaches
 * further. */
int64_t tarn__conv_band_rows(const tarn__conv_geometry *g, int64_t rows);

#endif
