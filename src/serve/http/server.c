/* server.c: the listener and the event loop: connections, work posted by other threads, timers, signals, the stop.
 *
 * Posted work is a list under a lock, and one byte in a pipe that wakes the loop. The list is taken as a whole, so work
 * that posts more cannot keep the loop from its sockets.
 *
 * A stop has three steps: no new connections; connections between two requests are dropped, the others may finish;
 * then the loop ends, after the last answer has been sent, to slow readers too, or when time is up.
 * tarn__http_server_free() drops what is left, which tells the owners of kept exchanges. */
#include "serve/http/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>
#include <event2/util.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/http/connection.h"

/* Work of another thread; freed when it has run. */
struct tarn__http_posted {
    tarn__http_posted *next;
    void (*work)(void *ctx);
    void *ctx;
};

/* A timer that runs for as long as the server. */
struct tarn__http_repeated {
    tarn__http_repeated *next;
    struct event *event;
    void (*work)(void *ctx);
    void *ctx;
};

/* The statuses that this server sends. The text is for people: clients read the number. */
const char *tarn__http_status_text(int status)
{
    static const struct {
        int status;
        const char *text;
    } known[] = {{200, "OK"},
                 {204, "No Content"},
                 {304, "Not Modified"},
                 {400, "Bad Request"},
                 {401, "Unauthorized"},
                 {403, "Forbidden"},
                 {404, "Not Found"},
                 {405, "Method Not Allowed"},
                 {408, "Request Timeout"},
                 {409, "Conflict"},
                 {413, "Content Too Large"},
                 {415, "Unsupported Media Type"},
                 {417, "Expectation Failed"},
                 {421, "Misdirected Request"},
                 {422, "Unprocessable Content"},
                 {429, "Too Many Requests"},
                 {431, "Request Header Fields Too Large"},
                 {500, "Internal Server Error"},
                 {501, "Not Implemented"},
                 {503, "Service Unavailable"},
                 {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].status == status)
            return known[i].text;
    return "Unknown";
}

tarn__http_options tarn__http_options_default(void)
{
    return (tarn__http_options){.address = "127.0.0.1",
                                .port = 8080,
                                .limits = {16 * 1024, 4 * 1024 * 1024},
                                .head_seconds = 10,
                                .body_seconds = 30,
                                .whole_body_seconds = 300,
                                .idle_seconds = 75,
                                .stalled_seconds = 30,
                                .unsent = 1024 * 1024,
                                .bodies = (size_t)512 * 1024 * 1024,
                                .connections = 16384};
}

/* ---- listening --------------------------------------------------------------------------------------------------- */

/* Beyond the limit a connection is closed without an answer: one would need its memory. */
static void on_accept(struct evconnlistener *listener, evutil_socket_t socket, struct sockaddr *from, int size,
                      void *ctx)
{
    tarn__http_server *s = ctx;
    (void)listener, (void)size;
    if (s->connection_count >= s->options.connections)
        evutil_closesocket(socket);
    else
        tarn__http_connection_open(s, socket, from);
}

static void resume_accepting(evutil_socket_t socket, short what, void *ctx)
{
    tarn__http_server *s = ctx;
    (void)socket, (void)what;
    if (s->listener)
        evconnlistener_enable(s->listener);
}

/* Out of descriptors: accepting rests, or the loop would turn without end. */
static void on_accept_error(struct evconnlistener *listener, void *ctx)
{
    tarn__http_server *s = ctx;
    struct timeval rest = {0, 100000};
    evconnlistener_disable(listener);
    event_base_once(s->base, -1, EV_TIMEOUT, resume_accepting, s, &rest);
}

/* Numeric alone: the resolver could block, and a name may have several addresses. */
static bool read_address(const char *text, int port, struct sockaddr_storage *address, int *size)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)address;
    memset(address, 0, sizeof(*address));
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        *size = (int)sizeof(*v4);
        return true;
    }
    if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        *size = (int)sizeof(*v6);
        return true;
    }
    return false;
}

