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

#if TARN__PACK

#define LEAST_PACKED -87.0f /* where pack_exp() ends */
#define LEAST_EXP -104.0f   /* below it exponentials are 0 */

/* The lanes of y = e^x that pack_exp() could not do. */
__attribute__((noinline, cold)) static pack mend_small_exps(pack x, pack y)
{
    float from[TARN__PACK], to[TARN__PACK];
    pack_store(from, x), pack_store(to, y);
    for (int j = 0; j < TARN__PACK; j++)
        to[j] = from[j] < LEAST_PACKED ? tarn__exp_f32(from[j]) : to[j];
    return pack_load(to);
}

/* e^x for x <= 87 or NaN. */
PACK_INLINE pack exp_below_one(pack x)
{
    pack y = pack_exp(x);
    pack_mask small = pack_below(x, pack_all(LEAST_PACKED));
    if (__builtin_expect(!pack_any(small), 1))
        return y;
    const float middle = 0.5f * (LEAST_PACKED + LEAST_EXP);
    /* the difference is exact */
    if (pack_any(pack_below(pack_size(x - pack_all(middle)), pack_all(LEAST_PACKED - middle))))
        return mend_small_exps(x, y);
    return pack_choose(small, pack_all(0.0f), y);
}

#define TOGETHER 4

/* The same of some packs. Where they are short, one look for small numbers does for all. */
PACK_INLINE void exps_below_one(const pack *x, pack *y)
{
#if TARN__PACK == 4
    if (__builtin_expect(!(vminnmvq_f32(vminnmq_f32(vminnmq_f32(x[0], x[1]), vminnmq_f32(x[2], x[3]))) < LEAST_PACKED),
                         1)) {
        for (int k = 0; k < TOGETHER; k++)
            y[k] = pack_exp(x[k]);
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
    const pack shift = pack_all((float)most);
    pack part[TOGETHER] = {pack_all(0.0f), pack_all(0.0f), pack_all(0.0f), pack_all(0.0f)};
    int64_t i = 0;
    for (; i + TOGETHER * TARN__PACK <= n; i += TOGETHER * TARN__PACK) {
        pack below[TOGETHER], e[TOGETHER];
        for (int k = 0; k < TOGETHER; k++)
            below[k] = pack_load(x + i + k * TARN__PACK) - shift;
        exps_below_one(below, e);
        for (int k = 0; k < TOGETHER; k++) {
            pack_store(y + i + k * TARN__PACK, e[k]);
            part[k] = part[k] + e[k];
        }
    }
    double sum = total_f32((lanes_f32)((part[0] + part[1]) + (part[2] + part[3])));
    while (i < n) {
        int64_t here = n - i < TARN__PACK ? n - i : TARN__PACK;
        pack_store_some(y + i, exp_below_one(pack_load_some(x + i, here) - shift), here);
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
