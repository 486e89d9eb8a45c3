/* hf_read_spm.c: SentencePiece's BPE as tokenizer.json has it: a BPE with byte_fallback, and spaces that a normalizer
 * or a pre-tokenizer writes as U+2581. Files that tarn writes from scores have these too, under "tarn": then they
 * count, and not the merges that were made of them. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/files/hf_read_common.h"
#include "text/files/hf_write.h"

#define MOST_STEPS 8

static bool refuse(const tarn__hf_reader *reading, const char *problem)
{
    return tarn__hf_raise(reading, TARN_ERROR_UNSUPPORTED, "a BPE with byte_fallback %s", problem);
}

static bool is_text(json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* A step {"type": "Replace"} of a text or a pattern by a text. */
static bool replaces(json_t *step, const char *kind, const char *from, const char *to)
{
    return is_text(json_object_get(step, "type"), "Replace") &&
           is_text(json_object_get(json_object_get(step, "pattern"), kind), from) &&
           is_text(json_object_get(step, "content"), to);
}

/* The steps of a sequence, or a step alone; -1 for too many. NULL has none. */
static int list_steps(json_t *step, const char *key, json_t **steps)
{
    json_t *list = json_object_get(step, key);
    if (!step || json_is_null(step))
        return 0;
    if (!is_text(json_object_get(step, "type"), "Sequence")) {
        steps[0] = step;
        return 1;
    }
    if (!json_is_array(list) || json_array_size(list) > MOST_STEPS)
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++)
        steps[i] = json_array_get(list, i);
    return (int)json_array_size(list);
}

static bool refuse_step(const tarn__hf_reader *reading, const char *what, json_t *step)
{
    json_t *type = json_object_get(step, "type");
    return tarn__hf_raise(reading, TARN_ERROR_UNSUPPORTED,
                          "a BPE with byte_fallback and the %s '%.60s', which is none that tarn has here", what,
                          json_is_string(type) ? json_string_value(type) : "(without a type)");
}

/* ---- spaces ------------------------------------------------------------------------------------------------------ */

static bool read_normalizer(const tarn__hf_reader *reading, json_t *normalizer, bool *marks)
{
    json_t *steps[MOST_STEPS];
    tarn__spm *spm = &reading->tokenizer->spm;
    int count = list_steps(normalizer, "normalizers", steps), squeezes = 0;
    for (int i = 0; i < count; i++) {
        if (is_text(json_object_get(steps[i], "type"), "Prepend") &&
            is_text(json_object_get(steps[i], "prepend"), TARN__METASPACE))
            spm->prefix = TARN__PREPEND_ALWAYS;
        else if (replaces(steps[i], "String", " ", TARN__METASPACE))
            *marks = true;
        else if (i < 2 &&
                 replaces(steps[i], "Regex", i ? TARN__REGEX_EXTRA_SPACES : TARN__REGEX_OUTER_SPACES, i ? " " : ""))
            squeezes++;
        else
            return refuse_step(reading, "normalizer", steps[i]);
    }
    spm->squeezes = squeezes == 2;
    if (squeezes == 1 || (count > squeezes && !*marks))
        return refuse(reading, "and a normalizer that leaves spaces as they are, or half done");
    return count >= 0 || refuse(reading, "and too many normalizers");
}

static bool read_metaspace(const tarn__hf_reader *reading, json_t *step)
{
    tarn__spm *spm = &reading->tokenizer->spm;
    json_t *scheme = json_object_get(step, "prepend_scheme");
    bool splits;
    if (!tarn__hf_bool(reading, step, "split", true, &splits))
        return false;
    if (splits || !is_text(json_object_get(step, "replacement"), TARN__METASPACE))
        return refuse(reading, "and a Metaspace that splits, or has another sign than U+2581");
    if (!is_text(scheme, "first") && !is_text(scheme, "always") && !is_text(scheme, "never"))
        return refuse(reading, "and a Metaspace whose \"prepend_scheme\" is neither first, always nor never");
    spm->is_late = spm->prefix_if_missing = true;
    spm->prefix = is_text(scheme, "first")    ? TARN__PREPEND_FIRST
                  : is_text(scheme, "always") ? TARN__PREPEND_ALWAYS
                                              : TARN__PREPEND_NEVER;
    return true;
}

