/* benchmark.c: tarn_decode_measure(): prefill and decode speed of a model with random weights. */
#include <stdlib.h>
#include <string.h>
#include <tarn/autograd.h>
#include <tarn/profile.h>
#include <time.h>

#include "base/memory.h"
#include "generate/decoder.h"
#include "models/hf/weights.h"

enum { MAX_RUNS = 100, WARM_UP = 8, PATTERN_ROWS = 64 };

/* State of one measurement. Owns the model, the decoder, the sampler and the prompt; freed by tarn_decode_measure(). */
typedef struct benchmark {
    tarn_decode_options options;
    tarn_module *model;
    tarn_decoder *decoder;
    tarn_sampler *sampler;
    tarn_tensor *prompt;
    double prompt_ms[MAX_RUNS], first_ms[MAX_RUNS], token_ms[MAX_RUNS];
} benchmark;

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* ---- quantized weights ------------------------------------------------------------------------------------------- */

/* A random quantized matrix like `like`: its rows repeat PATTERN_ROWS quantized ones, since quantizing all of them
 * takes minutes. */
static tarn_tensor *random_quantized(const tarn_tensor *like, tarn_dtype dtype)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_device device = tarn_device_of(like);
    int64_t rows = tarn_size(like, 0), columns = tarn_size(like, 1), few = rows < PATTERN_ROWS ? rows : PATTERN_ROWS;
    tarn_tensor *some =
        tarn_to(tarn_cast(tarn_normal(TARN_SHAPE(few, columns), 0, 0.02, TARN_F32, tarn_device_cpu()), dtype), device);
    tarn_tensor *all = some ? tarn_empty(TARN_SHAPE(rows, columns), dtype, device) : NULL;
    for (int64_t row = 0; all && row < rows && !tarn_failed(); row += few) {
        int64_t count = rows - row < few ? rows - row : few;
        tarn_copy(tarn_slice(all, 0, row, row + count), tarn_slice(some, 0, 0, count));
    }
    all = tarn_failed() ? NULL : tarn_scope_return(scope, all);
    tarn_scope_close(scope);
    return all;
}

/* Replaces every matrix of a module and its children by a quantized one; a shared tensor (tied embeddings) by the
 * same one. */
static bool quantize_matrices(tarn_module *module, tarn_dtype dtype, tarn_tensor **old_embedding,
                              tarn_tensor **new_embedding, tarn__fallback *fallback)
{
    for (int i = 0; i < module->parameters; i++) {
        tarn__parameter *p = &module->parameter[i];
        const tarn__view *view = &p->tensor->view;
        if (view->rank != 2)
            continue;
        tarn_dtype chosen =
            tarn__quant_type_for_row(view->shape[1], dtype, view->dtype); /* as tarn quantize chooses it */
        if (p->tensor != *old_embedding)                                  /* counted once if the embeddings are tied */
            tarn__fallback_add(fallback, view->shape[1], dtype, chosen);
        if (chosen == view->dtype)
            continue;
        tarn_tensor *quantized = p->tensor == *old_embedding ? *new_embedding : random_quantized(p->tensor, chosen);
        if (!quantized)
            return false;
        if (!*old_embedding) { /* the first matrix of a language model is its token embedding */
            *old_embedding = p->tensor;
            *new_embedding = quantized;
            tarn__tensor_retain(p->tensor);
        }
        tarn__tensor_retain(quantized);
        tarn__tensor_release(p->tensor);
        p->tensor = quantized;
    }
    for (int i = 0; i < module->children; i++)
        if (!quantize_matrices(module->child[i], dtype, old_embedding, new_embedding, fallback))
            return false;
    return true;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static bool is_quantized(tarn_dtype dtype)
{
    return tarn_dtype_block_size(dtype) > 1;
}

/* Creates the model with random weights, quantizes its matrices if asked, and offloads layers. A prompt, the decoded
 * tokens and the warm-up must fit the architecture's context, which grows beyond the default of the size if needed. */
static bool make_model(benchmark *m)
{
    const tarn_decode_options *o = &m->options;
    bool on_cpu = tarn_device_equal(o->device, tarn_device_cpu());
    /* of norms and activations */
    tarn_dtype float_dtype = !is_quantized(o->dtype) ? o->dtype : on_cpu ? TARN_F32 : TARN_BF16;
    const tarn__arch *arch = tarn__arch_find_trainable(o->model);
    tarn__model_sizes sizes = {.dtype = float_dtype,
                               .vocab_size = o->vocab_size,
                               .layers = o->layers,
                               .heads = o->heads,
                               .hidden_size = o->hidden_size};
    if (!arch)
        return tarn__raise(TARN_ERROR_ARGUMENT, "language model '%.64s' not found", o->model);
    if (is_quantized(o->dtype) && arch->linear == TARN__LINEAR_IN_OUT)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s weights are supported for the Llama family; %.64s supports f32, bf16 and f16",
                           tarn_dtype_name(o->dtype), o->model);
    if (!tarn__model_complete_sizes("decode_measure", o->model, &sizes))
        return false;
    const tarn__device_map map = tarn__device_map_offload(o->device, o->device_layers);
    if (!tarn__device_map_check("decode_measure", &map, sizes.layers))
        return false;
    int64_t needed = o->prompt + o->tokens + WARM_UP;
    if (sizes.max_context < needed)
        return tarn__raise(TARN_ERROR_ARGUMENT, "a prompt of %lld tokens and %lld more exceed the context of %lld",
                           (long long)o->prompt, (long long)o->tokens + WARM_UP, (long long)sizes.max_context);
    sizes.context = sizes.context < needed ? needed : sizes.context;
    /* an offloaded model may not fit there as a whole */
    tarn_device first = o->device_layers ? tarn_device_cpu() : o->device;
    if (!(m->model = tarn__model_create("decode_measure", o->model, &sizes, first, 1)) ||
        !tarn_module_train(m->model, false))
        return false;
    tarn_tensor *old_embedding = NULL, *new_embedding = NULL;
    tarn__fallback fallback = {0};
    bool good =
        !is_quantized(o->dtype) || quantize_matrices(m->model, o->dtype, &old_embedding, &new_embedding, &fallback);
    tarn__fallback_log(&fallback, o->dtype);
    if (old_embedding)
        tarn__tensor_release(old_embedding);
    return good && (!o->device_layers || tarn_model_offload(m->model, o->device, o->device_layers));
}

