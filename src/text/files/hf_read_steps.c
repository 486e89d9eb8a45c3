/* hf_read_steps.c: what tokenizer.json says comes before and after the model: how text is cut into words, and which ids
 * add_special adds. Steps that tarn does not have are refused by name. */
#include <string.h>

#include "base/error.h"
#include "text/files/hf_read_common.h"

#define DEEPEST 8 /* sequences in sequences */

static bool unknown_step(const tarn__hf_reader *reading, const char *what, const char *type)
{
    return tarn__hf_raise(reading, TARN_ERROR_UNSUPPORTED, "the %s '%.60s' is none that tarn has", what, type);
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* A text that a pattern matches literally. */
static bool read_literal(const tarn__hf_reader *reading, const char *text)
{
    char pattern[512];
    size_t used = 0;
    if (!text[0] || 2 * strlen(text) >= sizeof(pattern))
        return tarn__hf_raise(reading, TARN_ERROR_UNSUPPORTED, "a split by a text of %zu bytes", strlen(text));
    for (const char *at = text; *at; at++) {
        if (strchr("\\^$.[]|()?*+{}#-&", *at))
            pattern[used++] = '\\';
        pattern[used++] = *at;
    }
    pattern[used] = 0;
    return tarn__hf_add_regex(reading, pattern);
}

static bool read_split(const tarn__hf_reader *reading, json_t *step)
{
    const char *behaviour = tarn__hf_string(reading, step, "behavior");
    json_t *pattern = json_object_get(step, "pattern");
    if (!behaviour)
        return false;
    if (strcmp(behaviour, "Isolated") != 0)
        return tarn__hf_raise(reading, TARN_ERROR_UNSUPPORTED, "a split with the behavior '%.60s'; tarn has 'Isolated'",
                              behaviour);
    bool is_literal = json_object_get(pattern, "String") != NULL;
    const char *text = tarn__hf_string(reading, pattern, is_literal ? "String" : "Regex");
    return text && (is_literal ? read_literal(reading, text) : tarn__hf_add_regex(reading, text));
}

static bool read_byte_level(const tarn__hf_reader *reading, json_t *step, bool *found)
{
    tarn__bpe *bpe = &reading->tokenizer->bpe;
    bool first = bpe->pattern_count == 0;
    if (!tarn__hf_bool(reading, step, "add_prefix_space", true, &bpe->prefix_space) ||
        !tarn__hf_bool(reading, step, "use_regex", true, &bpe->uses_regex))
        return false;
    *found = true;
    if (bpe->prefix_space && !first)
        return tarn__hf_raise(reading, TARN_ERROR_UNSUPPORTED,
                              "a space before each word (add_prefix_space behind a split)");
    return !bpe->uses_regex || tarn__hf_add_regex(reading, TARN__REGEX_GPT2);
}

static bool read_digits(const tarn__hf_reader *reading, json_t *step)
{
    bool single;
    return tarn__hf_bool(reading, step, "individual_digits", false, &single) &&
           tarn__hf_add_regex(reading, single ? "\\p{N}" : "\\p{N}+");
}

static bool read_words(const tarn__hf_reader *reading, json_t *step, int depth, bool *found)
{
    size_t index;
    json_t *one, *list = json_object_get(step, "pretokenizers");
    const char *type = tarn__hf_string(reading, step, "type");
    if (!type)
        return false;
    if (*found)
        return tarn__hf_raise(reading, TARN_ERROR_UNSUPPORTED, "a step '%.60s' behind the byte-level one", type);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(reading, step, found);
    if (strcmp(type, "Split") == 0)
        return read_split(reading, step);
    if (strcmp(type, "Digits") == 0)
        return read_digits(reading, step);
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth >= DEEPEST)
        return unknown_step(reading, "pre-tokenizer", type);
    json_array_foreach(list, index, one) if (!read_words(reading, one, depth + 1, found)) return false;
    return true;
}

