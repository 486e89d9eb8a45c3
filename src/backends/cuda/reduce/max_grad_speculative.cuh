/* max_grad_speculative.cuh: the gradient of max and min in the hope that there are no ties.
 *
 * A first pass writes the gradient as if every tie were the only one, counts them, and keeps the place of one in each
 * chunk. A second pass looks at the counts only, and mends what was hoped wrongly: one element, or a chunk that has
 * several ties. So x is read once and gx written once, unless there are many ties or a NaN won.
 *
 * The plan is a fold's, with g in the place of its result: a.y, at the offsets of kept[1]. The result of max or min is
 * aux; and gx has x's strides, so that one offset serves both. */
#ifndef TARN__CUDA_HOPE_CUH
#define TARN__CUDA_HOPE_CUH

#include "backends/cuda/reduce/max_grad_rows.cuh"
#include "backends/cuda/reduce/reduce_grad.cuh"

/* What a chunk found: how many ties, and the step (by columns) or element (by rows) of one, counted from the chunk's
 * first. */
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

__device__ __forceinline__ void put_tie(const fold_args &a, unsigned long long *totals, const tie &found,
                                        int64_t output)
{
    ((tie *)a.partial)[(int64_t)blockIdx.y * a.outputs + output] = found;
    if (found.count > 0)
        atomicAdd(&totals[output], (unsigned long long)found.count); /* integers: any order gives the same */
}

/* A row's or a column's numbers as elements lie in memory: what x is compared with, and what becomes of ties and of all
 * others if each tie is the only one. Words hold one f32 or two 16-bit floats; see max_grad_rows.cuh. */
template <typename T> struct hoped {
    T y, tied, other;
    __device__ __forceinline__ hoped(T result, wide<T> g) : y(result), tied(narrow<T>(g)), other(narrow<T>(g * 0))
    {
    }
    __device__ __forceinline__ hoped(const fold_args &a, int64_t y_at, int64_t g_at)
        : hoped(narrow<T>(load_any<wide<T>>(a.aux, a.aux_dtype, y_at)), load_any<wide<T>>(a.y, a.y_dtype, g_at))
    {
    }
};

struct hoped_word {
    uint32_t y, tied, other;
};

/* The bits of an element. */
template <typename T> __device__ __forceinline__ uint32_t first_word(T x)
{
    uint32_t word = 0;
    memcpy(&word, &x, sizeof(x));
    return word;
}

/* The gradients of a word's elements; `any` gets bits where there are ties. */
template <typename T> __device__ __forceinline__ uint32_t hope(uint32_t x, const hoped_word &by, uint32_t *any)
{
    uint32_t mask = word_of<T>::equal(x, by.y);
    *any |= mask;
    return (mask & by.tied) | (~mask & by.other);
}

/* Whether element k of a pack is a tie. */
template <typename T> __device__ __forceinline__ bool is_tie(const uint4 &x, int k, uint32_t y)
{
    constexpr int E = pack_size<T>::value / 4; /* elements of a word */
    uint32_t word = k / E == 0 ? x.x : k / E == 1 ? x.y : k / E == 2 ? x.z : x.w;
    return (word_of<T>::equal(word, y) >> (k % E * 16)) & 1;
}

/* Ties are rare: they are looked for again, and counted, only where a thread's packs have one; what is done for every
 * element is to compare and to choose. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 4)
    hope_rows(const __grid_constant__ fold_args a, T *gx, unsigned long long *totals)
{
    typedef word_of<T> word;
    int64_t unit = blockIdx.x, offset[3];
    int64_t begin = (int64_t)blockIdx.y * a.chunk, end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
    locate(a.kept, unit, offset);
    const hoped<T> one(a, offset[2], offset[1]);
    const hoped_word by = {word::repeat(one.y), word::repeat(one.tied), word::repeat(one.other)};
    tie found = {0, 0};
#pragma unroll 1
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS * HELD) {
        uint4 x[HELD];
        uint32_t any = 0;
#pragma unroll
        for (int u = 0; u < HELD; u++)
            if (i + u * THREADS < end)
                x[u] = *(const uint4 *)((const T *)a.x + offset[0] + step_offset<N>(a, i + u * THREADS));
#pragma unroll
        for (int u = 0; u < HELD; u++)
            if (i + u * THREADS < end)
                *(uint4 *)(gx + offset[0] + step_offset<N>(a, i + u * THREADS)) =
                    make_uint4(hope<T>(x[u].x, by, &any), hope<T>(x[u].y, by, &any), hope<T>(x[u].z, by, &any),
                               hope<T>(x[u].w, by, &any));
        if (!any)
            continue;
#pragma unroll
        for (int u = 0; u < HELD; u++)
            for (int k = 0; k < N; k++)
                if (i + u * THREADS < end && is_tie<T>(x[u], k, by.y)) {
                    found.count++;
                    found.at = (int)(i + u * THREADS - begin) * N + k;
                }
    }
    merge_rows<tie_op, 1>(&found, 1);
    if (threadIdx.x == 0)
        put_tie(a, totals, found, unit);
}

/* Column k of a word. */
template <typename T, int E> __device__ __forceinline__ void set_hope(hoped_word *by, int k, const hoped<T> &one)
{
    by->y = (k % E ? by->y : 0) | first_word(one.y) << k % E * 16;
    by->tied = (k % E ? by->tied : 0) | first_word(one.tied) << k % E * 16;
    by->other = (k % E ? by->other : 0) | first_word(one.other) << k % E * 16;
}

