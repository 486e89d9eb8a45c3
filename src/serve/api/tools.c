/* tools.c: tools of a chat: the functions that a request offers, and the calls of them in answers.
 *
 * A call is taken for one only if it names a function of the request; other JSON in an answer is text. Ids are made
 * here, whatever the model has written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "serve/api/api_private.h"
#include "serve/api/prepare.h"

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* "auto" is what a model does; "none" hides the tools from it. */
bool tarn__api_read_tools(tarn__api_job *job, tarn__body *f)
{
    json_t *tools = tarn__body_member(f, "tools"), *tool;
    size_t i;
    bool parallel = true, is_none = false;
    if (!tarn__body_bool(f, "parallel_tool_calls", &parallel))
        return false;
    job->is_single = !parallel;
    if (tools && !json_is_array(tools))
        return tarn__api_refuse(&job->error, 400, NULL, "tools", "tools must be an array of functions");
    if (!tarn__api_read_choice(job, f, tools, &is_none))
        return false;
    if (!json_array_size(tools))
        return true;
    json_array_foreach(tools, i, tool)
    {
        bool is_strict = json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
        if (is_strict && !is_none && !job->forces_call)
            return tarn__api_refuse(&job->error, 400, "unsupported_parameter", "tools",
                                    "tools[%zu].function.strict: true needs a tool_choice that demands a call", i);
    }
    job->tools = json_dumps(tools, JSON_COMPACT);
    if (!job->tools)
        return false;
    if (!tarn_chat_check_tools(job->tools))
        return tarn__api_refuse_by_library(&job->error, 400, "tools");
    if (is_none) {
        free(job->tools);
        job->tools = NULL;
    }
    return true;
}

/* OpenAI's arguments are a string of JSON, {"arguments": "{\"a\": 1}"}; what is no object in there is left as it is. */
bool tarn__api_read_calls(tarn__api_job *job, json_t *message, size_t i)
{
    size_t k;
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return tarn__api_refuse(&job->error, 400, NULL, "messages", "messages[%zu].tool_calls must be an array", i);
    json_array_foreach(calls, k, call)
    {
        json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
        if (!json_is_string(json_object_get(function, "name")))
            return tarn__api_refuse(&job->error, 400, NULL, "messages",
                                    "messages[%zu].tool_calls[%zu] must be an object with a function and its name", i,
                                    k);
        if (!json_is_string(arguments))
            continue;
        json_t *object = json_loadb(json_string_value(arguments), json_string_length(arguments), 0, NULL);
        if (json_is_object(object) && json_object_set(function, "arguments", object) != 0) {
            json_decref(object);
            return false;
        }
        json_decref(object);
    }
    return true;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* Arguments are the JSON of an object, in a string; a model may have written that string itself. */
static json_t *arguments_string(const tarn_tool_call *call)
{
    json_t *value = json_loadb(call->arguments, call->arguments_length, JSON_DECODE_ANY, NULL);
    if (json_is_string(value))
        return value;
    json_decref(value);
    return tarn__api_string(call->arguments, call->arguments_length);
}

/* Ids have nine letters and digits, which some templates demand. */
static json_t *call_entry(const tarn_tool_call *call)
{
    static const char characters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    char id[10] = "";
    uint64_t number = 0;
    if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number))
        return NULL;
    for (int i = 0; i < 9; i++, number /= 62)
        id[i] = characters[number % 62];
    return json_pack("{s:s,s:s,s:{s:o,s:o}}", "id", id, "type", "function", "function", "name",
                     tarn__api_string(call->name, call->name_length), "arguments", arguments_string(call));
}

json_t *tarn__api_calls(const tarn__api_job *job, const tarn__api_choice *c, size_t *content)
{
    tarn_tool_call call;
    size_t at = 0;
    json_t *calls = NULL;
    while (job->tools && c->text && tarn_chat_find_call(job->tools, c->text + at, c->length - at, &call)) {
        if (!calls) {
            *content = tarn_chat_content_length(c->text, at + call.begin);
            calls = json_array();
        }
        json_array_append_new(calls, call_entry(&call));
        at += call.end;
    }
    tarn_clear_error();
    return calls;
}
