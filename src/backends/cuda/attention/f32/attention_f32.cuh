/* attention_f32.cuh: tiles of f32 attention in registers, without tensor cores.
 *
 * Matrices (rows, D) lie row-major in shared memory, zero-padded to DEPTH columns. The row pitch is DEPTH + 4, an odd
 * number of 16-byte vectors: 8 successive rows hit different banks. A block of WARPS warps owns a tile (ROWS, COLUMNS)
 * of weights. TX threads share a row: thread (ty, tx) has rows ty + TY · m and columns tx + TX · n, M · N weights. All
 * products read 16-byte vectors: at 8 × 8 values per thread 16 of them per 256 multiply-adds, half of what shared
 * memory can deliver. */
#ifndef TARN__CUDA_ATTENTION_F32_CUH
#define TARN__CUDA_ATTENTION_F32_CUH

#include "backends/cuda/attention/attention_documents.cuh"
#include "backends/cuda/common/mma.cuh"

/* True for a missing operand, too. */
static inline bool is_f32(const tarn__view *view)
{
    return !view || view->dtype == TARN_F32;
}

template <int DEPTH_, int ROWS_, int COLUMNS_, int TX_, int WARPS_> struct f32_tile {
    static constexpr int DEPTH = DEPTH_, ROWS = ROWS_, COLUMNS = COLUMNS_, TX = TX_, SIZE = WARPS_ * WARP;
    static constexpr int TY = SIZE / TX, M = ROWS / TY, N = COLUMNS / TX;
    static constexpr int VECS = DEPTH / (4 * TX); /* vectors of a result row per thread */
    static constexpr int LINE = DEPTH + 4;
    static constexpr int PITCH = COLUMNS + (TX == 8 ? 8 : 16); /* of weights: a warp stores them without conflicts */
    static constexpr int KEEP = ROWS * COLUMNS / 8;            /* bytes of dropout bits */
};

/* Two threads of a pair of lanes have the same tx, four lanes of alternate parity the same ty: both halves of a warp
 * then read each shared vector once. */
template <typename T> __device__ __forceinline__ int f32_tx()
{
    return threadIdx.x % WARP / 2 % T::TX;
}
template <typename T> __device__ __forceinline__ int f32_ty()
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    return warp * (WARP / T::TX) + (T::TX == 8 ? (lane & 1) | lane >> 4 << 1 : lane & 1);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

__device__ __forceinline__ void commit_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most N of the thread's groups are in flight. */
template <int N> __device__ __forceinline__ void wait_for_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* True if every row of the head is a series of aligned 16-byte vectors. */
__device__ __forceinline__ bool is_of_vectors(const head_matrix &x, int64_t head_dim)
{
    return x.column == 1 && x.row % 4 == 0 && head_dim % 4 == 0 && (uint64_t)x.base % 16 == 0;
}

/* Starts copying COUNT rows from `row` of x. Rows from `rows` on and columns from D on become 0. */
template <typename T, int COUNT>
__device__ __forceinline__ void copy_rows(float *to, const head_matrix &x, int64_t row, int64_t rows, int64_t head_dim)
{
    const float *base = (const float *)x.base;
    if (is_of_vectors(x, head_dim)) {
        constexpr int VECS = T::DEPTH / 4;
#pragma unroll 4
        for (int at = threadIdx.x; at < COUNT * VECS; at += T::SIZE) {
            const int i = at / VECS, j = at % VECS * 4;
            const bool is_there = row + i < rows && j < head_dim;
            copy_async16(to + i * T::LINE + j, is_there ? base + (row + i) * x.row + j : base, is_there);
        }
    } else {
#pragma unroll 1
        for (int at = threadIdx.x; at < COUNT * T::DEPTH; at += T::SIZE) {
            const int i = at / T::DEPTH, j = at % T::DEPTH;
            const bool is_there = row + i < rows && j < head_dim;
            copy_async4(to + i * T::LINE + j, is_there ? base + (row + i) * x.row + j * x.column : base, is_there);
        }
    }
}

