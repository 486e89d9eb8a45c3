/* im2col.h: im2col: the windows of some images unfolded into a matrix, so that a convolution is a GEMM.
 *
 *   NCHW   (C · KH · KW, L): windows are columns, L = images · rows · OW; a GEMM with the weight gives rows of pixels
 *   NHWC   (L, groups · KH · KW · C / groups): windows are rows; a GEMM gives rows of channels
 *
 * Elements of a window outside the image are 0. */
#ifndef TARN__CUDA_IM2COL_H
#define TARN__CUDA_IM2COL_H

#include "backends/cuda/runtime/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True for channels last: channels are adjacent and columns are not. */
static inline bool tarn__conv_is_nhwc(const tarn__view *v)
{
    return v->shape[1] > 1 && v->stride[1] == 1 && (v->shape[3] == 1 || v->stride[3] != 1);
}

/* One chunk of an im2col matrix; borrows its memory `at`. */
typedef struct tarn__cuda_im2col_args {
    const tarn__conv2d *params;
    int64_t kernel[2];
    int64_t size[2]; /* rows and columns of the whole result */
    bool is_nhwc;
    int64_t image, images;         /* images of the batch in the chunk */
    int64_t row, rows;             /* rows of the result in the chunk; all if it has several images */
    int64_t image_row, image_rows; /* col2im: rows of the image's gradient to write */
    tarn_dtype dtype;
    void *at;
} tarn__cuda_im2col_args;

/* im2col.cu: unfolds x, of the matrix's dtype. */
void tarn__cuda_im2col(const tarn__call *call, const tarn__view *x, const tarn__cuda_im2col_args *to);

/* im2col.cu: folds back: each pixel is the sum over the windows that contain it. f32 or f64 matrices. */
void tarn__cuda_col2im(const tarn__call *call, const tarn__cuda_im2col_args *from, const tarn__view *gx);

#ifdef __cplusplus
}
#endif
#endif