static bool listen_on(tarn__http_server *s, char *error, size_t error_size)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    int size;
    if (!read_address(s->options.address, s->options.port, &address, &size)) {
        snprintf(error, error_size, "'%s' is not an IP address", s->options.address);
        return false;
    }
    s->listener = evconnlistener_new_bind(s->base, on_accept, s,
                                          LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_EXEC, 1024,
                                          (struct sockaddr *)&address, size);
    if (!s->listener || getsockname(evconnlistener_get_fd(s->listener), (struct sockaddr *)&address, &length) != 0) {
        snprintf(error, error_size, "%s port %d: %s", s->options.address, s->options.port, strerror(errno));
        return false;
    }
    evconnlistener_set_error_cb(s->listener, on_accept_error);
    /* asked for anew, since port 0 lets the system choose */
    s->port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                  : ((struct sockaddr_in *)&address)->sin_port);
    return true;
}

/* ---- work of other threads --------------------------------------------------------------------------------------- */

/* The pipe is emptied before the list is taken: what is posted in between leaves a byte, and the loop looks again. */
static void run_posted(evutil_socket_t socket, short what, void *ctx)
{
    tarn__http_server *s = ctx;
    char bytes[256];
    (void)what;
    while (read(socket, bytes, sizeof(bytes)) > 0)
        ;
    pthread_mutex_lock(&s->lock);
    tarn__http_posted *one = s->first;
    s->first = s->last = NULL;
    pthread_mutex_unlock(&s->lock);
    while (one) {
        tarn__http_posted *next = one->next;
        one->work(one->ctx);
        free(one);
        one = next;
    }
}

bool tarn__http_server_post(tarn__http_server *s, void (*work)(void *ctx), void *ctx)
{
    tarn__http_posted *one = malloc(sizeof(*one));
    if (!one)
        return false;
    *one = (tarn__http_posted){NULL, work, ctx};
    pthread_mutex_lock(&s->lock);
    *(s->last ? &s->last->next : &s->first) = one;
    s->last = one;
    pthread_mutex_unlock(&s->lock);
    ssize_t written = write(s->pipe[1], "", 1); /* a full pipe wakes the loop, too */
    (void)written;
    return true;
}

static bool open_pipe(tarn__http_server *s)
{
    if (pipe(s->pipe) != 0)
        return false;
    for (int i = 0; i < 2; i++) {
        evutil_make_socket_nonblocking(s->pipe[i]);
        evutil_make_socket_closeonexec(s->pipe[i]);
    }
    s->wake = event_new(s->base, s->pipe[0], EV_READ | EV_PERSIST, run_posted, s);
    return s->wake && event_add(s->wake, NULL) == 0;
}

static void run_repeated(evutil_socket_t socket, short what, void *ctx)
{
    tarn__http_repeated *one = ctx;
    (void)socket, (void)what;
    one->work(one->ctx);
}

