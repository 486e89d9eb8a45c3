/* engine_request.c: requests of an engine: added and cancelled by any thread, freed by the one that steps. */
#include <string.h>

#include "base/memory.h"
#include "core/device/device.h"
#include "generate/engine/engine.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

void tarn__engine_release_pages(tarn_engine *e, tarn__request *r)
{
    while (r->pages > r->passed)
        tarn__page_pool_release(&e->pool, r->page[--r->pages]);
    r->pages = r->passed = r->published = 0;
    r->key = r->root;
    r->computed = r->planned = 0;
    r->is_running = false;
    tarn__engine_release_draft(e, r);
}

/* The last one first. They stay findable while their memory is not needed: a later request begins with them. */
void tarn__engine_release_passed(tarn_engine *e, tarn__request *r, int64_t next)
{
    int64_t passed = e->window > 0 && next >= e->window ? (next - e->window + 1) / TARN__KV_PAGE : 0;
    for (int64_t i = (passed < r->pages ? passed : r->pages) - 1; i >= r->passed; i--)
        tarn__page_pool_release(&e->pool, r->page[i]);
    r->passed = passed > r->passed ? passed : r->passed;
}

static void free_request(tarn__request *r)
{
    tarn__release(r->tokens, sizeof(*r->tokens) * (size_t)r->max_count);
    tarn__release(r->page, sizeof(*r->page) * (size_t)tarn__engine_pages_for(r->max_count));
    if (r->slot)
        tarn__release(r->slot, sizeof(*r->slot) * (size_t)tarn__engine_pages_for(r->max_count));
    if (r->draft.page)
        tarn__release(r->draft.page, sizeof(*r->draft.page) * (size_t)tarn__engine_pages_for(r->max_count));
    tarn__constraint_close(&r->constraint);
    tarn_text_stream_free(r->stream);
    tarn__stop_buffer_close(&r->stop_buffer);
    tarn_sampler_free(r->sampler);
    tarn__string_free(r->error);
    tarn__string_free(r->mask_error);
    tarn__release(r, sizeof(*r));
}

void tarn__engine_free_ended(tarn__request *ended)
{
    while (ended) {
        tarn__request *next = ended->next_ended;
        free_request(ended);
        ended = next;
    }
}

void tarn__engine_remove(tarn_engine *e, tarn__request *r)
{
    int at = 0;
    while (e->request[at] != r)
        at++;
    memmove(&e->request[at], &e->request[at + 1], sizeof(*e->request) * (size_t)(e->count - at - 1));
    e->count--;
    tarn__engine_release_pages(e, r);
    tarn__engine_drop_swapped(e, r);
    r->next_ended = e->ended;
    e->ended = r;
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

/* Raises a prompt, or a number of new tokens, that does not fit the context or the vocabulary. */
static bool check_tokens(const tarn_engine *e, const int32_t *tokens, int64_t count, const tarn_generate_options *o)
{
    int64_t context = e->options.context;
    if (!tokens || count < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "the prompt has no tokens; expected at least one");
    if (count >= context + o->prompt_only)
        return tarn__raise(TARN_ERROR_SHAPE, "the prompt has %lld tokens; it must be shorter than the context of %lld",
                           (long long)count, (long long)context);
    if (o->max_tokens < 0 || o->max_tokens > context - count)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".max_tokens is %lld; after a prompt of %lld it must be from 1 to %lld",
                           (long long)o->max_tokens, (long long)count, (long long)(context - count));
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= e->info.vocab_size)
            return tarn__raise(TARN_ERROR_ARGUMENT, "token %lld of the prompt is %d; it must be from 0 to %lld",
                               (long long)i, (int)tokens[i], (long long)e->info.vocab_size - 1);
    return true;
}

/* Raises invalid arguments of a request; the caller adds the function's name. */
static bool check_request(const tarn_engine *e, const int32_t *tokens, int64_t count, const tarn_generate_options *o)
{
    if (!check_tokens(e, tokens, count, o))
        return false;
    if (o->prompt_only && (!o->prompt_logprobs || o->max_tokens > 0))
        return tarn__raise(TARN_ERROR_ARGUMENT, ".prompt_only is set; it needs .prompt_logprobs and no .max_tokens");
    if (o->cache_salt > INT64_MAX)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".cache_salt is %llu; it must be less than 2^63",
                           (unsigned long long)o->cache_salt);
    tarn__engine_lock(e);
    int adapters = e->adapters;
    tarn__engine_unlock(e);
    if (o->adapter < 0 || o->adapter > adapters)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".adapter is %lld; the engine has %d, and 0 is the model alone",
                           (long long)o->adapter, adapters);
    const char *unsupported = o->slide ? "slide" : o->keep ? "keep" : o->on_token ? "on_token" : NULL;
    if (unsupported)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, ".%s is not supported by engines", unsupported);
    if (!tarn__engine_check_speculation(e, o))
        return false;
    return tarn__generate_options_check(o, &e->info, e->options.tokenizer);
}

