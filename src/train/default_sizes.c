/* default_sizes.c: default sizes of a new language model: those that its device trains in minutes.
 *
 * A published model (gpt2-124m, llama-1b) has its sizes; a name without one (gpt2, llama, qwen3) is an architecture.
 * The choice depends on the kind of device and the amount of text alone, never on a measurement or the number of
 * threads, so that the same command is the same run everywhere. Given options are never changed; the others are
 * described in `chosen`, which the plan prints. */
#include "train/options.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "models/lm/arch.h"
#include "train/trainer.h"

/* A preset for up to `tokens` training tokens; 0 in the last row of a device: any number. Epochs are limited, since a
 * larger model memorizes a text in fewer. */
typedef struct preset {
    double tokens;
    int64_t layers, hidden_size, context, batch_size, max_epochs;
} preset;

static const preset cpu_presets[] = {{1e5, 2, 64, 64, 8, 100}, {0, 4, 128, 128, 8, 40}};
static const preset gpu_presets[] = {{3e5, 4, 128, 128, 32, 100}, {2e7, 6, 384, 256, 64, 20}, {0, 8, 512, 512, 64, 5}};

#define CPU_FLOPS 2e13   /* per run: two to five minutes on two cores */
#define GPU_FLOPS 2.5e15 /* per run: three minutes on a GPU of 15 TFLOP/s */

enum { MIN_STEPS = 300, MAX_CPU_STEPS = 3000, MAX_GPU_STEPS = 2000, MIN_BATCH = 4 };
enum { MIN_CONTEXT = 8, MIN_WINDOWS = 8 };        /* tokens in a window, and windows in a text, unless given */
enum { MIN_EVALUATIONS = 5, EVAL_FRACTION = 10 }; /* in a run; an evaluation has at most that part of its batches */

/* Heads follow from these. */
static bool has_shape(const tarn_train_options *o)
{
    return o->layers && o->hidden_size && o->context;
}

bool tarn__default_sizes_needed(const tarn_train_options *o)
{
    if (o->base[0] || (has_shape(o) && o->heads))
        return false;
    return !o->model[0] || tarn__arch_find(o->model);
}

/* ---- description ------------------------------------------------------------------------------------------------- */

/* Appends to `chosen`, truncated if it is full. */
static void note(tarn_trainer *t, const char *format, ...) TARN_PRINTF(2, 3);
static void note(tarn_trainer *t, const char *format, ...)
{
    size_t used = strlen(t->chosen);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(t->chosen + used, sizeof(t->chosen) - used, format, arguments);
    va_end(arguments);
}

