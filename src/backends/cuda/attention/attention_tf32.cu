/* attention_tf32.cu: attention of f32 tensors on tensor cores in TF32 (mma_tf32.cuh), forward and backward, where the
 * caller allows it; attention_mma.cuh has masks, dropout, softmax and dS, attention_grad.cu the formulas.
 *
 * Operands are rounded to TF32 once per block, in shared memory, or as a warp loads them, whichever measured faster;
 * weights and dS in registers. Sums are f32.
 *
 * Forward: a block owns some rows of one head and walks tiles of keys. Rows of q stay in registers up to D = 128;
 * beyond, in shared memory. Backward: both kernels keep some rows of two operands in shared memory and walk tiles of
 * two others; accumulators and weights stay in registers. Keys are the left operand where the gradients are theirs, so
 * that weights (keys, rows) are left operands as they are. Beyond D = 128 a block computes a window of 128 columns, and
 * recomputes the weights. Every sum has one owner: nothing is added across blocks. */
#include "backends/cuda/attention/attention_mma.cuh"
#include "backends/cuda/common/mma_tf32.cuh"

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* A block: WARPS warps that own M · 16 rows each, and walk tiles of TILE keys (or the other way round). */
template <int DEPTH_OF, int M_OF, int WARPS_OF, int TILE_OF, int BLOCKS_OF, bool is_rounded_at_once> struct tf32_shape {
    static constexpr int DEPTH = DEPTH_OF, M = M_OF, WARPS = WARPS_OF, TILE = TILE_OF;
    static constexpr int BLOCKS = BLOCKS_OF; /* per multiprocessor: limits registers */
    static constexpr int THREADS_OF_BLOCK = WARPS * WARP, WARP_ROWS = M * 16, ROWS = WARPS * WARP_ROWS;
    static constexpr int LINE = float_line<DEPTH>;
    /* true: tiles are rounded in shared memory; false: operands are, as they are loaded */
    static constexpr bool is_rounded = is_rounded_at_once;
};

/* Copies N rows from `row` of x, D columns; rows from `rows` on are 0. */
template <typename S, int N>
__device__ __forceinline__ void stage_head(float *to, const head_matrix &x, int64_t row, int64_t rows, int64_t head_dim)
{
    stage_floats<N, S::DEPTH, S::THREADS_OF_BLOCK>(to, (const float *)x.base, x.row, row, rows, head_dim);
}

/* Rounds N rows of a tile that this thread and the others of the block copied. */
template <typename S, int N> __device__ __forceinline__ void round_head(float *tile)
{
    if constexpr (S::is_rounded)
        round_tile<N, S::DEPTH, S::THREADS_OF_BLOCK>(tile);
}

/* Writes a warp's (16, W) result of gemm_nn_tf32(), scaled per row (l / 4 and l / 4 + 8), to columns from `column`. Per
 * 32 columns a lane has 8 adjacent ones. D is a multiple of 4. */
template <int W>
__device__ __forceinline__ void write_floats(const head_matrix &to, const float (*sum)[4], const float *factor,
                                             int64_t row, int64_t rows, int64_t column, int64_t head_dim)
{
    const int lane = threadIdx.x % WARP;
    const bool is_vector = to.column == 1 && to.row % 4 == 0 && (uintptr_t)to.base % 16 == 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t i = row + lane / 4 + half * 8;
        if (i >= rows)
            continue;
#pragma unroll
        for (int at = 0; at < W / 16; at++) {
            const int64_t j = column + at / 2 * 32 + lane % 4 * 8 + at % 2 * 4;
            const float(*four)[4] = sum + at / 2 * 4;
            const int value = 2 * half + at % 2;
            float x[4];
#pragma unroll
            for (int n = 0; n < 4; n++)
                x[n] = four[n][value] * factor[half];
            float *from = (float *)to.base + i * to.row + j * to.column;
            if (j >= head_dim)
                continue;
            if (is_vector)
                *(float4 *)from = make_float4(x[0], x[1], x[2], x[3]);
            else
                for (int n = 0; n < 4; n++)
                    from[n * to.column] = x[n];
        }
    }
}

/* ---- calls that fit ---------------------------------------------------------------------------------------------- */

