/* max_grad.cuh: kernels of the gradient of max and min, for x and gx of one layout in vectors of 16 bytes.
 *
 *   in registers   rows that fit a block: x stays in registers, as masks of its ties, until these are counted
 *   speculative    columns and long rows: the gradient is written as if each maximum were unique, and fixed up where it
 *                  is not
 *
 * Either way x is read once and gx written once, unless there are many ties or a NaN won.
 *
 * Elements are compared and selected in 32-bit words, one f32 or two 16-bit floats: a word of x becomes a mask of its
 * ties, which selects between the gradient of a tie and that of all other elements.
 *
 * The plan is a reduction's, with g in place of its result: a.y, at the offsets of outer[1]. The result of max or min
 * is aux; gx has x's strides, so one offset serves both. */
#ifndef TARN__CUDA_MAX_GRAD_CUH
#define TARN__CUDA_MAX_GRAD_CUH

#include "backends/cuda/reduce/reduce_grad.cuh"

#define MANY_ROWS 4096     /* rows, from which on a warp suffices for a long one */
#define MAX_WARP_FIX_UPS 8 /* columns of a warp that the whole warp fixes up, one after the other */

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* `equal` sets all bits of an element that equals the other word's; `ones` has a 1 per element. */
template <typename T> struct word_of;
template <> struct word_of<float> {
    static constexpr uint32_t ones = 1;
    static __device__ __forceinline__ uint32_t equal(uint32_t a, uint32_t b)
    {
        return __uint_as_float(a) == __uint_as_float(b) ? 0xffffffffu : 0;
    }
    static __device__ __forceinline__ uint32_t repeat(float x)
    {
        return __float_as_uint(x);
    }
    static __device__ __forceinline__ int count(uint32_t sums)
    {
        return (int)sums;
    }
};
/* Two 16-bit floats: the hardware compares both at once. */
template <typename T, typename Pair> struct word_of_pair {
    static constexpr uint32_t ones = 0x00010001;
    static __device__ __forceinline__ uint32_t equal(uint32_t a, uint32_t b)
    {
        Pair x, y;
        memcpy(&x, &a, sizeof(x));
        memcpy(&y, &b, sizeof(y));
        return __heq2_mask(x, y);
    }
    static __device__ __forceinline__ uint32_t repeat(T x)
    {
        uint16_t bits;
        memcpy(&bits, &x, sizeof(bits));
        return bits * ones;
    }
    static __device__ __forceinline__ int count(uint32_t sums)
    {
        return (int)(sums & 0xffff) + (int)(sums >> 16);
    }
};
template <> struct word_of<bf16> : word_of_pair<bf16, __nv_bfloat162> {
};
template <> struct word_of<f16> : word_of_pair<f16, __half2> {
};

/* The value that x is compared to, and the gradients of ties and of all others. */
struct grad_words {
    uint32_t y, tied, other;
};

/* The words of a row with `ties` ties. Those are 0 if a NaN won: it equals nothing, and all gradients of its row are
 * NaN, as with torch.amax. */
template <typename T> __device__ __forceinline__ grad_words grad_words_of(uint32_t y, float g, int ties)
{
    float tied = g, other = g * 0;
    if (ties != 1)
        tied = g / (float)ties, other = other / (float)ties;
    return grad_words{y, word_of<T>::repeat(narrow<T>(tied)), word_of<T>::repeat(narrow<T>(other))};
}

/* The gradients of a word's elements, by the mask of its ties. */
__device__ __forceinline__ uint32_t select_grads(uint32_t mask, const grad_words &by)
{
    return (mask & by.tied) | (~mask & by.other);
}

/* The gradients of a word of x; `take(mask)` gets the mask of its ties. */
template <typename T, typename Take>
__device__ __forceinline__ uint32_t grad_word(uint32_t x, const grad_words &by, const Take &take)
{
    const uint32_t mask = word_of<T>::equal(x, by.y);
    take(mask);
    return select_grads(mask, by);
}

/* The gradients of a vector. `by` has a row's words, or with columns those of each word of the vector. */
template <typename T, bool BY_COLUMNS, typename Take>
__device__ __forceinline__ uint4 grad_vec(const uint4 &x, const grad_words *by, const Take &take)
{
    return make_uint4(grad_word<T>(x.x, by[0], take), grad_word<T>(x.y, by[BY_COLUMNS ? 1 : 0], take),
                      grad_word<T>(x.z, by[BY_COLUMNS ? 2 : 0], take), grad_word<T>(x.w, by[BY_COLUMNS ? 3 : 0], take));
}

