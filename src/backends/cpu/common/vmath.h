/*
 * vmath.h: elementary functions that a compiler can vectorise.
 *
 * Every function here is a straight line of arithmetic, bit operations and selections, so that the loop
 * `for (i = 0; i < n; i++) y[i] = f(x[i])` becomes vector code on SSE2, AVX2, AVX-512 and NEON alike. Compile with -O3
 * -fno-math-errno -fno-trapping-math; never with -ffast-math, because NaN, infinities, signed zeros and the rounding of
 * single additions matter.
 *
 * How they are built, and what must stay true:
 *
 *  1. A value is rounded to an integer by adding 1.5 * 2^23 (f32) or 1.5 * 2^52 (f64): the sum has no room for a
 * fraction, and its low bits are the integer. SSE2 has no rounding instruction and no conversion between f64 and 64-bit
 * integers; this needs neither.
 *  2. 64-bit integers are only added, shifted left, shifted right without sign and combined bit by bit: the rest is
 * missing in SSE2. Comparisons are made on floating values.
 *  3. A clamp is written `x > limit ? limit : x`, so that NaN passes through it and reaches the result by arithmetic.
 *  4. Products and sums are fused explicitly where the target has the instruction. The results are accurate with and
 * without it, and whether the compiler fuses what is left does not matter, except in tarn__product_low_f64, which says
 * so.
 *  5. Polynomials are minimax fits of the part of the function that is left after its leading terms, which stay exact.
 * So a polynomial's rounding errors are small compared with the result.
 *
 * Largest errors, in units in the last place: f32 functions 1.5, f64 functions 4 (pow 1.5). tests/backends/test_vmath.c
 * holds the bounds. sin and cos are right for |x| <= TARN__TRIG_MAX_F32 or _F64 and for infinities and NaN; the tile
 * forms at the end are right for every x.
 */
#ifndef TARN_BACKENDS_CPU_VMATH_H
#define TARN_BACKENDS_CPU_VMATH_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* ---- bits, scaling, fused operations ----------------------------------------------------------------------------- */

/* A loop vectorises only when what it calls is inlined, however long it is. */
#if defined(__GNUC__)
#define TARN__ALWAYS_INLINE __attribute__((always_inline))
#else
#define TARN__ALWAYS_INLINE
#endif

TARN__ALWAYS_INLINE static inline uint32_t tarn__bits_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

