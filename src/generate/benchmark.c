/* benchmark.c: how fast a model of random weights reads a prompt and decodes. */
#include <stdlib.h>
#include <string.h>
#include <tarn/autograd.h>
#include <tarn/profile.h>
#include <time.h>

#include "base/memory.h"
#include "generate/decoder.h"
#include "models/hf/weights.h"

enum { MOST_RUNS = 100, WARM_UP = 8, PATTERN_ROWS = 64 };

typedef struct measuring {
    tarn_decode_options options;
    tarn_module *model;
    tarn_decoder *decoder;
    tarn_sampler *sampler;
    tarn_tensor *prompt;
    double prompt_ms[MOST_RUNS], first_ms[MOST_RUNS], token_ms[MOST_RUNS];
} measuring;

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* ---- weights of blocks ------------------------------------------------------------------------------------------- */

/* A matrix of random blocks: all rows are made of a few, which takes less time than to pack them all. */
static tarn_tensor *make_blocks(const tarn_tensor *like, tarn_dtype dtype)
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

/* Puts blocks in the place of every matrix of a module and its children; a tensor that stands in two places gets the
 * same ones in both. */
static bool use_blocks(tarn_module *module, tarn_dtype dtype, tarn_tensor **old_table, tarn_tensor **new_table,
                       tarn__fallback *fallback)
{
    for (int i = 0; i < module->parameters; i++) {
        tarn__parameter *p = &module->parameter[i];
        const tarn__view *view = &p->tensor->view;
        if (view->rank != 2)
            continue;
        tarn_dtype chosen = tarn__quant_type_for_row(view->shape[1], dtype, view->dtype); /* as tarn quantize does it */
        if (p->tensor != *old_table) /* once where tokens and head share it */
            tarn__fallback_add(fallback, view->shape[1], dtype, chosen);
        if (chosen == view->dtype)
            continue;
        tarn_tensor *blocks = p->tensor == *old_table ? *new_table : make_blocks(p->tensor, chosen);
        if (!blocks)
            return false;
        if (!*old_table) { /* the first matrix of a language model is its table of tokens */
            *old_table = p->tensor;
            *new_table = blocks;
            tarn__tensor_retain(p->tensor);
        }
        tarn__tensor_retain(blocks);
        tarn__tensor_release(p->tensor);
        p->tensor = blocks;
    }
    for (int i = 0; i < module->children; i++)
        if (!use_blocks(module->child[i], dtype, old_table, new_table, fallback))
            return false;
    return true;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static bool is_blocks(tarn_dtype dtype)
{
    return tarn_dtype_block_size(dtype) > 1;
}

static bool make_model(measuring *m)
{
    const tarn_decode_options *o = &m->options;
    bool on_cpu = tarn_device_equal(o->device, tarn_device_cpu());
    /* of norms, and of all that passes between matrices */
    tarn_dtype plain = !is_blocks(o->dtype) ? o->dtype : on_cpu ? TARN_F32 : TARN_BF16;
    const tarn__arch *kind = tarn__arch_find_trainable(o->model);
    tarn__model_sizes sizes = {.dtype = plain,
                               .vocab_size = o->vocab_size,
                               .layers = o->layers,
                               .heads = o->heads,
                               .hidden_size = o->hidden_size};
    if (!kind)
        return tarn__raise(TARN_ERROR_ARGUMENT, "there is no language model of the name '%.64s'", o->model);
    if (is_blocks(o->dtype) && kind->linear == TARN__LINEAR_IN_OUT)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "weights of %s are measured in models of the Llama family; %.64s takes f32, bf16 or f16",
                           tarn_dtype_name(o->dtype), o->model);
    if (!kind->complete("decode_measure", o->model, &sizes))
        return false;
    if (!tarn__device_map_check("decode_measure", &(tarn__device_map){o->device, o->device_layers}, sizes.layers))
        return false;
    int64_t needed = o->prompt + o->tokens + WARM_UP;
    if (sizes.max_context < needed)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%lld tokens of a prompt and %lld more are more than the context of %lld",
                           (long long)o->prompt, (long long)o->tokens + WARM_UP, (long long)sizes.max_context);
    sizes.context = sizes.context < needed ? needed : sizes.context;
    /* a model that does not fit there is made elsewhere */
    tarn_device first = o->device_layers ? tarn_device_cpu() : o->device;
    if (!(m->model = kind->create("decode_measure", o->model, &sizes, first, 1)) || !tarn_module_train(m->model, false))
        return false;
    tarn_tensor *old_table = NULL, *new_table = NULL;
    tarn__fallback fallback = {0};
    bool good = !is_blocks(o->dtype) || use_blocks(m->model, o->dtype, &old_table, &new_table, &fallback);
    tarn__fallback_log(&fallback, o->dtype);
    if (old_table)
        tarn__tensor_release(old_table);
    return good && (!o->device_layers || tarn_model_offload(m->model, o->device, o->device_layers));
}

