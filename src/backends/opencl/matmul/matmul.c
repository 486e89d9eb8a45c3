/* matmul.c: the matmul kernel and its fused forms: tensors described as a GEMM (gemm.h).
 *
 * matmul + GELU, matmul + GELU gradient and matmul + bias gradient are composed of kernels of this backend: one call
 * for the core, whose scratch is the larger of the parts'. */
#include "backends/opencl/matmul/gemm.h"
#include "base/kernel/compose.h"

/* The nest over all axes but the last two, of c, a and b; broadcast axes have stride 0. */
static tarn__nest batches_of(const tarn__view *c, const tarn__view *a, const tarn__view *b)
{
    tarn__view matrix[3] = {*c, *a, *b};
    const tarn__view *views[3];
    for (int i = 0; i < 3; i++) {
        matrix[i].rank -= 2;
        views[i] = &matrix[i];
    }
    tarn__nest nest = {0};
    tarn__nest_make(&nest, 3, views);
    return nest;
}

/* c (.., m, n) = alpha · a (.., m, k) · b (.., k, n) + beta · c + bias (n), or a bias of one element. */
static tarn__cl_gemm describe(const tarn__call *call)
{
    const tarn__view *a = call->in[0], *b = call->in[1], *c = call->out[0],
                     *bias = call->inputs > 2 ? call->in[2] : NULL;
    const tarn__matmul *params = call->params;
    tarn__cl_gemm p = {
        .batches = batches_of(c, a, b), .a = *a, .b = *b, .c = *c, .alpha = params->alpha, .beta = params->beta};
    p.sizes = (tarn__cl_gemm_sizes){.m = c->shape[c->rank - 2],
                                    .n = c->shape[c->rank - 1],
                                    .k = a->shape[a->rank - 1],
                                    .splits = 1,
                                    .c_row_stride = c->stride[c->rank - 2],
                                    .c_col_stride = c->stride[c->rank - 1],
                                    .a_row_stride = a->stride[a->rank - 2],
                                    .a_col_stride = a->stride[a->rank - 1],
                                    .b_row_stride = b->stride[b->rank - 2],
                                    .b_col_stride = b->stride[b->rank - 1]};
    p.sizes.part = p.sizes.k;
    if (bias) {
        p.bias = *bias;
        p.sizes.bias_col_stride = bias->rank > 0 && bias->shape[bias->rank - 1] > 1 ? bias->stride[bias->rank - 1] : 0;
    }
    return p;
}

static size_t matmul_scratch(const tarn__call *call)
{
    tarn__cl_gemm p = describe(call);
    return tarn__cl_gemm_scratch(call, &p);
}

static void kernel_matmul(const tarn__call *call)
{
    tarn__cl_gemm p = describe(call);
    tarn__cl_gemm_run(call, &p, 0);
}

/* ---- composed ---------------------------------------------------------------------------------------------------- */

/* Scratch of a kernel of the table for a composed call. */
static size_t scratch_of(tarn__kernel kernel, const tarn__call *call)
{
    const tarn__kernel_row *row = &tarn__cl_kernel_table()[kernel];
    return row->scratch ? row->scratch(call) : 0;
}

/* Runs a kernel of the table as a part; parts share the scratch, one after the other. */
static void run(tarn__kernel kernel, tarn__call *call)
{
    call->scratch_bytes = scratch_of(kernel, call);
    tarn__cl_kernel_table()[kernel].run(call);
}

/* out[0] = gelu(out[1]), out[1] = a · b + bias: backward needs both. */
static size_t gelu_scratch(const tarn__call *call)
{
    tarn__call matmul = tarn__compose_matmul(call, 3, call->out[1]);
    return scratch_of(TARN__K_matmul, &matmul);
}

static void kernel_matmul_gelu(const tarn__call *call)
{
    tarn__elementwise none = {0};
    tarn__call matmul = tarn__compose_matmul(call, 3, call->out[1]),
               gelu = tarn__compose_elementwise(call, &none, call->out[1], NULL, call->out[0]);
    run(TARN__K_matmul, &matmul);
    run(TARN__K_gelu, &gelu);
}

/* out[0] = (a · b) · gelu'(in[2]), in place after the matmul. */
static size_t gelu_grad_scratch(const tarn__call *call)
{
    tarn__call matmul = tarn__compose_matmul(call, 2, call->out[0]);
    return scratch_of(TARN__K_matmul, &matmul);
}

static void kernel_matmul_gelu_grad(const tarn__call *call)
{
    tarn__elementwise none = {0};
    tarn__call matmul = tarn__compose_matmul(call, 2, call->out[0]),
               grad = tarn__compose_elementwise(call, &none, call->in[2], call->out[0], call->out[0]);
    run(TARN__K_matmul, &matmul);
    run(TARN__K_gelu_grad, &grad);
}

static size_t bias_grad_scratch(const tarn__call *call)
{
    tarn__bias_grad_call s;
    tarn__compose_bias_grad(&s, call);
    tarn__call matmul = tarn__compose_matmul(call, 2, call->out[0]);
    size_t first = scratch_of(TARN__K_matmul, &matmul), second = scratch_of(TARN__K_sum, &s.call);
    return first > second ? first : second;
}

/* The bias gradient first: if the device declines it, the matmul has not accumulated into its output yet. */
static void kernel_matmul_bias_grad(const tarn__call *call)
{
    tarn__bias_grad_call s;
    tarn__compose_bias_grad(&s, call);
    tarn__call matmul = tarn__compose_matmul(call, 2, call->out[0]);
    run(TARN__K_sum, &s.call);
    run(TARN__K_matmul, &matmul);
}

void tarn__cl_register_matmul(tarn__kernel_row *rows)
{
    rows[TARN__K_matmul] = tarn__row(kernel_matmul, TARN__NUMBERS, matmul_scratch);
    rows[TARN__K_matmul_gelu] = tarn__row(kernel_matmul_gelu, TARN__FLOATS, gelu_scratch);
    rows[TARN__K_matmul_gelu_grad] = tarn__row(kernel_matmul_gelu_grad, TARN__FLOATS, gelu_grad_scratch);
    rows[TARN__K_matmul_bias_grad] = tarn__row(kernel_matmul_bias_grad, TARN__NUMBERS, bias_grad_scratch);
}
