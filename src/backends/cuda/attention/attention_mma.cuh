/* attention_mma.cuh: shared by attention in bf16 and f16 on tensor cores (mma.cuh): tiles of a head, masks, dropout.
 *
 * Two adjacent (16, 8) accumulators of weights, narrowed, are a left operand as they are: weights never leave the
 * registers. */
#ifndef TARN__CUDA_ATTENTION_MMA_CUH
#define TARN__CUDA_ATTENTION_MMA_CUH

#include "backends/cuda/attention/attention_documents.cuh"
#include "backends/cuda/common/mma.cuh"

/* 2^x by the special function unit; 2 ulp, subnormals flushed. */
__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* Copies ROWS rows from `row` of x, D columns; rows from `rows` on are 0. */
template <typename T, int ROWS, int DEPTH, int THREADS_OF_BLOCK = MMA_THREADS>
__device__ __forceinline__ void stage_tile(T *to, const head_matrix &x, int64_t row, int64_t rows, int64_t head_dim)
{
    stage_lines<T, ROWS, DEPTH, THREADS_OF_BLOCK>(to, (const T *)x.base, x.row, row, rows, head_dim);
}

/* Writes a warp's (16, W) accumulators, scaled per row (l / 4 and l / 4 + 8), to columns from `column`; the result is T
 * or f32. */
template <typename T, int W>
__device__ __forceinline__ void write_tile(const head_matrix &to, const float (*sum)[4], const float *factor,
                                           int64_t row, int64_t rows, int64_t column, int64_t head_dim)
{
    const int lane = threadIdx.x % WARP;
    const bool is_paired = to.column == 1 && to.row % 2 == 0 && (uintptr_t)to.base % 4 == 0 &&
                           to.dtype == (is_bf16<T> ? TARN_BF16 : TARN_F16);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t i = row + lane / 4 + half * 8;
        if (i >= rows)
            continue;
#pragma unroll
        for (int w = 0; w < W / 8; w++) {
            int64_t j = column + w * 8 + lane % 4 * 2; /* D is a multiple of 8 */
            float x = sum[w][2 * half] * factor[half], y = sum[w][2 * half + 1] * factor[half];
            if (j >= head_dim)
                continue;
            if (is_paired) {
                *(uint32_t *)((T *)to.base + i * to.row + j) = pack2<T>(x, y);
            } else if (to.dtype == TARN_F32) {
                ((float *)to.base)[i * to.row + j * to.column] = x;
                ((float *)to.base)[i * to.row + (j + 1) * to.column] = y;
            } else {
                ((T *)to.base)[i * to.row + j * to.column] = narrow<T>(x);
                ((T *)to.base)[i * to.row + (j + 1) * to.column] = narrow<T>(y);
            }
        }
    }
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* Visible keys of a lane's two rows: start <= key < end. */
struct key_ranges {
    int64_t start[2], end[2];
};

/* Ranges of rows l / 4 and l / 4 + 8 from `row`; empty beyond the last row. */
template <bool has_starts>
__device__ __forceinline__ key_ranges key_ranges_of(const attention_args &a, int64_t batch, int64_t valid, int64_t row)
{
    key_ranges r = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t t = row + threadIdx.x % WARP / 4 + half * 8;
        if (t >= a.rows)
            continue;
        r.end[half] = keys_of(a, valid, t);
        if constexpr (has_starts)
            r.start[half] = start_of(a, batch, t);
    }
    return r;
}

/* The same within a tile of N keys from `key`, relative to the lane's first column. */
struct tile_spans {
    int begin[2], end[2];
};

/* Clamped to the tile, as 32-bit column numbers: comparisons are cheap in the inner loop. */
template <int N> __device__ __forceinline__ tile_spans spans_of(const key_ranges &r, int64_t key)
{
    const int column = threadIdx.x % 4 * 2;
    tile_spans s;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t begin = r.start[half] - key, end = r.end[half] - key;
        s.begin[half] = (int)(begin < 0 ? 0 : begin < N ? begin : N) - column;
        s.end[half] = (int)(end < N ? end : N) - column;
    }
    return s;
}

