/* unpack_arm.h: unpacking quantized weights on AArch64, four rows at a time, 32 elements each.
 *
 * group_TYPE() yields the signed bytes of a group; scales_TYPE() the factors of a block's sums, four rows in four
 * lanes. Bytes may be a power of two larger than the values they encode, which the scale undoes: the upper nibble of
 * a byte needs no shift, and has a sign. */
#ifndef TARN__CPU_UNPACK_ARM_H
#define TARN__CPU_UNPACK_ARM_H

#include <arm_neon.h>
#include <string.h>

#include "base/half.h"
#include "base/quant/quant.h"

#define GROUP 32
#define GROUPS 8 /* per block of 256 elements; other formats have one */

/* Factors besides the scale of a block: none; a min, added times the sum of x; per group an integer scale, and an
 * integer min with a scale of its own, which is subtracted times the sum of x; or an integer scale per half group,
 * without and with such a min. */
enum kind { SCALE_ONLY, SCALE_MIN, WITH_MIN, HALF_SCALES, HALF_MINS };

/* Blocks of one group, and of eight. */
#define IS_SMALL(kind) ((kind) == SCALE_ONLY || (kind) == SCALE_MIN)
#define HAS_HALVES(kind) ((kind) == HALF_SCALES || (kind) == HALF_MINS)

/* Factors of one block of four rows. */
typedef struct scales4 {
    float32x4_t scale, min_scale;
    /* four groups of four rows each. WITH_MIN: scales, then mins; HALF_SCALES: scales of four half groups; HALF_MINS:
     * these in the low nibbles, mins in the high ones */
    uint8x16_t byte[4];
} scales4;

/* A zero accumulator. gcc would copy a register of zeros, which occupies a vector pipe; movi does not. */
static inline int32x4_t zero_s32(void)
{
    int32x4_t zeros;
    __asm__ volatile("movi %0.4s, #0" : "=w"(zeros));
    return zeros;
}

/* Four f16 values, assembled in integer registers: the vector pipes are the bottleneck. */
static inline float32x4_t four_f16(uint16_t a, uint16_t b, uint16_t c, uint16_t d)
{
    uint64_t bits = (uint64_t)a | (uint64_t)b << 16 | (uint64_t)c << 32 | (uint64_t)d << 48;
    return vcvt_f32_f16(vcreate_f16(bits));
}

#define SCALES_OF(b, name) four_f16((b)[0]->name, (b)[1]->name, (b)[2]->name, (b)[3]->name)

/* Transposes four rows of 16 bytes: to[i] has bytes 4 i to 4 i + 3, each of rows 0 to 3. */
static inline void transpose_bytes(const uint8x16_t *row, uint8x16_t *to)
{
    uint8x16_t even_low = vzip1q_u8(row[0], row[2]), even_high = vzip2q_u8(row[0], row[2]);
    uint8x16_t odd_low = vzip1q_u8(row[1], row[3]), odd_high = vzip2q_u8(row[1], row[3]);
    to[0] = vzip1q_u8(even_low, odd_low), to[1] = vzip2q_u8(even_low, odd_low);
    to[2] = vzip1q_u8(even_high, odd_high), to[3] = vzip2q_u8(even_high, odd_high);
}

/* Zero-extends bytes 4 i to 4 i + 3 into 32-bit lanes. */
static inline uint32x4_t four_bytes(uint8x16_t bytes, int i)
{
    uint32x4_t where = {0xffffff00u, 0xffffff01u, 0xffffff02u, 0xffffff03u}; /* indices out of range give 0 */
    return vreinterpretq_u32_u8(
        vqtbl1q_u8(bytes, vreinterpretq_u8_u32(vaddq_u32(where, vdupq_n_u32((uint32_t)i * 4)))));
}

/* WITH_MIN: the integer scale and min of group g. */
static inline int32x4_t scale_of(const scales4 *n, int g)
{
    return vreinterpretq_s32_u32(four_bytes(n->byte[g / 4], g % 4));
}