static bool read_spaces(const tarn__hf_reader *reading, json_t *root)
{
    json_t *steps[MOST_STEPS];
    bool marks = false;
    int count = list_steps(json_object_get(root, "pre_tokenizer"), "pretokenizers", steps);
    if (!read_normalizer(reading, json_object_get(root, "normalizer"), &marks))
        return false;
    if (count < 0 || count > 1 || (count == 1 && marks))
        return refuse(reading, "and several steps that cut text into words or change its spaces");
    if (count == 1)
        return is_text(json_object_get(steps[0], "type"), "Metaspace")
                   ? read_metaspace(reading, steps[0])
                   : refuse_step(reading, "pre-tokenizer", steps[0]);
    return marks || refuse(reading, "and neither a normalizer nor a pre-tokenizer that writes spaces as U+2581");
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

static bool is_strip(json_t *step)
{
    json_t *start = json_object_get(step, "start"), *stop = json_object_get(step, "stop");
    return is_text(json_object_get(step, "type"), "Strip") && is_text(json_object_get(step, "content"), " ") &&
           json_is_integer(start) && json_integer_value(start) == 1 && json_is_integer(stop) &&
           json_integer_value(stop) == 0;
}

static bool read_decoder(const tarn__hf_reader *reading, json_t *decoder)
{
    json_t *steps[MOST_STEPS];
    tarn__spm *spm = &reading->tokenizer->spm;
    int count = list_steps(decoder, "decoders", steps);
    bool bytes = false, marks = false;
    spm->strips = count == 0 && spm->prefix != TARN__PREPEND_NEVER;
    for (int i = 0; i < count; i++) {
        json_t *type = json_object_get(steps[i], "type");
        bool is_metaspace = is_text(type, "Metaspace");
        bytes = bytes || is_text(type, "ByteFallback");
        marks = marks || is_metaspace || replaces(steps[i], "String", TARN__METASPACE, " ");
        spm->strips = spm->strips || is_strip(steps[i]) ||
                      (is_metaspace && !is_text(json_object_get(steps[i], "prepend_scheme"), "never"));
        if (!is_metaspace && !is_strip(steps[i]) && !is_text(type, "ByteFallback") && !is_text(type, "Fuse") &&
            !replaces(steps[i], "String", TARN__METASPACE, " "))
            return refuse_step(reading, "decoder", steps[i]);
    }
    return count == 0 || (bytes && marks) || refuse(reading, "and a decoder that does not bring back bytes and spaces");
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

static bool read_scores(const tarn__hf_reader *reading, json_t *scores, json_t *types)
{
    tarn__spm *spm = &reading->tokenizer->spm;
    size_t count = (size_t)reading->tokenizer->pieces.count;
    if (!json_is_array(scores) || !json_is_array(types) || json_array_size(scores) != count ||
        json_array_size(types) != count)
        return tarn__hf_raise(reading, TARN_ERROR_FORMAT,
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
            return tarn__hf_raise(reading, TARN_ERROR_FORMAT,
                                  "\"tarn\": token %zu has no score, or a type that is none", i);
    }
    return spm->types != NULL;
}

/* Pieces that are no text: merges do not make them. */
static bool set_types(const tarn__hf_reader *reading)
{
    tarn__vocab *pieces = &reading->tokenizer->pieces;
    const uint8_t *types = reading->tokenizer->spm.types;
    for (int32_t id = 0; id < pieces->count; id++) {
        tarn__vocab_piece *piece = &pieces->piece[id];
        bool is_normal = types[id] == TARN__TOKEN_NORMAL || types[id] == TARN__TOKEN_USER;
        if (piece->used && (piece->byte != (types[id] == TARN__TOKEN_BYTE) || (is_normal && piece->literal)))
            return tarn__hf_raise(reading, TARN_ERROR_FORMAT, "\"tarn\": token %d is not what its type says", (int)id);
        if (piece->used && !is_normal && !piece->byte && !piece->literal)
            piece->literal = 1;
    }
    return true;
}

bool tarn__hf_read_spm(const tarn__hf_reader *reading, json_t *root, json_t *model)
{
    tarn_tokenizer *t = reading->tokenizer;
    json_t *own = json_object_get(model, "tarn");
    t->kind = &tarn__kind_spm;
    t->pieces.spaced = true;
    t->spm.has_bytes = true;
    if (!tarn__hf_read_vocab(reading, json_object_get(model, "vocab"), false) || !read_spaces(reading, root) ||
        !read_decoder(reading, json_object_get(root, "decoder")))
        return false;
    return own ? read_scores(reading, json_object_get(own, "scores"), json_object_get(own, "types")) &&
                     set_types(reading)
               : tarn__hf_read_merges(reading, json_object_get(model, "merges"));
}
