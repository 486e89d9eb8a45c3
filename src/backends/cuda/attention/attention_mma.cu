/* attention_mma.cu: attention forward in bf16 and f16 on tensor cores; attention_mma.cuh has the tiles.
 *
 * A block has 64 rows of one head and goes through keys 64 at a time. Rows of q stay in registers up to D = 128; beyond
 * they stay in shared memory, and keys come 32 at a time, so that two blocks fit on a multiprocessor. Exponentials are
 * powers of 2, with log2(e) in the scale. */
#include "backends/cuda/attention/attention_mma.cuh"

template <int DEPTH> constexpr bool is_held = DEPTH <= 128;
template <int DEPTH> constexpr int keys_at_once = is_held<DEPTH> ? 64 : 32;
/* Rows in shared memory: keys and values twice; q has the place of the second values while it is read, or its own. */
template <int DEPTH> constexpr int shared_rows = 4 * keys_at_once<DEPTH> + (is_held<DEPTH> ? 0 : MMA_ROWS);

/* The two rows of a lane: their largest products and sums so far. */
struct two_rows {
    float most[2], sum[2];
};

/* Products that do not count become -infinity, the others are multiplied by the scale. */
template <int KEYS, bool has_starts>
__device__ __forceinline__ void mask(float (*score)[4], float scale, const two_spans &spans)
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            score[n][i] = counts<has_starts>(spans, n, i) ? score[n][i] * scale : -CUDART_INF_F;
}

/* Products become weights; `fading` is what the rows' earlier sums are to be multiplied by. The scale is above 0. */
template <int KEYS> __device__ __forceinline__ void weigh(float (*score)[4], float scale, two_rows &r, float *fading)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float here = -CUDART_INF_F, part = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            here = fmaxf(here, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
        here = fmaxf(here * scale, r.most[half]);
        here = fmaxf(here, __shfl_xor_sync(FULL_WARP, here, 1));
        here = fmaxf(here, __shfl_xor_sync(FULL_WARP, here, 2));
        float shift = here == -CUDART_INF_F ? 0 : here;
        fading[half] = power_of_2(r.most[half] - shift);
        r.most[half] = here;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                score[n][i] = power_of_2(score[n][i] * scale - shift);
                part += score[n][i];
            }
        /* this lane's keys; the row's four lanes are added at the end */
        r.sum[half] = r.sum[half] * fading[half] + part;
    }
}

/* What is kept is multiplied by its factor at the end. */
template <int KEYS>
__device__ __forceinline__ void drop_weights(const attention_args &a, const source &random, float (*weight)[4],
                                             int64_t head, int64_t row, int64_t key)
{
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
        const uint32_t kept = kept_by_rows(a, random, head, row, key + n * 16);
#pragma unroll
        for (int i = 0; i < 8; i++)
            weight[2 * n + i / 4][i % 4] = kept >> bit_by_rows(i / 4, i % 4) & 1 ? weight[2 * n + i / 4][i % 4] : 0;
    }
}

/* Row l / 4 of the warp and the one 8 further: divided by their sums, and their logarithms. */
template <typename T, int DEPTH>
__device__ __forceinline__ void write_result(const attention_args &a, const block_place &at, const float (*result)[4],
                                             two_rows &r, int64_t row)
{
    const int lane = threadIdx.x % WARP;
    const slab logs = slab_of(a.log_sum, at.batch, at.head);
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        r.sum[half] += __shfl_xor_sync(FULL_WARP, r.sum[half], 1);
        r.sum[half] += __shfl_xor_sync(FULL_WARP, r.sum[half], 2);
        int64_t t = row + lane / 4 + half * 8;
        /* no keys, or scores that are all -infinity: 0 */
        factor[half] = t < a.rows && r.sum[half] != 0 ? (a.is_dropping ? a.kept : 1) / r.sum[half] : 0;
        if (a.log_sum.base && lane % 4 == 0 && t < a.rows)
            store_any(logs.base, logs.dtype, t * logs.row,
                      r.sum[half] == 0 ? -CUDART_INF_F : (r.most[half] + log2f(r.sum[half])) * (float)LN_2);
    }
    write_tile<T, DEPTH>(slab_of(a.y, at.batch, at.head), result, factor, row, a.rows, 0, a.depth);
}

