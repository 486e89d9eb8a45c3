/* request.h: HTTP/1.0 and 1.1 requests, read as their bytes arrive.
 *
 * Strict where requests are smuggled: one Content-Length of digits, or `Transfer-Encoding: chunked`, never both; chunk
 * sizes of hexadecimal digits alone; CRLF alone ends a line; no folded lines, no space before a colon, no control
 * characters. Everything has a limit, and nothing is allocated beyond it. What is refused says why in one sentence and
 * carries the status of its response. */
#ifndef TARN__REQUEST_H
#define TARN__REQUEST_H

#include <stdbool.h>
#include <stddef.h>

enum { TARN__HTTP_HEADERS_MAX = 64 };

/* Sizes in bytes. */
typedef struct tarn__http_limits {
    size_t head; /* request line and headers; trailers too */
    size_t body;
} tarn__http_limits;

typedef struct tarn__http_header {
    const char *name, *value; /* in the buffer of the head, without space around them */
} tarn__http_header;

typedef enum tarn__http_state {
    TARN__HTTP_HEAD = 0, /* waits for the rest of the head */
    TARN__HTTP_BODY,     /* the head is complete, the body is not */
    TARN__HTTP_COMPLETE,
    TARN__HTTP_REFUSED /* status and reason are set; the connection must close */
} tarn__http_state;

/* A request while it is read, and then. Zeros are a new one. Strings are valid until tarn__http_request_clear().
 * After a refusal only state, status and reason mean something. */
typedef struct tarn__http_request {
    tarn__http_state state;
    int status;         /* of the refusal */
    const char *reason; /* a literal */

    const char *method, *path, *query; /* of the target, not decoded; the query without '?', "" where there is none */
    const char *authority;             /* of a target that is a URL, "localhost:8080"; else NULL */
    int minor;                         /* HTTP/1.minor */
    tarn__http_header header[TARN__HTTP_HEADERS_MAX];
    int header_count;
    bool keeps_alive;      /* by version and Connection */
    bool expects_continue; /* waits for 100 Continue */

    char *body; /* owned; `body_size` bytes and a terminating 0, or NULL */
    size_t body_size;

    /* reading */
    char *head; /* owned; grows to the limit */
    size_t head_size, head_capacity, body_capacity;
    size_t remaining; /* of the body, or of the current chunk */
    size_t line_size; /* of the chunk's or trailer's line so far */
    size_t trailer_size;
    char line[64]; /* the chunk's line */
    unsigned char chunk_state;
    bool is_chunked;
} tarn__http_request;

/* Reads bytes up to the end of the request and returns how many. Call it until `state` says complete or refused. */
size_t tarn__http_request_feed(tarn__http_request *request, const char *bytes, size_t count,
                               const tarn__http_limits *limits);

/* The host, perhaps with a port, that a request is for: that of a target with one, in place of any Host header (RFC
 * 9112, 3.2.2). NULL: there is none. */
const char *tarn__http_request_host(const tarn__http_request *request);

/* The value of a header, by its name in any case; NULL: there is none. The first of several. */
const char *tarn__http_request_header(const tarn__http_request *request, const char *name);

/* Percent-decodes a part of the path into `value`. False: it is not well-formed, holds a 0 byte or does not fit. */
bool tarn__http_decode(const char *text, char *value, size_t size);

/* The value of a query's parameter, percent-decoded into `value`. False: there is none, it is not well-formed, holds a
 * 0 byte or does not fit. */
bool tarn__http_request_parameter(const tarn__http_request *request, const char *name, char *value, size_t size);

/* Frees what the request holds and makes it a new one. */
void tarn__http_request_clear(tarn__http_request *request);

#endif
