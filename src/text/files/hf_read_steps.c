/* hf_read_steps.c: the steps of tokenizer.json before and after the model: the pre-tokenizer, which splits text into
 * words, and the post-processor, which adds special tokens. Steps that tarn does not have are an error that names
 * them. */
#include <string.h>

#include "base/error.h"
#include "text/files/hf_read_common.h"

#define MAX_DEPTH 8 /* nested sequences */

/* Raises an error for a step that is not supported. Returns false. The type is the file's, and cut. */
static bool raise_step(const tarn__hf_reader *reader, const char *what, const char *type)
{
    return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED, "the %s '%.60s' is not supported", what, type);
}

/* ---- pre-tokenizer ----------------------------------------------------------------------------------------------- */

/* Adds a literal string as a regex. */
static bool read_literal(const tarn__hf_reader *reader, const char *text)
{
    char pattern[512];
    size_t used = 0;
    if (!text[0] || 2 * strlen(text) >= sizeof(pattern))
        return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED, "a split by a string of %zu bytes", strlen(text));
    for (const char *at = text; *at; at++) {
        if (strchr("\\^$.[]|()?*+{}#-&", *at))
            pattern[used++] = '\\';
        pattern[used++] = *at;
    }
    pattern[used] = 0;
    return tarn__hf_add_regex(reader, pattern);
}

/* Adds a "Split" step. Behavior "Isolated": matches become words of their own, and nothing is removed. */
static bool read_split(const tarn__hf_reader *reader, json_t *step)
{
    const char *behaviour = tarn__hf_string(reader, step, "behavior");
    json_t *pattern = json_object_get(step, "pattern");
    if (!behaviour)
        return false;
    if (strcmp(behaviour, "Isolated") != 0)
        return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED,
                              "a split with the behavior '%.60s'; only 'Isolated' is supported", behaviour);
    bool is_literal = json_object_get(pattern, "String") != NULL;
    const char *text = tarn__hf_string(reader, pattern, is_literal ? "String" : "Regex");
    return text && (is_literal ? read_literal(reader, text) : tarn__hf_add_regex(reader, text));
}

/* Reads the "ByteLevel" step, which must be the last: the regexes before it work on text, not on escaped bytes. */
static bool read_byte_level(const tarn__hf_reader *reader, json_t *step, bool *has_byte_level)
{
    tarn__bpe *bpe = &reader->tokenizer->bpe;
    bool first = bpe->regex_count == 0;
    if (!tarn__hf_bool(reader, step, "add_prefix_space", true, &bpe->prefix_space) ||
        !tarn__hf_bool(reader, step, "use_regex", true, &bpe->uses_regex))
        return false;
    *has_byte_level = true;
    /* After a split the space would go before each part: tarn has it at the beginning of the text only. */
    if (bpe->prefix_space && !first)
        return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED, "add_prefix_space after a split");
    return !bpe->uses_regex || tarn__hf_add_regex(reader, TARN__REGEX_GPT2);
}

/* Digits are words of their own, one by one or in runs. */
static bool read_digits(const tarn__hf_reader *reader, json_t *step)
{
    bool single;
    return tarn__hf_bool(reader, step, "individual_digits", false, &single) &&
           tarn__hf_add_regex(reader, single ? "\\p{N}" : "\\p{N}+");
}

/* Reads a step, or the steps of a sequence. Nothing may follow ByteLevel. */
static bool read_pre_tokenizer(const tarn__hf_reader *reader, json_t *step, int depth, bool *has_byte_level)
{
    size_t index;
    json_t *one, *list = json_object_get(step, "pretokenizers");
    const char *type = tarn__hf_string(reader, step, "type");
    if (!type)
        return false;
    if (*has_byte_level)
        return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED, "a step '%.60s' after ByteLevel", type);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(reader, step, has_byte_level);
    if (strcmp(type, "Split") == 0)
        return read_split(reader, step);
    if (strcmp(type, "Digits") == 0)
        return read_digits(reader, step);
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth >= MAX_DEPTH)
        return raise_step(reader, "pre-tokenizer", type);
    json_array_foreach(list, index, one) if (!read_pre_tokenizer(reader, one, depth + 1, has_byte_level)) return false;
    return true;
}

