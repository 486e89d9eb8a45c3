/* bpe.c: byte-level BPE.
 *
 * A text is split into words by regexes (pre-tokenization). A word begins as the tokens of its bytes; the adjacent pair
 * whose merge has the lowest rank becomes one token, the leftmost of equals first, until no pair merges. Short words
 * are merged by scanning for the lowest rank, O(n²) but without a heap; long ones by bpe_merge.c, O(n log n). Both give
 * the same ids. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

#define SHORT_WORD 48 /* bytes: beyond these a heap pays */

/* ---- merges ------------------------------------------------------------------------------------------------------ */

/* Never 0, which marks a free slot: ids are below 2^31. */
static uint64_t key_of(int32_t left, int32_t right)
{
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
}

/* Fibonacci hashing; the slot of a key, or the free slot where it belongs. */
static size_t slot_of(const tarn__merge_slot *slot, size_t slots, uint64_t key)
{
    uint64_t hash = key * UINT64_C(0x9E3779B97F4A7C15);
    size_t at = (size_t)(hash >> 32 ^ hash) & (slots - 1);
    while (slot[at].key && slot[at].key != key)
        at = (at + 1) & (slots - 1);
    return at;
}

/* Keeps the table at most half full. */
static bool grow_table(tarn__bpe *bpe)
{
    if (2 * (bpe->merges.count + 1) <= bpe->slots)
        return true;
    size_t slots = bpe->slots ? 2 * bpe->slots : 512;
    tarn__merge_slot *slot = tarn__alloc(slots * sizeof(*slot));
    if (!slot)
        return false;
    for (size_t i = 0; i < bpe->slots; i++)
        if (bpe->slot[i].key)
            slot[slot_of(slot, slots, bpe->slot[i].key)] = bpe->slot[i];
    tarn__release(bpe->slot, bpe->slots * sizeof(*slot));
    bpe->slot = slot;
    bpe->slots = slots;
    return true;
}

/* A merge's rank is its position: earlier ones come first. A pair that occurs twice keeps its last merge. */
bool tarn__bpe_add(tarn__bpe *bpe, tarn__merge merge)
{
    if (!grow_table(bpe) || !tarn__buffer_add(&bpe->merges, &merge, 1, sizeof(merge)))
        return false;
    uint64_t key = key_of(merge.left, merge.right);
    bpe->slot[slot_of(bpe->slot, bpe->slots, key)] =
        (tarn__merge_slot){key, (int32_t)bpe->merges.count - 1, merge.merged};
    return true;
}

/* The result of a merge must be in the vocabulary too: its text is both parts joined, less the prefix that the second
 * has where pieces that continue a word are marked. */
bool tarn__bpe_add_escaped(tarn_tokenizer *tokenizer, const char *function, const char *name, size_t number,
                           const char *left, size_t left_length, const char *right, size_t right_length)
{
    const tarn__vocab *vocab = &tokenizer->vocab;
    size_t prefix = tokenizer->bpe_chars.prefix_length, skipped = prefix < right_length ? prefix : right_length;
    size_t length = left_length + right_length - skipped;
    char small[256], *both = length <= sizeof(small) ? small : tarn__alloc(length);
    if (!both)
        return false;
    memcpy(both, left, left_length);
    memcpy(both + left_length, right + skipped, right_length - skipped);
    tarn__merge merge = {tarn__vocab_find_escaped(vocab, left, left_length),
                         tarn__vocab_find_escaped(vocab, right, right_length),
                         tarn__vocab_find_escaped(vocab, both, length)};
    if (!tarn_failed() && (merge.left < 0 || merge.right < 0 || merge.merged < 0))
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': merge %zu, '%.*s' and '%.*s': %s is not in the vocabulary", function,
                    name, number, (int)(left_length < 60 ? left_length : 60), left,
                    (int)(right_length < 60 ? right_length : 60), right,
                    merge.left < 0    ? "the first"
                    : merge.right < 0 ? "the second"
                                      : "their merge");
    if (both != small)
        tarn__release(both, length);
    return !tarn_failed() && tarn__bpe_add(&tokenizer->bpe, merge);
}