/* True for f32 rows of aligned 16-byte vectors. */
static inline bool has_float_rows(const tarn__view *x)
{
    bool fits = x->dtype == TARN_F32 && x->stride[3] == 1 && is_aligned(tarn__view_at(x), 16);
    for (int i = 0; i < 3; i++)
        fits = fits && (x->shape[i] <= 1 || x->stride[i] % 4 == 0);
    return fits;
}

/* True if write_floats() can write the view; NULL: nothing to write. */
static inline bool is_float_or_null(const tarn__view *x)
{
    return !x || x->dtype == TARN_F32;
}

/* What forward and backward require alike: TF32 is allowed, and D is a multiple of 4, up to 256. */
static inline bool fits_tf32(const tarn__call *call)
{
    const int64_t head_dim = call->in[0]->shape[3];
    bool fits = ((const tarn__attention *)call->params)->tf32 && head_dim % 4 == 0 && head_dim <= 256;
    for (int i = 0; i < 3; i++)
        fits = fits && has_float_rows(call->in[i]);
    return fits;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

template <typename S> constexpr bool tf32_q_in_registers = S::DEPTH <= 128;
/* Rows in shared memory: two stages of keys and values; q uses the second until it is in registers, or has its own. */
template <typename S>
constexpr int tf32_shared_rows = !tf32_q_in_registers<S> ? 4 * S::TILE + S::ROWS
                                 : S::ROWS > 2 * S::TILE ? 2 * S::TILE + S::ROWS
                                                         : 4 * S::TILE;
template <typename S> constexpr size_t tf32_forward_bytes = (size_t)(tf32_shared_rows<S> *S::LINE) * sizeof(float);

/* Multiply-adds: 2 · rows · keys · D. Bytes: q and y once, k and v once per block, mostly from the L2 cache. */
template <typename S, bool has_starts, bool is_capped>
static __global__ void __launch_bounds__(S::THREADS_OF_BLOCK, S::BLOCKS)
    tf32_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    constexpr int M = S::M, TILE = S::TILE, DEPTH = S::DEPTH, STAGE = 2 * TILE * S::LINE;
    constexpr bool keeps_q = tf32_q_in_registers<S>;
    float *const tiles = (float *)shared, *const q_at = tiles + (keeps_q ? 1 : 2) * STAGE;
    const int warp = threadIdx.x / WARP;
    const block_pos at = block_pos_of(a, a.heads, true);
    const head_matrix q = head_of(a.q, at.batch, at.head), k = head_of(a.k, at.batch, at.head / a.group),
                      v = head_of(a.v, at.batch, at.head / a.group);
    const int64_t first = at.block * S::ROWS, last = (first + S::ROWS < a.rows ? first + S::ROWS : a.rows) - 1,
                  row = first + warp * S::WARP_ROWS;
    const int64_t valid = valid_keys(a, at.batch), keys = keys_of(a, valid, last);
    if (at.block == 0 && at.head == 0 && threadIdx.x == 0)
        check_length(a, at.batch);
    int64_t from = 0;
    if constexpr (has_starts) {
        __shared__ int64_t space[WARP];
        from = first_tile_of(a, at.batch, first, last, TILE, space);
        if (at.head == 0)
            check_starts(a, at.batch, first, last);
    }
    key_ranges ranges[M];
    int64_t min_end = keys, max_start = 0; /* of the warp's rows: all of them see the keys between */
#pragma unroll
    for (int m = 0; m < M; m++) {
        ranges[m] = key_ranges_of<has_starts>(a, at.batch, valid, row + m * 16);
        min_end = min_op::of(min_end, warp_reduce<min_op>(min_op::of(ranges[m].end[0], ranges[m].end[1])));
        if constexpr (has_starts)
            max_start = max_op::of(max_start, warp_reduce<max_op>(max_op::of(ranges[m].start[0], ranges[m].start[1])));
    }
    const float scale = (float)(a.scale * LOG2_E);
    const source random = resolved(a.random);
    uint32_t q_regs[keeps_q ? DEPTH / 16 : 1][M][2][4];
    float score[M][TILE / 8][4], result[M][DEPTH / 8][4] = {};
    two_rows r[M];
#pragma unroll
    for (int m = 0; m < M; m++)
        r[m] = {{-CUDART_INF_F, -CUDART_INF_F}, {0, 0}};
    auto stage = [&](int offset, int64_t key) {
        stage_head<S, TILE>(tiles + offset, k, key, keys, a.head_dim);
        stage_head<S, TILE>(tiles + offset + STAGE / 2, v, key, keys, a.head_dim);
    };
    stage_head<S, S::ROWS>(q_at, q, first, a.rows, a.head_dim);
    stage(0, from);
    for (int64_t key = from; key < keys; key += TILE) {
        const int now = (int)((key - from) / TILE % 2) * STAGE;
        const float *const keys_at = tiles + now, *const values_at = keys_at + STAGE / 2;
        wait_copies();
        round_head<S, 2 * TILE>(tiles + now);
        if (key == from)
            round_head<S, S::ROWS>(q_at);
        __syncthreads(); /* this tile has arrived, and all warps are done with the previous one */
        if (keeps_q && key == from) {
#pragma unroll
            for (int step = 0; step < DEPTH / 8; step++)
#pragma unroll
                for (int m = 0; m < M; m++)
                    load_a_tf32<DEPTH, S::is_rounded>(q_regs[keeps_q ? step / 2 : 0][m][step % 2],
                                                      q_at + (warp * S::WARP_ROWS + m * 16) * S::LINE, step);
            __syncthreads();
        }
        if (key + TILE < keys)
            stage(STAGE - now, key + TILE);
        if constexpr (keeps_q) {
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < TILE / 8; n++)
                    score[m][n][0] = score[m][n][1] = score[m][n][2] = score[m][n][3] = 0;
#pragma unroll
            for (int pair = 0; pair < DEPTH / 16; pair++)
                mma_pair_tf32<DEPTH, M, TILE, S::is_rounded>(score, q_regs[pair], keys_at, pair);
        } else {
            gemm_nt_tf32<DEPTH, M, TILE, S::is_rounded>(score, q_at + warp * S::WARP_ROWS * S::LINE, keys_at);
        }
        const float left = is_capped ? 1 : scale; /* to multiply scores by */
        const bool is_whole = left > 0 && key + TILE <= min_end && (!has_starts || key >= max_start);
#pragma unroll
        for (int m = 0; m < M; m++) {
            float rescale[2];
            if constexpr (is_capped)
                cap_scores<TILE>(score[m], scale, (float)a.cap);
            if (!is_whole)
                mask<TILE, has_starts>(score[m], left, spans_of<TILE>(ranges[m], key));
            online_softmax<TILE>(score[m], is_whole ? left : 1, r[m], rescale);
            if (a.is_dropping)
                drop_weights<TILE>(a, random, score[m], at.batch * a.heads + at.head, row + m * 16, key);
            /* rare: only if a row has a new max */
            if (__any_sync(FULL_WARP, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
                for (int n = 0; n < DEPTH / 8; n++)
                    result[m][n][0] *= rescale[0], result[m][n][1] *= rescale[0], result[m][n][2] *= rescale[1],
                        result[m][n][3] *= rescale[1];
            }
        }
        gemm_nn_tf32<DEPTH, M, TILE, DEPTH, S::is_rounded>(result, score, values_at);
    }
    wait_copies(); /* also without keys: copies must not outlive the block */
#pragma unroll
    for (int m = 0; m < M; m++) {
        float factor[2];
        finish_rows(a, at, r[m], row + m * 16, factor);
        write_floats<DEPTH>(head_of(a.y, at.batch, at.head), result[m], factor, row + m * 16, a.rows, 0, a.head_dim);
    }
}

