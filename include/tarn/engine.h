/* engine.h: many generations at once with continuous batching over a paged KV cache.
 *
 * Requests join and leave between steps. A step computes one token of every decoding request and, with what is left of
 * its budget, prompt tokens of the others, taken round-robin. Requests with a common prefix share its pages, also with
 * requests that have ended; the least recently used pages of ended requests are moved to host memory (.swap_bytes) if
 * there is space, else dropped. Where all layers have a sliding window (Mistral), pages before it are released while
 * the request runs. When the pages are used up, the youngest request waits: it is recomputed later, or its pages are in
 * host memory meanwhile (.swap_bytes). No request is lost. On the CPU a request's tokens depend on its prompt, options
 * and seed alone, not on the other requests (batch invariance); elsewhere the others may change the last bits of its
 * logits.
 *
 *     tarn_engine *engine = tarn_engine_new(model, NULL);
 *     tarn_engine_add(engine, tokens, count, &(tarn_generate_options){.max_tokens = 64});
 *     while (tarn_engine_step(engine) > 0)
 *         for (tarn_engine_output output; tarn_engine_next(engine, &output);)
 *             use(output.request, output.token, output.finish_reason);
 *
 * Adapters: requests may choose one of several LoRA adapters each, and are computed in one step: the model's weights
 * for all of them together, then each adapter's update for the tokens of its own requests.
 *
 * Masks of grammars are computed by threads of the engine: a request whose mask takes long is left out of the steps of
 * the others. With a grammar the last output has no token, unless a stop string ended the request.
 *
 * Threads: one thread at a time steps and reads outputs: tarn_engine_step(), tarn_engine_next(),
 * tarn_engine_add_adapter() and tarn_engine_free(). Meanwhile any threads may call tarn_engine_add(),
 * tarn_engine_cancel(), tarn_engine_query(), tarn_engine_requests(), tarn_engine_wait() and tarn_engine_wake(), which
 * never wait for a step. An error is that of the thread that called. */
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
    /* tokens of a request, prompt included; default and maximum: the model's context. Where longrope has two sets of
     * factors, the default is the context of the short ones. With a longer one a request of Phi-3 that grows past it is
     * computed anew with the long ones, as by generators; other models have the long ones at every length */
    int64_t context;
    int64_t sequences; /* requests computed at once, from 1 to 1024; default 32. Others wait */
    /* memory of the KV cache; at least one context; default: `sequences` contexts. Where all layers have a sliding
     * window, a context takes the pages of the window and of .prompt_tokens */
    int64_t kv_bytes;
    tarn_kv_type kv_type; /* storage type of the KV cache */
    /* max prompt tokens per step; default 512. While requests decode, a step computes fewer, 5 per decoding request but
     * at least 128, so that a long prompt delays their next tokens by about one step */
    int64_t prompt_tokens;
    bool no_sharing; /* do not share the pages of common prefixes */
    /* on the CPU: faster matmuls of few rows; tokens may then depend on the other requests, in the last bits of their
     * logits */
    bool not_invariant;
    /* outputs have text, and requests may have stop strings. Borrowed: must outlive the engine. NULL: tokens only */
    const tarn_tokenizer *tokenizer;
    /* host memory for the pages of preempted requests and of past prefixes, which are moved there and back instead of
     * being recomputed or dropped; allocated as needed; default: none. For devices with their own memory: an error on
     * the CPU */
    int64_t swap_bytes;
    /* for TARN_SPECULATE_DRAFT, on the CPU with batch invariance: a smaller model with the same tokens. It has its own
     * KV cache, for as many tokens as .kv_bytes holds, but no more than `sequences` contexts. Borrowed: must outlive
     * the engine. NULL: none */
    tarn_module *draft;
    /* tokenizer of `draft`, which must have the same ids as the engine's. Borrowed for the call. NULL: the vocabularies
     * must have the same size */
    const tarn_tokenizer *draft_tokenizer;
    /* do not capture decode steps as graphs: needed while another thread uses the device */
    bool no_capture;
} tarn_engine_options;

