/* matmul.h: a matrix product as cuBLASLt sees it, and the plans made for products. */
#ifndef TARN__CUDA_MATMUL_H
#define TARN__CUDA_MATMUL_H

#include <cublasLt.h>

#include "backends/cuda/runtime/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Everything a choice of algorithm depends on. Row-major c (M, N) = a (M, K) @ b (K, N) is column-major cᵀ = bᵀ aᵀ, so
 * cuBLASLt's first operand is our b and its second our a. Compared and written as bytes: no padding, unused fields are
 * 0. */
typedef struct tarn__cuda_gemm {
    int64_t m, n, k, batches;
    int64_t lda, ldb, ldc;              /* elements from one row (or column) to the next */
    int64_t batch_a, batch_b, batch_c;  /* elements from one batch to the next */
    int64_t ldx;                        /* of the epilogue's extra matrix */
    int64_t room;                       /* bytes of workspace that an algorithm may take */
    int32_t a_by_columns, b_by_columns; /* a's columns lie dense, not its rows */
    int32_t in_dtype, out_dtype;
    int32_t epilogue; /* cublasLtEpilogue_t */
    int32_t tf32;
    int32_t align_a, align_b, align_c; /* of addresses and lines, in bytes, up to 256 */
    int32_t accumulates;               /* beta is not 0 */
} tarn__cuda_gemm;

/* What is kept of a product: descriptors and the chosen algorithm. */
typedef struct tarn__cuda_matmul_plan {
    tarn__cuda_gemm product;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c; /* cuBLASLt's a and b */
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    bool is_slower; /* with gelu or its slope in the epilogue: than a plain product and a pass of its own */
    struct tarn__cuda_matmul_plan *next;
} tarn__cuda_matmul_plan;

/* The addresses of one call. */
typedef struct tarn__cuda_gemm_operands {
    const void *a, *b;
    void *c;
    const void *bias; /* read by the bias epilogues, written by the bias gradient's */
    void *extra;      /* gelu's argument: written forward, read backward */
    void *workspace;
} tarn__cuda_gemm_operands;

/* matmul_plan.c: the plan of a product on a device, made at first need; NULL: see tarn__cuda_failure(). */
tarn__cuda_matmul_plan *tarn__cuda_matmul_plan_of(int index, const tarn__cuda_gemm *product);
bool tarn__cuda_matmul_plan_run(int index, tarn__cuda_matmul_plan *plan, const tarn__cuda_gemm_operands *operands,
                                double alpha, double beta, cudaStream_t stream);

/* Runs one candidate. */
cublasStatus_t tarn__cuda_matmul_plan_try(int index, const tarn__cuda_matmul_plan *plan,
                                          const cublasLtMatmulAlgo_t *algorithm, size_t workspace,
                                          const tarn__cuda_gemm_operands *operands, double alpha, double beta,
                                          cudaStream_t stream);

/* matmul_tune.c: chooses plan->algorithm among `candidates` by measuring, or remembers an earlier choice. With gelu or
 * its slope in the epilogue, `plain` is the plan of the same product without it (NULL elsewhere), which is measured,
 * too, with a pass behind it. */
#define TARN__CUDA_WORKSPACE ((size_t)32 << 20)
#define TARN__CUDA_SMALL_WORKSPACE ((size_t)512 << 10)
void tarn__cuda_matmul_tune(int index, tarn__cuda_matmul_plan *plan, const tarn__cuda_matmul_plan *plain,
                            cublasLtMatmulHeuristicResult_t *candidates, int count);
bool tarn__cuda_matmul_recall(int index, tarn__cuda_matmul_plan *plan);
bool tarn__cuda_matmul_must_tune(const tarn__cuda_gemm *product);

/* matmul_naive.cu: products cuBLASLt does not do: integers, and mixtures of dtypes. */
void tarn__cuda_matmul_naive(const tarn__call *call);

#ifdef __cplusplus
}
#endif
#endif
