/* dequantize.cuh: elements of quantized rows (ggml's Q8_0, Q4_0, Q4_K, Q6_K): one by the shared source, eight at once
 * by loads of words, which the shared source cannot have. Bitwise identical to base/quant: explicit roundings, no fused
 * multiply-add. */
#ifndef TARN__CUDA_DEQUANTIZE_CUH
#define TARN__CUDA_DEQUANTIZE_CUH

#include "backends/cuda/common/kernel.cuh"

extern "C" {
#include "base/quant/quant.h"
}

/* Formats that the kernels here know. */
#define CUDA_QUANTIZED (TARN__BIT(TARN_Q8_0) | TARN__BIT(TARN_Q4_0) | TARN__BIT(TARN_Q4_K) | TARN__BIT(TARN_Q6_K))

__device__ __forceinline__ float scale_of(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

#define QUANT_FN __device__ __forceinline__
#define QUANT_SPACE
#define QUANT_MUL(a, b) __fmul_rn(a, b)
#define F16_TO_F32(bits) scale_of(bits)
#include "base/quant/dequantize.inc"
#undef QUANT_FN
#undef QUANT_SPACE
#undef QUANT_MUL
#undef F16_TO_F32

/* Element `at` of a row of quant blocks that starts at `from`. */
__device__ __forceinline__ float element_at(const char *from, tarn_dtype dtype, int64_t at)
{
    /* block indices; `at` is not negative: a view starts at a block */
    int64_t small = at / 32, large = at / 256;
    switch (dtype) {
    case TARN_Q8_0: return q8_0_element((const tarn__q8_0 *)from + small, (int)(at % 32));
    case TARN_Q4_0: return q4_0_element((const tarn__q4_0 *)from + small, (int)(at % 32));
    case TARN_Q4_K: return q4_k_element((const tarn__q4_k *)from + large, (int)(at % 256));
    default: return q6_k_element((const tarn__q6_k *)from + large, (int)(at % 256));
    }
}

/* ---- eight elements at once -------------------------------------------------------------------------------------- */

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

/* Blocks are 34 bytes: the bytes start at an even address only. */
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

/* Offsets within the 210-byte block: low 0, high 128, group scales 192, scale 208. */
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
