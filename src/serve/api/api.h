/* api.h: an OpenAI-compatible server over an engine.
 *
 * Threads: the HTTP loop (routes, streams; it owns all jobs), a pool that parses, tokenizes and compiles grammars, and
 * one thread that loads the model and steps the engine. Requests go to the pool through a queue and then to the engine;
 * outputs come back to the loop once per step. */
#ifndef TARN__API_H
#define TARN__API_H

#include "serve/api/job.h"
#include "serve/http/keys.h"

typedef struct tarn__api tarn__api;

typedef struct tarn__api_options {
    tarn__http_options http;  /* address, port and limits; handler and ctx are set by the API */
    const char *const *names; /* of the models, each another; the first one is loaded at the beginning */
    int name_count;
    const tarn__api_keys *keys; /* NULL: no key is needed */
    const char *const *origins; /* that get CORS headers */
    int origin_count;
    int queue;         /* requests that may wait */
    int drain_seconds; /* for running requests, before another model is loaded */
    tarn_engine_options engine;
    tarn_speculate speculate; /* of every request, as the next */
    int64_t draft_tokens;
    /* Opens the model of a name, by its index, and its tokenizer, on the engine's thread; may change the options of the
     * engine. The API then owns both, also after a failure. False: `error` holds a sentence. */
    bool (*load)(int index, tarn_module **model, tarn_tokenizer **tokenizer, tarn_engine_options *engine, char *error,
                 size_t error_size, void *ctx);
    /* Names of adapters that requests choose as models of their own, and what adds them to the engine, in this order,
     * on the engine's thread; of a server with one model. False: `error` holds a sentence. */
    const char *const *adapters;
    int adapter_count;
    bool (*add_adapters)(tarn_engine *engine, char *error, size_t error_size, void *ctx);
    /* Reports that a model is loaded; may be NULL. On the loop's thread. */
    void (*loaded)(const tarn__api_model *model, void *ctx);
    void *ctx;
} tarn__api_options;

/* Listens, and begins to load the first model. NULL: `error` holds a sentence. */
tarn__api *tarn__api_new(const tarn__api_options *options, char *error, size_t error_size);

/* The HTTP server, for its port and its stop. */
tarn__http_server *tarn__api_server(tarn__api *api);

/* Serves until the server is stopped. False: no model could be loaded, and `error` holds a sentence. */
bool tarn__api_run(tarn__api *api, char *error, size_t error_size);

void tarn__api_free(tarn__api *api);

#endif
