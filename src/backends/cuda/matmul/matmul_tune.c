/* matmul_tune.c: the algorithm of a product, chosen by running the candidates, and remembered on disk.
 *
 * cuBLASLt's first choice is up to a quarter slower than its best. A product of some size is therefore timed once with
 * each candidate, on operands of its sizes; the fastest that gives the same bits twice is taken and kept (autotune.h).
 * Where the library makes gelu or its slope in a kernel of its own, which was six times as slow as ours, a plain
 * product with our pass behind it is the better candidate. */
#include <string.h>

#include "backends/cuda/matmul/matmul.h"
#include "backends/cuda/runtime/autotune.h"

#define RULES "5" /* which algorithms are candidates: a change of that makes older choices void */

typedef struct choice {
    cublasLtMatmulAlgo_t algorithm;
    uint64_t workspace, is_slower;
} choice;

static tarn__cuda_tuning *choices(void)
{
    static tarn__cuda_tuning all = {
        .family = "matmul-" RULES, .key_bytes = sizeof(tarn__cuda_gemm), .value_bytes = sizeof(choice)};
    all.version = cublasLtGetVersion();
    return &all;
}

bool tarn__cuda_matmul_must_tune(const tarn__cuda_gemm *p)
{
    return (double)p->m * (double)p->n * (double)p->k * (double)p->batches >= TARN__CUDA_TUNE_MIN_MULTIPLIES &&
           tarn__cuda_autotune_enabled();
}

bool tarn__cuda_matmul_recall(int index, tarn__cuda_matmul_plan *plan)
{
    choice one;
    if (!tarn__cuda_matmul_must_tune(&plan->product) || !tarn__cuda_tuning_find(choices(), index, &plan->product, &one))
        return false;
    plan->algorithm = one.algorithm;
    plan->workspace = (size_t)one.workspace;
    plan->is_slower = one.is_slower != 0;
    return one.workspace <= (uint64_t)plan->product.room;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* Memory of its own, taken and given back here: operands of the product's sizes full of random numbers (equal ones
 * would draw less power, and the device would run faster than it does in earnest), and two results. */
typedef struct bench {
    int index;
    const tarn__cuda_matmul_plan *plan;
    const tarn__cuda_matmul_plan *plain; /* or NULL */
    const cublasLtMatmulHeuristicResult_t *candidates;
    int count; /* of these; one more is the plain product and a pass */
    char *memory;
    tarn__cuda_gemm_operands operands[2]; /* the second one's result is another */
    size_t result_bytes;
    int *differ;
    cudaStream_t stream;
} bench;

static size_t span(int64_t lines, int64_t line, int64_t batches, int64_t batch, size_t size)
{
    return ((size_t)(lines * line + (batches - 1) * batch) * size + 511) / 256 * 256;
}

static bool open_bench(bench *t, const tarn__cuda_gemm *p)
{
    size_t in = tarn__dtype_bytes((tarn_dtype)p->in_dtype), out = tarn__dtype_bytes((tarn_dtype)p->out_dtype);
    size_t a = span(p->a_by_columns ? p->k : p->m, p->lda, p->batches, p->batch_a, in);
    size_t b = span(p->b_by_columns ? p->n : p->k, p->ldb, p->batches, p->batch_b, in);
    size_t c = span(p->m, p->ldc, p->batches, p->batch_c, out), bias = (size_t)(p->m + p->n) * 8 + 256;
    size_t extra = p->ldx ? span(p->m, p->ldx, 1, 0, out) : 0;
    size_t all = a + b + 2 * c + bias + extra + TARN__CUDA_WORKSPACE + 256;
    if (cudaMalloc((void **)&t->memory, all) != cudaSuccess) {
        cudaGetLastError();
        t->memory = NULL;
        return false;
    }
    t->result_bytes = c;
    char *at = t->memory + TARN__CUDA_WORKSPACE;
    bool has_bias = p->epilogue != CUBLASLT_EPILOGUE_DEFAULT && p->epilogue != CUBLASLT_EPILOGUE_GELU &&
                    p->epilogue != CUBLASLT_EPILOGUE_GELU_AUX && p->epilogue != CUBLASLT_EPILOGUE_DGELU;
    t->operands[0] = (tarn__cuda_gemm_operands){.a = at,
                                                .b = at + a,
                                                .c = at + a + b,
                                                .bias = has_bias ? at + a + b + 2 * c : NULL,
                                                .extra = extra ? at + a + b + 2 * c + bias : NULL,
                                                .workspace = t->memory};
    t->operands[1] = t->operands[0];
    t->operands[1].c = at + a + b + c;
    t->differ = (int *)(void *)(t->memory + all - 256);
    return cudaMemsetAsync(t->memory, 0, all, t->stream) == cudaSuccess &&
           tarn__cuda_noise(at, a + b, (tarn_dtype)p->in_dtype, t->stream);
}

