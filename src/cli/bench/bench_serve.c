/* bench_serve.c: `tarn bench serve`: load on a server: requests and tokens per second, time to the first token and
 * between tokens.
 *
 * With a model it starts `tarn serve` as a child on a free port and ends it afterwards: the server is the real one, in
 * a process of its own, and the generator's work is not in its loop. With --engine the requests go to an engine in this
 * process, without a server. */
#include "cli/bench/load.h"
#include "cli/lm/lm_common.h"
#include "tarn_features.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "serve/http/keys.h"

#define DEFAULT_CLIENTS 16
#define DEFAULT_SECONDS 10
#define ARGUMENTS_MAX 64

static bool is_url(const char *word)
{
    return strncmp(word, "http://", 7) == 0 || strncmp(word, "https://", 8) == 0;
}

/* `format` is a literal with one %s, for a value that is safe to print. */
static int misuse(const char *format, const char *value)
{
    fprintf(stderr, "tarn bench serve: ");
    fprintf(stderr, format, value);
    fprintf(stderr, "\n");
    return TARN__MISUSED;
}

static int fail(const char *why)
{
    fprintf(stderr, "tarn bench serve: %s\n", why);
    return TARN__FAILED;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* True for a flag that is one of the server's. */
static bool is_of_server(const char *flag)
{
    const tarn__option_row *row = tarn__option_find(flag + 2, strcspn(flag + 2, "="), TARN__BENCH_SERVE);
    return row && (row->commands & TARN__SERVE);
}

/* Collects the typed options of the server, with their values; all of them have one. Returns their number. Read from
 * the arguments and not from tarn__options, so that defaults stay the server's own. */
static int server_options(const tarn__options *o, const char **found, int max)
{
    int count = 0;
    for (char *const *word = o->words + o->word_count; *word; word++) {
        bool is_one = strncmp(*word, "--", 2) == 0 && is_of_server(*word);
        if (is_one && count + 2 < max) {
            found[count++] = *word;
            if (!strchr(*word, '='))
                found[count++] = *++word;
        }
    }
    return count;
}

/* Rejects the options that need a server. */
static int check_engine_options(const tarn__options *o)
{
    static const char *const missing[] = {"--queue", "--speculate", "--draft-model", "--draft-tokens"};
    const char *given[ARGUMENTS_MAX];
    int count = server_options(o, given, ARGUMENTS_MAX);
    if (is_url(o->words[0]))
        return misuse("--engine needs a MODEL, not the URL %s", tarn__escaped(o->words[0]));
    if (o->rate > 0)
        return misuse("--engine and --rate exclude each other%s", "");
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof(missing) / sizeof(missing[0]); k++)
            if (strncmp(given[i], missing[k], strlen(missing[k])) == 0)
                return misuse("--engine and %s exclude each other", missing[k]);
    return TARN__DONE;
}

static int check_options(const tarn__options *o)
{
    const char *given[ARGUMENTS_MAX];
    if (strncmp(o->words[0], "https://", 8) == 0)
        return misuse("%s: TLS is not supported; give the server behind the proxy, by http://",
                      tarn__escaped(o->words[0]));
    if (is_url(o->words[0]) && server_options(o, given, ARGUMENTS_MAX) > 0)
        return misuse("%s is for a MODEL; the server of a URL already runs", given[0]);
    if (!is_url(o->words[0]) && o->api_key_file)
        return misuse("--api-key-file is for the server of a URL; that of a MODEL%s needs no key", "");
    if (o->clients && o->rate > 0)
        return misuse("--clients and --rate exclude each other%s", "");
    if (o->requests && o->seconds > 0)
        return misuse("--requests and --seconds exclude each other%s", "");
    return o->engine_alone ? check_engine_options(o) : TARN__DONE;
}

/* ---- the server of a model --------------------------------------------------------------------------------------- */

/* In the child: becomes `tarn serve`, which ends with its parent. */
static void become_server(const tarn__options *o, int out)
{
    const char *arguments[ARGUMENTS_MAX + 8] = {"tarn", "serve", o->words[0], "--port", "0"};
    int count = 5 + server_options(o, arguments + 5, ARGUMENTS_MAX);
    arguments[count] = NULL;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(out, STDOUT_FILENO);
    execv("/proc/self/exe", (char *const *)arguments);
    fprintf(stderr, "tarn bench serve: cannot start the server: %s\n", strerror(errno));
    _exit(127);
}

/* Starts the server and waits until its model is loaded. Its first line begins with the URL, its second says that
 * it is ready. Returns its process; -1 with a message. The wait also ends with the child's output, which is how a model
 * that cannot be loaded is noticed; the server has said why on standard error. */
static pid_t start_server(const tarn__options *o, char *url, size_t url_size)
{
    int ends[2];
    char line[1024] = "";
    if (pipe(ends) != 0) {
        fail(strerror(errno));
        return -1;
    }
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        become_server(o, ends[1]);
    }
    close(ends[1]);
    FILE *said = fdopen(ends[0], "r");
    bool is_ready = said && child > 0 && fgets(line, sizeof(line), said) != NULL;
    snprintf(url, url_size, "%.*s", (int)strcspn(line, " "), line);
    is_ready = is_ready && fgets(line, sizeof(line), said) != NULL;
    if (said)
        fclose(said);
    if (!is_ready && child > 0)
        waitpid(child, NULL, 0);
    if (!is_ready)
        fail("the server did not start");
    return is_ready ? child : -1;
}

