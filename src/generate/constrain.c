/* constrain.c: sequences that follow a grammar. The mask of a token needs the token before it on the host: a sequence
 * with a grammar reads each token before the next one is sampled, as the generator does anyway. */
#include "generate/constrain.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/grammar/grammar.h"

bool tarn__constraint_check(const tarn__model_info *info, const tarn_generate_options *o)
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

bool tarn__constraint_open(tarn__constraint *c, const tarn__model_info *info, const tarn_generate_options *o)
{
    *c = (tarn__constraint){.info = info, .stop_count = o->stop_count, .ignore_eos = o->ignore_eos};
    if (o->stop_count > 0) {
        c->stop = tarn__alloc(sizeof(*c->stop) * (size_t)o->stop_count);
        if (!c->stop)
            return false;
        memcpy(c->stop, o->stop, sizeof(*c->stop) * (size_t)o->stop_count);
    }
    if (!o->grammar)
        return true;
    c->mask = tarn__alloc(sizeof(*c->mask) * (size_t)TARN_MASK_WORDS(info->vocab_size));
    if (!c->mask)
        return false;
    tarn__grammar_retain(o->grammar);
    c->grammar = o->grammar;
    return true;
}

void tarn__constraint_close(tarn__constraint *c)
{
    tarn__release(c->stop, sizeof(*c->stop) * (size_t)c->stop_count);
    if (c->mask)
        tarn__release(c->mask, sizeof(*c->mask) * (size_t)TARN_MASK_WORDS(c->info->vocab_size));
    tarn_matcher_free(c->matcher);
    tarn_grammar_free(c->grammar);
    *c = (tarn__constraint){0};
}

/* True for EOS, unless it is ignored, and for the caller's stop tokens. */
static bool is_end_token(const tarn__constraint *c, int64_t token)
{
    for (int i = 0; i < c->stop_count; i++)
        if (c->stop[i] == token)
            return true;
    for (int i = 0; !c->ignore_eos && i < c->info->eos_count; i++)
        if (c->info->eos[i] == token)
            return true;
    return false;
}

bool tarn__constraint_is_end(const tarn__constraint *c, int64_t token)
{
    return is_end_token(c, token) || (c->grammar && c->may_end && tarn__grammar_is_eos(c->grammar, (int32_t)token));
}

/* A token that ends the sequence is allowed where the grammar may end, and only there, even if it has text. */
static void set_end(const tarn__constraint *c, int64_t token, bool may_end)
{
    uint32_t bit = 1u << (token % 32);
    if (token < 0 || token >= c->info->vocab_size)
        return;
    if (may_end)
        c->mask[token / 32] |= bit;
    else
        c->mask[token / 32] &= ~bit;
}

bool tarn__constraint_compute(tarn__constraint *c)
{
    if (!c->grammar)
        return true;
    if (!c->matcher && !(c->matcher = tarn_matcher_new(c->grammar)))
        return false;
    int64_t words = TARN_MASK_WORDS(c->info->vocab_size), i = 0;
    if (!tarn_matcher_mask(c->matcher, c->mask, words))
        return false;
    c->may_end = tarn_matcher_may_end(c->matcher);
    for (int k = 0; k < c->stop_count; k++)
        set_end(c, c->stop[k], c->may_end);
    for (int k = 0; k < c->info->eos_count; k++)
        set_end(c, c->info->eos[k], c->may_end);
    while (i < words && !c->mask[i])
        i++;
    return i < words || tarn__raise(TARN_ERROR_FORMAT, "the vocabulary has no token for what the grammar needs next");
}

bool tarn__constraint_apply(const tarn__constraint *c, tarn_sampler *sampler)
{
    return !c->grammar || tarn_sampler_mask(sampler, c->mask, 1, TARN_MASK_WORDS(c->info->vocab_size));
}

bool tarn__constraint_mask(tarn__constraint *c, tarn_sampler *sampler)
{
    return tarn__constraint_compute(c) && tarn__constraint_apply(c, sampler);
}

bool tarn__constraint_accept(tarn__constraint *c, int32_t token, bool *is_done)
{
    if (!c->matcher)
        return true;
    if (!tarn_matcher_accept(c->matcher, token))
        return tarn_failed() ? false
                             : tarn__raise(TARN_ERROR_INTERNAL, "token %d was sampled outside its mask", (int)token);
    *is_done = tarn_matcher_is_done(c->matcher);
    return !tarn_failed();
}