/* ---- rows in registers ------------------------------------------------------------------------------------------- */

/* Every thread of the group gets the sum: up to 32 adjacent threads, or the whole block. */
__device__ __forceinline__ int count_over(int count, int group)
{
    __shared__ int space[WARP];
    if (group < WARP) {
        for (int step = group / 2; step > 0; step /= 2)
            count += __shfl_xor_sync(FULL_WARP, count, step);
        return count;
    }
    count = __reduce_add_sync(FULL_WARP, count);
    if (group == WARP)
        return count;
    if (threadIdx.x % WARP == 0)
        space[threadIdx.x / WARP] = count;
    __syncthreads();
    return __reduce_add_sync(FULL_WARP, threadIdx.x % WARP < blockDim.x / WARP ? space[threadIdx.x % WARP] : 0);
}

/* A group of threads per row. x, the result (aux) and g (a.y) are of type T. Bytes: x read, gx written. */
template <typename T>
static __global__ void __launch_bounds__(MAX_ROW_THREADS, 3)
    tie_rows(const __grid_constant__ reduce_args a, T *gx, int group)
{
    typedef word_of<T> word;
    const int lane = (int)threadIdx.x % group, length = (int)a.length;
    const int64_t unit = (int64_t)blockIdx.x * (blockDim.x / group) + threadIdx.x / group;
    const bool is_here = unit < a.units;
    int64_t offset[3] = {0, 0, 0};
    uint4 loaded[REG_VECS];
    uint32_t x[REG_VECS][4], sums = 0;
    float g = 0;
    if (is_here) {
        if (a.outer.rank <= 1)
            offset[0] = unit * a.outer.stride[0][0], offset[1] = unit * a.outer.stride[1][0],
            offset[2] = unit * a.outer.stride[2][0];
        else
            locate(a.outer, unit, offset);
        const uint4 *from = (const uint4 *)((const T *)a.x + offset[0]);
        const uint32_t y = word::repeat(((const T *)a.aux)[offset[2]]);
        g = widen(((const T *)a.y)[offset[1]]);
#pragma unroll
        for (int u = 0; u < REG_VECS; u++)
            if (lane + u * group < length)
                loaded[u] = from[lane + u * group]; /* one load: memcpy() into words would be compiled to byte loads */
#pragma unroll
        for (int u = 0; u < REG_VECS; u++)
            if (lane + u * group < length) {
                const uint32_t words[4] = {loaded[u].x, loaded[u].y, loaded[u].z, loaded[u].w};
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    x[u][k] = word::equal(words[k], y);
                    sums += x[u][k] & word::ones;
                }
            }
    }
    /* x is still in registers, as masks */
    const int ties = count_over(word::count(sums), group);
    if (!is_here)
        return;
    const grad_words by = grad_words_of<T>(0, g, ties);
    uint4 *to = (uint4 *)(gx + offset[0]);
#pragma unroll
    for (int u = 0; u < REG_VECS; u++)
        if (lane + u * group < length) {
            uint32_t out[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                out[k] = select_grads(x[u][k], by);
            to[lane + u * group] = make_uint4(out[0], out[1], out[2], out[3]);
        }
}

/* Writes the row's gradient as if there were `ties` ties; returns how many there are. */
template <typename T>
__device__ __forceinline__ int grad_row(const uint4 *from, uint4 *to, int length, uint32_t y, float g, int ties)
{
    typedef word_of<T> word;
    const grad_words by = grad_words_of<T>(y, g, ties);
    int count = 0;
#pragma unroll 1
    for (int at = (int)threadIdx.x % WARP; at < length; at += WARP * REG_VECS) {
        uint4 x[REG_VECS];
        uint32_t sums = 0;
#pragma unroll
        for (int u = 0; u < REG_VECS; u++)
            if (at + u * WARP < length)
                x[u] = from[at + u * WARP];
#pragma unroll
        for (int u = 0; u < REG_VECS; u++)
            if (at + u * WARP < length)
                to[at + u * WARP] = grad_vec<T, false>(x[u], &by, [&](uint32_t mask) { sums += mask & word::ones; });
        count += word::count(sums);
    }
    return __reduce_add_sync(FULL_WARP, count);
}

