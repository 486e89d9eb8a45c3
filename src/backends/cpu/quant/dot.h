/* dot.h: int8 dot products of x with quantized weights (base/quant/quant.h).
 *
 * x is quantized to 8 bits with one scale per 32 elements (symmetric, absmax / 127). Both sides are cut into chunks of
 * 256 elements, 16 groups of 16, and stored transposed: a vector of 16 int32 lanes holds four bytes of every group, one
 * group per lane. Four byte dot products accumulated four times give the dot products of all groups at once, and
 * applying scales is one multiply-add per chunk instead of one per group. Weight bytes are signed, or non-negative, or
 * both, by engine.
 *
 * An engine (dot_generic.inc, dot_avx2.inc, dot_vnni.inc) unpacks and multiplies one chunk; dot_rows.inc builds rows
 * from chunks. Integer sums are exact in every engine; the order of float additions is fixed by the row length. */
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

/* Bias of the unpacked bytes over the values they encode. Q8_0 is signed, except for engines whose byte product
 * needs an unsigned side. */
static inline int shift_of(tarn_dtype dtype, bool is_unsigned)
{
    return dtype == TARN_Q4_0 ? 8 : dtype == TARN_Q6_K ? 32 : dtype == TARN_Q8_0 && is_unsigned ? 128 : 0;
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
