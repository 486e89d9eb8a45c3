/* prepare.c: a request's body: JSON within its limits, then its members by route.
 *
 * Runs on a thread of the pool, which has the job to itself: of what it reads, the loop's thread writes is_cancelled
 * alone. What is wrong with the request by itself is refused here, before the engine sees it; strings of the job's
 * options stay in the parsed body. */
#include "serve/api/prepare.h"

#include <stdlib.h>
#include <string.h>

#include "serve/ollama/ollama.h"

/* Depth of arrays and objects, counted before the parser recurses. Text that is no JSON may count wrong, and is
 * refused by the parser then; one that is JSON never counts too low. */
static int nesting(const char *text, size_t size)
{
    int depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
        } else {
            in_string = c == '"';
            depth += c == '[' || c == '{';
            depth -= c == ']' || c == '}';
            deepest = depth > deepest ? depth : deepest;
        }
    }
    return deepest;
}

static bool parse(tarn__api_job *job)
{
    json_error_t where;
    if (!job->body_size)
        return tarn__api_refuse(&job->error, 400, NULL, NULL,
                                "the body is not JSON: it is empty; it must be an object");
    if (nesting(job->body, job->body_size) > TARN__API_NESTING_MAX)
        return tarn__api_refuse(&job->error, 400, NULL, NULL, "the body is nested deeper than %d levels",
                                TARN__API_NESTING_MAX);
    job->root = json_loadb(job->body, job->body_size, JSON_REJECT_DUPLICATES, &where);
    if (!job->root && json_error_code(&where) == json_error_out_of_memory)
        return tarn__api_refuse(&job->error, 503, NULL, NULL, "no memory for the body");
    if (!job->root)
        return tarn__api_refuse(&job->error, 400, NULL, NULL, "the body is not JSON: line %d, column %d: %s",
                                where.line, where.column, where.text);
    if (!json_is_object(job->root))
        return tarn__api_refuse(&job->error, 400, NULL, NULL, "the body must be a JSON object");
    free(job->body);
    job->body = NULL;
    return true;
}

/* The index of a model of the server; -1: there is none of that name. */
static int find_model(const tarn__api_model *model, const char *name)
{
    for (int i = 0; i < model->name_count; i++)
        if (strcmp(model->names[i], name) == 0)
            return i;
    return -1;
}

static bool refuse_unknown_model(tarn__api_job *job, const tarn__api_model *model, const char *name)
{
    return tarn__api_refuse(&job->error, 404, "model_not_found", "model",
                            "model '%.100s' does not exist; '%.100s' is %s", name, model->name,
                            model->name_count > 1  ? "loaded, GET /v1/models lists all"
                            : model->adapter_count ? "served, and GET /v1/models lists its adapters"
                                                   : "served");
}

/* Adapters are names of their own, by the engine's numbers: the first has 1, and 0 is none. 404 is a model that the
 * server does not have, 409 one that it could load. */
bool tarn__api_check_model(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    const char *name = NULL;
    size_t length = 0;
    if (!tarn__body_string(f, "model", &name, &length))
        return false;
    if (!name || strcmp(name, model->name) == 0)
        return true;
    for (int i = 0; i < model->adapter_count; i++)
        if (strcmp(name, model->adapters[i]) == 0)
            job->options.adapter = i + 1;
    if (job->options.adapter > 0)
        return true;
    if (find_model(model, name) < 0)
        return refuse_unknown_model(job, model, name);
    return tarn__api_refuse(&job->error, 409, "model_not_loaded", "model",
                            "model '%.100s' is not loaded, '%.100s' is; POST /admin/load loads another one", name,
                            model->name);
}

const char *tarn__api_name(const tarn__api_job *job, const tarn__api_model *model)
{
    return job->options.adapter > 0 ? model->adapters[job->options.adapter - 1] : model->name;
}

/* A prompt and its new tokens fit into the context. Without max_tokens a chat may fill it; a completion has 16, as
 * OpenAI's, or what is left. */
