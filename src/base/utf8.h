/* utf8.h: texts from outside, letter by letter. */
#ifndef TARN__UTF8_H
#define TARN__UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the letter that a text begins with, 1 to 4; 0 where the text ends or is no valid UTF-8 (overlong, surrogate,
 * beyond U+10FFFF, cut). */
size_t tarn__utf8_code_point(const char *text);

/* True when all of a text is valid UTF-8. */
bool tarn__utf8_valid(const char *text);

#endif
