/* jsonl_read.c: lines of JSON as training samples (jsonl.h), and the text under a field.
 *
 * Members that would change the training text and are not supported (tools, weights, content in parts) are an error,
 * never ignored. Lines are checked for UTF-8 before jansson, whose error would name no byte. */
#include <jansson.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/files/jsonl.h"
#include "text/shards/shards.h"

/* ---- members ----------------------------------------------------------------------------------------------------- */

/* Names the first invalid byte, counted from 1. */
static bool check_utf8(const char *where, const char *bytes, size_t length)
{
    uint32_t code;
    for (size_t at = 0, size; at < length; at += size)
        if ((size = tarn__utf8_decode(bytes + at, length - at, &code)) == 0)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: byte %zu of the line (0x%02X) is not UTF-8", where, at + 1,
                               (unsigned)(unsigned char)bytes[at]);
    return true;
}

/* True for a text of whitespace only. */
static bool is_blank(const char *text)
{
    uint32_t code;
    size_t length = strlen(text), size;
    while ((size = tarn__utf8_decode(text, length, &code)) != 0 && tarn__is_space(code))
        text += size, length -= size;
    return length == 0;
}

/* The string of a member, borrowed; NULL with an error. */
static const char *string_of(const char *where, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (json_is_string(value))
        return json_string_value(value);
    tarn__raise(TARN_ERROR_FORMAT, "%s: \"%s\" %s", where, key, value ? "is not a string" : "is missing");
    return NULL;
}

/* True for a value that sets something: null, false, "", [] and {} do not. */
static bool is_set(const json_t *value)
{
    if (!value || json_is_null(value) || json_is_false(value))
        return false;
    return json_is_string(value) ? json_string_length(value) > 0
                                 : !(json_is_array(value) && json_array_size(value) == 0) &&
                                       !(json_is_object(value) && json_object_size(value) == 0);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Raises an error for members other than role and content: their meaning would be lost. */
static bool check_members(const char *where, json_t *message, size_t number)
{
    const char *key;
    json_t *value;
    json_object_foreach(message, key, value) if (
        strcmp(key, "role") != 0 && strcmp(key, "content") != 0 &&
        is_set(value)) return tarn__raise(TARN_ERROR_FORMAT,
                                          "%s: message %zu has \"%.60s\"; only \"role\" and \"content\" are supported",
                                          where, number, key);
    return true;
}

/* Templates know these three roles. */
static bool check_role(const char *where, const char *role, size_t number)
{
    return strcmp(role, "system") == 0 || strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0 ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu has the role '%.60s'; it must be system, user or assistant",
                       where, number, role);
}

/* Reads a message; its strings are borrowed from the tree. An empty completion would train the model to say nothing. */
static bool read_message(const char *where, json_t *value, size_t number, tarn_chat_message *to)
{
    const json_t *role = json_object_get(value, "role"), *content = json_object_get(value, "content");
    if (!json_is_object(value))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu is not an object", where, number);
    if (!json_is_string(role))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu has no string \"role\"", where, number);
    if (!json_is_string(content))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu has no string \"content\"", where, number);
    *to = (tarn_chat_message){json_string_value(role), json_string_value(content)};
    if (!check_role(where, to->role, number) || !check_members(where, value, number))
        return false;
    return strcmp(to->role, "assistant") != 0 || !is_blank(to->content) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu is an empty completion", where, number);
}

/* Reserves an array of messages. Old ones need not be copied: they belong to the last line. */
static bool reserve_messages(tarn__jsonl_sample *line, size_t count)
{
    if ((size_t)line->capacity >= count)
        return true;
    tarn__release(line->messages, sizeof(*line->messages) * (size_t)line->capacity);
    line->messages = tarn__alloc(sizeof(*line->messages) * count);
    line->capacity = line->messages ? (int)count : 0;
    return line->messages != NULL;
}

