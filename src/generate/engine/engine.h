/* engine.h: the internals of tarn_engine: requests, their pages, the step and its outputs.
 *
 * The lock guards everything but what a step computes with while it runs: the requests of its batch, which stay alive
 * and change only after the step (engine_step.c); and the constraint of a request whose mask a worker is computing
 * (engine_masks.c). Memory of ended requests is freed by the thread that steps: it may be the device's. */
#ifndef TARN__ENGINE_H
#define TARN__ENGINE_H

#include <pthread.h>
#include <tarn/engine.h>
#include <tarn/graph.h>

#include "generate/constrain.h"
#include "generate/engine/page_pool.h"
#include "generate/generate_options.h"
#include "generate/stop_buffer.h"
#include "models/lm/arch.h"
#include "nn/lora_groups.h"

/* The mask of a request's grammar. */
typedef enum tarn__mask_state {
    TARN__MASK_NONE,      /* without a grammar */
    TARN__MASK_WANTED,    /* for a worker, who first appends the new tokens to the grammar */
    TARN__MASK_COMPUTING, /* the constraint is a worker's */
    TARN__MASK_READY,     /* for the next token; or there is none: the grammar is done, or an error */
} tarn__mask_state;

/* What a preempted request has in host memory: pages [passed, pages) of its tokens, and where it was. `pages` 0:
 * nothing.
 */
typedef struct tarn__swapped {
    int64_t computed, passed, pages, published;
    tarn__page_key key;
} tarn__swapped;

/* Host memory for pages (engine_swap.c). */
typedef struct tarn__swap_move {
    int32_t page, slot;
    bool is_out; /* from the page to the slot */
} tarn__swap_move;

typedef struct tarn__swap {
    int32_t count, free_count;
    void **memory;       /* [count], of a page each; NULL: not used yet */
    int32_t *free_slots; /* [count] */
    tarn__swap_move *move;
    int moves, capacity; /* of the present plan */
} tarn__swap;

/* Tokens that are proposed to a request at a time, at most, and those of a step that may have proposals. */
#define TARN__ENGINE_PROPOSALS (TARN__ALONE_ROWS - 1)
#define TARN__ENGINE_TIMED_TOKENS 32

/* The draft model of an engine (engine_draft.c), and its KV cache. */
typedef struct tarn__draft {
    tarn_module *model; /* borrowed; NULL: none */
    tarn__model_info info;
    int64_t context;
    tarn__kv_pages pages;
    tarn__page_pool pool;
    int64_t budget;  /* tokens that the present step may compute besides proposals */
    double token_ms; /* of a proposed token of one request, estimated; 0: not yet */
} tarn__draft;

/* What a request has there. */
typedef struct tarn__drafted {
    int32_t *page; /* [pages of max_count]; NULL: the request has no draft proposals */
    int64_t pages, published;
    int64_t computed; /* tokens in its pages; those after `count` are proposals */
    tarn__page_key key;
    int64_t wanted, made; /* proposals of the next step, and those behind `count` */
    int64_t fed;          /* tokens of the next pass */
} tarn__drafted;

/* The shape of a decode step: steps of equal shapes share a graph. */
typedef struct tarn__step_shape {
    int64_t sequences, table_pages;
    bool is_long;
} tarn__step_shape;

/* A captured step (engine_graph.c) with its static inputs and logits; all owned. All zero: none. */
typedef struct tarn__engine_graph {
    tarn__step_shape shape;
    tarn_graph *captured;
    tarn_tensor *indices; /* i64 [3 · sequences]: tokens, positions, slots */
    tarn_tensor *numbers; /* i32: tables, starts, lengths, as in tarn__packed_sequences */
    tarn_tensor *rows;    /* i64 [sequences] */
    tarn_tensor *logits;  /* [sequences, vocab_size] */
    int64_t used;         /* clock of its last launch */
} tarn__engine_graph;

#define TARN__ENGINE_GRAPHS 8

typedef struct tarn__engine_graphs {
    bool is_enabled;
    int64_t clock;
    tarn__step_shape last; /* of the last eager step that could be captured; equal_steps: how many in a row had it */
    int equal_steps;
    tarn__engine_graph graph[TARN__ENGINE_GRAPHS];
} tarn__engine_graphs;

