/* decoder.c: decoders: feeding tokens, in chunks, through a language model with a KV cache.
 *
 * A feed either succeeds for all its tokens or leaves every sequence as it was: chunks that were stored before a
 * failure are undone. */
#include <string.h>
#include <tarn/autograd.h>
#include <tarn/generate.h>

#include "base/memory.h"
#include "generate/decoder.h"

#define DEFAULT_PREFILL_CHUNK 512

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/* Raises invalid options; the caller adds the function's name. */
static bool check_options(const tarn_decoder_options *o, const tarn__model_info *info)
{
    if (o->batch < 0 || o->batch > INT32_MAX)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".batch is %lld; it must be at least 1, or 0 for the default",
                           (long long)o->batch);
    if (o->context < 0 || o->context > info->context)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".context is %lld; it must be from 1 to the model's %lld",
                           (long long)o->context, (long long)info->context);
    if (o->prefill_chunk < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".prefill_chunk is %lld; it must be at least 0",
                           (long long)o->prefill_chunk);
    return tarn_kv_type_name(o->kv_type) != NULL;
}

/* dtype of the cached keys and values; TARN_U8 stands for quantized rows (kv_q8). */
static tarn_dtype stored_dtype(tarn_kv_type kv_type, tarn_dtype of_model)
{
    static const tarn_dtype dtypes[] = {
        [TARN_KV_F32] = TARN_F32, [TARN_KV_BF16] = TARN_BF16, [TARN_KV_F16] = TARN_F16, [TARN_KV_Q8_0] = TARN_U8};
    return kv_type == TARN_KV_MODEL ? of_model : dtypes[kv_type];
}

/* Shape of the KV cache, with defaults resolved. */
static tarn__kv_cache_shape shape_of(const tarn_decoder_options *o, const tarn__model_info *info,
                                     const tarn__device_map *map)
{
    return (tarn__kv_cache_shape){.layers = info->layers,
                                  .batch = o->batch ? o->batch : 1,
                                  .heads = info->kv_heads,
                                  .capacity = o->context ? o->context : info->context,
                                  .head_dim = info->head_dim,
                                  .dtype = stored_dtype(o->kv_type, info->dtype),
                                  .map = *map};
}

/* The decoder is assembled in `own` and copied to the heap last, so that a failure frees one allocation only. Layers
 * on other devices rule out a graph: a captured step cannot contain transfers. */
tarn_decoder *tarn_decoder_new_sized(tarn_module *model, const tarn_decoder_options *options, size_t options_size)
{
    const char *function = "decoder_new";
    tarn_decoder_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (!tarn__arch_of(function, model))
        return NULL;
    tarn_decoder own = {.model = model,
                        .prefill_chunk = chosen.prefill_chunk ? chosen.prefill_chunk : DEFAULT_PREFILL_CHUNK};
    tarn__model_describe(model, &own.info);
    own.short_context = tarn__model_short_context(model);
    own.recomputes = own.short_context > 0 && tarn__arch_of(function, model)->has_longrope;
    tarn__device_map map;
    if (!check_options(&chosen, &own.info) || !tarn__model_device_map(function, model, &map)) {
        tarn__raise_within(function);
        return NULL;
    }
    tarn__kv_cache_shape shape = shape_of(&chosen, &own.info, &map);
    own.batch = shape.batch;
    tarn__decode_graph_init(&own.graph, own.info.device, !chosen.no_capture && map.count == 1);
    tarn_decoder *decoder = tarn__alloc(sizeof(*decoder));
    if (decoder && tarn__kv_cache_open(function, &own.cache, &shape)) {
        *decoder = own;
        return decoder;
    }
    if (decoder && tarn_error_code() == TARN_ERROR_MEMORY)
        tarn__decoder_out_of_memory(function, &shape, model, &own.info);
    tarn__release(decoder, sizeof(*decoder));
    return NULL;
}

void tarn_decoder_free(tarn_decoder *decoder)
{
    if (!decoder)
        return;
    tarn__decode_graph_close(&decoder->graph);
    tarn__kv_cache_close(&decoder->cache);
    tarn__release(decoder, sizeof(*decoder));
}

/* ---- queries ------------------------------------------------------------------------------------------------------
 */

/* Raises if the decoder is NULL. */
static bool check_decoder(const char *function, const tarn_decoder *decoder)
{
    if (tarn_failed())
        return false;
    return decoder || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the decoder is NULL", function);
}

/* Raises if there is no such sequence. */
static bool check_sequence(const char *function, const tarn_decoder *decoder, int64_t sequence)
{
    return check_decoder(function, decoder) &&
           ((sequence >= 0 && sequence < decoder->batch) ||
            tarn__raise(TARN_ERROR_ARGUMENT, "%s: sequence is %lld; it must be from 0 to %lld", function,
                        (long long)sequence, (long long)decoder->batch - 1));
}

