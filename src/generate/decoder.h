/* decoder.h: the internals of tarn_decoder: a model, its KV cache, and the captured decode step.
 *
 * A decoder borrows its model and owns its cache. One thread uses it at a time. */
#ifndef TARN__DECODER_H
#define TARN__DECODER_H

#include <tarn/generate.h>
#include <tarn/graph.h>

#include "models/lm/arch.h"

/* The decode step (one token per sequence) as a captured graph. Owns all its members. */
typedef struct tarn__decode_graph {
    bool is_enabled;              /* the device can capture, the caller allows it, and no capture has failed */
    int warm_steps;               /* uncaptured steps so far */
    int64_t max_keys;             /* keys that the captured step may attend to */
    tarn_graph *captured;         /* NULL: not captured yet */
    tarn_tensor *tokens, *logits; /* i64 [batch, 1] and [batch, vocab_size]: input and output of the graph */
} tarn__decode_graph;

struct tarn_decoder {
    tarn_module *model; /* borrowed */
    tarn__model_info info;
    int64_t batch, prefill_chunk;
    int64_t short_context; /* of longrope, tarn__model_short_context() */
    bool recomputes;       /* a sequence that grows past it is computed anew, as Phi-3's in transformers */
    tarn__kv_cache cache;
    tarn__decode_graph graph;
};

/* One forward pass with the cache, always out of training mode, so that dropout never applies; restores the mode.
 * The logits belong to the open scope. NULL with an error. */
tarn_tensor *tarn__decoder_forward(tarn_decoder *decoder, tarn_tensor *tokens);

/* Appends tokens [1, T], one chunk that fits, to the first sequence, and returns their hidden states [1, T,
 * hidden_size]. RoPE is scaled for `length` tokens. In the open scope. NULL with an error. */
tarn_tensor *tarn__decoder_hidden(tarn_decoder *decoder, tarn_tensor *tokens, int64_t length);

/* True if several tokens of a sequence can be fed with the bits of single ones: the model is on the CPU, all of it. */
bool tarn__decoder_can_feed_apart(const tarn_decoder *decoder);

/* Appends tokens, 1 to TARN__ALONE_ROWS, which fit, to a sequence: the logits after each of them, [count, vocab_size],
 * bitwise as tarn_decoder_feed_one() gives them one by one. RoPE must not depend on the length between them. In the
 * open scope. NULL with an error, and nothing is changed. */
tarn_tensor *tarn__decoder_feed_apart(tarn_decoder *decoder, int64_t sequence, const int32_t *tokens, int64_t count);

/* Raises TARN_ERROR_MEMORY for a KV cache that does not fit: how much is missing, and which settings would fit.
 * Replaces the pending error, unless the free memory is unknown. Always false. */
bool tarn__decoder_out_of_memory(const char *function, const tarn__kv_cache_shape *shape, const tarn_module *model,
                                 const tarn__model_info *info);

/* ---- decode graph (decode_graph.c) ------------------------------------------------------------------------------- */

/* Initializes and releases the graph. Nothing is captured before the first decode steps. */
void tarn__decode_graph_init(tarn__decode_graph *captured, tarn_device device, bool is_enabled);
void tarn__decode_graph_close(tarn__decode_graph *captured);

/* Logits [batch, vocab_size] after tokens [batch, 1]; the caller has checked that they fit. In the open scope. NULL
 * with an error. */
tarn_tensor *tarn__decode_graph_feed(tarn_decoder *decoder, tarn_tensor *tokens);

#endif
