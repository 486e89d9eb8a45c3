/* scalar_math_trig.h: sine and cosine in f32 and f64, by the rules of scalar_math.h. The scalar forms are valid for |x|
 * <= TARN__TRIG_MAX_F32 or _F64 and for infinities and NaN; the tile forms at the end for every x. */
#ifndef TARN__CPU_SCALAR_MATH_TRIG_H
#define TARN__CPU_SCALAR_MATH_TRIG_H

#include "backends/cpu/common/scalar_math.h"

/* ---- sine and cosine ----
 *
 * r = x - n pi with n the nearest integer (for cos the nearest half-integer, since cos x = sin(x + pi/2)); the
 * result is sin r, negated for odd n: one polynomial on |r| <= pi/2 and no choice between two. pi is stored in parts
 * so short that n times a part is exact, and so are the first differences, by cancellation: near a zero of the
 * function r keeps its relative accuracy. That holds while n fits next to the parts, which limits |x|. */

#define TARN__TRIG_MAX_F32 0x1p29f /* n < 2^28, parts of pi of 25 bits, in f64 */
#define TARN__TRIG_MAX_F64 0x1p24  /* n < 2^23, parts of pi of 30 bits */

/* True where the scalar sin and cos are out of range and the tile form (or libm) is needed. False for infinities and
 * NaN. */
TARN__ALWAYS_INLINE static inline int tarn__trig_is_large_f32(float x)
{
    return fabsf(x) > TARN__TRIG_MAX_F32 && fabsf(x) < INFINITY;
}

TARN__ALWAYS_INLINE static inline int tarn__trig_is_large_f64(double x)
{
    return fabs(x) > TARN__TRIG_MAX_F64 && fabs(x) < (double)INFINITY;
}

/* sin(x - n pi), negated where the integer in the low bits of `rounded` is odd. Error 2^-35. */
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
    /* rounding error of h, and the last part of pi */
    double low = tarn__fma_f64(n, -0x1.701b839a25205p-91, (r - h) - c);
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

/* ---- sine and cosine of every number ----
 *
 * One pass checks for elements beyond the limit; almost always there are none. x and y may be the same. */

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

/* f64 checks per element: the loop calls libm for large ones. */
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
