/* api_server.h: a server of the API with a random Llama whose tokens are bytes, and a client of it, for test programs.
 * Each program has a server of its own. */
#ifndef TARN__TEST_API_SERVER_H
#define TARN__TEST_API_SERVER_H

#include <arpa/inet.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "serve/api/api.h"
#include "support/check.h"
#include "support/noise.h"

enum { VOCAB = 258, CONTEXT = 512 };

static tarn__api *api;
static pthread_t thread;
static bool has_failed;
static char failure[512];
static atomic_bool load_is_held; /* loading does not end before this is false, which a stop makes it */
static bool load_fails;
static int64_t model_vocab = VOCAB; /* may be larger than the tokenizer's */
static int64_t model_eos = -1;      /* -1: none */

/* ---- the server -------------------------------------------------------------------------------------------------- */

/* Weights large enough for the tokens to differ. */
static inline tarn_module *make_model(void)
{
    const tarn_llama_config config = {.vocab_size = model_vocab,
                                      .context = CONTEXT,
                                      .layers = 2,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .hidden_size = 32,
                                      .ffn_size = 88,
                                      .head_dim = 8,
                                      .eos_count = model_eos >= 0,
                                      .eos = {model_eos}};
    return add_noise(tarn_model_llama(&config, tarn_device_cpu(), 9));
}

static inline tarn_tokenizer *make_tokenizer(void)
{
    tarn_tokenizer *tokenizer = tarn_tokenizer_bytes();
    tarn_tokenizer_add_tokens(tokenizer, "<|im_start|>,<|im_end|>");
    tarn_tokenizer_set_chat(tokenizer, "chatml");
    return tokenizer;
}

static inline bool load(int index, tarn_module **model, tarn_tokenizer **tokenizer, tarn_engine_options *engine,
                        char *error, size_t error_size, void *ctx)
{
    (void)index, (void)engine, (void)ctx;
    while (load_is_held)
        nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
    if (load_fails) {
        snprintf(error, error_size, "there is no such model");
        return false;
    }
    *model = make_model();
    *tokenizer = make_tokenizer();
    return *model && *tokenizer;
}

static inline void *run(void *ctx)
{
    has_failed = !tarn__api_run(ctx, failure, sizeof(failure));
    return NULL;
}

static inline const char *ask(const char *method, const char *path, const char *headers, const char *body);

static inline void begin(tarn__api_options options)
{
    static const char *const names[] = {"bytes"};
    char error[256];
    options.http = tarn__http_options_default();
    options.http.port = 0;
    options.names = options.names ? options.names : names;
    options.name_count = options.name_count ? options.name_count : 1;
    options.load = options.load ? options.load : load;
    options.queue = options.queue ? options.queue : 256;
    has_failed = false;
    api = tarn__api_new(&options, error, sizeof(error));
    if (!api)
        fail_msg("%s", error);
    assert_int_equal(pthread_create(&thread, NULL, run, api), 0);
    if (load_is_held || load_fails)
        return;
    for (int i = 0; i < 3000 && !strstr(ask("GET", "/health", "", ""), "200 OK"); i++)
        nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
}

static inline void stop(void *ctx)
{
    tarn__http_server_stop(tarn__api_server(api), *(int *)ctx);
    load_is_held = false;
}

static inline void end(int seconds)
{
    assert_true(tarn__http_server_post(tarn__api_server(api), stop, &seconds));
    pthread_join(thread, NULL);
    tarn__api_free(api);
    api = NULL;
}

/* ---- the client -------------------------------------------------------------------------------------------------- */

static inline int dial(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)tarn__http_server_port(tarn__api_server(api)))};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(s, (struct sockaddr *)&to, sizeof(to)), 0);
    return s;
}

static inline void say(int s, const char *method, const char *path, const char *headers, const char *body)
{
    size_t size = strlen(body) + strlen(headers) + 512;
    char *text = malloc(size);
    int length = snprintf(text, size,
                          "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%sContent-Length: %zu\r\n\r\n%s",
                          method, path, headers, strlen(body), body);
    assert_int_equal(send(s, text, (size_t)length, MSG_NOSIGNAL), length);
    free(text);
}

/* Everything until the other side closes, or until `text` has come. Uses one of a few buffers. */
static inline const char *hear(int s, const char *text)
{
    enum { SIZE = 1 << 18 };
    static char heard[4][SIZE];
    static int next;
    char *to = heard[next++ % 4];
    size_t count = 0;
    struct pollfd one = {s, POLLIN, 0};
    to[0] = 0;
    while (count + 1 < SIZE && !(text && strstr(to, text))) {
        if (poll(&one, 1, 20000) != 1)
            fail_msg("nothing more came within 20 s after: %s", to);
        ssize_t part = recv(s, to + count, SIZE - 1 - count, 0);
        if (part <= 0)
            break;
        to[count += (size_t)part] = 0;
    }
    return to;
}