static inline float32x4_t min_of(const scales4 *n, int g)
{
    return vcvtq_f32_u32(four_bytes(n->byte[2 + g / 4], g % 4));
}

/* HALF_SCALES, HALF_MINS: the byte of half h of group g. */
static inline int32x4_t half_byte_of(const scales4 *n, int g, int h)
{
    int8x16_t bytes = vreinterpretq_s8_u8(n->byte[g / 2]);
    int16x8_t both = g % 2 ? vmovl_high_s8(bytes) : vmovl_s8(vget_low_s8(bytes));
    return h ? vmovl_high_s16(both) : vmovl_s16(vget_low_s16(both));
}

/* The integer scale of such a byte; of HALF_MINS also the min. */
static inline int32x4_t half_scale(int32x4_t byte, enum kind kind)
{
    return kind == HALF_MINS ? vandq_s32(byte, vdupq_n_s32(15)) : byte;
}

static inline float32x4_t half_min(int32x4_t byte)
{
    return vcvtq_f32_s32(vandq_s32(vshrq_n_s32(byte, 4), vdupq_n_s32(15)));
}

/* ---- q8_0 -------------------------------------------------------------------------------------------------------- */

static inline void scales_q8_0(const tarn__q8_0 *const *b, scales4 *to)
{
    to->scale = SCALES_OF(b, scale);
}

static inline void group_q8_0(const tarn__q8_0 *b, int g, int8x16_t *to)
{
    (void)g;
    to[0] = vld1q_s8(b->q), to[1] = vld1q_s8(b->q + 16);
}

/* ---- q4_0 -------------------------------------------------------------------------------------------------------- */

/* The bytes are 16 times their values: nibbles are used in the upper half, where they have a sign. */
static inline void scales_q4_0(const tarn__q4_0 *const *b, scales4 *to)
{
    to->scale = vmulq_n_f32(SCALES_OF(b, scale), 1.0f / 16);
}

/* A nibble minus 8 is the nibble with its top bit flipped, read as signed. */
static inline void group_q4_0(const tarn__q4_0 *b, int g, int8x16_t *to)
{
    (void)g;
    uint8x16_t q = veorq_u8(vld1q_u8(b->q), vdupq_n_u8(0x88));
    to[0] = vreinterpretq_s8_u8(vshlq_n_u8(q, 4));
    to[1] = vreinterpretq_s8_u8(vandq_u8(q, vdupq_n_u8(0xf0)));
}

/* ---- q4_1, q5_0, q5_1 -------------------------------------------------------------------------------------------- */

static inline void scales_q4_1(const tarn__q4_1 *const *b, scales4 *to)
{
    to->scale = SCALES_OF(b, scale), to->min_scale = SCALES_OF(b, min);
}

static inline void scales_q5_0(const tarn__q5_0 *const *b, scales4 *to)
{
    to->scale = SCALES_OF(b, scale);
}

/* The min is added times the sum of x (SCALE_MIN). */
static inline void scales_q5_1(const tarn__q5_1 *const *b, scales4 *to)
{
    to->scale = SCALES_OF(b, scale), to->min_scale = SCALES_OF(b, min);
}

/* The low nibbles of 16 bytes, then the high ones. */
static inline void nibbles(const uint8_t *q, uint8x16_t *to)
{
    uint8x16_t both = vld1q_u8(q);
    to[0] = vandq_u8(both, vdupq_n_u8(15)), to[1] = vshrq_n_u8(both, 4);
}

/* 32 bits as masks of 32 bytes. The empty asm keeps gcc from computing them on the vector pipes. */
static inline void bit_masks(uint32_t bits, uint8x16_t *to)
{
    __asm__("" : "+r"(bits));
    uint8x16_t four = vreinterpretq_u8_u32(vdupq_n_u32(bits)),
               one = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    for (uint64_t i = 0; i < 2; i++) {
        uint8x16_t where = vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(0x0202020202020202 * i),
                                                             vcreate_u64(0x0202020202020202 * i + 0x0101010101010101)));
        to[i] = vtstq_u8(vqtbl1q_u8(four, where), one);
    }
}

