/* json_checksum.h: a JSON file's own checksum, a member of its outermost object:
 *
 *   "checksum": "xxh64:0123456789abcdef"
 *
 * It is computed over all bytes of the file, with zeros for its own 16 digits. */
#ifndef TARN__JSON_CHECKSUM_H
#define TARN__JSON_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TARN__JSON_CHECKSUM "xxh64:0000000000000000" /* the member's value until it is known */

typedef struct tarn__json_checksum {
    bool is_there;
    uint64_t stored, computed;
} tarn__json_checksum;

/* Puts the checksum into a text that has the member. */
void tarn__json_checksum_put(char *text, size_t length);

/* What a text says of itself, and what it is. */
tarn__json_checksum tarn__json_checksum_of(const char *text, size_t length);

#endif
