/* attention_mma_grad128_kv.cu: gk and gv; attention_mma_grad128.cuh has the tiles, attention_grad.cu the formulas.
 *
 * Both accumulators of 32 keys do not fit a warp's registers. So two warps share them: one computes weights (k · qᵀ)
 * and gv, the other dS (v · gᵀ) and gk. Weights are passed through shared memory, already packed as left operands, one
 * tile later: in each round the first four warps work on one tile and the last four on the one before. dS uses these
 * rounded weights. */
#include "backends/cuda/attention/attention_mma_grad128.cuh"

#define STAGES 3 /* tiles of rows: one for weights, one for dS, one in flight */
#define KEYS_THREADS (2 * MMA_THREADS)

/* Bytes of shared memory: two resident operands, tiles of two others, and two tiles of weights per pair of warps. */
template <typename T, int DEPTH>
constexpr size_t keys_bytes = (size_t)((2 * SIDE + 2 * STAGES * TILE_ROWS) * line_of<DEPTH>)*sizeof(T) +
                              2 * MMA_THREADS *VECS * sizeof(uint4);

/* ---- weights and dS ---------------------------------------------------------------------------------------------- */

/* A tile of rows as seen by a warp of keys. */
struct row_tile {
    const float *lse, *delta; /* LSE and delta of its rows */
    const int *starts;        /* document starts, relative to the block's first key */
    int64_t head;             /* over all batches */
    int row, key, valid;      /* first row, the warp's first key, and the number of valid keys */
    int all_rows_from;        /* first row that attends to all of the warp's keys */
};

/* Document start of row t, relative to the block's first key: SIDE is past its last. */
__device__ __forceinline__ int block_start_of(const attention_args &a, int64_t batch, int t, int key)
{
    const int64_t start = t < a.rows ? start_of(a, batch, t) - key : SIDE;
    return (int)(start < 0 ? 0 : start < SIDE ? start : SIDE);
}

/* True if every row of the tile attends to every key of the warp: no mask needed. */
template <bool is_general> __device__ __forceinline__ bool is_whole(const attention_args &a, const row_tile &t)
{
    const bool is_seen = t.row >= t.all_rows_from && t.row + TILE_ROWS <= (int)a.rows;
    return is_seen && (!is_general || __all_sync(FULL_WARP, t.starts[threadIdx.x % TILE_ROWS] <= t.key % SIDE));
}

/* Scores (32 keys, a tile of rows) to weights. */
template <bool is_general, bool is_masked>
__device__ __forceinline__ void weights_of_keys(const attention_args &a, tile_sums &product, const row_tile &t)
{
    const int lane = threadIdx.x % WARP, column = lane % 4 * 2;
    const float scale = (float)(a.scale * LOG2_E);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < TILE_ROWS / 8; n++) {
            const float2 lse = *(const float2 *)&t.lse[n * 8 + column];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = t.key + m * 16 + lane / 4 + i / 2 * 8, at = n * 8 + column + i % 2;
                const float p = exp2_approx(product[m][n][i] * scale - (i % 2 ? lse.y : lse.x));
                bool counts = true;
                if constexpr (is_masked)
                    counts = t.row + at >= first_row_of(a, t.valid, key) && t.row + at < a.rows &&
                             (!is_general || t.starts[at] <= key % SIDE);
                product[m][n][i] = counts ? p : 0;
            }
        }
}

