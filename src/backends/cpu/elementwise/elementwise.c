/* elementwise.c: the elementwise kernels: every expression of elementwise.def compiled for f32 tiles. Tiles for f64 and
 * i64 come from elementwise_f64.c.
 *
 * A row has up to three implementations of its f32 tile: the plain expression, a version with a fast path
 * (fast_paths.inc), or hand-written vectors (simd_kernels.inc, arm_*.inc). The #defines before the kernels choose one
 * per level by redefining tile_<name>; whichever it is, an element's result does not depend on its neighbors or on
 * its position in the tile. */
#include <math.h>

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/scalar_math.h"
#include "backends/cpu/common/scalar_math_special.h"
#include "backends/cpu/common/scalar_math_trig.h"
#include "backends/cpu/common/simd_f32.h"
#include "backends/cpu/elementwise/elementwise_loops.h"
#include "backends/cpu/elementwise/fast_f64.h"
#include "backends/cpu/elementwise/tiles.inc"

#include "backends/cpu/elementwise/math.inc"

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* IN_F64 rows between f32 tiles: computed in f64 throughout. Their gradients are written without y, which no such
 * row needs. `value` is evaluated with T = fast, real = double: ON(f) names the functions of fast_f64.h. */
#define FAST_F64_VALUE_TILE(name, value) \
    TILE_HEAD(tile_##name) \
    { \
        SCALARS; \
        const float *X = in[0]; \
        float *Y = out[0]; \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) \
        { \
            const real x = (real)X[i]; \
            Y[i] = (float)(value); \
        } \
    }
#define FAST_F64_GRAD_TILE(name, gradient) \
    TILE_HEAD(tile_##name##_grad) \
    { \
        SCALARS; \
        const float *X = in[0], *G = in[1]; \
        float *Y = out[0]; \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) \
        { \
            const real x = (real)X[i], g = (real)G[i]; \
            Y[i] = (float)(gradient); \
        } \
    }

/* f32: every row, with gradients; IN_F64 rows follow below. */
#define COMPARE(name, value) COMPARE_TILE(name, value)
#define BINARY(name, dtypes, pv, pg, value, ga, gb) \
    PAIR_TILE(name, value) \
    BROADCAST_TILE(name, value) \
    PAIR_GRAD_TILE(_grad_a, name, ga) PAIR_GRAD_TILE(_grad_b, name, gb) PAIR_BOTH_TILE(name, ga, gb)
#define UNARY(name, dtypes, pv, pg, value, gradient) VALUE_##pv(name, value) GRAD_##pg(name, value, gradient)
#define VALUE_IN_F32(name, value) VALUE_TILE(name, value)
#define VALUE_IN_F64(name, value)
#define GRAD_IN_F32(name, value, gradient) GRAD_TILE(name, value, gradient)
#define GRAD_IN_F64(name, value, gradient)

#define T f32
#define real float
#include "base/kernel/elementwise.def"
WHERE_TILE
#undef T
#undef real

#undef COMPARE
#undef BINARY
#undef VALUE_IN_F32
#undef VALUE_IN_F64
#undef GRAD_IN_F32
#undef GRAD_IN_F64
#undef UNARY
#undef GELU_GRAD
#undef GELU_ERF_GRAD
#undef SILU_GRAD
#define COMPARE(name, value)
#define BINARY(name, dtypes, pv, pg, value, ga, gb)
#define UNARY(name, dtypes, pv, pg, value, gradient) VALUE_##pv(name, value) GRAD_##pg(name, gradient)
#define VALUE_IN_F32(name, value)
#define VALUE_IN_F64(name, value) FAST_F64_VALUE_TILE(name, value)
#define GRAD_IN_F32(name, gradient)
#define GRAD_IN_F64(name, gradient) FAST_F64_GRAD_TILE(name, gradient)
#define GELU_GRAD(x) TARN__GELU_ROOT_FAST(x, gelu_grad_fast(x))
#define GELU_ERF_GRAD(x) TARN__GELU_ERF_ROOT_FAST(x, gelu_erf_grad_fast(x))
#define SILU_GRAD(x) TARN__SILU_ROOT_FAST(x, silu_grad_fast(x))

