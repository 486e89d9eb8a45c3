/* spm_model.c: tokenizer.model, SentencePiece's file: a protobuf message with the pieces, the trainer's settings and
 * the normalizer. Supported are Unigram, and BPE whose normalizer changes nothing but spaces; other models are an
 * error. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "formats/file_type.h"
#include "text/files/protobuf.h"
#include "text/tokenizer/tokenizer.h"

#define MAX_FILE ((size_t)1 << 30) /* bytes */

/* Field numbers of sentencepiece_model.proto: ModelProto, SentencePiece, TrainerSpec, NormalizerSpec. */
enum { PIECES = 1, TRAINER = 2, NORMALIZER = 3, DENORMALIZER = 5 };
enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum { MODEL_TYPE = 3, SPACE_AS_SUFFIX = 24, BYTE_FALLBACK = 35, UNKNOWN_ID = 40, BEGIN_ID = 41, END_ID = 42 };
enum { UNIGRAM = 1, BPE = 2 }; /* TrainerSpec.ModelType */
enum { RULES_NAME = 1, RULES = 2, DUMMY_PREFIX = 3, REMOVE_SPACES = 4, ESCAPE_SPACES = 5 };

/* The contents of a file; strings are borrowed from its map. */
typedef struct model {
    tarn__message file;
    tarn__buffer pieces, lengths, scores, types; /* const char *, size_t, float, int32_t */
    bool has_trainer, has_normalizer;            /* required parts of the message */
    int64_t type, unknown, bos, eos;
    bool has_bytes, space_is_suffix, has_prefix, remove_extra_spaces, escape_spaces, has_rules, has_reverse_rules;
    const char *rules; /* name of the normalization rules; borrowed from the file */
    size_t rules_length;
    const char *map; /* the rules, a compiled character map; borrowed */
    size_t map_bytes;
} model;

/* Raises an error for a model that tarn would encode differently. Returns false. */
static bool raise_unsupported(const model *m, const char *problem)
{
    return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': %s", m->file.function, m->file.name, problem);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Appends a piece. The last occurrence of a field counts, as protobuf defines. */
static bool read_piece(model *m, tarn__message *piece)
{
    tarn__field f = {0};
    const char *text = "";
    size_t length = 0;
    float score = 0;
    int64_t type = TARN__TOKEN_NORMAL;
    int more;
    bool good = true;
    while (good && (more = tarn__message_next(piece, &f)) != 0) {
        good = more > 0;
        if (good && f.number == PIECE_TEXT) {
            tarn__message inside;
            good = tarn__message_inside(piece, &f, &inside);
            text = f.bytes;
            length = f.length;
        } else if (good && f.number == PIECE_SCORE)
            good = tarn__field_float(piece, &f, &score);
        else if (good && f.number == PIECE_TYPE)
            good = tarn__field_int(piece, &f, &type);
    }
    return good && tarn__buffer_add(&m->pieces, &text, 1, sizeof(text)) &&
           tarn__buffer_add(&m->lengths, &length, 1, sizeof(length)) &&
           tarn__buffer_add(&m->scores, &score, 1, sizeof(score)) &&
           tarn__buffer_add(&m->types, &(int32_t){(int32_t)type}, 1, sizeof(int32_t));
}

/* Reads the trainer's settings that concern encoding. */
static bool read_trainer(model *m, tarn__message *trainer)
{
    tarn__field f;
    int more;
    bool good = true;
    m->has_trainer = true;
    while (good && (more = tarn__message_next(trainer, &f)) != 0) {
        int64_t *integer = f.number == MODEL_TYPE   ? &m->type
                           : f.number == UNKNOWN_ID ? &m->unknown
                           : f.number == BEGIN_ID   ? &m->bos
                           : f.number == END_ID     ? &m->eos
                                                    : NULL;
        bool *flag = f.number == SPACE_AS_SUFFIX ? &m->space_is_suffix
                     : f.number == BYTE_FALLBACK ? &m->has_bytes
                                                 : NULL;
        good = more > 0 && (!integer || tarn__field_int(trainer, &f, integer)) &&
               (!flag || tarn__field_bool(trainer, &f, flag));
    }
    return good;
}

/* Reads the normalizer's settings. */
static bool read_normalizer(model *m, tarn__message *normalizer)
{
    tarn__field f;
    int more;
    bool good = true;
    m->has_normalizer = true;
    while (good && (more = tarn__message_next(normalizer, &f)) != 0) {
        bool *flag = f.number == DUMMY_PREFIX    ? &m->has_prefix
                     : f.number == REMOVE_SPACES ? &m->remove_extra_spaces
                     : f.number == ESCAPE_SPACES ? &m->escape_spaces
                                                 : NULL;
        tarn__message inside;
        bool is_text = f.number == RULES_NAME || f.number == RULES;
        good = more > 0 && (!is_text || tarn__message_inside(normalizer, &f, &inside)) &&
               (!flag || tarn__field_bool(normalizer, &f, flag));
        if (good && f.number == RULES) {
            m->has_rules = f.length > 0;
            m->map = f.bytes;
            m->map_bytes = f.length;
        }
        if (good && f.number == RULES_NAME) {
            m->rules = f.bytes;
            m->rules_length = f.length;
        }
    }
    return good;
}

/* Reads the rules that change text back when decoding; published models have none. */
static bool read_denormalizer(model *m, tarn__message *denormalizer)
{
    tarn__field f;
    int more;
    while ((more = tarn__message_next(denormalizer, &f)) > 0)
        m->has_reverse_rules = m->has_reverse_rules || (f.number == RULES && f.length > 0);
    return more == 0;
}

/* Reads the root message; unknown fields are skipped. */
static bool read_message(model *m)
{
    tarn__message all = m->file, inside;
    tarn__field f;
    int more;
    bool good = true;
    while (good && (more = tarn__message_next(&all, &f)) != 0) {
        bool (*read)(model *, tarn__message *) = f.number == PIECES         ? read_piece
                                                 : f.number == TRAINER      ? read_trainer
                                                 : f.number == NORMALIZER   ? read_normalizer
                                                 : f.number == DENORMALIZER ? read_denormalizer
                                                                            : NULL;
        good = more > 0 && (!read || (tarn__message_inside(&all, &f, &inside) && read(m, &inside)));
    }
    return good;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Checks that the model is a BPE or Unigram. */
static bool check_kind(const model *m)
{
    static const char *const names[] = {"", "Unigram", "BPE", "Word", "Char"};
    if (m->type == UNIGRAM || m->type == BPE)
        return true;
    return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': the SentencePiece model is %s; it must be BPE or Unigram",
                       m->file.function, m->file.name,
                       m->type >= 1 && m->type <= 4 ? names[m->type] : "of an unknown type");
}

/* Checks that the model is complete, and that a BPE changes nothing but spaces. */
static bool check(const model *m)
{
    const int32_t *types = (const int32_t *)(const void *)m->types.data;
    if (m->pieces.count == 0 || !m->has_trainer || !m->has_normalizer)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': %s missing; the file is incomplete, or not a tokenizer.model",
                           m->file.function, m->file.name,
                           m->pieces.count == 0 ? "the pieces are"
                           : m->has_trainer     ? "the normalizer is"
                                                : "the trainer's settings are");
    if (!check_kind(m))
        return false;
    if ((m->type == BPE && m->has_rules) || m->has_reverse_rules)
        return tarn__raise(
            TARN_ERROR_UNSUPPORTED, "%s: '%s': the model has normalization rules ('%.*s'), which are not supported",
            m->file.function, m->file.name, (int)(m->rules_length < 60 ? m->rules_length : 60), m->rules);
    if (m->space_is_suffix || !m->escape_spaces)
        return raise_unsupported(m, "treat_whitespace_as_suffix, or escape_whitespaces = false, is not supported");
    for (size_t i = 0; i < m->types.count;
         i++) /* SentencePiece splits these again after merging, which tarn does not do */
        if (m->type == BPE && types[i] == TARN__TOKEN_UNUSED)
            return raise_unsupported(m, "some pieces are not used (type 5), which is not supported");
    return true;
}

