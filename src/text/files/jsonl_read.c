/* jsonl_read.c: lines of JSON as training samples (jsonl.h), and the text under a field.
 *
 * ShareGPT's conversations, and Alpaca's lines with a system message or a history, become messages; other Alpaca lines
 * and questions become prompts with completions.
 *
 * Members that would change the training text and are not supported (images, function_call) are an error, never
 * ignored. What else a message has is the template's to use. Lines are checked for UTF-8 before jansson, whose error
 * would name no byte. */
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

/* Checks content in parts, of which only texts are supported. *blank becomes false if one says something. */
static bool check_parts(const char *where, const json_t *content, size_t number, bool *blank)
{
    size_t index;
    json_t *part;
    json_array_foreach(content, index, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const char *text = json_string_value(json_object_get(part, "text"));
        if (!type || strcmp(type, "text") != 0 || !text)
            return tarn__raise(TARN_ERROR_FORMAT,
                               "%s: part %zu of message %zu has the type '%.60s'; only {\"type\": \"text\", \"text\": "
                               "…} is supported",
                               where, index + 1, number, type ? type : "");
        *blank = *blank && is_blank(text);
    }
    return true;
}

/* Checks the content: a string, parts, or none beside tool calls. */
static bool check_content(const char *where, const json_t *message, size_t number, bool *blank)
{
    const json_t *content = json_object_get(message, "content");
    bool has_calls = is_set(json_object_get(message, "tool_calls"));
    *blank = json_is_string(content) ? is_blank(json_string_value(content)) : true;
    if (json_is_array(content))
        return check_parts(where, content, number, blank);
    return json_is_string(content) || (has_calls && (!content || json_is_null(content))) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu has no \"content\", a string or an array of parts", where,
                       number);
}

/* Checks members whose meaning would be lost. */
static bool check_members(const char *where, const json_t *message, size_t number)
{
    static const char *const lost[] = {"function_call", "audio"};
    const json_t *weight = json_object_get(message, "weight"), *calls = json_object_get(message, "tool_calls");
    for (int i = 0; i < 2; i++)
        if (is_set(json_object_get(message, lost[i])))
            return tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu has \"%s\", which is not supported", where, number,
                               lost[i]);
    if (is_set(weight) && json_number_value(weight) != 0 && json_number_value(weight) != 1)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu has a \"weight\" that is neither 0 nor 1", where,
                           number);
    for (size_t i = 0; is_set(calls) && i < (json_is_array(calls) ? json_array_size(calls) : 1); i++)
        if (!json_is_object(json_array_get(calls, i)))
            return tarn__raise(TARN_ERROR_FORMAT, "%s: \"tool_calls\" of message %zu must be an array of objects",
                               where, number);
    return true;
}

/* Checks a message. An empty completion would train the model to say nothing. */
static bool check_message(const char *where, const json_t *message, size_t number)
{
    bool blank;
    if (!json_is_object(message))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu is not an object", where, number);
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role || !role[0])
        return tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu has no string \"role\"", where, number);
    if (!check_members(where, message, number) || !check_content(where, message, number, &blank))
        return false;
    return strcmp(role, "assistant") != 0 || !blank || is_set(json_object_get(message, "tool_calls")) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu is an empty completion", where, number);
}

/* For json_dump_callback(). */
static int add_bytes(const char *bytes, size_t count, void *to)
{
    return tarn__buffer_add(to, bytes, count, 1) ? 0 : -1;
}

/* Writes a value as JSON again, for the template's reader. False with an error. */
static bool dump(tarn__buffer *to, const json_t *value)
{
    return json_dump_callback(value, add_bytes, to, JSON_COMPACT) == 0 && tarn__buffer_add(to, "", 1, 1);
}

/* Reads an array of objects that accompanies messages; without one the buffer stays empty. */
static bool read_array(const char *where, const json_t *root, const char *key, tarn__buffer *to)
{
    const json_t *value = json_object_get(root, key);
    if (!is_set(value))
        return true;
    for (size_t i = 0; i < (json_is_array(value) ? json_array_size(value) : 1); i++)
        if (!json_is_object(json_array_get(value, i)))
            return tarn__raise(TARN_ERROR_FORMAT, "%s: \"%s\" must be an array of objects", where, key);
    return dump(to, value);
}

/* Reads messages, with "tools" and "documents". At least one must be the assistant's: the loss counts completions
 * only. */
