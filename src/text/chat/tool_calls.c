/* tool_calls.c: functions that a model may call, in OpenAI's format, and calls in its answers.
 *
 * Models write calls in many forms: between <tool_call> tags, after [TOOL_CALLS], bare. Common to most is a JSON object
 * with the name of a function and its arguments (or parameters), which is searched here; what surrounds it does not
 * matter. Strings are compared as they are written, with their escapes. */
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "text/chat/chat.h"

#define MAX_DEPTH 64

/* Bytes of a text. */
typedef struct span {
    const char *begin, *end;
} span;

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
        at++;
    return at;
}

/* After a string that begins at `at`; NULL: there is none. */
static const char *skip_string(const char *at, const char *end)
{
    if (at >= end || *at != '"')
        return NULL;
    for (at++; at < end && *at != '"'; at++) {
        if ((unsigned char)*at < 0x20)
            return NULL;
        at += *at == '\\' && at + 1 < end;
    }
    return at < end ? at + 1 : NULL;
}

static const char *skip_value(const char *at, const char *end, int depth);

/* One member of an object: its name and value, after both; NULL: not valid. */
static const char *skip_member(const char *at, const char *end, int depth, span *name, span *value)
{
    name->begin = at;
    name->end = at = skip_string(at, end);
    at = at ? skip_space(at, end) : NULL;
    if (!at || at >= end || *at != ':')
        return NULL;
    value->begin = skip_space(at + 1, end);
    return value->end = skip_value(value->begin, end, depth + 1);
}

/* After an object or array that begins at `at`; NULL: not valid. */
static const char *skip_list(const char *at, const char *end, int depth)
{
    bool is_object = *at == '{';
    char close = is_object ? '}' : ']';
    span name, value;
    at = skip_space(at + 1, end);
    if (at < end && *at == close)
        return at + 1;
    for (;;) {
        at = is_object ? skip_member(at, end, depth, &name, &value) : skip_value(at, end, depth + 1);
        at = at ? skip_space(at, end) : NULL;
        if (!at || at >= end || (*at != ',' && *at != close))
            return NULL;
        if (*at == close)
            return at + 1;
        at = skip_space(at + 1, end);
    }
}

/* After any value; numbers and words are not checked. */
static const char *skip_value(const char *at, const char *end, int depth)
{
    if (at >= end || depth > MAX_DEPTH)
        return NULL;
    if (*at == '"')
        return skip_string(at, end);
    if (*at == '{' || *at == '[')
        return skip_list(at, end, depth);
    const char *begin = at;
    while (at < end && ((*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'z') || (*at && strchr("+-.E", *at))))
        at++;
    return at > begin ? at : NULL;
}

