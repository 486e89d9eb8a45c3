/* conv_views.h: a convolution as GEMMs on im2col matrices (im2col.h): the steps of the three walks in conv_im2col.c.
 *
 * A call is described once, into a job without addresses. Only the loop over its chunks is taken twice: to find the
 * GEMMs' plans and their scratch (runs = false), and to launch. */
#ifndef TARN__CUDA_CONV_VIEWS_H
#define TARN__CUDA_CONV_VIEWS_H

#include "backends/cuda/conv/im2col.h"
#include "base/kernel/conv_geometry.h"

/* One convolution in progress. Images are (N, C, H, W) views of any strides. In a plan all addresses are NULL. */
typedef struct tarn__conv_job {
    const tarn__call *call;
    const tarn__conv2d *params;
    bool runs;                /* false: measure the scratch only */
    bool has_failed;          /* a GEMM has no plan */
    bool is_1x1;              /* 1×1 kernel on images that already form the matrix: no im2col */
    bool per_image;           /* one GEMM per image, batched; else one for all */
    tarn__view image, result; /* x or its gradient, y or its gradient */
    tarn__view weight;        /* with axes in the matrix's order; wgrad: the sums */
    bool is_staged;           /* `result` is a copy in scratch */
    bool is_packed;           /* `weight` is one */
    bool presets_bias;        /* copied into the result first, then accumulated onto */
    tarn__conv_geometry geometry;
    int64_t in, out, taps, depth;             /* channels per group, kernel taps, and GEMM depth: in · taps */
    tarn__cuda_im2col_args im2col;            /* of the current chunk */
    int64_t images, rows;                     /* chunk size: images, and rows of the result (dgrad: of the image) */
    size_t columns, staged, packed, gathered; /* offsets in scratch: im2col matrix, copies, gradients of wgrad */
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

/* Offset of new scratch, 256-byte aligned; and a contiguous view for it with the shape of v, without memory. */
size_t tarn__conv_alloc(tarn__conv_job *j, size_t bytes);
tarn__view tarn__conv_alloc_like(tarn__conv_job *j, const tarn__view *v, tarn_dtype dtype, size_t *at);

/* Copies and converts. */
void tarn__conv_copy(const tarn__conv_job *j, const tarn__view *from, const tarn__view *to);

/* c = a @ b + beta · c (+ bias), or only its scratch. It uses the scratch after all allocations. */
void tarn__conv_gemm(tarn__conv_job *j, const tarn__view *a, const tarn__view *b, const tarn__view *bias,
                     const tarn__view *c, double beta);

/* ---- layout and chunks ------------------------------------------------------------------------------------------- */

void tarn__conv_describe(tarn__conv_job *j, const tarn__call *call, const tarn__view *image, const tarn__view *result,
                         const tarn__view *weight);

/* Addresses of a call, and of its scratch; and none. */
void tarn__conv_set_addresses(tarn__conv_job *j, const tarn__call *call, const tarn__view *image,
                              const tarn__view *result, const tarn__view *weight);
void tarn__conv_clear_addresses(tarn__conv_job *j);

/* NCHW or NHWC, with or without im2col. */
void tarn__conv_choose_layout(tarn__conv_job *j, bool may_skip_im2col);

/* Chunk size, and scratch for its im2col matrix. */
void tarn__conv_choose_chunks(tarn__conv_job *j, bool is_gradient);
void tarn__conv_alloc_im2col(tarn__conv_job *j, bool is_gradient);

/* Makes the result a contiguous copy in scratch if no GEMM can read, write or accumulate in place. */
void tarn__conv_stage_result(tarn__conv_job *j, bool is_added_to);

/* ---- GEMM operands ----------------------------------------------------------------------------------------------- */

/* Windows (pixels of the result) in the chunk. */
int64_t tarn__conv_window_count(const tarn__conv_job *j);

/* The weight as a matrix (O, depth): (O, C, KH, KW) in NCHW, (O, KH, KW, C) in NHWC; packed if needed. Its axes in that
 * order. And (out, depth) of it per group. */
void tarn__conv_describe_weight(tarn__conv_job *j, const tarn__view *weight);
tarn__view tarn__conv_ordered_weight(const tarn__conv_job *j, const tarn__view *weight);
tarn__view tarn__conv_weight_matrix(const tarn__conv_job *j);

/* The chunk of an image or result: (channels, pixels) in NCHW, (pixels, channels) in NHWC. */
tarn__view tarn__conv_pixel_matrix(const tarn__conv_job *j, const tarn__view *v, int64_t channels);

/* The chunk's im2col matrix: (depth, pixels of one image or all) in NCHW, (all pixels, depth) in NHWC. */
tarn__view tarn__conv_im2col_matrix(const tarn__conv_job *j);

#endif