static bool read_messages(tarn__jsonl_sample *line, const char *where, const json_t *root, const char *key,
                          const json_t *list)
{
    size_t count = json_array_size(list), answers = 0;
    if (!json_is_array(list) || count == 0 || count > 100000)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: \"%s\" must be an array of 1 to 100000 messages", where, key);
    for (size_t i = 0; i < count; i++) {
        const json_t *message = json_array_get(list, i);
        if (!check_message(where, message, i + 1))
            return false;
        answers += strcmp(json_string_value(json_object_get(message, "role")), "assistant") == 0;
    }
    if (answers == 0)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: no message has the role assistant: there is nothing to train on",
                           where);
    return dump(&line->messages, list) && read_array(where, root, "tools", &line->tools) &&
           read_array(where, root, "documents", &line->documents);
}

/* ---- ShareGPT and Alpaca ----------------------------------------------------------------------------------------- */

/* The role of a ShareGPT speaker; NULL: unknown. The names in use; a role that no template knows would be lost. */
static const char *role_of(const char *from)
{
    static const char *const names[][2] = {{"human", "user"},          {"user", "user"},         {"gpt", "assistant"},
                                           {"assistant", "assistant"}, {"chatgpt", "assistant"}, {"model", "assistant"},
                                           {"system", "system"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(from, names[i][0]) == 0)
            return names[i][1];
    return NULL;
}

/* Appends a message. False with an error. */
static bool add_message(json_t *list, const char *role, const char *content)
{
    return json_array_append_new(list, json_pack("{s:s, s:s}", "role", role, "content", content)) == 0 ||
           tarn__raise(TARN_ERROR_MEMORY, "jsonl: out of memory for a message");
}

/* The "system" of a line, if it has one, as the first message. */
static bool add_system(const char *where, const json_t *root, json_t *list)
{
    const json_t *system = json_object_get(root, "system");
    if (!is_set(system))
        return true;
    return (json_is_string(system) || tarn__raise(TARN_ERROR_FORMAT, "%s: \"system\" is not a string", where)) &&
           add_message(list, "system", json_string_value(system));
}

/* [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}] */
static bool add_turns(const char *where, const json_t *turns, json_t *list)
{
    size_t index;
    json_t *turn;
    json_array_foreach(turns, index, turn)
    {
        const char *from = json_string_value(json_object_get(turn, "from")),
                   *value = json_string_value(json_object_get(turn, "value")), *role = from ? role_of(from) : NULL;
        if (!from || !value)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: message %zu has no strings \"from\" and \"value\"", where,
                               index + 1);
        if (!role)
            return tarn__raise(TARN_ERROR_FORMAT,
                               "%s: message %zu is from '%.60s', which is not supported; must be human, gpt or system",
                               where, index + 1, from);
        if (!add_message(list, role, value))
            return false;
    }
    return true;
}

/* Reads {"conversations"}; those with roles and contents are messages under another name. */
static bool read_sharegpt(tarn__jsonl_sample *line, const char *where, const json_t *root)
{
    const json_t *turns = json_object_get(root, "conversations");
    if (!json_is_array(turns) || json_object_get(json_array_get(turns, 0), "role")) {
        line->format = TARN__SAMPLE_MESSAGES;
        return read_messages(line, where, root, "conversations", turns);
    }
    json_t *list = json_array();
    bool good = list && add_system(where, root, list) && add_turns(where, turns, list) &&
                read_messages(line, where, root, "conversations", list);
    json_decref(list);
    return good;
}

/* The prompt of an Alpaca line: instruction and input, on lines of their own. Borrowed from the line. */
static const char *join(tarn__jsonl_sample *line, const char *instruction, const char *input)
{
    if (is_blank(input))
        return instruction;
    line->joined.count = 0;
    return tarn__buffer_add(&line->joined, instruction, strlen(instruction), 1) &&
                   tarn__buffer_add(&line->joined, "\n", 1, 1) &&
                   tarn__buffer_add(&line->joined, input, strlen(input) + 1, 1)
               ? line->joined.data
               : NULL;
}

/* Earlier turns of an Alpaca line: pairs of an instruction and its output. */
static bool add_history(const char *where, const json_t *history, json_t *list)
{
    size_t index;
    json_t *pair;
    json_array_foreach(history, index, pair)
    {
        const char *instruction = json_string_value(json_array_get(pair, 0)),
                   *output = json_string_value(json_array_get(pair, 1));
        if (!instruction || !output)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: pair %zu of \"history\" must be two strings", where, index + 1);
        if (!add_message(list, "user", instruction) || !add_message(list, "assistant", output))
            return false;
    }
    return true;
}

