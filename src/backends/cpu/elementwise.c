/* elementwise.c: the element-wise kernels: every expression of elementwise.def compiled for f32, f64 and i64 tiles. */
#include <math.h>

#include "backends/cpu/near.h"
#include "backends/cpu/tile.h"
#include "backends/cpu/vmath.h"

/* ---- what the expressions of elementwise.def are made of ------------------------------------------------------------------- */

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
    return (float)(r != 0 && (r < 0) != (wide_b < 0) ? r + wide_b : r);
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

/* sin and cos of arguments beyond the range of the vector forms, which is rare, go to the C library one by one. */
static bool any_large_f32(const float *x, int64_t n)
{
    int large = 0;
    for (int64_t i = 0; i < n; i++)
        large |= tarn__trig_is_large_f32(x[i]);
    return large;
}

static bool any_large_f64(const double *x, int64_t n)
{
    int large = 0;
    for (int64_t i = 0; i < n; i++)
        large |= tarn__trig_is_large_f64(x[i]);
    return large;
}

static inline float trig_f32(float x, int cosine)
{
    return tarn__trig_is_large_f32(x) ? (cosine ? cosf(x) : sinf(x)) : cosine ? tarn__cos_f32(x) : tarn__sin_f32(x);
}

static inline double trig_f64(double x, int cosine)
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

/* ---- tiles ----------------------------------------------------------------------------------------------------------------- */

#define TILE_HEAD(name) static void TARN__PASTE(name, T)(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
#define SCALARS                                                                                                                           \
    const real P0 = ON(scalar)(params->p0), P1 = ON(scalar)(params->p1);                                                                              \
    (void)P0, (void)P1

#define VALUE_TILE(name, value)                                                                                                           \
    TILE_HEAD(tile_##name)                                                                                                               \
    {                                                                                                                                    \
        SCALARS;                                                                                                                         \
        const real *X = in[0];                                                                                                           \
        real *Y = out[0];                                                                                                                \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real x = X[i];                                                                                                         \
            Y[i] = (value);                                                                                                              \
        }                                                                                                                                \
    }
#define GRAD_TILE(name, value, gradient)                                                                                                  \
    TILE_HEAD(tile_##name##_grad)                                                                                                        \
    {                                                                                                                                    \
        SCALARS;                                                                                                                         \
        const real *X = in[0], *G = in[1];                                                                                               \
        real *Y = out[0];                                                                                                                \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real x = X[i], g = G[i], y = (value);                                                                                  \
            (void)x, (void)g, (void)y;                                                                                                   \
            Y[i] = (gradient);                                                                                                           \
        }                                                                                                                                \
    }
#define PAIR_TILE(name, value)                                                                                                            \
    TILE_HEAD(tile_##name)                                                                                                               \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const real *A = in[0], *B = in[1];                                                                                               \
        real *Y = out[0];                                                                                                                \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real a = A[i], b = B[i];                                                                                               \
            Y[i] = (value);                                                                                                              \
        }                                                                                                                                \
    }
#define PAIR_GRAD_TILE(suffix, name, gradient)                                                                                            \
    TILE_HEAD(tile_##name##suffix)                                                                                                       \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const real *A = in[0], *B = in[1], *G = in[2];                                                                                   \
        real *Y = out[0];                                                                                                                \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real a = A[i], b = B[i], g = G[i];                                                                                     \
            (void)a, (void)b;                                                                                                            \
            Y[i] = (gradient);                                                                                                           \
        }                                                                                                                                \
    }
#define PAIR_BOTH_TILE(name, gradient_a, gradient_b)                                                                                      \
    TILE_HEAD(tile_##name##_grad)                                                                                                        \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const real *A = in[0], *B = in[1], *G = in[2];                                                                                   \
        real *YA = out[0], *YB = out[1];                                                                                                 \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real a = A[i], b = B[i], g = G[i];                                                                                     \
            (void)a, (void)b;                                                                                                            \
            const real ga = (gradient_a), gb = (gradient_b);                                                                             \
            YA[i] = ga;                                                                                                                  \
            YB[i] = gb;                                                                                                                  \
        }                                                                                                                                \
    }
