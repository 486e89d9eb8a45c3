/* json.h: writing one JSON object a line. Numbers that JSON cannot hold (NaN, infinity) become null. */
#ifndef TARN__JSON_H
#define TARN__JSON_H

#include <stdbool.h>
#include <stdio.h>
#include <tarn/tensor.h>

typedef struct tarn__json {
    FILE *to;
    bool follows; /* a comma comes before the next member */
} tarn__json;

/* An object or array; with a key inside an object, NULL inside an array or at the top. Closing the outermost one ends
 * the line. */
void tarn__json_open(tarn__json *json, const char *key, char bracket);
void tarn__json_close(tarn__json *json, char bracket);
void tarn__json_end(tarn__json *json);

/* Members; the key is NULL inside an array. A NULL text becomes null. */
void tarn__json_string(tarn__json *json, const char *key, const char *text);
/* any bytes: what is no UTF-8 becomes U+FFFD */
void tarn__json_bytes(tarn__json *json, const char *key, const char *text, size_t length);
void tarn__json_int(tarn__json *json, const char *key, int64_t number);
/* rounded to so many behind the point, without zeros at the end: 0.1, 2.0 */
void tarn__json_real(tarn__json *json, const char *key, double number, int digits);
/* as many as count: 1e-05 with one */
void tarn__json_precise(tarn__json *json, const char *key, double number, int digits);
void tarn__json_bool(tarn__json *json, const char *key, bool value);
void tarn__json_null(tarn__json *json, const char *key);
void tarn__json_shape(tarn__json *json, const char *key, tarn_shape shape);

/* Bytes of the character at the beginning of a text, 1 to 4; 0: it is no UTF-8. */
size_t tarn__utf8_bytes(const char *text, size_t length);

#endif
