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

/* A call described for launch. */
typedef struct job {
    tarn__nest batches;
    tarn__cl_gemm_plan plan;
} job;

/* c (.., m, n) = alpha · a (.., m, k) · b (.., k, n) + beta · c + bias (n), or a bias of one element. */
static tarn__cl_gemm gemm_of(const tarn__call *call, const tarn__nest *batches)
{
    const tarn__view *bias = call->inputs > 2 ? call->in[2] : NULL;
    const tarn__matmul *params = call->params;
    tarn__cl_gemm p = {.batches = *batches,
                       .a = *call->in[0],
                       .b = *call->in[1],
                       .c = *call->out[0],
                       .alpha = params->alpha,
                       .beta = params->beta};
    if (bias)
        p.bias = *bias;
    return p;
}

static tarn__cl_gemm_sizes sizes_of(const tarn__call *call)
{
    const tarn__view *a = call->in[0], *b = call->in[1], *c = call->out[0],
                     *bias = call->inputs > 2 ? call->in[2] : NULL;
    const int64_t k = a->shape[a->rank - 1];
    return (tarn__cl_gemm_sizes){.m = c->shape[c->rank - 2],
                                 .n = c->shape[c->rank - 1],
                                 .k = k,
                                 .splits = 1,
                                 .part = k,
                                 .c_row_stride = c->stride[c->rank - 2],
                                 .c_col_stride = c->stride[c->rank - 1],
                                 .a_row_stride = a->stride[a->rank - 2],
                                 .a_col_stride = a->stride[a->rank - 1],
                                 .b_row_stride = b->stride[b->rank - 2],
                                 .b_col_stride = b->stride[b->rank - 1],
                                 .bias_col_stride = bias && bias->rank > 0 && bias->shape[bias->rank - 1] > 1
                                                        ? bias->stride[bias->rank - 1]
                                                        : 0};
}

static tarn__plan_status prepare_matmul(const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    j->batches = batches_of(call->out[0], call->in[0], call->in[1]);
    tarn__cl_gemm p = gemm_of(call, &j->batches);
    p.sizes = sizes_of(call);
    tarn__plan_status status = tarn__cl_gemm_prepare(call, &p, &j->plan);
    plan->scratch_bytes = j->plan.scratch_bytes;
    return status;
}

static void kernel_matmul(const tarn__call *call)
{
    const job *j = tarn__plan_job(call->plan);
    const tarn__cl_gemm p = gemm_of(call, &j->batches);
    tarn__cl_gemm_run(call, &p, &j->plan, 0);
}

/* ---- composed ---------------------------------------------------------------------------------------------------- */

TARN__COMPOSED(matmul_gelu, tarn__cl_kernel_table())
TARN__COMPOSED(matmul_gelu_grad, tarn__cl_kernel_table())
TARN__COMPOSED(matmul_bias_grad, tarn__cl_kernel_table())

void tarn__cl_register_matmul(tarn__kernel_row *rows)
{
    rows[TARN__K_matmul] = tarn__row_planned(prepare_matmul, kernel_matmul, TARN__NUMBERS);
    rows[TARN__K_matmul_gelu] =
        tarn__row_planned(prepare_composed_matmul_gelu, kernel_composed_matmul_gelu, TARN__FLOATS);
    rows[TARN__K_matmul_gelu_grad] =
        tarn__row_planned(prepare_composed_matmul_gelu_grad, kernel_composed_matmul_gelu_grad, TARN__FLOATS);
    rows[TARN__K_matmul_bias_grad] =
        tarn__row_planned(prepare_composed_matmul_bias_grad, kernel_composed_matmul_bias_grad, TARN__NUMBERS);
}
