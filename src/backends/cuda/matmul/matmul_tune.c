/* matmul_tune.c: autotunes the algorithm of a GEMM.
 *
 * cuBLASLt's first choice is up to 25 % slower than its best. A GEMM of some size is timed once with each candidate, on
 * operands of its shape; the fastest deterministic one is stored (autotune.h). Where the library runs GELU or its
 * gradient as a separate kernel, up to six times as slow as ours, an unfused GEMM plus our elementwise pass is the
 * better candidate. For GELU's gradient on compute capability 9 the winner plus a sum over its columns is then
 * timed against our own kernel. */
#include <string.h>

#include "backends/cuda/matmul/matmul.h"
#include "backends/cuda/runtime/autotune.h"

#define RULES "6" /* version of the candidate set: a change invalidates older results */

/* Value of a tuning record; written as bytes. */
typedef struct tuned_algorithm {
    cublasLtMatmulAlgo_t algorithm;
    uint64_t workspace, is_slower, is_wgmma;
} tuned_algorithm;

/* The family's name has the version of the candidate set. */
static tarn__cuda_tuning *tuning(void)
{
    static tarn__cuda_tuning all = {
        .family = "matmul-" RULES, .key_bytes = sizeof(tarn__cuda_gemm), .value_bytes = sizeof(tuned_algorithm)};
    all.version = cublasLtGetVersion();
    return &all;
}

/* By the number of multiply-adds. */
bool tarn__cuda_matmul_must_tune(const tarn__cuda_gemm *p)
{
    return (double)p->m * (double)p->n * (double)p->k * (double)p->batches >= TARN__CUDA_TUNE_MIN_MULTIPLIES &&
           tarn__cuda_autotune_enabled();
}

/* False if the stored algorithm needs more workspace than this call allows. A meta device uses no result: it is not
 * marked, so that checkpoints do not carry it. */
bool tarn__cuda_matmul_recall(int index, tarn__cuda_matmul_plan *plan, bool is_meta)
{
    tuned_algorithm record;
    bool (*find)(tarn__cuda_tuning *, int, const void *, void *) =
        is_meta ? tarn__cuda_tuning_peek : tarn__cuda_tuning_find;
    if (!tarn__cuda_matmul_must_tune(&plan->product) || !find(tuning(), index, &plan->product, &record))
        return false;
    plan->algorithm = record.algorithm;
    plan->workspace = (size_t)record.workspace;
    plan->is_slower = record.is_slower != 0;
    plan->is_wgmma = record.is_wgmma != 0;
    return record.workspace <= (uint64_t)plan->product.max_workspace;
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* Device memory of one tuning run, freed at its end: operands of the GEMM's shape with random values (constant ones
 * draw less power, so the device would clock higher than in production), and two results. */
typedef struct bench {
    int index;
    const tarn__cuda_matmul_plan *plan;
    const tarn__cuda_matmul_plan *unfused; /* NULL: no GELU epilogue */
    const cublasLtMatmulHeuristicResult_t *candidates;
    int count;  /* candidates; one more is unfused + elementwise pass */
    int winner; /* of these, timed with a sum against our own kernel */
    void *sums; /* on the device: column sums */
    char *memory;
    tarn__cuda_gemm_operands operands[2]; /* [1] differs in its result only */
    size_t result_bytes;
    int *differ;
    cudaStream_t stream;
} bench;

/* Bytes of a strided batch of matrices, with a margin for alignment. */
static size_t span(int64_t lines, int64_t line, int64_t batches, int64_t batch, size_t size)
{
    return ((size_t)(lines * line + (batches - 1) * batch) * size + 511) / 256 * 256;
}

