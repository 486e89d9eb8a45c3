/* max_grad_speculative.cuh: gradient of max and min, speculating that each maximum is unique.
 *
 * A first pass writes the gradient as if every tie were the only one, counts the ties, and keeps the index of one per
 * chunk. A second pass looks at the counts only, and fixes up wrong guesses: one element, or a chunk with several ties.
 * So x is read once and gx written once, unless there are many ties or a NaN won.
 *
 * The plan is a reduction's, with g in place of its result: a.y, at the offsets of outer[1]. The result of max or min
 * is aux; gx has x's strides, so one offset serves both. */
#ifndef TARN__CUDA_MAX_GRAD_SPECULATIVE_CUH
#define TARN__CUDA_MAX_GRAD_SPECULATIVE_CUH

#include "backends/cuda/reduce/max_grad_rows.cuh"
#include "backends/cuda/reduce/reduce_grad.cuh"

/* A chunk's ties: how many, and the step (columns) or element (rows) of one, relative to the chunk's first. */
struct tie {
    int count, at;
};

/* Merge of chunk states, for merge_rows(). */
struct tie_op {
    typedef tie state;
    static __device__ __forceinline__ void merge(tie &s, const tie &other)
    {
        s.at = other.count > 0 ? other.at : s.at;
        s.count += other.count;
    }
};

/* Scratch: totals (outputs), cleared first; then the ties (chunks, outputs). */
static inline size_t totals_bytes(const reduce_args &a)
{
    return (size_t)divide_up(a.outputs * (int64_t)sizeof(unsigned long long), 256) * 256;
}

/* A chunk's ties to scratch, and to the output's total. */
__device__ __forceinline__ void store_tie(const reduce_args &a, unsigned long long *totals, const tie &found,
                                          int64_t output)
{
    ((tie *)a.partial)[(int64_t)blockIdx.y * a.outputs + output] = found;
    if (found.count > 0)
        atomicAdd(&totals[output], (unsigned long long)found.count); /* integers: any order gives the same sum */
}

/* Per row or column, as bits: the value x is compared to, and the gradients of ties and of all others if each tie is
 * the only one. Words hold one f32 or two 16-bit floats; see max_grad_rows.cuh. */
template <typename T> struct speculated {
    T y, tied, other;
    __device__ __forceinline__ speculated(T result, compute<T> g)
        : y(result), tied(narrow<T>(g)), other(narrow<T>(g * 0))
    {
    }
    __device__ __forceinline__ speculated(const reduce_args &a, int64_t y_at, int64_t g_at)
        : speculated(narrow<T>(load_any<compute<T>>(a.aux, a.aux_dtype, y_at)),
                     load_any<compute<T>>(a.y, a.y_dtype, g_at))
    {
    }
};

struct speculated_word {
    uint32_t y, tied, other;
};

/* The bits of an element. */
template <typename T> __device__ __forceinline__ uint32_t bits_of(T x)
{
    uint32_t word = 0;
    memcpy(&word, &x, sizeof(x));
    return word;
}

/* Gradients of a word's elements; `any` collects bits where there are ties. */
template <typename T>
__device__ __forceinline__ uint32_t select_grad(uint32_t x, const speculated_word &by, uint32_t *any)
{
    uint32_t mask = word_of<T>::equal(x, by.y);
    *any |= mask;
    return (mask & by.tied) | (~mask & by.other);
}

/* True if element k of a vector is a tie. */
template <typename T> __device__ __forceinline__ bool is_tie(const uint4 &x, int k, uint32_t y)
{
    constexpr int E = vec_size<T>::value / 4; /* elements per word */
    uint32_t word = k / E == 0 ? x.x : k / E == 1 ? x.y : k / E == 2 ? x.z : x.w;
    return (word_of<T>::equal(word, y) >> (k % E * 16)) & 1;
}