/* Ends it. False if it did not end by itself: a crash. */
static bool stop_server(pid_t child)
{
    int status = 0;
    kill(child, SIGTERM);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static void print_times(const char *name, const tarn__histogram *h)
{
    printf("  %-10s p50 %.2f ms, p90 %.2f, p99 %.2f, max %.2f\n", name, 1e3 * tarn__histogram_percentile(h, 0.5),
           1e3 * tarn__histogram_percentile(h, 0.9), 1e3 * tarn__histogram_percentile(h, 0.99), 1e3 * h->max);
}

static void print_table(const char *url, const tarn__load_model *model, const tarn__load_options *o,
                        const tarn__load_result *r)
{
    char load[64];
    snprintf(load, sizeof(load), o->clients ? "%.0f clients" : "%g requests/s",
             o->clients ? (double)o->clients : o->rate);
    tarn__heading("%s with %s: %s, prompts of %lld tokens, %lld new tokens", url, tarn__escaped(model->name), load,
                  (long long)o->prompt_tokens, (long long)o->new_tokens);
    printf("  %-10s %lld done, %lld failed in %.2f s: %.2f requests/s; at most %lld open\n", "requests",
           (long long)r->done, (long long)r->failed, r->seconds, (double)r->done / r->seconds, (long long)r->max_open);
    printf("  %-10s %.1f new tokens/s, %.1f prompt tokens/s\n", "tokens", (double)r->tokens / r->seconds,
           (double)r->prompt_tokens / r->seconds);
    if (r->done) {
        print_times("first", &r->first);
        print_times("between", &r->between);
        print_times("request", &r->whole);
    }
    for (int i = 0; i < r->error_count; i++)
        printf("%s%s: %lld%s", i ? ", " : "  errors     ", r->errors[i].name, (long long)r->errors[i].count,
               i + 1 == r->error_count ? "\n" : "");
}

/* In milliseconds. Without requests the mean is 0 / 0, which JSON gets as null. */
static void json_times(tarn__json *json, const char *key, const tarn__histogram *h)
{
    tarn__json_open(json, key, '{');
    tarn__json_int(json, "count", h->count);
    tarn__json_real(json, "mean", 1e3 * h->sum / (double)h->count, 3);
    tarn__json_real(json, "p50", 1e3 * tarn__histogram_percentile(h, 0.5), 3);
    tarn__json_real(json, "p90", 1e3 * tarn__histogram_percentile(h, 0.9), 3);
    tarn__json_real(json, "p99", 1e3 * tarn__histogram_percentile(h, 0.99), 3);
    tarn__json_real(json, "max", 1e3 * h->max, 3);
    tarn__json_close(json, '}');
}

static void print_json(const char *url, const tarn__load_model *model, const tarn__load_options *o,
                       const tarn__load_result *r)
{
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "url", url);
    tarn__json_string(&json, "model", model->name);
    tarn__json_int(&json, "clients", o->clients);
    tarn__json_real(&json, "rate", o->rate, 3);
    tarn__json_int(&json, "prompt", o->prompt_tokens);
    tarn__json_int(&json, "tokens", o->new_tokens);
    tarn__json_int(&json, "seed", (int64_t)o->seed);
    tarn__json_real(&json, "seconds", r->seconds, 3);
    tarn__json_int(&json, "done", r->done);
    tarn__json_int(&json, "failed", r->failed);
    tarn__json_int(&json, "max_open", r->max_open);
    tarn__json_real(&json, "requests_per_second", (double)r->done / r->seconds, 3);
    tarn__json_real(&json, "tokens_per_second", (double)r->tokens / r->seconds, 2);
    tarn__json_real(&json, "prompt_tokens_per_second", (double)r->prompt_tokens / r->seconds, 2);
    tarn__json_int(&json, "new_tokens", r->tokens);
    tarn__json_int(&json, "prompt_tokens", r->prompt_tokens);
    tarn__json_int(&json, "cached_tokens", r->cached_tokens);
    json_times(&json, "first_token_ms", &r->first);
    json_times(&json, "between_tokens_ms", &r->between);
    json_times(&json, "request_ms", &r->whole);
    tarn__json_open(&json, "errors", '{');
    for (int i = 0; i < r->error_count; i++)
        tarn__json_int(&json, r->errors[i].name, r->errors[i].count);
    tarn__json_close(&json, '}');
    tarn__json_end(&json);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* Each request has a connection. The soft limit of descriptors is often 1024, and the child inherits the larger one. */
static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static tarn__load_options load_options(const tarn__options *o)
{
    bool by_time = !o->requests;
    return (tarn__load_options){.clients = o->clients    ? o->clients
                                           : o->rate > 0 ? 0
                                                         : DEFAULT_CLIENTS,
                                .rate = o->rate,
                                .requests = o->requests,
                                .seconds = by_time && o->seconds <= 0 ? DEFAULT_SECONDS : o->seconds,
                                .prompt_tokens = o->prompt_tokens,
                                .new_tokens = o->max_tokens,
                                .seed = (uint64_t)o->seed};
}

/* Runs the load on an engine, or else on a server, and prints the result. `target` is the heading's first word. */
static int run_load(const tarn__options *o, const char *target, const tarn__load_model *model,
                    const tarn__load_options *load, tarn_engine *engine)
{
    char error[512];
    if (load->prompt_tokens + load->new_tokens > model->context) {
        snprintf(error, sizeof(error), "--prompt-tokens %lld and --new-tokens %lld exceed the %s's context of %lld",
                 (long long)load->prompt_tokens, (long long)load->new_tokens, engine ? "engine" : "server",
                 (long long)model->context);
        return fail(error);
    }
    /* large: it has three histograms */
    tarn__load_result *result = calloc(1, sizeof(*result));
    bool good = result && (engine ? tarn__load_run_engine(engine, load, result, error, sizeof(error))
                                  : tarn__load_run(load, result, error, sizeof(error)));
    if (!good) {
        int status = fail(result ? error : "out of memory");
        free(result);
        return status;
    }
    (o->json ? print_json : print_table)(target, model, load, result);
    int64_t done = result->done;
    free(result);
    return done ? TARN__DONE : fail("no request was completed");
}

static int load_server(const tarn__options *o, const char *url, const char *key)
{
    tarn__load_model model;
    char error[512];
    tarn__load_options load = load_options(o);
    load.server.key = key;
    if (!tarn__load_server_open(&load.server, url, error, sizeof(error)) ||
        !tarn__load_server_query(&load.server, &model, error, sizeof(error)))
        return fail(error);
    load.vocab_size = model.vocab_size;
    return run_load(o, url, &model, &load, NULL);
}

/* The engine has the tokenizer, as in a server, since converting tokens to text is part of its work. */
static int load_engine(const tarn__options *o)
{
    tarn_run_weights weights;
    tarn_model_info info;
    tarn__load_model model = {.context = 0};
    tarn__load_options load = load_options(o);
    tarn_engine_options options = {
        .sequences = o->sequences, .prompt_tokens = o->prefill_chunk, .swap_bytes = o->swap_memory << 20};
    int status = tarn__lm_options("bench serve", o, &options.kv_type);
    if (status == TARN__DONE)
        status = tarn__checkpoint_use("bench serve", o, &weights);
    if (status != TARN__DONE)
        return status;
    const tarn_model_split_options cache = {.context = o->context ? o->context : TARN__ENGINE_CONTEXT,
                                            .sequences = o->sequences,
                                            .kv_type = options.kv_type,
                                            .kv_tokens = TARN__ENGINE_KV_TOKENS,
                                            .kv_bytes = o->kv_memory << 20};
    tarn_module *module = tarn__lm_model(o, &weights, &cache);
    tarn_tokenizer *tokenizer = module ? tarn__lm_tokenizer(o) : NULL;
    tarn_engine *engine = NULL;
    if (tokenizer && tarn_model_query(module, &info)) {
        tarn__lm_size_engine(o, &info, &options);
        options.tokenizer = tokenizer;
        engine = tarn_engine_new(module, &options);
    }
    if (engine) {
        snprintf(model.name, sizeof(model.name), "%s", o->words[0]);
        model.context = options.context;
        model.vocab_size = load.vocab_size = info.vocab_size;
        status = run_load(o, "engine", &model, &load, engine);
    } else {
        status = tarn__print_error("bench serve");
    }
    tarn_engine_free(engine);
    tarn_tokenizer_free(tokenizer);
    tarn_module_free(module);
    return status;
}

int tarn__bench_serve(const tarn__options *o)
{
    tarn__api_keys keys = {0};
    char url[128], error[512];
    int status = check_options(o);
    if (status != TARN__DONE)
        return status;
    if (o->api_key_file && !tarn__api_keys_read(&keys, o->api_key_file, error, sizeof(error))) {
        fprintf(stderr, "tarn bench serve: --api-key-file: %s\n", error);
        return TARN__FAILED;
    }
    raise_file_limit();
    if (o->engine_alone) {
        status = load_engine(o);
    } else if (is_url(o->words[0])) {
        status = load_server(o, o->words[0], keys.count ? keys.keys[0] : NULL);
    } else {
        pid_t child = start_server(o, url, sizeof(url));
        status = child > 0 ? load_server(o, url, NULL) : TARN__FAILED;
        if (child > 0 && !stop_server(child))
            status = fail("the server did not end well");
    }
    tarn__api_keys_free(&keys);
    return status;
}

#else

int tarn__bench_serve(const tarn__options *o)
{
    (void)o;
    fprintf(stderr, "tarn bench serve: this build has no HTTP client: %s\n",
            TARN__HAVE_EVENT ? "jansson was not found (libjansson-dev brings it)"
                             : "libevent was not found (libevent-dev brings it)");
    return TARN__FAILED;
}

#endif
