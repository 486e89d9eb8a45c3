/* hf_read_common.c: parts that several tokenizer files have: vocabulary, merges, added tokens. */
#include "text/files/hf_read_common.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "formats/file_type.h"

#define MAX_FILE ((size_t)1 << 30) /* bytes */

bool tarn__hf_raise(const tarn__hf_reader *reader, tarn_code code, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return tarn__raise(code, "tokenizer_open: '%s': %s", reader->name, text);
}

/* NUL is allowed inside strings: byte-level vocabularies may contain it. Duplicate keys are rejected. Configs without a
 * limit have a model_max_length of 10^30, which is no integer here: such a file is read again with all numbers as
 * reals. */
static json_t *parse(const char *text, size_t length, json_error_t *error)
{
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    json_t *root = json_loadb(text, length, flags, error);
    bool is_large = !root && json_error_code(error) == json_error_numeric_overflow;
    return is_large ? json_loadb(text, length, flags | JSON_DECODE_INT_AS_REAL, error) : root;
}

json_t *tarn__hf_load_json(const char *path)
{
    tarn__map map;
    json_error_t error;
    const tarn__hf_reader reader = {NULL, path};
    if (!tarn__map_open(&map, "tokenizer_open", path))
        return NULL;
    json_t *root = NULL;
    if (map.bytes > MAX_FILE)
        tarn__hf_raise(&reader, TARN_ERROR_FORMAT, "%zu bytes; a tokenizer has at most %zu", map.bytes, MAX_FILE);
    else if (!(root = parse(map.bytes ? map.memory : "", map.bytes, &error)) &&
             tarn__not_recognized("tokenizer_open", path, map.memory, map.bytes, "JSON file"))
        tarn__hf_raise(&reader, TARN_ERROR_FORMAT, "line %d, column %d: %s", error.line, error.column, error.text);
    else if (root && !json_is_object(root))
        tarn__hf_raise(&reader, TARN_ERROR_FORMAT, "the file is JSON, but not an object");
    tarn__map_close(&map);
    if (!tarn_failed())
        return root;
    json_decref(root);
    return NULL;
}

/* null means the default: transformers writes it for unset options. */
bool tarn__hf_bool(const tarn__hf_reader *reader, json_t *object, const char *key, bool default_value, bool *value)
{
    json_t *found = json_object_get(object, key);
    *value = found && !json_is_null(found) ? json_is_true(found) : default_value;
    return !found || json_is_null(found) || json_is_boolean(found) ||
           tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"%s\" is neither true nor false", key);
}

/* A NUL would end the string early in C: it is an error rather than a shorter name. */
const char *tarn__hf_string(const tarn__hf_reader *reader, json_t *object, const char *key)
{
    json_t *found = json_object_get(object, key);
    const char *text = json_string_value(found);
    if (!text)
        tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"%s\" is missing, or not a string", key);
    else if (strlen(text) != json_string_length(found)) {
        tarn__hf_raise(reader, TARN_ERROR_FORMAT, "\"%s\" contains a NUL", key);
        text = NULL;
    }
    return text;
}

/* ---- vocabulary -------------------------------------------------------------------------------------------------- */

/* Adds one member of "vocab". Ids may have gaps, up to TARN__MAX_UNUSED_IDS: memory follows the largest one. `scratch`
 * has capacity for the longest text. */
static bool read_piece(const tarn__hf_reader *reader, const char *text, json_t *value, size_t entries, bool byte_level,
                       char *scratch)
{
    tarn__vocab *vocab = &reader->tokenizer->vocab;
    size_t length = strlen(text), count = 0;
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "the token '%.100s' has no id, an integer of at least 0",
                              text);
    json_int_t id = json_integer_value(value);
    if (id >= (json_int_t)(entries + TARN__MAX_UNUSED_IDS) || id >= INT32_MAX)
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "the token '%.100s' has the id %lld in a vocabulary of %zu",
                              text, (long long)id, entries);
    if (length == 0 || length > TARN__MAX_PIECE_BYTES)
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "token %lld has %zu bytes; it must have 1 to %zu",
                              (long long)id, length, TARN__MAX_PIECE_BYTES);
    if (tarn__vocab_has(vocab, id))
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "duplicate id %lld, for '%.100s'", (long long)id, text);
    /* The form of the text decides its kind: <0x0A> is a byte, other pieces have spaces as U+2581 or escaped bytes. A
     * text that is not a valid escape is literal, such as an added token that is in the vocabulary too. */
    if (vocab->metaspaced && tarn__byte_of_piece(text, length) >= 0)
        return tarn__vocab_add_byte(vocab, (int32_t)id, (unsigned char)tarn__byte_of_piece(text, length));
    if (vocab->metaspaced)
        return tarn__vocab_add_spm(vocab, (int32_t)id, text, length);
    bool is_escaped = byte_level && tarn__unicode_to_bytes(scratch, &count, text, length);
    return tarn__vocab_add(vocab, (int32_t)id, is_escaped ? scratch : text, is_escaped ? count : length, !is_escaped);
}