/* An engine. Borrows the model, which must outlive it and stay on its devices. Its last layers may be on the CPU
 * (tarn_model_offload()): the pages of a layer are on the device of the layer. `...` is a const tarn_engine_options *,
 * or NULL. The caller owns the engine. */
TARN_API tarn_engine *tarn_engine_new_sized(tarn_module *model, const tarn_engine_options *options,
                                            size_t options_size);
#define tarn_engine_new(model, ...) tarn_engine_new_sized(model, __VA_ARGS__, sizeof(tarn_engine_options))

/* Adds a LoRA adapter that requests may choose by .adapter: a folder written by PEFT or tarn_lora_save(), or a GGUF
 * file, with DoRA too. The model, which must have no adapters of its own, stays as it is. Requests of different
 * adapters share no pages. On the CPU the tokens of a request are bit for bit those of an engine of the model with this
 * adapter alone, loaded by tarn_lora_load(). Errors: adapters of another model, and those that replace parameters of
 * the model (modules to save, trained tokens). Returns the adapter's number, from 1 on; -1 on error. */
TARN_API int64_t tarn_engine_add_adapter(tarn_engine *engine, const char *path);

/* Adds a request: a prompt of at least one token and of fewer than the context. Copies what it needs, and keeps the
 * grammar. All options apply, except .slide, .keep and .on_token, which are errors, and .no_capture; .speculate
 * proposes n-grams, or tokens of the engine's .draft, on the CPU with batch invariance. Several samples of one prompt
 * are several requests with different seeds: the prompt's full pages are computed once. `...` is a const
 * tarn_generate_options *, or NULL. Returns the request's number, from 1 on; -1 on error. */
TARN_API int64_t tarn_engine_add_sized(tarn_engine *engine, const int32_t *tokens, int64_t count,
                                       const tarn_generate_options *options, size_t options_size);
#define tarn_engine_add(engine, tokens, count, ...) \
    tarn_engine_add_sized(engine, tokens, count, __VA_ARGS__, sizeof(tarn_generate_options))

/* Computes one step; where all requests wait for masks of grammars, it waits for one of them, at most 0.1 s. Returns
 * the number of requests that have not ended, plus that of outputs not yet read; 0: nothing is left to do. -1 on error:
 * the requests of the step have ended, with an output each. */
TARN_API int64_t tarn_engine_step(tarn_engine *engine);

/* One token of a request, or its end. The last output of a request, and no other, has a finish reason. */
typedef struct tarn_engine_output {
    int64_t request;
    int32_t token; /* -1: none; the request has ended */
    tarn_finish_reason finish_reason;
    int64_t shared; /* prompt tokens that were not computed, because their pages were shared */
    bool is_prompt; /* with .prompt_logprobs: a token of the prompt, from the first on; without text */
    /* complete characters that are final, perhaps none; terminated by 0. NULL without a tokenizer. This and the other
     * pointers are borrowed until the next call of tarn_engine_next() or tarn_engine_step() */
    const char *text;
    size_t length; /* in bytes */
    /* with .logprobs or .top_logprobs: by the model alone, before bias, penalties, masks and temperature, as of
     * tarn_token_logprobs(); else NaN, as for the first token of a prompt */
    double logprob;
    const tarn_candidate *top_logprobs; /* most likely first */
    int top_logprob_count;
    const char *error; /* with TARN_FINISH_ERROR: what failed; else NULL */
    /* so far: from tarn_engine_add() to the request's first step, from there to its first new token, from there to this
     * output */
    double wait_ms, prompt_ms, decode_ms;
    int32_t end_token; /* EOS or the token of .stop that ended the request, with its log probability; else -1 */
    int64_t proposed_tokens, accepted_tokens; /* with .speculate: so far */
} tarn_engine_output;

/* The next output of the steps so far, oldest first; false when there is none, or on an error. Text that may be the
 * beginning of a stop string or of a character comes with a later output of the request. */
TARN_API bool tarn_engine_next_sized(tarn_engine *engine, tarn_engine_output *output, size_t output_size);
#define tarn_engine_next(engine, output) tarn_engine_next_sized(engine, output, sizeof(tarn_engine_output))

