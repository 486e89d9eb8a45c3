/* kv_cache.c: the KV cache (kv_cache.h).
 *
 * Why two kinds of steps: with equal lengths known to the host every read and write is a slice, which any device can
 * do; else rows are scattered by indices that the device has, and a graph that was captured once serves every
 * length. */
#include "models/lm/kv_cache.h"

#include "base/error.h"
#include "base/memory.h"
#include "ops/internal.h"

/* ---- allocation -------------------------------------------------------------------------------------------------- */

/* Uninitialized: only valid rows are read. */
static bool open_rows(tarn__kv_rows *part, const tarn__kv_cache_shape *s, tarn_device device)
{
    part->rows =
        tarn__scope_take(tarn_empty(TARN_SHAPE(s->batch, s->heads, s->capacity, s->head_dim), s->dtype, device));
    if (part->rows && s->dtype == TARN_U8)
        part->scale = tarn__scope_take(
            tarn_empty(TARN_SHAPE(s->batch, s->heads, s->capacity, tarn__kv_q8_scales(s->head_dim)), TARN_F16, device));
    return !tarn_failed();
}

/* State of a layer's device. */
static const tarn__kv_cache_device *dev_of(const tarn__kv_cache *cache, int64_t layer)
{
    return &cache->dev[tarn__device_map_index(&cache->shape.map, layer)];
}

/* Lengths start at 0. */
static bool open_dev(tarn__kv_cache_device *dev, const tarn__kv_cache_shape *s, tarn_device device)
{
    dev->device = device;
    dev->sequence_lengths = tarn__scope_take(tarn_zeros(TARN_SHAPE(s->batch), TARN_I64, device));
    return dev->sequence_lengths != NULL;
}

bool tarn__kv_cache_open(const char *function, tarn__kv_cache *cache, const tarn__kv_cache_shape *s)
{
    *cache = (tarn__kv_cache){.shape = *s,
                              .length = tarn__alloc(sizeof(int64_t) * (size_t)s->batch),
                              .rows = tarn__alloc(sizeof(tarn__kv_rows) * (size_t)(2 * s->layers))};
    bool good = cache->length && cache->rows;
    for (int i = 0; good && i < s->map.count; i++)
        good = open_dev(&cache->dev[i], s, s->map.device[i]);
    for (int64_t i = 0; good && i < 2 * s->layers; i++)
        good = open_rows(&cache->rows[i], s, dev_of(cache, i % s->layers)->device);
    if (good)
        return true;
    tarn__kv_cache_close(cache);
    return tarn__raise_within(function);
}

void tarn__kv_cache_close(tarn__kv_cache *cache)
{
    const tarn__kv_cache_shape *s = &cache->shape;
    for (int64_t i = 0; cache->rows && i < 2 * s->layers; i++) {
        tarn_free(cache->rows[i].rows);
        tarn_free(cache->rows[i].scale);
    }
    for (int i = 0; i < s->map.count; i++) {
        tarn_free(cache->dev[i].sequence_lengths);
        tarn_free(cache->dev[i].lengths);
    }
    tarn__release(cache->rows, sizeof(tarn__kv_rows) * (size_t)(2 * s->layers));
    tarn__release(cache->length, sizeof(int64_t) * (size_t)s->batch);
    *cache = (tarn__kv_cache){0};
}

