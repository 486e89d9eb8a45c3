/* math_f64.cuh: f64_math: the functions of elementwise.def in f64, for f64 elements, and as the slow path of
 * math_f32.cuh for results out of f32's range. Names and arguments are the same in every math set. */
#ifndef TARN__CUDA_MATH_F64_CUH
#define TARN__CUDA_MATH_F64_CUH

#include "backends/cuda/common/kernel.cuh"

#define DEVICE static __device__ __forceinline__

/* Reference formulas in f64: also the slow path of the other sets. e^-|x| is used throughout, so nothing overflows. */
struct f64_math {
    typedef double real;
    DEVICE real exp(real x)
    {
        return ::exp(x);
    }
    /* g · e^x in two factors: the product may be finite while e^x is not. */
    DEVICE real exp_grad(real x, real g)
    {
        return g * exp(x * 0.5) * exp(x * 0.5);
    }
    DEVICE real exp2(real x)
    {
        return ::exp2(x);
    }
    DEVICE real log(real x)
    {
        return ::log(x);
    }
    DEVICE real log2(real x)
    {
        return ::log2(x);
    }
    DEVICE real sin(real x)
    {
        return ::sin(x);
    }
    DEVICE real cos(real x)
    {
        return ::cos(x);
    }
    DEVICE real tanh(real x)
    {
        return ::tanh(x);
    }
    DEVICE real erf(real x)
    {
        return ::erf(x);
    }
    DEVICE real sqrt(real x)
    {
        return ::sqrt(x);
    }
    /* Two correctly rounded operations instead of rsqrt(). */
    DEVICE real inverse_sqrt(real x)
    {
        return 1 / ::sqrt(x);
    }
    /* With e^-|x|: no overflow for large x. */
    DEVICE real sigmoid(real x)
    {
        real e = exp(x < 0 ? x : -x);
        return (x < 0 ? e : 1) / (1 + e);
    }
    /* s (1 - s) as e / (1 + e)²: symmetric in x, no cancellation. */
    DEVICE real sigmoid_grad(real x)
    {
        real e = exp(x < 0 ? x : -x), r = 1 / (1 + e);
        return e * r * r;
    }
    /* 1 - tanh² = 4 e / (1 + e)² with e = e^(-2|x|): no cancellation near ±1. */
    DEVICE real tanh_grad(real x)
    {
        real e = exp(-2 * fabs(x)), r = 1 / (1 + e);
        return 4 * e * r * r;
    }
    /* g · 2^x · ln 2, in two factors as exp_grad. */
    DEVICE real exp2_grad(real x, real g)
    {
        return g * 0.6931471805599453 * exp2(x * 0.5) * exp2(x * 0.5);
    }
    /* 2 / sqrt(π) · e^(-x²). */
    DEVICE real erf_grad(real x)
    {
        return 1.1283791670955126 * exp(-x * x);
    }
    /* The tanh form as x · sigmoid(2u): 0.5 (1 + tanh u) = sigmoid(2u). */
    DEVICE real gelu(real x)
    {
        return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x));
    }
    /* sigmoid(u) + x · sigmoid'(u) · u'. For large |x| the second term is 0 · infinity: it is 0. */
    DEVICE real gelu_grad(real x)
    {
        real u = 1.5957691216057308 * (x + 0.044715 * x * x * x), rise = 1.5957691216057308 * (1 + 0.134145 * x * x);
        real e = exp(u < 0 ? u : -u), r = 1 / (1 + e), bend = e * r * r;
        return (u < 0 ? e : 1) * r + (bend == 0 && fabs(x) < CUDART_INF ? 0 : x * bend * rise);
    }
    /* x Φ(x); erfc instead of 1 + erf: no cancellation for negative x. */
    DEVICE real gelu_erf(real x)
    {
        return 0.5 * x * erfc(x * -0.7071067811865476);
    }
    /* Φ(x) + x φ(x). */
    DEVICE real gelu_erf_grad(real x)
    {
        return 0.5 * erfc(x * -0.7071067811865476) + x * 0.3989422804014327 * exp(-0.5 * x * x);
    }
    DEVICE real silu(real x)
    {
        return x * sigmoid(x);
    }
    /* s + x s (1 - s). */
    DEVICE real silu_grad(real x)
    {
        real e = exp(x < 0 ? x : -x), r = 1 / (1 + e);
        return (x < 0 ? e : 1) * r + x * (e * r * r);
    }
    /* max(x, 0) + log(1 + e^-|x|). */
    DEVICE real softplus(real x)
    {
        return (x < 0 ? 0 : x) + log1p(exp(-fabs(x)));
    }
    DEVICE real softplus_grad(real x, real g)
    {
        return g * sigmoid(x);
    }
    /* Sign of the divisor, as in Python and PyTorch. */
    DEVICE real mod(real a, real b)
    {
        real r = fmod(a, b);
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    /* -g · floor(a / b); a - (a mod b) is a multiple of b */
    DEVICE real mod_grad_b(real a, real b, real g)
    {
        real remainder = mod(a, b), quotient = b == 0 ? a / b : rint((a - remainder) / b);
        if (fabs(b) == CUDART_INF && fabs(a) < CUDART_INF)
            quotient = remainder == a ? 0 : -1;
        return -g * quotient;
    }
    DEVICE real power(real a, real b)
    {
        return ::pow(a, b);
    }
    /* b a^(b - 1); 0 for b = 0, even at a = 0. */
    DEVICE real power_grad_a(real a, real b, real g)
    {
        return b == 0 ? 0 : g * (b * ::pow(a, b - 1));
    }
    /* a^b log a; its limit 0 at a = 0 for b >= 0. */
    DEVICE real power_grad_b(real a, real b, real g)
    {
        return a == 0 && b >= 0 ? 0 * g : g * (::pow(a, b) * ::log(a));
    }
    /* if a / b or a later step leaves a range that the result may still have, exponents are handled separately */
    DEVICE real quotient_grad_b(real a, real b, real g)
    {
        real q = a / b, y = -g * (q / b);
        if (fabs(q) > 1e-150 && fabs(q) < 1e150 && fabs(y) > 1e-290 && fabs(y) < 1e290)
            return y;
        int ea = 0, eb = 0, eg = 0;
        if (a == 0 || b == 0 || g == 0 || !(fabs(a) < CUDART_INF) || !(fabs(b) < CUDART_INF) || !(fabs(g) < CUDART_INF))
            return y;
        real ma = frexp(a, &ea), mb = frexp(b, &eb), mg = frexp(g, &eg);
        return ldexp(-mg * ((ma / mb) / mb), ea + eg - 2 * eb);
    }
};

#endif