/* Second pass over the rows: IN_F64 rows with the functions of fast_f64.h. */
#define T fast
#define ABS_fast fabs
#define real double
#include "base/kernel/elementwise.def"
#undef T
#undef real

#undef UNARY
#undef BINARY
#undef COMPARE
/* Order matters: each uses what the ones before define. */
/* clang-format off */
#include "backends/cpu/elementwise/fast_paths.inc"
#include "backends/cpu/elementwise/simd_kernels.inc"
#include "backends/cpu/elementwise/sqrt_avx512.inc"
#include "backends/cpu/elementwise/arm_math.inc"
#include "backends/cpu/elementwise/arm_select.inc"
#include "backends/cpu/elementwise/arm_div.inc"
#include "backends/cpu/elementwise/arm_pow.inc"
/* clang-format on */

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* How a row's f32 tile runs: in f32, in f64, writing bytes, or in several passes. */
enum { IN_F32 = 0, IN_F64 = 1, BYTES = 2, MULTIPASS = 3 };

/* Compute type of a call: that of the first tensor operand; `typed` is the first that counts (the condition of where
 * does not). */
static int compute_of(const tarn__call *call, int typed)
{
    tarn_dtype dtype = call->out[0] ? call->out[0]->dtype : call->out[1]->dtype;
    for (int k = call->inputs - 1; k >= typed; k--)
        if (call->in[k])
            dtype = call->in[k]->dtype;
    return tarn__compute_of(dtype);
}

/* Rows whose results do not depend on the instructions used: selections, copies and single operations. Their
 * remainder after whole vectors needs no padding (elementwise_loops.c). Of two NaN operands a sum or product returns
 * the first; compilers may swap operands: they do not in f32, and do in f64. tests/ops/test_special_values.c checks
 * it. */
enum { SIMPLE = 1, SIMPLE_F32 = 2 };
static const unsigned char simple[TARN__KERNEL_COUNT] = {
#define ROW(name) [TARN__K_##name] = SIMPLE
    ROW(neg),
    ROW(neg_grad),
    ROW(abs),
    ROW(sign),
    ROW(sign_grad),
    ROW(relu),
    ROW(relu_grad),
    ROW(clamp),
    ROW(clamp_grad),
    ROW(leaky_relu),
    ROW(leaky_relu_grad),
    ROW(add_grad),
    ROW(add_grad_a),
    ROW(add_grad_b),
    ROW(sub),
    ROW(sub_grad),
    ROW(sub_grad_a),
    ROW(sub_grad_b),
    ROW(maximum),
    ROW(minimum),
    ROW(where),
    ROW(where_grad),
#undef ROW
    [TARN__K_add] = SIMPLE_F32,
    [TARN__K_mul] = SIMPLE_F32,
};

static bool is_simple(tarn__kernel kernel, int compute)
{
    return simple[kernel] == SIMPLE || (simple[kernel] == SIMPLE_F32 && compute == COMPUTE_F32);
}

/* One entry for all kernels: picks the tile by compute type, and whether a broadcast form may be used. */
static void run(const tarn__call *call, tarn__kernel kernel, tarn__tile_fn f32, tarn__tile_fn broadcast, int mode,
                int typed)
{
    const tarn__f64_tile *f64_tile = &tarn__f64_tiles[kernel];
    int compute = compute_of(call, typed);
    tarn__tile_job job = {.tile = compute == COMPUTE_F32   ? f32
                                  : compute == COMPUTE_F64 ? f64_tile->f64
                                                           : f64_tile->i64,
                          .compute = compute,
                          .bool_output = mode == BYTES,
                          .simple = is_simple(kernel, compute),
                          .multipass = mode == MULTIPASS,
                          .broadcast = compute == COMPUTE_F32 ? broadcast : NULL};
    TARN__AT_LEVEL(tarn__run_tiles)(call, &job);
}

