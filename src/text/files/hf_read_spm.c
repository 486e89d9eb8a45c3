/* hf_read_spm.c: SentencePiece's BPE in tokenizer.json: a BPE with byte_fallback, and a normalizer or pre-tokenizer
 * that writes spaces as U+2581.
 *
 * Files that tarn writes from scores have the scores too, under "tarn": they are used instead of the merges derived
 * from them, so that a saved tokenizer is the same one. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/files/hf_read_common.h"
#include "text/files/hf_write.h"

/* Of a sequence. */
#define MAX_STEPS 8

/* BPE with byte fallback is SentencePiece's; anything that its model would not do is an error. */
static bool raise_unsupported(const tarn__hf_reader *reader, const char *problem)
{
    return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED, "a BPE with byte_fallback %s", problem);
}

/* A JSON string of exactly this text. */
static bool is_string(json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* True for a step {"type": "Replace"} of a string or regex (`kind`) by a string. */
static bool replaces(json_t *step, const char *kind, const char *from, const char *to)
{
    return is_string(json_object_get(step, "type"), "Replace") &&
           is_string(json_object_get(json_object_get(step, "pattern"), kind), from) &&
           is_string(json_object_get(step, "content"), to);
}

/* Lists the steps of a "Sequence", or a single step; returns their number, -1: too many. */
static int list_steps(json_t *step, const char *key, json_t **steps)
{
    json_t *list = json_object_get(step, key);
    if (!step || json_is_null(step))
        return 0;
    if (!is_string(json_object_get(step, "type"), "Sequence")) {
        steps[0] = step;
        return 1;
    }
    if (!json_is_array(list) || json_array_size(list) > MAX_STEPS)
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++)
        steps[i] = json_array_get(list, i);
    return (int)json_array_size(list);
}

static bool raise_step(const tarn__hf_reader *reader, const char *what, json_t *step)
{
    json_t *type = json_object_get(step, "type");
    return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED,
                          "a BPE with byte_fallback and the %s '%.60s', which is not supported", what,
                          json_is_string(type) ? json_string_value(type) : "(without a type)");
}

/* ---- spaces ------------------------------------------------------------------------------------------------------ */

/* Reads the steps that prepend U+2581, replace spaces by it, and remove extra spaces (as tarn writes that). */
static bool read_normalizer(const tarn__hf_reader *reader, json_t *normalizer, bool *writes_metaspace)
{
    json_t *steps[MAX_STEPS];
    tarn__spm *spm = &reader->tokenizer->spm;
    int count = list_steps(normalizer, "normalizers", steps), replacements = 0;
    for (int i = 0; i < count; i++) {
        if (is_string(json_object_get(steps[i], "type"), "Prepend") &&
            is_string(json_object_get(steps[i], "prepend"), TARN__METASPACE))
            spm->prepend = TARN__PREPEND_ALWAYS;
        else if (replaces(steps[i], "String", " ", TARN__METASPACE))
            *writes_metaspace = true;
        else if (i < 2 &&
                 replaces(steps[i], "Regex", i ? TARN__REGEX_EXTRA_SPACES : TARN__REGEX_OUTER_SPACES, i ? " " : ""))
            replacements++;
        else
            return raise_step(reader, "normalizer", steps[i]);
    }
    /* The two Replace steps come as a pair, first in the sequence. */
    spm->remove_extra_spaces = replacements == 2;
    if (replacements == 1 || (count > replacements && !*writes_metaspace))
        return raise_unsupported(reader, "and a normalizer that does not replace spaces by U+2581");
    return count >= 0 || raise_unsupported(reader, "and too many normalizers");
}

/* Reads a Metaspace pre-tokenizer; with "split" it would split words, which SentencePiece does not. */
static bool read_metaspace(const tarn__hf_reader *reader, json_t *step)
{
    tarn__spm *spm = &reader->tokenizer->spm;
    json_t *scheme = json_object_get(step, "prepend_scheme");
    bool splits;
    if (!tarn__hf_bool(reader, step, "split", true, &splits))
        return false;
    if (splits || !is_string(json_object_get(step, "replacement"), TARN__METASPACE))
        return raise_unsupported(reader, "and a Metaspace that splits, or has a replacement other than U+2581");
    if (!is_string(scheme, "first") && !is_string(scheme, "always") && !is_string(scheme, "never"))
        return raise_unsupported(reader, "and a Metaspace whose \"prepend_scheme\" is neither first, always nor never");
    /* A Metaspace adds no second space to a text that begins with one. */
    spm->in_pre_tokenizer = spm->prepend_if_missing = true;
    spm->prepend = is_string(scheme, "first")    ? TARN__PREPEND_FIRST
                   : is_string(scheme, "always") ? TARN__PREPEND_ALWAYS
                                                 : TARN__PREPEND_NEVER;
    return true;
}

