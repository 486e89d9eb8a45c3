/* sha.h: SHA-1 and SHA-256 (FIPS 180-4), by which a hub names its files. Integrity, not secrecy: SHA-1 is what git
 * calls small files by. */
#ifndef TARN__SHA_H
#define TARN__SHA_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of a digest at most, and of its text in hexadecimal. */
enum { TARN__SHA_BYTES = 32, TARN__SHA_TEXT = 2 * TARN__SHA_BYTES + 1 };

/* A hash under computation. Plain data; copied to fork it. */
typedef struct tarn__sha {
    int digest_bytes; /* 20: SHA-1; 32: SHA-256 */
    uint32_t state[8];
    uint64_t length; /* bytes so far */
    unsigned char block[64];
} tarn__sha;

void tarn__sha1_begin(tarn__sha *sha);
void tarn__sha256_begin(tarn__sha *sha);
void tarn__sha_add(tarn__sha *sha, const void *bytes, size_t count);

/* Writes the digest as lower-case hexadecimal digits; the hash must begin anew then. Returns `text`. 40 digits of
 * SHA-1, 64 of SHA-256. */
const char *tarn__sha_end(tarn__sha *sha, char text[TARN__SHA_TEXT]);

#endif
