/* compensated.h: products of f32 with the accuracy of f64 at less than its cost, on AVX-512.
 *
 * A product is a double-float p + e: p rounded to f32, e the accumulated rounding error. An FMA gives the error of p
 * · x exactly, so p + e is off by about 2^-46 per factor. This holds while p stays within f32 and well above its
 * smallest numbers: infinity and NaN remain in p to the end, and the smallest |p| on the way is tracked. Where it
 * fails, f64 repeats the work. Converting every element to f64 would take more instructions than the four here, on
 * half as many elements each. */
#ifndef TARN__CPU_COMPENSATED_H
#define TARN__CPU_COMPENSATED_H

#include "backends/cpu/common/simd_f32.h"
#include "backends/cpu/common/vector_ext.h"

#if TARN__VEC_LANES == 16

#define PRODUCT_PREFETCH 2048 /* prefetch distance of a row, in bytes */
#define PRODUCT_MIN 0x1p-100f /* errors of smaller products may be below f32's range */

/* Product p + e per lane; min_abs tracks the smallest |p| so far. */
typedef struct df_product {
    vec p, e, min_abs;
} df_product;

VEC_INLINE df_product df_of(vec x)
{
    return (df_product){x, vec_set(0.0f), vec_abs(x)};
}

/* Four instructions per vector: the product, its exact error, the propagated error, the minimum. */
VEC_INLINE void df_mul(df_product *a, vec x)
{
    vec p = a->p * x;
    a->e = vec_fma(a->e, x, vec_fms(a->p, x, p));
    a->p = p;
    a->min_abs = vec_min_abs(a->min_abs, p);
}

/* Product of two double-floats; the term e · e is below the accuracy kept. */
VEC_INLINE void df_merge(df_product *a, const df_product *b)
{
    vec p = a->p * b->p;
    a->e = vec_fma(a->p, b->e, vec_fma(a->e, b->p, vec_fms(a->p, b->p, p)));
    a->p = p;
    a->min_abs = vec_min_abs(vec_min_abs(a->min_abs, b->min_abs), p);
}

/* False for NaN, infinity, and any intermediate below PRODUCT_MIN. */
VEC_INLINE int df_is_valid(const df_product *a)
{
    vec_mask small = vec_not_le(vec_set(PRODUCT_MIN), a->min_abs), wild = vec_not_le(vec_abs(a->p), vec_set(FLT_MAX));
    return !vec_any(small) && !vec_any(wild);
}

/* p + e of half of the lanes, in f64. */
VEC_INLINE tarn__f64v df_half(const df_product *a, int half)
{
    float p[TARN__VEC_LANES], e[TARN__VEC_LANES];
    tarn__f64v p64, e64;
    vec_store(p, a->p), vec_store(e, a->e);
    TARN__VEC_LOAD_F32(tarn__f64v, p64, p + half * TARN__VEC_LANES / 2);
    TARN__VEC_LOAD_F32(tarn__f64v, e64, e + half * TARN__VEC_LANES / 2);
    return p64 + e64;
}

#define TIMES(a, b) ((a) * (b))

/* Product of n elements, at least four vectors; false where f64 must compute it. */
static bool df_product_row(const float *x, int64_t n, double *result)
{
    df_product a = df_of(vec_load(x)), b = df_of(vec_load(x + TARN__VEC_LANES)),
               c = df_of(vec_load(x + 2 * TARN__VEC_LANES)), d = df_of(vec_load(x + 3 * TARN__VEC_LANES));
    int64_t i = 4 * TARN__VEC_LANES;
    for (; i + 4 * TARN__VEC_LANES <= n; i += 4 * TARN__VEC_LANES) {
        /* Four vectors are 4 · 64 bytes: one prefetch per cache line. */
        for (int k = 0; k < TARN__VEC_LANES / 4; k++)
            __builtin_prefetch((const char *)(x + i) + PRODUCT_PREFETCH + 64 * k);
        df_mul(&a, vec_load(x + i));
        df_mul(&b, vec_load(x + i + TARN__VEC_LANES));
        df_mul(&c, vec_load(x + i + 2 * TARN__VEC_LANES));
        df_mul(&d, vec_load(x + i + 3 * TARN__VEC_LANES));
    }
    for (; i + TARN__VEC_LANES <= n; i += TARN__VEC_LANES)
        df_mul(&a, vec_load(x + i));
    df_merge(&a, &b), df_merge(&c, &d), df_merge(&a, &c);
    if (__builtin_expect(!df_is_valid(&a), 0))
        return false;
    tarn__f64v lanes = df_half(&a, 0) * df_half(&a, 1);
    TARN__VEC_REDUCE(double, tarn__f64v, *result, lanes, TIMES);
    for (; i < n; i++)
        *result *= (double)x[i];
    return true;
}

#endif

#endif
