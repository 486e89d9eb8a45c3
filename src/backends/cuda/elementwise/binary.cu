/* binary.cu: elementwise operations of two operands, and gated activations. Gradients: binary_grad.cu, so that the two
 * compile in parallel. Bytes: 3 tensors. */
#include "backends/cuda/elementwise/elementwise_loops.cuh"

#define UNARY(name, ...)
#define COMPARE(name, ...)
/* One struct per row of elementwise.def. */
#define BINARY(name, dtypes, precision, slope_precision, value, gradient_a, gradient_b) \
    EXPRESSION(name##_value, 2, 1, precision, const real a = in[0], b = in[1]; out[0] = (value);)
#include "base/kernel/elementwise.def"
#undef BINARY

/* act(gate) · up, and both gradients in one pass: 3 and 5 tensors moved. Tails leave f32's range where their
 * products do not; silu's own value keeps them in f32. */
#define GATED(name, precision) \
    EXPRESSION(gated_##name, 2, 1, precision, out[0] = M::name(in[0]) * in[1];) \
    EXPRESSION(gated_##name##_grads, 3, 2, IN_F64, const real gate = in[0], up = in[1], g = in[2]; \
               out[0] = g * M::name##_grad(gate) * up; out[1] = g * M::name(gate);)
GATED(silu, IN_F32)
GATED(gelu, IN_F64)
GATED(gelu_erf, IN_F64)
#undef GATED
EXPRESSION(gated_relu, 2, 1, IN_F32, out[0] = (in[0] < 0 ? (real)0 : in[0]) * in[1];)
EXPRESSION(gated_relu_grads, 3, 2, IN_F32, const real gate = in[0], up = in[1], g = in[2];
           out[0] = (gate <= 0 ? (real)0 : g) * up; out[1] = g * (gate < 0 ? (real)0 : gate);)

static void run_gated(const tarn__call *call)
{
    switch (((const tarn__elementwise *)call->params)->act) {
    case TARN__ACT_GELU: run_floats<gated_gelu>(call); break;
    case TARN__ACT_GELU_ERF: run_floats<gated_gelu_erf>(call); break;
    case TARN__ACT_RELU: run_floats<gated_relu>(call); break;
    default: run_floats<gated_silu>(call); break;
    }
}

static void run_gated_grad(const tarn__call *call)
{
    switch (((const tarn__elementwise *)call->params)->act) {
    case TARN__ACT_GELU: run_floats<gated_gelu_grads>(call); break;
    case TARN__ACT_GELU_ERF: run_floats<gated_gelu_erf_grads>(call); break;
    case TARN__ACT_RELU: run_floats<gated_relu_grads>(call); break;
    default: run_floats<gated_silu_grads>(call); break;
    }
}

#define RUN_FLOAT run_floats
#define RUN_NUMBER run_any
#define MASK_FLOAT TARN__FLOATS
#define MASK_NUMBER TARN__ALL

void tarn__cuda_register_binary(tarn__kernel_row *rows)
{
#define BINARY(name, dtypes, ...) rows[TARN__K_##name] = tarn__row(RUN_##dtypes<name##_value>, MASK_##dtypes);
#include "base/kernel/elementwise.def"
    rows[TARN__K_gated] = tarn__row(run_gated, TARN__FLOATS);
    rows[TARN__K_gated_grad] = tarn__row(run_gated_grad, TARN__FLOATS);
}
