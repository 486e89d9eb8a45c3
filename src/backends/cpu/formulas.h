/* formulas.h: what the expressions of elementwise.def are made of on the CPU, for each type they run in: f32, f64, f64 for f32 operands, i64.
 * elementwise.c and elementwise_wide.c include it before the rows. */

#define SIGMOID_HELPER(real, t)                                                                                                          \
    static inline real sigmoid_##t(real x)                                                                                               \
    {                                                                                                                                    \
        real e = tarn__exp_##t(x < 0 ? x : -x);                                                                                          \
        return (x < 0 ? e : (real)1) / ((real)1 + e);                                                                                    \
    }

/* Below -64, e^x is taken in two factors: itself it would be subnormal while x e^x is not yet. */
#define SILU_HELPER(real, t)                                                                                                             \
    static inline real silu_##t(real x)                                                                                                  \
    {                                                                                                                                    \
        int far = x < -64;                                                                                                               \
        real e = tarn__exp_##t(far ? x + (real)64 : x < 0 ? x : -x);                                                                     \
        real top = (far ? x * (real)1.603810890548638e-28 : x) * (x < 0 ? e : (real)1);                                                  \
        return top / ((real)1 + (far ? (real)0 : e));                                                                                    \
    }

/* What WIDE rows need, in f64: with the functions for f64 results, and with those of near.h for f32 results. */
#define WIDE_HELPERS(t)                                                                                                                   \
    /* the slope of the sigmoid, e / (1 + e)² with e = exp(-|x|): from one exponential, and without a difference that cancels */         \
    static inline double sigmoid_grad_##t(double x)                                                                                      \
    {                                                                                                                                    \
        double e = tarn__exp_##t(x < 0 ? x : -x), r = 1 / (1 + e);                                                                       \
        return e * r * r;                                                                                                                \
    }                                                                                                                                    \
    static inline double sech2_##t(double x)                                                                                             \
    {                                                                                                                                    \
        double e = tarn__exp_##t(-2 * (x < 0 ? -x : x));                                                                                 \
        return 4 * e / ((1 + e) * (1 + e));                                                                                              \
    }                                                                                                                                    \
    /* gelu(x) = x · sigmoid(2u) with u = sqrt(2/π) (x + 0.044715 x³); tanh turned into a sigmoid keeps the digits of the negative side */ \
    static inline double gelu_##t(double x)                                                                                              \
    {                                                                                                                                    \
        return x * sigmoid_##t(1.5957691216057308 * (x + 0.044715 * x * x * x));                                                         \
    }                                                                                                                                    \
    static inline double silu_grad_##t(double x)                                                                                         \
    {                                                                                                                                    \
        double e = tarn__exp_##t(x < 0 ? x : -x), r = 1 / (1 + e);                                                                       \
        return (x < 0 ? e : 1.0) * r + x * (e * r * r);                                                                                  \
    }

/* The sum of sigmoid(2u) and `bent`, which is x times its slope. */
#define GELU_SLOPE(t)                                                                                                                     \
    double u2 = 1.5957691216057308 * (x + 0.044715 * x * x * x), slope = 1.5957691216057308 * (1 + 0.134145 * x * x);                    \
    double e = tarn__exp_##t(u2 < 0 ? u2 : -u2), r = 1 / (1 + e), s = (u2 < 0 ? e : 1.0) * r, bend = e * r * r, bent = x * bend * slope

/* Far out the bend is 0 and the slope may be infinite: their product is 0. */
static inline double gelu_grad_f64(double x)
{
    GELU_SLOPE(f64);
    return s + (((bend == 0) & (fabs(x) < (double)INFINITY)) ? 0.0 : bent);
}

/* The slope at an f32 is finite. */
static inline double gelu_grad_near(double x)
{
    GELU_SLOPE(near);
    return s + bent;
}

static inline double gelu_erf_grad_f64(double x)
{
    return 0.5 * tarn__erfc_f64(x * -0.7071067811865476) + x * 0.3989422804014327 * tarn__exp_f64(-0.5 * x * x);
}

