/* spm.c: SentencePiece's BPE, as Llama 2 and Mistral have it. A text gets a space before it and is one row of
 * characters; the two neighbours that make the piece with the best score (or the merge with the lowest rank, where a
 * file has merges) become one, the leftmost of equals first, until none do. A character that is no piece becomes the
 * pieces of its bytes.
 *
 * Inside, a space is a space: files write it as U+2581, and a text that has that character means a space with it. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

/* ---- spaces ------------------------------------------------------------------------------------------------------ */

/* Appends a text with a space for each mark. */
static bool add_unmarked(tarn__buffer *out, const char *text, size_t length)
{
    for (const char *end = text + length, *mark; text < end; text = mark + TARN__METASPACE_BYTES) {
        if (!(mark = tarn__find_metaspace(text, (size_t)(end - text))))
            return tarn__buffer_add(out, text, (size_t)(end - text), 1);
        if (!tarn__buffer_add(out, text, (size_t)(mark - text), 1) || !tarn__buffer_add(out, " ", 1, 1))
            return false;
    }
    return true;
}

static bool ends_in_mark(const char *text, size_t length)
{
    return length >= TARN__METASPACE_BYTES &&
           memcmp(text + length - TARN__METASPACE_BYTES, TARN__METASPACE, TARN__METASPACE_BYTES) == 0;
}

/* The text without spaces at its ends: SentencePiece takes marks for spaces at the end of a text, but not at its
 * beginning. */
static void trim(const char **text, size_t *length)
{
    for (; *length > 0 && (*text)[0] == ' '; ++*text)
        --*length;
    for (bool marked; *length > 0 && ((marked = ends_in_mark(*text, *length)) || (*text)[*length - 1] == ' ');)
        *length -= marked ? TARN__METASPACE_BYTES : 1;
}

/* Appends a text with one space for several. */
static bool add_squeezed(tarn__buffer *out, const char *text, size_t length)
{
    for (size_t at = 0, end; at < length; at = end) {
        const char *space = memchr(text + at, ' ', length - at);
        end = space ? (size_t)(space - text) + 1 : length;
        if (!add_unmarked(out, text + at, end - at))
            return false;
        while (end < length && text[end] == ' ')
            end++;
    }
    return true;
}

