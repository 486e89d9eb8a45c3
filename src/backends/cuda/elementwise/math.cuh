/* math.cuh: what the expressions of elementwise.def are made of, on the device.
 *
 * Three sets of functions: `fine` for f32 and f16 elements, `coarse` for bf16, whose 8 bits let the hardware's
 * approximations through, and `twice` for f64. A row's WIDE asks for f64 because f32 loses digits or its range
 * somewhere. A GPU's f64 is slow or very slow, so here the formulas of `fine` are written to keep their digits in f32,
 * and what leaves f32's range on the way is recomputed in f64 (is_strange). */
#ifndef TARN__MATH_CUH
#define TARN__MATH_CUH

#include "backends/cuda/common/kernel.cuh"

#define DEVICE static __device__ __forceinline__

/* Polynomials of slopes around their root: near it the formula is a difference of two numbers that are almost equal. */
template <int N> __device__ __forceinline__ float polynomial(float t, const float (&c)[N])
{
    float sum = c[N - 1];
#pragma unroll
    for (int i = N - 2; i >= 0; i--)
        sum = fmaf(sum, t, c[i]);
    return sum;
}

struct twice {
    typedef double real;
    DEVICE real exp(real x)
    {
        return ::exp(x);
    }
    DEVICE real exp_slope(real x, real g)
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
    DEVICE real sigmoid_slope(real x)
    {
        real e = exp(x < 0 ? x : -x), r = 1 / (1 + e);
        return e * r * r;
    }
    DEVICE real tanh_slope(real x)
    {
        real e = exp(-2 * fabs(x)), r = 1 / (1 + e);
        return 4 * e * r * r;
    }
    DEVICE real exp2_slope(real x, real g)
    {
        return g * 0.6931471805599453 * exp2(x * 0.5) * exp2(x * 0.5);
    }
    DEVICE real erf_slope(real x)
    {
        return 1.1283791670955126 * exp(-x * x);
    }
    DEVICE real gelu(real x)
    {
        return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x));
    }
    DEVICE real gelu_slope(real x)
    {
        real u = 1.5957691216057308 * (x + 0.044715 * x * x * x), rise = 1.5957691216057308 * (1 + 0.134145 * x * x);
        real e = exp(u < 0 ? u : -u), r = 1 / (1 + e), bend = e * r * r;
        return (u < 0 ? e : 1) * r + (bend == 0 && fabs(x) < CUDART_INF ? 0 : x * bend * rise);
    }
    DEVICE real gelu_erf(real x)
    {
        return 0.5 * x * erfc(x * -0.7071067811865476);
    }
    DEVICE real gelu_erf_slope(real x)
    {
        return 0.5 * erfc(x * -0.7071067811865476) + x * 0.3989422804014327 * exp(-0.5 * x * x);
    }
    DEVICE real silu(real x)
    {
        return x * sigmoid(x);
    }
    DEVICE real silu_slope(real x)
    {
        real e = exp(x < 0 ? x : -x), r = 1 / (1 + e);
        return (x < 0 ? e : 1) * r + x * (e * r * r);
    }
    DEVICE real softplus(real x)
    {
        return (x < 0 ? 0 : x) + log1p(exp(-fabs(x)));
    }
    DEVICE real softplus_slope(real x, real g)
    {
        return g * sigmoid(x);
    }
    DEVICE real mod(real a, real b)
    {
        real r = fmod(a, b);
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    /* -g · floor(a / b); a - (a mod b) is a multiple of b */
    DEVICE real mod_slope_b(real a, real b, real g)
    {
        real remainder = mod(a, b), whole = b == 0 ? a / b : rint((a - remainder) / b);
        if (fabs(b) == CUDART_INF && fabs(a) < CUDART_INF)
            whole = remainder == a ? 0 : -1;
        return -g * whole;
    }
    DEVICE real power(real a, real b)
    {
        return ::pow(a, b);
    }
    DEVICE real power_slope_a(real a, real b, real g)
    {
        return b == 0 ? 0 : g * (b * ::pow(a, b - 1));
    }
    DEVICE real power_slope_b(real a, real b, real g)
    {
        return a == 0 && b >= 0 ? 0 * g : g * (::pow(a, b) * ::log(a));
    }
    /* where a / b or what follows leaves the range that the result may still have, exponents are kept apart */
    DEVICE real quotient_slope_b(real a, real b, real g)
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

/* f32 results that f64 must look at: what is near the ends of the range, where factors may have left it. */
DEVICE bool is_strange(float x)
{
    return !(fabsf(x) >= 1e-30f && fabsf(x) <= 1e36f);
}

/* The same of a result that `scale` has multiplied: 0 times a number is 0, but not where it came out as NaN; and a
 * large one may have brought back what had left the range before. */
DEVICE bool needs_care(float y, float scale)
{
    return (is_strange(y) && (scale != 0 || y != y)) || fabsf(scale) > 1e6f;
}

struct fine {
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
        return turn(x, 0);
    }
    DEVICE real cos(real x)
    {
        return turn(x, 1);
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
    /* sin(x + quarter π/2): quarters of the circle are taken off in three parts of π/2; arguments too large for that go
     * to the library */
    DEVICE real turn(real x, int quarter)
    {
        if (!(fabsf(x) < 1e5f))
            return turn_far(x, quarter);
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
    static __device__ __noinline__ real turn_far(real x, int quarter)
    {
        return quarter ? cosf(x) : sinf(x);
    }
    /* a / b for b between 1 and 4: no case needs care */
    DEVICE real divide(real a, real b)
    {
        real r;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
        real q = a * r;
        return fmaf(fmaf(-b, q, a), r, q);
    }
    /* a / (b + rest), where rest is what rounding took from b */
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
    /* e^x for x below 88, to 1 ulp: 2^k times a polynomial of what is left. Where it leaves the normal numbers it is 0.
     */
    DEVICE real exp_close(real x)
    {
        const real c[] = {0.5f, 1.6666667e-1f, 4.1666667e-2f, 8.3333333e-3f, 1.3888889e-3f, 1.9841270e-4f};
        real low = x < -88 ? -88.1f : x; /* 2^-127, whose bits are 0 */
        /* 1.5 · 2^23 + 127: the integer lies in the low bits */
        real shifted = fmaf(low, 1.4426950408889634f, 12583039.0f);
        real k = shifted - 12583039.0f, r = fmaf(-k, 0.693359375f, low);
        r = fmaf(-k, -2.12194440e-4f, r);
        real y = fmaf(r * r, polynomial(r, c), r) + 1;
        return y * __int_as_float(__float_as_int(shifted) << 23);
    }
    /* g e^x in one factor where that will do */
    DEVICE real exp_slope(real x, real g)
    {
        real y = g * exp(x);
        return needs_care(y, g) ? exp_slope_far(x, g) : y;
    }
    static __device__ __noinline__ real exp_slope_far(real x, real g)
    {
        return (real)twice::exp_slope((double)x, (double)g);
    }
    DEVICE real sigmoid(real x)
    {
        real e = exp(-fabsf(x));
        return divide(x < 0 ? e : 1.0f, 1 + e);
    }
    DEVICE real sigmoid_slope(real x)
    {
        real e = exp_close(-fabsf(x));
        return divide(e, fmaf(e, 2 + e, 1.0f));
    }
    DEVICE real tanh_slope(real x)
    {
        real e = exp_close(-2 * fabsf(x));
        return 4 * divide(e, fmaf(e, 2 + e, 1.0f));
    }
    DEVICE real exp2_slope(real x, real g)
    {
        real y = g * (0.6931471805599453f * exp2(x));
        return needs_care(y, g) ? exp2_slope_far(x, g) : y;
    }
    static __device__ __noinline__ real exp2_slope_far(real x, real g)
    {
        return (real)twice::exp2_slope((double)x, (double)g);
    }
    /* exp of a number given in two parts: the small one is what rounding took from the large one */
    DEVICE real exp_of_parts(real large, real small)
    {
        real e = exp_close(large);
        return fmaf(e, small, e);
    }
    DEVICE real erf_slope(real x)
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
        real whole = factor * sum, rest = fmaf(factor, sum, -whole) + fmaf(factor, sum_rest, factor_rest * sum);
        return exp_of_parts(-whole, -rest);
    }
    DEVICE real gelu(real x)
    {
        real e = gelu_exponential(x);
        return x * divide(x < 0 ? e : 1.0f, 1 + e);
    }
    DEVICE real gelu_slope(real x)
    {
        const real near_root[] = {0.4304000906f,     0.3875184426f,    -0.01578278782f, -0.1139443204f,
                                  -0.01662069932f,   0.01967961487f,   0.005270146002f, -0.002403179749f,
                                  -0.0009447582101f, 0.0002088382591f, 0.0001117335618f};
        real t = (x + 0.7524614334106445f) - 1.1339628e-8f;
        if (x > -1.2f && x < -0.35f)
            return t * polynomial(t, near_root);
        real e = gelu_exponential(x), rise = 1.5957691216057308f * fmaf(0.134145f * x, x, 1.0f);
        if (x < -1)
            return far_slope(e, (double)x * 1.5957691216057308 * (1 + 0.134145 * (double)x * (double)x));
        real r = divide(1, 1 + e), bend = e * r * r;
        return (x < 0 ? e : 1.0f) * r + (bend == 0 && fabsf(x) < CUDART_INF_F ? 0 : x * bend * rise);
    }
    /* e (1 + e + x u') / (1 + e)², where the sum in the middle costs digits that f32 does not have */
    DEVICE real far_slope(real e, double term)
    {
        double wide_e = (double)e, s = 1 + wide_e;
        return (real)(wide_e * (s + term) / (s * s));
    }
    /* e^(x²/2) erfc(x / sqrt 2) / 2 for x not below 0. In f64, of which its few additions and products cost little: in
     * f32 they are off by 6 ulp. */
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
    DEVICE real gelu_erf_slope(real x)
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
    /* Below -64, e^x is taken in two factors: itself it would be subnormal while x e^x is not yet. Elsewhere what 1 + e
     * loses is carried along: with that the result is within 2.3 ulp, and swiglu's product, which rounds again,
     * within 3.1. */
    DEVICE real silu(real x)
    {
        if (x < -64)
            return x * 1.603810890548638e-28f * exp(x + 64);
        real e = exp_close(-fabsf(x)), sum = 1 + e;
        return x * divide(x < 0 ? e : 1.0f, sum, e - (sum - 1));
    }
    DEVICE real silu_slope(real x)
    {
        const real near_root[] = {0.2178117059f,    0.14664879f,      0.01887479303f,   -0.01522253469f,
                                  -0.006606252266f, 0.0001261739398f, 0.0007968195747f, 0.0001856731623f,
                                  -3.772115157e-5f, -2.753282417e-5f, -4.440869658e-6f};
        real t = (x + 1.2784645557403564f) - 1.2979283e-8f;
        if (x > -2.0f && x < -0.6f)
            return t * polynomial(t, near_root);
        real e = exp_close(-fabsf(x)), r = divide(1, 1 + e);
        if (x < -1)
            return far_slope(e, (double)x);
        return (x < 0 ? e : 1.0f) * r + x * (e * r * r);
    }
    DEVICE real softplus(real x)
    {
        return (x < 0 ? 0.0f : x) + log1pf(exp(-fabsf(x)));
    }
    DEVICE real softplus_slope(real x, real g)
    {
        real y = g * sigmoid(x);
        return needs_care(y, g) ? softplus_slope_far(x, g) : y;
    }
    static __device__ __noinline__ real softplus_slope_far(real x, real g)
    {
        return (real)((double)g * twice::sigmoid((double)x));
    }
    /* The integer nearest to a / b, or one off where it lies between two: a - q b is exact while q is small. */
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
            return mod_far(a, b);
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    static __device__ __noinline__ real mod_far(real a, real b)
    {
        real r = fmodf(a, b);
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    DEVICE real mod_slope_b(real a, real b, real g)
    {
        real q = nearest_quotient(a, b), r = fmaf(-q, b, a);
        if (!has_small_quotient(q, b))
            return mod_slope_far(a, b, g);
        return -g * (r != 0 && (r < 0) != (b < 0) ? q - 1 : q);
    }
    static __device__ __noinline__ real mod_slope_far(real a, real b, real g)
    {
        return (real)twice::mod_slope_b((double)a, (double)b, (double)g);
    }
    DEVICE real power(real a, real b)
    {
        return powf(a, b);
    }
    /* both slopes from the power itself, which a compiler computes once for the two; in f64 where it is no ordinary
     * number */
    DEVICE real power_slope_a(real a, real b, real g)
    {
        real p = powf(a, b), slope = b * (p / a), y = g * slope;
        return !(a > 0) || is_strange(p) || is_strange(p / a) || is_strange(slope) || is_strange(y)
                   ? power_slope_a_far(a, b, g)
                   : y;
    }
    DEVICE real power_slope_b(real a, real b, real g)
    {
        real p = powf(a, b), slope = p * logf(a), y = g * slope;
        return !(a > 0) || is_strange(p) || is_strange(slope) || is_strange(y) ? power_slope_b_far(a, b, g) : y;
    }
    static __device__ __noinline__ real power_slope_a_far(real a, real b, real g)
    {
        return b == 0 ? 0 : (real)((double)g * ((double)b * ::pow((double)a, (double)b - 1)));
    }
    static __device__ __noinline__ real power_slope_b_far(real a, real b, real g)
    {
        return a == 0 && b >= 0 ? 0 * g : (real)((double)g * (::pow((double)a, (double)b) * (double)logf(a)));
    }
    DEVICE real quotient_slope_b(real a, real b, real g)
    {
        real q = a / b, y = -g * (q / b);
        if ((fabsf(q) > 1e-18f && fabsf(q) < 1e18f && fabsf(y) > 1e-30f && fabsf(y) < 1e36f) || a == 0)
            return y;
        return quotient_slope_far(a, b, g);
    }
    static __device__ __noinline__ real quotient_slope_far(real a, real b, real g)
    {
        return (real)(-(double)g * (((double)a / (double)b) / (double)b));
    }
};

/* The hardware's approximations, good to about 20 bits. */
struct coarse {
    typedef float real;
    DEVICE real exp(real x)
    {
        return __expf(x);
    }
    DEVICE real exp_slope(real x, real g)
    {
        real y = g * exp(x);
        return needs_care(y, g) ? fine::exp_slope_far(x, g) : y;
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
        return fine::turn(x, 0);
    }
    DEVICE real cos(real x)
    {
        return fine::turn(x, 1);
    }
    DEVICE real tanh(real x)
    {
        real y;
        asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
    /* the tanh of an odd polynomial, to 2^-15 beside what tanh is off by; from 4 on the result is 1 */
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
    DEVICE real inverse(real x) /* of a number between 1 and 4 */
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
    DEVICE real sigmoid_slope(real x)
    {
        real e = exp(-fabsf(x)), r = inverse(1 + e);
        return e * r * r;
    }
    DEVICE real tanh_slope(real x)
    {
        real e = exp(-2 * fabsf(x)), r = inverse(1 + e);
        return 4 * e * r * r;
    }
    DEVICE real exp2_slope(real x, real g)
    {
        real y = g * (0.6931471805599453f * exp2(x));
        return needs_care(y, g) ? fine::exp2_slope_far(x, g) : y;
    }
    DEVICE real erf_slope(real x)
    {
        return 1.1283791670955126f * exp(-x * x);
    }
    DEVICE real gelu(real x)
    {
        real e = exp(-1.5957691216057308f * fabsf(fmaf(0.044715f * x * x, x, x)));
        return x * ((x < 0 ? e : 1.0f) * inverse(1 + e));
    }
    DEVICE real gelu_slope(real x)
    {
        real e = exp(-1.5957691216057308f * fabsf(fmaf(0.044715f * x * x, x, x))), r = inverse(1 + e);
        real rise = 1.5957691216057308f * fmaf(0.134145f * x, x, 1.0f);
        return (x < 0 ? e : 1.0f) * r + x * (e * r * r) * rise;
    }
    DEVICE real erfc_scaled(real x) /* as fine's, to 2^-22 */
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
    DEVICE real gelu_erf_slope(real x)
    {
        real e = exp(-0.5f * x * x), half = 0.5f * erfc_scaled(fabsf(x));
        return x < 0 ? e * fmaf(0.39894228f, x, half) : fmaf(e, fmaf(0.39894228f, x, -half), 1.0f);
    }
    DEVICE real silu(real x)
    {
        return x < -64 ? fine::silu(x) : x * sigmoid(x);
    }
    DEVICE real silu_slope(real x)
    {
        real e = exp(-fabsf(x)), r = inverse(1 + e);
        return (x < 0 ? e : 1.0f) * r + x * (e * r * r);
    }
    /* log(1 + e) as it is, and where 1 + e would lose digits of e, by its series */
    DEVICE real softplus(real x)
    {
        real e = exp(-fabsf(x)), rest = e < 0.015625f ? e * fmaf(e, fmaf(e, 0.33333333f, -0.5f), 1.0f) : log(1 + e);
        return (x < 0 ? 0.0f : x) + rest;
    }
    DEVICE real softplus_slope(real x, real g)
    {
        real y = g * sigmoid(x);
        return needs_care(y, g) ? fine::softplus_slope_far(x, g) : y;
    }
    DEVICE real mod(real a, real b)
    {
        return fine::mod(a, b);
    }
    DEVICE real mod_slope_b(real a, real b, real g)
    {
        return fine::mod_slope_b(a, b, g);
    }
    /* 2^(b log2 |a|) is off by |b log2 a| 2^-22, at most 2^-15 for results in range; what is not an ordinary number
     * goes the long way */
    DEVICE real power(real a, real b)
    {
        real y = exp2f(b * __log2f(a));
        return a > 0 && a <= 1e36f && !is_strange(y) ? y : power_far(a, b);
    }
    DEVICE real power_slope_a(real a, real b, real g)
    {
        real slope = b * exp2f((b - 1) * __log2f(a)), y = g * slope;
        return a > 0 && a <= 1e36f && fabsf(b) > 1e-3f && !is_strange(slope) && !is_strange(y)
                   ? y
                   : fine::power_slope_a_far(a, b, g);
    }
    DEVICE real power_slope_b(real a, real b, real g)
    {
        real l = __log2f(a), slope = exp2f(b * l) * (l * 0.6931471805599453f), y = g * slope;
        return a > 0 && a <= 1e36f && !is_strange(slope) && !is_strange(y) ? y : fine::power_slope_b_far(a, b, g);
    }
    static __device__ __noinline__ real power_far(real a, real b)
    {
        return powf(a, b);
    }
    DEVICE real quotient_slope_b(real a, real b, real g)
    {
        return fine::quotient_slope_b(a, b, g);
    }
};

/* The set for an element type. */
template <typename T> struct maths_of {
    typedef fine type;
};
template <> struct maths_of<bf16> {
    typedef coarse type;
};
template <> struct maths_of<double> {
    typedef twice type;
};

/* Integers: only what rows for numbers need. */
struct whole {
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