static bool check_context(tarn__api_job *job, const tarn__api_model *model)
{
    int64_t longest = 0;
    for (int i = 0; i < job->prompt_count; i++)
        longest = job->prompts[i].count > longest ? job->prompts[i].count : longest;
    const char *param = job->route == TARN__API_CHAT ? "messages" : "prompt";
    if (longest >= model->context + job->options.prompt_only)
        return tarn__api_refuse(&job->error, 400, "context_length_exceeded", param,
                                "the context has %lld tokens, and the %s %lld; an answer needs at least one more",
                                (long long)model->context, param, (long long)longest);
    if (!job->has_default_limit && longest + job->options.max_tokens > model->context)
        return tarn__api_refuse(&job->error, 400, "context_length_exceeded", param,
                                "the context has %lld tokens; the %s %lld, and %lld more were asked for",
                                (long long)model->context, param, (long long)longest,
                                (long long)job->options.max_tokens);
    return true;
}

/* The log probabilities of a whole prompt are large as JSON. */
static bool check_echo(tarn__api_job *job)
{
    int64_t count = 0;
    for (int i = 0; i < job->prompt_count; i++)
        count += job->prompts[i].count * job->n * (1 + job->options.top_logprobs);
    return !job->options.prompt_logprobs || count <= TARN__API_ECHO_MAX ||
           tarn__api_refuse(&job->error, 400, NULL, "logprobs",
                            "echo with logprobs asks for %lld log probabilities of prompts; at most %d are allowed",
                            (long long)count, TARN__API_ECHO_MAX);
}

static bool prepare_completion(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    bool good = tarn__api_check_model(job, model, f) && tarn__api_read_params(job, model, f) &&
                (job->route == TARN__API_CHAT ? tarn__api_read_messages : tarn__api_read_prompts)(job, model, f) &&
                tarn__body_end(f) && check_context(job, model) && check_echo(job);
    return good && (job->prompt_count * job->n <= TARN__API_CHOICES_MAX ||
                    tarn__api_refuse(&job->error, 400, NULL, "n", "%d prompts with n %d are more than %d answers",
                                     job->prompt_count, job->n, TARN__API_CHOICES_MAX));
}

static bool prepare_embeddings(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    if (!tarn__api_check_model(job, model, f))
        return false;
    if (job->options.adapter > 0)
        return tarn__api_refuse(&job->error, 400, "unsupported_parameter", "model",
                                "embeddings are those of the model alone, '%s', without an adapter", model->name);
    return tarn__api_read_embeddings(job, model, f);
}

/* {"model": "name"}: one of those given on the command line, never a path. */
static bool prepare_load(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    const char *name = NULL;
    size_t length = 0;
    if (!tarn__body_string(f, "model", &name, &length) || !tarn__body_end(f))
        return false;
    if (!name)
        return tarn__api_refuse(&job->error, 400, NULL, "model", "model is missing; it must be a name of /v1/models");
    job->wanted_model = find_model(model, name);
    return job->wanted_model >= 0 || refuse_unknown_model(job, model, name);
}

/* A body of Ollama's becomes one of the others, whose members are read then. Its own members were read and checked
 * by the translation; the new body has its own list of read ones. */
static bool read_body(tarn__api_job *job, const tarn__api_model *model, tarn__body *fields)
{
    if (!parse(job))
        return false;
    fields->object = job->root;
    if (!job->ollama)
        return true;
    bool good = tarn__ollama_translate(job, model, fields);
    if (good && !job->answer)
        *fields = (tarn__body){.object = job->root, .error = &job->error};
    return good;
}

/* An embeddings job comes twice: its body first, then, with the embeddings, for its answer. Whatever fails without a
 * sentence lacks memory. */
void tarn__api_prepare_body(tarn__api_job *job, const tarn__api_model *model, tarn__body *fields)
{
    *fields = (tarn__body){.error = &job->error};
    if (atomic_load(&job->is_cancelled) || job->error.status)
        return;
    bool good = job->embeddings ? tarn__api_write_embeddings(job, model) : read_body(job, model, fields);
    if (good && !job->embeddings && !job->answer)
        good = (job->route <= TARN__API_COMPLETION   ? prepare_completion
                : job->route == TARN__API_EMBEDDINGS ? prepare_embeddings
                : job->route == TARN__API_LOAD       ? prepare_load
                                                     : tarn__api_answer_text)(job, model, fields);
    if (!good && !job->error.status)
        tarn__api_refuse(&job->error, 503, NULL, NULL, "no memory for the request");
}

void tarn__api_prepare(tarn__api_job *job, const tarn__api_model *model)
{
    tarn__body fields;
    tarn__api_prepare_body(job, model, &fields);
}
