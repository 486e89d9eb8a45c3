/* kv_cache.c: keys and values of the tokens that a language model has seen. */
#include "models/lm/kv_cache.h"

#include "base/error.h"
#include "base/memory.h"
#include "ops/internal.h"

/* ---- room -------------------------------------------------------------------------------------------------------- */

static bool open_part(tarn__kv_rows *part, const tarn__kv_cache_shape *s, tarn_device device)
{
    part->rows =
        tarn__scope_take(tarn_empty(TARN_SHAPE(s->batch, s->heads, s->capacity, s->head_dim), s->dtype, device));
    if (part->rows && s->dtype == TARN_U8)
        part->scale = tarn__scope_take(
            tarn_empty(TARN_SHAPE(s->batch, s->heads, s->capacity, tarn__kv_q8_scales(s->head_dim)), TARN_F16, device));
    return !tarn_failed();
}

/* Where a layer lies. */
static const tarn__kv_cache_device *side_of(const tarn__kv_cache *cache, int64_t layer)
{
    return &cache->side[layer >= cache->shape.device_layers];
}

static bool open_side(tarn__kv_cache_device *side, const tarn__kv_cache_shape *s, tarn_device device)
{
    side->device = device;
    side->all = tarn__scope_take(tarn_zeros(TARN_SHAPE(s->batch), TARN_I64, device));
    return side->all != NULL;
}

bool tarn__kv_cache_open(const char *function, tarn__kv_cache *cache, const tarn__kv_cache_shape *s)
{
    *cache = (tarn__kv_cache){.shape = *s,
                              .length = tarn__alloc(sizeof(int64_t) * (size_t)s->batch),
                              .key = tarn__alloc(sizeof(tarn__kv_rows) * (size_t)(2 * s->layers))};
    bool good = cache->length && cache->key;
    cache->sides = s->device_layers < s->layers ? 2 : 1;
    for (int i = 0; good && i < cache->sides; i++)
        good = open_side(&cache->side[i], s, i ? tarn_device_cpu() : s->device);
    for (int64_t i = 0; good && i < 2 * s->layers; i++)
        good = open_part(&cache->key[i], s, side_of(cache, i % s->layers)->device);
    if (good)
        return true;
    tarn__kv_cache_close(cache);
    return tarn__raise_within(function);
}

void tarn__kv_cache_close(tarn__kv_cache *cache)
{
    const tarn__kv_cache_shape *s = &cache->shape;
    for (int64_t i = 0; cache->key && i < 2 * s->layers; i++) {
        tarn_free(cache->key[i].rows);
        tarn_free(cache->key[i].scale);
    }
    for (int i = 0; i < 2; i++) {
        tarn_free(cache->side[i].all);
        tarn_free(cache->side[i].lengths);
    }
    tarn__release(cache->key, sizeof(tarn__kv_rows) * (size_t)(2 * s->layers));
    tarn__release(cache->length, sizeof(int64_t) * (size_t)s->batch);
    *cache = (tarn__kv_cache){0};
}

