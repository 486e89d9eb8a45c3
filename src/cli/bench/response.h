/* response.h: the answer to a streamed completion, as a load generator reads it: head, body by length or in chunks, and
 * the events in it.
 *
 * Bytes are pushed as they come; the response calls back for each event. It does not keep the text. */
#ifndef TARN__RESPONSE_H
#define TARN__RESPONSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/cli.h"

typedef enum tarn__response_state {
    TARN__RESPONSE_HEAD = 0,
    TARN__RESPONSE_BODY,       /* of a known length, or until the server closes */
    TARN__RESPONSE_CHUNK_SIZE, /* the line before a chunk */
    TARN__RESPONSE_CHUNK,      /* inside a chunk */
    TARN__RESPONSE_CHUNK_END,  /* the line break after it */
    TARN__RESPONSE_TRAILER,    /* lines after the last chunk */
    TARN__RESPONSE_COMPLETE,   /* all has come */
    TARN__RESPONSE_MALFORMED   /* not HTTP, or without memory */
} tarn__response_state;

typedef struct tarn__response {
    tarn__response_state state;
    int status;          /* 0: not yet known */
    int64_t left;        /* bytes of the body or chunk; -1: until the server closes */
    int64_t retry_after; /* seconds; 0: not given */
    bool is_chunked, closes, is_stream;
    tarn__input line;    /* of the head or the body, so far */
    tarn__input framing; /* of the chunks, so far */

    /* the events */
    void (*token)(void *ctx); /* an event with text has come */
    void *ctx;
    bool is_done;                          /* [DONE] has come */
    bool has_error;                        /* an error as an event */
    int64_t prompt_tokens, tokens, cached; /* by the usage; tokens -1: none has come */
} tarn__response;

/* Begins the next response; keeps the buffers. */
void tarn__response_begin(tarn__response *response, void (*token)(void *ctx), void *ctx);

/* Reads bytes, up to the end of the response; returns how many it took. */
size_t tarn__response_push(tarn__response *response, const char *bytes, size_t count);

/* The server has closed: completes a body without a length. */
void tarn__response_end(tarn__response *response);

void tarn__response_free(tarn__response *response);

#endif
