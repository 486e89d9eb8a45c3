/* engine.c: engines: creation, steps, waiting, and what they report. Requests are in engine_request.c, the step's parts
 * in engine_step.c and engine_sample.c. */
#include "generate/engine/engine.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "models/lora/lora.h"

#define DEFAULT_SEQUENCES 32
#define MAX_SEQUENCES 1024
#define DEFAULT_PROMPT_TOKENS 512

int64_t tarn__engine_pages_for(int64_t tokens)
{
    return (tokens + TARN__KV_PAGE - 1) / TARN__KV_PAGE;
}

/* A step computes at most `prompt_tokens` tokens of a request; with those in the window of the first one they may begin
 * and end anywhere in a page. */
int64_t tarn__engine_max_pages(const tarn_engine *e, int64_t tokens)
{
    int64_t all = tarn__engine_pages_for(tokens), step = e->options.prompt_tokens;
    if (e->window == 0 || e->window - 1 + step >= tokens)
        return all;
    int64_t held = (e->window - 1 + step + 2 * (TARN__KV_PAGE - 1)) / TARN__KV_PAGE;
    return held < all ? held : all;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

tarn_dtype tarn__engine_stored_dtype(tarn_kv_type kv_type, tarn_dtype of_model)
{
    static const tarn_dtype dtypes[] = {
        [TARN_KV_F32] = TARN_F32, [TARN_KV_BF16] = TARN_BF16, [TARN_KV_F16] = TARN_F16, [TARN_KV_Q8_0] = TARN_U8};
    return kv_type == TARN_KV_MODEL ? of_model : dtypes[kv_type];
}

/* Raises an invalid option; resolves defaults, except that of kv_bytes. `short_context`: of longrope; 0: none. */
static bool resolve(tarn_engine_options *o, const tarn__model_info *info, const tarn__device_map *map,
                    int64_t short_context)
{
    if (o->context < 0 || o->context > info->context)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".context is %lld; it must be from 1 to the model's %lld",
                           (long long)o->context, (long long)info->context);
    if (o->sequences < 0 || o->sequences > MAX_SEQUENCES)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".sequences is %lld; it must be from 1 to %d", (long long)o->sequences,
                           MAX_SEQUENCES);
    if (o->swap_bytes < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".swap_bytes is %lld; it must be at least 0", (long long)o->swap_bytes);
    if (o->swap_bytes > 0 && tarn__device_map_is_cpu(map))
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           ".swap_bytes is %lld, and the device is the CPU, where all pages are in host memory; give "
                           "these bytes to .kv_bytes (--kv-memory)",
                           (long long)o->swap_bytes);
    if (o->prompt_tokens < 0 || o->kv_bytes < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s is %lld; it must be at least 0",
                           o->prompt_tokens < 0 ? ".prompt_tokens" : ".kv_bytes",
                           (long long)(o->prompt_tokens < 0 ? o->prompt_tokens : o->kv_bytes));
    o->context = o->context ? o->context : short_context ? short_context : info->context;
    o->sequences = o->sequences ? o->sequences : DEFAULT_SEQUENCES;
    o->prompt_tokens = o->prompt_tokens ? o->prompt_tokens : DEFAULT_PROMPT_TOKENS;
    return tarn_kv_type_name(o->kv_type) != NULL;
}

/* Number of pages by the budget. One context must fit, so that the oldest request can always go on. */
static bool count_pages(const tarn_engine *e, tarn__kv_pages_shape *shape)
{
    const tarn_engine_options *o = &e->options;
    int64_t each = tarn__kv_pages_page_bytes(shape), least = tarn__engine_max_pages(e, o->context);
    shape->pages = o->kv_bytes ? o->kv_bytes / each : least * o->sequences;
    shape->pages = shape->pages < INT32_MAX / TARN__KV_PAGE ? shape->pages : INT32_MAX / TARN__KV_PAGE;
    return shape->pages >= least ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       ".kv_bytes is %lld, which holds %lld tokens; one context of %lld tokens needs %lld bytes",
                       (long long)o->kv_bytes, (long long)(shape->pages * TARN__KV_PAGE), (long long)o->context,
                       (long long)(least * each));
}

