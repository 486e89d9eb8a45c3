/* api.c: routes, access, keys, CORS; beginning and end of the API. */
#include "serve/api/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "serve/api/api_private.h"
#include "serve/ollama/ollama.h"

/* Requests computed at a time; and what Retry-After says, in seconds. */
#define DEFAULT_SEQUENCES 32
#define RETRY_SECONDS "1"

/* ---- answers ----------------------------------------------------------------------------------------------------- */

void tarn__api_answer_json(tarn__http_exchange *x, int status, const char *text)
{
    tarn__http_exchange_answer(x, status, "application/json", text, strlen(text));
}

/* 429 and 503 are for now: clients of OpenAI's wait by Retry-After and try again. 401 must name the scheme that is
 * wanted (RFC 9110). The sentence for lack of memory is a literal, since making one needs memory. */
void tarn__api_answer_error(tarn__api *a, tarn__http_exchange *x, const tarn__api_error *error)
{
    static const char plain[] = "{\"error\":{\"message\":\"no memory for the answer\",\"type\":\"server_error\","
                                "\"param\":null,\"code\":null}}";
    bool is_ollama = tarn__ollama_is_path(tarn__http_exchange_request(x)->path);
    char *text = (is_ollama ? tarn__ollama_error_text : tarn__api_error_text)(error);
    if (error->status == 429 || error->status == 503)
        tarn__http_exchange_header(x, "Retry-After", RETRY_SECONDS);
    if (error->status == 401)
        tarn__http_exchange_header(x, "WWW-Authenticate", "Bearer");
    tarn__api_answer_json(x, text ? error->status : 503, text ? text : plain);
    a->refused++;
    free(text);
}

static void refuse(tarn__api *a, tarn__http_exchange *x, int status, const char *code, const char *message)
{
    tarn__api_error error = {0};
    tarn__api_refuse(&error, status, code, NULL, "%s", message);
    tarn__api_answer_error(a, x, &error);
}

static void refuse_route(tarn__api *a, tarn__http_exchange *x)
{
    tarn__api_error error = {0};
    const tarn__http_request *request = tarn__http_exchange_request(x);
    tarn__api_refuse(&error, 404, NULL, NULL, "no such route: '%s %.200s'; GET /openapi.json lists all",
                     request->method, request->path);
    tarn__api_answer_error(a, x, &error);
}

/* curl's own type is that of a form. */
static void refuse_type(tarn__api *a, tarn__http_exchange *x)
{
    tarn__api_error error = {0};
    const char *type = tarn__http_request_header(tarn__http_exchange_request(x), "Content-Type");
    tarn__api_refuse(&error, 415, NULL, NULL, "the Content-Type is '%.80s'; it must be application/json", type);
    tarn__api_answer_error(a, x, &error);
}

/* ---- routes ------------------------------------------------------------------------------------------------------ */

static void answer_health(tarn__api *a, tarn__http_exchange *x)
{
    (void)a;
    tarn__api_answer_json(x, 200, "{\"status\":\"ok\"}");
}

/* Answered at once with GET, or by a job with POST. `job` counts only without `answer`. */
typedef struct route {
    const char *path;
    void (*answer)(tarn__api *api, tarn__http_exchange *exchange);
    tarn__api_route job;
} route;

static const route routes[] = {{"/health", answer_health, 0},
                               {"/openapi.json", tarn__api_answer_openapi, 0},
                               {"/v1/models", tarn__api_answer_models, 0},
                               {"/props", tarn__api_answer_props, 0},
                               {"/metrics", tarn__api_answer_metrics, 0},
                               {"/slots", tarn__api_answer_slots, 0},
                               {"/v1/chat/completions", NULL, TARN__API_CHAT},
                               {"/v1/completions", NULL, TARN__API_COMPLETION},
                               {"/v1/embeddings", NULL, TARN__API_EMBEDDINGS},
                               {"/api/tags", tarn__ollama_answer_tags, 0},
                               {"/api/ps", tarn__ollama_answer_ps, 0},
                               {"/api/version", tarn__ollama_answer_version, 0},
                               {"/api/chat", NULL, TARN__API_CHAT},
                               {"/api/generate", NULL, TARN__API_COMPLETION},
                               {"/api/show", NULL, TARN__API_TEMPLATE},
                               {"/tokenize", NULL, TARN__API_TOKENIZE},
                               {"/detokenize", NULL, TARN__API_DETOKENIZE},
                               {"/apply-template", NULL, TARN__API_TEMPLATE},
                               {"/admin/load", NULL, TARN__API_LOAD}};

