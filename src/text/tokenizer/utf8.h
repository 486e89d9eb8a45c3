/* utf8.h: UTF-8 in texts that have a length instead of a 0 at their end. */
#ifndef TARN__TEXT_UTF8_H
#define TARN__TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that a text begins with, 1 to 4, and its code; 0 where the text ends or is no valid UTF-8
 * (overlong, surrogate, beyond U+10FFFF, cut). */
size_t tarn__utf8_decode(const char *text, size_t length, uint32_t *code);

/* Writes a character's bytes, at most 4; returns how many. */
size_t tarn__utf8_encode(char *text, uint32_t code);

/* How many bytes at the beginning of a text are valid UTF-8. */
size_t tarn__utf8_prefix(const char *text, size_t length);

/* Unicode's property White_Space. */
bool tarn__is_space(uint32_t code);

#endif
