/* sha.c: SHA-1 and SHA-256, block by block. Both pad a message the same way and differ in the compression function.
 *
 * Between calls, length % 64 bytes wait in `block`, and `state` has all blocks before them. Words are big-endian on
 * every machine, so they are put together from bytes. Letters and functions are those of FIPS 180-4. */
#include "hub/sha.h"

#include <string.h>

#define BLOCK sizeof(((tarn__sha *)0)->block)

static uint32_t rotate_left(uint32_t x, int bits)
{
    return x << bits | x >> (32 - bits);
}

static uint32_t rotate_right(uint32_t x, int bits)
{
    return x >> bits | x << (32 - bits);
}

static uint32_t big_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* ---- SHA-1 ------------------------------------------------------------------------------------------------------- */

void tarn__sha1_begin(tarn__sha *sha)
{
    *sha = (tarn__sha){.digest_bytes = 20, .state = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0}};
}

/* The function and the constant of round t change every 20 rounds. */
static uint32_t sha1_mix(int t, uint32_t b, uint32_t c, uint32_t d)
{
    return t < 20   ? ((b & c) | (~b & d)) + 0x5A827999
           : t < 40 ? (b ^ c ^ d) + 0x6ED9EBA1
           : t < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8F1BBCDC
                    : (b ^ c ^ d) + 0xCA62C1D6;
}

static void sha1_block(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (int t = 0; t < 16; t++)
        w[t] = big_endian(block + 4 * t);
    for (int t = 16; t < 80; t++)
        w[t] = rotate_left(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    for (int t = 0; t < 80; t++) {
        uint32_t next = rotate_left(a, 5) + sha1_mix(t, b, c, d) + e + w[t];
        e = d;
        d = c;
        c = rotate_left(b, 30);
        b = a;
        a = next;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
}

/* ---- SHA-256 ----------------------------------------------------------------------------------------------------- */

void tarn__sha256_begin(tarn__sha *sha)
{
    *sha = (tarn__sha){
        .digest_bytes = 32,
        .state = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19}};
}

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t cube_roots[64] = {
    0x428A2F98, 0x71374491, 0xB5C0FBCF, 0xE9B5DBA5, 0x3956C25B, 0x59F111F1, 0x923F82A4, 0xAB1C5ED5,
    0xD807AA98, 0x12835B01, 0x243185BE, 0x550C7DC3, 0x72BE5D74, 0x80DEB1FE, 0x9BDC06A7, 0xC19BF174,
    0xE49B69C1, 0xEFBE4786, 0x0FC19DC6, 0x240CA1CC, 0x2DE92C6F, 0x4A7484AA, 0x5CB0A9DC, 0x76F988DA,
    0x983E5152, 0xA831C66D, 0xB00327C8, 0xBF597FC7, 0xC6E00BF3, 0xD5A79147, 0x06CA6351, 0x14292967,
    0x27B70A85, 0x2E1B2138, 0x4D2C6DFC, 0x53380D13, 0x650A7354, 0x766A0ABB, 0x81C2C92E, 0x92722C85,
    0xA2BFE8A1, 0xA81A664B, 0xC24B8B70, 0xC76C51A3, 0xD192E819, 0xD6990624, 0xF40E3585, 0x106AA070,
    0x19A4C116, 0x1E376C08, 0x2748774C, 0x34B0BCB5, 0x391C0CB3, 0x4ED8AA4A, 0x5B9CCA4F, 0x682E6FF3,
    0x748F82EE, 0x78A5636F, 0x84C87814, 0x8CC70208, 0x90BEFFFA, 0xA4506CEB, 0xBEF9A3F7, 0xC67178F2};

static void sha256_block(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64], s[8];
    for (int t = 0; t < 16; t++)
        w[t] = big_endian(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        uint32_t low = rotate_right(w[t - 15], 7) ^ rotate_right(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t high = rotate_right(w[t - 2], 17) ^ rotate_right(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + low + w[t - 7] + high;
    }
    /* s[0] to s[7] are the standard's a to h; a round shifts all by one */
    memcpy(s, state, sizeof(s));
    for (int t = 0; t < 64; t++) {
        uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]), majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        uint32_t first = s[7] + (rotate_right(s[4], 6) ^ rotate_right(s[4], 11) ^ rotate_right(s[4], 25)) + choice +
                         cube_roots[t] + w[t];
        uint32_t second = (rotate_right(s[0], 2) ^ rotate_right(s[0], 13) ^ rotate_right(s[0], 22)) + majority;
        memmove(s + 1, s, 7 * sizeof(s[0]));
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void add_block(tarn__sha *sha, const unsigned char *block)
{
    if (sha->digest_bytes == 20)
        sha1_block(sha->state, block);
    else
        sha256_block(sha->state, block);
}

/* Whole blocks are hashed where they lie; only the ends of a part are copied. */
void tarn__sha_add(tarn__sha *sha, const void *bytes, size_t count)
{
    const unsigned char *from = bytes;
    size_t used = (size_t)(sha->length % BLOCK);
    sha->length += count;
    if (used > 0) {
        size_t part = count < BLOCK - used ? count : BLOCK - used;
        memcpy(sha->block + used, from, part);
        from += part;
        count -= part;
        if (used + part < BLOCK)
            return;
        add_block(sha, sha->block);
    }
    for (; count >= BLOCK; from += BLOCK, count -= BLOCK)
        add_block(sha, from);
    if (count > 0)
        memcpy(sha->block, from, count);
}

/* A bit of one, zeros, and the length in bits at the end of a block. The zeros end at byte 56 of a block, of this
 * one or the next; then 8 bytes of length. */
const char *tarn__sha_end(tarn__sha *sha, char text[TARN__SHA_TEXT])
{
    static const char digits[] = "0123456789abcdef";
    static const unsigned char one = 0x80, zeros[64] = {0};
    uint64_t bits = 8 * sha->length;
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(bits >> (56 - 8 * i));
    tarn__sha_add(sha, &one, 1);
    tarn__sha_add(sha, zeros, (size_t)((BLOCK + 56 - sha->length % BLOCK) % BLOCK));
    tarn__sha_add(sha, length, sizeof(length));
    for (int i = 0; i < 2 * sha->digest_bytes; i++)
        text[i] = digits[sha->state[i / 8] >> (28 - i % 8 * 4) & 15];
    text[2 * sha->digest_bytes] = 0;
    return text;
}