/* The same from one exponential. */
static inline double gelu_erf_grad_near(double x)
{
    double e = tarn__exp_near(-0.5 * x * x), tail = 0.5 * tarn__erfcx_near(fabs(x) * 0.7071067811865476) * e;
    return (x < 0 ? tail : 1 - tail) + x * 0.3989422804014327 * e;
}

/* The nearest integer to a number below 2^51, without a call: adding 1.5 · 2^52 leaves no room for a fraction. */
static inline double nearest(double x)
{
    return (x + 0x1.8p52) - 0x1.8p52;
}

/* The remainder with the sign of b. a - q · b is exact for any integer q below 2^29, so with q the nearest integer to a / b it lies within half
 * of b around 0, and one b at most is missing. Quotients beyond that are rare and go to the C library, tile by tile. */
#define MOD_MAX 0x1p29
static inline float mod_f32(float a, float b)
{
    double wide_a = a, wide_b = b, q = nearest(wide_a / wide_b), r = wide_a - q * wide_b;
    r = fabs(wide_b) == (double)INFINITY && fabs(wide_a) < (double)INFINITY ? wide_a : r;
    float y = (float)(r != 0 && (r < 0) != (wide_b < 0) ? r + wide_b : r);
    return y == 0 ? copysignf(0.0f, a) : y; /* as fmodf() has it */
}

