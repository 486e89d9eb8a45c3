/* spm_build.c: builds a SentencePiece tokenizer from pieces, scores and types, the contents of tokenizer.model and of
 * GGUF. The input is not trusted: every piece is checked. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

/* Raises an error about a piece. Returns false. */
static bool raise_piece(const tarn__spm_spec *spec, int64_t id, const char *problem)
{
    int shown = spec->lengths[id] < 60 ? (int)spec->lengths[id] : 60;
    return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': the piece %lld, '%.*s', %s", spec->function, spec->name,
                       (long long)id, shown, spec->pieces[id], problem);
}

/* Checks length, encoding, score and type of a piece. */
static bool check_piece(const tarn__spm_spec *spec, int64_t id)
{
    size_t length = spec->lengths[id];
    if (length == 0 || length > TARN__MAX_PIECE_BYTES)
        return raise_piece(spec, id, "is empty or longer than a piece may be");
    if (tarn__utf8_prefix(spec->pieces[id], length) != length || memchr(spec->pieces[id], 0, length))
        return raise_piece(spec, id, "is not valid UTF-8, or contains a NUL");
    if (!isfinite(spec->scores[id]))
        return raise_piece(spec, id, "has a score that is not finite");
    if (spec->types[id] < TARN__TOKEN_NORMAL || spec->types[id] > TARN__TOKEN_BYTE)
        return raise_piece(spec, id, "has an unknown type");
    return true;
}

/* Adds a piece that merges may form. A duplicate is an error: find() could return only one of them. */
static bool add_normal(tarn_tokenizer *t, const tarn__spm_spec *spec, int32_t id)
{
    int32_t known = tarn__vocab_find_escaped(&t->vocab, spec->pieces[id], spec->lengths[id]);
    if (known >= 0 && !t->vocab.piece[known].literal)
        return raise_piece(spec, id, "is a duplicate");
    return !tarn_failed() && tarn__vocab_add_spm(&t->vocab, id, spec->pieces[id], spec->lengths[id]);
}

/* Adds a byte piece; its text must be <0xHH>. */
static bool add_byte(tarn_tokenizer *t, const tarn__spm_spec *spec, int32_t id)
{
    int byte = tarn__byte_of_piece(spec->pieces[id], spec->lengths[id]);
    if (byte < 0)
        return raise_piece(spec, id, "has the type byte, but is not written like <0x0A>");
    return tarn__vocab_add_byte(&t->vocab, id, (unsigned char)byte);
}

/* Adds a piece as an added token, found before anything is merged. Its text is literal. */
static bool add_token(tarn_tokenizer *t, const tarn__spm_spec *spec, int32_t id, bool is_special)
{
    const tarn__added_token token = {
        .text = (char *)(uintptr_t)spec->pieces[id], .length = spec->lengths[id], .id = id, .special = is_special};
    return tarn__vocab_add(&t->vocab, id, token.text, token.length, true) &&
           tarn__added_add(t, spec->function, spec->name, &token);
}

/* Adds a piece according to its type. Unused pieces keep their id, but nothing encodes to them. */
static bool add_piece(tarn_tokenizer *t, const tarn__spm_spec *spec, int32_t id)
{
    if (!check_piece(spec, id))
        return false;
    switch ((tarn__token_type)spec->types[id]) {
    case TARN__TOKEN_BYTE: return add_byte(t, spec, id);
    case TARN__TOKEN_UNKNOWN:
    case TARN__TOKEN_CONTROL: return add_token(t, spec, id, true);
    case TARN__TOKEN_UNUSED: return tarn__vocab_add(&t->vocab, id, spec->pieces[id], spec->lengths[id], true);
    case TARN__TOKEN_USER: return spec->user_is_added ? add_token(t, spec, id, false) : add_normal(t, spec, id);
    case TARN__TOKEN_NORMAL: break;
    }
    return add_normal(t, spec, id);
}

/* Copies scores and types; tarn__spm_free() frees them. */
static bool copy_scores(tarn__spm *spm, const tarn__spm_spec *spec)
{
    spm->count = (size_t)spec->count;
    spm->scores = tarn__alloc(spm->count * sizeof(*spm->scores));
    spm->types = spm->scores ? tarn__alloc(spm->count * sizeof(*spm->types)) : NULL;
    if (!spm->types)
        return false;
    for (size_t i = 0; i < spm->count; i++) {
        spm->scores[i] = spec->scores[i];
        spm->types[i] = (uint8_t)spec->types[i];
    }
    return true;
}

/* Checks an id named by the file: in the vocabulary, or -1. */
static bool check_id(const tarn__spm_spec *spec, int64_t id, const char *what)
{
    return (id >= -1 && id < spec->count) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': the %s token has the id %lld in a vocabulary of %lld",
                       spec->function, spec->name, what, (long long)id, (long long)spec->count);
}

/* Fills an empty tokenizer. */
static bool fill(tarn_tokenizer *t, const tarn__spm_spec *spec)
{
    if (!check_id(spec, spec->bos, "BOS") || !check_id(spec, spec->eos, "EOS") ||
        !check_id(spec, spec->unknown, "unknown"))
        return false;
    t->spm = spec->settings;
    t->spm.has_bytes = spec->has_bytes;
    t->bos = (int32_t)spec->bos;
    t->eos = (int32_t)spec->eos;
    t->bpe.unknown = (int32_t)spec->unknown;
    for (int64_t id = 0; id < spec->count; id++)
        if (!add_piece(t, spec, (int32_t)id))
            return false;
    return copy_scores(&t->spm, spec) && tarn__tokenizer_finish(t, spec->function, spec->name);
}

/* The result is freed on any failure; the spec stays the caller's. */
tarn_tokenizer *tarn__spm_build(const tarn__spm_spec *spec)
{
    if (spec->count < 1 || spec->count > INT32_MAX) {
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': a vocabulary of %lld pieces", spec->function, spec->name,
                    (long long)spec->count);
        return NULL;
    }
    tarn_tokenizer *t = tarn__tokenizer_new(&tarn__kind_spm);
    if (t && fill(t, spec))
        return t;
    tarn_tokenizer_free(t);
    return NULL;
}
