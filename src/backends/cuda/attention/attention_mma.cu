/* attention_mma.cu: attention forward in bf16 and f16 on tensor cores (FlashAttention); attention_mma.cuh has the
 * tiles.
 *
 * A block owns 64 rows of one head and walks 64 keys at a time. Rows of q stay in registers up to D = 128; beyond, they
 * stay in shared memory and keys come 32 at a time, so that two blocks fit on a multiprocessor. Exponentials are powers
 * of 2, with log2(e) folded into the scale. */
#include "backends/cuda/attention/attention_mma.cuh"

template <int DEPTH> constexpr bool q_in_registers = DEPTH <= 128;
template <int DEPTH> constexpr int keys_at_once = q_in_registers<DEPTH> ? 64 : 32;
/* Rows in shared memory: keys and values double-buffered; q uses the second value buffer until it is in registers, or
 * has its own. */
template <int DEPTH> constexpr int shared_rows = 4 * keys_at_once<DEPTH> + (q_in_registers<DEPTH> ? 0 : MMA_ROWS);

/* 4 warps, 16 rows each. Multiply-adds: 2 · rows · keys · D. Bytes: q and y once, k and v once per 64 rows, mostly from
 * the L2 cache. */
template <typename T, int DEPTH, bool has_starts, bool is_capped>
static __global__ void __launch_bounds__(MMA_THREADS, DEPTH <= 64 ? 3 : 1)
    mma_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    constexpr int KEYS = keys_at_once<DEPTH>, TILE = KEYS * line_of<DEPTH>;
    T *const keys_at = (T *)shared, *const values_at = keys_at + 2 * TILE,
             *const q_at = values_at + (q_in_registers<DEPTH> ? 1 : 2) * TILE;
    const int warp = threadIdx.x / WARP;
    const block_pos at = block_pos_of(a, a.heads, true);
    const head_matrix q = head_of(a.q, at.batch, at.head), k = head_of(a.k, at.batch, at.head / a.group),
                      v = head_of(a.v, at.batch, at.head / a.group);
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
    const key_ranges ranges = key_ranges_of<has_starts>(a, at.batch, valid, row);
    /* of the warp's rows: all of them see the keys below */
    const int64_t min_end = warp_reduce<min_op>(min_op::of(ranges.end[0], ranges.end[1]));
    const int64_t max_start = has_starts ? warp_reduce<max_op>(max_op::of(ranges.start[0], ranges.start[1])) : 0;
    const float scale = (float)(a.scale * LOG2_E);
    const source random = resolved(a.random);
    uint32_t q_regs[q_in_registers<DEPTH> ? DEPTH / 16 : 1][4];
    float score[KEYS / 8][4], result[DEPTH / 8][4] = {};
    two_rows r = {{-CUDART_INF_F, -CUDART_INF_F}, {0, 0}};
    stage_tile<T, MMA_ROWS, DEPTH>(q_at, q, first, a.rows, a.head_dim);
    stage_tile<T, KEYS, DEPTH>(keys_at, k, from, keys, a.head_dim);
    stage_tile<T, KEYS, DEPTH>(values_at, v, from, keys, a.head_dim);
    for (int64_t key = from; key < keys; key += KEYS) {
        const int now = (int)((key - from) / KEYS % 2) * TILE, next = TILE - now;
        wait_copies();
        __syncthreads(); /* this tile has arrived, and all warps are done with the previous one */
        if (q_in_registers<DEPTH> && key == from) {
#pragma unroll
            for (int step = 0; step < DEPTH / 16; step++)
                load_a<T, DEPTH>(q_regs[q_in_registers<DEPTH> ? step : 0], q_at + warp * 16 * line_of<DEPTH>, step);
            __syncthreads();
        }
        if (key + KEYS < keys) {
            stage_tile<T, KEYS, DEPTH>(keys_at + next, k, key + KEYS, keys, a.head_dim);
            stage_tile<T, KEYS, DEPTH>(values_at + next, v, key + KEYS, keys, a.head_dim);
        }
        if constexpr (q_in_registers<DEPTH>) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                score[n][0] = score[n][1] = score[n][2] = score[n][3] = 0;
#pragma unroll
            for (int step = 0; step < DEPTH / 16; step++)
                mma_step<T, DEPTH, KEYS>(score, q_regs[step], keys_at + now, step);
        } else {
            gemm_nt<T, DEPTH, KEYS>(score, q_at + warp * 16 * line_of<DEPTH>, keys_at + now);
        }
        if constexpr (is_capped)
            cap_scores<KEYS>(score, scale, (float)a.cap);
        const float left = is_capped ? 1 : scale; /* to multiply scores by */
        const bool is_whole = left > 0 && key + KEYS <= min_end && (!has_starts || key >= max_start);
        float rescale[2];
        if (!is_whole)
            mask<KEYS, has_starts>(score, left, spans_of<KEYS>(ranges, key));
        online_softmax<KEYS>(score, is_whole ? left : 1, r, rescale);
        if (a.is_dropping)
            drop_weights<KEYS>(a, random, score, at.batch * a.heads + at.head, row, key);
        /* rare: only if a row has a new max */
        if (__any_sync(FULL_WARP, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
            for (int n = 0; n < DEPTH / 8; n++)
                result[n][0] *= rescale[0], result[n][1] *= rescale[0], result[n][2] *= rescale[1],
                    result[n][3] *= rescale[1];
        }
        gemm_nn<T, DEPTH, KEYS, DEPTH>(result, score, values_at + now);
    }
    wait_copies(); /* also without keys: copies must not outlive the block */
    float factor[2];
    finish_rows(a, at, r, row, factor);
    write_tile<T, DEPTH>(head_of(a.y, at.batch, at.head), result, factor, row, a.rows, 0, a.head_dim);
}

