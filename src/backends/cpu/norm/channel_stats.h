/* channel_stats.h: per-channel statistics and the passes that use them, for batchnorm and groupnorm: one set of values
 * per channel of a tensor [N, C, ...], or per channel of each of its N samples.
 *
 * Two forms, by layout. NCHW: neighbors in memory belong to one channel. NHWC (channels last): neighbors belong to
 * different channels. Both read elements in place; any other strides work, more slowly.
 *
 * Elements are processed in f32 or f64, in blocks; sums over blocks are f64. A mean is used as a high and a low part
 * in the compute type, so that x - mean is exact to f32 even where the mean is much larger than the std. */
#ifndef TARN__CPU_CHANNEL_STATS_H
#define TARN__CPU_CHANNEL_STATS_H

#include "backends/cpu/common/convert.h"
#include "backends/cpu/runtime/level.h"

#define TARN__SMALL_SET \
    32 /* sets of at most this many values are computed in f64: little of their gradient survives normalization */

/* Operands: x; y or gx; the gradient of y; with relu the residual added before it, or in backward relu's output; and
 * the gradient that passes relu. */
enum {
    TARN__CHANNEL_X,
    TARN__CHANNEL_OUT,
    TARN__CHANNEL_G,
    TARN__CHANNEL_RELU,
    TARN__CHANNEL_RELU_GRAD,
    TARN__CHANNEL_OPERANDS
};

/* What a pass works on: shapes, layout and cuts. Depends on shapes, strides, dtypes and compute type only, but for the
 * operands: a kernel's plan has none, tarn__channel_bind() sets them in a copy. */
typedef struct tarn__channel_plan {
    int64_t batches, channels; /* batches: 1 where statistics are over all of axis 0, else N */
    int64_t count;             /* elements of one channel of one batch */
    int compute;               /* COMPUTE_F32 or COMPUTE_F64 */
    bool is_nchw;
    /* fused relu over the result; its gradient passes where the output is above relu_min. Initially false */
    bool has_relu;
    double relu_min; /* values not above this are 0 in x's dtype */
    /* NHWC with few channels: contiguous positions processed as one row */
    int64_t row_positions;
    int64_t chunk, chunks;                          /* elements (NCHW) or positions (NHWC) of a channel per chunk */
    tarn__nest nest;                                /* all axes but the channels and, with batches, the first */
    const tarn__view *view[TARN__CHANNEL_OPERANDS]; /* of one shape; NULL where absent, except x */
} tarn__channel_plan;

/* Per-channel values, each (batches, channels). Borrowed for the duration of a pass. */
typedef struct tarn__channel_stats {
    const double *mean, *rstd;
    const double *scale, *bias; /* result: (x - mean) · scale + bias */
    /* gradient: scale · g - first - (x - mean) · rstd · second; NULL: scale · g alone */
    const double *first, *second;
} tarn__channel_stats;

/* Describes the operands, one view each, NULL where absent; all of one shape of rank 2 or more. The views must
 * outlive the plan. */
void TARN__AT_LEVEL(tarn__channel_plan_make)(tarn__channel_plan *c, bool with_batches, int compute,
                                             const tarn__view *const *views);

/* Sets the operands of a run, or removes them (NULL). */
static inline void tarn__channel_bind(tarn__channel_plan *c, const tarn__view *const *views)
{
    for (int k = 0; k < TARN__CHANNEL_OPERANDS; k++)
        c->view[k] = views ? views[k] : NULL;
}

/* Doubles of scratch that moments and gradient sums need. */
int64_t TARN__AT_LEVEL(tarn__channel_scratch)(const tarn__channel_plan *c);

/* Mean of each channel and its sum of squared deviations. Reads x once. */
void TARN__AT_LEVEL(tarn__channel_moments)(const tarn__channel_plan *c, double *mean, double *squares, double *scratch);

/* Σ g and Σ g · (x - mean) · rstd per channel. With relu, g is masked first: by relu's output, or where that is
 * absent by scale and bias. */
void TARN__AT_LEVEL(tarn__channel_grad_sums)(const tarn__channel_plan *c, const tarn__channel_stats *stats, double *sum,
                                             double *g_xhat, double *scratch);

/* The result from mean, scale and bias; the gradient of x from all but bias, and the gradient that passes relu. */
void TARN__AT_LEVEL(tarn__channel_normalize)(const tarn__channel_plan *c, const tarn__channel_stats *stats);
void TARN__AT_LEVEL(tarn__channel_grad)(const tarn__channel_plan *c, const tarn__channel_stats *stats);

/* Element i of a vector as f64, or `fallback` where there is none. */
TARN__UNUSED static double load_scalar(const tarn__view *vector, int64_t i, double fallback)
{
    double value = fallback;
    if (vector)
        tarn__load[vector->dtype][COMPUTE_F64]((char *)tarn__view_at(vector) +
                                                   i * vector->stride[0] * (int64_t)tarn__dtype_bytes(vector->dtype),
                                               1, &value, 1);
    return value;
}

/* Stores element i of a vector from f64; nothing where the vector is absent. */
TARN__UNUSED static void store_scalar(const tarn__view *vector, int64_t i, double value)
{
    if (vector)
        tarn__store[vector->dtype][COMPUTE_F64](
            &value, (char *)tarn__view_at(vector) + i * vector->stride[0] * (int64_t)tarn__dtype_bytes(vector->dtype),
            1, 1);
}

/* Merges the moments of count_b elements into those of count_a (Chan, Golub, LeVeque). */
static inline void tarn__merge_moments(double *mean, double *squares, double count_a, double mean_b, double squares_b,
                                       double count_b)
{
    double delta = mean_b - *mean, share = count_b / (count_a + count_b);
    *mean += delta * share;
    *squares += squares_b + delta * delta * count_a * share;
}

#endif
