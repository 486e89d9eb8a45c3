/* longrope.c: sequences of models with longrope, whose RoPE has short factors up to the context of training and long
 * ones beyond (Phi-3).
 *
 * The angles of all keys change when a sequence becomes longer than that: keys in the cache no longer fit the queries.
 * As transformers does for Phi-3, the cache is computed anew once, by a prefill with the long factors, so that a text
 * does not depend on where its prompt ended. (llama.cpp selects the factors by the size of the context that was asked
 * for; the same prompt then gives other texts with a larger context.) Other architectures keep their keys, as in
 * transformers.
 *
 * All sequences of a step have the same factors, so those on both sides are fed one by one. */
#include "generate/generator.h"

/* Keys of a cache on the other side were rotated by other angles; beyond the short context of a model that does not
 * recompute, some of them. */
int64_t tarn__longrope_reusable(const tarn_generator *w, int64_t sequence, int64_t same, int64_t count)
{
    const tarn_decoder *d = w->decoder;
    bool was_long = d->cache.length[sequence] > d->short_context, is_long = count > d->short_context;
    return d->short_context == 0 || (was_long == is_long && (d->recomputes || !is_long)) ? same : 0;
}

/* Ended sequences count: they are part of the step. */
bool tarn__longrope_is_split(const tarn_generator *w)
{
    const tarn_decoder *d = w->decoder;
    int64_t longer = 0;
    for (int64_t i = 0; d->short_context > 0 && i < w->count; i++)
        longer += d->cache.length[i] >= d->short_context; /* after the step */
    return longer > 0 && longer < w->count;
}

/* The token that was read last is left to the step. */
bool tarn__longrope_cross(tarn_generator *w, int64_t sequence)
{
    tarn_decoder *d = w->decoder;
    int64_t count = d->cache.length[sequence];
    if (!d->recomputes || count != d->short_context)
        return true;
    tarn_tensor *all = tarn_from_i32(w->sequence[sequence].tokens, TARN_SHAPE(1, count), d->info.device);
    if (!all || !tarn_decoder_rewind_one(d, sequence, 0))
        return false;
    d->cache.rope_length = count + 1;
    tarn_tensor *logits = tarn_decoder_feed_one(d, sequence, all);
    d->cache.rope_length = 0;
    return logits != NULL;
}