#define COMPARE_TILE(name, value)                                                                                                         \
    TILE_HEAD(tile_##name)                                                                                                               \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const real *A = in[0], *B = in[1];                                                                                               \
        uint8_t *Y = out[0];                                                                                                             \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real a = A[i], b = B[i];                                                                                               \
            Y[i] = (uint8_t)(value);                                                                                                     \
        }                                                                                                                                \
    }
#define WHERE_TILE                                                                                                                        \
    TILE_HEAD(tile_where)                                                                                                                \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const real *C = in[0], *A = in[1], *B = in[2];                                                                                   \
        real *Y = out[0];                                                                                                                \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) Y[i] = C[i] != 0 ? A[i] : B[i];                                                \
    }                                                                                                                                    \
    TILE_HEAD(tile_where_grad)                                                                                                           \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const real *C = in[0], *G = in[1];                                                                                               \
        real *A = out[0], *B = out[1];                                                                                                   \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const bool holds = C[i] != 0;                                                                                                \
            const real g = G[i];                                                                                                         \
            A[i] = holds ? g : 0;                                                                                                        \
            B[i] = holds ? 0 : g;                                                                                                        \
        }                                                                                                                                \
    }

/* WIDE rows between f32 tiles: everything in between is f64. Their gradients are written without y, which no WIDE row needs. */
#define NEAR_VALUE_TILE(name, value)                                                                                                      \
    TILE_HEAD(tile_##name)                                                                                                               \
    {                                                                                                                                    \
        SCALARS;                                                                                                                         \
        const float *X = in[0];                                                                                                          \
        float *Y = out[0];                                                                                                               \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real x = (real)X[i];                                                                                                   \
            Y[i] = (float)(value);                                                                                                       \
        }                                                                                                                                \
    }
#define NEAR_GRAD_TILE(name, gradient)                                                                                                    \
    TILE_HEAD(tile_##name##_grad)                                                                                                        \
    {                                                                                                                                    \
        SCALARS;                                                                                                                         \
        const float *X = in[0], *G = in[1];                                                                                              \
        float *Y = out[0];                                                                                                               \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real x = (real)X[i], g = (real)G[i];                                                                                   \
            Y[i] = (float)(gradient);                                                                                                    \
        }                                                                                                                                \
    }

/* Floats: every row, with gradients; f32's WIDE rows apart. */
#define COMPARE(name, value) COMPARE_TILE(name, value)
#define BINARY(name, dtypes, pv, pg, value, ga, gb)                                                                                       \
    PAIR_TILE(name, value) PAIR_GRAD_TILE(_grad_a, name, ga) PAIR_GRAD_TILE(_grad_b, name, gb) PAIR_BOTH_TILE(name, ga, gb)
#define UNARY(name, dtypes, pv, pg, value, gradient) VALUE_##pv(name, value) GRAD_##pg(name, value, gradient)
#define VALUE_PLAIN(name, value) VALUE_TILE(name, value)
#define VALUE_WIDE(name, value)
#define GRAD_PLAIN(name, value, gradient) GRAD_TILE(name, value, gradient)
#define GRAD_WIDE(name, value, gradient)

#define T f32
#define real float
#include "base/elementwise.def"
WHERE_TILE
#undef T
#undef real

#undef UNARY
#define UNARY(name, dtypes, pv, pg, value, gradient) VALUE_TILE(name, value) GRAD_TILE(name, value, gradient)

#define T f64
#define real double
#include "base/elementwise.def"
WHERE_TILE
#undef T
#undef real

#undef COMPARE
#undef BINARY
#undef VALUE_PLAIN
#undef VALUE_WIDE
#undef GRAD_PLAIN
#undef GRAD_WIDE
#undef UNARY
#undef GELU_GRAD
#undef GELU_ERF_GRAD
#undef SILU_GRAD
#define COMPARE(name, value)
#define BINARY(name, dtypes, pv, pg, value, ga, gb)
#define UNARY(name, dtypes, pv, pg, value, gradient) VALUE_##pv(name, value) GRAD_##pg(name, gradient)
#define VALUE_PLAIN(name, value)
#define VALUE_WIDE(name, value) NEAR_VALUE_TILE(name, value)
#define GRAD_PLAIN(name, gradient)
#define GRAD_WIDE(name, gradient) NEAR_GRAD_TILE(name, gradient)
#define GELU_GRAD(x) TARN__GELU_ROOT_NEAR(x, gelu_grad_near(x))
#define GELU_ERF_GRAD(x) TARN__GELU_ERF_ROOT_NEAR(x, gelu_erf_grad_near(x))
#define SILU_GRAD(x) TARN__SILU_ROOT_NEAR(x, silu_grad_near(x))