bool tarn__http_server_every(tarn__http_server *s, int milliseconds, void (*work)(void *ctx), void *ctx)
{
    struct timeval time = {milliseconds / 1000, milliseconds % 1000 * 1000};
    tarn__http_repeated *one = malloc(sizeof(*one));
    if (!one)
        return false;
    *one = (tarn__http_repeated){s->repeats, NULL, work, ctx};
    one->event = event_new(s->base, -1, EV_PERSIST, run_repeated, one);
    if (!one->event || event_add(one->event, &time) != 0) {
        if (one->event)
            event_free(one->event);
        free(one);
        return false;
    }
    s->repeats = one;
    return true;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

tarn__http_server *tarn__http_server_new(const tarn__http_options *options, char *error, size_t error_size)
{
    tarn__http_server *s = calloc(1, sizeof(*s));
    snprintf(error, error_size, "no memory for the server");
    if (!s)
        return NULL;
    signal(SIGPIPE, SIG_IGN); /* a client that has gone is an error of its write */
    s->options = *options;
    s->pipe[0] = s->pipe[1] = -1;
    pthread_mutex_init(&s->lock, NULL);
    s->base = event_base_new();
    if (!s->base || !open_pipe(s) || !listen_on(s, error, error_size)) {
        tarn__http_server_free(s);
        return NULL;
    }
    return s;
}

int tarn__http_server_port(const tarn__http_server *s)
{
    return s->port;
}

void tarn__http_server_run(tarn__http_server *s)
{
    event_base_loop(s->base, EVLOOP_NO_EXIT_ON_EMPTY);
    for (int i = 0; i < 2; i++) /* nothing handles them any more: they end the process again */
        if (s->signals[i])
            event_del(s->signals[i]);
}

/* True if nothing is left to answer or to send. */
static bool is_idle(const tarn__http_server *s)
{
    if (s->open_count > 0)
        return false;
    for (const tarn__http_exchange *x = s->connections; x; x = x->next)
        if (evbuffer_get_length(bufferevent_get_output(x->socket)) > 0)
            return false;
    return true;
}

/* The connections that are left wait for their clients to close, or have sent a part of a request: they get a
 * moment. */
void tarn__http_server_check_end(tarn__http_server *s)
{
    struct timeval moment = {1, 0};
    if (!s->end_timer || !is_idle(s))
        return;
    if (s->connection_count == 0)
        event_base_loopexit(s->base, NULL);
    else if (!evtimer_pending(s->end_timer, NULL))
        evtimer_add(s->end_timer, &moment);
}

static void on_end_timer(evutil_socket_t socket, short what, void *ctx)
{
    tarn__http_server *s = ctx;
    (void)socket, (void)what;
    if (is_idle(s))
        event_base_loopbreak(s->base);
}

static void on_stop_timer(evutil_socket_t socket, short what, void *ctx)
{
    (void)socket, (void)what;
    event_base_loopbreak(((tarn__http_server *)ctx)->base);
}

void tarn__http_server_stop(tarn__http_server *s, int seconds)
{
    struct timeval time = {seconds, 0};
    if (s->is_stopping)
        return;
    s->is_stopping = true;
    evconnlistener_free(s->listener);
    s->listener = NULL;
    s->stop_timer = evtimer_new(s->base, on_stop_timer, s);
    if (!s->stop_timer || evtimer_add(s->stop_timer, &time) != 0)
        event_base_loopbreak(s->base);
    for (tarn__http_exchange *x = s->connections, *next; x; x = next) { /* those between two requests */
        next = x->next;
        if (x->is_open || x->is_closing || x->request.head_size)
            continue;
        if (evbuffer_get_length(bufferevent_get_output(x->socket)) == 0) {
            tarn__http_connection_drop(x);
        } else { /* the last answer goes out first */
            x->is_closing = true;
            bufferevent_disable(x->socket, EV_READ);
        }
    }
    s->end_timer = evtimer_new(s->base, on_end_timer, s); /* from here on the end is looked for */
    if (!s->end_timer)
        event_base_loopbreak(s->base);
    tarn__http_server_check_end(s);
}

/* Runs in the loop like any event, not in a signal handler, so it may do anything. */
static void on_signal(evutil_socket_t number, short what, void *ctx)
{
    tarn__http_server *s = ctx;
    (void)number, (void)what;
    if (s->is_stopping)
        event_base_loopbreak(s->base);
    else
        tarn__http_server_stop(s, s->stop_seconds);
}

bool tarn__http_server_stop_on_signals(tarn__http_server *s, int seconds)
{
    static const int numbers[2] = {SIGINT, SIGTERM};
    s->stop_seconds = seconds;
    for (int i = 0; i < 2; i++) {
        s->signals[i] = evsignal_new(s->base, numbers[i], on_signal, s);
        if (!s->signals[i] || event_add(s->signals[i], NULL) != 0)
            return false;
    }
    return true;
}

void tarn__http_server_free(tarn__http_server *s)
{
    if (!s)
        return;
    if (s->end_timer) /* the end has come */
        event_free(s->end_timer);
    s->end_timer = NULL;
    while (s->connections)
        tarn__http_connection_drop(s->connections);
    if (s->wake)
        run_posted(s->pipe[0], 0, s); /* their contexts are freed by them */
    for (tarn__http_repeated *one = s->repeats, *next; one; one = next) {
        next = one->next;
        event_free(one->event);
        free(one);
    }
    struct event *events[] = {s->wake, s->stop_timer, s->signals[0], s->signals[1]};
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        if (events[i])
            event_free(events[i]);
    for (int i = 0; i < 2; i++)
        if (s->pipe[i] >= 0)
            close(s->pipe[i]);
    if (s->listener)
        evconnlistener_free(s->listener);
    if (s->base)
        event_base_free(s->base);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
