/* mma.cuh: tiles on tensor cores in bf16 and f16, with sums in f32.
 *
 * A block has 4 warps and tiles of 64 rows, 16 a warp. A warp's products are made of mma.m16n8k16: of a product (16,
 * 8), lane l has, as numbers 0 and 1, columns 2 (l % 4) and the next of row l / 4, and as 2 and 3 those of row l / 4
 * + 8. Tiles lie in shared memory row by row, filled up with zeros to DEPTH columns; rows are DEPTH + 8 elements apart,
 * an odd number of 16-byte packs, so that 8 rows of a matrix are on different banks. The next tile is copied while this
 * one is worked on. */
#ifndef TARN__MMA_CUH
#define TARN__MMA_CUH

#include <atomic>

#include "backends/cuda/common/kernel.cuh"

#define MMA_WARPS 4
#define MMA_THREADS (MMA_WARPS * WARP)
#define MMA_ROWS (MMA_WARPS * 16)

template <int DEPTH> constexpr int line_of = DEPTH + 8;
template <typename T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<bf16> = true;

/* ---- instructions ------------------------------------------------------------------------------------------------ */

template <typename T>
__device__ __forceinline__ void multiply(float *sum, const uint32_t *left, uint32_t right0, uint32_t right1)
{
    if constexpr (is_bf16<T>)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
                     "%9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

/* Four matrices (8, 8): lane l gives the address of row l % 8 of matrix l / 8, and gets elements 2 (l % 4) and the next
 * of row l / 4 of each. */
__device__ __forceinline__ void load_matrices(uint32_t *to, const void *from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(from)));
}
/* The same, each turned: columns for rows. */
__device__ __forceinline__ void load_turned(uint32_t *to, const void *from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(from)));
}

/* 16 bytes to shared memory, or zeros; they are there after the next wait_copies() and __syncthreads(). */
__device__ __forceinline__ void copy_pack(void *to, const void *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(is_there ? 16 : 0)
                 : "memory");
}
/* The same for 4 bytes. */
__device__ __forceinline__ void copy_word(void *to, const void *from, bool is_there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(is_there ? 4 : 0)
                 : "memory");
}
__device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* ROWS rows from `row` of x, whose rows are `line` elements apart; what is not below `rows`, or in a column below
 * `depth`, is 0. */
template <typename T, int ROWS, int DEPTH, int THREADS_OF_BLOCK = MMA_THREADS>
__device__ __forceinline__ void stage_lines(T *to, const T *x, int64_t line, int64_t row, int64_t rows, int64_t depth)
{
    constexpr int PACKS = DEPTH / 8, STEPS = ROWS * PACKS / THREADS_OF_BLOCK;
    static_assert(ROWS * PACKS % THREADS_OF_BLOCK == 0, "every thread has as many packs");
#pragma unroll 4
    for (int step = 0; step < STEPS; step++) {
        int at = step * THREADS_OF_BLOCK + threadIdx.x, i = at / PACKS, pack = at % PACKS;
        bool is_there = row + i < rows && pack * 8 < depth;
        copy_pack(to + i * line_of<DEPTH> + pack * 8, x + (is_there ? (row + i) * line + pack * 8 : 0), is_there);
    }
}

/* The left operand of columns 16 · step ... of 16 rows. */
template <typename T, int DEPTH> __device__ __forceinline__ void load_left(uint32_t *to, const T *rows, int step)
{
    const int lane = threadIdx.x % WARP;
    load_matrices(to, rows + lane % 16 * line_of<DEPTH> + step * 16 + lane / 16 * 8);
}

/* sum (16, N) += left (16, 16) · rightᵀ, columns 16 · step ... of N rows of a tile. */
template <typename T, int DEPTH, int N>
__device__ __forceinline__ void multiply_step(float (*sum)[4], const uint32_t *left, const T *right, int step)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        uint32_t b[4];
        load_matrices(b, right + (n * 16 + lane % 8 + lane / 16 * 8) * line_of<DEPTH> + step * 16 + lane / 8 % 2 * 8);
        multiply<T>(sum[2 * n], left, b[0], b[1]);
        multiply<T>(sum[2 * n + 1], left, b[2], b[3]);
    }
}

/* sum (16, N) = rows · rightᵀ over all of D. */
template <typename T, int DEPTH, int N>
__device__ __forceinline__ void multiply_across(float (*sum)[4], const T *rows, const T *right)
{
#pragma unroll
    for (int n = 0; n < N / 8; n++)
        sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0;
#pragma unroll
    for (int step = 0; step < DEPTH / 16; step++) {
        uint32_t left[4];
        load_left<T, DEPTH>(left, rows, step);
        multiply_step<T, DEPTH, N>(sum, left, right, step);
    }
}

template <typename T> __device__ __forceinline__ uint32_t two_of(float x, float y)
{
    const float both[2] = {x, y};
    pack<T, 2> narrowed;
    narrow_pack(both, narrowed);
    return *(uint32_t *)&narrowed;
}

/* sum (16, W) += weights (16, N), rounded to T, · right, W columns of N rows of a tile. */
template <typename T, int DEPTH, int N, int W>
__device__ __forceinline__ void multiply_along(float (*sum)[4], const float (*weights)[4], const T *right)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        const float *one = weights[2 * n], *next = weights[2 * n + 1];
        const uint32_t left[4] = {two_of<T>(one[0], one[1]), two_of<T>(one[2], one[3]), two_of<T>(next[0], next[1]),
                                  two_of<T>(next[2], next[3])};
#pragma unroll
        for (int w = 0; w < W / 16; w++) {
            uint32_t b[4];
            load_turned(b, right + (n * 16 + lane % 16) * line_of<DEPTH> + w * 16 + lane / 16 * 8);
            multiply<T>(sum[2 * w], left, b[0], b[1]);
            multiply<T>(sum[2 * w + 1], left, b[2], b[3]);
        }
    }
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

/* With more shared memory than a kernel has without asking, which is asked for once on each device. False where a
 * device has not as much. */
template <auto kernel, int THREADS_OF_BLOCK = MMA_THREADS, typename A>
static bool start(const tarn__call *call, const A &a, int64_t blocks, size_t bytes)
{
    static std::atomic<int8_t> answers[64]; /* 1: yes, -1: no; threads that ask at once get the same */
    std::atomic<int8_t> &answer = answers[call->device];
    if (answer.load(std::memory_order_relaxed) == 0) {
        bool is_allowed = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               (int)bytes) == cudaSuccess;
        answer.store(is_allowed ? 1 : -1, std::memory_order_relaxed);
        if (!is_allowed)
            cudaGetLastError(); /* not kept for the next poll to find */
    }
    if (answer.load(std::memory_order_relaxed) < 0)
        return false;
    kernel<<<blocks_for(blocks, 1), THREADS_OF_BLOCK, bytes, stream_of(call)>>>(a);
    return true;
}

#endif