#define T near
#define ABS_near fabs
#define real double
#include "base/elementwise.def"
#undef T
#undef real

#undef UNARY
#undef BINARY
#undef COMPARE
#define COMPARE(name, value) COMPARE_TILE(name, value)

/* Integers: the rows that have them, no gradients. */
#define UNARY(name, dtypes, pv, pg, value, gradient) UNARY_##dtypes(name, value)
#define UNARY_FLOAT(name, value)
#define UNARY_NUMBER(name, value) VALUE_TILE(name, value)
#define BINARY(name, dtypes, pv, pg, value, ga, gb) BINARY_##dtypes(name, value)
#define BINARY_FLOAT(name, value)
#define BINARY_NUMBER(name, value) PAIR_TILE(name, value)

#define T i64
#define real int64_t
#undef ISNAN
#define ISNAN(x) 0
#include "base/elementwise.def"
WHERE_TILE
#undef T
#undef real

#undef UNARY
#undef BINARY
#undef COMPARE

/* ---- sin and cos once more, for large arguments ---------------------------------------------------------------------------- */

#define TRIG_TILES(name, real, t, value, gradient)                                                                                        \
    static void guarded_##name##_##t(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)                \
    {                                                                                                                                    \
        const real *X = in[0];                                                                                                           \
        real *Y = out[0];                                                                                                                \
        if (!any_large_##t(X, n)) {                                                                                                      \
            tile_##name##_##t(n, in, out, params);                                                                                       \
            return;                                                                                                                      \
        }                                                                                                                                \
        for (int64_t i = 0; i < n; i++)                                                                                                  \
            Y[i] = value;                                                                                                                \
    }                                                                                                                                    \
    static void guarded_##name##_grad_##t(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)           \
    {                                                                                                                                    \
        const real *X = in[0], *G = in[1];                                                                                               \
        real *Y = out[0];                                                                                                                \
        if (!any_large_##t(X, n)) {                                                                                                      \
            tile_##name##_grad_##t(n, in, out, params);                                                                                  \
            return;                                                                                                                      \
        }                                                                                                                                \
        for (int64_t i = 0; i < n; i++)                                                                                                  \
            Y[i] = gradient;                                                                                                             \
    }
TRIG_TILES(sin, float, f32, trig_f32(X[i], 0), G[i] * trig_f32(X[i], 1))
TRIG_TILES(cos, float, f32, trig_f32(X[i], 1), -G[i] * trig_f32(X[i], 0))
TRIG_TILES(sin, double, f64, trig_f64(X[i], 0), G[i] * trig_f64(X[i], 1))
TRIG_TILES(cos, double, f64, trig_f64(X[i], 1), -G[i] * trig_f64(X[i], 0))

/* ---- the remainder once more, for large quotients -------------------------------------------------------------------------- */

static bool any_large_quotient(const float *a, const float *b, int64_t n)
{
    int large = 0;
    for (int64_t i = 0; i < n; i++)
        large |= fabs((double)a[i]) > MOD_MAX * fabs((double)b[i]);
    return large;
}

#define MOD_TILES(name, value, value_b)                                                                                                   \
    static void guarded_##name##_f32(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)                \
    {                                                                                                                                    \
        const float *A = in[0], *B = in[1], *G = in[2];                                                                                  \
        float *Y = out[0], *YB = out[1];                                                                                                 \
        if (!any_large_quotient(A, B, n)) {                                                                                              \
            tile_##name##_f32(n, in, out, params);                                                                                       \
            return;                                                                                                                      \
        }                                                                                                                                \
        (void)G, (void)YB;                                                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                                                                \
            const float a = A[i], b = B[i];                                                                                              \
            value_b;                                                                                                                     \
            Y[i] = value;                                                                                                                \
        }                                                                                                                                \
    }
