/* attention_mma.cuh: shared by attention in bf16 and f16 on tensor cores (mma.cuh): tiles of a head, masks, dropout,
 * softmax; attention in TF32 shares all but the tiles.
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

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

/* A lane's two rows: running max and sum. */
struct two_rows {
    float row_max[2], sum[2];
};

/* Masked scores become -infinity, the others are scaled. */
template <int KEYS, bool has_starts>
__device__ __forceinline__ void mask(float (*score)[4], float scale, const tile_spans &spans)
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            score[n][i] = is_visible<has_starts>(spans, n, i) ? score[n][i] * scale : -CUDART_INF_F;
}

/* Scores s become cap · tanh(s · scale / cap), as cap - 2 cap / (exp(2 s · scale / cap) + 1): cap where the exponential
 * is infinite, -cap where it is 0. Off by some 2e-7 · cap, which 16-bit weights do not show. */
template <int KEYS> __device__ __forceinline__ void cap_scores(float (*score)[4], float scale, float cap)
{
    const float factor = 2 * (float)LOG2_E * scale / cap;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            score[n][i] = cap - __fdividef(2 * cap, exp2_approx(score[n][i] * factor) + 1);
}

/* Scores become weights; `rescale` is the factor for the rows' earlier sums. The scale is positive. */
template <int KEYS>
__device__ __forceinline__ void online_softmax(float (*score)[4], float scale, two_rows &r, float *rescale)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float here = -CUDART_INF_F, part = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            here = fmaxf(here, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
        here = fmaxf(here * scale, r.row_max[half]);
        here = fmaxf(here, __shfl_xor_sync(FULL_WARP, here, 1));
        here = fmaxf(here, __shfl_xor_sync(FULL_WARP, here, 2));
        float shift = here == -CUDART_INF_F ? 0 : here;
        rescale[half] = exp2_approx(r.row_max[half] - shift);
        r.row_max[half] = here;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                score[n][i] = exp2_approx(score[n][i] * scale - shift);
                part += score[n][i];
            }
        /* this lane's keys; the row's four lanes are added at the end */
        r.sum[half] = r.sum[half] * rescale[half] + part;
    }
}

/* Zeroes dropped weights; the scale of the kept ones is applied at the end. */
template <int KEYS>
__device__ __forceinline__ void drop_weights(const attention_args &a, const source &random, float (*weight)[4],
                                             int64_t head, int64_t row, int64_t key)
{
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
        const uint32_t mask = keep_mask_by_rows(a, random, head, row, key + n * 16);
#pragma unroll
        for (int i = 0; i < 8; i++)
            weight[2 * n + i / 4][i % 4] = mask >> bit_by_rows(i / 4, i % 4) & 1 ? weight[2 * n + i / 4][i % 4] : 0;
    }
}

/* Adds up the sums of rows l / 4 and l / 4 + 8 and writes their LSE; `factor` divides the rows' results. */
__device__ __forceinline__ void finish_rows(const attention_args &a, const block_pos &at, two_rows &r, int64_t row,
                                            float *factor)
{
    const int lane = threadIdx.x % WARP;
    const head_matrix lse_head = head_of(a.lse, at.batch, at.head);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        r.sum[half] += __shfl_xor_sync(FULL_WARP, r.sum[half], 1);
        r.sum[half] += __shfl_xor_sync(FULL_WARP, r.sum[half], 2);
        int64_t t = row + lane / 4 + half * 8;
        /* no keys, or all scores -infinity: 0 */
        factor[half] = t < a.rows && r.sum[half] != 0 ? (a.is_dropping ? a.keep_scale : 1) / r.sum[half] : 0;
        if (a.lse.base && lane % 4 == 0 && t < a.rows)
            store_any(lse_head.base, lse_head.dtype, t * lse_head.row,
                      r.sum[half] == 0 ? -CUDART_INF_F : (r.row_max[half] + log2f(r.sum[half])) * (float)LN_2);
    }
}

