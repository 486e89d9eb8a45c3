/* attention_grad.cu: gradients of attention for every dtype, layout and D, and the choice between them and tensor
 * cores. attention_simt.cuh has the tiles.
 *
 *   P = exp(cap(q · kᵀ · scale) - lse), after dropout: P'
 *   gv = P'ᵀ · g,  dP = g · vᵀ, dropped like P,  dS = P · (dP - Σ g · y),  gq = scale · dS · k,  gk = scale · dSᵀ · q
 *   with a soft cap c, cap(s) = c · tanh(s / c), and dS is multiplied by 1 - tanh²(s / c)
 *
 * First delta = Σ g · y of each row. Then a kernel whose blocks own keys and walk the rows of all heads that attend to
 * them, for gk and gv, and one whose blocks own rows and walk the keys, for gq. Every sum has one owner: nothing is
 * added across blocks. */
#include "backends/cuda/attention/attention_simt.cuh"
#include "backends/cuda/attention/cudnn_attention.h"

/* ---- delta ------------------------------------------------------------------------------------------------------- */

/* LSE of a row to base 2. If all scores are -infinity it is 0 instead: weights of 0, not NaN. */
__device__ __forceinline__ double lse2_of(const head_matrix &lse_head, int64_t t)
{
    double lse = load_any<double>(lse_head.base, lse_head.dtype, t * lse_head.row);
    return lse == -CUDART_INF ? 0 : lse * LOG2_E;
}

/* One warp per row: its LSE, to base 2, and delta, interleaved. */
template <typename C>
static __global__ void __launch_bounds__(THREADS) delta_kernel(const __grid_constant__ attention_args a)
{
    const int64_t row = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (row >= a.batches * a.heads * a.rows)
        return;
    const int64_t t = row % a.rows, head = row / a.rows % a.heads, batch = row / a.rows / a.heads;
    const head_matrix g = head_of(a.g, batch, head), y = head_of(a.y, batch, head),
                      lse_head = head_of(a.lse, batch, head);
    C sum = 0;
    for (int64_t d = threadIdx.x % WARP; d < a.head_dim; d += WARP)
        sum += load_any<C>(g.base, g.dtype, t * g.row + d * g.column) *
               load_any<C>(y.base, y.dtype, t * y.row + d * y.column);
    sum = warp_reduce<plus>(sum);
    if (threadIdx.x % WARP == 0) {
        ((C *)a.row_stats)[2 * row] = (C)lse2_of(lse_head, t);
        ((C *)a.row_stats)[2 * row + 1] = sum;
    }
}

/* The same for rows of aligned 16-byte vectors of 16-bit floats: LANES lanes per row, one vector each. blockIdx.y
 * strides over heads of all batches. */
template <typename T, int LANES>
static __global__ void __launch_bounds__(THREADS) vector_delta_kernel(const __grid_constant__ attention_args a)
{
    constexpr int N = 8;
    const int lane = threadIdx.x % LANES;
    const int64_t t = (int64_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES, heads = a.batches * a.heads;
    for (int64_t head = blockIdx.y; head < heads; head += gridDim.y) {
        const int64_t batch = head / a.heads, own = head % a.heads;
        const head_matrix g = head_of(a.g, batch, own), y = head_of(a.y, batch, own),
                          lse_head = head_of(a.lse, batch, own);
        float sum = 0;
        if (t < a.rows && lane * N < a.head_dim) {
            const vec<T, N> left = *(const vec<T, N> *)((const T *)g.base + t * g.row + lane * N);
            const vec<T, N> right = *(const vec<T, N> *)((const T *)y.base + t * y.row + lane * N);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum += widen(left.at[i]) * widen(right.at[i]);
        }
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2)
            sum += __shfl_xor_sync(FULL_WARP, sum, step);
        if (lane == 0 && t < a.rows)
            ((float2 *)a.row_stats)[head * a.rows + t] = make_float2((float)lse2_of(lse_head, t), sum);
    }
}

/* delta again, as Σ P' · dP: free of y's rounding. And of the LSE's: its rounding error is one factor for the whole
 * row, which is what the recomputed weights add up to. */