/* A warp per row, if there are many long ones: it writes the gradient as it goes, assuming that the maximum is unique;
 * a row for which that was wrong is in L2 by then, and is done again. */
template <typename T>
static __global__ void __launch_bounds__(THREADS, 4) tie_long_rows(const __grid_constant__ reduce_args a, T *gx)
{
    const int64_t unit = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    int64_t offset[3];
    if (unit >= a.units)
        return;
    locate(a.outer, unit, offset);
    const uint4 *from = (const uint4 *)((const T *)a.x + offset[0]);
    uint4 *to = (uint4 *)(gx + offset[0]);
    const uint32_t y = word_of<T>::repeat(((const T *)a.aux)[offset[2]]);
    const float g = widen(((const T *)a.y)[offset[1]]);
    const int ties = grad_row<T>(from, to, (int)a.length, y, g, 1);
    if (ties != 1)
        grad_row<T>(from, to, (int)a.length, y, g, ties);
}

/* Grid: a warp per row, or the groups of row_group_of(). */
template <typename T> static void launch_tie_rows(const reduce_args &a, void *gx, cudaStream_t stream)
{
    const row_group group = row_group_of(a);
    if (group.threads > WARP && a.units >= MANY_ROWS)
        tie_long_rows<T><<<blocks_for(a.units, THREADS / WARP), THREADS, 0, stream>>>(a, (T *)gx);
    else
        tie_rows<T>
            <<<blocks_for(a.units, group.block / group.threads), group.block, 0, stream>>>(a, (T *)gx, group.threads);
}

/* ---- speculation ------------------------------------------------------------------------------------------------- */

/* A first pass writes the gradient as if every tie were the only one, counts the ties, and keeps the index of one per
 * chunk. A second pass looks at the counts only, and fixes up wrong guesses: one element, or a chunk with several
 * ties. */

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

/* The bits of an element. */
template <typename T> __device__ __forceinline__ uint32_t bits_of(T x)
{
    uint32_t word = 0;
    memcpy(&word, &x, sizeof(x));
    return word;
}

/* Sets column k of the words of a vector of columns, E per word, to those of a unique maximum. */
template <typename T, int E> __device__ __forceinline__ void set_column(grad_words *by, int k, T y, compute<T> g)
{
    const int shift = k % E * 16;
    by += k / E;
    by->y = (k % E ? by->y : 0) | bits_of(y) << shift;
    by->tied = (k % E ? by->tied : 0) | bits_of(narrow<T>(g)) << shift;
    by->other = (k % E ? by->other : 0) | bits_of(narrow<T>(g * 0)) << shift;
}

/* Words of a row, or of a vector of columns. If g and the result have x's dtype, all loads of columns are in flight at
 * once. */
template <typename T, int N, bool BY_COLUMNS>
__device__ __forceinline__ void load_grad_words(const reduce_args &a, const int64_t *offset, grad_words *by)
{
    typedef compute<T> C;
    constexpr int E = N / 4; /* elements per word */
    if constexpr (!BY_COLUMNS) {
        *by = grad_words_of<T>(word_of<T>::repeat(narrow<T>(load_any<C>(a.aux, a.aux_dtype, offset[2]))),
                               load_any<C>(a.y, a.y_dtype, offset[1]), 1);
    } else if (a.y_dtype != a.x_dtype || a.aux_dtype != a.x_dtype) {
#pragma unroll
        for (int k = 0; k < N; k++)
            set_column<T, E>(by, k, narrow<T>(load_any<C>(a.aux, a.aux_dtype, offset[2] + k * a.column_aux)),
                             load_any<C>(a.y, a.y_dtype, offset[1] + k * a.column_y));
    } else {
        T y[N], g[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            y[k] = ((const T *)a.aux)[offset[2] + k * a.column_aux];
            g[k] = ((const T *)a.y)[offset[1] + k * a.column_y];
        }
#pragma unroll
        for (int k = 0; k < N; k++)
            set_column<T, E>(by, k, y[k], widen(g[k]));
    }
}

