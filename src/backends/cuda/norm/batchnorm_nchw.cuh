/* batchnorm_nchw.cuh: mean and squared distances of chunks, and the result, by rows. */
#ifndef TARN__BATCHNORM_ROWS_CUH
#define TARN__BATCHNORM_ROWS_CUH

#include "backends/cuda/norm/batchnorm.cuh"

template <typename R, int>
static __global__ void __launch_bounds__(THREADS) measure_rows(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    __shared__ double space[WARP];
    const channel_piece p = piece_by_rows(a);
    const row_walk<R> walk(a, p);
    const double from = (double)R::element(R::fetch(a.operand[X], walk.base[X], 0), 0);
    const int64_t step = (int64_t)blockDim.x * N;
    double sum = 0, squares = 0;
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += AT_ONCE * step) {
        typename R::raw x[AT_ONCE];
        int64_t offset[CHANNEL_OPERANDS];
        int packs = 0;
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset);
                x[u] = R::fetch(a.operand[X], offset[X], 0);
                packs++;
            }
        group_sums<typename R::real> group;
        group.begin(R::element(x[0], 0));
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (u < packs)
#pragma unroll
                for (int i = 0; i < N; i++)
                    group.take(R::element(x[u], i));
        if (group.is_exact()) {
            group.add_to(from, (double)(packs * N), &sum, &squares);
            continue;
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (u < packs)
#pragma unroll
                for (int i = 0; i < N; i++)
                    take_exactly((double)R::element(x[u], i), from, &sum, &squares);
    }
    sum = over_block<add_up>(sum, space, 0.0);
    squares = over_block<add_up>(squares, space, 0.0);
    if (threadIdx.x == 0) {
        double count = (double)(p.end - p.begin);
        a.part_one[p.part] = from + sum / count;
        a.part_two[p.part] = squares - sum * sum / count;
    }
}

/* All is loaded before the first result is stored: the compiler cannot know that they lie apart. */
template <typename R, int HOW>
static __global__ void __launch_bounds__(THREADS) normalise_rows(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    const channel_piece p = piece_by_rows(a);
    const row_walk<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    channel_numbers<C> numbers;
    numbers.fetch(a, p.batch, p.channel);
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += AT_ONCE * step) {
        typename R::raw x[AT_ONCE], beside[AT_ONCE];
        int64_t offset[AT_ONCE][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                if (HOW == RELU_OF_SUM)
                    beside[u] = R::fetch(a.operand[BESIDE], offset[u][BESIDE], 0);
            }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (at + u * step >= p.end)
                break;
            C y[N];
#pragma unroll
            for (int i = 0; i < N; i++)
                y[i] = numbers.normal(R::element(x[u], i));
            add_and_cut<R, HOW>(beside[u], y);
            R::store(a.operand[TO], offset[u][TO], 0, y);
        }
    }
}

#endif
