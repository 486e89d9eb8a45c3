/* jsonl_read.c: see jsonl.h. What would change the text that is learnt and is not known here (tools, weights, parts of
 * other kinds) is refused, not passed over. */
#include <jansson.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/files/jsonl.h"
#include "text/shards/shards.h"

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static bool check_utf8(const char *where, const char *bytes, size_t length)
{
    uint32_t code;
    for (size_t at = 0, size; at < length; at += size)
        if ((size = tarn__utf8_decode(bytes + at, length - at, &code)) == 0)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: byte %zu of the line (0x%02X) is no UTF-8", where, at + 1,
                               (unsigned)(unsigned char)bytes[at]);
    return true;
}

/* True when there is nothing but spaces. */
static bool is_blank(const char *text)
{
    uint32_t code;
    size_t length = strlen(text), size;
    while ((size = tarn__utf8_decode(text, length, &code)) != 0 && tarn__is_space(code))
        text += size, length -= size;
    return length == 0;
}

/* The text of a member; NULL with an error. */
static const char *text_of(const char *where, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (json_is_string(value))
        return json_string_value(value);
    tarn__raise(TARN_ERROR_FORMAT, "%s: \"%s\" %s", where, key, value ? "is no text" : "is missing");
    return NULL;
}

/* True when a member says something: null, false, "", [] and {} do not. */
static bool says_something(const json_t *value)
{
    if (!value || json_is_null(value) || json_is_false(value))
        return false;
    return json_is_string(value) ? json_string_length(value) > 0
                                 : !(json_is_array(value) && json_array_size(value) == 0) &&
                                       !(json_is_object(value) && json_object_size(value) == 0);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static bool check_members(const char *where, json_t *message, size_t number)
{
    const char *key;
    json_t *value;
    json_object_foreach(
        message, key,
        value) if (strcmp(key, "role") != 0 && strcmp(key, "content") != 0 &&
                   says_something(
                       value)) return tarn__raise(TARN_ERROR_FORMAT,
                                                  "%s: message %zu has \"%.60s\"; messages have a \"role\" and "
                                                  "a \"content\", and others would be lost",
                                                  where, number, key);
    return true;
}

static bool check_role(const char *where, const char *role, size_t number)
{
    return strcmp(role, "system") == 0 || strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0 ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu has the role '%.60s'; there are system, user and assistant",
                       where, number, role);
}

static bool read_message(const char *where, json_t *value, size_t number, tarn_chat_message *to)
{
    const json_t *role = json_object_get(value, "role"), *content = json_object_get(value, "content");
    if (!json_is_object(value))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu is no object", where, number);
    if (!json_is_string(role))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu has no role: a text under \"role\"", where, number);
    if (!json_is_string(content))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu has no content: a text under \"content\"", where,
                           number);
    *to = (tarn_chat_message){json_string_value(role), json_string_value(content)};
    if (!check_role(where, to->role, number) || !check_members(where, value, number))
        return false;
    return strcmp(to->role, "assistant") != 0 || !is_blank(to->content) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu is an empty answer", where, number);
}

static bool make_room(tarn__jsonl_sample *line, size_t count)
{
    if ((size_t)line->room >= count)
        return true;
    tarn__release(line->messages, sizeof(*line->messages) * (size_t)line->room);
    line->messages = tarn__alloc(sizeof(*line->messages) * count);
    line->room = line->messages ? (int)count : 0;
    return line->messages != NULL;
}

static bool read_messages(tarn__jsonl_sample *line, const char *where, const json_t *list)
{
    size_t count = json_array_size(list), answers = 0;
    if (!json_is_array(list) || count == 0 || count > 100000)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: \"messages\" is no list of 1 to 100000 messages", where);
    if (!make_room(line, count))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!read_message(where, json_array_get(list, i), i + 1, &line->messages[i]))
            return false;
        answers += strcmp(line->messages[i].role, "assistant") == 0;
    }
    line->count = (int)count;
    return answers > 0 ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: none of the messages is of the assistant, so there is nothing to learn",
                       where);
}

/* ---- the line ---------------------------------------------------------------------------------------------------- */

static bool read_prompt(tarn__jsonl_sample *line, const char *where, const json_t *root)
{
    line->prompt = text_of(where, root, "prompt");
    line->completion = line->prompt ? text_of(where, root, "completion") : NULL;
    return line->completion && (!is_blank(line->completion) ||
                                tarn__raise(TARN_ERROR_FORMAT, "%s: \"completion\" is an empty answer", where));
}

static bool read_text(tarn__jsonl_sample *line, const char *where, const json_t *root)
{
    line->text = text_of(where, root, "text");
    return line->text && (!is_blank(line->text) || tarn__raise(TARN_ERROR_FORMAT, "%s: \"text\" is empty", where));
}

static bool read_object(tarn__jsonl_sample *line, const char *where, const json_t *root)
{
    const json_t *messages = json_object_get(root, "messages");
    bool prompts = json_object_get(root, "prompt") || json_object_get(root, "completion"),
         texts = json_object_get(root, "text") != NULL;
    if (!json_is_object(root))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: the line is no object: {…}", where);
    if ((messages != NULL) + prompts + texts != 1)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: a line has %s of \"messages\", \"prompt\" with \"completion\", and \"text\"", where,
                           messages || prompts || texts ? "more than one" : "none");
    if (says_something(json_object_get(root, "tools")) || says_something(json_object_get(root, "functions")))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: the line has tools, which tarn's templates do not write", where);
    if (messages)
        return read_messages(line, where, messages);
    return prompts ? read_prompt(line, where, root) : read_text(line, where, root);
}

/* Forgets the last line; the memory stays. */
static void clear(tarn__jsonl_sample *line)
{
    json_decref(line->root);
    *line = (tarn__jsonl_sample){.messages = line->messages, .room = line->room};
}

bool tarn__jsonl_sample_read(tarn__jsonl_sample *line, const char *where, const char *bytes, size_t length)
{
    json_error_t error;
    clear(line);
    if (!check_utf8(where, bytes, length))
        return false;
    line->root = json_loadb(bytes, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!line->root)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: column %d: no JSON: %s", where, error.column, error.text);
    return read_object(line, where, line->root);
}

void tarn__jsonl_sample_free(tarn__jsonl_sample *line)
{
    clear(line);
    tarn__release(line->messages, sizeof(*line->messages) * (size_t)line->room);
    *line = (tarn__jsonl_sample){0};
}

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
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s', line %lld: no object with a text under \"%.100s\"", function, path,
                    (long long)number, field);
    else
        good = tarn__buffer_add(text, json_string_value(found), json_string_length(found), 1);
    json_decref(root);
    return good;
}
