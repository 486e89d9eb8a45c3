/* decoder.c: a language model that sees a text token by token: what it has seen stays in a cache on the model's device. */
#include <string.h>
#include <tarn/autograd.h>
#include <tarn/generate.h>

#include "base/memory.h"
#include "generate/decoder.h"

static bool choose(const tarn_decoder_options *options, const tarn__model_facts *facts, tarn__cache_shape *shape)
{
    int64_t batch = options->batch ? options->batch : 1, room = options->context ? options->context : facts->context;
    if (batch < 1 || batch > INT32_MAX)
        return tarn__raise(TARN_ERROR_ARGUMENT, "decoder_new: .batch is %lld; there must be at least one text", (long long)batch);
    if (room < 1 || room > facts->context)
        return tarn__raise(TARN_ERROR_ARGUMENT, "decoder_new: .context is %lld; the model's goes from 1 to %lld", (long long)room,
                           (long long)facts->context);
    *shape = (tarn__cache_shape){.layers = facts->layers,
                                 .batch = batch,
                                 .heads = facts->kv_heads,
                                 .room = room,
                                 .width = facts->head_width,
                                 .dtype = facts->dtype,
                                 .device = facts->device};
    return true;
}

tarn_decoder *tarn_decoder_new_sized(tarn_module *model, const tarn_decoder_options *options, size_t options_size)
{
    const char *function = "decoder_new";
    tarn_decoder_options chosen = {0};
    tarn__cache_shape shape;
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    const tarn__model_kind *kind = tarn__model_kind_of(function, model);
    if (!kind)
        return NULL;
    tarn_decoder own = {.kind = kind, .model = model};
    kind->facts(model, &own.facts);
    if (!choose(&chosen, &own.facts, &shape))
        return NULL;
    own.batch = shape.batch;
    tarn_decoder *decoder = tarn__alloc(sizeof(*decoder));
    if (decoder && tarn__cache_open(function, &own.cache, &shape)) {
        *decoder = own;
        return decoder;
    }
    tarn__release(decoder, sizeof(*decoder));
    return NULL;
}

void tarn_decoder_free(tarn_decoder *decoder)
{
    if (!decoder)
        return;
    tarn__cache_close(&decoder->cache);
    tarn__release(decoder, sizeof(*decoder));
}

/* Raises when there is none. */
static bool check_decoder(const char *function, const tarn_decoder *decoder)
{
    if (tarn_failed())
        return false;
    return decoder || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the decoder is NULL", function);
}

static bool check_tokens(const tarn_decoder *d, const tarn_tensor *tokens)
{
    const tarn__view *view = &tokens->view;
    if (view->rank != 2 || view->shape[0] != d->batch || view->shape[1] < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "decoder_feed: the tokens are %s; they must be [%lld, T], T at least 1",
                           TARN__SHAPE_TEXT(tokens), (long long)d->batch);
    if (view->shape[1] > d->cache.room - d->cache.length)
        return tarn__raise(TARN_ERROR_SHAPE, "decoder_feed: %lld tokens after %lld are more than the context of %lld",
                           (long long)view->shape[1], (long long)d->cache.length, (long long)d->cache.room);
    return true;
}

tarn_tensor *tarn_decoder_feed(tarn_decoder *decoder, tarn_tensor *tokens)
{
    const char *function = "decoder_feed";
    if (!check_decoder(function, decoder) || !tarn__check(function, tokens, "tokens") || !check_tokens(decoder, tokens))
        return NULL;
    tarn_scope *scope = tarn_scope_open();
    if (!scope)
        return NULL;
    tarn_no_grad_open();
    tarn_tensor *logits = decoder->kind->step(decoder->model, tokens, &decoder->cache);
    tarn_no_grad_close();
    logits = logits ? tarn_scope_return(scope, logits) : NULL;
    tarn_scope_close(scope);
    if (logits)
        decoder->cache.length += tokens->view.shape[1];
    else
        tarn__raise_within(function);
    return logits;
}

int64_t tarn_decoder_length(const tarn_decoder *decoder)
{
    return check_decoder("decoder_length", decoder) ? decoder->cache.length : -1;
}

int64_t tarn_decoder_room(const tarn_decoder *decoder)
{
    return check_decoder("decoder_room", decoder) ? decoder->cache.room : -1;
}

bool tarn_decoder_rewind(tarn_decoder *decoder, int64_t length)
{
    if (!check_decoder("decoder_rewind", decoder))
        return false;
    if (length < 0 || length > decoder->cache.length)
        return tarn__raise(TARN_ERROR_ARGUMENT, "decoder_rewind: to %lld tokens, but there are %lld", (long long)length,
                           (long long)decoder->cache.length);
    decoder->cache.length = length;
    return true;
}
