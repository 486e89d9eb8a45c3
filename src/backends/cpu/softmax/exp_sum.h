/* exp_sum.h: the exponentials of a block of a row beside its largest element, and their sum: what softmax and cross
 * entropy spend their time on. f32 runs on packs where the level has them (vec.h). No x - most is above 0 by more than
 * rounding; masks make many of them -infinity, which must cost little. */
#ifndef TARN__BLOCK_EXPS_H
#define TARN__BLOCK_EXPS_H

#include "backends/cpu/common/rows.h"
#include "backends/cpu/common/vec_math.h"

/* y = exp(x - most); gives their sum. y may be x. */
TARN__UNUSED static double block_exps_f64(const void *from, void *to, int64_t n, double most)
{
    const double *x = from;
    double *y = to;
    TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = tarn__exp_f64(x[i] - most);
    return block_sum_f64(y, n);
}

#if TARN__VEC_LANES

#define LEAST_PACKED -87.0f /* where pack_exp() ends */
#define LEAST_EXP -104.0f   /* below it exponentials are 0 */

/* The lanes of y = e^x that pack_exp() could not do. */
__attribute__((noinline, cold)) static vec fix_up_small_exps(vec x, vec y)
{
    float from[TARN__VEC_LANES], to[TARN__VEC_LANES];
    vec_store(from, x), vec_store(to, y);
    for (int j = 0; j < TARN__VEC_LANES; j++)
        to[j] = from[j] < LEAST_PACKED ? tarn__exp_f32(from[j]) : to[j];
    return vec_load(to);
}

/* e^x for x <= 87 or NaN. */
VEC_INLINE vec exp_below_one(vec x)
{
    vec y = vec_exp(x);
    vec_mask small = vec_lt(x, vec_set(LEAST_PACKED));
    if (__builtin_expect(!vec_any(small), 1))
        return y;
    const float middle = 0.5f * (LEAST_PACKED + LEAST_EXP);
    /* the difference is exact */
    if (vec_any(vec_lt(vec_abs(x - vec_set(middle)), vec_set(LEAST_PACKED - middle))))
        return fix_up_small_exps(x, y);
    return vec_select(small, vec_set(0.0f), y);
}

#define TOGETHER 4

/* The same of some packs. Where they are short, one look for small numbers does for all. */
VEC_INLINE void exps_below_one(const vec *x, vec *y)
{
#if TARN__VEC_LANES == 4
    if (__builtin_expect(!(vminnmvq_f32(vminnmq_f32(vminnmq_f32(x[0], x[1]), vminnmq_f32(x[2], x[3]))) < LEAST_PACKED),
                         1)) {
        for (int k = 0; k < TOGETHER; k++)
            y[k] = vec_exp(x[k]);
        return;
    }
#endif
    for (int k = 0; k < TOGETHER; k++)
        y[k] = exp_below_one(x[k]);
}

TARN__UNUSED static double block_exps_f32(const void *from, void *to, int64_t n, double most)
{
    const float *x = from;
    float *y = to;
    const vec shift = vec_set((float)most);
    vec part[TOGETHER] = {vec_set(0.0f), vec_set(0.0f), vec_set(0.0f), vec_set(0.0f)};
    int64_t i = 0;
    for (; i + TOGETHER * TARN__VEC_LANES <= n; i += TOGETHER * TARN__VEC_LANES) {
        vec below[TOGETHER], e[TOGETHER];
        for (int k = 0; k < TOGETHER; k++)
            below[k] = vec_load(x + i + k * TARN__VEC_LANES) - shift;
        exps_below_one(below, e);
        for (int k = 0; k < TOGETHER; k++) {
            vec_store(y + i + k * TARN__VEC_LANES, e[k]);
            part[k] = part[k] + e[k];
        }
    }
    double sum = total_f32((lanes_f32)((part[0] + part[1]) + (part[2] + part[3])));
    while (i < n) {
        int64_t here = n - i < TARN__VEC_LANES ? n - i : TARN__VEC_LANES;
        vec_store_n(y + i, exp_below_one(vec_load_n(x + i, here) - shift), here);
        for (int64_t end = i + here; i < end; i++)
            sum += (double)y[i];
    }
    return sum;
}

#else

TARN__UNUSED static double block_exps_f32(const void *from, void *to, int64_t n, double most)
{
    const float *x = from;
    float *y = to, shift = (float)most;
    TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = tarn__exp_f32(x[i] - shift);
    return block_sum_f32(y, n);
}

#endif

#endif
