/* matmul.h: GEMMs as cuBLASLt sees them, and the cache of plans. */
#ifndef TARN__CUDA_MATMUL_H
#define TARN__CUDA_MATMUL_H

#include <cublasLt.h>

#include "backends/cuda/runtime/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Everything the choice of an algorithm depends on. Row-major c (M, N) = a (M, K) @ b (K, N) is column-major cᵀ = bᵀ
 * aᵀ, so cuBLASLt's first operand is our b and its second our a. Compared, and written to tuning files, as bytes: no
 * padding, unused fields are 0. */
typedef struct tarn__cuda_gemm {
    int64_t m, n, k, batches;
    int64_t lda, ldb, ldc;              /* leading dimensions, in elements */
    int64_t batch_a, batch_b, batch_c;  /* batch strides, in elements */
    int64_t ldx;                        /* of the epilogue's auxiliary matrix */
    int64_t max_workspace;              /* bytes of workspace an algorithm may use */
    int32_t a_transposed, b_transposed; /* columns contiguous instead of rows */
    int32_t in_dtype, out_dtype;
    int32_t epilogue; /* cublasLtEpilogue_t */
    int32_t tf32;
    int32_t align_a, align_b, align_c; /* of addresses and leading dimensions, in bytes, at most 256 */
    int32_t accumulates;               /* beta is not 0 */
} tarn__cuda_gemm;

/* Descriptors and the chosen algorithm of one GEMM; owned by the cache of its device. */
typedef struct tarn__cuda_matmul_plan {
    tarn__cuda_gemm product;
    cublasLtHandle_t handle; /* of its device; borrowed */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c; /* cuBLASLt's a and b */
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    bool is_slower; /* GELU epilogues: slower than an unfused GEMM plus an elementwise pass */
    bool is_wgmma;  /* GELU's gradient with column sums: our own kernel is faster than either and a sum */
    struct tarn__cuda_matmul_plan *next;
} tarn__cuda_matmul_plan;

/* Addresses of one call. */
typedef struct tarn__cuda_gemm_operands {
    const void *a, *b;
    void *c;
    const void *bias; /* read by bias epilogues, written by the bias-gradient epilogue */
    void *aux;        /* GELU's input: written forward, read backward */
    void *workspace;
    void *sums;            /* our own kernel: column sums of GELU's gradient */
    tarn_dtype sums_dtype; /* bf16 or f32 */
} tarn__cuda_gemm_operands;

/* matmul_plan.c: the plan of a GEMM on a device, created on first use, borrowed from the cache. NULL: see
 * tarn__cuda_failure(). */
const tarn__cuda_matmul_plan *tarn__cuda_matmul_plan_of(int index, const tarn__cuda_gemm *product);
/* Guards the plans' descriptors, which hold addresses of the call that is being enqueued. */
void tarn__cuda_matmul_lock(void);
void tarn__cuda_matmul_unlock(void);

/* For meta devices: bytes of workspace of the GEMM's plan; of the largest candidate where it would have to be tuned.
 * Nothing is tuned, run or cached. False if the fused GEMM is known to be slower than a composed one; a fused GEMM that
 * is not known yet counts the larger of both. */
bool tarn__cuda_matmul_workspace_of(int index, const tarn__cuda_gemm *product, size_t *workspace);
/* The same for the choice of our own kernel: false if it is not known yet, else sets it. */
bool tarn__cuda_matmul_knows_wgmma(int index, const tarn__cuda_gemm *product, bool *is_wgmma);

/* matmul.c: enqueues a GEMM with the plan's descriptors and one of its algorithms. The caller holds the lock, or is the
 * only one that knows the plan. */
cublasStatus_t tarn__cuda_matmul_enqueue(const tarn__cuda_matmul_plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                                         size_t workspace, const tarn__cuda_gemm_operands *operands, double alpha,
                                         double beta, cudaStream_t stream);

/* matmul_tune.c: chooses plan->algorithm among `candidates` by timing them, or recalls an earlier choice. For a GELU
 * epilogue, `unfused` is the plan without it (else NULL), timed too, with an elementwise pass after it. */
#define TARN__CUDA_WORKSPACE ((size_t)32 << 20)
#define TARN__CUDA_SMALL_WORKSPACE ((size_t)512 << 10)
void tarn__cuda_matmul_tune(int index, tarn__cuda_matmul_plan *plan, const tarn__cuda_matmul_plan *unfused,
                            cublasLtMatmulHeuristicResult_t *candidates, int count);
bool tarn__cuda_matmul_recall(int index, tarn__cuda_matmul_plan *plan, bool is_meta);
bool tarn__cuda_matmul_must_tune(const tarn__cuda_gemm *product);

/* matmul.c: GEMMs of a call that runs several, of differing shape or alignment: a plan has no room for all of theirs.
 * The call's prepare() asks for the scratch of each, which finds, and perhaps tunes, the library's plan; its run() then
 * runs them. False: see tarn__cuda_failure(). */
bool tarn__cuda_gemm_scratch(const tarn__call *gemm, size_t *bytes);
void tarn__cuda_gemm_run(tarn__call *gemm);

/* matmul.c: the GEMM of a call with an epilogue; false if the operands do not fit one. And its addresses. */
bool tarn__cuda_fused_gemm_of(const tarn__call *call, tarn__kernel kernel, tarn__cuda_gemm *product);
tarn__cuda_gemm_operands tarn__cuda_fused_operands_of(const tarn__call *call, tarn__kernel kernel);

/* gemm_wgmma_grad.cu: our own kernel for GELU's gradient with column sums on compute capability 9.0. enqueue(): false
 * if it could not be launched. */
bool tarn__cuda_gemm_wgmma_fits(int index, const tarn__cuda_gemm *product);
size_t tarn__cuda_gemm_wgmma_workspace(const tarn__cuda_gemm *product);
bool tarn__cuda_gemm_wgmma_enqueue(int index, const tarn__cuda_gemm *product, const tarn__cuda_gemm_operands *operands,
                                   cudaStream_t stream);
/* matmul_wgmma.c: when that kernel is used: where it is faster, unless TARN_CUDA_GEMM is set; and its row, ahead of the
 * others. */
typedef enum tarn__cuda_wgmma_wanted {
    TARN__CUDA_WGMMA_FASTER,
    TARN__CUDA_WGMMA_NEVER, /* TARN_CUDA_GEMM=cublaslt */
    TARN__CUDA_WGMMA_ALWAYS /* TARN_CUDA_GEMM=wgmma: wherever it fits, nothing is timed */
} tarn__cuda_wgmma_wanted;
tarn__cuda_wgmma_wanted tarn__cuda_gemm_wgmma_wanted(void);
void tarn__cuda_add_matmul_wgmma(tarn__kernel_row *rows);

/* matmul_naive.cu: products that cuBLASLt does not support: integers and dtype mixtures. */
void tarn__cuda_matmul_naive(const tarn__call *call);

#ifdef __cplusplus
}
#endif
#endif