bool tarn__spm_normalize(const tarn__spm *spm, const tarn__encoder *coder, const char *text, size_t length,
                         tarn__buffer *out)
{
    if (spm->squeezes)
        trim(&text, &length);
    if (length == 0)
        return true;
    bool has_space = text[0] == ' ' ||
                     (length >= TARN__METASPACE_BYTES && memcmp(text, TARN__METASPACE, TARN__METASPACE_BYTES) == 0);
    bool is_first = spm->prefix == TARN__PREPEND_ALWAYS ? !coder->continues
                                                        : spm->prefix == TARN__PREPEND_FIRST && !coder->is_inside;
    if (is_first && !(has_space && spm->prefix_if_missing) && !tarn__buffer_add(out, " ", 1, 1))
        return false;
    return spm->squeezes ? add_squeezed(out, text, length) : add_unmarked(out, text, length);
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* A row of characters that is being merged. */
typedef struct row {
    const tarn_tokenizer *tokenizer;
    const char *text;
} row;

/* The piece that merges can make from a text, -1: none. Bytes, control tokens and added ones are none. */
static int32_t find_piece(const tarn__vocab *pieces, const char *text, size_t length)
{
    int32_t id = tarn__vocab_find(pieces, text, length);
    return id >= 0 && !pieces->piece[id].literal && !pieces->piece[id].outside ? id : -1;
}

static bool find_by_score(const void *ctx, const tarn__symbol *left, const tarn__symbol *right, int32_t *rank,
                          int32_t *made)
{
    const row *r = ctx;
    const tarn__spm *spm = &r->tokenizer->spm;
    size_t length = (size_t)left->length + (size_t)right->length;
    if (left->is_frozen || right->is_frozen || length > spm->longest)
        return false;
    *made = find_piece(&r->tokenizer->pieces, r->text + left->begin, length);
    *rank = *made >= 0 ? spm->rank[*made] : 0;
    return *made >= 0;
}

static bool find_by_rank(const void *ctx, const tarn__symbol *left, const tarn__symbol *right, int32_t *rank,
                         int32_t *made)
{
    const row *r = ctx;
    const tarn__merge_slot *merge =
        left->id < 0 || right->id < 0 ? NULL : tarn__bpe_find(&r->tokenizer->bpe, left->id, right->id);
    *rank = merge ? merge->rank : 0;
    *made = merge ? merge->made : -1;
    return merge != NULL;
}

/* The longest piece of a user at the beginning of a text: its bytes, 0 for none. */
static size_t user_piece(const tarn_tokenizer *t, const char *text, size_t length)
{
    for (size_t size = length < t->spm.longest_user ? length : t->spm.longest_user; size > 0; size--) {
        int32_t id = find_piece(&t->pieces, text, size);
        if (id >= 0 && t->spm.types[id] == TARN__TOKEN_USER)
            return size;
    }
    return 0;
}

/* The characters of a text as symbols; a byte that is no UTF-8 is one. Returns how many. */
static int32_t cut(const row *r, size_t length, tarn__symbol *symbols)
{
    int32_t count = 0;
    for (size_t at = 0; at < length; count++) {
        uint32_t code;
        size_t user = r->tokenizer->spm.longest_user ? user_piece(r->tokenizer, r->text + at, length - at) : 0;
        size_t size = user ? user : tarn__utf8_decode(r->text + at, length - at, &code);
        int32_t id = size ? find_piece(&r->tokenizer->pieces, r->text + at, size) : -1;
        size = size ? size : 1;
        symbols[count] =
            (tarn__symbol){id, count - 1, at + size < length ? count + 1 : -1, (int32_t)at, (int32_t)size, user > 0};
        at += size;
    }
    return count;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Appends what stands for a text without a token: its bytes; or the unknown token, one for several. */
static bool add_unknown(const row *r, const tarn__symbol *symbol, bool is_again, tarn__buffer *ids)
{
    const tarn_tokenizer *t = r->tokenizer;
    const unsigned char *byte = (const unsigned char *)r->text + symbol->begin;
    if (!t->spm.has_bytes && t->bpe.unknown >= 0)
        return is_again || tarn__ids_add(ids, t->bpe.unknown);
    if (!t->spm.has_bytes)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "tokenizer_encode: the vocabulary has no token for '%.*s', nor one for what it lacks",
                           (int)symbol->length, (const char *)byte);
    for (int32_t i = 0; i < symbol->length; i++)
        if (!tarn__ids_add(ids, t->spm.byte_id[byte[i]]))
            return false;
    return true;
}

static bool encode_row(const tarn_tokenizer *t, tarn__encoder *coder, const char *text, size_t length,
                       tarn__buffer *ids)
{
    const row r = {t, text};
    if (length > INT32_MAX)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "tokenizer_encode: a text of %zu bytes is longer than %d", length,
                           INT32_MAX);
    coder->symbols.count = 0;
    if (!tarn__buffer_reserve(&coder->symbols, length, sizeof(tarn__symbol)))
        return false;
    tarn__symbol *symbols = (tarn__symbol *)(void *)coder->symbols.data;
    int32_t count = cut(&r, length, symbols);
    if (!tarn__merge_symbols(t->spm.scores ? find_by_score : find_by_rank, &r, symbols, count, &coder->heap))
        return false;
    bool is_again = false;
    for (int32_t i = 0; i >= 0; i = symbols[i].after) {
        bool good =
            symbols[i].id >= 0 ? tarn__ids_add(ids, symbols[i].id) : add_unknown(&r, &symbols[i], is_again, ids);
        is_again = symbols[i].id < 0;
        if (!good)
            return false;
    }
    return true;
}

