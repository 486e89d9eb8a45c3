/* engine.c: engines: creation, requests and outputs. The step is in engine_step.c. */
#include "generate/engine.h"

#include <string.h>

#include "base/memory.h"

#define DEFAULT_SEQUENCES 32
#define MAX_SEQUENCES 1024
#define DEFAULT_PROMPT_TOKENS 512

int64_t tarn__engine_pages_for(int64_t tokens)
{
    return (tokens + TARN__KV_PAGE - 1) / TARN__KV_PAGE;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/* dtype of the cached keys and values; TARN_U8 stands for quantized rows (kv_q8). */
static tarn_dtype stored_dtype(tarn_kv_type kv_type, tarn_dtype of_model)
{
    static const tarn_dtype dtypes[] = {
        [TARN_KV_F32] = TARN_F32, [TARN_KV_BF16] = TARN_BF16, [TARN_KV_F16] = TARN_F16, [TARN_KV_Q8_0] = TARN_U8};
    return kv_type == TARN_KV_MODEL ? of_model : dtypes[kv_type];
}

/* Raises an invalid option; resolves defaults, except that of kv_bytes. */
static bool resolve(tarn_engine_options *o, const tarn__model_info *info)
{
    if (o->context < 0 || o->context > info->context)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".context is %lld; it must be from 1 to the model's %lld",
                           (long long)o->context, (long long)info->context);
    if (o->sequences < 0 || o->sequences > MAX_SEQUENCES)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".sequences is %lld; it must be from 1 to %d", (long long)o->sequences,
                           MAX_SEQUENCES);
    if (o->prompt_tokens < 0 || o->kv_bytes < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s is %lld; it must be at least 0",
                           o->prompt_tokens < 0 ? ".prompt_tokens" : ".kv_bytes",
                           (long long)(o->prompt_tokens < 0 ? o->prompt_tokens : o->kv_bytes));
    if (info->device_layers < info->layers)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%lld of the model's %lld layers are offloaded to the CPU; an engine "
                           "needs all layers on one device",
                           (long long)(info->layers - info->device_layers), (long long)info->layers);
    o->context = o->context ? o->context : info->context;
    o->sequences = o->sequences ? o->sequences : DEFAULT_SEQUENCES;
    o->prompt_tokens = o->prompt_tokens ? o->prompt_tokens : DEFAULT_PROMPT_TOKENS;
    return tarn_kv_type_name(o->kv_type) != NULL;
}

/* Number of pages by the budget. One context must fit, so that the oldest request can always go on. */
static bool count_pages(const tarn_engine_options *o, tarn__kv_pages_shape *shape)
{
    int64_t each = tarn__kv_pages_page_bytes(shape), least = tarn__engine_pages_for(o->context);
    shape->pages = o->kv_bytes ? o->kv_bytes / each : least * o->sequences;
    shape->pages = shape->pages < INT32_MAX / TARN__KV_PAGE ? shape->pages : INT32_MAX / TARN__KV_PAGE;
    return shape->pages >= least ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       ".kv_bytes is %lld, which holds %lld tokens; one context of %lld tokens needs %lld bytes",
                       (long long)o->kv_bytes, (long long)(shape->pages * TARN__KV_PAGE), (long long)o->context,
                       (long long)(least * each));
}

tarn_engine *tarn_engine_new_sized(tarn_module *model, const tarn_engine_options *options, size_t options_size)
{
    const char *function = "engine_new";
    tarn_engine own = {.model = model, .next_number = 1};
    if (options)
        memcpy(&own.options, options, options_size < sizeof(own.options) ? options_size : sizeof(own.options));
    if (tarn_failed() || !tarn__arch_of(function, model))
        return NULL;
    tarn__model_describe(model, &own.info);
    tarn__kv_pages_shape shape = {.layers = own.info.layers,
                                  .heads = own.info.kv_heads,
                                  .head_dim = own.info.head_dim,
                                  .device = own.info.device};
    if (!resolve(&own.options, &own.info)) {
        tarn__raise_within(function);
        return NULL;
    }
    shape.dtype = stored_dtype(own.options.kv_type, own.info.dtype);
    if (!count_pages(&own.options, &shape)) {
        tarn__raise_within(function);
        return NULL;
    }
    tarn_scope *scope = tarn_scope_open();
    tarn_engine *engine = scope ? tarn__alloc(sizeof(*engine)) : NULL;
    bool good = engine && tarn__page_pool_open(&own.pool, (int32_t)shape.pages, TARN__KV_PAGE) &&
                tarn__kv_pages_open(function, &own.pages, &shape);
    tarn_scope_close(scope);
    if (good) {
        *engine = own;
        return engine;
    }
    tarn__page_pool_close(&own.pool);
    tarn__release(engine, sizeof(*engine));
    return NULL;
}

