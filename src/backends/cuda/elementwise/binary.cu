/* binary.cu: elementwise operations of two operands, and swiglu. Gradients: binary_grad.cu, so that the two compile in
 * parallel. Bytes: 3 tensors. */
#include "backends/cuda/elementwise/elementwise_loops.cuh"

#define UNARY(name, ...)
#define COMPARE(name, ...)
/* One struct per row of elementwise.def. */
#define BINARY(name, dtypes, precision, slope_precision, value, gradient_a, gradient_b) \
    EXPRESSION(name##_value, 2, 1, precision, const real a = in[0], b = in[1]; out[0] = (value);)
#include "base/kernel/elementwise.def"
#undef BINARY

/* silu(gate) · up, and both gradients in one pass: 3 and 5 tensors moved. */
EXPRESSION(swiglu_value, 2, 1, IN_F32, out[0] = M::silu(in[0]) * in[1];)
EXPRESSION(swiglu_grads, 3, 2, IN_F32, const real gate = in[0], up = in[1], g = in[2];
           out[0] = g * M::silu_grad(gate) * up; out[1] = g * M::silu(gate);)

#define RUN_FLOAT run_floats
#define RUN_NUMBER run_any
#define MASK_FLOAT TARN__FLOATS
#define MASK_NUMBER TARN__ALL

void tarn__cuda_register_binary(tarn__kernel_row *rows)
{
#define BINARY(name, dtypes, ...) rows[TARN__K_##name] = tarn__row(RUN_##dtypes<name##_value>, MASK_##dtypes);
#include "base/kernel/elementwise.def"
    rows[TARN__K_swiglu] = tarn__row(run_floats<swiglu_value>, TARN__FLOATS);
    rows[TARN__K_swiglu_grad] = tarn__row(run_floats<swiglu_grads>, TARN__FLOATS);
}