/* Grid: a block per S::ROWS rows of a head. */
template <typename S> static bool launch_tf32(const tarn__call *call, attention_args &a)
{
    constexpr size_t bytes = tf32_forward_bytes<S>;
    constexpr int threads = S::THREADS_OF_BLOCK;
    a.blocks = (a.rows + S::ROWS - 1) / S::ROWS;
    a.d_windows = 1;
    const int64_t blocks = a.batches * a.heads * a.blocks;
    if (a.cap > 0) /* one kernel with and without starts: these are 0 where there are none */
        return launch_large_smem<tf32_kernel<S, true, true>, threads>(call, a, blocks, bytes);
    return a.document_starts ? launch_large_smem<tf32_kernel<S, true, false>, threads>(call, a, blocks, bytes)
                             : launch_large_smem<tf32_kernel<S, false, false>, threads>(call, a, blocks, bytes);
}

bool tarn__cuda_attention_tf32_fits(const tarn__call *call)
{
    return fits_tf32(call) && is_float_or_null(call->out[0]);
}

/* Shapes as measured on an H200. a->blocks is set for the launch. */
bool tarn__cuda_attention_tf32(const tarn__call *call, attention_args *a)
{
    if (a->head_dim <= 32)
        return launch_tf32<tf32_shape<32, 2, 4, 32, 2, true>>(call, *a);
    if (a->head_dim <= 64)
        return launch_tf32<tf32_shape<64, 2, 4, 32, 2, false>>(call, *a);
    if (a->head_dim <= 96)
        return launch_tf32<tf32_shape<96, 1, 4, 32, 2, true>>(call, *a);
    return a->head_dim <= 128 ? launch_tf32<tf32_shape<128, 1, 8, 32, 1, false>>(call, *a)
                              : launch_tf32<tf32_shape<256, 1, 4, 16, 1, true>>(call, *a);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

template <typename S> constexpr int tf32_window = S::DEPTH <= 128 ? S::DEPTH : 128;
template <typename S>
constexpr size_t tf32_grad_bytes = (size_t)((2 * S::ROWS + 4 * S::TILE) * S::LINE) * sizeof(float);

/* ---- delta ------------------------------------------------------------------------------------------------------- */

#define DELTA_LANES 16 /* per row */

/* LSE of each row, to base 2, and delta = Σ g · y. Grid: 16 rows per block, heads of all batches along y. */
static __global__ void __launch_bounds__(THREADS) tf32_delta_kernel(const __grid_constant__ attention_args a)
{
    const int lane = threadIdx.x % DELTA_LANES;
    const int64_t t = (int64_t)blockIdx.x * (THREADS / DELTA_LANES) + threadIdx.x / DELTA_LANES;
    for (int64_t head = blockIdx.y; head < a.batches * a.heads; head += gridDim.y) {
        const head_matrix g = head_of(a.g, head / a.heads, head % a.heads),
                          y = head_of(a.y, head / a.heads, head % a.heads),
                          lse_head = head_of(a.lse, head / a.heads, head % a.heads);
        float sum = 0;
        for (int64_t d = lane * 4; t < a.rows && d < a.head_dim; d += DELTA_LANES * 4) {
            const float4 left = *(const float4 *)((const float *)g.base + t * g.row + d),
                         right = *(const float4 *)((const float *)y.base + t * y.row + d);
            sum += left.x * right.x + left.y * right.y + left.z * right.z + left.w * right.w;
        }
#pragma unroll
        for (int step = DELTA_LANES / 2; step > 0; step /= 2)
            sum += __shfl_xor_sync(FULL_WARP, sum, step);
        if (lane != 0 || t >= a.rows)
            continue;
        const float lse = load_any<float>(lse_head.base, lse_head.dtype, t * lse_head.row);
        /* all scores -infinity: weights of 0, not NaN */
        ((float2 *)a.row_stats)[head * a.rows + t] = make_float2(lse == -CUDART_INF_F ? 0 : (float)(lse * LOG2_E), sum);
    }
}

static void launch_tf32_delta(const tarn__call *call, const attention_args &a)
{
    const int64_t heads = a.batches * a.heads;
    const dim3 grid(blocks_for(a.rows, THREADS / DELTA_LANES), (unsigned)(heads < 65535 ? heads : 65535));
    tf32_delta_kernel<<<grid, THREADS, 0, stream_of(call)>>>(a);
}

/* ---- gk and gv --------------------------------------------------------------------------------------------------- */

/* gk and gv of S::ROWS keys, over the rows of all heads that attend to them, in order. */
template <typename S, bool has_starts>
static __global__ void __launch_bounds__(S::THREADS_OF_BLOCK, S::BLOCKS)
    tf32_keys_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    constexpr int M = S::M, TILE = S::TILE, DEPTH = S::DEPTH, LINE = S::LINE, W = tf32_window<S>,
                  STAGE = 2 * TILE * LINE;
    __shared__ float2 sums[2][TILE];
    __shared__ int starts[2][has_starts ? TILE : 1];
    float *const k_at = (float *)shared, *const v_at = k_at + S::ROWS * LINE, *const tiles_at = v_at + S::ROWS * LINE;
    const int warp = threadIdx.x / WARP, mine = warp * S::WARP_ROWS * LINE;
    const block_pos at = block_pos_of(a, a.kv_heads, false);
    const int64_t key = at.block * S::ROWS, column = at.d_window * W, valid = valid_keys(a, at.batch);
    const int64_t begin = first_row_of(a, valid, key) / TILE * TILE;
    int64_t end = a.rows;
    if constexpr (has_starts) {
        __shared__ int64_t space[WARP];
        end = end_of_rows(a, at.batch, begin, key + S::ROWS - 1, space);
    }
    const int64_t tiles = begin < end ? (end - begin + TILE - 1) / TILE : 0;
    /* first row that attends to any of the warp's keys */
    const int64_t first_row = first_row_of(a, valid, key + warp * S::WARP_ROWS);
    const source random = resolved(a.random);
    float score[M][TILE / 8][4], dp[M][TILE / 8][4], gk[M][W / 8][4] = {}, gv[M][W / 8][4] = {};
    auto stage = [&](int half, int64_t head, int64_t row) {
        float *const to = tiles_at + half * STAGE;
        stage_head<S, TILE>(to, head_of(a.q, at.batch, head), row, a.rows, a.head_dim);
        stage_head<S, TILE>(to + STAGE / 2, head_of(a.g, at.batch, head), row, a.rows, a.head_dim);
        stage_row_stats<TILE>(sums[half], a, at.batch * a.heads + head, row);
        if constexpr (has_starts)
            stage_starts<TILE, S::ROWS>(starts[half], a, at.batch, row, key);
    };
    if (tiles > 0) {
        stage_head<S, S::ROWS>(k_at, head_of(a.k, at.batch, at.head), key, valid, a.head_dim);
        stage_head<S, S::ROWS>(v_at, head_of(a.v, at.batch, at.head), key, valid, a.head_dim);
        stage(0, at.head * a.group, begin);
    }
    int64_t head = at.head * a.group, row = begin;
    for (int64_t tile = 0; tile < a.group * tiles; tile++) {
        const int half = (int)(tile % 2);
        const float *const q = tiles_at + half * STAGE, *const g = q + STAGE / 2;
        wait_copies();
        round_head<S, 2 * TILE>(tiles_at + half * STAGE);
        if (tile == 0)
            round_head<S, 2 * S::ROWS>(k_at);
        __syncthreads(); /* this tile has arrived, and all warps are done with the previous one */
        const bool is_last = row + TILE >= end;
        const int64_t next_head = is_last ? head + 1 : head, next_row = is_last ? begin : row + TILE;
        if (tile + 1 < a.group * tiles)
            stage(1 - half, next_head, next_row);
        if (first_row < row + TILE &&
            (!has_starts || __any_sync(FULL_WARP, starts[half][threadIdx.x % TILE] < (warp + 1) * S::WARP_ROWS))) {
            gemm_nt_tf32<DEPTH, M, TILE, S::is_rounded>(score, k_at + mine, q);
            gemm_nt_tf32<DEPTH, M, TILE, S::is_rounded>(dp, v_at + mine, g);
#pragma unroll
            for (int m = 0; m < M; m++) {
                const int own = warp * S::WARP_ROWS + m * 16;
                if (a.is_dropping)
                    ds_of_keys<TILE, true, has_starts>(a, random, score[m], dp[m], sums[half], starts[half],
                                                       at.batch * a.heads + head, valid, key + own, own, row);
                else
                    ds_of_keys<TILE, false, has_starts>(a, random, score[m], dp[m], sums[half], starts[half],
                                                        at.batch * a.heads + head, valid, key + own, own, row);
            }
            gemm_nn_tf32<DEPTH, M, TILE, W, S::is_rounded>(gv, score, g + column);
            gemm_nn_tf32<DEPTH, M, TILE, W, S::is_rounded>(gk, dp, q + column);
        }
        head = next_head, row = next_row;
    }
    const float one[2] = {1, 1}, scale[2] = {(float)a.scale, (float)a.scale};
#pragma unroll
    for (int m = 0; m < M; m++) {
        const int64_t own = key + warp * S::WARP_ROWS + m * 16;
        if (a.gv.base)
            write_floats<W>(head_of(a.gv, at.batch, at.head), gv[m], one, own, a.keys, column, a.head_dim);
        if (a.gk.base)
            write_floats<W>(head_of(a.gk, at.batch, at.head), gk[m], scale, own, a.keys, column, a.head_dim);
    }
}