/* True if element k of a vector is a tie. */
template <typename T> __device__ __forceinline__ bool is_tie(const uint4 &x, int k, uint32_t y)
{
    constexpr int E = vec_size<T>::value / 4; /* elements per word */
    uint32_t word = k / E == 0 ? x.x : k / E == 1 ? x.y : k / E == 2 ? x.z : x.w;
    return (word_of<T>::equal(word, y) >> (k % E * 16)) & 1;
}

/* The first pass. Rows: a block per row and chunk. Columns: a thread per vector of columns, rows of threads in turn.
 * Ties are rare: they are searched for and counted only if a thread's vectors have one; per element there is one
 * comparison and one select. Bytes: x read, gx written. */
template <typename T, int N, bool BY_COLUMNS>
static __global__ void __launch_bounds__(THREADS, BY_COLUMNS ? 3 : 4)
    speculate(const __grid_constant__ reduce_args a, T *gx, unsigned long long *totals)
{
    constexpr int OUTPUTS = BY_COLUMNS ? N : 1;
    const int width = BY_COLUMNS ? 1 << a.width_bits : 1,
              first = BY_COLUMNS ? (int)(threadIdx.x >> a.width_bits) : (int)threadIdx.x,
              apart = BY_COLUMNS ? THREADS >> a.width_bits : THREADS;
    int64_t unit = BY_COLUMNS ? (int64_t)blockIdx.x * width + (threadIdx.x & (width - 1)) : blockIdx.x, offset[3];
    int64_t begin = (int64_t)blockIdx.y * a.chunk, end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
    const bool is_here = !BY_COLUMNS || unit < a.units;
    tie found[OUTPUTS];
#pragma unroll
    for (int k = 0; k < OUTPUTS; k++)
        found[k] = tie{0, 0};
    if (is_here) {
        grad_words by[BY_COLUMNS ? 4 : 1];
        locate(a.outer, unit, offset);
        load_grad_words<T, N, BY_COLUMNS>(a, offset, by);
#pragma unroll 1
        for (int64_t i = begin + first; i < end; i += apart * REG_VECS) {
            uint4 x[REG_VECS];
            uint32_t any = 0;
#pragma unroll
            for (int u = 0; u < REG_VECS; u++)
                if (i + u * apart < end)
                    x[u] = *(const uint4 *)((const T *)a.x + offset[0] + step_offset<N>(a, i + u * apart));
#pragma unroll
            for (int u = 0; u < REG_VECS; u++)
                if (i + u * apart < end)
                    *(uint4 *)(gx + offset[0] + step_offset<N>(a, i + u * apart)) =
                        grad_vec<T, BY_COLUMNS>(x[u], by, [&](uint32_t mask) { any |= mask; });
            /* no tie in these vectors: the common case */
            if (!any)
                continue;
#pragma unroll
            for (int u = 0; u < REG_VECS; u++)
#pragma unroll
                for (int k = 0; k < N; k++)
                    if (i + u * apart < end && is_tie<T>(x[u], k, by[BY_COLUMNS ? k / (N / 4) : 0].y)) {
                        tie &f = found[BY_COLUMNS ? k : 0];
                        f.count++;
                        f.at = BY_COLUMNS ? (int)(i + u * apart - begin) : (int)(i + u * apart - begin) * N + k;
                    }
        }
    }
    /* one record per chunk and output */
    merge_rows<tie_op, OUTPUTS>(found, width);
    if (is_here && first == 0)
#pragma unroll
        for (int k = 0; k < OUTPUTS; k++)
            store_tie(a, totals, found[k], unit * OUTPUTS + k);
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

/* The second pass. Columns: a thread per (output, chunk). Chunks with several ties are few as a rule: the whole warp
 * walks each; if they are many, every thread walks its own, coalesced. Rows: a warp per (output, chunk). Grid: chunks ·
 * outputs threads or warps. */
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
        speculate<T, N, true><<<grid, THREADS, 0, stream>>>(a, (T *)gx, totals);
    else
        speculate<T, N, false><<<grid, THREADS, 0, stream>>>(a, (T *)gx, totals);
    fix_up<T, N>
        <<<blocks_for(tasks, a.by_columns ? THREADS : THREADS / WARP), THREADS, 0, stream>>>(a, (T *)gx, totals);
}

#endif
