/* attention_mma_grad.cu: the gradients of attention in bf16 and f16 on tensor cores; attention_grad.cu has the
 * formulas, attention_mma.cuh the tiles. Most heads without dropout are attention_wide_*.cu's.
 *
 * Both kernels keep 64 rows of two operands in shared memory and go through two others 32 rows at a time; products and
 * weights stay in registers. Keys are on the left where the gradients are theirs, so that weights (keys, rows) are left
 * operands as they lie. Beyond D = 128 a block makes a window of 128 columns, and the weights again. */
#include "backends/cuda/attention/attention_mma.cuh"

#define NEXT 32 /* rows of a tile that comes and goes */

template <int DEPTH> constexpr int window_of = DEPTH <= 128 ? DEPTH : 128;
template <int DEPTH> constexpr int elements_of = (2 * MMA_ROWS + 4 * NEXT) * line_of<DEPTH>; /* of shared memory */

/* The sums of NEXT rows from `row` of a head: 0 where there are no rows. */
__device__ __forceinline__ void stage_sums(float2 *to, const attention_args &a, int64_t head, int64_t row)
{
    int64_t t = row + threadIdx.x;
    if (threadIdx.x < NEXT)
        to[threadIdx.x] = t < a.rows ? ((const float2 *)a.rows_sums)[head * a.rows + t] : make_float2(0, 0);
}

/* Where NEXT rows from `row` begin, from the block's first key on: MMA_ROWS is behind its last. */
__device__ __forceinline__ void stage_starts(int *to, const attention_args &a, int64_t batch, int64_t row, int64_t key)
{
    int64_t t = row + threadIdx.x, start = threadIdx.x < NEXT && t < a.rows ? start_of(a, batch, t) - key : MMA_ROWS;
    if (threadIdx.x < NEXT)
        to[threadIdx.x] = (int)(start < 0 ? 0 : start < MMA_ROWS ? start : MMA_ROWS);
}

/* Products and g · vᵀ (16 keys, NEXT rows) from `key` and `row` become weights, as they are dropped, and slopes. */
template <bool is_dropping, bool has_starts>
__device__ __forceinline__ void key_slopes(const attention_args &a, const source &random, float (*score)[4],
                                           float (*pull)[4], const float2 *sums, const int *starts, int64_t head,
                                           int64_t valid, int64_t key, int64_t row)
{
    const int lane = threadIdx.x % WARP, column = lane % 4 * 2;
    const float scale = (float)(a.scale * LOG2_E);
    /* the first of the lane's keys, in the block */
    const int end = (int)(a.rows - row < NEXT ? a.rows - row : NEXT), own = threadIdx.x / WARP * 16 + lane / 4;
    int begin[2]; /* of the columns that see each of the lane's two keys, from the lane's own, and how many there are */
    uint32_t span[2], kept[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t first = first_row_of(a, valid, key + lane / 4 + half * 8) - row;
        int at = (int)(first < 0 ? 0 : first < end ? first : end);
        begin[half] = at - column;
        span[half] = (uint32_t)(end - at);
    }
#pragma unroll
    for (int n = 0; n < NEXT / 8; n++) {
        if (is_dropping && n % 2 == 0)
            kept_by_keys(a, random, head, row + n * 8, key, kept);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 sum = sums[n * 8 + column + i % 2];
            const bool is_begun = !has_starts || starts[n * 8 + column + i % 2] <= own + i / 2 * 8;
            const float e = power_of_2(score[n][i] * scale - sum.x),
                        p = is_begun && (uint32_t)(n * 8 + i % 2 - begin[i / 2]) < span[i / 2] ? e : 0;
            const float factor = is_dropping ? drop_factor(a, kept[n % 2], bit_by_keys(i)) : 1;
            score[n][i] = factor * p;
            pull[n][i] = p == 0 ? 0 : p * (factor * pull[n][i] - sum.y);
        }
    }
}

