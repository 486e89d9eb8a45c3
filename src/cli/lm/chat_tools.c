/* chat_tools.c: messages of `tarn chat`, calls of tools in answers, and their results.
 *
 * Messages with tools go through the template as JSON, since calls are objects in them; `more` of a message is the
 * text of its further members, which begins with a comma. Names and arguments of calls are copied as the model has
 * written them: the search for calls has parsed them as JSON. */
#include "cli/lm/chat_tools.h"

#include <stdlib.h>
#include <string.h>

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Content and members are copied; the role is a literal. */
bool tarn__history_add(tarn__history *h, const char *role, const char *content, const char *more)
{
    if (!tarn__input_reserve(&h->messages, (size_t)h->count, &h->capacity, 1, sizeof(*h->messages)) ||
        !tarn__input_reserve(&h->more, (size_t)h->count, &h->more_capacity, 1, sizeof(*h->more)))
        return false;
    char *copy = strdup(content), *members = more ? strdup(more) : NULL;
    bool good = copy && (members || !more);
    if (good) {
        h->messages[h->count] = (tarn_chat_message){.role = role, .content = copy};
        h->more[h->count++] = members;
        return true;
    }
    free(copy);
    free(members);
    return false;
}

void tarn__history_remove(tarn__history *h, int first, int count)
{
    for (int i = first; i < first + count; i++) {
        free((void *)(uintptr_t)h->messages[i].content);
        free(h->more[i]);
    }
    size_t after = (size_t)(h->count - first - count);
    if (count > 0) {
        memmove(h->messages + first, h->messages + first + count, sizeof(*h->messages) * after);
        memmove(h->more + first, h->more + first + count, sizeof(*h->more) * after);
    }
    h->count -= count;
}

void tarn__history_free(tarn__history *h)
{
    tarn__history_remove(h, 0, h->count);
    free(h->messages);
    free(h->more);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static bool put(tarn__input *out, const char *text)
{
    return tarn__input_add(out, text, strlen(text));
}

/* A quoted string. */
static bool put_string(tarn__input *out, const char *text)
{
    bool good = put(out, "\"");
    for (const char *at = text; good && *at; at++) {
        char escaped[8] = {*at, 0};
        if (*at == '"' || *at == '\\')
            snprintf(escaped, sizeof(escaped), "\\%c", *at);
        else if ((unsigned char)*at < 0x20)
            snprintf(escaped, sizeof(escaped), "\\u%04x", (unsigned)*at);
        good = put(out, escaped);
    }
    return good && put(out, "\"");
}

/* Messages as an array. */
static bool put_messages(tarn__input *out, const tarn__history *h, int count)
{
    bool good = put(out, "[");
    for (int i = 0; good && i < count; i++)
        good = put(out, i ? ", {\"role\": " : "{\"role\": ") && put_string(out, h->messages[i].role) &&
               put(out, ", \"content\": ") && put_string(out, h->messages[i].content) &&
               put(out, h->more[i] ? h->more[i] : "") && put(out, "}");
    return good && put(out, "]");
}

bool tarn__history_json(const tarn__history *h, tarn__input *json)
{
    return put(json, "{\"messages\": ") && put_messages(json, h, h->count) && put(json, "}\n");
}

int32_t *tarn__history_encode(const tarn__history *h, int count, const tarn_tokenizer *tokenizer, const char *tools,
                              bool add_generation_prompt, int64_t *id_count)
{
    if (!tools)
        return tarn_chat_encode(tokenizer, h->messages, count, add_generation_prompt, id_count);
    tarn__input json = {0};
    const tarn_chat_options options = {.add_generation_prompt = add_generation_prompt, .tools = tools};
    int32_t *ids = put_messages(&json, h, count)
                       ? tarn_chat_encode_json(tokenizer, json.text, json.length, &options, NULL, id_count)
                       : NULL;
    free(json.text);
    return ids;
}

/* ---- tools ------------------------------------------------------------------------------------------------------- */

int tarn__tools_read(const char *path, tarn__input *tools)
{
    int status = tarn__input_file(tools, "chat", path);
    if (status != TARN__DONE)
        return status;
    if (strlen(tools->text) == tools->length && tarn_chat_check_tools(tools->text))
        return TARN__DONE;
    /* without the names of functions before it */
    const char *reason = tarn_failed() ? strstr(tarn_error(), "tools") : NULL;
    fprintf(stderr, "tarn chat: --tools '%s': %s\n", tarn__escaped(path),
            reason          ? reason
            : tarn_failed() ? tarn_error()
                            : "the file has a zero byte");
    tarn_clear_error();
    return TARN__FAILED;
}

/* "call00001": templates of Mistral want nine letters and digits. */
static void name_call(char *id, size_t size, int number)
{
    snprintf(id, size, "call%05d", number % 100000);
}

/* One call as a member of "tool_calls". */
static bool put_call(tarn__input *out, const tarn_tool_call *call, bool is_first, int number)
{
    char id[32];
    name_call(id, sizeof(id), number);
    return put(out, is_first ? ", \"tool_calls\": [" : ", ") && put(out, "{\"id\": \"") && put(out, id) &&
           put(out, "\", \"type\": \"function\", \"function\": {\"name\": \"") &&
           tarn__input_add(out, call->name, call->name_length) && put(out, "\", \"arguments\": ") &&
           tarn__input_add(out, call->arguments, call->arguments_length) && put(out, "}}");
}

/* Returns the number of calls, -1 without memory. `*number` counts the calls of the conversation, by which results
 * name theirs. */
int tarn__history_add_answer(tarn__history *h, const char *answer, const char *tools, int *number)
{
    tarn__input calls = {0};
    tarn_tool_call call;
    size_t at = 0, length = strlen(answer), content = length;
    int count = 0;
    bool good = true;
    while (good && tools && tarn_chat_find_call(tools, answer + at, length - at, &call)) {
        content = count ? content : tarn_chat_content_length(answer, at + call.begin);
        good = put_call(&calls, &call, count == 0, *number + count);
        at += call.end;
        count++;
    }
    good = good && (!count || put(&calls, "]"));
    char *text = good ? strndup(answer, content) : NULL;
    good = text && tarn__history_add(h, "assistant", text, count ? calls.text : NULL);
    free(text);
    free(calls.text);
    *number += good ? count : 0;
    return good ? count : -1;
}

bool tarn__history_add_result(tarn__history *h, const char *result, int number, const char *name)
{
    char id[32];
    tarn__input more = {0};
    name_call(id, sizeof(id), number);
    bool good =
        put(&more, "") && (!name || (put(&more, ", \"name\": \"") && put(&more, name) &&
                                     put(&more, "\", \"tool_call_id\": \"") && put(&more, id) && put(&more, "\"")));
    good = good && tarn__history_add(h, "tool", result, more.text);
    free(more.text);
    return good;
}
