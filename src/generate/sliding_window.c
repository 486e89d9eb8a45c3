/* sliding_window.c: texts that become longer than the context (.slide). The window keeps the beginning of the text
 * (BOS, or what .keep says) and its last half of a context, and goes on from there: the tokens that stay after the
 * beginning get new positions, so they are computed again. The sequence remembers what its window has, no more. */
#include <string.h>

#include "base/memory.h"
#include "generate/generator.h"

static int64_t half_of(const tarn_generator *w)
{
    int64_t capacity = w->decoder->cache.shape.capacity;
    return capacity > 1 ? capacity / 2 : 1;
}

int64_t tarn__slide_keep(const tarn_generator *w, const tarn_generate_options *o, const int32_t *tokens)
{
    const tarn__model_info *info = &w->decoder->info;
    int64_t most = (w->decoder->cache.shape.capacity - 1) / 2,
            keep = o->keep ? o->keep : info->has_bos && tokens[0] == info->bos;
    return keep < most ? keep : most;
}

/* The first `keep` tokens and the last half of a context, in `to`, which may be `from`. Returns how many. */
static int64_t cut(int32_t *to, const int32_t *from, int64_t count, int64_t keep, int64_t half)
{
    memmove(to, from, sizeof(*to) * (size_t)keep);
    memmove(to + keep, from + count - half, sizeof(*to) * (size_t)half);
    return keep + half;
}

int32_t *tarn__slide_prompt(const tarn_generator *w, const tarn_generate_options *o, const int32_t *tokens,
                            int64_t *count)
{
    int64_t half = half_of(w), keep = tarn__slide_keep(w, o, tokens);
    int32_t *last = tarn__alloc(sizeof(*last) * (size_t)(keep + half));
    if (last)
        *count = cut(last, tokens, *count, keep, half);
    return last;
}

bool tarn__sequence_slide(tarn_generator *w, int64_t sequence)
{
    tarn__sequence *s = &w->sequence[sequence];
    int64_t keep = s->options.keep, half = half_of(w);
    s->count = cut(s->tokens, s->tokens, s->count, keep, half);
    s->slid = true;
    if (!tarn_decoder_rewind_one(w->decoder, sequence, keep))
        return false;
    if (half == 1) /* the token that the step feeds */
        return true;
    tarn_tensor *again = tarn_from_i32(s->tokens + keep, TARN_SHAPE(1, half - 1), w->decoder->info.device);
    return again && tarn_decoder_feed_one(w->decoder, sequence, again) != NULL;
}
