/* params.c: the members of a request that say how to answer: sampling, limits, stream, structured output.
 *
 * Defaults are OpenAI's where it has the member; the others (top_k, min_p, repeat_penalty, repeat_last_n,
 * ignore_eos, grammar, cache_salt) change nothing unless they are given. A combination that cannot be honoured is
 * refused. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "serve/api/prepare.h"

#define DEFAULT_COMPLETION_TOKENS 16 /* as OpenAI's */
#define MIN_TEMPERATURE 0.0001       /* the sampler's */

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

/* Negative seeds wrap around, as clients take any integer. Without one the answer is another each time. */
static bool read_seed(tarn__api_job *job, tarn__body *f)
{
    int64_t seed = 0;
    if (!tarn__body_int(f, "seed", INT64_MIN, INT64_MAX, &seed))
        return false;
    job->options.seed = (uint64_t)seed;
    if (json_object_get(f->object, "seed") && !json_is_null(json_object_get(f->object, "seed")))
        return true;
    return getrandom(&job->options.seed, sizeof(job->options.seed), GRND_NONBLOCK) > 0 ||
           tarn__api_refuse(&job->error, 503, NULL, "seed", "no random seed is to be had; give one");
}

/* {"50256": -100}: keys of JSON are strings. No sign and no space, which strtoll() would take. */
static bool read_biases(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    json_t *object = tarn__body_member(f, "logit_bias"), *value;
    const char *name;
    int count = 0;
    if (!object)
        return true;
    if (!json_is_object(object) || json_object_size(object) > TARN__API_BIASES_MAX)
        return tarn__api_refuse(&job->error, 400, NULL, "logit_bias",
                                "logit_bias must be an object of at most %d token ids with a number each",
                                TARN__API_BIASES_MAX);
    job->biases = calloc(json_object_size(object) + 1, sizeof(*job->biases));
    if (!job->biases)
        return false;
    json_object_foreach(object, name, value)
    {
        char *end;
        errno = 0;
        long long id = strtoll(name, &end, 10);
        double bias = json_number_value(value);
        bool is_id = name[0] >= '0' && name[0] <= '9' && !*end && !errno && id < model->info.vocab_size;
        if (!is_id || !json_is_number(value) || !(fabs(bias) <= 100))
            return tarn__api_refuse(&job->error, 400, NULL, "logit_bias",
                                    "logit_bias: '%.40s' must be a token id below %lld, with a number from -100 to 100",
                                    name, (long long)model->info.vocab_size);
        job->biases[count++] = (tarn_logit_bias){(int32_t)id, bias};
    }
    job->options.logit_bias = count ? job->biases : NULL;
    job->options.logit_bias_count = count;
    return true;
}

