/* im2col.h: the column matrix of a convolution: every window of some images laid out, so that the convolution is a
 * matrix product.
 *
 *   by rows      (C · KH · KW, L): the windows are columns, L = images · rows · OW of them; a product with the weight
 * has rows of pixels by pixels    (L, groups · KH · KW · C / groups): the windows are rows; a product has rows of
 * channels, as channels-last images have
 *
 * Elements of windows outside the image are 0. */
#ifndef TARN__CUDA_COLUMNS_H
#define TARN__CUDA_COLUMNS_H

#include "backends/cuda/runtime/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn__cuda_im2col_args {
    const tarn__conv2d *params;
    int64_t kernel[2];
    int64_t size[2]; /* rows and columns of the whole result */
    bool by_pixels;
    int64_t image, images;         /* of the batch, those that are laid out */
    int64_t row, rows;             /* of results; all of them where there are several images */
    int64_t image_row, image_rows; /* col2im: of the image's gradient, those that are written */
    tarn_dtype dtype;
    void *at;
} tarn__cuda_im2col_args;

/* im2col.cu: x, of the columns' dtype, into columns. */
void tarn__cuda_im2col(const tarn__call *call, const tarn__view *x, const tarn__cuda_im2col_args *to);

/* im2col.cu: the sums over all windows that saw an element; columns of f32 or f64. */
void tarn__cuda_col2im(const tarn__call *call, const tarn__cuda_im2col_args *from, const tarn__view *gx);

#ifdef __cplusplus
}
#endif
#endif
