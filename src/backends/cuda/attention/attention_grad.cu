/* attention_grad.cu: the gradients of attention for every dtype, layout and size of D, and the choice between them and
 * tensor cores. See attention_simt.cuh for the tiles.
 *
 *   weights P = exp(q · kᵀ · scale - logarithm), as they are dropped: P'
 *   gv = P'ᵀ · g,  dP = g · vᵀ, dropped like P,  dS = P · (dP - Σ g · y),  gq = scale · dS · k,  gk = scale · dSᵀ · q
 *
 * First each row's Σ g · y. Then a kernel whose blocks have keys and go through the rows of all heads that look at
 * them, for gk and gv, and one whose blocks have rows and go through keys, for gq: each sum has one owner, so nothing
 * is added across blocks. */
#include "backends/cuda/attention/attention_simt.cuh"
#include "backends/cuda/attention/cudnn_attention.h"

/* ---- the sums of rows -------------------------------------------------------------------------------------------- */

/* The logarithm of a row to base 2. Of scores that are all -infinity it is that, too; 0 makes weights of 0 of them, not
 * NaN. */
__device__ __forceinline__ double log2_of(const slab &logs, int64_t t)
{
    double log_sum = load_any<double>(logs.base, logs.dtype, t * logs.row);
    return log_sum == -CUDART_INF ? 0 : log_sum * LOG2_E;
}

/* A warp a row: its logarithm, to base 2, and Σ g · y, side by side. */
template <typename C>
static __global__ void __launch_bounds__(THREADS) sums_kernel(const __grid_constant__ attention_args a)
{
    const int64_t row = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (row >= a.batches * a.heads * a.rows)
        return;
    const int64_t t = row % a.rows, head = row / a.rows % a.heads, batch = row / a.rows / a.heads;
    const slab g = slab_of(a.g, batch, head), y = slab_of(a.y, batch, head), logs = slab_of(a.log_sum, batch, head);
    C sum = 0;
    for (int64_t d = threadIdx.x % WARP; d < a.depth; d += WARP)
        sum += load_any<C>(g.base, g.dtype, t * g.row + d * g.along) *
               load_any<C>(y.base, y.dtype, t * y.row + d * y.along);
    sum = over_warp<add_up>(sum);
    if (threadIdx.x % WARP == 0) {
        ((C *)a.rows_sums)[2 * row] = (C)log2_of(logs, t);
        ((C *)a.rows_sums)[2 * row + 1] = sum;
    }
}

/* The same for rows of whole, aligned packs of 16-bit numbers: LANES lanes a row, a pack each. blockIdx.y counts heads
 * of all batches, as often as the grid is high. */
template <typename T, int LANES>
static __global__ void __launch_bounds__(THREADS) packed_sums_kernel(const __grid_constant__ attention_args a)
{
    constexpr int N = 8;
    const int lane = threadIdx.x % LANES;
    const int64_t t = (int64_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES, heads = a.batches * a.heads;
    for (int64_t head = blockIdx.y; head < heads; head += gridDim.y) {
        const int64_t batch = head / a.heads, own = head % a.heads;
        const slab g = slab_of(a.g, batch, own), y = slab_of(a.y, batch, own), logs = slab_of(a.log_sum, batch, own);
        float sum = 0;
        if (t < a.rows && lane * N < a.depth) {
            const pack<T, N> left = *(const pack<T, N> *)((const T *)g.base + t * g.row + lane * N);
            const pack<T, N> right = *(const pack<T, N> *)((const T *)y.base + t * y.row + lane * N);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum += widen(left.at[i]) * widen(right.at[i]);
        }
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2)
            sum += __shfl_xor_sync(FULL_WARP, sum, step);
        if (lane == 0 && t < a.rows)
            ((float2 *)a.rows_sums)[head * a.rows + t] = make_float2((float)log2_of(logs, t), sum);
    }
}

/* Σ g · y once more, as Σ P' · dP: nothing of y's rounding is in it. Nor is the logarithm's: it is one number for the
 * row, as far off as numbers of its size are apart, so the weights made with it are off by one factor, which is what
 * they add up to. */
