/* elementwise_f64.c: the expressions of elementwise.def in f64 and i64, which serve checks and counts: compiled for
 * fewer levels than f32 (level.h), in a table by kernel that elementwise.c reads.
 *
 * Speed matters less here than size: these tiles are compiled from the plain expressions, with range paths only
 * where results would be wrong. */
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

/* f64: every row, with gradients. */
#define COMPARE(name, value) COMPARE_TILE(name, value)
#define BINARY(name, dtypes, pv, pg, value, ga, gb) \
    PAIR_TILE(name, value) \
    PAIR_GRAD_TILE(_grad_a, name, ga) PAIR_GRAD_TILE(_grad_b, name, gb) PAIR_BOTH_TILE(name, ga, gb)
#define UNARY(name, dtypes, pv, pg, value, gradient) VALUE_TILE(name, value) GRAD_TILE(name, value, gradient)

#define T f64
#define real double
#include "base/kernel/elementwise.def"
WHERE_TILE
#undef T
#undef real

DEFINE_BLEND(double, f64)
TRIG_TILES(sin, double, f64, trig_f64(X[i], 0), G[i] * trig_f64(X[i], 1))
TRIG_TILES(cos, double, f64, trig_f64(X[i], 1), -G[i] * trig_f64(X[i], 0))
DIV_TILES(double, long double, f64, 1e-150, 1e150)

#undef UNARY
#undef BINARY

/* i64: the rows with integers, without gradients. */
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
#include "base/kernel/elementwise.def"
WHERE_TILE
#undef T
#undef real

#undef UNARY
#undef BINARY
#undef COMPARE

/* ---- gated ------------------------------------------------------------------------------------------------------- */

/* By activation, as tarn__act numbers them. */
static const struct {
    tarn__tile_fn value, grad;
} acts[TARN__ACT_COUNT] = {{NULL, NULL},
                           {tile_silu_f64, tile_silu_grad_f64},
                           {tile_gelu_f64, tile_gelu_grad_f64},
                           {tile_gelu_erf_f64, tile_gelu_erf_grad_f64},
                           {tile_relu_f64, tile_relu_grad_f64}};

static void tile_gated_f64(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
{
    const double *up = in[1];
    double *y = out[0];
    acts[params->act].value(n, in, out, params);
    for (int64_t i = 0; i < n; i++)
        y[i] *= up[i];
}

static void tile_gated_grad_f64(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
{
    const double *up = in[1], *g = in[2];
    double *ggate = out[0], *gup = out[1];
    acts[params->act].grad(n, (const void *[]){in[0], g}, &out[0], params);
    acts[params->act].value(n, in, &out[1], params);
    for (int64_t i = 0; i < n; i++) {
        ggate[i] *= up[i];
        gup[i] *= g[i];
    }
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define tile_sin_f64 guarded_sin_f64
#define tile_cos_f64 guarded_cos_f64
#define tile_sin_grad_f64 guarded_sin_grad_f64
#define tile_cos_grad_f64 guarded_cos_grad_f64
#define tile_div_grad_f64 guarded_div_grad_f64
#define tile_div_grad_b_f64 guarded_div_grad_b_f64

/* Rows of floats only have no i64 tile. */
#define INTEGER_FLOAT(name) NULL
#define INTEGER_NUMBER(name) tile_##name##_i64
#define ROW(name, i64) [TARN__K_##name] = {tile_##name##_f64, i64},
#define UNARY(name, dtypes, ...) ROW(name, INTEGER_##dtypes(name)) ROW(name##_grad, NULL)
#define BINARY(name, dtypes, ...) \
    ROW(name, INTEGER_##dtypes(name)) ROW(name##_grad, NULL) ROW(name##_grad_a, NULL) ROW(name##_grad_b, NULL)
#define COMPARE(name, value) ROW(name, tile_##name##_i64)

const tarn__f64_tile tarn__f64_tiles[TARN__KERNEL_COUNT] = {
#include "base/kernel/elementwise.def"
    ROW(where, tile_where_i64) ROW(where_grad, tile_where_grad_i64) ROW(gated, NULL) ROW(gated_grad, NULL)};
