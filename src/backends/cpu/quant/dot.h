/* dot.h: int8 dot products of x with quantized weights (base/quant/quant.h).
 *
 * x is quantized to 8 bits with one scale per 32 elements (symmetric, absmax / 127). Both sides are cut into chunks of
 * 256 elements, 16 groups of 16, and stored transposed: a vector of 16 int32 lanes holds four bytes of every group, one
 * group per lane. Four byte dot products accumulated four times give the dot products of all groups at once, and
 * applying scales is one multiply-add per chunk instead of one per group. Weight bytes are signed, or non-negative, or
 * both, by engine.
 *
 * An engine (dot_generic.inc, dot_avx2.inc, dot_vnni.inc) unpacks and multiplies one chunk; dot_rows.inc builds rows
 * from chunks. Integer sums are exact in every engine; the order of float additions is fixed by the row length.
 *
 * A format is a row of QUANT_FORMATS, a bias in shift_of(), and in each engine the bytes and the scales of a chunk. */
#ifndef TARN__CPU_DOT_H
#define TARN__CPU_DOT_H

#include <math.h>

#include "backends/cpu/common/convert.h"
#include "base/quant/quant.h"

#define CHUNK 256
#define GROUPS 16
#define BLOCKS_OF_32 (CHUNK / 32)

/* The last chunk of a row may be partial: missing blocks have scale 0. Byte 4 t + i of group g is at q[64 t + 4 lane
 * + i], lane = transposed_lane(g). */
typedef struct x_chunk {
    _Alignas(64) int8_t q[CHUNK];
    float scale[GROUPS]; /* per lane, the scale of its group */
    float sum[GROUPS];   /* Σ q of the group times its scale; 0 for weights without a min */
    /* initial value of the group's integer sum: -shift · Σ q, where shift is the bias of the weight's bytes */
    int32_t start[GROUPS];
} x_chunk;

/* Element e of group g of the weight is scale · (q - shift of its dtype) - min. */
typedef struct w_chunk {
    _Alignas(64) uint8_t q[CHUNK];
    float scale[GROUPS], min[GROUPS];
} w_chunk;

/* Lane of a group, and group of a lane: a 4 × 4 transpose, its own inverse. */
static inline int transposed_lane(int lane)
{
    return lane % 4 * 4 + lane / 4;
}

/* All formats: X(type, dtype, elements of a block, has a min, largest unpacked byte; 255: bytes are signed, where an
 * engine takes such). */
#define QUANT_FORMATS(X) \
    X(q8_0, Q8_0, 32, false, 255) \
    X(q4_0, Q4_0, 32, false, 15) \
    X(q4_k, Q4_K, 256, true, 15) \
    X(q6_k, Q6_K, 256, false, 63) \
    X(q4_1, Q4_1, 32, true, 15) \
    X(q5_0, Q5_0, 32, false, 31) \
    X(q5_1, Q5_1, 32, true, 31) \
    X(q2_k, Q2_K, 256, true, 3) \
    X(q3_k, Q3_K, 256, false, 7) \
    X(q5_k, Q5_K, 256, true, 31) \
    X(iq4_nl, IQ4_NL, 32, false, 255) \
    X(iq4_xs, IQ4_XS, 256, false, 255)

/* Formats with bytes up to NARROW: 16 bits hold the sum of 8 products with bytes of x. */
#define NARROW 31
#define IS_NARROW(type, dtype, elements, has_min, max) \
    if (of == TARN_##dtype) \
        return (max) <= NARROW;
static inline bool is_narrow(tarn_dtype of)
{
    QUANT_FORMATS(IS_NARROW)
    return false;
}
#undef IS_NARROW

/* Bias of the unpacked bytes over the values they encode. Engines whose byte product needs an unsigned side bias signed
 * bytes by 128. */
static inline int shift_of(tarn_dtype dtype, bool is_unsigned)
{
    switch (dtype) {
    case TARN_Q4_0: return 8;
    case TARN_Q5_0: return 16;
    case TARN_Q3_K: return 4;
    case TARN_Q6_K: return 32;
    case TARN_Q8_0:
    case TARN_IQ4_NL:
    case TARN_IQ4_XS: return is_unsigned ? 128 : 0;
    default: return 0;
    }
}

/* The 6-bit scales of a Q3_K block, one byte each; tarn__q3_k states their packing. */
static inline void q3_k_scales(const tarn__q3_k *block, uint64_t *to)
{
    uint64_t low, nibbles = 0x0f0f0f0f0f0f0f0f;
    uint32_t pairs;
    memcpy(&low, block->scales, sizeof(low));
    memcpy(&pairs, block->scales + 8, sizeof(pairs));
    uint64_t high = pairs | (uint64_t)pairs << 30; /* groups 4 to 7: the next pair of bits */
    to[0] = (low & nibbles) | (high & 0x0303030303030303) << 4;
    to[1] = (low >> 4 & nibbles) | (high & 0x3030303030303030);
}

/* Chunks of a row, the partial one included. */
static inline int64_t chunks_of(int64_t elements)
{
    return (elements + CHUNK - 1) / CHUNK;
}

/* Quantizes 32 elements to 8 bits and returns the scale. A non-finite element makes the scale NaN, and with it the
 * result; a group whose magnitudes are all below 2^-118 is treated as 0, since 127 / max would overflow. */
static float quantize_32(const float *x, int8_t *q)
{
    uint32_t max_bits = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t size = tarn__float_bits(x[i]) & 0x7fffffffu;
        max_bits = size > max_bits ? size : max_bits;
    }
    /* Magnitudes compare as integers. */
    bool finite = max_bits < 0x7f800000u, tiny = max_bits < 0x04800000u;
    float largest = tarn__float_from(max_bits), inverse = finite && !tiny ? 127.0f / largest : 0;
    for (int i = 0; i < 32; i++) /* the low bits of a sum with 1.5 · 2^23 are the nearest integer */
        q[i] = (int8_t)(uint8_t)tarn__float_bits(x[i] * inverse + 12582912.0f);
    return !finite ? NAN : tiny ? 0 : largest / 127.0f;
}

/* Sums are computed only for weights with a min: with very large x they may be infinite, and 0 · infinity would be
 * NaN. */
static void quantize_chunk(const float *x, int shift, bool has_min, x_chunk *to)
{
    _Alignas(64) int8_t q[CHUNK];
    float scale[BLOCKS_OF_32];
    for (int i = 0; i < BLOCKS_OF_32; i++)
        scale[i] = quantize_32(x + i * 32, q + i * 32);
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
