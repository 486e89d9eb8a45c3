/* philox.cuh: random numbers of a kernel. base/philox.h generates them, bitwise identical on every backend. */
#ifndef TARN__CUDA_PHILOX_CUH
#define TARN__CUDA_PHILOX_CUH

#include "backends/cuda/common/kernel.cuh"
#include "base/philox.h"

/* Seed and counter of a stream of random numbers. */
struct source {
    uint64_t seed, offset;
    const uint64_t *live; /* in a captured step: seed, and a value added to the offset, in device memory */
};

/* For kernels that draw often: reads `live` once. */
__device__ __forceinline__ source resolved(const source &s)
{
    return s.live ? source{s.live[0], s.offset + s.live[1], NULL} : s;
}

/* Four 32-bit words from counter `at`. */
__device__ __forceinline__ void philox(const source &s, uint64_t at, uint32_t word[4])
{
    tarn__philox(s.live ? s.live[0] : s.seed, s.offset + at + (s.live ? s.live[1] : 0), word);
}

#endif
