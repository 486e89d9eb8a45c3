/* math.cl: functions behind the expressions of elementwise.def, in the compute type C.
 *
 * Rows marked for f64 run in f64 where the device has it, or in f32 by accurate forms (double_float.cl) with f64 for
 * results that leave its range (f64_range.cl). Without f64 the f32 forms still keep the low part of an exponential's
 * argument, and take derivatives near their roots from polynomials. Included twice where rows run in f32 and f64. */

#pragma OPENCL FP_CONTRACT OFF

#define K(c) ((C)(c))

#ifdef COMPUTES_I64
/* Float rows are compiled too, and dropped. */
#define ISNAN(x) 0
#define FABS(x) (x)
#define SQRT(x) (x)
#define RSQRT(x) (x)
#define EXP(x) (x)
#define EXP_GRAD(x, g) (x)
#define EXP2(x) (x)
#define EXP2_GRAD(x, g) (x)
#define LOG(x) (x)
#define LOG2(x) (x)
#define SIN(x) (x)
#define COS(x) (x)
#define TANH(x) (x)
#define SECH2(x) (x)
#define ERF(x) (x)
#define ERF_GRAD(x) (x)
#define SIGMOID(x) (x)
#define SIGMOID_GRAD(x) (x)
#define GELU(x) (x)
#define GELU_GRAD(x) (x)
#define GELU_ERF(x) (x)
#define GELU_ERF_GRAD(x) (x)
#define SILU(x) (x)
#define SILU_GRAD(x) (x)
#define SOFTPLUS(x) (x)
#define SOFTPLUS_GRAD(x, g) (x)
#define MOD_GRAD_B(a, b, g) (a)
#define POW(a, b) (a)
#define POW_GRAD_A(a, b, g) (a)
#define POW_GRAD_B(a, b, g) (a)
#define DIV_GRAD_B(a, b, g) (a)

