/* hf_read_pipeline.c: the normalizer, pre-tokenizer and decoder of tokenizer.json as the steps of a pipeline. A step or
 * a setting that a pipeline does not have is an error that names it.
 *
 *     "normalizer":    {"type": "NFC"}
 *     "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, …]}
 *     "decoder":       null
 *
 * A sequence in a sequence becomes one list. Defaults of members are those of Hugging Face's tokenizers, which wrote
 * them out only later. A step's strings are its own from the moment they are read: add() takes or frees them. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/files/hf_read_common.h"
#include "text/files/pipeline/base64.h"

#define MAX_DEPTH 8 /* nested sequences */
/* Of a decoder's Strip: the characters that a stream may have to hold back. */
#define MAX_REPEAT 64

/* A list of steps being read. */
typedef struct reading {
    const tarn__hf_reader *reader;
    tarn__buffer *steps;
    const char *what; /* "normalizer", for errors */
    const char *list; /* member of a sequence */
    bool (*read)(struct reading *r, json_t *step, const char *type);
} reading;

static bool raise_step(const reading *r, const char *type, const char *problem)
{
    return tarn__hf_raise(r->reader, TARN_ERROR_UNSUPPORTED, "the %s '%.60s' %s", r->what, type, problem);
}

static bool add(reading *r, tarn__pipeline_step step)
{
    return tarn__steps_add(r->steps, step, "tokenizer_open", r->reader->name);
}

/* Copies a string member into a step; required, and at least `least` bytes. */
static bool read_text(reading *r, json_t *object, const char *key, size_t least, char **field, size_t *length)
{
    const char *text = tarn__hf_string(r->reader, object, key);
    if (text && strlen(text) < least)
        return tarn__hf_raise(r->reader, TARN_ERROR_UNSUPPORTED, "the %s's \"%s\" is empty", r->what, key);
    return text && tarn__step_copy(field, length, text, strlen(text));
}

/* Reads {"pattern": {"String": …}} or {"pattern": {"Regex": …}}. */
static bool read_pattern(reading *r, json_t *step, tarn__pipeline_step *out)
{
    json_t *pattern = json_object_get(step, "pattern");
    out->is_regex = json_object_get(pattern, "String") == NULL;
    return read_text(r, pattern, out->is_regex ? "Regex" : "String", 1, &out->text, &out->text_length);
}

/* ---- normalizers ------------------------------------------------------------------------------------------------- */

/* Reads the character map, base64 in the file. */
static bool read_map(reading *r, json_t *step)
{
    json_t *value = json_object_get(step, "precompiled_charsmap");
    const char *text = json_string_value(value);
    size_t length = json_string_length(value);
    tarn__pipeline_step out = {.type = TARN__STEP_PRECOMPILED};
    if (!value || json_is_null(value) || (text && length == 0))
        return true; /* a model without rules */
    if (!text)
        return tarn__hf_raise(r->reader, TARN_ERROR_FORMAT, "\"precompiled_charsmap\" is not a string");
    size_t most = length / 4 * 3 + 3;
    char *bytes = tarn__alloc(most);
    int64_t count = bytes ? tarn__base64_decode(bytes, text, length) : -1;
    bool good = count > 0 && tarn__charsmap_valid(bytes, (size_t)count) && (out.map = tarn__alloc((size_t)count));
    if (good) {
        memcpy(out.map, bytes, (size_t)count);
        out.map_bytes = (size_t)count;
    }
    tarn__release(bytes, bytes ? most : 0);
    if (good)
        return add(r, out);
    return tarn_failed() ? false : tarn__hf_raise(r->reader, TARN_ERROR_FORMAT, "\"precompiled_charsmap\" is damaged");
}

/* strip_accents follows lowercase unless the file says otherwise; has_strip_accents remembers which, for writing. */
static bool read_bert(reading *r, json_t *step)
{
    tarn__pipeline_step out = {.type = TARN__STEP_BERT_NORMALIZER};
    json_t *accents = json_object_get(step, "strip_accents");
    out.has_strip_accents = json_is_boolean(accents);
    return tarn__hf_bool(r->reader, step, "clean_text", true, &out.clean_text) &&
           tarn__hf_bool(r->reader, step, "handle_chinese_chars", true, &out.chinese) &&
           tarn__hf_bool(r->reader, step, "lowercase", true, &out.lowercase) &&
           tarn__hf_bool(r->reader, step, "strip_accents", out.lowercase, &out.strip_accents) && add(r, out);
}

