/* channel_stats.h: the engine under batchnorm and groupnorm: numbers for each channel of a tensor [N, C, ...], or for
 * each channel of each of its N parts, and the passes that use them.
 *
 * Two forms, chosen by layout. By rows: neighbours in memory belong to one channel ([N, C, H, W] as it is written). By
 * columns: neighbours belong to different channels ("channels last"). Either reads elements where they lie; other
 * strides work too, more slowly.
 *
 * Elements are worked on in f32 or f64, in blocks; what blocks add up to is f64. A mean is used as two f32 numbers, so
 * that what is left of an element after it is exact to f32 even where the mean is much larger than the deviation. All
 * cuts depend on shapes alone. */
#ifndef TARN__CPU_CHANNEL_STATS_H
#define TARN__CPU_CHANNEL_STATS_H

#include "backends/cpu/common/convert.h"
#include "backends/cpu/runtime/level.h"

#define TARN__SMALL_SET \
    32 /* that share a mean are computed in f64: their gradient is what little normalising leaves \
        */

/* x; y or gx; the gradient of y; with relu what is added before it, or in backward its result; and the gradient that it
 * lets through. */
enum {
    TARN__CHANNEL_X,
    TARN__CHANNEL_OUT,
    TARN__CHANNEL_G,
    TARN__CHANNEL_RELU,
    TARN__CHANNEL_RELU_GRAD,
    TARN__CHANNEL_OPERANDS
};

typedef struct tarn__channel_plan {
    int64_t batches, channels; /* batches is 1 where a channel's numbers are over all of axis 0 */
    int64_t count;             /* elements of one channel of one batch */
    int compute;               /* COMPUTE_F32 or COMPUTE_F64 */
    bool is_nchw;
    bool has_relu;   /* over the result; its gradient goes through where that is above `least`. False at first */
    double relu_min; /* what is not above this is 0 in x's dtype */
    /* by columns: positions that lie one behind the other and are taken as one row, for few channels */
    int64_t row_positions;
    int64_t chunk, chunks; /* elements (by rows) or positions (by columns) of a channel that are taken as one */
    tarn__nest nest;       /* over all axes but the channel's and, with batches, the first */
    const tarn__view *view[TARN__CHANNEL_OPERANDS]; /* of one shape; NULL where there is none, but never x */
} tarn__channel_plan;

/* Arrays of (batches, channels). */
typedef struct tarn__channel_stats {
    const double *mean, *rstd;
    const double *scale, *bias; /* of the result: (x - mean) · scale + bias */
    /* of the gradient: scale · g - first - (x - mean) · rstd · second; NULL: scale · g alone */
    const double *first, *second;
} tarn__channel_stats;

/* Describes the operands: a view for each, NULL where there is none. They have one shape of rank 2 or more. */
void TARN__AT_LEVEL(tarn__channel_plan_make)(tarn__channel_plan *c, bool with_batches, int compute,
                                             const tarn__view *const *views);

/* How many doubles of scratch measure and sums need. */
int64_t TARN__AT_LEVEL(tarn__channel_scratch)(const tarn__channel_plan *c);

/* The mean of each channel, and the sum of squared distances from it. x is read once from memory. */
void TARN__AT_LEVEL(tarn__channel_moments)(const tarn__channel_plan *c, double *mean, double *squares, double *scratch);

/* The sums of g, and of g · (x - mean) · rstd. With relu g is what goes through: for that scale and bias are needed,
 * too, where no BESIDE is given. */
void TARN__AT_LEVEL(tarn__channel_grad_sums)(const tarn__channel_plan *c, const tarn__channel_stats *stats, double *sum,
                                             double *g_xhat, double *scratch);

/* The result, from mean, scale and bias; the gradient of x, from all but bias, and what goes through relu. */
void TARN__AT_LEVEL(tarn__channel_normalize)(const tarn__channel_plan *c, const tarn__channel_stats *stats);
void TARN__AT_LEVEL(tarn__channel_grad)(const tarn__channel_plan *c, const tarn__channel_stats *stats);

/* Number i of a vector; `otherwise` where there is none. */
TARN__UNUSED static double load_scalar(const tarn__view *vector, int64_t i, double fallback)
{
    double value = fallback;
    if (vector)
        tarn__load[vector->dtype][COMPUTE_F64]((char *)tarn__view_at(vector) +
                                                   i * vector->stride[0] * (int64_t)tarn__dtype_bytes(vector->dtype),
                                               1, &value, 1);
    return value;
}

TARN__UNUSED static void store_scalar(const tarn__view *vector, int64_t i, double value)
{
    if (vector)
        tarn__store[vector->dtype][COMPUTE_F64](
            &value, (char *)tarn__view_at(vector) + i * vector->stride[0] * (int64_t)tarn__dtype_bytes(vector->dtype),
            1, 1);
}

/* Merges count_b elements into count_a ones: means and sums of squared distances (Chan, Golub, LeVeque). */
static inline void tarn__merge_moments(double *mean, double *squares, double count_a, double mean_b, double squares_b,
                                       double count_b)
{
    double delta = mean_b - *mean, share = count_b / (count_a + count_b);
    *mean += delta * share;
    *squares += squares_b + delta * delta * count_a * share;
}

#endif
