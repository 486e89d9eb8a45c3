/* attention_mma_grad128_q.cu: gq, and the choice of these kernels; attention_mma_grad128.cuh has the tiles,
 * attention_grad.cu the formulas. */
#include "backends/cuda/attention/attention_mma_grad128.cuh"

/* Of shared memory: two operands that stay, and tiles of two others. */
template <typename T, int DEPTH>
constexpr size_t rows_bytes = (size_t)((2 * SIDE + 4 * NEXT) * line_of<DEPTH>)*sizeof(T);

/* A lane's four rows: l / 4, and 8, 16 and 24 further. */
struct four_rows {
    float2 sums[4]; /* the logarithm and Σ g · y */
    int start[4];   /* the first key that they look at */
};

template <bool is_general>
__device__ __forceinline__ four_rows rows_of(const attention_args &a, int64_t batch, int64_t head, int row)
{
    four_rows r = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t t = row + threadIdx.x % WARP / 4 + i * 8;
        if (t >= a.rows)
            continue;
        r.sums[i] = ((const float2 *)a.rows_sums)[head * a.rows + t];
        if constexpr (is_general)
            r.start[i] = (int)start_of(a, batch, t);
    }
    return r;
}

/* Products (32 rows, NEXT keys) become weights. */
template <bool is_general, bool is_masked>
__device__ __forceinline__ void weigh_rows(const attention_args &a, tile_sums &product, const four_rows &r, int row,
                                           int valid, int key)
{
    const int column = threadIdx.x % 4 * 2;
    const float scale = (float)(a.scale * LOG2_E);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < NEXT / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int of = 2 * m + i / 2, at = key + n * 8 + column + i % 2;
                const float p = power_of_2(product[m][n][i] * scale - r.sums[of].x);
                bool counts = true;
                if constexpr (is_masked)
                    counts = at < keys_of(a, valid, row + threadIdx.x % WARP / 4 + of * 8) &&
                             (!is_general || at >= r.start[of]);
                product[m][n][i] = counts ? p : 0;
            }
}

