/* prompt.c: what a request is about, as tokens: the messages of a chat, the prompts of a completion, the inputs of
 * embeddings. */
#include <stdlib.h>
#include <string.h>

#include "serve/api/prepare.h"

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* The text of all parts: few templates know parts. A new reference; NULL without memory. */
static json_t *joined_parts(const json_t *parts)
{
    size_t i, length = 0, at = 0;
    json_t *part;
    json_array_foreach(parts, i, part) length += json_string_length(json_object_get(part, "text"));
    char *text = malloc(length + 1);
    json_array_foreach(parts, i, part)
    {
        const json_t *one = json_object_get(part, "text");
        if (text && json_string_length(one))
            memcpy(text + at, json_string_value(one), json_string_length(one));
        at += json_string_length(one);
    }
    json_t *joined = text ? json_stringn(text, length) : NULL;
    free(text);
    return joined;
}

/* Parts of content: text alone. They become one string. */
static bool read_parts(tarn__api_job *job, json_t *owner, const json_t *parts, size_t message)
{
    size_t i;
    json_t *part;
    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type)
            return tarn__api_refuse(&job->error, 400, NULL, "messages", "messages[%zu].content[%zu] needs a type",
                                    message, i);
        if (strcmp(type, "text") != 0)
            return tarn__api_refuse(&job->error, 400, "unsupported_parameter", "messages",
                                    "messages[%zu].content[%zu]: parts of type '%.40s' are not supported; use text",
                                    message, i, type);
        if (!json_is_string(json_object_get(part, "text")))
            return tarn__api_refuse(&job->error, 400, NULL, "messages",
                                    "messages[%zu].content[%zu].text must be a string", message, i);
    }
    return json_object_set_new(owner, "content", joined_parts(parts)) == 0;
}

/* {"role": "user", "content": "…"}; which roles there are is the template's affair, as are other members, which it
 * gets as they are. */
static bool read_message(tarn__api_job *job, json_t *message, size_t i)
{
    const json_t *content = json_object_get(message, "content");
    bool has_calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
    if (!json_is_object(message) || !json_is_string(json_object_get(message, "role")))
        return tarn__api_refuse(&job->error, 400, NULL, "messages",
                                "messages[%zu] must be an object with a role and content", i);
    if (!tarn__api_read_calls(job, message, i))
        return false;
    if (has_calls && (!content || json_is_null(content))) /* templates may want some */
        return json_object_set_new(message, "content", json_string("")) == 0;
    if (json_is_array(content))
        return read_parts(job, message, content, i);
    return json_is_string(content) ||
           tarn__api_refuse(&job->error, 400, NULL, "messages",
                            "messages[%zu].content must be a string or an array of text parts", i);
}