/* The value of a member of an object that is valid. False: none. */
static bool find_member(span object, const char *key, span *found)
{
    span name, value;
    size_t length = strlen(key);
    const char *at = skip_space(object.begin + 1, object.end);
    while (at < object.end && *at == '"' && (at = skip_member(at, object.end, 0, &name, &value)) != NULL) {
        if ((size_t)(name.end - name.begin) == length + 2 && memcmp(name.begin + 1, key, length) == 0) {
            *found = value;
            return true;
        }
        at = skip_space(at, object.end);
        at = skip_space(at + (*at == ','), object.end);
    }
    return false;
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

/* The name of a function of the list, with its quotes: of its "function", or its own. False: none. */
static bool name_of(span tool, span *name)
{
    span function = tool;
    if (*tool.begin != '{')
        return false;
    if (!find_member(tool, "function", &function) || *function.begin != '{')
        function = tool;
    return find_member(function, "name", name) && *name->begin == '"' && name->end - name->begin > 2;
}

/* The next element of an array; *at begins after the bracket or comma. False: none. */
static bool next_element(const char **at, const char *end, span *element)
{
    element->begin = skip_space(*at, end);
    if (element->begin >= end || *element->begin == ']' || !(element->end = skip_value(element->begin, end, 0)))
        return false;
    *at = skip_space(element->end, end);
    *at += *at < end && **at == ',';
    return true;
}

/* The JSON is read as the template's is, so that one message covers all that can be wrong with it. */
static bool check_json(const char *function, const char *tools)
{
    static const tarn_chat_message none[1];
    tarn__jinja_context *context = tarn__jinja_context_messages("", none, 0, false);
    bool good = context && tarn__jinja_context_set_json("", context, "tools", tools, strlen(tools));
    tarn__jinja_context_free(context);
    return good || tarn__raise_within(function);
}

bool tarn_chat_check_tools(const char *tools)
{
    static const char function[] = "chat_check_tools";
    span element, name;
    if (tarn_failed())
        return false;
    if (!tools)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: tools is NULL", function);
    if (!check_json(function, tools))
        return false;
    const char *end = tools + strlen(tools), *at = skip_space(tools, end);
    if (at >= end || *at != '[')
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: tools must be a JSON array of functions: [{\"type\": \"function\", \"function\": "
                           "{\"name\": …, \"parameters\": …}}]",
                           function);
    int count = 0;
    for (at++; next_element(&at, end, &element); count++)
        if (!name_of(element, &name))
            return tarn__raise(TARN_ERROR_FORMAT,
                               "%s: element %d of tools is not a function: it has no string \"name\", itself or in "
                               "\"function\"",
                               function, count + 1);
    return count > 0 || tarn__raise(TARN_ERROR_FORMAT, "%s: tools is an empty array", function);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* True if the list has a function of that name, with its quotes. */
static bool has_function(const char *tools, span wanted)
{
    span element, name;
    const char *end = tools + strlen(tools), *at = skip_space(tools, end);
    size_t length = (size_t)(wanted.end - wanted.begin);
    for (at += at < end; next_element(&at, end, &element);)
        if (name_of(element, &name) && (size_t)(name.end - name.begin) == length &&
            memcmp(name.begin, wanted.begin, length) == 0)
            return true;
    return false;
}

/* True if a valid object calls a function of the list. */
static bool is_call(const char *tools, span object, span *name, span *arguments)
{
    return find_member(object, "name", name) && *name->begin == '"' &&
           (find_member(object, "arguments", arguments) || find_member(object, "parameters", arguments)) &&
           (*arguments->begin == '{' || *arguments->begin == '"') && has_function(tools, *name);
}

/* Objects inside others are looked at too: {"function": {"name": …}}. */
bool tarn_chat_find_call(const char *tools, const char *text, size_t length, tarn_tool_call *call)
{
    const char *end = text + length;
    int tries = 0;
    if (!tools || !text || !call)
        return false;
    for (const char *at = text; (at = memchr(at, '{', (size_t)(end - at))) != NULL && tries < 1000; at++, tries++) {
        span object = {at, skip_value(at, end, 0)}, name, arguments;
        if (!object.end || !is_call(tools, object, &name, &arguments))
            continue;
        *call = (tarn_tool_call){.name = name.begin + 1,
                                 .name_length = (size_t)(name.end - name.begin) - 2,
                                 .arguments = arguments.begin,
                                 .arguments_length = (size_t)(arguments.end - arguments.begin),
                                 .begin = (size_t)(object.begin - text),
                                 .end = (size_t)(object.end - text)};
        return true;
    }
    return false;
}

/* ---- text before a call ------------------------------------------------------------------------------------------ */

/* Whether a text in brackets announces a call, as <tool_call>, [TOOL_CALLS], <|python_tag|> or <function=…> do. */
static bool is_call_tag(const char *text, size_t length)
{
    static const char *const words[] = {"tool", "function", "python"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        for (size_t at = 0; at + strlen(words[i]) <= length; at++)
            if (strncasecmp(text + at, words[i], strlen(words[i])) == 0)
                return true;
    return false;
}

/* Tags are looked for within 40 bytes. */
size_t tarn_chat_content_length(const char *text, size_t length)
{
    if (!text)
        return 0;
    for (size_t before = length + 1; before != length;) {
        before = length;
        while (length && strchr(" \t\r\n", text[length - 1]))
            length--;
        char last = length ? text[length - 1] : 0, open = last == '>' ? '<' : last == ']' ? '[' : 0;
        size_t begin = length;
        while (open && begin > 0 && length - begin < 40 && text[begin - 1] != open)
            begin--;
        if (open && begin > 0 && text[begin - 1] == open && is_call_tag(text + begin, length - begin))
            length = begin - 1;
        else if (last == '[')
            length--;
    }
    return length;
}
