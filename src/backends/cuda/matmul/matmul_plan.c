/* matmul_plan.c: cuBLASLt descriptors and algorithms, created once per GEMM and cached in a hash table per device.
 *
 * Plans live as long as the process. One lock guards the tables, and the descriptors while a call sets its addresses in
 * them. */
#include "backends/cuda/matmul/matmul.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 1024
#define CANDIDATES 48
#define MAX_SHARED_ROWS 2048 /* below, GEMMs with similar numbers of rows share an algorithm */

static struct table {
    cublasLtHandle_t handle;
    tarn__cuda_matmul_plan *bucket[BUCKETS];
} tables[TARN__CUDA_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void tarn__cuda_matmul_lock(void)
{
    pthread_mutex_lock(&lock);
}

void tarn__cuda_matmul_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* True for success; else remembers what failed, for this thread. */
static bool ok(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return true;
    tarn__cuda_fail("%s: %s", what, cublasLtGetStatusString(status));
    return false;
}

static uint32_t hash_of(const tarn__cuda_gemm *product)
{
    return (uint32_t)(tarn__cuda_hash(product, sizeof(*product)) % BUCKETS);
}

static cudaDataType_t type_of(int32_t dtype)
{
    return dtype == TARN_F64    ? CUDA_R_64F
           : dtype == TARN_BF16 ? CUDA_R_16BF
           : dtype == TARN_F16  ? CUDA_R_16F
                                : CUDA_R_32F;
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

/* A column-major matrix, or a strided batch of them. */
static bool make_layout(cublasLtMatrixLayout_t *layout, int32_t dtype, int64_t rows, int64_t columns, int64_t line,
                        int64_t batches, int64_t batch)
{
    int32_t count = (int32_t)batches;
    return ok(cublasLtMatrixLayoutCreate(layout, type_of(dtype), (uint64_t)rows, (uint64_t)columns, line),
              "cannot create a matrix layout") &&
           ok(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
              "cannot create a matrix layout") &&
           ok(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch,
                                               sizeof(batch)),
              "cannot create a matrix layout");
}

static bool set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which, const void *value, size_t bytes)
{
    return ok(cublasLtMatmulDescSetAttribute(desc, which, value, bytes), "cannot create a matmul descriptor");
}

/* Our b is cuBLASLt's a: row-major operands in a column-major library. */
static bool make_descriptors(tarn__cuda_matmul_plan *plan)
{
    const tarn__cuda_gemm *p = &plan->product;
    cublasComputeType_t compute = p->in_dtype == TARN_F64 ? CUBLAS_COMPUTE_64F
                                  : p->tf32               ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                          : CUBLAS_COMPUTE_32F;
    cudaDataType_t scale = p->in_dtype == TARN_F64 ? CUDA_R_64F : CUDA_R_32F;
    cublasOperation_t first = p->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                      second = p->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)p->epilogue;
    bool is_ok = ok(cublasLtMatmulDescCreate(&plan->desc, compute, scale), "cannot create a matmul descriptor") &&
                 set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)) &&
                 set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)) &&
                 set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    if (is_ok && p->ldx)
        is_ok = set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->ldx, sizeof(p->ldx));
    return is_ok &&
           make_layout(&plan->a, p->in_dtype, p->b_transposed ? p->k : p->n, p->b_transposed ? p->n : p->k, p->ldb,
                       p->batches, p->batch_b) &&
           make_layout(&plan->b, p->in_dtype, p->a_transposed ? p->m : p->k, p->a_transposed ? p->k : p->m, p->lda,
                       p->batches, p->batch_a) &&
           make_layout(&plan->c, p->out_dtype, p->n, p->m, p->ldc, p->batches, p->batch_c);
}