void tarn_engine_free(tarn_engine *engine)
{
    if (!engine)
        return;
    while (engine->count > 0)
        tarn__engine_remove(engine, engine->request[engine->count - 1]);
    tarn__release(engine->request, sizeof(*engine->request) * (size_t)engine->capacity);
    tarn__release(engine->output, sizeof(*engine->output) * engine->output_capacity);
    tarn__page_pool_close(&engine->pool);
    tarn__kv_pages_close(&engine->pages);
    tarn__release(engine, sizeof(*engine));
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

void tarn__engine_release_pages(tarn_engine *e, tarn__request *r)
{
    while (r->pages > 0)
        tarn__page_pool_release(&e->pool, r->page[--r->pages]);
    r->published = 0;
    r->key = tarn__page_root(0);
    r->computed = r->planned = 0;
    r->is_running = false;
}

static void free_request(tarn__request *r)
{
    tarn__release(r->tokens, sizeof(*r->tokens) * (size_t)r->max_count);
    tarn__release(r->page, sizeof(*r->page) * (size_t)tarn__engine_pages_for(r->max_count));
    tarn__release(r->stop, sizeof(*r->stop) * (size_t)r->stop_count);
    tarn_sampler_free(r->sampler);
    tarn__release(r, sizeof(*r));
}

void tarn__engine_remove(tarn_engine *e, tarn__request *r)
{
    int at = 0;
    while (e->request[at] != r)
        at++;
    memmove(&e->request[at], &e->request[at + 1], sizeof(*e->request) * (size_t)(e->count - at - 1));
    e->count--;
    tarn__engine_release_pages(e, r);
    free_request(r);
}

/* Raises invalid arguments of a request; the caller adds the function's name. */
static bool check_request(const tarn_engine *e, const int32_t *tokens, int64_t count, const tarn_generate_options *o)
{
    if (!tokens || count < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "the prompt has no tokens; expected at least one");
    if (count >= e->options.context)
        return tarn__raise(TARN_ERROR_SHAPE, "the prompt has %lld tokens; it must be shorter than the context of %lld",
                           (long long)count, (long long)e->options.context);
    if (o->max_tokens < 0 || o->max_tokens > e->options.context - count)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".max_tokens is %lld; after a prompt of %lld it must be from 1 to %lld",
                           (long long)o->max_tokens, (long long)count, (long long)(e->options.context - count));
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= e->info.vocab_size)
            return tarn__raise(TARN_ERROR_ARGUMENT, "token %lld of the prompt is %d; it must be from 0 to %lld",
                               (long long)i, (int)tokens[i], (long long)e->info.vocab_size - 1);
    if (o->stop_count < 0 || (o->stop_count > 0 && !o->stop))
        return tarn__raise(TARN_ERROR_ARGUMENT, ".stop_count is %d; .stop must have at least that many tokens",
                           o->stop_count);
    const char *unsupported = o->stop_string_count             ? "stop_strings"
                              : o->logprobs || o->top_logprobs ? "logprobs"
                              : o->slide                       ? "slide"
                              : o->on_token                    ? "on_token"
                              : o->grammar                     ? "grammar"
                                                               : NULL;
    return !unsupported || tarn__raise(TARN_ERROR_UNSUPPORTED, ".%s is not supported by engines", unsupported);
}

