/* norm_maths.h: what norms do to blocks of a row, in f32 and f64: a table of functions for each. */
#ifndef TARN__NORM_MATHS_H
#define TARN__NORM_MATHS_H

#include "backends/cpu/common/rows.h"

/* Of a row: mean (0 for rmsnorm) and 1 / deviation. Where the mean is no more than a deviation away from 0, x̂ is x ·
 * rstd - mean · rstd, one operation, which loses no more than the rounding of the mean does; else the difference comes
 * first. */
typedef struct scaling {
    double mean, rstd;
    bool is_far;
} scaling;

static inline scaling scaling_of(double mean, double rstd)
{
    return (scaling){mean, rstd, !(fabs(mean) * rstd <= 1)};
}

/* A block in backward. The sums of g · weight (layernorm's alone) and of g · weight · x̂ become means over the row
 * before grad() takes them. */
typedef struct slope {
    const void *x, *g;
    scaling c;
    double sums[2];
} slope;

/* Blocks of one type. Weight and bias are never NULL: ones and zeros stand in; gweight and gbias may be. */
typedef struct maths {
    int64_t size;
    /* the sums of elements (0 if not centred) and of their squares */
    void (*powers)(const void *x, bool centred, int64_t n, double *sums);
    /* those become the mean and the sum of squared distances from it */
    void (*moments)(const void *x, int64_t n, double *sums);
    void (*normalise)(const void *x, const void *weight, const void *bias, void *y, const scaling *c, int64_t n);
    /* adds g · x̂ and g to the last two */
    void (*sums)(slope *r, const void *weight, void *gweight, void *gbias, bool centred, int64_t n);
    void (*grad)(const slope *r, const void *weight, void *gx, int64_t n);
    void (*plus)(const void *x, const void *y, void *sum, int64_t n);
    void (*add)(const void *x, double *sum, int64_t n);
    /* normalise() and powers() of the next row; grad() and sums() of the next row, where neither mean is far and
     * gweight is wanted. The same bits; NULL where rows do not go ahead. */
    void (*normalise_ahead)(const void *x, const void *weight, const void *bias, void *y, const scaling *c,
                            const void *next, bool centred, int64_t n, double *sums);
    void (*grad_ahead)(const slope *r, const void *weight, void *gx, slope *next, void *gweight, void *gbias,
                       bool centred, int64_t n);
} maths;

#define EACH UNROLLED for (int64_t i = 0; i < n; i++)

#define T float
#define NAMED(x) x##_f32
#include "backends/cpu/norm/layernorm_row.inc"

#define T double
#define NAMED(x) x##_f64
#include "backends/cpu/norm/layernorm_row.inc"

#endif
