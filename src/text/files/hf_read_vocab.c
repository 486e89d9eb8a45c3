/* hf_read_vocab.c: a tokenizer from vocab.json, merges.txt (one merge per line) and tokenizer_config.json, whose class
 * decides the pre-tokenizer. Without a config it is GPT-2's. */
#include <string.h>

#include "base/error.h"
#include "base/os/files.h"
#include "text/files/hf_read_common.h"

#define END_OF_TEXT "<|endoftext|>"

/* ---- merges ------------------------------------------------------------------------------------------------------ */

/* Reads "left right". A #version line and a carriage return are ignored. */
static bool read_merge_line(const tarn__hf_reader *reader, size_t number, const char *line, size_t length)
{
    const char *space = memchr(line, ' ', length);
    if (length >= 8 && memcmp(line, "#version", 8) == 0)
        return true;
    if (length > 0 && line[length - 1] == '\r')
        length--;
    if (!space || memchr(space + 1, ' ', length - (size_t)(space + 1 - line)))
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "line %zu is not two pieces with one space between them",
                              number);
    return tarn__hf_read_merge(reader, number, line, (size_t)(space - line), space + 1,
                               length - (size_t)(space + 1 - line));
}

/* Reads merges.txt, line by line from the map. */
static bool read_merges(tarn_tokenizer *tokenizer, const char *path)
{
    tarn__map map;
    const tarn__hf_reader reader = {tokenizer, path};
    if (!tarn__map_open(&map, "tokenizer_open", path))
        return false;
    size_t number = 1;
    for (size_t at = 0, length; at < map.bytes && !tarn_failed(); at += length + 1, number++) {
        const char *end = memchr(map.memory + at, '\n', map.bytes - at);
        length = end ? (size_t)(end - map.memory) - at : map.bytes - at;
        read_merge_line(&reader, number, map.memory + at, length);
    }
    tarn__map_close(&map);
    return !tarn_failed();
}

/* ---- configuration ----------------------------------------------------------------------------------------------- */

/* The settings that a class of transformers implies. */
typedef struct family {
    const char *class_name, *pattern; /* "tokenizer_class", and its pre-tokenizer regex */
    bool nfc;                         /* normalizes to NFC */
} family;

/* Classes of transformers whose pattern is not in any file. */
static const family families[] = {
    {"GPT2Tokenizer", TARN__REGEX_GPT2, false},
    {"GPT2TokenizerFast", TARN__REGEX_GPT2, false},
    {"Qwen2Tokenizer", TARN__REGEX_QWEN2, true},
    {"Qwen2TokenizerFast", TARN__REGEX_QWEN2, true},
};

/* The family of "tokenizer_class"; GPT-2 without one. NULL with an error for another class. */
static const family *find_family(const tarn__hf_reader *reader, json_t *config)
{
    json_t *name = json_object_get(config, "tokenizer_class");
    if (!json_is_string(name))
        return &families[0];
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strcmp(families[i].class_name, json_string_value(name)) == 0)
            return &families[i];
    tarn__hf_raise(
        reader, TARN_ERROR_UNSUPPORTED,
        "the class '%.60s' has no known pattern; it must be GPT2Tokenizer or Qwen2Tokenizer; use a tokenizer.json",
        json_string_value(name));
    return NULL;
}

/* Adds the tokens of added_tokens_decoder; without them <|endoftext|>, as GPT-2 has it. */
static bool read_special(const tarn__hf_reader *reader, json_t *config)
{
    json_t *list = json_object_get(config, "added_tokens_decoder");
    if (json_is_object(list))
        return tarn__hf_read_added_tokens_decoder(reader, list, tarn__hf_read_added_token);
    int32_t id = tarn__vocab_find_escaped(&reader->tokenizer->vocab, END_OF_TEXT, strlen(END_OF_TEXT));
    char text[] = END_OF_TEXT;
    const tarn__added_token token = {.text = text, .length = strlen(text), .id = id, .special = true};
    return id < 0 ? !tarn_failed() : tarn__added_add(reader->tokenizer, "tokenizer_open", reader->name, &token);
}

/* Applies the config, or the defaults if it is NULL. */
static bool apply_config(tarn_tokenizer *tokenizer, const char *name, json_t *config)
{
    const tarn__hf_reader reader = {tokenizer, name};
    const family *matched = find_family(&reader, config);
    if (!matched || !tarn__hf_bool(&reader, config, "add_prefix_space", false, &tokenizer->bpe.prefix_space))
        return false;
    tokenizer->nfc = matched->nfc;
    tokenizer->bpe.uses_regex = strcmp(matched->pattern, TARN__REGEX_GPT2) == 0;
    if (tokenizer->bpe.prefix_space && !tokenizer->bpe.uses_regex)
        return tarn__hf_raise(&reader, TARN_ERROR_UNSUPPORTED, "add_prefix_space with the class %s",
                              matched->class_name);
    return tarn__hf_add_regex(&reader, matched->pattern) && read_special(&reader, config);
}

/* ---- the files --------------------------------------------------------------------------------------------------- */

/* Reads the files in the order of their dependencies: merges refer to pieces, added tokens to both. */
static bool read_all(tarn_tokenizer *tokenizer, const char *vocabulary, const char *merges, const char *config)
{
    json_t *pieces = tarn__hf_load_json(vocabulary), *settings = pieces && config ? tarn__hf_load_json(config) : NULL;
    const tarn__hf_reader reader = {tokenizer, vocabulary};
    bool good = pieces && (settings || !config) && tarn__hf_read_vocab(&reader, pieces, true) &&
                read_merges(tokenizer, merges) && apply_config(tokenizer, config ? config : vocabulary, settings) &&
                tarn__tokenizer_finish(tokenizer, "tokenizer_open", vocabulary);
    json_decref(pieces);
    json_decref(settings);
    return good;
}

/* The pre-tokenizer is not in these files: the config's class, or GPT-2, decides. */
tarn_tokenizer *tarn__tokenizer_read_vocab(const char *vocabulary, const char *merges, const char *config)
{
    tarn_tokenizer *tokenizer = tarn__tokenizer_new(&tarn__kind_bpe);
    if (tokenizer && read_all(tokenizer, vocabulary, merges, config))
        return tokenizer;
    tarn_tokenizer_free(tokenizer);
    return NULL;
}
