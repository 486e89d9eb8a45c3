/* serve.c: `tarn serve`: language models behind an OpenAI-compatible HTTP API (serve/api), one loaded at a time.
 *
 * The server listens first and loads the model on another thread, so that /health can say so. Loopback alone, unless
 * keys are given.
 *
 * Threads: this file runs on the main thread, which becomes the loop; load() and add_adapters() run on the engine's
 * thread, and read what was set before the API began. Names, keys and options are borrowed by the API and live until
 * it is freed. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/lm/lm_common.h"
#include "hub/hub.h"
#include "tarn_features.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include "serve/api/api.h"

/* Of the engine's thread while a model is loaded. The arrays have an element per model. */
typedef struct serving {
    const tarn__options *options;
    tarn_run_weights *weights;
    char **names;
    tarn_kv_type kv_type;
    tarn_speculate speculate;
    tarn_run_weights draft_weights;
    tarn_module *draft; /* NULL: none */
    tarn_tokenizer *draft_tokenizer;
    char url[128];
    char *lora[TARN__LORAS_MAX]; /* names of the adapters */
} serving;

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* The options with one of the models alone. */
static tarn__options options_of(const tarn__options *options, int index)
{
    tarn__options one = *options;
    one.words += index;
    one.word_count = 1;
    return one;
}

/* The draft model and its tokenizer. False with an error. */
static bool open_draft(serving *s, tarn_engine_options *engine)
{
    const char *word;
    const tarn__options own = tarn__lm_draft_options(s->options, &word);
    if (!s->options->draft_model)
        return true;
    s->draft = tarn__lm_model(&own, &s->draft_weights, NULL);
    s->draft_tokenizer = s->draft ? tarn__lm_tokenizer(&own) : NULL;
    engine->draft = s->draft;
    engine->draft_tokenizer = s->draft_tokenizer;
    return s->draft_tokenizer != NULL;
}

/* The API owns model and tokenizer from here, also where this fails after opening one. */
static bool load(int index, tarn_module **model, tarn_tokenizer **tokenizer, tarn_engine_options *engine, char *error,
                 size_t error_size, void *ctx)
{
    serving *s = ctx;
    const tarn__options o = options_of(s->options, index);
    tarn_model_info info;
    const tarn_model_split_options cache = {.context = o.context ? o.context : TARN__ENGINE_CONTEXT,
                                            .sequences = o.sequences,
                                            .kv_type = s->kv_type,
                                            .kv_tokens = TARN__ENGINE_KV_TOKENS,
                                            .kv_bytes = o.kv_memory << 20};
    *model = tarn__lm_model(&o, &s->weights[index], &cache);
    *tokenizer = *model ? tarn__lm_tokenizer(&o) : NULL;
    bool good = *tokenizer && (!o.template_name || tarn_tokenizer_set_chat(*tokenizer, o.template_name)) &&
                tarn_model_query(*model, &info) && open_draft(s, engine);
    if (good)
        tarn__lm_size_engine(&o, &info, engine);
    else
        tarn__user_error("serve", error, error_size);
    return good;
}

/* What comes after the name in "NAME=PATH". */
static const char *lora_path(const char *option)
{
    return strchr(option, '=') + 1;
}

/* A path, or a name in the cache of `tarn pull`. */
static bool add_adapter(tarn_engine *engine, const char *name)
{
    char path[TARN__HUB_PATH];
    const char *found = tarn__hub_open(name, path) ? path : name;
    return !tarn_failed() && tarn_engine_add_adapter(engine, found) >= 0;
}

static bool add_adapters(tarn_engine *engine, char *error, size_t error_size, void *ctx)
{
    const serving *s = ctx;
    for (int i = 0; i < s->options->lora_count; i++)
        if (!add_adapter(engine, lora_path(s->options->loras[i]))) {
            int begun = snprintf(error, error_size, "--lora %s: ", tarn__escaped(s->lora[i]));
            size_t used = (size_t)begun < error_size ? (size_t)begun : error_size - 1;
            tarn__user_error("serve", error + used, error_size - used);
            return false;
        }
    return true;
}

static void print_loaded(const tarn__api_model *model, void *ctx)
{
    const serving *s = ctx;
    char device[64];
    tarn_device_name(model->info.device, device, sizeof(device));
    printf("ready: %s on %s, context of %lld tokens%s; Ctrl-C stops the server\n", tarn__escaped(model->name), device,
           (long long)model->context, model->has_template ? "" : ", no chat template (/v1/completions only)");
    for (int i = 0; i < model->adapter_count; i++)
        printf("  adapter %s\n", tarn__escaped(model->adapters[i]));
    if (s->options->draft_model)
        printf("  draft model %s\n", tarn__escaped(s->options->draft_model));
    printf("%s page: %s/, status: %s/status\n", model->has_template ? "chat" : "completion", s->url, s->url);
    fflush(stdout);
}

/* ---- the options ------------------------------------------------------------------------------------------------- */