/* top_p 0 keeps the most likely token alone; to the sampler it means all. */
static bool read_sampling(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    tarn_generate_options *o = &job->options;
    o->temperature = o->top_p = o->repeat_penalty = 1;
    bool good = tarn__body_real(f, "temperature", 0, 100, &o->temperature) &&
                tarn__body_real(f, "top_p", 0, 1, &o->top_p) && tarn__body_int(f, "top_k", 0, INT32_MAX, &o->top_k) &&
                tarn__body_real(f, "min_p", 0, 1, &o->min_p) &&
                tarn__body_real(f, "frequency_penalty", -2, 2, &o->frequency_penalty) &&
                tarn__body_real(f, "presence_penalty", -2, 2, &o->presence_penalty) &&
                tarn__body_real(f, "repeat_penalty", 0.01, 100, &o->repeat_penalty) &&
                tarn__body_int(f, "repeat_last_n", 0, INT32_MAX, &o->repeat_last_n) && read_seed(job, f) &&
                read_biases(job, model, f);
    if (!good)
        return false;
    if (o->temperature > 0 && o->temperature < MIN_TEMPERATURE)
        return tarn__api_refuse(&job->error, 400, NULL, "temperature",
                                "temperature must be 0 (greedy) or from %g to 100", MIN_TEMPERATURE);
    if (o->top_p == 0)
        o->top_k = 1, o->top_p = 1;
    if (o->repeat_penalty == 1)
        o->repeat_penalty = 0;
    return true;
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

/* Borrowed from the body. A 0 byte within would end the string for the engine, which takes C strings. */
static bool add_stop(tarn__api_job *job, const json_t *text)
{
    if (!json_is_string(text) || json_string_length(text) == 0 ||
        strlen(json_string_value(text)) != json_string_length(text))
        return tarn__api_refuse(&job->error, 400, NULL, "stop",
                                "stop must be a string or an array of strings, none empty");
    job->stops[job->options.stop_string_count++] = json_string_value(text);
    return true;
}

static bool read_stops(tarn__api_job *job, tarn__body *f)
{
    json_t *stop = tarn__body_member(f, "stop");
    size_t count = json_array_size(stop);
    if (!stop)
        return true;
    if (count > TARN__API_STOPS_MAX)
        return tarn__api_refuse(&job->error, 400, NULL, "stop", "stop has %zu strings; at most %d are allowed", count,
                                TARN__API_STOPS_MAX);
    bool good = json_is_array(stop) || add_stop(job, stop);
    for (size_t i = 0; good && i < count; i++)
        good = add_stop(job, json_array_get(stop, i));
    job->options.stop_strings = job->options.stop_string_count ? job->stops : NULL;
    return good;
}

/* The log probabilities of a prompt are computed where asked for, and, with max_tokens 0, no new token. */
static bool read_echo(tarn__api_job *job, tarn__body *f)
{
    tarn_generate_options *o = &job->options;
    int64_t most = -1;
    if (!tarn__body_bool(f, "echo", &job->echoes) || !tarn__body_int(f, "max_tokens", 0, INT32_MAX, &most))
        return false;
    if (most == 0 && !job->echoes)
        return tarn__api_refuse(&job->error, 400, NULL, "max_tokens", "max_tokens 0 needs echo: true");
    o->prompt_only = most == 0;
    o->prompt_logprobs = job->echoes && (job->has_logprobs || o->prompt_only);
    if (o->prompt_only)
        o->max_tokens = 0;
    return true;
}

/* max_completion_tokens is the newer name of a chat's max_tokens. 0 is no limit but the context's; a chat has none
 * by default, and Ollama's requests neither. */
static bool read_limits(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    tarn_generate_options *o = &job->options;
    int64_t n = 1, newer = 0, given = 0;
    bool good = tarn__body_int(f, "max_tokens", job->route == TARN__API_CHAT, INT32_MAX, &given) &&
                (job->route != TARN__API_CHAT || tarn__body_int(f, "max_completion_tokens", 1, INT32_MAX, &newer)) &&
                tarn__body_int(f, "n", 1, TARN__API_N_MAX, &n) && read_stops(job, f) &&
                tarn__body_bool(f, "ignore_eos", &o->ignore_eos);
    if (!good)
        return false;
    if (given && newer && given != newer)
        return tarn__api_refuse(&job->error, 400, NULL, "max_tokens", "max_tokens and max_completion_tokens differ");
    o->max_tokens = newer                                         ? newer
                    : given                                       ? given
                    : job->route == TARN__API_CHAT || job->ollama ? 0
                                                                  : DEFAULT_COMPLETION_TOKENS;
    job->has_default_limit = !newer && !json_is_number(json_object_get(f->object, "max_tokens"));
    job->n = (int)n;
    if (job->route == TARN__API_CHAT && model->eot >= 0 && !o->ignore_eos) {
        o->stop = &model->eot;
        o->stop_count = 1;
    }
    return true;
}

/* Requests share pages of the KV cache only with those of the same salt, so that the time of an answer tells nothing
 * about the prompts of others: 63 bits of FNV-1a of the string. */
static bool read_salt(tarn__api_job *job, tarn__body *f)
{
    const char *salt = NULL;
    size_t length = 0;
    if (!tarn__body_string(f, "cache_salt", &salt, &length))
        return false;
    uint64_t hash = salt ? 0xcbf29ce484222325u : 0;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)salt[i]) * 0x100000001b3u;
    job->options.cache_salt = hash & INT64_MAX;
    return true;
}