/* One request. Its tokens are the prompt and those sampled; the keys and values of the first `computed` of them are in
 * its pages, except those before every layer's window, which are released. A waiting request has no pages. */
typedef struct tarn__request {
    int64_t number;
    int32_t *tokens;
    int64_t count, prompt, max_count; /* max_count: also the capacity of `tokens` */
    int64_t computed;
    int64_t shared; /* prompt tokens that were found in pages of others */
    bool is_running;
    bool is_cancelled; /* during the step that computes it, after which it ends */
    int32_t *page;     /* [pages of max_count]; the first `passed` are no longer its own */
    int64_t pages, passed;
    int32_t *slot; /* [pages of max_count] of host memory, while it waits; NULL: there is none */
    tarn__swapped swapped;
    int64_t published;        /* pages that are published, from the first on */
    tarn__page_key root, key; /* the chain's beginning; key of the last published page, or the beginning */
    int64_t adapter;          /* number; 0: none */
    tarn_sampler *sampler;
    bool needs_history; /* the sampler has not got the prompt yet */
    tarn__constraint constraint;
    tarn__mask_state mask;
    int64_t matched;          /* tokens so far, the prompt included, that the grammar has got */
    int64_t prepared;         /* proposals after `count` whose masks are known */
    bool is_grammar_done;     /* it has ended with the last token */
    bool has_failed;          /* there is no mask */
    char *mask_error;         /* why; owned. NULL: no memory */
    tarn_text_stream *stream; /* NULL without a tokenizer */
    tarn__stop_buffer stop_buffer;
    bool logprobs, prompt_logprobs, prompt_only;
    int top_logprobs;
    int64_t echoed;                           /* tokens of the prompt that were output */
    int64_t draft_tokens, proposal_length;    /* proposed at a time, at most; 0: none */
    int64_t proposed_tokens, accepted_tokens; /* so far */
    tarn__drafted draft;
    int64_t steps_without; /* proposals */
    bool is_paying;        /* proposals are worth their masks, as of the last step */
    double accepted_part;  /* of proposals, expected */
    int64_t preemptions;
    double added_at, started_at, decoded_at; /* milliseconds; 0: not yet */

    /* this step's: */
    bool is_in_step;
    int64_t planned;                  /* tokens, with those proposed */
    int64_t proposed;                 /* of these, after `count` */
    int64_t first_row;                /* of its logits */
    int64_t prompt_rows;              /* rows for log probabilities of the prompt, before that of the next token */
    bool is_sampled;                  /* has a row for the next token, and one after each proposed one */
    int ids;                          /* number of tokens sampled: while they were those proposed, and one more */
    int64_t id[TARN__ALONE_ROWS];     /* -1: the logits are not finite */
    int64_t logprobs_at;              /* of its first row, in the batch's log probabilities */
    char *error;                      /* why it cannot go on; owned. NULL: it can */
    struct tarn__request *next_ended; /* in the engine's list of ended requests */
} tarn__request;

/* An output in the queue; texts and candidates are offsets into the engine's arrays. */
typedef struct tarn__reply {
    tarn_engine_output output;
    size_t text, candidates;
} tarn__reply;

#define TARN__MASK_WORKERS 2

