/* constrain.c: sequences that follow a grammar. The mask of a token needs the token before it on the host: a sequence
 * with a grammar reads each token before the next one is sampled, as the generator does anyway. */
#include "base/memory.h"
#include "generate/generator.h"
#include "text/grammar/grammar.h"

bool tarn__constrain_check(const tarn__model_info *info, const tarn_generate_options *o)
{
    if (!o->grammar)
        return true;
    if (o->ignore_eos)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".ignore_eos is set; a sequence with .grammar ends with its grammar");
    if (!o->grammar->vocab)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".grammar was compiled without a vocabulary");
    return o->grammar->vocab->size == info->vocab_size ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       ".grammar was compiled for a vocabulary of %lld tokens; the model has %lld: set .vocab_size of "
                       "tarn_grammar_vocab_new()",
                       (long long)o->grammar->vocab->size, (long long)info->vocab_size);
}

bool tarn__constrain_open(tarn__sequence *s, const tarn_generate_options *o)
{
    if (!o->grammar)
        return true;
    s->mask = tarn__alloc(sizeof(*s->mask) * (size_t)TARN_MASK_WORDS(s->info->vocab_size));
    s->matcher = s->mask ? tarn_matcher_new(o->grammar) : NULL;
    return s->matcher != NULL;
}

void tarn__constrain_close(tarn__sequence *s)
{
    if (s->mask)
        tarn__release(s->mask, sizeof(*s->mask) * (size_t)TARN_MASK_WORDS(s->info->vocab_size));
    tarn_matcher_free(s->matcher);
    s->mask = NULL;
    s->matcher = NULL;
}

/* True for EOS, unless it is ignored, and for the caller's stop tokens. */
static bool is_end_token(const tarn__sequence *s, int64_t token)
{
    for (int i = 0; i < s->options.stop_count; i++)
        if (s->stop[i] == token)
            return true;
    for (int i = 0; !s->options.ignore_eos && i < s->info->eos_count; i++)
        if (s->info->eos[i] == token)
            return true;
    return false;
}

bool tarn__sequence_is_end(const tarn__sequence *s, int64_t token)
{
    return is_end_token(s, token) || (s->matcher && tarn__grammar_is_eos(s->matcher->grammar, (int32_t)token) &&
                                      tarn_matcher_may_end(s->matcher));
}

/* A token that ends the sequence is allowed where the grammar may end, and only there, even if it has text. */
static void set_end(const tarn__sequence *s, int64_t token, bool may_end)
{
    uint32_t bit = 1u << (token % 32);
    if (token < 0 || token >= s->info->vocab_size)
        return;
    if (may_end)
        s->mask[token / 32] |= bit;
    else
        s->mask[token / 32] &= ~bit;
}

bool tarn__constrain_mask(tarn__sequence *s)
{
    int64_t words = TARN_MASK_WORDS(s->info->vocab_size), i = 0;
    if (!s->matcher)
        return true;
    if (!tarn_matcher_mask(s->matcher, s->mask, words))
        return false;
    bool may_end = tarn_matcher_may_end(s->matcher);
    for (int k = 0; k < s->options.stop_count; k++)
        set_end(s, s->stop[k], may_end);
    for (int k = 0; k < s->info->eos_count; k++)
        set_end(s, s->info->eos[k], may_end);
    while (i < words && !s->mask[i])
        i++;
    if (i == words)
        return tarn__raise(TARN_ERROR_FORMAT, "the vocabulary has no token for what the grammar needs next");
    return tarn_sampler_mask(s->sampler, s->mask, 1, words);
}

bool tarn__constrain_accept(tarn__sequence *s, int32_t token, bool *is_done)
{
    if (!s->matcher)
        return true;
    if (!tarn_matcher_accept(s->matcher, token))
        return tarn_failed() ? false
                             : tarn__raise(TARN_ERROR_INTERNAL, "token %d was sampled outside its mask", (int)token);
    *is_done = tarn_matcher_is_done(s->matcher);
    return !tarn_failed();
}