/* ---- weights and dS of backward ---------------------------------------------------------------------------------- */

/* LSE and delta of a tile of rows from `row`: 0 beyond the last row. */
template <int TILE>
__device__ __forceinline__ void stage_row_stats(float2 *to, const attention_args &a, int64_t head, int64_t row)
{
    int64_t t = row + threadIdx.x;
    if (threadIdx.x < TILE)
        to[threadIdx.x] = t < a.rows ? ((const float2 *)a.row_stats)[head * a.rows + t] : make_float2(0, 0);
}

/* Document starts of a tile of rows, relative to the first of the block's KEYS keys: KEYS is past its last. */
template <int TILE, int KEYS>
__device__ __forceinline__ void stage_starts(int *to, const attention_args &a, int64_t batch, int64_t row, int64_t key)
{
    int64_t t = row + threadIdx.x, start = threadIdx.x < TILE && t < a.rows ? start_of(a, batch, t) - key : KEYS;
    if (threadIdx.x < TILE)
        to[threadIdx.x] = (int)(start < 0 ? 0 : start < KEYS ? start : KEYS);
}

/* Scores and dP (16 keys, a tile of rows) to dropped weights and dS, in place. `key` is the first of the keys, `own`
 * its index in the block. */
template <int TILE, bool is_dropping, bool has_starts>
__device__ __forceinline__ void ds_of_keys(const attention_args &a, const source &random, float (*score)[4],
                                           float (*dp)[4], const float2 *sums, const int *starts, int64_t head,
                                           int64_t valid, int64_t key, int first, int64_t row)
{
    const int lane = threadIdx.x % WARP, column = lane % 4 * 2;
    const float scale = (float)(a.scale * LOG2_E);
    /* own: the lane's first key, within the block */
    const int end = (int)(a.rows - row < TILE ? a.rows - row : TILE), own = first + lane / 4;
    int begin[2]; /* first column that sees each of the lane's two keys, relative to the lane's; and how many do */
    uint32_t span[2], mask[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t above = first_row_of(a, valid, key + lane / 4 + half * 8) - row;
        int at = (int)(above < 0 ? 0 : above < end ? above : end);
        begin[half] = at - column;
        span[half] = (uint32_t)(end - at);
    }
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
        if (is_dropping && n % 2 == 0)
            keep_mask_by_keys(a, random, head, row + n * 8, key, mask);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 sum = sums[n * 8 + column + i % 2];
            const bool is_started = !has_starts || starts[n * 8 + column + i % 2] <= own + i / 2 * 8;
            const float e = exp2_approx(score[n][i] * scale - sum.x),
                        p = is_started && (uint32_t)(n * 8 + i % 2 - begin[i / 2]) < span[i / 2] ? e : 0;
            const float factor = is_dropping ? drop_factor(a, mask[n % 2], bit_by_keys(i)) : 1;
            score[n][i] = factor * p;
            dp[n][i] = p == 0 ? 0 : p * (factor * dp[n][i] - sum.y);
        }
    }
}

/* Scores and dP (16 rows, a tile of keys) to dS. */
template <int TILE, bool is_dropping, bool has_starts>
__device__ __forceinline__ void ds_of_rows(const attention_args &a, const source &random, const float (*score)[4],
                                           float (*dp)[4], const float2 *sums, const tile_spans &spans, int64_t head,
                                           int64_t row, int64_t key)
{
    const float scale = (float)(a.scale * LOG2_E);
    uint32_t mask = 0;
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
        if (is_dropping && n % 2 == 0)
            mask = keep_mask_by_rows(a, random, head, row, key + n * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float e = exp2_approx(score[n][i] * scale - sums[i / 2].x),
                        p = is_visible<has_starts>(spans, n, i) ? e : 0;
            const float factor = is_dropping ? drop_factor(a, mask, bit_by_rows(n % 2, i)) : 1;
            dp[n][i] = p == 0 ? 0 : p * (factor * dp[n][i] - sums[i / 2].y);
        }
    }
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
