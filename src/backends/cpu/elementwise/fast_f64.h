/* fast_f64.h: reduced-accuracy f64 functions for IN_F64 rows of elementwise.def with f32 results: f64 for its range and
 * precision, but only as accurate as one rounding to f32 needs. Errors are below 2^-36 of the result, 1/4000 ulp of
 * f32, at less than half the cost; gradients near their root below 1/4 ulp.
 *
 * Infinities, zeros and NaN appear where f64's own functions have them; values beyond the range of f32, even after a
 * factor of f32's range, only need to stay there. The rules of scalar_math.h hold. */
#ifndef TARN__CPU_FAST_F64_H
#define TARN__CPU_FAST_F64_H

#include "backends/cpu/common/scalar_math.h"

/* 2^x: 0 below f64's subnormals, infinite beyond its range; between -1074 and -1022 only known to be nonzero. */
TARN__ALWAYS_INLINE static inline double tarn__exp2_fast(double x)
{
    double clamped = x > 1023.0 ? 1023.0 : x;
    clamped = clamped < -1022.0 ? -1022.0 : clamped;
    double k = (clamped + TARN__ROUND_F64) - TARN__ROUND_F64;
    double r = clamped - k;
    double p = 0x1.61afcf7744740p-20;
    p = tarn__fma_f64(p, r, 0x1.00dad210a89a3p-16);
    p = tarn__fma_f64(p, r, 0x1.430acca3e9751p-13);
    p = tarn__fma_f64(p, r, 0x1.5d8748395ded2p-10);
    p = tarn__fma_f64(p, r, 0x1.3b2ab5c527670p-7);
    p = tarn__fma_f64(p, r, 0x1.c6b08dd46b407p-5);
    p = tarn__fma_f64(p, r, 0x1.ebfbdff931a18p-3);
    p = tarn__fma_f64(p, r, 0x1.62e42fef8617dp-1);
    p = tarn__fma_f64(p, r, 0x1.ffffffffff7a4p-1) * tarn__pow2_f64(k);
    p = x >= 1024.0 ? (double)INFINITY : p;
    return x < -1075.0 ? 0.0 : p;
}

/* e^x for x <= 0. */
TARN__ALWAYS_INLINE static inline double tarn__exp_fast(double x)
{
    return tarn__exp2_fast(x * 0x1.71547652b82fep+0);
}

/* log(1 + x) for 0 <= x <= 1, as 2 atanh(x / (2 + x)). */
TARN__ALWAYS_INLINE static inline double tarn__log1p_fast(double x)
{
    double s = x / (2.0 + x);
    double z = s * s;
    double p = 0x1.c013427bdfd7ep-3;
    p = tarn__fma_f64(p, z, 0x1.5e8bd8e09d72bp-3);
    p = tarn__fma_f64(p, z, 0x1.c8d309d14d0f0p-3);
    p = tarn__fma_f64(p, z, 0x1.24899133f4385p-2);
    p = tarn__fma_f64(p, z, 0x1.9999c3913d9cdp-2);
    p = tarn__fma_f64(p, z, 0x1.5555552f9931fp-1);
    p = tarn__fma_f64(p, z, 0x1.0000000002c38p+1);
    return s * p;
}

/* e^(a^2) erfc a for a >= 0: a polynomial in t = (a - 4) / (a + 4). Constant beyond 14: times e^(-a^2) that is below
 * f32's range, even after a factor of that range. */
TARN__ALWAYS_INLINE static inline double tarn__erfcx_fast(double a)
{
    a = a > 14.0 ? 14.0 : a;
    double t = (a - 4.0) / (a + 4.0);
    double p = 0x1.f0684e8413bbep-20;
    p = tarn__fma_f64(p, t, -0x1.dca4de5b337f9p-19);
    p = tarn__fma_f64(p, t, -0x1.709e448908621p-16);
    p = tarn__fma_f64(p, t, 0x1.51c4c538a5f0cp-14);
    p = tarn__fma_f64(p, t, -0x1.6cec8ec3ece4bp-16);
    p = tarn__fma_f64(p, t, -0x1.a34f2b90893bcp-11);
    p = tarn__fma_f64(p, t, 0x1.0a16c0042709bp-8);
    p = tarn__fma_f64(p, t, -0x1.a4ddac254047fp-7);
    p = tarn__fma_f64(p, t, 0x1.0066e9d45f084p-5);
    p = tarn__fma_f64(p, t, -0x1.027d5b61447afp-4);
    p = tarn__fma_f64(p, t, 0x1.be502bdbe1f61p-4);
    p = tarn__fma_f64(p, t, -0x1.506666dc3e9f3p-3);
    p = tarn__fma_f64(p, t, 0x1.bff01a609715cp-3);
    p = tarn__fma_f64(p, t, -0x1.09492273a5ac3p-2);
    return tarn__fma_f64(p, t, 0x1.18932bf08d9f4p-3);
}

TARN__ALWAYS_INLINE static inline double tarn__erfc_fast(double x)
{
    double tail = tarn__erfcx_fast(fabs(x)) * tarn__exp_fast(-(x * x));
    return x < 0.0 ? 2.0 - tail : tail;
}

/* `grad` at x; near the gradient's root, where it is a difference of nearly equal values, its Taylor series there. */
TARN__ALWAYS_INLINE static inline double tarn__near_root_fast(double x, double grad, double root, double c1, double c2,
                                                              double c3, double c4, double c5)
{
    double d = x - root;
    double p = tarn__fma_f64(c5, d, c4);
    p = tarn__fma_f64(p, d, c3);
    p = tarn__fma_f64(p, d, c2);
    p = tarn__fma_f64(p, d, c1) * d;
    return fabs(d) < 0x1p-7 ? p : grad;
}

#define TARN__GELU_ROOT_FAST(x, grad) \
    tarn__near_root_fast(x, grad, -0x1.81429f9e97e4cp-1, 0x1.b8bacd2c96b92p-2, 0x1.8cd1a2b2fff33p-2, \
                         -0x1.029615edb0777p-6, -0x1.d2b77346470adp-4, -0x1.104a83edc0de0p-6)
#define TARN__GELU_ERF_ROOT_FAST(x, grad) \
    tarn__near_root_fast(x, grad, -0x1.80ead197f00b4p-1, 0x1.b9d98fa5a3215p-2, 0x1.8d9a941de3ac5p-2, \
                         -0x1.2a2ef9bb865aep-6, -0x1.d2fa4c17c7e84p-4, -0x1.e4088244f901dp-7)
#define TARN__SILU_ROOT_FAST(x, grad) \
    tarn__near_root_fast(x, grad, -0x1.474973c84120bp+0, 0x1.be1410460527fp-3, 0x1.2c563458cc0adp-3, \
                         0x1.353eb573ca457p-6, -0x1.f2d0e32bc2994p-7, -0x1.b0f82c498fd2fp-8)

#endif
