/* batchnorm_nchw.cuh: batchnorm and groupnorm of NCHW tensors: statistics, result, sums and gradient.
 *
 * Adjacent elements belong to one channel: a block takes a chunk of one channel of one batch (channel_stats.cuh). A
 * thread loads several vectors before it computes, and all before its first store: the compiler cannot know that the
 * tensors do not overlap. Elements of a vector are added in the compute type, vectors in f64. */
#ifndef TARN__CUDA_BATCHNORM_NCHW_CUH
#define TARN__CUDA_BATCHNORM_NCHW_CUH

#include "backends/cuda/norm/batchnorm.cuh"

#define X_LOADS 4    /* vectors that a thread loads before it computes, forward */
#define GRAD_LOADS 2 /* of x and of g each, backward */

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

/* Chunks vary fastest, then channels, then batches. */
__device__ __forceinline__ block_range range_nchw(const channel_args &a)
{
    block_range p;
    uint32_t id = a.is_reversed ? gridDim.x - 1 - blockIdx.x : blockIdx.x, chunk = pop_index(id, a.by_chunks);
    p.channel = pop_index(id, a.by_channels);
    p.batch = id;
    p.partial = (p.batch * a.chunks + chunk) * a.channels + p.channel;
    chunk_bounds(a, chunk, &p.begin, &p.end);
    return p;
}

/* Offsets along a block's range: computed once for a line, where vectors are adjacent. */
template <typename R> struct walk_nchw {
    int64_t base[CHANNEL_OPERANDS];

    __device__ __forceinline__ walk_nchw(const channel_args &a, const block_range &p)
    {
        offsets_of(a, p, p.begin, base);
    }
    __device__ __forceinline__ void to(const channel_args &a, const block_range &p, int64_t at, int64_t *offset) const
    {
        if (!a.is_linear) {
            offsets_of(a, p, at, offset);
            return;
        }
#pragma unroll
        for (int k = 0; k < CHANNEL_OPERANDS; k++)
            offset[k] = base[k] + (at - p.begin) * (R::width > 1 ? 1 : a.at.stride[k][a.at.rank - 1]);
    }
};

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* One block per chunk: its mean to partial_one, its sum of squared distances to partial_two. Four vectors are measured
 * from the first of them in the compute type, and these groups are merged in f64, as distances from the chunk's first
 * element. Bytes: x read. */
template <typename R, int>
static __global__ void __launch_bounds__(THREADS) stats_nchw(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    __shared__ double space[WARP];
    const block_range p = range_nchw(a);
    const walk_nchw<R> walk(a, p);
    /* all distances are measured from the chunk's first element */
    const double from = (double)R::element(R::fetch(a.operand[X], walk.base[X], 0), 0);
    const int64_t step = (int64_t)blockDim.x * N;
    double sum = 0, squares = 0;
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += X_LOADS * step) {
        typename R::raw x[X_LOADS];
        int64_t offset[CHANNEL_OPERANDS];
        int vecs = 0;
#pragma unroll
        for (int u = 0; u < X_LOADS; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset);
                x[u] = R::fetch(a.operand[X], offset[X], 0);
                vecs++;
            }
        group_moments<typename R::real> group;
        group.start(R::element(x[0], 0));
#pragma unroll
        for (int u = 0; u < X_LOADS; u++)
            if (u < vecs)
#pragma unroll
                for (int i = 0; i < N; i++)
                    group.add(R::element(x[u], i));
        if (group.is_exact()) {
            group.add_to(from, (double)(vecs * N), &sum, &squares);
            continue;
        }
#pragma unroll
        for (int u = 0; u < X_LOADS; u++)
            if (u < vecs)
#pragma unroll
                for (int i = 0; i < N; i++)
                    take_f64((double)R::element(x[u], i), from, &sum, &squares);
    }
    sum = block_reduce<plus>(sum, space, 0.0);
    squares = block_reduce<plus>(squares, space, 0.0);
    if (threadIdx.x == 0) {
        double count = (double)(p.end - p.begin);
        a.partial_one[p.partial] = from + sum / count;
        a.partial_two[p.partial] = squares - sum * sum / count;
    }
}