/* ---- gq ---------------------------------------------------------------------------------------------------------- */

/* gq of S::ROWS rows. */
template <typename S, bool has_starts>
static __global__ void __launch_bounds__(S::THREADS_OF_BLOCK, S::BLOCKS)
    tf32_rows_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    constexpr int M = S::M, TILE = S::TILE, DEPTH = S::DEPTH, LINE = S::LINE, W = tf32_window<S>,
                  STAGE = 2 * TILE * LINE;
    float *const q_at = (float *)shared, *const g_at = q_at + S::ROWS * LINE, *const tiles_at = g_at + S::ROWS * LINE;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, mine = warp * S::WARP_ROWS * LINE;
    const block_pos at = block_pos_of(a, a.heads, true);
    const head_matrix k = head_of(a.k, at.batch, at.head / a.group), v = head_of(a.v, at.batch, at.head / a.group);
    const int64_t first = at.block * S::ROWS, last = (first + S::ROWS < a.rows ? first + S::ROWS : a.rows) - 1,
                  row = first + warp * S::WARP_ROWS;
    const int64_t valid = valid_keys(a, at.batch), keys = keys_of(a, valid, last), head = at.batch * a.heads + at.head,
                  column = at.d_window * W;
    const int64_t max_keys = keys_of(a, valid, row + S::WARP_ROWS - 1); /* of any row of the warp */
    /* first tile of the block, and first start of the warp */
    int64_t from = 0, min_start = 0;
    key_ranges ranges[M];
    float2 sums[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) {
        ranges[m] = key_ranges_of<has_starts>(a, at.batch, valid, row + m * 16);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t t = row + m * 16 + lane / 4 + half * 8;
            sums[m][half] = t < a.rows ? ((const float2 *)a.row_stats)[head * a.rows + t] : make_float2(0, 0);
        }
    }
    if constexpr (has_starts) {
        __shared__ int64_t space[WARP];
        from = first_tile_of(a, at.batch, first, last, TILE, space);
        min_start = a.keys;
#pragma unroll
        for (int m = 0; m < M; m++)
            min_start = min_op::of(min_start, warp_reduce<min_op>(min_op::of(ranges[m].start[0], ranges[m].start[1])));
    }
    const source random = resolved(a.random);
    float score[M][TILE / 8][4], dp[M][TILE / 8][4], gq[M][W / 8][4] = {};
    auto stage = [&](int offset, int64_t key) {
        stage_head<S, TILE>(tiles_at + offset, k, key, keys, a.head_dim);
        stage_head<S, TILE>(tiles_at + offset + STAGE / 2, v, key, keys, a.head_dim);
    };
    stage_head<S, S::ROWS>(q_at, head_of(a.q, at.batch, at.head), first, a.rows, a.head_dim);
    stage_head<S, S::ROWS>(g_at, head_of(a.g, at.batch, at.head), first, a.rows, a.head_dim);
    stage(0, from);
    for (int64_t key = from; key < keys; key += TILE) {
        const int now = (int)((key - from) / TILE % 2) * STAGE;
        const float *const k_now = tiles_at + now, *const v_now = k_now + STAGE / 2;
        wait_copies();
        round_head<S, 2 * TILE>(tiles_at + now);
        if (key == from)
            round_head<S, 2 * S::ROWS>(q_at);
        __syncthreads(); /* this tile has arrived, and all warps are done with the previous one */
        if (key + TILE < keys)
            stage(STAGE - now, key + TILE);
        if (key >= max_keys || (has_starts && key + TILE <= min_start))
            continue;
        gemm_nt_tf32<DEPTH, M, TILE, S::is_rounded>(score, q_at + mine, k_now);
        gemm_nt_tf32<DEPTH, M, TILE, S::is_rounded>(dp, g_at + mine, v_now);
#pragma unroll
        for (int m = 0; m < M; m++) {
            const tile_spans spans = spans_of<TILE>(ranges[m], key);
            if (a.is_dropping)
                ds_of_rows<TILE, true, has_starts>(a, random, score[m], dp[m], sums[m], spans, head, row + m * 16, key);
            else
                ds_of_rows<TILE, false, has_starts>(a, random, score[m], dp[m], sums[m], spans, head, row + m * 16,
                                                    key);
        }
        gemm_nn_tf32<DEPTH, M, TILE, W, S::is_rounded>(gq, dp, k_now + column);
    }
    wait_copies(); /* also without keys: copies must not outlive the block */
    const float scale[2] = {(float)a.scale, (float)a.scale};
