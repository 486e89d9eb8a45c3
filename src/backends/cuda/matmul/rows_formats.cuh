/* rows_formats.cuh: rows of a weight for rows_wgmma.cuh: their layout in a stage in shared memory, and how they become
 * left operands of wgmma in registers. Dequantized elements are those of dequantize.cuh, rounded to bf16. */
#ifndef TARN__CUDA_ROWS_FORMATS_CUH
#define TARN__CUDA_ROWS_FORMATS_CUH

#include "backends/cuda/common/wgmma.cuh"
#include "backends/cuda/quant/formats.cuh"

#define DEPTH 128     /* elements of a stage: two panels of x */
#define CHUNK_STEPS 4 /* products of 16 elements that are issued together */

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* Copies 8 bytes to shared memory. */
__device__ __forceinline__ void copy_async8(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async16(uint32_t to, const void *from, int count)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(count) : "memory");
}

__device__ __forceinline__ void commit_stage(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until at most PENDING stages of this thread are in flight. */
template <int PENDING> __device__ __forceinline__ void wait_stage(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* ---- formats ----------------------------------------------------------------------------------------------------- */

/* 32768 and a byte of `word`, as f32; 128 and a byte below 128. */
template <int BYTE> __device__ __forceinline__ float byte_at_8(uint32_t word)
{
    return __uint_as_float(__byte_perm(word, 0x47000000u, 0x7404 | BYTE << 4));
}
template <int BYTE> __device__ __forceinline__ float byte_at_16(uint32_t word)
{
    return __uint_as_float(__byte_perm(word, 0x43000000u, 0x7044 | BYTE << 8));
}

/* Layout of a format's rows in a stage, and its elements as left operands:
 *
 *   line, vector, vectors       bytes of a row in a stage; of a copy; copies of a row
 *   offset_of(stage, part)      what a stage adds to the offset of a row's copy `part`, which is part * vector
 *   chunk(rows, stage, half, left)
 *                               left operands of CHUNK_STEPS products, from element 64 * half of the stage; `rows` are
 *                               those of the warp's first row in shared memory */
template <tarn_dtype Q> struct stage_format;

/* Four blocks of 34 bytes. A row is padded to an odd number of 16-byte vectors. */
template <> struct stage_format<TARN_Q8_0> {
    enum { line = 144, vector = 8, vectors = 17 };

    static __device__ __forceinline__ int64_t offset_of(int stage, int)
    {
        return (int64_t)stage * 136;
    }
    static __device__ __forceinline__ void chunk(const char *rows, int, int half, uint32_t (*left)[4])
    {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int b = 0; b < 2; b++) {
                const char *block = rows + (lane / 4 + r * 8) * line + (half * 2 + b) * 34;
                /* exact: (32768 + u) * scale - 32896 * scale, where u is the quant plus 128 */
                const float scale = scale_of(*(const uint16_t *)block), zero = -32896.0f * scale;
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const uint32_t two = *(const uint16_t *)(block + 2 + k * 8 + lane % 4 * 2) ^ 0x8080u;
                    left[b * 2 + k / 2][k % 2 * 2 + r] =
                        pack2<bf16>(fmaf(byte_at_8<0>(two), scale, zero), fmaf(byte_at_8<1>(two), scale, zero));
                }
            }
    }
};

/* Half a block of 144 bytes: its head, and 64 bytes of quants, four groups. */
template <> struct stage_format<TARN_Q4_K> {
    enum { line = 80, vector = 16, vectors = 5 };

    static __device__ __forceinline__ int64_t offset_of(int stage, int part)
    {
        return (int64_t)(stage / 2) * 144 + (part == 0 ? 0 : stage % 2 * 64);
    }
    /* Scale and min of a group, of the block with this head. */
    static __device__ __forceinline__ float2 scales_of(const uint4 &head, int group)
    {
        const uint32_t shift = group % 4 * 8, first = head.y >> shift, second = head.z >> shift,
                       third = head.w >> shift;
        const int scale = (int)(group < 4 ? first & 63 : (third & 15) | (first >> 2 & 48)),
                  min = (int)(group < 4 ? second & 63 : (third >> 4 & 15) | (second >> 2 & 48));
        return make_float2(__fmul_rn(scale_of((uint16_t)head.x), (float)scale),
                           __fmul_rn(scale_of((uint16_t)(head.x >> 16)), (float)min));
    }
    /* The four lanes of a pair of rows compute the scales of two groups: each lane that of one row and group. */
    static __device__ __forceinline__ void chunk(const char *rows, int stage, int half, uint32_t (*left)[4])
    {
        const int lane = threadIdx.x % WARP, own = lane % 4;
        const uint4 head = *(const uint4 *)(rows + (lane / 4 + own / 2 * 8) * line);
        const float2 scales = scales_of(head, (stage % 2 * 2 + half) * 2 + own % 2);
        /* (128 + q) * scale - (128 * scale + min) */
        const float zero = fmaf(-128.0f, scales.x, -scales.y);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float scale_of_group[2], zero_of_group[2];
#pragma unroll
            for (int b = 0; b < 2; b++) {
                scale_of_group[b] = __shfl_sync(FULL_WARP, scales.x, (lane & ~3) + r * 2 + b);
                zero_of_group[b] = __shfl_sync(FULL_WARP, zero, (lane & ~3) + r * 2 + b);
            }
            const char *quants = rows + (lane / 4 + r * 8) * line + 16 + half * 32;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t two = *(const uint16_t *)(quants + k * 8 + own * 2);
#pragma unroll
                for (int b = 0; b < 2; b++) {
                    const uint32_t q = two >> b * 4 & 0x0f0fu;
                    left[b * 2 + k / 2][k % 2 * 2 + r] =
                        pack2<bf16>(fmaf(byte_at_16<0>(q), scale_of_group[b], zero_of_group[b]),
                                    fmaf(byte_at_16<1>(q), scale_of_group[b], zero_of_group[b]));
                }
            }
        }
    }
};

#endif
