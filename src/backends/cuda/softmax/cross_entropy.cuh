/* cross_entropy.cuh: shared by cross entropy and its gradient: rows of logits (rows, classes), and which targets
 * count. */
#ifndef TARN__CUDA_CROSS_ENTROPY_CUH
#define TARN__CUDA_CROSS_ENTROPY_CUH

#include "backends/cuda/common/rows.cuh"

enum { LOGITS, TARGET, LSE, ROW_OPERANDS };

#define MAX_THREADS 256             /* per row */
#define LONG_ROW ((int64_t)1 << 30) /* from this length on, 32-bit indices do not suffice */

/* Targets equal to `ignore` have a loss of 0; all others must be in 0 … classes - 1. */
struct target_rule {
    int64_t ignore;
    bool has_ignore, is_long;
};

/* From the call's parameters and the targets' dtype. */
static inline target_rule targets_of(const tarn__call *call)
{
    const tarn__cross_entropy *params = (const tarn__cross_entropy *)call->params;
    return target_rule{params->ignore, params->has_ignore != 0, call->in[1]->dtype == TARN_I64};
}

__device__ __forceinline__ bool is_ignored(const target_rule &rule, int64_t target)
{
    return rule.has_ignore && target == rule.ignore;
}

/* True for a valid class that is not ignored. */
__device__ __forceinline__ bool counts(const target_rule &rule, int64_t target, int64_t classes)
{
    return !is_ignored(rule, target) && target >= 0 && target < classes;
}

/* The row's target class. */
template <int N>
__device__ __forceinline__ int64_t target_of(const row_set<N> &rows, const target_rule &rule, const int64_t *offset)
{
    return index_at(rows.operand[TARGET].base, rule.is_long, offset[TARGET]);
}

/* One logit in f64. */
template <int N> __device__ __forceinline__ double logit_at(const row_set<N> &rows, const int64_t *offset, int64_t at)
{
    const row_operand &o = rows.operand[LOGITS];
    return load_any<double>(o.base, o.dtype, offset[LOGITS] + at * o.along);
}

/* 64 bytes per thread, or 8 elements. */
template <typename R>
constexpr int vecs_in_flight = sizeof(typename R::real) == 8 ? 4
                               : sizeof(typename R::raw) < 8 ? 8
                                                             : 64 / (int)sizeof(typename R::raw);

/* A view of one value per row as (rows, 1). */
static inline tarn__view as_column(const tarn__view *view)
{
    tarn__view column = *view;
    column.rank = 2;
    column.shape[1] = 1;
    column.stride[1] = 0;
    return column;
}

/* cross_entropy.cu, cross_entropy_grad.cu, cross_entropy_fused.cu */
void tarn__cuda_run_cross_entropy(const tarn__call *call);
void tarn__cuda_run_cross_entropy_grad(const tarn__call *call);
tarn__plan_status tarn__cuda_prepare_cross_entropy_fused(const tarn__call *call, tarn__plan *plan);
void tarn__cuda_run_cross_entropy_fused(const tarn__call *call);
tarn__plan_status tarn__cuda_prepare_cross_entropy_composed(const tarn__call *call, tarn__plan *plan);
void tarn__cuda_run_cross_entropy_composed(const tarn__call *call);

#endif
