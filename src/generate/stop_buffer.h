/* stop_buffer.h: text between the tokenizer and the caller, up to a stop string; of generators and engines. */
#ifndef TARN__STOP_BUFFER_H
#define TARN__STOP_BUFFER_H

#include <tarn/text.h>

/* A stop string; owns its copy. */
typedef struct tarn__stop_string {
    char *text;
    size_t length;
} tarn__stop_string;

/* Text between the tokenizer and the caller. Owns all its members. */
typedef struct tarn__stop_buffer {
    tarn__stop_string *stops;
    int stop_count;
    char *text;                     /* output of the last settle, then the undecided bytes */
    size_t ready, length, capacity; /* bytes of output, of all, and allocated */
    bool is_over;                   /* a stop string was found */
} tarn__stop_buffer;

/* Copies the stop strings. False with an error; then there is nothing to release. Closing an all-zero buffer is
 * allowed. */
bool tarn__stop_buffer_open(tarn__stop_buffer *buffer, const char *const *stops, int count);
void tarn__stop_buffer_close(tarn__stop_buffer *buffer); /* all zero is allowed */

/* Appends bytes, and drops those output before. False with an error. */
bool tarn__stop_buffer_add(tarn__stop_buffer *buffer, const char *bytes, size_t count);

/* Decides what can be output: the first `ready` bytes of `text`, valid until the next add; everything if `is_end`.
 * Stops before a stop string and sets is_over; later text is ignored. */
void tarn__stop_buffer_settle(tarn__stop_buffer *buffer, bool is_end);

/* Appends the text of a token (-1: none) by a stream of the tokenizer, and settles. False with an error. */
bool tarn__stop_buffer_add_token(tarn__stop_buffer *buffer, const tarn_tokenizer *tokenizer, tarn_text_stream *stream,
                                 int32_t token, bool is_end);

#endif