/* The last part of the model's path, without .gguf. The caller frees it. */
static char *model_name(const char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    size_t begin = length;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    if (length - begin > 5 && strncmp(path + length - 5, ".gguf", 5) == 0)
        length -= 5;
    return strndup(path + begin, length - begin);
}

static int misuse(const char *format, const char *value)
{
    fprintf(stderr, "tarn serve: ");
    fprintf(stderr, format, value);
    fprintf(stderr, "\n");
    return TARN__MISUSED;
}

/* 127.0.0.0/8 or ::1. */
static bool is_loopback(const char *address)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, address, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, address, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/* Speculation that only some servers can have. */
static int check_speculation(const tarn__options *o, tarn_speculate speculate)
{
    if (speculate != TARN_SPECULATE_OFF && !tarn__lm_on_cpu(o)) {
        fprintf(stderr, "tarn serve: --speculate needs --device cpu: on GPUs the bits of logits depend on how many "
                        "tokens are computed at once\n");
        return TARN__MISUSED;
    }
    if (o->draft_model && o->word_count > 1)
        return misuse("--draft-model %s belongs to one model, and several are given", tarn__escaped(o->draft_model));
    return TARN__DONE;
}

/* What can be refused before anything is opened: a server that listens has accepted its options. */
static int check_options(const tarn__options *o)
{
    struct in6_addr address;
    if (inet_pton(AF_INET, o->host, &address) != 1 && inet_pton(AF_INET6, o->host, &address) != 1)
        return misuse("--host: '%s' must be a numeric IPv4 or IPv6 address, such as 127.0.0.1 or 0.0.0.0",
                      tarn__escaped(o->host));
    if (o->swap_memory && tarn__lm_on_cpu(o)) {
        fprintf(stderr, "tarn serve: --swap-memory needs a GPU, and the device is cpu, where it gains nothing over a "
                        "larger --kv-memory\n");
        return TARN__MISUSED;
    }
    if (!is_loopback(o->host) && !o->api_key_file)
        return misuse("--host %s opens the server to others: it needs --api-key-file", o->host);
    if (o->word_count > TARN__MODELS_MAX || o->alias_count > o->word_count)
        return misuse(
            o->alias_count > o->word_count ? "--alias %s: there are more names than models"
                                           : "'%s' is one model too many: at most 64 can be given",
            tarn__escaped(o->alias_count > o->word_count ? o->aliases[o->word_count] : o->words[TARN__MODELS_MAX]));
    if (o->adapter && o->word_count > 1)
        return misuse("--adapter %s belongs to one model, and several are given", tarn__escaped(o->adapter));
    if (o->lora_count > 0 && o->word_count > 1)
        return misuse("--lora %s belongs to one model, and several are given", tarn__escaped(o->loras[0]));
    for (int i = 0; i < o->origin_count; i++) {
        const char *authority = strstr(o->origins[i], "://");
        if (!authority || !authority[3] || strchr(authority + 3, '/'))
            return misuse("--origin: '%s' must be a scheme and a host, such as https://example.org",
                          tarn__escaped(o->origins[i]));
    }
    return TARN__DONE;
}

static bool is_utf8(const char *text)
{
    for (size_t bytes; *text; text += bytes)
        if ((bytes = tarn__utf8_bytes(text, strlen(text))) == 0)
            return false;
    return true;
}

/* Names of adapters: of no other, and not of the model. */
static int name_loras(serving *s)
{
    const tarn__options *o = s->options;
    if (o->lora_count > 0 && o->adapter)
        return misuse("--adapter %s is for all requests; it does not go with --lora, of which each chooses its own",
                      tarn__escaped(o->adapter));
    for (int i = 0; i < o->lora_count; i++) {
        const char *equals = strchr(o->loras[i], '=');
        if (!equals || equals == o->loras[i] || !equals[1])
            return misuse("--lora: '%s' must be a name and the path of adapters, such as formal=adapters/formal",
                          tarn__escaped(o->loras[i]));
        s->lora[i] = strndup(o->loras[i], (size_t)(equals - o->loras[i]));
        if (!s->lora[i]) {
            fprintf(stderr, "tarn serve: out of memory\n");
            return TARN__FAILED;
        }
        bool is_taken = strcmp(s->lora[i], s->names[0]) == 0;
        for (int k = 0; k < i; k++)
            is_taken = is_taken || strcmp(s->lora[i], s->lora[k]) == 0;
        if (is_taken)
            return misuse("--lora: '%s' is the name of the model or of other adapters; it must be another",
                          tarn__escaped(s->lora[i]));
        if (!is_utf8(s->lora[i]))
            return misuse("--lora: the name '%s' is not UTF-8; give another", tarn__escaped(s->lora[i]));
    }
    return TARN__DONE;
}

/* ---- the server -------------------------------------------------------------------------------------------------- */

