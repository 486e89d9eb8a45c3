/* cudnn_conv_tune.c: autotunes the cuDNN engine of a convolution (autotune.h).
 *
 * The heuristic's first engines are timed on tensors of the convolution's shape; the fastest deterministic one wins.
 * For f32, candidates must also pass an accuracy check (cudnn_conv_accuracy.c). */
#include <string.h>

#include "backends/cuda/conv/cudnn_conv.h"
#include "backends/cuda/runtime/autotune.h"

#define MAX_WORKSPACE ((size_t)256 << 20)
#define MAX_TIMED 12 /* plans: some are compiled when they are built */

static tarn__cuda_tuning *tuning(void)
{
    static tarn__cuda_tuning all = {
        .family = "conv-exact-engine", .key_bytes = sizeof(tarn__cudnn_conv), .value_bytes = sizeof(uint64_t)};
    all.version = tarn__cudnn_open()->version();
    return &all;
}

bool tarn__cudnn_conv_must_tune(const tarn__cudnn_conv *v)
{
    double products = (double)v->images * (double)v->out * (double)(v->in / v->groups);
    products *= (double)(v->result[0] * v->result[1]) * (double)(v->kernel[0] * v->kernel[1]);
    return products >= TARN__CUDA_TUNE_MIN_MULTIPLIES && tarn__cuda_autotune_enabled();
}

/* A plan within the workspace limit. */
static bool make_fitting_plan(void *handle, tarn__cudnn_engine *engine, tarn__cudnn_plan *plan)
{
    if (!tarn__cudnn_build_plan(handle, engine, plan))
        return false;
    if (plan->workspace <= MAX_WORKSPACE)
        return true;
    tarn__cudnn_free_plan(plan);
    return false;
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* State of one tuning run. */
typedef struct bench {
    int index;
    const tarn__cudnn_conv *conv;
    void *handle;
    tarn__cudnn_plan plans[MAX_TIMED];
    uint64_t identity[MAX_TIMED];
    int count; /* plans */
    char *memory;
    tarn__cudnn_conv_operands operands[2]; /* [1] differs in its result only */
    void *results[2];
    size_t result_bytes;
    int64_t result_count; /* elements */
    int *differ;
    cudaStream_t stream;
} bench;

static size_t bytes_of(const tarn__cudnn_tensor *t)
{
    size_t count = (size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]);
    return tarn__cuda_align(count * tarn__dtype_bytes(t->dtype));
}

/* False without an error: tuning falls back to the first candidate. */
static bool alloc_memory(char **memory, size_t bytes)
{
    if (cudaMalloc((void **)memory, bytes) == cudaSuccess)
        return true;
    cudaGetLastError();
    *memory = NULL;
    return false;
}

/* Device memory of one tuning run, freed at its end: x, w, y and bias with random values, a second result, and the
 * workspace. */
static bool open_bench(bench *t)
{
    const tarn__cudnn_conv *v = t->conv;
    tarn__cudnn_tensor tensors[] = {tarn__cudnn_conv_x(v), tarn__cudnn_conv_w(v), tarn__cudnn_conv_y(v)};
    size_t x = bytes_of(&tensors[0]), w = bytes_of(&tensors[1]), y = bytes_of(&tensors[2]),
           bias = tarn__cuda_align((size_t)v->out * 4);
    size_t workspace = 0;
    int result = v->what == TARN__CONV_FORWARD ? 2 : v->what == TARN__CONV_DGRAD ? 0 : 1;
    for (int i = 0; i < t->count; i++)
        workspace = t->plans[i].workspace > workspace ? t->plans[i].workspace : workspace;
    t->result_bytes = bytes_of(&tensors[result]);
    t->result_count =
        tensors[result].shape[0] * tensors[result].shape[1] * tensors[result].shape[2] * tensors[result].shape[3];
    size_t all = x + w + y + bias + t->result_bytes + 256 + workspace;
    if (!alloc_memory(&t->memory, all))
        return false;
    char *at = t->memory, *after = at + x + w + y + bias;
    t->operands[0] = (tarn__cudnn_conv_operands){.x = at,
                                                 .w = at + x,
                                                 .y = at + x + w,
                                                 .bias = at + x + w + y,
                                                 .workspace = workspace ? after + t->result_bytes + 256 : NULL};
    t->operands[1] = t->operands[0];
    void **seconds[] = {&t->operands[1].x, &t->operands[1].w, &t->operands[1].y};
    t->results[0] = *seconds[result];
    t->results[1] = *seconds[result] = after;
    t->differ = (int *)(void *)(after + t->result_bytes);
    return cudaMemsetAsync(t->memory, 0, all, t->stream) == cudaSuccess &&
           tarn__cuda_noise(t->memory, x + w + y + bias, (tarn_dtype)v->in_dtype, t->stream);
}