/* Only deterministic split-K reductions, in the output's precision or better. */
static uint32_t schemes_of(const tarn__cuda_gemm *p)
{
    bool adds = p->accumulates || p->epilogue != CUBLASLT_EPILOGUE_DEFAULT,
         is_rounded = p->out_dtype == TARN_BF16 || p->out_dtype == TARN_F16;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    if (!is_rounded)
        schemes |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
    return adds && is_rounded ? schemes : schemes | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

/* Algorithms that need at most `workspace` bytes, best guess first. Returns how many. */
static int query_heuristic(cublasLtHandle_t handle, const tarn__cuda_matmul_plan *plan, size_t workspace,
                           cublasLtMatmulHeuristicResult_t *found, int max_count)
{
    const tarn__cuda_gemm *p = &plan->product;
    cublasLtMatmulPreference_t preference;
    uint32_t schemes = schemes_of(p);
    uint32_t align_a = (uint32_t)p->align_b, align_b = (uint32_t)p->align_a, align_c = (uint32_t)p->align_c;
    int count = 0;
    if (!ok(cublasLtMatmulPreferenceCreate(&preference), "cannot create a matmul preference"))
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
    bool is_ok = ok(cublasLtMatmulAlgoGetHeuristic(handle, plan->desc, plan->a, plan->b, plan->c, plan->c, preference,
                                                   max_count, found, &count),
                    "no algorithm for this matmul");
    cublasLtMatmulPreferenceDestroy(preference);
    if (is_ok && count == 0)
        tarn__cuda_fail("no algorithm for this matmul");
    return is_ok ? count : 0;
}

/* The heuristic returns at most eight, and different ones without workspace: for f32 these were up to 10 % faster. */
static int find_candidates(cublasLtHandle_t handle, const tarn__cuda_matmul_plan *plan,
                           cublasLtMatmulHeuristicResult_t *found)
{
    int count = query_heuristic(handle, plan, (size_t)plan->product.max_workspace, found, CANDIDATES / 2);
    if (count > 0 && tarn__cuda_matmul_must_tune(&plan->product))
        count += query_heuristic(handle, plan, 0, found + count, CANDIDATES - count);
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

/* A recalled algorithm comes from a file that others can write: validate it. */
static bool is_usable(cublasLtHandle_t handle, const tarn__cuda_matmul_plan *plan)
{
    cublasLtMatmulHeuristicResult_t found;
    return cublasLtMatmulAlgoCheck(handle, plan->desc, plan->a, plan->b, plan->c, plan->c, &plan->algorithm, &found) ==
               CUBLAS_STATUS_SUCCESS &&
           found.workspaceSize <= plan->workspace;
}

/* The GEMM whose algorithm this one uses: the same with its rows rounded up. False: its own. An engine's batches have
 * another number of rows in every step, and tuning each number would take longer than it saves. */
static bool representative_of(const tarn__cuda_gemm *product, tarn__cuda_gemm *other)
{
    int64_t step = 8; /* half of the power of 2 below m, at least 8: 8, 16, 24, 32, 48, 64, 96 … */
    while (4 * step <= product->m)
        step *= 2;
    *other = *product;
    other->m = (product->m + step - 1) / step * step;
    return product->m < MAX_SHARED_ROWS && other->m != product->m && product->batches == 1 && !product->a_transposed &&
           tarn__cuda_matmul_must_tune(product); /* so must the other, with more rows */
}

/* Uses the algorithm of another plan; false if it does not fit this GEMM. */
static bool take_algorithm(tarn__cuda_matmul_plan *plan, const tarn__cuda_matmul_plan *representative)
{
    plan->algorithm = representative->algorithm;
    plan->workspace = representative->workspace;
    plan->is_slower = representative->is_slower;
    plan->is_wgmma = representative->is_wgmma;
    return is_usable(plan->handle, plan);
}

/* Recalls the algorithm, takes that of the representative (NULL: none) or tunes it. Fails inside a capture if the GEMM
 * would have to be tuned. */
static tarn__cuda_matmul_plan *make_plan(int index, struct table *table, const tarn__cuda_gemm *product,
                                         const tarn__cuda_matmul_plan *unfused,
                                         const tarn__cuda_matmul_plan *representative)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    tarn__cuda_matmul_plan *plan = calloc(1, sizeof(*plan));
    if (!plan) {
        tarn__cuda_fail("out of memory");
        return NULL;
    }
    plan->product = *product;
    plan->handle = table->handle;
    if (!make_descriptors(plan)) {
        free_plan(plan);
        return NULL;
    }
    if (tarn__cuda_matmul_recall(index, plan, false) && is_usable(table->handle, plan))
        return plan;
    if (representative && take_algorithm(plan, representative))
        return plan;
    /* tuning runs kernels, which a capture would record */
    bool is_too_late = tarn__cuda_at(index)->is_capturing && tarn__cuda_matmul_must_tune(product);
    if (is_too_late)
        tarn__cuda_fail(
            "matmul is not tuned: it was first called inside a capture; run the step once before capturing it");
    int count = is_too_late ? 0 : find_candidates(table->handle, plan, found);
    if (count == 0) {
        free_plan(plan);
        return NULL;
    }
    tarn__cuda_matmul_tune(index, plan, unfused, found, count);
    return plan;
}

/* Call with the lock held. */
static tarn__cuda_matmul_plan *find_plan(const struct table *table, const tarn__cuda_gemm *product)
{
    tarn__cuda_matmul_plan *plan = table->bucket[hash_of(product)];
    while (plan && memcmp(&plan->product, product, sizeof(*product)) != 0)
        plan = plan->next;
    return plan;
}

/* Finds or creates a plan; `unfused` as for tarn__cuda_matmul_tune(), `representative` as for make_plan(). */
static tarn__cuda_matmul_plan *cached_plan(int index, const tarn__cuda_gemm *product,
                                           const tarn__cuda_matmul_plan *unfused,
                                           const tarn__cuda_matmul_plan *representative)
{
    struct table *table = &tables[index];
    if (!tarn__cuda_at(index)) /* the library works on the current device */
        return NULL;
    pthread_mutex_lock(&lock);
    tarn__cuda_matmul_plan *plan = find_plan(table, product), **bucket = &table->bucket[hash_of(product)];
    if (!plan && (table->handle || ok(cublasLtCreate(&table->handle), "cuBLASLt")) &&
        (plan = make_plan(index, table, product, unfused, representative)) != NULL) {
        plan->next = *bucket;
        *bucket = plan;
    }
    pthread_mutex_unlock(&lock);
    return plan;
}

/* The GEMM without GELU in its epilogue; false if it has none. */
static bool unfused_of(const tarn__cuda_gemm *product, tarn__cuda_gemm *unfused)
{
    *unfused = *product;
    unfused->ldx = 0;
    switch (product->epilogue) {
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: unfused->epilogue = CUBLASLT_EPILOGUE_BIAS; return true;
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_DGELU: unfused->epilogue = CUBLASLT_EPILOGUE_DEFAULT; return true;
    default: return false;
    }
}

/* A GELU plan needs its unfused twin first, for the timing. */
const tarn__cuda_matmul_plan *tarn__cuda_matmul_plan_of(int index, const tarn__cuda_gemm *product)
{
    tarn__cuda_gemm unfused, other;
    pthread_mutex_lock(&lock);
    tarn__cuda_matmul_plan *plan = find_plan(&tables[index], product);
    pthread_mutex_unlock(&lock);
    if (plan)
        return plan;
    return cached_plan(index, product,
                       unfused_of(product, &unfused) ? tarn__cuda_matmul_plan_of(index, &unfused) : NULL,
                       representative_of(product, &other) ? tarn__cuda_matmul_plan_of(index, &other) : NULL);
}

/* ---- meta devices ------------------------------------------------------------------------------------------------ */

/* The largest workspace among the candidates; that of the first supported one where nothing is tuned. The limit
 * without any. */
static size_t max_workspace_of(cublasLtHandle_t handle, const tarn__cuda_matmul_plan *plan)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int count = find_candidates(handle, plan, found);
    bool must_tune = tarn__cuda_matmul_must_tune(&plan->product);
    size_t workspace = 0;
    for (int i = 0; i < count; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS)
            continue;
        workspace = found[i].workspaceSize > workspace ? found[i].workspaceSize : workspace;
        if (!must_tune)
            break;
    }
    return count > 0 ? workspace : (size_t)plan->product.max_workspace;
}

