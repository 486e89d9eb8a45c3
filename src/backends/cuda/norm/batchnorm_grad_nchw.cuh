/* batchnorm_grad_nchw.cuh: NCHW: sums of chunks, and the gradient of x. */
#ifndef TARN__CUDA_BATCHNORM_GRAD_NCHW_CUH
#define TARN__CUDA_BATCHNORM_GRAD_NCHW_CUH

#include "backends/cuda/norm/batchnorm_grad.cuh"

#define LOADS 2 /* vectors of x and of g that a thread loads before it computes */

/* One block per chunk: Σ g and Σ g · x̂ after relu's gradient. Bytes: x and g (and relu's result) read. */
template <typename R, int RELU>
static __global__ void __launch_bounds__(THREADS) sum_nchw(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    __shared__ double space[WARP];
    const block_range p = range_nchw(a);
    const walk_nchw<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    const relu_gate<C> gate = {RELU == RELU_RECOMPUTED, (C)a.relu_zero};
    channel_stats<C> stats;
    stats.fetch(a, p.batch, p.channel);
    double sum = 0, product = 0;
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += LOADS * step) {
        typename R::raw x[LOADS], g[LOADS], y[LOADS];
        int64_t offset[LOADS][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                g[u] = R::fetch(a.operand[G], offset[u][G], 0);
                if (RELU == RELU_READ)
                    y[u] = R::fetch(a.operand[AUX], offset[u][AUX], 0);
            }
#pragma unroll
        for (int u = 0; u < LOADS; u++) {
            if (at + u * step >= p.end)
                break;
            C gated[N], g_sum = 0, gx_sum = 0;
            gate_grad<R, RELU != NO_RELU, true>(&stats, gate, x[u], y[u], g[u], gated);
#pragma unroll
            for (int i = 0; i < N; i++) {
                g_sum += gated[i];
                gx_sum += gated[i] * (stats.centered(R::element(x[u], i)) * stats.rstd);
            }
            sum += (double)g_sum;
            product += (double)gx_sum;
            if (a.writes_scaled)
                store_scaled<R, true>(a, offset[u][OUT], gated, &stats);
            if (RELU == RELU_READ && a.operand[GATED].base)
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

/* All loads come before the first store: the compiler cannot know that the tensors do not overlap. Bytes: x and g read,
 * gx written. */
template <typename R, int RELU>
static __global__ void __launch_bounds__(THREADS) grad_nchw(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    const block_range p = range_nchw(a);
    const walk_nchw<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    const relu_gate<typename R::real> gate = {RELU == RELU_RECOMPUTED, (typename R::real)a.relu_zero};
    channel_stats<typename R::real> stats;
    stats.fetch(a, p.batch, p.channel);
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += LOADS * step) {
        typename R::raw x[LOADS], g[LOADS], y[LOADS];
        int64_t offset[LOADS][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                g[u] = R::fetch(a.operand[G], offset[u][G], 0);
                if (RELU == RELU_RECOMPUTED || a.mean_g)
                    x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                if (RELU == RELU_READ)
                    y[u] = R::fetch(a.operand[AUX], offset[u][AUX], 0);
            }
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if (at + u * step < p.end)
                store_grads<R, RELU != NO_RELU, true>(a, gate, offset[u][OUT], offset[u][GATED], x[u], y[u], g[u],
                                                      &stats);
    }
}

#endif