/* A BPE without ByteLevel would work on characters. */
bool tarn__hf_read_pre_tokenizer(const tarn__hf_reader *reader, json_t *pre_tokenizer)
{
    bool has_byte_level = false;
    if (json_is_object(pre_tokenizer) && !read_pre_tokenizer(reader, pre_tokenizer, 0, &has_byte_level))
        return false;
    return has_byte_level || tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED,
                                            "a BPE without the pre-tokenizer 'ByteLevel' is not supported");
}

/* ---- post-processor ---------------------------------------------------------------------------------------------- */

/* Appends an id, which must have a token. */
static bool add_id(const tarn__hf_reader *reader, tarn__buffer *ids, json_t *value)
{
    if (!json_is_integer(value) || !tarn__vocab_has(&reader->tokenizer->vocab, json_integer_value(value)))
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "the post-processor adds an id with no token");
    return tarn__ids_add(ids, (int32_t)json_integer_value(value));
}

/* Adds the ids of {"SpecialToken": {"id": "<s>"}}, by the step's {"special_tokens": {"<s>": {"ids": [1]}}}. */
static bool add_named(const tarn__hf_reader *reader, tarn__buffer *ids, json_t *step, json_t *token)
{
    size_t index;
    json_t *one;
    const char *name = tarn__hf_string(reader, token, "id");
    json_t *list = name ? json_object_get(json_object_get(json_object_get(step, "special_tokens"), name), "ids") : NULL;
    if (!name)
        return false;
    if (!json_is_array(list) || json_array_size(list) > 1024)
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "the post-processor has no ids for '%.60s'", name);
    json_array_foreach(list, index, one) if (!add_id(reader, ids, one)) return false;
    return true;
}

/* Reads "TemplateProcessing": tokens before and after the one text of "single". */
static bool read_template(const tarn__hf_reader *reader, json_t *step)
{
    size_t index;
    json_t *one, *list = json_object_get(step, "single");
    bool text_seen = false;
    if (!json_is_array(list) || json_array_size(list) > 1024)
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT,
                              "the post-processor's \"single\" is not an array of at most 1024");
    json_array_foreach(list, index, one)
    {
        json_t *token = json_object_get(one, "SpecialToken"), *sequence = json_object_get(one, "Sequence");
        tarn_tokenizer *t = reader->tokenizer;
        if (sequence && text_seen)
            return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED, "a post-processor that repeats the text");
        if (!sequence && !token)
            return tarn__hf_raise(reader, TARN_ERROR_FORMAT,
                                  "the post-processor's \"single\" has neither a token nor a text");
        if (token && !add_named(reader, text_seen ? &t->after : &t->before, step, token))
            return false;
        text_seen = text_seen || sequence;
    }
    return text_seen || tarn__hf_raise(reader, TARN_ERROR_FORMAT, "the post-processor omits the text");
}

/* Reads a step, or the steps of a sequence. */
static bool read_post_processor(const tarn__hf_reader *reader, json_t *step, int depth)
{
    size_t index;
    json_t *one, *list = json_object_get(step, "processors");
    const char *type = tarn__hf_string(reader, step, "type");
    if (!type)
        return false;
    if (strcmp(type, "ByteLevel") == 0)
        return true; /* concerns offsets; ids are unchanged */
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(reader, step);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
        return add_id(reader, &reader->tokenizer->before, json_array_get(json_object_get(step, "cls"), 1)) &&
               add_id(reader, &reader->tokenizer->after, json_array_get(json_object_get(step, "sep"), 1));
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth >= MAX_DEPTH)
        return raise_step(reader, "post-processor", type);
    json_array_foreach(list, index, one) if (!read_post_processor(reader, one, depth + 1)) return false;
    return true;
}

/* Tokens that are put around a text; null: none. */
bool tarn__hf_read_post_processor(const tarn__hf_reader *reader, json_t *post_processor)
{
    return !post_processor || json_is_null(post_processor) || read_post_processor(reader, post_processor, 0);
}
