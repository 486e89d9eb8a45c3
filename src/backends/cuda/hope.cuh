/* hope.cuh: the gradient of max and min in the hope that there are no ties.
 *
 * A first pass writes the gradient as if every tie were the only one, counts them, and keeps the place of one in each chunk. A second pass
 * looks at the counts only, and mends what was hoped wrongly: one element, or a chunk that has several ties. So x is read once and gx written
 * once, unless there are many ties or a NaN won.
 *
 * The plan is a fold's, with g in the place of its result: a.y, at the offsets of kept[1]. The result of max or min is aux; and gx has x's
 * strides, so that one offset serves both. */
#ifndef TARN__CUDA_HOPE_CUH
#define TARN__CUDA_HOPE_CUH

#include "backends/cuda/fold.cuh"

#define HELD 4 /* packs a thread holds at a time */

/* What a chunk found: how many ties, and the step (by columns) or element (by rows) of one, counted from the chunk's first. */
struct tie {
    int count, at;
};

struct tie_op {
    typedef tie state;
    static __device__ __forceinline__ void merge(tie &s, const tie &other)
    {
        s.at = other.count > 0 ? other.at : s.at;
        s.count += other.count;
    }
};

/* Scratch: totals (outputs), cleared before; then the ties (chunks, outputs). */
static inline size_t totals_bytes(const fold_args &a)
{
    return (size_t)divide_up(a.outputs * (int64_t)sizeof(unsigned long long), 256) * 256;
}

__device__ __forceinline__ void put_tie(const fold_args &a, unsigned long long *totals, const tie &found, int64_t output)
{
    ((tie *)a.partial)[(int64_t)blockIdx.y * a.outputs + output] = found;
    if (found.count > 0)
        atomicAdd(&totals[output], (unsigned long long)found.count); /* integers: any order gives the same */
}

