/* kv_cache.h: the KV cache: keys and values of the tokens so far, so that a forward pass computes new tokens only.
 *
 * Memory for `capacity` tokens of `batch` sequences is allocated up front. Sequence lengths are stored twice: on the
 * host, which slices views by them, and on the device, which reads them there, so that nothing waits and nothing is
 * transferred. Keys and values are on the device of their layer. A step covers some adjacent sequences, all or one,
 * with the same number of tokens each; between tarn__kv_cache_begin_step() and tarn__kv_cache_end_step() a model
 * asks for the positions of its tokens and attends, layer by layer. Appended rows become valid when the step ends: a
 * step that fails leaves the sequences as they were.
 *
 * Rows are stored in the model's dtype, in another one, or quantized to 8 bits (kv_q8, ops/internal.h). */
#ifndef TARN__KV_CACHE_H
#define TARN__KV_CACHE_H

#include "models/lm/device_map.h"
#include "ops/internal.h"

typedef struct tarn__kv_cache_shape {
    int64_t layers, batch, heads, capacity, head_dim;
    tarn_dtype dtype;     /* of keys and values; TARN_U8: quantized, with scales */
    tarn__device_map map; /* of the layers; positions of the embedding are on its first device */
} tarn__kv_cache_shape;

/* Keys or values of one layer. Owned. */
typedef struct tarn__kv_rows {
    tarn_tensor *rows;  /* [B, heads, capacity, head_dim] */
    tarn_tensor *scale; /* f16 [B, heads, capacity, groups of a row]; NULL: not quantized */
} tarn__kv_rows;

/* The current step. */
typedef struct tarn__kv_cache_step {
    int64_t first, count, tokens; /* sequences first … first + count - 1, and tokens of each */
    int64_t max_keys;             /* keys to attend to, at most */
    bool is_uniform;              /* all sequences have one length, known to the host: slices instead of indices */
    bool is_apart;                /* of one sequence, whose tokens attend as if each were a step of its own */
} tarn__kv_cache_step;

/* State per device of the map. `sequence_lengths` and `lengths` are retained; the others belong to the scope of
 * the step. */
typedef struct tarn__kv_cache_device {
    tarn_device device;
    tarn_tensor *sequence_lengths; /* i64 [batch] */
    tarn_tensor *offsets;          /* i64 [count]: index of the step's first token */
    tarn_tensor *positions;        /* i64 [tokens], [count, tokens], or [tokens, 1] where they are apart */
    tarn_tensor *lengths;          /* i64 [count], the step's tokens included; NULL until a layer needs them; or
                                      [tokens] where they are apart */
} tarn__kv_cache_device;

typedef struct tarn__kv_cache {
    tarn__kv_cache_shape shape;
    int64_t *length;                                   /* per sequence */
    tarn__kv_cache_device dev[TARN_SPLIT_MAX_DEVICES]; /* of the map */
    tarn__kv_rows *rows;                               /* [2 · layers]: keys of all layers, then their values */
    tarn__kv_cache_step step;
    int64_t rope_length; /* at least this is the length that RoPE is scaled for: of all chunks of a prefill */
} tarn__kv_cache;

/* Length that dynamic and longrope scale RoPE for in the step. */
static inline int64_t tarn__kv_cache_rope_length(const tarn__kv_cache *cache)
{
    return cache->rope_length > cache->step.max_keys ? cache->rope_length : cache->step.max_keys;
}

/* Allocates the cache, or raises an error; then there is nothing to release. Closing an all-zero cache is allowed. */
bool tarn__kv_cache_open(const char *function, tarn__kv_cache *cache, const tarn__kv_cache_shape *shape);
void tarn__kv_cache_close(tarn__kv_cache *cache); /* all zero is allowed */

/* Bytes of one token of one sequence in `layers` layers. */
int64_t tarn__kv_cache_token_bytes(const tarn__kv_cache_shape *shape, int64_t layers);

/* Begins a step of `tokens` tokens for `count` sequences from `first`, which fit. `max_keys` 0: the host's lengths
 * bound the keys; else the device's lengths do, which are at most `max_keys` after the step, so that the step can be
 * captured and replayed. In the open scope. False with an error. */
bool tarn__kv_cache_begin_step(tarn__kv_cache *cache, int64_t first, int64_t count, int64_t tokens, int64_t max_keys);

/* Begins a step of `tokens` tokens of one sequence, which fit, and which the model gets as [tokens, 1]: each has the
 * bits that it would have as a step of its own, where the matmuls give each row the bits that it has alone. */
bool tarn__kv_cache_begin_apart(tarn__kv_cache *cache, int64_t sequence, int64_t tokens);

/* Ends the step: advances the lengths on the devices. */
bool tarn__kv_cache_end_step(tarn__kv_cache *cache);

/* Advances the host's lengths: once per run of the step. */
void tarn__kv_cache_advance(tarn__kv_cache *cache, int64_t first, int64_t count, int64_t tokens);

/* Positions of the step's tokens, i64 [T], or [B, T] if lengths differ, on the device of a layer, for tarn_rope();
 * of layer -1, on the first device, for position embeddings. Borrowed from the step. */
tarn_tensor *tarn__kv_cache_positions(const tarn__kv_cache *cache, int64_t layer);

/* Appends keys and values [B, heads, T, head_dim] of the step and attends with queries [B, H, T, head_dim]: [B, H,
 * T, head_dim], as tarn_attention(). Ignores the rotation of the options. Borrows all three; the result belongs to the
 * open scope. */
tarn_tensor *tarn__kv_cache_attend(tarn__kv_cache *cache, int64_t layer, tarn_tensor *queries, tarn_tensor *keys,
                                   tarn_tensor *values, const tarn__decode_attention_options *how);

/* The same for queries [B, T, H, head_dim] and keys and values [B, T, heads, head_dim], with the rotation of
 * the options on the first two: [B, T, H · head_dim]. Keys are cached rotated. */
tarn_tensor *tarn__kv_cache_rotate_and_attend(tarn__kv_cache *cache, int64_t layer, tarn_tensor *queries,
                                              tarn_tensor *keys, tarn_tensor *values,
                                              const tarn__decode_attention_options *how);

/* Replaces a sequence by the first `length` tokens of another, which has at least that many. False with an error:
 * then it is empty. */
bool tarn__kv_cache_copy_prefix(tarn__kv_cache *cache, int64_t from, int64_t to, int64_t length);

/* Truncates a sequence to `length` tokens, at most its own. */
bool tarn__kv_cache_rewind(tarn__kv_cache *cache, int64_t sequence, int64_t length);

#endif
