/* philox.cuh: base/philox.h for the device: the same bits from the same seed and counter. */
#ifndef TARN__CUDA_PHILOX_CUH
#define TARN__CUDA_PHILOX_CUH

#include "backends/cuda/kernel.cuh"

/* Where the numbers come from. */
struct source {
    uint64_t seed, offset;
    const uint64_t *live; /* in a captured step: the seed, and what to add to the offset */
};

/* Four words from counter `at` of the source. */
__device__ __forceinline__ void philox(const source &s, uint64_t at, uint32_t word[4])
{
    uint64_t seed = s.live ? s.live[0] : s.seed, counter = s.offset + at + (s.live ? s.live[1] : 0);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t n0 = __umulhi(0xCD9E8D57u, c2) ^ c1 ^ k0, n2 = __umulhi(0xD2511F53u, c0) ^ c3 ^ k1;
        c1 = 0xCD9E8D57u * c2;
        c3 = 0xD2511F53u * c0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

#endif