/* N elements of x into their gradients, as if each tie were the only one. */
template <typename T, int N>
__device__ __forceinline__ void hope(pack<T, N> &x, const wide<T> *y, const wide<T> *g, tie *found, int at, int lane_stride, int places_stride)
{
#pragma unroll
    for (int k = 0; k < N; k++) {
        bool is_tie = widen(x.at[k]) == y[k * lane_stride];
        wide<T> value = g[k * lane_stride];
        x.at[k] = narrow<T>(is_tie ? value : value * 0);
        if (is_tie) {
            found[k * lane_stride].count++;
            found[k * lane_stride].at = at + k * places_stride;
        }
    }
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 4) hope_rows(const __grid_constant__ fold_args a, T *gx, unsigned long long *totals)
{
    int64_t unit = blockIdx.x, offset[3];
    int64_t begin = (int64_t)blockIdx.y * a.chunk, end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
    locate(a.kept, unit, offset);
    wide<T> y = load_any<wide<T>>(a.aux, a.aux_dtype, offset[2]), g = load_any<wide<T>>(a.y, a.y_dtype, offset[1]);
    tie found = {0, 0};
#pragma unroll 1
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS * HELD) {
        pack<T, N> x[HELD];
#pragma unroll
        for (int u = 0; u < HELD; u++)
            if (i + u * THREADS < end)
                x[u] = *(const pack<T, N> *)((const T *)a.x + offset[0] + step_offset<N>(a, i + u * THREADS));
#pragma unroll
        for (int u = 0; u < HELD; u++)
            if (i + u * THREADS < end) {
                hope<T, N>(x[u], &y, &g, &found, (int)(i + u * THREADS - begin) * N, 0, 1);
                *(pack<T, N> *)(gx + offset[0] + step_offset<N>(a, i + u * THREADS)) = x[u];
            }
    }
    merge_rows<tie_op, 1>(&found, 1);
    if (threadIdx.x == 0)
        put_tie(a, totals, found, unit);
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 3) hope_columns(const __grid_constant__ fold_args a, T *gx, unsigned long long *totals)
{
    int width = 1 << a.width_bits, rows = THREADS >> a.width_bits, row = (int)(threadIdx.x >> a.width_bits);
    int64_t unit = (int64_t)blockIdx.x * width + (threadIdx.x & (width - 1)), offset[3];
    int64_t begin = (int64_t)blockIdx.y * a.chunk, end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
    wide<T> y[N], g[N];
    tie found[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        found[k] = tie{0, 0};
    if (unit < a.units) {
        locate(a.kept, unit, offset);
#pragma unroll
        for (int k = 0; k < N; k++) {
            y[k] = load_any<wide<T>>(a.aux, a.aux_dtype, offset[2] + k * a.column_aux);
            g[k] = load_any<wide<T>>(a.y, a.y_dtype, offset[1] + k * a.column_y);
        }
#pragma unroll 1
        for (int64_t i = begin + row; i < end; i += rows * HELD) {
            pack<T, N> x[HELD];
#pragma unroll
            for (int u = 0; u < HELD; u++)
                if (i + u * rows < end)
                    x[u] = *(const pack<T, N> *)((const T *)a.x + offset[0] + step_offset<N>(a, i + u * rows));
#pragma unroll
            for (int u = 0; u < HELD; u++)
                if (i + u * rows < end) {
                    hope<T, N>(x[u], y, g, found, (int)(i + u * rows - begin), 1, 0);
                    *(pack<T, N> *)(gx + offset[0] + step_offset<N>(a, i + u * rows)) = x[u];
                }
        }
    }
    merge_rows<tie_op, N>(found, width);
    if (unit < a.units && row == 0)
#pragma unroll
        for (int k = 0; k < N; k++)
            put_tie(a, totals, found[k], unit * N + k);
}

/* Mends the chunks: 2^bits neighbouring threads for each (output, chunk), a warp by rows and one by columns. grid (chunks · outputs). */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS) mend(const __grid_constant__ fold_args a, T *gx, const unsigned long long *totals, int bits)
{
    typedef wide<T> C;
    int64_t task = (int64_t)blockIdx.x * (THREADS >> bits) + (threadIdx.x >> bits), output = task % a.outputs, chunk = task / a.outputs;
    int lane = (int)threadIdx.x & ((1 << bits) - 1);
    if (chunk >= a.chunks)
        return;
    int64_t total = (int64_t)totals[output], offset[3];
    tie found = ((const tie *)a.partial)[task];
    if (total == 1 || (total > 1 && found.count == 0))
        return;
    locate(a.kept, output / a.lanes, offset);
    int64_t column = output % a.lanes, at = offset[0] + column, begin = chunk * a.chunk;
    int64_t end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
    C y = load_any<C>(a.aux, a.aux_dtype, offset[2] + column * a.column_aux);
    C g = load_any<C>(a.y, a.y_dtype, offset[1] + column * a.column_y);
    T tied = narrow<T>(g / (C)total), other = narrow<T>(g * 0 / (C)total);
    if (total > 1 && found.count == 1) {
        int64_t step = a.by_columns ? found.at : found.at / N, rest = a.by_columns ? 0 : found.at % N;
        if (lane == 0)
            gx[at + step_offset<N>(a, begin + step) + rest] = tied;
        return;
    }
    int each = a.by_columns ? 1 : N;
    for (int64_t i = begin + lane; i < end; i += (int64_t)1 << bits) {
        int64_t place = at + step_offset<N>(a, i);
        for (int k = 0; k < each; k++)
            gx[place + k] = widen(((const T *)a.x)[place + k]) == y ? tied : other;
    }
}

template <typename T> static void launch_hope(const fold_args &a, void *gx, unsigned long long *totals, cudaStream_t stream)
{
    constexpr int N = pack_size<T>::value;
    int64_t units = a.by_columns ? (int64_t)1 << a.width_bits : 1, tasks = a.outputs * a.chunks;
    dim3 grid(blocks_for(a.units, units), (unsigned)a.chunks);
    int bits = a.by_columns ? 0 : 5;
    cudaMemsetAsync(totals, 0, sizeof(*totals) * (size_t)a.outputs, stream);
    if (a.by_columns)
        hope_columns<T, N><<<grid, THREADS, 0, stream>>>(a, (T *)gx, totals);
    else
        hope_rows<T, N><<<grid, THREADS, 0, stream>>>(a, (T *)gx, totals);
    mend<T, N><<<blocks_for(tasks, THREADS >> bits), THREADS, 0, stream>>>(a, (T *)gx, totals, bits);
}

#endif
