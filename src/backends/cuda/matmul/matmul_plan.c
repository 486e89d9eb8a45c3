/* matmul_plan.c: descriptors of a product, made once and kept in a table for each device. */
#include "backends/cuda/matmul/matmul.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 1024
#define MAX_DEVICES 64
#define CANDIDATES 48

static struct table {
    cublasLtHandle_t handle;
    tarn__cuda_matmul_plan *bucket[BUCKETS];
} tables[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool good(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return true;
    tarn__cuda_fail("%s: %s", what, cublasLtGetStatusString(status));
    return false;
}

static uint32_t hash_of(const tarn__cuda_gemm *product)
{
    const uint64_t *word = (const uint64_t *)(const void *)product;
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < sizeof(*product) / sizeof(uint64_t); i++)
        hash = (hash ^ word[i]) * 0xff51afd7ed558ccdu, hash ^= hash >> 32;
    return (uint32_t)(hash % BUCKETS);
}

static cudaDataType_t type_of(int32_t dtype)
{
    return dtype == TARN_F64    ? CUDA_R_64F
           : dtype == TARN_BF16 ? CUDA_R_16BF
           : dtype == TARN_F16  ? CUDA_R_16F
                                : CUDA_R_32F;
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

static bool make_layout(cublasLtMatrixLayout_t *layout, int32_t dtype, int64_t rows, int64_t columns, int64_t line,
                        int64_t batches, int64_t batch)
{
    int32_t count = (int32_t)batches;
    return good(cublasLtMatrixLayoutCreate(layout, type_of(dtype), (uint64_t)rows, (uint64_t)columns, line),
                "a matrix layout") &&
           good(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
                "a matrix layout") &&
           good(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch,
                                                 sizeof(batch)),
                "a matrix layout");
}

static bool set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which, const void *value, size_t bytes)
{
    return good(cublasLtMatmulDescSetAttribute(desc, which, value, bytes), "a product's description");
}

static bool make_descriptors(tarn__cuda_matmul_plan *plan)
{
    const tarn__cuda_gemm *p = &plan->product;
    cublasComputeType_t compute = p->in_dtype == TARN_F64 ? CUBLAS_COMPUTE_64F
                                  : p->tf32               ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                          : CUBLAS_COMPUTE_32F;
    cudaDataType_t scale = p->in_dtype == TARN_F64 ? CUDA_R_64F : CUDA_R_32F;
    cublasOperation_t first = p->b_by_columns ? CUBLAS_OP_T : CUBLAS_OP_N,
                      second = p->a_by_columns ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)p->epilogue;
    bool is_good = good(cublasLtMatmulDescCreate(&plan->desc, compute, scale), "a product's description") &&
                   set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)) &&
                   set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)) &&
                   set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    if (is_good && p->ldx)
        is_good = set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->ldx, sizeof(p->ldx));
    return is_good &&
           make_layout(&plan->a, p->in_dtype, p->b_by_columns ? p->k : p->n, p->b_by_columns ? p->n : p->k, p->ldb,
                       p->batches, p->batch_b) &&
           make_layout(&plan->b, p->in_dtype, p->a_by_columns ? p->m : p->k, p->a_by_columns ? p->k : p->m, p->lda,
                       p->batches, p->batch_a) &&
           make_layout(&plan->c, p->out_dtype, p->n, p->m, p->ldc, p->batches, p->batch_c);
}

/* Only deterministic schemes of adding up the parts of a long k, and none that rounds the parts to 16 bits, nor one
 * that rounds their sum before a bias or what lies in the result is added to it. In place, the parts are added one
 * after the other in the result's dtype. */