int64_t tarn__kv_cache_token_bytes(const tarn__kv_cache_shape *s, int64_t layers)
{
    int64_t scales = s->dtype == TARN_U8 ? tarn__kv_q8_scales(s->head_dim) * (int64_t)tarn_dtype_size(TARN_F16) : 0;
    return 2 * layers * s->heads * (s->head_dim * (int64_t)tarn_dtype_size(s->dtype) + scales);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static bool are_even(const tarn__kv_cache *cache, int64_t first, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (cache->length[first + i] != cache->length[first])
            return false;
    return true;
}

static int64_t longest(const tarn__kv_cache *cache, int64_t first, int64_t count)
{
    int64_t most = 0;
    for (int64_t i = 0; i < count; i++)
        most = cache->length[first + i] > most ? cache->length[first + i] : most;
    return most;
}

static void forget_lengths(tarn__kv_cache_device *side)
{
    tarn_free(side->lengths);
    side->lengths = NULL;
}

/* Lengths with the step's tokens, for all layers of a side once one has asked; none where they are even, and the host
 * has them. False with an error. */
static bool ask_for_lengths(const tarn__kv_cache *cache, tarn__kv_cache_device *side)
{
    if (cache->step.is_even || side->lengths)
        return true;
    tarn_tensor *lengths = tarn_add(side->begin, tarn_scalar((double)cache->step.tokens));
    side->lengths = lengths ? tarn__scope_take(lengths) : NULL;
    return side->lengths != NULL;
}

static bool begin_side(const tarn__kv_cache *cache, tarn__kv_cache_device *side)
{
    const tarn__kv_cache_step *s = &cache->step;
    int64_t at = cache->length[s->first];
    side->begin = tarn_slice(side->all, 0, s->first, s->first + s->count);
    forget_lengths(side);
    if (s->is_even) {
        side->positions = tarn_arange((double)at, (double)(at + s->tokens), 1, TARN_I64, side->device);
        return side->begin && side->positions;
    }
    side->positions = tarn_unsqueeze(side->begin, 1);
    if (s->tokens > 1)
        side->positions = tarn_add(side->positions, tarn_arange(0, (double)s->tokens, 1, TARN_I64, side->device));
    return side->begin && side->positions;
}

bool tarn__kv_cache_begin_step(tarn__kv_cache *cache, int64_t first, int64_t count, int64_t tokens, int64_t reach)
{
    tarn__kv_cache_step *s = &cache->step;
    *s = (tarn__kv_cache_step){.first = first, .count = count, .tokens = tokens, .reach = reach};
    s->is_even = reach == 0 && are_even(cache, first, count);
    s->reach = reach ? reach : longest(cache, first, count) + tokens;
    bool good = true;
    for (int i = 0; good && i < cache->sides; i++)
        good = begin_side(cache, &cache->side[i]);
    return good;
}

void tarn__kv_cache_advance(tarn__kv_cache *cache, int64_t first, int64_t count, int64_t tokens)
{
    for (int64_t i = 0; i < count; i++)
        cache->length[first + i] += tokens;
}

bool tarn__kv_cache_end_step(tarn__kv_cache *cache)
{
    bool good = true;
    for (int i = 0; i < cache->sides; i++)
        forget_lengths(&cache->side[i]);
    for (int i = 0; good && i < cache->sides; i++)
        good = tarn_add_inplace(cache->side[i].begin, tarn_scalar((double)cache->step.tokens)) != NULL;
    cache->step = (tarn__kv_cache_step){0};
    return good;
}

tarn_tensor *tarn__kv_cache_positions(const tarn__kv_cache *cache, int64_t layer)
{
    return side_of(cache, layer)->positions;
}

bool tarn__kv_cache_rewind(tarn__kv_cache *cache, int64_t sequence, int64_t length)
{
    if (length == cache->length[sequence])
        return true;
    for (int i = 0; i < cache->sides; i++)
        if (!tarn_fill_inplace(tarn_slice(cache->side[i].all, 0, sequence, sequence + 1), (double)length))
            return false;
    cache->length[sequence] = length;
    return true;
}

/* The first rows of one sequence's part become another one's. */
static bool share_rows(tarn_tensor *whole, int64_t from, int64_t to, int64_t length)
{
    tarn_tensor *source = tarn_slice(tarn_slice(whole, 0, from, from + 1), 2, 0, length);
    return source && tarn_copy(tarn_slice(tarn_slice(whole, 0, to, to + 1), 2, 0, length), source);
}

bool tarn__kv_cache_copy_prefix(tarn__kv_cache *cache, int64_t from, int64_t to, int64_t length)
{
    bool good = from == to || tarn__kv_cache_rewind(cache, to, 0);
    for (int64_t i = 0; good && from != to && i < 2 * cache->shape.layers; i++) {
        const tarn__kv_rows *part = &cache->key[i];
        good = share_rows(part->rows, from, to, length) && (!part->scale || share_rows(part->scale, from, to, length));
    }
    return good && tarn__kv_cache_rewind(cache, to, length);
}

/* ---- keys and values --------------------------------------------------------------------------------------------- */

/* Lays x [B, heads, T, …] behind what the step's sequences have of a part. */
static bool lay(const tarn__kv_cache *cache, int64_t layer, tarn_tensor *whole, tarn_tensor *x)
{
    const tarn__kv_cache_step *s = &cache->step;
    tarn_tensor *place = tarn_slice(whole, 0, s->first, s->first + s->count);
    if (!place || !x)
        return false;
    int64_t at = cache->length[s->first];
    if (s->is_even)
        return tarn_copy(tarn_slice(place, 2, at, at + s->tokens), x);
    return tarn__write_rows("cache", place, 2, side_of(cache, layer)->begin, tarn_cast(x, tarn_dtype_of(place)));
}

/* What there is of a part up to the step's reach; NULL of NULL. */
static tarn_tensor *seen(const tarn__kv_cache *cache, tarn_tensor *whole)
{
    const tarn__kv_cache_step *s = &cache->step;
    return whole ? tarn_slice(tarn_slice(whole, 0, s->first, s->first + s->count), 2, 0, s->reach) : NULL;
}

/* Puts x, as it is stored. */
static bool put(const tarn__kv_cache *cache, int64_t layer, const tarn__kv_rows *part, tarn_tensor *x)
{
    tarn_tensor *scale;
    if (!part->scale)
        return lay(cache, layer, part->rows, x);
    tarn_tensor *code = tarn__quantize_kv(x, &scale);
    return code && lay(cache, layer, part->rows, code) && lay(cache, layer, part->scale, scale);
}

/* All that there is, in a dtype: a view where that is how it is stored. */
static tarn_tensor *expanded(const tarn__kv_cache *cache, const tarn__kv_rows *part, tarn_dtype dtype)
{
    tarn_tensor *rows = seen(cache, part->rows), *scale = seen(cache, part->scale);
    if (tarn_failed())
        return NULL;
    return scale ? tarn__dequantize_kv(rows, scale, dtype) : tarn_cast(rows, dtype);
}

tarn_tensor *tarn__kv_cache_attend(tarn__kv_cache *cache, int64_t layer, tarn_tensor *queries, tarn_tensor *keys,
                                   tarn_tensor *values, double scale)
{
    if (tarn_failed() || !queries || !keys || !values)
        return NULL;
    const tarn__kv_rows *key = &cache->key[layer], *value = key + cache->shape.layers;
    tarn__kv_cache_device *side = &cache->side[layer >= cache->shape.device_layers];
    if (!put(cache, layer, key, keys) || !put(cache, layer, value, values) || !ask_for_lengths(cache, side))
        return NULL;
    const tarn_attention_options options = {.causal = true, .scale = scale, .lengths = side->lengths};
    tarn_dtype dtype = tarn_dtype_of(queries);
    if (dtype != cache->shape.dtype && tarn__attention_quant_kv_fits(queries, key->rows)) {
        tarn_tensor *k = seen(cache, key->rows), *v = seen(cache, value->rows), *of_k = seen(cache, key->scale),
                    *of_v = seen(cache, value->scale);
        return tarn_failed() ? NULL : tarn__attention_quant_kv(queries, k, v, of_k, of_v, &options);
    }
    tarn_tensor *k = expanded(cache, key, dtype), *v = k ? expanded(cache, value, dtype) : NULL;
    return v ? tarn_attention(queries, k, v, &options) : NULL;
}

/* One token of each sequence, where the device does all in one; NULL where it does not. */
static tarn_tensor *attend_next(const tarn__kv_cache *cache, int64_t layer, tarn_tensor *queries, tarn_tensor *keys,
                                tarn_tensor *values, const tarn_rope_options *rope, bool *is_done)
{
    const tarn__kv_rows *key = &cache->key[layer], *value = key + cache->shape.layers;
    const tarn__decode_kv past[] = {{seen(cache, key->rows), seen(cache, key->scale)},
                                    {seen(cache, value->rows), seen(cache, value->scale)}};
    *is_done = tarn_failed() || tarn__attention_decode_fits(queries, &past[0], rope);
    return *is_done ? tarn__decode_attention(queries, keys, values, side_of(cache, layer)->begin, rope, 0, &past[0],
                                             &past[1])
                    : NULL;
}

tarn_tensor *tarn__kv_cache_rotate_and_attend(tarn__kv_cache *cache, int64_t layer, tarn_tensor *queries,
                                              tarn_tensor *keys, tarn_tensor *values, const tarn_rope_options *rope)
{
    bool is_done = false;
    if (tarn_failed() || !queries || !keys || !values)
        return NULL;
    tarn_shape whole =
        TARN_SHAPE(tarn_size(queries, 0), tarn_size(queries, 1), tarn_size(queries, 2) * tarn_size(queries, 3));
    tarn_tensor *y = cache->step.tokens == 1 ? attend_next(cache, layer, queries, keys, values, rope, &is_done) : NULL;
    if (!is_done) {
        tarn_tensor *positions = tarn__kv_cache_positions(cache, layer),
                    *part[] = {tarn_rope(queries, positions, rope), tarn_rope(keys, positions, rope), values};
        for (int i = 0; i < 3; i++)
            part[i] = part[i] ? tarn_permute(part[i], TARN_AXES(0, 2, 1, 3)) : NULL;
        y = tarn__kv_cache_attend(cache, layer, part[0], part[1], part[2], 0);
        y = y ? tarn_permute(y, TARN_AXES(0, 2, 1, 3)) : NULL;
    }
    return y ? tarn_reshape(y, whole) : NULL;
}