/* The f32 tile of a row by its mode. */
#define F32_IN_F32(name) tile_##name##_f32
#define F32_BYTES(name) tile_##name##_f32
#define F32_IN_F64(name) tile_##name##_fast
#define KERNEL(name, broadcast, mode) \
    static void kernel_##name(const tarn__call *call) \
    { \
        run(call, TARN__K_##name, F32_##mode(name), broadcast, mode, 0); \
    }

#define UNARY(name, dtypes, pv, pg, value, gradient) KERNEL(name, NULL, pv) KERNEL(name##_grad, NULL, pg)
#define BINARY(name, dtypes, pv, pg, value, ga, gb) \
    KERNEL(name, broadcast_##name##_f32, IN_F32) \
    KERNEL(name##_grad, NULL, pg) KERNEL(name##_grad_a, NULL, pg) KERNEL(name##_grad_b, NULL, pg)
#define COMPARE(name, value) KERNEL(name, NULL, BYTES)
#if TARN__VEC_LANES
#define tile_exp_f32 vec_tile_exp
#define tile_exp_grad_f32 vec_tile_exp_grad
#define tile_exp2_f32 vec_tile_exp2
#define tile_log_f32 vec_tile_log
#define tile_sin_f32 vec_tile_sin
#define tile_sin_grad_f32 vec_tile_sin_grad
#define tile_cos_f32 vec_tile_cos
#define tile_cos_grad_f32 vec_tile_cos_grad
#define tile_tanh_f32 vec_tile_tanh
#define tile_tanh_grad_fast vec_tile_tanh_grad
#define tile_sigmoid_f32 vec_tile_sigmoid
#define tile_sigmoid_grad_fast vec_tile_sigmoid_grad
#define tile_silu_f32 vec_tile_silu
#define tile_silu_grad_fast vec_tile_silu_grad
#define tile_gelu_fast vec_tile_gelu
#define tile_gelu_grad_fast vec_tile_gelu_grad
#define tile_gelu_erf_fast vec_tile_gelu_erf
#define tile_gelu_erf_grad_fast vec_tile_gelu_erf_grad
#else
#define tile_sigmoid_grad_fast unclamped_sigmoid_grad
#define tile_tanh_grad_fast unclamped_tanh_grad
#define tile_exp_f32 unclamped_exp_f32
#define tile_sigmoid_f32 unclamped_sigmoid_f32
#define tile_silu_f32 unclamped_silu_f32
#define tile_exp_grad_f32 guarded_exp_grad_f32
#define tile_sin_f32 guarded_sin_f32
#define tile_cos_f32 guarded_cos_f32
#define tile_sin_grad_f32 guarded_sin_grad_f32
#define tile_cos_grad_f32 guarded_cos_grad_f32
#endif
/* sqrt and rsqrt from sqrt_avx512.inc. */
#if TARN__VEC_LANES == 16
#define tile_sqrt_f32 vec_tile_sqrt
#define tile_rsqrt_f32 vec_tile_rsqrt
#endif
#if TARN__VEC_LANES != 4 /* AArch64 has its own: arm_math.inc, arm_div.inc */
#define tile_rsqrt_grad_f32 guarded_rsqrt_grad_f32
#define tile_softplus_grad_f32 guarded_softplus_grad_f32
#define tile_div_grad_f32 guarded_div_grad_f32
#define tile_div_grad_b_f32 guarded_div_grad_b_f32
#define tile_mod_f32 guarded_mod_f32
#define tile_mod_grad_f32 guarded_mod_grad_f32
#define tile_mod_grad_b_f32 guarded_mod_grad_b_f32
#endif
/* No broadcast form: their tiles have paths of their own. */
#define broadcast_mod_f32 NULL
#define broadcast_pow_f32 NULL
#include "base/kernel/elementwise.def"
#undef UNARY
#undef BINARY
#undef COMPARE

/* act(gate) · up, composed of the activation's tiles, which differ by level; and ggate = g · act'(gate) · up, gup = g ·
 * act(gate): three passes over a tile in L1. */
#define GATED(name, value, grad) \
    static void tile_gated_##name(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params) \
    { \
        const float *up = in[1]; \
        float *y = out[0]; \
        value(n, in, out, params); \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] *= up[i]; \
    } \
    static void tile_gated_##name##_grad(int64_t n, const void *const *in, void *const *out, \
                                         const tarn__elementwise *params) \
    { \
        const float *up = in[1], *g = in[2]; \
        float *ggate = out[0], *gup = out[1]; \
        grad(n, (const void *[]){in[0], g}, &out[0], params); \
        value(n, in, &out[1], params); \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) \
        { \
            ggate[i] *= up[i]; \
            gup[i] *= g[i]; \
        } \
    }
