/* spm.c: SentencePiece's BPE, as in Llama 2 and Mistral.
 *
 * A text gets a space prepended and is one sequence of characters. The adjacent pair that forms the piece with the best
 * score (or has the merge with the lowest rank, where a file has merges) becomes one, the leftmost of equals first,
 * until no pair merges. A character without a piece becomes the pieces of its bytes (byte fallback).
 *
 * In memory a space is a space. Files write it as U+2581, and that character in a text means a space. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

/* ---- spaces ------------------------------------------------------------------------------------------------------ */

/* Appends a text with U+2581 replaced by spaces. */
static bool add_without_metaspace(tarn__buffer *out, const char *text, size_t length)
{
    for (const char *end = text + length, *mark; text < end; text = mark + TARN__METASPACE_BYTES) {
        if (!(mark = tarn__find_metaspace(text, (size_t)(end - text))))
            return tarn__buffer_add(out, text, (size_t)(end - text), 1);
        if (!tarn__buffer_add(out, text, (size_t)(mark - text), 1) || !tarn__buffer_add(out, " ", 1, 1))
            return false;
    }
    return true;
}

/* Before the text is unescaped: files may have U+2581 in texts too. */
static bool ends_in_metaspace(const char *text, size_t length)
{
    return length >= TARN__METASPACE_BYTES &&
           memcmp(text + length - TARN__METASPACE_BYTES, TARN__METASPACE, TARN__METASPACE_BYTES) == 0;
}

/* Strips spaces at both ends. U+2581 counts as a space at the end of a text but not at its beginning, as in
 * SentencePiece. */
static void trim(const char **text, size_t *length)
{
    for (; *length > 0 && (*text)[0] == ' '; ++*text)
        --*length;
    for (bool is_metaspace;
         *length > 0 && ((is_metaspace = ends_in_metaspace(*text, *length)) || (*text)[*length - 1] == ' ');)
        *length -= is_metaspace ? TARN__METASPACE_BYTES : 1;
}

/* Appends a text with runs of spaces collapsed. */
static bool add_collapsed(tarn__buffer *out, const char *text, size_t length)
{
    for (size_t at = 0, end; at < length; at = end) {
        const char *space = memchr(text + at, ' ', length - at);
        end = space ? (size_t)(space - text) + 1 : length;
        if (!add_without_metaspace(out, text + at, end - at))
            return false;
        while (end < length && text[end] == ' ')
            end++;
    }
    return true;
}

