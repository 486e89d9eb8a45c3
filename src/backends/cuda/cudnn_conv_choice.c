/* cudnn_conv_choice.c: the engine of a convolution, chosen by running the candidates, and remembered on disk (choice.h).
 *
 * cuDNN's heuristics guess; a convolution of some size is timed once with each of the engines they put first, on tensors of its sizes, and by
 * columns (conv.c). The fastest that gives the same bits twice is taken. */
#include <string.h>

#include "backends/cuda/choice.h"
#include "backends/cuda/cudnn_conv.h"

#define MOST_WORKSPACE ((size_t)256 << 20)
#define MOST_TIMED 12 /* plans: some are compiled when they are made */
#define BY_COLUMNS 0  /* stands for an engine's identity */

static tarn__cuda_choices *choices(void)
{
    static tarn__cuda_choices all = {.family = "conv", .key_bytes = sizeof(tarn__cudnn_conv), .value_bytes = sizeof(uint64_t)};
    all.version = tarn__cudnn_open()->version();
    return &all;
}

static bool must_measure(const tarn__cudnn_conv *v)
{
    double products = (double)v->images * (double)v->out * (double)(v->in / v->groups);
    products *= (double)(v->result[0] * v->result[1]) * (double)(v->kernel[0] * v->kernel[1]);
    return products >= TARN__CUDA_WORTH_MEASURING && tarn__cuda_may_measure();
}

/* A plan that needs no more workspace than others may have. */
static bool make_fitting_plan(void *handle, tarn__cudnn_engine *engine, tarn__cudnn_plan *plan)
{
    if (!tarn__cudnn_make_plan(handle, engine, plan))
        return false;
    if (plan->workspace <= MOST_WORKSPACE)
        return true;
    tarn__cudnn_free_plan(plan);
    return false;
}

/* ---- measuring ------------------------------------------------------------------------------------------------------------- */

typedef struct bench {
    int index;
    const tarn__cudnn_conv *conv;
    void *handle;
    tarn__cudnn_plan plans[MOST_TIMED];
    uint64_t identity[MOST_TIMED + 1]; /* the last candidate is columns */
    int count;                         /* of plans */
    char *memory, *scratch;
    tarn__cudnn_conv_operands operands[2]; /* the second one's result is another */
    void *results[2];
    size_t result_bytes;
    int *differ;
    cudaStream_t stream;
    tarn__conv2d params; /* of the call by columns, and its operands */
    tarn__view x, w, y, bias;
    tarn__call call;
} bench;

static size_t bytes_of(const tarn__cudnn_tensor *t)
{
    size_t count = (size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]);
    return (count * tarn__dtype_bytes(t->dtype) + 255) / 256 * 256;
}

static bool take_memory(char **memory, size_t bytes)
{
    if (cudaMalloc((void **)memory, bytes) == cudaSuccess)
        return true;
    cudaGetLastError();
    *memory = NULL;
    return false;
}

/* The call that does the same by columns. Its weight lies as weights do: by rows. */
static bool describe_columns(bench *t, const tarn__cudnn_tensor *tensors, int result)
{
    const tarn__cudnn_conv *v = t->conv;
    const tarn__cudnn_conv_operands *at = &t->operands[0];
    t->params = (tarn__conv2d){.stride = {v->stride[0], v->stride[1]}, .padding = {v->padding[0], v->padding[1]},
                               .dilation = {v->dilation[0], v->dilation[1]}, .groups = v->groups, .tf32 = (int32_t)v->tf32};
    t->x = tarn__cudnn_view(&tensors[0], at->x);
    t->w = tarn__cudnn_view(&tensors[1], at->w);
    t->y = tarn__cudnn_view(&tensors[2], at->y);
    t->bias = (tarn__view){.memory = at->bias, .dtype = (tarn_dtype)v->in_dtype, .rank = 1, .shape = {v->out}, .stride = {1}};
    tarn__view_pack(&t->w);
    const tarn__view *views[] = {&t->x, &t->w, &t->y};
    t->call = (tarn__call){.inputs = v->adds_bias ? 3 : 2, .outputs = 1, .out = {views[result]}, .device = t->index, .stream = t->stream,
                           .function = "conv2d", .params = &t->params, .params_bytes = sizeof(t->params)};
    t->call.in[0] = result == 0 ? &t->y : &t->x;
    t->call.in[1] = result == 1 ? &t->y : &t->w;
    t->call.in[2] = v->adds_bias ? &t->bias : NULL;
    t->call.scratch_bytes = tarn__cuda_conv_columns(&t->call, (int)v->what, false);
    if (t->call.scratch_bytes > 0 && !take_memory(&t->scratch, t->call.scratch_bytes))
        return false;
    t->call.scratch = t->scratch;
    return true;
}