template <bool is_capped>
static __global__ void __launch_bounds__(THREADS) exact_delta_kernel(const __grid_constant__ attention_args a)
{
    typedef tile_of<float> tile;
    constexpr int M = tile::M, SIDE = tile::SIDE;
    __shared__ alignas(16) float stage[tile::STAGE];
    __shared__ int64_t space[WARP];
    const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
    const block_pos at = block_pos_of(a, a.heads, true);
    const head_matrix q = head_of(a.q, at.batch, at.head), g = head_of(a.g, at.batch, at.head);
    const head_matrix k = head_of(a.k, at.batch, at.head / a.group), v = head_of(a.v, at.batch, at.head / a.group);
    const int64_t first = at.block * SIDE, last = (first + SIDE < a.rows ? first + SIDE : a.rows) - 1;
    const int64_t valid = valid_keys(a, at.batch), keys = keys_of(a, valid, last), head = at.batch * a.heads + at.head;
    const float scale = (float)(a.scale * LOG2_E);
    float *sums = (float *)a.row_stats + 2 * head * a.rows, score[M][M], dp[M][M], weight[M] = {}, total[M] = {};
    for (int64_t key = first_tile_of(a, at.batch, first, last, SIDE, space); key < keys; key += SIDE) {
        gemm_tile_nt(score, stage, q, first, a.rows, k, key, keys, a.head_dim);
        gemm_tile_nt(dp, stage, g, first, a.rows, v, key, keys, a.head_dim);
#pragma unroll
        for (int m = 0; m < M; m++) {
            int64_t t = first + ty * M + m, visible = t < a.rows ? keys_of(a, valid, t) : 0,
                    start = t < a.rows ? start_of(a, at.batch, t) : 0;
            float lse = t < a.rows ? sums[2 * t] : 0;
            const uint32_t mask = a.is_dropping ? keep_mask_from(a, head, t, key + tx * M) : 0;
#pragma unroll
            for (int n = 0; n < M; n++) {
                const bool counts = key + tx * M + n >= start && key + tx * M + n < visible;
                float p = counts ? exp2_of(cap_score<float, is_capped>(a, score[m][n], scale).score - lse) : 0;
                weight[m] += p;
                if (p != 0)
                    total[m] += p * (a.is_dropping ? drop_factor(a, mask, n) : 1) * dp[m][n];
            }
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int step = ACROSS / 2; step > 0; step /= 2) {
            weight[m] += __shfl_xor_sync(FULL_WARP, weight[m], step);
            total[m] += __shfl_xor_sync(FULL_WARP, total[m], step);
        }
        int64_t t = first + ty * M + m;
        if (tx == 0 && t < a.rows) {
            float factor = weight[m] > 0 ? 1 / weight[m] : 1;
            sums[2 * t + 1] = total[m] * factor;
            a.row_factors[head * a.rows + t] = factor;
        }
    }
}

/* ---- from scores to dS ------------------------------------------------------------------------------------------- */

/* What the gradient needs of a row; rows beyond the last see no key. */
template <typename C> struct row_info {
    int64_t start, keys; /* visible keys: start <= key < keys */
    C lse, factor, delta;
};

/* Statistics and visible keys of row t. */
template <typename C>
__device__ __forceinline__ row_info<C> row_info_of(const attention_args &a, int64_t batch, int64_t head, int64_t valid,
                                                   int64_t t)
{
    if (t >= a.rows)
        return {0, 0, 0, 0, 0};
    const int64_t row = (batch * a.heads + head) * a.rows + t;
    const C *sums = (const C *)a.row_stats + 2 * row;
    return {start_of(a, batch, t), keys_of(a, valid, t), sums[0], a.row_factors ? (C)a.row_factors[row] : (C)1,
            sums[1]};
}

/* A score gives its weight; with dP its dS. `drop` is dropout's factor. */
template <typename C> struct p_and_ds {
    C weight, ds;
};

template <typename C, bool is_capped>
__device__ __forceinline__ p_and_ds<C> ds_of(const attention_args &a, const row_info<C> &row, int64_t key, C score,
                                             C scale, C dp, C drop)
{
    const capped_score<C> capped = cap_score<C, is_capped>(a, score, scale);
    C p = key >= row.start && key < row.keys ? exp2_of(capped.score - row.lse) * row.factor : (C)0;
    if constexpr (is_capped)
        return {drop * p, p == 0 ? (C)0 : p * (drop * dp - row.delta) * capped.grad};
    else
        return {drop * p, p == 0 ? (C)0 : p * (drop * dp - row.delta)};
}

/* ---- gk and gv --------------------------------------------------------------------------------------------------- */