/* The model, a decoder of exactly the tokens needed, a greedy sampler, and a random prompt i64 [sequences, prompt]
 * on the device. */
static bool prepare(benchmark *m)
{
    const tarn_decode_options *o = &m->options;
    if (!make_model(m))
        return false;
    const tarn_decoder_options how = {.batch = o->sequences,
                                      .context = o->prompt + o->tokens + WARM_UP,
                                      .kv_type = o->kv_type,
                                      .prefill_chunk = o->prefill_chunk ? o->prefill_chunk : o->prompt};
    m->decoder = tarn_decoder_new(m->model, &how);
    m->sampler = m->decoder ? tarn_sampler_new(NULL) : NULL;
    if (!m->sampler)
        return false;
    tarn_tensor *values = tarn_uniform(TARN_SHAPE(o->sequences, o->prompt), 0, (double)m->decoder->info.vocab_size - 1,
                                       TARN_F32, o->device);
    m->prompt = values ? tarn__scope_take(tarn_cast(values, TARN_I64)) : NULL;
    return m->prompt != NULL;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* Feeds *token, samples the next one, and reads it on the host. Replaces *token, which is freed. */
static bool decode_one(const benchmark *m, tarn_tensor **token)
{
    int64_t ids[1024];
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *next = scope ? tarn_sampler_sample(m->sampler, tarn_decoder_feed(m->decoder, *token)) : NULL;
    bool good = next && tarn_read(next, ids, sizeof(*ids) * (size_t)m->options.sequences);
    for (int64_t i = 0; good && i < m->options.sequences; i++)
        good = ids[i] >= 0 || tarn__raise(TARN_ERROR_FORMAT, "decode_measure: the logits are not finite");
    tarn_free(*token);
    *token = good ? tarn__scope_take(next) : NULL;
    tarn_scope_close(scope);
    return good;
}

/* One prompt, and o->tokens decode steps after it. */
static bool run_once(benchmark *m, int run)
{
    const tarn_decode_options *o = &m->options;
    tarn_device device = o->device;
    tarn_tensor *token = NULL;
    if (!tarn_decoder_rewind(m->decoder, 0) || !tarn_synchronize(device))
        return false;
    double begin = now_ms();
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *logits = tarn_decoder_feed(m->decoder, m->prompt);
    bool good = logits && tarn_synchronize(device);
    m->prompt_ms[run] = now_ms() - begin;
    token = good ? tarn__scope_take(tarn_sampler_sample(m->sampler, logits)) : NULL;
    good = token && tarn_synchronize(device);
    m->first_ms[run] = now_ms() - begin;
    tarn_scope_close(scope);
    for (int i = 0; good && i < WARM_UP; i++)
        good = decode_one(m, &token);
    begin = now_ms();
    for (int64_t i = 0; good && i < o->tokens; i++)
        good = decode_one(m, &token);
    m->token_ms[run] = (now_ms() - begin) / (double)o->tokens;
    tarn_free(token);
    return good;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the times: the minimum is then the first. */
static double median(double *times, int64_t count)
{
    qsort(times, (size_t)count, sizeof(*times), compare);
    return times[count / 2];
}

/* Bytes of the weights, and of those read per token: all but a token embedding that is not the head, of which only
 * rows are gathered. */
static void count_bytes(const benchmark *m, tarn_decode_timing *t)
{
    const tarn_tensor *head = tarn__module_own(m->model->child[TARN__MODEL_HEAD], "weight");
    const tarn_tensor *embedding = tarn_module_parameter(m->model, 0);
    for (int i = 0; i < tarn_module_parameter_count(m->model); i++) {
        const tarn_tensor *p = tarn_module_parameter(m->model, i);
        t->parameters += tarn_count(p);
        t->weight_bytes += tarn_bytes(p);
    }
    t->read_bytes = t->weight_bytes - (embedding != head ? tarn_bytes(embedding) : 0);
    t->cache_bytes = tarn__kv_cache_token_bytes(&m->decoder->cache.shape, m->decoder->cache.shape.layers) *
                     m->decoder->cache.shape.capacity * m->options.sequences;
}

/* The first run tunes kernels and captures the decode step; its times are overwritten. Medians over the others. */
static bool measure(benchmark *m, tarn_decode_timing *t)
{
    int64_t runs = m->options.runs;
    bool good = prepare(m);
    if (good)
        tarn_stats_reset();
    good = good && run_once(m, 0); /* tunes kernels, and captures the decode step */
    for (int i = 0; good && i < runs; i++)
        good = run_once(m, i);
    if (!good)
        return false;
    count_bytes(m, t);
    t->peak_bytes = tarn_memory_of(m->options.device).peak_used;
    t->prompt_ms = median(m->prompt_ms, runs);
    t->first_ms = median(m->first_ms, runs);
    t->token_ms = median(m->token_ms, runs);
    t->min_token_ms = m->token_ms[0];
    return true;
}

/* Resolves defaults and raises invalid options. */
static bool check_options(tarn_decode_options *o)
{
    o->prompt = o->prompt ? o->prompt : 512;
    o->tokens = o->tokens ? o->tokens : 64;
    o->sequences = o->sequences ? o->sequences : 1;
    o->runs = o->runs ? o->runs : 3;
    bool is_number = o->dtype == TARN_F32 || o->dtype == TARN_F64 || o->dtype == TARN_BF16 || o->dtype == TARN_F16;
    if (!is_number && ((unsigned)o->dtype >= TARN_DTYPE_COUNT || !is_quantized(o->dtype)))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "decode_measure: .dtype is %d; it must be f32, f64, bf16, f16 or a quantized dtype",
                           (int)o->dtype);
    if (!o->model)
        return tarn__raise(TARN_ERROR_ARGUMENT, "decode_measure: the model's name is NULL");
    if (o->prompt < 1 || o->prompt > INT32_MAX || o->tokens < 1 || o->tokens > INT32_MAX || o->sequences < 1 ||
        o->sequences > 1024 || o->runs < 1 || o->runs > MAX_RUNS)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "decode_measure: .tokens is %lld, .prompt %lld, .sequences %lld, .runs %lld; each must be "
                           "at least 1, .sequences at most 1024, .runs at most %d",
                           (long long)o->tokens, (long long)o->prompt, (long long)o->sequences, (long long)o->runs,
                           MAX_RUNS);
    return true;
}

bool tarn_decode_measure_sized(tarn_decode_timing *timing, size_t timing_size, const tarn_decode_options *options,
                               size_t options_size)
{
    const char *function = "decode_measure";
    tarn_decode_timing found = {0};
    if (tarn_failed())
        return false;
    if (!options || !timing)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s", function,
                           options ? "timing is NULL" : "options are NULL");
    benchmark *m = tarn__alloc(sizeof(*m));
    if (!m)
        return false;
    memcpy(&m->options, options, options_size < sizeof(m->options) ? options_size : sizeof(m->options));
    bool good = check_options(&m->options);
    if (good) {
        tarn_scope *scope = tarn_scope_open();
        good = (scope && measure(m, &found)) || tarn__raise_within(function);
        tarn_scope_close(scope);
    }
    tarn_free(m->prompt);
    tarn_sampler_free(m->sampler);
    tarn_decoder_free(m->decoder);
    tarn_module_free(m->model);
    tarn__release(m, sizeof(*m));
    if (good) {
        memset(timing, 0, timing_size);
        memcpy(timing, &found, timing_size < sizeof(found) ? timing_size : sizeof(found));
    }
    return good;
}
