/* attention_mma_grad128.cuh: shared by the attention gradients in bf16 and f16 for D of 33 to 64 and 97 to 128.
 *
 * A block owns 128 keys or rows and walks the others 32 at a time. A warp owns 32 of them, so a right operand loaded
 * from shared memory serves two mma of 16 rows: that traffic is what limits kernels with 16 rows per warp. */
#ifndef TARN__CUDA_ATTENTION_MMA_GRAD128_CUH
#define TARN__CUDA_ATTENTION_MMA_GRAD128_CUH

#include "backends/cuda/attention/attention_mma.cuh"

#define SIDE 128                  /* keys or rows per block */
#define WARP_ROWS 32              /* per warp */
#define TILE_ROWS 32              /* rows of a double-buffered tile */
#define VECS (2 * TILE_ROWS / 16) /* 16-byte vectors that a lane has of a tile as a left operand */

/* Whether these kernels do dropout. For D = 64 the random numbers spill registers, and fall to one of the two warps
 * that share keys: attention_mma_grad.cu is faster. */
template <int DEPTH> constexpr bool drops_here = DEPTH > 64;

/* ---- streamed tiles ---------------------------------------------------------------------------------------------- */

/* This thread's vector of every row of a head. */
template <typename T> struct vec_column {
    const T *from;  /* in the first row */
    uint32_t line;  /* row stride, in elements */
    bool is_inside; /* false beyond D */
};

template <typename T, int DEPTH>
__device__ __forceinline__ vec_column<T> column_of(const bhtd_tensor &x, int64_t batch, int64_t head, int64_t head_dim)
{
    const int column = threadIdx.x % (DEPTH / 8) * 8;
    const head_matrix s = head_of(x, batch, head);
    return {(const T *)s.base + (column < head_dim ? column : 0), (uint32_t)s.row, column < head_dim};
}

/* Copies a tile of rows from `row`; rows from `rows` on are 0. 32-bit offsets: the caller has checked the strides. */
template <typename T, int DEPTH, int THREADS_OF_BLOCK>
__device__ __forceinline__ void stage_tile_rows(T *to, const vec_column<T> &x, int row, int rows)
{
    constexpr int AT_ONCE = THREADS_OF_BLOCK / (DEPTH / 8);
    const int first = threadIdx.x / (DEPTH / 8), column = threadIdx.x % (DEPTH / 8) * 8;
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i += AT_ONCE) {
        const bool is_inside = x.is_inside && row + first + i < rows;
        copy_async16(to + (first + i) * line_of<DEPTH> + column,
                     x.from + (uint64_t)(uint32_t)(is_inside ? row + first + i : 0) * x.line, is_inside);
    }
}

/* ---- products of a warp's 32 rows -------------------------------------------------------------------------------- */

/* (32, TILE_ROWS): two times 16 rows, 8 columns per accumulator */
typedef float tile_sums[2][TILE_ROWS / 8][4];
typedef uint32_t left_operands[2][TILE_ROWS / 16][4]; /* the same as left operands */

/* sum (32, TILE_ROWS) = rows · rightᵀ over all of D. */
template <typename T, int DEPTH>
__device__ __forceinline__ void gemm_nt32(tile_sums &sum, const T *rows, const T *right)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < TILE_ROWS / 8; n++)
            sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0;
#pragma unroll
    for (int step = 0; step < DEPTH / 16; step++) {
        uint32_t left[2][4];
        load_a<T, DEPTH>(left[0], rows, step);
        load_a<T, DEPTH>(left[1], rows + 16 * line_of<DEPTH>, step);
#pragma unroll
        for (int n = 0; n < TILE_ROWS / 16; n++) {
            uint32_t b[4];
            load_matrices(b,
                          right + (n * 16 + lane % 8 + lane / 16 * 8) * line_of<DEPTH> + step * 16 + lane / 8 % 2 * 8);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma<T>(sum[m][2 * n], left[m], b[0], b[1]);
                mma<T>(sum[m][2 * n + 1], left[m], b[2], b[3]);
            }
        }
    }
}

/* sum (32, D) += left (32, TILE_ROWS) · right. */
template <typename T, int DEPTH>
__device__ __forceinline__ void gemm_nn32(float (&sum)[2][DEPTH / 8][4], const left_operands &left, const T *right)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < TILE_ROWS / 16; n++)
#pragma unroll
        for (int w = 0; w < DEPTH / 16; w++) {
            uint32_t b[4];
            load_matrices_trans(b, right + (n * 16 + lane % 16) * line_of<DEPTH> + w * 16 + lane / 16 * 8);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma<T>(sum[m][2 * w], left[m][n], b[0], b[1]);
                mma<T>(sum[m][2 * w + 1], left[m][n], b[2], b[3]);
            }
        }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Runs `...` with D rounded up, and is_general for document starts or dropout. */
#define FOR_GRAD128(a, ...) \
    if ((a).head_dim <= 64) { \
        constexpr int DEPTH = 64; \
        if ((a).document_starts || (a).is_dropping) { \
            constexpr bool is_general = true; \
            __VA_ARGS__; \
        } else { \
            constexpr bool is_general = false; \
            __VA_ARGS__; \
        } \
    } else { \
        constexpr int DEPTH = 128; \
        if ((a).document_starts || (a).is_dropping) { \
            constexpr bool is_general = true; \
            __VA_ARGS__; \
        } else { \
            constexpr bool is_general = false; \
            __VA_ARGS__; \
        } \
    }

/* attention_mma_grad128_kv.cu: gk and gv. False: not on this device. */
bool tarn__cuda_attention_mma_grad128_kv(const tarn__call *call, attention_args *a);

#endif