const char *tarn__api_route_path(int index, bool *is_read)
{
    if (index >= (int)(sizeof(routes) / sizeof(routes[0])))
        return NULL;
    *is_read = routes[index].answer != NULL;
    return routes[index].path;
}

/* /v1/models/NAME is the entry of one model; its name, percent-encoded slashes included, is read by the answer. */
static const route *find_route(const char *path)
{
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++)
        if (strcmp(routes[i].path, path) == 0)
            return &routes[i];
    return strncmp(path, "/v1/models/", 11) == 0 ? find_route("/v1/models") : NULL;
}

/* The limit counts jobs that are being prepared, too: they hold bodies, and most of them will be in the engine soon. */
static void begin_job(tarn__api *a, tarn__http_exchange *x, tarn__api_route kind)
{
    const tarn__http_request *request = tarn__http_exchange_request(x);
    int before = a->preparing + (tarn__api_is_computed(kind) ? a->live : 0); /* texts need no engine */
    if (before >= a->options.engine.sequences + a->options.queue) {
        refuse(a, x, 429, "queue_full", "the queue is full; try again later");
        return;
    }
    tarn__api_job *job = tarn__api_job_new(kind, request->body, request->body_size);
    if (!job) {
        refuse(a, x, 503, NULL, "no memory for the request");
        return;
    }
    job->ollama = tarn__ollama_route_of(request->path);
    job->owner = a;
    job->number = ++a->last_number;
    job->exchange = x;
    job->next = a->jobs;
    if (job->next)
        job->next->previous = job;
    a->jobs = job;
    a->preparing++;
    tarn__http_exchange_keep(x, tarn__api_on_gone, job);
    tarn__api_push(a, job);
}

/* ---- access ------------------------------------------------------------------------------------------------------ */

/* Headers of an allowed origin. True: the request was the browser's question before the real one, and is answered.
 * That question is an OPTIONS request (preflight), which has no key. "*" among the headers does not cover
 * Authorization, so it is named. Vary keeps caches from giving the answer to another origin. */
static bool answer_cors(const tarn__api *a, tarn__http_exchange *x)
{
    const tarn__http_request *request = tarn__http_exchange_request(x);
    const char *origin = tarn__http_request_header(request, "Origin");
    if (!tarn__http_access_is_foreign(&a->access, origin))
        return false;
    tarn__http_exchange_header(x, "Access-Control-Allow-Origin", origin);
    tarn__http_exchange_header(x, "Vary", "Origin");
    if (strcmp(request->method, "OPTIONS") != 0)
        return false;
    tarn__http_exchange_header(x, "Access-Control-Allow-Methods", "GET, POST");
    tarn__http_exchange_header(x, "Access-Control-Allow-Headers", "Authorization, Content-Type, *");
    tarn__http_exchange_header(x, "Access-Control-Max-Age", "600");
    tarn__http_exchange_answer(x, 204, NULL, NULL, 0);
    return true;
}

/* JSON, or nothing said: a form of another site's page is neither. Forms have three other types, and a page of
 * another site can send them without a preflight. */
static bool is_json(const tarn__http_request *request)
{
    const char *type = tarn__http_request_header(request, "Content-Type");
    return !type || strncasecmp(type, "application/json", 16) == 0;
}

/* Without a key: whether the server lives, and how it is spoken to. */
static bool is_public(const tarn__http_request *request)
{
    return strcmp(request->path, "/health") == 0 || strcmp(request->path, "/openapi.json") == 0;
}

static bool has_key(const tarn__api *a, const tarn__http_request *request)
{
    return !a->options.keys || is_public(request) ||
           tarn__api_keys_allow(a->options.keys, tarn__http_request_header(request, "Authorization"));
}

/* No body is read for those who have no access. */
static bool admits(const tarn__http_request *request, void *ctx)
{
    const tarn__api *a = ctx;
    return !tarn__http_access_refusal(&a->access, request) && has_key(a, request);
}

/* While running requests end, the state of the server can be read; the document at any time. */
static bool is_served(const tarn__api *a, const route *found)
{
    return a->state == TARN__API_READY || found->answer == tarn__api_answer_openapi ||
           (a->state == TARN__API_DRAINING && found->answer && found->answer != answer_health);
}

/* The order is what may be told to whom: a foreign page learns nothing, a preflight has no key, pages need none, and
 * without a key a client is not told which routes there are. Only then come method, type and state. */
