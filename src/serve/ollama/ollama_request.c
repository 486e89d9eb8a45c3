/* ollama_request.c: requests of /api/chat, /api/generate and /api/show as those of OpenAI's API.
 *
 * Members that were not named are Ollama's defaults, among them stream: true, temperature 0.8, top_k 40 and top_p 0.9.
 * Options that say how to load or compute a model have no meaning here and are skipped; those that would change the
 * answer and are not supported are refused.
 *
 * Example: {"model": "m:latest", "prompt": "Hi", "options": {"num_predict": 5}} of /api/generate becomes {"model":
 * "m", "stream": true, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "max_tokens": 5, "repeat_penalty": 1.1,
 * "repeat_last_n": 64, "messages": [{"role": "user", "content": "Hi"}]}, a chat. */
#include <stdlib.h>
#include <string.h>

#include "serve/api/prepare.h"
#include "serve/ollama/ollama.h"

bool tarn__ollama_is_path(const char *path)
{
    return strncmp(path, "/api/", 5) == 0;
}

tarn__ollama_route tarn__ollama_route_of(const char *path)
{
    return strcmp(path, "/api/chat") == 0       ? TARN__OLLAMA_CHAT
           : strcmp(path, "/api/generate") == 0 ? TARN__OLLAMA_GENERATE
           : strcmp(path, "/api/show") == 0     ? TARN__OLLAMA_SHOW
                                                : TARN__OLLAMA_NONE;
}

