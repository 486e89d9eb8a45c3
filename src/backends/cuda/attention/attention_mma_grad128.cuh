/* attention_mma_grad128.cuh: what the gradients of attention in bf16 and f16 for heads of 33 to 64 and 97 to 128
 * columns have in common.
 *
 * A block has 128 keys or rows and goes through the others 32 at a time. A warp has 32 of them, so that what it loads
 * from shared memory as a right operand serves two products of 16: that traffic is what limits kernels whose warps
 * have 16. */
#ifndef TARN__ATTENTION_WIDE_CUH
#define TARN__ATTENTION_WIDE_CUH

#include "backends/cuda/attention/attention_mma.cuh"

#define SIDE 128              /* keys or rows of a block */
#define OWN 32                /* of a warp */
#define NEXT 32               /* rows of a tile that comes and goes */
#define PACKS (2 * NEXT / 16) /* of 16 bytes, that a lane has of a tile as a left operand */

/* Whether weights are dropped here. For D = 64 the draws spill registers, and fall to one of the two warps that share
 * keys: attention_mma_grad.cu is faster. */
template <int DEPTH> constexpr bool drops_wide = DEPTH > 64;

/* ---- tiles that come and go -------------------------------------------------------------------------------------- */

/* This thread's pack of each row of a head. */
template <typename T> struct pack_column {
    const T *from; /* in the first row */
    uint32_t line; /* elements from row to row */
    bool is_there; /* not behind D */
};

template <typename T, int DEPTH>
__device__ __forceinline__ pack_column<T> column_of(const cube &x, int64_t batch, int64_t head, int64_t depth)
{
    const int column = threadIdx.x % (DEPTH / 8) * 8;
    const slab s = slab_of(x, batch, head);
    return {(const T *)s.base + (column < depth ? column : 0), (uint32_t)s.row, column < depth};
}

/* NEXT rows from `row`; what is not below `rows` is 0. */
template <typename T, int DEPTH, int THREADS_OF_BLOCK>
__device__ __forceinline__ void stage_next(T *to, const pack_column<T> &x, int row, int rows)
{
    constexpr int AT_ONCE = THREADS_OF_BLOCK / (DEPTH / 8);
    const int first = threadIdx.x / (DEPTH / 8), column = threadIdx.x % (DEPTH / 8) * 8;
#pragma unroll
    for (int i = 0; i < NEXT; i += AT_ONCE) {
        const bool is_there = x.is_there && row + first + i < rows;
        copy_pack(to + (first + i) * line_of<DEPTH> + column,
                  x.from + (uint64_t)(uint32_t)(is_there ? row + first + i : 0) * x.line, is_there);
    }
}

/* ---- products of a warp's 32 rows -------------------------------------------------------------------------------- */

typedef float tile_sums[2][NEXT / 8][4];         /* (32, NEXT): two times 16 rows, 8 columns a product */
typedef uint32_t left_operands[2][NEXT / 16][4]; /* the same as a left operand */

/* sum (32, NEXT) = rows · rightᵀ over all of D. */
template <typename T, int DEPTH>
__device__ __forceinline__ void multiply_both_across(tile_sums &sum, const T *rows, const T *right)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < NEXT / 8; n++)
            sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0;
#pragma unroll
    for (int step = 0; step < DEPTH / 16; step++) {
        uint32_t left[2][4];
        load_left<T, DEPTH>(left[0], rows, step);
        load_left<T, DEPTH>(left[1], rows + 16 * line_of<DEPTH>, step);
#pragma unroll
        for (int n = 0; n < NEXT / 16; n++) {
            uint32_t b[4];
            load_matrices(b,
                          right + (n * 16 + lane % 8 + lane / 16 * 8) * line_of<DEPTH> + step * 16 + lane / 8 % 2 * 8);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply<T>(sum[m][2 * n], left[m], b[0], b[1]);
                multiply<T>(sum[m][2 * n + 1], left[m], b[2], b[3]);
            }
        }
    }
}

/* sum (32, D) += left (32, NEXT) · right. */
template <typename T, int DEPTH>
__device__ __forceinline__ void multiply_both_along(float (&sum)[2][DEPTH / 8][4], const left_operands &left,
                                                    const T *right)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < NEXT / 16; n++)
#pragma unroll
        for (int w = 0; w < DEPTH / 16; w++) {
            uint32_t b[4];
            load_turned(b, right + (n * 16 + lane % 16) * line_of<DEPTH> + w * 16 + lane / 16 * 8);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply<T>(sum[m][2 * w], left[m][n], b[0], b[1]);
                multiply<T>(sum[m][2 * w + 1], left[m][n], b[2], b[3]);
            }
        }
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

/* Runs `...` with D filled up, and whether there are starts or dropout. */
#define FOR_WIDE(a, ...) \
    if ((a).depth <= 64) { \
        constexpr int DEPTH = 64; \
        if ((a).starts || (a).is_dropping) { \
            constexpr bool is_general = true; \
            __VA_ARGS__; \
        } else { \
            constexpr bool is_general = false; \
            __VA_ARGS__; \
        } \
    } else { \
        constexpr int DEPTH = 128; \
        if ((a).starts || (a).is_dropping) { \
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