static inline void group_q4_1(const tarn__q4_1 *b, int g, int8x16_t *to)
{
    uint8x16_t low[2];
    (void)g;
    nibbles(b->q, low);
    to[0] = vreinterpretq_s8_u8(low[0]), to[1] = vreinterpretq_s8_u8(low[1]);
}

/* Minus 16 where the fifth bit is clear: ones in the upper nibble, where the insertion leaves nothing else. */
static inline void group_q5_0(const tarn__q5_0 *b, int g, int8x16_t *to)
{
    uint8x16_t both = vld1q_u8(b->q), clear[2];
    uint32_t bits;
    (void)g;
    memcpy(&bits, b->high, sizeof(bits));
    bit_masks(~bits, clear);
    to[0] = vreinterpretq_s8_u8(vsliq_n_u8(both, clear[0], 4));
    to[1] = vreinterpretq_s8_u8(vsliq_n_u8(vshrq_n_u8(both, 4), clear[1], 4));
}

static inline void group_q5_1(const tarn__q5_1 *b, int g, int8x16_t *to)
{
    uint8x16_t low[2], set[2];
    uint32_t bits;
    (void)g;
    memcpy(&bits, b->high, sizeof(bits));
    nibbles(b->q, low), bit_masks(bits, set);
    for (int i = 0; i < 2; i++)
        to[i] = vreinterpretq_s8_u8(vbslq_u8(vdupq_n_u8(16), set[i], low[i]));
}

/* ---- iq4_nl, iq4_xs ---------------------------------------------------------------------------------------------- */

static inline void iq4_values(const uint8_t *q, int8x16_t *to)
{
    static const int8_t values[] = {TARN__IQ4_VALUES};
    uint8x16_t low[2];
    nibbles(q, low);
    to[0] = vqtbl1q_s8(vld1q_s8(values), low[0]), to[1] = vqtbl1q_s8(vld1q_s8(values), low[1]);
}

/* One scale a block, as Q4_0. */
static inline void scales_iq4_nl(const tarn__iq4_nl *const *b, scales4 *to)
{
    to->scale = SCALES_OF(b, scale);
}

static inline void group_iq4_nl(const tarn__iq4_nl *b, int g, int8x16_t *to)
{
    (void)g;
    iq4_values(b->q, to);
}

/* Six-bit scales of groups, minus 32, once for each half. */
static inline void scales_iq4_xs(const tarn__iq4_xs *const *b, scales4 *to)
{
    static const int8_t low_shifts[] = {0, 0, -4, -4, 0, 0, -4, -4, 0, 0, -4, -4, 0, 0, -4, -4},
                        high_shifts[] = {4, 4, 2, 2, 0, 0, -2, -2, 4, 4, 2, 2, 0, 0, -2, -2};
    uint8x16_t scales[4];
    for (int r = 0; r < 4; r++) {
        uint32_t low;
        memcpy(&low, b[r]->scales_low, sizeof(low));
        uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(low)),
                  pairs = vreinterpret_u8_u16(vdup_n_u16(b[r]->scales_high));
        uint8x16_t of_low = vcombine_u8(vtbl1_u8(bytes, vcreate_u8(0x0101010100000000)),
                                        vtbl1_u8(bytes, vcreate_u8(0x0303030302020202))),
                   of_high = vcombine_u8(vdup_lane_u8(pairs, 0), vdup_lane_u8(pairs, 1));
        of_low = vandq_u8(vshlq_u8(of_low, vld1q_s8(low_shifts)), vdupq_n_u8(15));
        of_high = vandq_u8(vshlq_u8(of_high, vld1q_s8(high_shifts)), vdupq_n_u8(48));
        scales[r] = vsubq_u8(vorrq_u8(of_low, of_high), vdupq_n_u8(32));
    }
    transpose_bytes(scales, to->byte);
    to->scale = SCALES_OF(b, scale);
}