/* Normalizer and decoder. */
static bool read_replace(reading *r, json_t *step)
{
    tarn__pipeline_step out = {.type = TARN__STEP_REPLACE};
    bool good = read_pattern(r, step, &out) && read_text(r, step, "content", 0, &out.content, &out.content_length);
    return good ? add(r, out) : (tarn__step_free(&out), false);
}

/* Nothing is owned before the text is read, so there is nothing to free without it. */
static bool read_prepend(reading *r, json_t *step)
{
    tarn__pipeline_step out = {.type = TARN__STEP_PREPEND};
    return read_text(r, step, "prepend", 1, &out.content, &out.content_length) && add(r, out);
}

/* Whitespace, of the text; the decoder of this name is read_strip_content(). */
static bool read_strip(reading *r, json_t *step)
{
    tarn__pipeline_step out = {.type = TARN__STEP_STRIP};
    return tarn__hf_bool(r->reader, step, "strip_left", true, &out.left) &&
           tarn__hf_bool(r->reader, step, "strip_right", true, &out.right) && add(r, out);
}

/* Steps without settings, then those with some. */
static bool read_normalizer(reading *r, json_t *step, const char *type)
{
    static const struct {
        const char *name;
        tarn__step_type type;
    } simple[] = {{"NFC", TARN__STEP_NFC},
                  {"NFD", TARN__STEP_NFD},
                  {"NFKC", TARN__STEP_NFKC},
                  {"NFKD", TARN__STEP_NFKD},
                  {"Lowercase", TARN__STEP_LOWERCASE},
                  {"StripAccents", TARN__STEP_STRIP_ACCENTS}};
    for (size_t i = 0; i < sizeof(simple) / sizeof(simple[0]); i++)
        if (strcmp(type, simple[i].name) == 0)
            return add(r, (tarn__pipeline_step){.type = simple[i].type});
    return strcmp(type, "Precompiled") == 0      ? read_map(r, step)
           : strcmp(type, "BertNormalizer") == 0 ? read_bert(r, step)
           : strcmp(type, "Replace") == 0        ? read_replace(r, step)
           : strcmp(type, "Prepend") == 0        ? read_prepend(r, step)
           : strcmp(type, "Strip") == 0          ? read_strip(r, step)
                                                 : raise_step(r, type, "is not supported");
}

/* ---- pre-tokenizers ---------------------------------------------------------------------------------------------- */

/* In the order of tarn__split_behavior. */
static bool read_behavior(reading *r, json_t *step, tarn__split_behavior *behavior)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = tarn__hf_string(r->reader, step, "behavior");
    for (int i = 0; name && i < 5; i++)
        if (strcmp(name, names[i]) == 0) {
            *behavior = (tarn__split_behavior)i;
            return true;
        }
    return name && tarn__hf_raise(r->reader, TARN_ERROR_UNSUPPORTED, "a split with the behavior '%.60s'", name);
}

static bool read_split(reading *r, json_t *step)
{
    tarn__pipeline_step out = {.type = TARN__STEP_SPLIT};
    return read_behavior(r, step, &out.behavior) && tarn__hf_bool(r->reader, step, "invert", false, &out.invert) &&
           read_pattern(r, step, &out) && add(r, out);
}

/* Isolated unless the file says otherwise. */
static bool read_punctuation(reading *r, json_t *step)
{
    tarn__pipeline_step out = {.type = TARN__STEP_PUNCTUATION};
    return (!json_object_get(step, "behavior") || read_behavior(r, step, &out.behavior)) && add(r, out);
}

/* Reads Metaspace; older files have add_prefix_space instead of a scheme. Both as pre-tokenizer and as decoder, which
 * has the same members. */
static bool read_metaspace(reading *r, json_t *step)
{
    static const char *const schemes[] = {"never", "first", "always"};
    tarn__pipeline_step out = {.type = TARN__STEP_METASPACE, .prepend = TARN__PREPEND_ALWAYS};
    json_t *scheme = json_object_get(step, "prepend_scheme");
    bool has_prefix, is_known = !scheme;
    for (int i = 0; json_is_string(scheme) && i < 3; i++)
        if (strcmp(json_string_value(scheme), schemes[i]) == 0) {
            out.prepend = (tarn__prepend_scheme)i;
            is_known = true;
        }
    if (!is_known)
        return tarn__hf_raise(r->reader, TARN_ERROR_FORMAT, "\"prepend_scheme\" is neither first, always nor never");
    if (!tarn__hf_bool(r->reader, step, "add_prefix_space", true, &has_prefix) ||
        !tarn__hf_bool(r->reader, step, "split", true, &out.splits))
        return false;
    /* Both members may be there; they must agree. */
    if (!has_prefix && !scheme)
        out.prepend = TARN__PREPEND_NEVER;
    if (!has_prefix && out.prepend != TARN__PREPEND_NEVER)
        return raise_step(r, "Metaspace", "has add_prefix_space = false and another prepend_scheme than never");
    return read_text(r, step, "replacement", 1, &out.text, &out.text_length) && add(r, out);
}

