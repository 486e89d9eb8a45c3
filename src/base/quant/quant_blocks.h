/* quant_blocks.h: layouts of the quant blocks, for the host, CUDA and OpenCL (whose prelude has the integer types). */
#ifndef TARN__QUANT_BLOCKS_H
#define TARN__QUANT_BLOCKS_H

#ifndef __OPENCL_VERSION__
#include <stdint.h>
#endif

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

#endif