/* Reads {"instruction", "input", "output"}; "system" and "history" make it messages. */
static bool read_alpaca(tarn__jsonl_sample *line, const char *where, const json_t *root)
{
    const json_t *history = json_object_get(root, "history");
    const char *instruction = string_of(where, root, "instruction"),
               *output = instruction ? string_of(where, root, "output") : NULL, *input = "";
    if (output && is_set(json_object_get(root, "input")))
        input = string_of(where, root, "input");
    const char *prompt = output && input ? join(line, instruction, input) : NULL;
    if (!prompt)
        return false;
    if (is_blank(output))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: \"output\" is empty", where);
    if (!is_set(history) && !is_set(json_object_get(root, "system"))) {
        line->prompt = prompt;
        line->completion = output;
        return true;
    }
    json_t *list = json_array();
    bool good = list && add_system(where, root, list) && add_history(where, history, list) &&
                add_message(list, "user", prompt) && add_message(list, "assistant", output) &&
                read_messages(line, where, root, "history", list);
    json_decref(list);
    return good;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Reads a prompt and its completion by their names; the prompt may be empty. */
static bool read_prompt(tarn__jsonl_sample *line, const char *where, const json_t *root, const char *prompt,
                        const char *completion)
{
    line->prompt = string_of(where, root, prompt);
    line->completion = line->prompt ? string_of(where, root, completion) : NULL;
    return line->completion &&
           (!is_blank(line->completion) || tarn__raise(TARN_ERROR_FORMAT, "%s: \"%s\" is empty", where, completion));
}

/* {"text": "…"}: a document to train on as a whole. */
static bool read_text(tarn__jsonl_sample *line, const char *where, const json_t *root)
{
    line->text = string_of(where, root, "text");
    return line->text && (!is_blank(line->text) || tarn__raise(TARN_ERROR_FORMAT, "%s: \"text\" is empty", where));
}

/* Also where the value is null: the member says which format it is. */
static bool has(const json_t *root, const char *key)
{
    return json_object_get(root, key) != NULL;
}

/* Finds the format by the fields; none or several are an error. Alpaca's own files have a "text", too. */
static bool find_format(const char *where, const json_t *root, tarn__sample_format *format)
{
    const bool is[TARN__SAMPLE_FORMATS] = {
        [TARN__SAMPLE_MESSAGES] = has(root, "messages"),
        [TARN__SAMPLE_SHAREGPT] = has(root, "conversations"),
        [TARN__SAMPLE_ALPACA] = has(root, "instruction") || has(root, "output"),
        [TARN__SAMPLE_PROMPT] = has(root, "prompt") || has(root, "completion"),
        [TARN__SAMPLE_QUESTION] = has(root, "question") || has(root, "answer"),
        [TARN__SAMPLE_TEXT] = has(root, "text") && !(has(root, "instruction") && has(root, "output")),
    };
    int found = 0;
    for (int i = 0; i < TARN__SAMPLE_FORMATS; i++)
        if (is[i]) {
            *format = (tarn__sample_format)i;
            found++;
        }
    return found == 1 ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "%s: a line has %s of \"messages\", \"conversations\" (ShareGPT), \"instruction\" with "
                       "\"output\" (Alpaca), \"prompt\" with \"completion\", \"question\" with \"answer\", and "
                       "\"text\"",
                       where, found ? "more than one" : "none");
}

static bool read_object(tarn__jsonl_sample *line, const char *where, const json_t *root)
{
    if (!json_is_object(root))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: the line is not a JSON object", where);
    if (!find_format(where, root, &line->format))
        return false;
    bool has_messages = line->format <= TARN__SAMPLE_SHAREGPT;
    if (is_set(json_object_get(root, "functions")) || (!has_messages && is_set(json_object_get(root, "tools"))))
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: the line has tools that cannot be used: they need \"messages\" and the name \"tools\"",
                           where);
    switch (line->format) {
    case TARN__SAMPLE_MESSAGES: return read_messages(line, where, root, "messages", json_object_get(root, "messages"));
    case TARN__SAMPLE_SHAREGPT: return read_sharegpt(line, where, root);
    case TARN__SAMPLE_ALPACA: return read_alpaca(line, where, root);
    case TARN__SAMPLE_PROMPT: return read_prompt(line, where, root, "prompt", "completion");
    case TARN__SAMPLE_QUESTION: return read_prompt(line, where, root, "question", "answer");
    default: return read_text(line, where, root);
    }
}

/* Drops the last line but keeps its memory. */
static void clear(tarn__jsonl_sample *line)
{
    json_decref(line->root);
    line->messages.count = line->tools.count = line->documents.count = 0;
    *line = (tarn__jsonl_sample){
        .messages = line->messages, .tools = line->tools, .documents = line->documents, .joined = line->joined};
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
    tarn__buffer_free(&line->messages, 1);
    tarn__buffer_free(&line->tools, 1);
    tarn__buffer_free(&line->documents, 1);
    tarn__buffer_free(&line->joined, 1);
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
