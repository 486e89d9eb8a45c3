/* unigram_build.c: builds a Unigram tokenizer that encodes as SentencePiece from pieces, scores and types, the contents
 * of tokenizer.model and of GGUF. The input is not trusted: every piece is checked. */
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

/* Adds a piece as the file writes it; control and unknown pieces are added tokens too. */
static bool add_piece(tarn_tokenizer *t, const tarn__spm_spec *spec, int32_t id)
{
    const char *text = spec->pieces[id];
    size_t length = spec->lengths[id];
    int32_t type = spec->types[id];
    if (length == 0 || length > TARN__MAX_PIECE_BYTES)
        return raise_piece(spec, id, "is empty or longer than a piece may be");
    if (tarn__utf8_prefix(text, length) != length || memchr(text, 0, length))
        return raise_piece(spec, id, "is not valid UTF-8, or contains a NUL");
    if (!isfinite(spec->scores[id]))
        return raise_piece(spec, id, "has a score that is not finite");
    if (type < TARN__TOKEN_NORMAL || type > TARN__TOKEN_BYTE)
        return raise_piece(spec, id, "has an unknown type");
    if (type == TARN__TOKEN_BYTE && tarn__byte_of_piece(text, length) < 0)
        return raise_piece(spec, id, "has the type byte, but is not written like <0x0A>");
    if (tarn__vocab_find(&t->vocab, text, length) >= 0)
        return raise_piece(spec, id, "is a duplicate");
    t->unigram.scores[id] = (double)spec->scores[id];
    t->unigram.types[id] = (uint8_t)type;
    /* `special`: control pieces are matched in text only where the caller allows special tokens. */
    const tarn__added_token token = {.text = (char *)(uintptr_t)text, .length = length, .id = id, .special = true};
    bool is_added = type == TARN__TOKEN_CONTROL || type == TARN__TOKEN_UNKNOWN;
    return tarn__vocab_add(&t->vocab, id, text, length, true) &&
           (!is_added || tarn__added_add(t, spec->function, spec->name, &token));
}

/* The character map is added as a step of its own, which tarn__unigram_set_spm() merges with the rules for spaces. */
static bool fill(tarn_tokenizer *t, const tarn__spm_spec *spec)
{
    tarn__unigram *u = &t->unigram;
    tarn__pipeline_step rules = {.type = TARN__STEP_PRECOMPILED};
    u->count = (size_t)spec->count;
    u->scores = tarn__alloc(u->count * sizeof(*u->scores));
    u->types = u->scores ? tarn__alloc(u->count * sizeof(*u->types)) : NULL;
    if (!u->types)
        return false;
    for (int64_t id = 0; id < spec->count; id++)
        if (!add_piece(t, spec, (int32_t)id))
            return false;
    if (spec->map_bytes && !tarn__charsmap_valid(spec->map, spec->map_bytes))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': the normalization rules are damaged", spec->function,
                           spec->name);
    if (spec->map_bytes) {
        if (!(rules.map = tarn__alloc(spec->map_bytes)))
            return false;
        memcpy(rules.map, spec->map, rules.map_bytes = spec->map_bytes);
        if (!tarn__buffer_add(&t->pipeline.normalizers, &rules, 1, sizeof(rules)))
            return tarn__step_free(&rules), false;
    }
    u->unknown = (int32_t)spec->unknown;
    u->byte_fallback = spec->has_bytes;
    t->bos = (int32_t)spec->bos;
    t->eos = (int32_t)spec->eos;
    return tarn__unigram_set_spm(t, spec->settings.prepend != TARN__PREPEND_NEVER, spec->settings.remove_extra_spaces,
                                 spec->function, spec->name) &&
           tarn__tokenizer_finish(t, spec->function, spec->name);
}

/* Ids of -1 say that there is no such token. The specification is borrowed; what is needed of it is copied. */
tarn_tokenizer *tarn__unigram_build(const tarn__spm_spec *spec)
{
    const int64_t ids[] = {spec->bos, spec->eos, spec->unknown};
    for (int i = 0; i < 3; i++)
        if (ids[i] < -1 || ids[i] >= spec->count || spec->count < 1 || spec->count >= INT32_MAX) {
            tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': the %s token has the id %lld in a vocabulary of %lld",
                        spec->function, spec->name,
                        i == 0   ? "BOS"
                        : i == 1 ? "EOS"
                                 : "unknown",
                        (long long)ids[i], (long long)spec->count);
            return NULL;
        }
    tarn_tokenizer *t = tarn__tokenizer_new(&tarn__kind_unigram);
    if (t && fill(t, spec))
        return t;
    tarn_tokenizer_free(t);
    return NULL;
}
