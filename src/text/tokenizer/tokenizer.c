/* tokenizer.c: what all kinds of tokenizers share: coming and going, texts to ids, ids to texts. */
#include "text/tokenizer/tokenizer.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"

/* ---- coming and going -------------------------------------------------------------------------------------------- */

tarn_tokenizer *tarn__tokenizer_new(const tarn__tokenizer_kind *kind)
{
    tarn_tokenizer *tokenizer = tarn__alloc(sizeof(*tokenizer));
    if (tokenizer) {
        tokenizer->kind = kind;
        tokenizer->unknown = tokenizer->bpe.unknown = tokenizer->begin = tokenizer->end = -1;
        tokenizer->pieces.spaced = kind == &tarn__kind_spm;
    }
    return tokenizer;
}

void tarn_tokenizer_free(tarn_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    tarn__vocab_free(&tokenizer->pieces);
    tarn__added_free(&tokenizer->added);
    tarn__bpe_free(&tokenizer->bpe);
    tarn__spm_free(&tokenizer->spm);
    tarn__string_free(tokenizer->chat);
    tarn__buffer_free(&tokenizer->before, sizeof(int32_t));
    tarn__buffer_free(&tokenizer->after, sizeof(int32_t));
    tarn__release(tokenizer, sizeof(*tokenizer));
}

static uint64_t hash_pieces(const tarn__vocab *pieces, uint64_t hash)
{
    for (int32_t id = 0; id < pieces->count; id++) {
        size_t length;
        const char *bytes = tarn__vocab_bytes(pieces, id, &length);
        hash = tarn__hash(bytes, pieces->piece[id].used ? length : 0, hash + pieces->piece[id].used);
    }
    return hash;
}

static uint64_t hash_numbers(const tarn__buffer *numbers, size_t each, uint64_t hash)
{
    const int32_t *number = (const int32_t *)(const void *)numbers->data;
    for (size_t i = 0; i < each * numbers->count; i++) {
        unsigned char bytes[4];
        for (int k = 0; k < 4; k++)
            bytes[k] = (unsigned char)((uint32_t)number[i] >> (8 * k));
        hash = tarn__hash(bytes, 4, hash);
    }
    return hash;
}

/* What SentencePiece has beside its pieces. Scores count by their order: it alone makes ids. */
static uint64_t hash_spm(const tarn_tokenizer *t, uint64_t hash)
{
    const tarn__spm *spm = &t->spm;
    const unsigned char flags[] = {(unsigned char)spm->prefix, spm->prefix_if_missing, spm->squeezes, spm->is_late,
                                   spm->has_bytes};
    if (t->kind != &tarn__kind_spm)
        return hash;
    hash = tarn__hash(flags, sizeof(flags), hash);
    for (size_t i = 0; spm->rank && i < spm->count; i++) {
        uint32_t rank = (uint32_t)spm->rank[i];
        const unsigned char bytes[] = {(unsigned char)rank, (unsigned char)(rank >> 8), (unsigned char)(rank >> 16),
                                       (unsigned char)(rank >> 24), spm->types[i] == TARN__TOKEN_USER};
        hash = tarn__hash(bytes, sizeof(bytes), hash);
    }
    return hash;
}

static uint64_t hash_all(const tarn_tokenizer *t)
{
    const unsigned char flags[] = {t->bpe.ignore_merges, t->bpe.prefix_space, t->nfc};
    const uint64_t unknown =
        (uint64_t)(t->kind == &tarn__kind_bpe || t->kind == &tarn__kind_spm ? t->bpe.unknown : t->unknown) + 1;
    uint64_t hash = hash_pieces(&t->pieces, tarn__hash(t->kind->name, strlen(t->kind->name), unknown));
    hash = hash_spm(t, hash_numbers(&t->bpe.merges, 3, tarn__hash(flags, sizeof(flags), hash)));
    for (int i = 0; i < t->bpe.pattern_count; i++)
        hash = tarn__hash(tarn__regex_source(t->bpe.pattern[i]), strlen(tarn__regex_source(t->bpe.pattern[i])), hash);
    const tarn__added_token *added = (const tarn__added_token *)(const void *)t->added.tokens.data;
    for (size_t i = 0; i < t->added.tokens.count; i++) {
        const unsigned char how[] = {added[i].special, added[i].normalized, added[i].strip_left, added[i].strip_right};
        hash = tarn__hash(added[i].text, added[i].length, tarn__hash(how, sizeof(how), hash + (uint64_t)added[i].id));
    }
    return hash_numbers(&t->after, 1, hash_numbers(&t->before, 1, hash));
}

