/* exp_sum.h: exponentials of a block relative to the row max, and their sum: the inner loop of softmax and cross
 * entropy. f32 runs on vectors (simd_f32.h) where the level has them. x - max is at most 0 up to rounding; masked
 * elements are -infinity, which must stay cheap. */
#ifndef TARN__CPU_EXP_SUM_H
#define TARN__CPU_EXP_SUM_H

#include "backends/cpu/common/rows.h"
#include "backends/cpu/common/simd_f32_math.h"

/* y = exp(x - max); returns the sum. y may be x. */
TARN__UNUSED static double exp_sum_f64(const void *from, void *to, int64_t n, double max)
{
    const double *x = from;
    double *y = to;
    TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = tarn__exp_f64(x[i] - max);
    return block_sum_f64(y, n);
}

#if TARN__VEC_LANES

#define VEC_EXP_MIN -87.0f /* lower limit of vec_exp() */
#define EXP_MIN -104.0f    /* below it exponentials are 0 */

/* Recomputes the lanes of y = e^x below vec_exp()'s range, in scalar code. */
__attribute__((noinline, cold)) static vec fix_up_small_exps(vec x, vec y)
{
    float from[TARN__VEC_LANES], to[TARN__VEC_LANES];
    vec_store(from, x), vec_store(to, y);
    for (int j = 0; j < TARN__VEC_LANES; j++)
        to[j] = from[j] < VEC_EXP_MIN ? tarn__exp_f32(from[j]) : to[j];
    return vec_load(to);
}

/* e^x for x <= 87 or NaN. */
VEC_INLINE vec vec_exp_le_0(vec x)
{
    vec y = vec_exp(x);
    vec_mask small = vec_lt(x, vec_set(VEC_EXP_MIN));
    if (__builtin_expect(!vec_any(small), 1))
        return y;
    /* Between the limits results are subnormal: scalar code. Below both they are 0, which masks produce. */
    const float middle = 0.5f * (VEC_EXP_MIN + EXP_MIN);
    /* exact difference */
    if (vec_any(vec_lt(vec_abs(x - vec_set(middle)), vec_set(VEC_EXP_MIN - middle))))
        return fix_up_small_exps(x, y);
    return vec_select(small, vec_set(0.0f), y);
}

#define EXPS_PER_STEP 4

/* The same for several vectors. With short vectors one test for small elements covers all of them. */
VEC_INLINE void vec_exps_le_0(const vec *x, vec *y)
{
#if TARN__VEC_LANES == 4
    if (__builtin_expect(!(vminnmvq_f32(vminnmq_f32(vminnmq_f32(x[0], x[1]), vminnmq_f32(x[2], x[3]))) < VEC_EXP_MIN),
                         1)) {
        for (int k = 0; k < EXPS_PER_STEP; k++)
            y[k] = vec_exp(x[k]);
        return;
    }
#endif
    for (int k = 0; k < EXPS_PER_STEP; k++)
        y[k] = vec_exp_le_0(x[k]);
}

/* Four vector accumulators; the remainder is added in f64, element by element. */
TARN__UNUSED static double exp_sum_f32(const void *from, void *to, int64_t n, double max)
{
    const float *x = from;
    float *y = to;
    const vec shift = vec_set((float)max);
    vec part[EXPS_PER_STEP] = {vec_set(0.0f), vec_set(0.0f), vec_set(0.0f), vec_set(0.0f)};
    int64_t i = 0;
    for (; i + EXPS_PER_STEP * TARN__VEC_LANES <= n; i += EXPS_PER_STEP * TARN__VEC_LANES) {
        vec below[EXPS_PER_STEP], e[EXPS_PER_STEP];
        for (int k = 0; k < EXPS_PER_STEP; k++)
            below[k] = vec_load(x + i + k * TARN__VEC_LANES) - shift;
        vec_exps_le_0(below, e);
        for (int k = 0; k < EXPS_PER_STEP; k++) {
            vec_store(y + i + k * TARN__VEC_LANES, e[k]);
            part[k] = part[k] + e[k];
        }
    }
    double sum = total_f32((lanes_f32)((part[0] + part[1]) + (part[2] + part[3])));
    while (i < n) {
        int64_t here = n - i < TARN__VEC_LANES ? n - i : TARN__VEC_LANES;
        vec_store_n(y + i, vec_exp_le_0(vec_load_n(x + i, here) - shift), here);
        for (int64_t end = i + here; i < end; i++)
            sum += (double)y[i];
    }
    return sum;
}

#else

/* The base level: a loop the compiler vectorizes. */
TARN__UNUSED static double exp_sum_f32(const void *from, void *to, int64_t n, double max)
{
    const float *x = from;
    float *y = to, shift = (float)max;
    TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = tarn__exp_f32(x[i] - shift);
    return block_sum_f32(y, n);
}

#endif

#endif