int64_t tarn_decoder_length(const tarn_decoder *decoder)
{
    int64_t most = 0;
    if (!check_decoder("decoder_length", decoder))
        return -1;
    for (int64_t i = 0; i < decoder->batch; i++)
        most = decoder->cache.length[i] > most ? decoder->cache.length[i] : most;
    return most;
}

int64_t tarn_decoder_length_of(const tarn_decoder *decoder, int64_t sequence)
{
    return check_sequence("decoder_length_of", decoder, sequence) ? decoder->cache.length[sequence] : -1;
}

int64_t tarn_decoder_capacity(const tarn_decoder *decoder)
{
    return check_decoder("decoder_capacity", decoder) ? decoder->cache.shape.capacity : -1;
}

/* ---- feeding ----------------------------------------------------------------------------------------------------- */

/* Raises unless tokens are [count, T] and fit every sequence from `first`. */
static bool check_tokens(const char *function, const tarn_decoder *d, const tarn_tensor *tokens, int64_t first,
                         int64_t count)
{
    const tarn__view *view = &tokens->view;
    if (view->rank != 2 || view->shape[0] != count || view->shape[1] < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: the tokens are %s; they must be [%lld, T], T at least 1", function,
                           TARN__SHAPE_STRING(tokens), (long long)count);
    for (int64_t i = first; i < first + count; i++)
        if (view->shape[1] > d->cache.shape.capacity - d->cache.length[i])
            return tarn__raise(TARN_ERROR_SHAPE, "%s: %lld tokens after %lld exceed the context of %lld", function,
                               (long long)view->shape[1], (long long)d->cache.length[i],
                               (long long)d->cache.shape.capacity);
    return true;
}

/* A forward pass with a cache. */
typedef tarn_tensor *(*forward_fn)(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache);

/* Switching the mode costs a walk over the modules, so it is skipped for models that are out of training mode
 * already. */
static tarn_tensor *forward(tarn_decoder *d, tarn_tensor *tokens, forward_fn run)
{
    bool was_training = d->model->training;
    if (was_training)
        tarn_module_train(d->model, false);
    tarn_tensor *y = run(d->model, tokens, &d->cache);
    if (was_training) {
        tarn__error_record error; /* the mode comes back after a failure too */
        tarn__error_save(&error);
        tarn_module_train(d->model, true);
        tarn__error_restore(&error);
    }
    return y;
}

tarn_tensor *tarn__decoder_forward(tarn_decoder *d, tarn_tensor *tokens)
{
    return forward(d, tokens, tarn__model_forward_cached);
}

/* Logits or hidden states of tokens [count, T] of one chunk, which are then part of the sequences. */
static tarn_tensor *feed_chunk(tarn_decoder *d, int64_t first, int64_t count, tarn_tensor *tokens, forward_fn run)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *y = NULL;
    int64_t T = tarn_size(tokens, 1);
    if (scope && tarn__kv_cache_begin_step(&d->cache, first, count, T, 0))
        y = forward(d, tokens, run);
    if (y && tarn__kv_cache_end_step(&d->cache))
        tarn__kv_cache_advance(&d->cache, first, count, T);
    y = y && !tarn_failed() ? tarn_scope_return(scope, y) : NULL;
    tarn_scope_close(scope);
    return y;
}

tarn_tensor *tarn__decoder_hidden(tarn_decoder *d, tarn_tensor *tokens, int64_t length)
{
    d->cache.rope_length = length;
    tarn_no_grad_open();
    tarn_tensor *hidden = feed_chunk(d, 0, 1, tokens, tarn__model_hidden_cached);
    tarn_no_grad_close();
    d->cache.rope_length = 0;
    return hidden;
}

bool tarn__decoder_can_feed_apart(const tarn_decoder *d)
{
    return tarn__is_cpu(d->info.device) && d->cache.shape.map.count == 1;
}

tarn_tensor *tarn__decoder_feed_apart(tarn_decoder *d, int64_t sequence, const int32_t *tokens, int64_t count)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *all = scope ? tarn_from_i32(tokens, TARN_SHAPE(count, 1), d->info.device) : NULL, *logits = NULL;
    tarn_no_grad_open();
    tarn__rows_alone_open();
    if (all && tarn__kv_cache_begin_apart(&d->cache, sequence, count))
        logits = tarn__decoder_forward(d, all);
    tarn__rows_alone_close();
    if (logits && tarn__kv_cache_end_step(&d->cache))
        tarn__kv_cache_advance(&d->cache, sequence, 1, count);
    tarn_no_grad_close();
    logits = logits && !tarn_failed() ? tarn_scope_return(scope, logits) : NULL;
    tarn_scope_close(scope);
    return logits;
}

/* Removes the chunks stored before one failed. Keeps the pending error. */
static void undo_chunks(tarn_decoder *d, int64_t first, int64_t count, int64_t tokens)
{
    tarn__error_record why;
    tarn__error_save(&why);
    for (int64_t i = first; i < first + count && tokens > 0; i++)
        tarn__kv_cache_rewind(&d->cache, i, d->cache.length[i] - tokens);
    tarn__error_restore(&why);
}

