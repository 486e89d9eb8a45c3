/* compensated.h: products of f32 as exact as in f64, at less than its cost, where the level has packs (vec.h).
 *
 * A product is kept as p + e: p rounded to f32, e what rounding has taken from it so far. A fused operation gives the
 * error of p · x exactly, so p + e is off by about 2^-46 for each factor. That holds while p stays within f32 and far
 * enough above its smallest numbers: infinity and NaN stay in p to the end, and the smallest size of p on the way is
 * kept. Where it fails, f64 does the work again. Converting every element to f64 instead takes more instructions than
 * the four here, of which each takes twice as many elements. */
#ifndef TARN__PRODUCTS_H
#define TARN__PRODUCTS_H

#include "backends/cpu/common/vec.h"
#include "backends/cpu/common/vec_ext.h"

#if TARN__VEC_LANES == 16

#define PRODUCT_AHEAD 2048      /* bytes that a row asks for ahead of time */
#define PRODUCT_LEAST 0x1p-100f /* errors of smaller products may be no numbers of f32 */

typedef struct df_product {
    vec p, e, least;
} df_product;

VEC_INLINE df_product product_of(vec x)
{
    return (df_product){x, vec_set(0.0f), vec_abs(x)};
}

VEC_INLINE void product_by(df_product *a, vec x)
{
    vec p = a->p * x;
    a->e = vec_fma(a->e, x, vec_fms(a->p, x, p));
    a->p = p;
    a->least = vec_min_abs(a->least, p);
}

VEC_INLINE void product_join(df_product *a, const df_product *b)
{
    vec p = a->p * b->p;
    a->e = vec_fma(a->p, b->e, vec_fma(a->e, b->p, vec_fms(a->p, b->p, p)));
    a->p = p;
    a->least = vec_min_abs(vec_min_abs(a->least, b->least), p);
}

VEC_INLINE int product_holds(const df_product *a)
{
    vec_mask small = vec_not_le(vec_set(PRODUCT_LEAST), a->least), wild = vec_not_le(vec_abs(a->p), vec_set(FLT_MAX));
    return !vec_any(small) && !vec_any(wild);
}

/* p + e of half of the lanes, in f64. */
VEC_INLINE tarn__f64v product_half(const df_product *a, int half)
{
    float p[TARN__VEC_LANES], e[TARN__VEC_LANES];
    tarn__f64v wide_p, wide_e;
    vec_store(p, a->p), vec_store(e, a->e);
    TARN__VEC_LOAD_F32(tarn__f64v, wide_p, p + half * TARN__VEC_LANES / 2);
    TARN__VEC_LOAD_F32(tarn__f64v, wide_e, e + half * TARN__VEC_LANES / 2);
    return wide_p + wide_e;
}

#define TIMES(a, b) ((a) * (b))

/* The product of n elements, at least four packs; false where f64 has to do it. */
static bool df_product_row(const float *x, int64_t n, double *result)
{
    df_product a = product_of(vec_load(x)), b = product_of(vec_load(x + TARN__VEC_LANES)),
               c = product_of(vec_load(x + 2 * TARN__VEC_LANES)), d = product_of(vec_load(x + 3 * TARN__VEC_LANES));
    int64_t i = 4 * TARN__VEC_LANES;
    for (; i + 4 * TARN__VEC_LANES <= n; i += 4 * TARN__VEC_LANES) {
        for (int k = 0; k < TARN__VEC_LANES / 4; k++)
            __builtin_prefetch((const char *)(x + i) + PRODUCT_AHEAD + 64 * k);
        product_by(&a, vec_load(x + i));
        product_by(&b, vec_load(x + i + TARN__VEC_LANES));
        product_by(&c, vec_load(x + i + 2 * TARN__VEC_LANES));
        product_by(&d, vec_load(x + i + 3 * TARN__VEC_LANES));
    }
    for (; i + TARN__VEC_LANES <= n; i += TARN__VEC_LANES)
        product_by(&a, vec_load(x + i));
    product_join(&a, &b), product_join(&c, &d), product_join(&a, &c);
    if (__builtin_expect(!product_holds(&a), 0))
        return false;
    tarn__f64v lanes = product_half(&a, 0) * product_half(&a, 1);
    TARN__VEC_REDUCE(double, tarn__f64v, *result, lanes, TIMES);
    for (; i < n; i++)
        *result *= (double)x[i];
    return true;
}

#endif

#endif
