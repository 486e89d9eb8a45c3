/* math_f32.cuh: f32_math: the functions of elementwise.def for f32 and f16 elements, within a few ulp of f64_math.
 *
 * f64 is slow on GPUs. So the formulas keep their precision in f32: differences of nearly equal values are replaced by
 * polynomials, arguments are carried in two parts, a value and its rounding error. Only what leaves f32's range is
 * recomputed in f64, out of line: the registers of a rare path would cost every thread. */
#ifndef TARN__CUDA_MATH_F32_CUH
#define TARN__CUDA_MATH_F32_CUH

#include "backends/cuda/elementwise/math_f64.cuh"

/* Polynomial in t (Horner). Used for gradients around their root, where the formula is a difference of nearly equal
 * values. */
template <int N> __device__ __forceinline__ float polynomial(float t, const float (&c)[N])
{
    float sum = c[N - 1];
#pragma unroll
    for (int i = N - 2; i >= 0; i--)
        sum = fmaf(sum, t, c[i]);
    return sum;
}

/* f32 results that must be recomputed in f64: near the ends of the range, where factors may have left it. */
DEVICE bool is_extreme(float x)
{
    return !(fabsf(x) >= 1e-30f && fabsf(x) <= 1e36f);
}

/* The same for a result multiplied by `scale`: 0 times a finite value is 0, but not if it came out as NaN; and a large
 * scale may have hidden an underflow. */
DEVICE bool needs_f64(float y, float scale)
{
    return (is_extreme(y) && (scale != 0 || y != y)) || fabsf(scale) > 1e6f;
}

/* Within a few ulp of f64_math over f32's range. Gradients take the upstream g as a factor where the product may need
 * f64. */