/* A text as it is where tokens are looked for in normalised text. Appends to `form`. False with an error. */
static bool normalise(const tarn_tokenizer *tokenizer, const tarn__encoder *coder, const char *text, size_t length,
                      tarn__buffer *form)
{
    return tokenizer->nfc ? tarn__nfc(form, text, length)
                          : tarn__spm_normalize(&tokenizer->spm, coder, text, length, form);
}

static bool normalises(const tarn_tokenizer *tokenizer)
{
    return tokenizer->nfc || (tokenizer->kind == &tarn__kind_spm && !tokenizer->spm.is_late);
}

/* A token that is looked for in normalised text is normalised text itself. */
static bool check_normal(const tarn_tokenizer *tokenizer, const char *function, const char *name)
{
    const tarn__added_token *added = (const tarn__added_token *)(const void *)tokenizer->added.tokens.data;
    const tarn__encoder coder = {0};
    tarn__buffer form = {0};
    for (size_t i = 0; normalises(tokenizer) && i < tokenizer->added.tokens.count && !tarn_failed(); i++) {
        form.count = 0;
        if (added[i].normalized && normalise(tokenizer, &coder, added[i].text, added[i].length, &form) &&
            (form.count != added[i].length || memcmp(form.data, added[i].text, form.count) != 0))
            tarn__raise(TARN_ERROR_UNSUPPORTED,
                        "%s: '%s': the added token '%.100s' is looked for in normalised text (\"normalized\"), where "
                        "it would be another: %s",
                        function, name, added[i].text,
                        tokenizer->nfc ? "it is not in Unicode's form C" : "spaces are changed there");
    }
    tarn__buffer_free(&form, 1);
    return !tarn_failed();
}

/* Ids of single bytes, for BPE. */
static bool find_bytes(tarn_tokenizer *tokenizer, const char *function, const char *name)
{
    int missing = 0;
    for (int i = 0; i < 256; i++) {
        int32_t id = tarn__vocab_find(&tokenizer->pieces, &(char){(char)i}, 1);
        bool is_byte = id >= 0 && !tokenizer->pieces.piece[id].literal;
        tokenizer->bpe.byte_id[i] = is_byte ? id : tokenizer->bpe.unknown;
        missing += !is_byte;
    }
    return missing < 256 ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "%s: '%s': the vocabulary has a token for no single byte; is it a byte-level one?", function,
                       name);
}

bool tarn__tokenizer_finish(tarn_tokenizer *tokenizer, const char *function, const char *name)
{
    if (tarn_failed())
        return false;
    if (!tarn__added_sort(&tokenizer->added))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': an added token is there twice", function, name);
    if (!check_normal(tokenizer, function, name) ||
        (tokenizer->kind == &tarn__kind_bpe && !find_bytes(tokenizer, function, name)) ||
        (tokenizer->kind == &tarn__kind_spm && !tarn__spm_finish(tokenizer, function, name)))
        return false;
    tokenizer->hash = hash_all(tokenizer);
    return true;
}

bool tarn__tokenizer_set_add_bos_eos(tarn_tokenizer *tokenizer, bool begins, bool ends)
{
    tokenizer->before.count = tokenizer->after.count = 0;
    bool good = (!begins || tokenizer->begin < 0 || tarn__ids_add(&tokenizer->before, tokenizer->begin)) &&
                (!ends || tokenizer->end < 0 || tarn__ids_add(&tokenizer->after, tokenizer->end));
    tokenizer->hash = hash_all(tokenizer);
    return good;
}

/* ---- what it is -------------------------------------------------------------------------------------------------- */

/* Raises when there is no tokenizer, or an error is pending. */
static bool is_there(const tarn_tokenizer *tokenizer, const char *function)
{
    if (tarn_failed())
        return false;
    return tokenizer || tarn__raise(TARN_ERROR_ARGUMENT, "%s: a tokenizer is required, not NULL", function);
}

static bool has_id(const tarn_tokenizer *tokenizer, const char *function, int64_t id)
{
    if (id >= 0 && id < tokenizer->pieces.count)
        return true;
    return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the id %lld is outside the vocabulary, 0 to %d", function,
                       (long long)id, (int)tokenizer->pieces.count - 1);
}

const char *tarn_tokenizer_kind(const tarn_tokenizer *tokenizer)
{
    return is_there(tokenizer, "tokenizer_kind") ? tokenizer->kind->name : NULL;
}

int64_t tarn_tokenizer_count(const tarn_tokenizer *tokenizer)
{
    return is_there(tokenizer, "tokenizer_count") ? tokenizer->pieces.count : -1;
}

uint64_t tarn_tokenizer_hash(const tarn_tokenizer *tokenizer)
{
    return is_there(tokenizer, "tokenizer_hash") ? tokenizer->hash : 0;
}

