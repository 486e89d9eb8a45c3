/* json_checksum.h: a JSON file's own checksum, a member of its root object:
 *
 *   "checksum": "xxh64:0123456789abcdef"
 *
 * It covers all bytes of the file, with zeros for its own 16 digits. */
#ifndef TARN__JSON_CHECKSUM_H
#define TARN__JSON_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
