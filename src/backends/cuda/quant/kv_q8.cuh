/* kv_q8.cuh: quantizes a group of a KV row to 8 bits, as a Q8_0 block, except that a group with non-finite values keeps
 * a non-finite scale. */
#ifndef TARN__CUDA_KV_Q8_CUH
#define TARN__CUDA_KV_Q8_CUH

#include "backends/cuda/common/kernel.cuh"
#include "base/quant/quant.h"

static_assert(TARN__KV_Q8_GROUP == WARP, "a lane has an element of a group");

/* A lane's quantized element, and the scale of the warp's group; lanes beyond its end have none. All lanes call it. The
 * maximum is taken over magnitude bits, where NaN is the largest. */
__device__ __forceinline__ uint8_t quantize_q8(float x, bool is_valid, f16 *scale)
{
    uint32_t max_bits = is_valid ? __float_as_uint(x) & 0x7fffffffu : 0;
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        max_bits = max(max_bits, __shfl_xor_sync(FULL_WARP, max_bits, step));
    const float exact = __fdiv_rn(__uint_as_float(max_bits), 127.0f), inverse = exact != 0 ? __frcp_rn(exact) : 0;
    *scale = narrow<f16>(exact);
    const bool is_finite = isfinite(exact) && isfinite(inverse);
    return (uint8_t)(TARN__KV_Q8_ZERO + (is_finite ? (int)roundf(__fmul_rn(x, inverse)) : 0));
}

#endif
