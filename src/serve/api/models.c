/* models.c: which of the server's models is loaded, and POST /admin/load.
 *
 * One model is in memory at a time. For another one the API drains: requests get status 503, running ones end, or are
 * ended after a while; then the engine's thread frees the model and loads the other. The request for it is answered
 * when that is done; it goes on without its client.
 *
 * States: READY, to DRAINING with a request, to LOADING when no job is in the pool or the engine, to READY with the
 * new model or, if it cannot be loaded, the old one; FAILED if neither can. Nothing reads the model while it is
 * LOADING, since the engine's thread frees it then. */
#include <stdlib.h>

#include "serve/api/api_private.h"

/* The answer to the request for a model, whose job is over then. */
static void answer_change(tarn__api *a, tarn__api_job *job, const tarn__api_error *error)
{
    json_t *root = error->status ? NULL : tarn__api_model_entry(a, a->loaded);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    tarn__http_exchange *x = job->exchange;
    job->exchange = NULL;
    json_decref(root);
    if (text) {
        tarn__api_answer_json(x, 200, text);
        a->answered++;
    } else {
        tarn__api_error without_memory = {0};
        tarn__api_refuse(&without_memory, 503, NULL, NULL, "no memory for the answer");
        tarn__api_answer_error(a, x, error->status ? error : &without_memory);
    }
    free(text);
}

/* From here on requests with POST get status 503, until a model is loaded. */
void tarn__api_change_model(tarn__api *a, tarn__api_job *job)
{
    if (a->state == TARN__API_DRAINING) { /* two requests were prepared at once, and the other one came first */
        tarn__api_error error = {0};
        tarn__api_refuse(&error, 503, "loading", NULL,
                         "another model is loaded as soon as running requests have ended");
        tarn__api_fail(a, job, &error);
        return;
    }
    if (job->wanted_model == a->loaded) {
        answer_change(a, job, &(tarn__api_error){0});
        return;
    }
    a->change = job;
    a->state = TARN__API_DRAINING;
    a->change_to = job->wanted_model;
    a->drain_until = tarn__api_seconds() + a->options.drain_seconds;
}

/* Ends the requests that took too long. */
static void end_requests(tarn__api *a)
{
    for (tarn__api_job *job = a->jobs, *next; job; job = next) {
        tarn__api_error error = {0};
        next = job->next;
        if (job == a->change || !job->exchange)
            continue;
        tarn__api_refuse(&error, 503, "model_changed", NULL, "another model is loaded; the request has ended early");
        tarn__api_fail(a, job, &error);
    }
}

void tarn__api_continue_change(tarn__api *a)
{
    tarn_engine_stats stats;
    if (a->state != TARN__API_DRAINING)
        return;
    if (tarn__api_seconds() >= a->drain_until)
        end_requests(a);
    if (a->live || a->preparing)
        return;
    /* counters of /metrics must never fall, so those of the engine that ends are kept */
    if (tarn_engine_query(a->engine, &stats))
        tarn__api_add_counters(&a->past, &stats);
    tarn_clear_error();
    tarn_text_stream_free(a->token_stream); /* of the tokenizer */
    a->token_stream = NULL;
    a->state = TARN__API_LOADING;
    tarn__api_want(a, a->change_to);
}

void tarn__api_forget_change(tarn__api *a, const tarn__api_job *job)
{
    if (a->change == job)
        a->change = NULL;
}

void tarn__api_on_loaded(void *ctx)
{
    tarn__api *a = ctx;
    tarn__api_error error = {0};
    if (atomic_load(&a->is_ending))
        return;
    a->state = a->loaded < 0 ? TARN__API_FAILED : TARN__API_READY;
    a->loads += a->state == TARN__API_READY;
    if (a->load_error[0])
        tarn__api_refuse(&error, 500, "load_failed", "model", "%s", a->load_error);
    tarn__api_job *job = a->change;
    a->change = NULL;
    if (job) {
        answer_change(a, job, &error);
        tarn__api_free_if_over(a, job);
    }
    if (a->state == TARN__API_FAILED)
        tarn__http_server_stop(a->server, job != NULL); /* a second, for the answer to go out */
    else if (a->options.loaded)
        a->options.loaded(&a->model, a->options.ctx);
}