/* gk and gv of 64 keys, over the rows of all heads that look at them, in order. */
template <typename T, int DEPTH, bool has_starts>
static __global__ void __launch_bounds__(MMA_THREADS) keys_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    __shared__ float2 sums[2][NEXT];
    __shared__ int starts[2][has_starts ? NEXT : 1];
    constexpr int LINE = line_of<DEPTH>, W = window_of<DEPTH>;
    T *const k_at = (T *)shared, *const v_at = k_at + MMA_ROWS * LINE, *const q_at = v_at + MMA_ROWS * LINE,
             *const g_at = q_at + 2 * NEXT * LINE;
    const int warp = threadIdx.x / WARP, mine = warp * 16 * LINE;
    const block_place at = place_of(a, a.kv_heads, false);
    const int64_t key = at.block * MMA_ROWS, column = at.window * W, valid = valid_keys(a, at.batch);
    const int64_t begin = first_row_of(a, valid, key) / NEXT * NEXT;
    int64_t end = a.rows;
    if constexpr (has_starts) {
        __shared__ int64_t space[WARP];
        end = end_of_rows(a, at.batch, begin, key + MMA_ROWS - 1, space);
    }
    const int64_t tiles = begin < end ? (end - begin + NEXT - 1) / NEXT : 0;
    /* the first row that looks at any of the warp's keys */
    const int64_t seen_from = first_row_of(a, valid, key + warp * 16);
    const source random = settled(a.random);
    float score[NEXT / 8][4], pull[NEXT / 8][4], gk[W / 8][4] = {}, gv[W / 8][4] = {};
    auto stage = [&](int half, int64_t head, int64_t row) {
        stage_tile<T, NEXT, DEPTH>(q_at + half * NEXT * LINE, slab_of(a.q, at.batch, head), row, a.rows, a.depth);
        stage_tile<T, NEXT, DEPTH>(g_at + half * NEXT * LINE, slab_of(a.g, at.batch, head), row, a.rows, a.depth);
        stage_sums(sums[half], a, at.batch * a.heads + head, row);
        if constexpr (has_starts)
            stage_starts(starts[half], a, at.batch, row, key);
    };
    if (tiles > 0) {
        stage_tile<T, MMA_ROWS, DEPTH>(k_at, slab_of(a.k, at.batch, at.head), key, valid, a.depth);
        stage_tile<T, MMA_ROWS, DEPTH>(v_at, slab_of(a.v, at.batch, at.head), key, valid, a.depth);
        stage(0, at.head * a.group, begin);
    }
    int64_t head = at.head * a.group, row = begin;
    for (int64_t tile = 0; tile < a.group * tiles; tile++) {
        const int half = (int)(tile % 2);
        const T *q = q_at + half * NEXT * LINE, *g = g_at + half * NEXT * LINE;
        wait_copies();
        __syncthreads(); /* this tile is here, and all are done with the one before */
        const bool is_last = row + NEXT >= end;
        const int64_t next_head = is_last ? head + 1 : head, next_row = is_last ? begin : row + NEXT;
        if (tile + 1 < a.group * tiles)
            stage(1 - half, next_head, next_row);
        if (seen_from < row + NEXT &&
            (!has_starts || __any_sync(FULL_WARP, starts[half][threadIdx.x % NEXT] < warp * 16 + 16))) {
            multiply_across<T, DEPTH, NEXT>(score, k_at + mine, q);
            multiply_across<T, DEPTH, NEXT>(pull, v_at + mine, g);
            if (a.is_dropping)
                key_slopes<true, has_starts>(a, random, score, pull, sums[half], starts[half],
                                             at.batch * a.heads + head, valid, key + warp * 16, row);
            else
                key_slopes<false, has_starts>(a, random, score, pull, sums[half], starts[half],
                                              at.batch * a.heads + head, valid, key + warp * 16, row);
            multiply_along<T, DEPTH, NEXT, W>(gv, score, g + column);
            multiply_along<T, DEPTH, NEXT, W>(gk, pull, q + column);
        }
        head = next_head, row = next_row;
    }
    const float one[2] = {1, 1}, scale[2] = {(float)a.scale, (float)a.scale};
    if (a.gv.base)
        write_tile<T, W>(slab_of(a.gv, at.batch, at.head), gv, one, key + warp * 16, a.keys, column, a.depth);
    if (a.gk.base)
        write_tile<T, W>(slab_of(a.gk, at.batch, at.head), gk, scale, key + warp * 16, a.keys, column, a.depth);
}

