/* scalar_math.h: exp and log, and the bit operations they need, as portable C functions of one float or double that the
 * compiler vectorizes inside a loop; every level has them. scalar_math_trig.h has sin and cos, scalar_math_special.h
 * tanh, erf and pow. simd_f32_math.h is the hand-vectorized counterpart for f32.
 *
 * Every function is straight-line arithmetic, bit operations and selections, so that the loop `for (i = 0; i < n; i++)
 * y[i] = f(x[i])` becomes vector code on SSE2, AVX2, AVX-512 and NEON alike. Compile with -O3 -fno-math-errno
 * -fno-trapping-math; never with -ffast-math: NaN, infinities, signed zeros and the rounding of single additions
 * matter.
 *
 * Construction, and what must stay true:
 *
 *   1. A value is rounded to an integer by adding 1.5 * 2^23 (f32) or 1.5 * 2^52 (f64): the sum has no bits for a
 *      fraction, and its low bits are the integer. SSE2 has no rounding instruction and no conversion between f64 and
 *      64-bit integers; this needs neither.
 *   2. 64-bit integers are only added, shifted left, shifted right without sign and combined bitwise: SSE2 lacks the
 *      rest. Comparisons are made on floats.
 *   3. A clamp is written `x > limit ? limit : x`, so that NaN passes through it and reaches the result by arithmetic.
 *   4. Products and sums are fused explicitly where the target has FMA. Results are accurate with and without it, and
 *      it does not matter whether the compiler fuses the others, except in tarn__product_low_f64, which says so.
 *   5. Polynomials are minimax fits of what remains of the function after its leading terms, which stay exact. So a
 *      polynomial's rounding errors are small compared with the result.
 *
 * Largest errors in ulp, checked by tests/backends/test_scalar_math.c: f32 functions 1.5, f64 functions 4 (pow 1.5). */
#ifndef TARN__CPU_SCALAR_MATH_H
#define TARN__CPU_SCALAR_MATH_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* ---- bits, scaling, FMA ------------------------------------------------------------------------------------------ */

/* A loop vectorizes only if every function it calls is inlined, however long. */
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

/* One rounding where the target has FMA, two elsewhere: see rule 4. */
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

/* x * 2^k for x near 1 and any relevant k. Two factors: neither overflows, the first product is exact, the second
 * rounds once, so subnormal results are correctly rounded. `rounded` is k + TARN__ROUND_F32. */
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

/* The rounding error of p = a * b, exactly: a * b = p + result. Without FMA each factor is split into halves of 26
 * bits, whose products are exact. p must be the rounded product: the caller keeps it in a variable, and with FMA its
 * use here as an operand keeps the compiler from fusing it elsewhere. */
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
 * x = k ln2 + r with |r| <= ln2 / 2. ln2 is split so that k times its high part is exact; the low part corrects the
 * rest, so r is as good as rounded once. e^r = 1 + r + r^2 P(r): the polynomial's errors are scaled by r^2 <= 0.12. */

#define TARN__LN2_HIGH_F32 0x1.62e4p-1f /* 15 bits: exact times any exponent */
#define TARN__LN2_LOW_F32 0x1.7f7d1cp-20f
#define TARN__LN2_HIGH_F64 0x1.62e42fefa38p-1 /* 42 bits */
#define TARN__LN2_LOW_F64 0x1.ef35793c7673p-45

/* x - k ln2 in two steps, the first of which is exact. */
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

/* Clamped just outside the range of finite nonzero results. */
TARN__ALWAYS_INLINE static inline float tarn__exp_f32(float x)
{
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float rounded = tarn__fma_f32(x, 0x1.715476p+0f, TARN__ROUND_F32);
    float r = tarn__reduce_ln2_f32(x, rounded - TARN__ROUND_F32);
    return tarn__scale_f32(1.0f + tarn__expm1_reduced_f32(r), rounded);
}

/* e^(x + low), where low is at most a few ulp of x (double-double argument). */
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

/* 2^k (e^r - 1) + (2^k - 1): the second term is exact where it matters, and no other rounding exceeds the result's.
 * 2^128 does not exist in f32, so the largest exponent is halved and the result doubled. The result has the sign of
 * x, zero included. */
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
 * x = 2^e m with sqrt(1/2) <= m < sqrt(2), found by subtracting the bits of sqrt(1/2): the exponent field then holds
 * e. f = m - 1 is exact. log x = e ln2 + log(1 + f); where e is not 0 the sum is at least 0.34, so log(1 + f) never
 * cancels below its own error. */

/* Exponent and mantissa of a positive number. */
typedef struct tarn__parts_f32 {
    float e, f; /* x = 2^e (1 + f) */
} tarn__parts_f32;

typedef struct tarn__parts_f64 {
    double e, f;
} tarn__parts_f64;

/* x positive and finite, subnormals included; the result is meaningless for any other x. */
TARN__ALWAYS_INLINE static inline tarn__parts_f32 tarn__split_f32(float x)
{
    float add = x < FLT_MIN ? -23.0f : 0.0f;
    uint32_t u = tarn__bits_f32(x < FLT_MIN ? x * 0x1p23f : x);
    int32_t e = (int32_t)(u - 0x3f3504f3u) >> 23;
    float m = tarn__from_bits_f32(u - ((uint32_t)e << 23));
    return (tarn__parts_f32){(float)e + add, m - 1.0f};
}

/* The biased exponent, placed in the low bits of 2^52, becomes a float without a conversion. */
TARN__ALWAYS_INLINE static inline tarn__parts_f64 tarn__split_f64(double x)
{
    double add = x < DBL_MIN ? -(0x1p52 + 1023.0 + 52.0) : -(0x1p52 + 1023.0);
    uint64_t u = tarn__bits_f64(x < DBL_MIN ? x * 0x1p52 : x);
    uint64_t e = (u + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu)) >> 52;
    double m = tarn__from_bits_f64(u - (e << 52) + 0x3ff0000000000000u);
    return (tarn__parts_f64){tarn__from_bits_f64(e | 0x4330000000000000u) + add, m - 1.0};
}

/* Special values: log 0 = -inf, log of a negative = NaN, log inf = inf. */
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

/* log2(1 + f) = f + f R(f): |R| is at most 0.8, which scales its errors; exact for powers of two. */
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

/* The exponent is that of the rounded 1 + x, but f = 2^-e x + (2^-e - 1) comes from x itself, with one rounding: no
 * bits of a small x are lost. 2^-e x is exact: an addition to the exponent. The result has the sign of x, zero
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

#endif
