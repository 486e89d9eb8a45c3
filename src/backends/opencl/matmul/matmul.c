/* matmul.c: matrix products of tensors: what they are to gemm.h. */
#include "backends/opencl/matmul/gemm.h"

static tarn__nest batches_of(const tarn__view *c, const tarn__view *a, const tarn__view *b)
{
    tarn__view held[3] = {*c, *a, *b};
    const tarn__view *views[3];
    for (int i = 0; i < 3; i++) {
        held[i].rank -= 2;
        views[i] = &held[i];
    }
    tarn__nest nest = {0};
    tarn__nest_make(&nest, 3, views);
    return nest;
}

static tarn__cl_gemm product_of(const tarn__call *call)
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
    tarn__cl_gemm p = product_of(call);
    return tarn__cl_gemm_scratch(call, &p);
}

static void kernel_matmul(const tarn__call *call)
{
    tarn__cl_gemm p = product_of(call);
    tarn__cl_gemm_run(call, &p, 0);
}

void tarn__cl_register_matmul(tarn__kernel_row *rows)
{
    rows[TARN__K_matmul] = (tarn__kernel_row){kernel_matmul, TARN__NUMBERS, matmul_scratch};
}
