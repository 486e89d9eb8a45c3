/* matmul.c: the matmul kernel: tensors described as a GEMM (gemm.h); its fused forms are composed
 * (base/kernel/compose.h). */
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

#define COMPOSED(name) \
    static tarn__plan_status prepare_##name(const tarn__call *call, tarn__plan *plan) \
    { \
        return tarn__compose_prepare(tarn__cl_kernel_table(), TARN__K_##name, call, plan); \
    } \
    static void kernel_##name(const tarn__call *call) \
    { \
        tarn__compose_run(TARN__K_##name, call); \
    }
COMPOSED(matmul_gelu)
COMPOSED(matmul_gelu_grad)
COMPOSED(matmul_bias_grad)

void tarn__cl_register_matmul(tarn__kernel_row *rows)
{
    rows[TARN__K_matmul] = tarn__row(kernel_matmul, TARN__NUMBERS, matmul_scratch);
    rows[TARN__K_matmul_gelu] = tarn__row_planned(prepare_matmul_gelu, kernel_matmul_gelu, TARN__FLOATS);
    rows[TARN__K_matmul_gelu_grad] = tarn__row_planned(prepare_matmul_gelu_grad, kernel_matmul_gelu_grad, TARN__FLOATS);
    rows[TARN__K_matmul_bias_grad] =
        tarn__row_planned(prepare_matmul_bias_grad, kernel_matmul_bias_grad, TARN__NUMBERS);
}