/* Sets and notes a size unless it was given. */
static void choose(tarn_trainer *t, const char *name, int64_t *size, int64_t value)
{
    if (*size)
        return;
    *size = value;
    note(t, ", %s %" PRId64, name, value);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static bool is_gpu(const tarn_trainer *t)
{
    tarn_device_info info = {0};
    return tarn_device_query(t->device, &info) && strcmp(info.type, "gpu") == 0;
}

static preset preset_for(bool on_gpu, int64_t tokens)
{
    const preset *row = on_gpu ? gpu_presets : cpu_presets;
    while (row->tokens > 0 && (double)tokens > row->tokens)
        row++;
    return *row;
}

/* Heads with a head_dim of 32, of large models 64, that divide the hidden size; a multiple of kv_heads. RoPE needs an
 * even head_dim. */
static int64_t heads_for(int64_t hidden_size, int64_t kv_heads)
{
    int64_t step = kv_heads ? kv_heads : 1, heads = hidden_size / (hidden_size < 256 ? 32 : 64) / step * step;
    while (heads > step && (hidden_size % heads || hidden_size / heads % 2))
        heads -= step;
    return heads > step ? heads : step;
}

/* Hidden size, rounded up so that given heads divide it with an even head_dim. */
static int64_t hidden_size_for(int64_t hidden_size, int64_t heads)
{
    return heads ? (hidden_size + 2 * heads - 1) / (2 * heads) * (2 * heads) : hidden_size;
}

/* A short text gets a shorter context: MIN_WINDOWS windows must fit. */
static int64_t context_for(int64_t context, int64_t tokens)
{
    while (context > MIN_CONTEXT && context * MIN_WINDOWS > tokens)
        context /= 2;
    return context;
}

/* ---- length ------------------------------------------------------------------------------------------------------ */

static int64_t clamp(double value, int64_t low, int64_t high)
{
    return value < (double)low ? low : value > (double)high ? high : (int64_t)value;
}

/* Steps of `batch_size` windows that the device runs in minutes, by the FLOPs of matmuls: 6 per parameter and token,
 * and 12 per layer, channel and position for attention. 0 with an error. */
static double steps_for(const char *function, const tarn_trainer *t, int64_t batch_size, bool on_gpu)
{
    const tarn_train_options *o = &t->options;
    tarn__model_sizes sizes = {.vocab_size = o->vocab_size,
                               .context = o->context,
                               .layers = o->layers,
                               .heads = o->heads,
                               .kv_heads = o->kv_heads,
                               .hidden_size = o->hidden_size,
                               .ffn_size = o->ffn_size};
    if (!tarn__model_complete_sizes(function, o->model, &sizes))
        return 0;
    double of_token =
        6 * tarn__model_parameter_count(o->model, &sizes) + 12.0 * (double)(o->layers * o->hidden_size * o->context);
    return (on_gpu ? GPU_FLOPS : CPU_FLOPS) / (of_token * (double)(batch_size * o->context));
}

/* About as many tokens per step as in the preset, a multiple of the micro-batch; fewer if the model is so large (a
 * vocabulary of 50,000) that there would be few steps. */
static int64_t batch_for(const char *function, const tarn_trainer *t, const preset *p, bool on_gpu)
{
    const tarn_train_options *o = &t->options;
    int64_t micro_batch = (o->micro_batch ? o->micro_batch : 1) * t->ranks.virtual_ranks,
            batch = clamp((double)(p->batch_size * p->context / o->context), 1, 2 * p->batch_size);
    while (batch > MIN_BATCH && steps_for(function, t, batch, on_gpu) < MIN_STEPS)
        batch /= 2;
    return (batch + micro_batch - 1) / micro_batch * micro_batch;
}

/* Whole epochs of a short text; a number of steps, less than an epoch, of a long one. */
static void choose_length(tarn_trainer *t, int64_t steps, int64_t in_epoch, int64_t max_epochs)
{
    tarn_train_options *o = &t->options;
    if (in_epoch > steps) {
        o->steps = steps;
        note(t, ", %" PRId64 " steps", steps);
        return;
    }
    o->epochs = clamp((double)steps / (double)in_epoch + 0.5, 1, max_epochs);
    note(t, ", %" PRId64 " epoch%s", o->epochs, o->epochs > 1 ? "s" : "");
}

/* A long text is evaluated before its first epoch ends, on a part of the val set. */
static void choose_evaluations(tarn_trainer *t, int64_t steps, int64_t in_epoch)
{
    tarn_train_options *o = &t->options;
    int64_t every = steps / MIN_EVALUATIONS, batches = steps / EVAL_FRACTION;
    every = every > o->log_every ? every : o->log_every;
    if (!o->eval_every && in_epoch > every)
        o->eval_every = every;
    if (!o->eval_batches && t->corpus.validation.count / o->context / o->batch_size > batches)
        o->eval_batches = batches;
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

bool tarn__default_sizes_choose(const char *function, tarn_trainer *t, int64_t known_tokens)
{
    tarn_train_options *o = &t->options;
    if (has_shape(o)) {
        o->heads = heads_for(o->hidden_size, o->kv_heads);
        return true;
    }
    bool on_gpu = is_gpu(t), is_counted = known_tokens >= 0;
    int64_t tokens = is_counted ? known_tokens : (int64_t)1e6;
    preset p = preset_for(on_gpu, tokens);
    if (tarn_failed())
        return tarn__raise_within(function);
    note(t, "to train in minutes on a %s", on_gpu ? "GPU" : "CPU");
    if (is_counted)
        note(t, " with %" PRId64 " tokens", tokens);
    size_t begin = strlen(t->chosen);
    choose(t, "layers", &o->layers, p.layers);
    choose(t, "hidden_size", &o->hidden_size, hidden_size_for(p.hidden_size, o->heads ? o->heads : o->kv_heads));
    choose(t, "heads", &o->heads, heads_for(o->hidden_size, o->kv_heads));
    choose(t, "context", &o->context, is_counted ? context_for(p.context, tokens) : 2 * p.context);
    if (!t->is_batch_given) {
        o->batch_size = 0;
        choose(t, "batch size", &o->batch_size, batch_for(function, t, &p, on_gpu));
    }
    int64_t steps =
        clamp(steps_for(function, t, o->batch_size, on_gpu), MIN_STEPS, on_gpu ? MAX_GPU_STEPS : MAX_CPU_STEPS);
    if (is_counted && !t->is_length_given) {
        int64_t windows = (tokens - 1) / o->context, in_epoch = windows > o->batch_size ? windows / o->batch_size : 1;
        choose_length(t, steps, in_epoch, p.max_epochs);
        choose_evaluations(t, o->steps ? o->steps : o->epochs * in_epoch, in_epoch);
    }
    t->chosen[begin] = ':'; /* instead of the first comma */
    return !tarn_failed();
}
