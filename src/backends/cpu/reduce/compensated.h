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

#if TARN__PACK == 16

#define PRODUCT_AHEAD 2048      /* bytes that a row asks for ahead of time */
#define PRODUCT_LEAST 0x1p-100f /* errors of smaller products may be no numbers of f32 */

typedef struct near_product {
    pack p, e, least;
} near_product;

PACK_INLINE near_product product_of(pack x)
{
    return (near_product){x, pack_all(0.0f), pack_size(x)};
}

PACK_INLINE void product_by(near_product *a, pack x)
{
    pack p = a->p * x;
    a->e = pack_fma(a->e, x, pack_fma_minus(a->p, x, p));
    a->p = p;
    a->least = pack_smaller_size(a->least, p);
}

PACK_INLINE void product_join(near_product *a, const near_product *b)
{
    pack p = a->p * b->p;
    a->e = pack_fma(a->p, b->e, pack_fma(a->e, b->p, pack_fma_minus(a->p, b->p, p)));
    a->p = p;
    a->least = pack_smaller_size(pack_smaller_size(a->least, b->least), p);
}

PACK_INLINE int product_holds(const near_product *a)
{
    pack_mask small = pack_not_within(pack_all(PRODUCT_LEAST), a->least),
              wild = pack_not_within(pack_size(a->p), pack_all(FLT_MAX));
    return !pack_any(small) && !pack_any(wild);
}

/* p + e of half of the lanes, in f64. */
PACK_INLINE tarn__f64v product_half(const near_product *a, int half)
{
    float p[TARN__PACK], e[TARN__PACK];
    tarn__f64v wide_p, wide_e;
    pack_store(p, a->p), pack_store(e, a->e);
    TARN__LANES_LOAD_F32(tarn__f64v, wide_p, p + half * TARN__PACK / 2);
    TARN__LANES_LOAD_F32(tarn__f64v, wide_e, e + half * TARN__PACK / 2);
    return wide_p + wide_e;
}

#define TIMES(a, b) ((a) * (b))

/* The product of n elements, at least four packs; false where f64 has to do it. */
static bool product_of_row(const float *x, int64_t n, double *result)
{
    near_product a = product_of(pack_load(x)), b = product_of(pack_load(x + TARN__PACK)),
                 c = product_of(pack_load(x + 2 * TARN__PACK)), d = product_of(pack_load(x + 3 * TARN__PACK));
    int64_t i = 4 * TARN__PACK;
    for (; i + 4 * TARN__PACK <= n; i += 4 * TARN__PACK) {
        for (int k = 0; k < TARN__PACK / 4; k++)
            __builtin_prefetch((const char *)(x + i) + PRODUCT_AHEAD + 64 * k);
        product_by(&a, pack_load(x + i));
        product_by(&b, pack_load(x + i + TARN__PACK));
        product_by(&c, pack_load(x + i + 2 * TARN__PACK));
        product_by(&d, pack_load(x + i + 3 * TARN__PACK));
    }
    for (; i + TARN__PACK <= n; i += TARN__PACK)
        product_by(&a, pack_load(x + i));
    product_join(&a, &b), product_join(&c, &d), product_join(&a, &c);
    if (__builtin_expect(!product_holds(&a), 0))
        return false;
    tarn__f64v lanes = product_half(&a, 0) * product_half(&a, 1);
    TARN__LANES_FOLD(double, tarn__f64v, *result, lanes, TIMES);
    for (; i < n; i++)
        *result *= (double)x[i];
    return true;
}

#endif

#endif