/* Waits by the monotonic clock: a change of the time of day neither ends nor prolongs them. */
static void open_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
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
    own.window = tarn__model_window(model);
    own.short_context = tarn__arch_of(function, model)->has_longrope ? tarn__model_short_context(model) : 0;
    tarn__kv_pages_shape shape = {.layers = own.info.layers, .heads = own.info.kv_heads, .head_dim = own.info.head_dim};
    if (!tarn__model_device_map(function, model, &shape.map))
        return NULL;
    if (!resolve(&own.options, &own.info, &shape.map, tarn__model_short_context(model))) {
        tarn__raise_within(function);
        return NULL;
    }
    shape.dtype = tarn__engine_stored_dtype(own.options.kv_type, own.info.dtype);
    if (!count_pages(&own, &shape)) {
        tarn__raise_within(function);
        return NULL;
    }
    tarn_scope *scope = tarn_scope_open();
    tarn_engine *engine = scope ? tarn__alloc(sizeof(*engine)) : NULL;
    bool good = engine && tarn__kv_pages_open(function, &own.pages, &shape) && tarn__engine_open_swap(&own) &&
                tarn__page_pool_open(&own.pool, (int32_t)shape.pages, own.swap.count, TARN__ENGINE_PAGE_TOKENS) &&
                tarn__engine_open_draft(function, &own, shape.pages);
    tarn_scope_close(scope);
    if (good) {
        *engine = own;
        tarn__engine_open_graphs(engine);
        pthread_mutex_init(&engine->lock, NULL);
        open_condition(&engine->changed);
        pthread_cond_init(&engine->mask_wanted, NULL);
        return engine;
    }
    tarn__engine_close_draft(&own);
    tarn__page_pool_close(&own.pool);
    tarn__engine_close_swap(&own);
    tarn__kv_pages_close(&own.pages);
    tarn__release(engine, sizeof(*engine));
    return NULL;
}

static void free_adapter(tarn__lora_set *set)
{
    tarn__lora_set_close(set);
    tarn__release(set, sizeof(*set));
}

void tarn_engine_free(tarn_engine *engine)
{
    if (!engine)
        return;
    tarn__engine_stop_workers(engine);
    while (engine->count > 0)
        tarn__engine_remove(engine, engine->request[engine->count - 1]);
    tarn__engine_free_ended(engine->ended);
    tarn__release(engine->request, sizeof(*engine->request) * (size_t)engine->capacity);
    tarn__release(engine->reply, sizeof(*engine->reply) * engine->reply_capacity);
    tarn__release(engine->text, engine->text_capacity);
    tarn__release(engine->candidate, sizeof(*engine->candidate) * engine->candidate_capacity);
    pthread_cond_destroy(&engine->changed);
    pthread_cond_destroy(&engine->mask_wanted);
    pthread_mutex_destroy(&engine->lock);
    tarn__engine_close_graphs(engine);
    tarn__engine_close_draft(engine);
    tarn__page_pool_close(&engine->pool);
    tarn__engine_close_swap(engine);
    tarn__kv_pages_close(&engine->pages);
    while (engine->adapters > 0)
        free_adapter(engine->adapter[--engine->adapters]);
    tarn__release(engine->adapter, sizeof(*engine->adapter) * (size_t)engine->adapter_capacity);
    tarn__release(engine, sizeof(*engine));
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

/* Opens a set on the heap; NULL with an error. */
static tarn__lora_set *open_adapter(const char *function, tarn_module *model, const char *path)
{
    tarn__lora_set *set = tarn__alloc(sizeof(*set));
    tarn_scope *scope = set ? tarn_scope_open() : NULL;
    bool good = scope && tarn__lora_load(function, model, path, set);
    tarn_scope_close(scope);
    if (good)
        return set;
    if (set)
        free_adapter(set);
    return NULL;
}

int64_t tarn_engine_add_adapter(tarn_engine *e, const char *path)
{
    const char *function = "engine_add_adapter";
    if (!tarn__engine_check(function, e))
        return -1;
    if (!path) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the path is NULL; expected a folder or a GGUF file of adapters",
                    function);
        return -1;
    }
    tarn__lora_set *set = open_adapter(function, e->model, path);
    if (!set)
        return -1;
    tarn__engine_lock(e);
    bool good = tarn__list_reserve(&e->adapter, e->adapters, &e->adapter_capacity, sizeof(*e->adapter));
    if (good)
        e->adapter[e->adapters++] = set;
    int64_t number = e->adapters;
    tarn__engine_unlock(e);
    if (good)
        return number;
    free_adapter(set);
    tarn__raise_within(function);
    return -1;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

