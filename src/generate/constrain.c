/* constrain.c: sequences that follow a grammar. The mask of a token needs the token before it on the host: a sequence
 * with a grammar reads each token before the next one is sampled, as the generator does anyway. Masks after proposed
 * tokens are computed with a clone of the matcher: the sequence itself stays where it is. */
#include "generate/constrain.h"

#include <string.h>
#include <time.h>

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

static size_t mask_bytes(const tarn__constraint *c)
{
    return sizeof(*c->mask) * (size_t)(c->rows * TARN_MASK_WORDS(c->info->vocab_size));
}

bool tarn__constraint_open(tarn__constraint *c, const tarn__model_info *info, const tarn_generate_options *o, int rows)
{
    *c = (tarn__constraint){.info = info, .stop_count = o->stop_count, .ignore_eos = o->ignore_eos, .rows = rows};
    if (o->stop_count > 0) {
        c->stop = tarn__alloc(sizeof(*c->stop) * (size_t)o->stop_count);
        if (!c->stop)
            return false;
        memcpy(c->stop, o->stop, sizeof(*c->stop) * (size_t)o->stop_count);
    }
    if (!o->grammar)
        return true;
    c->mask = tarn__alloc(mask_bytes(c));
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
        tarn__release(c->mask, mask_bytes(c));
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

bool tarn__constraint_is_end(const tarn__constraint *c, int row, int64_t token)
{
    return is_end_token(c, token) ||
           (c->grammar && c->may_end[row] && tarn__grammar_is_eos(c->grammar, (int32_t)token));
}

/* A token that ends the sequence is allowed where the grammar may end, and only there, even if it has text. */
static void set_end(const tarn__constraint *c, uint32_t *mask, int64_t token, bool may_end)
{
    uint32_t bit = 1u << (token % 32);
    if (token < 0 || token >= c->info->vocab_size)
        return;
    if (may_end)
        mask[token / 32] |= bit;
    else
        mask[token / 32] &= ~bit;
}

/* The mask at a matcher's position. False with an error. */
static bool compute(tarn__constraint *c, tarn_matcher *matcher, int row)
{
    int64_t words = TARN_MASK_WORDS(c->info->vocab_size), i = 0;
    uint32_t *mask = c->mask + row * words;
    if (!tarn_matcher_mask(matcher, mask, words))
        return false;
    c->may_end[row] = tarn_matcher_may_end(matcher);
    for (int k = 0; k < c->stop_count; k++)
        set_end(c, mask, c->stop[k], c->may_end[row]);
    for (int k = 0; k < c->info->eos_count; k++)
        set_end(c, mask, c->info->eos[k], c->may_end[row]);
    while (i < words && !mask[i])
        i++;
    return i < words || tarn__raise(TARN_ERROR_FORMAT, "the vocabulary has no token for what the grammar needs next");
}

bool tarn__constraint_compute(tarn__constraint *c)
{
    if (!c->grammar)
        return true;
    if (!c->matcher && !(c->matcher = tarn_matcher_new(c->grammar)))
        return false;
    return compute(c, c->matcher, 0);
}

bool tarn__constraint_apply(const tarn__constraint *c, int row, tarn_sampler *sampler)
{
    int64_t words = TARN_MASK_WORDS(c->info->vocab_size);
    return !c->grammar || tarn_sampler_mask(sampler, c->mask + row * words, 1, words);
}

bool tarn__constraint_mask(tarn__constraint *c, tarn_sampler *sampler)
{
    return tarn__constraint_compute(c) && tarn__constraint_apply(c, 0, sampler);
}

/* ---- proposed tokens --------------------------------------------------------------------------------------------- */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Appends a proposed token to the clone and computes the mask after it. */
static bool look_at(tarn__constraint *c, tarn_matcher *clone, int row, int32_t token)
{
    return !tarn__constraint_is_end(c, row - 1, token) && tarn_matcher_accept(clone, token) &&
           !tarn_matcher_is_done(clone) && compute(c, clone, row);
}

/* A mask that fails here, for its work or its memory, is computed again, and reported, when the text gets there. */
int64_t tarn__constraint_look_ahead(tarn__constraint *c, const int32_t *tokens, int64_t count, double seconds)
{
    int64_t known = 0, most = count < c->rows - 1 ? count : c->rows - 1;
    tarn_matcher *clone = most > 0 ? tarn_matcher_clone(c->matcher) : NULL;
    double until = now() + seconds;
    while (clone && known < most && (known == 0 || now() < until) && look_at(c, clone, (int)known + 1, tokens[known]))
        known++;
    tarn_matcher_free(clone);
    tarn_clear_error();
    return known;
}

int64_t tarn__constraint_allowed(const tarn__constraint *c, const int32_t *tokens, int64_t count)
{
    int64_t allowed = 0;
    if (!c->matcher)
        return count;
    tarn_matcher *clone = count > 0 ? tarn_matcher_clone(c->matcher) : NULL;
    while (clone && allowed < count && tarn_matcher_accept(clone, tokens[allowed]))
        allowed++;
    tarn_matcher_free(clone);
    tarn_clear_error();
    return allowed;
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
