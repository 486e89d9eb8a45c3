/* matmul_wgmma.c: the row of matmul_gelu_grad for our own kernel on compute capability 9.0 (gemm_wgmma_grad.cu), for
 * calls with column sums. It runs where autotuning found it faster than the library plus a sum (matmul_tune.c). */
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/matmul/matmul.h"
#include "base/kernel/compose.h"

tarn__cuda_wgmma_wanted tarn__cuda_gemm_wgmma_wanted(void)
{
    const char *text = getenv("TARN_CUDA_GEMM");
    return !text                           ? TARN__CUDA_WGMMA_FASTER
           : strcmp(text, "cublaslt") == 0 ? TARN__CUDA_WGMMA_NEVER
           : strcmp(text, "wgmma") == 0    ? TARN__CUDA_WGMMA_ALWAYS
                                           : TARN__CUDA_WGMMA_FASTER;
}

static bool fits(const tarn__call *call)
{
    const tarn__matmul *params = call->params;
    const tarn__view *sums = call->outputs > 1 ? call->out[1] : NULL;
    tarn__cuda_gemm product;
    return sums && sums->stride[0] == 1 && (sums->dtype == TARN_BF16 || sums->dtype == TARN_F32) &&
           tarn__cuda_gemm_wgmma_wanted() != TARN__CUDA_WGMMA_NEVER && params->alpha == 1 && params->beta == 0 &&
           tarn__cuda_fused_gemm_of(call, TARN__K_matmul_gelu_grad, &product) &&
           tarn__cuda_gemm_wgmma_fits(call->device, &product);
}

/* On a meta device, where nothing is tuned: the larger scratch of this row and the composed one, unless the choice is
 * known. */
static tarn__plan_status count_scratch(const tarn__call *call, tarn__plan *plan, const tarn__cuda_gemm *product)
{
    const size_t own = tarn__cuda_gemm_wgmma_workspace(product);
    bool is_wgmma = tarn__cuda_gemm_wgmma_wanted() == TARN__CUDA_WGMMA_ALWAYS;
    if (is_wgmma || tarn__cuda_matmul_knows_wgmma(call->device, product, &is_wgmma)) {
        plan->scratch_bytes = own;
        return is_wgmma ? TARN__PLAN_READY : TARN__PLAN_DECLINED;
    }
    tarn__plan_status status = tarn__compose_prepare(tarn__cuda_rows(), TARN__K_matmul_gelu_grad, call, plan);
    plan->scratch_bytes = own > plan->scratch_bytes ? own : plan->scratch_bytes;
    return status;
}

/* The job is the GEMM: all but the addresses. */
static tarn__plan_status prepare(const tarn__call *call, tarn__plan *plan)
{
    tarn__cuda_gemm *product = tarn__plan_reserve(plan, sizeof(*product));
    if (!product || !tarn__cuda_fused_gemm_of(call, TARN__K_matmul_gelu_grad, product))
        return product ? TARN__PLAN_DECLINED : TARN__PLAN_FAILED;
    if (call->is_meta)
        return count_scratch(call, plan, product);
    plan->scratch_bytes = tarn__cuda_gemm_wgmma_workspace(product);
    if (tarn__cuda_gemm_wgmma_wanted() == TARN__CUDA_WGMMA_ALWAYS)
        return TARN__PLAN_READY;
    const tarn__cuda_matmul_plan *found = tarn__cuda_matmul_plan_of(call->device, product);
    return found && found->is_wgmma ? TARN__PLAN_READY : TARN__PLAN_DECLINED;
}

static void kernel_wgmma(const tarn__call *call)
{
    const tarn__cuda_gemm *product = tarn__plan_job(call->plan);
    tarn__cuda_gemm_operands operands = tarn__cuda_fused_operands_of(call, TARN__K_matmul_gelu_grad);
    operands.sums = tarn__view_at(call->out[1]);
    operands.sums_dtype = call->out[1]->dtype;
    if (!tarn__cuda_gemm_wgmma_enqueue(call->device, product, &operands, call->stream)) {
        tarn__cuda_fail("matmul failed: the kernel could not be launched");
        tarn__cuda_set_failed(call->device);
    }
}

void tarn__cuda_add_matmul_wgmma(tarn__kernel_row *rows)
{
    static tarn__kernel_row next;
    tarn__kernel_row row = tarn__row_fits(tarn__row_planned(prepare, kernel_wgmma, TARN__BIT(TARN_BF16)), fits);
    tarn__push_row(rows, TARN__K_matmul_gelu_grad, tarn__row_named(row, "wgmma"), &next);
}
