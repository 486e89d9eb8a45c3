/* batchnorm_grad_nchw.cuh: sums of chunks, and the gradient of x, by rows. */
#ifndef TARN__BATCHNORM_GRAD_ROWS_CUH
#define TARN__BATCHNORM_GRAD_ROWS_CUH

#include "backends/cuda/norm/batchnorm_grad.cuh"

#define BOTH_AT_ONCE 2 /* packs of x and of g that a thread loads before it computes, by rows */

template <typename R, int RELU>
static __global__ void __launch_bounds__(THREADS) sum_rows(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    __shared__ double space[WARP];
    const channel_piece p = piece_by_rows(a);
    const row_walk<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    const relu_gate<C> gate = {RELU == RELU_REMADE, (C)a.least};
    channel_numbers<C> numbers;
    numbers.fetch(a, p.batch, p.channel);
    double sum = 0, product = 0;
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += BOTH_AT_ONCE * step) {
        typename R::raw x[BOTH_AT_ONCE], g[BOTH_AT_ONCE], y[BOTH_AT_ONCE];
        int64_t offset[BOTH_AT_ONCE][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                g[u] = R::fetch(a.operand[G], offset[u][G], 0);
                if (RELU == RELU_READ)
                    y[u] = R::fetch(a.operand[BESIDE], offset[u][BESIDE], 0);
            }
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++) {
            if (at + u * step >= p.end)
                break;
            C up[N], ups = 0, products = 0;
            let_through<R, RELU != NO_RELU, true>(&numbers, gate, x[u], y[u], g[u], up);
#pragma unroll
            for (int i = 0; i < N; i++) {
                ups += up[i];
                products += up[i] * (numbers.distance(R::element(x[u], i)) * numbers.rstd);
            }
            sum += (double)ups;
            product += (double)products;
            if (a.writes_scaled)
                store_scaled<R, true>(a, offset[u][TO], up, &numbers);
            if (RELU == RELU_READ && a.operand[PASSED].base)
                R::store(a.operand[PASSED], offset[u][PASSED], 0, up);
        }
    }
    sum = over_block<add_up>(sum, space, 0.0);
    product = over_block<add_up>(product, space, 0.0);
    if (threadIdx.x == 0) {
        a.part_one[p.part] = sum;
        a.part_two[p.part] = product;
    }
}

/* All is loaded before the first result is stored: the compiler cannot know that they lie apart. */
template <typename R, int RELU>
static __global__ void __launch_bounds__(THREADS) grad_rows(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    const channel_piece p = piece_by_rows(a);
    const row_walk<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    const relu_gate<typename R::real> gate = {RELU == RELU_REMADE, (typename R::real)a.least};
    channel_numbers<typename R::real> numbers;
    numbers.fetch(a, p.batch, p.channel);
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += BOTH_AT_ONCE * step) {
        typename R::raw x[BOTH_AT_ONCE], g[BOTH_AT_ONCE], y[BOTH_AT_ONCE];
        int64_t offset[BOTH_AT_ONCE][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                g[u] = R::fetch(a.operand[G], offset[u][G], 0);
                if (RELU == RELU_REMADE || a.first)
                    x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                if (RELU == RELU_READ)
                    y[u] = R::fetch(a.operand[BESIDE], offset[u][BESIDE], 0);
            }
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++)
            if (at + u * step < p.end)
                store_grads<R, RELU != NO_RELU, true>(a, gate, offset[u][TO], offset[u][PASSED], x[u], y[u], g[u],
                                                      &numbers);
    }
}

#endif
