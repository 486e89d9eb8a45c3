/* conv_views.h: a convolution as GEMMs on im2col matrices (im2col.h): the steps of the three walks in conv_im2col.c.
 *
 * A walk runs twice: once to measure the scratch (runs = false), once to launch. Both must take the same path. */
#ifndef TARN__CUDA_CONV_VIEWS_H
#define TARN__CUDA_CONV_VIEWS_H

#include "backends/cuda/conv/im2col.h"
#include "base/kernel/conv_geometry.h"

/* One convolution in progress. Images are (N, C, H, W) views of any strides. */
typedef struct tarn__conv_job {
    const tarn__call *call;
    const tarn__conv2d *params;
    bool runs;                /* false: measure the scratch only */
    bool is_1x1;              /* 1×1 kernel on images that already form the matrix: no im2col */
    bool per_image;           /* one GEMM per image, batched; else one for all */
    tarn__view image, result; /* x or its gradient, y or its gradient; or staged copies */
    tarn__conv_geometry geometry;
    int64_t in, out, taps, depth;  /* channels per group, kernel taps, and GEMM depth: in · taps */
    tarn__cuda_im2col_args im2col; /* of the current chunk */
    int64_t images, rows;          /* chunk size: images, and rows of the result (dgrad: of the image) */
    /* bytes of scratch: allocated so far, and after it what one GEMM needs */
    size_t scratch_used, gemm_scratch;
} tarn__conv_job;

static inline int64_t tarn__cuda_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t tarn__cuda_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

/* True if axes first … last can be walked with one stride. False for negative strides: GEMM batches have none. */
bool tarn__conv_can_merge(const tarn__view *v, int first, int last, int64_t *stride);

/* (N, C, H, W) as (N, H, W, C); same memory. */
tarn__view tarn__conv_to_nhwc(const tarn__view *v);

/* A batch of matrices over groups and images, the smaller count outside: an outer axis may cost a GEMM per step. */
typedef struct tarn__conv_matrix {
    int64_t by_group, per_image; /* batch strides */
    int64_t rows, columns, down, across;
} tarn__conv_matrix;
tarn__view tarn__conv_matrices(const tarn__conv_job *j, const tarn__view *base, int64_t offset,
                               const tarn__conv_matrix *m);

/* The last two axes exchanged. */
tarn__view tarn__conv_transposed(const tarn__view *v);

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Scratch, 256-byte aligned; and a contiguous view of it with the shape of v. */
void *tarn__conv_alloc(tarn__conv_job *j, size_t bytes);
tarn__view tarn__conv_alloc_like(tarn__conv_job *j, const tarn__view *v, tarn_dtype dtype);

/* Copies and converts, if the walk runs. */
void tarn__conv_copy(const tarn__conv_job *j, const tarn__view *from, const tarn__view *to);

/* c = a @ b + beta · c (+ bias). Uses the scratch after all allocations: nothing may be allocated after the first
 * GEMM. */
void tarn__conv_gemm(tarn__conv_job *j, const tarn__view *a, const tarn__view *b, const tarn__view *bias,
                     const tarn__view *c, double beta);

/* ---- layout and chunks ------------------------------------------------------------------------------------------- */

tarn__conv_job tarn__conv_job_of(const tarn__call *call, const tarn__view *image, const tarn__view *result,
                                 const tarn__view *weight, bool runs);

/* NCHW or NHWC, with or without im2col. */
void tarn__conv_choose_layout(tarn__conv_job *j, bool may_skip_im2col);

/* Chunk size, and scratch for its im2col matrix. */
void tarn__conv_choose_chunks(tarn__conv_job *j, bool is_gradient);
void tarn__conv_alloc_im2col(tarn__conv_job *j, bool is_gradient);

/* True if the result is now a contiguous copy in scratch, because no GEMM can read, write or accumulate in place. */
bool tarn__conv_stage_result(tarn__conv_job *j, bool is_added_to);

/* ---- GEMM operands ----------------------------------------------------------------------------------------------- */

/* Windows (pixels of the result) in the chunk. */
int64_t tarn__conv_window_count(const tarn__conv_job *j);

/* The weight as a matrix (O, depth): (O, C, KH, KW) in NCHW, (O, KH, KW, C) in NHWC; packed if needed. And (out, depth)
 * of it per group. */
tarn__view tarn__conv_weight_of(tarn__conv_job *j, const tarn__view *weight);
tarn__view tarn__conv_weight_matrix(const tarn__conv_job *j, const tarn__view *weight);

/* The chunk of an image or result: (channels, pixels) in NCHW, (pixels, channels) in NHWC. */
tarn__view tarn__conv_pixel_matrix(const tarn__conv_job *j, const tarn__view *v, int64_t channels);

/* The chunk's im2col matrix: (depth, pixels of one image or all) in NCHW, (all pixels, depth) in NHWC. */
tarn__view tarn__conv_im2col_matrix(const tarn__conv_job *j);

#endif