/* Ties are rare: they are searched for and counted only if a thread's vectors have one; per element there is one
 * comparison and one select. Bytes: x read, gx written. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 4)
    speculate_rows(const __grid_constant__ reduce_args a, T *gx, unsigned long long *totals)
{
    typedef word_of<T> word;
    int64_t unit = blockIdx.x, offset[3];
    int64_t begin = (int64_t)blockIdx.y * a.chunk, end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
    locate(a.outer, unit, offset);
    const speculated<T> one(a, offset[2], offset[1]);
    const speculated_word by = {word::repeat(one.y), word::repeat(one.tied), word::repeat(one.other)};
    tie found = {0, 0};
#pragma unroll 1
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS * REG_VECS) {
        uint4 x[REG_VECS];
        uint32_t any = 0;
#pragma unroll
        for (int u = 0; u < REG_VECS; u++)
            if (i + u * THREADS < end)
                x[u] = *(const uint4 *)((const T *)a.x + offset[0] + step_offset<N>(a, i + u * THREADS));
#pragma unroll
        for (int u = 0; u < REG_VECS; u++)
            if (i + u * THREADS < end)
                *(uint4 *)(gx + offset[0] + step_offset<N>(a, i + u * THREADS)) =
                    make_uint4(select_grad<T>(x[u].x, by, &any), select_grad<T>(x[u].y, by, &any),
                               select_grad<T>(x[u].z, by, &any), select_grad<T>(x[u].w, by, &any));
        /* no tie in these vectors: the common case */
        if (!any)
            continue;
#pragma unroll
        for (int u = 0; u < REG_VECS; u++)
            for (int k = 0; k < N; k++)
                if (i + u * THREADS < end && is_tie<T>(x[u], k, by.y)) {
                    found.count++;
                    found.at = (int)(i + u * THREADS - begin) * N + k;
                }
    }
    /* one record per chunk */
    merge_rows<tie_op, 1>(&found, 1);
    if (threadIdx.x == 0)
        store_tie(a, totals, found, unit);
}

/* Sets column k of a word. */
template <typename T, int E>
__device__ __forceinline__ void set_speculated(speculated_word *by, int k, const speculated<T> &one)
{
    by->y = (k % E ? by->y : 0) | bits_of(one.y) << k % E * 16;
    by->tied = (k % E ? by->tied : 0) | bits_of(one.tied) << k % E * 16;
    by->other = (k % E ? by->other : 0) | bits_of(one.other) << k % E * 16;
}