static inline float mod_any_f32(float a, float b)
{
    float r = fmodf(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static inline double mod_f64(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

/* The remainder of -1 is 0 for every a; the processor would trap on the smallest one. */
static inline int64_t mod_i64(int64_t a, int64_t b)
{
    if (b == 0 || b == -1)
        return 0;
    int64_t r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

/* The gradient of b is -g · floor(a / b); `remainder` is a mod b, and so a - remainder a multiple of b. In f64, where the quotient of two
 * floats always fits. */
static inline double mod_grad_b(double a, double b, double g, double remainder)
{
    double q = (a - remainder) / b, whole = fabs(q) < 0x1p51 ? nearest(q) : q;
    whole = b == 0 ? a / b : whole;
    whole = ((fabs(b) == (double)INFINITY) & (fabs(a) < (double)INFINITY)) ? (remainder == a ? 0.0 : -1.0) : whole;
    return -g * whole;
}

static inline float mod_grad_b_f32(float a, float b, float g)
{
    return (float)mod_grad_b((double)a, (double)b, (double)g, (double)mod_f32(a, b));
}

static inline double mod_grad_b_f64(double a, double b, double g)
{
    return mod_grad_b(a, b, g, mod_f64(a, b));
}

/* A parameter in the type computed in; a bound beyond the integers is the last integer. */
static inline float scalar_f32(double p)
{
    return (float)p;
}

static inline double scalar_f64(double p)
{
    return p;
}

#define scalar_near scalar_f64

static inline int64_t scalar_i64(double p)
{
    return p >= 0x1p63 ? INT64_MAX : p <= -0x1p63 ? INT64_MIN : (int64_t)p;
}

SIGMOID_HELPER(float, f32)
SIGMOID_HELPER(double, f64)
SIGMOID_HELPER(double, near)
SILU_HELPER(float, f32)
SILU_HELPER(double, f64)
WIDE_HELPERS(f64)
WIDE_HELPERS(near)

/* The gradients of pow: g b a^(b-1), 0 where b is 0; and g a^b log a, g 0 where a is 0 and b is not negative. In f32 the powers are taken
 * in f64, because b - 1 rounded to f32 would be an error in the exponent. Powers stand before the choice, so that loops vectorise. */
TARN__VECTOR static inline float pow_grad_a_f32(float a, float b, float g)
{
    double power = tarn__pow_near_f64(a, (double)b - 1.0);
    float value = (float)((double)g * ((double)b * power));
    return b == 0 ? 0 : value;
}

TARN__VECTOR static inline float pow_grad_b_f32(float a, float b, float g)
{
    double power = tarn__pow_near_f64(a, (double)b);
    float value = (float)((double)g * (power * (double)tarn__log_f32(a)));
    return ((a == 0) & (b >= 0)) ? 0 * g : value;
}

TARN__VECTOR static inline double pow_grad_a_f64(double a, double b, double g)
{
    double value = g * (b * tarn__pow_f64(a, b - 1.0));
    return b == 0 ? 0 : value;
}

TARN__VECTOR static inline double pow_grad_b_f64(double a, double b, double g)
{
    double value = g * (tarn__pow_f64(a, b) * tarn__log_f64(a));
    return ((a == 0) & (b >= 0)) ? 0 * g : value;
}

/* sin and cos of every x. */
TARN__UNUSED static inline float trig_f32(float x, int cosine)
{
    return tarn__trig_is_large_f32(x) ? (cosine ? cosf(x) : sinf(x)) : cosine ? tarn__cos_f32(x) : tarn__sin_f32(x);
}

TARN__UNUSED static inline double trig_f64(double x, int cosine)
{
    return tarn__trig_is_large_f64(x) ? (cosine ? cos(x) : sin(x)) : cosine ? tarn__cos_f64(x) : tarn__sin_f64(x);
}

#define ABS_f32 fabsf
#define ABS_f64 fabs
#define SQRT_f32 sqrtf
#define SQRT_f64 sqrt

#define ON(function) TARN__PASTE(function, T)
#define K(c) ((real)(c))
#define ISNAN(x) ((x) != (x))
#define FABS(x) TARN__PASTE(ABS, T)(x)
#define SQRT(x) TARN__PASTE(SQRT, T)(x)
#define EXP(x) ON(tarn__exp)(x)
#define EXP2(x) ON(tarn__exp2)(x)
#define LOG(x) ON(tarn__log)(x)
#define LOG2(x) ON(tarn__log2)(x)
#define LOG1P(x) ON(tarn__log1p)(x)
#define SIN(x) ON(tarn__sin)(x)
#define COS(x) ON(tarn__cos)(x)
#define TANH(x) ON(tarn__tanh)(x)
#define ERF(x) ON(tarn__erf)(x)
#define ERFC(x) ON(tarn__erfc)(x)
#define POW(a, b) ON(tarn__pow)(a, b)
#define RSQRT(x) (K(1) / SQRT(x))
#define EXP_GRAD(x, g) ((g) * EXP((x) * K(0.5)) * EXP((x) * K(0.5))) /* each factor in range where the product is */
#define EXP2_GRAD(x, g) ((g) * K(0.6931471805599453) * EXP2((x) * K(0.5)) * EXP2((x) * K(0.5)))
#define ERF_GRAD(x) (K(1.1283791670955126) * EXP(-(x) * (x)))
#define GELU_ERF(x) (K(0.5) * (x) * ERFC((x) * K(-0.7071067811865476)))
#define SOFTPLUS(x) (((x) < 0 ? K(0) : (x)) + LOG1P(EXP(-FABS(x))))
#define DIV_GRAD_B(a, b, g) (-(g) * (((a) / (b)) / (b)))
#define SOFTPLUS_GRAD(x, g) ((g) * SIGMOID(x))
#define SIGMOID(x) ON(sigmoid)(x)
#define SIGMOID_GRAD(x) ON(sigmoid_grad)(x)
#define SECH2(x) ON(sech2)(x)
#define GELU(x) ON(gelu)(x)
#define GELU_GRAD(x) ON(gelu_grad)(x)
#define GELU_ERF_GRAD(x) ON(gelu_erf_grad)(x)
#define SILU_GRAD(x) ON(silu_grad)(x)
#define MOD(a, b) ON(mod)(a, b)
#define SILU(x) ON(silu)(x)
#define MOD_GRAD_B(a, b, g) ON(mod_grad_b)(a, b, g)
#define POW_GRAD_A(a, b, g) ON(pow_grad_a)(a, b, g)
#define POW_GRAD_B(a, b, g) ON(pow_grad_b)(a, b, g)
