/* base64.h: base64, the form of bytes in JSON and in tiktoken's files. No line breaks, no other alphabets. */
#ifndef TARN__BASE64_H
#define TARN__BASE64_H

#include "base/buffer.h"

/* Decodes into `bytes`, which has capacity for length / 4 * 3 + 3. Padding may be missing. Returns the number of bytes;
 * -1, without an error, for anything that is not base64. */
int64_t tarn__base64_decode(char *bytes, const char *text, size_t length);

/* Appends the base64 of bytes, with padding. False with an error. */
bool tarn__base64_encode(tarn__buffer *out, const char *bytes, size_t length);

#endif