/* Weights as left operands, and a copy for the other warp. */
template <typename T>
__device__ __forceinline__ void publish_weights(const tile_sums &weight, left_operands &left, uint4 *published)
{
#pragma unroll
    for (int at = 0; at < VECS; at++) {
        const int m = at / 2, n = at % 2;
        const float *one = weight[m][2 * n], *next = weight[m][2 * n + 1];
        uint32_t *words = left[m][n];
        words[0] = pack2<T>(one[0], one[1]), words[1] = pack2<T>(one[2], one[3]);
        words[2] = pack2<T>(next[0], next[1]), words[3] = pack2<T>(next[2], next[3]);
        published[at * WARP + threadIdx.x % WARP] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

/* With dropout, published weights carry the mask in their sign; in the left operand dropped ones are 0. */
template <typename T>
__device__ __forceinline__ void publish_dropped(const attention_args &a, tile_sums &weight, const row_tile &t,
                                                left_operands &left, uint4 *published)
{
    const source random = resolved(a.random);
    left_operands dropped;
#pragma unroll
    for (int at = 0; at < VECS; at++) {
        uint32_t mask[2];
        keep_mask_by_keys(a, random, t.head, t.row + at % 2 * 16, t.key + at / 2 * 16, mask);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float &p = weight[at / 2][at % 2 * 2 + i / 4][i % 4];
            p = mask[i / 4] >> bit_by_keys(i % 4) & 1 ? p : -p;
        }
    }
    publish_weights<T>(weight, dropped, published);
#pragma unroll
    for (int at = 0; at < VECS; at++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *p = &weight[at / 2][at % 2 * 2 + i / 2][i % 2 * 2];
            left[at / 2][at % 2][i] =
                pack2<T>(signbit(p[0]) ? 0 : a.keep_scale * p[0], signbit(p[1]) ? 0 : a.keep_scale * p[1]);
        }
}

/* v · gᵀ (32 keys, a tile of rows) and published weights to dS, as left operands. dS of a masked weight is 0 whatever v
 * is. */
template <typename T, bool is_masked, bool is_dropping>
__device__ __forceinline__ void make_ds(const attention_args &a, const tile_sums &product, const row_tile &t,
                                        left_operands &left, const uint4 *published)
{
    const int lane = threadIdx.x % WARP, column = lane % 4 * 2;
#pragma unroll
    for (int at = 0; at < VECS; at++) {
        const uint4 words4 = published[at * WARP + lane];
        const uint32_t words[4] = {words4.x, words4.y, words4.z, words4.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int n = at % 2 * 2 + i / 2;
            const float2 both = *(const float2 *)&t.delta[n * 8 + column];
            const float *dp = &product[at / 2][n][i % 2 * 2], deltas[2] = {both.x, both.y};
            float p[2], ds[2];
            vec<T, 2> two;
            memcpy(&two, &words[i], sizeof(two));
            widen_vec(two, p);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float factor = is_dropping ? (signbit(p[j]) ? 0 : a.keep_scale) : 1;
                ds[j] = fabsf(p[j]) * (factor * dp[j] - deltas[j]);
                if constexpr (is_masked)
                    ds[j] = p[j] == 0 ? 0 : ds[j];
            }
            left[at / 2][at % 2][i] = pack2<T>(ds[0], ds[1]);
        }
    }
}

/* Left operands of one of the two warps that share keys. */
template <typename T, bool is_general, bool can_drop>
__device__ __forceinline__ void make_left(const attention_args &a, bool is_ds_warp, tile_sums &product,
                                          const row_tile &t, left_operands &left, uint4 *published)
{
    const bool is_dropping = is_general && can_drop && a.is_dropping,
               is_unmasked = !is_dropping && is_whole<is_general>(a, t);
    if (is_ds_warp) {
        if (is_unmasked)
            make_ds<T, false, false>(a, product, t, left, published);
        else if (!is_dropping)
            make_ds<T, true, false>(a, product, t, left, published);
        else
            make_ds<T, true, true>(a, product, t, left, published);
        return;
    }
    if (is_unmasked)
        weights_of_keys<is_general, false>(a, product, t);
    else
        weights_of_keys<is_general, true>(a, product, t);
    if (is_dropping)
        publish_dropped<T>(a, product, t, left, published);
    else
        publish_weights<T>(product, left, published);
}

/* ---- kernel ------------------------------------------------------------------------------------------------------ */

