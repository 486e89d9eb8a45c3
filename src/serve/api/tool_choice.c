/* tool_choice.c: calls that a request demands.
 *
 * How a model's template writes a call is found by rendering one: the text before its JSON is put after the prompt, as
 * the model has seen it in training, and the answer is constrained to the JSON of one call by the schemas of the
 * tools.
 *
 * An example: a template writes {"name": …} after "<tool_call>\n", so that text ends the prompt, and the grammar
 * allows {"name": "add", "arguments": {…}} alone. The answer's text is the bare JSON, in which tools.c finds the
 * call. */
#include <stdlib.h>
#include <string.h>

#include "serve/api/api_private.h"
#include "serve/api/prepare.h"

/* The name of the function in the rendered call, which no template writes by itself. */
#define PROBE "tarn_probe"

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static bool has_tool(const json_t *tools, const char *wanted)
{
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        const char *name = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (name && strcmp(name, wanted) == 0)
            return true;
    }
    return false;
}

/* {"type": "function", "function": {"name": "add"}} */
static bool read_named(tarn__api_job *job, const json_t *choice, const json_t *tools)
{
    const char *type = json_string_value(json_object_get(choice, "type")),
               *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    if (!type || strcmp(type, "function") != 0 || !name)
        return tarn__api_refuse(&job->error, 400, NULL, "tool_choice",
                                "tool_choice must be auto, none, required or a function with its name");
    if (!has_tool(tools, name))
        return tarn__api_refuse(&job->error, 400, NULL, "tool_choice", "tool_choice: there is no tool '%.64s'", name);
    if (strlen(name) >= sizeof(job->forced_tool))
        return tarn__api_refuse(&job->error, 400, NULL, "tool_choice", "tool_choice: a name has at most 64 bytes");
    strcpy(job->forced_tool, name);
    job->forces_call = true;
    return true;
}

bool tarn__api_read_choice(tarn__api_job *job, tarn__body *f, const json_t *tools, bool *is_none)
{
    const json_t *choice = tarn__body_member(f, "tool_choice");
    const char *word = json_string_value(choice);
    *is_none = word && strcmp(word, "none") == 0;
    if (!choice || *is_none || (word && strcmp(word, "auto") == 0))
        return true;
    if (!word || strcmp(word, "required") != 0)
        return read_named(job, choice, tools);
    job->forces_call = true;
    return json_array_size(tools) > 0 ||
           tarn__api_refuse(&job->error, 400, NULL, "tool_choice", "tool_choice: required needs tools");
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

void tarn__api_limit_calls(const tarn__api_job *job, json_t *calls)
{
    while (job->is_single && json_array_size(calls) > 1)
        json_array_remove(calls, json_array_size(calls) - 1);
}

/* ---- how a template writes calls --------------------------------------------------------------------------------- */

/* The form of a call: the text before it, and the member with its arguments. */
typedef struct call_form {
    const char *prefix;
    size_t prefix_length;
    const char *arguments;
    bool is_array; /* of calls */
} call_form;

/* The messages up to the answer, and with a call as the answer. */
static const char question[] = "[{\"role\":\"user\",\"content\":\"a\"}]";
static const char answered[] = "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\","
                               "\"tool_calls\":[{\"id\":\"abcdefghi\",\"type\":\"function\",\"function\":{\"name\":"
                               "\"" PROBE "\",\"arguments\":{\"x\":1}}}]}]";

/* Finds the call in what a template has written after the prompt. The first object that has the probe's name and its
 * arguments; braces of other text are no JSON, or another object. */
static bool find_form(const char *text, size_t length, call_form *form)
{
    for (size_t i = 0; i < length; i++) {
        json_t *call = text[i] == '{'
                           ? json_loadb(text + i, length - i, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, NULL)
                           : NULL;
        const char *name = json_string_value(json_object_get(call, "name"));
        bool is_call = name && strcmp(name, PROBE) == 0;
        form->arguments = json_is_object(json_object_get(call, "arguments"))    ? "arguments"
                          : json_is_object(json_object_get(call, "parameters")) ? "parameters"
                                                                                : NULL;
        json_decref(call);
        if (!is_call || !form->arguments)
            continue;
        form->is_array = i > 0 && text[i - 1] == '[';
        form->prefix = text;
        form->prefix_length = i - form->is_array;
        return true;
    }
    return false;
}

/* Templates of Granite write no calls, but tell the model to answer with this tag and a list of them. */
static bool find_described(const char *prompt, call_form *form)
{
    static const char tag[] = "<|tool_call|>";
    *form = (call_form){.prefix = tag, .prefix_length = strlen(tag), .arguments = "arguments", .is_array = true};
    return strstr(prompt, tag) != NULL;
}

/* The object of one call of a tool. A new reference. {"name": const, "arguments": the tool's parameters}, both
 * required; a tool without parameters takes any object. */
static json_t *call_schema(const json_t *function, const char *arguments)
{
    json_t *parameters = json_object_get(function, "parameters");
    return json_pack("{s:s,s:{s:{s:O},s:o},s:[s,s],s:b}", "type", "object", "properties", "name", "const",
                     json_object_get(function, "name"), arguments,
                     json_is_object(parameters) ? json_incref(parameters) : json_pack("{s:s}", "type", "object"),
                     "required", "name", arguments, "additionalProperties", 0);
}

/* The schema of a call of any of the tools, or of the one with a name. A new reference. */
static json_t *choice_schema(const tarn__api_job *job, const call_form *form)
{
    json_t *tools = json_loads(job->tools, 0, NULL), *choices = json_array(), *tool;
    size_t i;
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (name && (!job->forced_tool[0] || strcmp(name, job->forced_tool) == 0))
            json_array_append_new(choices, call_schema(function, form->arguments));
    }
    json_decref(tools);
    json_t *one =
        json_array_size(choices) == 1 ? json_incref(json_array_get(choices, 0)) : json_pack("{s:O}", "anyOf", choices);
    json_decref(choices);
    return form->is_array ? json_pack("{s:s,s:o,s:i,s:i}", "type", "array", "items", one, "minItems", 1, "maxItems", 1)
                          : one;
}