/* The longest of some sequences. */
static int64_t longest(const tarn_decoder *d, int64_t first, int64_t count)
{
    int64_t length = 0;
    for (int64_t i = first; i < first + count; i++)
        length = d->cache.length[i] > length ? d->cache.length[i] : length;
    return length;
}

/* Prefill: feeds tokens [count, T] in chunks; returns the logits of the last one. RoPE is scaled for the length after
 * all chunks, so that they have the same angles as one. */
static tarn_tensor *feed(const char *function, tarn_decoder *d, int64_t first, int64_t count, tarn_tensor *tokens)
{
    if (!check_tokens(function, d, tokens, first, count))
        return NULL;
    int64_t T = tokens->view.shape[1], done = 0;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *logits = NULL;
    int64_t length = longest(d, first, count) + T;
    d->cache.rope_length = d->cache.rope_length > length ? d->cache.rope_length : length;
    tarn_no_grad_open();
    for (bool good = scope != NULL; good && done < T;) {
        int64_t end = T - done > d->prefill_chunk ? done + d->prefill_chunk : T;
        tarn_free(logits); /* of an earlier chunk */
        logits = feed_chunk(d, first, count, done == 0 && end == T ? tokens : tarn_slice(tokens, 1, done, end),
                            tarn__model_forward_cached);
        good = logits != NULL;
        done = good ? end : done;
    }
    tarn_no_grad_close();
    d->cache.rope_length = 0;
    if (done < T)
        undo_chunks(d, first, count, done);
    logits = done == T ? tarn_scope_return(scope, logits) : NULL;
    tarn_scope_close(scope);
    if (!logits)
        tarn__raise_within(function);
    return logits;
}

/* One token for every sequence, by the captured step. */
static tarn_tensor *feed_captured(const char *function, tarn_decoder *d, tarn_tensor *tokens)
{
    if (!check_tokens(function, d, tokens, 0, d->batch) ||
        !tarn__check_dtype(function, tokens, TARN__INDEXES, "the tokens"))
        return NULL;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *logits = scope ? tarn__decode_graph_feed(d, tokens) : NULL;
    logits = logits ? tarn_scope_return(scope, logits) : NULL;
    tarn_scope_close(scope);
    if (!logits)
        tarn__raise_within(function);
    return logits;
}

/* Selects the captured step for one token of every sequence, else the eager path. */
static tarn_tensor *feed_some(const char *function, tarn_decoder *d, int64_t first, int64_t count, tarn_tensor *tokens)
{
    if (!tarn__check(function, tokens, "tokens"))
        return NULL;
    bool is_one = tokens->view.rank == 2 && tokens->view.shape[1] == 1;
    return d->graph.is_enabled && is_one && count == d->batch ? feed_captured(function, d, tokens)
                                                              : feed(function, d, first, count, tokens);
}

tarn_tensor *tarn_decoder_feed(tarn_decoder *decoder, tarn_tensor *tokens)
{
    return check_decoder("decoder_feed", decoder) ? feed_some("decoder_feed", decoder, 0, decoder->batch, tokens)
                                                  : NULL;
}

tarn_tensor *tarn_decoder_feed_one(tarn_decoder *decoder, int64_t sequence, tarn_tensor *tokens)
{
    return check_sequence("decoder_feed_one", decoder, sequence)
               ? feed_some("decoder_feed_one", decoder, sequence, 1, tokens)
               : NULL;
}

/* ---- rewinding --------------------------------------------------------------------------------------------------- */

/* Truncates one sequence, in a scope for the views this takes. */
static bool rewind_to(const char *function, tarn_decoder *d, int64_t sequence, int64_t length)
{
    if (length < 0 || length > d->cache.length[sequence])
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: length is %lld; it must be from 0 to %lld", function,
                           (long long)length, (long long)d->cache.length[sequence]);
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && tarn__kv_cache_rewind(&d->cache, sequence, length);
    tarn_scope_close(scope);
    return good || tarn__raise_within(function);
}

/* All or none: the first loop raises before the second changes anything. */
bool tarn_decoder_rewind(tarn_decoder *decoder, int64_t length)
{
    bool good = check_decoder("decoder_rewind", decoder);
    for (int64_t i = 0; good && i < decoder->batch; i++) /* all, or none */
        if (decoder->cache.length[i] < length)
            good = rewind_to("decoder_rewind", decoder, i, length);
    for (int64_t i = 0; good && i < decoder->batch; i++)
        good = rewind_to("decoder_rewind", decoder, i, length);
    return good;
}

bool tarn_decoder_rewind_one(tarn_decoder *decoder, int64_t sequence, int64_t length)
{
    return check_sequence("decoder_rewind_one", decoder, sequence) &&
           rewind_to("decoder_rewind_one", decoder, sequence, length);
}