static inline void group_iq4_xs(const tarn__iq4_xs *b, int g, int8x16_t *to)
{
    iq4_values(b->q + g * 16, to);
}

/* ---- q2_k, q3_k -------------------------------------------------------------------------------------------------- */

/* Scales are the low nibbles and mins the high ones of the same bytes. */
static inline void scales_q2_k(const tarn__q2_k *const *b, scales4 *to)
{
    uint8x16_t scales[4];
    for (int r = 0; r < 4; r++)
        scales[r] = vld1q_u8(b[r]->scales);
    transpose_bytes(scales, to->byte);
    to->scale = SCALES_OF(b, scale), to->min_scale = SCALES_OF(b, min);
}

/* Four groups share 32 bytes, two bits each. */
static inline void group_q2_k(const tarn__q2_k *b, int g, int8x16_t *to)
{
    for (int i = 0; i < 2; i++) {
        uint8x16_t four = vld1q_u8(b->q + g / 4 * 32 + i * 16);
        to[i] = vreinterpretq_s8_u8(vandq_u8(vshlq_u8(four, vdupq_n_s8((int8_t)(-2 * (g % 4)))), vdupq_n_u8(3)));
    }
}

static inline void scales_q3_k(const tarn__q3_k *const *b, scales4 *to)
{
    uint8x16_t row[4], packed[4], two = vdupq_n_u8(0x30), low = vdupq_n_u8(15), bias = vdupq_n_u8(32);
    for (int r = 0; r < 4; r++)
        row[r] = vld1q_u8(b[r]->scales - 4); /* inside the block, as the 16 bytes from `scales` would not be */
    transpose_bytes(row, packed);
    to->byte[0] = vsubq_u8(vorrq_u8(vandq_u8(packed[1], low), vandq_u8(vshlq_n_u8(packed[3], 4), two)), bias);
    to->byte[1] = vsubq_u8(vorrq_u8(vandq_u8(packed[2], low), vandq_u8(vshlq_n_u8(packed[3], 2), two)), bias);
    to->byte[2] = vsubq_u8(vorrq_u8(vshrq_n_u8(packed[1], 4), vandq_u8(packed[3], two)), bias);
    to->byte[3] = vsubq_u8(vorrq_u8(vshrq_n_u8(packed[2], 4), vandq_u8(vshrq_n_u8(packed[3], 2), two)), bias);
    to->scale = vmulq_n_f32(SCALES_OF(b, scale), 1.0f / 32);
}

/* 32 times the element: the upper bit, flipped, is the sign. */
static inline void group_q3_k(const tarn__q3_k *b, int g, int8x16_t *to)
{
    for (int i = 0; i < 2; i++) {
        uint8x16_t four = vld1q_u8(b->q + g / 4 * 32 + i * 16), high = vld1q_u8(b->high + i * 16);
        four = vshlq_u8(four, vdupq_n_s8((int8_t)(6 - 2 * (g % 4))));
        high = vshlq_u8(vmvnq_u8(high), vdupq_n_s8((int8_t)(7 - g)));
        to[i] = vreinterpretq_s8_u8(vandq_u8(vsriq_n_u8(high, four, 1), vdupq_n_u8(0xe0)));
    }
}

/* ---- q4_k, q5_k ---------------------------------------------------------------------------------------------------
 */