int64_t tarn__kv_cache_token_bytes(const tarn__kv_cache_shape *s, int64_t layers)
{
    int64_t scales = s->dtype == TARN_U8 ? tarn__kv_q8_scales(s->head_dim) * (int64_t)tarn_dtype_size(TARN_F16) : 0;
    return 2 * layers * s->heads * (s->head_dim * (int64_t)tarn_dtype_size(s->dtype) + scales);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Equal lengths allow slices, which need no indices on the device. */
static bool have_equal_lengths(const tarn__kv_cache *cache, int64_t first, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (cache->length[first + i] != cache->length[first])
            return false;
    return true;
}

/* Length of the longest of `count` sequences. */
static int64_t max_length(const tarn__kv_cache *cache, int64_t first, int64_t count)
{
    int64_t length = 0;
    for (int64_t i = 0; i < count; i++)
        length = cache->length[first + i] > length ? cache->length[first + i] : length;
    return length;
}

/* The next step computes them anew. */
static void drop_lengths(tarn__kv_cache_device *dev)
{
    tarn_free(dev->lengths);
    dev->lengths = NULL;
}

/* Computes the lengths with the step's tokens once per device and step; none if they are uniform and the host has
 * them. False with an error. */
static bool compute_lengths(const tarn__kv_cache *cache, tarn__kv_cache_device *dev)
{
    const tarn__kv_cache_step *s = &cache->step;
    if ((s->is_uniform && !s->is_apart) || dev->lengths)
        return true;
    tarn_tensor *lengths = s->is_apart ? tarn_add(tarn_squeeze(dev->positions, 1), tarn_scalar(1))
                                       : tarn_add(dev->offsets, tarn_scalar((double)s->tokens));
    dev->lengths = lengths ? tarn__scope_take(lengths) : NULL;
    return dev->lengths != NULL;
}

/* Uniform: positions are a range known to the host. Else they are computed on the device from the lengths there. */
static bool begin_dev(const tarn__kv_cache *cache, tarn__kv_cache_device *dev)
{
    const tarn__kv_cache_step *s = &cache->step;
    int64_t at = cache->length[s->first];
    dev->offsets = tarn_slice(dev->sequence_lengths, 0, s->first, s->first + s->count);
    drop_lengths(dev);
    if (s->is_uniform) {
        dev->positions = tarn_arange((double)at, (double)(at + s->tokens), 1, TARN_I64, dev->device);
        dev->positions = dev->positions && s->is_apart ? tarn_unsqueeze(dev->positions, 1) : dev->positions;
        return dev->offsets && dev->positions;
    }
    dev->positions = tarn_unsqueeze(dev->offsets, 1);
    if (s->tokens > 1)
        dev->positions = tarn_add(dev->positions, tarn_arange(0, (double)s->tokens, 1, TARN_I64, dev->device));
    return dev->offsets && dev->positions;
}

static bool begin_devs(tarn__kv_cache *cache)
{
    bool good = true;
    for (int i = 0; good && i < cache->shape.map.count; i++)
        good = begin_dev(cache, &cache->dev[i]);
    return good;
}

/* A captured step (max_keys given) never uses the host's lengths, which would be fixed in the graph. */
bool tarn__kv_cache_begin_step(tarn__kv_cache *cache, int64_t first, int64_t count, int64_t tokens, int64_t max_keys)
{
    tarn__kv_cache_step *s = &cache->step;
    *s = (tarn__kv_cache_step){.first = first, .count = count, .tokens = tokens, .max_keys = max_keys};
    s->is_uniform = max_keys == 0 && have_equal_lengths(cache, first, count);
    s->max_keys = max_keys ? max_keys : max_length(cache, first, count) + tokens;
    return begin_devs(cache);
}

bool tarn__kv_cache_begin_apart(tarn__kv_cache *cache, int64_t sequence, int64_t tokens)
{
    cache->step = (tarn__kv_cache_step){.first = sequence,
                                        .count = 1,
                                        .tokens = tokens,
                                        .max_keys = cache->length[sequence] + tokens,
                                        .is_uniform = true,
                                        .is_apart = true};
    return begin_devs(cache);
}

void tarn__kv_cache_advance(tarn__kv_cache *cache, int64_t first, int64_t count, int64_t tokens)
{
    for (int64_t i = 0; i < count; i++)
        cache->length[first + i] += tokens;
}

/* `offsets` is a view of the device's lengths: adding in place advances them. */
bool tarn__kv_cache_end_step(tarn__kv_cache *cache)
{
    bool good = true;
    for (int i = 0; i < cache->shape.map.count; i++)
        drop_lengths(&cache->dev[i]);
    for (int i = 0; good && i < cache->shape.map.count; i++)
        good = tarn_add_inplace(cache->dev[i].offsets, tarn_scalar((double)cache->step.tokens)) != NULL;
    cache->step = (tarn__kv_cache_step){0};
    return good;
}

tarn_tensor *tarn__kv_cache_positions(const tarn__kv_cache *cache, int64_t layer)
{
    return layer < 0 ? cache->dev[0].positions : dev_of(cache, layer)->positions;
}

/* Rows stay where they are and are overwritten by the next step; only the lengths change, on the devices first. */
bool tarn__kv_cache_rewind(tarn__kv_cache *cache, int64_t sequence, int64_t length)
{
    if (length == cache->length[sequence])
        return true;
    for (int i = 0; i < cache->shape.map.count; i++)
        if (!tarn_fill_inplace(tarn_slice(cache->dev[i].sequence_lengths, 0, sequence, sequence + 1), (double)length))
            return false;
    cache->length[sequence] = length;
    return true;
}

/* Copies the first rows of one sequence to another. */
static bool copy_rows(tarn_tensor *whole, int64_t from, int64_t to, int64_t length)
{
    tarn_tensor *source = tarn_slice(tarn_slice(whole, 0, from, from + 1), 2, 0, length);
    return source && tarn_copy(tarn_slice(tarn_slice(whole, 0, to, to + 1), 2, 0, length), source);
}

/* Truncates the target first, so that a failure leaves it empty rather than mixed. */
bool tarn__kv_cache_copy_prefix(tarn__kv_cache *cache, int64_t from, int64_t to, int64_t length)
{
    bool good = from == to || tarn__kv_cache_rewind(cache, to, 0);
    for (int64_t i = 0; good && from != to && i < 2 * cache->shape.layers; i++) {
        const tarn__kv_rows *part = &cache->rows[i];
        good = copy_rows(part->rows, from, to, length) && (!part->scale || copy_rows(part->scale, from, to, length));
    }
    return good && tarn__kv_cache_rewind(cache, to, length);
}

/* ---- keys and values --------------------------------------------------------------------------------------------- */

/* Writes x [B, heads, T, …] after the rows of the step's sequences: a slice where lengths are uniform, else
 * scattered by the device's offsets. Tokens that are apart are [T, heads, 1, …]. */
static bool write_step(const tarn__kv_cache *cache, int64_t layer, tarn_tensor *whole, tarn_tensor *x)
{
    const tarn__kv_cache_step *s = &cache->step;
    tarn_tensor *slots = tarn_slice(whole, 0, s->first, s->first + s->count);
    if (!slots || !x)
        return false;
    int64_t at = cache->length[s->first];
    x = s->is_apart ? tarn_transpose(x, 0, 2) : x;
    if (s->is_uniform)
        return tarn_copy(tarn_slice(slots, 2, at, at + s->tokens), x);
    return tarn__write_rows("cache", slots, 2, dev_of(cache, layer)->offsets, tarn_cast(x, tarn_dtype_of(slots)));
}

/* View of the step's sequences up to its bound of keys; NULL for NULL. */
static tarn_tensor *valid_rows(const tarn__kv_cache *cache, tarn_tensor *whole)
{
    const tarn__kv_cache_step *s = &cache->step;
    return whole ? tarn_slice(tarn_slice(whole, 0, s->first, s->first + s->count), 2, 0, s->max_keys) : NULL;
}

/* Rows for every batch of the queries: tokens that are apart share those of their sequence. NULL for NULL. */
static tarn_tensor *share_rows(const tarn__kv_cache *cache, tarn_tensor *rows)
{
    if (!rows || !cache->step.is_apart)
        return rows;
    tarn_shape shape = tarn_shape_of(rows);
    shape.size[0] = cache->step.tokens;
    return tarn_expand(rows, shape);
}

/* Appends x, quantized if the cache is. */
static bool append(const tarn__kv_cache *cache, int64_t layer, const tarn__kv_rows *part, tarn_tensor *x)
{
    tarn_tensor *scale;
    if (!part->scale)
        return write_step(cache, layer, part->rows, x);
    tarn_tensor *quantized = tarn__quantize_kv(x, &scale);
    return quantized && write_step(cache, layer, part->rows, quantized) && write_step(cache, layer, part->scale, scale);
}

/* Rows of the step in `dtype`: a view if they are stored so, else converted or dequantized. */
static tarn_tensor *all_rows(const tarn__kv_cache *cache, const tarn__kv_rows *part, tarn_dtype dtype)
{
    tarn_tensor *rows = valid_rows(cache, part->rows), *scale = valid_rows(cache, part->scale);
    if (tarn_failed())
        return NULL;
    return scale ? tarn__dequantize_kv(rows, scale, dtype) : tarn_cast(rows, dtype);
}

/* Quantized or converted rows are read by a fused kernel if there is one, else expanded to the queries' dtype. */
tarn_tensor *tarn__kv_cache_attend(tarn__kv_cache *cache, int64_t layer, tarn_tensor *queries, tarn_tensor *keys,
                                   tarn_tensor *values, const tarn__decode_attention_options *how)
{
    if (tarn_failed() || !queries || !keys || !values)
        return NULL;
    const tarn__kv_rows *key = &cache->rows[layer], *value = key + cache->shape.layers;
    tarn__kv_cache_device *dev = &cache->dev[tarn__device_map_index(&cache->shape.map, layer)];
    if (!append(cache, layer, key, keys) || !append(cache, layer, value, values) || !compute_lengths(cache, dev))
        return NULL;
    const tarn_attention_options options = {
        .causal = true, .scale = how->scale, .lengths = dev->lengths, .window = how->window, .softcap = how->softcap};
    tarn_dtype dtype = tarn_dtype_of(queries);
    if (dtype != cache->shape.dtype && tarn__attention_quant_kv_fits(queries, key->rows)) {
        tarn_tensor *k = share_rows(cache, valid_rows(cache, key->rows)),
                    *v = share_rows(cache, valid_rows(cache, value->rows)),
                    *k_scale = share_rows(cache, valid_rows(cache, key->scale)),
                    *v_scale = share_rows(cache, valid_rows(cache, value->scale));
        return tarn_failed() ? NULL : tarn__attention_quant_kv(queries, k, v, k_scale, v_scale, &options);
    }
    tarn_tensor *k = all_rows(cache, key, dtype), *v = k ? all_rows(cache, value, dtype) : NULL;
    return v ? tarn_attention(queries, share_rows(cache, k), share_rows(cache, v), &options) : NULL;
}

/* One token per sequence in one fused kernel, if the device has it; sets *is_done. */
static tarn_tensor *attend_decode(const tarn__kv_cache *cache, int64_t layer, tarn_tensor *queries, tarn_tensor *keys,
                                  tarn_tensor *values, const tarn__decode_attention_options *how, bool *is_done)
{
    const tarn__kv_rows *key = &cache->rows[layer], *value = key + cache->shape.layers;
    const tarn__decode_kv past[] = {{valid_rows(cache, key->rows), valid_rows(cache, key->scale)},
                                    {valid_rows(cache, value->rows), valid_rows(cache, value->scale)}};
    bool fits = !tarn_failed() && tarn__attention_decode_fits(queries, &past[0], how);
    *is_done = tarn_failed() || fits;
    return fits ? tarn__decode_attention(queries, keys, values, dev_of(cache, layer)->offsets, how, &past[0], &past[1])
                : NULL;
}

/* Keys are rotated before they are cached, so that later steps need not rotate them again. */
tarn_tensor *tarn__kv_cache_rotate_and_attend(tarn__kv_cache *cache, int64_t layer, tarn_tensor *queries,
                                              tarn_tensor *keys, tarn_tensor *values,
                                              const tarn__decode_attention_options *how)
{
    bool is_done = false;
    if (tarn_failed() || !queries || !keys || !values)
        return NULL;
    tarn_shape whole =
        TARN_SHAPE(tarn_size(queries, 0), tarn_size(queries, 1), tarn_size(queries, 2) * tarn_size(queries, 3));
    tarn_tensor *y = cache->step.tokens == 1 ? attend_decode(cache, layer, queries, keys, values, how, &is_done) : NULL;
    if (!is_done) {
        tarn_tensor *positions = tarn__kv_cache_positions(cache, layer), *part[] = {queries, keys, values};
        for (int i = 0; i < 3; i++) {
            part[i] = how->rope && i < 2 ? tarn_rope(part[i], positions, how->rope) : part[i];
            part[i] = part[i] ? tarn_permute(part[i], TARN_AXES(0, 2, 1, 3)) : NULL;
        }
        y = tarn__kv_cache_attend(cache, layer, part[0], part[1], part[2], how);
        y = y ? tarn_permute(y, TARN_AXES(0, 2, 1, 3)) : NULL;
    }
    return y ? tarn_reshape(y, whole) : NULL;
}
