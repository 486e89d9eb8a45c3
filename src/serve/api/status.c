/* status.c: what the server is and does: /v1/models, /props, /metrics, /slots. */
#include <stdlib.h>
#include <string.h>

#include "serve/api/api_private.h"

/* Takes the reference of the root. */
static void answer(tarn__api *a, tarn__http_exchange *x, json_t *root)
{
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text) {
        a->answered++;
        tarn__api_answer_json(x, 200, text);
    } else {
        tarn__api_error error = {0};
        tarn__api_refuse(&error, 503, NULL, NULL, "no memory for the answer");
        tarn__api_answer_error(a, x, &error);
    }
    free(text);
}

json_t *tarn__api_model_entry(const tarn__api *a, int index)
{
    bool is_loaded = index == a->loaded;
    json_t *entry = json_pack("{s:s,s:s,s:I,s:s,s:b}", "id", a->options.names[index], "object", "model", "created",
                              (json_int_t)a->started, "owned_by", "tarn", "loaded", is_loaded);
    if (is_loaded)
        json_object_set_new(entry, "max_model_len", json_integer((json_int_t)a->model.context));
    return entry;
}

/* An adapter is a model of its own, whose parent is the model that is loaded, as in vLLM. */
static json_t *adapter_entry(const tarn__api *a, int index)
{
    json_t *entry = tarn__api_model_entry(a, a->loaded);
    json_object_set_new(entry, "id", json_string(a->model.adapters[index]));
    json_object_set_new(entry, "parent", json_string(a->model.name));
    return entry;
}

static json_t *model_list(const tarn__api *a)
{
    json_t *list = json_array();
    for (int i = 0; i < a->options.name_count; i++)
        json_array_append_new(list, tarn__api_model_entry(a, i));
    for (int i = 0; i < a->model.adapter_count; i++)
        json_array_append_new(list, adapter_entry(a, i));
    return json_pack("{s:s,s:o}", "object", "list", "data", list);
}

/* The entry of a model or an adapter; NULL: there is none of that name. */
static json_t *entry_named(const tarn__api *a, const char *name)
{
    for (int i = 0; i < a->options.name_count; i++)
        if (strcmp(name, a->options.names[i]) == 0)
            return tarn__api_model_entry(a, i);
    for (int i = 0; i < a->model.adapter_count; i++)
        if (strcmp(name, a->model.adapters[i]) == 0)
            return adapter_entry(a, i);
    return NULL;
}

static void answer_model(tarn__api *a, tarn__http_exchange *x, const char *part)
{
    char name[1024];
    tarn__api_error error = {0};
    bool is_name = tarn__http_decode(part, name, sizeof(name));
    json_t *entry = is_name ? entry_named(a, name) : NULL;
    if (entry) {
        answer(a, x, entry);
        return;
    }
    tarn__api_refuse(&error, 404, "model_not_found", "model", "model '%.100s' does not exist; GET /v1/models lists all",
                     is_name ? name : part);
    tarn__api_answer_error(a, x, &error);
}

/* The path is "/v1/models" or "/v1/models/NAME", by find_route(). */
void tarn__api_answer_models(tarn__api *a, tarn__http_exchange *x)
{
    const char *name = tarn__http_exchange_request(x)->path + strlen("/v1/models");
    if (*name)
        answer_model(a, x, name + 1);
    else
        answer(a, x, model_list(a));
}

void tarn__api_answer_props(tarn__api *a, tarn__http_exchange *x)
{
    const tarn_model_info *info = &a->model.info;
    char device[64];
    tarn_device_name(info->device, device, sizeof(device));
    json_t *root =
        json_pack("{s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:i,s:b,s:b}", "version", tarn_version(), "model",
                  a->model.name, "type", info->type, "device", device, "context", (json_int_t)a->model.context,
                  "vocab_size", (json_int_t)info->vocab_size, "layers", (json_int_t)info->layers, "hidden_size",
                  (json_int_t)info->hidden_size, "sequences", (json_int_t)a->options.engine.sequences, "queue",
                  a->options.queue, "chat_template", a->model.has_template, "grammars", a->model.vocab != NULL);
    json_t *names = json_array();
    for (int i = 0; i < a->options.name_count; i++)
        json_array_append_new(names, json_string(a->options.names[i]));
    json_object_set_new(root, "models", names);
    answer(a, x, root);
}

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

/* One metric of Prometheus' text format. By its convention a counter's name ends in _total, and a counter never
 * falls while the process lives. */
static void put_metric(FILE *out, const char *name, const char *type, const char *help, int64_t value)
{
    fprintf(out, "# HELP tarn_%s %s\n# TYPE tarn_%s %s\ntarn_%s %lld\n", name, help, name, type, name,
            (long long)value);
}

