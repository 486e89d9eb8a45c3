/* held.h: text that is held back until it is certain: whole characters only, and nothing that may be the beginning of a stop text. */
#ifndef TARN__HELD_H
#define TARN__HELD_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tarn__stop_text {
    char *text; /* an own copy */
    size_t length;
} tarn__stop_text;

typedef struct tarn__held {
    tarn__stop_text *stops;
    int stop_count;
    char *text; /* what was given out last, and behind it what is held back */
    size_t given, length, room;
    bool is_over; /* a stop text came */
} tarn__held;

/* Copies the stop texts. False with an error; then there is nothing to release. */
bool tarn__held_open(tarn__held *held, const char *const *stops, int count);
void tarn__held_close(tarn__held *held); /* all zero is allowed */

/* Adds bytes. What is certain now is held->text, held->given bytes, until the next call: all of it where the text ends here. After a stop text, which sets
 * is_over, nothing more comes. False with an error. */
bool tarn__held_add(tarn__held *held, const char *bytes, size_t count, bool is_end);

#endif
