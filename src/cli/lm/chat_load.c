/* chat_load.c: conversations from files, for /load.
 *
 * A file is one JSON object with the array "messages", as a line of training data: roles system, user, assistant and
 * tool, contents as strings; other members of a message, such as "tool_calls", are kept as they are. Files come from
 * anywhere: jansson bounds their depth, and the whole file is checked before the conversation is replaced. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/lm/chat.h"

#define MAX_MESSAGES 100000

/* The literal of a role; NULL: there is no such role. */
static const char *role_of(const char *text)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    for (size_t i = 0; text && i < sizeof(roles) / sizeof(roles[0]); i++)
        if (strcmp(text, roles[i]) == 0)
            return roles[i];
    return NULL;
}

/* Members besides role and content, as text after a comma; "" without any. The caller frees it. NULL without memory. */
static char *others_of(json_t *message)
{
    tarn__input text = {0};
    const char *key;
    json_t *value;
    bool good = tarn__input_add(&text, "", 0);
    json_object_foreach(message, key, value)
    {
        if (strcmp(key, "role") == 0 || strcmp(key, "content") == 0)
            continue;
        json_t *name = json_string(key);
        char *quoted = json_dumps(name, JSON_ENCODE_ANY), *dumped = json_dumps(value, JSON_ENCODE_ANY);
        good = good && quoted && dumped && tarn__input_add(&text, ", ", 2) &&
               tarn__input_add(&text, quoted, strlen(quoted)) && tarn__input_add(&text, ": ", 2) &&
               tarn__input_add(&text, dumped, strlen(dumped));
        free(quoted);
        free(dumped);
        json_decref(name);
    }
    if (!good)
        free(text.text);
    return good ? text.text : NULL;
}

/* Appends a message of the file. False with an error. */
static bool add_message(tarn__history *h, const char *path, json_t *message, size_t index)
{
    json_t *content = json_object_get(message, "content");
    const char *role = role_of(json_string_value(json_object_get(message, "role")));
    const char *text = json_is_null(content) ? "" : json_string_value(content);
    if (!role)
        return tarn_set_error(TARN_ERROR_FORMAT, "'%s': message %zu: the role must be system, user, assistant or tool",
                              path, index + 1);
    if (!text || (!json_is_null(content) && strlen(text) != json_string_length(content)))
        return tarn_set_error(TARN_ERROR_FORMAT, "'%s': message %zu: the content must be a string without a zero byte",
                              path, index + 1);
    if (strcmp(role, "system") == 0 && index > 0)
        return tarn_set_error(TARN_ERROR_FORMAT, "'%s': message %zu: a system message must be the first", path,
                              index + 1);
    char *others = others_of(message);
    bool good = others && tarn__history_add(h, role, text, others[0] ? others : NULL);
    free(others);
    return good || tarn_set_error(TARN_ERROR_MEMORY, "'%s' cannot be loaded: out of memory", path);
}

static bool add_messages(tarn__history *h, const char *path, json_t *messages, int *calls, int *pending)
{
    size_t count = json_array_size(messages);
    if (count == 0 || count > MAX_MESSAGES)
        return tarn_set_error(TARN_ERROR_FORMAT, "'%s' is not a conversation: %s; expected {\"messages\": [...]}", path,
                              count ? "it has over 100000 messages" : "it has no messages");
    for (size_t i = 0; i < count; i++) {
        json_t *message = json_array_get(messages, i);
        if (!add_message(h, path, message, i))
            return false;
        const char *role = h->messages[h->count - 1].role;
        int own = (int)json_array_size(json_object_get(message, "tool_calls"));
        *calls += own;
        *pending = strcmp(role, "tool") == 0 ? *pending - (*pending > 0) : own;
    }
    return true;
}

bool tarn__history_load(tarn__history *history, const char *path, int *calls, int *pending)
{
    json_error_t reason;
    tarn__history loaded = {0};
    int all = 0, open = 0;
    FILE *file = tarn__input_regular(path);
    if (!file)
        return tarn_set_error(TARN_ERROR_IO, "'%s' cannot be opened as a file", path);
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &reason);
    fclose(file);
    bool good = root ? add_messages(&loaded, path, json_object_get(root, "messages"), &all, &open)
                     : tarn_set_error(TARN_ERROR_FORMAT, "'%s' is not a conversation: line %d: %s", path, reason.line,
                                      reason.text);
    json_decref(root);
    if (!good) {
        tarn__history_free(&loaded);
        return false;
    }
    tarn__history_free(history);
    *history = loaded;
    *calls = all;
    *pending = open;
    return true;
}