/* The words of a pack of columns. Where g and the result have x's dtype, all loads are under way at once. */
template <typename T, int N>
__device__ __forceinline__ void hopes_of(const fold_args &a, const int64_t *offset, hoped_word *by)
{
    constexpr int E = N / 4; /* elements of a word */
    if (a.y_dtype != a.x_dtype || a.aux_dtype != a.x_dtype) {
#pragma unroll
        for (int k = 0; k < N; k++)
            set_hope<T, E>(&by[k / E], k, hoped<T>(a, offset[2] + k * a.column_aux, offset[1] + k * a.column_y));
        return;
    }
    T y[N], g[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        y[k] = ((const T *)a.aux)[offset[2] + k * a.column_aux];
        g[k] = ((const T *)a.y)[offset[1] + k * a.column_y];
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        set_hope<T, E>(&by[k / E], k, hoped<T>(y[k], widen(g[k])));
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 3)
    hope_columns(const __grid_constant__ fold_args a, T *gx, unsigned long long *totals)
{
    int width = 1 << a.width_bits, rows = THREADS >> a.width_bits, row = (int)(threadIdx.x >> a.width_bits);
    int64_t unit = (int64_t)blockIdx.x * width + (threadIdx.x & (width - 1)), offset[3];
    int64_t begin = (int64_t)blockIdx.y * a.chunk, end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
    tie found[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        found[k] = tie{0, 0};
    if (unit < a.units) {
        hoped_word by[4];
        locate(a.kept, unit, offset);
        hopes_of<T, N>(a, offset, by);
#pragma unroll 1
        for (int64_t i = begin + row; i < end; i += rows * HELD) {
            uint4 x[HELD];
            uint32_t any = 0;
#pragma unroll
            for (int u = 0; u < HELD; u++)
                if (i + u * rows < end)
                    x[u] = *(const uint4 *)((const T *)a.x + offset[0] + step_offset<N>(a, i + u * rows));
#pragma unroll
            for (int u = 0; u < HELD; u++)
                if (i + u * rows < end)
                    *(uint4 *)(gx + offset[0] + step_offset<N>(a, i + u * rows)) =
                        make_uint4(hope<T>(x[u].x, by[0], &any), hope<T>(x[u].y, by[1], &any),
                                   hope<T>(x[u].z, by[2], &any), hope<T>(x[u].w, by[3], &any));
            if (!any)
                continue;
#pragma unroll
            for (int u = 0; u < HELD; u++)
#pragma unroll
                for (int k = 0; k < N; k++)
                    if (i + u * rows < end && is_tie<T>(x[u], k, by[k / (N / 4)].y)) {
                        found[k].count++;
                        found[k].at = (int)(i + u * rows - begin);
                    }
        }
    }
    merge_rows<tie_op, N>(found, width);
    if (unit < a.units && row == 0)
#pragma unroll
        for (int k = 0; k < N; k++)
            put_tie(a, totals, found[k], unit * N + k);
}

/* What one chunk of one output needs in order to be mended. */
template <typename T> struct mending {
    int64_t at, begin, end; /* the first element; steps */
    wide<T> y;
    T tied, other;
};

template <typename T>
__device__ __forceinline__ mending<T> mending_of(const fold_args &a, int64_t output, int64_t chunk, int64_t total)
{
    typedef wide<T> C;
    mending<T> m;
    int64_t offset[3], column = output % a.lanes;
    locate(a.kept, output / a.lanes, offset);
    C g = load_any<C>(a.y, a.y_dtype, offset[1] + column * a.column_y);
    m.at = offset[0] + column;
    m.begin = chunk * a.chunk;
    m.end = m.begin + a.chunk < a.length ? m.begin + a.chunk : a.length;
    m.y = load_any<C>(a.aux, a.aux_dtype, offset[2] + column * a.column_aux);
    m.tied = narrow<T>(g / (C)total);
    m.other = narrow<T>(g * 0 / (C)total);
    return m;
}

/* Elements `first`, `first` + `apart`, ... of a chunk once more; loads go ahead of what is stored. */
template <typename T, int N>
__device__ __forceinline__ void mend_chunk(const fold_args &a, T *gx, const mending<T> &m, int first, int apart)
{
    const int each = a.by_columns ? 1 : N;
#pragma unroll 1
    for (int64_t i = m.begin + first; i < m.end; i += (int64_t)apart * BATCH) {
#pragma unroll 1
        for (int k = 0; k < each; k++) {
            T x[BATCH];
#pragma unroll
            for (int u = 0; u < BATCH; u++)
                if (i + u * apart < m.end)
                    x[u] = ((const T *)a.x)[m.at + step_offset<N>(a, i + u * apart) + k];
#pragma unroll
            for (int u = 0; u < BATCH; u++)
                if (i + u * apart < m.end)
                    gx[m.at + step_offset<N>(a, i + u * apart) + k] = widen(x[u]) == m.y ? m.tied : m.other;
        }
    }
}

#define FEW_MENDED 8 /* columns of a warp that are mended one after the other by all of it */

/* By columns: a thread looks after one (output, chunk). Chunks with several ties are few as a rule, and then the whole
 * warp walks down each; where they are many, every thread walks down its own, beside its neighbours. By rows: a warp
 * for each. Grid: chunks · outputs threads or warps. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    mend(const __grid_constant__ fold_args a, T *gx, const unsigned long long *totals)
{
    const int lane = (int)threadIdx.x % WARP;
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x, tasks = a.outputs * a.chunks;
    const int64_t task = a.by_columns ? thread : thread / WARP, output = task % a.outputs, chunk = task / a.outputs;
    const int64_t total = task < tasks ? (int64_t)totals[output] : 1;
    const tie found = task < tasks ? ((const tie *)a.partial)[task] : tie{0, 0};
    const bool is_one = total > 1 && found.count == 1, is_walk = total != 1 && !(total > 1 && found.count <= 1);
    if (is_one && (a.by_columns || lane == 0)) {
        mending<T> m = mending_of<T>(a, output, chunk, total);
        int64_t step = a.by_columns ? found.at : found.at / N, rest = a.by_columns ? 0 : found.at % N;
        gx[m.at + step_offset<N>(a, m.begin + step) + rest] = m.tied;
    }
    unsigned walks = __ballot_sync(FULL_WARP, is_walk);
    if (a.by_columns && __popc(walks) > FEW_MENDED) {
        if (is_walk)
            mend_chunk<T, N>(a, gx, mending_of<T>(a, output, chunk, total), 0, 1);
        return;
    }
    if (!a.by_columns)
        walks &= 1; /* all lanes have the same */
    for (; walks; walks &= walks - 1) {
        int64_t other = task - (a.by_columns ? lane - (__ffs(walks) - 1) : 0), its_output = other % a.outputs;
        mend_chunk<T, N>(a, gx, mending_of<T>(a, its_output, other / a.outputs, (int64_t)totals[its_output]), lane,
                         WARP);
    }
}

template <typename T>
static void launch_hope(const fold_args &a, void *gx, unsigned long long *totals, cudaStream_t stream)
{
    constexpr int N = pack_size<T>::value;
    int64_t units = a.by_columns ? (int64_t)1 << a.width_bits : 1, tasks = a.outputs * a.chunks;
    dim3 grid(blocks_for(a.units, units), (unsigned)a.chunks);
    cudaMemsetAsync(totals, 0, sizeof(*totals) * (size_t)a.outputs, stream);
    if (a.by_columns)
        hope_columns<T, N><<<grid, THREADS, 0, stream>>>(a, (T *)gx, totals);
    else
        hope_rows<T, N><<<grid, THREADS, 0, stream>>>(a, (T *)gx, totals);
    mend<T, N><<<blocks_for(tasks, a.by_columns ? THREADS : THREADS / WARP), THREADS, 0, stream>>>(a, (T *)gx, totals);
}

#endif
