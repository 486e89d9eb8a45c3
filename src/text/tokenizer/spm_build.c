/* spm_build.c: a tokenizer of SentencePiece from its pieces, their scores and their types: what tokenizer.model and
 * GGUF hold. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

static bool wrong(const tarn__spm_spec *parts, int64_t id, const char *problem)
{
    int shown = parts->lengths[id] < 60 ? (int)parts->lengths[id] : 60;
    return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': the piece %lld, '%.*s', %s", parts->function, parts->name,
                       (long long)id, shown, parts->pieces[id], problem);
}

static bool check_piece(const tarn__spm_spec *parts, int64_t id)
{
    size_t length = parts->lengths[id];
    if (length == 0 || length > TARN__MAX_PIECE_BYTES)
        return wrong(parts, id, "is empty or longer than a piece may be");
    if (tarn__utf8_prefix(parts->pieces[id], length) != length || memchr(parts->pieces[id], 0, length))
        return wrong(parts, id, "is no valid UTF-8, or has a NUL in it");
    if (!isfinite(parts->scores[id]))
        return wrong(parts, id, "has a score that is no number");
    if (parts->types[id] < TARN__TOKEN_NORMAL || parts->types[id] > TARN__TOKEN_BYTE)
        return wrong(parts, id, "is of a type that SentencePiece does not have");
    return true;
}

/* A piece that merges can make. Two with the same text cannot be told apart. */
static bool add_normal(tarn_tokenizer *t, const tarn__spm_spec *parts, int32_t id)
{
    int32_t known = tarn__vocab_find_escaped(&t->pieces, parts->pieces[id], parts->lengths[id]);
    if (known >= 0 && !t->pieces.piece[known].literal)
        return wrong(parts, id, "is there twice");
    return !tarn_failed() && tarn__vocab_add_spm(&t->pieces, id, parts->pieces[id], parts->lengths[id]);
}

static bool add_byte(tarn_tokenizer *t, const tarn__spm_spec *parts, int32_t id)
{
    int byte = tarn__byte_of_piece(parts->pieces[id], parts->lengths[id]);
    if (byte < 0)
        return wrong(parts, id, "is a byte by its type, but not written as <0x0A> is");
    return tarn__vocab_add_byte(&t->pieces, id, (unsigned char)byte);
}

/* A token that is found in texts before anything else. */
static bool add_found(tarn_tokenizer *t, const tarn__spm_spec *parts, int32_t id, bool is_special)
{
    const tarn__added_token token = {
        .text = (char *)(uintptr_t)parts->pieces[id], .length = parts->lengths[id], .id = id, .special = is_special};
    return tarn__vocab_add(&t->pieces, id, token.text, token.length, true) &&
           tarn__added_add(t, parts->function, parts->name, &token);
}

static bool add_piece(tarn_tokenizer *t, const tarn__spm_spec *parts, int32_t id)
{
    if (!check_piece(parts, id))
        return false;
    switch ((tarn__token_type)parts->types[id]) {
    case TARN__TOKEN_BYTE: return add_byte(t, parts, id);
    case TARN__TOKEN_UNKNOWN:
    case TARN__TOKEN_CONTROL: return add_found(t, parts, id, true);
    case TARN__TOKEN_UNUSED: return tarn__vocab_add(&t->pieces, id, parts->pieces[id], parts->lengths[id], true);
    case TARN__TOKEN_USER: return parts->user_is_added ? add_found(t, parts, id, false) : add_normal(t, parts, id);
    case TARN__TOKEN_NORMAL: break;
    }
    return add_normal(t, parts, id);
}

static bool copy_scores(tarn__spm *spm, const tarn__spm_spec *parts)
{
    spm->count = (size_t)parts->count;
    spm->scores = tarn__alloc(spm->count * sizeof(*spm->scores));
    spm->types = spm->scores ? tarn__alloc(spm->count * sizeof(*spm->types)) : NULL;
    if (!spm->types)
        return false;
    for (size_t i = 0; i < spm->count; i++) {
        spm->scores[i] = parts->scores[i];
        spm->types[i] = (uint8_t)parts->types[i];
    }
    return true;
}

/* An id that the file names, as a number of the vocabulary or -1. */
static bool check_id(const tarn__spm_spec *parts, int64_t id, const char *what)
{
    return (id >= -1 && id < parts->count) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': the token that %s has the id %lld in a vocabulary of %lld",
                       parts->function, parts->name, what, (long long)id, (long long)parts->count);
}

static bool fill(tarn_tokenizer *t, const tarn__spm_spec *parts)
{
    if (!check_id(parts, parts->begin, "begins a text") || !check_id(parts, parts->end, "ends a text") ||
        !check_id(parts, parts->unknown, "stands for the unknown"))
        return false;
    t->spm = parts->settings;
    t->spm.has_bytes = parts->has_bytes;
    t->begin = (int32_t)parts->begin;
    t->end = (int32_t)parts->end;
    t->bpe.unknown = (int32_t)parts->unknown;
    for (int64_t id = 0; id < parts->count; id++)
        if (!add_piece(t, parts, (int32_t)id))
            return false;
    return copy_scores(&t->spm, parts) && tarn__tokenizer_finish(t, parts->function, parts->name);
}

tarn_tokenizer *tarn__spm_build(const tarn__spm_spec *parts)
{
    if (parts->count < 1 || parts->count > INT32_MAX) {
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': a vocabulary of %lld pieces", parts->function, parts->name,
                    (long long)parts->count);
        return NULL;
    }
    tarn_tokenizer *t = tarn__tokenizer_new(&tarn__kind_spm);
    if (t && fill(t, parts))
        return t;
    tarn_tokenizer_free(t);
    return NULL;
}