static void close_bench(bench *t)
{
    if (t->memory)
        cudaFree(t->memory);
    cudaGetLastError();
}

static tarn__view matrix_at(const tarn__cuda_gemm *p, void *memory, int64_t line)
{
    return (tarn__view){
        .memory = memory, .dtype = (tarn_dtype)p->out_dtype, .rank = 2, .shape = {p->m, p->n}, .stride = {line, 1}};
}

/* The plain product, and gelu of it or its slope: as far as time goes, where gelu's result lies does not matter. */
static bool run_parts(bench *t, int result)
{
    const tarn__cuda_gemm *p = &t->plan->product;
    tarn__cuda_gemm_operands operands = t->operands[result];
    operands.extra = NULL;
    if (tarn__cuda_matmul_plan_try(t->index, t->plain, &t->plain->algorithm, t->plain->workspace, &operands, 1, 0,
                                   t->stream) != CUBLAS_STATUS_SUCCESS)
        return false;
    bool is_slope = p->epilogue == CUBLASLT_EPILOGUE_DGELU;
    tarn__view c = matrix_at(p, operands.c, p->ldc), extra = matrix_at(p, t->operands[result].extra, p->ldx);
    tarn__elementwise none = {0};
    tarn__call call = {.inputs = is_slope ? 2 : 1,
                       .outputs = 1,
                       .device = t->index,
                       .stream = t->stream,
                       .function = "mlp",
                       .params = &none,
                       .params_bytes = sizeof(none),
                       .in = {is_slope ? &extra : &c, is_slope ? &c : NULL},
                       .out = {is_slope ? &c : &extra}};
    tarn__cuda_rows()[is_slope ? TARN__K_gelu_grad : TARN__K_gelu].run(&call);
    return true;
}

static bool run_candidate(void *context, int candidate, int result)
{
    bench *t = context;
    if (candidate == t->count)
        return run_parts(t, result);
    const cublasLtMatmulHeuristicResult_t *one = &t->candidates[candidate];
    return one->state == CUBLAS_STATUS_SUCCESS &&
           tarn__cuda_matmul_plan_try(t->index, t->plan, &one->algo, one->workspaceSize, &t->operands[result], 1,
                                      t->plan->product.accumulates ? 1 : 0, t->stream) == CUBLAS_STATUS_SUCCESS;
}

static int fastest(bench *t)
{
    int best = -1;
    if (open_bench(t, &t->plan->product))
        best = tarn__cuda_autotune_run(&(tarn__cuda_autotune){.count = t->count + (t->plain != NULL),
                                                              .context = t,
                                                              .run = run_candidate,
                                                              .results = {t->operands[0].c, t->operands[1].c},
                                                              .result_bytes = t->result_bytes,
                                                              .differ = t->differ,
                                                              .stream = t->stream});
    close_bench(t);
    return best;
}

void tarn__cuda_matmul_tune(int index, tarn__cuda_matmul_plan *plan, const tarn__cuda_matmul_plan *plain,
                            cublasLtMatmulHeuristicResult_t *candidates, int count)
{
    int first = 0;
    while (first < count - 1 && candidates[first].state != CUBLAS_STATUS_SUCCESS)
        first++;
    plan->algorithm = candidates[first].algo;
    plan->workspace = candidates[first].workspaceSize;
    plan->is_slower = plan->product.epilogue == CUBLASLT_EPILOGUE_DGELU;
    tarn__cuda_device *d = tarn__cuda_at(index);
    if (!d || !tarn__cuda_matmul_must_tune(&plan->product) || (count < 2 && !plain))
        return;
    int best = fastest(&(bench){
        .index = index, .plan = plan, .plain = plain, .candidates = candidates, .count = count, .stream = d->stream});
    if (best >= 0)
        plan->is_slower = best == count;
    if (best < 0 || best == count)
        best = first; /* no memory to time them in: remembered too, so that later runs choose the same */
    plan->algorithm = candidates[best].algo;
    plan->workspace = candidates[best].workspaceSize;
    choice one;
    memset(&one, 0, sizeof(one));
    one.algorithm = plan->algorithm;
    one.workspace = plan->workspace;
    one.is_slower = plan->is_slower;
    tarn__cuda_tuning_store(choices(), index, &plan->product, &one);
}