struct tarn_engine {
    tarn_module *model; /* borrowed */
    tarn__model_info info;
    tarn_engine_options options; /* defaults resolved */
    tarn__kv_pages pages;
    int64_t window;        /* of all layers; 0: none */
    int64_t short_context; /* longer requests have longrope's long factors, and shorter ones the short; 0: no matter */
    tarn__lora_set **adapter; /* by number, from 1 on; the array is of the thread that steps, `adapters` of the lock */
    int adapters, adapter_capacity;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* requests or outputs were added, or is_woken was set */
    bool is_woken;
    tarn__page_pool pool;
    tarn__draft draft;
    tarn__swap swap; /* of the thread that steps, but for the free slots */
    tarn__engine_graphs graphs;
    tarn__request **request; /* all that have not ended, by number */
    int count, capacity;
    tarn__request *ended; /* to be freed by the thread that steps */
    int64_t next_number;
    int64_t turn;       /* number of the request after which prompt tokens are given next */
    tarn__reply *reply; /* with space for a last output of every request */
    int replies, first_reply;
    size_t reply_capacity;
    char *text; /* of outputs and errors */
    size_t text_length, text_capacity;
    tarn_candidate *candidate;
    size_t candidates, candidate_capacity;
    tarn_engine_stats stats;
    pthread_t worker[TARN__MASK_WORKERS]; /* started with the first grammar */
    int workers;
    const tarn_grammar *busy[TARN__MASK_WORKERS]; /* of the mask that a worker computes; NULL: none */
    pthread_cond_t mask_wanted;
    bool is_closing;                                 /* workers end */
    double step_ms;                                  /* time of the last step */
    int64_t decoding_tokens;                         /* of the present step, if it has no others; else 0 */
    double decode_ms[TARN__ENGINE_TIMED_TOKENS + 1]; /* of such steps, by their tokens, estimated; 0: not yet */
};

/* A step's operands on the host, in one allocation; tensors are in the open scope. */
typedef struct tarn__batch {
    bool is_long;     /* requests beyond the short context */
    bool is_decoding; /* one token and one row of logits per request */
    int64_t tokens, sequences, rows, table_pages, logprobs;
    tarn__request **request;                /* [sequences] */
    int64_t *ids, *positions, *slots, *row; /* [tokens], [tokens], [tokens], [rows] */
    double *logprob;                        /* [logprobs]: 1 + 2 · top_logprobs of each row that wants them */
    int32_t *table, *starts, *lengths;      /* [sequences, table_pages], [sequences + 1], [sequences] */
    tarn__lora_group *group;                /* [groups]: requests of one adapter are adjacent */
    int groups;
} tarn__batch;

/* Milliseconds of the monotonic clock. */
double tarn__engine_now(void);

void tarn__engine_lock(const tarn_engine *engine);
void tarn__engine_unlock(const tarn_engine *engine);

/* Raises if the engine is NULL. */
bool tarn__engine_check(const char *function, const tarn_engine *engine);

/* Pages for a number of tokens. */
int64_t tarn__engine_pages_for(int64_t tokens);

/* Pages that a request of so many tokens has at most at a time: without a window, those of all tokens. */
int64_t tarn__engine_max_pages(const tarn_engine *engine, int64_t tokens);

/* Releases the pages of a request, the last one first. */
void tarn__engine_release_pages(tarn_engine *engine, tarn__request *request);

/* Releases the pages that no token from position `next` on attends to. */
void tarn__engine_release_passed(tarn_engine *engine, tarn__request *request, int64_t next);

/* Ends a request, and leaves its memory to tarn__engine_free_ended(). */
void tarn__engine_remove(tarn_engine *engine, tarn__request *request);
void tarn__engine_free_ended(tarn__request *ended);

/* Time of the monotonic clock in so many milliseconds. */
struct timespec tarn__engine_time_in(double milliseconds);

/* True if a request has the long factors of longrope: its keys are not those of a shorter one. */
bool tarn__engine_is_long(const tarn_engine *engine, const tarn__request *request);

/* What the pool compares pages by: their tokens, and what else their keys depend on: the side of the short context and
 * the adapter, so that pages of different ones are never mistaken for each other. */
#define TARN__ENGINE_PAGE_TOKENS (TARN__KV_PAGE + 1)

/* That of a request's page, in the buffer, which is returned. */
const int32_t *tarn__engine_page_tokens(const tarn_engine *engine, const tarn__request *request, int64_t page,
                                        int32_t buffer[TARN__ENGINE_PAGE_TOKENS]);

/* A step has a batch for the requests of each side of the short context; without one, the second is empty. */
#define TARN__ENGINE_BATCHES 2

/* Logits [rows, vocab_size] of packed tokens [1, T], out of training mode, so that dropout never applies. In the open
 * scope. NULL with an error. */
tarn_tensor *tarn__engine_forward(tarn_module *model, tarn_tensor *tokens, const tarn__page_batch *pages,
                                  tarn_tensor *rows, bool is_invariant);