/* ---- the constraint ---------------------------------------------------------------------------------------------- */

static bool constrain(tarn__api_job *job, const tarn__api_model *model, const call_form *form)
{
    json_t *schema = choice_schema(job, form);
    char *text = schema ? json_dumps(schema, JSON_COMPACT) : NULL;
    json_decref(schema);
    job->grammar = text ? tarn_grammar_json_schema(model->vocab, text, strlen(text)) : NULL;
    job->options.grammar = job->grammar;
    bool has_text = text != NULL;
    free(text);
    return job->grammar || (has_text && tarn__api_refuse_by_library(&job->error, 400, "tools"));
}

/* Appends the text before a call to the prompt, with its special tokens. */
static bool append_prefix(tarn__api_job *job, const tarn__api_model *model, const call_form *form)
{
    int64_t count = 0;
    tarn__api_prompt *prompt = &job->prompts[0];
    int32_t *tokens = tarn_tokenizer_encode(model->tokenizer, form->prefix, form->prefix_length, NULL, &count);
    int32_t *grown = tokens ? realloc(prompt->tokens, (size_t)(prompt->count + count + 1) * sizeof(*grown)) : NULL;
    if (grown) {
        prompt->tokens = grown;
        if (count)
            memcpy(grown + prompt->count, tokens, (size_t)count * sizeof(*grown));
        prompt->count += count;
    }
    tarn_tokenizer_release(tokens);
    return grown || (tarn_failed() && tarn__api_refuse_by_library(&job->error, 400, "tools"));
}

static bool check_choice(tarn__api_job *job, const tarn__api_model *model)
{
    if (job->grammar)
        return tarn__api_refuse(&job->error, 400, NULL, "tool_choice",
                                "a tool_choice that demands a call excludes grammar and response_format");
    if (job->options.ignore_eos)
        return tarn__api_refuse(&job->error, 400, NULL, "tool_choice",
                                "ignore_eos and a tool_choice that demands a call exclude each other");
    return model->vocab ||
           tarn__api_refuse(&job->error, 400, NULL, "tool_choice", "tool_choice: %s", model->vocab_error);
}

/* The conversation with an answered call must begin with the one without: then what follows is what the model would
 * write. Thinking would come before the call, so the answer has none. */
bool tarn__api_force_call(tarn__api_job *job, const tarn__api_model *model, const char *variables)
{
    if (!job->forces_call)
        return true;
    if (!check_choice(job, model))
        return false;
    size_t before = 0, length = 0;
    tarn_chat_options options = {.add_generation_prompt = true, .tools = job->tools, .variables = variables};
    char *prompt = tarn_chat_render_json(model->tokenizer, question, strlen(question), &options, &before);
    options.add_generation_prompt = false;
    char *whole =
        prompt ? tarn_chat_render_json(model->tokenizer, answered, strlen(answered), &options, &length) : NULL;
    call_form form = {0};
    bool is_found = whole && length >= before && memcmp(whole, prompt, before) == 0 &&
                    (find_form(whole + before, length - before, &form) || find_described(prompt, &form));
    tarn_clear_error(); /* a template that cannot write a call */
    bool good = is_found ? constrain(job, model, &form) && append_prefix(job, model, &form)
                         : tarn__api_refuse(&job->error, 400, "unsupported_parameter", "tool_choice",
                                            "tool_choice must be auto or none: the model's chat template does not "
                                            "write calls as JSON with a name and arguments right after the prompt");
    job->opens_reasoning = false;
    tarn_tokenizer_release(whole);
    tarn_tokenizer_release(prompt);
    return good;
}