/* One allocation: workspace, a, b, two results, bias, aux, flag. */
static bool open_bench(bench *t, const tarn__cuda_gemm *p)
{
    size_t in = tarn__dtype_bytes((tarn_dtype)p->in_dtype), out = tarn__dtype_bytes((tarn_dtype)p->out_dtype);
    size_t a = span(p->a_transposed ? p->k : p->m, p->lda, p->batches, p->batch_a, in);
    size_t b = span(p->b_transposed ? p->n : p->k, p->ldb, p->batches, p->batch_b, in);
    size_t c = span(p->m, p->ldc, p->batches, p->batch_c, out), bias = ((size_t)(p->m + p->n) * 8 + 511) / 256 * 256;
    size_t aux = p->ldx ? span(p->m, p->ldx, 1, 0, out) : 0;
    size_t all = a + b + 2 * c + bias + aux + TARN__CUDA_WORKSPACE + 256;
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
                                                .aux = aux ? at + a + b + 2 * c + bias : NULL,
                                                .workspace = t->memory};
    t->sums = at + a + b + 2 * c; /* where a bias is: GELU's gradient has none */
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

/* Unfused GEMM plus GELU or its gradient. Where GELU writes does not matter for the time. */
static bool run_composed(bench *t, int result)
{
    const tarn__cuda_gemm *p = &t->plan->product;
    tarn__cuda_gemm_operands operands = t->operands[result];
    operands.aux = NULL;
    if (tarn__cuda_matmul_enqueue(t->unfused, &t->unfused->algorithm, t->unfused->workspace, &operands, 1, 0,
                                  t->stream) != CUBLAS_STATUS_SUCCESS)
        return false;
    bool is_grad = p->epilogue == CUBLASLT_EPILOGUE_DGELU;
    tarn__view c = matrix_at(p, operands.c, p->ldc), aux = matrix_at(p, t->operands[result].aux, p->ldx);
    tarn__elementwise none = {0};
    tarn__call call = {.inputs = is_grad ? 2 : 1,
                       .outputs = 1,
                       .device = t->index,
                       .stream = t->stream,
                       .function = "mlp",
                       .params = &none,
                       .params_bytes = sizeof(none),
                       .in = {is_grad ? &aux : &c, is_grad ? &c : NULL},
                       .out = {is_grad ? &c : &aux}};
    tarn__cuda_rows()[is_grad ? TARN__K_gelu_grad : TARN__K_gelu].run(&call);
    return true;
}

/* The result summed over its rows. */
static bool run_sum(bench *t, int result)
{
    const tarn__cuda_gemm *p = &t->plan->product;
    tarn__view c = matrix_at(p, t->operands[result].c, p->ldc), sums = matrix_at(p, t->sums, p->n);
    tarn__reduce params = {.scale = 1};
    sums.shape[0] = 1;
    tarn__call call = {.inputs = 1,
                       .outputs = 1,
                       .device = t->index,
                       .stream = t->stream,
                       .function = "mlp",
                       .params = &params,
                       .params_bytes = sizeof(params),
                       .in = {&c},
                       .out = {&sums},
                       .scratch = t->memory};
    tarn__plan_buffer memory;
    tarn__plan_status status;
    const tarn__kernel_row *row =
        tarn__prepare(&tarn__cuda_rows()[TARN__K_sum], &call, tarn__plan_begin(&memory), &status);
    if (status != TARN__PLAN_READY || memory.plan.scratch_bytes > TARN__CUDA_WORKSPACE)
        return false;
    call.plan = &memory.plan;
    call.scratch_bytes = memory.plan.scratch_bytes;
    row->run(&call);
    return true;
}

static bool run_wgmma(bench *t, int result)
{
    tarn__cuda_gemm_operands operands = t->operands[result];
    operands.sums = t->sums;
    operands.sums_dtype = (tarn_dtype)t->plan->product.out_dtype;
    return tarn__cuda_gemm_wgmma_enqueue(t->index, &t->plan->product, &operands, t->stream);
}