/* Writes columns 4 j … 4 j + 3 of a row, as far as D goes. */
__device__ __forceinline__ void write_vector(const head_matrix &to, bool is_vector, int64_t row, int column,
                                             const float *x, float factor, int64_t head_dim)
{
    float *at = (float *)to.base + row * to.row + column * to.column;
    if (is_vector) {
        if (column < head_dim)
            *(float4 *)at = make_float4(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (column + i < head_dim)
            at[i * to.column] = x[i] * factor;
}

/* Writes the thread's results for ROWS rows from `row` on, row m scaled by factor[m]. */
template <typename T>
__device__ __forceinline__ void write_results(const head_matrix &to, float (*x)[T::VECS * 4], const float *factor,
                                              int64_t row, int64_t rows, int64_t head_dim)
{
    const bool is_vector = is_of_vectors(to, head_dim);
    const int tx = f32_tx<T>(), ty = f32_ty<T>();
#pragma unroll
    for (int m = 0; m < T::M; m++)
#pragma unroll
        for (int n = 0; n < T::VECS; n++)
            if (row + ty + T::TY * m < rows)
                write_vector(to, is_vector, row + ty + T::TY * m, 4 * (tx + T::TX * n), x[m] + 4 * n, factor[m],
                             head_dim);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float part_of(const float4 &x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

/* sum = x · yᵀ over DEPTH: x (ROWS, DEPTH), y (COLUMNS, DEPTH). */
template <typename T> __device__ __forceinline__ void f32_gemm_nt(float (*sum)[T::N], const float *x, const float *y)
{
    x += f32_ty<T>() * T::LINE, y += f32_tx<T>() * T::LINE;
#pragma unroll
    for (int m = 0; m < T::M; m++)
#pragma unroll
        for (int n = 0; n < T::N; n++)
            sum[m][n] = 0;
#pragma unroll 2
    for (int d = 0; d < T::DEPTH; d += 4) {
        float4 left[T::M];
#pragma unroll
        for (int m = 0; m < T::M; m++)
            left[m] = *(const float4 *)(x + m * T::TY * T::LINE + d);
#pragma unroll
        for (int n = 0; n < T::N; n++) {
            const float4 right = *(const float4 *)(y + n * T::TX * T::LINE + d);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int m = 0; m < T::M; m++)
                    sum[m][n] = fmaf(part_of(left[m], i), part_of(right, i), sum[m][n]);
        }
    }
}

/* sum += w · x: w (ROWS, COLUMNS) of pitch PITCH, x (COLUMNS, DEPTH). */
template <typename T>
__device__ __forceinline__ void f32_gemm_nn(float (*sum)[T::VECS * 4], const float *w, const float *x)
{
    w += f32_ty<T>() * T::PITCH, x += f32_tx<T>() * 4;
#pragma unroll 2
    for (int j = 0; j < T::COLUMNS; j += 4) {
        float4 left[T::M];
#pragma unroll
        for (int m = 0; m < T::M; m++)
            left[m] = *(const float4 *)(w + m * T::TY * T::PITCH + j);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int n = 0; n < T::VECS; n++) {
                const float4 right = *(const float4 *)(x + (j + i) * T::LINE + n * T::TX * 4);
#pragma unroll
                for (int c = 0; c < 4; c++)
#pragma unroll
                    for (int m = 0; m < T::M; m++)
                        sum[m][4 * n + c] = fmaf(part_of(left[m], i), part_of(right, c), sum[m][4 * n + c]);
            }
    }
}

/* sum = wᵀ · x: w (ROWS, COLUMNS), x (ROWS, DEPTH). Of the COLUMNS results thread ty has 4 (ty + TY · m) and the three
 * after it. */
template <typename T>
__device__ __forceinline__ void f32_gemm_tn(float (*sum)[T::VECS * 4], const float *w, const float *x)
{
    constexpr int QUADS = T::COLUMNS / T::TY / 4;
    w += f32_ty<T>() * 4, x += f32_tx<T>() * 4;
#pragma unroll
    for (int m = 0; m < QUADS * 4; m++)
#pragma unroll
        for (int n = 0; n < T::VECS * 4; n++)
            sum[m][n] = 0;
#pragma unroll 8
    for (int j = 0; j < T::ROWS; j++) {
        float4 left[QUADS];
#pragma unroll
        for (int m = 0; m < QUADS; m++)
            left[m] = *(const float4 *)(w + j * T::PITCH + m * T::TY * 4);
#pragma unroll
        for (int n = 0; n < T::VECS; n++) {
            const float4 right = *(const float4 *)(x + j * T::LINE + n * T::TX * 4);
#pragma unroll
            for (int c = 0; c < 4; c++)
#pragma unroll
                for (int m = 0; m < QUADS * 4; m++)
                    sum[m][4 * n + c] = fmaf(part_of(left[m / 4], m % 4), part_of(right, c), sum[m][4 * n + c]);
        }
    }
}

/* The thread's weights to shared memory. */
template <typename T> __device__ __forceinline__ void store_weights(float *to, const float (*x)[T::N])
{
    to += f32_ty<T>() * T::PITCH + f32_tx<T>();
#pragma unroll
    for (int m = 0; m < T::M; m++)
#pragma unroll
        for (int n = 0; n < T::N; n++)
            to[m * T::TY * T::PITCH + n * T::TX] = x[m][n];
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* 2 to the x, at most two units in the last place off; 0 for results below the normal range. */
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* x - base as a position in a tile of at most `side` keys. */
__device__ __forceinline__ int tile_position(int64_t x, int64_t base, int side)
{
    return (int)(x - base < 0 ? 0 : x - base > side ? side : x - base);
}

/* Dropout's bits for ROW_COUNT rows from `row` and KEY_COUNT keys from `key`, (rows, keys / 8) bytes. */
template <typename T, int ROW_COUNT, int KEY_COUNT>
__device__ __forceinline__ void draw_keep_bits(uint8_t *to, const attention_args &a, int64_t head, int64_t row,
                                               int64_t key)
{
    for (int at = threadIdx.x; at < ROW_COUNT * (KEY_COUNT / 8); at += T::SIZE)
        to[at] = (uint8_t)keep_mask8(a, a.random, head * a.rows + row + at / (KEY_COUNT / 8),
                                     key + at % (KEY_COUNT / 8) * 8);
}

template <int KEY_COUNT>
__device__ __forceinline__ float keep_factor(const uint8_t *keep, const attention_args &a, int row, int key)
{
    return drop_factor(a, keep[row * (KEY_COUNT / 8) + key / 8], key % 8);
}

#endif
