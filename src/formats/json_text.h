/* json_text.h: JSON as text: reals as short as possible, and the checksum of a file. */
#ifndef TARN__JSON_TEXT_H
#define TARN__JSON_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As json_dumps(), but each real, rounded to JSON_REAL_PRECISION(), is the shortest decimal that reads back as the same
 * double: 0.1, not 0.10000000000000001. The caller frees the result with free(). NULL: no memory. */
char *tarn__json_dump(const json_t *root, size_t flags);

/* ---- a file's own checksum --------------------------------------------------------------------------------------- */

/* A JSON file's own checksum, a member of its root object:
 *
 *   "checksum": "xxh64:0123456789abcdef"
 *
 * It covers all bytes of the file, with zeros for its own 16 digits. */

#define TARN__JSON_CHECKSUM "xxh64:0000000000000000" /* the placeholder, replaced when the file is written */

typedef struct tarn__json_checksum {
    bool is_there;             /* false: the file has no checksum; then the others are 0 */
    uint64_t stored, computed; /* equal in an undamaged file */
} tarn__json_checksum;

/* Replaces the placeholder in the bytes of a file. Bytes without the member stay as they are. */
void tarn__json_checksum_put(char *text, size_t length);

/* The checksum stored in a file's bytes and the computed one. */
tarn__json_checksum tarn__json_checksum_of(const char *text, size_t length);

#endif
