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

/* 32 elements: nibble · scale + min, nibbles as in Q4_0. */
typedef struct tarn__q4_1 {
    uint16_t scale, min;
    uint8_t q[16];
} tarn__q4_1;

/* 32 elements: (5 bits - 16) · scale. The low nibbles are as in Q4_0; bit i of `high`, little-endian, is the upper bit
 * of element i. */
typedef struct tarn__q5_0 {
    uint16_t scale;
    uint8_t high[4];
    uint8_t q[16];
} tarn__q5_0;

/* 32 elements: 5 bits · scale + min, the bits as in Q5_0. */
typedef struct tarn__q5_1 {
    uint16_t scale, min;
    uint8_t high[4];
    uint8_t q[16];
} tarn__q5_1;

/* 32 elements: values[nibble] · scale, nibbles as in Q4_0. The values are denser around 0, as weights are. */
typedef struct tarn__iq4_nl {
    uint16_t scale;
    uint8_t q[16];
} tarn__iq4_nl;

#define TARN__IQ4_VALUES -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113

/* 256 elements in 16 groups of 16: value = 2 bits · scale · group_scale - min · group_min.
 *
 * Byte i of `scales` holds the scale of group i in its low nibble and the min in its high one. Per half of 128
 * elements, byte i of 32 in q holds elements i, i + 32, i + 64 and i + 96, lowest pair of bits first. */
typedef struct tarn__q2_k {
    uint8_t scales[16];
    uint8_t q[64];
    uint16_t scale, min;
} tarn__q2_k;

/* 256 elements in 16 groups of 16: value = (3 bits - 4) · scale · (group_scale - 32).
 *
 * The low two bits are as in Q2_K; bit k of high[i] is the upper bit of element 32 k + i. The scales have 6 bits: byte
 * i of the first 8 holds the low nibbles of groups i (low) and i + 8 (high); byte 8 + i the upper two bits of groups
 * i, i + 4, i + 8 and i + 12, lowest pair first. */
typedef struct tarn__q3_k {
    uint8_t high[32];
    uint8_t q[64];
    uint8_t scales[12];
    uint16_t scale;
} tarn__q3_k;

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

/* As Q4_K with 5 bits per element: bit k of high[i] is the upper bit of element i of group k. */
typedef struct tarn__q5_k {
    uint16_t scale, min;
    uint8_t scales[12];
    uint8_t high[32];
    uint8_t q[128];
} tarn__q5_k;

/* 256 elements in 8 groups of 32: value = values of IQ4_NL[nibble] · scale · (group_scale - 32).
 *
 * Nibble k of `scales_low` is the low nibble of group k's scale, bits 2 k and 2 k + 1 of `scales_high` its upper two.
 * 16 bytes of q hold a group, as in Q4_0. */
typedef struct tarn__iq4_xs {
    uint16_t scale, scales_high;
    uint8_t scales_low[4];
    uint8_t q[128];
} tarn__iq4_xs;

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