/* One tile (keys, rows) of scores and dP to weights and dS in shared memory, both (rows, keys). */
template <typename C, bool is_capped>
__device__ __forceinline__ void ds_of_keys(const attention_args &a, const C (*score)[tile_of<C>::M],
                                           const C (*dp)[tile_of<C>::M], int64_t batch, int64_t head, int64_t valid,
                                           int64_t key, int64_t row, C *weights, C *ds)
{
    typedef tile_of<C> tile;
    constexpr int M = tile::M;
    const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
    const C scale = (C)(a.scale * LOG2_E);
#pragma unroll
    for (int n = 0; n < M; n++) {
        const int64_t t = row + tx * M + n;
        const row_info<C> info = row_info_of<C>(a, batch, head, valid, t);
        const uint32_t mask = a.is_dropping ? keep_mask_from(a, batch * a.heads + head, t, key + ty * M) : 0;
#pragma unroll
        for (int m = 0; m < M; m++) {
            C drop = a.is_dropping ? (C)drop_factor(a, mask, m) : (C)1;
            p_and_ds<C> both = ds_of<C, is_capped>(a, info, key + ty * M + m, score[m][n], scale, dp[m][n], drop);
            int to = (tx * M + n) * tile::LINE + ty * M + m;
            weights[to] = both.weight;
            ds[to] = both.ds;
        }
    }
}

/* gk and gv of SIDE keys. Multiply-adds: 4 · rows · keys · D. */
template <typename C, int W, bool is_capped>
static __global__ void __launch_bounds__(THREADS) keys_kernel(const __grid_constant__ attention_args a)
{
    typedef tile_of<C> tile;
    constexpr int M = tile::M, SIDE = tile::SIDE;
    __shared__ alignas(16) C stage[tile::STAGE];
    __shared__ alignas(16) C weights[SIDE * tile::LINE], ds[SIDE * tile::LINE]; /* (rows, keys) */
    __shared__ int64_t space[WARP];
    const block_pos at = block_pos_of(a, a.kv_heads, false);
    const head_matrix k = head_of(a.k, at.batch, at.head), v = head_of(a.v, at.batch, at.head);
    const int64_t key = at.block * SIDE, column = at.d_window * W, valid = valid_keys(a, at.batch),
                  begin = first_row_of(a, valid, key) / SIDE * SIDE;
    const int64_t end = end_of_rows(a, at.batch, begin, key + SIDE - 1, space);
    C score[M][M], dp[M][M], gk[M][W / ACROSS] = {}, gv[M][W / ACROSS] = {};
    for (int64_t head = at.head * a.group; head < (at.head + 1) * a.group; head++) {
        const head_matrix q = head_of(a.q, at.batch, head), g = head_of(a.g, at.batch, head);
        for (int64_t row = begin; row < end; row += SIDE) {
            gemm_tile_nt(score, stage, k, key, valid, q, row, a.rows, a.head_dim);
            gemm_tile_nt(dp, stage, v, key, valid, g, row, a.rows, a.head_dim);
            ds_of_keys<C, is_capped>(a, score, dp, at.batch, head, valid, key, row, weights, ds);
            gemm_tile_tn<C, W>(gv, weights, stage, g, row, a.rows, column, a.head_dim);
            gemm_tile_tn<C, W>(gk, ds, stage, q, row, a.rows, column, a.head_dim);
        }
    }
    C one[M], scale[M];
#pragma unroll
    for (int m = 0; m < M; m++)
        one[m] = 1, scale[m] = (C)a.scale;
    if (a.gv.base)
        write_rows<C, W>(head_of(a.gv, at.batch, at.head), gv, one, key, a.keys, column, a.head_dim);
    if (a.gk.base)
        write_rows<C, W>(head_of(a.gk, at.batch, at.head), gk, scale, key, a.keys, column, a.head_dim);
}

/* ---- gq ---------------------------------------------------------------------------------------------------------- */