/* The same on the engine's device, with the indices of a batch; adapters: NULL = none. */
tarn_tensor *tarn__engine_forward_on(tarn_engine *engine, const tarn__page_index *index, tarn_tensor *tokens,
                                     tarn_tensor *rows, const tarn__lora_groups *adapters, bool is_long);

/* dtype of the cached keys and values; TARN_U8 stands for quantized rows (kv_q8). */
tarn_dtype tarn__engine_stored_dtype(tarn_kv_type kv_type, tarn_dtype of_model);

/* A step's three parts: plan and release the batches with the lock, compute them without. plan: false with an error, or
 * without one where there is nothing to compute. */
bool tarn__engine_plan(tarn_engine *engine, tarn__batch batch[TARN__ENGINE_BATCHES]);
bool tarn__engine_compute(tarn_engine *engine, tarn__batch *batch);
void tarn__batch_release(tarn__batch *batch);

/* Samples the batch's next tokens by logits [rows, vocab_size] and reads them with the log probabilities. False with an
 * error; what concerns one request only is noted there. */
bool tarn__engine_sample(tarn__batch *batch, tarn_tensor *logits);

/* Advances the requests of a computed batch, or ends all of them for the pending error, which stays. False with an
 * error. */
bool tarn__engine_advance(tarn_engine *engine, const tarn__batch *batch);
void tarn__engine_fail_all(tarn_engine *engine, const tarn__batch *batch);

/* A page with one reference; -1, without an error: all are in use. The least recently used page of past prefixes is
 * moved to host memory for it, if there is some. */
int32_t tarn__engine_take_page(tarn_engine *engine);

/* ---- captured steps (engine_graph.c) ----------------------------------------------------------------------------- */

/* open: decides whether steps are captured. close: frees the graphs. */
void tarn__engine_open_graphs(tarn_engine *engine);
void tarn__engine_close_graphs(tarn_engine *engine);

/* Width of the page tables if the batch may be captured; 0: it may not. */
int64_t tarn__engine_graph_pages(const tarn_engine *engine, const tarn__batch *batch);

/* Logits of a batch, computed by the graph of its shape, which is captured first if that is due; valid until the next
 * step. NULL with an error; NULL without one: there is no graph. */
tarn_tensor *tarn__engine_graph_run(tarn_engine *engine, const tarn__batch *batch);

/* ---- pages in host memory (engine_swap.c) ------------------------------------------------------------------------ */

/* Opens and closes host memory by the options. False with an error. */
bool tarn__engine_open_swap(tarn_engine *engine);
void tarn__engine_close_swap(tarn_engine *engine);

/* Plan to move a running request's pages to host memory, if there is room, before they are released; and back, after it
 * has begun again, perhaps with published pages. */
void tarn__engine_swap_out(tarn_engine *engine, tarn__request *request);
void tarn__engine_swap_in(tarn_engine *engine, tarn__request *request);

/* Adds the published pages of a request's prefix that follow those that it has, up to `limit` tokens: those in host
 * memory are planned to be moved back. With a window, none before that of the last one. */
void tarn__engine_restore(tarn_engine *engine, tarn__request *request, int64_t limit);

/* Gives a page the key of an equal one in host memory, which is no longer needed there. False: there is none. */
bool tarn__engine_publish_restored(tarn_engine *engine, int32_t page, tarn__page_key parent, const int32_t *tokens);

/* Forgets what a request has in host memory: it is recomputed. */
void tarn__engine_drop_swapped(tarn_engine *engine, tarn__request *request);

/* Moves what was planned, without the lock. False with an error. With the lock, the plan ends: after an error of the
 * step all requests are recomputed that are not part of it, and pages of past prefixes that were to be moved are
 * forgotten. */
bool tarn__engine_move_pages(tarn_engine *engine);
void tarn__engine_end_moves(tarn_engine *engine, bool is_good);

/* ---- speculative decoding (engine_speculate.c) --------------------------------------------------------------------
 */

void tarn__engine_open_speculation(tarn__request *request, const tarn_generate_options *options);

/* Raises speculation that an engine cannot do. */
bool tarn__engine_check_speculation(const tarn_engine *engine, const tarn_generate_options *options);