TARN__ALWAYS_INLINE static inline float tarn__from_bits_f32(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

TARN__ALWAYS_INLINE static inline uint64_t tarn__bits_f64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

TARN__ALWAYS_INLINE static inline double tarn__from_bits_f64(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
#define TARN__HAS_FMA 1
#else
#define TARN__HAS_FMA 0
#endif

TARN__ALWAYS_INLINE static inline float tarn__fma_f32(float a, float b, float c)
{
#if TARN__HAS_FMA
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

TARN__ALWAYS_INLINE static inline double tarn__fma_f64(double a, double b, double c)
{
#if TARN__HAS_FMA
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

#define TARN__ROUND_F32 0x1.8p23f /* adding it rounds to an integer, |x| < 2^22 */
#define TARN__ROUND_F64 0x1.8p52  /* the same for |x| < 2^51 */

/* 2^k for -127 < k < 128. */
TARN__ALWAYS_INLINE static inline float tarn__pow2_f32(int32_t k)
{
    return tarn__from_bits_f32((uint32_t)(k + 127) << 23);
}

/* 2^k for an integer-valued -1023 < k < 1024. */
TARN__ALWAYS_INLINE static inline double tarn__pow2_f64(double k)
{
    return tarn__from_bits_f64((tarn__bits_f64(k + TARN__ROUND_F64) + 1023) << 52);
}

/* x * 2^k for x near 1 and any k that can matter. Two factors: neither overflows, the first product is exact, the
 * second rounds once, so subnormal results are right. `rounded` is k + TARN__ROUND_F32. */
TARN__ALWAYS_INLINE static inline float tarn__scale_f32(float x, float rounded)
{
    int32_t k = (int32_t)(tarn__bits_f32(rounded) - 0x4b400000u);
    int32_t half = k >> 1;
    return x * tarn__pow2_f32(half) * tarn__pow2_f32(k - half);
}

TARN__ALWAYS_INLINE static inline double tarn__scale_f64(double x, double k)
{
    double half = (0.5 * k + TARN__ROUND_F64) - TARN__ROUND_F64;
    return x * tarn__pow2_f64(half) * tarn__pow2_f64(k - half);
}

/* The rounding error of the product p = a * b, exactly: a * b = p + result. Without a fused operation each factor is
 * split into two halves of 26 bits, whose products are exact. p must be the rounded product: the caller keeps it in a
 * variable of its own, and with fused operations its use here as an operand keeps the compiler from fusing it
 * elsewhere. */
TARN__ALWAYS_INLINE static inline double tarn__product_low_f64(double a, double b, double p)
{
#if TARN__HAS_FMA
    return __builtin_fma(a, b, -p);
#else
    double ta = a * 0x1.0000002p27, tb = b * 0x1.0000002p27;
    double ah = ta - (ta - a), bh = tb - (tb - b);
    double al = a - ah, bl = b - bh;
    return ((ah * bh - p) + ah * bl + al * bh) + al * bl;
#endif
}

/* ---- exponentials ----
 *
 * x = k ln2 + r with |r| <= ln2 / 2. ln2 is split so that k times its high part is exact; the low part repairs the
 * rest, so r is as good as rounded once. e^r = 1 + r + r^2 P(r): the polynomial's errors are scaled by r^2 <= 0.12. */

#define TARN__LN2_HIGH_F32 0x1.62e4p-1f /* 15 bits: exact times any exponent */
#define TARN__LN2_LOW_F32 0x1.7f7d1cp-20f
#define TARN__LN2_HIGH_F64 0x1.62e42fefa38p-1 /* 42 bits */
#define TARN__LN2_LOW_F64 0x1.ef35793c7673p-45

TARN__ALWAYS_INLINE static inline float tarn__reduce_ln2_f32(float x, float k)
{
    return tarn__fma_f32(k, -TARN__LN2_LOW_F32, tarn__fma_f32(k, -TARN__LN2_HIGH_F32, x));
}

TARN__ALWAYS_INLINE static inline double tarn__reduce_ln2_f64(double x, double k)
{
    return tarn__fma_f64(k, -TARN__LN2_LOW_F64, tarn__fma_f64(k, -TARN__LN2_HIGH_F64, x));
}

/* e^r - 1 for |r| < 0.35. */
TARN__ALWAYS_INLINE static inline float tarn__expm1_reduced_f32(float r)
{
    float p = 0x1.a29c9ap-13f;
    p = tarn__fma_f32(p, r, 0x1.6d43c4p-10f);
    p = tarn__fma_f32(p, r, 0x1.110fdcp-7f);
    p = tarn__fma_f32(p, r, 0x1.5554fp-5f);
    p = tarn__fma_f32(p, r, 0x1.555556p-3f);
    p = tarn__fma_f32(p, r, 0x1p-1f);
    return tarn__fma_f32(r * r, p, r);
}

TARN__ALWAYS_INLINE static inline double tarn__expm1_reduced_f64(double r)
{
    double p = 0x1.1f8e2f9e0069ep-29;
    p = tarn__fma_f64(p, r, 0x1.af5ffb4d048dbp-26);
    p = tarn__fma_f64(p, r, 0x1.27e4cad2c9d1fp-22);
    p = tarn__fma_f64(p, r, 0x1.71ddf7ad3dccbp-19);
    p = tarn__fma_f64(p, r, 0x1.a01a01adec0aep-16);
    p = tarn__fma_f64(p, r, 0x1.a01a01b020bb8p-13);
    p = tarn__fma_f64(p, r, 0x1.6c16c16c14f3fp-10);
    p = tarn__fma_f64(p, r, 0x1.111111110f62ap-7);
    p = tarn__fma_f64(p, r, 0x1.5555555555558p-5);
    p = tarn__fma_f64(p, r, 0x1.5555555555559p-3);
    p = tarn__fma_f64(p, r, 0x1p-1);
    return tarn__fma_f64(r * r, p, r);
}

/* Clamped just outside the range where the result is neither 0 nor infinity. */
TARN__ALWAYS_INLINE static inline float tarn__exp_f32(float x)
{
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float rounded = tarn__fma_f32(x, 0x1.715476p+0f, TARN__ROUND_F32);
    float r = tarn__reduce_ln2_f32(x, rounded - TARN__ROUND_F32);
    return tarn__scale_f32(1.0f + tarn__expm1_reduced_f32(r), rounded);
}

/* e^(x + low), where low is at most a few units in the last place of x. */
TARN__ALWAYS_INLINE static inline double tarn__exp_dd_f64(double x, double low)
{
    double k = tarn__fma_f64(x, 0x1.71547652b82fep+0, TARN__ROUND_F64) - TARN__ROUND_F64;
    double r = tarn__reduce_ln2_f64(x, k) + low;
    return tarn__scale_f64(1.0 + tarn__expm1_reduced_f64(r), k);
}

TARN__ALWAYS_INLINE static inline double tarn__exp_f64(double x)
{
    x = x > 710.0 ? 710.0 : x;
    x = x < -746.0 ? -746.0 : x;
    double k = tarn__fma_f64(x, 0x1.71547652b82fep+0, TARN__ROUND_F64) - TARN__ROUND_F64;
    return tarn__scale_f64(1.0 + tarn__expm1_reduced_f64(tarn__reduce_ln2_f64(x, k)), k);
}

/* 2^x = 2^k (1 + r Q(r)) with r = x - k exact, |r| <= 1/2; exact for integers. */
TARN__ALWAYS_INLINE static inline float tarn__exp2_f32(float x)
{
    x = x > 129.0f ? 129.0f : x;
    x = x < -151.0f ? -151.0f : x;
    float rounded = x + TARN__ROUND_F32;
    float r = x - (rounded - TARN__ROUND_F32);
    float p = 0x1.e9e1fcp-17f;
    p = tarn__fma_f32(p, r, 0x1.44228p-13f);
    p = tarn__fma_f32(p, r, 0x1.5d9dfp-10f);
    p = tarn__fma_f32(p, r, 0x1.3b2a4ap-7f);
    p = tarn__fma_f32(p, r, 0x1.c6b074p-5f);
    p = tarn__fma_f32(p, r, 0x1.ebfbep-3f);
    p = tarn__fma_f32(p, r, 0x1.62e43p-1f);
    return tarn__scale_f32(tarn__fma_f32(r, p, 1.0f), rounded);
}

TARN__ALWAYS_INLINE static inline double tarn__exp2_f64(double x)
{
    x = x > 1025.0 ? 1025.0 : x;
    x = x < -1076.0 ? -1076.0 : x;
    double k = (x + TARN__ROUND_F64) - TARN__ROUND_F64;
    double r = x - k;
    double p = 0x1.c09ef80827c8cp-36;
    p = tarn__fma_f64(p, r, 0x1.eafee9c625e1cp-32);
    p = tarn__fma_f64(p, r, 0x1.e4d22f801311bp-28);
    p = tarn__fma_f64(p, r, 0x1.b5242219137d4p-24);
    p = tarn__fma_f64(p, r, 0x1.62c021583d4e3p-20);
    p = tarn__fma_f64(p, r, 0x1.ffcbfcdbc4334p-17);
    p = tarn__fma_f64(p, r, 0x1.430912f8ab7acp-13);
    p = tarn__fma_f64(p, r, 0x1.5d87fe7888b3ep-10);
    p = tarn__fma_f64(p, r, 0x1.3b2ab6fba4d7bp-7);
    p = tarn__fma_f64(p, r, 0x1.c6b08d704a183p-5);
    p = tarn__fma_f64(p, r, 0x1.ebfbdff82c58fp-3);
    p = tarn__fma_f64(p, r, 0x1.62e42fefa39efp-1);
    return tarn__scale_f64(tarn__fma_f64(r, p, 1.0), k);
}

/* 2^x in f64 with an error of 2^-34, for f32 functions that need the range: |x| < 1000. */
TARN__ALWAYS_INLINE static inline double tarn__exp2_coarse_f64(double x)
{
    double k = (x + TARN__ROUND_F64) - TARN__ROUND_F64;
    double r = x - k;
    double p = 0x1.00ef1b4fbc096p-16;
    p = tarn__fma_f64(p, r, 0x1.445e3a4a4dc8bp-13);
    p = tarn__fma_f64(p, r, 0x1.5d872731cf42dp-10);
    p = tarn__fma_f64(p, r, 0x1.3b29f140164bcp-7);
    p = tarn__fma_f64(p, r, 0x1.c6b08df14a1fp-5);
    p = tarn__fma_f64(p, r, 0x1.ebfbe07a6989bp-3);
    p = tarn__fma_f64(p, r, 0x1.62e42fef7bfefp-1);
    return tarn__fma_f64(r, p, 1.0) * tarn__pow2_f64(k);
}

/* 2^k (e^r - 1) + (2^k - 1): the second term is exact where it matters, and no other rounding is larger than the
 * result's. 2^128 does not exist in f32, so the largest exponent is halved and the result doubled. The result has the
 * sign of x, zero included. */
TARN__ALWAYS_INLINE static inline float tarn__expm1_f32(float x)
{
    float c = x > 89.0f ? 89.0f : x;
    c = c < -18.0f ? -18.0f : c;
    float rounded = tarn__fma_f32(c, 0x1.715476p+0f, TARN__ROUND_F32);
    float k = rounded - TARN__ROUND_F32;
    float e = tarn__expm1_reduced_f32(tarn__reduce_ln2_f32(c, k));
    float last = k > 127.0f ? 2.0f : 1.0f;
    rounded = k > 127.0f ? rounded - 1.0f : rounded;
    float s = tarn__pow2_f32((int32_t)(tarn__bits_f32(rounded) - 0x4b400000u));
    return copysignf(tarn__fma_f32(e, s, s - 1.0f) * last, x);
}

TARN__ALWAYS_INLINE static inline double tarn__expm1_f64(double x)
{
    double c = x > 710.0 ? 710.0 : x;
    c = c < -40.0 ? -40.0 : c;
    double k = tarn__fma_f64(c, 0x1.71547652b82fep+0, TARN__ROUND_F64) - TARN__ROUND_F64;
    double e = tarn__expm1_reduced_f64(tarn__reduce_ln2_f64(c, k));
    double last = k > 1023.0 ? 2.0 : 1.0;
    k = k > 1023.0 ? k - 1.0 : k;
    double s = tarn__pow2_f64(k);
    return copysign(tarn__fma_f64(e, s, s - 1.0) * last, x);
}

/* ---- logarithms ----
 *
 * x = 2^e m with sqrt(1/2) <= m < sqrt(2), found by subtracting the bits of sqrt(1/2): the exponent field then holds e.
 * f = m - 1 is exact. log x = e ln2 + log(1 + f); where e is not 0 the sum is at least 0.34, so log(1 + f) never
 * cancels to less than its own error. */

typedef struct tarn__parts_f32 {
    float e, f; /* x = 2^e (1 + f) */
} tarn__parts_f32;

typedef struct tarn__parts_f64 {
    double e, f;
} tarn__parts_f64;

/* x positive and finite, subnormal or not; anything else gives numbers without meaning. */
TARN__ALWAYS_INLINE static inline tarn__parts_f32 tarn__split_f32(float x)
{
    float add = x < FLT_MIN ? -23.0f : 0.0f;
    uint32_t u = tarn__bits_f32(x < FLT_MIN ? x * 0x1p23f : x);
    int32_t e = (int32_t)(u - 0x3f3504f3u) >> 23;
    float m = tarn__from_bits_f32(u - ((uint32_t)e << 23));
    return (tarn__parts_f32){(float)e + add, m - 1.0f};
}

/* The biased exponent, put into the low bits of 2^52, becomes a floating value without a conversion. */
TARN__ALWAYS_INLINE static inline tarn__parts_f64 tarn__split_f64(double x)
{
    double add = x < DBL_MIN ? -(0x1p52 + 1023.0 + 52.0) : -(0x1p52 + 1023.0);
    uint64_t u = tarn__bits_f64(x < DBL_MIN ? x * 0x1p52 : x);
    uint64_t e = (u + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu)) >> 52;
    double m = tarn__from_bits_f64(u - (e << 52) + 0x3ff0000000000000u);
    return (tarn__parts_f64){tarn__from_bits_f64(e | 0x4330000000000000u) + add, m - 1.0};
}

/* The values at the edges: log 0 = -inf, log of a negative = NaN, log inf = inf. */
TARN__ALWAYS_INLINE static inline float tarn__log_edges_f32(float x, float y)
{
    y = x < INFINITY ? y : x;
    y = x < 0.0f ? NAN : y;
    return x == 0.0f ? -INFINITY : y;
}

TARN__ALWAYS_INLINE static inline double tarn__log_edges_f64(double x, double y)
{
    y = x < (double)INFINITY ? y : x;
    y = x < 0.0 ? (double)NAN : y;
    return x == 0.0 ? -(double)INFINITY : y;
}

/* e ln2 + log(1 + f), as f + f^2 Q(f): Q's errors are scaled by f^2 / log(1 + f) <= 0.5. */
TARN__ALWAYS_INLINE static inline float tarn__log_join_f32(tarn__parts_f32 v)
{
    float f = v.f;
    float p = -0x1.3ec9cp-4f;
    p = tarn__fma_f32(p, f, 0x1.0a16ccp-3f);
    p = tarn__fma_f32(p, f, -0x1.0ec458p-3f);
    p = tarn__fma_f32(p, f, 0x1.2220bcp-3f);
    p = tarn__fma_f32(p, f, -0x1.542b08p-3f);
    p = tarn__fma_f32(p, f, 0x1.99a83ep-3f);
    p = tarn__fma_f32(p, f, -0x1.00042ap-2f);
    p = tarn__fma_f32(p, f, 0x1.555548p-2f);
    p = tarn__fma_f32(p, f, -0x1.fffff8p-2f);
    float low = tarn__fma_f32(f * f, p, v.e * TARN__LN2_LOW_F32);
    return tarn__fma_f32(v.e, TARN__LN2_HIGH_F32, f + low);
}

/* With s = f / (2 + f), log(1 + f) = 2 atanh s = f - f^2/2 + s (f^2/2 + s^2 R(s^2)), and s^2 <= 0.03. The result is f -
 * this. */
TARN__ALWAYS_INLINE static inline double tarn__log_tail_f64(double f, double low)
{
    double s = f / (2.0 + f);
    double z = s * s;
    double h = 0.5 * f * f;
    double p = 0x1.2e3a6950d2b31p-3;
    p = tarn__fma_f64(p, z, 0x1.39b755f1c9f09p-3);
    p = tarn__fma_f64(p, z, 0x1.7465568cd356bp-3);
    p = tarn__fma_f64(p, z, 0x1.c71c56e6ad123p-3);
    p = tarn__fma_f64(p, z, 0x1.2492493b393d2p-2);
    p = tarn__fma_f64(p, z, 0x1.9999999988a71p-2);
    p = tarn__fma_f64(p, z, 0x1.5555555555572p-1);
    return h - (tarn__fma_f64(s, tarn__fma_f64(z, p, h), low));
}

TARN__ALWAYS_INLINE static inline double tarn__log_join_f64(tarn__parts_f64 v)
{
    double tail = tarn__log_tail_f64(v.f, v.e * TARN__LN2_LOW_F64);
    return tarn__fma_f64(v.e, TARN__LN2_HIGH_F64, v.f - tail);
}

TARN__ALWAYS_INLINE static inline float tarn__log_f32(float x)
{
    return tarn__log_edges_f32(x, tarn__log_join_f32(tarn__split_f32(x)));
}

TARN__ALWAYS_INLINE static inline double tarn__log_f64(double x)
{
    return tarn__log_edges_f64(x, tarn__log_join_f64(tarn__split_f64(x)));
}

/* log2(1 + f) = f + f R(f): R is at most 0.8, and so much smaller are its errors; exact for powers of two. */
TARN__ALWAYS_INLINE static inline float tarn__log2_f32(float x)
{
    tarn__parts_f32 v = tarn__split_f32(x);
    float f = v.f;
    float p = -0x1.e55a7p-4f;
    p = tarn__fma_f32(p, f, 0x1.87b19ap-3f);
    p = tarn__fma_f32(p, f, -0x1.84c91ep-3f);
    p = tarn__fma_f32(p, f, 0x1.a0f4a6p-3f);
    p = tarn__fma_f32(p, f, -0x1.ead168p-3f);
    p = tarn__fma_f32(p, f, 0x1.278fdp-2f);
    p = tarn__fma_f32(p, f, -0x1.715a96p-2f);
    p = tarn__fma_f32(p, f, 0x1.ec7028p-2f);
    p = tarn__fma_f32(p, f, -0x1.71547p-1f);
    p = tarn__fma_f32(p, f, 0x1.c551dap-2f);
    return tarn__log_edges_f32(x, v.e + tarn__fma_f32(f, p, f));
}

TARN__ALWAYS_INLINE static inline double tarn__log2_f64(double x)
{
    tarn__parts_f64 v = tarn__split_f64(x);
    double y = v.f - tarn__log_tail_f64(v.f, 0.0);
    return tarn__log_edges_f64(x, tarn__fma_f64(y, 0x1.71547652b82fep+0, v.e));
}

/* The exponent is that of the rounded 1 + x, but f = 2^-e x + (2^-e - 1) comes from x itself, with one rounding, so
 * nothing of a small x is lost. 2^-e x is exact: an addition to the exponent. The result has the sign of x, zero
 * included. */
TARN__ALWAYS_INLINE static inline float tarn__log1p_f32(float x)
{
    uint32_t u = tarn__bits_f32(1.0f + x);
    int32_t e = (int32_t)(u - 0x3f3504f3u) >> 23;
    float scaled = tarn__from_bits_f32(tarn__bits_f32(x) - ((uint32_t)e << 23));
    float s = x > 0x1p60f ? 0.0f : tarn__from_bits_f32((uint32_t)(127 - e) << 23);
    float y = copysignf(tarn__log_join_f32((tarn__parts_f32){(float)e, scaled + (s - 1.0f)}), x);
    y = x < INFINITY ? y : x;
    y = x < -1.0f ? NAN : y;
    return x == -1.0f ? -INFINITY : y;
}

TARN__ALWAYS_INLINE static inline double tarn__log1p_f64(double x)
{
    uint64_t e = (tarn__bits_f64(1.0 + x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu)) >> 52;
    double k = tarn__from_bits_f64(e | 0x4330000000000000u) - (0x1p52 + 1023.0);
    double scaled = tarn__from_bits_f64(tarn__bits_f64(x) - ((e - 1023) << 52));
    double s = x > 0x1p60 ? 0.0 : tarn__from_bits_f64((2046 - e) << 52);
    double y = copysign(tarn__log_join_f64((tarn__parts_f64){k, scaled + (s - 1.0)}), x);
    y = x < (double)INFINITY ? y : x;
    y = x < -1.0 ? (double)NAN : y;
    return x == -1.0 ? -(double)INFINITY : y;
}

/* ---- sine and cosine ----
 *
 * r = x - n pi with n the nearest integer (for the cosine the nearest half-integer, since cos x = sin(x + pi/2)), and
 * the result is sin r with its sign turned for odd n: one polynomial on |r| <= pi/2 and no choice between two. pi
 * stands in parts so short that n times a part is exact, and so are the first differences, by cancellation: close to a
 * zero of the function r keeps its relative accuracy. That holds while n fits beside the parts, which is the limit on
 * |x|. */

#define TARN__TRIG_MAX_F32 0x1p29f /* n < 2^28, parts of pi of 25 bits, in f64 */
#define TARN__TRIG_MAX_F64 0x1p24  /* n < 2^23, parts of pi of 30 bits */

/* Whether the scalar sin and cos are out of their range, so that the tile form (or libm) is needed. False for
 * infinities and NaN. */
TARN__ALWAYS_INLINE static inline int tarn__trig_is_large_f32(float x)
{
    return fabsf(x) > TARN__TRIG_MAX_F32 && fabsf(x) < INFINITY;
}

TARN__ALWAYS_INLINE static inline int tarn__trig_is_large_f64(double x)
{
    return fabs(x) > TARN__TRIG_MAX_F64 && fabs(x) < (double)INFINITY;
}

/* sin(x - n pi), turned when the integer in the low bits of `rounded` is odd. Error 2^-35. */
TARN__ALWAYS_INLINE static inline float tarn__sin_reduced_f32(double x, double n, double rounded)
{
    double r = tarn__fma_f64(n, -0x1.921fb5p+1, x);
    r = tarn__fma_f64(n, -0x1.110b46p-25, r);
    r = tarn__fma_f64(n, -0x1.1a62633145c07p-53, r);
    double z = r * r;
    double p = -0x1.9ac3082c66a6fp-26;
    p = tarn__fma_f64(p, z, 0x1.7174ca15f866ep-19);
    p = tarn__fma_f64(p, z, -0x1.a017fd96c331cp-13);
    p = tarn__fma_f64(p, z, 0x1.11110cc14f569p-7);
    p = tarn__fma_f64(p, z, -0x1.5555554958bp-3);
    r *= tarn__fma_f64(z, p, 1.0);
    return (float)tarn__from_bits_f64(tarn__bits_f64(r) ^ (tarn__bits_f64(rounded) << 63));
}

TARN__ALWAYS_INLINE static inline float tarn__sin_f32(float x)
{
    double rounded = tarn__fma_f64((double)x, 0x1.45f306dc9c883p-2, TARN__ROUND_F64);
    return tarn__sin_reduced_f32((double)x, rounded - TARN__ROUND_F64, rounded);
}

TARN__ALWAYS_INLINE static inline float tarn__cos_f32(float x)
{
    double rounded = tarn__fma_f64((double)x, 0x1.45f306dc9c883p-2, 0.5) + TARN__ROUND_F64;
    return tarn__sin_reduced_f32((double)x, (rounded - TARN__ROUND_F64) - 0.5, rounded);
}

TARN__ALWAYS_INLINE static inline double tarn__sin_reduced_f64(double x, double n, double rounded)
{
    double r = tarn__fma_f64(n, -0x1.921fb54p+1, x);
    r = tarn__fma_f64(n, -0x1.10b46118p-29, r);
    double c = n * 0x1.313198ap-60;
    double h = r - c;
    double low = tarn__fma_f64(n, -0x1.701b839a25205p-91, (r - h) - c); /* what is lost in h, and the last part */
    double z = h * h;
    double p = 0x1.8851bdbbbb38p-49;
    p = tarn__fma_f64(p, z, -0x1.ae44a75c1083bp-41);
    p = tarn__fma_f64(p, z, 0x1.6123d147b499ep-33);
    p = tarn__fma_f64(p, z, -0x1.ae6454e4988b3p-26);
    p = tarn__fma_f64(p, z, 0x1.71de3a52c11b2p-19);
    p = tarn__fma_f64(p, z, -0x1.a01a01a015173p-13);
    p = tarn__fma_f64(p, z, 0x1.11111111110cbp-7);
    p = tarn__fma_f64(p, z, -0x1.5555555555555p-3);
    double y = h + tarn__fma_f64(h * z, p, low);
    return tarn__from_bits_f64(tarn__bits_f64(y) ^ (tarn__bits_f64(rounded) << 63));
}

TARN__ALWAYS_INLINE static inline double tarn__sin_f64(double x)
{
    double rounded = tarn__fma_f64(x, 0x1.45f306dc9c883p-2, TARN__ROUND_F64);
    double y = tarn__sin_reduced_f64(x, rounded - TARN__ROUND_F64, rounded);
    return x == 0.0 ? x : y;
}

TARN__ALWAYS_INLINE static inline double tarn__cos_f64(double x)
{
    double rounded = tarn__fma_f64(x, 0x1.45f306dc9c883p-2, 0.5) + TARN__ROUND_F64;
    return tarn__sin_reduced_f64(x, (rounded - TARN__ROUND_F64) - 0.5, rounded);
}

/* ---- hyperbolic tangent ------------------------------------------------------------------------------------------ */

/* Below 0.55 an odd polynomial after x; above, 1 - 2 / (e^2|x| + 1), where what is subtracted is less than 1/2 and so
 * are its errors. */
TARN__ALWAYS_INLINE static inline float tarn__tanh_f32(float x)
{
    float a = fabsf(x);
    float z = a * a;
    float p = -0x1.9f169cp-8f;
    p = tarn__fma_f32(p, z, 0x1.59fd72p-6f);
    p = tarn__fma_f32(p, z, -0x1.b94276p-5f);
    p = tarn__fma_f32(p, z, 0x1.110ddcp-3f);
    p = tarn__fma_f32(p, z, -0x1.55554ep-2f);
    float near = tarn__fma_f32(x * z, p, x);
    a = a > 9.5f ? 9.5f : a;
    float rounded = tarn__fma_f32(a, 0x1.715476p+1f, TARN__ROUND_F32);
    float r = tarn__reduce_ln2_f32(2.0f * a, rounded - TARN__ROUND_F32);
    float s = tarn__pow2_f32((int32_t)(tarn__bits_f32(rounded) - 0x4b400000u));
    float far = 1.0f - 2.0f / (tarn__fma_f32(s, tarn__expm1_reduced_f32(r), s) + 1.0f);
    return copysignf(a < 0.55f ? near : far, x);
}

/* t / (t + 2) with t = e^2|x| - 1: no cancellation anywhere. */
TARN__ALWAYS_INLINE static inline double tarn__tanh_f64(double x)
{
    double a = fabs(x);
    a = a > 22.0 ? 22.0 : a;
    double t = tarn__expm1_f64(2.0 * a);
    return copysign(t / (t + 2.0), x);
}

/* ---- error function ---------------------------------------------------------------------------------------------- */

/* Below 1, x + x E(x^2); above, 1 - e^q(|x|) with a polynomial for log erfc, whose errors are scaled by erfc <= 0.16.
 * From 4 on it is 1. */
TARN__ALWAYS_INLINE static inline float tarn__erf_f32(float x)
{
    float a = fabsf(x);
    float z = a * a;
    float p = 0x1.4c5d86p-14f;
    p = tarn__fma_f32(p, z, -0x1.a519a4p-11f);
    p = tarn__fma_f32(p, z, 0x1.542feep-8f);
    p = tarn__fma_f32(p, z, -0x1.b7fec4p-6f);
    p = tarn__fma_f32(p, z, 0x1.ce2d52p-4f);
    p = tarn__fma_f32(p, z, -0x1.81274p-2f);
    p = tarn__fma_f32(p, z, 0x1.06eba8p-3f);
    float near = tarn__fma_f32(x, p, x);
    a = a > 4.0f ? 4.0f : a;
    float q = -0x1.6bde04p-16f;
    q = tarn__fma_f32(q, a, 0x1.cecb72p-12f);
    q = tarn__fma_f32(q, a, -0x1.138e8ap-8f);
    q = tarn__fma_f32(q, a, 0x1.9d0432p-6f);
    q = tarn__fma_f32(q, a, -0x1.bc157ep-4f);
    q = tarn__fma_f32(q, a, -0x1.44355ep-1f);
    q = tarn__fma_f32(q, a, -0x1.212c0ep+0f);
    q = tarn__fma_f32(q, a, 0x1.8a540cp-13f);
    float rounded = tarn__fma_f32(q, 0x1.715476p+0f, TARN__ROUND_F32);
    float e = tarn__expm1_reduced_f32(tarn__reduce_ln2_f32(q, rounded - TARN__ROUND_F32));
    float s = tarn__pow2_f32((int32_t)(tarn__bits_f32(rounded) - 0x4b400000u));
    float far = 1.0f - tarn__fma_f32(s, e, s);
    return a < 1.0f ? near : copysignf(far, x);
}

/* In f64, because e^(-x^2) needs x^2 to more places than f32 has: e^(-x^2) times a polynomial in t = (x - 4) / (x + 4)
 * for e^(x^2) erfc x, which is smooth in t over the whole range. The conversion rounds subnormal results right. */
TARN__ALWAYS_INLINE static inline float tarn__erfc_f32(float x)
{
    double v = (double)x;
    double a = fabs(v);
    a = a > 11.0 ? 11.0 : a;
    double t = (a - 4.0) / (a + 4.0);
    double p = 0x1.a9dd2cd901022p-14;
    p = tarn__fma_f64(p, t, -0x1.d932b6853332ap-16);
    p = tarn__fma_f64(p, t, -0x1.ab589499bdb8ap-11);
    p = tarn__fma_f64(p, t, 0x1.09fcfb64c7865p-8);
    p = tarn__fma_f64(p, t, -0x1.a4bbdc1316681p-7);
    p = tarn__fma_f64(p, t, 0x1.006874475cc3dp-5);
    p = tarn__fma_f64(p, t, -0x1.027ddff355695p-4);
    p = tarn__fma_f64(p, t, 0x1.be50164513516p-4);
    p = tarn__fma_f64(p, t, -0x1.5066633769e95p-3);
    p = tarn__fma_f64(p, t, 0x1.bff01ab698d05p-3);
    p = tarn__fma_f64(p, t, -0x1.0949227b69fe2p-2);
    p = tarn__fma_f64(p, t, 0x1.18932bf03a9a6p-3);
    p *= tarn__exp2_coarse_f64(a * a * -0x1.71547652b82fep+0);
    return (float)(v < 0.0 ? 2.0 - p : p);
}

/* erf for |x| <= 1: x + x E(x^2). */
TARN__ALWAYS_INLINE static inline double tarn__erf_small_f64(double x)
{
    double z = x * x;
    double p = 0x1.2d4c954090e5ap-34;
    p = tarn__fma_f64(p, z, -0x1.47f2b257582e6p-30);
    p = tarn__fma_f64(p, z, 0x1.fcf85566e45cfp-27);
    p = tarn__fma_f64(p, z, -0x1.5fa496e9e2c1ap-23);
    p = tarn__fma_f64(p, z, 0x1.b9f020d315f1p-20);
    p = tarn__fma_f64(p, z, -0x1.f4d3542a5ffefp-17);
    p = tarn__fma_f64(p, z, 0x1.f9a337081cdf6p-14);
    p = tarn__fma_f64(p, z, -0x1.c02db4ac21c7ap-11);
    p = tarn__fma_f64(p, z, 0x1.565bcd1300aa1p-8);
    p = tarn__fma_f64(p, z, -0x1.b82ce312aedf7p-6);
    p = tarn__fma_f64(p, z, 0x1.ce2f21a0436dfp-4);
    p = tarn__fma_f64(p, z, -0x1.812746b0379fep-2);
    p = tarn__fma_f64(p, z, 0x1.06eba8214db69p-3);
    return tarn__fma_f64(x, p, x);
}

/* erfc for a >= 1/2. e^(-a^2) is taken with the rounding error of the square; the rest, (1 + 2a) e^(a^2) erfc a, stays
 * near 1.2 and varies slowly in t = (a - 4) / (a + 4), so that the polynomial's first term dominates. From 28 on the
 * result is 0. */
TARN__ALWAYS_INLINE static inline double tarn__erfc_large_f64(double a)
{
    a = a > 28.0 ? 28.0 : a;
    double square = a * a;
    double low = tarn__product_low_f64(a, a, square);
    double t = (a - 4.0) / (a + 4.0);
    double p = -0x1.526e1d769f3a8p-27;
    p = tarn__fma_f64(p, t, -0x1.8e4c38819f50ep-27);
    p = tarn__fma_f64(p, t, 0x1.bdeabb03807e7p-24);
    p = tarn__fma_f64(p, t, 0x1.17bff0a7a7e82p-24);
    p = tarn__fma_f64(p, t, -0x1.b8573383741cp-21);
    p = tarn__fma_f64(p, t, 0x1.444023575fa93p-22);
    p = tarn__fma_f64(p, t, 0x1.7efccb549a0e2p-18);
    p = tarn__fma_f64(p, t, -0x1.78b2ab316c724p-17);
    p = tarn__fma_f64(p, t, -0x1.9955a8dbabf3ap-16);
    p = tarn__fma_f64(p, t, 0x1.3be13f83ce342p-13);
    p = tarn__fma_f64(p, t, -0x1.a1df3e8dd42e5p-13);
    p = tarn__fma_f64(p, t, -0x1.8d4aa8c6e0f56p-11);
    p = tarn__fma_f64(p, t, 0x1.49c672a2f9389p-8);
    p = tarn__fma_f64(p, t, -0x1.096238736b812p-6);
    p = tarn__fma_f64(p, t, 0x1.3079edf62d9fcp-5);
    p = tarn__fma_f64(p, t, -0x1.0fb06dfeb017ap-4);
    p = tarn__fma_f64(p, t, 0x1.7fee004e14c16p-4);
    p = tarn__fma_f64(p, t, -0x1.9ddb23c3e3d53p-4);
    p = tarn__fma_f64(p, t, 0x1.16ecefcfa5253p-4);
    p = tarn__fma_f64(p, t, 0x1.f7f5df66fc819p-7);
    p = tarn__fma_f64(p, t, -0x1.1df1ad154a28cp-3);
    p = tarn__fma_f64(p, t, 0x1.3ba5916e9fd7fp+0);
    return tarn__exp_dd_f64(-square, -low) * (p / tarn__fma_f64(2.0, a, 1.0));
}

TARN__ALWAYS_INLINE static inline double tarn__erf_f64(double x)
{
    double a = fabs(x);
    double far = copysign(1.0 - tarn__erfc_large_f64(a), x);
    return a < 1.0 ? tarn__erf_small_f64(x) : far;
}

TARN__ALWAYS_INLINE static inline double tarn__erfc_f64(double x)
{
    double a = fabs(x);
    double far = tarn__erfc_large_f64(a);
    far = x < 0.0 ? 2.0 - far : far;
    return a < 0.5 ? 1.0 - tarn__erf_small_f64(x) : far;
}

/* ---- power ------------------------------------------------------------------------------------------------------- */

/* What y >= 0 has after the point, 0 from 2^52 on; only its being 0 means anything. */
TARN__ALWAYS_INLINE static inline double tarn__fraction_f64(double y)
{
    y = y > 0x1p52 ? 0x1p52 : y;
    return y - ((y + 0x1p52) - 0x1p52);
}

/* The signs and special values of C99's pow, given `size`, which is |x|^y and right for x = 0, infinities and y =
 * +-infinity. */
TARN__ALWAYS_INLINE static inline double tarn__pow_edges_f64(double x, double y, double size)
{
    double a = fabs(x), b = fabs(y);
    double fraction = tarn__fraction_f64(b);
    size = a == 1.0 ? 1.0 : size;
    double turned = tarn__fraction_f64(0.5 * b) != 0.0 ? -size : size; /* y is odd, if whole */
    double finite = fraction != 0.0 ? (double)NAN : turned;
    double infinite = fraction != 0.0 ? size : turned;
    double negative = a < (double)INFINITY ? finite : infinite;
    double zero = copysign(1.0, x) < 0.0 ? infinite : size;
    double z = x < 0.0 ? negative : size;
    z = x == 0.0 ? zero : z;
    z = x != x ? x : z;
    z = y != y ? y : z;
    z = x == 1.0 ? 1.0 : z;
    return y == 0.0 ? 1.0 : z;
}

/* x^y for a factor of an f32 result: x is an f32, y any f64. 2^(y log2|x|) in f64; the logarithm's error of 2^-43
 * becomes 2^-35 in what is within the range of f32. The square of the root has the whole range of f64: an infinite
 * gradient times a power that is only 0 in f32 is infinite. */
TARN__ALWAYS_INLINE static inline double tarn__pow_fast_f64(float x, double b)
{
    double a = fabs((double)x);
    uint64_t u = tarn__bits_f64(a); /* every f32 is a normal f64 or 0 */
    uint64_t e = (u + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu)) >> 52;
    double f = tarn__from_bits_f64(u - (e << 52) + 0x3ff0000000000000u) - 1.0;
    double s = f / (2.0 + f);
    double z = s * s;
    double p = 0x1.21b85e168be53p-2;
    p = tarn__fma_f64(p, z, 0x1.4794d339678eap-2);
    p = tarn__fma_f64(p, z, 0x1.a61a31ebdf6f1p-2);
    p = tarn__fma_f64(p, z, 0x1.2776c28f579fbp-1);
    p = tarn__fma_f64(p, z, 0x1.ec709dc53fd25p-1);
    p = tarn__fma_f64(p, z, 0x1.71547652b824fp+1);
    double l = tarn__fma_f64(s, p, tarn__from_bits_f64(e | 0x4330000000000000u) - (0x1p52 + 1023.0));
    l = a == 0.0 ? -(double)INFINITY : l;
    l = a < (double)INFINITY ? l : a;
    double half = 0.5 * b * l;
    half = half > 600.0 ? 600.0 : half;
    half = half < -600.0 ? -600.0 : half;
    double root = tarn__exp2_coarse_f64(half);
    return tarn__pow_edges_f64((double)x, b, root * root);
}

TARN__ALWAYS_INLINE static inline float tarn__pow_f32(float x, float y)
{
    return (float)tarn__pow_fast_f64(x, (double)y);
}

/* log|x| as a sum of two doubles, good to about 2^-64 of its size: the exponent of the result multiplies the error by
 * up to 745. s = f / (2 + f) is taken with its remainder, log = e ln2 + 2 s + s z (2/3 + z tail(z)) with z = s^2 <=
 * 0.03, and all but the tail is carried in two doubles. */
TARN__ALWAYS_INLINE static inline double tarn__log_dd_f64(double a, double *low)
{
    tarn__parts_f64 v = tarn__split_f64(a);
    double f = v.f;
    double g = 2.0 + f;
    double inverse = 1.0 / g;
    double s = f * inverse;
    double sg = s * g;
    double s_low = (((f - sg) - tarn__product_low_f64(s, g, sg)) - s * (f - (g - 2.0))) * inverse;
    double z = s * s;
    double z_low = tarn__product_low_f64(s, s, z) + 2.0 * s * s_low;
    double p = 0x1.0889f284779b4p-3;
    p = tarn__fma_f64(p, z, 0x1.101724dbe3009p-3);
    p = tarn__fma_f64(p, z, 0x1.3b18c61dc364ep-3);
    p = tarn__fma_f64(p, z, 0x1.745d09bb123a1p-3);
    p = tarn__fma_f64(p, z, 0x1.c71c71d84e74ep-3);
    p = tarn__fma_f64(p, z, 0x1.249249248e2a7p-2);
    p = tarn__fma_f64(p, z, 0x1.999999999999fp-2);
    double w = z * p;
    double c = 0x1.5555555555555p-1 + w;
    double c_low = ((0x1.5555555555555p-1 - c) + w) + 0x1.5555555555555p-55;
    double q = z * c;
    double q_low = tarn__product_low_f64(z, c, q) + (z * c_low + z_low * c);
    double t = s * q;
    double t_low = tarn__product_low_f64(s, q, t) + (s * q_low + s_low * q);
    double k = v.e * TARN__LN2_HIGH_F64;
    double h1 = k + 2.0 * s;
    double h2 = h1 + t;
    double rest = (2.0 * s - (h1 - k)) + (t - (h2 - h1)) + (v.e * TARN__LN2_LOW_F64 + (2.0 * s_low + t_low));
    double high = h2 + rest;
    *low = rest - (high - h2);
    return high;
}

/* e^(y log|x|) with the logarithm and the product in two doubles. |y| > 2^66 can only give 0, 1 or infinity and is
 * clamped. */
TARN__ALWAYS_INLINE static inline double tarn__pow_f64(double x, double y)
{
    double a = fabs(x);
    double l_low;
    double l = tarn__log_dd_f64(a, &l_low);
    l = a == 0.0 ? -(double)INFINITY : l;
    l = a < (double)INFINITY ? l : a;
    double b = y > 0x1p66 ? 0x1p66 : y;
    b = b < -0x1p66 ? -0x1p66 : b;
    double t = b * l;
    double t_low = tarn__product_low_f64(b, l, t) + b * l_low;
    t_low = fabs(t) < 800.0 ? t_low : 0.0;
    t = t > 800.0 ? 800.0 : t;
    t = t < -800.0 ? -800.0 : t;
    return tarn__pow_edges_f64(x, y, tarn__exp_dd_f64(t, t_low));
}

/* ---- sine and cosine of every number ----
 *
 * One pass looks for elements beyond the limit; almost always there are none. x and y may be the same. */

static inline void tarn__sin_tile_f32(const float *x, float *y, int64_t n)
{
    int large = 0;
    for (int64_t i = 0; i < n; i++)
        large |= fabsf(x[i]) > TARN__TRIG_MAX_F32;
    if (!large)
        for (int64_t i = 0; i < n; i++)
            y[i] = tarn__sin_f32(x[i]);
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = tarn__trig_is_large_f32(x[i]) ? sinf(x[i]) : tarn__sin_f32(x[i]);
}

static inline void tarn__cos_tile_f32(const float *x, float *y, int64_t n)
{
    int large = 0;
    for (int64_t i = 0; i < n; i++)
        large |= fabsf(x[i]) > TARN__TRIG_MAX_F32;
    if (!large)
        for (int64_t i = 0; i < n; i++)
            y[i] = tarn__cos_f32(x[i]);
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = tarn__trig_is_large_f32(x[i]) ? cosf(x[i]) : tarn__cos_f32(x[i]);
}

static inline void tarn__sin_tile_f64(const double *x, double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = tarn__trig_is_large_f64(x[i]) ? sin(x[i]) : tarn__sin_f64(x[i]);
}

static inline void tarn__cos_tile_f64(const double *x, double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = tarn__trig_is_large_f64(x[i]) ? cos(x[i]) : tarn__cos_f64(x[i]);
}

#endif