static inline float mod_any_grad_b_f32(float a, float b, float g)
{
    return (float)mod_grad_b((double)a, (double)b, (double)g, (double)mod_any_f32(a, b));
}
MOD_TILES(mod, mod_any_f32(a, b), (void)0)
MOD_TILES(mod_grad_b, mod_any_grad_b_f32(a, b, G[i]), (void)0)
MOD_TILES(mod_grad, G[i], YB[i] = mod_any_grad_b_f32(a, b, G[i]))

/* ---- the gradient of a quotient once more, where a / b or g / b leave the range that the result may still have ---------------- */

#define DIV_TILES(real, wide, t, low, high)                                                                                               \
    static bool any_extreme_##t(const real *a, const real *b, int64_t n)                                                                  \
    {                                                                                                                                    \
        int extreme = 0;                                                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                                                                \
            real q = a[i] / b[i], size = q < 0 ? -q : q;                                                                                 \
            extreme |= (size > (real)high) | ((size < (real)low) & (a[i] != 0));                                                         \
        }                                                                                                                                \
        return extreme;                                                                                                                  \
    }                                                                                                                                    \
    static void guarded_div_grad_b_##t(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)              \
    {                                                                                                                                    \
        const real *A = in[0], *B = in[1], *G = in[2];                                                                                   \
        real *Y = out[0];                                                                                                                \
        if (!any_extreme_##t(A, B, n)) {                                                                                                 \
            tile_div_grad_b_##t(n, in, out, params);                                                                                     \
            return;                                                                                                                      \
        }                                                                                                                                \
        for (int64_t i = 0; i < n; i++)                                                                                                  \
            Y[i] = (real)(-(wide)G[i] * (((wide)A[i] / (wide)B[i]) / (wide)B[i]));                                                       \
    }                                                                                                                                    \
    static void guarded_div_grad_##t(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)                \
    {                                                                                                                                    \
        const real *A = in[0], *B = in[1], *G = in[2];                                                                                   \
        real *YA = out[0], *YB = out[1];                                                                                                 \
        if (!any_extreme_##t(A, B, n)) {                                                                                                 \
            tile_div_grad_##t(n, in, out, params);                                                                                       \
            return;                                                                                                                      \
        }                                                                                                                                \
        for (int64_t i = 0; i < n; i++) {                                                                                                \
            const real a = A[i], b = B[i], g = G[i];                                                                                     \
            YA[i] = g / b;                                                                                                               \
            YB[i] = (real)(-(wide)g * (((wide)a / (wide)b) / (wide)b));                                                                  \
        }                                                                                                                                \
    }
DIV_TILES(float, double, f32, 1e-18f, 1e18f)
DIV_TILES(double, long double, f64, 1e-150, 1e150)

/* ---- gradients with an exponential once more, where it leaves the range of f32 that its product with g may still have ---------- */

#define EXPONENT_MAX 80.0f /* exp(±80) and all of its digits are within the range */

#define EXPONENTIAL_TILE(name, is_extreme, gradient)                                                                                      \
    static void guarded_##name##_grad_f32(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)           \
    {                                                                                                                                    \
        const float *X = in[0], *G = in[1];                                                                                              \
        float *Y = out[0];                                                                                                               \
        int extreme = 0;                                                                                                                 \
        for (int64_t i = 0; i < n; i++)                                                                                                  \
            extreme |= is_extreme;                                                                                                       \
        if (!extreme) {                                                                                                                  \
            tile_##name##_grad_f32(n, in, out, params);                                                                                  \
            return;                                                                                                                      \
        }                                                                                                                                \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const double x = (double)X[i], g = (double)G[i];                                                                             \
            Y[i] = (float)(gradient);                                                                                                    \
        }                                                                                                                                \
    }
EXPONENTIAL_TILE(exp, (fabsf(X[i]) > EXPONENT_MAX) | ((fabsf(G[i]) < 0x1p-100f) & (G[i] != 0)),
                 g * tarn__exp_f64(0.5 * x) * tarn__exp_f64(0.5 * x))
EXPONENTIAL_TILE(softplus, X[i] < -EXPONENT_MAX, g * sigmoid_f64(x))

/* ---- exponentials without their guards, where all of a tile is far from the ends of f32's range: a third fewer instructions ----- */

