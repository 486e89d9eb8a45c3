/* load.c: clients of the load generator on libevent: connect, send, read the stream, count, go on.
 *
 * In the closed loop a client keeps its connection and begins its next request as soon as the last one has ended; after
 * a failure it waits for Retry-After or a tenth of a second, so that a full server is not asked in a tight loop. By
 * rate each request has a client and a connection of its own: the gaps are exponentially distributed, so the arrivals
 * are a Poisson process, and a slow server does not slow them down.
 *
 * One thread and one event loop: a client is a state machine of callbacks, and thousands of them cost no more than
 * their sockets. Times of tokens are kept by the client and counted only when its request is done, so that a request
 * which fails leaves nothing in the histograms.
 *
 * start() and end_request() may free the client, so nothing touches it after them. */
#include "cli/bench/load.h"

#include "tarn_features.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/response.h"
#include "cli/bench/timer.h"

#define SILENCE_SECONDS 120 /* of a server, before a request has failed; its streams send a comment every 15 */
#define PAUSE_SECONDS 0.1   /* after a failure */

typedef struct load load;

typedef struct client {
    load *load;
    struct client *previous, *next;
    struct bufferevent *socket; /* NULL: not connected */
    struct event *pause;        /* before its next request */
    tarn__response response;
    double began;   /* seconds */
    double *tokens; /* times at which events with text came; counted once the request is done */
    int64_t events;
    bool is_connected, is_open;
} client;

struct load {
    const tarn__load_options *options;
    tarn__load_result *result;
    struct event_base *base;
    struct event *arrival; /* of the next request, by rate */
    client *clients;
    tarn__input body;
    int32_t *prompt; /* of the request that is being sent */
    double began, next_arrival;
    int64_t started, open;
    uint64_t random;
    bool is_out_of_memory;
};

static double now(void)
{
    return 1e-6 * tarn__clock();
}