/* SentencePiece strips before it prepends: a text of spaces alone stays empty. */
bool tarn__spm_normalize(const tarn__spm *spm, const tarn__encoder *encoder, const char *text, size_t length,
                         tarn__buffer *out)
{
    if (spm->remove_extra_spaces)
        trim(&text, &length);
    if (length == 0)
        return true;
    bool has_space = text[0] == ' ' ||
                     (length >= TARN__METASPACE_BYTES && memcmp(text, TARN__METASPACE, TARN__METASPACE_BYTES) == 0);
    bool is_first = spm->prepend == TARN__PREPEND_ALWAYS ? !encoder->continues
                                                         : spm->prepend == TARN__PREPEND_FIRST && !encoder->is_inside;
    if (is_first && !(has_space && spm->prepend_if_missing) && !tarn__buffer_add(out, " ", 1, 1))
        return false;
    return spm->remove_extra_spaces ? add_collapsed(out, text, length) : add_without_metaspace(out, text, length);
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* The text being merged, for the callbacks of tarn__merge_symbols(). */
typedef struct sequence {
    const tarn_tokenizer *tokenizer;
    const char *text;
} sequence;

/* The piece that merges may form from a text; -1: none. Byte pieces, control tokens and added tokens never result from
 * merges. */
static int32_t find_piece(const tarn__vocab *vocab, const char *text, size_t length)
{
    int32_t id = tarn__vocab_find(vocab, text, length);
    return id >= 0 && !vocab->piece[id].literal && !vocab->piece[id].outside ? id : -1;
}

/* tarn__pair_fn for vocabularies with scores: a pair merges if its text is a piece. */
static bool find_by_score(const void *ctx, const tarn__symbol *left, const tarn__symbol *right, int32_t *rank,
                          int32_t *merged)
{
    const sequence *r = ctx;
    const tarn__spm *spm = &r->tokenizer->spm;
    size_t length = (size_t)left->length + (size_t)right->length;
    if (left->is_frozen || right->is_frozen || length > spm->max_piece)
        return false;
    *merged = find_piece(&r->tokenizer->vocab, r->text + left->begin, length);
    *rank = *merged >= 0 ? spm->rank[*merged] : 0;
    return *merged >= 0;
}

/* tarn__pair_fn for vocabularies with merges. */
static bool find_by_rank(const void *ctx, const tarn__symbol *left, const tarn__symbol *right, int32_t *rank,
                         int32_t *merged)
{
    const sequence *r = ctx;
    const tarn__merge_slot *merge =
        left->id < 0 || right->id < 0 ? NULL : tarn__bpe_find(&r->tokenizer->bpe, left->id, right->id);
    *rank = merge ? merge->rank : 0;
    *merged = merge ? merge->merged : -1;
    return merge != NULL;
}

/* Bytes of the longest user piece at the beginning of a text; 0: none. */
static size_t user_piece(const tarn_tokenizer *t, const char *text, size_t length)
{
    for (size_t size = length < t->spm.max_user_piece ? length : t->spm.max_user_piece; size > 0; size--) {
        int32_t id = find_piece(&t->vocab, text, size);
        if (id >= 0 && t->spm.types[id] == TARN__TOKEN_USER)
            return size;
    }
    return 0;
}

/* Splits a text into symbols: user pieces, which never merge, else characters; an invalid byte is one symbol. Returns
 * their number. */
static int32_t split_characters(const sequence *r, size_t length, tarn__symbol *symbols)
{
    int32_t count = 0;
    for (size_t at = 0; at < length; count++) {
        uint32_t code;
        size_t user = r->tokenizer->spm.max_user_piece ? user_piece(r->tokenizer, r->text + at, length - at) : 0;
        size_t size = user ? user : tarn__utf8_decode(r->text + at, length - at, &code);
        int32_t id = size ? find_piece(&r->tokenizer->vocab, r->text + at, size) : -1;
        size = size ? size : 1;
        symbols[count] =
            (tarn__symbol){id, count - 1, at + size < length ? count + 1 : -1, (int32_t)at, (int32_t)size, user > 0};
        at += size;
    }
    return count;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Appends the ids of a symbol without a piece: those of its bytes, or the unknown token, once per run of such
 * symbols. */
static bool add_unknown(const sequence *r, const tarn__symbol *symbol, bool is_run, tarn__buffer *ids)
{
    const tarn_tokenizer *t = r->tokenizer;
    const unsigned char *byte = (const unsigned char *)r->text + symbol->begin;
    if (!t->spm.has_bytes && t->bpe.unknown >= 0)
        return is_run || tarn__ids_add(ids, t->bpe.unknown);
    if (!t->spm.has_bytes)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "tokenizer_encode: the vocabulary has no token for '%.*s', and no unknown token",
                           (int)symbol->length, (const char *)byte);
    for (int32_t i = 0; i < symbol->length; i++)
        if (!tarn__ids_add(ids, t->spm.byte_id[byte[i]]))
            return false;
    return true;
}

/* Splits a text into characters, merges them and appends the ids (tarn__word_encode_fn). */
static bool encode_sequence(const tarn_tokenizer *t, tarn__encoder *encoder, const char *text, size_t length,
                            tarn__buffer *ids)
{
    const sequence r = {t, text};
    if (length > INT32_MAX)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "tokenizer_encode: a text of %zu bytes; at most %d are supported",
                           length, INT32_MAX);
    encoder->symbols.count = 0;
    if (!tarn__buffer_reserve(&encoder->symbols, length, sizeof(tarn__symbol)))
        return false;
    tarn__symbol *symbols = (tarn__symbol *)(void *)encoder->symbols.data;
    int32_t count = split_characters(&r, length, symbols);
    if (!tarn__merge_symbols(t->spm.scores ? find_by_score : find_by_rank, &r, symbols, count, &encoder->heap))
        return false;
    bool is_run = false;
    for (int32_t i = 0; i >= 0; i = symbols[i].next) {
        bool good = symbols[i].id >= 0 ? tarn__ids_add(ids, symbols[i].id) : add_unknown(&r, &symbols[i], is_run, ids);
        is_run = symbols[i].id < 0;
        if (!good)
            return false;
    }
    return true;
}

/* Encodes word by word: leading spaces, and the text up to the next space. Correct only if no piece spans words; then
 * words can be cached. */
static bool encode_words(const tarn_tokenizer *t, tarn__encoder *encoder, const char *text, size_t length,
                         tarn__buffer *ids)
{
    for (size_t at = 0, end; at < length; at = end) {
        for (end = at; end < length && text[end] == ' ';)
            end++;
        const char *space = end < length ? memchr(text + end, ' ', length - end) : NULL;
        end = space ? (size_t)(space - text) : length;
        if (!tarn__word_cache_encode(t, encoder, text + at, end - at, encode_sequence, ids))
            return false;
    }
    return true;
}