const char *tarn_tokenizer_piece(const tarn_tokenizer *tokenizer, int32_t id, size_t *length)
{
    size_t bytes;
    if (!is_there(tokenizer, "tokenizer_piece") || !has_id(tokenizer, "tokenizer_piece", id) ||
        !tarn__vocab_has(&tokenizer->pieces, id))
        return NULL;
    return tarn__vocab_bytes(&tokenizer->pieces, id, length ? length : &bytes);
}

static const tarn__added_token *added_of(const tarn_tokenizer *tokenizer, size_t *count)
{
    *count = tokenizer->added.tokens.count;
    return (const tarn__added_token *)(const void *)tokenizer->added.tokens.data;
}

static int32_t find(const tarn_tokenizer *tokenizer, const char *piece, size_t length)
{
    size_t count;
    const tarn__added_token *added = added_of(tokenizer, &count);
    for (size_t i = 0; i < count; i++)
        if (added[i].length == length && memcmp(added[i].text, piece, length) == 0)
            return added[i].id;
    return tarn__vocab_find(&tokenizer->pieces, piece, length);
}

int32_t tarn_tokenizer_find(const tarn_tokenizer *tokenizer, const char *piece, size_t length)
{
    if (!is_there(tokenizer, "tokenizer_find"))
        return -1;
    if (!piece) {
        tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_find: a piece is required, not NULL");
        return -1;
    }
    return find(tokenizer, piece, length);
}

bool tarn_tokenizer_is_special(const tarn_tokenizer *tokenizer, int32_t id)
{
    size_t count;
    if (!is_there(tokenizer, "tokenizer_is_special") || !has_id(tokenizer, "tokenizer_is_special", id))
        return false;
    const tarn__added_token *added = added_of(tokenizer, &count);
    for (size_t i = 0; i < count; i++)
        if (added[i].id == id && added[i].special)
            return true;
    return false;
}

/* The first of some names that is a token. */
static int32_t find_any(const tarn_tokenizer *tokenizer, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int32_t id = find(tokenizer, names[i], strlen(names[i]));
        if (id >= 0)
            return id;
    }
    return -1;
}

int32_t tarn_tokenizer_end_of_text(const tarn_tokenizer *tokenizer)
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    return is_there(tokenizer, "tokenizer_end_of_text") ? find_any(tokenizer, names, sizeof(names) / sizeof(names[0]))
                                                        : -1;
}

int32_t tarn_tokenizer_bos(const tarn_tokenizer *tokenizer)
{
    static const char *const names[] = {"<s>", "<|begin_of_text|>", "<bos>"};
    if (!is_there(tokenizer, "tokenizer_bos"))
        return -1;
    if (tokenizer->begin < 0 && tokenizer->before.count == 1) /* the file does not name it, but puts it there */
        return *(const int32_t *)(const void *)tokenizer->before.data;
    return tokenizer->begin >= 0 ? tokenizer->begin : find_any(tokenizer, names, sizeof(names) / sizeof(names[0]));
}

int32_t tarn_tokenizer_eos(const tarn_tokenizer *tokenizer)
{
    if (!is_there(tokenizer, "tokenizer_eos"))
        return -1;
    if (tokenizer->end < 0 && tokenizer->after.count == 1)
        return *(const int32_t *)(const void *)tokenizer->after.data;
    return tokenizer->end >= 0 ? tokenizer->end : tarn_tokenizer_end_of_text(tokenizer);
}

/* ---- text to ids ------------------------------------------------------------------------------------------------- */

typedef struct job {
    const tarn_tokenizer *tokenizer;
    tarn__encoder *coder;
    bool with_special;
    tarn__buffer *ids;
} job;

/* Where the spaces before `at` begin, not before `from`; and where those after it end. */
static size_t spaces_before(const char *text, size_t from, size_t at)
{
    while (at > from) {
        size_t begin = at - 1;
        uint32_t code;
        while (begin > from && ((unsigned char)text[begin] & 0xC0) == 0x80)
            begin--;
        if (tarn__utf8_decode(text + begin, at - begin, &code) != at - begin || !tarn__is_space(code))
            break;
        at = begin;
    }
    return at;
}

static size_t spaces_after(const char *text, size_t length, size_t at)
{
    uint32_t code;
    for (size_t bytes; (bytes = tarn__utf8_decode(text + at, length - at, &code)) != 0 && tarn__is_space(code);)
        at += bytes;
    return at;
}

/* Tokens that stand in the text go in as they are; what lies between them goes to `between`. */
static bool cut(const job *j, bool normalized, const char *text, size_t length,
                bool (*between)(const job *, const char *, size_t))
{
    size_t done = 0, from = 0, at;
    const tarn__added_token *token;
    while ((token = tarn__added_next(&j->tokenizer->added, normalized, j->with_special, text, length, from, &at)) !=
           NULL) {
        size_t begin = token->strip_left ? spaces_before(text, done, at) : at;
        from = at + token->length;
        size_t end = token->strip_right ? spaces_after(text, length, from) : from;
        if ((done < begin && !between(j, text + done, begin - done)) || !tarn__ids_add(j->ids, token->id))
            return false;
        j->coder->continues = false; /* what follows a token begins anew */
        j->coder->is_inside = true;
        done = end;
    }
    return done >= length || between(j, text + done, length - done);
}