/* Reads "messages". At least one must be the assistant's: the loss counts completions only. */
static bool read_messages(tarn__jsonl_sample *line, const char *where, const json_t *list)
{
    size_t count = json_array_size(list), answers = 0;
    if (!json_is_array(list) || count == 0 || count > 100000)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: \"messages\" must be an array of 1 to 100000 messages", where);
    if (!reserve_messages(line, count))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!read_message(where, json_array_get(list, i), i + 1, &line->messages[i]))
            return false;
        answers += strcmp(line->messages[i].role, "assistant") == 0;
    }
    line->count = (int)count;
    return answers > 0 ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: no message has the role assistant: there is nothing to train on", where);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Reads {"prompt", "completion"}; the prompt may be empty. */
static bool read_prompt(tarn__jsonl_sample *line, const char *where, const json_t *root)
{
    line->prompt = string_of(where, root, "prompt");
    line->completion = line->prompt ? string_of(where, root, "completion") : NULL;
    return line->completion &&
           (!is_blank(line->completion) || tarn__raise(TARN_ERROR_FORMAT, "%s: \"completion\" is empty", where));
}

static bool read_text(tarn__jsonl_sample *line, const char *where, const json_t *root)
{
    line->text = string_of(where, root, "text");
    return line->text && (!is_blank(line->text) || tarn__raise(TARN_ERROR_FORMAT, "%s: \"text\" is empty", where));
}

/* Decides which of the three forms a line has; none or several are an error. */
static bool read_object(tarn__jsonl_sample *line, const char *where, const json_t *root)
{
    const json_t *messages = json_object_get(root, "messages");
    bool prompts = json_object_get(root, "prompt") || json_object_get(root, "completion"),
         texts = json_object_get(root, "text") != NULL;
    if (!json_is_object(root))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: the line is not a JSON object", where);
    if ((messages != NULL) + prompts + texts != 1)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: a line has %s of \"messages\", \"prompt\" with \"completion\", and \"text\"", where,
                           messages || prompts || texts ? "more than one" : "none");
    if (is_set(json_object_get(root, "tools")) || is_set(json_object_get(root, "functions")))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: the line has tools, which are not supported", where);
    if (messages)
        return read_messages(line, where, messages);
    return prompts ? read_prompt(line, where, root) : read_text(line, where, root);
}

/* Drops the last line but keeps the memory of its messages. */
static void clear(tarn__jsonl_sample *line)
{
    json_decref(line->root);
    *line = (tarn__jsonl_sample){.messages = line->messages, .capacity = line->capacity};
}

/* Any JSON value is parsed, so that a line that is not an object gets its own message. */
bool tarn__jsonl_sample_read(tarn__jsonl_sample *line, const char *where, const char *bytes, size_t length)
{
    json_error_t error;
    clear(line);
    if (!check_utf8(where, bytes, length))
        return false;
    line->root = json_loadb(bytes, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!line->root)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: column %d: not JSON: %s", where, error.column, error.text);
    return read_object(line, where, line->root);
}

void tarn__jsonl_sample_free(tarn__jsonl_sample *line)
{
    clear(line);
    tarn__release(line->messages, sizeof(*line->messages) * (size_t)line->capacity);
    *line = (tarn__jsonl_sample){0};
}

/* Unlike samples, documents may contain NUL: their text is used with its length. */
bool tarn__jsonl_text(const char *function, tarn__buffer *text, const char *line, size_t length, const char *field,
                      const char *path, int64_t number)
{
    json_error_t error;
    json_t *root = json_loadb(line, length, JSON_ALLOW_NUL, &error), *found = json_object_get(root, field);
    bool good = false;
    if (!root)
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s', line %lld, column %d: %s", function, path, (long long)number,
                    error.column, error.text);
    else if (!json_is_string(found))
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s', line %lld: no object with a string \"%.100s\"", function, path,
                    (long long)number, field);
    else
        good = tarn__buffer_add(text, json_string_value(found), json_string_length(found), 1);
    json_decref(root);
    return good;
}
