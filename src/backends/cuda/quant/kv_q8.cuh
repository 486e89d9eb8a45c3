/* kv_q8.cuh: a group of a row in 8 bits, as a block of Q8_0 has it, but for a group that is not finite: its scale is
 * not, either. */
#ifndef TARN__CUDA_CODES_CUH
#define TARN__CUDA_CODES_CUH

#include "backends/cuda/common/kernel.cuh"
#include "base/quant/quant.h"

static_assert(TARN__KV_Q8_GROUP == WARP, "a lane has an element of a group");

/* The code of a lane's element, and the scale of the warp's group; a lane behind the group's end has none. The whole
 * warp calls it. The largest is found among the bits of magnitudes, where NaN is the largest of all. */
__device__ __forceinline__ uint8_t code_of(float x, bool is_there, f16 *scale)
{
    uint32_t most = is_there ? __float_as_uint(x) & 0x7fffffffu : 0;
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        most = max(most, __shfl_xor_sync(FULL_WARP, most, step));
    const float exact = __fdiv_rn(__uint_as_float(most), 127.0f), inverse = exact != 0 ? __frcp_rn(exact) : 0;
    *scale = narrow<f16>(exact);
    const bool is_finite = isfinite(exact) && isfinite(inverse);
    return (uint8_t)(TARN__KV_Q8_ZERO + (is_finite ? (int)roundf(__fmul_rn(x, inverse)) : 0));
}

#endif
