/* batchnorm_grad_nhwc.cuh: NHWC: sums of chunks, and the gradient of x. */
#ifndef TARN__CUDA_BATCHNORM_GRAD_NHWC_CUH
#define TARN__CUDA_BATCHNORM_GRAD_NHWC_CUH

#include "backends/cuda/norm/batchnorm_grad.cuh"
#include "backends/cuda/norm/channel_nhwc.cuh"

#define F32_POSITIONS 8 /* positions that are added in the compute type before they go to f64 */

template <typename C, int RELU> __device__ __forceinline__ relu_gate<C> gate_nhwc(const channel_args &a)
{
    return relu_gate<C>{RELU == RELU_RECOMPUTED, RELU == RELU_RECOMPUTED ? in_register((C)a.relu_zero) : (C)0};
}

/* Vectors of x, g and, if it is read, relu's result. */
template <typename R, int RELU> struct vec_batch {
    static constexpr int DEPTH = loads_per_operand<R>(RELU == RELU_READ ? 3 : 2);
    typename R::raw x[DEPTH], g[DEPTH], y[DEPTH];

    /* From the thread's position `begin` on; x only if it is needed. */
    __device__ __forceinline__ void fetch(const channel_args &a, const block_range &p, const walk_nhwc<R> &walk,
                                          int begin, bool wants_x)
    {
#pragma unroll
        for (int u = 0; u < DEPTH; u++)
            if (begin + u < walk.count) {
                const position<R> at = walk.at(a, p, begin + u);
                g[u] = R::fetch(a.operand[G], at.in(G), 0);
                if (wants_x)
                    x[u] = R::fetch(a.operand[X], at.in(X), 0);
                if (RELU == RELU_READ)
                    y[u] = R::fetch(a.operand[AUX], at.in(AUX), 0);
            }
    }
};

/* Adds the sums of a group to the thread's f64 sums in `space`, and clears them. */
template <int N, typename C> __device__ __forceinline__ void flush_sums(C *g_sums, C *gx_sums, double (*space)[THREADS])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        space[i][threadIdx.x] += (double)g_sums[i];
        space[N + i][threadIdx.x] += (double)gx_sums[i];
        g_sums[i] = gx_sums[i] = 0;
    }
}

/* Σ g and Σ g · x̂ of a chunk. The first vectors are in flight while the channels' statistics are computed. */
template <typename R, int RELU>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM(R)) sum_nhwc(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width, DEPTH = vec_batch<R, RELU>::DEPTH;
    const block_range p = range_nhwc<N>(a);
    const walk_nhwc<R> walk(a, p);
    const int thread = (int)threadIdx.x;
    __shared__ double space[2 * N][THREADS];
    __shared__ channel_stats<C> table[WARP * N];
    const relu_gate<C> gate = gate_nhwc<C, RELU>(a);
    channel_stats<C> stats[N];
    vec_batch<R, RELU> vecs;
    C g_sums[N] = {}, gx_sums[N] = {};
#pragma unroll
    for (int k = 0; k < 2 * N; k++)
        space[k][thread] = 0;
#pragma unroll 1
    for (int begin = 0; begin == 0 || begin < walk.count; begin += DEPTH) {
        vecs.fetch(a, p, walk, begin, true);
        if (begin == 0)
            fetch_stats<R>(a, p, table, stats);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (begin + u >= walk.count)
                break;
            C gated[N];
            gate_grad<R, RELU != NO_RELU, false>(stats, gate, vecs.x[u], vecs.y[u], vecs.g[u], gated);
#pragma unroll
            for (int i = 0; i < N; i++) {
                g_sums[i] += gated[i];
                gx_sums[i] += gated[i] * (stats[i].centered(R::element(vecs.x[u], i)) * stats[i].rstd);
            }
            if (a.writes_scaled)
                store_scaled<R, false>(a, walk.at(a, p, begin + u).in(OUT), gated, stats);
            if (RELU == RELU_READ && a.operand[GATED].base)
                R::store(a.operand[GATED], walk.at(a, p, begin + u).in(GATED), 0, gated);
        }
        if ((begin + DEPTH) % F32_POSITIONS == 0 || begin + DEPTH >= walk.count)
            flush_sums<N>(g_sums, gx_sums, space);
        memory_fence();
    }
    reduce_warps<2 * N>(a, space);
    if (thread >= a.across * N || p.tile + thread >= a.channels)
        return;
    a.partial_one[p.partial + thread] = tile_sum(space[thread % N], thread / N);
    a.partial_two[p.partial + thread] = tile_sum(space[N + thread % N], thread / N);
}

/* gx of a chunk. Likewise. */
template <typename R, int RELU>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM(R)) grad_nhwc(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width, DEPTH = vec_batch<R, RELU>::DEPTH;
    const block_range p = range_nhwc<N>(a);
    const walk_nhwc<R> walk(a, p);
    const bool wants_x = a.mean_g || RELU == RELU_RECOMPUTED;
    __shared__ channel_stats<typename R::real> table[WARP * N];
    const relu_gate<typename R::real> gate = gate_nhwc<typename R::real, RELU>(a);
    channel_stats<typename R::real> stats[N];
    vec_batch<R, RELU> vecs;
#pragma unroll 1
    for (int begin = 0; begin == 0 || begin < walk.count; begin += DEPTH) {
        vecs.fetch(a, p, walk, begin, wants_x);
        if (begin == 0)
            fetch_stats<R>(a, p, table, stats);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (begin + u >= walk.count)
                break;
            const position<R> at = walk.at(a, p, begin + u);
            store_grads<R, RELU != NO_RELU, false>(a, gate, at.in(OUT), at.in(GATED), vecs.x[u], vecs.y[u], vecs.g[u],
                                                   stats);
        }
    }
}

#endif