#pragma unroll
    for (int m = 0; m < M; m++)
        write_floats<W>(head_of(a.gq, at.batch, at.head), gq[m], scale, row + m * 16, a.rows, column, a.head_dim);
}

/* ---- launching backward ------------------------------------------------------------------------------------------ */

/* Grid: a block per S::ROWS keys (or rows) of a head and window of D. Multiply-adds: 4 and 3 · rows · keys · D; forward
 * has 2. True with nothing to launch, too. */
template <typename S> static bool launch_tf32_keys(const tarn__call *call, attention_args &a)
{
    constexpr int threads = S::THREADS_OF_BLOCK;
    a.d_windows = (a.head_dim + tf32_window<S> - 1) / tf32_window<S>;
    a.blocks = (a.keys + S::ROWS - 1) / S::ROWS;
    const int64_t blocks = a.batches * a.kv_heads * a.blocks * a.d_windows;
    if ((!a.gk.base && !a.gv.base) || blocks == 0)
        return true;
    return a.document_starts
               ? launch_large_smem<tf32_keys_kernel<S, true>, threads>(call, a, blocks, tf32_grad_bytes<S>)
               : launch_large_smem<tf32_keys_kernel<S, false>, threads>(call, a, blocks, tf32_grad_bytes<S>);
}

