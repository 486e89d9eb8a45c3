/* philox.cuh: where a kernel's random numbers come from; base/philox.h makes them, here as on the CPU. */
#ifndef TARN__CUDA_PHILOX_CUH
#define TARN__CUDA_PHILOX_CUH

#include "backends/cuda/common/kernel.cuh"
#include "base/philox.h"

/* Where the numbers come from. */
struct source {
    uint64_t seed, offset;
    const uint64_t *live; /* in a captured step: the seed, and what to add to the offset */
};

/* The same for a kernel that draws often: what a captured step reads is read once. */
__device__ __forceinline__ source settled(const source &s)
{
    return s.live ? source{s.live[0], s.offset + s.live[1], NULL} : s;
}

/* Four words from counter `at` of the source. */
__device__ __forceinline__ void philox(const source &s, uint64_t at, uint32_t word[4])
{
    tarn__philox(s.live ? s.live[0] : s.seed, s.offset + at + (s.live ? s.live[1] : 0), word);
}

#endif