/* One scratch buffer, as long as the longest text, serves all pieces: unescaping never makes one longer. */
bool tarn__hf_read_vocab(const tarn__hf_reader *reader, json_t *vocabulary, bool byte_level)
{
    const char *text;
    json_t *value;
    size_t max_length = 0, entries = json_object_size(vocabulary);
    if (!json_is_object(vocabulary) || entries == 0)
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "the vocabulary is missing, empty, or not an object");
    json_object_foreach(vocabulary, text, value) max_length = strlen(text) > max_length ? strlen(text) : max_length;
    char *scratch = tarn__alloc(max_length + 1);
    if (!scratch)
        return false;
    json_object_foreach(vocabulary, text,
                        value) if (!read_piece(reader, text, value, entries, byte_level, scratch)) break;
    tarn__release(scratch, max_length + 1);
    return !tarn_failed();
}

/* ---- merges ------------------------------------------------------------------------------------------------------ */

bool tarn__hf_read_merge(const tarn__hf_reader *reader, size_t number, const char *left, size_t left_length,
                         const char *right, size_t right_length)
{
    return tarn__bpe_add_escaped(reader->tokenizer, "tokenizer_open", reader->name, number, left, left_length, right,
                                 right_length);
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */

/* "normalized" defaults to the opposite of "special", as in Hugging Face's tokenizers. */
bool tarn__hf_read_added_token(const tarn__hf_reader *reader, json_t *about, int64_t id)
{
    json_t *content = json_object_get(about, "content");
    tarn__added_token token = {.text = (char *)(uintptr_t)json_string_value(content),
                               .length = json_string_length(content),
                               .id = (int32_t)id};
    if (!token.text || id < 0 || id > INT32_MAX)
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "an added token has no \"content\" or no \"id\"");
    if (!tarn__hf_bool(reader, about, "special", false, &token.special) ||
        !tarn__hf_bool(reader, about, "normalized", !token.special, &token.normalized) ||
        !tarn__hf_bool(reader, about, "lstrip", false, &token.strip_left) ||
        !tarn__hf_bool(reader, about, "rstrip", false, &token.strip_right) ||
        !tarn__hf_bool(reader, about, "single_word", false, &token.single_word))
        return false;
    return tarn__added_add(reader->tokenizer, "tokenizer_open", reader->name, &token);
}

/* Keys are decimal ids: leading spaces and signs, which strtoll() accepts, are not. */
bool tarn__hf_read_added_tokens_decoder(const tarn__hf_reader *reader, json_t *list, tarn__hf_token_fn read)
{
    const char *text;
    json_t *about;
    json_object_foreach(list, text, about)
    {
        char *end;
        errno = 0;
        long long id = strtoll(text, &end, 10);
        bool is_number = text[0] >= '0' && text[0] <= '9' && *end == 0 && errno == 0;
        if (!read(reader, about, is_number ? id : -1))
            return false;
    }
    return true;
}

/* Regexes apply in the order of the file. */
bool tarn__hf_add_regex(const tarn__hf_reader *reader, const char *pattern)
{
    tarn__bpe *bpe = &reader->tokenizer->bpe;
    if (bpe->regex_count == TARN__MAX_REGEXES)
        return tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED, "the pre-tokenizer has more than %d patterns",
                              TARN__MAX_REGEXES);
    bpe->regex[bpe->regex_count] = tarn__regex_new("tokenizer_open", reader->name, pattern);
    bpe->regex_count += bpe->regex[bpe->regex_count] != NULL;
    return !tarn_failed();
}

/* ---- files of lines ---------------------------------------------------------------------------------------------- */

/* Lines may end in \r\n; the last may lack its end. *next is beyond the map at the end. */
size_t tarn__hf_line_at(const tarn__map *map, size_t at, size_t *next)
{
    const char *end = memchr(map->memory + at, '\n', map->bytes - at);
    size_t length = end ? (size_t)(end - map->memory) - at : map->bytes - at;
    *next = at + length + 1;
    return length > 0 && map->memory[at + length - 1] == '\r' ? length - 1 : length;
}

/* For formats of one piece a line. The map and the settings are closed in any case. */
tarn_tokenizer *tarn__hf_read_lines(const tarn__tokenizer_kind *kind, const char *path, const char *config,
                                    tarn__hf_lines_fn read)
{
    static const char function[] = "tokenizer_open";
    tarn__map map;
    if (!tarn__map_open(&map, function, path))
        return NULL;
    const tarn__hf_reader reader = {tarn__tokenizer_new(kind), path};
    json_t *settings = reader.tokenizer && config ? tarn__hf_load_json(config) : NULL;
    bool good = reader.tokenizer && (settings || !config) && read(&reader, &map, config, settings) &&
                tarn__tokenizer_finish(reader.tokenizer, function, path);
    json_decref(settings);
    tarn__map_close(&map);
    if (good)
        return reader.tokenizer;
    tarn_tokenizer_free(reader.tokenizer);
    return NULL;
}
