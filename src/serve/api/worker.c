/* worker.c: the threads beside the loop: the pool that prepares jobs, and the one that steps the engine and,
 * between two steps, computes embeddings.
 *
 * What they post to the loop must arrive, or a client waits for ever: without memory they wait for some.
 *
 * Locks: `lock` guards the two queues and `wanted`, and is held for moments only. The engine's thread alone writes
 * model, engine, loaded and load_error, and only between unload() and the post of tarn__api_on_loaded(); the posts
 * order this before what the loop's thread reads. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/api/api_private.h"

#define WAIT_SECONDS 1.0 /* of an engine without requests, before it looks for the end */

static void wait_for_memory(void)
{
    nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
}

static void post(tarn__api *a, void (*work)(void *), void *ctx)
{
    while (!tarn__http_server_post(a->server, work, ctx))
        wait_for_memory();
}

/* ---- the pool ---------------------------------------------------------------------------------------------------- */

static void append(tarn__api_queue *q, tarn__api_job *job)
{
    job->queued = NULL;
    *(q->last ? &q->last->queued : &q->first) = job;
    q->last = job;
}

static void remove_first(tarn__api_queue *q)
{
    q->first = q->first->queued;
    q->last = q->first ? q->last : NULL;
}

void tarn__api_push(tarn__api *a, tarn__api_job *job)
{
    pthread_mutex_lock(&a->lock);
    append(&a->prepared, job);
    pthread_cond_signal(&a->filled);
    pthread_mutex_unlock(&a->lock);
}

/* NULL: the end. */
static tarn__api_job *pop(tarn__api *a)
{
    pthread_mutex_lock(&a->lock);
    while (!a->prepared.first && !atomic_load(&a->is_ending))
        pthread_cond_wait(&a->filled, &a->lock);
    tarn__api_job *job = atomic_load(&a->is_ending) ? NULL : a->prepared.first;
    if (job)
        remove_first(&a->prepared);
    pthread_mutex_unlock(&a->lock);
    return job;
}

void tarn__api_compute(tarn__api *a, tarn__api_job *job)
{
    pthread_mutex_lock(&a->lock);
    append(&a->computed, job);
    pthread_mutex_unlock(&a->lock);
    tarn_engine_wake(a->engine);
}

tarn__api_job *tarn__api_front(tarn__api *a)
{
    pthread_mutex_lock(&a->lock);
    tarn__api_job *job = a->computed.first;
    pthread_mutex_unlock(&a->lock);
    return job;
}

void tarn__api_finish_front(tarn__api *a)
{
    pthread_mutex_lock(&a->lock);
    tarn__api_job *job = a->computed.first;
    remove_first(&a->computed);
    pthread_mutex_unlock(&a->lock);
    tarn__api_push(a, job);
}

static void *run_pool(void *ctx)
{
    tarn__api *a = ctx;
    for (tarn__api_job *job; (job = pop(a)) != NULL;) {
        tarn__api_prepare(job, &a->model);
        tarn_clear_error();
        post(a, tarn__api_on_prepared, job);
    }
    return NULL;
}

/* ---- outputs ----------------------------------------------------------------------------------------------------- */

/* Grows an array of elements of `each` bytes for `more`; waits for memory. `array` is the address of a pointer of
 * any type, which is copied byte by byte for that. */
static void reserve(void *array, size_t count, size_t *capacity, size_t more, size_t each)
{
    void *old;
    memcpy(&old, array, sizeof(old));
    if (count + more <= *capacity)
        return;
    size_t wanted = 2 * (count + more);
    void *grown;
    while (!(grown = realloc(old, wanted * each)))
        wait_for_memory();
    memcpy(array, &grown, sizeof(grown));
    *capacity = wanted;
}

/* Appends bytes and a 0; the offset of them. */
static size_t add_bytes(tarn__api_outputs *b, const char *bytes, size_t length)
{
    reserve(&b->bytes, b->byte_count, &b->byte_capacity, length + 1, 1);
    size_t at = b->byte_count;
    if (length)
        memcpy(b->bytes + at, bytes, length);
    b->bytes[at + length] = 0;
    b->byte_count += length + 1;
    return at;
}

/* Copies an output; its pointers become offsets until the batch is complete. The arrays grow and move meanwhile. An
 * error's offset has 1 added, so that NULL stays NULL. */
static void add_output(tarn__api_outputs *b, const tarn_engine_output *output)
{
    reserve(&b->outputs, b->count, &b->capacity, 1, sizeof(*b->outputs));
    tarn_engine_output *to = &b->outputs[b->count++];
    *to = *output;
    size_t top = (size_t)output->top_logprob_count;
    to->text = (const char *)(uintptr_t)add_bytes(b, output->text, output->text ? output->length : 0);
    if (output->error)
        to->error = (const char *)(uintptr_t)(1 + add_bytes(b, output->error, strlen(output->error)));
    reserve(&b->candidates, b->candidate_count, &b->candidate_capacity, top, sizeof(*b->candidates));
    if (top)
        memcpy(b->candidates + b->candidate_count, output->top_logprobs, top * sizeof(*b->candidates));
    to->top_logprobs = (const tarn_candidate *)(uintptr_t)b->candidate_count;
    b->candidate_count += top;
}

static void resolve(tarn__api_outputs *b)
{
    for (size_t i = 0; i < b->count; i++) {
        tarn_engine_output *to = &b->outputs[i];
        to->text = b->bytes + (uintptr_t)to->text;
        to->error = to->error ? b->bytes + (uintptr_t)to->error - 1 : NULL;
        to->top_logprobs = to->top_logprob_count ? b->candidates + (uintptr_t)to->top_logprobs : NULL;
    }
}

