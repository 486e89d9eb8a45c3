/* batchnorm_nchw.cuh: NCHW: mean and squared distances of chunks, and the result. */
#ifndef TARN__CUDA_BATCHNORM_NCHW_CUH
#define TARN__CUDA_BATCHNORM_NCHW_CUH

#include "backends/cuda/norm/batchnorm.cuh"

/* One block per chunk of a channel. Reads x once; partial_one is the chunk's mean, partial_two its sum of squared
 * distances. */
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
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += AT_ONCE * step) {
        typename R::raw x[AT_ONCE];
        int64_t offset[CHANNEL_OPERANDS];
        int vecs = 0;
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset);
                x[u] = R::fetch(a.operand[X], offset[X], 0);
                vecs++;
            }
        group_moments<typename R::real> group;
        group.start(R::element(x[0], 0));
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (u < vecs)
#pragma unroll
                for (int i = 0; i < N; i++)
                    group.add(R::element(x[u], i));
        if (group.is_exact()) {
            group.add_to(from, (double)(vecs * N), &sum, &squares);
            continue;
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
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

/* All loads come before the first store: the compiler cannot know that x and y do not overlap. Bytes: x (and the
 * residual) read, y written. */
template <typename R, int HOW>
static __global__ void __launch_bounds__(THREADS) normalize_nchw(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    const block_range p = range_nchw(a);
    const walk_nchw<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    channel_stats<C> stats;
    stats.fetch(a, p.batch, p.channel);
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += AT_ONCE * step) {
        typename R::raw x[AT_ONCE], residual[AT_ONCE];
        int64_t offset[AT_ONCE][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                if (HOW == ADD_RELU)
                    residual[u] = R::fetch(a.operand[AUX], offset[u][AUX], 0);
            }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (at + u * step >= p.end)
                break;
            C y[N];
#pragma unroll
            for (int i = 0; i < N; i++)
                y[i] = stats.normalized(R::element(x[u], i));
            add_relu<R, HOW>(residual[u], y);
            R::store(a.operand[OUT], offset[u][OUT], 0, y);
        }
    }
}

#endif
