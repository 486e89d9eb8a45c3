/* attention_mma_grad.cu: gradients of attention in bf16 and f16 on tensor cores; attention_grad.cu has the formulas,
 * attention_mma.cuh the tiles. Most heads without dropout go to attention_mma_grad128_*.cu.
 *
 * Both kernels keep 64 rows of two operands in shared memory and walk two others 32 rows at a time; accumulators and
 * weights stay in registers. Keys are the left operand where the gradients are theirs, so that weights (keys, rows) are
 * left operands as they are. Beyond D = 128 a block computes a window of 128 columns, and recomputes the weights. */
#include "backends/cuda/attention/attention_mma.cuh"

#define TILE_ROWS 32 /* rows of a double-buffered tile */

template <int DEPTH> constexpr int window_of = DEPTH <= 128 ? DEPTH : 128;
template <int DEPTH> constexpr int elements_of = (2 * MMA_ROWS + 4 * TILE_ROWS) * line_of<DEPTH>; /* of shared memory */

/* gk and gv of 64 keys, over the rows of all heads that attend to them, in order. */
template <typename T, int DEPTH, bool has_starts>
static __global__ void __launch_bounds__(MMA_THREADS) keys_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    __shared__ float2 sums[2][TILE_ROWS];
    __shared__ int starts[2][has_starts ? TILE_ROWS : 1];
    constexpr int LINE = line_of<DEPTH>, W = window_of<DEPTH>;
    T *const k_at = (T *)shared, *const v_at = k_at + MMA_ROWS * LINE, *const q_at = v_at + MMA_ROWS * LINE,
             *const g_at = q_at + 2 * TILE_ROWS * LINE;
    const int warp = threadIdx.x / WARP, mine = warp * 16 * LINE;
    const block_pos at = block_pos_of(a, a.kv_heads, false);
    const int64_t key = at.block * MMA_ROWS, column = at.d_window * W, valid = valid_keys(a, at.batch);
    const int64_t begin = first_row_of(a, valid, key) / TILE_ROWS * TILE_ROWS;
    int64_t end = a.rows;
    if constexpr (has_starts) {
        __shared__ int64_t space[WARP];
        end = end_of_rows(a, at.batch, begin, key + MMA_ROWS - 1, space);
    }
    const int64_t tiles = begin < end ? (end - begin + TILE_ROWS - 1) / TILE_ROWS : 0;
    /* first row that attends to any of the warp's keys */
    const int64_t first_row = first_row_of(a, valid, key + warp * 16);
    const source random = resolved(a.random);
    float score[TILE_ROWS / 8][4], dp[TILE_ROWS / 8][4], gk[W / 8][4] = {}, gv[W / 8][4] = {};
    auto stage = [&](int half, int64_t head, int64_t row) {
        stage_tile<T, TILE_ROWS, DEPTH>(q_at + half * TILE_ROWS * LINE, head_of(a.q, at.batch, head), row, a.rows,
                                        a.head_dim);
        stage_tile<T, TILE_ROWS, DEPTH>(g_at + half * TILE_ROWS * LINE, head_of(a.g, at.batch, head), row, a.rows,
                                        a.head_dim);
        stage_row_stats<TILE_ROWS>(sums[half], a, at.batch * a.heads + head, row);
        if constexpr (has_starts)
            stage_starts<TILE_ROWS, MMA_ROWS>(starts[half], a, at.batch, row, key);
    };
    if (tiles > 0) {
        stage_tile<T, MMA_ROWS, DEPTH>(k_at, head_of(a.k, at.batch, at.head), key, valid, a.head_dim);
        stage_tile<T, MMA_ROWS, DEPTH>(v_at, head_of(a.v, at.batch, at.head), key, valid, a.head_dim);
        stage(0, at.head * a.group, begin);
    }
    int64_t head = at.head * a.group, row = begin;
    for (int64_t tile = 0; tile < a.group * tiles; tile++) {
        const int half = (int)(tile % 2);
        const T *q = q_at + half * TILE_ROWS * LINE, *g = g_at + half * TILE_ROWS * LINE;
        wait_copies();
        __syncthreads(); /* this tile has arrived, and all warps are done with the previous one */
        const bool is_last = row + TILE_ROWS >= end;
        const int64_t next_head = is_last ? head + 1 : head, next_row = is_last ? begin : row + TILE_ROWS;
        if (tile + 1 < a.group * tiles)
            stage(1 - half, next_head, next_row);
        if (first_row < row + TILE_ROWS &&
            (!has_starts || __any_sync(FULL_WARP, starts[half][threadIdx.x % TILE_ROWS] < warp * 16 + 16))) {
            gemm_nt<T, DEPTH, TILE_ROWS>(score, k_at + mine, q);
            gemm_nt<T, DEPTH, TILE_ROWS>(dp, v_at + mine, g);
            if (a.is_dropping)
                ds_of_keys<TILE_ROWS, true, has_starts>(a, random, score, dp, sums[half], starts[half],
                                                        at.batch * a.heads + head, valid, key + warp * 16,
                                                        threadIdx.x / WARP * 16, row);
            else
                ds_of_keys<TILE_ROWS, false, has_starts>(a, random, score, dp, sums[half], starts[half],
                                                         at.batch * a.heads + head, valid, key + warp * 16,
                                                         threadIdx.x / WARP * 16, row);
            gemm_nn<T, DEPTH, TILE_ROWS, W>(gv, score, g + column);
            gemm_nn<T, DEPTH, TILE_ROWS, W>(gk, dp, q + column);
        }
        head = next_head, row = next_row;
    }
    const float one[2] = {1, 1}, scale[2] = {(float)a.scale, (float)a.scale};
    if (a.gv.base)
        write_tile<T, W>(head_of(a.gv, at.batch, at.head), gv, one, key + warp * 16, a.keys, column, a.head_dim);
    if (a.gk.base)
        write_tile<T, W>(head_of(a.gk, at.batch, at.head), gk, scale, key + warp * 16, a.keys, column, a.head_dim);
}

