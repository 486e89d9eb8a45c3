/* kv_cache.h: keys and values of the tokens that a language model has seen, so that the next ones are all it has to
 * look at.
 *
 * There is room for `room` tokens of `batch` sequences from the beginning. How many each sequence has is known twice:
 * to the host, which cuts views by it, and to the device, which reads it there, so that nothing waits and nothing
 * crosses. Keys and values lie where their layer does: on the device, or on the CPU. A step is for some sequences that
 * follow one another, all of them or one, and gives each the same number of tokens; between tarn__kv_cache_begin_step()
 * and tarn__kv_cache_end_step() a model asks for the positions of its tokens and attends, layer by layer. What is put
 * behind a sequence counts when the step ends well: one that fails half-way leaves nothing behind that counts.
 *
 * Numbers are stored in the model's dtype, in another one, or in 8 bits, as ops/codes.h has them. */
#ifndef TARN__KV_CACHE_H
#define TARN__KV_CACHE_H

#include <tarn/ops.h>

typedef struct tarn__kv_cache_shape {
    int64_t layers, batch, heads, capacity, head_dim;
    tarn_dtype dtype; /* that keys and values are stored in; TARN_U8: in 8 bits, with scales */
    tarn_device device;
    int64_t device_layers; /* so many layers lie on the device, those after them on the CPU */
} tarn__kv_cache_shape;

/* Keys or values of one layer. */
typedef struct tarn__kv_rows {
    tarn_tensor *rows;  /* [B, heads, room, width of a head], kept */
    tarn_tensor *scale; /* f16 [B, heads, room, groups of a row], kept; NULL: there are none */
} tarn__kv_rows;

/* The step under way. */
typedef struct tarn__kv_cache_step {
    int64_t first, count, tokens; /* sequences, and tokens of each */
    int64_t reach;                /* keys that are looked at */
    bool is_even;                 /* all sequences have one length, which the host may use: no index is needed */
} tarn__kv_cache_step;

/* A device that layers lie on, and what kernels read there. But for `all` and `lengths`, which are kept, the tensors
 * belong to the scope in which the step began. */
typedef struct tarn__kv_cache_device {
    tarn_device device;
    tarn_tensor *all;       /* i64 [batch]: the length of each sequence */
    tarn_tensor *begin;     /* i64 [count]: where the tokens go */
    tarn_tensor *positions; /* i64 [tokens], or [count, tokens] */
    tarn_tensor *lengths;   /* i64 [count]: with the step's tokens; NULL until a layer asks for them */
} tarn__kv_cache_device;

typedef struct tarn__kv_cache {
    tarn__kv_cache_shape shape;
    int64_t *length;               /* of each sequence */
    tarn__kv_cache_device side[2]; /* the device's; and the CPU's, where some layers lie there */
    int sides;
    tarn__kv_rows *key; /* of each layer, then the values' */
    tarn__kv_cache_step step;
} tarn__kv_cache;

/* Makes room, or raises an error; then there is nothing to release. */
bool tarn__kv_cache_open(const char *function, tarn__kv_cache *cache, const tarn__kv_cache_shape *shape);
void tarn__kv_cache_close(tarn__kv_cache *cache); /* all zero is allowed */

/* Bytes that one token of one sequence takes in so many layers. */
int64_t tarn__kv_cache_token_bytes(const tarn__kv_cache_shape *shape, int64_t layers);

/* Begins a step of `tokens` tokens for `count` sequences from `first`; they fit. `reach` 0: the host's lengths say what
 * is looked at; else the device's do, and they are at most `reach` after the step, so that the step can be recorded and
 * repeated. In the open scope. False with an error. */
bool tarn__kv_cache_begin_step(tarn__kv_cache *cache, int64_t first, int64_t count, int64_t tokens, int64_t reach);

/* Ends it: on the device its tokens count. */
bool tarn__kv_cache_end_step(tarn__kv_cache *cache);

/* They count for the host, too: once for each time that the step runs. */
void tarn__kv_cache_advance(tarn__kv_cache *cache, int64_t first, int64_t count, int64_t tokens);

/* Positions of the step's tokens, i64 [T], or [B, T] where the sequences differ, where a layer lies: for tables of
 * positions, and for tarn_rope(). Borrowed from the step. */
tarn_tensor *tarn__kv_cache_positions(const tarn__kv_cache *cache, int64_t layer);

/* Puts keys and values [B, heads, T, width] of the step's tokens behind those that count, and lets queries [B, H, T,
 * width] attend to all up to their own: [B, H, T, width], as tarn_attention() gives it. A `scale` of 0 is 1 /
 * sqrt(width). Borrows all three; the result belongs to the open scope. */
tarn_tensor *tarn__kv_cache_attend(tarn__kv_cache *cache, int64_t layer, tarn_tensor *queries, tarn_tensor *keys,
                                   tarn_tensor *values, double scale);

/* The same of queries [B, T, H, width], keys and values [B, T, heads, width], the first two turned by their positions
 * before: [B, T, H · width]. */
tarn_tensor *tarn__kv_cache_rotate_and_attend(tarn__kv_cache *cache, int64_t layer, tarn_tensor *queries,
                                              tarn_tensor *keys, tarn_tensor *values, const tarn_rope_options *rope);

/* Gives a sequence the first `length` tokens of another one, which has at least so many, in place of its own. False
 * with an error: then it has none. */
bool tarn__kv_cache_copy_prefix(tarn__kv_cache *cache, int64_t from, int64_t to, int64_t length);

/* Forgets what a sequence has beyond `length` tokens, of which it has at least so many. */
bool tarn__kv_cache_rewind(tarn__kv_cache *cache, int64_t sequence, int64_t length);

#endif
