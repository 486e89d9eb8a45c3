/* ollama_answer.c: the JSON of Ollama's answers: lines of streams, whole ones, the model that is served.
 *
 * One answer per request: Ollama's API has no n. Every line of a stream is an object with "done"; the last one, with
 * done true, has the reason and the counts. Clients parse the dates, and some demand members that mean nothing here,
 * so these are there and empty. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/ollama/ollama.h"

static char *dump(json_t *root)
{
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

/* 2026-01-31T12:00:00.123456Z */
static json_t *time_string(const struct timespec *at)
{
    struct tm utc;
    char date[32], text[64];
    gmtime_r(&at->tv_sec, &utc);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text, sizeof(text), "%s.%06ldZ", date, at->tv_nsec / 1000);
    return json_string(text);
}

char *tarn__ollama_error_text(const tarn__api_error *error)
{
    return dump(json_pack("{s:o}", "error", tarn__api_string(error->message, strlen(error->message))));
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* A line with a text and calls, or NULL; takes their references. */
static json_t *line(const tarn__api_job *job, const tarn__api_model *model, json_t *text, json_t *calls, bool is_done)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    json_t *root = json_pack("{s:s,s:o}", "model", tarn__api_name(job, model), "created_at", time_string(&now));
    if (job->ollama == TARN__OLLAMA_CHAT) {
        json_t *message = json_pack("{s:s,s:o}", "role", "assistant", "content", text);
        if (calls)
            json_object_set_new(message, "tool_calls", calls);
        json_object_set_new(root, "message", message);
    } else {
        json_decref(calls);
        json_object_set_new(root, "response", text);
    }
    json_object_set_new(root, "done", json_boolean(is_done));
    return root;
}

/* The thinking stands next to the text. */
static void add_thinking(const tarn__api_job *job, json_t *root, const char *text, size_t length)
{
    json_t *owner = job->ollama == TARN__OLLAMA_CHAT ? json_object_get(root, "message") : root;
    json_object_set_new(owner, "thinking", tarn__api_string(text, length));
}

/* Calls of OpenAI's form with their arguments as objects; a new reference. Ollama's calls have no ids and no types. */
static json_t *own_calls(const json_t *calls)
{
    json_t *list = json_array(), *call;
    size_t i;
    json_array_foreach(calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");
        json_t *arguments = json_loads(json_string_value(json_object_get(function, "arguments")), 0, NULL);
        json_array_append_new(list, json_pack("{s:{s:O,s:o}}", "function", "name", json_object_get(function, "name"),
                                              "arguments", arguments ? arguments : json_object()));
    }
    return list;
}

/* Durations are in nanoseconds. */
static json_int_t nanoseconds(double milliseconds)
{
    return (json_int_t)(1e6 * milliseconds);
}

/* The reason and the counts of a request that is done. */
static void add_counts(const tarn__api_job *job, json_t *root)
{
    const tarn__api_choice *c = &job->choices[0];
    json_t *counts = json_pack(
        "{s:s,s:I,s:I,s:I,s:I,s:I,s:I}", "done_reason", c->finish_reason == TARN_FINISH_LENGTH ? "length" : "stop",
        "total_duration", nanoseconds(c->wait_ms + c->prompt_ms + c->decode_ms), "load_duration", (json_int_t)0,
        "prompt_eval_count", (json_int_t)job->prompts[0].count, "prompt_eval_duration", nanoseconds(c->prompt_ms),
        "eval_count", (json_int_t)c->tokens, "eval_duration", nanoseconds(c->decode_ms));
    json_object_update(root, counts);
    json_decref(counts);
}

char *tarn__ollama_whole(const tarn__api_job *job, const tarn__api_model *model)
{
    tarn__api_choice *c = &job->choices[0];
    size_t length = c->length;
    json_t *calls = tarn__api_calls(job, c, &length);
    json_t *root = line(job, model, tarn__api_string(c->text, length), calls ? own_calls(calls) : NULL, true);
    json_decref(calls);
    if (c->reasoning.end > c->reasoning.begin)
        add_thinking(job, root, c->reasoning.text + c->reasoning.begin, c->reasoning.end - c->reasoning.begin);
    add_counts(job, root);
    return dump(root);
}

char *tarn__ollama_end(const tarn__api_job *job, const tarn__api_model *model)
{
    json_t *root = line(job, model, json_string(""), NULL, true);
    add_counts(job, root);
    return dump(root);
}