/* trim_offsets concerns positions in the text only, which are not computed. */
static bool read_byte_level(reading *r, json_t *step)
{
    tarn__pipeline_step out = {.type = TARN__STEP_BYTE_LEVEL};
    return tarn__hf_bool(r->reader, step, "add_prefix_space", true, &out.prefix_space) &&
           tarn__hf_bool(r->reader, step, "use_regex", true, &out.use_regex) && add(r, out);
}

/* individual_digits: "12" is 1 | 2 instead of 12. */
static bool read_digits(reading *r, json_t *step)
{
    tarn__pipeline_step out = {.type = TARN__STEP_DIGITS};
    return tarn__hf_bool(r->reader, step, "individual_digits", false, &out.single) && add(r, out);
}

/* Split at a character, which is removed. */
static bool read_delimiter(reading *r, json_t *step)
{
    tarn__pipeline_step out = {.type = TARN__STEP_CHAR_DELIMITER_SPLIT, .behavior = TARN__SPLIT_REMOVED};
    return read_text(r, step, "delimiter", 1, &out.text, &out.text_length) && add(r, out);
}

static bool read_pre_tokenizer(reading *r, json_t *step, const char *type)
{
    return strcmp(type, "Split") == 0             ? read_split(r, step)
           : strcmp(type, "Punctuation") == 0     ? read_punctuation(r, step)
           : strcmp(type, "Metaspace") == 0       ? read_metaspace(r, step)
           : strcmp(type, "ByteLevel") == 0       ? read_byte_level(r, step)
           : strcmp(type, "Digits") == 0          ? read_digits(r, step)
           : strcmp(type, "Whitespace") == 0      ? add(r, (tarn__pipeline_step){.type = TARN__STEP_WHITESPACE})
           : strcmp(type, "WhitespaceSplit") == 0 ? add(r, (tarn__pipeline_step){.type = TARN__STEP_WHITESPACE_SPLIT})
           : strcmp(type, "BertPreTokenizer") == 0
               ? add(r, (tarn__pipeline_step){.type = TARN__STEP_BERT_PRE_TOKENIZER})
           : strcmp(type, "CharDelimiterSplit") == 0 ? read_delimiter(r, step)
                                                     : raise_step(r, type, "is not supported");
}

/* ---- decoders ---------------------------------------------------------------------------------------------------- */

/* Required, unlike the settings of other steps. */
static bool read_count(reading *r, json_t *step, const char *key, size_t *count)
{
    json_t *value = json_object_get(step, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > MAX_REPEAT)
        return tarn__hf_raise(r->reader, TARN_ERROR_UNSUPPORTED, "the decoder's \"%s\" is not from 0 to %d", key,
                              MAX_REPEAT);
    *count = (size_t)json_integer_value(value);
    return true;
}

/* The decoder Strip: a character removed from both ends of each piece, or of the text after Fuse. */
static bool read_strip_content(reading *r, json_t *step)
{
    tarn__pipeline_step out = {.type = TARN__STEP_STRIP_CONTENT};
    return read_count(r, step, "start", &out.start) && read_count(r, step, "stop", &out.stop) &&
           read_text(r, step, "content", 1, &out.text, &out.text_length) && add(r, out);
}

static bool read_wordpiece(reading *r, json_t *step)
{
    tarn__pipeline_step out = {.type = TARN__STEP_WORDPIECE_DECODER};
    return tarn__hf_bool(r->reader, step, "cleanup", true, &out.cleanup) &&
           read_text(r, step, "prefix", 1, &out.text, &out.text_length) && add(r, out);
}

static bool read_bpe_decoder(reading *r, json_t *step)
{
    tarn__pipeline_step out = {.type = TARN__STEP_BPE_DECODER};
    return read_text(r, step, "suffix", 1, &out.text, &out.text_length) && add(r, out);
}