template <typename T, int DEPTH, bool has_starts>
static __global__ void __launch_bounds__(MMA_THREADS, DEPTH <= 64 ? 3 : 1)
    mma_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    constexpr int KEYS = keys_at_once<DEPTH>, TILE = KEYS * line_of<DEPTH>;
    T *const keys_at = (T *)shared, *const values_at = keys_at + 2 * TILE,
             *const q_at = values_at + (is_held<DEPTH> ? 1 : 2) * TILE;
    const int warp = threadIdx.x / WARP;
    const block_place at = place_of(a, a.heads, true);
    const slab q = slab_of(a.q, at.batch, at.head), k = slab_of(a.k, at.batch, at.head / a.group),
               v = slab_of(a.v, at.batch, at.head / a.group);
    const int64_t first = at.block * MMA_ROWS, last = (first + MMA_ROWS < a.rows ? first + MMA_ROWS : a.rows) - 1,
                  row = first + warp * 16;
    const int64_t valid = valid_keys(a, at.batch), keys = keys_of(a, valid, last);
    if (at.block == 0 && at.head == 0 && threadIdx.x == 0)
        check_length(a, at.batch);
    int64_t from = 0;
    if constexpr (has_starts) {
        __shared__ int64_t space[WARP];
        from = first_tile_of(a, at.batch, first, last, KEYS, space);
        if (at.head == 0)
            check_starts(a, at.batch, first, last);
    }
    const two_reaches reaches = reaches_of<has_starts>(a, at.batch, valid, row);
    /* of the warp's rows: keys below it all look at */
    const int64_t least_end = over_warp<the_least>(the_least::of(reaches.end[0], reaches.end[1]));
    const int64_t most_start = has_starts ? over_warp<the_most>(the_most::of(reaches.start[0], reaches.start[1])) : 0;
    const float scale = (float)(a.scale * LOG2_E);
    const source random = settled(a.random);
    uint32_t held[is_held<DEPTH> ? DEPTH / 16 : 1][4];
    float score[KEYS / 8][4], result[DEPTH / 8][4] = {};
    two_rows r = {{-CUDART_INF_F, -CUDART_INF_F}, {0, 0}};
    stage_tile<T, MMA_ROWS, DEPTH>(q_at, q, first, a.rows, a.depth);
    stage_tile<T, KEYS, DEPTH>(keys_at, k, from, keys, a.depth);
    stage_tile<T, KEYS, DEPTH>(values_at, v, from, keys, a.depth);
    for (int64_t key = from; key < keys; key += KEYS) {
        const int now = (int)((key - from) / KEYS % 2) * TILE, next = TILE - now;
        wait_copies();
        __syncthreads(); /* this tile is here, and all are done with the one before */
        if (is_held<DEPTH> && key == from) {
#pragma unroll
            for (int step = 0; step < DEPTH / 16; step++)
                load_left<T, DEPTH>(held[is_held<DEPTH> ? step : 0], q_at + warp * 16 * line_of<DEPTH>, step);
            __syncthreads();
        }
        if (key + KEYS < keys) {
            stage_tile<T, KEYS, DEPTH>(keys_at + next, k, key + KEYS, keys, a.depth);
            stage_tile<T, KEYS, DEPTH>(values_at + next, v, key + KEYS, keys, a.depth);
        }
        if constexpr (is_held<DEPTH>) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                score[n][0] = score[n][1] = score[n][2] = score[n][3] = 0;
#pragma unroll
            for (int step = 0; step < DEPTH / 16; step++)
                multiply_step<T, DEPTH, KEYS>(score, held[step], keys_at + now, step);
        } else {
            multiply_across<T, DEPTH, KEYS>(score, q_at + warp * 16 * line_of<DEPTH>, keys_at + now);
        }
        const bool is_whole = scale > 0 && key + KEYS <= least_end && (!has_starts || key >= most_start);
        float fading[2];
        if (!is_whole)
            mask<KEYS, has_starts>(score, scale, spans_of<KEYS>(reaches, key));
        weigh<KEYS>(score, is_whole ? scale : 1, r, fading);
        if (a.is_dropping)
            drop_weights<KEYS>(a, random, score, at.batch * a.heads + at.head, row, key);
        /* seldom: when the largest product of a row is a new one */
        if (__any_sync(FULL_WARP, fading[0] != 1 || fading[1] != 1)) {
#pragma unroll
            for (int n = 0; n < DEPTH / 8; n++)
                result[n][0] *= fading[0], result[n][1] *= fading[0], result[n][2] *= fading[1],
                    result[n][3] *= fading[1];
        }
        multiply_along<T, DEPTH, KEYS, DEPTH>(result, score, values_at + now);
    }
    wait_copies(); /* also where there is no key */
    write_result<T, DEPTH>(a, at, result, r, row);
}

/* Grid: a block for 64 rows of a head. */
template <typename T, int DEPTH> static bool launch(const tarn__call *call, const attention_args &a)
{
    constexpr size_t bytes = (size_t)(shared_rows<DEPTH> * line_of<DEPTH>)*sizeof(T);
    const int64_t blocks = a.batches * a.heads * a.blocks;
    return a.starts ? start<mma_kernel<T, DEPTH, true>>(call, a, blocks, bytes)
                    : start<mma_kernel<T, DEPTH, false>>(call, a, blocks, bytes);
}

bool tarn__cuda_attention_mma(const tarn__call *call, attention_args *a)
{
    tarn_dtype dtype = a->q.dtype;
    bool fits = (dtype == TARN_BF16 || dtype == TARN_F16) && a->depth % 8 == 0 && a->depth <= 256 &&
                is_writable(call->out[0], dtype);
    for (int i = 0; i < 3; i++)
        fits = fits && has_rows_of_packs(call->in[i], dtype);
    if (!fits)
        return false;
    a->blocks = (a->rows + MMA_ROWS - 1) / MMA_ROWS;
    a->windows = 1;
    if (dtype == TARN_BF16) {
        FOR_DEPTH(a->depth, return launch<bf16, DEPTH>(call, *a))
    } else {
        FOR_DEPTH(a->depth, return launch<f16, DEPTH>(call, *a))
    }
}
