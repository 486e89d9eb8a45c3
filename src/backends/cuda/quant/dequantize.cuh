/* dequantize.cuh: elements of quantized rows: one by the shared source, eight at once by loads of words, which the
 * shared source cannot have. Bitwise identical to base/quant: explicit roundings, no fused multiply-add. */
#ifndef TARN__CUDA_DEQUANTIZE_CUH
#define TARN__CUDA_DEQUANTIZE_CUH

#include "backends/cuda/quant/formats.cuh"

/* Element `at` of a row of quant blocks that starts at `from`: Q8_0, Q4_0, Q4_K and Q6_K. */
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

/* The same of all other formats: apart, so that the kernels of the first four stay small. */
__device__ __forceinline__ float other_element_at(const char *from, tarn_dtype dtype, int64_t at)
{
    int64_t small = at / 32, large = at / 256;
    switch (dtype) {
    case TARN_Q4_1: return q4_1_element((const tarn__q4_1 *)from + small, (int)(at % 32));
    case TARN_Q5_0: return q5_0_element((const tarn__q5_0 *)from + small, (int)(at % 32));
    case TARN_Q5_1: return q5_1_element((const tarn__q5_1 *)from + small, (int)(at % 32));
    case TARN_Q2_K: return q2_k_element((const tarn__q2_k *)from + large, (int)(at % 256));
    case TARN_Q3_K: return q3_k_element((const tarn__q3_k *)from + large, (int)(at % 256));
    case TARN_Q5_K: return q5_k_element((const tarn__q5_k *)from + large, (int)(at % 256));
    case TARN_IQ4_NL: return iq4_nl_element((const tarn__iq4_nl *)from + small, (int)(at % 32));
    default: return iq4_xs_element((const tarn__iq4_xs *)from + large, (int)(at % 256));
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
template <tarn_dtype Q> __device__ __forceinline__ void dequantize8(const char *row, int at, float *to)
{
    typedef quant_format<Q> format;
    const char *block = row + (int64_t)(at / format::elements) * format::bytes;
    const int inside = at % format::elements;
    const float2 scales = format::scales(block, inside);
    const uint2 q =
        make_uint2(format::template quants<GLOBAL>(block, inside), format::template quants<GLOBAL>(block, inside + 4));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float value = __fmul_rn(scales.x, (float)((int)(int8_t)byte_of(q, i) - format::bias));
        to[i] = format::has_min ? __fsub_rn(value, scales.y) : value;
    }
}

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
