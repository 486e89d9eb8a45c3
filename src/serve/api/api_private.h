/* api_private.h: the state of the API, between its files. */
#ifndef TARN__API_PRIVATE_H
#define TARN__API_PRIVATE_H

#include <pthread.h>

#include "serve/api/api.h"
#include "serve/http/access.h"

/* Threads of the pool; buckets of the table of requests. */
enum { TARN__API_POOL = 2, TARN__API_BUCKETS = 1024 };

/* Draining: running requests end, then another model is loaded. */
typedef enum tarn__api_state {
    TARN__API_LOADING = 0,
    TARN__API_READY,
    TARN__API_DRAINING,
    TARN__API_FAILED
} tarn__api_state;

/* Jobs in the order of their arrival; guarded by the API's lock. */
typedef struct tarn__api_queue {
    tarn__api_job *first, *last;
} tarn__api_queue;

struct tarn__api {
    tarn__api_options options;
    tarn__http_access access;
    tarn__http_server *server;
    int64_t started; /* Unix time */

    /* of the engine's thread while the API is loading, then of all to read */
    tarn__api_model model;
    tarn_engine *engine;
    tarn_engine_options engine_options; /* as the model's load has set them */
    int loaded;                         /* the index of the model; -1: none */
    char load_error[512];               /* of the last load */
    pthread_t engine_thread;
    atomic_bool is_ending;
    bool has_engine_thread;

    /* the pool and its queue */
    pthread_t pool[TARN__API_POOL];
    int pool_count;
    pthread_mutex_t lock;
    pthread_cond_t filled;
    tarn__api_queue prepared, computed; /* jobs for the pool, and embeddings for the engine's thread */
    int wanted;                         /* the model that the engine's thread shall load; -1: none */

    /* of the loop's thread */
    tarn__api_state state;
    tarn__api_job *jobs;
    tarn__api_choice *bucket[TARN__API_BUCKETS]; /* choices that the engine computes, by the request's number */
    int live;                                    /* these choices */
    int preparing;                               /* jobs in the pool */
    int64_t last_number;
    tarn_text_stream *token_stream;  /* for the texts of single tokens; NULL: not yet needed */
    int64_t answered, refused, gone; /* requests */
    int64_t embedded;                /* tokens of embeddings that were answered */
    int64_t loads;                   /* of models */
    tarn_engine_stats past;          /* counters of the engines before */
    tarn__api_job *change;           /* the request for another model; NULL: none, or its client has gone */
    int change_to;                   /* that model */
    double drain_until;              /* seconds */
};

/* ---- worker.c ---------------------------------------------------------------------------------------------------- */

/* Starts and ends the threads. After the end nothing is posted any more. */
bool tarn__api_start_threads(tarn__api *api);
void tarn__api_end_threads(tarn__api *api);

/* Hands a job to the pool; it comes back by tarn__api_on_prepared(). */
void tarn__api_push(tarn__api *api, tarn__api_job *job);

/* The next job of the embeddings, which stays at the front of its queue; NULL: none. And to the pool with it. */
tarn__api_job *tarn__api_front(tarn__api *api);
void tarn__api_finish_front(tarn__api *api);

/* Hands an embeddings job to the engine's thread; it comes back by tarn__api_on_prepared(). */
void tarn__api_compute(tarn__api *api, tarn__api_job *job);

/* Has the engine's thread free the model and load another one; nothing may use the engine from now on. */
void tarn__api_want(tarn__api *api, int index);

/* Outputs of one step, copied; freed by its receiver. */
typedef struct tarn__api_outputs {
    tarn__api *api;
    tarn_engine_output *outputs;
    size_t count, capacity;
    char *bytes; /* texts and errors */
    size_t byte_count, byte_capacity;
    tarn_candidate *candidates;
    size_t candidate_count, candidate_capacity;
} tarn__api_outputs;

/* ---- completion.c ------------------------------------------------------------------------------------------------ */

/* Called on the loop's thread. */
void tarn__api_on_prepared(void *job);
void tarn__api_on_outputs(void *outputs);
void tarn__api_on_gone(void *job);
void tarn__api_on_second(void *api);
void tarn__api_remove_job(tarn__api *api, tarn__api_job *job);

/* The answer of a job cannot be completed: an error in its place, or as the last event of the stream. */
void tarn__api_fail(tarn__api *api, tarn__api_job *job, const tarn__api_error *error);

