/* unary.cu: elementwise operations of one operand, and their gradients. Bytes: 2 and 3 tensors. */
#include "backends/cuda/elementwise/elementwise_loops.cuh"

/* Two structs per row of elementwise.def: the value, and its gradient as a function of x, y and g. */
#define UNARY(name, dtypes, precision, slope_precision, value, gradient) \
    EXPRESSION(name##_value, 1, 1, precision, const real x = in[0]; out[0] = (value);) \
    EXPRESSION(name##_grad, 2, 1, slope_precision, const real x = in[0], g = in[1], y = (value); (void)x; (void)y; \
               out[0] = (gradient);)
#define BINARY(name, ...)
#define COMPARE(name, ...)
#include "base/kernel/elementwise.def"
#undef UNARY

/* bf16 without divisions: every factor moves the product in the same direction, so it leaves the range only if the
 * result does. */
template <> __device__ __forceinline__ void rsqrt_grad::run<approx_math>(const float *in, float *out, float, float)
{
    const float y = approx_math::inverse_sqrt(in[0]);
    out[0] = -0.5f * in[1] * y * y * y;
}

/* FLOAT and NUMBER of elementwise.def: which runner, and which dtypes. */
#define RUN_FLOAT run_floats
#define RUN_NUMBER run_any
#define MASK_FLOAT TARN__FLOATS
#define MASK_NUMBER TARN__ALL

/* Gradients are for floats only, whatever the operation accepts. */
void tarn__cuda_register_unary(tarn__kernel_row *rows)
{
#define UNARY(name, dtypes, ...) \
    rows[TARN__K_##name] = tarn__row(RUN_##dtypes<name##_value>, MASK_##dtypes); \
    rows[TARN__K_##name##_grad] = tarn__row(run_floats<name##_grad>, TARN__FLOATS);
#include "base/kernel/elementwise.def"
}