#define CALM 64.0f

TARN__VECTOR static inline float exp_calm(float x)
{
    float rounded = tarn__fma_f32(x, 0x1.715476p+0f, TARN__ROUND_F32);
    float r = tarn__reduce_ln2_f32(x, rounded - TARN__ROUND_F32);
    return (1.0f + tarn__expm1_near_f32(r)) * tarn__pow2_f32((int32_t)(tarn__bits_f32(rounded) - 0x4b400000u));
}

#define CALM_TILE(name, value)                                                                                                            \
    static void calm_##name##_f32(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)                   \
    {                                                                                                                                    \
        const float *X = in[0];                                                                                                          \
        float *Y = out[0];                                                                                                               \
        int wild = 0;                                                                                                                    \
        for (int64_t i = 0; i < n; i++)                                                                                                  \
            wild |= !(fabsf(X[i]) <= CALM);                                                                                              \
        if (wild) {                                                                                                                      \
            tile_##name##_f32(n, in, out, params);                                                                                       \
            return;                                                                                                                      \
        }                                                                                                                                \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const float x = X[i];                                                                                                        \
            Y[i] = value;                                                                                                                \
        }                                                                                                                                \
    }
static inline float sigmoid_calm(float x)
{
    float e = exp_calm(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}
static inline float silu_calm(float x)
{
    float e = exp_calm(-fabsf(x));
    return x * (x < 0 ? e : 1.0f) / (1.0f + e);
}
CALM_TILE(exp, exp_calm(x))
CALM_TILE(sigmoid, sigmoid_calm(x))
CALM_TILE(silu, silu_calm(x))

/* The slopes of sigmoid and tanh as e / (1 + e)², which has nothing to cancel. */
static inline float bell_calm(float x)
{
    float e = exp_calm(-fabsf(x));
    return e / tarn__fma_f32(e, e + 2.0f, 1.0f); /* the square of 1 + e, rounded fewer times */
}

#define CALM_GRAD_TILE(name, most, slope)                                                                                                 \
    static void calm_##name##_grad(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)                  \
    {                                                                                                                                    \
        const float *X = in[0], *G = in[1];                                                                                              \
        float *Y = out[0];                                                                                                               \
        int wild = 0;                                                                                                                    \
        for (int64_t i = 0; i < n; i++)                                                                                                  \
            wild |= !(fabsf(X[i]) <= most);                                                                                              \
        if (wild) {                                                                                                                      \
            tile_##name##_grad_near(n, in, out, params);                                                                                 \
            return;                                                                                                                      \
        }                                                                                                                                \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const float x = X[i];                                                                                                        \
            Y[i] = G[i] * (slope);                                                                                                       \
        }                                                                                                                                \
    }
CALM_GRAD_TILE(sigmoid, CALM, bell_calm(x))
CALM_GRAD_TILE(tanh, CALM / 2, 4.0f * bell_calm(2.0f * x))

/* ---- gelu_erf of 16-bit operands, whose results are far from needing f64 -------------------------------------------------------- */

#define HALF_MOST 11.0f

/* Half of erfc(|x| / sqrt 2): e^(-x²/2) times a polynomial, as tarn__erfcx_near() has it. */
TARN__VECTOR static inline float gelu_tail_half(float x, float e)
{
    float a = fabsf(x) * 0x1.6a09e6p-1f, t = (a - 4.0f) / (a + 4.0f);
    float p = 0x1.f0684ep-20f;
    p = tarn__fma_f32(p, t, -0x1.dca4dep-19f);
    p = tarn__fma_f32(p, t, -0x1.709e44p-16f);
    p = tarn__fma_f32(p, t, 0x1.51c4c6p-14f);
    p = tarn__fma_f32(p, t, -0x1.6cec8ep-16f);
    p = tarn__fma_f32(p, t, -0x1.a34f2cp-11f);
    p = tarn__fma_f32(p, t, 0x1.0a16cp-8f);
    p = tarn__fma_f32(p, t, -0x1.a4ddacp-7f);
    p = tarn__fma_f32(p, t, 0x1.0066eap-5f);
    p = tarn__fma_f32(p, t, -0x1.027d5cp-4f);
    p = tarn__fma_f32(p, t, 0x1.be502cp-4f);
    p = tarn__fma_f32(p, t, -0x1.506666p-3f);
    p = tarn__fma_f32(p, t, 0x1.bff01ap-3f);
    p = tarn__fma_f32(p, t, -0x1.094922p-2f);
    return 0.5f * tarn__fma_f32(p, t, 0x1.18932cp-3f) * e;
}