/* Products and g · vᵀ (16 rows, NEXT keys) become slopes. */
template <bool is_dropping, bool has_starts>
__device__ __forceinline__ void row_slopes(const attention_args &a, const source &random, const float (*score)[4],
                                           float (*pull)[4], const float2 *sums, const two_spans &spans, int64_t head,
                                           int64_t row, int64_t key)
{
    const float scale = (float)(a.scale * LOG2_E);
    uint32_t kept = 0;
#pragma unroll
    for (int n = 0; n < NEXT / 8; n++) {
        if (is_dropping && n % 2 == 0)
            kept = kept_by_rows(a, random, head, row, key + n * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float e = power_of_2(score[n][i] * scale - sums[i / 2].x),
                        p = counts<has_starts>(spans, n, i) ? e : 0;
            const float factor = is_dropping ? drop_factor(a, kept, bit_by_rows(n % 2, i)) : 1;
            pull[n][i] = p == 0 ? 0 : p * (factor * pull[n][i] - sums[i / 2].y);
        }
    }
}

/* gq of 64 rows. */
template <typename T, int DEPTH, bool has_starts>
static __global__ void __launch_bounds__(MMA_THREADS, DEPTH <= 32 ? 4 : 1)
    rows_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    constexpr int LINE = line_of<DEPTH>, W = window_of<DEPTH>;
    T *const q_at = (T *)shared, *const g_at = q_at + MMA_ROWS * LINE, *const k_at = g_at + MMA_ROWS * LINE,
             *const v_at = k_at + 2 * NEXT * LINE;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, mine = warp * 16 * LINE;
    const block_place at = place_of(a, a.heads, true);
    const slab k = slab_of(a.k, at.batch, at.head / a.group), v = slab_of(a.v, at.batch, at.head / a.group);
    const int64_t first = at.block * MMA_ROWS, last = (first + MMA_ROWS < a.rows ? first + MMA_ROWS : a.rows) - 1,
                  row = first + warp * 16;
    const int64_t valid = valid_keys(a, at.batch), keys = keys_of(a, valid, last), head = at.batch * a.heads + at.head,
                  column = at.window * W;
    const int64_t most_seen = keys_of(a, valid, row + 15); /* by any row of the warp */
    /* of any row of the block, in whole tiles, and of the warp */
    int64_t from = 0, least_start = 0;
    const two_reaches reaches = reaches_of<has_starts>(a, at.batch, valid, row);
    if constexpr (has_starts) {
        __shared__ int64_t space[WARP];
        from = first_tile_of(a, at.batch, first, last, NEXT, space);
        least_start = over_warp<the_least>(the_least::of(reaches.start[0], reaches.start[1]));
    }
    const source random = settled(a.random);
    float2 sums[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t t = row + lane / 4 + half * 8;
        sums[half] = t < a.rows ? ((const float2 *)a.rows_sums)[head * a.rows + t] : make_float2(0, 0);
    }
    float score[NEXT / 8][4], pull[NEXT / 8][4], gq[W / 8][4] = {};
    stage_tile<T, MMA_ROWS, DEPTH>(q_at, slab_of(a.q, at.batch, at.head), first, a.rows, a.depth);
    stage_tile<T, MMA_ROWS, DEPTH>(g_at, slab_of(a.g, at.batch, at.head), first, a.rows, a.depth);
    stage_tile<T, NEXT, DEPTH>(k_at, k, from, keys, a.depth);
    stage_tile<T, NEXT, DEPTH>(v_at, v, from, keys, a.depth);
    for (int64_t key = from; key < keys; key += NEXT) {
        const int now = (int)((key - from) / NEXT % 2) * NEXT * LINE, next = NEXT * LINE - now;
        wait_copies();
        __syncthreads();
        if (key + NEXT < keys) {
            stage_tile<T, NEXT, DEPTH>(k_at + next, k, key + NEXT, keys, a.depth);
            stage_tile<T, NEXT, DEPTH>(v_at + next, v, key + NEXT, keys, a.depth);
        }
        if (key < most_seen && (!has_starts || key + NEXT > least_start)) {
            multiply_across<T, DEPTH, NEXT>(score, q_at + mine, k_at + now);
            multiply_across<T, DEPTH, NEXT>(pull, g_at + mine, v_at + now);
            if (a.is_dropping)
                row_slopes<true, has_starts>(a, random, score, pull, sums, spans_of<NEXT>(reaches, key), head, row,
                                             key);
            else
                row_slopes<false, has_starts>(a, random, score, pull, sums, spans_of<NEXT>(reaches, key), head, row,
                                              key);
            multiply_along<T, DEPTH, NEXT, W>(gq, pull, k_at + now + column);
        }
    }
    wait_copies(); /* also where there is no key */
    const float scale[2] = {(float)a.scale, (float)a.scale};
    write_tile<T, W>(slab_of(a.gq, at.batch, at.head), gq, scale, row, a.rows, column, a.depth);
}