static void handle(tarn__http_exchange *x, void *ctx)
{
    tarn__api *a = ctx;
    const tarn__http_request *request = tarn__http_exchange_request(x);
    const route *found = find_route(request->path);
    const char *refusal = tarn__http_access_refusal(&a->access, request), *page = tarn__api_page(request->path);
    bool is_get = strcmp(request->method, "GET") == 0 || strcmp(request->method, "HEAD") == 0;
    tarn__http_exchange_header(x, "Cache-Control", "no-store");
    tarn__http_exchange_header(x, "X-Content-Type-Options", "nosniff");
    if (refusal) {
        refuse(a, x, 403, NULL, refusal);
    } else if (answer_cors(a, x)) {
        return;
    } else if (page && is_get) {
        tarn__api_answer_page(x, page);
    } else if (!has_key(a, request)) {
        refuse(a, x, 401, "invalid_api_key", "an API key is needed: Authorization: Bearer KEY");
    } else if (!found && !page) {
        refuse_route(a, x);
    } else if (page || (found->answer ? !is_get : strcmp(request->method, "POST") != 0)) {
        bool is_read = page || found->answer;
        tarn__http_exchange_header(x, "Allow", is_read ? "GET, HEAD" : "POST");
        refuse(a, x, 405, NULL, is_read ? "this route is read with GET" : "this route needs POST");
    } else if (!found->answer && !is_json(request)) {
        refuse_type(a, x);
    } else if (!is_served(a, found)) {
        refuse(a, x, 503, "loading",
               a->state == TARN__API_DRAINING ? "another model is loaded as soon as running requests have ended"
                                              : "the model is being loaded");
    } else if (found->answer) {
        found->answer(a, x);
    } else {
        begin_job(a, x, found->job);
    }
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

/* The names become strings of JSON, which must be UTF-8; jansson makes none of others. */
static bool has_good_names(const tarn__api_options *options)
{
    for (int i = 0; i < options->name_count; i++) {
        json_t *name = json_string(options->names[i]);
        json_decref(name);
        if (!name)
            return false;
    }
    return true;
}

tarn__api *tarn__api_new(const tarn__api_options *options, char *error, size_t error_size)
{
    bool has_names = has_good_names(options);
    tarn__api *a = has_names ? calloc(1, sizeof(*a)) : NULL;
    snprintf(error, error_size, "%s",
             has_names ? "no memory for the server" : "the name of a model is not UTF-8; give another");
    if (!a)
        return NULL;
    a->options = *options;
    a->wanted = a->loaded = -1;
    a->options.engine.sequences = options->engine.sequences ? options->engine.sequences : DEFAULT_SEQUENCES;
    a->started = (int64_t)time(NULL);
    /* with keys, a page that reaches the server under a name of its own still has no key */
    a->access = (tarn__http_access){.address = options->http.address,
                                    .origins = options->origins,
                                    .origin_count = options->origin_count,
                                    .any_host = options->keys != NULL};
    atomic_init(&a->is_ending, false);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->filled, NULL);
    a->options.http.handler = handle;
    a->options.http.admits = admits;
    a->options.http.ctx = a;
    a->server = tarn__http_server_new(&a->options.http, error, error_size);
    if (!a->server || !tarn__http_server_every(a->server, 1000, tarn__api_on_second, a) ||
        !tarn__api_start_threads(a)) {
        tarn__api_free(a);
        return NULL;
    }
    return a;
}

tarn__http_server *tarn__api_server(tarn__api *a)
{
    return a->server;
}

bool tarn__api_run(tarn__api *a, char *error, size_t error_size)
{
    tarn__http_server_run(a->server);
    /* while a model is loaded load_error is the engine's thread's; FAILED is the end of that */
    bool has_failed = a->state == TARN__API_FAILED;
    snprintf(error, error_size, "%s", has_failed ? a->load_error : "");
    return !has_failed;
}

/* The threads first: nothing is posted afterwards. Then the server, whose connections tell their jobs; jobs that the
 * pool or the engine had are left. */
void tarn__api_free(tarn__api *a)
{
    if (!a)
        return;
    tarn__api_end_threads(a);
    tarn__http_server_free(a->server);
    while (a->jobs)
        tarn__api_remove_job(a, a->jobs);
    tarn_engine_free(a->engine);
    tarn_grammar_vocab_free(a->model.vocab);
    tarn_text_stream_free(a->token_stream);
    tarn_tokenizer_free(a->model.tokenizer);
    tarn_module_free(a->model.module);
    pthread_cond_destroy(&a->filled);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