GATED(silu, tile_silu_f32, tile_silu_grad_fast)
GATED(gelu, tile_gelu_fast, tile_gelu_grad_fast)
GATED(gelu_erf, tile_gelu_erf_fast, tile_gelu_erf_grad_fast)
GATED(relu, tile_relu_f32, tile_relu_grad_f32)
#undef GATED

static void kernel_gated(const tarn__call *call)
{
    static const tarn__tile_fn tiles[TARN__ACT_COUNT] = {NULL, tile_gated_silu, tile_gated_gelu, tile_gated_gelu_erf,
                                                         tile_gated_relu};
    run(call, TARN__K_gated, tiles[((const tarn__elementwise *)call->params)->act], NULL, MULTIPASS, 0);
}

static void kernel_gated_grad(const tarn__call *call)
{
    static const tarn__tile_fn tiles[TARN__ACT_COUNT] = {NULL, tile_gated_silu_grad, tile_gated_gelu_grad,
                                                         tile_gated_gelu_erf_grad, tile_gated_relu_grad};
    run(call, TARN__K_gated_grad, tiles[((const tarn__elementwise *)call->params)->act], NULL, MULTIPASS, 0);
}

static void kernel_where(const tarn__call *call)
{
    run(call, TARN__K_where, tile_where_f32, NULL, IN_F32, 1);
}

static void kernel_where_grad(const tarn__call *call)
{
    run(call, TARN__K_where_grad, tile_where_grad_f32, NULL, IN_F32, 1);
}

#if !TARN__VEC_LANES
static bool is_half(const tarn__view *x)
{
    return x && (x->dtype == TARN_BF16 || x->dtype == TARN_F16);
}

/* 16-bit operands need less accuracy than f32 ones. */
static void kernel_gelu_erf_any(const tarn__call *call)
{
    run(call, TARN__K_gelu_erf, is_half(call->in[0]) ? tile_gelu_erf_16bit : tile_gelu_erf_fast, NULL, IN_F64, 0);
}

static void kernel_gelu_erf_grad_any(const tarn__call *call)
{
    run(call, TARN__K_gelu_erf_grad, is_half(call->in[0]) ? tile_gelu_erf_grad_16bit : tile_gelu_erf_grad_fast, NULL,
        IN_F64, 0);
}
#endif

#define DTYPES_FLOAT TARN__FLOATS
#define DTYPES_NUMBER TARN__ALL

void TARN__AT_LEVEL(tarn__cpu_register_elementwise)(tarn__kernel_row *rows)
{
#define ROW(name, mask) rows[TARN__K_##name] = tarn__row(kernel_##name, mask);
#define UNARY(name, dtypes, ...) ROW(name, DTYPES_##dtypes) ROW(name##_grad, TARN__FLOATS)
#define BINARY(name, dtypes, ...) \
    ROW(name, DTYPES_##dtypes) \
    ROW(name##_grad, TARN__FLOATS) ROW(name##_grad_a, TARN__FLOATS) ROW(name##_grad_b, TARN__FLOATS)
#define COMPARE(name, ...) ROW(name, TARN__ALL)
#include "base/kernel/elementwise.def"
    ROW(where, TARN__ALL)
    ROW(where_grad, TARN__ALL)
    ROW(gated, TARN__FLOATS)
    ROW(gated_grad, TARN__FLOATS)
#if !TARN__VEC_LANES
    rows[TARN__K_gelu_erf].run = kernel_gelu_erf_any;
    rows[TARN__K_gelu_erf_grad].run = kernel_gelu_erf_grad_any;
#endif
}