/* Frees a job whose exchange is over, unless the pool or the engine has it. */
void tarn__api_free_if_over(tarn__api *api, tarn__api_job *job);

double tarn__api_seconds(void);

/* ---- embeddings.c ------------------------------------------------------------------------------------------------ */

/* Computes one chunk of the oldest embeddings job. On the engine's thread, between two steps; *embedder is NULL before
 * and after a job. False: there is none. */
bool tarn__api_embed(tarn__api *api, tarn_embedder **embedder);

/* ---- models.c ---------------------------------------------------------------------------------------------------- */

/* A model is loaded, or could not be. */
void tarn__api_on_loaded(void *api);

/* Begins to load the model that a job wants. */
void tarn__api_change_model(tarn__api *api, tarn__api_job *job);

/* Loads it once nothing runs any more; called whenever a request may have ended. */
void tarn__api_continue_change(tarn__api *api);

/* The client of a job has gone. */
void tarn__api_forget_change(tarn__api *api, const tarn__api_job *job);

/* ---- api.c ------------------------------------------------------------------------------------------------------- */

/* The path of a route, by its index, and whether it is read with GET; else it needs POST. NULL: past the last. */
const char *tarn__api_route_path(int index, bool *is_read);

void tarn__api_answer_error(tarn__api *api, tarn__http_exchange *exchange, const tarn__api_error *error);
void tarn__api_answer_json(tarn__http_exchange *exchange, int status, const char *text);

/* ---- tools.c ----------------------------------------------------------------------------------------------------- */

/* Calls of the job's tools in a choice's text, as an array, and the length of the text before them; NULL: none. A new
 * reference. */
json_t *tarn__api_calls(const tarn__api_job *job, const tarn__api_choice *choice, size_t *content);

/* ---- tool_choice.c ----------------------------------------------------------------------------------------------- */

/* Leaves the first call of an array alone where a request wants no parallel ones. */
void tarn__api_limit_calls(const tarn__api_job *job, json_t *calls);

/* ---- answer.c: the JSON of answers ------------------------------------------------------------------------------- */

/* A choice's entry of logprobs for a token, or for the one that ended the request. NULL without memory. */
json_t *tarn__api_logprob(tarn__api *api, const tarn__api_job *job, const tarn_engine_output *output,
                          size_t text_offset);

/* A prompt as text, in valid UTF-8. The caller frees it; NULL without memory. */
char *tarn__api_prompt_text(const tarn__api_model *model, const tarn__api_prompt *prompt, size_t *length);

/* The whole answer. The caller frees it; NULL without memory. */
char *tarn__api_whole(const tarn__api_job *job, const tarn__api_model *model);

/* One event of a stream: the role (`text` NULL), text, or the end (with a finish reason). */
char *tarn__api_chunk(const tarn__api_job *job, const tarn__api_model *model, tarn__api_choice *choice,
                      const char *text, size_t length);

/* The event with a part of the thinking. */
char *tarn__api_reasoning_chunk(const tarn__api_job *job, const tarn__api_model *model, tarn__api_choice *choice,
                                const char *text, size_t length);

/* The event with the calls of a choice; takes the reference. */
char *tarn__api_calls_chunk(const tarn__api_job *job, const tarn__api_model *model, const tarn__api_choice *choice,
                            json_t *calls);

/* The event with the usage. */
char *tarn__api_usage_chunk(const tarn__api_job *job, const tarn__api_model *model);

/* ---- status.c ---------------------------------------------------------------------------------------------------- */

/* The entry of a model, by its index, in /v1/models. A new reference; NULL without memory. */
json_t *tarn__api_model_entry(const tarn__api *api, int index);

/* Adds what only grows. */
void tarn__api_add_counters(tarn_engine_stats *to, const tarn_engine_stats *from);

void tarn__api_answer_models(tarn__api *api, tarn__http_exchange *exchange);
void tarn__api_answer_props(tarn__api *api, tarn__http_exchange *exchange);
void tarn__api_answer_metrics(tarn__api *api, tarn__http_exchange *exchange);
void tarn__api_answer_slots(tarn__api *api, tarn__http_exchange *exchange);

/* ---- page_routes.c ----------------------------------------------------------------------------------------------- */

/* The name of the page at a path; NULL: no page. */
const char *tarn__api_page(const char *path);
void tarn__api_answer_page(tarn__http_exchange *exchange, const char *name);
void tarn__api_answer_openapi(tarn__api *api, tarn__http_exchange *exchange);

#endif
