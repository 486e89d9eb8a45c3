/* f64_range.cl: the rows of elementwise.def once more, in f64, as far_value_tanh and so on: for results of rows in f32
 * whose factors may have left its range. */
#define is_tame far_is_tame
#define scaled_square far_scaled_square
#define EXP_GRAD far_EXP_GRAD
#define EXP2_GRAD far_EXP2_GRAD
#define SIGMOID far_SIGMOID
#define SOFTPLUS_GRAD far_SOFTPLUS_GRAD
#define SILU far_SILU
#define SIGMOID_GRAD far_SIGMOID_GRAD
#define SECH2 far_SECH2
#define SOFTPLUS far_SOFTPLUS
#define ERF_GRAD far_ERF_GRAD
#define GELU far_GELU
#define GELU_GRAD far_GELU_GRAD
#define GELU_ERF far_GELU_ERF
#define GELU_ERF_GRAD far_GELU_ERF_GRAD
#define SILU_GRAD far_SILU_GRAD
#define MOD far_MOD
#define MOD_GRAD_B far_MOD_GRAD_B
#define power_slope_a far_power_slope_a
#define power_slope_b far_power_slope_b
#define DIV_GRAD_B far_DIV_GRAD_B

#undef C
#undef COMPUTES_F32
#define C double
#define COMPUTES_F64
#define ROW(name) far_##name
#include "backends/opencl/elementwise/expressions.cl"
#include "backends/opencl/elementwise/math.cl"
#undef ROW
#undef COMPUTES_F64
#undef C
#define COMPUTES_F32
#define C float

/* f32 results that f64 must look at: what is near the ends of the range. 0 times a number is 0, but not where it came
 * out as NaN; and a large factor may have brought back what had left the range before. The last operands scale a
 * result: the gradient that arrives, or x. */
static bool needs_care(float y, float a, float b, float c)
{
    const bool is_plain = fabs(y) >= 1e-30f && fabs(y) <= 1e36f;
#if INPUTS > 2
    return !(is_plain && fabs(b) <= 1e3f && fabs(c) <= 1e3f) &&
           ((b != 0 && c != 0) || y != y || fabs(b) > 1e3f || fabs(c) > 1e3f);
#else
    const float scale = INPUTS > 1 ? b : a;
    return !(is_plain && fabs(scale) <= 1e6f) && (scale != 0 || y != y);
#endif
}