/* Everything of a request that is allocated; the prompt is copied. False with an error. */
static bool open_request(const tarn_engine *e, tarn__request *r, const int32_t *tokens, const tarn_generate_options *o)
{
    const tarn_sampler_options sampler = tarn__sampler_options_of(o);
    r->tokens = tarn__alloc(sizeof(*r->tokens) * (size_t)r->max_count);
    r->page = tarn__alloc(sizeof(*r->page) * (size_t)tarn__engine_pages_for(r->max_count));
    r->slot = e->swap.count > 0 ? tarn__alloc(sizeof(*r->slot) * (size_t)tarn__engine_pages_for(r->max_count)) : NULL;
    if (o->speculate == TARN_SPECULATE_DRAFT)
        r->draft.page = tarn__alloc(sizeof(*r->draft.page) * (size_t)tarn__engine_pages_for(r->max_count));
    r->sampler = tarn_sampler_new(&sampler);
    if (!r->tokens || !r->page || (e->swap.count > 0 && !r->slot) ||
        (o->speculate == TARN_SPECULATE_DRAFT && !r->draft.page) || !r->sampler ||
        !tarn__constraint_open(&r->constraint, &e->info, o, 1 + (int)r->draft_tokens))
        return false;
    memcpy(r->tokens, tokens, sizeof(*tokens) * (size_t)r->count);
    if (!e->options.tokenizer)
        return true;
    r->stream = tarn_text_stream_new(e->options.tokenizer, &(tarn_stream_options){.continues = true});
    return r->stream && tarn__stop_buffer_open(&r->stop_buffer, o->stop_strings, o->stop_string_count);
}

/* A request with copies of everything; NULL with an error. */
static tarn__request *new_request(const tarn_engine *e, const int32_t *tokens, int64_t count,
                                  const tarn_generate_options *o)
{
    tarn__request *r = tarn__alloc(sizeof(*r));
    if (!r)
        return NULL;
    r->count = r->prompt = r->matched = count;
    r->max_count = o->prompt_only ? count : o->max_tokens ? count + o->max_tokens : e->options.context;
    r->root = r->key = r->draft.key = tarn__page_root(o->cache_salt);
    r->adapter = o->adapter;
    r->needs_history = o->repeat_penalty != 0;
    r->prompt_logprobs = o->prompt_logprobs;
    r->prompt_only = o->prompt_only;
    r->logprobs = o->logprobs || o->top_logprobs > 0 || o->prompt_logprobs;
    r->top_logprobs = o->top_logprobs;
    r->added_at = tarn__engine_now();
    tarn__engine_open_speculation(r, o);
    if (open_request(e, r, tokens, o))
        return r;
    free_request(r);
    return NULL;
}

/* Lists a request and gives it its number. False with an error. */
static bool list_request(tarn_engine *e, tarn__request *r)
{
    if (!tarn__list_reserve(&e->request, e->count, &e->capacity, sizeof(*e->request)) ||
        !tarn__engine_reserve_outputs(e, 0, e->count + 1) || (r->constraint.grammar && !tarn__engine_start_workers(e)))
        return false;
    r->number = e->next_number++;
    e->request[e->count++] = r;
    tarn__engine_want_mask(e, r);
    pthread_cond_broadcast(&e->changed);
    return true;
}

int64_t tarn_engine_add_sized(tarn_engine *e, const int32_t *tokens, int64_t count,
                              const tarn_generate_options *options, size_t options_size)
{
    const char *function = "engine_add";
    tarn_generate_options o = tarn__generate_options_of(options, options_size);
    if (!tarn__engine_check(function, e))
        return -1;
    tarn__request *r = check_request(e, tokens, count, &o) ? new_request(e, tokens, count, &o) : NULL;
    int64_t number = -1;
    if (r) {
        tarn__engine_lock(e);
        number = list_request(e, r) ? r->number : -1;
        tarn__engine_unlock(e);
        if (number < 0)
            free_request(r);
    }
    if (number < 0)
        tarn__raise_within(function);
    return number;
}

/* ---- cancelling -------------------------------------------------------------------------------------------------- */

/* A request of the running step ends after it; another ends at once. */
static void cancel(tarn_engine *e, int64_t request)
{
    tarn__request *r = NULL;
    for (int i = 0; i < e->count; i++)
        if (e->request[i]->number == request && !e->request[i]->is_cancelled)
            r = e->request[i];
    bool was_ended = tarn__engine_drop_outputs(e, request);
    if (!r && !was_ended)
        return;
    const tarn__request none = {.number = request};
    tarn__engine_reply(e, r ? r : &none, -1, TARN_FINISH_CANCELLED);
    e->stats.cancelled += r != NULL;
    if (r && r->is_in_step)
        r->is_cancelled = true;
    else if (r)
        tarn__engine_remove(e, r);
    pthread_cond_broadcast(&e->changed);
}

bool tarn_engine_cancel(tarn_engine *e, int64_t request)
{
    if (!tarn__engine_check("engine_cancel", e))
        return false;
    tarn__engine_lock(e);
    bool exists = request >= 1 && request < e->next_number;
    if (exists)
        cancel(e, request);
    tarn__engine_unlock(e);
    return exists || tarn__raise(TARN_ERROR_ARGUMENT, "engine_cancel: request %lld does not exist", (long long)request);
}
