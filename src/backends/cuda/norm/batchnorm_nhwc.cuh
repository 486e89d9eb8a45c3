/* batchnorm_nhwc.cuh: mean and squared distances of chunks, and the result, by columns. */
#ifndef TARN__BATCHNORM_COLUMNS_CUH
#define TARN__BATCHNORM_COLUMNS_CUH

#include "backends/cuda/norm/batchnorm.cuh"
#include "backends/cuda/norm/channel_nhwc.cuh"

#define GROUP 16 /* positions of a thread's channels that make a group */

/* GROUP of a thread's positions at most, from number `begin` on, of its N channels, added to its numbers in `space`. */
template <typename R>
__device__ __forceinline__ void measure_group(const channel_args &a, const channel_piece &p, const column_walk<R> &walk,
                                              int begin, const typename R::real (*from)[THREADS],
                                              double (*space)[THREADS])
{
    constexpr int N = R::width, DEPTH = at_once<R>(1);
    group_sums<typename R::real> group[N];
    const int count = walk.count - begin < GROUP ? walk.count - begin : GROUP;
    bool is_exact = true;
    leave_in_memory();
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
                group[i].begin(R::element(x[0], i));
#pragma unroll
            for (int u = 0; u < DEPTH; u++)
                if (part + u < count)
                    group[i].take(R::element(x[u], i));
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
            take_exactly((double)R::element(x, i), (double)from[i][threadIdx.x], &space[i][threadIdx.x],
                         &space[N + i][threadIdx.x]);
    }
}

template <typename R, int>
static __global__ void __launch_bounds__(THREADS, BLOCKS_BY(R)) measure_columns(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    const channel_piece p = piece_by_columns<N>(a);
    const column_walk<R> walk(a, p);
    const int me = (int)threadIdx.x;
    __shared__ double space[2 * N][THREADS];
    __shared__ typename R::real from[N][THREADS]; /* the chunk's first elements */
#pragma unroll
    for (int k = 0; k < 2 * N; k++)
        space[k][me] = 0;
    if (walk.count > 0) {
        const typename R::raw x = R::fetch(a.operand[X], position<R>::of(a, p, p.begin).in(X), 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            from[i][me] = R::element(x, i);
#pragma unroll 1
        for (int begin = 0; begin < walk.count; begin += GROUP)
            measure_group<R>(a, p, walk, begin, from, space);
    }
    over_warps<2 * N>(a, space);
    if (me >= a.across * N || p.tile + me >= a.channels)
        return;
    const double count = (double)(p.end - p.begin), sum = over_tile(space[me % N], me / N),
                 squares = over_tile(space[N + me % N], me / N);
    a.part_one[p.part + me] = (double)from[me % N][me / N] + sum / count;
    a.part_two[p.part + me] = squares - sum * sum / count;
}

/* The first packs are on their way while the channels' numbers are made. */
template <typename R, int HOW>
static __global__ void __launch_bounds__(THREADS, BLOCKS_BY(R))
    normalise_columns(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width, DEPTH = at_once<R>(HOW == RELU_OF_SUM ? 2 : 1);
    const channel_piece p = piece_by_columns<N>(a);
    const column_walk<R> walk(a, p);
    __shared__ channel_numbers<C> table[WARP * N];
    channel_numbers<C> numbers[N];
    typename R::raw x[DEPTH], beside[DEPTH];
    for (int begin = 0; begin == 0 || begin < walk.count; begin += DEPTH) {
#pragma unroll
        for (int u = 0; u < DEPTH; u++)
            if (begin + u < walk.count) {
                const position<R> at = walk.at(a, p, begin + u);
                x[u] = R::fetch(a.operand[X], at.in(X), 0);
                if (HOW == RELU_OF_SUM)
                    beside[u] = R::fetch(a.operand[BESIDE], at.in(BESIDE), 0);
            }
        if (begin == 0)
            fetch_numbers<R>(a, p, table, numbers);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (begin + u >= walk.count)
                break;
            C y[N];
#pragma unroll
            for (int i = 0; i < N; i++)
                y[i] = numbers[i].normal(R::element(x[u], i));
            add_and_cut<R, HOW>(beside[u], y);
            R::store(a.operand[TO], walk.at(a, p, begin + u).in(TO), 0, y);
        }
    }
}

#endif
