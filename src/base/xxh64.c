/* xxh64.c: XXH64 by its specification: four lanes take 8 bytes each per round, so that their multiplications overlap.
 */
#include "base/xxh64.h"

#include <string.h>

/* Of the specification. */
#define PRIME1 UINT64_C(0x9E3779B185EBCA87)
#define PRIME2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PRIME3 UINT64_C(0x165667B19E3779F9)
#define PRIME4 UINT64_C(0x85EBCA77C2B2AE63)
#define PRIME5 UINT64_C(0x27D4EB2F165667C5)

enum { STRIPE = 32 };

/* `bits` is from 1 to 63. */
static uint64_t rotate(uint64_t x, int bits)
{
    return (x << bits) | (x >> (64 - bits));
}

/* Reads 8 bytes, little-endian as the specification demands. */
static uint64_t read_64(const unsigned char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof(word));
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static uint64_t read_32(const unsigned char *bytes)
{
    return (uint64_t)bytes[0] | (uint64_t)bytes[1] << 8 | (uint64_t)bytes[2] << 16 | (uint64_t)bytes[3] << 24;
}

/* One round of a lane: multiply, rotate, multiply. */
static uint64_t mix(uint64_t lane, uint64_t word)
{
    return rotate(lane + word * PRIME2, 31) * PRIME1;
}

/* Consumes whole stripes of 32 bytes: one round per lane. */
static void take_stripes(tarn__xxh64 *sum, const unsigned char *bytes, size_t stripes)
{
    uint64_t a = sum->lane[0], b = sum->lane[1], c = sum->lane[2], d = sum->lane[3];
    for (size_t i = 0; i < stripes; i++, bytes += STRIPE) {
        a = mix(a, read_64(bytes));
        b = mix(b, read_64(bytes + 8));
        c = mix(c, read_64(bytes + 16));
        d = mix(d, read_64(bytes + 24));
    }
    sum->lane[0] = a;
    sum->lane[1] = b;
    sum->lane[2] = c;
    sum->lane[3] = d;
}

void tarn__xxh64_begin(tarn__xxh64 *sum)
{
    *sum = (tarn__xxh64){.lane = {PRIME1 + PRIME2, PRIME2, 0, 0 - PRIME1}};
}

/* Buffers up to 31 bytes between calls; the split into calls does not change the result. */
void tarn__xxh64_add(tarn__xxh64 *sum, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    size_t held = (size_t)(sum->total % STRIPE), missing = STRIPE - held;
    sum->total += count;
    if (held > 0) {
        size_t taken = count < missing ? count : missing;
        memcpy(sum->rest + held, at, taken);
        if (taken < missing)
            return;
        take_stripes(sum, sum->rest, 1);
        at += taken;
        count -= taken;
    }
    take_stripes(sum, at, count / STRIPE);
    if (count % STRIPE > 0)
        memcpy(sum->rest, at + count - count % STRIPE, count % STRIPE);
}

/* Merges the four lanes into one word once no full stripe remains. */
static uint64_t join_lanes(const tarn__xxh64 *sum)
{
    uint64_t h =
        rotate(sum->lane[0], 1) + rotate(sum->lane[1], 7) + rotate(sum->lane[2], 12) + rotate(sum->lane[3], 18);
    for (int i = 0; i < 4; i++)
        h = (h ^ mix(0, sum->lane[i])) * PRIME1 + PRIME4;
    return h;
}

/* Mixes in the last bytes, fewer than a stripe: words of 8, one of 4, single bytes. */
static uint64_t take_rest(uint64_t h, const unsigned char *at, size_t count)
{
    for (; count >= 8; at += 8, count -= 8)
        h = rotate(h ^ mix(0, read_64(at)), 27) * PRIME1 + PRIME4;
    if (count >= 4) {
        h = rotate(h ^ read_32(at) * PRIME1, 23) * PRIME2 + PRIME3;
        at += 4;
        count -= 4;
    }
    for (; count > 0; at++, count--)
        h = rotate(h ^ *at * PRIME5, 11) * PRIME1;
    return h;
}

/* The final avalanche. `sum` is not changed, so more bytes may follow. */
uint64_t tarn__xxh64_end(const tarn__xxh64 *sum)
{
    uint64_t h = (sum->total >= STRIPE ? join_lanes(sum) : PRIME5) + sum->total;
    h = take_rest(h, sum->rest, (size_t)(sum->total % STRIPE));
    h = (h ^ h >> 33) * PRIME2;
    h = (h ^ h >> 29) * PRIME3;
    return h ^ h >> 32;
}

/* All bytes at once. */
uint64_t tarn__xxh64_of(const void *bytes, size_t count)
{
    tarn__xxh64 sum;
    tarn__xxh64_begin(&sum);
    tarn__xxh64_add(&sum, bytes, count);
    return tarn__xxh64_end(&sum);
}
