/* hf_read_config.c: tokenizer_config.json, which lies beside a tokenizer: the tokens that begin and end a text, whether
 * they are added to one, tokens that a tokenizer.model lacks, and the chat template (also in a file of its own). */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "base/utf8.h"
#include "text/files/hf_read_common.h"

#define LONGEST_TEMPLATE ((size_t)1 << 20) /* bytes */

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* "bos_token": "<s>", or an object with the text under "content". An empty one, or one that no token is, changes
 * nothing. */
static bool read_named(const tarn__hf_reader *reading, json_t *config, const char *key, int32_t *id)
{
    json_t *value = json_object_get(config, key),
           *content = json_is_object(value) ? json_object_get(value, "content") : value;
    if (!content || json_is_null(content))
        return true;
    if (!json_is_string(content))
        return tarn__hf_raise(reading, TARN_ERROR_FORMAT, "\"%s\" is neither a text nor an object with \"content\"",
                              key);
    int32_t found = tarn_tokenizer_find(reading->tokenizer, json_string_value(content), json_string_length(content));
    *id = found >= 0 ? found : *id;
    return true;
}

static tarn__added_token *find_added(const tarn_tokenizer *t, int64_t id)
{
    tarn__added_token *tokens = (tarn__added_token *)(void *)t->added.tokens.data;
    for (size_t i = 0; i < t->added.tokens.count; i++)
        if (tokens[i].id == id)
            return &tokens[i];
    return NULL;
}

/* A token of added_tokens_decoder. SentencePiece's control tokens are added already; the file may say that they take
 * spaces. */
static bool read_token(const tarn__hf_reader *reading, json_t *about, int64_t id)
{
    tarn__added_token *known = find_added(reading->tokenizer, id);
    const char *content = json_string_value(json_object_get(about, "content"));
    if (!known || !content || strlen(content) != known->length || memcmp(content, known->text, known->length) != 0)
        return tarn__hf_read_added_token(reading, about, id);
    return tarn__hf_bool(reading, about, "lstrip", false, &known->strip_left) &&
           tarn__hf_bool(reading, about, "rstrip", false, &known->strip_right);
}

/* ---- a tokenizer.model ------------------------------------------------------------------------------------------- */

static bool is_llama(json_t *config)
{
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));
    return !name || strcmp(name, "LlamaTokenizer") == 0 || strcmp(name, "LlamaTokenizerFast") == 0;
}

static bool read_model_settings(const tarn__hf_reader *reading, json_t *config)
{
    tarn__spm *spm = &reading->tokenizer->spm;
    bool is_legacy, has_prefix;
    if (!is_llama(config))
        return tarn__hf_raise(reading, TARN_ERROR_UNSUPPORTED,
                              "the class '%.60s' is none for which tarn knows what it does beside SentencePiece "
                              "(LlamaTokenizer); use a tokenizer.json",
                              json_string_value(json_object_get(config, "tokenizer_class")));
    if (!tarn__hf_bool(reading, config, "legacy", true, &is_legacy) ||
        !tarn__hf_bool(reading, config, "add_prefix_space", spm->prefix != TARN__PREPEND_NEVER, &has_prefix) ||
        !tarn__hf_read_added_tokens_decoder(reading, json_object_get(config, "added_tokens_decoder"), read_token))
        return false;
    spm->prefix = !has_prefix ? TARN__PREPEND_NEVER : is_legacy ? TARN__PREPEND_ALWAYS : TARN__PREPEND_FIRST;
    spm->is_late = spm->prefix_if_missing = !is_legacy; /* as the class writes its tokenizer.json */
    spm->strips = has_prefix;
    return true;
}

/* Llama's classes add what these say. */
static bool read_around(const tarn__hf_reader *reading, json_t *config, bool otherwise)
{
    bool begins, ends;
    return tarn__hf_bool(reading, config, "add_bos_token", otherwise, &begins) &&
           tarn__hf_bool(reading, config, "add_eos_token", false, &ends) &&
           tarn__tokenizer_set_add_bos_eos(reading->tokenizer, begins, ends);
}

/* ---- chat templates ---------------------------------------------------------------------------------------------- */

static bool keep_template(const tarn__hf_reader *reading, const char *text, size_t length)
{
    tarn_tokenizer *t = reading->tokenizer;
    if (length > LONGEST_TEMPLATE || memchr(text, 0, length) || tarn__utf8_prefix(text, length) != length)
        return tarn__hf_raise(reading, TARN_ERROR_FORMAT,
                              "the chat template is no valid UTF-8, has a NUL in it, or more than %zu bytes",
                              LONGEST_TEMPLATE);
    char *copy = tarn__alloc(length + 1);
    if (!copy)
        return false;
    memcpy(copy, text, length);
    tarn__string_free(t->chat);
    t->chat = copy;
    return true;
}

/* A text, or a list of named ones of which "default" is taken. */
static bool read_template(const tarn__hf_reader *reading, json_t *value)
{
    size_t index;
    json_t *one;
    if (json_is_string(value))
        return keep_template(reading, json_string_value(value), json_string_length(value));
    if (value && !json_is_null(value) && !json_is_array(value))
        return tarn__hf_raise(reading, TARN_ERROR_FORMAT, "\"chat_template\" is neither a text nor a list");
    json_array_foreach(value, index, one)
    {
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && strcmp(name, "default") == 0 && json_is_string(json_object_get(one, "template")))
            return read_template(reading, json_object_get(one, "template"));
    }
    return true;
}

static bool read_template_file(tarn_tokenizer *t, const char *path)
{
    tarn__map map;
    const tarn__hf_reader reading = {t, path};
    if (!tarn__map_open(&map, "tokenizer_open", path))
        return false;
    bool good = keep_template(&reading, map.bytes ? map.memory : "", map.bytes);
    tarn__map_close(&map);
    return good;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static bool read_config(tarn_tokenizer *t, const char *path, bool is_model)
{
    const tarn__hf_reader reading = {t, path};
    json_t *config = tarn__hf_load_json(path);
    bool says_around = json_object_get(config, "tokenizer_class") && is_llama(config) &&
                       (json_object_get(config, "add_bos_token") || json_object_get(config, "add_eos_token"));
    bool good = config && (!is_model || read_model_settings(&reading, config)) &&
                read_named(&reading, config, "bos_token", &t->begin) &&
                read_named(&reading, config, "eos_token", &t->end) &&
                read_template(&reading, json_object_get(config, "chat_template")) &&
                ((!is_model && !says_around) || read_around(&reading, config, is_model || t->before.count > 0));
    json_decref(config);
    return good && tarn__tokenizer_finish(t, "tokenizer_open", path);
}

bool tarn__tokenizer_read_config(tarn_tokenizer *tokenizer, const char *config, const char *chat, bool is_model)
{
    return (!config || read_config(tokenizer, config, is_model)) && (!chat || read_template_file(tokenizer, chat));
}
