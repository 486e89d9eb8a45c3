/* binary_grad.cu: gradients of elementwise operations of two operands: both in one pass (5 tensors moved), or one of
 * them (4). */
#include "backends/cuda/elementwise/elementwise_loops.cuh"

#define OPERANDS \
    const real a = in[0], b = in[1], g = in[2]; \
    (void)a; \
    (void)b;
/* Some expressions use neither a nor b, hence the casts. Three structs per row of elementwise.def: both gradients, and
 * each alone. */
#define UNARY(name, ...)
#define COMPARE(name, ...)
#define BINARY(name, dtypes, precision, slope_precision, value, gradient_a, gradient_b) \
    EXPRESSION(name##_grads, 3, 2, slope_precision, OPERANDS out[0] = (gradient_a); out[1] = (gradient_b);) \
    EXPRESSION(name##_grad_a, 3, 1, slope_precision, OPERANDS out[0] = (gradient_a);) \
    EXPRESSION(name##_grad_b, 3, 1, slope_precision, OPERANDS out[0] = (gradient_b);)
#include "base/kernel/elementwise.def"
#undef BINARY

/* Three rows per operation: both gradients, or the one that is needed. */
void tarn__cuda_register_binary_grad(tarn__kernel_row *rows)
{
#define BINARY(name, ...) \
    rows[TARN__K_##name##_grad] = tarn__row(run_floats<name##_grads>, TARN__FLOATS); \
    rows[TARN__K_##name##_grad_a] = tarn__row(run_floats<name##_grad_a>, TARN__FLOATS); \
    rows[TARN__K_##name##_grad_b] = tarn__row(run_floats<name##_grad_b>, TARN__FLOATS);
#include "base/kernel/elementwise.def"
}