/* ---- the answer's form ------------------------------------------------------------------------------------------- */

/* A chat asks with true and top_logprobs, a completion with a number. So logprobs 0 of a completion asks for those
 * of its tokens, without others beside them. */
static bool read_logprobs(tarn__api_job *job, tarn__body *f)
{
    int64_t top = -1;
    if (job->route == TARN__API_COMPLETION) {
        if (!tarn__body_int(f, "logprobs", 0, TARN__API_TOP_MAX, &top))
            return false;
        job->has_logprobs = top >= 0;
    } else {
        if (!tarn__body_bool(f, "logprobs", &job->has_logprobs) ||
            !tarn__body_int(f, "top_logprobs", 0, TARN__API_TOP_MAX, &top))
            return false;
        if (top >= 0 && !job->has_logprobs)
            return tarn__api_refuse(&job->error, 400, NULL, "top_logprobs", "top_logprobs needs logprobs: true");
    }
    job->options.logprobs = job->has_logprobs;
    job->options.top_logprobs = top > 0 ? (int)top : 0;
    return true;
}

/* {"include_usage": true}: an event with the counts before [DONE]. */
static bool read_stream(tarn__api_job *job, tarn__body *f)
{
    json_t *options = NULL;
    if (!tarn__body_bool(f, "stream", &job->streams))
        return false;
    options = tarn__body_member(f, "stream_options");
    if (!options)
        return true;
    if (!json_is_object(options) || !job->streams)
        return tarn__api_refuse(&job->error, 400, NULL, "stream_options",
                                job->streams ? "stream_options must be an object"
                                             : "stream_options needs stream: true");
    tarn__body inner = {.object = options, .error = &job->error};
    tarn__body_skip(&inner, "include_obfuscation"); /* padding of OpenAI's own */
    return tarn__body_bool(&inner, "include_usage", &job->includes_usage) && tarn__body_end(&inner);
}

/* Compiles with one of the compilers of grammars; what it refuses is the client's error. Without a compiler: any JSON
 * object. */
static bool compile(tarn__api_job *job, const tarn__api_model *model, const char *param, const char *text,
                    size_t length, tarn_grammar *(*compiler)(tarn_grammar_vocab *, const char *, size_t))
{
    if (!model->vocab)
        return tarn__api_refuse(&job->error, 400, NULL, param, "%s: %s", param, model->vocab_error);
    if (job->options.ignore_eos)
        return tarn__api_refuse(&job->error, 400, NULL, param,
                                "ignore_eos and %s exclude each other: the text ends with the grammar", param);
    job->grammar = compiler ? compiler(model->vocab, text, length) : tarn_grammar_json(model->vocab);
    job->options.grammar = job->grammar;
    return job->grammar || tarn__api_refuse_by_library(&job->error, 400, param);
}

/* {"schema": …}; the others are for the model's provider: a schema is always followed. */
static bool compile_schema(tarn__api_job *job, const tarn__api_model *model, json_t *object)
{
    tarn__body inner = {.object = object, .error = &job->error};
    json_t *schema = json_is_object(object) ? tarn__body_member(&inner, "schema") : NULL;
    if (!schema)
        return tarn__api_refuse(&job->error, 400, NULL, "response_format",
                                "response_format of type json_schema needs json_schema.schema");
    tarn__body_skip(&inner, "name");
    tarn__body_skip(&inner, "description");
    tarn__body_skip(&inner, "strict");
    if (!tarn__body_end(&inner))
        return false;
    char *text = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    bool good = text && compile(job, model, "response_format", text, strlen(text), tarn_grammar_json_schema);
    free(text);
    return good;
}

