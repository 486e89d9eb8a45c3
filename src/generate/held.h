/* held.h: text that is held back until it is certain that it is not the beginning of a stop text. */
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

/* Adds bytes behind what is held back; what was given out before is dropped. False with an error. */
bool tarn__held_add(tarn__held *held, const char *bytes, size_t count);

/* Finds what is certain now: held->text, held->given bytes, until bytes are added; all of it where the text ends here.
 * After a stop text, which sets is_over, nothing more comes. */
void tarn__held_settle(tarn__held *held, bool is_end);

#endif