char *tarn__ollama_chunk(const tarn__api_job *job, const tarn__api_model *model, const char *text, size_t length)
{
    return dump(line(job, model, tarn__api_string(text, length), NULL, false));
}

char *tarn__ollama_thinking(const tarn__api_job *job, const tarn__api_model *model, const char *text, size_t length)
{
    json_t *root = line(job, model, json_string(""), NULL, false);
    add_thinking(job, root, text, length);
    return dump(root);
}

char *tarn__ollama_calls(const tarn__api_job *job, const tarn__api_model *model, json_t *calls)
{
    char *text = dump(line(job, model, json_string(""), own_calls(calls), false));
    json_decref(calls);
    return text;
}

char *tarn__ollama_loaded(const tarn__api_job *job, const tarn__api_model *model)
{
    json_t *root = line(job, model, json_string(""), NULL, true);
    json_object_set_new(root, "done_reason", json_string("load"));
    return dump(root);
}

/* ---- the models -------------------------------------------------------------------------------------------------- */

static json_t *details(const tarn__api_model *model, bool is_adapter)
{
    return json_pack("{s:s,s:s,s:s,s:[s],s:s,s:s}", "parent_model", is_adapter ? model->name : "", "format", "tarn",
                     "family", model->info.type, "families", model->info.type, "parameter_size", "",
                     "quantization_level", tarn_dtype_name(model->info.dtype));
}

/* "name" and "model" are the same in Ollama's lists; the time is that of the server's start. */
static json_t *entry_of(const tarn__api *a, const char *name)
{
    const struct timespec at = {.tv_sec = (time_t)a->started};
    return json_pack("{s:s,s:s,s:o}", "name", name, "model", name, "modified_at", time_string(&at));
}

/* A model that is not loaded has no details. */
static json_t *model_entry(const tarn__api *a, int index)
{
    json_t *entry = entry_of(a, a->options.names[index]);
    if (index == a->loaded)
        json_object_set_new(entry, "details", details(&a->model, false));
    return entry;
}

static json_t *adapter_entry(const tarn__api *a, int index)
{
    json_t *entry = entry_of(a, a->model.adapters[index]);
    json_object_set_new(entry, "details", details(&a->model, true));
    return entry;
}

/* Members that clients look at: "capabilities" above all, by which they offer tools. "tools" stands where there is a
 * chat template. */
char *tarn__ollama_show(const tarn__api_model *model, bool is_adapter)
{
    const tarn_model_info *info = &model->info;
    json_t *capabilities = json_pack("[s]", "completion");
    if (model->has_template)
        json_array_append_new(capabilities, json_string("tools"));
    return dump(json_pack("{s:o,s:{s:s,s:I,s:I,s:I,s:I,s:I},s:o}", "details", details(model, is_adapter), "model_info",
                          "general.architecture", info->type, "context_length", (json_int_t)model->context,
                          "block_count", (json_int_t)info->layers, "embedding_length", (json_int_t)info->hidden_size,
                          "attention.head_count", (json_int_t)info->heads, "vocab_size", (json_int_t)info->vocab_size,
                          "capabilities", capabilities));
}

/* Takes the reference of the root. */
static void answer(tarn__api *a, tarn__http_exchange *x, json_t *root)
{
    char *text = dump(root);
    a->answered++;
    tarn__api_answer_json(x, text ? 200 : 503, text ? text : "{\"error\":\"no memory for the answer\"}");
    free(text);
}

void tarn__ollama_answer_tags(tarn__api *a, tarn__http_exchange *x)
{
    json_t *list = json_array();
    for (int i = 0; i < a->options.name_count; i++)
        json_array_append_new(list, model_entry(a, i));
    for (int i = 0; i < a->model.adapter_count; i++)
        json_array_append_new(list, adapter_entry(a, i));
    answer(a, x, json_pack("{s:o}", "models", list));
}

/* One model is loaded at a time. */
void tarn__ollama_answer_ps(tarn__api *a, tarn__http_exchange *x)
{
    json_t *entry = model_entry(a, a->loaded);
    json_object_set_new(entry, "context_length", json_integer((json_int_t)a->model.context));
    answer(a, x, json_pack("{s:[o]}", "models", entry));
}

void tarn__ollama_answer_version(tarn__api *a, tarn__http_exchange *x)
{
    answer(a, x, json_pack("{s:s}", "version", tarn_version()));
}