/* The remainder by -1 is 0 for every a; CPUs trap on the smallest a. */
static C MOD(C a, C b)
{
    if (b == 0 || b == -1)
        return 0;
    C r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
#else

#define ISNAN(x) ((x) != (x))
#define FABS(x) fabs(x)
#define SQRT(x) sqrt(x)
#define RSQRT(x) rsqrt(x)
#define EXP(x) exp(x)
#define EXP2(x) exp2(x)
#define LOG(x) log(x)
#define LOG2(x) log2(x)
#define SIN(x) sin(x)
#define COS(x) cos(x)
#define TANH(x) tanh(x)
#define ERF(x) erf(x)

#undef SMALLEST
#undef LARGEST
#ifdef COMPUTES_F64
#define SMALLEST 1e-300
#define LARGEST 1e300
#else
#define SMALLEST 1e-36f
#define LARGEST 1e36f
#include "backends/opencl/elementwise/double_float.cl"
#endif

#define wide real /* type for results that leave the range of C */

/* True in the middle of C's range, where the factors of a product have lost nothing. */
static bool is_mid_range(C x)
{
    return fabs(x) > (C)SMALLEST && fabs(x) < (C)LARGEST;
}

/* g · e^x or g · 2^x, given the root of the power in the widest type: each factor is in range where the product is. */
static C scaled_square(C g, wide root)
{
#ifndef HAS_F64
    if (g == 0 && root == root) /* the root of what f64 could still hold is infinite here */
        return g;
#endif
    return (C)((wide)g * root * root);
}

/* g · e^x, also where e^x alone leaves the range. */
static C EXP_GRAD(C x, C g)
{
    C e = exp(x);
    return is_mid_range(e) ? g * e : scaled_square(g, exp((wide)x * (wide)0.5f));
}

/* g · ln 2 · 2^x likewise. */
static C EXP2_GRAD(C x, C g)
{
    C e = exp2(x);
    return is_mid_range(e) ? g * K(0.6931471805599453) * e
                           : K(0.6931471805599453) * scaled_square(g, exp2((wide)x * (wide)0.5f));
}

/* By the exponential of -|x|, which cannot overflow. */
static C SIGMOID(C x)
{
#ifdef COMPUTES_F64
    C e = exp(x < 0 ? x : -x);
    return (x < 0 ? e : (C)1) / (1 + e);
#else
    const scaled e = exp_scaled(-fabs(x));
    const float whole = e.mantissa * e.power;
    return quotient_of(x < 0 ? whole : 1, 1 + whole);
#endif
}

/* Below -64 the sigmoid is e^x, which is no f32 any more while its product with a large g still is. */
static C SOFTPLUS_GRAD(C x, C g)
{
    if (!(x < -64))
        return g * SIGMOID(x);
#ifdef HAS_F64
    return (C)((wide)g * exp((wide)x));
#else
    return fabs(g) == INFINITY && x > -INFINITY ? g : g * 1.603810890548638e-28f * exp_df(x + 64, 0).high;
#endif
}

/* log(1 + e^x) as max(x, 0) + log1p(e^-|x|). */
static C SOFTPLUS(C x)
{
    return (x < 0 ? (C)0 : x) + log1p(exp(-fabs(x)));
}

#ifdef COMPUTES_F64
static C SILU(C x)
{
    return x * SIGMOID(x);
}

static C SIGMOID_GRAD(C x)
{
    C e = exp(x < 0 ? x : -x), r = 1 / (1 + e);
    return e * r * r;
}

/* 1 / cosh², the derivative of tanh. */
static C SECH2(C x)
{
    C e = exp(-2 * fabs(x)), r = 1 / (1 + e);
    return 4 * e * r * r;
}

/* 2 / sqrt π · e^-x². */
static C ERF_GRAD(C x)
{
    return K(1.1283791670955126) * exp(-x * x);
}

/* gelu(x) = x · sigmoid(2u), u = sqrt(2/π) (x + 0.044715 x³): the sigmoid keeps the precision of the negative side */
static C GELU(C x)
{
    return x * SIGMOID(K(1.5957691216057308) * (x + K(0.044715) * x * x * x));
}

/* Far out the derivative of the sigmoid is 0 and that of u may be infinite: their product is 0. */
static C GELU_GRAD(C x)
{
    C u = K(1.5957691216057308) * (x + K(0.044715) * x * x * x),
      rise = K(1.5957691216057308) * (1 + K(0.134145) * x * x);
    C e = exp(u < 0 ? u : -u), r = 1 / (1 + e), bend = e * r * r;
    return (u < 0 ? e : (C)1) * r + (bend == 0 && fabs(x) < (C)INFINITY ? (C)0 : x * bend * rise);
}

/* x Φ(x); erfc keeps the precision of the negative side. */
static C GELU_ERF(C x)
{
    return K(0.5) * x * erfc(x * K(-0.7071067811865476));
}

/* Φ(x) + x φ(x). */
static C GELU_ERF_GRAD(C x)
{
    return K(0.5) * erfc(x * K(-0.7071067811865476)) + x * K(0.3989422804014327) * exp(K(-0.5) * x * x);
}

/* σ(x) + x σ'(x). */
static C SILU_GRAD(C x)
{
    C e = exp(x < 0 ? x : -x), r = 1 / (1 + e);
    return (x < 0 ? e : (C)1) * r + x * (e * r * r);
}
#else
/* e^(large + small): the argument as a double-float, large <= 0. */
static float exp_of_parts(float large, float small)
{
    const dfloat e = exp_df(large, small);
    return e.high + e.low;
}

/* From e^-|x|, which cannot overflow. */
static float SILU(float x)
{
    return times_sigmoid(x, exp_scaled(-fabs(x)));
}

static float SIGMOID_GRAD(float x)
{
    return sigmoid_grad_of(exp_scaled(-fabs(x)));
}

/* 1 - tanh² without its cancellation: four times the derivative of sigmoid at 2x. */
static float SECH2(float x)
{
    return 4 * sigmoid_grad_of(exp_scaled(-2 * fabs(x)));
}

/* 2 / sqrt(pi) · e^(-x²), the constant in two parts and x² with its rounding error. */
static float ERF_GRAD(float x)
{
    const dfloat square = df_square(x), e = exp_df(-square.high, -square.low);
    return fma(1.12837917f, e.high, fma(1.12837917f, e.low, -5.8635384e-8f * e.high));
}

static float GELU(float x)
{
    return times_sigmoid(x, gelu_exponential(x));
}

/* c[0] + t (c[1] + t (…)) */
static float polynomial(float t, const float *c, int count)
{
    float sum = c[count - 1];
    for (int i = count - 2; i >= 0; i--)
        sum = fma(sum, t, c[i]);
    return sum;
}

/* Near its root the derivative is a polynomial in the distance from it: the terms of the formula would cancel. */
static float GELU_GRAD(float x)
{
    const float near_root[] = {0.4304000906f,     0.3875184426f,    -0.01578278782f, -0.1139443204f,
                               -0.01662069932f,   0.01967961487f,   0.005270146002f, -0.002403179749f,
                               -0.0009447582101f, 0.0002088382591f, 0.0001117335618f};
    float t = (x + 0.7524614334106445f) - 1.1339628e-8f;
    if (x > -1.2f && x < -0.35f)
        return t * polynomial(t, near_root, 11);
    const float near = gelu_clamp(x);
    const dfloat f = gelu_factor(near, 1.59570312f, 6.59966026e-5f, 0.214064449f, -2.54083421e-10f);
    return fma(x, 0.0f, gated_grad_of(near, gelu_exponential(x), f.high, f.low)); /* NaN of an infinite x */
}

/* e^(-x²/2) erfc's tail: the exponential in two dfloat times erfc(z) e^(z²) = erfc(z) / e^(-z²), z = |x| / sqrt 2,
 * where that is not yet 0. */
static float half_erfc(float x)
{
    float z = fabs(x) * 0.7071067811865476f, square = x * x, rest = fma(x, x, -square), own = z * z;
    float scaled = z < 8 ? 0.5f * erfc(z) / exp_of_parts(-own, -fma(z, z, -own)) : 0.28209479177387814f / z;
    return scaled * exp_of_parts(-0.5f * square, -0.5f * rest);
}

/* On the negative side the tail itself: 1 - erf would cancel. */
static float GELU_ERF(float x)
{
    float tail = half_erfc(x);
    return x * (x < 0 ? tail : 1 - tail);
}

/* A polynomial near the root, as for GELU_GRAD. */
static float GELU_ERF_GRAD(float x)
{
    const float near_root[] = {0.43149399757385254f,    0.38828498125076294f,    -0.018199676647782326f,
                               -0.11400823295116425f,   -0.014771527610719204f,  0.019421618431806564f,
                               0.004539312794804573f,   -0.0022387036588042974f, -0.000745161494705826f,
                               0.00018130135140381753f, 8.496972441207618e-05f};
    float t = (x + 0.7517915368080139f) - 1.211444945855772e-8f, square = x * x, tail = half_erfc(x);
    if (x > -1.2f && x < -0.35f)
        return t * polynomial(t, near_root, 11);
    float e = exp_of_parts(-0.5f * square, -0.5f * fma(x, x, -square));
    return (x < 0 ? tail : 1 - tail) + (e == 0 ? 0 : x * 0.3989422804014327f * e);
}

static float SILU_GRAD(float x)
{
    const float near_root[] = {0.2178117059f,    0.14664879f,      0.01887479303f,   -0.01522253469f,
                               -0.006606252266f, 0.0001261739398f, 0.0007968195747f, 0.0001856731623f,
                               -3.772115157e-5f, -2.753282417e-5f, -4.440869658e-6f};
    float t = (x + 1.2784645557403564f) - 1.2979283e-8f;
    if (x > -2.0f && x < -0.6f)
        return t * polynomial(t, near_root, 11);
    return gated_grad_of(x, exp_scaled(-fabs(x)), 1, 0);
}
#endif

/* The remainder with the sign of b; fmod is exact. */
static C MOD(C a, C b)
{
    C r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

/* -g · floor(a / b): a - (a mod b) is a multiple of b. */
static C MOD_GRAD_B(C a, C b, C g)
{
    wide remainder = (wide)MOD(a, b), whole = b == 0 ? (wide)a / (wide)b : rint(((wide)a - remainder) / (wide)b);
    if (fabs(b) == (C)INFINITY && fabs(a) < (C)INFINITY)
        whole = remainder == (wide)a ? 0 : -1;
    return (C)(-(wide)g * whole);
}

#define POW(a, b) pow(a, b)

/* In f64: b - 1 rounded to f32 would be an error in the exponent. */
NOINLINE static C pow_grad_a(C a, C b, C g)
{
    return b == 0 ? 0 : (C)((wide)g * ((wide)b * pow((wide)a, (wide)b - 1)));
}

NOINLINE static C pow_grad_b(C a, C b, C g)
{
    return a == 0 && b >= 0 ? 0 * g : (C)((wide)g * (pow((wide)a, (wide)b) * log((wide)a)));
}

#ifdef COMPUTES_F64
#define POW_GRAD_A pow_grad_a
#define POW_GRAD_B pow_grad_b
#else
/* In the range in which a chain of products has lost nothing. */
static bool is_ordinary(float x)
{
    return fabs(x) >= 1e-30f && fabs(x) <= 1e36f;
}

/* Both derivatives contain the power itself, which a compiler computes once for the two. */
static float POW_GRAD_A(float a, float b, float g)
{
    dfloat l;
    const float p = power_df(a, b, &l), whole = p / a, derivative = b * whole, y = g * derivative;
    return a >= 1e-37f && a <= 1e38f && is_ordinary(p) && is_ordinary(whole) && is_ordinary(derivative) &&
                   is_ordinary(y)
               ? y
               : pow_grad_a(a, b, g);
}

static float POW_GRAD_B(float a, float b, float g)
{
    dfloat l;
    const float p = power_df(a, b, &l), derivative = p * ((l.high + l.low) * 0.693147182f), y = g * derivative;
    return a >= 1e-37f && a <= 1e38f && is_ordinary(p) && is_ordinary(derivative) && is_ordinary(y)
               ? y
               : pow_grad_b(a, b, g);
}
#endif

/* -g a / b². Where a / b or a later factor leaves a range that the result may still have, exponents are kept apart. */
static C DIV_GRAD_B(C a, C b, C g)
{
    C q = a / b, y = -g * (q / b);
    bool is_plain =
        a == 0 || b == 0 || g == 0 || !(fabs(a) < (C)INFINITY) || !(fabs(b) < (C)INFINITY) || !(fabs(g) < (C)INFINITY);
#ifndef COMPUTES_F64
    if (fabs(g) == INFINITY && a != 0 && a == a && fabs(b) < INFINITY) /* whatever q / b is */
        return a < 0 ? g : -g;
    if (g == 0 && fabs(a) < INFINITY && fabs(b) > 0)
        return -g * a;
#endif
    if (is_plain || (is_mid_range(q * q) && is_mid_range(y)))
        return y;
    int ea, eb, eg;
    C ma = frexp(a, &ea), mb = frexp(b, &eb), mg = frexp(g, &eg);
    return ldexp(-mg * ((ma / mb) / mb), ea + eg - 2 * eb);
}
#endif
