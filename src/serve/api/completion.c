/* completion.c: jobs on the loop's thread: to the engine, its outputs, the answer whole or as a stream, the end.
 *
 * A job is freed when its exchange is over and neither the pool nor the engine has it. Sending may end the exchange:
 * the client has gone, or reads too slowly, and tarn__api_on_gone() was called; so every step looks at job->exchange
 * anew, and a choice counts as live until after its last output.
 *
 * The engine's outputs find their choice by the request's number, in a table: a job may be over while outputs of it
 * still come, and then nothing is found. Choices are elements of their job's array, so the job stays while one of
 * them is in the table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/ollama/ollama.h"

#define SILENCE_SECONDS 15    /* of a stream, before a comment */
#define LOGPROBS_PER_EVENT 64 /* of a stream, at most: those of a prompt come many at a time */

double tarn__api_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- the table of requests --------------------------------------------------------------------------------------- */

static tarn__api_choice **bucket_of(tarn__api *a, int64_t request)
{
    return &a->bucket[request % TARN__API_BUCKETS];
}

static void insert(tarn__api *a, tarn__api_choice *c)
{
    tarn__api_choice **bucket = bucket_of(a, c->request);
    c->next = *bucket;
    *bucket = c;
    a->live++;
}

static tarn__api_choice *find(tarn__api *a, int64_t request)
{
    tarn__api_choice *c = *bucket_of(a, request);
    while (c && c->request != request)
        c = c->next;
    return c;
}