/* tarn__tokenizer_kind.encode. Text was normalized before, unless that is the pre-tokenizer's part. */
static bool encode_spm(const tarn_tokenizer *t, tarn__encoder *encoder, const char *text, size_t length,
                       tarn__buffer *ids)
{
    if (t->spm.in_pre_tokenizer) {
        encoder->spaced.count = 0;
        if (!tarn__spm_normalize(&t->spm, encoder, text, length, &encoder->spaced))
            return false;
        text = encoder->spaced.data;
        length = encoder->spaced.count;
    }
    if (length == 0)
        return true;
    int32_t id = t->bpe.ignore_merges ? find_piece(&t->vocab, text, length) : -1;
    if (id >= 0)
        return tarn__ids_add(ids, id);
    return t->spm.splits_words ? encode_words(t, encoder, text, length, ids)
                               : encode_sequence(t, encoder, text, length, ids);
}

/* The third function is for words of a pipeline, which this kind has not. */
const tarn__tokenizer_kind tarn__kind_spm = {"spm", encode_spm, NULL};

/* ---- setup ------------------------------------------------------------------------------------------------------- */

/* True if a space follows another character. */
static bool has_inner_space(const char *bytes, size_t length)
{
    for (size_t i = 1; i < length; i++)
        if (bytes[i] == ' ' && bytes[i - 1] != ' ')
            return true;
    return false;
}

/* Finds the longest pieces, and whether merges could reach from one word into the next. */
static void scan_pieces(tarn_tokenizer *t)
{
    tarn__spm *spm = &t->spm;
    spm->splits_words = spm->has_bytes; /* without byte fallback a run of unknowns could span words */
    for (int32_t id = 0; id < t->vocab.count; id++) {
        const tarn__vocab_piece *piece = &t->vocab.piece[id];
        if (!piece->used || piece->literal || piece->outside)
            continue;
        bool is_user = spm->types && (size_t)id < spm->count && spm->types[id] == TARN__TOKEN_USER;
        spm->max_piece = piece->length > spm->max_piece ? piece->length : spm->max_piece;
        spm->max_user_piece = is_user && piece->length > spm->max_user_piece ? piece->length : spm->max_user_piece;
        spm->splits_words = spm->splits_words && !has_inner_space(t->vocab.bytes.data + piece->begin, piece->length);
    }
}

/* A score with its id, for sorting. */
typedef struct scored {
    float score;
    int32_t id;
} scored;

/* Best score first. */
static int by_score(const void *a, const void *b)
{
    const scored *one = a, *other = b;
    return (one->score < other->score) - (one->score > other->score);
}

/* Ranks the scores, so that merging compares integers; equal scores get equal ranks. */
static bool rank_scores(tarn__spm *spm)
{
    scored *all = tarn__alloc(spm->count * sizeof(*all));
    if (!all || !(spm->rank = tarn__alloc(spm->count * sizeof(*spm->rank)))) {
        tarn__release(all, spm->count * sizeof(*all));
        return false;
    }
    for (size_t i = 0; i < spm->count; i++)
        all[i] = (scored){spm->scores[i], (int32_t)i};
    qsort(all, spm->count, sizeof(*all), by_score);
    for (size_t i = 0, rank = 0; i < spm->count; i++) {
        rank += i > 0 && all[i].score != all[i - 1].score;
        spm->rank[all[i].id] = (int32_t)rank;
    }
    tarn__release(all, spm->count * sizeof(*all));
    return true;
}

/* With byte fallback every byte must have a piece: otherwise some text could not be encoded. */
bool tarn__spm_finish(tarn_tokenizer *tokenizer, const char *function, const char *name)
{
    tarn__spm *spm = &tokenizer->spm;
    for (int i = 0; i < 256; i++)
        spm->byte_id[i] = -1;
    for (int32_t id = 0; id < tokenizer->vocab.count; id++)
        if (tokenizer->vocab.piece[id].used && tokenizer->vocab.piece[id].byte)
            spm->byte_id[(unsigned char)tokenizer->vocab.bytes.data[tokenizer->vocab.piece[id].begin]] = id;
    for (int i = 0; i < 256 && spm->has_bytes; i++)
        if (spm->byte_id[i] < 0)
            return tarn__raise(TARN_ERROR_FORMAT,
                               "%s: '%s': byte fallback needs a piece for every byte; <0x%02X> is missing", function,
                               name, i);
    scan_pieces(tokenizer);
    return !spm->scores || spm->rank || rank_scores(spm);
}

void tarn__spm_free(tarn__spm *spm)
{
    tarn__release(spm->scores, spm->count * sizeof(*spm->scores));
    tarn__release(spm->types, spm->count * sizeof(*spm->types));
    tarn__release(spm->rank, spm->count * sizeof(*spm->rank));
    *spm = (tarn__spm){0};
}
