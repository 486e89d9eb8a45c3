/* utf8.h: UTF-8: validation and conversion. Strings are terminated by a 0, or come with a length and may contain zeros.
 * Invalid are overlong forms, surrogates, code points above U+10FFFF and incomplete sequences. */
#ifndef TARN__UTF8_H
#define TARN__UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the first code point of a terminated string, 1 to 4; 0 at its end and for invalid UTF-8. */
size_t tarn__utf8_code_point_bytes(const char *text);

/* True when a terminated string is valid UTF-8. */
bool tarn__utf8_valid(const char *text);

/* Decodes the first code point: its bytes, 1 to 4, and *code; 0 for no bytes and for invalid UTF-8. */
size_t tarn__utf8_decode(const char *text, size_t length, uint32_t *code);

/* Writes the bytes of a code point, at most 4; returns their number. The code point must be valid. */
size_t tarn__utf8_encode(char *text, uint32_t code);

/* Length of the longest valid prefix. ASCII is checked eight bytes at a time. */
size_t tarn__utf8_prefix(const char *text, size_t length);

/* Unicode's property White_Space. */
bool tarn__is_space(uint32_t code);

#endif