/* One block per chunk: y, with relu and a residual if there are. Bytes: x (and the residual) read, y written. */
template <typename R, int MODE>
static __global__ void __launch_bounds__(THREADS) normalize_nchw(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    const block_range p = range_nchw(a);
    const walk_nchw<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    channel_stats<typename R::real> stats;
    stats.fetch(a, p.batch, p.channel);
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += X_LOADS * step) {
        typename R::raw x[X_LOADS], residual[X_LOADS];
        int64_t offset[X_LOADS][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < X_LOADS; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                if (MODE == ADD_RELU)
                    residual[u] = R::fetch(a.operand[AUX], offset[u][AUX], 0);
            }
#pragma unroll
        for (int u = 0; u < X_LOADS; u++) {
            if (at + u * step >= p.end)
                break;
            typename R::real y[N];
            normalize_vec<R, MODE, true>(&stats, x[u], residual[u], y);
            R::store(a.operand[OUT], offset[u][OUT], 0, y);
        }
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* One block per chunk: Σ g and Σ g · x̂ after relu's gradient. Writes gx itself if the statistics are fixed, and the
 * gated gradient if relu's result is read. Bytes: x and g (and relu's result) read. */
template <typename R, int MODE>
static __global__ void __launch_bounds__(THREADS) sum_nchw(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    __shared__ double space[WARP];
    const block_range p = range_nchw(a);
    const walk_nchw<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    const relu_gate<C> gate = {MODE == RELU_RECOMPUTED, (C)a.relu_zero};
    channel_stats<C> stats;
    stats.fetch(a, p.batch, p.channel);
    double sum = 0, product = 0;
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += GRAD_LOADS * step) {
        typename R::raw x[GRAD_LOADS], g[GRAD_LOADS], y[GRAD_LOADS];
        int64_t offset[GRAD_LOADS][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < GRAD_LOADS; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                g[u] = R::fetch(a.operand[G], offset[u][G], 0);
                if (MODE == RELU_READ)
                    y[u] = R::fetch(a.operand[AUX], offset[u][AUX], 0);
            }
#pragma unroll
        for (int u = 0; u < GRAD_LOADS; u++) {
            if (at + u * step >= p.end)
                break;
            C gated[N], g_sum = 0, gx_sum = 0;
            gate_grad<R, MODE != NO_RELU, true>(&stats, gate, x[u], y[u], g[u], gated);
            add_grads<R, true>(&stats, x[u], gated, &g_sum, &gx_sum);
            sum += (double)g_sum;
            product += (double)gx_sum;
            /* what follows from g alone is written while it is here */
            if (a.writes_scaled)
                store_scaled<R, true>(a, offset[u][OUT], gated, &stats);
            if (MODE == RELU_READ && a.operand[GATED].base)
                R::store(a.operand[GATED], offset[u][GATED], 0, gated);
        }
    }
    sum = block_reduce<plus>(sum, space, 0.0);
    product = block_reduce<plus>(product, space, 0.0);
    if (threadIdx.x == 0) {
        a.partial_one[p.partial] = sum;
        a.partial_two[p.partial] = product;
    }
}

/* One block per chunk: gx, and g after relu if it was not written with the sums. x is read only if the means or relu
 * need it. Bytes: x and g read, gx written. */
template <typename R, int MODE>
static __global__ void __launch_bounds__(THREADS) grad_nchw(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    const block_range p = range_nchw(a);
    const walk_nchw<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    const relu_gate<typename R::real> gate = {MODE == RELU_RECOMPUTED, (typename R::real)a.relu_zero};
    channel_stats<typename R::real> stats;
    stats.fetch(a, p.batch, p.channel);
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += GRAD_LOADS * step) {
        typename R::raw x[GRAD_LOADS], g[GRAD_LOADS], y[GRAD_LOADS];
        int64_t offset[GRAD_LOADS][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < GRAD_LOADS; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                g[u] = R::fetch(a.operand[G], offset[u][G], 0);
                if (MODE == RELU_RECOMPUTED || a.mean_g)
                    x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                if (MODE == RELU_READ)
                    y[u] = R::fetch(a.operand[AUX], offset[u][AUX], 0);
            }
#pragma unroll
        for (int u = 0; u < GRAD_LOADS; u++)
            if (at + u * step < p.end)
                store_grads<R, MODE != NO_RELU, true>(a, gate, offset[u][OUT], offset[u][GATED], x[u], y[u], g[u],
                                                      &stats);
    }
}

#endif