/* Memory of its own, taken and given back here: the workspace, x, w, y and a bias full of random numbers, a second result. */
static bool open_bench(bench *t)
{
    const tarn__cudnn_conv *v = t->conv;
    tarn__cudnn_tensor tensors[] = {tarn__cudnn_conv_x(v), tarn__cudnn_conv_w(v), tarn__cudnn_conv_y(v)};
    size_t x = bytes_of(&tensors[0]), w = bytes_of(&tensors[1]), y = bytes_of(&tensors[2]), bias = ((size_t)v->out * 4 + 255) / 256 * 256;
    size_t workspace = 0;
    int result = v->what == TARN__CONV_FORWARD ? 2 : v->what == TARN__CONV_GRAD_X ? 0 : 1;
    for (int i = 0; i < t->count; i++)
        workspace = t->plans[i].workspace > workspace ? t->plans[i].workspace : workspace;
    t->result_bytes = bytes_of(&tensors[result]);
    size_t all = x + w + y + bias + t->result_bytes + 256 + workspace;
    if (!take_memory(&t->memory, all))
        return false;
    char *at = t->memory, *behind = at + x + w + y + bias;
    t->operands[0] = (tarn__cudnn_conv_operands){.x = at, .w = at + x, .y = at + x + w, .bias = at + x + w + y,
                                                 .workspace = workspace ? behind + t->result_bytes + 256 : NULL};
    t->operands[1] = t->operands[0];
    void **seconds[] = {&t->operands[1].x, &t->operands[1].w, &t->operands[1].y};
    t->results[0] = *seconds[result];
    t->results[1] = *seconds[result] = behind;
    t->differ = (int *)(void *)(behind + t->result_bytes);
    return cudaMemsetAsync(t->memory, 0, all, t->stream) == cudaSuccess &&
           tarn__cuda_noise(t->memory, x + w + y + bias, (tarn_dtype)v->in_dtype, t->stream) && describe_columns(t, tensors, result);
}

static void close_bench(bench *t)
{
    if (t->memory)
        cudaFree(t->memory);
    if (t->scratch)
        cudaFree(t->scratch);
    cudaGetLastError();
}

static bool run_candidate(void *context, int candidate, int result)
{
    bench *t = context;
    if (candidate < t->count)
        return tarn__cudnn_conv_try(t->handle, t->conv, &t->plans[candidate], &t->operands[result]);
    tarn__view to = *t->call.out[0];
    tarn__call call = t->call;
    to.memory = t->results[result];
    call.out[0] = &to;
    tarn__cuda_device *device = tarn__cuda_at(t->index);
    bool had_failed = device->has_failed;
    device->has_failed = false;
    tarn__cuda_conv_columns(&call, (int)t->conv->what, true);
    bool is_good = !device->has_failed; /* a candidate that fails has only lost */
    device->has_failed = had_failed;
    return is_good;
}

/* The fastest candidate, or the first where there is no memory to time them in; remembered, so that later runs choose the same. -1 when none gives the
 * same bits twice. */
static int fastest(bench *t)
{
    int best = 0;
    if (open_bench(t)) {
        best = tarn__cuda_race_run(&(tarn__cuda_race){.count = t->count + 1, .context = t, .run = run_candidate,
                                                      .results = {t->results[0], t->results[1]}, .result_bytes = t->result_bytes,
                                                      .differ = t->differ, .stream = t->stream});
    }
    if (best >= 0)
        tarn__cuda_choice_keep(choices(), t->index, t->conv, &t->identity[best]);
    close_bench(t);
    return best;
}

/* ---- choosing -------------------------------------------------------------------------------------------------------------- */

static bool take_first(void *handle, tarn__cudnn_conv_plan *plan, tarn__cudnn_engine *engines, int count)
{
    for (int i = 0; i < count; i++)
        if (make_fitting_plan(handle, &engines[i], &plan->plan))
            return true;
    return false;
}

static bool take_known(void *handle, tarn__cudnn_conv_plan *plan, tarn__cudnn_engine *engines, int count, uint64_t identity)
{
    for (int i = 0; i < count; i++)
        if (engines[i].identity == identity)
            return make_fitting_plan(handle, &engines[i], &plan->plan);
    return false;
}

static bool take_fastest(int index, void *handle, tarn__cudnn_conv_plan *plan, tarn__cudnn_engine *engines, int count)
{
    bench t = {.index = index, .conv = &plan->conv, .handle = handle, .stream = tarn__cuda_at(index)->stream};
    for (int i = 0; i < count && t.count < MOST_TIMED; i++)
        if (engines[i].config && make_fitting_plan(handle, &engines[i], &t.plans[t.count]))
            t.identity[t.count++] = engines[i].identity;
    t.identity[t.count] = BY_COLUMNS;
    int best = t.count ? fastest(&t) : -1;
    plan->is_slower = best >= 0 && best == t.count;
    if (best >= 0 && best < t.count)
        plan->plan = t.plans[best];
    for (int i = 0; i < t.count; i++)
        if (i != best)
            tarn__cudnn_free_plan(&t.plans[i]);
    return best >= 0 && best < t.count;
}

bool tarn__cudnn_conv_choose(int index, void *handle, tarn__cudnn_conv_plan *plan, tarn__cudnn_engine *engines, int count)
{
    uint64_t identity;
    if (!must_measure(&plan->conv))
        return take_first(handle, plan, engines, count);
    if (tarn__cuda_choice_find(choices(), index, &plan->conv, &identity)) {
        plan->is_slower = identity == BY_COLUMNS;
        if (plan->is_slower || take_known(handle, plan, engines, count, identity))
            return !plan->is_slower;
    }
    return take_fastest(index, handle, plan, engines, count);
}