/* True if value i of accumulator n is visible. */
template <bool has_starts> __device__ __forceinline__ bool is_visible(const tile_spans &s, int n, int i)
{
    return n * 8 + i % 2 < s.end[i / 2] && (!has_starts || n * 8 + i % 2 >= s.begin[i / 2]);
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

/* A lane needs the dropout of a few rows, 8 keys per counter, and shares them with other lanes: each draws one counter,
 * and they combine the masks. */

/* The mask bit of value i of accumulator m, of two adjacent ones. */
__device__ __forceinline__ constexpr int bit_by_rows(int m, int i)
{
    return 8 * (i / 2 + 2 * m) + i % 2;
}
__device__ __forceinline__ constexpr int bit_by_keys(int i)
{
    return 8 * (i / 2 + 2 * (i % 2));
}

/* For two (16 rows, 8 keys) accumulators from `row` and `key`: four lanes share two rows and 16 keys. */
__device__ __forceinline__ uint32_t keep_mask_by_rows(const attention_args &a, const source &random, int64_t head,
                                                      int64_t row, int64_t key)
{
    const int lane = threadIdx.x % WARP, mine = lane % 4;
    uint32_t mask = keep_mask8(a, random, head * a.rows + row + lane / 4 + mine % 2 * 8, key + mine / 2 * 8)
                    << 8 * mine;
    mask |= __shfl_xor_sync(FULL_WARP, mask, 1);
    mask |= __shfl_xor_sync(FULL_WARP, mask, 2);
    return mask >> 2 * mine;
}

/* For two (16 keys, 8 rows) accumulators: eight lanes share four rows, two of each, and 16 keys. */
__device__ __forceinline__ void keep_mask_by_keys(const attention_args &a, const source &random, int64_t head,
                                                  int64_t row, int64_t key, uint32_t *mask)
{
    const int lane = threadIdx.x % WARP, mine = lane / 4;
    const int64_t row_index = head * a.rows + row + mine / 4 * 8 + lane % 4 * 2 + mine / 2 % 2;
    uint32_t own = keep_mask8(a, random, row_index, key + mine % 2 * 8) << mine % 4 * 8, other;
    own |= __shfl_xor_sync(FULL_WARP, own, 4);
    own |= __shfl_xor_sync(FULL_WARP, own, 8);
    other = __shfl_xor_sync(FULL_WARP, own, 16);
    mask[0] = (mine < 4 ? own : other) >> mine;
    mask[1] = (mine < 4 ? other : own) >> mine;
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* True for rows of aligned 16-byte vectors. */
static inline bool has_vector_rows(const tarn__view *x, tarn_dtype dtype)
{
    bool fits = x->dtype == dtype && x->stride[3] == 1 && is_aligned(tarn__view_at(x), 16);
    for (int i = 0; i < 3; i++)
        fits = fits && (x->shape[i] <= 1 || x->stride[i] % 8 == 0);
    return fits;
}

/* True if write_tile() can write the view; NULL: nothing to write. */
static inline bool is_writable(const tarn__view *x, tarn_dtype dtype)
{
    return !x || x->dtype == dtype || x->dtype == TARN_F32;
}

/* Runs `...` with D rounded up to a supported size. */
#define FOR_DEPTH(head_dim, ...) \
    if ((head_dim) <= 32) { \
        constexpr int DEPTH = 32; \
        __VA_ARGS__; \
    } else if ((head_dim) <= 64) { \
        constexpr int DEPTH = 64; \
        __VA_ARGS__; \
    } else if ((head_dim) <= 96) { \
        constexpr int DEPTH = 96; \
        __VA_ARGS__; \
    } else if ((head_dim) <= 128) { \
        constexpr int DEPTH = 128; \
        __VA_ARGS__; \
    } else { \
        constexpr int DEPTH = 256; \
        __VA_ARGS__; \
    }

#endif