struct f32_math {
    typedef float real;
    DEVICE real exp(real x)
    {
        return expf(x);
    }
    DEVICE real exp2(real x)
    {
        return exp2f(x);
    }
    /* logf and log2f: 1 ulp. */
    DEVICE real log(real x)
    {
        return logf(x);
    }
    DEVICE real log2(real x)
    {
        return log2f(x);
    }
    DEVICE real sin(real x)
    {
        return sin_quarter(x, 0);
    }
    DEVICE real cos(real x)
    {
        return sin_quarter(x, 1);
    }
    /* The CUDA library's functions where they are within a few ulp. */
    DEVICE real tanh(real x)
    {
        return tanhf(x);
    }
    /* erff: 2 ulp. */
    DEVICE real erf(real x)
    {
        return erff(x);
    }
    /* IEEE square root, as on the CPU. */
    DEVICE real sqrt(real x)
    {
        return sqrtf(x);
    }
    /* sin(x + quarter · π/2): multiples of π/2 are subtracted in three parts; arguments too large for that go to the
     * library */
    DEVICE real sin_quarter(real x, int quarter)
    {
        if (!(fabsf(x) < 1e5f))
            return sin_quarter_slow(x, quarter);
        /* k = round(x · 2/π), r = x - k · π/2 in three parts */
        real k = rintf(x * 0.636619772f), r = fmaf(k, -1.57079637f, x);
        r = fmaf(k, 4.37113883e-8f, r);
        r = fmaf(k, 1.71512489e-15f, r);
        int at = (int)k + quarter;
        const real sines[] = {-1.6666654611e-1f, 8.3321608736e-3f, -1.9515295891e-4f};
        const real cosines[] = {4.166664568298827e-2f, -1.388731625493765e-3f, 2.443315711809948e-5f};
        real square = r * r;
        real y = at & 1 ? fmaf(square * square, polynomial(square, cosines), fmaf(-0.5f, square, 1.0f))
                        : fmaf(r * square, polynomial(square, sines), r);
        return at & 2 ? -y : y;
    }
    /* The library reduces any argument (Payne-Hanek). */
    static __device__ __noinline__ real sin_quarter_slow(real x, int quarter)
    {
        return quarter ? cosf(x) : sinf(x);
    }
    /* a / b for b between 1 and 4: no special cases */
    DEVICE real divide(real a, real b)
    {
        real r;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
        real q = a * r;
        return fmaf(fmaf(-b, q, a), r, q);
    }
    /* a / (b + rest), where rest is b's rounding error */
    DEVICE real divide(real a, real b, real rest)
    {
        real r;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
        real q = a * r;
        return fmaf(fmaf(-q, rest, fmaf(-b, q, a)), r, q);
    }
    /* rsqrtf: 2 ulp. */
    DEVICE real inverse_sqrt(real x)
    {
        return rsqrtf(x);
    }
    /* e^x for x below 88, to 1 ulp: 2^k times a polynomial of the remainder. 0 below the normal range. */
    DEVICE real exp_accurate(real x)
    {
        const real c[] = {0.5f, 1.6666667e-1f, 4.1666667e-2f, 8.3333333e-3f, 1.3888889e-3f, 1.9841270e-4f};
        real low = x < -88 ? -88.1f : x; /* 2^-127, whose bits are 0 */
        /* 1.5 · 2^23 + 127: leaves the integer in the low bits */
        real shifted = fmaf(low, 1.4426950408889634f, 12583039.0f);
        real k = shifted - 12583039.0f, r = fmaf(-k, 0.693359375f, low);
        r = fmaf(-k, -2.12194440e-4f, r);
        real y = fmaf(r * r, polynomial(r, c), r) + 1;
        return y * __int_as_float(__float_as_int(shifted) << 23);
    }
    /* g e^x in one factor if that stays in range */
    DEVICE real exp_grad(real x, real g)
    {
        real y = g * exp(x);
        return needs_f64(y, g) ? exp_grad_f64(x, g) : y;
    }
    /* Slow paths: f64, out of line. */
    static __device__ __noinline__ real exp_grad_f64(real x, real g)
    {
        return (real)f64_math::exp_grad((double)x, (double)g);
    }
    /* With e^-|x|: no overflow for large x. */
    DEVICE real sigmoid(real x)
    {
        real e = exp(-fabsf(x));
        return divide(x < 0 ? e : 1.0f, 1 + e);
    }
    /* e / (1 + 2e + e²), one division. */
    DEVICE real sigmoid_grad(real x)
    {
        real e = exp_accurate(-fabsf(x));
        return divide(e, fmaf(e, 2 + e, 1.0f));
    }
    /* 4 e / (1 + e)² with e = e^(-2|x|). */
    DEVICE real tanh_grad(real x)
    {
        real e = exp_accurate(-2 * fabsf(x));
        return 4 * divide(e, fmaf(e, 2 + e, 1.0f));
    }
    /* g · 2^x · ln 2; f64 if the product needs care. */
    DEVICE real exp2_grad(real x, real g)
    {
        real y = g * (0.6931471805599453f * exp2(x));
        return needs_f64(y, g) ? exp2_grad_f64(x, g) : y;
    }
    static __device__ __noinline__ real exp2_grad_f64(real x, real g)
    {
        return (real)f64_math::exp2_grad((double)x, (double)g);
    }
    /* exp of the sum of a large value and its rounding error */
    DEVICE real exp_of_parts(real large, real small)
    {
        real e = exp_accurate(large);
        return fmaf(e, small, e);
    }
    /* 2 / sqrt(π) · e^(-x²), the square in two parts: its rounding error would be magnified by the exponential. */
    DEVICE real erf_grad(real x)
    {
        real square = x * x, rest = fmaf(x, x, -square);
        return 1.1283791670955126f * exp_of_parts(-square, -rest);
    }
    /* gelu's argument -|2 sqrt(2/π) (x + 0.044715 x³)| in two parts: c x (1 + k x²), the constants in two parts too */
    DEVICE real gelu_exponential(real x)
    {
        /* high and low parts of 2 sqrt(2/π) and 0.044715 */
        const real c = 1.5957691669464111f, c_rest = -4.534068042e-8f, k = 0.044715f, k_rest = 1.546144485e-9f;
        real square = x * x, square_rest = fmaf(x, x, -square);
        real term = k * square, term_rest = fmaf(k, square, -term) + fmaf(k, square_rest, k_rest * square);
        real sum = 1 + term, sum_rest = (term <= 1 ? (1 - sum) + term : (term - sum) + 1) + term_rest;
        real size = fabsf(x), factor = c * size, factor_rest = fmaf(c, size, -factor) + c_rest * size;
        real high = factor * sum, rest = fmaf(factor, sum, -high) + fmaf(factor, sum_rest, factor_rest * sum);
        return exp_of_parts(-high, -rest);
    }
    /* x · sigmoid(2u), from e^(-2|u|). */
    DEVICE real gelu(real x)
    {
        real e = gelu_exponential(x);
        return x * divide(x < 0 ? e : 1.0f, 1 + e);
    }
    /* Around its root at -0.75 a polynomial; below -1 in f64, where the sum cancels. */
    DEVICE real gelu_grad(real x)
    {
        const real near_root[] = {0.4304000906f,     0.3875184426f,    -0.01578278782f, -0.1139443204f,
                                  -0.01662069932f,   0.01967961487f,   0.005270146002f, -0.002403179749f,
                                  -0.0009447582101f, 0.0002088382591f, 0.0001117335618f};
        real t = (x + 0.7524614334106445f) - 1.1339628e-8f;
        if (x > -1.2f && x < -0.35f)
            return t * polynomial(t, near_root);
        real e = gelu_exponential(x), rise = 1.5957691216057308f * fmaf(0.134145f * x, x, 1.0f);
        if (x < -1)
            return grad_f64(e, (double)x * 1.5957691216057308 * (1 + 0.134145 * (double)x * (double)x));
        real r = divide(1, 1 + e), bend = e * r * r;
        return (x < 0 ? e : 1.0f) * r + (bend == 0 && fabsf(x) < CUDART_INF_F ? 0 : x * bend * rise);
    }
    /* e (1 + e + x u') / (1 + e)², where the sum in the middle cancels more than f32 can hold */
    DEVICE real grad_f64(real e, double term)
    {
        double e64 = (double)e, s = 1 + e64;
        return (real)(e64 * (s + term) / (s * s));
    }
    /* e^(x²/2) erfc(x / sqrt 2) / 2 for x >= 0. In f64: few additions and products, which in f32 are off by 6 ulp. */
    DEVICE double erfc_scaled(real x)
    {
        const double c[] = {0.19950034747767179, 0.19890285634509325,  0.19167219410091016, 0.1411794535431942,
                            0.18104600310393035, 0.011696291358286679, 0.07267383827224368, 0.09191184343300139,
                            -0.1209083476557982, 0.032325527585099274};
        double b = ::fma(0.25, (double)x, 1.0), r = (double)divide(1, (real)b), t = ::fma(r, ::fma(-b, r, 1.0), r),
               sum = c[9];
#pragma unroll
        for (int i = 8; i >= 0; i--)
            sum = ::fma(sum, t, c[i]);
        return 0.5 * t * sum;
    }
    /* e^(-x²/2), the square in two parts */
    DEVICE real exp_half_square(real x)
    {
        real square = x * x, rest = fmaf(x, x, -square);
        return exp_of_parts(-0.5f * square, -0.5f * rest);
    }
    /* x Φ(x) from the scaled erfc: no cancellation in the tail. */
    DEVICE real gelu_erf(real x)
    {
        real tail = exp_half_square(x) * (real)erfc_scaled(fabsf(x));
        return x * (x < 0 ? tail : 1 - tail);
    }
    /* Around its root at -0.75 a polynomial; else Φ(x) + x φ(x) with the common factor e^(-x²/2). */
    DEVICE real gelu_erf_grad(real x)
    {
        const real near_root[] = {0.43149399757385254f,    0.38828498125076294f,    -0.018199676647782326f,
                                  -0.11400823295116425f,   -0.014771527610719204f,  0.019421618431806564f,
                                  0.004539312794804573f,   -0.0022387036588042974f, -0.000745161494705826f,
                                  0.00018130135140381753f, 8.496972441207618e-05f};
        real t = (x + 0.7517915368080139f) - 1.211444945855772e-8f;
        if (x > -1.2f && x < -0.35f)
            return t * polynomial(t, near_root);
        real e = exp_half_square(x);
        double half = erfc_scaled(fabsf(x)), term = 0.3989422804014327 * (double)x;
        return x < 0 ? e * (real)(term + half) : fmaf(e, (real)(term - half), 1.0f);
    }
    /* Below -64 e^x is split in two factors: it would be subnormal while x e^x is not yet. Elsewhere the rounding error
     * of 1 + e is carried along: the result is within 2.3 ulp, and a gate's product, which rounds again, within 3.1. */
    DEVICE real silu(real x)
    {
        if (x < -64)
            return x * 1.603810890548638e-28f * exp(x + 64);
        real e = exp_accurate(-fabsf(x)), sum = 1 + e;
        return x * divide(x < 0 ? e : 1.0f, sum, e - (sum - 1));
    }
    /* Around its root at -1.28 a polynomial; below -1 in f64, where the sum cancels. */
    DEVICE real silu_grad(real x)
    {
        const real near_root[] = {0.2178117059f,    0.14664879f,      0.01887479303f,   -0.01522253469f,
                                  -0.006606252266f, 0.0001261739398f, 0.0007968195747f, 0.0001856731623f,
                                  -3.772115157e-5f, -2.753282417e-5f, -4.440869658e-6f};
        real t = (x + 1.2784645557403564f) - 1.2979283e-8f;
        if (x > -2.0f && x < -0.6f)
            return t * polynomial(t, near_root);
        real e = exp_accurate(-fabsf(x)), r = divide(1, 1 + e);
        if (x < -1)
            return grad_f64(e, (double)x);
        return (x < 0 ? e : 1.0f) * r + x * (e * r * r);
    }
    /* max(x, 0) + log(1 + e^-|x|). */
    DEVICE real softplus(real x)
    {
        return (x < 0 ? 0.0f : x) + log1pf(exp(-fabsf(x)));
    }
    DEVICE real softplus_grad(real x, real g)
    {
        real y = g * sigmoid(x);
        return needs_f64(y, g) ? softplus_grad_f64(x, g) : y;
    }
    static __device__ __noinline__ real softplus_grad_f64(real x, real g)
    {
        return (real)((double)g * f64_math::sigmoid((double)x));
    }
    /* The integer nearest to a / b, or one off if it is between two: a - q b is exact while q is small. */
    DEVICE real nearest_quotient(real a, real b)
    {
        real r;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
        return rintf(a * r);
    }
    /* Then q and the fused remainder are exact. */
    DEVICE bool has_small_quotient(real q, real b)
    {
        return fabsf(q) < 4194304.0f && fabsf(b) > 1e-30f && fabsf(b) < 1e30f;
    }
    /* a - q b with q the nearest quotient, corrected by one; fmodf for large quotients. */
    DEVICE real mod(real a, real b)
    {
        real q = nearest_quotient(a, b), r = fmaf(-q, b, a);
        if (!has_small_quotient(q, b))
            return mod_slow(a, b);
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    /* fmodf is exact for any quotient. */
    static __device__ __noinline__ real mod_slow(real a, real b)
    {
        real r = fmodf(a, b);
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    /* -g · floor(a / b), from the same quotient as mod. */
    DEVICE real mod_grad_b(real a, real b, real g)
    {
        real q = nearest_quotient(a, b), r = fmaf(-q, b, a);
        if (!has_small_quotient(q, b))
            return mod_grad_f64(a, b, g);
        return -g * (r != 0 && (r < 0) != (b < 0) ? q - 1 : q);
    }
    static __device__ __noinline__ real mod_grad_f64(real a, real b, real g)
    {
        return (real)f64_math::mod_grad_b((double)a, (double)b, (double)g);
    }
    DEVICE real power(real a, real b)
    {
        return powf(a, b);
    }
    /* both gradients from the power itself, which the compiler computes once for the two; in f64 if it is extreme */
    DEVICE real power_grad_a(real a, real b, real g)
    {
        real p = powf(a, b), derivative = b * (p / a), y = g * derivative;
        return !(a > 0) || is_extreme(p) || is_extreme(p / a) || is_extreme(derivative) || is_extreme(y)
                   ? power_grad_a_f64(a, b, g)
                   : y;
    }
    DEVICE real power_grad_b(real a, real b, real g)
    {
        real p = powf(a, b), derivative = p * logf(a), y = g * derivative;
        return !(a > 0) || is_extreme(p) || is_extreme(derivative) || is_extreme(y) ? power_grad_b_f64(a, b, g) : y;
    }
    static __device__ __noinline__ real power_grad_a_f64(real a, real b, real g)
    {
        return b == 0 ? 0 : (real)((double)g * ((double)b * ::pow((double)a, (double)b - 1)));
    }
    static __device__ __noinline__ real power_grad_b_f64(real a, real b, real g)
    {
        return a == 0 && b >= 0 ? 0 * g : (real)((double)g * (::pow((double)a, (double)b) * (double)logf(a)));
    }
    /* -g a / b²; f64 if a step leaves the range. */
    DEVICE real quotient_grad_b(real a, real b, real g)
    {
        real q = a / b, y = -g * (q / b);
        if ((fabsf(q) > 1e-18f && fabsf(q) < 1e18f && fabsf(y) > 1e-30f && fabsf(y) < 1e36f) || a == 0)
            return y;
        return quotient_grad_f64(a, b, g);
    }
    static __device__ __noinline__ real quotient_grad_f64(real a, real b, real g)
    {
        return (real)(-(double)g * (((double)a / (double)b) / (double)b));
    }
};

#endif
