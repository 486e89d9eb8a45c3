/* mma.cuh: tensor-core tiles in bf16 and f16, accumulated in f32.
 *
 * A block has 4 warps and tiles of 64 rows, 16 per warp. The instruction is mma.m16n8k16: of a (16, 8) accumulator,
 * lane l holds columns 2 (l % 4) and the next of row l / 4 as values 0 and 1, and of row l / 4 + 8 as values 2 and 3.
 * Tiles are row-major in shared memory, zero-padded to DEPTH columns. The row pitch is DEPTH + 8 elements, an odd
 * number of 16-byte vectors: 8 rows of a matrix hit different banks. The next tile is copied asynchronously while the
 * current one is in use. */
#ifndef TARN__CUDA_MMA_CUH
#define TARN__CUDA_MMA_CUH

#include <atomic>

#include "backends/cuda/common/kernel.cuh"

#define MMA_WARPS 4
#define MMA_THREADS (MMA_WARPS * WARP)
#define MMA_ROWS (MMA_WARPS * 16)

template <int DEPTH> constexpr int line_of = DEPTH + 8;
template <typename T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<bf16> = true;

/* ---- instructions ------------------------------------------------------------------------------------------------ */

/* sum (16, 8) += left (16, 16) · right (16, 8). 4,096 multiply-adds. */
template <typename T>
__device__ __forceinline__ void mma(float *sum, const uint32_t *left, uint32_t right0, uint32_t right1)
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

/* Four (8, 8) matrices: lane l gives the address of row l % 8 of matrix l / 8, and receives elements 2 (l % 4) and the
 * next of row l / 4 of each. */
__device__ __forceinline__ void load_matrices(uint32_t *to, const void *from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(from)));
}
/* The same, each matrix transposed. */
__device__ __forceinline__ void load_matrices_trans(uint32_t *to, const void *from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(from)));
}

/* Asynchronous copy of 16 bytes to shared memory, or of zeros; visible after wait_copies() and __syncthreads(). */
__device__ __forceinline__ void copy_async16(void *to, const void *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(is_there ? 16 : 0)
                 : "memory");
}
/* The same for 4 bytes. */
__device__ __forceinline__ void copy_async4(void *to, const void *from, bool is_there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(is_there ? 4 : 0)
                 : "memory");
}
/* Waits for the copies of this thread only. */
__device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* Copies ROWS rows from `row` of x, whose pitch is `line` elements. Rows from `rows` on and columns from `depth` on
 * become 0. */
template <typename T, int ROWS, int DEPTH, int THREADS_OF_BLOCK = MMA_THREADS>
__device__ __forceinline__ void stage_lines(T *to, const T *x, int64_t line, int64_t row, int64_t rows, int64_t depth)
{
    constexpr int VECS = DEPTH / 8, STEPS = ROWS * VECS / THREADS_OF_BLOCK;
    static_assert(ROWS * VECS % THREADS_OF_BLOCK == 0, "every thread has as many vectors");
#pragma unroll 4
    for (int step = 0; step < STEPS; step++) {
        int at = step * THREADS_OF_BLOCK + threadIdx.x, i = at / VECS, vec = at % VECS;
        bool is_there = row + i < rows && vec * 8 < depth;
        copy_async16(to + i * line_of<DEPTH> + vec * 8, x + (is_there ? (row + i) * line + vec * 8 : 0), is_there);
    }
}

/* Left operand: columns 16 · step ... of 16 rows. */
template <typename T, int DEPTH> __device__ __forceinline__ void load_a(uint32_t *to, const T *rows, int step)
{
    const int lane = threadIdx.x % WARP;
    load_matrices(to, rows + lane % 16 * line_of<DEPTH> + step * 16 + lane / 16 * 8);
}

/* sum (16, N) += left (16, 16) · rightᵀ, with columns 16 · step ... of N rows of a tile. */
template <typename T, int DEPTH, int N>
__device__ __forceinline__ void mma_step(float (*sum)[4], const uint32_t *left, const T *right, int step)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        uint32_t b[4];
        load_matrices(b, right + (n * 16 + lane % 8 + lane / 16 * 8) * line_of<DEPTH> + step * 16 + lane / 8 % 2 * 8);
        mma<T>(sum[2 * n], left, b[0], b[1]);
        mma<T>(sum[2 * n + 1], left, b[2], b[3]);
    }
}

/* sum (16, N) = rows · rightᵀ over all of D. */
template <typename T, int DEPTH, int N>
__device__ __forceinline__ void gemm_nt(float (*sum)[4], const T *rows, const T *right)
{
#pragma unroll
    for (int n = 0; n < N / 8; n++)
        sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0;
#pragma unroll
    for (int step = 0; step < DEPTH / 16; step++) {
        uint32_t left[4];
        load_a<T, DEPTH>(left, rows, step);
        mma_step<T, DEPTH, N>(sum, left, right, step);
    }
}

/* Two values rounded to T, in one register. */
template <typename T> __device__ __forceinline__ uint32_t pack2(float x, float y)
{
    const float both[2] = {x, y};
    vec<T, 2> narrowed;
    narrow_vec(both, narrowed);
    return *(uint32_t *)&narrowed;
}

/* sum (16, W) += weights (16, N), rounded to T, · right, W columns of N rows of a tile. Two adjacent accumulators are
 * already a left operand: no shuffles. */
template <typename T, int DEPTH, int N, int W>
__device__ __forceinline__ void gemm_nn(float (*sum)[4], const float (*weights)[4], const T *right)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        const float *one = weights[2 * n], *next = weights[2 * n + 1];
        const uint32_t left[4] = {pack2<T>(one[0], one[1]), pack2<T>(one[2], one[3]), pack2<T>(next[0], next[1]),
                                  pack2<T>(next[2], next[3])};
#pragma unroll
        for (int w = 0; w < W / 16; w++) {
            uint32_t b[4];
            load_matrices_trans(b, right + (n * 16 + lane % 16) * line_of<DEPTH> + w * 16 + lane / 16 * 8);
            mma<T>(sum[2 * w], left, b[0], b[1]);
            mma<T>(sum[2 * w + 1], left, b[2], b[3]);
        }
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Launches with more than the default 48 KiB of dynamic shared memory, which is requested once per device. False if the
 * device has less. */
template <auto kernel, int THREADS_OF_BLOCK = MMA_THREADS, typename A>
static bool launch_large_smem(const tarn__call *call, const A &a, int64_t blocks, size_t bytes)
{
    /* 1: yes, -1: no; concurrent first calls store the same answer */
    static std::atomic<int8_t> answers[TARN__CUDA_MAX_DEVICES];
    std::atomic<int8_t> &answer = answers[call->device];
    if (answer.load(std::memory_order_relaxed) == 0) {
        bool is_allowed = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               (int)bytes) == cudaSuccess;
        answer.store(is_allowed ? 1 : -1, std::memory_order_relaxed);
        if (!is_allowed)
            cudaGetLastError(); /* clear the sticky error: the next poll must not report it */
    }
    if (answer.load(std::memory_order_relaxed) < 0)
        return false;
    kernel<<<blocks_for(blocks, 1), THREADS_OF_BLOCK, bytes, stream_of(call)>>>(a);
    return true;
}

#endif