static bool prepare(measuring *m)
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
    tarn_tensor *numbers = tarn_uniform(TARN_SHAPE(o->sequences, o->prompt), 0, (double)m->decoder->info.vocab_size - 1,
                                        TARN_F32, o->device);
    m->prompt = numbers ? tarn__scope_take(tarn_cast(numbers, TARN_I64)) : NULL;
    return m->prompt != NULL;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* The next token of every sequence, read by the host; kept in the place of *token, which is freed. */
static bool decode_one(const measuring *m, tarn_tensor **token)
{
    int64_t ids[1024];
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *next = scope ? tarn_sampler_sample(m->sampler, tarn_decoder_feed(m->decoder, *token)) : NULL;
    bool good = next && tarn_read(next, ids, sizeof(*ids) * (size_t)m->options.sequences);
    for (int64_t i = 0; good && i < m->options.sequences; i++)
        good = ids[i] >= 0 || tarn__raise(TARN_ERROR_FORMAT, "decode_measure: the logits of a token are not finite");
    tarn_free(*token);
    *token = good ? tarn__scope_take(next) : NULL;
    tarn_scope_close(scope);
    return good;
}

/* One prompt, and tokens after it. */
static bool run_once(measuring *m, int run)
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

static double median(double *figures, int64_t count)
{
    qsort(figures, (size_t)count, sizeof(*figures), compare);
    return figures[count / 2];
}

/* Bytes of weights; those that a token needs have no table of which only rows are taken. */
static void weigh(const measuring *m, tarn_decode_timing *t)
{
    const tarn_tensor *head = tarn__module_own(m->model->child[TARN__MODEL_HEAD], "weight");
    const tarn_tensor *table = tarn_module_parameter(m->model, 0);
    for (int i = 0; i < tarn_module_parameter_count(m->model); i++) {
        const tarn_tensor *p = tarn_module_parameter(m->model, i);
        t->parameters += tarn_count(p);
        t->weight_bytes += tarn_bytes(p);
    }
    t->read_bytes = t->weight_bytes - (table != head ? tarn_bytes(table) : 0);
    t->cache_bytes = tarn__kv_cache_token_bytes(&m->decoder->cache.shape, m->decoder->cache.shape.layers) *
                     m->decoder->cache.shape.capacity * m->options.sequences;
}

static bool measure(measuring *m, tarn_decode_timing *t)
{
    int64_t runs = m->options.runs;
    bool good = prepare(m);
    if (good)
        tarn_stats_reset();
    good = good && run_once(m, 0); /* algorithms are chosen, and the step is recorded */
    for (int i = 0; good && i < runs; i++)
        good = run_once(m, i);
    if (!good)
        return false;
    weigh(m, t);
    t->peak_bytes = tarn_memory_of(m->options.device).peak_used;
    t->prompt_ms = median(m->prompt_ms, runs);
    t->first_ms = median(m->first_ms, runs);
    t->token_ms = median(m->token_ms, runs);
    t->min_token_ms = m->token_ms[0];
    return true;
}

static bool check_options(tarn_decode_options *o)
{
    o->prompt = o->prompt ? o->prompt : 512;
    o->tokens = o->tokens ? o->tokens : 64;
    o->sequences = o->sequences ? o->sequences : 1;
    o->runs = o->runs ? o->runs : 3;
    bool is_number = o->dtype == TARN_F32 || o->dtype == TARN_F64 || o->dtype == TARN_BF16 || o->dtype == TARN_F16;
    if (!is_number && ((unsigned)o->dtype >= TARN_DTYPE_COUNT || !is_blocks(o->dtype)))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "decode_measure: weights cannot be of dtype %d; they are f32, f64, bf16, f16 or blocks",
                           (int)o->dtype);
    if (!o->model)
        return tarn__raise(TARN_ERROR_ARGUMENT, "decode_measure: the model's name is NULL");
    if (o->prompt < 1 || o->prompt > INT32_MAX || o->tokens < 1 || o->tokens > INT32_MAX || o->sequences < 1 ||
        o->sequences > 1024 || o->runs < 1 || o->runs > MOST_RUNS)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "decode_measure: %lld tokens after %lld in %lld sequences, %lld times: at least one of "
                           "each, and at most 1024 and %d of the last two",
                           (long long)o->tokens, (long long)o->prompt, (long long)o->sequences, (long long)o->runs,
                           MOST_RUNS);
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
    measuring *m = tarn__alloc(sizeof(*m));
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
