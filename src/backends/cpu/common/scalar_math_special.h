/* scalar_math_special.h: tanh, erf, erfc and pow in f32 and f64, by the rules of scalar_math.h. All are total: special
 * values follow C99. */
#ifndef TARN__CPU_SCALAR_MATH_SPECIAL_H
#define TARN__CPU_SCALAR_MATH_SPECIAL_H

#include "backends/cpu/common/scalar_math.h"

/* ---- tanh -------------------------------------------------------------------------------------------------------- */

/* Below 0.55 an odd polynomial after x; above, 1 - 2 / (e^2|x| + 1), where the subtrahend is below 1/2, and so are
 * its errors. */
TARN__ALWAYS_INLINE static inline float tarn__tanh_f32(float x)
{
    float a = fabsf(x);
    float z = a * a;
    float p = -0x1.9f169cp-8f;
    p = tarn__fma_f32(p, z, 0x1.59fd72p-6f);
    p = tarn__fma_f32(p, z, -0x1.b94276p-5f);
    p = tarn__fma_f32(p, z, 0x1.110ddcp-3f);
    p = tarn__fma_f32(p, z, -0x1.55554ep-2f);
    float small = tarn__fma_f32(x * z, p, x);
    a = a > 9.5f ? 9.5f : a;
    float rounded = tarn__fma_f32(a, 0x1.715476p+1f, TARN__ROUND_F32);
    float r = tarn__reduce_ln2_f32(2.0f * a, rounded - TARN__ROUND_F32);
    float s = tarn__pow2_f32((int32_t)(tarn__bits_f32(rounded) - 0x4b400000u));
    float large = 1.0f - 2.0f / (tarn__fma_f32(s, tarn__expm1_reduced_f32(r), s) + 1.0f);
    return copysignf(a < 0.55f ? small : large, x);
}

/* t / (t + 2) with t = e^2|x| - 1: no cancellation. */
TARN__ALWAYS_INLINE static inline double tarn__tanh_f64(double x)
{
    double a = fabs(x);
    a = a > 22.0 ? 22.0 : a;
    double t = tarn__expm1_f64(2.0 * a);
    return copysign(t / (t + 2.0), x);
}

/* ---- error function ---------------------------------------------------------------------------------------------- */

/* Below 1, x + x E(x^2); above, 1 - e^q(|x|) with a polynomial for log erfc, whose errors are scaled by erfc <=
 * 0.16. From 4 on the result is 1. */
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
    float small = tarn__fma_f32(x, p, x);
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
    float large = 1.0f - tarn__fma_f32(s, e, s);
    return a < 1.0f ? small : copysignf(large, x);
}

/* In f64, because e^(-x^2) needs x^2 to more bits than f32 has: e^(-x^2) times a polynomial in t = (x - 4) / (x + 4)
 * for e^(x^2) erfc x, which is smooth in t over the whole range. The final conversion rounds subnormal results
 * correctly. */
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

/* erfc for a >= 1/2. e^(-a^2) includes the rounding error of the square; the rest, (1 + 2a) e^(a^2) erfc a, stays
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
    double large = copysign(1.0 - tarn__erfc_large_f64(a), x);
    return a < 1.0 ? tarn__erf_small_f64(x) : large;
}

TARN__ALWAYS_INLINE static inline double tarn__erfc_f64(double x)
{
    double a = fabs(x);
    double large = tarn__erfc_large_f64(a);
    large = x < 0.0 ? 2.0 - large : large;
    return a < 0.5 ? 1.0 - tarn__erf_small_f64(x) : large;
}

/* ---- power ------------------------------------------------------------------------------------------------------- */

/* Fractional part of y >= 0, 0 from 2^52 on; only whether it is 0 is meaningful. */
TARN__ALWAYS_INLINE static inline double tarn__fraction_f64(double y)
{
    y = y > 0x1p52 ? 0x1p52 : y;
    return y - ((y + 0x1p52) - 0x1p52);
}

/* Signs and special values of C99's pow, given `size` = |x|^y, which is right for x = 0, infinities and y =
 * +-infinity. */
TARN__ALWAYS_INLINE static inline double tarn__pow_edges_f64(double x, double y, double size)
{
    double a = fabs(x), b = fabs(y);
    double fraction = tarn__fraction_f64(b);
    size = a == 1.0 ? 1.0 : size;
    double signed_size = tarn__fraction_f64(0.5 * b) != 0.0 ? -size : size; /* y is odd, if an integer */
    double finite = fraction != 0.0 ? (double)NAN : signed_size;
    double infinite = fraction != 0.0 ? size : signed_size;
    double negative = a < (double)INFINITY ? finite : infinite;
    double zero = copysign(1.0, x) < 0.0 ? infinite : size;
    double z = x < 0.0 ? negative : size;
    z = x == 0.0 ? zero : z;
    z = x != x ? x : z;
    z = y != y ? y : z;
    z = x == 1.0 ? 1.0 : z;
    return y == 0.0 ? 1.0 : z;
}

/* x^y as a factor of an f32 result: x is an f32, y any f64. 2^(y log2|x|) in f64; the logarithm's error of 2^-43
 * becomes 2^-35 within f32's range. The squared root covers the whole range of f64: an infinite gradient times a
 * power that underflows only in f32 must be infinite. */
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

/* log|x| as a double-double, accurate to about 2^-64 of its size: the exponent of the result multiplies the error by
 * up to 745. s = f / (2 + f) is computed with its remainder, log = e ln2 + 2 s + s z (2/3 + z tail(z)) with z = s^2
 * <= 0.03, and all but the tail is carried in two doubles. */
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
    double residue = (2.0 * s - (h1 - k)) + (t - (h2 - h1)) + (v.e * TARN__LN2_LOW_F64 + (2.0 * s_low + t_low));
    double high = h2 + residue;
    *low = residue - (high - h2);
    return high;
}

/* e^(y log|x|) with the logarithm and the product as double-doubles. |y| > 2^66 can only give 0, 1 or infinity and
 * is clamped. */
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

#endif