/* Unpacks the 6-bit scales of groups 0 to 3, then 4 to 7, and the mins likewise, for four rows. */
static inline void unpack_scales(const uint8_t *const *packed, uint8x16_t *scales)
{
    uint8x16_t row[4], transposed_lane[4], six = vdupq_n_u8(0x3f), upper = vdupq_n_u8(0x30);
    for (int r = 0; r < 4; r++)
        row[r] = vld1q_u8(packed[r]); /* reads 4 bytes past the scales: still inside the block */
    transpose_bytes(row, transposed_lane);
    scales[0] = vandq_u8(transposed_lane[0], six), scales[2] = vandq_u8(transposed_lane[1], six);
    scales[1] =
        vorrq_u8(vandq_u8(transposed_lane[2], vdupq_n_u8(15)), vandq_u8(vshrq_n_u8(transposed_lane[0], 2), upper));
    scales[3] = vorrq_u8(vshrq_n_u8(transposed_lane[2], 4), vandq_u8(vshrq_n_u8(transposed_lane[1], 2), upper));
}

/* Scales and mins of six bits, for both formats alike. */
static inline void scales_q4_k(const tarn__q4_k *const *b, scales4 *to)
{
    const uint8_t *packed[] = {b[0]->scales, b[1]->scales, b[2]->scales, b[3]->scales};
    unpack_scales(packed, to->byte);
    to->scale = SCALES_OF(b, scale), to->min_scale = SCALES_OF(b, min);
}

/* Groups 2 i and 2 i + 1 share 32 bytes. */
static inline void group_q4_k(const tarn__q4_k *b, int g, int8x16_t *to)
{
    for (int i = 0; i < 2; i++) {
        uint8x16_t both = vld1q_u8(b->q + g / 2 * 32 + i * 16);
        to[i] = vreinterpretq_s8_u8(g % 2 ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15)));
    }
}

static inline void scales_q5_k(const tarn__q5_k *const *b, scales4 *to)
{
    const uint8_t *packed[] = {b[0]->scales, b[1]->scales, b[2]->scales, b[3]->scales};
    unpack_scales(packed, to->byte);
    to->scale = SCALES_OF(b, scale), to->min_scale = SCALES_OF(b, min);
}

/* The fifth bit of group g is bit g of `high`, moved to bit 4. */
static inline void group_q5_k(const tarn__q5_k *b, int g, int8x16_t *to)
{
    for (int i = 0; i < 2; i++) {
        uint8x16_t both = vld1q_u8(b->q + g / 2 * 32 + i * 16), high = vld1q_u8(b->high + i * 16);
        both = g % 2 ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15));
        high = vshlq_u8(high, vdupq_n_s8((int8_t)(4 - g)));
        to[i] = vreinterpretq_s8_u8(vbslq_u8(vdupq_n_u8(16), high, both));
    }
}

/* ---- q6_k -------------------------------------------------------------------------------------------------------- */

/* Bytes are four times their values. */
static inline void scales_q6_k(const tarn__q6_k *const *b, scales4 *to)
{
    uint8x16_t scales[4];
    for (int r = 0; r < 4; r++)
        scales[r] = vreinterpretq_u8_s8(vld1q_s8(b[r]->scales));
    transpose_bytes(scales, to->byte);
    to->scale = vmulq_n_f32(SCALES_OF(b, scale), 0.25f);
}

/* Four times the element: the low nibble at bit 2, the two high bits above it, minus 128 by flipping the top bit. */
static inline void group_q6_k(const tarn__q6_k *b, int g, int8x16_t *to)
{
    int half = g / 4, part = g % 4;
    for (int i = 0; i < 2; i++) {
        uint8x16_t low = vld1q_u8(b->low + half * 64 + part % 2 * 32 + i * 16),
                   high = vld1q_u8(b->high + half * 32 + i * 16);
        low = part / 2 ? vandq_u8(vshrq_n_u8(low, 2), vdupq_n_u8(0x3c)) : vshlq_n_u8(low, 2);
        high = vshlq_u8(high, vdupq_n_s8((int8_t)(-2 * part)));
        to[i] = vreinterpretq_s8_u8(veorq_u8(vsliq_n_u8(low, high, 6), vdupq_n_u8(0x80)));
    }
}

#endif
