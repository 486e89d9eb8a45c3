/* cache.c: keys and values of the tokens that a language model has seen. */
#include "models/cache.h"

#include <tarn/ops.h>

#include "base/error.h"
#include "base/memory.h"

bool tarn__cache_open(const char *function, tarn__cache *cache, const tarn__cache_shape *s)
{
    size_t bytes = sizeof(tarn_tensor *) * (size_t)s->layers;
    *cache = (tarn__cache){.layers = s->layers, .room = s->room, .key = tarn__alloc(bytes), .value = tarn__alloc(bytes)};
    bool good = cache->key && cache->value;
    for (int64_t i = 0; good && i < 2 * s->layers; i++) {
        tarn_tensor *place = tarn_empty(TARN_SHAPE(s->batch, s->heads, s->room, s->width), s->dtype, s->device);
        good = place != NULL;
        (i % 2 ? cache->value : cache->key)[i / 2] = tarn_keep(place);
    }
    if (good)
        return true;
    tarn__cache_close(cache);
    return tarn__raise_within(function);
}

void tarn__cache_close(tarn__cache *cache)
{
    size_t bytes = sizeof(tarn_tensor *) * (size_t)cache->layers;
    for (int64_t i = 0; i < cache->layers && cache->key && cache->value; i++) {
        tarn_free(cache->key[i]);
        tarn_free(cache->value[i]);
    }
    tarn__release(cache->key, bytes);
    tarn__release(cache->value, bytes);
    *cache = (tarn__cache){0};
}

/* One of both: writes `*tokens` and replaces it by a view of all. */
static bool put(const tarn__cache *cache, tarn_tensor *place, tarn_tensor **tokens)
{
    int64_t end = cache->length + tarn_size(*tokens, 2);
    if (!tarn_copy(tarn_slice(place, 2, cache->length, end), *tokens))
        return false;
    *tokens = tarn_slice(place, 2, 0, end);
    return *tokens != NULL;
}

bool tarn__cache_put(tarn__cache *cache, int64_t layer, tarn_tensor **keys, tarn_tensor **values)
{
    return !tarn_failed() && put(cache, cache->key[layer], keys) && put(cache, cache->value[layer], values);
}