template <typename S> static bool launch_tf32_rows(const tarn__call *call, attention_args &a)
{
    constexpr int threads = S::THREADS_OF_BLOCK;
    a.d_windows = (a.head_dim + tf32_window<S> - 1) / tf32_window<S>;
    a.blocks = (a.rows + S::ROWS - 1) / S::ROWS;
    const int64_t blocks = a.batches * a.heads * a.blocks * a.d_windows;
    if (!a.gq.base || blocks == 0)
        return true;
    return a.document_starts
               ? launch_large_smem<tf32_rows_kernel<S, true>, threads>(call, a, blocks, tf32_grad_bytes<S>)
               : launch_large_smem<tf32_rows_kernel<S, false>, threads>(call, a, blocks, tf32_grad_bytes<S>);
}

template <typename S> static bool launch_tf32_grad(const tarn__call *call, attention_args &a)
{
    if (a.rows > 0)
        launch_tf32_delta(call, a);
    return launch_tf32_keys<S>(call, a) && launch_tf32_rows<S>(call, a);
}

bool tarn__cuda_attention_tf32_grad_fits(const tarn__call *call)
{
    bool fits = fits_tf32(call) && !has_softcap(call) && has_float_rows(call->in[4]) && has_float_rows(call->in[6]);
    for (int i = 0; i < 3; i++)
        fits = fits && is_float_or_null(call->out[i]);
    return fits;
}

