/* cache.h: keys and values of the tokens that a language model has seen, so that the next one is all it has to look at.
 *
 * There is room for `room` tokens from the beginning. The tokens of a step are put behind the first `length` ones, layer by layer; they count
 * when `length` is moved, which is left to whoever began the step: one that fails half-way leaves nothing behind that counts. */
#ifndef TARN__CACHE_H
#define TARN__CACHE_H

#include <tarn/tensor.h>

typedef struct tarn__cache {
    int64_t layers, length, room;
    tarn_tensor **key, **value; /* of each layer: [B, heads, room, width of a head], kept */
} tarn__cache;

typedef struct tarn__cache_shape {
    int64_t layers, batch, heads, room, width;
    tarn_dtype dtype;
    tarn_device device;
} tarn__cache_shape;

/* Makes room, or raises an error; then there is nothing to release. */
bool tarn__cache_open(const char *function, tarn__cache *cache, const tarn__cache_shape *shape);
void tarn__cache_close(tarn__cache *cache); /* all zero is allowed */

/* Puts keys and values [B, heads, T, width] of a step's tokens behind those that count, and replaces both by views of all so far: [B, heads,
 * length + T, width]. False with an error. */
bool tarn__cache_put(tarn__cache *cache, int64_t layer, tarn_tensor **keys, tarn_tensor **values);

#endif