/* gq of SIDE rows. Multiply-adds: 3 · rows · keys · D. */
template <typename C, int W, bool is_capped>
static __global__ void __launch_bounds__(THREADS) rows_kernel(const __grid_constant__ attention_args a)
{
    typedef tile_of<C> tile;
    constexpr int M = tile::M, SIDE = tile::SIDE;
    __shared__ alignas(16) C stage[tile::STAGE];
    __shared__ alignas(16) C ds[SIDE * tile::LINE]; /* (keys, rows) */
    __shared__ int64_t space[WARP];
    const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
    const block_pos at = block_pos_of(a, a.heads, true);
    const head_matrix q = head_of(a.q, at.batch, at.head), g = head_of(a.g, at.batch, at.head);
    const head_matrix k = head_of(a.k, at.batch, at.head / a.group), v = head_of(a.v, at.batch, at.head / a.group);
    const int64_t first = at.block * SIDE, last = (first + SIDE < a.rows ? first + SIDE : a.rows) - 1,
                  column = at.d_window * W;
    const int64_t valid = valid_keys(a, at.batch), keys = keys_of(a, valid, last), head = at.batch * a.heads + at.head;
    const C scale = (C)(a.scale * LOG2_E);
    C score[M][M], dp[M][M], gq[M][W / ACROSS] = {}, row_factors[M];
    for (int64_t key = first_tile_of(a, at.batch, first, last, SIDE, space); key < keys; key += SIDE) {
        gemm_tile_nt(score, stage, q, first, a.rows, k, key, keys, a.head_dim);
        gemm_tile_nt(dp, stage, g, first, a.rows, v, key, keys, a.head_dim);
#pragma unroll
        for (int m = 0; m < M; m++) {
            const int64_t t = first + ty * M + m;
            const row_info<C> info = row_info_of<C>(a, at.batch, at.head, valid, t);
            const uint32_t mask = a.is_dropping ? keep_mask_from(a, head, t, key + tx * M) : 0;
#pragma unroll
            for (int n = 0; n < M; n++) {
                C drop = a.is_dropping ? (C)drop_factor(a, mask, n) : (C)1;
                ds[(tx * M + n) * tile::LINE + ty * M + m] =
                    ds_of<C, is_capped>(a, info, key + tx * M + n, score[m][n], scale, dp[m][n], drop).ds;
            }
        }
        gemm_tile_tn<C, W>(gq, ds, stage, k, key, keys, column, a.head_dim);
    }
#pragma unroll
    for (int m = 0; m < M; m++)
        row_factors[m] = (C)a.scale;
    write_rows<C, W>(head_of(a.gq, at.batch, at.head), gq, row_factors, first, a.rows, column, a.head_dim);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

static bool has_vecs(const bhtd_tensor &x, tarn_dtype dtype)
{
    return x.dtype == dtype && x.stride[3] == 1 && x.stride[0] % 8 == 0 && x.stride[1] % 8 == 0 &&
           x.stride[2] % 8 == 0 && is_aligned(x.base, 16);
}

template <typename T, int LANES> static void launch_vectorized(const tarn__call *call, const attention_args &a)
{
    const int64_t heads = a.batches * a.heads;
    const dim3 grid(blocks_for(a.rows, THREADS / LANES), (unsigned)(heads < 65535 ? heads : 65535));
    vector_delta_kernel<T, LANES><<<grid, THREADS, 0, stream_of(call)>>>(a);
}

/* False if g or y are no aligned 16-byte vectors, or D is too large for one warp. */
template <typename T> static bool try_vector_delta(const tarn__call *call, const attention_args &a)
{
    tarn_dtype dtype = a.g.dtype;
    if (!has_vecs(a.g, dtype) || !has_vecs(a.y, dtype) || a.head_dim % 8 != 0 || a.head_dim > 256)
        return false;
    if (a.head_dim <= 64)
        launch_vectorized<T, 8>(call, a);
    else if (a.head_dim <= 128)
        launch_vectorized<T, 16>(call, a);
    else
        launch_vectorized<T, 32>(call, a);
    return true;
}

/* LSE and delta of all rows, the first step of every path. */
template <typename C> static void launch_delta(const tarn__call *call, const attention_args &a)
{
    if (sizeof(C) == sizeof(float) && ((a.g.dtype == TARN_BF16 && try_vector_delta<bf16>(call, a)) ||
                                       (a.g.dtype == TARN_F16 && try_vector_delta<f16>(call, a))))
        return;
    delta_kernel<C><<<blocks_for(a.batches * a.heads * a.rows, THREADS / WARP), THREADS, 0, stream_of(call)>>>(a);
}

/* Grid: a block per SIDE keys (or rows) of a head and window of D. */
template <typename C, int W, bool is_capped> static void launch(const tarn__call *call, attention_args &a)
{
    constexpr int SIDE = tile_of<C>::SIDE;
    a.d_windows = (a.head_dim + W - 1) / W;
    a.blocks = (a.keys + SIDE - 1) / SIDE;
    if ((a.gk.base || a.gv.base) && a.blocks > 0)
        keys_kernel<C, W, is_capped>
            <<<blocks_for(a.batches * a.kv_heads * a.blocks * a.d_windows, 1), THREADS, 0, stream_of(call)>>>(a);
    a.blocks = (a.rows + SIDE - 1) / SIDE;
    if (a.gq.base && a.blocks > 0)
        rows_kernel<C, W, is_capped>
            <<<blocks_for(a.batches * a.heads * a.blocks * a.d_windows, 1), THREADS, 0, stream_of(call)>>>(a);
}

/* Statistics of rows. */
static size_t row_stats_bytes(const tarn__call *call)
{
    const tarn__view *q = call->in[0];
    size_t rows = (size_t)(q->shape[0] * q->shape[1] * q->shape[2]);
    return rows * (q->dtype == TARN_F64 ? 2 * sizeof(double) : 3 * sizeof(float));
}

/* Where the starts of a sliding window, or masks of dropout, follow them. */
static size_t after_stats_offset(const tarn__call *call)
{
    return (row_stats_bytes(call) + 15) / 16 * 16;
}

size_t tarn__cuda_attention_grad_native_scratch(const tarn__call *call)
{
    const size_t after_bytes =
        window_starts_bytes(call) +
        (tarn__cuda_attention_wgmma_grad_fits(call) ? tarn__cuda_attention_wgmma_grad_mask_bytes(call) : 0);
    return after_bytes > 0 ? after_stats_offset(call) + after_bytes : row_stats_bytes(call);
}

/* The first step of every path. */
static void run_delta(const tarn__call *call, const attention_args &a)
{
    if (a.rows > 0 && a.q.dtype == TARN_F64)
        launch_delta<double>(call, a);
    else if (a.rows > 0)
        launch_delta<float>(call, a);
}

/* After delta, which it computes again, exactly: its rounding would dominate the error of the gradient. */
static void run_simt(const tarn__call *call, attention_args &a)
{
    if (a.rows > 0 && a.q.dtype != TARN_F64) {
        a.d_windows = 1;
        a.row_factors = (float *)a.row_stats + 2 * a.batches * a.heads * a.rows;
        a.blocks = (a.rows + tile_of<float>::SIDE - 1) / tile_of<float>::SIDE;
        const unsigned blocks = blocks_for(a.batches * a.heads * a.blocks, 1);
        if (a.cap > 0)
            exact_delta_kernel<true><<<blocks, THREADS, 0, stream_of(call)>>>(a);
        else
            exact_delta_kernel<false><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    }
    if (a.cap > 0) {
        FOR_SIMT(a, launch<C, W, true>(call, a))
    } else {
        FOR_SIMT(a, launch<C, W, false>(call, a))
    }
}

static void set_window_starts(const tarn__call *call, attention_args &a)
{
    if (a.rows > 0)
        tarn__cuda_attention_window_starts(call, &a, after_stats_offset(call));
}

void tarn__cuda_attention_grad_simt(const tarn__call *call)
{
    attention_args a = attention_of(call, true);
    if (a.batches == 0)
        return;
    set_window_starts(call, a);
    run_delta(call, a);
    run_simt(call, a);
}

/* SIMT where the device has too little shared memory. */
void tarn__cuda_attention_grad_mma(const tarn__call *call)
{
    attention_args a = attention_of(call, true);
    if (a.batches == 0)
        return;
    set_window_starts(call, a);
    run_delta(call, a);
    if (!tarn__cuda_attention_mma_grad(call, &a))
        run_simt(call, a);
}

/* The kernel of rows computes delta. */
void tarn__cuda_attention_grad_wgmma(const tarn__call *call)
{
    attention_args a = attention_of(call, true);
    if (a.batches == 0)
        return;
    if (!a.gq.base)
        run_delta(call, a);
    a.keep_masks = (char *)call->scratch + after_stats_offset(call);
    if (!tarn__cuda_attention_wgmma_grad(call, &a))
        tarn__cuda_attention_grad_mma(call);
}

/* SIMT where the device has too little shared memory. */
void tarn__cuda_attention_grad_f32(const tarn__call *call)
{
    attention_args a = attention_of(call, true);
    if (a.batches == 0)
        return;
    set_window_starts(call, a);
    if (tarn__cuda_attention_f32_grad(call, &a))
        return;
    run_delta(call, a);
    run_simt(call, a);
}

/* The same. */
void tarn__cuda_attention_grad_tf32(const tarn__call *call)
{
    attention_args a = attention_of(call, true);
    if (a.batches == 0)
        return;
    set_window_starts(call, a);
    if (tarn__cuda_attention_tf32_grad(call, &a))
        return;
    run_delta(call, a);
    run_simt(call, a);
}

void tarn__cuda_attention_grad_native(const tarn__call *call)
{
    if (tarn__cuda_attention_wgmma_grad_fits(call))
        tarn__cuda_attention_grad_wgmma(call);
    else if (tarn__cuda_attention_mma_grad_fits(call))
        tarn__cuda_attention_grad_mma(call);
    else
        tarn__cuda_attention_grad_simt(call);
}