static inline const char *ask(const char *method, const char *path, const char *headers, const char *body)
{
    int s = dial();
    say(s, method, path, headers, body);
    const char *heard = hear(s, NULL);
    close(s);
    return heard;
}

/* Waits until a text has come, and leaves it to be heard: more than it may have come with it. */
static inline void await(int s, const char *text)
{
    static char seen[1 << 18];
    struct pollfd one = {s, POLLIN, 0};
    for (seen[0] = 0; !strstr(seen, text);) {
        if (poll(&one, 1, 20000) != 1)
            fail_msg("nothing more came within 20 s after: %s", seen);
        ssize_t count = recv(s, seen, sizeof(seen) - 1, MSG_PEEK);
        seen[count > 0 ? count : 0] = 0;
        if (count <= 0)
            fail_msg("no '%s' came", text);
        nanosleep(&(struct timespec){0, 100 * 1000}, NULL);
    }
}

/* True if a stream, of which nothing was heard so far, has come to its end. */
static inline bool has_ended(int s)
{
    static char heard[1 << 18];
    size_t count = 0;
    for (ssize_t part;
         count + 1 < sizeof(heard) && (part = recv(s, heard + count, sizeof(heard) - 1 - count, MSG_DONTWAIT)) > 0;)
        count += (size_t)part;
    heard[count] = 0;
    return strstr(heard, "[DONE]") != NULL;
}

/* The body of an answer that must have the status, as JSON. The caller releases it. */
static inline json_t *body_of(const char *heard, int status)
{
    char line[32];
    const char *body = strstr(heard, "\r\n\r\n");
    snprintf(line, sizeof(line), "HTTP/1.1 %d ", status);
    if (strncmp(heard, line, strlen(line)) != 0 || !body)
        fail_msg("expected %d, got: %.600s", status, heard);
    json_t *root = json_loads(body + 4, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!root)
        fail_msg("not JSON: %s", body);
    return root;
}

static inline json_t *post(const char *path, const char *body, int status)
{
    return body_of(ask("POST", path, "Content-Type: application/json\r\n", body), status);
}

static inline const char *member(json_t *root, const char *name)
{
    const char *text = json_string_value(json_object_get(root, name));
    return text ? text : "";
}

static inline json_t *first_choice(json_t *root)
{
    json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    assert_non_null(choice);
    return choice;
}

/* A request must be refused with that status, and the error must name the field and have that text. */
static inline void expect_error(const char *path, const char *body, int status, const char *param, const char *text)
{
    json_t *root = post(path, body, status), *error = json_object_get(root, "error");
    if (!strstr(member(error, "message"), text))
        fail_msg("'%s' is not in: %s", text, member(error, "message"));
    assert_string_equal(member(error, "param"), param);
    assert_true(member(error, "type")[0] && json_object_get(error, "code"));
    json_decref(root);
}

/* A text that may have zero bytes. */
typedef struct text {
    char *bytes;
    size_t length;
} text;

static inline void add(text *t, const char *from, size_t length)
{
    t->bytes = realloc(t->bytes, t->length + length + 1);
    memcpy(t->bytes + t->length, from, length);
    t->length += length;
}

/* The texts of a stream's events, joined; the last one must be [DONE]. The caller frees it. */
static inline text joined(const char *heard, bool is_chat, char reason[16])
{
    text result = {0};
    bool is_done = false;
    reason[0] = 0;
    for (const char *at = heard; (at = strstr(at, "data: ")) != NULL;) {
        at += 6;
        const char *line_end = strstr(at, "\n\n");
        assert_non_null(line_end);
        is_done = strncmp(at, "[DONE]", 6) == 0;
        if (is_done)
            continue;
        json_t *root = json_loadb(at, (size_t)(line_end - at), JSON_ALLOW_NUL, NULL);
        if (!root)
            fail_msg("not JSON: %.300s", at);
        json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
        json_t *part =
            is_chat ? json_object_get(json_object_get(choice, "delta"), "content") : json_object_get(choice, "text");
        if (part)
            add(&result, json_string_value(part), json_string_length(part));
        if (member(choice, "finish_reason")[0])
            snprintf(reason, 16, "%s", member(choice, "finish_reason"));
        json_decref(root);
    }
    assert_true(is_done);
    return result;
}

/* The value of a metric. */
static inline long metric(const char *name)
{
    char line[80];
    const char *metrics = ask("GET", "/metrics", "", "");
    snprintf(line, sizeof(line), "\ntarn_%s ", name);
    const char *found = strstr(metrics, line);
    assert_non_null(found);
    return atol(found + strlen(line));
}

#endif