/* beta = 1 for accumulating GEMMs: they read c, too. */
static bool run_candidate(void *context, int candidate, int result)
{
    bench *t = context;
    if (candidate == t->count)
        return run_composed(t, result);
    const cublasLtMatmulHeuristicResult_t *record = &t->candidates[candidate];
    return record->state == CUBLAS_STATUS_SUCCESS &&
           tarn__cuda_matmul_enqueue(t->plan, &record->algo, record->workspaceSize, &t->operands[result], 1,
                                     t->plan->product.accumulates ? 1 : 0, t->stream) == CUBLAS_STATUS_SUCCESS;
}

/* Candidate 0: the winner of the others plus a sum; 1: our own kernel. */
static bool run_with_sums(void *context, int candidate, int result)
{
    bench *t = context;
    return candidate == 1 ? run_wgmma(t, result) : run_candidate(t, t->winner, result) && run_sum(t, result);
}

static int fastest_of(bench *t, int count, bool (*run)(void *, int, int))
{
    return tarn__cuda_autotune_run(&(tarn__cuda_autotune){.count = count,
                                                          .context = t,
                                                          .run = run,
                                                          .results = {t->operands[0].c, t->operands[1].c},
                                                          .result_bytes = t->result_bytes,
                                                          .differ = t->differ,
                                                          .stream = t->stream});
}

/* True if our own kernel fits the GEMM, and its partial sums fit the workspace. */
static bool can_run_wgmma(const bench *t)
{
    const tarn__cuda_gemm *p = &t->plan->product;
    return tarn__cuda_gemm_wgmma_fits(t->index, p) && tarn__cuda_gemm_wgmma_workspace(p) <= TARN__CUDA_WORKSPACE;
}

/* The fastest candidate, and whether our own kernel is faster where sums are wanted. */
static int fastest(bench *t, bool *is_wgmma)
{
    int best = -1;
    if (open_bench(t, &t->plan->product))
        best = fastest_of(t, t->count + (t->unfused != NULL), run_candidate);
    if (best >= 0 && can_run_wgmma(t)) {
        t->winner = best;
        *is_wgmma = fastest_of(t, 2, run_with_sums) == 1;
    }
    close_bench(t);
    return best;
}

/* Defaults to the first supported candidate; DGELU defaults to unfused. */
void tarn__cuda_matmul_tune(int index, tarn__cuda_matmul_plan *plan, const tarn__cuda_matmul_plan *unfused,
                            cublasLtMatmulHeuristicResult_t *candidates, int count)
{
    int first = 0;
    /* the first candidate that is supported */
    while (first < count - 1 && candidates[first].state != CUBLAS_STATUS_SUCCESS)
        first++;
    plan->algorithm = candidates[first].algo;
    plan->workspace = candidates[first].workspaceSize;
    plan->is_slower = plan->product.epilogue == CUBLASLT_EPILOGUE_DGELU;
    plan->is_wgmma = false; /* an unusable plan may have left another value */
    tarn__cuda_device *d = tarn__cuda_at(index);
    if (!d || !tarn__cuda_matmul_must_tune(&plan->product) || (count < 2 && !unfused))
        return;
    int best = fastest(&(bench){.index = index,
                                .plan = plan,
                                .unfused = unfused,
                                .candidates = candidates,
                                .count = count,
                                .stream = d->stream},
                       &plan->is_wgmma);
    if (best >= 0)
        plan->is_slower = best == count;
    if (best < 0 || best == count)
        best = first; /* no memory to time them: stored too, so that later runs choose the same */
    plan->algorithm = candidates[best].algo;
    plan->workspace = candidates[best].workspaceSize;
    tuned_algorithm record;
    memset(&record, 0, sizeof(record));
    record.algorithm = plan->algorithm;
    record.workspace = plan->workspace;
    record.is_slower = plan->is_slower;
    record.is_wgmma = plan->is_wgmma;
    tarn__cuda_tuning_store(tuning(), index, &plan->product, &record);
}
