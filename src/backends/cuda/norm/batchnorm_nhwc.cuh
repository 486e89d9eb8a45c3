/* batchnorm_nhwc.cuh: NHWC: mean and squared distances of chunks, and the result. */
#ifndef TARN__CUDA_BATCHNORM_NHWC_CUH
#define TARN__CUDA_BATCHNORM_NHWC_CUH

#include "backends/cuda/norm/batchnorm.cuh"
#include "backends/cuda/norm/channel_nhwc.cuh"

#define F32_POSITIONS 16 /* positions of a thread that are added in the compute type before they go to f64 */

/* Adds up to F32_POSITIONS of a thread's positions from `begin` on, for its N channels, to its f64 sums in `space`. */
template <typename R>
__device__ __forceinline__ void add_group(const channel_args &a, const block_range &p, const walk_nhwc<R> &walk,
                                          int begin, const typename R::real (*from)[THREADS], double (*space)[THREADS])
{
    constexpr int N = R::width, DEPTH = loads_per_operand<R>(1);
    group_moments<typename R::real> group[N];
    const int count = walk.count - begin < F32_POSITIONS ? walk.count - begin : F32_POSITIONS;
    bool is_exact = true;
    memory_fence();
#pragma unroll 1
    for (int part = 0; part < count; part += DEPTH) {
        typename R::raw x[DEPTH];
#pragma unroll
        for (int u = 0; u < DEPTH; u++)
            if (part + u < count)
                x[u] = R::fetch(a.operand[X], walk.at(a, p, begin + part + u).in(X), 0);
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (part == 0)
                group[i].start(R::element(x[0], i));
#pragma unroll
            for (int u = 0; u < DEPTH; u++)
                if (part + u < count)
                    group[i].add(R::element(x[u], i));
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        is_exact = is_exact && group[i].is_exact();
    if (is_exact) {
#pragma unroll
        for (int i = 0; i < N; i++)
            group[i].add_to((double)from[i][threadIdx.x], (double)count, &space[i][threadIdx.x],
                            &space[N + i][threadIdx.x]);
        return;
    }
#pragma unroll 1
    for (int u = 0; u < count; u++) {
        typename R::raw x = R::fetch(a.operand[X], walk.at(a, p, begin + u).in(X), 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            take_f64((double)R::element(x, i), (double)from[i][threadIdx.x], &space[i][threadIdx.x],
                     &space[N + i][threadIdx.x]);
    }
}

/* One block per chunk of positions of a tile of channels. Reads x once. */
template <typename R, int>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM(R)) stats_nhwc(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    const block_range p = range_nhwc<N>(a);
    const walk_nhwc<R> walk(a, p);
    const int thread = (int)threadIdx.x;
    __shared__ double space[2 * N][THREADS];
    __shared__ typename R::real from[N][THREADS]; /* the chunk's first elements */
#pragma unroll
    for (int k = 0; k < 2 * N; k++)
        space[k][thread] = 0;
    if (walk.count > 0) {
        const typename R::raw x = R::fetch(a.operand[X], position<R>::of(a, p, p.begin).in(X), 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            from[i][thread] = R::element(x, i);
#pragma unroll 1
        for (int begin = 0; begin < walk.count; begin += F32_POSITIONS)
            add_group<R>(a, p, walk, begin, from, space);
    }
    reduce_warps<2 * N>(a, space);
    if (thread >= a.across * N || p.tile + thread >= a.channels)
        return;
    const double count = (double)(p.end - p.begin), sum = tile_sum(space[thread % N], thread / N),
                 squares = tile_sum(space[N + thread % N], thread / N);
    a.partial_one[p.partial + thread] = (double)from[thread % N][thread / N] + sum / count;
    a.partial_two[p.partial + thread] = squares - sum * sum / count;
}

/* The first vectors are in flight while the channels' statistics are computed. Bytes: x (and the residual) read, y
 * written. */
template <typename R, int HOW>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM(R))
    normalize_nhwc(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width, DEPTH = loads_per_operand<R>(HOW == ADD_RELU ? 2 : 1);
    const block_range p = range_nhwc<N>(a);
    const walk_nhwc<R> walk(a, p);
    __shared__ channel_stats<C> table[WARP * N];
    channel_stats<C> stats[N];
    typename R::raw x[DEPTH], residual[DEPTH];
    for (int begin = 0; begin == 0 || begin < walk.count; begin += DEPTH) {
#pragma unroll
        for (int u = 0; u < DEPTH; u++)
            if (begin + u < walk.count) {
                const position<R> at = walk.at(a, p, begin + u);
                x[u] = R::fetch(a.operand[X], at.in(X), 0);
                if (HOW == ADD_RELU)
                    residual[u] = R::fetch(a.operand[AUX], at.in(AUX), 0);
            }
        if (begin == 0)
            fetch_stats<R>(a, p, table, stats);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (begin + u >= walk.count)
                break;
            C y[N];
#pragma unroll
            for (int i = 0; i < N; i++)
                y[i] = stats[i].normalized(R::element(x[u], i));
            add_relu<R, HOW>(residual[u], y);
            R::store(a.operand[OUT], walk.at(a, p, begin + u).in(OUT), 0, y);
        }
    }
}

#endif