/* Words: spaces, and what follows up to the next ones. */
static bool encode_words(const tarn_tokenizer *t, tarn__encoder *coder, const char *text, size_t length,
                         tarn__buffer *ids)
{
    for (size_t at = 0, end; at < length; at = end) {
        for (end = at; end < length && text[end] == ' ';)
            end++;
        const char *space = end < length ? memchr(text + end, ' ', length - end) : NULL;
        end = space ? (size_t)(space - text) : length;
        if (!tarn__word_cache_encode(t, coder, text + at, end - at, encode_row, ids))
            return false;
    }
    return true;
}

static bool encode_spm(const tarn_tokenizer *t, tarn__encoder *coder, const char *text, size_t length,
                       tarn__buffer *ids)
{
    if (t->spm.is_late) {
        coder->spaced.count = 0;
        if (!tarn__spm_normalize(&t->spm, coder, text, length, &coder->spaced))
            return false;
        text = coder->spaced.data;
        length = coder->spaced.count;
    }
    if (length == 0)
        return true;
    int32_t whole = t->bpe.ignore_merges ? find_piece(&t->pieces, text, length) : -1;
    if (whole >= 0)
        return tarn__ids_add(ids, whole);
    return t->spm.has_words ? encode_words(t, coder, text, length, ids) : encode_row(t, coder, text, length, ids);
}

const tarn__tokenizer_kind tarn__kind_spm = {"spm", encode_spm};

/* ---- coming and going -------------------------------------------------------------------------------------------- */

static bool has_inner_space(const char *bytes, size_t length)
{
    for (size_t i = 1; i < length; i++)
        if (bytes[i] == ' ' && bytes[i - 1] != ' ')
            return true;
    return false;
}

/* Lengths of pieces, and whether merges could reach from one word into the next. */
static void look_at_pieces(tarn_tokenizer *t)
{
    tarn__spm *spm = &t->spm;
    spm->has_words = spm->has_bytes; /* else several words could share one unknown token */
    for (int32_t id = 0; id < t->pieces.count; id++) {
        const tarn__vocab_piece *piece = &t->pieces.piece[id];
        if (!piece->used || piece->literal || piece->outside)
            continue;
        bool is_user = spm->types && (size_t)id < spm->count && spm->types[id] == TARN__TOKEN_USER;
        spm->longest = piece->length > spm->longest ? piece->length : spm->longest;
        spm->longest_user = is_user && piece->length > spm->longest_user ? piece->length : spm->longest_user;
        spm->has_words = spm->has_words && !has_inner_space(t->pieces.bytes.data + piece->begin, piece->length);
    }
}

typedef struct scored {
    float score;
    int32_t id;
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *one = a, *other = b;
    return (one->score < other->score) - (one->score > other->score);
}

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

bool tarn__spm_finish(tarn_tokenizer *tokenizer, const char *function, const char *name)
{
    tarn__spm *spm = &tokenizer->spm;
    for (int i = 0; i < 256; i++)
        spm->byte_id[i] = -1;
    for (int32_t id = 0; id < tokenizer->pieces.count; id++)
        if (tokenizer->pieces.piece[id].used && tokenizer->pieces.piece[id].byte)
            spm->byte_id[(unsigned char)tokenizer->pieces.bytes.data[tokenizer->pieces.piece[id].begin]] = id;
    for (int i = 0; i < 256 && spm->has_bytes; i++)
        if (spm->byte_id[i] < 0)
            return tarn__raise(TARN_ERROR_FORMAT,
                               "%s: '%s': what has no token is to become bytes, but there is no piece <0x%02X>",
                               function, name, i);
    look_at_pieces(tokenizer);
    return !spm->scores || spm->rank || rank_scores(spm);
}

void tarn__spm_free(tarn__spm *spm)
{
    tarn__release(spm->scores, spm->count * sizeof(*spm->scores));
    tarn__release(spm->types, spm->count * sizeof(*spm->types));
    tarn__release(spm->rank, spm->count * sizeof(*spm->rank));
    *spm = (tarn__spm){0};
}
