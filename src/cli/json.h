/* json.h: writes one JSON object per line. Values that JSON cannot represent (NaN, infinity) become null. */
#ifndef TARN__JSON_H
#define TARN__JSON_H

#include <stdbool.h>
#include <stdio.h>
#include <tarn/tensor.h>

typedef struct tarn__json {
    FILE *to;
    bool follows; /* a comma comes before the next member */
} tarn__json;

/* Opens and closes an object or array ('{' or '['); the key is NULL inside an array or at the top. tarn__json_end()
 * closes the outermost object, ends the line and flushes it. */
void tarn__json_open(tarn__json *json, const char *key, char bracket);
void tarn__json_close(tarn__json *json, char bracket);
void tarn__json_end(tarn__json *json);

/* Members; the key is NULL inside an array. A NULL text becomes null. */
void tarn__json_string(tarn__json *json, const char *key, const char *text);
/* any bytes: invalid UTF-8 becomes U+FFFD */
void tarn__json_bytes(tarn__json *json, const char *key, const char *text, size_t length);
void tarn__json_int(tarn__json *json, const char *key, int64_t number);
/* rounded to `digits` decimals, without trailing zeros but the first: 0.1, 2.0 */
void tarn__json_real(tarn__json *json, const char *key, double number, int digits);
/* rounded to `digits` significant digits: 1e-05 with one */
void tarn__json_precise(tarn__json *json, const char *key, double number, int digits);
void tarn__json_bool(tarn__json *json, const char *key, bool value);
void tarn__json_null(tarn__json *json, const char *key);
void tarn__json_shape(tarn__json *json, const char *key, tarn_shape shape);

/* Bytes of the first UTF-8 character of a string, 1 to 4; 0: invalid. */
size_t tarn__utf8_bytes(const char *text, size_t length);

#endif