char *tarn__api_messages_text(tarn__api_job *job, tarn__body *f)
{
    json_t *messages = tarn__body_member(f, "messages"), *message;
    size_t i;
    if (!json_is_array(messages) || json_array_size(messages) == 0 ||
        json_array_size(messages) > TARN__API_MESSAGES_MAX) {
        tarn__api_refuse(&job->error, 400, NULL, "messages", "messages must be an array of 1 to %d messages",
                         TARN__API_MESSAGES_MAX);
        return NULL;
    }
    json_array_foreach(messages, i, message) if (!read_message(job, message, i)) return NULL;
    return json_dumps(messages, JSON_COMPACT);
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

/* Appends a copy of tokens as a prompt. */
static bool add_prompt(tarn__api_job *job, const int32_t *tokens, int64_t count)
{
    tarn__api_prompt *grown = realloc(job->prompts, (size_t)(job->prompt_count + 1) * sizeof(*grown));
    if (!grown)
        return false;
    job->prompts = grown;
    grown[job->prompt_count].tokens = malloc((size_t)(count + 1) * sizeof(*tokens));
    grown[job->prompt_count].count = count;
    if (!grown[job->prompt_count].tokens)
        return false;
    if (count)
        memcpy(grown[job->prompt_count].tokens, tokens, (size_t)count * sizeof(*tokens));
    job->prompt_count++;
    return true;
}

/* The chat template's variables of the request, as text; *text stays NULL without them. */
static bool read_variables(tarn__api_job *job, tarn__body *f, char **text)
{
    json_t *variables = tarn__body_member(f, "chat_template_kwargs");
    if (!variables)
        return true;
    if (!json_is_object(variables))
        return tarn__api_refuse(&job->error, 400, NULL, "chat_template_kwargs",
                                "chat_template_kwargs must be an object");
    *text = json_dumps(variables, JSON_COMPACT);
    return *text != NULL;
}

/* Whether the template has opened a <think>. An answer that a grammar constrains does not think. */
static void find_reasoning(tarn__api_job *job, const tarn__api_model *model, const int32_t *tokens, int64_t count)
{
    enum { TAIL = 16 }; /* tokens: a model without a token <think> has its letters */
    size_t length = 0;
    int64_t tail = count < TAIL ? count : TAIL;
    char *text = tail ? tarn_tokenizer_decode(model->tokenizer, tokens + count - tail, tail, &length) : NULL;
    job->opens_reasoning = text && !job->grammar && tarn__reasoning_is_open(text, length);
    tarn_tokenizer_release(text);
    tarn_clear_error();
}

bool tarn__api_read_messages(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    int64_t count = 0;
    char *variables = NULL, *messages = tarn__api_messages_text(job, f);
    if (messages && !model->has_template)
        tarn__api_refuse(&job->error, 400, NULL, "messages",
                         "the model has no chat template; use /v1/completions, or serve it with --template");
    bool good = messages && !job->error.status && read_variables(job, f, &variables);
    const tarn_chat_options options = {.add_generation_prompt = true, .tools = job->tools, .variables = variables};
    int32_t *tokens =
        good ? tarn_chat_encode_json(model->tokenizer, messages, strlen(messages), &options, NULL, &count) : NULL;
    if (good && !tokens)
        tarn__api_refuse_by_library(&job->error, 400, "messages");
    good = tokens && add_prompt(job, tokens, count);
    if (good)
        find_reasoning(job, model, tokens, count);
    good = good && tarn__api_force_call(job, model, variables);
    tarn_tokenizer_release(tokens);
    free(variables);
    free(messages);
    return good;
}

/* Member of the body that has the prompts. */
static const char *prompt_param(const tarn__api_job *job)
{
    return job->route == TARN__API_EMBEDDINGS ? "input" : "prompt";
}

/* An empty text becomes BOS, or EOS for a model without BOS, as in `tarn generate`; nothing has no embedding. */
static bool add_text(tarn__api_job *job, const tarn__api_model *model, const json_t *text)
{
    const char *param = prompt_param(job);
    if (job->route == TARN__API_EMBEDDINGS && json_string_length(text) == 0)
        return tarn__api_refuse(&job->error, 400, NULL, param, "input: text %d is empty", job->prompt_count);
    int64_t count = 0;
    int32_t first = (int32_t)(model->info.has_bos ? model->info.bos : model->info.eos[0]);
    int32_t *tokens = tarn_tokenizer_encode(model->tokenizer, json_string_value(text), json_string_length(text),
                                            &(tarn_encode_options){.add_special = true}, &count);
    if (!tokens)
        return tarn__api_refuse_by_library(&job->error, 400, param);
    bool has_first = model->info.has_bos || model->info.eos_count > 0;
    bool good = count || has_first ? add_prompt(job, count ? tokens : &first, count ? count : 1)
                                   : tarn__api_refuse(&job->error, 400, NULL, param,
                                                      "the %s is empty, and the model has no BOS token", param);
    tarn_tokenizer_release(tokens);
    return good;
}

/* Ids of the model, whose vocabulary may be larger than the tokenizer's. */
static bool add_ids(tarn__api_job *job, const tarn__api_model *model, const json_t *ids)
{
    size_t count = json_array_size(ids);
    int32_t *tokens = malloc((count + 1) * sizeof(*tokens));
    bool good = tokens != NULL;
    for (size_t i = 0; good && i < count; i++) {
        const json_t *id = json_array_get(ids, i);
        json_int_t value = json_integer_value(id);
        good = json_is_integer(id) && value >= 0 && value < model->info.vocab_size;
        if (!good)
            tarn__api_refuse(&job->error, 400, NULL, prompt_param(job),
                             "%s: token %zu must be an integer from 0 to %lld", prompt_param(job), i,
                             (long long)model->info.vocab_size - 1);
        tokens[i] = (int32_t)value;
    }
    good = good && add_prompt(job, tokens, (int64_t)count);
    free(tokens);
    return good;
}

/* A text, token ids, or an array of at most `most` of either. The first element decides: "a", [1, 2], ["a", "b"],
 * [[1, 2], [3]]. An empty array is neither. */
static bool read_prompts(tarn__api_job *job, const tarn__api_model *model, const json_t *prompt, size_t most)
{
    const char *param = prompt_param(job);
    const json_t *first = json_array_get(prompt, 0);
    size_t count = json_array_size(prompt);
    if (json_is_string(prompt))
        return add_text(job, model, prompt);
    if (json_is_integer(first))
        return add_ids(job, model, prompt);
    if (!first || !(json_is_string(first) || json_is_array(first)))
        return tarn__api_refuse(&job->error, 400, NULL, param,
                                "%s must be a string, an array of token ids, or an array of one of these", param);
    if (count > most)
        return tarn__api_refuse(&job->error, 400, NULL, param, "%zu %ss are given; at most %zu are allowed", count,
                                param, most);
    bool good = true;
    for (size_t i = 0; good && i < count; i++) {
        const json_t *one = json_array_get(prompt, i);
        if (json_is_string(one))
            good = add_text(job, model, one);
        else if (json_array_size(one) > 0)
            good = add_ids(job, model, one);
        else
            good = tarn__api_refuse(&job->error, 400, NULL, param,
                                    "%s[%zu] must be a string or an array of at least one token id", param, i);
    }
    return good;
}

bool tarn__api_read_prompts(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    return read_prompts(job, model, tarn__body_member(f, "prompt"), TARN__API_PROMPTS_MAX);
}

bool tarn__api_read_inputs(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    return read_prompts(job, model, tarn__body_member(f, "input"), TARN__API_INPUTS_MAX);
}
