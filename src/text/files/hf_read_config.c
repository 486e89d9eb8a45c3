/* hf_read_config.c: tokenizer_config.json next to a tokenizer: BOS and EOS token, whether they are added to a text,
 * tokens that a tokenizer.model lacks, special tokens by name, and the chat templates, which may have files of their
 * own; and special_tokens_map.json, which older versions of transformers wrote. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "base/utf8.h"
#include "text/files/hf_read_common.h"

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* Reads "bos_token": "<s>", or an object with "content". A missing one, or one that is not a token, changes nothing. */
static bool read_token_id(const tarn__hf_reader *reader, json_t *config, const char *key, int32_t *id)
{
    json_t *value = json_object_get(config, key),
           *content = json_is_object(value) ? json_object_get(value, "content") : value;
    if (!content || json_is_null(content))
        return true;
    if (!json_is_string(content))
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"%s\" is neither a string nor an object with \"content\"",
                              key);
    int32_t found = tarn_tokenizer_find(reader->tokenizer, json_string_value(content), json_string_length(content));
    *id = found >= 0 ? found : *id;
    return true;
}

/* The added token of an id; NULL: none. Borrowed; a change needs tarn__tokenizer_finish() again. */
static tarn__added_token *find_added(const tarn_tokenizer *t, int64_t id)
{
    tarn__added_token *tokens = (tarn__added_token *)(void *)t->added.tokens.data;
    for (size_t i = 0; i < t->added.tokens.count; i++)
        if (tokens[i].id == id)
            return &tokens[i];
    return NULL;
}

/* Reads a token of added_tokens_decoder. SentencePiece's control tokens were added already; the config may set lstrip
 * and rstrip. */
static bool read_token(const tarn__hf_reader *reader, json_t *about, int64_t id)
{
    tarn__added_token *known = find_added(reader->tokenizer, id);
    const char *content = json_string_value(json_object_get(about, "content"));
    if (!known || !content || strlen(content) != known->length || memcmp(content, known->text, known->length) != 0)
        return tarn__hf_read_added_token(reader, about, id);
    return tarn__hf_bool(reader, about, "lstrip", false, &known->strip_left) &&
           tarn__hf_bool(reader, about, "rstrip", false, &known->strip_right) &&
           tarn__hf_bool(reader, about, "single_word", false, &known->single_word);
}

/* ---- special tokens ---------------------------------------------------------------------------------------------- */

/* Names a special token, a string or an object with "content". Anything else, and null, changes nothing. */
static bool name_token(const tarn__hf_reader *reader, const char *name, json_t *value)
{
    json_t *content = json_is_object(value) ? json_object_get(value, "content") : value;
    char where[1100];
    if (!json_is_string(content))
        return true;
    snprintf(where, sizeof(where), "tokenizer_open: '%.1000s'", reader->name);
    return tarn__tokenizer_name_special(reader->tokenizer, name, json_string_value(content),
                                        json_string_length(content)) ||
           tarn__raise_within(where);
}

/* Names the members that are special tokens: those of every tokenizer, others that end in "_token", unless they have
 * names already and `keeps_own`, and the members of extra_special_tokens if that is an object. */
static bool name_tokens(const tarn__hf_reader *reader, json_t *object, bool keeps_own)
{
    const char *key;
    json_t *value, *extra = json_object_get(object, "extra_special_tokens");
    bool good = true;
    json_object_foreach(object, key, value)
    {
        /* add_bos_token and its like are no strings */
        bool is_own = strlen(key) > 6 && strcmp(key + strlen(key) - 6, "_token") == 0 &&
                      !(keeps_own && tarn__tokenizer_special(reader->tokenizer, key));
        bool is_token = tarn__is_special_name(key) || is_own;
        good = good && (!is_token || name_token(reader, key, value));
    }
    json_object_foreach(json_is_object(extra) ? extra : NULL, key, value) good = good && name_token(reader, key, value);
    return good;
}

/* Reads special_tokens_map.json of the config's folder, which overrides the config but for a model's own tokens, unless
 * the config lists the added tokens. */
static bool read_map(const tarn__hf_reader *reader, json_t *config)
{
    char path[4096];
    const char *slash = strrchr(reader->name, '/');
    int length = slash ? (int)(slash + 1 - reader->name) : 0;
    bool is_named =
        (size_t)snprintf(path, sizeof(path), "%.*sspecial_tokens_map.json", length, reader->name) < sizeof(path);
    if (!is_named || json_object_get(config, "added_tokens_decoder") || !tarn__path_exists(path))
        return true;
    json_t *map = tarn__hf_load_json(path);
    const tarn__hf_reader own = {reader->tokenizer, path};
    bool good = map && read_token_id(&own, map, "bos_token", &own.tokenizer->bos) &&
                read_token_id(&own, map, "eos_token", &own.tokenizer->eos) && name_tokens(&own, map, true);
    json_decref(map);
    return good;
}

/* True for the class that has no special tokens of its own. */
static bool is_generic(json_t *config)
{
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));
    return !name || strcmp(name, "PreTrainedTokenizerFast") == 0 || strcmp(name, "TokenizersBackend") == 0;
}

/* ---- a tokenizer.model ------------------------------------------------------------------------------------------- */

/* True for Llama's classes, and without a class: then the tokenizer.model decides alone. */
static bool is_llama(json_t *config)
{
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));
    return !name || strcmp(name, "LlamaTokenizer") == 0 || strcmp(name, "LlamaTokenizerFast") == 0;
}

/* Settings that LlamaTokenizer applies on top of a tokenizer.model: how the space is prepended ("legacy" and
 * "add_prefix_space"), and added tokens. */
