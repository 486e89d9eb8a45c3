/* attention_mma_grad128_q.cu: gq, and the choice of these kernels; attention_mma_grad128.cuh has the tiles,
 * attention_grad.cu the formulas. */
#include "backends/cuda/attention/attention_mma_grad128.cuh"

/* Bytes of shared memory: two resident operands, and double-buffered tiles of two others. */
template <typename T, int DEPTH>
constexpr size_t rows_bytes = (size_t)((2 * SIDE + 4 * TILE_ROWS) * line_of<DEPTH>)*sizeof(T);

/* A lane's four rows: l / 4, and 8, 16 and 24 further. */
struct four_rows {
    float2 stats[4]; /* LSE and delta */
    int start[4];    /* first visible key */
};

/* Rows beyond the last have zero statistics and see no key. */
template <bool is_general>
__device__ __forceinline__ four_rows four_rows_of(const attention_args &a, int64_t batch, int64_t head, int row)
{
    four_rows r = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t t = row + threadIdx.x % WARP / 4 + i * 8;
        if (t >= a.rows)
            continue;
        r.stats[i] = ((const float2 *)a.row_stats)[head * a.rows + t];
        if constexpr (is_general)
            r.start[i] = (int)start_of(a, batch, t);
    }
    return r;
}

/* Scores (32 rows, a tile of keys) to weights. */
template <bool is_general, bool is_masked>
__device__ __forceinline__ void weights_of_rows(const attention_args &a, tile_sums &product, const four_rows &r,
                                                int row, int valid, int key)
{
    const int column = threadIdx.x % 4 * 2;
    const float scale = (float)(a.scale * LOG2_E);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < TILE_ROWS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int of = 2 * m + i / 2, at = key + n * 8 + column + i % 2;
                const float p = exp2_approx(product[m][n][i] * scale - r.stats[of].x);
                bool counts = true;
                if constexpr (is_masked)
                    counts = at < keys_of(a, valid, row + threadIdx.x % WARP / 4 + of * 8) &&
                             (!is_general || at >= r.start[of]);
                product[m][n][i] = counts ? p : 0;
            }
}