/* The innermost lookup of encoding; borrowed from the table. */
const tarn__merge_slot *tarn__bpe_find(const tarn__bpe *bpe, int32_t left, int32_t right)
{
    if (!bpe->slots)
        return NULL;
    const tarn__merge_slot *slot = &bpe->slot[slot_of(bpe->slot, bpe->slots, key_of(left, right))];
    return slot->key ? slot : NULL;
}

void tarn__bpe_free(tarn__bpe *bpe)
{
    tarn__buffer_free(&bpe->merges, sizeof(tarn__merge));
    tarn__release(bpe->slot, bpe->slots * sizeof(*bpe->slot));
    for (int i = 0; i < bpe->regex_count; i++)
        tarn__regex_free(bpe->regex[i]);
    *bpe = (tarn__bpe){0};
}

/* ---- short words ------------------------------------------------------------------------------------------------- */

/* Merges symbols in place; returns their new number. pair[i] caches the merge of symbols i and i + 1: a merge changes
 * only the two entries beside it. */
static size_t merge_short(const tarn__bpe *bpe, int32_t *symbol, size_t count)
{
    const tarn__merge_slot *pair[SHORT_WORD]; /* of symbols i and i + 1 */
    for (size_t i = 0; i + 1 < count; i++)    /* each pair is looked up once, and again only when a neighbour merges */
        pair[i] = tarn__bpe_find(bpe, symbol[i], symbol[i + 1]);
    for (;;) {
        size_t best = count;
        for (size_t i = 0; i + 1 < count; i++)
            if (pair[i] && (best == count || pair[i]->rank < pair[best]->rank))
                best = i;
        if (best == count)
            return count;
        symbol[best] = pair[best]->merged;
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

/* For tarn__merge_symbols(). */
static bool find_pair(const void *ctx, const tarn__symbol *left, const tarn__symbol *right, int32_t *rank,
                      int32_t *merged)
{
    const tarn__merge_slot *merge = tarn__bpe_find(ctx, left->id, right->id);
    *rank = merge ? merge->rank : 0;
    *merged = merge ? merge->merged : -1;
    return merge != NULL;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* Raises an error for a byte without a token. Returns false. */
static bool raise_byte(unsigned char byte)
{
    return tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_encode: the vocabulary has no token for byte 0x%02X of the text",
                       byte);
}

/* Encodes a word of at most SHORT_WORD bytes, with all state on the stack. */
static bool encode_short(const tarn__bpe *bpe, const char *word, size_t length, tarn__buffer *ids)
{
    int32_t parts[SHORT_WORD];
    for (size_t i = 0; i < length; i++)
        if ((parts[i] = bpe->byte_id[(unsigned char)word[i]]) < 0)
            return raise_byte((unsigned char)word[i]);
    return tarn__buffer_add(ids, parts, merge_short(bpe, parts, length), sizeof(*parts));
}

/* Encodes a long word with the encoder's scratch. */
static bool encode_long(const tarn__bpe *bpe, tarn__encoder *encoder, const char *word, size_t length,
                        tarn__buffer *ids)
{
    if (length > INT32_MAX)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "tokenizer_encode: a word of %zu bytes; at most %d are supported",
                           length, INT32_MAX);
    encoder->symbols.count = 0;
    if (!tarn__buffer_reserve(&encoder->symbols, length, sizeof(tarn__symbol)))
        return false;
    tarn__symbol *symbols = (tarn__symbol *)(void *)encoder->symbols.data;
    for (int32_t i = 0; i < (int32_t)length; i++) {
        symbols[i] = (tarn__symbol){
            bpe->byte_id[(unsigned char)word[i]], i - 1, i + 1 < (int32_t)length ? i + 1 : -1, i, 1, false};
        if (symbols[i].id < 0)
            return raise_byte((unsigned char)word[i]);
    }
    if (!tarn__merge_symbols(find_pair, bpe, symbols, (int32_t)length, &encoder->heap))
        return false;
    for (int32_t i = 0; i >= 0; i = symbols[i].next)
        if (!tarn__ids_add(ids, symbols[i].id))
            return false;
    return true;
}

/* The token of the model's own vocabulary that equals a word; -1: none. Added tokens do not count: they were found
 * before, or are to stay text. */
static int32_t find_word(const tarn__vocab *vocab, const char *word, size_t length)
{
    int32_t id = tarn__vocab_find(vocab, word, length);
    return id >= 0 && !vocab->piece[id].literal && !vocab->piece[id].outside ? id : -1;
}

/* Encodes a word that is not in the cache (tarn__word_encode_fn). */
static bool encode_new(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *word, size_t length,
                       tarn__buffer *ids)
{
    const tarn__bpe *bpe = &tokenizer->bpe;
    int32_t id = bpe->ignore_merges ? find_word(&tokenizer->vocab, word, length) : -1;
    if (id >= 0)
        return tarn__ids_add(ids, id);
    return length <= SHORT_WORD ? encode_short(bpe, word, length, ids) : encode_long(bpe, encoder, word, length, ids);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* The context of encode_word(). */
typedef struct encoding {
    const tarn_tokenizer *tokenizer;
    tarn__encoder *encoder;
    tarn__buffer *ids;
} encoding;

static bool encode_word(const char *word, size_t length, void *ctx)
{
    const encoding *e = ctx;
    return tarn__word_cache_encode(e->tokenizer, e->encoder, word, length, encode_new, e->ids);
}

/* The arguments that all levels of split() share. */
typedef struct split_ctx {
    const tarn__bpe *bpe;
    tarn__matcher *matcher;
    tarn__word_fn see;
    void *ctx;
} split_ctx;

/* Splits by regex `level`: matches and the text between them are both split further by the next regex (behavior
 * "Isolated"). A part that has passed all regexes is a word. */
static bool split(const split_ctx *w, int level, const char *text, size_t length)
{
    if (length == 0)
        return true;
    if (level == w->bpe->regex_count)
        return w->see(text, length, w->ctx);
    size_t at = 0, begin, end;
    int found = 1;
    while (at < length &&
           (found = tarn__regex_next(w->bpe->regex[level], w->matcher, text, length, at, &begin, &end)) == 1) {
        if (!split(w, level + 1, text + at, begin - at) || !split(w, level + 1, text + begin, end - begin))
            return false;
        at = end;
    }
    return found >= 0 && split(w, level + 1, text + at, length - at);
}

/* PCRE2 needs valid UTF-8: the text is split into valid runs, and each invalid byte is a word of its own. */
bool tarn__bpe_pretokenize(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text, size_t length,
                           tarn__word_fn see, void *ctx)
{
    const tarn__bpe *bpe = &tokenizer->bpe;
    if (bpe->prefix_space && !encoder->continues && length > 0 && text[0] != ' ') {
        encoder->spaced.count = 0;
        if (!tarn__buffer_add(&encoder->spaced, " ", 1, 1) || !tarn__buffer_add(&encoder->spaced, text, length, 1))
            return false;
        text = encoder->spaced.data;
        length++;
    }
    if (bpe->regex_count == 0)
        return length == 0 || see(text, length, ctx);
    if (!encoder->matcher && !(encoder->matcher = tarn__matcher_new()))
        return false;
    split_ctx w = {bpe, encoder->matcher, see, ctx};
    for (size_t at = 0; at < length;) {
        size_t valid = tarn__utf8_prefix(text + at, length - at);
        if (!split(&w, 0, text + at, valid))
            return false;
        at += valid;
        if (at < length && !see(text + at++, 1, ctx)) /* an invalid byte is a word by itself: PCRE2 needs valid UTF-8 */
            return false;
    }
    return true;
}

/* Files with steps beyond ByteLevel and splits are pipelines that end in this model. */
static bool encode_bpe(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text, size_t length,
                       tarn__buffer *ids)
{
    if (tokenizer->pipeline.is_used)
        return tarn__pipeline_encode(tokenizer, encoder, text, length, ids);
    return tarn__bpe_pretokenize(tokenizer, encoder, text, length, encode_word, &(encoding){tokenizer, encoder, ids});
}

const tarn__tokenizer_kind tarn__kind_bpe = {"bpe", encode_bpe, encode_new};