/* D from 97 to 128: 203 KB of shared memory, or half of it where the device has less. */
static bool launch_tf32_grad128(const tarn__call *call, attention_args &a)
{
    typedef tf32_shape<128, 1, 4, 16, 2, true> small;
    if (a.rows > 0)
        launch_tf32_delta(call, a);
    return (launch_tf32_keys<tf32_shape<128, 1, 8, 32, 1, true>>(call, a) || launch_tf32_keys<small>(call, a)) &&
           (launch_tf32_rows<tf32_shape<128, 1, 8, 32, 1, false>>(call, a) || launch_tf32_rows<small>(call, a));
}

/* Shapes as measured on an H200. a->blocks and a->d_windows are set for the launches. */
bool tarn__cuda_attention_tf32_grad(const tarn__call *call, attention_args *a)
{
    if (a->head_dim <= 32)
        return launch_tf32_grad<tf32_shape<32, 2, 4, 32, 2, true>>(call, *a);
    if (a->head_dim <= 64)
        return launch_tf32_grad<tf32_shape<64, 2, 4, 32, 2, true>>(call, *a);
    if (a->head_dim <= 96)
        return launch_tf32_grad<tf32_shape<96, 1, 4, 32, 2, true>>(call, *a);
    return a->head_dim <= 128 ? launch_tf32_grad128(call, *a)
                              : launch_tf32_grad<tf32_shape<256, 1, 4, 16, 1, true>>(call, *a);
}
