/* mma_tf32.cuh: tensor-core tiles of f32 in TF32, accumulated in f32.
 *
 * The instruction is mma.m16n8k8. Operands are rounded to TF32, ties away from zero. Accumulators are laid out as in
 * mma.cuh. Tiles are row-major in shared memory, zero-padded to DEPTH columns, a multiple of 32. The row pitch is
 * DEPTH + 4 floats, 4 banks more than a multiple of 32: neither the matrices of load_matrices() nor the vectors of
 * gemm_nn_tf32() meet on a bank.
 *
 * An accumulator of weights is a left operand as it is: its columns 2 l and 2 l + 1 are taken as rows l and l + 4 of
 * the product's inner dimension, and the right operand is read in that order. */
#ifndef TARN__CUDA_MMA_TF32_CUH
#define TARN__CUDA_MMA_TF32_CUH

#include "backends/cuda/common/mma.cuh"

template <int DEPTH> constexpr int float_line = DEPTH + 4;

/* ---- instructions ------------------------------------------------------------------------------------------------ */

__device__ __forceinline__ uint32_t to_tf32(float x)
{
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

/* Rounds operands just loaded, unless the tile in shared memory is rounded. */
template <bool is_rounded, int N> __device__ __forceinline__ void round_words(uint32_t *words)
{
#pragma unroll
    for (int i = 0; !is_rounded && i < N; i++)
        words[i] = to_tf32(__uint_as_float(words[i]));
}

/* sum (16, 8) += left (16, 8) · right (8, 8). 1,024 multiply-adds. */
__device__ __forceinline__ void mma_tf32(float *sum, const uint32_t *left, uint32_t right0, uint32_t right1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* Copies ROWS rows from `row` of x, whose pitch is `line` elements. Rows from `rows` on and columns from `depth` on
 * become 0. */
template <int ROWS, int DEPTH, int THREADS_OF_BLOCK>
__device__ __forceinline__ void stage_floats(float *to, const float *x, int64_t line, int64_t row, int64_t rows,
                                             int64_t depth)
{
    constexpr int VECS = DEPTH / 4, STEPS = ROWS * VECS / THREADS_OF_BLOCK;
    static_assert(ROWS * VECS % THREADS_OF_BLOCK == 0, "every thread has as many vectors");
#pragma unroll 4
    for (int step = 0; step < STEPS; step++) {
        const int at = step * THREADS_OF_BLOCK + threadIdx.x, i = at / VECS, vec = at % VECS;
        const bool is_there = row + i < rows && vec * 4 < depth;
        copy_async16(to + i * float_line<DEPTH> + vec * 4, x + (is_there ? (row + i) * line + vec * 4 : 0), is_there);
    }
}

/* Rounds a tile in place: each thread the vectors that it copied itself, after wait_copies() and before
 * __syncthreads(). */
template <int ROWS, int DEPTH, int THREADS_OF_BLOCK> __device__ __forceinline__ void round_tile(float *tile)
{
    constexpr int VECS = DEPTH / 4, STEPS = ROWS * VECS / THREADS_OF_BLOCK;
#pragma unroll 4
    for (int step = 0; step < STEPS; step++) {
        const int at = step * THREADS_OF_BLOCK + threadIdx.x;
        uint4 *words = (uint4 *)(tile + at / VECS * float_line<DEPTH> + at % VECS * 4), x = *words;
        round_words<false, 4>((uint32_t *)&x);
        *words = x;
    }
}

/* Left operand: columns 8 · step ... of 16 rows. */
template <int DEPTH, bool is_rounded>
__device__ __forceinline__ void load_a_tf32(uint32_t *to, const float *rows, int step)
{
    const int lane = threadIdx.x % WARP;
    load_matrices(to, rows + lane % 16 * float_line<DEPTH> + step * 8 + lane / 16 * 4);
    round_words<is_rounded, 4>(to);
}

/* sum (M · 16, N) += left · rightᵀ: columns 16 · pair ... of N rows of a tile; left[m] has two operands. */
template <int DEPTH, int M, int N, bool is_rounded>
__device__ __forceinline__ void mma_pair_tf32(float (*sum)[N / 8][4], const uint32_t (*left)[2][4], const float *right,
                                              int pair)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        uint32_t b[4];
        load_matrices(b, right + (n * 8 + lane % 8) * float_line<DEPTH> + pair * 16 + lane / 8 * 4);
        round_words<is_rounded, 4>(b);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int m = 0; m < M; m++)
                mma_tf32(sum[m][n], left[m][half], b[2 * half], b[2 * half + 1]);
    }
}

/* sum (M · 16, N) = rows · rightᵀ over all of D. */
template <int DEPTH, int M, int N, bool is_rounded>
__device__ __forceinline__ void gemm_nt_tf32(float (*sum)[N / 8][4], const float *rows, const float *right)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0;
#pragma unroll
    for (int pair = 0; pair < DEPTH / 16; pair++) {
        uint32_t left[M][2][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            load_a_tf32<DEPTH, is_rounded>(left[m][0], rows + m * 16 * float_line<DEPTH>, 2 * pair);
            load_a_tf32<DEPTH, is_rounded>(left[m][1], rows + m * 16 * float_line<DEPTH>, 2 * pair + 1);
        }
        mma_pair_tf32<DEPTH, M, N, is_rounded>(sum, left, right, pair);
    }
}

/* sum (M · 16, W) += weights (M · 16, N), rounded, · right, W columns of N rows of a tile. Lane l reads four adjacent
 * columns at a time, from 4 (l / 4) of 32, for four accumulators: of accumulator 4 u + j, column n is column 32 u + 4 n
 * + j of the result. */
template <int DEPTH, int M, int N, int W, bool is_rounded>
__device__ __forceinline__ void gemm_nn_tf32(float (*sum)[W / 8][4], const float (*weights)[N / 8][4],
                                             const float *right)
{
    const int lane = threadIdx.x % WARP;
    const float *const from = right + lane % 4 * 2 * float_line<DEPTH> + lane / 4 * 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        uint32_t left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            const float *w = weights[m][n];
            left[m][0] = to_tf32(w[0]), left[m][1] = to_tf32(w[2]);
            left[m][2] = to_tf32(w[1]), left[m][3] = to_tf32(w[3]);
        }
#pragma unroll
        for (int u = 0; u < W / 32; u++) {
            uint32_t b[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 four = *(const uint4 *)(from + (n * 8 + i) * float_line<DEPTH> + u * 32);
                b[i][0] = four.x, b[i][1] = four.y, b[i][2] = four.z, b[i][3] = four.w;
                round_words<is_rounded, 4>(b[i]);
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int m = 0; m < M; m++)
                    mma_tf32(sum[m][u * 4 + j], left[m], b[0][j], b[1][j]);
        }
    }
}

#endif
