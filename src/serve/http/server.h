/* server.h: HTTP/1.1 over libevent: one event loop, which calls a handler for each complete request.
 *
 * The handler answers at once, or keeps the exchange and answers later, whole or as a stream. Everything happens on the
 * thread of tarn__http_server_run(); other threads reach it with tarn__http_server_post(). A client that goes away is
 * reported at once. Limits: size and time of the head, size of the body, connections, unsent bytes, a stalled write. */
#ifndef TARN__SERVER_H
#define TARN__SERVER_H

#include <stdbool.h>
#include <stddef.h>

#include "serve/http/request.h"

typedef struct tarn__http_server tarn__http_server;
typedef struct tarn__http_exchange tarn__http_exchange; /* a request and its response */

/* Called once per request; must answer, or keep the exchange. */
typedef void (*tarn__http_handler)(tarn__http_exchange *exchange, void *ctx);

/* Called once when a kept exchange ends without its answer's end: the client has gone, or the server stops. The
 * exchange is not valid afterwards. */
typedef void (*tarn__http_gone)(void *ctx);

typedef struct tarn__http_options {
    const char *address; /* numeric, IPv4 or IPv6 */
    int port;            /* 0: any free one */
    tarn__http_limits limits;
    int head_seconds; /* for a whole head, from its first byte or the opening of the connection */
    int body_seconds; /* between parts of a body */
    int whole_body_seconds;
    int idle_seconds;    /* between requests of a connection */
    int stalled_seconds; /* of a write that makes no progress */
    size_t unsent;       /* bytes that a stream may hold for a client that reads slowly; beyond, no next request */
    size_t bodies;       /* bytes of all bodies that are read at a time */
    int connections;
    /* Whether the handler will answer by more than the head; asked before a body is read. False: it is called at once,
     * without the body, and the connection closes after its answer. NULL: always */
    bool (*admits)(const tarn__http_request *request, void *ctx);
    tarn__http_handler handler;
    void *ctx;
} tarn__http_options;

/* The defaults: loopback, port 8080, 16 KiB of headers within 10 s, 4 MiB of body, 1 MiB unsent, 30 s stalled. */
tarn__http_options tarn__http_options_default(void);

/* Binds and listens. NULL: `error` holds a sentence. */
tarn__http_server *tarn__http_server_new(const tarn__http_options *options, char *error, size_t error_size);

/* The port that it listens on. */
int tarn__http_server_port(const tarn__http_server *server);

/* Runs the event loop until tarn__http_server_stop(). */
void tarn__http_server_run(tarn__http_server *server);

/* Stops listening; the loop ends once the open exchanges are answered and all of it is sent, or after `seconds`. From
 * the loop's thread. */
void tarn__http_server_stop(tarn__http_server *server, int seconds);

/* Stops as above on SIGINT and SIGTERM; at once on the second signal. Once the loop has ended they end the process. */
bool tarn__http_server_stop_on_signals(tarn__http_server *server, int seconds);

/* Runs `work(ctx)` on the loop's thread, in the order of the calls. From any thread. False without memory. Work that
 * the loop did not come to is run by tarn__http_server_free(). */
bool tarn__http_server_post(tarn__http_server *server, void (*work)(void *ctx), void *ctx);

/* Calls `work(ctx)` on the loop's thread every `milliseconds`. False without memory. To be called before the loop
 * runs, or from its thread. */
bool tarn__http_server_every(tarn__http_server *server, int milliseconds, void (*work)(void *ctx), void *ctx);

void tarn__http_server_free(tarn__http_server *server);

/* ---- exchanges --------------------------------------------------------------------------------------------------- */

const tarn__http_request *tarn__http_exchange_request(const tarn__http_exchange *exchange);

/* The address of the client, such as 127.0.0.1. */
const char *tarn__http_exchange_client(const tarn__http_exchange *exchange);

/* Adds a header to the response, before it begins. Name and value are copied; a value with a control character is a
 * defect of the caller and is left out. */
void tarn__http_exchange_header(tarn__http_exchange *exchange, const char *name, const char *value);

/* Answers as a whole; a HEAD request gets the headers alone. The exchange is not valid afterwards. */
void tarn__http_exchange_answer(tarn__http_exchange *exchange, int status, const char *type, const void *body,
                                size_t size);

/* Keeps the exchange for an answer later. The body of its request is freed. */
void tarn__http_exchange_keep(tarn__http_exchange *exchange, tarn__http_gone gone, void *ctx);

/* Begins a stream of a kept exchange; then parts, then its end. A part returns false, and the exchange has gone (its
 * callback was called), where the client holds more unsent bytes than it may. After the end it is not valid. */
void tarn__http_stream_begin(tarn__http_exchange *exchange, int status, const char *type);
bool tarn__http_stream_part(tarn__http_exchange *exchange, const void *bytes, size_t size);
void tarn__http_stream_end(tarn__http_exchange *exchange);

/* "Not Found" */
const char *tarn__http_status_text(int status);

#endif