/* splitmix64: every state gives 64 good bits. */
static uint64_t mix(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static struct timeval time_of(double seconds)
{
    seconds = seconds > 0 ? seconds : 0;
    double whole = floor(seconds);
    return (struct timeval){(time_t)whole, (suseconds_t)(1e6 * (seconds - whole))};
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* By number or by time, whichever was asked for. What has begun ends in any case. */
static bool has_more(const load *l)
{
    const tarn__load_options *o = l->options;
    return !l->is_out_of_memory && (o->requests ? l->started < o->requests : now() - l->began < o->seconds);
}

void tarn__load_prompt(const tarn__load_options *options, int64_t number, int32_t *tokens)
{
    uint64_t state = options->seed * 0x9e3779b97f4a7c15u + (uint64_t)number;
    for (int64_t i = 0; i < options->prompt_tokens; i++)
        tokens[i] = (int32_t)(mix(&state) % (uint64_t)options->vocab_size);
}

/* The body of request `number`: greedy and without EOS, so that every answer has the same length. */
static bool make_body(load *l, int64_t number)
{
    const tarn__load_options *o = l->options;
    char text[160];
    tarn__load_prompt(o, number, l->prompt);
    l->body.length = 0;
    bool good = tarn__input_add(&l->body, "{\"prompt\":[", 11);
    for (int64_t i = 0; good && i < o->prompt_tokens; i++) {
        int length = snprintf(text, sizeof(text), "%s%d", i ? "," : "", (int)l->prompt[i]);
        good = tarn__input_add(&l->body, text, (size_t)length);
    }
    int length = snprintf(text, sizeof(text),
                          "],\"max_tokens\":%lld,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,"
                          "\"stream_options\":{\"include_usage\":true}}",
                          (long long)o->new_tokens);
    return good && tarn__input_add(&l->body, text, (size_t)length);
}

/* A server that sends more than was asked for fails the count of tokens later; its times find no space here. */
static void on_token(void *ctx)
{
    client *c = ctx;
    if (c->events < c->load->options->new_tokens)
        c->tokens[c->events++] = now();
}

/* By rate (no clients) the connection is for one request, and the server is told so. */
static bool send_request(client *c)
{
    load *l = c->load;
    const tarn__load_server *server = &l->options->server;
    struct evbuffer *out = bufferevent_get_output(c->socket);
    c->is_open = true;
    c->events = 0;
    c->began = now();
    tarn__response_begin(&c->response, on_token, c);
    l->open++;
    l->result->max_open = l->open > l->result->max_open ? l->open : l->result->max_open;
    return make_body(l, l->started++) &&
           evbuffer_add_printf(out,
                               "POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                               "Content-Length: %zu\r\n%s%s%s%s\r\n",
                               server->host, l->body.length, server->key ? "Authorization: Bearer " : "",
                               server->key ? server->key : "", server->key ? "\r\n" : "",
                               l->options->clients ? "" : "Connection: close\r\n") > 0 &&
           evbuffer_add(out, l->body.text, l->body.length) == 0;
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static void disconnect(client *c)
{
    if (c->socket)
        bufferevent_free(c->socket);
    c->socket = NULL;
    c->is_connected = false;
}

static void free_client(client *c)
{
    load *l = c->load;
    *(c->previous ? &c->previous->next : &l->clients) = c->next;
    if (c->next)
        c->next->previous = c->previous;
    disconnect(c);
    if (c->pause)
        event_free(c->pause);
    tarn__response_free(&c->response);
    free(c->tokens);
    free(c);
}

/* Errors are counted by name; the table has few places, the last of which is "other". */
static void count_error(tarn__load_result *result, const char *name)
{
    int i = 0;
    while (i < result->error_count && strcmp(result->errors[i].name, name) != 0)
        i++;
    if (i == TARN__LOAD_ERRORS_MAX)
        i--; /* the last one takes the rest */
    if (i == result->error_count)
        snprintf(result->errors[result->error_count++].name, sizeof(result->errors[i].name), "%s",
                 i == TARN__LOAD_ERRORS_MAX - 1 ? "other" : name);
    result->errors[i].count++;
    result->failed++;
}

/* Gaps between tokens are those of one request; the time to the first is from its sending, or from the beginning of
 * its connection. */
static void count_done(load *l, const client *c)
{
    tarn__load_result *result = l->result;
    result->done++;
    result->prompt_tokens += c->response.prompt_tokens;
    result->cached_tokens += c->response.cached;
    result->tokens += c->response.tokens;
    tarn__histogram_add(&result->whole, now() - c->began);
    if (c->events)
        tarn__histogram_add(&result->first, c->tokens[0] - c->began);
    for (int64_t i = 1; i < c->events; i++)
        tarn__histogram_add(&result->between, c->tokens[i] - c->tokens[i - 1]);
}

static void start(client *c);

/* The client's request has ended; `problem` names why it failed, NULL: it is done. */
static void end_request(client *c, const char *problem)
{
    load *l = c->load;
    c->is_open = false;
    l->open--;
    if (problem)
        count_error(l->result, problem);
    else
        count_done(l, c);
    l->result->seconds = now() - l->began;
    if (problem || c->response.closes || !l->options->clients)
        disconnect(c);
    double pause = c->response.retry_after > 0 ? (double)c->response.retry_after : PAUSE_SECONDS;
    if (!l->options->clients || !has_more(l)) {
        free_client(c);
    } else if (problem) {
        struct timeval time = time_of(pause);
        event_add(c->pause, &time);
    } else {
        start(c);
    }
}

/* What is wrong with a complete response; NULL: nothing. */
static const char *problem_of(const client *c, char text[32])
{
    const tarn__response *r = &c->response;
    snprintf(text, 32, "%d", r->status);
    return r->status != 200                            ? text
           : r->has_error                              ? "error event"
           : !r->is_done                               ? "no [DONE]"
           : r->tokens != c->load->options->new_tokens ? "wrong token count"
                                                       : NULL;
}

/* ---- sockets ----------------------------------------------------------------------------------------------------- */

static void on_read(struct bufferevent *socket, void *ctx)
{
    client *c = ctx;
    struct evbuffer *in = bufferevent_get_input(socket);
    char text[32];
    while (c->is_open && evbuffer_get_length(in)) {
        size_t count = evbuffer_get_contiguous_space(in);
        const char *bytes = (const char *)evbuffer_pullup(in, (ev_ssize_t)count);
        evbuffer_drain(in, tarn__response_push(&c->response, bytes, count));
        if (c->response.state >= TARN__RESPONSE_COMPLETE)
            break;
    }
    if (c->is_open && c->response.state == TARN__RESPONSE_MALFORMED)
        end_request(c, "not HTTP");
    else if (c->is_open && c->response.state == TARN__RESPONSE_COMPLETE)
        end_request(c, problem_of(c, text));
}

/* A connection that a server closes between two requests is no error: the next request opens another. */
static void on_event(struct bufferevent *socket, short what, void *ctx)
{
    client *c = ctx;
    char text[32];
    if (what & BEV_EVENT_CONNECTED) {
        int on = 1;
        c->is_connected = true;
        setsockopt(bufferevent_getfd(socket), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        return;
    }
    if (!c->is_open) { /* between requests */
        disconnect(c);
        return;
    }
    if (what & BEV_EVENT_EOF)
        tarn__response_end(&c->response);
    if (c->response.state == TARN__RESPONSE_COMPLETE)
        end_request(c, problem_of(c, text));
    else
        end_request(c, !c->is_connected ? "no connection" : what & BEV_EVENT_TIMEOUT ? "timeout" : "closed");
}

/* Connects, if need be, and sends the next request. */
static void start(client *c)
{
    load *l = c->load;
    const struct timeval silence = {SILENCE_SECONDS, 0};
    bool is_new = !c->socket;
    if (is_new) {
        /* deferred: a callback never runs inside a call of ours, which could free the client under it */
        c->socket = bufferevent_socket_new(l->base, -1, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
        if (!c->socket) {
            l->is_out_of_memory = true;
            event_base_loopbreak(l->base);
            return;
        }
        bufferevent_setcb(c->socket, on_read, NULL, on_event, c);
        bufferevent_set_timeouts(c->socket, &silence, &silence);
    }
    if (!send_request(c)) {
        l->is_out_of_memory = true;
        event_base_loopbreak(l->base);
        return;
    }
    bufferevent_enable(c->socket, EV_READ | EV_WRITE);
    const struct sockaddr *to = (const struct sockaddr *)&l->options->server.address;
    if (is_new && bufferevent_socket_connect(c->socket, to, (int)l->options->server.address_size) != 0)
        end_request(c, "no connection");
}

static void on_pause_end(evutil_socket_t socket, short what, void *ctx)
{
    client *c = ctx;
    (void)socket, (void)what;
    if (has_more(c->load))
        start(c);
    else
        free_client(c);
}

/* ---- clients ----------------------------------------------------------------------------------------------------- */

static client *add_client(load *l)
{
    client *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->load = l;
    c->next = l->clients;
    if (c->next)
        c->next->previous = c;
    l->clients = c;
    c->pause = evtimer_new(l->base, on_pause_end, c);
    c->tokens = calloc((size_t)l->options->new_tokens, sizeof(*c->tokens));
    return c->pause && c->tokens ? c : NULL;
}

/* Begins the requests that are due, and waits for the next. */
static void on_arrival(evutil_socket_t socket, short what, void *ctx)
{
    load *l = ctx;
    (void)socket, (void)what;
    while (has_more(l) && l->next_arrival <= now()) {
        client *c = add_client(l);
        l->is_out_of_memory = !c;
        if (!c)
            break;
        /* a uniform u in [0, 1) of 53 bits; -log(1 - u) is exponential with mean 1 */
        l->next_arrival += -log1p(-(double)(mix(&l->random) >> 11) * 0x1p-53) / l->options->rate;
        start(c);
    }
    struct timeval time = time_of(l->next_arrival - now());
    if (has_more(l))
        event_add(l->arrival, &time);
}

static bool begin(load *l)
{
    const tarn__load_options *o = l->options;
    l->base = event_base_new();
    l->began = l->next_arrival = now();
    if (!l->base)
        return false;
    if (!o->clients) {
        l->arrival = evtimer_new(l->base, on_arrival, l);
        if (l->arrival)
            on_arrival(-1, 0, l);
        return l->arrival != NULL;
    }
    for (int64_t i = 0; i < o->clients && has_more(l); i++) {
        client *c = add_client(l);
        if (!c)
            return false;
        start(c);
    }
    return true;
}

/* The loop ends by itself when no client and no timer is left. */
bool tarn__load_run(const tarn__load_options *options, tarn__load_result *result, char *error, size_t error_size)
{
    load l = {.options = options, .result = result, .random = options->seed};
    *result = (tarn__load_result){0};
    void (*before)(int) = signal(SIGPIPE, SIG_IGN); /* a server that closes is an error of its request */
    l.prompt = calloc((size_t)options->prompt_tokens, sizeof(*l.prompt));
    bool good = l.prompt && begin(&l);
    if (good)
        event_base_dispatch(l.base);
    signal(SIGPIPE, before);
    good = good && !l.is_out_of_memory;
    while (l.clients)
        free_client(l.clients);
    if (l.arrival)
        event_free(l.arrival);
    if (l.base)
        event_base_free(l.base);
    free(l.body.text);
    free(l.prompt);
    if (!good)
        snprintf(error, error_size, "out of memory");
    return good;
}

#endif