/* Grid: a block for 64 keys (or rows) of a head and a window of D. Multiplications: rows · keys · D · 4 and · 3; of
 * forward 2. */
template <typename T, int DEPTH, bool has_starts> static bool launch_all(const tarn__call *call, attention_args &a)
{
    constexpr size_t bytes = elements_of<DEPTH> * sizeof(T);
    a.windows = (a.depth + window_of<DEPTH> - 1) / window_of<DEPTH>;
    a.blocks = (a.keys + MMA_ROWS - 1) / MMA_ROWS;
    bool done = true;
    if ((a.gk.base || a.gv.base) && a.blocks > 0)
        done = start<keys_kernel<T, DEPTH, has_starts>>(call, a, a.batches * a.kv_heads * a.blocks * a.windows, bytes);
    a.blocks = (a.rows + MMA_ROWS - 1) / MMA_ROWS;
    if (done && a.gq.base && a.blocks > 0)
        done = start<rows_kernel<T, DEPTH, has_starts>>(call, a, a.batches * a.heads * a.blocks * a.windows, bytes);
    return done;
}

template <typename T, int DEPTH> static bool launch(const tarn__call *call, attention_args &a)
{
    return a.starts ? launch_all<T, DEPTH, true>(call, a) : launch_all<T, DEPTH, false>(call, a);
}

/* D filled up. */
template <typename T> static bool launch_any(const tarn__call *call, attention_args &a)
{
    if (a.depth <= 32)
        return launch<T, 32>(call, a);
    if (a.depth <= 64)
        return launch<T, 64>(call, a);
    if (a.depth <= 96)
        return launch<T, 96>(call, a);
    return a.depth <= 128 ? launch<T, 128>(call, a) : launch<T, 256>(call, a);
}

#define LEAST_WEIGHTS \
    (64 * 64) /* of a head: fewer leave most of a tile empty, and have the digits of f32 without tensor cores */

bool tarn__cuda_attention_mma_grad(const tarn__call *call, attention_args *a)
{
    tarn_dtype dtype = a->q.dtype;
    bool fits = (dtype == TARN_BF16 || dtype == TARN_F16) && a->depth % 8 == 0 && a->depth <= 256 &&
                a->rows * a->keys >= LEAST_WEIGHTS && has_rows_of_packs(call->in[6], dtype);
    for (int i = 0; i < 3; i++)
        fits = fits && has_rows_of_packs(call->in[i], dtype) && is_writable(call->out[i], dtype);
    if (!fits)
        return false;
    if (tarn__cuda_attention_mma_grad128(call, a))
        return true;
    return dtype == TARN_BF16 ? launch_any<bf16>(call, *a) : launch_any<f16>(call, *a);
}