/* Listens and serves until a signal. */
static int serve(serving *s, const tarn__api_keys *keys)
{
    const tarn__options *o = s->options;
    char error[512];
    tarn__api_options options = {.http = tarn__http_options_default(),
                                 .names = (const char *const *)s->names,
                                 .name_count = o->word_count,
                                 .keys = keys->count ? keys : NULL,
                                 .origins = o->origins,
                                 .origin_count = o->origin_count,
                                 .queue = (int)o->queue,
                                 .drain_seconds = (int)o->drain,
                                 .speculate = s->speculate,
                                 .draft_tokens = o->draft_tokens,
                                 .engine = {.sequences = o->sequences,
                                            .kv_type = s->kv_type,
                                            .prompt_tokens = o->prefill_chunk,
                                            .swap_bytes = o->swap_memory << 20},
                                 .load = load,
                                 .adapters = (const char *const *)s->lora,
                                 .adapter_count = o->lora_count,
                                 .add_adapters = add_adapters,
                                 .loaded = print_loaded,
                                 .ctx = s};
    options.http.address = o->host;
    options.http.port = (int)o->port;
    tarn__api *api = tarn__api_new(&options, error, sizeof(error));
    if (!api || !tarn__http_server_stop_on_signals(tarn__api_server(api), (int)o->drain)) {
        fprintf(stderr, "tarn serve: cannot start: %s\n", api ? "no memory" : error);
        tarn__api_free(api);
        return TARN__FAILED;
    }
    snprintf(s->url, sizeof(s->url), strchr(o->host, ':') ? "http://[%s]:%d" : "http://%s:%d", o->host,
             tarn__http_server_port(tarn__api_server(api)));
    /* the first of two lines that `tarn bench serve` waits for; the port may be one that the system chose */
    printf("%s is up; loading %s\n", s->url, tarn__escaped(o->words[0]));
    fflush(stdout);
    bool good = tarn__api_run(api, error, sizeof(error));
    tarn__api_free(api);
    if (!good)
        fprintf(stderr, "tarn serve: %s\n", error);
    return good ? TARN__DONE : TARN__FAILED;
}

/* Names and weights of all models; what cannot be found is found out before any is loaded. A name is what requests
 * send as "model". */
static int find_models(serving *s)
{
    const tarn__options *o = s->options;
    int status = TARN__DONE;
    s->names = calloc((size_t)o->word_count, sizeof(*s->names));
    s->weights = calloc((size_t)o->word_count, sizeof(*s->weights));
    for (int i = 0; status == TARN__DONE && i < o->word_count; i++) {
        const tarn__options one = options_of(o, i);
        if (s->names)
            s->names[i] = i < o->alias_count ? strdup(o->aliases[i])
                                             : model_name(o->hub_names[i] ? o->hub_names[i] : o->words[i]);
        if (!s->names || !s->weights || !s->names[i]) {
            fprintf(stderr, "tarn serve: out of memory\n");
            return TARN__FAILED;
        }
        for (int k = 0; k < i; k++)
            if (strcmp(s->names[k], s->names[i]) == 0)
                return misuse("two models are named '%s'; --alias names the first one, given again the next",
                              tarn__escaped(s->names[i]));
        if (access(o->words[i], F_OK) != 0) {
            fprintf(stderr, "tarn serve: '%s': %s; expected a model folder, a .gguf file or a run\n",
                    tarn__escaped(o->words[i]), strerror(errno));
            return TARN__FAILED;
        }
        status = tarn__checkpoint_use("serve", &one, &s->weights[i]);
    }
    const char *word;
    const tarn__options draft = tarn__lm_draft_options(o, &word);
    return status == TARN__DONE && word ? tarn__checkpoint_use("serve", &draft, &s->draft_weights) : status;
}

int tarn__serve(const tarn__options *options)
{
    serving s = {.options = options};
    tarn__api_keys keys = {0};
    char error[512];
    int status = check_options(options);
    if (status == TARN__DONE)
        status = tarn__lm_options("serve", options, &s.kv_type);
    if (status == TARN__DONE)
        status = tarn__lm_speculate_options("serve", options, &s.speculate);
    if (status == TARN__DONE)
        status = check_speculation(options, s.speculate);
    if (status == TARN__DONE)
        status = find_models(&s);
    if (status == TARN__DONE && options->api_key_file &&
        !tarn__api_keys_read(&keys, options->api_key_file, error, sizeof(error))) {
        fprintf(stderr, "tarn serve: --api-key-file: %s\n", error);
        status = TARN__FAILED;
    }
    if (status == TARN__DONE)
        status = name_loras(&s);
    if (status == TARN__DONE)
        status = serve(&s, &keys);
    for (int i = 0; i < options->lora_count; i++)
        free(s.lora[i]);
    for (int i = 0; s.names && i < options->word_count; i++)
        free(s.names[i]);
    free(s.names);
    free(s.weights);
    tarn_tokenizer_free(s.draft_tokenizer);
    tarn_module_free(s.draft);
    tarn__api_keys_free(&keys);
    return status;
}

#else

int tarn__serve(const tarn__options *options)
{
    (void)options;
    fprintf(stderr, "tarn serve: this build has no HTTP server: %s\n",
            TARN__HAVE_EVENT ? "jansson was not found (libjansson-dev brings it)"
                             : "libevent was not found (libevent-dev brings it)");
    return TARN__FAILED;
}

#endif