/* gk and gv of 128 keys, over the rows of all heads that attend to them, in order. */
template <typename T, int DEPTH, bool is_general>
static __global__ void __launch_bounds__(KEYS_THREADS, DEPTH <= 64 ? 2 : 1)
    keys_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    __shared__ alignas(8) float delta_and_lse[STAGES][2][TILE_ROWS]; /* LSE and delta */
    __shared__ int starts[STAGES][is_general ? TILE_ROWS : 1];
    constexpr int LINE = line_of<DEPTH>, TILE = TILE_ROWS * LINE;
    T *const k_at = (T *)shared, *const v_at = k_at + SIDE * LINE, *const q_at = v_at + SIDE * LINE,
             *const g_at = q_at + STAGES * TILE;
    const int warp = threadIdx.x / WARP % MMA_WARPS;
    const bool is_ds_warp = threadIdx.x >= MMA_THREADS;
    uint4 *const published_at = (uint4 *)(g_at + STAGES * TILE) + warp * 2 * VECS * WARP;
    const block_pos at = block_pos_of(a, a.kv_heads, false);
    const int rows = (int)a.rows, valid = (int)valid_keys(a, at.batch), key = (int)at.block * SIDE,
              begin = (int)first_row_of(a, valid, key) / TILE_ROWS * TILE_ROWS;
    int end = rows;
    if constexpr (is_general) {
        __shared__ int64_t space[WARP];
        end = (int)end_of_rows(a, at.batch, begin, key + SIDE - 1, space);
    }
    const int tiles = begin < end ? (end - begin + TILE_ROWS - 1) / TILE_ROWS : 0, count = tiles * (int)a.group;
    /* the warp's first key; the first rows that attend to any and to all of its keys */
    const int warp_key = key + warp * WARP_ROWS;
    const int first_row = (int)first_row_of(a, valid, warp_key),
              all_rows_from = (int)first_row_of(a, valid, warp_key + WARP_ROWS - 1);
    const vec_column<T> q_column = column_of<T, DEPTH>(a.q, at.batch, 0, a.head_dim),
                        g_column = column_of<T, DEPTH>(a.g, at.batch, 0, a.head_dim);
    const float2 *const sums_at = (const float2 *)a.row_stats + at.batch * a.heads * a.rows;
    auto stage = [&](int slot, int head, int row) {
        const vec_column<T> q = {q_column.from + (uint64_t)(uint32_t)head * (uint32_t)a.q.stride[1], q_column.line,
                                 q_column.is_inside};
        const vec_column<T> g = {g_column.from + (uint64_t)(uint32_t)head * (uint32_t)a.g.stride[1], g_column.line,
                                 g_column.is_inside};
        stage_tile_rows<T, DEPTH, KEYS_THREADS>(q_at + slot * TILE, q, row, rows);
        stage_tile_rows<T, DEPTH, KEYS_THREADS>(g_at + slot * TILE, g, row, rows);
        const int which = threadIdx.x / TILE_ROWS, t = row + threadIdx.x % TILE_ROWS;
        const uint64_t row_index = (uint64_t)(uint32_t)head * (uint32_t)rows + (uint32_t)(t < rows ? t : 0);
        if (which < 2)
            copy_async4(&delta_and_lse[slot][which][threadIdx.x % TILE_ROWS],
                        (const float *)(sums_at + row_index) + which, t < rows);
    };
    /* of the next tile, and of the tile that the warp works on */
    int head = (int)(at.head * a.group), row = begin, warp_head = head, warp_row = begin;
    if (count > 0) {
        stage_tile<T, SIDE, DEPTH, KEYS_THREADS>(k_at, head_of(a.k, at.batch, at.head), key, valid, a.head_dim);
        stage_tile<T, SIDE, DEPTH, KEYS_THREADS>(v_at, head_of(a.v, at.batch, at.head), key, valid, a.head_dim);
        stage(0, head, row);
        if (is_general && threadIdx.x < TILE_ROWS)
            starts[0][threadIdx.x] = block_start_of(a, at.batch, row + threadIdx.x, key);
    }
    float sum[2][DEPTH / 8][4] = {};
    for (int tile = 0; count > 0 && tile <= count; tile++) {
        wait_copies();
        __syncthreads(); /* this tile has arrived, and all warps are done with the one two before */
        const int next = (tile + 1) % STAGES;
        const bool has_next = tile + 1 < count;
        int next_start = 0; /* loaded while this tile is in use */
        head += row + TILE_ROWS >= end, row = row + TILE_ROWS >= end ? begin : row + TILE_ROWS;
        if (has_next) {
            stage(next, head, row);
            if (is_general && threadIdx.x < TILE_ROWS)
                next_start = block_start_of(a, at.batch, row + threadIdx.x, key);
        }
        const int mine = tile - is_ds_warp, slot = (mine + STAGES) % STAGES;
        if (mine >= 0 && mine < count) {
            const row_tile t = {delta_and_lse[slot][0],
                                delta_and_lse[slot][1],
                                starts[slot],
                                at.batch * a.heads + warp_head,
                                warp_row,
                                warp_key,
                                valid,
                                all_rows_from};
            if (first_row < warp_row + TILE_ROWS &&
                (!is_general ||
                 __any_sync(FULL_WARP, t.starts[threadIdx.x % TILE_ROWS] < warp * WARP_ROWS + WARP_ROWS))) {
                const T *q = q_at + slot * TILE, *g = g_at + slot * TILE;
                tile_sums product;
                left_operands left;
                gemm_nt32<T, DEPTH>(product, (is_ds_warp ? v_at : k_at) + warp * WARP_ROWS * LINE, is_ds_warp ? g : q);
                make_left<T, is_general, drops_here<DEPTH>>(a, is_ds_warp, product, t, left,
                                                            published_at + mine % 2 * VECS * WARP);
                gemm_nn32<T, DEPTH>(sum, left, is_ds_warp ? q : g);
            }
            warp_head += warp_row + TILE_ROWS >= end,
                warp_row = warp_row + TILE_ROWS >= end ? begin : warp_row + TILE_ROWS;
        }
        if (is_general && has_next && threadIdx.x < TILE_ROWS)
            starts[next][threadIdx.x] = next_start;
    }
    const float factor = is_ds_warp ? (float)a.scale : 1, factors[2] = {factor, factor};
    const bhtd_tensor &to = is_ds_warp ? a.gk : a.gv;