/* True if the plan is known: cached, recalled, or not to be tuned. Else its workspace is a maximum. Call with the lock
 * held. */
static bool query_workspace(int index, const tarn__cuda_gemm *product, size_t *workspace, bool *is_slower,
                            bool *is_wgmma)
{
    struct table *table = &tables[index];
    const tarn__cuda_matmul_plan *cached = find_plan(table, product);
    if (cached) {
        *workspace = cached->workspace;
        *is_slower = cached->is_slower;
        *is_wgmma = cached->is_wgmma;
        return true;
    }
    tarn__cuda_matmul_plan *plan = calloc(1, sizeof(*plan));
    bool is_known = !tarn__cuda_matmul_must_tune(product);
    *workspace = (size_t)product->max_workspace;
    *is_slower = is_known && product->epilogue == CUBLASLT_EPILOGUE_DGELU;
    if (!plan)
        return is_known;
    plan->product = *product;
    if ((table->handle || ok(cublasLtCreate(&table->handle), "cuBLASLt")) && make_descriptors(plan)) {
        bool is_recalled = tarn__cuda_matmul_recall(index, plan, true) && is_usable(table->handle, plan);
        tarn__cuda_gemm other;
        if (!is_recalled && representative_of(product, &other)) {
            free_plan(plan);
            return query_workspace(index, &other, workspace, is_slower, is_wgmma); /* it has no representative itself */
        }
        *workspace = is_recalled ? plan->workspace : max_workspace_of(table->handle, plan);
        *is_slower = is_recalled ? plan->is_slower : *is_slower;
        *is_wgmma = is_recalled && plan->is_wgmma;
        is_known = is_known || is_recalled;
    }
    free_plan(plan);
    return is_known;
}

bool tarn__cuda_matmul_workspace_of(int index, const tarn__cuda_gemm *product, size_t *workspace)
{
    tarn__cuda_gemm unfused;
    size_t composed = 0;
    bool is_slower = false, none;
    if (!tarn__cuda_at(index)) { /* the library works on the current device */
        *workspace = (size_t)product->max_workspace;
        return true;
    }
    pthread_mutex_lock(&lock);
    if (!query_workspace(index, product, workspace, &is_slower, &none) && unfused_of(product, &unfused))
        query_workspace(index, &unfused, &composed, &none, &none);
    pthread_mutex_unlock(&lock);
    *workspace = composed > *workspace ? composed : *workspace;
    return !is_slower;
}

bool tarn__cuda_matmul_knows_wgmma(int index, const tarn__cuda_gemm *product, bool *is_wgmma)
{
    size_t workspace;
    bool is_slower;
    *is_wgmma = false;
    if (!tarn__cuda_at(index)) /* the library works on the current device */
        return false;
    pthread_mutex_lock(&lock);
    bool is_known = query_workspace(index, product, &workspace, &is_slower, is_wgmma);
    pthread_mutex_unlock(&lock);
    return is_known;
}
