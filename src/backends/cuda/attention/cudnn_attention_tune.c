/* cudnn_attention_tune.c: autotunes the cuDNN engine of an attention (autotune.h).
 *
 * The whole call is timed, chunk by chunk as it will run, with each of the heuristic's first engines and with our own
 * kernels. The fastest deterministic candidate wins. */
#include <string.h>

#include "backends/cuda/attention/cudnn_attention.h"
#include "backends/cuda/runtime/autotune.h"

#define MAX_TIMED 12     /* plans: all are compiled when they are built */
#define NATIVE 0         /* in place of an engine's identity */
#define NATIVE_VERSION 3 /* of our own kernels, below 100: a change invalidates older results */

static tarn__cuda_tuning *tuning(void)
{
    static tarn__cuda_tuning all = {
        .family = "attention", .key_bytes = sizeof(tarn__cudnn_attention), .value_bytes = sizeof(uint64_t)};
    all.version = tarn__cudnn_open()->version() * 100 + NATIVE_VERSION;
    return &all;
}

/* A plan whose workspace is little more than a chunk's dS. */
static bool make_fitting_plan(int index, void *handle, tarn__cudnn_engine *engine, tarn__cudnn_plan *plan)
{
    size_t budget = tarn__cudnn_attention_budget(index);
    if (!tarn__cudnn_build_plan(handle, engine, plan))
        return false;
    if (plan->workspace <= budget + budget / 8)
        return true;
    tarn__cudnn_free_plan(plan);
    return false;
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* State of one tuning run. */
typedef struct bench {
    int index;
    tarn__cudnn_attention_plan *of;
    void *handle;
    tarn__cudnn_plan plans[MAX_TIMED];
    uint64_t identity[MAX_TIMED + 1]; /* the last candidate is our own */
    int count;                        /* plans */
    char *memory;
    size_t used;                                /* bytes */
    tarn__cudnn_attention_operands operands[2]; /* [1] differs in its results only */
    void *native_scratch;
    void *results[2];
    size_t result_bytes;
    int *differ;
    cudaStream_t stream;
} bench;

/* Sub-allocates; without memory it only counts the bytes. */
static void *alloc(bench *t, size_t bytes)
{
    void *at = t->memory ? t->memory + t->used : NULL;
    t->used += tarn__cuda_align(bytes);
    return at;
}

/* An operand as a view of `memory`. */
static tarn__view view_of(const bench *t, int operand, void *memory)
{
    const tarn__cudnn_attention *a = &t->of->attention;
    bool is_kv = tarn__attention_is_kv(operand);
    const int64_t *stride = a->stride[operand];
    return (tarn__view){.memory = memory,
                        .dtype = (tarn_dtype)a->dtype,
                        .rank = 4,
                        .shape = {a->batches, is_kv ? a->kv_heads : a->heads, is_kv ? a->keys : a->rows, a->head_dim},
                        .stride = {stride[0], stride[1], stride[2], 1}};
}

static tarn__view lse_of(const bench *t, void *memory)
{
    const tarn__cudnn_attention *a = &t->of->attention;
    return (tarn__view){.memory = memory,
                        .dtype = TARN_F32,
                        .rank = 3,
                        .shape = {a->batches, a->heads, a->rows},
                        .stride = {a->heads * a->rows, a->rows, 1}};
}

/* Bytes from the first element to the last. */
static size_t extent_of(const tarn__view *v)
{
    int64_t last = 0;
    for (int i = 0; i < v->rank; i++)
        last += (v->shape[i] - 1) * v->stride[i];
    return (size_t)(last + 1) * tarn__dtype_bytes(v->dtype);
}

static void alloc_tensors(bench *t, int result, int first, int last)
{
    for (int i = first; i <= last; i++) {
        tarn__view v = view_of(t, i, NULL);
        t->operands[result].tensor[i] = alloc(t, extent_of(&v));
    }
}

/* Inputs first, then both results and all scratch. Returns the bytes of the inputs. Runs twice: to count, then to
 * assign addresses. */
static size_t layout(bench *t)
{
    const tarn__cudnn_attention *a = &t->of->attention;
    size_t rows = (size_t)(a->batches * a->heads * a->rows), workspace = 0;
    int first = a->is_backward ? TARN__ATTENTION_GQ : TARN__ATTENTION_Y,
        last = a->is_backward ? TARN__ATTENTION_GV : TARN__ATTENTION_Y;
    t->used = 0;
    alloc_tensors(t, 0, 0, first - 1);
    size_t inputs = t->used;
    t->operands[0].lse = alloc(t, rows * sizeof(float));
    t->operands[0].delta = alloc(t, rows * sizeof(float));
    t->native_scratch = alloc(t, rows * 3 * sizeof(float)); /* as in attention_grad.cu */
    t->differ = alloc(t, sizeof(int));
    for (int i = 0; i < t->count; i++)
        workspace = t->plans[i].workspace > workspace ? t->plans[i].workspace : workspace;
    t->operands[0].workspace = alloc(t, workspace);
    t->operands[1] = t->operands[0];
    for (int i = 0; i < 2; i++) {
        size_t begin = t->used;
        alloc_tensors(t, i, first, last);
        t->results[i] = t->operands[i].tensor[first];
        t->result_bytes = t->used - begin;
    }
    return inputs;
}

/* Device memory of one tuning run, freed at its end; the inputs have random values. */
static bool open_bench(bench *t)
{
    const tarn__cudnn_attention *a = &t->of->attention;
    layout(t);
    size_t all = t->used;
    if (cudaMalloc((void **)&t->memory, all) != cudaSuccess) {
        cudaGetLastError();
        t->memory = NULL;
        return false;
    }
    size_t inputs = layout(t), rows = (size_t)(a->batches * a->heads * a->rows);
    return cudaMemsetAsync(t->memory, 0, all, t->stream) == cudaSuccess &&
           tarn__cuda_noise(t->memory, inputs, (tarn_dtype)a->dtype, t->stream) &&
           tarn__cuda_noise(t->operands[0].lse, rows * sizeof(float), TARN_F32, t->stream);
}

static void close_bench(bench *t)
{
    if (t->memory)
        cudaFree(t->memory);
    cudaGetLastError();
}

/* The same call by our own kernels. */
static bool run_native(const bench *t, int result)
{
    const tarn__cudnn_attention *a = &t->of->attention;
    const tarn__cudnn_attention_operands *at = &t->operands[result];
    tarn__attention params = {.scale = a->scale, .causal = (int32_t)a->causal};
    tarn__view v[TARN__ATTENTION_TENSORS], lse = lse_of(t, at->lse);
    for (int i = 0; i < TARN__ATTENTION_TENSORS; i++)
        v[i] = view_of(t, i, at->tensor[i]);
    tarn__call call = {.in = {&v[0], &v[1], &v[2]},
                       .device = t->index,
                       .stream = t->stream,
                       .scratch = t->native_scratch,
                       .function = "attention",
                       .params = &params,
                       .params_bytes = sizeof(params)};
    if (a->is_backward) {
        call.inputs = 7, call.in[4] = &v[TARN__ATTENTION_Y], call.in[5] = &lse, call.in[6] = &v[TARN__ATTENTION_G];
        call.outputs = 3;
        for (int i = 0; i < 3; i++)
            call.out[i] = &v[TARN__ATTENTION_GQ + i];
        tarn__cuda_attention_grad_native(&call);
    } else {
        call.inputs = 4, call.outputs = 2;
        call.out[0] = &v[TARN__ATTENTION_Y], call.out[1] = &lse;
        tarn__cuda_attention_native(&call);
    }
    return true;
}

static bool run_candidate(void *context, int candidate, int result)
{
    bench *t = context;
    if (candidate == t->count)
        return run_native(t, result);
    return tarn__cudnn_attention_try(t->handle, t->of, &t->plans[candidate], &t->operands[result]);
}

/* The fastest candidate, or the first if there is no memory for timing; stored, so that later runs choose the same. -1
 * if none is deterministic. */
static int fastest(bench *t)
{
    int best = 0;
    if (open_bench(t))
        best = tarn__cuda_autotune_run(&(tarn__cuda_autotune){.count = t->count + 1,
                                                              .context = t,
                                                              .run = run_candidate,
                                                              .results = {t->results[0], t->results[1]},
                                                              .result_bytes = t->result_bytes,
                                                              .differ = t->differ,
                                                              .stream = t->stream});
    if (best >= 0)
        tarn__cuda_tuning_store(tuning(), t->index, &t->of->attention, &t->identity[best]);
    close_bench(t);
    return best;
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

/* Without tuning: the heuristic's first engine that builds. */
static bool take_first(int index, void *handle, tarn__cudnn_attention_plan *plan, tarn__cudnn_engine *engines,
                       int count)
{
    for (int i = 0; i < count; i++)
        if (make_fitting_plan(index, handle, &engines[i], &plan->plan))
            return true;
    return false;
}

/* The stored engine, if cuDNN still offers it. */
static bool take_known(int index, void *handle, tarn__cudnn_attention_plan *plan, tarn__cudnn_engine *engines,
                       int count, uint64_t identity)
{
    for (int i = 0; i < count; i++)
        if (engines[i].identity == identity)
            return make_fitting_plan(index, handle, &engines[i], &plan->plan);
    return false;
}

/* Builds all candidates, times them with our own kernels, and frees the losers. */
static bool take_fastest(int index, void *handle, tarn__cudnn_attention_plan *plan, tarn__cudnn_engine *engines,
                         int count)
{
    bench t = {.index = index, .of = plan, .handle = handle, .stream = tarn__cuda_at(index)->stream};
    for (int i = 0; i < count && t.count < MAX_TIMED; i++)
        if (engines[i].config && make_fitting_plan(index, handle, &engines[i], &t.plans[t.count]))
            t.identity[t.count++] = engines[i].identity;
    t.identity[t.count] = NATIVE;
    int best = t.count ? fastest(&t) : -1;
    if (best >= 0 && best < t.count)
        plan->plan = t.plans[best];
    for (int i = 0; i < t.count; i++)
        if (i != best)
            tarn__cudnn_free_plan(&t.plans[i]);
    return best >= 0 && best < t.count;
}

/* False means: use our own kernels. */
bool tarn__cudnn_attention_tune(int index, void *handle, tarn__cudnn_attention_plan *plan, tarn__cudnn_engine *engines,
                                int count)
{
    uint64_t identity;
    if (!tarn__cuda_autotune_enabled())
        return take_first(index, handle, plan, engines, count);
    if (tarn__cuda_tuning_find(tuning(), index, &plan->attention, &identity)) {
        if (identity == NATIVE)
            return false;
        if (take_known(index, handle, plan, engines, count, identity))
            return true;
    }
    return take_fastest(index, handle, plan, engines, count);
}
