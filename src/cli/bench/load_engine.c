/* load_engine.c: the load of load.c on an engine in this process, without a server; the difference is the cost of HTTP.
 *
 * Only the closed loop: the engine always has as many requests as there are clients. Prompts, options and counts are
 * those of load.c. One thread steps the engine, reads its outputs, and replaces ended requests before the next step. */
#include <stdlib.h>
#include <tarn/engine.h>

#include "cli/bench/load.h"
#include "cli/bench/timer.h"
#include "tarn_features.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

/* A request that has not ended. */
typedef struct active {
    int64_t request;
    double began, last; /* seconds; 0: no token yet */
    int64_t tokens, shared;
} active;

typedef struct engine_load {
    const tarn__load_options *options;
    tarn__load_result *result;
    tarn_engine *engine;
    int32_t *prompt;
    active *active; /* an element per client, of which the first `count` have a request */
    int64_t count, started;
    double began;
} engine_load;

static double now(void)
{
    return 1e-6 * tarn__clock();
}

/* True until the number of requests, or the time, is reached. */
static bool has_more(const engine_load *l)
{
    const tarn__load_options *o = l->options;
    return o->requests ? l->started < o->requests : now() - l->began < o->seconds;
}

/* Gives the next request to the engine. */
static bool start(engine_load *l)
{
    const tarn__load_options *o = l->options;
    tarn__load_prompt(o, l->started++, l->prompt);
    active *a = &l->active[l->count++];
    *a = (active){.began = now()};
    a->request = tarn_engine_add(l->engine, l->prompt, o->prompt_tokens,
                                 &(tarn_generate_options){.max_tokens = o->new_tokens, .ignore_eos = true});
    l->result->max_open = l->count > l->result->max_open ? l->count : l->result->max_open;
    return a->request >= 0;
}

/* Times of a token, as the client of a stream would see them. */
static void count_token(engine_load *l, active *a)
{
    double time = now();
    a->tokens++;
    tarn__histogram_add(a->last > 0 ? &l->result->between : &l->result->first,
                        time - (a->last > 0 ? a->last : a->began));
    a->last = time;
}

/* The request has ended; the last active one takes its place. */
static void count_end(engine_load *l, active *a)
{
    tarn__load_result *r = l->result;
    r->done++;
    r->prompt_tokens += l->options->prompt_tokens;
    r->cached_tokens += a->shared;
    r->tokens += a->tokens;
    tarn__histogram_add(&r->whole, now() - a->began);
    *a = l->active[--l->count];
}

/* Reads the outputs of the last step. False if a request failed. */
static bool read_outputs(engine_load *l, char *error, size_t error_size)
{
    for (tarn_engine_output output; tarn_engine_next(l->engine, &output);) {
        active *a = l->active;
        while (a < l->active + l->count && a->request != output.request)
            a++;
        if (output.token >= 0)
            count_token(l, a);
        a->shared = output.shared;
        if (output.finish_reason == TARN_FINISH_ERROR) {
            snprintf(error, error_size, "%s", output.error);
            return false;
        }
        if (output.finish_reason != TARN_FINISH_NONE)
            count_end(l, a);
    }
    return !tarn_failed();
}

bool tarn__load_run_engine(tarn_engine *engine, const tarn__load_options *options, tarn__load_result *result,
                           char *error, size_t error_size)
{
    engine_load l = {.options = options, .result = result, .engine = engine, .began = now()};
    *result = (tarn__load_result){0};
    *error = '\0';
    l.prompt = calloc((size_t)options->prompt_tokens, sizeof(*l.prompt));
    l.active = calloc((size_t)options->clients, sizeof(*l.active));
    bool good = l.prompt && l.active;
    while (good && (l.count > 0 || has_more(&l))) {
        while (good && l.count < options->clients && has_more(&l))
            good = start(&l);
        good = good && tarn_engine_step(engine) >= 0 && read_outputs(&l, error, error_size);
    }
    result->seconds = now() - l.began;
    free(l.prompt);
    free(l.active);
    if (!good && !*error)
        snprintf(error, error_size, "%s", tarn_failed() ? tarn_error() : "out of memory");
    return good;
}

#endif