bool tarn__hf_read_pre_tokenizer(const tarn__hf_reader *reading, json_t *pre_tokenizer)
{
    bool found = false;
    if (json_is_object(pre_tokenizer) && !read_words(reading, pre_tokenizer, 0, &found))
        return false;
    return found || tarn__hf_raise(reading, TARN_ERROR_UNSUPPORTED,
                                   "this BPE does not work on bytes: no pre-tokenizer 'ByteLevel'");
}

/* ---- around a text ----------------------------------------------------------------------------------------------- */

static bool add_id(const tarn__hf_reader *reading, tarn__buffer *ids, json_t *value)
{
    if (!json_is_integer(value) || !tarn__vocab_has(&reading->tokenizer->pieces, json_integer_value(value)))
        return tarn__hf_raise(reading, TARN_ERROR_FORMAT, "the post-processor adds an id that has no token");
    return tarn__ids_add(ids, (int32_t)json_integer_value(value));
}

/* {"SpecialToken": {"id": "<s>"}} with {"<s>": {"ids": [1]}} beside it. */
static bool add_named(const tarn__hf_reader *reading, tarn__buffer *ids, json_t *step, json_t *token)
{
    size_t index;
    json_t *one;
    const char *name = tarn__hf_string(reading, token, "id");
    json_t *list = name ? json_object_get(json_object_get(json_object_get(step, "special_tokens"), name), "ids") : NULL;
    if (!name)
        return false;
    if (!json_is_array(list) || json_array_size(list) > 1024)
        return tarn__hf_raise(reading, TARN_ERROR_FORMAT, "the post-processor has no ids for '%.60s'", name);
    json_array_foreach(list, index, one) if (!add_id(reading, ids, one)) return false;
    return true;
}

static bool read_template(const tarn__hf_reader *reading, json_t *step)
{
    size_t index;
    json_t *one, *list = json_object_get(step, "single");
    bool text_seen = false;
    if (!json_is_array(list) || json_array_size(list) > 1024)
        return tarn__hf_raise(reading, TARN_ERROR_FORMAT, "the post-processor's \"single\" is no short list");
    json_array_foreach(list, index, one)
    {
        json_t *token = json_object_get(one, "SpecialToken"), *sequence = json_object_get(one, "Sequence");
        tarn_tokenizer *t = reading->tokenizer;
        if (sequence && text_seen)
            return tarn__hf_raise(reading, TARN_ERROR_UNSUPPORTED, "a post-processor that repeats the text");
        if (!sequence && !token)
            return tarn__hf_raise(reading, TARN_ERROR_FORMAT,
                                  "the post-processor's \"single\" has neither a token nor a text");
        if (token && !add_named(reading, text_seen ? &t->after : &t->before, step, token))
            return false;
        text_seen = text_seen || sequence;
    }
    return text_seen || tarn__hf_raise(reading, TARN_ERROR_FORMAT, "the post-processor leaves the text out");
}

static bool read_after(const tarn__hf_reader *reading, json_t *step, int depth)
{
    size_t index;
    json_t *one, *list = json_object_get(step, "processors");
    const char *type = tarn__hf_string(reading, step, "type");
    if (!type)
        return false;
    if (strcmp(type, "ByteLevel") == 0)
        return true; /* says which spaces offsets leave out; ids stay */
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(reading, step);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
        return add_id(reading, &reading->tokenizer->before, json_array_get(json_object_get(step, "cls"), 1)) &&
               add_id(reading, &reading->tokenizer->after, json_array_get(json_object_get(step, "sep"), 1));
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth >= DEEPEST)
        return unknown_step(reading, "post-processor", type);
    json_array_foreach(list, index, one) if (!read_after(reading, one, depth + 1)) return false;
    return true;
}

bool tarn__hf_read_post_processor(const tarn__hf_reader *reading, json_t *post_processor)
{
    return !post_processor || json_is_null(post_processor) || read_after(reading, post_processor, 0);
}
