/* connection.c: one connection: requests one after the other, their answers, whole or as streams.
 *
 * A connection serves one request at a time. What is sent ahead (pipelined) stays in the socket's buffer until the
 * answer before it is complete, so answers come in the order of their requests, as HTTP/1.1 demands.
 *
 * is_handling guards the frame that calls the handler: a connection that is dropped meanwhile is marked dead, and
 * freed by serve_requests() when the handler has returned. Elsewhere a drop frees it at once, so nothing may touch
 * it after a call that can drop. */
#include "serve/http/connection.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

/* PIPELINED_MAX: bytes that a client may send ahead while a request is answered. */
enum { PIPELINED_MAX = 64 * 1024, LINGER_SECONDS = 2 };

static void serve_requests(tarn__http_exchange *x);

static void set_timer(tarn__http_exchange *x, int seconds)
{
    struct timeval time = {seconds, 0};
    if (seconds)
        evtimer_add(x->timer, &time);
    else
        evtimer_del(x->timer);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Brings the sum of all bodies up to date. The difference may be negative, which wraps around and comes out right. */
static void count_body(tarn__http_exchange *x)
{
    x->server->body_bytes += x->request.body_capacity - x->body_bytes;
    x->body_bytes = x->request.body_capacity;
}

static void free_body(tarn__http_exchange *x)
{
    free(x->request.body);
    x->request.body = NULL;
    x->request.body_size = x->request.body_capacity = 0;
    count_body(x);
}

static void clear_request(tarn__http_exchange *x)
{
    tarn__http_request_clear(&x->request);
    x->has_body = false;
    count_body(x);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

/* Ready for the next exchange: forgets the handler's callback and headers, and counts the exchange as answered. */
static void close_exchange(tarn__http_exchange *x)
{
    x->gone = NULL;
    x->is_chunked = x->has_continued = false;
    x->headers_size = 0;
    if (!x->is_open)
        return;
    x->is_open = false;
    x->server->open_count--;
    tarn__http_server_check_end(x->server);
}

static void free_connection(tarn__http_exchange *x)
{
    tarn__http_server *s = x->server;
    *(x->previous ? &x->previous->next : &s->connections) = x->next;
    if (x->next)
        x->next->previous = x->previous;
    s->connection_count--;
    bufferevent_free(x->socket);
    event_free(x->timer);
    clear_request(x);
    free(x);
    tarn__http_server_check_end(s);
}

/* The callback is taken out first and called last: it may free what the exchange belongs to, and must find it
 * closed. */
void tarn__http_connection_drop(tarn__http_exchange *x)
{
    if (x->is_dead)
        return;
    tarn__http_gone gone = x->gone;
    void *ctx = x->gone_ctx;
    close_exchange(x);
    bufferevent_disable(x->socket, EV_READ | EV_WRITE);
    bufferevent_setcb(x->socket, NULL, NULL, NULL, NULL);
    set_timer(x, 0);
    if (x->is_handling)
        x->is_dead = true;
    else
        free_connection(x);
    if (gone)
        gone(ctx);
}

/* All is sent. A socket that is closed with unread bytes resets the connection, and the client may lose the answer: so
 * the end is sent first, and what still comes is dropped until the client closes. */
static void linger(tarn__http_exchange *x)
{
    x->is_lingering = true;
    shutdown(bufferevent_getfd(x->socket), SHUT_WR);
    bufferevent_enable(x->socket, EV_READ);
    set_timer(x, LINGER_SECONDS);
}

static bool has_unsent(const tarn__http_exchange *x)
{
    return evbuffer_get_length(bufferevent_get_output(x->socket)) > 0;
}

/* The output buffer has run empty. */
static void on_written(struct bufferevent *socket, void *ctx)
{
    tarn__http_exchange *x = ctx;
    (void)socket;
    tarn__http_server_check_end(x->server);
    if (x->is_closing && !x->is_open && !x->is_lingering) {
        linger(x);
    } else if (x->is_paused) {
        x->is_paused = false;
        set_timer(x, x->server->options.idle_seconds);
        serve_requests(x); /* may free it */
    } else if (!x->is_open && !x->is_closing && !x->request.head_size) {
        set_timer(x, x->server->options.idle_seconds); /* it idles from here on */
    }
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

void tarn__http_exchange_header(tarn__http_exchange *x, const char *name, const char *value)
{
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return;
    /* one that does not fit is left out whole, never cut */
    size_t room = sizeof(x->headers) - x->headers_size;
    int written = snprintf(x->headers + x->headers_size, room, "%s: %s\r\n", name, value);
    if (written > 0 && (size_t)written < room)
        x->headers_size += (size_t)written;
}

static bool is_head(const tarn__http_exchange *x)
{
    return x->request.method && strcmp(x->request.method, "HEAD") == 0;
}

/* `size` below 0: a stream. HTTP/1.0 has no chunks: there the end of the connection ends the body. 204 and 304 have
 * no body and so no length (RFC 9110). */
static void write_head(tarn__http_exchange *x, int status, const char *type, long long size)
{
    struct evbuffer *out = bufferevent_get_output(x->socket);
    x->is_chunked = size < 0 && x->request.minor >= 1;
    if (!x->request.keeps_alive || x->server->is_stopping || (size < 0 && !x->is_chunked))
        x->is_closing = true;
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\n", status, tarn__http_status_text(status));
    if (type)
        evbuffer_add_printf(out, "Content-Type: %s\r\n", type);
    if (size >= 0 && status != 204 && status != 304)
        evbuffer_add_printf(out, "Content-Length: %lld\r\n", size);
    if (x->is_chunked)
        evbuffer_add_printf(out, "Transfer-Encoding: chunked\r\n");
    evbuffer_add_printf(out, "Connection: %s\r\n", x->is_closing ? "close" : "keep-alive");
    evbuffer_add(out, x->headers, x->headers_size);
    evbuffer_add(out, "\r\n", 2);
}

/* The answer is whole: the next request, or the end of the connection. */
static void finish(tarn__http_exchange *x)
{
    x->is_closing = x->is_closing || x->server->is_stopping; /* a stream may have begun before the stop */
    close_exchange(x);
    clear_request(x);
    if (x->is_closing) {
        bufferevent_disable(x->socket, EV_READ);
        set_timer(x, 0);
        if (!has_unsent(x))
            linger(x); /* else on_written() does */
    } else {
        set_timer(x, x->server->options.idle_seconds);
        if (!x->is_handling)
            serve_requests(x);
    }
}

void tarn__http_exchange_answer(tarn__http_exchange *x, int status, const char *type, const void *body, size_t size)
{
    if (x->is_dead)
        return;
    write_head(x, status, type, (long long)size);
    if (size && !is_head(x))
        evbuffer_add(bufferevent_get_output(x->socket), body, size);
    finish(x);
}

void tarn__http_exchange_keep(tarn__http_exchange *x, tarn__http_gone gone, void *ctx)
{
    x->gone = gone;
    x->gone_ctx = ctx;
    free_body(x);
}

void tarn__http_stream_begin(tarn__http_exchange *x, int status, const char *type)
{
    write_head(x, status, type, -1);
}

bool tarn__http_stream_part(tarn__http_exchange *x, const void *bytes, size_t size)
{
    struct evbuffer *out = bufferevent_get_output(x->socket);
    if (!size || is_head(x))
        return true;
    /* A client that reads slower than the model writes: its answer would grow in memory without end */
    if (evbuffer_get_length(out) + size > x->server->options.unsent) {
        tarn__http_connection_drop(x);
        return false;
    }
    if (x->is_chunked)
        evbuffer_add_printf(out, "%zx\r\n", size);
    evbuffer_add(out, bytes, size);
    if (x->is_chunked)
        evbuffer_add(out, "\r\n", 2);
    return true;
}

/* A chunk of size 0 ends a chunked body. */
void tarn__http_stream_end(tarn__http_exchange *x)
{
    if (x->is_chunked && !is_head(x))
        evbuffer_add(bufferevent_get_output(x->socket), "0\r\n\r\n", 5);
    finish(x);
}

const tarn__http_request *tarn__http_exchange_request(const tarn__http_exchange *x)
{
    return &x->request;
}

const char *tarn__http_exchange_client(const tarn__http_exchange *x)
{
    return x->client;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* What the parser refuses is answered, and the connection closes: nothing tells where the next request would begin. */
static void answer_refusal(tarn__http_exchange *x, int status, const char *reason)
{
    char body[256];
    int size = snprintf(body, sizeof(body),
                        "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\",\"param\":null,"
                        "\"code\":null}}\n",
                        reason);
    struct evbuffer *in = bufferevent_get_input(x->socket);
    x->request.method = NULL; /* may be half read */
    x->is_closing = true;
    evbuffer_drain(in, evbuffer_get_length(in));
    tarn__http_exchange_answer(x, status, "application/json", body, (size_t)size);
}

/* Feeds the request from the socket until it is complete, refused, or wants more. Each contiguous piece of the
 * buffer in place, without a copy of the whole. */
static void feed(tarn__http_exchange *x)
{
    struct evbuffer *in = bufferevent_get_input(x->socket);
    size_t available;
    while (x->request.state < TARN__HTTP_COMPLETE && (available = evbuffer_get_contiguous_space(in)) > 0) {
        const char *bytes = (const char *)evbuffer_pullup(in, (ev_ssize_t)available);
        evbuffer_drain(in, tarn__http_request_feed(&x->request, bytes, available, &x->server->options.limits));
        count_body(x);
    }
}

/* The timer of what is waited for; a head has its time as a whole, a body also for each part. Else a client could
 * hold a connection for ever with a byte now and then. With Expect: 100-continue it sends the body only when told
 * to, once its head was admitted. */
static void wait_for_more(tarn__http_exchange *x, bool was_waiting_for_head)
{
    const tarn__http_options *options = &x->server->options;
    if (x->request.state == TARN__HTTP_BODY) {
        int left = (int)(x->body_until - seconds()) + 1;
        set_timer(x, left < 1 ? 1 : left < options->body_seconds ? left : options->body_seconds);
        if (x->request.expects_continue && !x->has_continued && !x->request.body_size) {
            x->has_continued = true;
            evbuffer_add_printf(bufferevent_get_output(x->socket), "HTTP/1.1 100 Continue\r\n\r\n");
        }
    } else if (x->request.head_size && !was_waiting_for_head)
        set_timer(x, options->head_seconds);
}

static void call_handler(tarn__http_exchange *x)
{
    tarn__http_server *s = x->server;
    set_timer(x, 0);
    x->is_open = true;
    s->open_count++;
    x->is_handling = true;
    s->options.handler(x, s->options.ctx);
    x->is_handling = false;
}

/* A head whose body still comes. False: the request was answered without it, or has no time or memory left; the
 * connection closes. */
static bool take_body(tarn__http_exchange *x)
{
    const tarn__http_options *options = &x->server->options;
    if (!x->has_body) {
        x->has_body = true;
        x->body_until = seconds() + options->whole_body_seconds;
        if (options->admits && !options->admits(&x->request, options->ctx)) {
            struct evbuffer *in = bufferevent_get_input(x->socket);
            x->is_closing = true; /* the body that still comes is dropped */
            evbuffer_drain(in, evbuffer_get_length(in));
            free_body(x);
            call_handler(x);
            return false;
        }
    }
    bool is_late = seconds() > x->body_until, is_full = x->server->body_bytes > options->bodies;
    if (is_late || is_full)
        answer_refusal(x, is_late ? 408 : 503,
                       is_late ? "the body did not come in time" : "the bodies of all requests are too large now");
    return !is_late && !is_full;
}

/* Requests that have come, until one is kept or refused, or more is needed, or the client has to read answers first. */
static void serve_requests(tarn__http_exchange *x)
{
    while (!x->is_open && !x->is_closing) {
        if (evbuffer_get_length(bufferevent_get_output(x->socket)) > x->server->options.unsent) {
            x->is_paused = true;
            set_timer(x, 0); /* a write that stalls has its own time */
            return;
        }
        bool had_head = x->request.head_size > 0;
        feed(x);
        if (x->request.state == TARN__HTTP_REFUSED) {
            answer_refusal(x, x->request.status, x->request.reason);
            return;
        }
        bool is_body = x->request.state == TARN__HTTP_BODY;
        if (x->request.state != TARN__HTTP_COMPLETE && (!is_body || take_body(x))) {
            wait_for_more(x, had_head);
            return;
        }
        if (!is_body)
            call_handler(x);
        if (x->is_dead) {
            free_connection(x);
            return;
        }
    }
}

static void on_readable(struct bufferevent *socket, void *ctx)
{
    tarn__http_exchange *x = ctx;
    struct evbuffer *in = bufferevent_get_input(socket);
    if (x->is_lingering)
        evbuffer_drain(in, evbuffer_get_length(in));
    else if (!x->is_open && !x->is_paused)
        serve_requests(x);
}

/* The end of what the client sends: an answer on its way still goes out, a kept exchange has lost its client. A
 * client may close its side after the request (half-close), but one that does so while it waits is taken to have
 * gone: most do, and the engine must not compute for nobody. */
static void on_event(struct bufferevent *socket, short what, void *ctx)
{
    tarn__http_exchange *x = ctx;
    (void)socket;
    bool is_answered = !x->is_open && !x->is_lingering && has_unsent(x);
    if ((what & BEV_EVENT_EOF) && (what & BEV_EVENT_READING) && is_answered)
        x->is_closing = true;
    else
        tarn__http_connection_drop(x);
}

/* Status 408 where a part of a request has come; a connection between two requests just ends, unless its client still
 * reads the last answer: a write that stalls has its own time. */
static void on_timer(evutil_socket_t socket, short what, void *ctx)
{
    tarn__http_exchange *x = ctx;
    (void)socket, (void)what;
    if (!x->is_lingering && x->request.head_size)
        answer_refusal(x, 408, "the request did not come in time");
    else if (!x->is_lingering && has_unsent(x))
        set_timer(x, x->server->options.idle_seconds);
    else
        tarn__http_connection_drop(x);
}

/* The socket belongs to the bufferevent as soon as there is one, which closes it. */
void tarn__http_connection_open(tarn__http_server *s, evutil_socket_t socket, const struct sockaddr *from)
{
    tarn__http_exchange *x = calloc(1, sizeof(*x));
    int one = 1;
    if (x) {
        x->socket = bufferevent_socket_new(s->base, socket, BEV_OPT_CLOSE_ON_FREE);
        x->timer = evtimer_new(s->base, on_timer, x);
    }
    if (!x || !x->socket || !x->timer) {
        if (x && x->timer)
            event_free(x->timer);
        if (x && x->socket)
            bufferevent_free(x->socket);
        else
            evutil_closesocket(socket);
        free(x);
        return;
    }
    const void *address = from->sa_family == AF_INET6 ? (const void *)&((const struct sockaddr_in6 *)from)->sin6_addr
                                                      : (const void *)&((const struct sockaddr_in *)from)->sin_addr;
    inet_ntop(from->sa_family, address, x->client, sizeof(x->client));
    x->server = s;
    x->next = s->connections;
    if (x->next)
        x->next->previous = x;
    s->connections = x;
    s->connection_count++;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* tokens go out one by one */
    struct timeval stalled = {s->options.stalled_seconds, 0};
    bufferevent_setcb(x->socket, on_readable, on_written, on_event, x);
    bufferevent_set_timeouts(x->socket, NULL, &stalled);
    bufferevent_setwatermark(x->socket, EV_READ, 0, PIPELINED_MAX);
    bufferevent_enable(x->socket, EV_READ | EV_WRITE);
    set_timer(x, s->options.head_seconds);
}
