/* dot.cuh: quant blocks unpacked for integer dot products (dp4a), 32 elements at a time, from shared memory. And single
 * elements of any short float dtype. */
#ifndef TARN__CUDA_DOT_CUH
#define TARN__CUDA_DOT_CUH

#include "backends/cuda/quant/dequantize.cuh"

#define UNIT 32 /* elements unpacked at a time */

/* One element of f32, bf16 or f16. */
__device__ __forceinline__ float load_float(const void *x, tarn_dtype dtype, int64_t at)
{
    return dtype == TARN_F32    ? ((const float *)x)[at]
           : dtype == TARN_BF16 ? widen(((const bf16 *)x)[at])
                                : widen(((const f16 *)x)[at]);
}

/* One element, rounded to the dtype. */
__device__ __forceinline__ void store_float(void *y, tarn_dtype dtype, int64_t at, float value)
{
    if (dtype == TARN_F32)
        ((float *)y)[at] = value;
    else if (dtype == TARN_BF16)
        ((bf16 *)y)[at] = narrow<bf16>(value);
    else
        ((f16 *)y)[at] = narrow<f16>(value);
}

/* 32 elements of a weight: bytes, four per word; per half the scale of the product, and the offset times the sum of
 * x. */
struct quant_unit {
    int q[8];
    float scale[2], min[2];
};

/* N words from an even, possibly unaligned address in shared memory. Reads up to 2 bytes past them. */
template <int N> __device__ __forceinline__ void load_words(const char *from, uint32_t *to)
{
    const uint32_t *words = (const uint32_t *)((uintptr_t)from & ~(uintptr_t)3);
    uint32_t shift = ((uint32_t)(uintptr_t)from & 3) * 8, low = words[0];
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t high = words[i + 1];
        to[i] = __funnelshift_r(low, high, shift);
        low = high;
    }
}

/* Whether halves of a unit have scales of their own, and whether min is other than 0. */
template <tarn_dtype Q> struct unit_traits {
    enum { has_halves = quant_format<Q>::group == 16, has_min = quant_format<Q>::has_min || quant_format<Q>::bias > 0 };
};
template <> struct unit_traits<TARN_Q8_0> {
    enum { has_halves = 0, has_min = 0 };
};
template <> struct unit_traits<TARN_Q4_0> {
    enum { has_halves = 0, has_min = 1 };
};
template <> struct unit_traits<TARN_Q4_K> {
    enum { has_halves = 0, has_min = 1 };
};
template <> struct unit_traits<TARN_Q6_K> {
    enum { has_halves = 1, has_min = 1 };
};

/* Quants keep their bias, which becomes part of the min. M: where the unit's block is. */
template <tarn_dtype Q, block_memory M = SHARED>
__device__ __forceinline__ quant_unit unpack_unit(const char *piece, int unit)
{
    typedef quant_format<Q> format;
    enum { units = format::elements / UNIT };
    const char *block = piece + unit / units * format::bytes;
    const int at = unit % units * UNIT;
    quant_unit w;
#pragma unroll
    for (int i = 0; i < 8; i++)
        w.q[i] = (int)format::template quants<M>(block, at + i * 4);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (i == 1 && !unit_traits<Q>::has_halves) {
            w.scale[1] = w.scale[0], w.min[1] = w.min[0];
            break;
        }
        const float2 scales = format::scales(block, at + i * 16);
        w.scale[i] = scales.x;
        w.min[i] = format::has_min ? scales.y : (float)format::bias * scales.x;
    }
    return w;
}

/* A unit is a block. */
template <> __device__ __forceinline__ quant_unit unpack_unit<TARN_Q8_0>(const char *piece, int unit)
{
    const char *block = piece + unit * (int)sizeof(tarn__q8_0);
    quant_unit w;
    load_words<8>(block + 2, (uint32_t *)w.q);
    w.scale[0] = w.scale[1] = scale_of(*(const uint16_t *)block);
    w.min[0] = w.min[1] = 0;
    return w;
}

/* A unit is a block; nibbles stay 0 … 15, so the offset is 8 · scale. */
template <> __device__ __forceinline__ quant_unit unpack_unit<TARN_Q4_0>(const char *piece, int unit)
{
    const char *block = piece + unit * (int)sizeof(tarn__q4_0);
    uint32_t words[4];
    quant_unit w;
    load_words<4>(block + 2, words);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w.q[i] = (int)(words[i] & 0x0f0f0f0fu);
        w.q[4 + i] = (int)(words[i] >> 4 & 0x0f0f0f0fu);
    }
    w.scale[0] = w.scale[1] = scale_of(*(const uint16_t *)block);
    w.min[0] = w.min[1] = 8 * w.scale[0];
    return w;
}

/* Eight units per block, each one group. */
template <> __device__ __forceinline__ quant_unit unpack_unit<TARN_Q4_K>(const char *piece, int unit)
{
    const tarn__q4_k *block = (const tarn__q4_k *)piece + unit / 8;
    int group = unit % 8, scale, min;
    const uint32_t *words = (const uint32_t *)(block->q + group / 2 * 32);
    quant_unit w;
#pragma unroll
    for (int i = 0; i < 8; i++)
        w.q[i] = (int)(words[i] >> group % 2 * 4 & 0x0f0f0f0fu);
    q4_k_scales(block->scales, group, &scale, &min);
    w.scale[0] = w.scale[1] = scale_of(block->scale) * (float)scale;
    w.min[0] = w.min[1] = scale_of(block->min) * (float)min;
    return w;
}

/* Eight units per block, two groups each. */
template <> __device__ __forceinline__ quant_unit unpack_unit<TARN_Q6_K>(const char *piece, int unit)
{
    const char *block = piece + unit / 8 * (int)sizeof(tarn__q6_k);
    int half = unit % 8 / 4, part = unit % 4;
    uint32_t low[8], high[8];
    quant_unit w;
    load_words<8>(block + half * 64 + part % 2 * 32, low);
    load_words<8>(block + 128 + half * 32, high);
#pragma unroll
    for (int i = 0; i < 8; i++)
        w.q[i] = (int)((low[i] >> part / 2 * 4 & 0x0f0f0f0fu) | (high[i] >> part * 2 & 0x03030303u) << 4);
    const int8_t *scales = (const int8_t *)block + 192 + unit % 8 * 2;
    float scale = scale_of(*(const uint16_t *)(block + 208));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        w.scale[i] = scale * (float)scales[i];
        w.min[i] = 32 * w.scale[i];
    }
    return w;
}

#endif