/* An id if it is a control piece, else -1: SentencePiece accepts only those as BOS and EOS. */
static int64_t control(const model *m, int64_t id)
{
    const int32_t *types = (const int32_t *)(const void *)m->types.data;
    return id >= 0 && (size_t)id < m->types.count && types[id] == TARN__TOKEN_CONTROL ? id : -1;
}

/* Builds the tokenizer; pieces are borrowed from the map until they are copied. */
static tarn_tokenizer *build(const model *m)
{
    const tarn__spm_spec spec = {
        .function = m->file.function,
        .name = m->file.name,
        .pieces = (const char *const *)(const void *)m->pieces.data,
        .lengths = (const size_t *)(const void *)m->lengths.data,
        .scores = (const float *)(const void *)m->scores.data,
        .types = (const int32_t *)(const void *)m->types.data,
        .count = (int64_t)m->pieces.count,
        .bos = control(m, m->bos),
        .eos = control(m, m->eos),
        .unknown = m->unknown,
        .has_bytes = m->has_bytes,
        .settings = {.prepend = m->has_prefix ? TARN__PREPEND_ALWAYS : TARN__PREPEND_NEVER,
                     .remove_extra_spaces = m->remove_extra_spaces,
                     .strip_prefix = m->has_prefix},
        .map = m->map,
        .map_bytes = m->map_bytes,
    };
    return m->type == UNIGRAM ? tarn__unigram_build(&spec) : tarn__spm_build(&spec);
}

/* Defaults are those of sentencepiece_model.proto: Unigram, ids 0, 1, 2, prefix and removal of extra spaces on. */
tarn_tokenizer *tarn__tokenizer_read_spm(const char *path)
{
    tarn__map map;
    if (!tarn__map_open(&map, "tokenizer_open", path))
        return NULL;
    const char *bytes = map.bytes ? map.memory : "";
    model m = {.file = {"tokenizer_open", path, bytes, bytes, bytes + map.bytes},
               .type = 1, /* the format's defaults */
               .bos = 1,
               .eos = 2,
               .has_prefix = true,
               .remove_extra_spaces = true,
               .escape_spaces = true,
               .rules = ""};
    tarn_tokenizer *t = NULL;
    if (map.bytes > MAX_FILE)
        tarn__raise(TARN_ERROR_FORMAT, "tokenizer_open: '%s': %zu bytes; a tokenizer has at most %zu", path, map.bytes,
                    MAX_FILE);
    else if (tarn__not_recognized("tokenizer_open", path, bytes, map.bytes, "SentencePiece model") &&
             read_message(&m) && check(&m))
        t = build(&m);
    tarn__buffer_free(&m.pieces, sizeof(const char *));
    tarn__buffer_free(&m.lengths, sizeof(size_t));
    tarn__buffer_free(&m.scores, sizeof(float));
    tarn__buffer_free(&m.types, sizeof(int32_t));
    tarn__map_close(&map);
    return t;
}