static void close_bench(bench *t)
{
    if (t->memory)
        cudaFree(t->memory);
    cudaGetLastError();
}

static bool run_candidate(void *context, int candidate, int result)
{
    bench *t = context;
    return tarn__cudnn_conv_try(t->handle, t->conv, &t->plans[candidate], &t->operands[result]);
}

static bool needs_f32(const tarn__cudnn_conv *v)
{
    return v->in_dtype == TARN_F32 && !v->tf32;
}

/* Removes candidates that are less accurate than f32. False if there is no memory for the check. */
static bool drop_inaccurate(bench *t)
{
    tarn__conv_reference reference;
    int left = 0;
    if (!tarn__cudnn_conv_reference_compute(&reference, t->conv, t->index, &t->operands[1], t->results[1],
                                            t->result_count, t->stream))
        return false;
    for (int i = 0; i < t->count; i++) {
        bool is_accurate =
            run_candidate(t, i, 0) && tarn__cudnn_conv_reference_check(&reference, t->results[0], t->stream);
        if (!is_accurate)
            tarn__cudnn_free_plan(&t->plans[i]);
        else if (left != i)
            t->plans[left] = t->plans[i], t->identity[left] = t->identity[i];
        left += is_accurate;
    }
    t->count = left;
    tarn__cudnn_conv_reference_free(&reference);
    return true;
}

/* The fastest candidate, or the first if there is no memory for timing; stored, so that later runs choose the same. -1
 * if none is deterministic. */
static int fastest(bench *t)
{
    int best = 0;
    bool is_known = !needs_f32(t->conv); /* never store an engine whose accuracy was not checked */
    if (open_bench(t)) {
        is_known = is_known || drop_inaccurate(t);
        best = tarn__cuda_autotune_run(&(tarn__cuda_autotune){.count = t->count,
                                                              .context = t,
                                                              .run = run_candidate,
                                                              .results = {t->results[0], t->results[1]},
                                                              .result_bytes = t->result_bytes,
                                                              .differ = t->differ,
                                                              .stream = t->stream});
    }
    if (best >= 0 && is_known)
        tarn__cuda_tuning_store(tuning(), t->index, t->conv, &t->identity[best]);
    close_bench(t);
    return best;
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

/* Without tuning: the first engine that builds and, for f32, passes the accuracy check. */
static bool take_first(int index, void *handle, tarn__cudnn_conv_plan *plan, tarn__cudnn_engine *engines, int count)
{
    for (int i = 0; i < count; i++) {
        bench t = {.index = index, .conv = &plan->conv, .handle = handle, .stream = tarn__cuda_at(index)->stream};
        t.count = make_fitting_plan(handle, &engines[i], &t.plans[0]);
        if (t.count && needs_f32(&plan->conv) && open_bench(&t))
            drop_inaccurate(&t);
        close_bench(&t);
        if (t.count) {
            plan->plan = t.plans[0];
            return true;
        }
    }
    return false;
}

/* The stored engine, if cuDNN still offers it. */
static bool take_known(void *handle, tarn__cudnn_conv_plan *plan, tarn__cudnn_engine *engines, int count,
                       uint64_t identity)
{
    for (int i = 0; i < count; i++)
        if (engines[i].identity == identity)
            return make_fitting_plan(handle, &engines[i], &plan->plan);
    return false;
}

/* Builds all candidates, times them, and frees the losers. */
static bool take_fastest(int index, void *handle, tarn__cudnn_conv_plan *plan, tarn__cudnn_engine *engines, int count)
{
    bench t = {.index = index, .conv = &plan->conv, .handle = handle, .stream = tarn__cuda_at(index)->stream};
    for (int i = 0; i < count && t.count < MAX_TIMED; i++)
        if (engines[i].config && make_fitting_plan(handle, &engines[i], &t.plans[t.count]))
            t.identity[t.count++] = engines[i].identity;
    int best = t.count ? fastest(&t) : -1;
    if (best >= 0)
        plan->plan = t.plans[best];
    for (int i = 0; i < t.count; i++)
        if (i != best)
            tarn__cudnn_free_plan(&t.plans[i]);
    return best >= 0;
}

bool tarn__cudnn_conv_tune(int index, void *handle, tarn__cudnn_conv_plan *plan, tarn__cudnn_engine *engines, int count)
{
    uint64_t identity;
    if (!tarn__cudnn_conv_must_tune(&plan->conv))
        return take_first(index, handle, plan, engines, count);
    if (tarn__cuda_tuning_find(tuning(), index, &plan->conv, &identity) &&
        take_known(handle, plan, engines, count, identity))
        return true;
    return take_fastest(index, handle, plan, engines, count);
}
