/* bpe.c: byte-level BPE. A text falls into words by patterns; a word begins as the tokens of its bytes, and the pair of
 * neighbours whose merge has the lowest rank becomes one token, the leftmost of equals first, until no pair merges.
 *
 * Short words are merged by looking for the lowest rank again and again; long ones with a list and a heap
 * (bpe_merge.c). */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

#define SHORT_WORD 48 /* bytes: beyond these a heap pays */

/* ---- merges ------------------------------------------------------------------------------------------------------ */

static uint64_t key_of(int32_t left, int32_t right)
{
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
}

static size_t place_of(const tarn__merge_slot *slot, size_t slots, uint64_t key)
{
    uint64_t hash = key * UINT64_C(0x9E3779B97F4A7C15);
    size_t at = (size_t)(hash >> 32 ^ hash) & (slots - 1);
    while (slot[at].key && slot[at].key != key)
        at = (at + 1) & (slots - 1);
    return at;
}

static bool grow(tarn__bpe *bpe)
{
    if (2 * (bpe->merges.count + 1) <= bpe->slots)
        return true;
    size_t slots = bpe->slots ? 2 * bpe->slots : 512;
    tarn__merge_slot *slot = tarn__alloc(slots * sizeof(*slot));
    if (!slot)
        return false;
    for (size_t i = 0; i < bpe->slots; i++)
        if (bpe->slot[i].key)
            slot[place_of(slot, slots, bpe->slot[i].key)] = bpe->slot[i];
    tarn__release(bpe->slot, bpe->slots * sizeof(*slot));
    bpe->slot = slot;
    bpe->slots = slots;
    return true;
}

bool tarn__bpe_add(tarn__bpe *bpe, tarn__merge merge)
{
    if (!grow(bpe) || !tarn__buffer_add(&bpe->merges, &merge, 1, sizeof(merge)))
        return false;
    uint64_t key = key_of(merge.left, merge.right);
    bpe->slot[place_of(bpe->slot, bpe->slots, key)] =
        (tarn__merge_slot){key, (int32_t)bpe->merges.count - 1, merge.made};
    return true;
}

bool tarn__bpe_add_escaped(tarn_tokenizer *tokenizer, const char *function, const char *name, size_t number,
                           const char *left, size_t left_length, const char *right, size_t right_length)
{
    const tarn__vocab *pieces = &tokenizer->pieces;
    size_t length = left_length + right_length;
    char few[256], *both = length <= sizeof(few) ? few : tarn__alloc(length);
    if (!both)
        return false;
    memcpy(both, left, left_length);
    memcpy(both + left_length, right, right_length);
    tarn__merge merge = {tarn__vocab_find_escaped(pieces, left, left_length),
                         tarn__vocab_find_escaped(pieces, right, right_length),
                         tarn__vocab_find_escaped(pieces, both, length)};
    if (!tarn_failed() && (merge.left < 0 || merge.right < 0 || merge.made < 0))
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': merge %zu, '%.*s' and '%.*s': %s is not in the vocabulary", function,
                    name, number, (int)(left_length < 60 ? left_length : 60), left,
                    (int)(right_length < 60 ? right_length : 60), right,
                    merge.left < 0    ? "the first"
                    : merge.right < 0 ? "the second"
                                      : "what they make");
    if (both != few)
        tarn__release(both, length);
    return !tarn_failed() && tarn__bpe_add(&tokenizer->bpe, merge);
}

const tarn__merge_slot *tarn__bpe_find(const tarn__bpe *bpe, int32_t left, int32_t right)
{
    if (!bpe->slots)
        return NULL;
    const tarn__merge_slot *slot = &bpe->slot[place_of(bpe->slot, bpe->slots, key_of(left, right))];
    return slot->key ? slot : NULL;
}

void tarn__bpe_free(tarn__bpe *bpe)
{
    tarn__buffer_free(&bpe->merges, sizeof(tarn__merge));
    tarn__release(bpe->slot, bpe->slots * sizeof(*bpe->slot));
    for (int i = 0; i < bpe->pattern_count; i++)
        tarn__regex_free(bpe->pattern[i]);
    *bpe = (tarn__bpe){0};
}

/* ---- short words ------------------------------------------------------------------------------------------------- */

/* Merges symbols where they lie; returns how many are left. */
static size_t merge_short(const tarn__bpe *bpe, int32_t *symbol, size_t count)
{
    const tarn__merge_slot *pair[SHORT_WORD]; /* of symbols i and i + 1 */
    for (size_t i = 0; i + 1 < count; i++)
        pair[i] = tarn__bpe_find(bpe, symbol[i], symbol[i + 1]);
    for (;;) {
        size_t best = count;
        for (size_t i = 0; i + 1 < count; i++)
            if (pair[i] && (best == count || pair[i]->rank < pair[best]->rank))
                best = i;
        if (best == count)
            return count;
        symbol[best] = pair[best]->made;
        count--;
        for (size_t i = best + 1; i < count; i++) {
            symbol[i] = symbol[i + 1];
            pair[i - 1] = pair[i];
        }
        if (best + 1 < count)
            pair[best] = tarn__bpe_find(bpe, symbol[best], symbol[best + 1]);
        if (best > 0)
            pair[best - 1] = tarn__bpe_find(bpe, symbol[best - 1], symbol[best]);
    }
}

/* ---- long words -------------------------------------------------------------------------------------------------- */

