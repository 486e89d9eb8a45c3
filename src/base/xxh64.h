/* xxh64.h: XXH64, the 64-bit checksum of the xxHash family, with seed 0: for damage to files, not against malice.
 *
 * It needs no special instructions and reads faster than a disk gives; results are bitwise identical on every machine.
 */
#ifndef TARN__XXH64_H
#define TARN__XXH64_H

#include <stddef.h>
#include <stdint.h>

/* A checksum in progress. */
typedef struct tarn__xxh64 {
    uint64_t lane[4];
    uint64_t total;         /* bytes so far */
    unsigned char rest[32]; /* the last total % 32 of them */
} tarn__xxh64;

void tarn__xxh64_begin(tarn__xxh64 *sum);
void tarn__xxh64_add(tarn__xxh64 *sum, const void *bytes, size_t count);
uint64_t tarn__xxh64_end(const tarn__xxh64 *sum);

/* The checksum of bytes that are all in memory. */
uint64_t tarn__xxh64_of(const void *bytes, size_t count);

#endif
