/* ---- eight elements at once */
#ifndef TARN__CUDA_BLOCKS_OPEN_CUH
#define TARN__CUDA_BLOCKS_OPEN_CUH

#include "backends/cuda/quant/dequantize.cuh"

/* Eight bytes from an even address, as two words. */
__device__ __forceinline__ uint2 load_even(const char *from)
{
    const uint16_t *halves = (const uint16_t *)from;
    return make_uint2(halves[0] | (uint32_t)halves[1] << 16, halves[2] | (uint32_t)halves[3] << 16);
}

__device__ __forceinline__ int byte_of(const uint2 &words, int i)
{
    return (int)((i < 4 ? words.x : words.y) >> i % 4 * 8 & 0xffu);
}

/* Eight adjacent elements from a multiple of eight: they share a group. Same bits as element_at(). */
template <tarn_dtype Q> __device__ __forceinline__ void dequantize8(const char *row, int at, float *to);

template <> __device__ __forceinline__ void dequantize8<TARN_Q8_0>(const char *row, int at, float *to)
{
    const char *block = row + (int64_t)(at / 32) * (int)sizeof(tarn__q8_0);
    const float scale = scale_of(*(const uint16_t *)block);
    const uint2 q = load_even(block + 2 + at % 32);
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i] = __fmul_rn((float)(int8_t)byte_of(q, i), scale);
}

template <> __device__ __forceinline__ void dequantize8<TARN_Q4_0>(const char *row, int at, float *to)
{
    const char *block = row + (int64_t)(at / 32) * (int)sizeof(tarn__q4_0);
    const float scale = scale_of(*(const uint16_t *)block);
    const uint2 q = load_even(block + 2 + at % 16);
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i] = __fmul_rn(scale, (float)((byte_of(q, i) >> at % 32 / 16 * 4 & 15) - 8));
}

/* Q4_K blocks are 16-byte aligned. */
template <> __device__ __forceinline__ void dequantize8<TARN_Q4_K>(const char *row, int at, float *to)
{
    const tarn__q4_k *block = (const tarn__q4_k *)row + at / 256;
    const int group = at % 256 / 32;
    const uint4 head = *(const uint4 *)block;
    const uint2 q = *(const uint2 *)(block->q + group / 2 * 32 + at % 32);
    const uint32_t shift = group % 4 * 8, first = head.y >> shift, second = head.z >> shift, third = head.w >> shift;
    const int group_scale = (int)(group < 4 ? first & 63 : (third & 15) | (first >> 2 & 48));
    const int group_min = (int)(group < 4 ? second & 63 : (third >> 4 & 15) | (second >> 2 & 48));
    const float scale = __fmul_rn(scale_of((uint16_t)head.x), (float)group_scale),
                min_value = __fmul_rn(scale_of((uint16_t)(head.x >> 16)), (float)group_min);
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i] = __fsub_rn(__fmul_rn(scale, (float)(byte_of(q, i) >> group % 2 * 4 & 15)), min_value);
}

template <> __device__ __forceinline__ void dequantize8<TARN_Q6_K>(const char *row, int at, float *to)
{
    const char *block = row + (int64_t)(at / 256) * (int)sizeof(tarn__q6_k);
    const int inside = at % 256, half = inside / 128, part = inside % 128 / 32;
    const uint2 low = load_even(block + half * 64 + part % 2 * 32 + at % 32),
                high = load_even(block + 128 + half * 32 + at % 32);
    const float scale =
        __fmul_rn(scale_of(*(const uint16_t *)(block + 208)), (float)((const int8_t *)block)[192 + inside / 16]);
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i] = __fmul_rn(
            scale, (float)(((byte_of(low, i) >> part / 2 * 4 & 15) | (byte_of(high, i) >> part * 2 & 3) << 4) - 32));
}

#endif
