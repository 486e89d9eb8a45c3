/* elementwise.c: the element-wise kernels: every expression of elementwise.def compiled for f32, f64 and i64 tiles. */
#include <math.h>

#include "backends/cpu/convert.h"
#include "backends/cpu/near.h"
#include "backends/cpu/packs.h"
#include "backends/cpu/tile.h"
#include "backends/cpu/vmath.h"

#include "backends/cpu/formulas.h"

/* ---- tiles ----------------------------------------------------------------------------------------------------------------- */

#define TILE_HEAD(name) TARN__UNUSED static void TARN__PASTE(name, T)(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
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
/* One element as b for the whole tile. */
#define REPEATED_TILE(name, value)                                                                                                        \
    TILE_HEAD(repeated_##name)                                                                                                            \
    {                                                                                                                                     \
        (void)params;                                                                                                                     \
        const real *A = in[0], b = *(const real *)in[1];                                                                                  \
        real *Y = out[0];                                                                                                                 \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                 \
        {                                                                                                                                 \
            const real a = A[i];                                                                                                          \
            Y[i] = (value);                                                                                                               \
        }                                                                                                                                 \
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
    PAIR_TILE(name, value) REPEATED_TILE(name, value)                                                                                     \
    PAIR_GRAD_TILE(_grad_a, name, ga) PAIR_GRAD_TILE(_grad_b, name, gb) PAIR_BOTH_TILE(name, ga, gb)
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

#include "backends/cpu/guards.h"
#include "backends/cpu/packed.h"
#include "backends/cpu/roots.h"

/* ---- kernels --------------------------------------------------------------------------------------------------------------- */

enum { PLAIN = 0, WIDE = 1, BYTES = 2 };

/* The first operand that is a tensor says what to compute in; `typed` is the first that may (the condition of where may not). */
static int compute_of(const tarn__call *call, int typed)
{
    tarn_dtype dtype = call->out[0] ? call->out[0]->dtype : call->out[1]->dtype;
    for (int k = call->inputs - 1; k >= typed; k--)
        if (call->in[k])
            dtype = call->in[k]->dtype;
    return tarn__compute_of(dtype);
}

static void run(const tarn__call *call, tarn__tile_fn f32, tarn__tile_fn f64, tarn__tile_fn i64, int mode, int typed)
{
    int compute = compute_of(call, typed);
    tarn__tile_job job = {.tile = compute == COMPUTE_F32 ? f32 : compute == COMPUTE_F64 ? f64 : i64, .compute = compute,
                          .bool_output = mode == BYTES};
    TARN__AT_LEVEL(tarn__run_tiles)(call, &job);
}

static void run_pair(const tarn__call *call, tarn__tile_fn f32, tarn__tile_fn repeated, tarn__tile_fn f64, tarn__tile_fn i64)
{
    int compute = compute_of(call, 0);
    tarn__tile_job job = {.tile = compute == COMPUTE_F32 ? f32 : compute == COMPUTE_F64 ? f64 : i64, .compute = compute,
                          .repeated = compute == COMPUTE_F32 ? repeated : NULL};
    TARN__AT_LEVEL(tarn__run_tiles)(call, &job);
}

#define INTEGER_FLOAT(name) NULL
#define INTEGER_NUMBER(name) tile_##name##_i64
#define F32_PLAIN(name) tile_##name##_f32
#define F32_BYTES(name) tile_##name##_f32
#define F32_WIDE(name) tile_##name##_near
#define KERNEL(name, i64, mode)                                                                                                           \
    static void kernel_##name(const tarn__call *call) { run(call, F32_##mode(name), tile_##name##_f64, i64, mode, 0); }
#define PAIR_KERNEL(name, i64)                                                                                                            \
    static void kernel_##name(const tarn__call *call) { run_pair(call, tile_##name##_f32, repeated_##name##_f32, tile_##name##_f64, i64); }

#define UNARY(name, dtypes, pv, pg, value, gradient) KERNEL(name, INTEGER_##dtypes(name), pv) KERNEL(name##_grad, NULL, pg)
#define BINARY(name, dtypes, pv, pg, value, ga, gb)                                                                                       \
    PAIR_KERNEL(name, INTEGER_##dtypes(name)) KERNEL(name##_grad, NULL, pg) KERNEL(name##_grad_a, NULL, pg) KERNEL(name##_grad_b, NULL, pg)
#define COMPARE(name, value) KERNEL(name, tile_##name##_i64, BYTES)
#if TARN__PACK
#define tile_exp_f32 packed_exp
#define tile_exp_grad_f32 packed_exp_grad
#define tile_exp2_f32 packed_exp2
#define tile_log_f32 packed_log
#define tile_sin_f32 packed_sin
#define tile_sin_grad_f32 packed_sin_grad
#define tile_cos_f32 packed_cos
#define tile_cos_grad_f32 packed_cos_grad
#define tile_tanh_f32 packed_tanh
#define tile_tanh_grad_near packed_tanh_grad
#define tile_sigmoid_f32 packed_sigmoid
#define tile_sigmoid_grad_near packed_sigmoid_grad
#define tile_silu_f32 packed_silu
#define tile_silu_grad_near packed_silu_grad
#define tile_gelu_near packed_gelu
#define tile_gelu_grad_near packed_gelu_grad
#define tile_gelu_erf_near packed_gelu_erf
#define tile_gelu_erf_grad_near packed_gelu_erf_grad
#else
#define tile_sigmoid_grad_near calm_sigmoid_grad
#define tile_tanh_grad_near calm_tanh_grad
#define tile_exp_f32 calm_exp_f32
#define tile_sigmoid_f32 calm_sigmoid_f32
#define tile_silu_f32 calm_silu_f32
#define tile_exp_grad_f32 guarded_exp_grad_f32
#define tile_sin_f32 guarded_sin_f32
#define tile_cos_f32 guarded_cos_f32
#define tile_sin_grad_f32 guarded_sin_grad_f32
#define tile_cos_grad_f32 guarded_cos_grad_f32
#endif
#if TARN__PACK == 16
#define tile_sqrt_f32 packed_sqrt
#define tile_rsqrt_f32 packed_rsqrt
#endif
#define tile_rsqrt_grad_f32 guarded_rsqrt_grad_f32
#define tile_softplus_grad_f32 guarded_softplus_grad_f32
#define tile_div_grad_f32 guarded_div_grad_f32
#define tile_div_grad_f64 guarded_div_grad_f64
#define tile_div_grad_b_f32 guarded_div_grad_b_f32
#define tile_div_grad_b_f64 guarded_div_grad_b_f64
#define tile_mod_f32 guarded_mod_f32
#define repeated_mod_f32 NULL
#define repeated_pow_f32 NULL
#define tile_mod_grad_f32 guarded_mod_grad_f32
#define tile_mod_grad_b_f32 guarded_mod_grad_b_f32
#define tile_sin_f64 guarded_sin_f64
#define tile_cos_f64 guarded_cos_f64
#define tile_sin_grad_f64 guarded_sin_grad_f64
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

#if !TARN__PACK
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
#endif

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
#if !TARN__PACK
    rows[TARN__K_gelu_erf].run = kernel_gelu_erf_any;
    rows[TARN__K_gelu_erf_grad].run = kernel_gelu_erf_grad_any;
#endif
}
