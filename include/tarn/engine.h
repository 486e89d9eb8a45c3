/* engine.h: many generations at once with continuous batching over a paged KV cache.
 *
 * Requests join and leave between steps. A step computes one token of every decoding request and, with what is left of
 * its budget, prompt tokens of the others, taken round-robin. Requests with a common prefix share its pages, also with
 * requests that have ended. When the pages are used up, the youngest request waits and is recomputed later; none is
 * lost. A request's tokens depend on its prompt, options and seed alone, not on the other requests (batch invariance).
 *
 *     tarn_engine *engine = tarn_engine_new(model, NULL);
 *     tarn_engine_add(engine, tokens, count, &(tarn_generate_options){.max_tokens = 64});
 *     while (tarn_engine_step(engine) > 0)
 *         for (tarn_engine_output output; tarn_engine_next(engine, &output);)
 *             use(output.request, output.token, output.finish_reason);
 *
 * One thread uses an engine at a time. */
#ifndef TARN_ENGINE_H
#define TARN_ENGINE_H

#include <tarn/generate.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A language model with a paged KV cache and the requests that it serves. */
typedef struct tarn_engine tarn_engine;

/* Options of tarn_engine_new(); zero is every field's default. */
typedef struct tarn_engine_options {
    int64_t context;       /* tokens of a request, prompt included; default and maximum: the model's context */
    int64_t sequences;     /* requests computed at once, from 1 to 1024; default 32. Others wait */
    int64_t kv_bytes;      /* memory of the KV cache; at least one context; default: `sequences` contexts */
    tarn_kv_type kv_type;  /* storage type of the KV cache */
    int64_t prompt_tokens; /* prompt tokens per step: larger is faster, smaller steadier; default 512 */
    bool no_sharing;       /* do not share the pages of common prefixes */
    /* faster matmuls of few rows: tokens may then depend on the other requests, in the last bits of their logits */
    bool not_invariant;
} tarn_engine_options;

/* An engine. Borrows the model, which must outlive it and stay on its device; all of its layers are on one device.
 * `...` is a const tarn_engine_options *, or NULL. The caller owns the engine. */
TARN_API tarn_engine *tarn_engine_new_sized(tarn_module *model, const tarn_engine_options *options,
                                            size_t options_size);
#define tarn_engine_new(model, ...) tarn_engine_new_sized(model, __VA_ARGS__, sizeof(tarn_engine_options))

/* Adds a request: a prompt of at least one token and of fewer than the context. Copies what it needs. Of the options,
 * those of samplers, max_tokens, stop and ignore_eos apply; others that are set are an error. `...` is a const
 * tarn_generate_options *, or NULL. Returns the request's number, from 1 on; -1 on error. */
TARN_API int64_t tarn_engine_add_sized(tarn_engine *engine, const int32_t *tokens, int64_t count,
                                       const tarn_generate_options *options, size_t options_size);
#define tarn_engine_add(engine, tokens, count, ...) \
    tarn_engine_add_sized(engine, tokens, count, __VA_ARGS__, sizeof(tarn_generate_options))

/* Computes one step. Returns the number of requests that have not ended, plus that of outputs not yet read; 0: nothing
 * is left to do. -1 on error: the requests of the step have ended. */
TARN_API int64_t tarn_engine_step(tarn_engine *engine);

/* One token of a request. */
typedef struct tarn_engine_output {
    int64_t request;
    int32_t token; /* -1: none; the request has ended */
    tarn_finish_reason finish_reason;
    int64_t shared; /* prompt tokens that were not computed, because their pages were shared */
} tarn_engine_output;

/* The next output of the steps so far, oldest first; false when there is none, or on an error. */
TARN_API bool tarn_engine_next_sized(tarn_engine *engine, tarn_engine_output *output, size_t output_size);
#define tarn_engine_next(engine, output) tarn_engine_next_sized(engine, output, sizeof(tarn_engine_output))

/* Ends a request at once and frees its pages; it has no further outputs. A request that has ended is not an error. */
TARN_API bool tarn_engine_cancel(tarn_engine *engine, int64_t request);

/* Counters since the engine was created, and its present state. */
typedef struct tarn_engine_stats {
    int64_t pages, free_pages;  /* of the KV cache; pages of past prefixes count as free */
    int64_t running, waiting;   /* requests */
    int64_t steps, preemptions; /* a preempted request waits and is recomputed */
    int64_t prompt_tokens;      /* computed, recomputed ones included */
    int64_t shared_tokens;      /* not computed, because their pages were shared */
    int64_t new_tokens;         /* sampled */
} tarn_engine_stats;

/* Fills in the counters. Fields of a newer header's struct that this library does not know become zero. */
TARN_API bool tarn_engine_query_sized(const tarn_engine *engine, tarn_engine_stats *stats, size_t stats_size);
#define tarn_engine_query(engine, stats) tarn_engine_query_sized(engine, stats, sizeof(tarn_engine_stats))

/* Frees an engine, not its model. NULL is allowed; works while an error is pending. */
TARN_API void tarn_engine_free(tarn_engine *engine);

#ifdef __cplusplus
}
#endif

#endif
