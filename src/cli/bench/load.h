/* load.h: a load generator for `tarn serve` and for engines: streamed completions of random prompts, from a fixed
 * number of clients that each wait for their answer, or at a given rate.
 *
 * A request counts as done when its status is 200, its stream has ended with [DONE] and its usage names as many new
 * tokens as were asked for; all others are counted by what went wrong. One thread, one event loop. */
#ifndef TARN__LOAD_H
#define TARN__LOAD_H

#include <sys/socket.h>
#include <tarn/engine.h>

#include "cli/bench/histogram.h"
#include "cli/cli.h"

/* A server: where it is, and what requests to it need. */
typedef struct tarn__load_server {
    char host[280]; /* of the Host header: name and port */
    struct sockaddr_storage address;
    socklen_t address_size;
    const char *key; /* NULL: none */
} tarn__load_server;

/* Fills in the address of a URL, http://HOST:PORT. False: `error` holds a sentence. */
bool tarn__load_server_open(tarn__load_server *server, const char *url, char *error, size_t error_size);

/* What the server says about its model. */
typedef struct tarn__load_model {
    char name[128];
    int64_t vocab_size, context;
} tarn__load_model;

/* Asks the server for its model (GET /props). False: `error` holds a sentence. */
bool tarn__load_server_query(const tarn__load_server *server, tarn__load_model *model, char *error, size_t error_size);

/* ---- load -------------------------------------------------------------------------------------------------------- */

typedef struct tarn__load_options {
    tarn__load_server server;
    int64_t clients;  /* 0: by rate */
    double rate;      /* requests per second */
    int64_t requests; /* 0: by time */
    double seconds;   /* in which requests begin */
    int64_t prompt_tokens, new_tokens, vocab_size;
    uint64_t seed;
} tarn__load_options;

enum { TARN__LOAD_ERRORS_MAX = 16 };

typedef struct tarn__load_error {
    char name[32]; /* a status, such as 429, or a word, such as closed */
    int64_t count;
} tarn__load_error;

/* The result. */
typedef struct tarn__load_result {
    double seconds; /* from the first request to the end of the last */
    int64_t done, failed;
    int64_t max_open;                             /* requests at a time */
    int64_t prompt_tokens, cached_tokens, tokens; /* of requests that are done */
    tarn__histogram first, between, whole;        /* seconds: to the first token, between tokens, of requests */
    tarn__load_error errors[TARN__LOAD_ERRORS_MAX];
    int error_count;
} tarn__load_result;

/* Writes the prompt of request `number`, prompt_tokens random tokens that follow from the seed. All prompts differ, so
 * that no prefix is cached. */
void tarn__load_prompt(const tarn__load_options *options, int64_t number, int32_t *tokens);

/* Runs the load. False: `error` holds a sentence. */
bool tarn__load_run(const tarn__load_options *options, tarn__load_result *result, char *error, size_t error_size);

/* load_engine.c: the same on an engine, without a server; only with a number of clients. */
bool tarn__load_run_engine(tarn_engine *engine, const tarn__load_options *options, tarn__load_result *result,
                           char *error, size_t error_size);

#endif
