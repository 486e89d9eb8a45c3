#include "backends/cuda/elementwise/elementwise_loops.cuh"

EXPRESSION(swiglu_value, 2, 1, IN_F32, out[0] = M::silu(in[0]) * in[1];)
EXPRESSION(swiglu_grads, 3, 2, IN_F32, const real gate = in[0], up = in[1], g = in[2];
           out[0] = g * M::silu_grad(gate) * up; out[1] = g * M::silu(gate);)

void tarn__cuda_swiglu(tarn__kernel_row *rows)
{
    rows[TARN__K_swiglu] = tarn__kernel_row{run_floats<swiglu_value>, TARN__FLOATS, NULL};
    rows[TARN__K_swiglu_grad] = tarn__kernel_row{run_floats<swiglu_grads>, TARN__FLOATS, NULL};
}