/* Tokens whose masks a worker computes after that of the next one; with the lock. */
int64_t tarn__engine_look_ahead(const tarn_engine *engine, const tarn__request *request);

/* Adds proposals to the plan of a step that decodes alone. The lock is not held while a draft model computes. False
 * with an error. */
bool tarn__engine_propose(tarn_engine *engine);

/* Notes how many of a request's proposals were accepted, and the time of a step. */
void tarn__engine_note_accepted(tarn_engine *engine, tarn__request *request);
void tarn__engine_note_time(tarn_engine *engine, double milliseconds);

/* Brings an estimated time up to date; 0: there was none. */
void tarn__engine_estimate(double *known, double milliseconds);

/* ---- the draft model (engine_draft.c) ---------------------------------------------------------------------------- */

/* Opens and closes the draft of the options, if any, for an engine of so many pages. False with an error; closing is
 * allowed then. */
bool tarn__engine_open_draft(const char *function, tarn_engine *engine, int64_t pages);
void tarn__engine_close_draft(tarn_engine *engine);

/* Releases a request's pages of the draft. */
void tarn__engine_release_draft(tarn_engine *engine, tarn__request *request);

/* Plans up to `most` proposals of the draft to a request, or a part of its prompt. Returns their number. */
int64_t tarn__engine_want_draft(tarn_engine *engine, tarn__request *request, int64_t most);

/* Runs the draft for the requests with such a plan: `made` of each. The lock is not held while it computes; requests
 * that are cancelled meanwhile are removed. False with an error. */
bool tarn__engine_run_draft(tarn_engine *engine);

/* ---- masks (engine_masks.c) -------------------------------------------------------------------------------------- */

/* Starts the workers, if they do not run. False with an error. */
bool tarn__engine_start_workers(tarn_engine *engine);

/* Ends the workers after the masks that they compute. */
void tarn__engine_stop_workers(tarn_engine *engine);

/* Has a request's next mask computed, after its tokens so far. Does nothing without a grammar. */
void tarn__engine_want_mask(tarn_engine *engine, tarn__request *request);

/* Has the masks computed after the draft's proposals to a request, whose next mask is known. */
void tarn__engine_want_masks_ahead(tarn_engine *engine, tarn__request *request);

/* True if a request cannot have its next token yet. */
bool tarn__request_needs_mask(const tarn__request *request);

/* True if a worker computes a mask of a request's grammar: freeing the request would wait for it. */
bool tarn__engine_is_busy(const tarn_engine *engine, const tarn__request *request);

/* Waits, with the lock, for masks that running requests need: shortly for all of them where others can be computed
 * meanwhile; else until anything changes. */
void tarn__engine_wait_for_masks(tarn_engine *engine, bool has_others);

/* Ends requests whose grammar is done or failed, or that have all their tokens. */
void tarn__engine_settle_masks(tarn_engine *engine);

/* ---- outputs (engine_output.c) ----------------------------------------------------------------------------------- */

/* Reserves space for `more` outputs beside the last ones of `requests` requests. False with an error. */
bool tarn__engine_reserve_outputs(tarn_engine *engine, int64_t more, int64_t requests);

/* Queues an output without text; there is space. */
tarn__reply *tarn__engine_reply(tarn_engine *engine, const tarn__request *request, int32_t token,
                                tarn_finish_reason reason);

/* Adds text and log probabilities, 1 + 2 · top of them, to an output. False with an error. */
bool tarn__reply_text(tarn_engine *engine, tarn__reply *reply, const char *text, size_t length);
bool tarn__reply_logprobs(tarn_engine *engine, tarn__reply *reply, const double *values, int top);

/* Queues the last output of a request that failed, with a sentence, or NULL for the pending error, which stays; and
 * removes the request. */
void tarn__engine_fail(tarn_engine *engine, tarn__request *request, const char *sentence);

/* Drops the outputs of a request that were not read. Returns true if its last one was among them. */
bool tarn__engine_drop_outputs(tarn_engine *engine, int64_t request);

/* Forgets the outputs that were read, if they are half of the queue. */
void tarn__engine_reset_outputs(tarn_engine *engine);

#endif