/* Ends a request: outputs not yet read are dropped, and one comes with TARN_FINISH_CANCELLED. Its pages are free before
 * the next step. A request that has ended is not an error, and has no more outputs if its last one was read. */
TARN_API bool tarn_engine_cancel(tarn_engine *engine, int64_t request);

/* Waits until the engine has requests or outputs, for at most `seconds`, or until tarn_engine_wake(). True if it has;
 * false if not, or on an error. */
TARN_API bool tarn_engine_wait(tarn_engine *engine, double seconds);

/* Ends the present or else the next tarn_engine_wait(). */
TARN_API bool tarn_engine_wake(tarn_engine *engine);

/* Counters since the engine was created, and its state after the last step. */
typedef struct tarn_engine_stats {
    int64_t pages, free_pages;           /* of the KV cache; pages of past prefixes count as free */
    int64_t running, waiting;            /* requests; a preempted one waits */
    int64_t steps, preemptions;          /* a preempted request waits, and is recomputed unless its pages were moved */
    int64_t prompt_tokens;               /* computed, recomputed ones included */
    int64_t shared_tokens;               /* not computed, because their pages were shared */
    int64_t new_tokens;                  /* sampled */
    int64_t cached_pages;                /* of the free ones: pages of past prefixes */
    int64_t shared_pages;                /* of the others: pages of more than one request */
    int64_t page_tokens;                 /* tokens of a page */
    int64_t context;                     /* tokens of a request, prompt included */
    int64_t added;                       /* requests */
    int64_t finished, cancelled, failed; /* requests that have ended, by finish reason */
    int64_t swap_pages, free_swap_pages; /* of host memory */
    int64_t swapped_out, swapped_in;     /* pages of requests that were moved to host memory, and back */
    int64_t cached_swap_pages;           /* of the free ones: pages of past prefixes */
    int64_t prefixes_out, prefixes_in;   /* pages of past prefixes that were moved to host memory, and back */
    int64_t prefixes_dropped;            /* of these: dropped there */
    int64_t proposed_tokens;             /* with .speculate: computed beside the next token */
    int64_t accepted_tokens;             /* of these: sampled, each of which saved a step */
} tarn_engine_stats;

/* Fills in the counters. Fields of a newer header's struct that this library does not know become zero. */
TARN_API bool tarn_engine_query_sized(const tarn_engine *engine, tarn_engine_stats *stats, size_t stats_size);
#define tarn_engine_query(engine, stats) tarn_engine_query_sized(engine, stats, sizeof(tarn_engine_stats))

/* One request that has not ended, after the last step. */
typedef struct tarn_engine_request {
    int64_t request;
    bool is_running;                      /* else it waits */
    int64_t prompt;                       /* tokens */
    int64_t computed;                     /* tokens whose keys and values are in the cache, new ones included */
    int64_t shared;                       /* prompt tokens that were not computed, because their pages were shared */
    int64_t new_tokens;                   /* sampled */
    int64_t max_tokens;                   /* new tokens at most */
    int64_t pages;                        /* shared ones included; without those before the window */
    int64_t preemptions;                  /* how often it was preempted */
    double wait_ms, prompt_ms, decode_ms; /* as in tarn_engine_output, up to now */
    int64_t adapter;                      /* number; 0: none */
    int64_t proposed_tokens, accepted_tokens; /* with .speculate: so far */
} tarn_engine_request;

/* Describes the first `capacity` requests that have not ended, oldest first; `requests` may be NULL where `capacity` is
 * 0. Returns the number of all that have not ended; -1 on error. `size` is that of a struct. */
TARN_API int64_t tarn_engine_requests_sized(const tarn_engine *engine, tarn_engine_request *requests, int64_t capacity,
                                            size_t size);
#define tarn_engine_requests(engine, requests, capacity) \
    tarn_engine_requests_sized(engine, requests, capacity, sizeof(tarn_engine_request))

/* Frees an engine, not its model. NULL is allowed; works while an error is pending. */
TARN_API void tarn_engine_free(tarn_engine *engine);

#ifdef __cplusplus
}
#endif

#endif