/* Grid: a block per 64 rows of a head; 128 threads. */
template <typename T, int DEPTH> static bool launch(const tarn__call *call, const attention_args &a)
{
    constexpr size_t bytes = (size_t)(shared_rows<DEPTH> * line_of<DEPTH>)*sizeof(T);
    const int64_t blocks = a.batches * a.heads * a.blocks;
    if (a.cap > 0) /* one kernel with and without starts: these are 0 where there are none */
        return launch_large_smem<mma_kernel<T, DEPTH, true, true>>(call, a, blocks, bytes);
    return a.document_starts ? launch_large_smem<mma_kernel<T, DEPTH, true, false>>(call, a, blocks, bytes)
                             : launch_large_smem<mma_kernel<T, DEPTH, false, false>>(call, a, blocks, bytes);
}

/* 16-byte aligned rows and D a multiple of 8, up to 256. */
bool tarn__cuda_attention_mma_fits(const tarn__call *call)
{
    tarn_dtype dtype = call->in[0]->dtype;
    int64_t head_dim = call->in[0]->shape[3];
    bool fits = (dtype == TARN_BF16 || dtype == TARN_F16) && head_dim % 8 == 0 && head_dim <= 256 &&
                is_writable(call->out[0], dtype);
    for (int i = 0; i < 3; i++)
        fits = fits && has_vector_rows(call->in[i], dtype);
    return fits;
}

/* a->blocks is set for the launch. */
bool tarn__cuda_attention_mma(const tarn__call *call, attention_args *a)
{
    tarn_dtype dtype = a->q.dtype;
    a->blocks = (a->rows + MMA_ROWS - 1) / MMA_ROWS;
    a->d_windows = 1;
    if (dtype == TARN_BF16) {
        FOR_DEPTH(a->head_dim, return launch<bf16, DEPTH>(call, *a))
    } else {
        FOR_DEPTH(a->head_dim, return launch<f16, DEPTH>(call, *a))
    }
}
