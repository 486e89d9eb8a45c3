/* bpe_chars.c: BPE on the characters of a word, with all settings of Hugging Face's: a prefix of pieces that continue a
 * word, a suffix of those that end one, byte fallback, unknown characters alone or as runs. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

/* The symbols of a word as they are found. */
typedef struct splitting {
    const tarn_tokenizer *tokenizer;
    tarn__buffer *symbols;
    tarn__buffer *scratch; /* a character with prefix and suffix */
    bool has_unknown;      /* an unknown symbol waits: the next may join it */
} splitting;

static bool add_symbol(splitting *s, int32_t id)
{
    int32_t index = (int32_t)s->symbols->count;
    return tarn__buffer_add(s->symbols, &(tarn__symbol){id, index - 1, index + 1, index, 1, false}, 1,
                            sizeof(tarn__symbol));
}

/* The waiting unknown symbol, if any, comes before whatever is added next. */
static bool flush_unknown(splitting *s)
{
    bool waited = s->has_unknown;
    s->has_unknown = false;
    return !waited || add_symbol(s, s->tokenizer->bpe.unknown);
}

/* A piece of the model; added tokens outside of it are not found in words. */
static int32_t find(const tarn_tokenizer *t, const char *text, size_t length)
{
    int32_t id = tarn__vocab_find(&t->vocab, text, length);
    return id >= 0 && !t->vocab.piece[id].outside ? id : -1;
}

/* The character with the prefix and suffix of its position. With the suffix "</w>", "ab" is "a" and "b</w>"; with the
 * prefix "##" it is "a" and "##b". */
static bool dress(splitting *s, const char *text, size_t bytes, bool is_first, bool is_last)
{
    const tarn__bpe_chars *c = &s->tokenizer->bpe_chars;
    s->scratch->count = 0;
    return (is_first || !c->prefix || tarn__buffer_add(s->scratch, c->prefix, c->prefix_length, 1)) &&
           tarn__buffer_add(s->scratch, text, bytes, 1) &&
           (!is_last || !c->suffix || tarn__buffer_add(s->scratch, c->suffix, c->suffix_length, 1));
}

/* Adds the byte pieces of a text; *done is false if one is missing. */
static bool add_bytes(splitting *s, bool *done)
{
    const tarn__bpe_chars *c = &s->tokenizer->bpe_chars;
    *done = c->byte_fallback;
    for (size_t i = 0; i < s->scratch->count; i++)
        *done = *done && c->byte_id[(unsigned char)s->scratch->data[i]] >= 0;
    for (size_t i = 0; *done && i < s->scratch->count; i++)
        if (!add_symbol(s, c->byte_id[(unsigned char)s->scratch->data[i]]))
            return false;
    return true;
}

/* A character without a piece and without an unknown token vanishes, as in Hugging Face's tokenizers. */
static bool add_character(splitting *s)
{
    const tarn_tokenizer *t = s->tokenizer;
    int32_t id = find(t, s->scratch->data, s->scratch->count);
    bool done;
    if (id >= 0)
        return flush_unknown(s) && add_symbol(s, id);
    if (!add_bytes(s, &done) || done)
        return done;
    if (t->bpe.unknown < 0)
        return true;
    bool joins = s->has_unknown && t->bpe_chars.fuse_unknown;
    if (!joins && !flush_unknown(s))
        return false;
    s->has_unknown = true;
    return true;
}

/* For tarn__merge_symbols(): the rank and result of merging two symbols. */
static bool find_pair(const void *ctx, const tarn__symbol *left, const tarn__symbol *right, int32_t *rank,
                      int32_t *merged)
{
    const tarn__merge_slot *merge = tarn__bpe_find(ctx, left->id, right->id);
    *rank = merge ? merge->rank : 0;
    *merged = merge ? merge->merged : -1;
    return merge != NULL;
}

/* BPE: the pair of lowest rank is merged until none is left (bpe_merge.c). With ignore_merges a word that is a piece is
 * taken whole. */
static bool encode_word(const tarn_tokenizer *t, tarn__encoder *encoder, const char *text, size_t length,
                        tarn__buffer *ids)
{
    int32_t whole = t->bpe.ignore_merges ? find(t, text, length) : -1;
    splitting s = {t, &encoder->symbols, &encoder->dressed, false};
    if (whole >= 0)
        return tarn__ids_add(ids, whole);
    if (length > INT32_MAX / 8)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "tokenizer_encode: a word of %zu bytes; at most %d are supported",
                           length, INT32_MAX / 8);
    encoder->symbols.count = 0;
    for (size_t at = 0, bytes; at < length; at += bytes) {
        uint32_t code;
        bytes = tarn__utf8_decode(text + at, length - at, &code);
        /* A byte that is not UTF-8 is a character, which has no piece. */
        bytes = bytes ? bytes : 1;
        if (!dress(&s, text + at, bytes, at == 0, at + bytes == length) || !add_character(&s))
            return false;
    }
    if (!flush_unknown(&s))
        return false;
    tarn__symbol *symbols = (tarn__symbol *)(void *)encoder->symbols.data;
    int32_t count = (int32_t)encoder->symbols.count;
    if (count == 0)
        return true;
    symbols[count - 1].next = -1;
    if (!tarn__merge_symbols(find_pair, &t->bpe, symbols, count, &encoder->heap))
        return false;
    for (int32_t i = 0; i >= 0; i = symbols[i].next)
        if (!tarn__ids_add(ids, symbols[i].id))
            return false;
    return true;
}

const tarn__tokenizer_kind tarn__kind_bpe_chars = {"bpe-characters", tarn__pipeline_encode, encode_word};

/* Pieces <0x00> to <0xFF>; -1 where the vocabulary has none. */
void tarn__bpe_chars_finish(tarn_tokenizer *t)
{
    for (int i = 0; i < 256; i++) {
        char text[8] = {'<', '0', 'x', "0123456789ABCDEF"[i >> 4], "0123456789ABCDEF"[i & 15], '>'};
        t->bpe_chars.byte_id[i] = find(t, text, 6);
    }
}

void tarn__bpe_chars_free(tarn__bpe_chars *chars)
{
    tarn__release(chars->prefix, chars->prefix_length + 1);
    tarn__release(chars->suffix, chars->suffix_length + 1);
    *chars = (tarn__bpe_chars){0};
}