static bool read_model_settings(const tarn__hf_reader *reader, json_t *config)
{
    tarn__spm *spm = &reader->tokenizer->spm;
    bool is_legacy, has_prefix;
    if (!is_llama(config))
        return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED,
                              "the class '%.60s' is not supported with a tokenizer.model; it must be LlamaTokenizer; "
                              "use a tokenizer.json",
                              json_string_value(json_object_get(config, "tokenizer_class")));
    if (!tarn__hf_bool(reader, config, "legacy", true, &is_legacy) ||
        !tarn__hf_bool(reader, config, "add_prefix_space", spm->prepend != TARN__PREPEND_NEVER, &has_prefix) ||
        !tarn__hf_read_added_tokens_decoder(reader, json_object_get(config, "added_tokens_decoder"), read_token))
        return false;
    /* Legacy prepends a space to the text after every added token too; the newer behaviour only at the beginning. */
    spm->prepend = !has_prefix ? TARN__PREPEND_NEVER : is_legacy ? TARN__PREPEND_ALWAYS : TARN__PREPEND_FIRST;
    spm->in_pre_tokenizer = spm->prepend_if_missing =
        !is_legacy; /* as transformers converts the class to tokenizer.json */
    spm->strip_prefix = has_prefix;
    return true;
}

/* Reads add_bos_token and add_eos_token, which Llama's classes apply. */
static bool read_add_bos_eos(const tarn__hf_reader *reader, json_t *config, bool default_value)
{
    bool adds_bos, adds_eos;
    return tarn__hf_bool(reader, config, "add_bos_token", default_value, &adds_bos) &&
           tarn__hf_bool(reader, config, "add_eos_token", false, &adds_eos) &&
           tarn__tokenizer_set_add_bos_eos(reader->tokenizer, adds_bos, adds_eos);
}

/* ---- chat templates ---------------------------------------------------------------------------------------------- */

/* Adds a chat template to the tokenizer, in place of another of its name. */
static bool add_template(const tarn__hf_reader *reader, const char *name, const char *text, size_t length)
{
    char where[1100];
    snprintf(where, sizeof(where), "tokenizer_open: '%.1000s'", reader->name);
    return tarn__tokenizer_add_chat(reader->tokenizer, name, text, length) || tarn__raise_within(where);
}

/* Reads "chat_template": a string, or an array of named templates. */
static bool read_template(const tarn__hf_reader *reader, json_t *value)
{
    size_t index;
    json_t *one;
    bool good = true;
    if (json_is_string(value))
        return add_template(reader, "default", json_string_value(value), json_string_length(value));
    if (value && !json_is_null(value) && !json_is_array(value))
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"chat_template\" is neither a string nor an array");
    json_array_foreach(value, index, one)
    {
        const json_t *name = json_object_get(one, "name"), *text = json_object_get(one, "template");
        if (good && json_is_string(name) && json_is_string(text))
            good = add_template(reader, json_string_value(name), json_string_value(text), json_string_length(text));
    }
    return good;
}

/* Reads chat_template.jinja, which overrides the template of the config: it is applied later. */
static bool read_jinja(tarn_tokenizer *t, const char *path, const char *name)
{
    tarn__map map;
    const tarn__hf_reader reader = {t, path};
    if (!tarn__map_open(&map, "tokenizer_open", path))
        return false;
    bool good = add_template(&reader, name, map.bytes ? map.memory : "", map.bytes);
    tarn__map_close(&map);
    return good;
}

/* Reads chat_template.json, {"chat_template": …}, which counts if there is no other template. */
static bool read_json(tarn_tokenizer *t, const char *path)
{
    const tarn__hf_reader reader = {t, path};
    json_t *root = t->chat ? NULL : tarn__hf_load_json(path);
    bool good = t->chat || (root && read_template(&reader, json_object_get(root, "chat_template")));
    json_decref(root);
    return good;
}

/* A template file by its name. */
static bool read_template_file(tarn_tokenizer *t, const char *path)
{
    static const char more[] = "additional_chat_templates/";
    const char *folder = strstr(path, more), *last = strrchr(path, '.');
    char name[256] = "default";
    if (last && strcmp(last, ".json") == 0)
        return read_json(t, path);
    if (folder && last)
        snprintf(name, sizeof(name), "%.*s", (int)(last - folder - (long)strlen(more)), folder + strlen(more));
    return read_jinja(t, path, name);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Reads the config. add_bos_token and add_eos_token count for a tokenizer.model, and where a Llama class names them. */
static bool read_config(tarn_tokenizer *t, const char *path, bool is_model)
{
    const tarn__hf_reader reader = {t, path};
    json_t *config = tarn__hf_load_json(path);
    bool has_add_bos_eos = json_object_get(config, "tokenizer_class") && is_llama(config) &&
                           (json_object_get(config, "add_bos_token") || json_object_get(config, "add_eos_token"));
    bool good = config && (!is_model || read_model_settings(&reader, config)) &&
                read_token_id(&reader, config, "bos_token", &t->bos) &&
                read_token_id(&reader, config, "eos_token", &t->eos) && name_tokens(&reader, config, false) &&
                read_map(&reader, config) && read_template(&reader, json_object_get(config, "chat_template")) &&
                ((!is_model && !has_add_bos_eos) || read_add_bos_eos(&reader, config, is_model || t->before.count > 0));
    t->is_generic = config && !is_model && is_generic(config);
    json_decref(config);
    return good && tarn__tokenizer_finish(t, "tokenizer_open", path);
}

bool tarn__tokenizer_read_config(tarn_tokenizer *tokenizer, const char *config, const char *chat, bool is_model)
{
    return (!config || read_config(tokenizer, config, is_model)) && (!chat || read_template_file(tokenizer, chat));
}
