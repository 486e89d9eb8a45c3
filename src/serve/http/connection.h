/* connection.h: a connection and the exchange on it, between server.c (listening, the loop) and connection.c (reading,
 * answering). All of it belongs to the loop's thread but the queue of posted work. */
#ifndef TARN__CONNECTION_H
#define TARN__CONNECTION_H

#include <event2/event.h>
#include <netinet/in.h>
#include <pthread.h>

#include "serve/http/server.h"

enum { TARN__HTTP_ADDED_HEADERS = 2048 };

struct tarn__http_exchange {
    tarn__http_server *server;
    struct bufferevent *socket;
    tarn__http_exchange *previous, *next; /* connections of the server */
    struct event *timer;                  /* for a head, a part of a body, the next request, the client's close */
    tarn__http_request request;
    char client[INET6_ADDRSTRLEN];
    char headers[TARN__HTTP_ADDED_HEADERS]; /* added by the handler */
    size_t headers_size;
    size_t body_bytes; /* of the request's body, as counted by the server */
    double body_until; /* monotonic seconds */
    tarn__http_gone gone;
    void *gone_ctx;
    bool is_open;      /* the handler has it, and has not answered */
    bool is_chunked;   /* the parts of its stream are chunks */
    bool is_closing;   /* closes when all is sent */
    bool is_paused;    /* its next request waits until all is sent */
    bool is_lingering; /* all is sent; waits for the client to close */
    bool is_handling;  /* a frame on the stack uses it: it is freed later */
    bool is_dead;      /* dropped meanwhile */
    bool has_continued;
    bool has_body; /* its head was looked at, and its body is read */
};

typedef struct tarn__http_posted tarn__http_posted;
typedef struct tarn__http_repeated tarn__http_repeated;

struct tarn__http_server {
    tarn__http_options options;
    struct event_base *base;
    struct evconnlistener *listener;
    tarn__http_exchange *connections;
    int connection_count, open_count, port;
    size_t body_bytes; /* held by all connections */
    struct event *wake, *stop_timer, *end_timer, *signals[2];
    tarn__http_repeated *repeats; /* owned */
    bool is_stopping;
    int stop_seconds, pipe[2];
    pthread_mutex_t lock; /* of the queue */
    tarn__http_posted *first, *last;
};

/* A connection that was accepted; closes the socket without memory. */
void tarn__http_connection_open(tarn__http_server *server, evutil_socket_t socket, const struct sockaddr *from);

/* Ends a connection now; a kept exchange is told. */
void tarn__http_connection_drop(tarn__http_exchange *exchange);

/* To be called when an exchange was answered, its answer sent, or a connection has ended: a server that stops may be
 * done. Exchanges that a handler has are counted by open_count. */
void tarn__http_server_check_end(tarn__http_server *server);

#endif