static inline float gelu_erf_half(float x)
{
    float tail = gelu_tail_half(x, exp_calm(-0.5f * x * x));
    return x * (x < 0 ? tail : 1.0f - tail);
}

/* Beside its root the slope is a difference of two nearly equal numbers: there its series counts, as in near.h. */
static inline float gelu_erf_grad_half(float x)
{
    float e = exp_calm(-0.5f * x * x), tail = gelu_tail_half(x, e);
    float slope = (x < 0 ? tail : 1.0f - tail) + x * 0x1.988454p-2f * e;
    float d = (x + 0x1.80ead2p-1f) - 0x1.a03fd4p-27f;
    float series = d * tarn__fma_f32(d, tarn__fma_f32(d, -0x1.2a2efap-6f, 0x1.8d9a94p-2f), 0x1.b9d99p-2f);
    return fabsf(d) < 0x1p-7f ? series : slope;
}

static bool within_half(const float *x, int64_t n)
{
    int beyond = 0;
    for (int64_t i = 0; i < n; i++)
        beyond |= !(fabsf(x[i]) <= HALF_MOST);
    return !beyond;
}

static void half_gelu_erf(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
{
    const float *X = in[0];
    float *Y = out[0];
    if (!within_half(X, n)) {
        tile_gelu_erf_near(n, in, out, params);
        return;
    }
    TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) Y[i] = gelu_erf_half(X[i]);
}

static void half_gelu_erf_grad(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
{
    const float *X = in[0], *G = in[1];
    float *Y = out[0];
    if (!within_half(X, n)) {
        tile_gelu_erf_grad_near(n, in, out, params);
        return;
    }
    TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) Y[i] = G[i] * gelu_erf_grad_half(X[i]);
}

/* ---- the gradient of rsqrt with one division, where x · sqrt(x) stays far within the range of f32 ------------------------------- */

static void guarded_rsqrt_grad_f32(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
{
    const float *X = in[0], *G = in[1];
    float *Y = out[0];
    int extreme = 0;
    for (int64_t i = 0; i < n; i++)
        extreme |= !((X[i] > 0x1p-80f) & (X[i] < 0x1p80f));
    if (extreme) {
        tile_rsqrt_grad_f32(n, in, out, params);
        return;
    }
    TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) Y[i] = G[i] / (-2.0f * X[i] * sqrtf(X[i]));
}

/* ---- kernels --------------------------------------------------------------------------------------------------------------- */

enum { PLAIN = 0, WIDE = 1, BYTES = 2 };

static void run(const tarn__call *call, tarn__tile_fn f32, tarn__tile_fn f64, tarn__tile_fn i64, int mode, int typed)
{
    /* The first operand that is a tensor says what to compute in; `typed` is the first that may (the condition of where may not). */
    tarn_dtype dtype = call->out[0] ? call->out[0]->dtype : call->out[1]->dtype;
    for (int k = call->inputs - 1; k >= typed; k--)
        if (call->in[k])
            dtype = call->in[k]->dtype;
    int compute = tarn__compute_of(dtype);
    tarn__tile_job job = {compute == COMPUTE_F32 ? f32 : compute == COMPUTE_F64 ? f64 : i64, compute, mode == BYTES};
    TARN__AT_LEVEL(tarn__run_tiles)(call, &job);
}

#define INTEGER_FLOAT(name) NULL
#define INTEGER_NUMBER(name) tile_##name##_i64
#define F32_PLAIN(name) tile_##name##_f32
#define F32_BYTES(name) tile_##name##_f32
#define F32_WIDE(name) tile_##name##_near
#define KERNEL(name, i64, mode)                                                                                                           \
    static void kernel_##name(const tarn__call *call) { run(call, F32_##mode(name), tile_##name##_f64, i64, mode, 0); }