/* Posts the outputs of the steps so far. */
static void post_outputs(tarn__api *a)
{
    tarn_engine_output output;
    tarn__api_outputs *b = NULL;
    while (tarn_engine_next(a->engine, &output)) {
        while (!b && !(b = calloc(1, sizeof(*b))))
            wait_for_memory();
        b->api = a;
        add_output(b, &output);
    }
    tarn_clear_error();
    if (!b)
        return;
    resolve(b);
    post(a, tarn__api_on_outputs, b);
}

/* ---- the engine -------------------------------------------------------------------------------------------------- */

/* Frees the model and all that belongs to it. */
static void unload(tarn__api *a)
{
    tarn_engine_free(a->engine);
    tarn_grammar_vocab_free(a->model.vocab);
    tarn_tokenizer_free(a->model.tokenizer);
    tarn_module_free(a->model.module);
    a->engine = NULL;
    a->model = (tarn__api_model){.names = a->options.names, .name_count = a->options.name_count};
    a->loaded = -1;
}

/* Opens model, tokenizer and engine. False: load_error says why. What a load that fails half-way leaves behind is freed
 * by unload(), or with the API. */
static bool load(tarn__api *a, int index)
{
    tarn__api_model *m = &a->model;
    tarn_engine_options options = a->options.engine;
    a->load_error[0] = 0;
    if (!a->options.load(index, &m->module, &m->tokenizer, &options, a->load_error, sizeof(a->load_error),
                         a->options.ctx))
        return false;
    options.tokenizer = m->tokenizer;
    m->name = a->options.names[index];
    if (tarn_model_query(m->module, &m->info))
        a->engine = tarn_engine_new(m->module, &options);
    if (!a->engine) {
        snprintf(a->load_error, sizeof(a->load_error), "%s", tarn_error());
        tarn_clear_error();
        return false;
    }
    if (a->options.adapter_count > 0 &&
        !a->options.add_adapters(a->engine, a->load_error, sizeof(a->load_error), a->options.ctx))
        return false;
    m->adapters = a->options.adapters;
    m->adapter_count = a->options.adapter_count;
    m->context = options.context ? options.context : m->info.context;
    a->engine_options = options;
    a->loaded = index;
    m->vocab = tarn_grammar_vocab_new(m->tokenizer, &(tarn_grammar_vocab_options){.vocab_size = m->info.vocab_size});
    if (!m->vocab)
        snprintf(m->vocab_error, sizeof(m->vocab_error), "%s", tarn_error());
    tarn_clear_error();
    m->has_template = tarn_chat_name(m->tokenizer) != NULL;
    m->eot = m->has_template ? tarn_chat_eot(m->tokenizer) : -1;
    tarn_clear_error(); /* no template: chats are refused */
    return true;
}

void tarn__api_want(tarn__api *a, int index)
{
    pthread_mutex_lock(&a->lock); /* until the engine is woken: its thread will free it */
    a->wanted = index;
    tarn_engine_wake(a->engine);
    pthread_mutex_unlock(&a->lock);
}

static int take_wanted(tarn__api *a)
{
    pthread_mutex_lock(&a->lock);
    int wanted = a->wanted;
    a->wanted = -1;
    pthread_mutex_unlock(&a->lock);
    return wanted;
}

/* One model at a time is in memory. Where the new one cannot be loaded, the old one is again. */
static void change(tarn__api *a, int wanted)
{
    char why[sizeof(a->load_error)];
    int before = a->loaded;
    unload(a);
    if (!load(a, wanted)) {
        memcpy(why, a->load_error, sizeof(why));
        unload(a);
        if (load(a, before))
            memcpy(a->load_error, why, sizeof(why));
    }
    post(a, tarn__api_on_loaded, a);
}

/* A change comes first: it is wanted only when nothing is left to compute. tarn_engine_wait() returns false after
 * its time or a wake, and then there was nothing to step. */
static void *run_engine(void *ctx)
{
    tarn__api *a = ctx;
    tarn_embedder *embedder = NULL;
    unload(a);
    load(a, 0);
    post(a, tarn__api_on_loaded, a);
    while (a->loaded >= 0 && !atomic_load(&a->is_ending)) {
        int wanted = take_wanted(a);
        if (wanted >= 0) {
            change(a, wanted);
            continue;
        }
        bool has_more = tarn__api_embed(a, &embedder);
        if (!tarn_engine_wait(a->engine, has_more ? 0 : WAIT_SECONDS))
            continue;
        tarn_engine_step(a->engine); /* what fails comes as the outputs of its requests */
        tarn_clear_error();
        post_outputs(a);
    }
    tarn_embedder_free(embedder);
    return NULL;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

bool tarn__api_start_threads(tarn__api *a)
{
    a->has_engine_thread = pthread_create(&a->engine_thread, NULL, run_engine, a) == 0;
    while (a->has_engine_thread && a->pool_count < TARN__API_POOL &&
           pthread_create(&a->pool[a->pool_count], NULL, run_pool, a) == 0)
        a->pool_count++;
    return a->pool_count == TARN__API_POOL;
}

void tarn__api_end_threads(tarn__api *a)
{
    atomic_store(&a->is_ending, true);
    pthread_mutex_lock(&a->lock);
    pthread_cond_broadcast(&a->filled);
    pthread_mutex_unlock(&a->lock);
    if (a->state == TARN__API_READY || a->state == TARN__API_DRAINING)
        tarn_engine_wake(a->engine);
    for (int i = 0; i < a->pool_count; i++)
        pthread_join(a->pool[i], NULL);
    if (a->has_engine_thread)
        pthread_join(a->engine_thread, NULL);
    a->pool_count = 0;
    a->has_engine_thread = false;
}