static uint32_t schemes_of(const tarn__cuda_gemm *p)
{
    bool adds = p->accumulates || p->epilogue != CUBLASLT_EPILOGUE_DEFAULT,
         is_rounded = p->out_dtype == TARN_BF16 || p->out_dtype == TARN_F16;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    if (!is_rounded)
        schemes |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
    return adds && is_rounded ? schemes : schemes | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

/* Algorithms that take at most `workspace` bytes, the likeliest first. */
static int ask_heuristic(cublasLtHandle_t handle, const tarn__cuda_matmul_plan *plan, size_t workspace,
                         cublasLtMatmulHeuristicResult_t *found, int most)
{
    const tarn__cuda_gemm *p = &plan->product;
    cublasLtMatmulPreference_t preference;
    uint32_t schemes = schemes_of(p);
    uint32_t align_a = (uint32_t)p->align_b, align_b = (uint32_t)p->align_a, align_c = (uint32_t)p->align_c;
    int count = 0;
    if (!good(cublasLtMatmulPreferenceCreate(&preference), "a product's preferences"))
        return 0;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                         sizeof(workspace));
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                         sizeof(schemes));
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a,
                                         sizeof(align_a));
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_b,
                                         sizeof(align_b));
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_c,
                                         sizeof(align_c));
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_c,
                                         sizeof(align_c));
    bool is_good = good(cublasLtMatmulAlgoGetHeuristic(handle, plan->desc, plan->a, plan->b, plan->c, plan->c,
                                                       preference, most, found, &count),
                        "no algorithm for this product");
    cublasLtMatmulPreferenceDestroy(preference);
    return is_good ? count : 0;
}

/* The heuristic names eight at most, and other ones when it may use no workspace: for f32 these were up to a tenth
 * faster. */
static int find_candidates(cublasLtHandle_t handle, const tarn__cuda_matmul_plan *plan,
                           cublasLtMatmulHeuristicResult_t *found)
{
    int count = ask_heuristic(handle, plan, (size_t)plan->product.room, found, CANDIDATES / 2);
    if (count > 0 && tarn__cuda_matmul_must_tune(&plan->product))
        count += ask_heuristic(handle, plan, 0, found + count, CANDIDATES - count);
    return count;
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static void free_plan(tarn__cuda_matmul_plan *plan)
{
    if (plan->a)
        cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->b)
        cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->c)
        cublasLtMatrixLayoutDestroy(plan->c);
    if (plan->desc)
        cublasLtMatmulDescDestroy(plan->desc);
    free(plan);
}

/* A remembered algorithm comes from a file that others can write. */
static bool is_usable(cublasLtHandle_t handle, const tarn__cuda_matmul_plan *plan)
{
    cublasLtMatmulHeuristicResult_t found;
    return cublasLtMatmulAlgoCheck(handle, plan->desc, plan->a, plan->b, plan->c, plan->c, &plan->algorithm, &found) ==
               CUBLAS_STATUS_SUCCESS &&
           found.workspaceSize <= plan->workspace;
}

static tarn__cuda_matmul_plan *make_plan(int index, struct table *table, const tarn__cuda_gemm *product,
                                         const tarn__cuda_matmul_plan *plain)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    tarn__cuda_matmul_plan *plan = calloc(1, sizeof(*plan));
    if (!plan)
        return NULL;
    plan->product = *product;
    if (!make_descriptors(plan)) {
        free_plan(plan);
        return NULL;
    }
    if (tarn__cuda_matmul_recall(index, plan) && is_usable(table->handle, plan))
        return plan;
    bool is_too_late = tarn__cuda_at(index)->is_capturing && tarn__cuda_matmul_must_tune(product);
    if (is_too_late)
        tarn__cuda_fail("no algorithm has been chosen for this product; run the step once before capturing it");
    int count = is_too_late ? 0 : find_candidates(table->handle, plan, found);
    if (count == 0) {
        free_plan(plan);
        return NULL;
    }
    tarn__cuda_matmul_tune(index, plan, plain, found, count);
    return plan;
}