/* Whether the new body names the model that is served. */
static bool has_model(tarn__api_job *job, const tarn__api_model *model, json_t *to)
{
    tarn__body f = {.object = to, .error = &job->error};
    return tarn__api_check_model(job, model, &f);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* Moves a member to the new body, under another name; absent ones are left out. */
static bool move(tarn__body *from, const char *name, json_t *to, const char *new_name)
{
    json_t *value = tarn__body_member(from, name);
    return !value || json_object_set(to, new_name, value) == 0;
}

/* A number that means nothing at `neutral`, and is not supported else. */
static bool refuse_unless(tarn__body *f, const char *name, double neutral)
{
    const json_t *value = tarn__body_member(f, name);
    return !value || (json_is_number(value) && json_number_value(value) == neutral) ||
           tarn__api_refuse(f->error, 400, NULL, name, "options.%s is not supported", name);
}

/* num_predict: -1 and -2 are up to the end of the context, as without it. */
static bool read_limit(tarn__body *f, json_t *to)
{
    int64_t count = -1;
    if (!tarn__body_int(f, "num_predict", -2, INT32_MAX, &count))
        return false;
    if (count == 0)
        return tarn__api_refuse(f->error, 400, NULL, "num_predict", "options.num_predict must be -2, -1 or at least 1");
    return count < 0 || json_object_set_new(to, "max_tokens", json_integer(count)) == 0;
}

/* repeat_last_n: -1 is all of the context, which is 0 here; 0 switches the penalty off. */
static bool read_penalty(tarn__body *f, json_t *to)
{
    int64_t last = 64;
    double penalty = 1.1;
    if (!tarn__body_int(f, "repeat_last_n", -1, INT32_MAX, &last) ||
        !tarn__body_real(f, "repeat_penalty", 0.01, 100, &penalty))
        return false;
    if (last == 0 || penalty == 1)
        return true;
    return json_object_set_new(to, "repeat_penalty", json_real(penalty)) == 0 &&
           json_object_set_new(to, "repeat_last_n", json_integer(last < 0 ? 0 : last)) == 0;
}

/* A num_ctx below the server's would save memory that is reserved already, and is accepted. */
static bool read_context(tarn__body *f, const tarn__api_model *model)
{
    int64_t context = 0;
    return tarn__body_int(f, "num_ctx", 1, INT32_MAX, &context) &&
           (context <= model->context ||
            tarn__api_refuse(f->error, 400, NULL, "num_ctx", "options.num_ctx is %lld; the server's context has %lld",
                             (long long)context, (long long)model->context));
}

static bool read_options(tarn__api_job *job, const tarn__api_model *model, json_t *options, json_t *to)
{
    static const char *const same[] = {"temperature",       "top_k",           "top_p", "min_p", "seed", "stop",
                                       "frequency_penalty", "presence_penalty"};
    static const char *const without_effect[] = {"numa",       "num_batch",  "num_gpu",      "main_gpu",    "low_vram",
                                                 "f16_kv",     "use_mmap",   "use_mlock",    "num_thread",  "num_keep",
                                                 "logits_all", "vocab_only", "mirostat_tau", "mirostat_eta"};
    tarn__body f = {.object = options, .error = &job->error};
    /* the defaults first: members that were given replace them */
    bool good = json_object_set_new(to, "temperature", json_real(0.8)) == 0 &&
                json_object_set_new(to, "top_k", json_integer(40)) == 0 &&
                json_object_set_new(to, "top_p", json_real(0.9)) == 0;
    for (size_t i = 0; good && i < sizeof(same) / sizeof(same[0]); i++)
        good = move(&f, same[i], to, same[i]);
    for (size_t i = 0; i < sizeof(without_effect) / sizeof(without_effect[0]); i++)
        tarn__body_skip(&f, without_effect[i]);
    bool newline = true;
    good = good && read_limit(&f, to) && read_penalty(&f, to) && read_context(&f, model) &&
           refuse_unless(&f, "mirostat", 0) && refuse_unless(&f, "tfs_z", 1) && refuse_unless(&f, "typical_p", 1) &&
           tarn__body_unsupported(&f, "embedding_only") && tarn__body_bool(&f, "penalize_newline", &newline);
    if (good && !newline)
        return tarn__api_refuse(&job->error, 400, NULL, "penalize_newline",
                                "options.penalize_newline: false is not supported");
    return good && tarn__body_end(&f);
}

/* ---- members of both routes -------------------------------------------------------------------------------------- */

/* "json", or a JSON Schema. */
static bool read_format(tarn__api_job *job, tarn__body *f, json_t *to)
{
    json_t *format = tarn__body_member(f, "format");
    const char *word = json_string_value(format);
    if (!format || (word && !*word))
        return true;
    if (word && strcmp(word, "json") == 0)
        return json_object_set_new(to, "response_format", json_pack("{s:s}", "type", "json_object")) == 0;
    if (!json_is_object(format))
        return tarn__api_refuse(&job->error, 400, NULL, "format", "format must be \"json\" or a JSON Schema");
    return json_object_set_new(to, "response_format",
                               json_pack("{s:s,s:{s:O}}", "type", "json_schema", "json_schema", "schema", format)) == 0;
}

/* The model stays loaded: 0, which asks for the opposite, is refused; other times have no meaning. */
static bool read_keep_alive(tarn__api_job *job, tarn__body *f)
{
    const json_t *value = tarn__body_member(f, "keep_alive");
    const char *text = json_string_value(value);
    bool is_zero =
        (json_is_number(value) && json_number_value(value) == 0) || (text && *text && strtod(text, NULL) == 0);
    return !is_zero || tarn__api_refuse(&job->error, 400, NULL, "keep_alive",
                                        "keep_alive 0 is not supported: the model stays loaded");
}

/* Templates know it as a variable; levels have no name of their own there. enable_thinking is what those of Qwen3
 * and others look at. */
static bool read_think(tarn__api_job *job, tarn__body *f, json_t *to)
{
    const json_t *think = tarn__body_member(f, "think");
    if (think && !json_is_boolean(think))
        return tarn__api_refuse(&job->error, 400, NULL, "think", "think must be true or false");
    return !think || json_object_set_new(to, "chat_template_kwargs",
                                         json_pack("{s:b}", "enable_thinking", json_is_true(think))) == 0;
}

/* "name:latest" is "name". */
static bool read_model(tarn__api_job *job, tarn__body *f, json_t *to)
{
    const char *name = NULL;
    size_t length = 0;
    if (!tarn__body_string(f, "model", &name, &length))
        return false;
    if (!name || !length)
        return tarn__api_refuse(&job->error, 400, NULL, "model", "model is missing");
    if (length > 7 && strcmp(name + length - 7, ":latest") == 0)
        length -= 7;
    return json_object_set_new(to, "model", json_stringn(name, length)) == 0;
}

/* What both routes have, in the order in which errors are useful: the model first. */
static bool read_common(tarn__api_job *job, const tarn__api_model *model, tarn__body *f, json_t *to)
{
    static const char *const unsupported[] = {"logprobs", "top_logprobs", "images", "suffix", "template",
                                              "context",  "width",        "height", "steps"};
    bool streams = true, good = read_model(job, f, to) && tarn__body_bool(f, "stream", &streams);
    json_t *options = tarn__body_member(f, "options"), *none = options ? NULL : json_object();
    if (options && !json_is_object(options))
        return tarn__api_refuse(&job->error, 400, NULL, "options", "options must be an object");
    for (size_t i = 0; good && i < sizeof(unsupported) / sizeof(unsupported[0]); i++)
        good = tarn__body_unsupported(f, unsupported[i]);
    good = good && json_object_set_new(to, "stream", json_boolean(streams)) == 0 &&
           read_options(job, model, options ? options : none, to) && read_format(job, f, to) && read_keep_alive(job, f);
    json_decref(none);
    return good;
}

/* ---- chats ------------------------------------------------------------------------------------------------------- */

/* {"role", "content", "tool_calls", "tool_name", "thinking", "images"} */
static bool read_message(tarn__api_job *job, json_t *message, size_t i, json_t *to)
{
    json_t *content = json_object_get(message, "content"), *entry = json_is_object(message) ? json_object() : NULL;
    tarn__body f = {.object = message, .error = &job->error};
    if (!entry || json_array_append_new(to, entry) != 0)
        return tarn__api_refuse(&job->error, 400, NULL, "messages", "messages[%zu] must be an object", i);
    bool good = tarn__body_unsupported(&f, "images") && move(&f, "role", entry, "role") &&
                move(&f, "tool_name", entry, "name") && move(&f, "tool_calls", entry, "tool_calls") &&
                move(&f, "thinking", entry, "reasoning_content");
    tarn__body_skip(&f, "content");
    if (content && !json_is_string(content) && !json_is_null(content))
        return tarn__api_refuse(&job->error, 400, NULL, "messages", "messages[%zu].content must be a string", i);
    return good && tarn__body_end(&f) &&
           json_object_set_new(entry, "content", json_is_string(content) ? json_incref(content) : json_string("")) == 0;
}

/* Each entry is copied under OpenAI's names; "tool_name" of a tool's result is "name". */
static bool read_messages(tarn__api_job *job, tarn__body *f, json_t *to)
{
    json_t *messages = tarn__body_member(f, "messages"), *list = json_array(), *message;
    size_t i;
    if (messages && !json_is_array(messages))
        tarn__api_refuse(&job->error, 400, NULL, "messages", "messages must be an array");
    json_array_foreach(messages, i, message) if (!read_message(job, message, i, list)) break;
    bool good = !job->error.status && json_object_set(to, "messages", list) == 0;
    json_decref(list);
    return good && move(f, "tools", to, "tools");
}

/* ---- completions ------------------------------------------------------------------------------------------------- */

/* A prompt is the message of a user, unless it is raw or the model has no chat template. */
static bool read_prompt(tarn__api_job *job, const tarn__api_model *model, tarn__body *f, json_t *to)
{
    const char *prompt = "", *system = "";
    size_t length = 0, system_length = 0;
    bool is_raw = false;
    if (!tarn__body_string(f, "prompt", &prompt, &length) || !tarn__body_string(f, "system", &system, &system_length) ||
        !tarn__body_bool(f, "raw", &is_raw))
        return false;
    if (system_length && (is_raw || !model->has_template))
        return tarn__api_refuse(&job->error, 400, NULL, "system", "system needs a chat template%s",
                                is_raw ? ", which raw: true does not use" : "; the model has none");
    job->route = is_raw || !model->has_template ? TARN__API_COMPLETION : TARN__API_CHAT;
    if (job->route == TARN__API_COMPLETION && json_is_true(json_object_get(job->root, "think")))
        return tarn__api_refuse(&job->error, 400, NULL, "think", "think: true needs a chat template");
    if (job->route == TARN__API_COMPLETION) {
        json_object_del(to, "chat_template_kwargs");
        return json_object_set_new(to, "prompt", json_stringn(prompt, length)) == 0;
    }
    json_t *messages = json_array();
    if (system_length)
        json_array_append_new(messages, json_pack("{s:s,s:s%}", "role", "system", "content", system, system_length));
    json_array_append_new(messages, json_pack("{s:s,s:s%}", "role", "user", "content", prompt, length));
    return json_object_set_new(to, "messages", messages) == 0;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* A request without a prompt loads the model, which is loaded. */
static bool is_empty(const tarn__api_job *job)
{
    return job->ollama == TARN__OLLAMA_CHAT ? json_array_size(json_object_get(job->root, "messages")) == 0
                                            : json_string_length(json_object_get(job->root, "prompt")) == 0;
}

/* {"model"}, or "name" in its place; "verbose" would add tensors and tokens. */
static bool show(tarn__api_job *job, const tarn__api_model *model, tarn__body *f, json_t *to)
{
    const char *given = NULL, *model_name = json_string_value(json_object_get(job->root, "model"));
    size_t length = 0;
    if (!tarn__body_string(f, "name", &given, &length))
        return false;
    if (given && model_name && strcmp(given, model_name) != 0)
        return tarn__api_refuse(&job->error, 400, NULL, "name", "name and model differ; give one of them");
    if (given && json_object_set_new(job->root, "model", json_stringn(given, length)) != 0)
        return false;
    if (!read_model(job, f, to) || !tarn__body_unsupported(f, "verbose") || !tarn__body_unsupported(f, "system") ||
        !tarn__body_unsupported(f, "template") || !tarn__body_unsupported(f, "options") || !tarn__body_end(f))
        return false;
    job->answer = has_model(job, model, to) ? tarn__ollama_show(model, job->options.adapter > 0) : NULL;
    return job->answer != NULL;
}

bool tarn__ollama_translate(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    json_t *to = json_object();
    bool good = to != NULL, has_prompt = !is_empty(job);
    if (job->ollama == TARN__OLLAMA_SHOW) {
        good = good && show(job, model, f, to);
        json_decref(to);
        return good;
    }
    good = good && read_common(job, model, f, to) && read_think(job, f, to) &&
           (job->ollama == TARN__OLLAMA_CHAT ? read_messages(job, f, to) : read_prompt(job, model, f, to)) &&
           tarn__body_end(f);
    if (good && !has_prompt) {
        job->answer = has_model(job, model, to) ? tarn__ollama_loaded(job, model) : NULL;
        good = job->answer != NULL;
    }
    if (!good) {
        json_decref(to);
        return false;
    }
    json_decref(job->root);
    job->root = to;
    job->includes_usage = true; /* the last line of a stream has the counts */
    return true;
}
