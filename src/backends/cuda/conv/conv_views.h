/* conv_views.h: a convolution as matrix products on columns (im2col.h): what its three walks (conv_im2col.c) are made
 * of.
 *
 * A walk goes over the steps of a kernel and is taken twice: to measure the scratch, and to run. */
#ifndef TARN__CUDA_CONV_MATRIX_H
#define TARN__CUDA_CONV_MATRIX_H

#include "backends/cuda/conv/im2col.h"

typedef struct tarn__conv_job {
    const tarn__call *call;
    const tarn__conv2d *params;
    bool runs;                      /* else only the scratch is measured */
    bool is_plain;                  /* 1 by 1, and the images lie so that they are the matrix */
    bool by_image;                  /* each image is a product of its own, else they are part of one */
    tarn__view image, result;       /* x or its gradient, y or its gradient; or what stands for them in scratch */
    int64_t in, out, taps, depth;   /* channels of a group, taps, and both: in · taps */
    tarn__cuda_im2col_args columns; /* of the piece that is done */
    int64_t images, rows;           /* of one piece, at most; rows of the image where its gradient is made */
    size_t held, product;           /* bytes of scratch: what is kept, and behind it what one product needs */
} tarn__conv_job;

static inline int64_t tarn__cuda_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t tarn__cuda_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t tarn__cuda_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

/* Axes first to last seen as one; false where no single stride walks them, or where one of the view runs backwards:
 * products take no such batches. */
bool tarn__conv_can_merge(const tarn__view *v, int first, int last, int64_t *stride);

/* The axes in another order: (N, C, H, W) becomes (N, H, W, C). */
tarn__view tarn__conv_to_nhwc(const tarn__view *v);

/* One matrix of a batch by groups and images, the fewer of them outside: what lies outside may cost a product each. */
typedef struct tarn__conv_matrix {
    int64_t by_group, by_image; /* strides */
    int64_t rows, columns, down, across;
} tarn__conv_matrix;
tarn__view tarn__conv_matrices(const tarn__conv_job *j, const tarn__view *base, int64_t offset,
                               const tarn__conv_matrix *m);

/* Rows become columns. */
tarn__view tarn__conv_transposed(const tarn__view *v);

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* A place in scratch, 256 bytes aligned; and a dense stand-in for a view there. */
void *tarn__conv_alloc(tarn__conv_job *j, size_t bytes);
tarn__view tarn__conv_alloc_like(tarn__conv_job *j, const tarn__view *v, tarn_dtype dtype);

void tarn__conv_copy(const tarn__conv_job *j, const tarn__view *from, const tarn__view *to);

/* c = a @ b + beta · c (+ bias). Its own scratch lies behind what is held, so nothing may be held after the first
 * product. */
void tarn__conv_gemm(tarn__conv_job *j, const tarn__view *a, const tarn__view *b, const tarn__view *bias,
                     const tarn__view *c, double beta);

/* ---- the way ----------------------------------------------------------------------------------------------------- */

tarn__conv_job tarn__conv_job_of(const tarn__call *call, const tarn__view *image, const tarn__view *result,
                                 const tarn__view *weight, bool runs);

/* Which way the product goes: by pixels or by rows, with or without columns. */
void tarn__conv_choose_layout(tarn__conv_job *j, bool may_be_plain);

/* How much is done at once, and room for its columns. */
void tarn__conv_choose_chunks(tarn__conv_job *j, bool is_gradient);
void tarn__conv_alloc_im2col(tarn__conv_job *j, bool is_gradient);

/* True when a dense result in scratch now stands for one that no product can write, read or add to where it lies. */
bool tarn__conv_stage_result(tarn__conv_job *j, bool is_added_to);

/* ---- operands of the products ------------------------------------------------------------------------------------ */

/* Pixels of the piece. */
int64_t tarn__conv_window_count(const tarn__conv_job *j);

/* The weight, (O, C, KH, KW) by rows and (O, KH, KW, C) by pixels, as a matrix (O, depth); a copy where it does not lie
 * so. And (out, depth) of it for each group. */
tarn__view tarn__conv_weight_of(tarn__conv_job *j, const tarn__view *weight);
tarn__view tarn__conv_weight_matrix(const tarn__conv_job *j, const tarn__view *weight);

/* Channels and pixels of the piece of an image or a result: (channels, pixels) by rows, (pixels, channels) by pixels.
 */
tarn__view tarn__conv_pixel_matrix(const tarn__conv_job *j, const tarn__view *v, int64_t channels);

/* The columns of the piece: (depth, pixels of an image, or of all) by rows, (all pixels, depth) by pixels. */
tarn__view tarn__conv_im2col_matrix(const tarn__conv_job *j);

#endif