/* Under the lock. */
static tarn__cuda_matmul_plan *find_plan(const struct table *table, const tarn__cuda_gemm *product)
{
    tarn__cuda_matmul_plan *plan = table->bucket[hash_of(product)];
    while (plan && memcmp(&plan->product, product, sizeof(*product)) != 0)
        plan = plan->next;
    return plan;
}

/* Found or made; `plain` as tarn__cuda_matmul_tune() has it. */
static tarn__cuda_matmul_plan *keep_plan(int index, const tarn__cuda_gemm *product, const tarn__cuda_matmul_plan *plain)
{
    struct table *table = &tables[index];
    pthread_mutex_lock(&lock);
    tarn__cuda_matmul_plan *plan = find_plan(table, product), **bucket = &table->bucket[hash_of(product)];
    if (!plan && (table->handle || good(cublasLtCreate(&table->handle), "cuBLASLt")) &&
        (plan = make_plan(index, table, product, plain)) != NULL) {
        plan->next = *bucket;
        *bucket = plan;
    }
    pthread_mutex_unlock(&lock);
    return plan;
}

/* The product without gelu or its slope; false where it has none. */
static bool without_gelu(const tarn__cuda_gemm *product, tarn__cuda_gemm *plain)
{
    *plain = *product;
    plain->ldx = 0;
    switch (product->epilogue) {
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: plain->epilogue = CUBLASLT_EPILOGUE_BIAS; return true;
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_DGELU: plain->epilogue = CUBLASLT_EPILOGUE_DEFAULT; return true;
    default: return false;
    }
}

tarn__cuda_matmul_plan *tarn__cuda_matmul_plan_of(int index, const tarn__cuda_gemm *product)
{
    static _Thread_local tarn__cuda_matmul_plan *last; /* scratch and run ask for the same one */
    static _Thread_local int last_index;
    if (last && last_index == index && memcmp(&last->product, product, sizeof(*product)) == 0)
        return last;
    tarn__cuda_gemm plain;
    pthread_mutex_lock(&lock);
    tarn__cuda_matmul_plan *plan = find_plan(&tables[index], product);
    pthread_mutex_unlock(&lock);
    if (!plan)
        plan = keep_plan(index, product, without_gelu(product, &plain) ? keep_plan(index, &plain, NULL) : NULL);
    last = plan;
    last_index = index;
    return plan;
}

static void set_pointers(const tarn__cuda_matmul_plan *plan, const tarn__cuda_gemm_operands *operands)
{
    if (operands->bias)
        set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands->bias, sizeof(operands->bias));
    if (operands->extra)
        set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &operands->extra, sizeof(operands->extra));
}

cublasStatus_t tarn__cuda_matmul_plan_try(int index, const tarn__cuda_matmul_plan *plan,
                                          const cublasLtMatmulAlgo_t *algorithm, size_t workspace,
                                          const tarn__cuda_gemm_operands *operands, double alpha, double beta,
                                          cudaStream_t stream)
{
    float single[] = {(float)alpha, (float)beta};
    double twice[] = {alpha, beta};
    bool is_wide = plan->product.in_dtype == TARN_F64;
    set_pointers(plan, operands);
    return cublasLtMatmul(tables[index].handle, plan->desc, is_wide ? (void *)&twice[0] : (void *)&single[0],
                          operands->b, plan->a, operands->a, plan->b, is_wide ? (void *)&twice[1] : (void *)&single[1],
                          operands->c, plan->c, operands->c, plan->c, algorithm, operands->workspace, workspace,
                          stream);
}

bool tarn__cuda_matmul_plan_run(int index, tarn__cuda_matmul_plan *plan, const tarn__cuda_gemm_operands *operands,
                                double alpha, double beta, cudaStream_t stream)
{
    pthread_mutex_lock(&lock); /* the descriptor holds the call's addresses */
    cublasStatus_t status =
        tarn__cuda_matmul_plan_try(index, plan, &plan->algorithm, plan->workspace, operands, alpha, beta, stream);
    pthread_mutex_unlock(&lock);
    return good(status, "a matrix product");
}