/* A Replace by a regex would need the whole text, as a match may span pieces. */
static bool read_decoder(reading *r, json_t *step, const char *type)
{
    if (strcmp(type, "Replace") == 0)
        return json_object_get(json_object_get(step, "pattern"), "String")
                   ? read_replace(r, step)
                   : raise_step(r, type, "by a regex is not supported");
    return strcmp(type, "Strip") == 0          ? read_strip_content(r, step)
           : strcmp(type, "WordPiece") == 0    ? read_wordpiece(r, step)
           : strcmp(type, "BPEDecoder") == 0   ? read_bpe_decoder(r, step)
           : strcmp(type, "Metaspace") == 0    ? read_metaspace(r, step)
           : strcmp(type, "ByteLevel") == 0    ? add(r, (tarn__pipeline_step){.type = TARN__STEP_BYTE_LEVEL})
           : strcmp(type, "ByteFallback") == 0 ? add(r, (tarn__pipeline_step){.type = TARN__STEP_BYTE_FALLBACK})
           : strcmp(type, "Fuse") == 0         ? add(r, (tarn__pipeline_step){.type = TARN__STEP_FUSE})
                                               : raise_step(r, type, "is not supported");
}

/* Decoding goes piece by piece: after Fuse only a Strip can follow, and byte pieces are single bytes from ByteFallback
 * on. Any other order would need the whole text before its first byte is known, and streams could not be decoded. */
static bool check_decoders(const reading *r)
{
    bool has_fuse = false, has_bytes = false;
    size_t after = 0;
    for (size_t i = 0; i < r->steps->count; i++) {
        tarn__step_type type = tarn__steps_at(r->steps, i)->type;
        bool is_bytes = type == TARN__STEP_BYTE_FALLBACK || type == TARN__STEP_BYTE_LEVEL;
        after += has_fuse && type != TARN__STEP_FUSE;
        if ((has_fuse && type != TARN__STEP_STRIP_CONTENT && type != TARN__STEP_FUSE) || after > 1)
            return tarn__hf_raise(r->reader, TARN_ERROR_UNSUPPORTED,
                                  "a decoder with other steps after Fuse than one Strip is not supported");
        if (has_bytes && !has_fuse && type != TARN__STEP_FUSE && type != TARN__STEP_METASPACE)
            return tarn__hf_raise(r->reader, TARN_ERROR_UNSUPPORTED,
                                  "a decoder with steps between ByteFallback or ByteLevel and Fuse is not supported");
        has_fuse = has_fuse || type == TARN__STEP_FUSE;
        has_bytes = has_bytes || is_bytes;
    }
    return true;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* Reads a step, or the steps of a sequence. */
static bool read_steps(reading *r, json_t *step, int depth)
{
    size_t index;
    json_t *one, *list = json_object_get(step, r->list);
    const char *type = tarn__hf_string(r->reader, step, "type");
    if (!type)
        return false;
    if (strcmp(type, "Sequence") != 0)
        return r->read(r, step, type);
    if (!json_is_array(list) || depth >= MAX_DEPTH)
        return raise_step(r, type, "has no list of steps, or is nested too deeply");
    json_array_foreach(list, index, one) if (!read_steps(r, one, depth + 1)) return false;
    return true;
}

/* null and a missing member are the same. Without a decoder pieces are joined by spaces, as decode() does then. */
bool tarn__hf_read_pipeline(const tarn__hf_reader *reader, json_t *root)
{
    tarn__pipeline *p = &reader->tokenizer->pipeline;
    json_t *normalizer = json_object_get(root, "normalizer"), *pre = json_object_get(root, "pre_tokenizer"),
           *decoder = json_object_get(root, "decoder");
    reading normalizers = {reader, &p->normalizers, "normalizer", "normalizers", read_normalizer};
    reading pre_tokenizers = {reader, &p->pre_tokenizers, "pre-tokenizer", "pretokenizers", read_pre_tokenizer};
    reading decoders = {reader, &p->decoders, "decoder", "decoders", read_decoder};
    p->is_used = true;
    p->joins_by_space = !decoder || json_is_null(decoder);
    return (!normalizer || json_is_null(normalizer) || read_steps(&normalizers, normalizer, 0)) &&
           (!pre || json_is_null(pre) || read_steps(&pre_tokenizers, pre, 0)) &&
           (p->joins_by_space || (read_steps(&decoders, decoder, 0) && check_decoders(&decoders)));
}