/* A request with copies of everything; NULL with an error. */
static tarn__request *new_request(const tarn_engine *e, const int32_t *tokens, int64_t count,
                                  const tarn_generate_options *o)
{
    tarn__request *r = tarn__alloc(sizeof(*r));
    if (!r)
        return NULL;
    r->count = r->prompt = count;
    r->max_count = o->max_tokens ? count + o->max_tokens : e->options.context;
    r->key = tarn__page_root(0);
    r->ignore_eos = o->ignore_eos;
    r->stop_count = o->stop_count;
    r->tokens = tarn__alloc(sizeof(*r->tokens) * (size_t)r->max_count);
    r->page = tarn__alloc(sizeof(*r->page) * (size_t)tarn__engine_pages_for(r->max_count));
    r->stop = r->stop_count > 0 ? tarn__alloc(sizeof(*r->stop) * (size_t)r->stop_count) : NULL;
    r->sampler = tarn_sampler_new(&(tarn_sampler_options){.temperature = o->temperature,
                                                          .top_k = o->top_k,
                                                          .top_p = o->top_p,
                                                          .seed = o->seed,
                                                          .min_p = o->min_p,
                                                          .repeat_penalty = o->repeat_penalty,
                                                          .repeat_last_n = o->repeat_last_n});
    bool good = r->tokens && r->page && r->sampler && (r->stop || r->stop_count == 0);
    if (good) {
        memcpy(r->tokens, tokens, sizeof(*tokens) * (size_t)count);
        if (r->stop)
            memcpy(r->stop, o->stop, sizeof(*r->stop) * (size_t)r->stop_count);
    }
    if (good && o->repeat_penalty != 0) {
        tarn_scope *scope = tarn_scope_open();
        good = scope && tarn_sampler_accept(r->sampler, tarn_from_i32(tokens, TARN_SHAPE(1, count), e->info.device));
        tarn_scope_close(scope);
    }
    if (good)
        return r;
    free_request(r);
    return NULL;
}

/* Raises if the engine is NULL. */
static bool check_engine(const char *function, const tarn_engine *engine)
{
    if (tarn_failed())
        return false;
    return engine || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the engine is NULL", function);
}

int64_t tarn_engine_add_sized(tarn_engine *e, const int32_t *tokens, int64_t count,
                              const tarn_generate_options *options, size_t options_size)
{
    const char *function = "engine_add";
    tarn_generate_options o = {0};
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    if (!check_engine(function, e))
        return -1;
    tarn__request *r = check_request(e, tokens, count, &o) &&
                               tarn__list_reserve(&e->request, e->count, &e->capacity, sizeof(*e->request))
                           ? new_request(e, tokens, count, &o)
                           : NULL;
    if (!r) {
        tarn__raise_within(function);
        return -1;
    }
    r->number = e->next_number++;
    e->request[e->count++] = r;
    return r->number;
}

bool tarn_engine_cancel(tarn_engine *e, int64_t request)
{
    if (!check_engine("engine_cancel", e))
        return false;
    if (request < 1 || request >= e->next_number)
        return tarn__raise(TARN_ERROR_ARGUMENT, "engine_cancel: request %lld does not exist", (long long)request);
    for (int i = 0; i < e->count; i++)
        if (e->request[i]->number == request) {
            tarn__engine_remove(e, e->request[i]);
            break;
        }
    int left = e->first_output;
    for (int i = e->first_output; i < e->outputs; i++)
        if (e->output[i].request != request)
            e->output[left++] = e->output[i];
    e->outputs = left;
    return true;
}

/* ---- steps and outputs ------------------------------------------------------------------------------------------- */

int64_t tarn_engine_step(tarn_engine *e)
{
    if (!check_engine("engine_step", e))
        return -1;
    if (e->count > 0 && !tarn__engine_step(e)) {
        tarn__raise_within("engine_step");
        return -1;
    }
    return e->count + e->outputs - e->first_output;
}

bool tarn_engine_next_sized(tarn_engine *e, tarn_engine_output *output, size_t output_size)
{
    if (!check_engine("engine_next", e))
        return false;
    if (!output)
        return tarn__raise(TARN_ERROR_ARGUMENT, "engine_next: the output is NULL");
    if (e->first_output == e->outputs) {
        e->first_output = e->outputs = 0;
        return false;
    }
    memset(output, 0, output_size);
    memcpy(output, &e->output[e->first_output++], output_size < sizeof(*output) ? output_size : sizeof(*output));
    return true;
}

bool tarn_engine_query_sized(const tarn_engine *e, tarn_engine_stats *stats, size_t stats_size)
{
    if (!check_engine("engine_query", e))
        return false;
    if (!stats)
        return tarn__raise(TARN_ERROR_ARGUMENT, "engine_query: the stats are NULL");
    tarn_engine_stats now = e->stats;
    now.pages = e->pool.count;
    now.free_pages = tarn__page_pool_available(&e->pool);
    for (int i = 0; i < e->count; i++)
        *(e->request[i]->is_running ? &now.running : &now.waiting) += 1;
    memset(stats, 0, stats_size);
    memcpy(stats, &now, stats_size < sizeof(now) ? stats_size : sizeof(now));
    return true;
}