/* Weights and g · vᵀ become slopes, as left operands. */
template <typename T, bool is_masked, bool is_dropping>
__device__ __forceinline__ void make_row_slopes(const attention_args &a, const tile_sums &weight, const tile_sums &pull,
                                                const four_rows &r, int64_t head, int row, int key, left_operands &left)
{
#pragma unroll
    for (int at = 0; at < PACKS; at++) {
        const int m = at / 2;
        const uint32_t kept =
            is_dropping ? kept_by_rows(a, settled(a.random), head, row + m * 16, key + at % 2 * 16) : 0;
        float slope[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int n = at % 2 * 2 + i / 4;
            const float p = weight[m][n][i % 4],
                        factor = is_dropping ? drop_factor(a, kept, bit_by_rows(i / 4, i % 4)) : 1;
            slope[i] = p * (factor * pull[m][n][i % 4] - r.sums[2 * m + i % 4 / 2].y);
            if constexpr (is_masked)
                slope[i] = p == 0 ? 0 : slope[i];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            left[m][at % 2][i] = two_of<T>(slope[2 * i], slope[2 * i + 1]);
    }
}

/* gq of 128 rows. */
template <typename T, int DEPTH, bool is_general>
static __global__ void __launch_bounds__(MMA_THREADS, DEPTH <= 64 ? 3 : 2)
    rows_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    constexpr int LINE = line_of<DEPTH>, TILE = NEXT * LINE;
    T *const q_at = (T *)shared, *const g_at = q_at + SIDE * LINE, *const k_at = g_at + SIDE * LINE,
             *const v_at = k_at + 2 * TILE;
    const int warp = threadIdx.x / WARP;
    const block_place at = place_of(a, a.heads, true);
    const pack_column<T> k = column_of<T, DEPTH>(a.k, at.batch, at.head / a.group, a.depth),
                         v = column_of<T, DEPTH>(a.v, at.batch, at.head / a.group, a.depth);
    const int rows = (int)a.rows, first = (int)at.block * SIDE, last = (first + SIDE < rows ? first + SIDE : rows) - 1,
              row = first + warp * OWN;
    const int valid = (int)valid_keys(a, at.batch), keys = (int)keys_of(a, valid, last);
    /* by any row of the warp, by all */
    const int most_seen = row < rows ? (int)keys_of(a, valid, row + OWN - 1) : 0,
              least_seen = (int)keys_of(a, valid, row);
    const int64_t head = at.batch * a.heads + at.head;
    const four_rows r = rows_of<is_general>(a, at.batch, head, row);
    int from = 0, least_start = 0, most_start = 0; /* of any row of the block, in whole tiles, and of the warp */
    if constexpr (is_general) {
        __shared__ int64_t space[WARP];
        from = (int)first_tile_of(a, at.batch, first, last, NEXT, space);
        least_start = __reduce_min_sync(FULL_WARP, min(min(r.start[0], r.start[1]), min(r.start[2], r.start[3])));
        most_start = __reduce_max_sync(FULL_WARP, max(max(r.start[0], r.start[1]), max(r.start[2], r.start[3])));
    }
    float gq[2][DEPTH / 8][4] = {};
    stage_tile<T, SIDE, DEPTH>(q_at, slab_of(a.q, at.batch, at.head), first, rows, a.depth);
    stage_tile<T, SIDE, DEPTH>(g_at, slab_of(a.g, at.batch, at.head), first, rows, a.depth);
    stage_next<T, DEPTH, MMA_THREADS>(k_at, k, from, keys);
    stage_next<T, DEPTH, MMA_THREADS>(v_at, v, from, keys);
    for (int key = from; key < keys; key += NEXT) {
        const int now = (key - from) / NEXT % 2 * TILE, next = TILE - now;
        wait_copies();
        __syncthreads(); /* this tile is here, and all are done with the one before */
        if (key + NEXT < keys) {
            stage_next<T, DEPTH, MMA_THREADS>(k_at + next, k, key + NEXT, keys);
            stage_next<T, DEPTH, MMA_THREADS>(v_at + next, v, key + NEXT, keys);
        }
        if (key >= most_seen || (is_general && key + NEXT <= least_start))
            continue;
        const bool is_dropping = is_general && drops_wide<DEPTH> && a.is_dropping;
        const bool is_plain = !is_dropping && key + NEXT <= least_seen && (!is_general || key >= most_start);
        tile_sums weight, pull;
        left_operands left;
        multiply_both_across<T, DEPTH>(weight, q_at + warp * OWN * LINE, k_at + now);
        if (is_plain)
            weigh_rows<is_general, false>(a, weight, r, row, valid, key);
        else
            weigh_rows<is_general, true>(a, weight, r, row, valid, key);
        multiply_both_across<T, DEPTH>(pull, g_at + warp * OWN * LINE, v_at + now);
        if (is_plain)
            make_row_slopes<T, false, false>(a, weight, pull, r, head, row, key, left);
        else if (!is_dropping)
            make_row_slopes<T, true, false>(a, weight, pull, r, head, row, key, left);
        else
            make_row_slopes<T, true, true>(a, weight, pull, r, head, row, key, left);
        multiply_both_along<T, DEPTH>(gq, left, k_at + now);
    }
    wait_copies(); /* also where there is no key */
    const float scale[2] = {(float)a.scale, (float)a.scale};
#pragma unroll
    for (int m = 0; m < 2; m++)
        write_tile<T, DEPTH>(slab_of(a.gq, at.batch, at.head), gq[m], scale, row + m * 16, rows, 0, a.depth);
}

/* Grid: a block for 128 rows of a head. Multiplications: rows · keys · D · 3. Of shared memory 55 KB for D = 64, so
 * that three blocks fit on a multiprocessor of 228 KB, and 104 KB for D = 128, two. */
template <typename T> static bool launch(const tarn__call *call, attention_args &a)
{
    a.blocks = (a.rows + SIDE - 1) / SIDE;
    if (!a.gq.base || a.blocks == 0)
        return true;
    const int64_t blocks = a.batches * a.heads * a.blocks;
    FOR_WIDE(a, return start<rows_kernel<T, DEPTH, is_general>>(call, a, blocks, rows_bytes<T, DEPTH>))
}

static bool is_near(const cube &x)
{
    return x.stride[1] >= 0 && x.stride[1] <= INT32_MAX && x.stride[2] >= 0 && x.stride[2] <= INT32_MAX;
}

#define MOST_ROWS (1 << 30) /* so that places of rows and keys, and of what is behind them, are of 32 bits */

bool tarn__cuda_attention_mma_grad128(const tarn__call *call, attention_args *a)
{
    const bool is_wide = (a->depth > 32 && a->depth <= 64) || (a->depth > 96 && a->depth <= 128);
    const bool is_too_dear = a->is_dropping && a->depth <= 64 && !drops_wide<64>;
    const bool are_near = is_near(a->q) && is_near(a->k) && is_near(a->v) && is_near(a->g);
    if (!is_wide || is_too_dear || !are_near || a->rows > MOST_ROWS || a->keys > MOST_ROWS ||
        a->rows / NEXT * a->group >= MOST_ROWS)
        return false;
    return tarn__cuda_attention_mma_grad128_kv(call, a) &&
           (a->q.dtype == TARN_BF16 ? launch<bf16>(call, *a) : launch<f16>(call, *a));
}
