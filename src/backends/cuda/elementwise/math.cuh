/* math.cuh: device math behind the expressions of elementwise.def.
 *
 * Three sets of functions: `f32_math` for f32 and f16 elements, `approx_math` for bf16, whose 8 bits allow the
 * hardware's approximations, and `f64_math`. A row marked IN_F64 asks for f64 because f32 loses precision or range
 * somewhere. f64 is slow on GPUs, so f32_math's formulas keep their precision in f32, and only results out of f32's
 * range are recomputed in f64 (is_extreme). Errors are checked against the CPU's in tests/ops. */
#ifndef TARN__CUDA_MATH_CUH
#define TARN__CUDA_MATH_CUH

#include "backends/cuda/elementwise/math_f32.cuh"

/* Hardware approximations, accurate to about 20 bits. */
struct approx_math {
    typedef float real;
    DEVICE real exp(real x)
    {
        return __expf(x);
    }
    DEVICE real exp_grad(real x, real g)
    {
        real y = g * exp(x);
        return needs_f64(y, g) ? f32_math::exp_grad_f64(x, g) : y;
    }
    DEVICE real exp2(real x)
    {
        return exp2f(x);
    }
    /* log2 of the hardware times ln 2. */
    DEVICE real log(real x)
    {
        return __logf(x);
    }
    DEVICE real log2(real x)
    {
        return __log2f(x);
    }
    /* No hardware sine: its relative error is large near the zeros. */
    DEVICE real sin(real x)
    {
        return f32_math::sin_quarter(x, 0);
    }
    DEVICE real cos(real x)
    {
        return f32_math::sin_quarter(x, 1);
    }
    DEVICE real tanh(real x)
    {
        real y;
        asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
    /* tanh of an odd polynomial, to 2^-15 plus tanh's own error; 1 from 4 on */
    DEVICE real erf(real x)
    {
        const real c[] = {1.1283539533615112f, 0.10316605865955353f, -0.000987815554253757f, -0.00016542368393857032f};
        real near = x > 4 ? 4.0f : x < -4 ? -4.0f : x;
        return tanh(near * polynomial(near * near, c));
    }
    DEVICE real sqrt(real x)
    {
        real y;
        asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
    DEVICE real inverse_sqrt(real x)
    {
        return rsqrtf(x);
    }
    DEVICE real inverse(real x) /* for x between 1 and 4 */
    {
        real y;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
    /* With e^-|x|: no overflow for large x. */
    DEVICE real sigmoid(real x)
    {
        real e = exp(-fabsf(x));
        return (x < 0 ? e : 1.0f) * inverse(1 + e);
    }
    /* e / (1 + e)². */
    DEVICE real sigmoid_grad(real x)
    {
        real e = exp(-fabsf(x)), r = inverse(1 + e);
        return e * r * r;
    }
    /* 4 e / (1 + e)² with e = e^(-2|x|). */
    DEVICE real tanh_grad(real x)
    {
        real e = exp(-2 * fabsf(x)), r = inverse(1 + e);
        return 4 * e * r * r;
    }
    DEVICE real exp2_grad(real x, real g)
    {
        real y = g * (0.6931471805599453f * exp2(x));
        return needs_f64(y, g) ? f32_math::exp2_grad_f64(x, g) : y;
    }
    DEVICE real erf_grad(real x)
    {
        return 1.1283791670955126f * exp(-x * x);
    }
    /* x · sigmoid(2u), from e^(-2|u|). */
    DEVICE real gelu(real x)
    {
        real e = exp(-1.5957691216057308f * fabsf(fmaf(0.044715f * x * x, x, x)));
        return x * ((x < 0 ? e : 1.0f) * inverse(1 + e));
    }
    /* No polynomial around the root: bf16 has 8 bits. */
    DEVICE real gelu_grad(real x)
    {
        real e = exp(-1.5957691216057308f * fabsf(fmaf(0.044715f * x * x, x, x))), r = inverse(1 + e);
        real rise = 1.5957691216057308f * fmaf(0.134145f * x, x, 1.0f);
        return (x < 0 ? e : 1.0f) * r + x * (e * r * r) * rise;
    }
    DEVICE real erfc_scaled(real x) /* as f32_math's, to 2^-22 */
    {
        const real c[] = {0.23925156172790824f,  0.24161517962225543f, 0.1991608488425933f,   0.2593120814204732f,
                          -0.11148941581554139f, 0.41717152375000316f, -0.31699014405484943f, 0.07196823932003008f};
        real t = inverse(fmaf(0.3f, x, 1.0f));
        return t * polynomial(t, c);
    }
    /* x Φ(x) from the scaled erfc. */
    DEVICE real gelu_erf(real x)
    {
        real tail = 0.5f * (exp(-0.5f * x * x) * erfc_scaled(fabsf(x)));
        return x * (x < 0 ? tail : 1 - tail);
    }
    /* Φ(x) + x φ(x) with the common factor e^(-x²/2). */
    DEVICE real gelu_erf_grad(real x)
    {
        real e = exp(-0.5f * x * x), half = 0.5f * erfc_scaled(fabsf(x));
        return x < 0 ? e * fmaf(0.39894228f, x, half) : fmaf(e, fmaf(0.39894228f, x, -half), 1.0f);
    }
    /* Below -64 the two-factor form: e^x alone would be flushed to 0. */
    DEVICE real silu(real x)
    {
        return x < -64 ? f32_math::silu(x) : x * sigmoid(x);
    }
    /* s + x s (1 - s). */
    DEVICE real silu_grad(real x)
    {
        real e = exp(-fabsf(x)), r = inverse(1 + e);
        return (x < 0 ? e : 1.0f) * r + x * (e * r * r);
    }
    /* log(1 + e), and its series where 1 + e would lose precision of e */
    DEVICE real softplus(real x)
    {
        real e = exp(-fabsf(x)), rest = e < 0.015625f ? e * fmaf(e, fmaf(e, 0.33333333f, -0.5f), 1.0f) : log(1 + e);
        return (x < 0 ? 0.0f : x) + rest;
    }
    DEVICE real softplus_grad(real x, real g)
    {
        real y = g * sigmoid(x);
        return needs_f64(y, g) ? f32_math::softplus_grad_f64(x, g) : y;
    }
    /* Integer results must be exact in any precision. */
    DEVICE real mod(real a, real b)
    {
        return f32_math::mod(a, b);
    }
    DEVICE real mod_grad_b(real a, real b, real g)
    {
        return f32_math::mod_grad_b(a, b, g);
    }
    /* 2^(b log2 |a|) is off by |b log2 a| 2^-22, at most 2^-15 for results in range; extreme ones take the slow path */
    DEVICE real power(real a, real b)
    {
        real y = exp2f(b * __log2f(a));
        return a > 0 && a <= 1e36f && !is_extreme(y) ? y : power_slow(a, b);
    }
    /* b a^(b - 1); |b| up to 1e-3 takes the slow path. */
    DEVICE real power_grad_a(real a, real b, real g)
    {
        real derivative = b * exp2f((b - 1) * __log2f(a)), y = g * derivative;
        return a > 0 && a <= 1e36f && fabsf(b) > 1e-3f && !is_extreme(derivative) && !is_extreme(y)
                   ? y
                   : f32_math::power_grad_a_f64(a, b, g);
    }
    /* a^b log a from one log2. */
    DEVICE real power_grad_b(real a, real b, real g)
    {
        real l = __log2f(a), derivative = exp2f(b * l) * (l * 0.6931471805599453f), y = g * derivative;
        return a > 0 && a <= 1e36f && !is_extreme(derivative) && !is_extreme(y) ? y
                                                                                : f32_math::power_grad_b_f64(a, b, g);
    }
    static __device__ __noinline__ real power_slow(real a, real b)
    {
        return powf(a, b);
    }
    DEVICE real quotient_grad_b(real a, real b, real g)
    {
        return f32_math::quotient_grad_b(a, b, g);
    }
};

/* The math set of an element type. */
template <typename T> struct math_of {
    typedef f32_math type;
};
template <> struct math_of<bf16> {
    typedef approx_math type;
};
template <> struct math_of<double> {
    typedef f64_math type;
};

/* Integers: only what the expressions for any dtype need. */
struct int_math {
    typedef int64_t real;
    DEVICE real mod(real a, real b)
    {
        if (b == 0 || b == -1)
            return 0;
        real r = a % b;
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
};

#endif
