/* dot.h: products with a weight whose rows are blocks (base/quant/quant.h), in integers.
 *
 * x is rounded to 8 bits, with a scale for each 32 elements. Both sides are cut into chunks of 256 elements, that is 16
 * groups of 16, and laid so that a vector of 16 lanes holds four elements of each group: four products of bytes added
 * up in each lane, four times, are the products of all groups, and what is left to do with a scale is one step for all
 * of them. The weight's bytes are signed, or not negative, or both.
 *
 * Each engine (dot_generic.inc, dot_avx2.inc, dot_vnni.inc) says how a chunk is unpacked and multiplied; dot_rows.inc
 * makes rows of it. */
#ifndef TARN__CPU_DOT_H
#define TARN__CPU_DOT_H

#include <math.h>

#include "backends/cpu/common/convert.h"
#include "base/quant/quant.h"

#define CHUNK 256
#define GROUPS 16
#define BLOCKS_OF_32 (CHUNK / 32)

/* A row's last chunk may be cut short: what is missing has scale 0. Byte (4 t + i) of group g lies at q[64 t + 4 lane +
 * i]. */
typedef struct x_chunk {
    _Alignas(64) int8_t q[CHUNK];
    float scale[GROUPS]; /* of each lane's group */
    float sum[GROUPS];   /* of the group's q, times the scale; 0 where the weight has no leasts */
    /* what the group's sum of products begins with: less the sum of q times what the weight's bytes are too large by */
    int32_t start[GROUPS];
} x_chunk;

/* Element e of group g of the weight is scale · (q - shift of its dtype) - least. */
typedef struct w_chunk {
    _Alignas(64) uint8_t q[CHUNK];
    float scale[GROUPS], min[GROUPS];
} w_chunk;

/* The group in a lane, and the other way round: a square turned over its diagonal. */
static inline int transposed_lane(int lane)
{
    return lane % 4 * 4 + lane / 4;
}

/* How much larger the unpacked bytes are than the elements they stand for; those of Q8_0 are signed, unless an engine
 * wants them otherwise. */
static inline int shift_of(tarn_dtype dtype, bool is_unsigned)
{
    return dtype == TARN_Q4_0 ? 8 : dtype == TARN_Q6_K ? 32 : dtype == TARN_Q8_0 && is_unsigned ? 128 : 0;
}

static inline int64_t chunks_of(int64_t elements)
{
    return (elements + CHUNK - 1) / CHUNK;
}

/* 32 elements to 8 bits; returns the scale. Elements that are not finite make it NaN, and so the result; those all
 * below 2^-118 count as 0. */
static float round_32(const float *x, int8_t *q)
{
    uint32_t max_bits = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t size = tarn__float_bits(x[i]) & 0x7fffffffu;
        max_bits = size > max_bits ? size : max_bits;
    }
    bool finite = max_bits < 0x7f800000u, tiny = max_bits < 0x04800000u;
    float largest = tarn__float_from(max_bits), inverse = finite && !tiny ? 127.0f / largest : 0;
    for (int i = 0; i < 32; i++) /* the last bits of a sum with 1.5 · 2^23 are the nearest whole number */
        q[i] = (int8_t)(uint8_t)tarn__float_bits(x[i] * inverse + 12582912.0f);
    return !finite ? NAN : tiny ? 0 : largest / 127.0f;
}

/* Sums are for weights that have leasts: they may be infinite where x is very large, and 0 times that would be NaN. */
static void round_chunk(const float *x, int shift, bool has_min, x_chunk *to)
{
    _Alignas(64) int8_t q[CHUNK];
    float scale[BLOCKS_OF_32];
    for (int i = 0; i < BLOCKS_OF_32; i++)
        scale[i] = round_32(x + i * 32, q + i * 32);
    for (int lane = 0; lane < GROUPS; lane++) {
        int group = transposed_lane(lane), sum = 0;
        for (int i = 0; i < 16; i++)
            sum += q[group * 16 + i];
        for (int t = 0; t < 4; t++)
            memcpy(to->q + 64 * t + 4 * lane, q + group * 16 + 4 * t, 4);
        to->scale[lane] = scale[group / 2];
        to->sum[lane] = has_min ? scale[group / 2] * (float)sum : 0;
        to->start[lane] = -shift * sum;
    }
}

#endif
