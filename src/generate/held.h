/* held.h: text that is held back until it is certain that it is not the beginning of a stop text. */
#ifndef TARN__STOP_BUFFER_H
#define TARN__STOP_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tarn__stop_string {
    char *text; /* an own copy */
    size_t length;
} tarn__stop_string;

typedef struct tarn__stop_buffer {
    tarn__stop_string *stops;
    int stop_count;
    char *text; /* what was given out last, and behind it what is held back */
    size_t given, length, capacity;
    bool is_over; /* a stop text came */
} tarn__stop_buffer;

/* Copies the stop texts. False with an error; then there is nothing to release. */
bool tarn__stop_buffer_open(tarn__stop_buffer *held, const char *const *stops, int count);
void tarn__stop_buffer_close(tarn__stop_buffer *held); /* all zero is allowed */

/* Adds bytes behind what is held back; what was given out before is dropped. False with an error. */
bool tarn__stop_buffer_add(tarn__stop_buffer *held, const char *bytes, size_t count);

/* Finds what is certain now: held->text, held->given bytes, until bytes are added; all of it where the text ends here.
 * After a stop text, which sets is_over, nothing more comes. */
void tarn__stop_buffer_settle(tarn__stop_buffer *held, bool is_end);

#endif