static __global__ void __launch_bounds__(THREADS) exact_sums_kernel(const __grid_constant__ attention_args a)
{
    typedef tile_of<float> tile;
    constexpr int M = tile::M, SIDE = tile::SIDE;
    __shared__ alignas(16) float stage[tile::STAGE];
    __shared__ int64_t space[WARP];
    const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
    const block_place at = place_of(a, a.heads, true);
    const slab q = slab_of(a.q, at.batch, at.head), g = slab_of(a.g, at.batch, at.head);
    const slab k = slab_of(a.k, at.batch, at.head / a.group), v = slab_of(a.v, at.batch, at.head / a.group);
    const int64_t first = at.block * SIDE, last = (first + SIDE < a.rows ? first + SIDE : a.rows) - 1;
    const int64_t valid = valid_keys(a, at.batch), keys = keys_of(a, valid, last), head = at.batch * a.heads + at.head;
    const float scale = (float)(a.scale * LOG2_E);
    float *sums = (float *)a.rows_sums + 2 * head * a.rows, score[M][M], pull[M][M], weight[M] = {}, total[M] = {};
    for (int64_t key = first_tile_of(a, at.batch, first, last, SIDE, space); key < keys; key += SIDE) {
        multiply_tiles(score, stage, q, first, a.rows, k, key, keys, a.depth);
        multiply_tiles(pull, stage, g, first, a.rows, v, key, keys, a.depth);
#pragma unroll
        for (int m = 0; m < M; m++) {
            int64_t t = first + ty * M + m, seen = t < a.rows ? keys_of(a, valid, t) : 0,
                    start = t < a.rows ? start_of(a, at.batch, t) : 0;
            float log_sum = t < a.rows ? sums[2 * t] : 0;
            const uint32_t kept = a.is_dropping ? kept_from(a, head, t, key + tx * M) : 0;
#pragma unroll
            for (int n = 0; n < M; n++) {
                const bool counts = key + tx * M + n >= start && key + tx * M + n < seen;
                float p = counts ? exponential2(score[m][n] * scale - log_sum) : 0;
                weight[m] += p;
                if (p != 0)
                    total[m] += p * (a.is_dropping ? drop_factor(a, kept, n) : 1) * pull[m][n];
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
            a.factors[head * a.rows + t] = factor;
        }
    }
}

/* ---- from scores to slopes --------------------------------------------------------------------------------------- */

/* What the gradient knows of a row; beyond the last, no key is seen. */
template <typename C> struct row_facts {
    int64_t start, keys; /* it looks at those from start on that are below keys */
    C log_sum, factor, gy;
};

template <typename C>
__device__ __forceinline__ row_facts<C> facts_of(const attention_args &a, int64_t batch, int64_t head, int64_t valid,
                                                 int64_t t)
{
    if (t >= a.rows)
        return {0, 0, 0, 0, 0};
    const int64_t row = (batch * a.heads + head) * a.rows + t;
    const C *sums = (const C *)a.rows_sums + 2 * row;
    return {start_of(a, batch, t), keys_of(a, valid, t), sums[0], a.factors ? (C)a.factors[row] : (C)1, sums[1]};
}

/* A score, times the scale to base 2, becomes its weight, and the pull on it (g · v) its slope; `drop` is dropout's
 * factor. */
template <typename C> struct weight_and_slope {
    C weight, slope;
};

template <typename C>
__device__ __forceinline__ weight_and_slope<C> slope_of(const row_facts<C> &row, int64_t key, C score, C scale, C pull,
                                                        C drop)
{
    C p = key >= row.start && key < row.keys ? exponential2(score * scale - row.log_sum) * row.factor : (C)0;
    return {drop * p, p == 0 ? (C)0 : p * (drop * pull - row.gy)};
}

/* ---- gk and gv --------------------------------------------------------------------------------------------------- */

/* One tile (keys, rows) of products and of g · vᵀ becomes weights and slopes in shared memory, both (rows, keys). */
template <typename C>
__device__ __forceinline__ void key_slopes(const attention_args &a, const C (*score)[tile_of<C>::M],
                                           const C (*pull)[tile_of<C>::M], int64_t batch, int64_t head, int64_t valid,
                                           int64_t key, int64_t row, C *weights, C *slopes)
{
    typedef tile_of<C> tile;
    constexpr int M = tile::M;
    const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
    const C scale = (C)(a.scale * LOG2_E);
#pragma unroll
    for (int n = 0; n < M; n++) {
        const int64_t t = row + tx * M + n;
        const row_facts<C> facts = facts_of<C>(a, batch, head, valid, t);
        const uint32_t kept = a.is_dropping ? kept_from(a, batch * a.heads + head, t, key + ty * M) : 0;
#pragma unroll
        for (int m = 0; m < M; m++) {
            C drop = a.is_dropping ? (C)drop_factor(a, kept, m) : (C)1;
            weight_and_slope<C> both = slope_of(facts, key + ty * M + m, score[m][n], scale, pull[m][n], drop);
            int to = (tx * M + n) * tile::LINE + ty * M + m;
            weights[to] = both.weight;
            slopes[to] = both.slope;
        }
    }
}

template <typename C, int W>
static __global__ void __launch_bounds__(THREADS) keys_kernel(const __grid_constant__ attention_args a)
{
    typedef tile_of<C> tile;
    constexpr int M = tile::M, SIDE = tile::SIDE;
    __shared__ alignas(16) C stage[tile::STAGE];
    __shared__ alignas(16) C weights[SIDE * tile::LINE], slopes[SIDE * tile::LINE]; /* (rows, keys) */
    __shared__ int64_t space[WARP];
    const block_place at = place_of(a, a.kv_heads, false);
    const slab k = slab_of(a.k, at.batch, at.head), v = slab_of(a.v, at.batch, at.head);
    const int64_t key = at.block * SIDE, column = at.window * W, valid = valid_keys(a, at.batch),
                  begin = first_row_of(a, valid, key) / SIDE * SIDE;
    const int64_t end = end_of_rows(a, at.batch, begin, key + SIDE - 1, space);
    C score[M][M], pull[M][M], gk[M][W / ACROSS] = {}, gv[M][W / ACROSS] = {};
    for (int64_t head = at.head * a.group; head < (at.head + 1) * a.group; head++) {
        const slab q = slab_of(a.q, at.batch, head), g = slab_of(a.g, at.batch, head);
        for (int64_t row = begin; row < end; row += SIDE) {
            multiply_tiles(score, stage, k, key, valid, q, row, a.rows, a.depth);
            multiply_tiles(pull, stage, v, key, valid, g, row, a.rows, a.depth);
            key_slopes(a, score, pull, at.batch, head, valid, key, row, weights, slopes);
            multiply_rows<C, W>(gv, weights, stage, g, row, a.rows, column, a.depth);
            multiply_rows<C, W>(gk, slopes, stage, q, row, a.rows, column, a.depth);
        }
    }
    C one[M], scale[M];
#pragma unroll
    for (int m = 0; m < M; m++)
        one[m] = 1, scale[m] = (C)a.scale;
    if (a.gv.base)
        write_rows<C, W>(slab_of(a.gv, at.batch, at.head), gv, one, key, a.keys, column, a.depth);
    if (a.gk.base)
        write_rows<C, W>(slab_of(a.gk, at.batch, at.head), gk, scale, key, a.keys, column, a.depth);
}

/* ---- gq ---------------------------------------------------------------------------------------------------------- */

template <typename C, int W>
static __global__ void __launch_bounds__(THREADS) rows_kernel(const __grid_constant__ attention_args a)
{
    typedef tile_of<C> tile;
    constexpr int M = tile::M, SIDE = tile::SIDE;
    __shared__ alignas(16) C stage[tile::STAGE];
    __shared__ alignas(16) C slopes[SIDE * tile::LINE]; /* (keys, rows) */
    __shared__ int64_t space[WARP];
    const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
    const block_place at = place_of(a, a.heads, true);
    const slab q = slab_of(a.q, at.batch, at.head), g = slab_of(a.g, at.batch, at.head);
    const slab k = slab_of(a.k, at.batch, at.head / a.group), v = slab_of(a.v, at.batch, at.head / a.group);
    const int64_t first = at.block * SIDE, last = (first + SIDE < a.rows ? first + SIDE : a.rows) - 1,
                  column = at.window * W;
    const int64_t valid = valid_keys(a, at.batch), keys = keys_of(a, valid, last), head = at.batch * a.heads + at.head;
    const C scale = (C)(a.scale * LOG2_E);
    C score[M][M], pull[M][M], gq[M][W / ACROSS] = {}, factors[M];
    for (int64_t key = first_tile_of(a, at.batch, first, last, SIDE, space); key < keys; key += SIDE) {
        multiply_tiles(score, stage, q, first, a.rows, k, key, keys, a.depth);
        multiply_tiles(pull, stage, g, first, a.rows, v, key, keys, a.depth);
#pragma unroll
        for (int m = 0; m < M; m++) {
            const int64_t t = first + ty * M + m;
            const row_facts<C> facts = facts_of<C>(a, at.batch, at.head, valid, t);
            const uint32_t kept = a.is_dropping ? kept_from(a, head, t, key + tx * M) : 0;
#pragma unroll
            for (int n = 0; n < M; n++) {
                C drop = a.is_dropping ? (C)drop_factor(a, kept, n) : (C)1;
                slopes[(tx * M + n) * tile::LINE + ty * M + m] =
                    slope_of(facts, key + tx * M + n, score[m][n], scale, pull[m][n], drop).slope;
            }
        }
        multiply_rows<C, W>(gq, slopes, stage, k, key, keys, column, a.depth);
    }
#pragma unroll
    for (int m = 0; m < M; m++)
        factors[m] = (C)a.scale;
    write_rows<C, W>(slab_of(a.gq, at.batch, at.head), gq, factors, first, a.rows, column, a.depth);
}

/* ---- starting them ----------------------------------------------------------------------------------------------- */

static bool has_packs(const cube &x, tarn_dtype dtype)
{
    return x.dtype == dtype && x.stride[3] == 1 && x.stride[0] % 8 == 0 && x.stride[1] % 8 == 0 &&
           x.stride[2] % 8 == 0 && is_aligned(x.base, 16);
}

template <typename T, int LANES> static void launch_packed(const tarn__call *call, const attention_args &a)
{
    const int64_t heads = a.batches * a.heads;
    const dim3 grid(blocks_for(a.rows, THREADS / LANES), (unsigned)(heads < 65535 ? heads : 65535));
    packed_sums_kernel<T, LANES><<<grid, THREADS, 0, stream_of(call)>>>(a);
}

template <typename T> static bool launch_packed_sums(const tarn__call *call, const attention_args &a)
{
    tarn_dtype dtype = a.g.dtype;
    if (!has_packs(a.g, dtype) || !has_packs(a.y, dtype) || a.depth % 8 != 0 || a.depth > 256)
        return false;
    if (a.depth <= 64)
        launch_packed<T, 8>(call, a);
    else if (a.depth <= 128)
        launch_packed<T, 16>(call, a);
    else
        launch_packed<T, 32>(call, a);
    return true;
}

template <typename C> static void launch_sums(const tarn__call *call, const attention_args &a)
{
    if (sizeof(C) == sizeof(float) && ((a.g.dtype == TARN_BF16 && launch_packed_sums<bf16>(call, a)) ||
                                       (a.g.dtype == TARN_F16 && launch_packed_sums<f16>(call, a))))
        return;
    sums_kernel<C><<<blocks_for(a.batches * a.heads * a.rows, THREADS / WARP), THREADS, 0, stream_of(call)>>>(a);
}

/* Grid: a block for SIDE keys (or rows) of a head and a window of D. */
template <typename C, int W> static void launch(const tarn__call *call, attention_args &a)
{
    constexpr int SIDE = tile_of<C>::SIDE;
    a.windows = (a.depth + W - 1) / W;
    a.blocks = (a.keys + SIDE - 1) / SIDE;
    if ((a.gk.base || a.gv.base) && a.blocks > 0)
        keys_kernel<C, W>
            <<<blocks_for(a.batches * a.kv_heads * a.blocks * a.windows, 1), THREADS, 0, stream_of(call)>>>(a);
    a.blocks = (a.rows + SIDE - 1) / SIDE;
    if (a.gq.base && a.blocks > 0)
        rows_kernel<C, W>
            <<<blocks_for(a.batches * a.heads * a.blocks * a.windows, 1), THREADS, 0, stream_of(call)>>>(a);
}

size_t tarn__cuda_attention_grad_native_scratch(const tarn__call *call)
{
    const tarn__view *q = call->in[0];
    size_t rows = (size_t)(q->shape[0] * q->shape[1] * q->shape[2]);
    return rows * (q->dtype == TARN_F64 ? 2 * sizeof(double) : 3 * sizeof(float));
}

void tarn__cuda_attention_grad_native(const tarn__call *call)
{
    attention_args a = attention_of(call, true);
    if (a.batches == 0)
        return;
    if (a.rows > 0 && a.q.dtype == TARN_F64)
        launch_sums<double>(call, a);
    else if (a.rows > 0)
        launch_sums<float>(call, a);
    if (tarn__cuda_attention_mma_grad(call, &a))
        return;
    if (a.rows > 0 && a.q.dtype != TARN_F64) {
        a.windows = 1;
        a.factors = (float *)a.rows_sums + 2 * a.batches * a.heads * a.rows;
        a.blocks = (a.rows + tile_of<float>::SIDE - 1) / tile_of<float>::SIDE;
        exact_sums_kernel<<<blocks_for(a.batches * a.heads * a.blocks, 1), THREADS, 0, stream_of(call)>>>(a);
    }
    FOR_PLAIN(a, launch<C, W>(call, a))
}