#pragma unroll
    for (int m = 0; m < 2; m++)
        if (to.base)
            write_tile<T, DEPTH>(head_of(to, at.batch, at.head), sum[m], factors, warp_key + m * 16, a.keys, 0,
                                 a.head_dim);
}

/* Grid: a block per 128 keys of a head; 256 threads. Multiply-adds: 4 · rows · keys · D. Shared memory: 81 KB for D =
 * 64, two blocks per multiprocessor of 228 KB; 139 KB for D = 128. */
template <typename T> static bool launch(const tarn__call *call, const attention_args &a)
{
    const int64_t blocks = a.batches * a.kv_heads * a.blocks;
    FOR_GRAD128(a, return launch_large_smem<keys_kernel<T, DEPTH, is_general>, KEYS_THREADS>(call, a, blocks,
                                                                                             keys_bytes<T, DEPTH>))
}

/* True with nothing to launch, too: neither gradient needed, or no keys. */
bool tarn__cuda_attention_mma_grad128_kv(const tarn__call *call, attention_args *a)
{
    a->d_windows = 1;
    a->blocks = (a->keys + SIDE - 1) / SIDE;
    if ((!a->gk.base && !a->gv.base) || a->blocks == 0)
        return true;
    return a->q.dtype == TARN_BF16 ? launch<bf16>(call, *a) : launch<f16>(call, *a);
}
