/* quant.h: quant block formats of GGUF files (ggml's Q8_0, Q4_0, Q4_K, Q6_K): a block holds a few dozen elements as
 * small integers, with one or two scales of its own.
 *
 * Invariant: a block in memory equals the block in the file byte for byte, little-endian. Scales are f16, stored
 * here as their bits. Everything here runs on the host; devices have their own kernels, which must give the same
 * values. */
#ifndef TARN__QUANT_H
#define TARN__QUANT_H

#include "base/dtype.h"

/* Quantized KV rows (KV cache type q8_0): the layout of Q8_0, but bytes and scales are two tensors, so that rows may
 * have any length. 32 elements share a scale; the byte is q + 128. */
#define TARN__KV_Q8_GROUP 32
#define TARN__KV_Q8_ZERO 128

/* 32 elements: q · scale. */
typedef struct tarn__q8_0 {
    uint16_t scale;
    int8_t q[32];
} tarn__q8_0;

/* 32 elements: (nibble - 8) · scale. Byte i holds element i in its low nibble and element i + 16 in its high one. */
typedef struct tarn__q4_0 {
    uint16_t scale;
    uint8_t q[16];
} tarn__q4_0;

/* 256 elements in 8 groups of 32: value = nibble · scale · group_scale - min · group_min.
 *
 * The groups' scales and mins have 6 bits each, 16 of them in 12 bytes: bytes 0–3 and 4–7 hold the scales and mins
 * of groups 0–3 in their low 6 bits; byte 8 + i holds the low nibbles of the scale (low) and min (high) of group 4 +
 * i, whose upper two bits are the upper two of bytes i and 4 + i. 32 bytes of q hold the nibbles of two groups, the
 * first in the low halves. */
typedef struct tarn__q4_k {
    uint16_t scale, min;
    uint8_t scales[12];
    uint8_t q[128];
} tarn__q4_k;

/* 256 elements in 16 groups of 16: value = (6 bits - 32) · scale · group_scale.
 *
 * Per half of 128 elements, 64 bytes of `low` hold the low nibbles of elements 0–63 (low halves) and 64–127 (high
 * halves), and 32 bytes of `high` the upper two bits of elements i, i + 32, i + 64 and i + 96, lowest pair first. */
typedef struct tarn__q6_k {
    uint8_t low[128];
    uint8_t high[64];
    int8_t scales[16];
    uint16_t scale;
} tarn__q6_k;

/* Dequantizes `count` elements, a multiple of the block size, to f32; bitwise identical to Python's gguf package.
 * `dtype` must be one of TARN__QUANTIZED. */
void tarn__dequantize_blocks(tarn_dtype dtype, const void *blocks, int64_t count, float *values);

/* Quantizes `count` finite f32 values, a multiple of the block size. Deterministic, but not bitwise identical to
 * ggml: the scale search of the k-quants is ours (kquants.c). */
void tarn__quantize_blocks(tarn_dtype dtype, const float *values, int64_t count, void *blocks);

/* ---- k-quants ---------------------------------------------------------------------------------------------------- */

/* 256 finite elements into one block. */
void tarn__q4_k_quantize(const float *values, tarn__q4_k *block);
void tarn__q6_k_quantize(const float *values, tarn__q6_k *block);

/* The codes of a group's scale and min, 0 to 63. */
void tarn__q4_k_group(const tarn__q4_k *block, int group, int *scale, int *min);

#endif