/* gq of 64 rows. */
template <typename T, int DEPTH, bool has_starts>
static __global__ void __launch_bounds__(MMA_THREADS, DEPTH <= 32 ? 4 : 1)
    rows_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    constexpr int LINE = line_of<DEPTH>, W = window_of<DEPTH>;
    T *const q_at = (T *)shared, *const g_at = q_at + MMA_ROWS * LINE, *const k_at = g_at + MMA_ROWS * LINE,
             *const v_at = k_at + 2 * TILE_ROWS * LINE;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, mine = warp * 16 * LINE;
    const block_pos at = block_pos_of(a, a.heads, true);
    const head_matrix k = head_of(a.k, at.batch, at.head / a.group), v = head_of(a.v, at.batch, at.head / a.group);
    const int64_t first = at.block * MMA_ROWS, last = (first + MMA_ROWS < a.rows ? first + MMA_ROWS : a.rows) - 1,
                  row = first + warp * 16;
    const int64_t valid = valid_keys(a, at.batch), keys = keys_of(a, valid, last), head = at.batch * a.heads + at.head,
                  column = at.d_window * W;
    const int64_t max_keys = keys_of(a, valid, row + 15); /* of any row of the warp */
    /* first tile of the block, and first start of the warp */
    int64_t from = 0, min_start = 0;
    const key_ranges ranges = key_ranges_of<has_starts>(a, at.batch, valid, row);
    if constexpr (has_starts) {
        __shared__ int64_t space[WARP];
        from = first_tile_of(a, at.batch, first, last, TILE_ROWS, space);
        min_start = warp_reduce<min_op>(min_op::of(ranges.start[0], ranges.start[1]));
    }
    const source random = resolved(a.random);
    float2 sums[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t t = row + lane / 4 + half * 8;
        sums[half] = t < a.rows ? ((const float2 *)a.row_stats)[head * a.rows + t] : make_float2(0, 0);
    }
    float score[TILE_ROWS / 8][4], dp[TILE_ROWS / 8][4], gq[W / 8][4] = {};
    stage_tile<T, MMA_ROWS, DEPTH>(q_at, head_of(a.q, at.batch, at.head), first, a.rows, a.head_dim);
    stage_tile<T, MMA_ROWS, DEPTH>(g_at, head_of(a.g, at.batch, at.head), first, a.rows, a.head_dim);
    stage_tile<T, TILE_ROWS, DEPTH>(k_at, k, from, keys, a.head_dim);
    stage_tile<T, TILE_ROWS, DEPTH>(v_at, v, from, keys, a.head_dim);
    for (int64_t key = from; key < keys; key += TILE_ROWS) {
        const int now = (int)((key - from) / TILE_ROWS % 2) * TILE_ROWS * LINE, next = TILE_ROWS * LINE - now;
        wait_copies();
        __syncthreads();
        if (key + TILE_ROWS < keys) {
            stage_tile<T, TILE_ROWS, DEPTH>(k_at + next, k, key + TILE_ROWS, keys, a.head_dim);
            stage_tile<T, TILE_ROWS, DEPTH>(v_at + next, v, key + TILE_ROWS, keys, a.head_dim);
        }
        if (key < max_keys && (!has_starts || key + TILE_ROWS > min_start)) {
            gemm_nt<T, DEPTH, TILE_ROWS>(score, q_at + mine, k_at + now);
            gemm_nt<T, DEPTH, TILE_ROWS>(dp, g_at + mine, v_at + now);
            if (a.is_dropping)
                ds_of_rows<TILE_ROWS, true, has_starts>(a, random, score, dp, sums, spans_of<TILE_ROWS>(ranges, key),
                                                        head, row, key);
            else
                ds_of_rows<TILE_ROWS, false, has_starts>(a, random, score, dp, sums, spans_of<TILE_ROWS>(ranges, key),
                                                         head, row, key);
            gemm_nn<T, DEPTH, TILE_ROWS, W>(gq, dp, k_at + now + column);
        }
    }
    wait_copies(); /* also without keys: copies must not outlive the block */
    const float scale[2] = {(float)a.scale, (float)a.scale};
    write_tile<T, W>(head_of(a.gq, at.batch, at.head), gq, scale, row, a.rows, column, a.head_dim);
}