#define UNARY(name, dtypes, pv, pg, value, gradient) KERNEL(name, INTEGER_##dtypes(name), pv) KERNEL(name##_grad, NULL, pg)
#define BINARY(name, dtypes, pv, pg, value, ga, gb)                                                                                       \
    KERNEL(name, INTEGER_##dtypes(name), pv) KERNEL(name##_grad, NULL, pg) KERNEL(name##_grad_a, NULL, pg) KERNEL(name##_grad_b, NULL, pg)
#define COMPARE(name, value) KERNEL(name, tile_##name##_i64, BYTES)
#define tile_sigmoid_grad_near calm_sigmoid_grad
#define tile_tanh_grad_near calm_tanh_grad
#define tile_exp_f32 calm_exp_f32
#define tile_sigmoid_f32 calm_sigmoid_f32
#define tile_silu_f32 calm_silu_f32
#define tile_rsqrt_grad_f32 guarded_rsqrt_grad_f32
#define tile_exp_grad_f32 guarded_exp_grad_f32
#define tile_softplus_grad_f32 guarded_softplus_grad_f32
#define tile_div_grad_f32 guarded_div_grad_f32
#define tile_div_grad_f64 guarded_div_grad_f64
#define tile_div_grad_b_f32 guarded_div_grad_b_f32
#define tile_div_grad_b_f64 guarded_div_grad_b_f64
#define tile_mod_f32 guarded_mod_f32
#define tile_mod_grad_f32 guarded_mod_grad_f32
#define tile_mod_grad_b_f32 guarded_mod_grad_b_f32
#define tile_sin_f32 guarded_sin_f32
#define tile_sin_f64 guarded_sin_f64
#define tile_cos_f32 guarded_cos_f32
#define tile_cos_f64 guarded_cos_f64
#define tile_sin_grad_f32 guarded_sin_grad_f32
#define tile_sin_grad_f64 guarded_sin_grad_f64
#define tile_cos_grad_f32 guarded_cos_grad_f32
#define tile_cos_grad_f64 guarded_cos_grad_f64
#include "base/elementwise.def"
#undef UNARY
#undef BINARY
#undef COMPARE

static void kernel_where(const tarn__call *call)
{
    run(call, tile_where_f32, tile_where_f64, tile_where_i64, PLAIN, 1);
}

static void kernel_where_grad(const tarn__call *call)
{
    run(call, tile_where_grad_f32, tile_where_grad_f64, tile_where_grad_i64, PLAIN, 1);
}

static bool is_half(const tarn__view *x)
{
    return x && (x->dtype == TARN_BF16 || x->dtype == TARN_F16);
}

static void kernel_gelu_erf_any(const tarn__call *call)
{
    run(call, is_half(call->in[0]) ? half_gelu_erf : tile_gelu_erf_near, tile_gelu_erf_f64, NULL, WIDE, 0);
}

static void kernel_gelu_erf_grad_any(const tarn__call *call)
{
    run(call, is_half(call->in[0]) ? half_gelu_erf_grad : tile_gelu_erf_grad_near, tile_gelu_erf_grad_f64, NULL, WIDE, 0);
}

#define DTYPES_FLOAT TARN__FLOATS
#define DTYPES_NUMBER TARN__ALL

void TARN__AT_LEVEL(tarn__cpu_elementwise)(tarn__kernel_row *rows)
{
#define ROW(name, mask) rows[TARN__K_##name] = (tarn__kernel_row){kernel_##name, mask, NULL};
#define UNARY(name, dtypes, ...) ROW(name, DTYPES_##dtypes) ROW(name##_grad, TARN__FLOATS)
#define BINARY(name, dtypes, ...)                                                                                                         \
    ROW(name, DTYPES_##dtypes) ROW(name##_grad, TARN__FLOATS) ROW(name##_grad_a, TARN__FLOATS) ROW(name##_grad_b, TARN__FLOATS)
#define COMPARE(name, ...) ROW(name, TARN__ALL)
#include "base/elementwise.def"
    ROW(where, TARN__ALL)
    ROW(where_grad, TARN__ALL)
    rows[TARN__K_gelu_erf].run = kernel_gelu_erf_any;
    rows[TARN__K_gelu_erf_grad].run = kernel_gelu_erf_grad_any;
}