/* Weights and dP to dS, as left operands. */
template <typename T, bool is_masked, bool is_dropping>
__device__ __forceinline__ void make_row_ds(const attention_args &a, const tile_sums &weight, const tile_sums &dp,
                                            const four_rows &r, int64_t head, int row, int key, left_operands &left)
{
#pragma unroll
    for (int at = 0; at < VECS; at++) {
        const int m = at / 2;
        const uint32_t mask =
            is_dropping ? keep_mask_by_rows(a, resolved(a.random), head, row + m * 16, key + at % 2 * 16) : 0;
        float ds[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int n = at % 2 * 2 + i / 4;
            const float p = weight[m][n][i % 4],
                        factor = is_dropping ? drop_factor(a, mask, bit_by_rows(i / 4, i % 4)) : 1;
            ds[i] = p * (factor * dp[m][n][i % 4] - r.stats[2 * m + i % 4 / 2].y);
            if constexpr (is_masked)
                ds[i] = p == 0 ? 0 : ds[i];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            left[m][at % 2][i] = pack2<T>(ds[2 * i], ds[2 * i + 1]);
    }
}

/* gq of 128 rows. */
template <typename T, int DEPTH, bool is_general>
static __global__ void __launch_bounds__(MMA_THREADS, DEPTH <= 64 ? 3 : 2)
    rows_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    constexpr int LINE = line_of<DEPTH>, TILE = TILE_ROWS * LINE;
    T *const q_at = (T *)shared, *const g_at = q_at + SIDE * LINE, *const k_at = g_at + SIDE * LINE,
             *const v_at = k_at + 2 * TILE;
    const int warp = threadIdx.x / WARP;
    const block_pos at = block_pos_of(a, a.heads, true);
    const vec_column<T> k = column_of<T, DEPTH>(a.k, at.batch, at.head / a.group, a.head_dim),
                        v = column_of<T, DEPTH>(a.v, at.batch, at.head / a.group, a.head_dim);
    const int rows = (int)a.rows, first = (int)at.block * SIDE, last = (first + SIDE < rows ? first + SIDE : rows) - 1,
              row = first + warp * WARP_ROWS;
    const int valid = (int)valid_keys(a, at.batch), keys = (int)keys_of(a, valid, last);
    /* visible keys: of any row of the warp, and of all */
    const int max_keys = row < rows ? (int)keys_of(a, valid, row + WARP_ROWS - 1) : 0,
              min_keys = (int)keys_of(a, valid, row);
    const int64_t head = at.batch * a.heads + at.head;
    const four_rows r = four_rows_of<is_general>(a, at.batch, head, row);
    int from = 0, min_start = 0, max_start = 0; /* first tile of the block; first and last start of the warp */
    if constexpr (is_general) {
        __shared__ int64_t space[WARP];
        from = (int)first_tile_of(a, at.batch, first, last, TILE_ROWS, space);
        min_start = __reduce_min_sync(FULL_WARP, min(min(r.start[0], r.start[1]), min(r.start[2], r.start[3])));
        max_start = __reduce_max_sync(FULL_WARP, max(max(r.start[0], r.start[1]), max(r.start[2], r.start[3])));
    }
    float gq[2][DEPTH / 8][4] = {};
    stage_tile<T, SIDE, DEPTH>(q_at, head_of(a.q, at.batch, at.head), first, rows, a.head_dim);
    stage_tile<T, SIDE, DEPTH>(g_at, head_of(a.g, at.batch, at.head), first, rows, a.head_dim);
    stage_tile_rows<T, DEPTH, MMA_THREADS>(k_at, k, from, keys);
    stage_tile_rows<T, DEPTH, MMA_THREADS>(v_at, v, from, keys);
    for (int key = from; key < keys; key += TILE_ROWS) {
        const int now = (key - from) / TILE_ROWS % 2 * TILE, next = TILE - now;
        wait_copies();
        __syncthreads(); /* this tile has arrived, and all warps are done with the previous one */
        if (key + TILE_ROWS < keys) {
            stage_tile_rows<T, DEPTH, MMA_THREADS>(k_at + next, k, key + TILE_ROWS, keys);
            stage_tile_rows<T, DEPTH, MMA_THREADS>(v_at + next, v, key + TILE_ROWS, keys);
        }
        if (key >= max_keys || (is_general && key + TILE_ROWS <= min_start))
            continue;
        const bool is_dropping = is_general && drops_here<DEPTH> && a.is_dropping;
        const bool is_unmasked = !is_dropping && key + TILE_ROWS <= min_keys && (!is_general || key >= max_start);
        tile_sums weight, dp;
        left_operands left;
        gemm_nt32<T, DEPTH>(weight, q_at + warp * WARP_ROWS * LINE, k_at + now);
        if (is_unmasked)
            weights_of_rows<is_general, false>(a, weight, r, row, valid, key);
        else
            weights_of_rows<is_general, true>(a, weight, r, row, valid, key);
        gemm_nt32<T, DEPTH>(dp, g_at + warp * WARP_ROWS * LINE, v_at + now);
        if (is_unmasked)
            make_row_ds<T, false, false>(a, weight, dp, r, head, row, key, left);
        else if (!is_dropping)
            make_row_ds<T, true, false>(a, weight, dp, r, head, row, key, left);
        else
            make_row_ds<T, true, true>(a, weight, dp, r, head, row, key, left);
        gemm_nn32<T, DEPTH>(gq, left, k_at + now);
    }
    wait_copies(); /* also without keys: copies must not outlive the block */
    const float scale[2] = {(float)a.scale, (float)a.scale};
#pragma unroll
    for (int m = 0; m < 2; m++)
        write_tile<T, DEPTH>(head_of(a.gq, at.batch, at.head), gq[m], scale, row + m * 16, rows, 0, a.head_dim);
}

/* Grid: a block per 128 rows of a head; 128 threads. Multiply-adds: 3 · rows · keys · D. Shared memory: 55 KB for D =
 * 64, three blocks per multiprocessor of 228 KB; 104 KB for D = 128, two. */
template <typename T> static bool launch(const tarn__call *call, attention_args &a)
{
    a.blocks = (a.rows + SIDE - 1) / SIDE;
    if (!a.gq.base || a.blocks == 0)
        return true;
    const int64_t blocks = a.batches * a.heads * a.blocks;
    FOR_GRAD128(a, return launch_large_smem<rows_kernel<T, DEPTH, is_general>>(call, a, blocks, rows_bytes<T, DEPTH>))
}

static bool has_int32_strides(const bhtd_tensor &x)
{
    return x.stride[1] >= 0 && x.stride[1] <= INT32_MAX && x.stride[2] >= 0 && x.stride[2] <= INT32_MAX;
}

#define MAX_ROWS (1 << 30) /* row and key indices, and those just past them, fit 32 bits */

/* False before anything is launched, unless the device lacks the shared memory: the caller then computes all gradients
 * again. */
bool tarn__cuda_attention_mma_grad128(const tarn__call *call, attention_args *a)
{
    const bool is_supported = (a->head_dim > 32 && a->head_dim <= 64) || (a->head_dim > 96 && a->head_dim <= 128);
    const bool is_slower = a->is_dropping && a->head_dim <= 64 && !drops_here<64>;
    const bool have_int32_strides =
        has_int32_strides(a->q) && has_int32_strides(a->k) && has_int32_strides(a->v) && has_int32_strides(a->g);
    if (!is_supported || is_slower || !have_int32_strides || a->rows > MAX_ROWS || a->keys > MAX_ROWS ||
        a->rows / TILE_ROWS * a->group >= MAX_ROWS)
        return false;
    return tarn__cuda_attention_mma_grad128_kv(call, a) &&
           (a->q.dtype == TARN_BF16 ? launch<bf16>(call, *a) : launch<f16>(call, *a));
}