/* Grid: a block per 64 keys (or rows) of a head and window of D; 128 threads. Multiply-adds: 4 and 3 · rows · keys · D;
 * forward has 2. */
template <typename T, int DEPTH, bool has_starts> static bool launch_all(const tarn__call *call, attention_args &a)
{
    constexpr size_t bytes = elements_of<DEPTH> * sizeof(T);
    a.d_windows = (a.head_dim + window_of<DEPTH> - 1) / window_of<DEPTH>;
    a.blocks = (a.keys + MMA_ROWS - 1) / MMA_ROWS;
    bool done = true;
    if ((a.gk.base || a.gv.base) && a.blocks > 0)
        done = launch_large_smem<keys_kernel<T, DEPTH, has_starts>>(
            call, a, a.batches * a.kv_heads * a.blocks * a.d_windows, bytes);
    a.blocks = (a.rows + MMA_ROWS - 1) / MMA_ROWS;
    if (done && a.gq.base && a.blocks > 0)
        done = launch_large_smem<rows_kernel<T, DEPTH, has_starts>>(
            call, a, a.batches * a.heads * a.blocks * a.d_windows, bytes);
    return done;
}

template <typename T, int DEPTH> static bool launch(const tarn__call *call, attention_args &a)
{
    return a.document_starts ? launch_all<T, DEPTH, true>(call, a) : launch_all<T, DEPTH, false>(call, a);
}

/* D rounded up. */
template <typename T> static bool launch_any(const tarn__call *call, attention_args &a)
{
    if (a.head_dim <= 32)
        return launch<T, 32>(call, a);
    if (a.head_dim <= 64)
        return launch<T, 64>(call, a);
    if (a.head_dim <= 96)
        return launch<T, 96>(call, a);
    return a.head_dim <= 128 ? launch<T, 128>(call, a) : launch<T, 256>(call, a);
}

/* per head: fewer leave most of a tile empty, and get f32 precision without tensor cores */
#define MIN_WEIGHTS (64 * 64)

bool tarn__cuda_attention_mma_grad_fits(const tarn__call *call)
{
    const tarn__view *q = call->in[0], *k = call->in[1];
    tarn_dtype dtype = q->dtype;
    bool fits = (dtype == TARN_BF16 || dtype == TARN_F16) && q->shape[3] % 8 == 0 && q->shape[3] <= 256 &&
                q->shape[2] * k->shape[2] >= MIN_WEIGHTS && !has_softcap(call) && has_vector_rows(call->in[6], dtype);
    for (int i = 0; i < 3; i++)
        fits = fits && has_vector_rows(call->in[i], dtype) && is_writable(call->out[i], dtype);
    return fits;
}

/* Tries the 128-row kernels first: they are faster for the head sizes of most models. */
bool tarn__cuda_attention_mma_grad(const tarn__call *call, attention_args *a)
{
    tarn_dtype dtype = a->q.dtype;
    if (tarn__cuda_attention_mma_grad128(call, a))
        return true;
    return dtype == TARN_BF16 ? launch_any<bf16>(call, *a) : launch_any<f16>(call, *a);
}