/* Spaces are changed either by the normalizer or by the pre-tokenizer, not by both. */
static bool read_spaces(const tarn__hf_reader *reader, json_t *root)
{
    json_t *steps[MAX_STEPS];
    bool writes_metaspace = false;
    int count = list_steps(json_object_get(root, "pre_tokenizer"), "pretokenizers", steps);
    if (!read_normalizer(reader, json_object_get(root, "normalizer"), &writes_metaspace))
        return false;
    /* Gemma's split by spaces finds none: the normalizer has replaced them. */
    if (count == 1 && writes_metaspace && is_string(json_object_get(steps[0], "type"), "Split") &&
        is_string(json_object_get(json_object_get(steps[0], "pattern"), "String"), " ") &&
        !json_is_true(json_object_get(steps[0], "invert")))
        return true;
    /* Metaspace after a normalizer that has replaced the spaces would find none. */
    if (count < 0 || count > 1 || (count == 1 && writes_metaspace))
        return raise_unsupported(reader, "and several steps that split text or change spaces");
    if (count == 1)
        return is_string(json_object_get(steps[0], "type"), "Metaspace")
                   ? read_metaspace(reader, steps[0])
                   : raise_step(reader, "pre-tokenizer", steps[0]);
    return writes_metaspace || raise_unsupported(reader, "and no step that replaces spaces by U+2581");
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* True for the step that drops one leading space. */
static bool is_strip(json_t *step)
{
    json_t *start = json_object_get(step, "start"), *stop = json_object_get(step, "stop");
    return is_string(json_object_get(step, "type"), "Strip") && is_string(json_object_get(step, "content"), " ") &&
           json_is_integer(start) && json_integer_value(start) == 1 && json_is_integer(stop) &&
           json_integer_value(stop) == 0;
}

/* Reads the decoder: byte fallback, U+2581 back to spaces, and whether the prepended space is dropped. */
static bool read_decoder(const tarn__hf_reader *reader, json_t *decoder)
{
    json_t *steps[MAX_STEPS];
    tarn__spm *spm = &reader->tokenizer->spm;
    int count = list_steps(decoder, "decoders", steps);
    bool bytes = false, writes_metaspace = false;
    spm->strip_prefix = count == 0 && spm->prepend != TARN__PREPEND_NEVER;
    for (int i = 0; i < count; i++) {
        json_t *type = json_object_get(steps[i], "type");
        bool is_metaspace = is_string(type, "Metaspace");
        bytes = bytes || is_string(type, "ByteFallback");
        writes_metaspace = writes_metaspace || is_metaspace || replaces(steps[i], "String", TARN__METASPACE, " ");
        spm->strip_prefix = spm->strip_prefix || is_strip(steps[i]) ||
                            (is_metaspace && !is_string(json_object_get(steps[i], "prepend_scheme"), "never"));
        if (!is_metaspace && !is_strip(steps[i]) && !is_string(type, "ByteFallback") && !is_string(type, "Fuse") &&
            !replaces(steps[i], "String", TARN__METASPACE, " "))
            return raise_step(reader, "decoder", steps[i]);
    }
    return count == 0 || (bytes && writes_metaspace) ||
           raise_unsupported(reader, "and a decoder that does not restore bytes and spaces");
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* Reads the scores and types that tarn wrote, one per id. */
static bool read_scores(const tarn__hf_reader *reader, json_t *scores, json_t *types)
{
    tarn__spm *spm = &reader->tokenizer->spm;
    size_t count = (size_t)reader->tokenizer->vocab.count;
    if (!json_is_array(scores) || !json_is_array(types) || json_array_size(scores) != count ||
        json_array_size(types) != count)
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT,
                              "\"tarn\" has no \"scores\" and \"types\" for each of %zu tokens", count);
    spm->count = count;
    spm->scores = tarn__alloc(count * sizeof(*spm->scores));
    spm->types = spm->scores ? tarn__alloc(count * sizeof(*spm->types)) : NULL;
    for (size_t i = 0; spm->types && i < count; i++) {
        json_t *score = json_array_get(scores, i), *type = json_array_get(types, i);
        json_int_t number = json_is_integer(type) ? json_integer_value(type) : 0;
        spm->scores[i] = (float)json_number_value(score);
        spm->types[i] = (uint8_t)number;
        if (!json_is_number(score) || !isfinite(spm->scores[i]) || number < TARN__TOKEN_NORMAL ||
            number > TARN__TOKEN_BYTE)
            return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"tarn\": token %zu has no score, or an unknown type", i);
    }
    return spm->types != NULL;
}

/* Makes pieces that merges must not form literal: control tokens, unknown and unused ones. */
static bool set_types(const tarn__hf_reader *reader)
{
    tarn__vocab *vocab = &reader->tokenizer->vocab;
    const uint8_t *types = reader->tokenizer->spm.types;
    for (int32_t id = 0; id < vocab->count; id++) {
        tarn__vocab_piece *piece = &vocab->piece[id];
        bool is_normal = types[id] == TARN__TOKEN_NORMAL || types[id] == TARN__TOKEN_USER;
        if (piece->used && (piece->byte != (types[id] == TARN__TOKEN_BYTE) || (is_normal && piece->literal)))
            return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"tarn\": token %d does not match its type", (int)id);
        if (piece->used && !is_normal && !piece->byte && !piece->literal)
            piece->literal = 1;
    }
    return true;
}

/* The vocabulary comes first: merges and types refer to it. */
bool tarn__hf_read_spm(const tarn__hf_reader *reader, json_t *root, json_t *model)
{
    tarn_tokenizer *t = reader->tokenizer;
    json_t *own = json_object_get(model, "tarn");
    t->kind = &tarn__kind_spm;
    t->vocab.metaspaced = true;
    t->spm.has_bytes = true;
    if (!tarn__hf_read_vocab(reader, json_object_get(model, "vocab"), false) || !read_spaces(reader, root) ||
        !read_decoder(reader, json_object_get(root, "decoder")))
        return false;
    return own ? read_scores(reader, json_object_get(own, "scores"), json_object_get(own, "types")) && set_types(reader)
               : tarn__hf_read_merges(reader, json_object_get(model, "merges"));
}
