/* dequantize.cuh: elements of quantized rows (ggml's Q8_0, Q4_0, Q4_K, Q6_K), bitwise identical to base/quant: explicit
 * roundings, no fused multiply-add. */
#ifndef TARN__CUDA_DEQUANTIZE_CUH
#define TARN__CUDA_DEQUANTIZE_CUH

#include "backends/cuda/common/kernel.cuh"

extern "C" {
#include "base/quant/quant.h"
}

__device__ __forceinline__ float scale_of(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

/* 6-bit scale and min of one of a Q4_K block's 8 groups, before the block's own factors. */
__device__ __forceinline__ void q4_k_scales(const uint8_t *s, int group, int *scale, int *min)
{
    int i = group & 3;
    *scale = group < 4 ? s[i] & 63 : (s[8 + i] & 15) | (s[i] >> 6 << 4);
    *min = group < 4 ? s[4 + i] & 63 : (s[8 + i] >> 4) | (s[4 + i] >> 6 << 4);
}

__device__ __forceinline__ float q4_k_at(const tarn__q4_k *block, int at)
{
    int group = at / 32, scale, min;
    q4_k_scales(block->scales, group, &scale, &min);
    int q = block->q[group / 2 * 32 + at % 32] >> group % 2 * 4 & 15;
    return __fsub_rn(__fmul_rn(__fmul_rn(scale_of(block->scale), (float)scale), (float)q),
                     __fmul_rn(scale_of(block->min), (float)min));
}

__device__ __forceinline__ float q6_k_at(const tarn__q6_k *block, int at)
{
    int half = at / 128, part = at % 128 / 32, i = at % 32;
    int low = block->low[half * 64 + part % 2 * 32 + i] >> part / 2 * 4 & 15,
        high = block->high[half * 32 + i] >> part * 2 & 3;
    return __fmul_rn(__fmul_rn(scale_of(block->scale), (float)block->scales[at / 16]), (float)((low | high << 4) - 32));
}

/* Element `at` of a row of quant blocks that starts at `from`. */
__device__ __forceinline__ float element_at(const char *from, tarn_dtype dtype, int64_t at)
{
    /* block indices; `at` is not negative: a view starts at a block */
    int64_t small = at / 32, large = at / 256;
    switch (dtype) {
    case TARN_Q8_0: {
        const tarn__q8_0 *block = (const tarn__q8_0 *)from + small;
        return __fmul_rn((float)block->q[at % 32], scale_of(block->scale));
    }
    case TARN_Q4_0: {
        const tarn__q4_0 *block = (const tarn__q4_0 *)from + small;
        int i = (int)(at % 32);
        return __fmul_rn(scale_of(block->scale), (float)((block->q[i % 16] >> i / 16 * 4 & 15) - 8));
    }
    case TARN_Q4_K: return q4_k_at((const tarn__q4_k *)from + large, (int)(at % 256));
    default: return q6_k_at((const tarn__q6_k *)from + large, (int)(at % 256));
    }
}

#endif