/* Words of a vector of columns. If g and the result have x's dtype, all loads are in flight at once. */
template <typename T, int N>
__device__ __forceinline__ void load_speculated(const reduce_args &a, const int64_t *offset, speculated_word *by)
{
    constexpr int E = N / 4; /* elements per word */
    if (a.y_dtype != a.x_dtype || a.aux_dtype != a.x_dtype) {
#pragma unroll
        for (int k = 0; k < N; k++)
            set_speculated<T, E>(&by[k / E], k,
                                 speculated<T>(a, offset[2] + k * a.column_aux, offset[1] + k * a.column_y));
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
        set_speculated<T, E>(&by[k / E], k, speculated<T>(y[k], widen(g[k])));
}

/* The same down columns: a thread per vector of columns, rows of threads in turn. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 3)
    speculate_columns(const __grid_constant__ reduce_args a, T *gx, unsigned long long *totals)
{
    int width = 1 << a.width_bits, rows = THREADS >> a.width_bits, row = (int)(threadIdx.x >> a.width_bits);
    int64_t unit = (int64_t)blockIdx.x * width + (threadIdx.x & (width - 1)), offset[3];
    int64_t begin = (int64_t)blockIdx.y * a.chunk, end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
    tie found[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        found[k] = tie{0, 0};
    if (unit < a.units) {
        speculated_word by[4];
        locate(a.outer, unit, offset);
        load_speculated<T, N>(a, offset, by);
#pragma unroll 1
        for (int64_t i = begin + row; i < end; i += rows * REG_VECS) {
            uint4 x[REG_VECS];
            uint32_t any = 0;
#pragma unroll
            for (int u = 0; u < REG_VECS; u++)
                if (i + u * rows < end)
                    x[u] = *(const uint4 *)((const T *)a.x + offset[0] + step_offset<N>(a, i + u * rows));
#pragma unroll
            for (int u = 0; u < REG_VECS; u++)
                if (i + u * rows < end)
                    *(uint4 *)(gx + offset[0] + step_offset<N>(a, i + u * rows)) =
                        make_uint4(select_grad<T>(x[u].x, by[0], &any), select_grad<T>(x[u].y, by[1], &any),
                                   select_grad<T>(x[u].z, by[2], &any), select_grad<T>(x[u].w, by[3], &any));
            if (!any)
                continue;
#pragma unroll
            for (int u = 0; u < REG_VECS; u++)
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
            store_tie(a, totals, found[k], unit * N + k);
}

/* What is needed to fix up one chunk of one output. */
template <typename T> struct fix_up_job {
    int64_t at, begin, end; /* the first element; steps */
    compute<T> y;
    T tied, other;
};

/* Rereads g and the result; the tied gradient is now g / total. */
template <typename T>
__device__ __forceinline__ fix_up_job<T> fix_up_job_of(const reduce_args &a, int64_t output, int64_t chunk,
                                                       int64_t total)
{
    typedef compute<T> C;
    fix_up_job<T> m;
    int64_t offset[3], column = output % a.outputs_per_unit;
    locate(a.outer, output / a.outputs_per_unit, offset);
    C g = load_any<C>(a.y, a.y_dtype, offset[1] + column * a.column_y);
    m.at = offset[0] + column;
    m.begin = chunk * a.chunk;
    m.end = m.begin + a.chunk < a.length ? m.begin + a.chunk : a.length;
    m.y = load_any<C>(a.aux, a.aux_dtype, offset[2] + column * a.column_aux);
    m.tied = narrow<T>(g / (C)total);
    m.other = narrow<T>(g * 0 / (C)total);
    return m;
}

/* Rewrites elements first, first + apart, ... of a chunk; loads are batched ahead of the stores. */
template <typename T, int N>
__device__ __forceinline__ void fix_up_chunk(const reduce_args &a, T *gx, const fix_up_job<T> &m, int first, int apart)
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

#define MAX_WARP_FIX_UPS 8 /* columns of a warp that the whole warp fixes up, one after the other */

/* Columns: a thread per (output, chunk). Chunks with several ties are few as a rule: the whole warp walks each; if they
 * are many, every thread walks its own, coalesced. Rows: a warp per (output, chunk). Grid: chunks · outputs threads or
 * warps. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    fix_up(const __grid_constant__ reduce_args a, T *gx, const unsigned long long *totals)
{
    const int lane = (int)threadIdx.x % WARP;
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x, tasks = a.outputs * a.chunks;
    const int64_t task = a.by_columns ? thread : thread / WARP, output = task % a.outputs, chunk = task / a.outputs;
    const int64_t total = task < tasks ? (int64_t)totals[output] : 1;
    const tie found = task < tasks ? ((const tie *)a.partial)[task] : tie{0, 0};
    const bool is_one = total > 1 && found.count == 1, is_walk = total != 1 && !(total > 1 && found.count <= 1);
    if (is_one && (a.by_columns || lane == 0)) {
        fix_up_job<T> m = fix_up_job_of<T>(a, output, chunk, total);
        int64_t step = a.by_columns ? found.at : found.at / N, rest = a.by_columns ? 0 : found.at % N;
        gx[m.at + step_offset<N>(a, m.begin + step) + rest] = m.tied;
    }
    /* lanes whose chunk must be walked */
    unsigned walks = __ballot_sync(FULL_WARP, is_walk);
    if (a.by_columns && __popc(walks) > MAX_WARP_FIX_UPS) {
        if (is_walk)
            fix_up_chunk<T, N>(a, gx, fix_up_job_of<T>(a, output, chunk, total), 0, 1);
        return;
    }
    if (!a.by_columns)
        walks &= 1; /* the same in all lanes */
    for (; walks; walks &= walks - 1) {
        int64_t other = task - (a.by_columns ? lane - (__ffs(walks) - 1) : 0), its_output = other % a.outputs;
        fix_up_chunk<T, N>(a, gx, fix_up_job_of<T>(a, its_output, other / a.outputs, (int64_t)totals[its_output]), lane,
                           WARP);
    }
}

/* Grid of the first pass: as the reduction's; rows take one block per chunk. */
template <typename T>
static void launch_speculative(const reduce_args &a, void *gx, unsigned long long *totals, cudaStream_t stream)
{
    /* the totals are cleared, then counted by the first pass */
    constexpr int N = vec_size<T>::value;
    int64_t units = a.by_columns ? (int64_t)1 << a.width_bits : 1, tasks = a.outputs * a.chunks;
    dim3 grid(blocks_for(a.units, units), (unsigned)a.chunks);
    cudaMemsetAsync(totals, 0, sizeof(*totals) * (size_t)a.outputs, stream);
    if (a.by_columns)
        speculate_columns<T, N><<<grid, THREADS, 0, stream>>>(a, (T *)gx, totals);
    else
        speculate_rows<T, N><<<grid, THREADS, 0, stream>>>(a, (T *)gx, totals);
    fix_up<T, N>
        <<<blocks_for(tasks, a.by_columns ? THREADS : THREADS / WARP), THREADS, 0, stream>>>(a, (T *)gx, totals);
}

#endif