static bool find_pair(const void *ctx, const tarn__symbol *left, const tarn__symbol *right, int32_t *rank,
                      int32_t *made)
{
    const tarn__merge_slot *merge = tarn__bpe_find(ctx, left->id, right->id);
    *rank = merge ? merge->rank : 0;
    *made = merge ? merge->made : -1;
    return merge != NULL;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

static bool no_token(unsigned char byte)
{
    return tarn__raise(TARN_ERROR_ARGUMENT,
                       "tokenizer_encode: the text has the byte 0x%02X, and the vocabulary has no token for it", byte);
}

static bool encode_short(const tarn__bpe *bpe, const char *word, size_t length, tarn__buffer *ids)
{
    int32_t parts[SHORT_WORD];
    for (size_t i = 0; i < length; i++)
        if ((parts[i] = bpe->byte_id[(unsigned char)word[i]]) < 0)
            return no_token((unsigned char)word[i]);
    return tarn__buffer_add(ids, parts, merge_short(bpe, parts, length), sizeof(*parts));
}

static bool encode_long(const tarn__bpe *bpe, tarn__encoder *coder, const char *word, size_t length, tarn__buffer *ids)
{
    if (length > INT32_MAX)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "tokenizer_encode: a word of %zu bytes is longer than %d", length,
                           INT32_MAX);
    coder->symbols.count = 0;
    if (!tarn__buffer_reserve(&coder->symbols, length, sizeof(tarn__symbol)))
        return false;
    tarn__symbol *symbols = (tarn__symbol *)(void *)coder->symbols.data;
    for (int32_t i = 0; i < (int32_t)length; i++) {
        symbols[i] = (tarn__symbol){
            bpe->byte_id[(unsigned char)word[i]], i - 1, i + 1 < (int32_t)length ? i + 1 : -1, i, 1, false};
        if (symbols[i].id < 0)
            return no_token((unsigned char)word[i]);
    }
    if (!tarn__merge_symbols(find_pair, bpe, symbols, (int32_t)length, &coder->heap))
        return false;
    for (int32_t i = 0; i >= 0; i = symbols[i].after)
        if (!tarn__ids_add(ids, symbols[i].id))
            return false;
    return true;
}

/* The token of the model's own vocabulary that is a whole word, -1: none. An added token is found before words are, or
 * is to be text. */
static int32_t find_whole(const tarn__vocab *pieces, const char *word, size_t length)
{
    int32_t id = tarn__vocab_find(pieces, word, length);
    return id >= 0 && !pieces->piece[id].literal && !pieces->piece[id].outside ? id : -1;
}

static bool encode_new(const tarn_tokenizer *tokenizer, tarn__encoder *coder, const char *word, size_t length,
                       tarn__buffer *ids)
{
    const tarn__bpe *bpe = &tokenizer->bpe;
    int32_t whole = bpe->ignore_merges ? find_whole(&tokenizer->pieces, word, length) : -1;
    if (whole >= 0)
        return tarn__ids_add(ids, whole);
    return length <= SHORT_WORD ? encode_short(bpe, word, length, ids) : encode_long(bpe, coder, word, length, ids);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

typedef struct encoding {
    const tarn_tokenizer *tokenizer;
    tarn__encoder *coder;
    tarn__buffer *ids;
} encoding;

static bool encode_word(const char *word, size_t length, void *ctx)
{
    const encoding *e = ctx;
    return tarn__word_cache_encode(e->tokenizer, e->coder, word, length, encode_new, e->ids);
}

typedef struct walk {
    const tarn__bpe *bpe;
    tarn__matcher *matcher;
    tarn__word_fn see;
    void *ctx;
} walk;

/* What pattern number `level` matches, and what lies between, goes on to the next one; what has passed them all is a
 * word. */
static bool split(const walk *w, int level, const char *text, size_t length)
{
    if (length == 0)
        return true;
    if (level == w->bpe->pattern_count)
        return w->see(text, length, w->ctx);
    size_t at = 0, begin, end;
    int found = 1;
    while (at < length &&
           (found = tarn__regex_next(w->bpe->pattern[level], w->matcher, text, length, at, &begin, &end)) == 1) {
        if (!split(w, level + 1, text + at, begin - at) || !split(w, level + 1, text + begin, end - begin))
            return false;
        at = end;
    }
    return found >= 0 && split(w, level + 1, text + at, length - at);
}

bool tarn__bpe_pretokenize(const tarn_tokenizer *tokenizer, tarn__encoder *coder, const char *text, size_t length,
                           tarn__word_fn see, void *ctx)
{
    const tarn__bpe *bpe = &tokenizer->bpe;
    if (bpe->prefix_space && !coder->continues && length > 0 && text[0] != ' ') {
        coder->spaced.count = 0;
        if (!tarn__buffer_add(&coder->spaced, " ", 1, 1) || !tarn__buffer_add(&coder->spaced, text, length, 1))
            return false;
        text = coder->spaced.data;
        length++;
    }
    if (bpe->pattern_count == 0)
        return length == 0 || see(text, length, ctx);
    if (!coder->matcher && !(coder->matcher = tarn__matcher_new()))
        return false;
    walk w = {bpe, coder->matcher, see, ctx};
    for (size_t at = 0; at < length;) {
        size_t valid = tarn__utf8_prefix(text + at, length - at);
        if (!split(&w, 0, text + at, valid))
            return false;
        at += valid;
        if (at < length && !see(text + at++, 1, ctx)) /* a byte that is no UTF-8 is a word */
            return false;
    }
    return true;
}

static bool encode_bpe(const tarn_tokenizer *tokenizer, tarn__encoder *coder, const char *text, size_t length,
                       tarn__buffer *ids)
{
    return tarn__bpe_pretokenize(tokenizer, coder, text, length, encode_word, &(encoding){tokenizer, coder, ids});
}

const tarn__tokenizer_kind tarn__kind_bpe = {"bpe", encode_bpe};
