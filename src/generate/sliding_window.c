/* sliding_window.c: sequences longer than the context (.slide).
 *
 * When the context is full, the beginning of the sequence (BOS, or .keep tokens) and the last half of a context
 * stay; the middle is dropped. The tokens after the beginning get new positions, so they are computed again. The
 * sequence stores the tokens of its window only. */
#include <string.h>

#include "base/memory.h"
#include "generate/generator.h"

/* Half of a context: at least one token, which is fed after a slide. */
static int64_t half_of(const tarn_generator *w)
{
    int64_t capacity = w->decoder->cache.shape.capacity;
    return capacity > 1 ? capacity / 2 : 1;
}

/* Limited to just under half of the context, so that a slide always frees slots. */
int64_t tarn__slide_keep(const tarn_generator *w, const tarn_generate_options *o, const int32_t *tokens)
{
    const tarn__model_info *info = &w->decoder->info;
    int64_t max_keep = (w->decoder->cache.shape.capacity - 1) / 2,
            keep = o->keep ? o->keep : info->has_bos && tokens[0] == info->bos;
    return keep < max_keep ? keep : max_keep;
}

/* Copies the first `keep` and the last `half` tokens to `to`, which may be `from`. Returns their number. */
static int64_t drop_middle(int32_t *to, const int32_t *from, int64_t count, int64_t keep, int64_t half)
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
        *count = drop_middle(last, tokens, *count, keep, half);
    return last;
}

/* Feeds all but the last token of the window: the caller's step feeds that one. */
bool tarn__sequence_slide(tarn_generator *w, int64_t sequence)
{
    tarn__sequence *s = &w->sequence[sequence];
    int64_t keep = s->options.keep, half = half_of(w);
    s->count = drop_middle(s->tokens, s->tokens, s->count, keep, half);
    s->slid = true;
    int64_t same = w->decoder->short_context ? 0 : keep, count = keep + half - 1; /* longrope: see longrope.c */
    if (!tarn_decoder_rewind_one(w->decoder, sequence, same))
        return false;
    if (count == same) /* only the token that the next step feeds */
        return true;
    tarn_tensor *again = tarn_from_i32(s->tokens + same, TARN_SHAPE(1, count - same), w->decoder->info.device);
    return again && tarn_decoder_feed_one(w->decoder, sequence, again) != NULL;
}
