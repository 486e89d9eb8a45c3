/* math.cuh: device math behind the expressions of elementwise.def.
 *
 * Three sets of functions: `f32_math` for f32 and f16 elements, `approx_math` for bf16, whose 8 bits allow the
 * hardware's approximations, and `f64_math`. A row marked IN_F64 asks for f64 because f32 loses precision or range
 * somewhere. f64 is slow on GPUs, so f32_math's formulas keep their precision in f32, and only results out of f32's
 * range are recomputed in f64 (is_extreme). Errors are checked against the CPU's in tests/ops. */
#ifndef TARN__CUDA_MATH_CUH
#define TARN__CUDA_MATH_CUH

#include "backends/cuda/common/kernel.cuh"

#define DEVICE static __device__ __forceinline__

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

struct f64_math {
    typedef double real;
    DEVICE real exp(real x)
    {
        return ::exp(x);
    }
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
    DEVICE real inverse_sqrt(real x)
    {
        return 1 / ::sqrt(x);
    }
    DEVICE real sigmoid(real x)
    {
        real e = exp(x < 0 ? x : -x);
        return (x < 0 ? e : 1) / (1 + e);
    }
    DEVICE real sigmoid_grad(real x)
    {
        real e = exp(x < 0 ? x : -x), r = 1 / (1 + e);
        return e * r * r;
    }
    DEVICE real tanh_grad(real x)
    {
        real e = exp(-2 * fabs(x)), r = 1 / (1 + e);
        return 4 * e * r * r;
    }
    DEVICE real exp2_grad(real x, real g)
    {
        return g * 0.6931471805599453 * exp2(x * 0.5) * exp2(x * 0.5);
    }
    DEVICE real erf_grad(real x)
    {
        return 1.1283791670955126 * exp(-x * x);
    }
    DEVICE real gelu(real x)
    {
        return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x));
    }
    DEVICE real gelu_grad(real x)
    {
        real u = 1.5957691216057308 * (x + 0.044715 * x * x * x), rise = 1.5957691216057308 * (1 + 0.134145 * x * x);
        real e = exp(u < 0 ? u : -u), r = 1 / (1 + e), bend = e * r * r;
        return (u < 0 ? e : 1) * r + (bend == 0 && fabs(x) < CUDART_INF ? 0 : x * bend * rise);
    }
    DEVICE real gelu_erf(real x)
    {
        return 0.5 * x * erfc(x * -0.7071067811865476);
    }
    DEVICE real gelu_erf_grad(real x)
    {
        return 0.5 * erfc(x * -0.7071067811865476) + x * 0.3989422804014327 * exp(-0.5 * x * x);
    }
    DEVICE real silu(real x)
    {
        return x * sigmoid(x);
    }
    DEVICE real silu_grad(real x)
    {
        real e = exp(x < 0 ? x : -x), r = 1 / (1 + e);
        return (x < 0 ? e : 1) * r + x * (e * r * r);
    }
    DEVICE real softplus(real x)
    {
        return (x < 0 ? 0 : x) + log1p(exp(-fabs(x)));
    }
    DEVICE real softplus_grad(real x, real g)
    {
        return g * sigmoid(x);
    }
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
    DEVICE real power_grad_a(real a, real b, real g)
    {
        return b == 0 ? 0 : g * (b * ::pow(a, b - 1));
    }
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
    DEVICE real tanh(real x)
    {
        return tanhf(x);
    }
    DEVICE real erf(real x)
    {
        return erff(x);
    }
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
    static __device__ __noinline__ real exp_grad_f64(real x, real g)
    {
        return (real)f64_math::exp_grad((double)x, (double)g);
    }
    DEVICE real sigmoid(real x)
    {
        real e = exp(-fabsf(x));
        return divide(x < 0 ? e : 1.0f, 1 + e);
    }
    DEVICE real sigmoid_grad(real x)
    {
        real e = exp_accurate(-fabsf(x));
        return divide(e, fmaf(e, 2 + e, 1.0f));
    }
    DEVICE real tanh_grad(real x)
    {
        real e = exp_accurate(-2 * fabsf(x));
        return 4 * divide(e, fmaf(e, 2 + e, 1.0f));
    }
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
    DEVICE real erf_grad(real x)
    {
        real square = x * x, rest = fmaf(x, x, -square);
        return 1.1283791670955126f * exp_of_parts(-square, -rest);
    }
    /* gelu's argument -|2 sqrt(2/π) (x + 0.044715 x³)| in two parts: c x (1 + k x²), the constants in two parts too */
    DEVICE real gelu_exponential(real x)
    {
        const real c = 1.5957691669464111f, c_rest = -4.534068042e-8f, k = 0.044715f, k_rest = 1.546144485e-9f;
        real square = x * x, square_rest = fmaf(x, x, -square);
        real term = k * square, term_rest = fmaf(k, square, -term) + fmaf(k, square_rest, k_rest * square);
        real sum = 1 + term, sum_rest = (term <= 1 ? (1 - sum) + term : (term - sum) + 1) + term_rest;
        real size = fabsf(x), factor = c * size, factor_rest = fmaf(c, size, -factor) + c_rest * size;
        real high = factor * sum, rest = fmaf(factor, sum, -high) + fmaf(factor, sum_rest, factor_rest * sum);
        return exp_of_parts(-high, -rest);
    }
    DEVICE real gelu(real x)
    {
        real e = gelu_exponential(x);
        return x * divide(x < 0 ? e : 1.0f, 1 + e);
    }
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
    DEVICE real gelu_erf(real x)
    {
        real tail = exp_half_square(x) * (real)erfc_scaled(fabsf(x));
        return x * (x < 0 ? tail : 1 - tail);
    }
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
     * of 1 + e is carried along: the result is within 2.3 ulp, and swiglu's product, which rounds again, within 3.1. */
    DEVICE real silu(real x)
    {
        if (x < -64)
            return x * 1.603810890548638e-28f * exp(x + 64);
        real e = exp_accurate(-fabsf(x)), sum = 1 + e;
        return x * divide(x < 0 ? e : 1.0f, sum, e - (sum - 1));
    }
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
    DEVICE bool has_small_quotient(real q, real b)
    {
        return fabsf(q) < 4194304.0f && fabsf(b) > 1e-30f && fabsf(b) < 1e30f;
    }
    DEVICE real mod(real a, real b)
    {
        real q = nearest_quotient(a, b), r = fmaf(-q, b, a);
        if (!has_small_quotient(q, b))
            return mod_slow(a, b);
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    static __device__ __noinline__ real mod_slow(real a, real b)
    {
        real r = fmodf(a, b);
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
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
    DEVICE real log(real x)
    {
        return __logf(x);
    }
    DEVICE real log2(real x)
    {
        return __log2f(x);
    }
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
    DEVICE real sigmoid(real x)
    {
        real e = exp(-fabsf(x));
        return (x < 0 ? e : 1.0f) * inverse(1 + e);
    }
    DEVICE real sigmoid_grad(real x)
    {
        real e = exp(-fabsf(x)), r = inverse(1 + e);
        return e * r * r;
    }
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
    DEVICE real gelu(real x)
    {
        real e = exp(-1.5957691216057308f * fabsf(fmaf(0.044715f * x * x, x, x)));
        return x * ((x < 0 ? e : 1.0f) * inverse(1 + e));
    }
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
    DEVICE real gelu_erf(real x)
    {
        real tail = 0.5f * (exp(-0.5f * x * x) * erfc_scaled(fabsf(x)));
        return x * (x < 0 ? tail : 1 - tail);
    }
    DEVICE real gelu_erf_grad(real x)
    {
        real e = exp(-0.5f * x * x), half = 0.5f * erfc_scaled(fabsf(x));
        return x < 0 ? e * fmaf(0.39894228f, x, half) : fmaf(e, fmaf(0.39894228f, x, -half), 1.0f);
    }
    DEVICE real silu(real x)
    {
        return x < -64 ? f32_math::silu(x) : x * sigmoid(x);
    }
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
    DEVICE real power_grad_a(real a, real b, real g)
    {
        real derivative = b * exp2f((b - 1) * __log2f(a)), y = g * derivative;
        return a > 0 && a <= 1e36f && fabsf(b) > 1e-3f && !is_extreme(derivative) && !is_extreme(y)
                   ? y
                   : f32_math::power_grad_a_f64(a, b, g);
    }
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
