/* fused.c: products with what goes before or after them, made of their parts. */
#include "backends/opencl/runtime/opencl.h"
#include "base/kernel/compose.h"

static size_t scratch_of(tarn__kernel kernel, const tarn__call *call)
{
    const tarn__kernel_row *row = &tarn__cl_kernel_table()[kernel];
    return row->scratch ? row->scratch(call) : 0;
}

static void run(tarn__kernel kernel, tarn__call *call)
{
    call->scratch_bytes = scratch_of(kernel, call);
    tarn__cl_kernel_table()[kernel].run(call);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static size_t gelu_scratch(const tarn__call *call)
{
    tarn__call product = tarn__compose_matmul(call, 3, call->out[1]);
    return scratch_of(TARN__K_matmul, &product);
}

static void kernel_matmul_gelu(const tarn__call *call)
{
    tarn__elementwise none = {0};
    tarn__call product = tarn__compose_matmul(call, 3, call->out[1]),
               gelu = tarn__compose_elementwise(call, &none, call->out[1], NULL, call->out[0]);
    run(TARN__K_matmul, &product);
    run(TARN__K_gelu, &gelu);
}

static size_t gelu_grad_scratch(const tarn__call *call)
{
    tarn__call product = tarn__compose_matmul(call, 2, call->out[0]);
    return scratch_of(TARN__K_matmul, &product);
}

static void kernel_matmul_gelu_grad(const tarn__call *call)
{
    tarn__elementwise none = {0};
    tarn__call product = tarn__compose_matmul(call, 2, call->out[0]),
               slope = tarn__compose_elementwise(call, &none, call->in[2], call->out[0], call->out[0]);
    run(TARN__K_matmul, &product);
    run(TARN__K_gelu_grad, &slope);
}

static size_t sums_scratch(const tarn__call *call)
{
    tarn__bias_grad_call s;
    tarn__compose_bias_grad(&s, call);
    tarn__call product = tarn__compose_matmul(call, 2, call->out[0]);
    size_t first = scratch_of(TARN__K_matmul, &product), second = scratch_of(TARN__K_sum, &s.call);
    return first > second ? first : second;
}

/* The sums first: where they are none of this device's, nothing has been added to the product's result yet. */
static void kernel_matmul_sums(const tarn__call *call)
{
    tarn__bias_grad_call s;
    tarn__compose_bias_grad(&s, call);
    tarn__call product = tarn__compose_matmul(call, 2, call->out[0]);
    run(TARN__K_sum, &s.call);
    run(TARN__K_matmul, &product);
}

void tarn__cl_register_fused(tarn__kernel_row *rows)
{
    rows[TARN__K_matmul_gelu] = (tarn__kernel_row){kernel_matmul_gelu, TARN__FLOATS, gelu_scratch};
    rows[TARN__K_matmul_gelu_grad] = (tarn__kernel_row){kernel_matmul_gelu_grad, TARN__FLOATS, gelu_grad_scratch};
    rows[TARN__K_matmul_bias_grad] = (tarn__kernel_row){kernel_matmul_sums, TARN__NUMBERS, sums_scratch};
}
