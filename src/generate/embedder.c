/* embedder.c: embeddings of token sequences: the mean of the last hidden states, computed in chunks. */
#include <math.h>
#include <string.h>
#include <tarn/autograd.h>

#include "base/memory.h"
#include "generate/decoder.h"

struct tarn_embedder {
    tarn_decoder *decoder; /* of one sequence */
    int64_t size;          /* of a hidden state */
    double *sum;           /* [size], over the tokens so far */
    int64_t *tokens;       /* [context] */
    int64_t count, done;   /* of the present sequence; count 0: none */
};

/* Raises if the embedder is NULL. */
static bool check(const char *function, const tarn_embedder *e)
{
    return !tarn_failed() && (e || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the embedder is NULL", function));
}

static void release(tarn_embedder *e, int64_t context)
{
    tarn__release(e->sum, sizeof(*e->sum) * (size_t)e->size);
    tarn__release(e->tokens, sizeof(*e->tokens) * (size_t)context);
    tarn_decoder_free(e->decoder);
    tarn__release(e, sizeof(*e));
}

tarn_embedder *tarn_embedder_new_sized(tarn_module *model, const tarn_embedder_options *options, size_t options_size)
{
    tarn_embedder_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.context = chosen.context,
                                                                            .kv_type = chosen.kv_type,
                                                                            .prefill_chunk = chosen.prefill_chunk,
                                                                            .no_capture = true});
    if (!decoder) {
        tarn__raise_within("embedder_new");
        return NULL;
    }
    tarn_embedder *e = tarn__alloc(sizeof(*e));
    if (!e) {
        tarn_decoder_free(decoder);
        return NULL;
    }
    int64_t context = decoder->cache.shape.capacity;
    *e = (tarn_embedder){.decoder = decoder, .size = decoder->info.hidden_size};
    e->sum = tarn__alloc(sizeof(*e->sum) * (size_t)e->size);
    e->tokens = e->sum ? tarn__alloc(sizeof(*e->tokens) * (size_t)context) : NULL;
    if (e->tokens)
        return e;
    release(e, context);
    return NULL;
}

void tarn_embedder_free(tarn_embedder *e)
{
    if (e)
        release(e, e->decoder->cache.shape.capacity);
}

bool tarn_embedder_begin(tarn_embedder *e, const int32_t *tokens, int64_t count)
{
    const char *function = "embedder_begin";
    if (!check(function, e))
        return false;
    int64_t context = e->decoder->cache.shape.capacity, vocab = e->decoder->info.vocab_size;
    if (!tokens || count < 1 || count > context)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %lld tokens are given; there must be 1 to %lld", function,
                           tokens ? (long long)count : 0LL, (long long)context);
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: token %lld is %d; it must be from 0 to %lld", function,
                               (long long)i, tokens[i], (long long)vocab - 1);
    e->count = e->done = 0;
    if (!tarn_decoder_rewind(e->decoder, 0))
        return tarn__raise_within(function);
    for (int64_t i = 0; i < count; i++)
        e->tokens[i] = tokens[i];
    memset(e->sum, 0, sizeof(*e->sum) * (size_t)e->size);
    e->count = count;
    return true;
}

/* Adds the hidden states of the next `count` tokens. In the open scope. */
static bool add_hidden(tarn_embedder *e, int64_t count, float *values)
{
    tarn_tensor *tokens = tarn_from_i64(e->tokens + e->done, TARN_SHAPE(1, count), e->decoder->info.device),
                *hidden = tokens ? tarn__decoder_hidden(e->decoder, tokens, e->count) : NULL;
    if (!hidden)
        return false;
    tarn_no_grad_open();
    tarn_tensor *sum = tarn_sum(tarn_cast(hidden, TARN_F32), TARN_AXES(0, 1), false);
    tarn_no_grad_close();
    if (!sum || !tarn_read_f32(sum, values, e->size))
        return false;
    for (int64_t i = 0; i < e->size; i++)
        e->sum[i] += values[i];
    return true;
}

int64_t tarn_embedder_step(tarn_embedder *e)
{
    const char *function = "embedder_step";
    if (!check(function, e))
        return -1;
    if (!e->count) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: there is no sequence; tarn_embedder_begin() begins one", function);
        return -1;
    }
    int64_t left = e->count - e->done, count = left < e->decoder->prefill_chunk ? left : e->decoder->prefill_chunk;
    if (left == 0)
        return 0;
    size_t bytes = sizeof(float) * (size_t)e->size;
    float *values = tarn__alloc(bytes);
    tarn_scope *scope = values ? tarn_scope_open() : NULL;
    bool good = scope && add_hidden(e, count, values);
    tarn_scope_close(scope);
    tarn__release(values, bytes);
    if (!good) {
        e->count = 0;
        tarn__raise_within(function);
        return -1;
    }
    e->done += count;
    return e->count - e->done;
}

bool tarn_embedder_read(const tarn_embedder *e, float *embedding, int64_t size)
{
    const char *function = "embedder_read";
    if (!check(function, e))
        return false;
    if (!embedding || size != e->size)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %lld elements are given; the hidden size is %lld", function,
                           embedding ? (long long)size : 0LL, (long long)e->size);
    if (!e->count || e->done < e->count)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %lld of %lld tokens are computed; tarn_embedder_step() goes on",
                           function, (long long)e->done, (long long)e->count);
    for (int64_t i = 0; i < size; i++) {
        embedding[i] = (float)(e->sum[i] / (double)e->count);
        if (!isfinite(embedding[i]))
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the model's hidden states are not finite", function);
    }
    return true;
}
