/* engine.h: the internals of tarn_engine: requests, their pages, and the step (engine_step.c). */
#ifndef TARN__ENGINE_H
#define TARN__ENGINE_H

#include <tarn/engine.h>

#include "generate/page_pool.h"
#include "models/lm/arch.h"

/* One request. Its tokens are the prompt and those sampled; the keys and values of the first `computed` of them are in
 * its pages. A waiting request has no pages. */
typedef struct tarn__request {
    int64_t number;
    int32_t *tokens;
    int64_t count, prompt, max_count; /* max_count: also the capacity of `tokens` */
    int64_t computed, planned;        /* planned: tokens of this step */
    int64_t shared;                   /* prompt tokens that were found in pages of others */
    bool is_running;
    int32_t *page; /* [pages of max_count] */
    int64_t pages;
    int64_t published;  /* pages that are published, from the first on */
    tarn__page_key key; /* of the last one, or the chain's beginning */
    tarn_sampler *sampler;
    int32_t *stop;
    int stop_count;
    bool ignore_eos;
} tarn__request;

struct tarn_engine {
    tarn_module *model; /* borrowed */
    tarn__model_info info;
    tarn_engine_options options; /* defaults resolved */
    tarn__kv_pages pages;
    tarn__page_pool pool;
    tarn__request **request; /* all that have not ended, by number */
    int count, capacity;
    int64_t next_number;
    int64_t turn; /* number of the request after which prompt tokens are given next */
    tarn_engine_output *output;
    int outputs, first_output;
    size_t output_capacity;
    tarn_engine_stats stats;
};

/* Pages for a number of tokens. */
int64_t tarn__engine_pages_for(int64_t tokens);

/* Releases the pages of a request, the last one first. */
void tarn__engine_release_pages(tarn_engine *engine, tarn__request *request);

/* Ends a request and frees it. */
void tarn__engine_remove(tarn_engine *engine, tarn__request *request);

/* One step; false with an error. */
bool tarn__engine_step(tarn_engine *engine);

#endif