static void remove_choice(tarn__api *a, tarn__api_choice *c)
{
    tarn__api_choice **at = bucket_of(a, c->request);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    c->request = 0;
    a->live--;
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

void tarn__api_remove_job(tarn__api *a, tarn__api_job *job)
{
    *(job->previous ? &job->previous->next : &a->jobs) = job->next;
    if (job->next)
        job->next->previous = job->previous;
    tarn__api_job_free(job);
}

static bool is_live(const tarn__api_job *job)
{
    for (int i = 0; i < job->choice_count; i++)
        if (job->choices[i].request)
            return true;
    return false;
}

void tarn__api_free_if_over(tarn__api *a, tarn__api_job *job)
{
    if (!job->exchange && job->is_prepared && !is_live(job))
        tarn__api_remove_job(a, job);
}

/* Ends what the engine still computes for a job; an output with a finish reason comes for each. */
static void cancel(tarn__api *a, tarn__api_job *job)
{
    atomic_store(&job->is_cancelled, true);
    for (int i = 0; i < job->choice_count; i++)
        if (job->choices[i].request)
            tarn_engine_cancel(a->engine, job->choices[i].request);
    tarn_clear_error();
}

/* Called by the server for an exchange that was kept, at most once, and never after the job has ended it. */
void tarn__api_on_gone(void *ctx)
{
    tarn__api_job *job = ctx;
    tarn__api *a = job->owner;
    job->exchange = NULL;
    a->gone++;
    tarn__api_forget_change(a, job);
    cancel(a, job);
    tarn__api_free_if_over(a, job);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* Sends "data: TEXT", or a line of Ollama's; takes ownership of the text. False: there is no client any more. An
 * event of SSE ends with an empty line; JSON without newlines cannot hold one. */
static bool send_event(tarn__api_job *job, char *text)
{
    size_t length = text ? strlen(text) : 0;
    char *event = text && job->exchange ? malloc(length + 16) : NULL;
    bool good = event != NULL;
    if (good) {
        int size = snprintf(event, length + 16, job->ollama ? "%s\n" : "data: %s\n\n", text);
        job->last_sent = tarn__api_seconds();
        good = tarn__http_stream_part(job->exchange, event, (size_t)size);
    }
    free(event);
    free(text);
    return good && job->exchange;
}

/* Without memory the stream cannot go on: it ends before its [DONE]. */
static void end_stream(tarn__api_job *job)
{
    tarn__http_exchange *x = job->exchange;
    job->exchange = NULL;
    if (x)
        tarn__http_stream_end(x);
}

/* Once the status 200 is sent the error can only be an event. OpenAI's clients raise it from there. */
void tarn__api_fail(tarn__api *a, tarn__api_job *job, const tarn__api_error *error)
{
    tarn__http_exchange *x = job->exchange;
    if (job->has_begun) {
        send_event(job, (job->ollama ? tarn__ollama_error_text : tarn__api_error_text)(error));
        end_stream(job);
        a->refused++;
    } else if (x) {
        job->exchange = NULL;
        tarn__api_answer_error(a, x, error);
    }
    cancel(a, job);
}

static void fail_without_memory(tarn__api *a, tarn__api_job *job)
{
    tarn__api_error error = {0};
    tarn__api_refuse(&error, 503, NULL, NULL, "no memory for the answer");
    tarn__api_fail(a, job, &error);
}

/* At least doubles the buffer, and ends the text with a 0. */
static bool add_text(tarn__api_choice *c, const char *text, size_t length)
{
    if (c->length + length + 1 > c->capacity) {
        size_t capacity = 2 * (c->length + length + 1);
        char *grown = realloc(c->text, capacity);
        if (!grown)
            return false;
        c->text = grown;
        c->capacity = capacity;
    }
    if (length)
        memcpy(c->text + c->length, text, length);
    c->length += length;
    c->text[c->length] = 0;
    return true;
}

/* Begins an answer with its prompt. */
static bool echo_prompt(tarn__api *a, tarn__api_choice *c)
{
    size_t length = 0;
    tarn__api_job *job = c->job;
    char *text = tarn__api_prompt_text(&a->model, &job->prompts[c->prompt], &length);
    bool good = text && (job->streams ? send_event(job, tarn__api_chunk(job, &a->model, c, text, length))
                                      : add_text(c, text, length));
    c->has_echoed = true;
    free(text);
    return good;
}

/* Every answer of a chat begins with an event that has its role; Ollama's lines have it each. */
static bool begin_stream(tarn__api *a, tarn__api_job *job)
{
    tarn__http_exchange_header(job->exchange, "X-Accel-Buffering", "no"); /* for nginx: pass events on at once */
    job->has_begun = true;
    tarn__http_stream_begin(job->exchange, 200, job->ollama ? "application/x-ndjson" : "text/event-stream");
    bool good = true;
    for (int i = 0; good && job->route == TARN__API_CHAT && !job->ollama && i < job->choice_count; i++)
        good = send_event(job, tarn__api_chunk(job, &a->model, &job->choices[i], NULL, 0));
    return good;
}

/* ---- to the engine ----------------------------------------------------------------------------------------------- */

/* OpenAI's ids have a prefix by route. */
static void name_job(tarn__api *a, tarn__api_job *job)
{
    job->created = (int64_t)time(NULL);
    snprintf(job->id, sizeof(job->id), "%s-%llx%08llx", job->route == TARN__API_CHAT ? "chatcmpl" : "cmpl",
             (unsigned long long)a->started, (unsigned long long)job->number);
}

static bool make_choices(tarn__api_job *job)
{
    int count = job->prompt_count * job->n;
    job->choices = calloc((size_t)count, sizeof(*job->choices));
    if (!job->choices)
        return false;
    job->choice_count = count;
    for (int i = 0; i < count; i++) {
        job->choices[i] = (tarn__api_choice){.job = job, .index = i, .prompt = i / job->n};
        job->choices[i].logprobs = job->has_logprobs ? json_array() : NULL;
        if (job->route == TARN__API_CHAT)
            job->choices[i].reasoning.state = job->opens_reasoning ? TARN__REASONING_INSIDE : TARN__REASONING_START;
        if (job->has_logprobs && !job->choices[i].logprobs)
            return false;
    }
    return true;
}

/* Seeds of several answers are consecutive, as in `tarn generate --n`. */
static bool add_choices(tarn__api *a, tarn__api_job *job, tarn__api_error *error)
{
    for (int i = 0; i < job->choice_count; i++) {
        const tarn__api_prompt *prompt = &job->prompts[job->choices[i].prompt];
        tarn_generate_options options = job->options;
        options.speculate = a->options.speculate, options.draft_tokens = a->options.draft_tokens;
        options.seed += (uint64_t)(i % job->n);
        /* prompts of one request differ in length, so the default limit does, too */
        if (job->has_default_limit && prompt->count + options.max_tokens > a->model.context)
            options.max_tokens = a->model.context - prompt->count;
        int64_t request = tarn_engine_add(a->engine, prompt->tokens, prompt->count, &options);
        if (request < 0)
            return tarn__api_refuse_by_library(error, 400, NULL);
        job->choices[i].request = request;
        insert(a, &job->choices[i]);
    }
    job->options.stop_strings = NULL; /* the engine has copies; they point into the body, which is large as JSON */
    job->options.stop_string_count = 0;
    json_decref(job->root);
    job->root = NULL;
    return true;
}

/* More than the server can ever take is an error of the request; more than it can take now is one of the moment. If
 * a later one of several answers is refused, tarn__api_fail() ends the earlier ones. */
static void begin(tarn__api *a, tarn__api_job *job)
{
    tarn__api_error error = {0};
    int capacity = (int)a->options.engine.sequences + a->options.queue, count = job->prompt_count * job->n;
    if (count > capacity)
        tarn__api_refuse(&error, 400, NULL, job->n > 1 ? "n" : "prompt",
                         "%d answers are asked for; this server computes and queues at most %d", count, capacity);
    else if (a->live + count > capacity)
        tarn__api_refuse(&error, 429, "queue_full", NULL, "%d requests are running or waiting; try again later",
                         a->live);
    else if (!make_choices(job))
        tarn__api_refuse(&error, 503, NULL, NULL, "no memory for the request");
    else if (add_choices(a, job, &error) && job->streams && !begin_stream(a, job) && job->exchange)
        tarn__api_refuse(&error, 503, NULL, NULL, "no memory for the answer");
    if (error.status)
        tarn__api_fail(a, job, &error);
}

void tarn__api_on_prepared(void *ctx)
{
    tarn__api_job *job = ctx;
    tarn__api *a = job->owner;
    tarn__http_exchange *x = job->exchange;
    job->is_prepared = true;
    a->preparing--;
    name_job(a, job);
    if (x && (job->error.status || job->answer)) {
        job->exchange = NULL;
        if (job->error.status)
            tarn__api_answer_error(a, x, &job->error);
        else
            tarn__api_answer_json(x, 200, job->answer);
        a->answered += !job->error.status;
        for (int i = 0; job->answer && job->embeddings && i < job->prompt_count; i++)
            a->embedded += job->prompts[i].count;
    } else if (x && job->route == TARN__API_EMBEDDINGS) {
        job->is_prepared = false; /* the engine's thread has it, then the pool again */
        a->preparing++;
        json_decref(job->root);
        job->root = NULL;
        tarn__api_compute(a, job);
        return;
    } else if (x && job->route == TARN__API_LOAD) {
        tarn__api_change_model(a, job);
    } else if (x) {
        begin(a, job);
    }
    tarn__api_free_if_over(a, job);
    tarn__api_continue_change(a);
}

/* ---- outputs ----------------------------------------------------------------------------------------------------- */

/* Characters, as text_offset counts them: bytes but for those that continue one (10xxxxxx). */
static size_t character_count(const json_t *string)
{
    size_t count = 0;
    for (size_t i = 0; i < json_string_length(string); i++)
        count += ((unsigned char)json_string_value(string)[i] & 0xc0) != 0x80;
    return count;
}

/* The counters and the parts of an answer that a token brings. Text is collected where the whole of it is needed:
 * for an answer without a stream, and to find calls. */
static bool keep_output(tarn__api *a, tarn__api_choice *c, const tarn_engine_output *o, tarn__reasoning_parts *parts)
{
    c->shared = o->shared;
    c->wait_ms = o->wait_ms, c->prompt_ms = o->prompt_ms, c->decode_ms = o->decode_ms;
    c->proposed = o->proposed_tokens, c->accepted = o->accepted_tokens;
    c->finish_reason = o->finish_reason;
    c->has_ended = o->finish_reason != TARN_FINISH_NONE;
    /* with echo also EOS: clients that score a prompt leave one entry out for the new token, whatever it is */
    if (o->token >= 0 || (c->job->echoes && o->end_token >= 0)) {
        json_t *entry = c->logprobs ? tarn__api_logprob(a, c->job, o, c->offset) : NULL;
        c->tokens += o->token >= 0 && !o->is_prompt;
        c->offset += character_count(json_object_get(entry, "token"));
        if (c->logprobs && (!entry || json_array_append_new(c->logprobs, entry) != 0))
            return false;
    }
    if (!tarn__reasoning_push(&c->reasoning, o->text, o->length, c->has_ended, parts))
        return false;
    c->reasoning_tokens = parts->is_reasoning ? c->tokens : c->reasoning_tokens;
    if (!c->job->streams || c->job->tools)
        return add_text(c, parts->content, parts->content_length);
    return true;
}

/* Usage and [DONE] of a stream, or the whole answer. */
static void complete(tarn__api *a, tarn__api_job *job)
{
    if (!job->streams) {
        char *text = tarn__api_whole(job, &a->model);
        tarn__http_exchange *x = job->exchange;
        if (!text) {
            fail_without_memory(a, job);
            return;
        }
        job->exchange = NULL;
        tarn__api_answer_json(x, 200, text);
        free(text);
        a->answered++;
        return;
    }
    bool good = !job->includes_usage || send_event(job, tarn__api_usage_chunk(job, &a->model));
    if (good && (job->ollama || send_event(job, strdup("[DONE]")))) {
        a->answered++;
        end_stream(job);
    } else if (job->exchange) {
        fail_without_memory(a, job);
    }
}

/* Text of a stream with tools goes out up to where a call may begin; at the end the rest, or the calls. */
static bool send_text_or_calls(tarn__api *a, tarn__api_choice *c)
{
    tarn__api_job *job = c->job;
    bool has_ended = c->has_ended, good = true;
    size_t until = c->length;
    json_t *calls = has_ended ? tarn__api_calls(job, c, &until) : NULL;
    tarn__api_limit_calls(job, calls);
    /* a call is JSON, alone, in an array or behind a tag */
    for (size_t i = c->sent; !has_ended && i < until; i++)
        if (memchr("<[{", c->text[i], 3))
            until = i;
    size_t length = until > c->sent ? until - c->sent : 0;
    const char *part = c->text ? c->text + c->sent : "";
    c->sent += length;
    c->has_calls = calls != NULL;
    if (!calls)
        return (!length && !has_ended) || send_event(job, tarn__api_chunk(job, &a->model, c, part, length));
    c->has_ended = false; /* text and calls come before the end */
    if (length)
        good = send_event(job, tarn__api_chunk(job, &a->model, c, part, length));
    if (good)
        good = send_event(job, tarn__api_calls_chunk(job, &a->model, c, calls));
    else
        json_decref(calls);
    c->has_ended = true;
    return good && send_event(job, tarn__api_chunk(job, &a->model, c, "", 0));
}

static bool send_output(tarn__api *a, tarn__api_choice *c, const tarn__reasoning_parts *p)
{
    tarn__api_job *job = c->job;
    bool good = !p->reasoning_length ||
                send_event(job, tarn__api_reasoning_chunk(job, &a->model, c, p->reasoning, p->reasoning_length));
    if (!good || (p->reasoning_length && !p->content_length && !c->has_ended))
        return good;
    if (job->tools)
        return send_text_or_calls(a, c);
    return send_event(job, tarn__api_chunk(job, &a->model, c, p->content, p->content_length));
}

/* The choice leaves the table after its last output has been sent: until then the job is not freed, whatever sending
 * ends. */
static void take_output(tarn__api *a, tarn__api_choice *c, const tarn_engine_output *o)
{
    tarn__api_job *job = c->job;
    bool begins = job->echoes && !c->has_echoed && job->exchange && o->finish_reason != TARN_FINISH_ERROR;
    tarn__reasoning_parts parts = {0};
    bool good = (!begins || echo_prompt(a, c)) && keep_output(a, c, o, &parts);
    bool has_part = parts.content_length || parts.reasoning_length || o->finish_reason != TARN_FINISH_NONE ||
                    (c->logprobs && json_array_size(c->logprobs) >= LOGPROBS_PER_EVENT);
    if (!good) {
        if (job->exchange)
            fail_without_memory(a, job);
    } else if (o->finish_reason == TARN_FINISH_ERROR && job->exchange) {
        tarn__api_error error = {0};
        tarn__api_refuse(&error, 500, NULL, NULL, "%s", o->error ? o->error : "the request failed");
        tarn__api_fail(a, job, &error);
    } else if (job->exchange && job->streams && has_part) {
        if (!send_output(a, c, &parts) && job->exchange)
            fail_without_memory(a, job);
    }
    if (o->finish_reason == TARN_FINISH_NONE)
        return;
    if (++job->ended_count == job->choice_count && job->exchange)
        complete(a, job);
    remove_choice(a, c);
    tarn__api_free_if_over(a, job);
}

void tarn__api_on_outputs(void *ctx)
{
    tarn__api_outputs *b = ctx;
    tarn__api *a = b->api;
    for (size_t i = 0; i < b->count; i++) {
        tarn__api_choice *c = find(a, b->outputs[i].request);
        if (c)
            take_output(a, c, &b->outputs[i]);
    }
    free(b->outputs);
    free(b->bytes);
    free(b->candidates);
    free(b);
    tarn__api_continue_change(a);
}

/* A comment in streams that were silent, so that proxies keep them open. A line that begins with a colon is a
 * comment of SSE, which clients skip; lines of JSON have none, so Ollama's streams stay silent. */
void tarn__api_on_second(void *ctx)
{
    static const char comment[] = ": waiting\n\n";
    tarn__api *a = ctx;
    double now = tarn__api_seconds();
    for (tarn__api_job *job = a->jobs, *next; job; job = next) {
        next = job->next;
        if (!job->exchange || !job->has_begun || job->ollama || now - job->last_sent < SILENCE_SECONDS)
            continue;
        job->last_sent = now;
        tarn__http_stream_part(job->exchange, comment, sizeof(comment) - 1);
    }
    tarn__api_continue_change(a);
}