static bool encode_plain(const job *j, const char *text, size_t length)
{
    return j->tokenizer->kind->encode(j->tokenizer, j->coder, text, length, j->ids);
}

static bool encode_normal(const job *j, const char *text, size_t length)
{
    if (normalises(j->tokenizer)) {
        j->coder->normal.count = 0;
        if (!normalise(j->tokenizer, j->coder, text, length, &j->coder->normal))
            return false;
        text = j->coder->normal.data;
        length = j->coder->normal.count;
    }
    return cut(j, true, text, length, encode_plain);
}

bool tarn__tokenizer_append_section(const tarn_tokenizer *tokenizer, tarn__encoder *coder, const char *text,
                                    size_t length, bool with_special, bool is_inside, tarn__buffer *ids)
{
    const job j = {tokenizer, coder, with_special, ids};
    coder->is_inside = is_inside;
    return cut(&j, false, text, length, encode_normal);
}

bool tarn__tokenizer_append(const tarn_tokenizer *tokenizer, tarn__encoder *coder, const char *text, size_t length,
                            const tarn_encode_options *options, tarn__buffer *ids)
{
    bool around = options->add_special;
    return (!around || tarn__buffer_add(ids, tokenizer->before.data, tokenizer->before.count, sizeof(int32_t))) &&
           tarn__tokenizer_append_section(tokenizer, coder, text, length, !options->special_as_text, coder->continues,
                                          ids) &&
           (!around || tarn__buffer_add(ids, tokenizer->after.data, tokenizer->after.count, sizeof(int32_t)));
}

int32_t *tarn_tokenizer_encode_sized(const tarn_tokenizer *tokenizer, const char *text, size_t length,
                                     const tarn_encode_options *options, size_t options_size, int64_t *count)
{
    tarn_encode_options chosen = {0};
    if (count)
        *count = 0;
    if (!is_there(tokenizer, "tokenizer_encode"))
        return NULL;
    if ((!text && length) || !count) {
        tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_encode: %s is required, not NULL",
                    count ? "a text" : "a place for the count");
        return NULL;
    }
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    tarn__encoder coder = {0};
    tarn__buffer ids = {0};
    int32_t *result = NULL;
    if (tarn__tokenizer_append(tokenizer, &coder, text ? text : "", length, &chosen, &ids) &&
        (result = tarn__result_new(ids.count * sizeof(int32_t))) != NULL) {
        if (ids.count)
            memcpy(result, ids.data, ids.count * sizeof(int32_t));
        *count = (int64_t)ids.count;
    }
    tarn__buffer_free(&ids, sizeof(int32_t));
    tarn__encoder_free(&coder);
    return result;
}

/* ---- ids to text ------------------------------------------------------------------------------------------------- */

/* The bytes that many tokens have together; false with an error. */
static bool measure(const tarn_tokenizer *tokenizer, const int32_t *ids, int64_t count, size_t *bytes)
{
    *bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!has_id(tokenizer, "tokenizer_decode", ids[i]))
            return false;
        if (!tarn__vocab_has(&tokenizer->pieces, ids[i]))
            return tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_decode: the vocabulary has no token for the id %d",
                               (int)ids[i]);
        *bytes += tokenizer->pieces.piece[ids[i]].length;
    }
    return true;
}

char *tarn_tokenizer_decode(const tarn_tokenizer *tokenizer, const int32_t *ids, int64_t count, size_t *length)
{
    size_t bytes, at = 0, piece_length;
    if (length)
        *length = 0;
    if (!is_there(tokenizer, "tokenizer_decode"))
        return NULL;
    if (count < 0 || (!ids && count) || !length) {
        tarn__raise(TARN_ERROR_ARGUMENT,
                    "tokenizer_decode: ids, a count that is not negative and a place for the length are required");
        return NULL;
    }
    char *text = measure(tokenizer, ids, count, &bytes) ? tarn__result_new(bytes + 1) : NULL;
    if (!text)
        return NULL;
    for (int64_t i = 0; i < count; i++, at += piece_length) {
        const char *piece = tarn__vocab_bytes(&tokenizer->pieces, ids[i], &piece_length);
        memcpy(text + at, piece, piece_length);
    }
    bool strips = tokenizer->spm.strips && bytes > 0 && text[0] == ' '; /* the one that encoding has put there */
    if (strips)
        memmove(text, text + 1, bytes); /* with the 0 behind it */
    *length = bytes - strips;
    return text;
}