double tarn__engine_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

struct timespec tarn__engine_time_in(double milliseconds)
{
    struct timespec then;
    clock_gettime(CLOCK_MONOTONIC, &then);
    double whole = floor(1e-3 * milliseconds), end = (double)then.tv_nsec + 1e9 * (1e-3 * milliseconds - whole);
    then.tv_sec += (time_t)whole + (end >= 1e9);
    then.tv_nsec = (long)(end >= 1e9 ? end - 1e9 : end);
    return then;
}

/* A const engine stays as it is for the caller; the lock is not part of it. */
void tarn__engine_lock(const tarn_engine *engine)
{
    pthread_mutex_lock(&((tarn_engine *)(uintptr_t)engine)->lock);
}

void tarn__engine_unlock(const tarn_engine *engine)
{
    pthread_mutex_unlock(&((tarn_engine *)(uintptr_t)engine)->lock);
}

bool tarn__engine_check(const char *function, const tarn_engine *engine)
{
    if (tarn_failed())
        return false;
    return engine || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the engine is NULL", function);
}

/* Requests that have not ended, and outputs. */
static int64_t work_left(const tarn_engine *e)
{
    int64_t left = e->replies - e->first_reply;
    for (int i = 0; i < e->count; i++)
        left += !e->request[i]->is_cancelled;
    return left;
}

/* Frees what has ended since the last step, except requests whose grammar a worker uses. */
static void free_ended(tarn_engine *e)
{
    tarn__request *ended = NULL, *kept = NULL;
    tarn__engine_lock(e);
    while (e->ended) {
        tarn__request *r = e->ended, **to = tarn__engine_is_busy(e, r) ? &kept : &ended;
        e->ended = r->next_ended;
        r->next_ended = *to;
        *to = r;
    }
    e->ended = kept;
    tarn__engine_unlock(e);
    tarn__engine_free_ended(ended);
}

/* Plans a batch. Where all requests wait for masks, it waits for one of them, at most for a short time: a step without
 * tokens is allowed. */
static bool plan(tarn_engine *e, tarn__batch batch[TARN__ENGINE_BATCHES])
{
    e->stats.steps += e->count > 0;
    for (int again = 0; again < 2 && e->count > 0; again++) {
        tarn__engine_wait_for_masks(e, again == 0);
        tarn__engine_settle_masks(e);
        if (tarn__engine_plan(e, batch))
            return true;
        if (tarn_failed() || e->replies > e->first_reply)
            break; /* the caller has something to read */
    }
    return false;
}

/* Plans and advances with the lock, computes without it. */
static bool step(tarn_engine *e)
{
    tarn__batch batch[TARN__ENGINE_BATCHES] = {0};
    tarn__engine_lock(e);
    tarn__engine_reset_outputs(e);
    bool good = plan(e, batch);
    tarn__engine_unlock(e);
    double began = tarn__engine_now();
    good = !tarn_failed() && tarn__engine_move_pages(e) && good;
    for (int i = 0; i < TARN__ENGINE_BATCHES; i++)
        good = good && (batch[i].tokens == 0 || tarn__engine_compute(e, &batch[i]));
    tarn__engine_lock(e);
    tarn__engine_end_moves(e, !tarn_failed());
    for (int i = 0; i < TARN__ENGINE_BATCHES; i++) {
        good = good && (batch[i].tokens == 0 || tarn__engine_advance(e, &batch[i]));
        if (!good)
            tarn__engine_fail_all(e, &batch[i]);
    }
    if (batch[0].tokens + batch[1].tokens > 0)
        e->step_ms = tarn__engine_now() - began;
    if (good)
        tarn__engine_note_time(e, e->step_ms);
    tarn__engine_unlock(e);
    for (int i = 0; i < TARN__ENGINE_BATCHES; i++)
        tarn__batch_release(&batch[i]);
    return !tarn_failed();
}

