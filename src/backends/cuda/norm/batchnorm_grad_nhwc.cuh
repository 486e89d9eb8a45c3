/* batchnorm_grad_nhwc.cuh: sums of chunks, and the gradient of x, by columns. */
#ifndef TARN__BATCHNORM_GRAD_COLUMNS_CUH
#define TARN__BATCHNORM_GRAD_COLUMNS_CUH

#include "backends/cuda/norm/batchnorm_grad.cuh"
#include "backends/cuda/norm/channel_nhwc.cuh"

#define GROUP 8 /* positions whose numbers are added in the type computed in before they are in f64 */

template <typename C, int RELU> __device__ __forceinline__ relu_gate<C> gate_by_columns(const channel_args &a)
{
    return relu_gate<C>{RELU == RELU_REMADE, RELU == RELU_REMADE ? kept((C)a.least) : (C)0};
}

/* Packs of x, g and, where relu's result is read, of that. */
template <typename R, int RELU> struct packs_at_once {
    static constexpr int DEPTH = at_once<R>(RELU == RELU_READ ? 3 : 2);
    typename R::raw x[DEPTH], g[DEPTH], y[DEPTH];

    /* From number `begin` of the thread's positions on; x only where it is wanted. */
    __device__ __forceinline__ void fetch(const channel_args &a, const channel_piece &p, const column_walk<R> &walk,
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
                    y[u] = R::fetch(a.operand[BESIDE], at.in(BESIDE), 0);
            }
    }
};

/* Adds the sums of a group to the thread's in `space`, and begins anew. */
template <int N, typename C> __device__ __forceinline__ void put_away(C *ups, C *products, double (*space)[THREADS])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        space[i][threadIdx.x] += (double)ups[i];
        space[N + i][threadIdx.x] += (double)products[i];
        ups[i] = products[i] = 0;
    }
}

/* The first packs are on their way while the channels' numbers are made. */
template <typename R, int RELU>
static __global__ void __launch_bounds__(THREADS, BLOCKS_BY(R)) sum_columns(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width, DEPTH = packs_at_once<R, RELU>::DEPTH;
    const channel_piece p = piece_by_columns<N>(a);
    const column_walk<R> walk(a, p);
    const int me = (int)threadIdx.x;
    __shared__ double space[2 * N][THREADS];
    __shared__ channel_numbers<C> table[WARP * N];
    const relu_gate<C> gate = gate_by_columns<C, RELU>(a);
    channel_numbers<C> numbers[N];
    packs_at_once<R, RELU> packs;
    C ups[N] = {}, products[N] = {};
#pragma unroll
    for (int k = 0; k < 2 * N; k++)
        space[k][me] = 0;
#pragma unroll 1
    for (int begin = 0; begin == 0 || begin < walk.count; begin += DEPTH) {
        packs.fetch(a, p, walk, begin, true);
        if (begin == 0)
            fetch_numbers<R>(a, p, table, numbers);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (begin + u >= walk.count)
                break;
            C up[N];
            let_through<R, RELU != NO_RELU, false>(numbers, gate, packs.x[u], packs.y[u], packs.g[u], up);
#pragma unroll
            for (int i = 0; i < N; i++) {
                ups[i] += up[i];
                products[i] += up[i] * (numbers[i].distance(R::element(packs.x[u], i)) * numbers[i].rstd);
            }
            if (a.writes_scaled)
                store_scaled<R, false>(a, walk.at(a, p, begin + u).in(TO), up, numbers);
            if (RELU == RELU_READ && a.operand[PASSED].base)
                R::store(a.operand[PASSED], walk.at(a, p, begin + u).in(PASSED), 0, up);
        }
        if ((begin + DEPTH) % GROUP == 0 || begin + DEPTH >= walk.count)
            put_away<N>(ups, products, space);
        leave_in_memory();
    }
    over_warps<2 * N>(a, space);
    if (me >= a.across * N || p.tile + me >= a.channels)
        return;
    a.part_one[p.part + me] = over_tile(space[me % N], me / N);
    a.part_two[p.part + me] = over_tile(space[N + me % N], me / N);
}

/* Likewise; the first packs are on their way while the channels' numbers are made. */
template <typename R, int RELU>
static __global__ void __launch_bounds__(THREADS, BLOCKS_BY(R)) grad_columns(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width, DEPTH = packs_at_once<R, RELU>::DEPTH;
    const channel_piece p = piece_by_columns<N>(a);
    const column_walk<R> walk(a, p);
    const bool wants_x = a.first || RELU == RELU_REMADE;
    __shared__ channel_numbers<typename R::real> table[WARP * N];
    const relu_gate<typename R::real> gate = gate_by_columns<typename R::real, RELU>(a);
    channel_numbers<typename R::real> numbers[N];
    packs_at_once<R, RELU> packs;
#pragma unroll 1
    for (int begin = 0; begin == 0 || begin < walk.count; begin += DEPTH) {
        packs.fetch(a, p, walk, begin, wants_x);
        if (begin == 0)
            fetch_numbers<R>(a, p, table, numbers);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (begin + u >= walk.count)
                break;
            const position<R> at = walk.at(a, p, begin + u);
            store_grads<R, RELU != NO_RELU, false>(a, gate, at.in(TO), at.in(PASSED), packs.x[u], packs.y[u],
                                                   packs.g[u], numbers);
        }
    }
}

#endif
