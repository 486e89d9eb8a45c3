/* philox.h: Philox 4x32-10, a counter-based random number generator. One source for host, CUDA and OpenCL (whose
 * prelude has the integer types), so uniform bits are bitwise identical on every backend. */
#ifndef TARN__PHILOX_H
#define TARN__PHILOX_H

#ifndef __OPENCL_VERSION__
#include <stdbool.h>
#include <stdint.h>
#endif

#ifdef __CUDACC__
#define TARN__HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TARN__HOST_DEVICE inline
#endif

/* Four 32-bit words from a 64-bit counter and a 64-bit key (the seed). The upper half of the 128-bit counter, which
 * other libraries use as a stream number, is 0. Ten rounds. */
static TARN__HOST_DEVICE void tarn__philox(uint64_t seed, uint64_t counter, uint32_t word[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
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

#ifndef __OPENCL_VERSION__ /* f64 is optional there; the host passes the threshold */
/* The threshold for 16-bit dropout: how many of 65536 values a probability selects, rounded, from 1 to 65535. */
static TARN__HOST_DEVICE uint32_t tarn__limit_16(double p)
{
    double count = p * 0x1p16 + 0.5;
    return count < 1 ? 1 : count < 0x1p16 ? (uint32_t)count : 0xFFFF;
}
#endif

/* The lower or upper 16 bits of a word. */
static TARN__HOST_DEVICE uint32_t tarn__half_word(uint32_t word, bool upper)
{
    return upper ? word >> 16 : word & 0xFFFF;
}

/* A word as a float in [0, 1): its upper 24 bits, which a float holds exactly. */
static TARN__HOST_DEVICE float tarn__unit_f32(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

#endif