int64_t tarn_engine_step(tarn_engine *e)
{
    if (!tarn__engine_check("engine_step", e))
        return -1;
    free_ended(e);
    if (!step(e)) {
        tarn__raise_within("engine_step");
        return -1;
    }
    tarn__engine_lock(e);
    int64_t left = work_left(e);
    tarn__engine_unlock(e);
    return left;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

#define MAX_WAIT_SECONDS 1e9

bool tarn_engine_wait(tarn_engine *e, double seconds)
{
    if (!tarn__engine_check("engine_wait", e))
        return false;
    if (!(seconds >= 0))
        return tarn__raise(TARN_ERROR_ARGUMENT, "engine_wait: seconds is %g; it must be at least 0", seconds);
    struct timespec until = tarn__engine_time_in(1e3 * (seconds < MAX_WAIT_SECONDS ? seconds : MAX_WAIT_SECONDS));
    tarn__engine_lock(e);
    for (int result = 0; result == 0 && !e->is_woken && work_left(e) == 0;)
        result = pthread_cond_timedwait(&e->changed, &e->lock, &until);
    e->is_woken = false;
    bool has_work = work_left(e) > 0;
    tarn__engine_unlock(e);
    return has_work;
}

bool tarn_engine_wake(tarn_engine *e)
{
    if (!tarn__engine_check("engine_wake", e))
        return false;
    tarn__engine_lock(e);
    e->is_woken = true;
    pthread_cond_broadcast(&e->changed);
    tarn__engine_unlock(e);
    return true;
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

bool tarn_engine_query_sized(const tarn_engine *e, tarn_engine_stats *stats, size_t stats_size)
{
    if (!tarn__engine_check("engine_query", e))
        return false;
    if (!stats)
        return tarn__raise(TARN_ERROR_ARGUMENT, "engine_query: the stats are NULL");
    tarn__engine_lock(e);
    tarn_engine_stats now = e->stats;
    now.pages = e->pool.count;
    now.free_pages = tarn__page_pool_available(&e->pool);
    now.cached_pages = e->pool.unreferenced.length;
    now.shared_pages = e->pool.shared;
    now.page_tokens = TARN__KV_PAGE;
    now.swap_pages = e->swap.count;
    now.free_swap_pages = e->swap.free_count + e->pool.hosted.length;
    now.cached_swap_pages = e->pool.hosted.length;
    now.context = e->options.context;
    now.added = e->next_number - 1;
    for (int i = 0; i < e->count; i++)
        if (!e->request[i]->is_cancelled)
            *(e->request[i]->is_running ? &now.running : &now.waiting) += 1;
    tarn__engine_unlock(e);
    memset(stats, 0, stats_size);
    memcpy(stats, &now, stats_size < sizeof(now) ? stats_size : sizeof(now));
    return true;
}

static tarn_engine_request describe(const tarn__request *r)
{
    double now = tarn__engine_now();
    return (tarn_engine_request){.request = r->number,
                                 .is_running = r->is_running,
                                 .prompt = r->prompt,
                                 .computed = r->computed,
                                 .shared = r->shared,
                                 .new_tokens = r->count - r->prompt,
                                 .max_tokens = r->max_count - r->prompt,
                                 .pages = r->pages - r->passed,
                                 .preemptions = r->preemptions,
                                 .adapter = r->adapter,
                                 .proposed_tokens = r->proposed_tokens,
                                 .accepted_tokens = r->accepted_tokens,
                                 .wait_ms = (r->started_at > 0 ? r->started_at : now) - r->added_at,
                                 .prompt_ms = r->decoded_at > 0   ? r->decoded_at - r->started_at
                                              : r->started_at > 0 ? now - r->started_at
                                                                  : 0,
                                 .decode_ms = r->decoded_at > 0 ? now - r->decoded_at : 0};
}

int64_t tarn_engine_requests_sized(const tarn_engine *e, tarn_engine_request *requests, int64_t capacity, size_t size)
{
    if (!tarn__engine_check("engine_requests", e))
        return -1;
    if (capacity < 0 || (capacity > 0 && !requests)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "engine_requests: capacity is %lld%s; it must be at least 0",
                    (long long)capacity, requests ? "" : ", and requests is NULL");
        return -1;
    }
    int64_t found = 0;
    tarn__engine_lock(e);
    for (int i = 0; i < e->count; i++) {
        if (e->request[i]->is_cancelled)
            continue;
        if (found < capacity) {
            const tarn_engine_request one = describe(e->request[i]);
            char *to = (char *)requests + (size_t)found * size;
            memset(to, 0, size);
            memcpy(to, &one, size < sizeof(one) ? size : sizeof(one));
        }
        found++;
    }
    tarn__engine_unlock(e);
    return found;
}
