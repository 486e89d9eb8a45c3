/* f64_range.cl: the rows of elementwise.def a second time, in f64, as f64_value_tanh and so on: for f32 results whose
 * factors may have left the range of f32. */
#define is_mid_range f64_is_mid_range
#define scaled_square f64_scaled_square
#define EXP_GRAD f64_EXP_GRAD
#define EXP2_GRAD f64_EXP2_GRAD
#define SIGMOID f64_SIGMOID
#define SOFTPLUS_GRAD f64_SOFTPLUS_GRAD
#define SILU f64_SILU
#define SIGMOID_GRAD f64_SIGMOID_GRAD
#define SECH2 f64_SECH2
#define SOFTPLUS f64_SOFTPLUS
#define ERF_GRAD f64_ERF_GRAD
#define GELU f64_GELU
#define GELU_GRAD f64_GELU_GRAD
#define GELU_ERF f64_GELU_ERF
#define GELU_ERF_GRAD f64_GELU_ERF_GRAD
#define SILU_GRAD f64_SILU_GRAD
#define MOD f64_MOD
#define MOD_GRAD_B f64_MOD_GRAD_B
#define pow_grad_a f64_pow_grad_a
#define pow_grad_b f64_pow_grad_b
#define DIV_GRAD_B f64_DIV_GRAD_B

#undef C
#undef COMPUTES_F32
#define C double
#define COMPUTES_F64
#define ROW(name) f64_##name
#include "backends/opencl/elementwise/math.cl"

/* After math.cl, whose functions it calls; the blank line keeps includes from being sorted. */
#include "backends/opencl/elementwise/expressions.cl"
#undef ROW
#undef COMPUTES_F64
#undef C
#define COMPUTES_F32
#define C float

/* True for f32 results near the ends of the range, which f64 must verify. 0 times a number is 0, unless it came out as
 * NaN; and a large factor may have brought back what had left the range. The last operands scale a result: the
 * gradient, or x. */
static bool needs_f64(float y, float a, float b, float c)
{
    const bool is_normal = fabs(y) >= 1e-30f && fabs(y) <= 1e36f;
#if INPUTS > 2
    return !(is_normal && fabs(b) <= 1e3f && fabs(c) <= 1e3f) &&
           ((b != 0 && c != 0) || y != y || fabs(b) > 1e3f || fabs(c) > 1e3f);
#else
    const float scale = INPUTS > 1 ? b : a;
    return !(is_normal && fabs(scale) <= 1e6f) && (scale != 0 || y != y);
#endif
}