static void put_metrics(FILE *out, const tarn__api *a, const tarn_engine_stats *s)
{
    put_metric(out, "requests_answered_total", "counter", "Requests with a complete answer.", a->answered);
    put_metric(out, "requests_refused_total", "counter", "Requests with an error.", a->refused);
    put_metric(out, "requests_gone_total", "counter", "Requests whose client has gone.", a->gone);
    put_metric(out, "sequences_running", "gauge", "Sequences in the present batch.", s->running);
    put_metric(out, "sequences_waiting", "gauge", "Sequences that wait for a place in the batch.", s->waiting);
    put_metric(out, "prompt_tokens_total", "counter", "Prompt tokens computed.", s->prompt_tokens);
    put_metric(out, "shared_tokens_total", "counter", "Prompt tokens found in the KV cache.", s->shared_tokens);
    put_metric(out, "new_tokens_total", "counter", "Tokens sampled.", s->new_tokens);
    put_metric(out, "embedding_tokens_total", "counter", "Tokens of embeddings.", a->embedded);
    put_metric(out, "proposed_tokens_total", "counter", "Tokens proposed by speculative decoding.", s->proposed_tokens);
    put_metric(out, "accepted_tokens_total", "counter", "Proposed tokens that were sampled.", s->accepted_tokens);
    put_metric(out, "steps_total", "counter", "Steps of the engine.", s->steps);
    put_metric(out, "preemptions_total", "counter", "Sequences that gave up their pages.", s->preemptions);
    put_metric(out, "swap_pages_out_total", "counter", "Pages of preempted sequences moved to host memory.",
               s->swapped_out);
    put_metric(out, "swap_pages_in_total", "counter", "Pages of preempted sequences moved back.", s->swapped_in);
    put_metric(out, "swap_pages", "gauge", "Pages that host memory can hold.", s->swap_pages);
    put_metric(out, "swap_pages_free", "gauge", "Those of them that are free, those of past prefixes included.",
               s->free_swap_pages);
    put_metric(out, "prefix_pages_out_total", "counter", "Pages of past prefixes moved to host memory.",
               s->prefixes_out);
    put_metric(out, "prefix_pages_in_total", "counter", "Pages of past prefixes moved back.", s->prefixes_in);
    put_metric(out, "prefix_pages_dropped_total", "counter", "Pages of past prefixes dropped from host memory.",
               s->prefixes_dropped);
    put_metric(out, "prefix_pages", "gauge", "Pages of past prefixes in host memory.", s->cached_swap_pages);
    put_metric(out, "model_loads_total", "counter", "Models loaded, the first one included.", a->loads);
    put_metric(out, "kv_pages", "gauge", "Pages of the KV cache.", s->pages);
    put_metric(out, "kv_pages_free", "gauge", "Free pages of the KV cache, those of past prefixes included.",
               s->free_pages);
}

void tarn__api_add_counters(tarn_engine_stats *to, const tarn_engine_stats *from)
{
    to->prompt_tokens += from->prompt_tokens;
    to->shared_tokens += from->shared_tokens;
    to->new_tokens += from->new_tokens;
    to->proposed_tokens += from->proposed_tokens;
    to->accepted_tokens += from->accepted_tokens;
    to->steps += from->steps;
    to->preemptions += from->preemptions;
    to->swapped_out += from->swapped_out;
    to->swapped_in += from->swapped_in;
    to->prefixes_out += from->prefixes_out;
    to->prefixes_in += from->prefixes_in;
    to->prefixes_dropped += from->prefixes_dropped;
}

void tarn__api_answer_metrics(tarn__api *a, tarn__http_exchange *x)
{
    tarn_engine_stats stats = {0};
    char *text = NULL;
    size_t size = 0;
    tarn__api_error error = {0};
    FILE *out = tarn_engine_query(a->engine, &stats) ? open_memstream(&text, &size) : NULL;
    tarn__api_add_counters(&stats, &a->past);
    if (out)
        put_metrics(out, a, &stats);
    if (!out || fclose(out) != 0) {
        tarn_clear_error();
        tarn__api_refuse(&error, 503, NULL, NULL, "no memory for the answer");
        tarn__api_answer_error(a, x, &error);
    } else {
        tarn__http_exchange_answer(x, 200, "text/plain; version=0.0.4; charset=utf-8", text, size);
    }
    free(text);
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static json_t *slot_entry(const tarn__api *a, const tarn_engine_request *r)
{
    const char *model = r->adapter > 0 ? a->model.adapters[r->adapter - 1] : a->model.name;
    return json_pack("{s:I,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:f}", "id", (json_int_t)r->request, "model",
                     model, "state", r->is_running ? "running" : "waiting", "prompt_tokens", (json_int_t)r->prompt,
                     "cached_tokens", (json_int_t)r->shared, "computed_tokens", (json_int_t)r->computed, "new_tokens",
                     (json_int_t)r->new_tokens, "max_tokens", (json_int_t)r->max_tokens, "preemptions",
                     (json_int_t)r->preemptions, "proposed_tokens", (json_int_t)r->proposed_tokens, "accepted_tokens",
                     (json_int_t)r->accepted_tokens, "wait_ms", r->wait_ms, "prompt_ms", r->prompt_ms, "decode_ms",
                     r->decode_ms);
}

/* Sequences that have not ended, with numbers alone: texts belong to their clients. The engine may have ended some
 * since `live` was counted, but got no new ones: those are added on this thread. */
void tarn__api_answer_slots(tarn__api *a, tarn__http_exchange *x)
{
    int64_t capacity = a->live + 1, count;
    tarn_engine_request *requests = calloc((size_t)capacity, sizeof(*requests));
    json_t *list = json_array();
    count = requests ? tarn_engine_requests(a->engine, requests, capacity) : 0;
    for (int64_t i = 0; i < count && i < capacity; i++)
        json_array_append_new(list, slot_entry(a, &requests[i]));
    tarn_clear_error();
    free(requests);
    answer(a, x, list);
}