/* {"type": "json_schema", "json_schema": {…}} */
static bool compile_format(tarn__api_job *job, const tarn__api_model *model, json_t *format)
{
    tarn__body inner = {.object = format, .error = &job->error};
    const char *type = json_string_value(tarn__body_member(&inner, "type"));
    bool is_json = strcmp(type, "json_object") == 0, is_schema = strcmp(type, "json_schema") == 0;
    json_t *schema = is_schema ? tarn__body_member(&inner, "json_schema") : NULL;
    if (!is_json && !is_schema && strcmp(type, "text") != 0)
        return tarn__api_refuse(&job->error, 400, NULL, "response_format",
                                "response_format: type '%.40s' must be text, json_object or json_schema", type);
    return tarn__body_end(&inner) && (!is_json || compile(job, model, "response_format", NULL, 0, NULL)) &&
           (!is_schema || compile_schema(job, model, schema));
}

static bool read_format(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    json_t *format = tarn__body_member(f, "response_format");
    const char *grammar = NULL, *type = json_string_value(json_object_get(format, "type"));
    size_t length = 0;
    if (!tarn__body_string(f, "grammar", &grammar, &length))
        return false;
    if (format && !type)
        return tarn__api_refuse(&job->error, 400, NULL, "response_format",
                                "response_format must be an object with a type: text, json_object or json_schema");
    if (grammar && type && strcmp(type, "text") != 0)
        return tarn__api_refuse(&job->error, 400, NULL, "grammar", "grammar and response_format exclude each other");
    return (!format || compile_format(job, model, format)) &&
           (!grammar || compile(job, model, "grammar", grammar, length, tarn_grammar_gbnf));
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* ["text"] alone. */
static bool read_modalities(tarn__api_job *job, tarn__body *f)
{
    json_t *value = tarn__body_member(f, "modalities");
    const char *first = json_string_value(json_array_get(value, 0));
    return !value || (json_array_size(value) == 1 && first && strcmp(first, "text") == 0) ||
           tarn__api_refuse(&job->error, 400, "unsupported_parameter", "modalities",
                            "modalities must be [\"text\"]: others are not supported");
}

/* An empty object asks for a search with OpenAI's defaults. */
static bool refuse_search(tarn__api_job *job, tarn__body *f)
{
    return !tarn__body_member(f, "web_search_options") ||
           tarn__api_refuse(&job->error, 400, "unsupported_parameter", "web_search_options",
                            "web_search_options is not supported");
}

/* Members that change nothing here, and those that would but are not supported. */
static bool read_others(tarn__api_job *job, tarn__body *f)
{
    static const char *const without_effect[] = {"user",         "metadata",          "store",
                                                 "service_tier", "safety_identifier", "prompt_cache_key"};
    static const char *const chat[] = {"functions",  "function_call",    "audio",
                                       "prediction", "reasoning_effort", "verbosity"};
    static const char *const completion[] = {"suffix"};
    bool is_chat = job->route == TARN__API_CHAT, good = true;
    int64_t best_of = job->n;
    for (size_t i = 0; i < sizeof(without_effect) / sizeof(without_effect[0]); i++)
        tarn__body_skip(f, without_effect[i]);
    for (size_t i = 0; is_chat && good && i < sizeof(chat) / sizeof(chat[0]); i++)
        good = tarn__body_unsupported(f, chat[i]);
    for (size_t i = 0; !is_chat && good && i < sizeof(completion) / sizeof(completion[0]); i++)
        good = tarn__body_unsupported(f, completion[i]);
    if (!is_chat && good && (!tarn__body_int(f, "best_of", 1, TARN__API_N_MAX, &best_of) || best_of != job->n))
        return tarn__api_refuse(&job->error, 400, "unsupported_parameter", "best_of",
                                "best_of other than n is not supported");
    return good && (!is_chat || (refuse_search(job, f) && read_modalities(job, f) && tarn__api_read_tools(job, f)));
}

bool tarn__api_read_params(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    return read_sampling(job, model, f) && read_limits(job, model, f) && read_salt(job, f) && read_logprobs(job, f) &&
           (job->route == TARN__API_CHAT || read_echo(job, f)) && read_stream(job, f) && read_format(job, model, f) &&
           read_others(job, f);
}
