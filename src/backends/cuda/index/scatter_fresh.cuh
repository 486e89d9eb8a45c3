/* scatter_fresh.cuh: scatter where y's old values do not count: y[target] is the sum of its entries' slices, 0 if it
 * has none.
 *
 * Entries are sorted by target, as in scatter_sorted.cuh. A thread has one column of a few adjacent targets: it looks
 * up where their entries begin, loads the first slice of each at once, then further ones; so every element of y is
 * written once and none is read. If a target has very many entries, the chunks within them are summed first, in
 * parallel, and the thread adds those sums. */
#ifndef TARN__CUDA_SCATTER_FRESH_CUH
#define TARN__CUDA_SCATTER_FRESH_CUH

#include "backends/cuda/index/scatter_sorted.cuh"

#define TARGETS 4          /* per thread, adjacent */
#define FRESH_BATCH 4      /* entries whose loads are in flight */
#define MIN_FRESH_CHUNK 64 /* entries of a chunk, at least */
#define MAX_SHORT_GAP 4    /* targets without entries that one thread handles alone */

/* begin[t] is the number of entries before those of target t; begin[limit] that of all valid ones. Thread `entry`, 0 …
 * count, writes it for the targets after the previous entry's up to its own: long gaps are filled by the whole warp. */
__device__ __forceinline__ void find_begins(const add_args &a, uint32_t *begin, int64_t entry)
{
    const int lane = (int)(threadIdx.y * blockDim.x + threadIdx.x) % WARP;
    const bool is_here = entry <= a.count;
    uint32_t first = !is_here ? 1 : entry > 0 ? a.keys[entry - 1] + 1 : 0;
    uint32_t end = !is_here ? 1 : (entry < a.count ? a.keys[entry] : a.none) + 1;
    bool is_long = end > first && end - first > MAX_SHORT_GAP;
    for (uint32_t t = first; !is_long && t < end; t++)
        begin[t] = (uint32_t)entry;
    for (unsigned left = __ballot_sync(FULL_WARP, is_long); left; left &= left - 1) {
        const int from = __ffs(left) - 1;
        const uint32_t its_first = __shfl_sync(FULL_WARP, first, from), its_end = __shfl_sync(FULL_WARP, end, from);
        for (uint32_t t = its_first + lane; t < its_end; t += WARP)
            begin[t] = (uint32_t)(entry - lane + from);
    }
}

/* Blocks before `walks` sum chunks that belong to one target; the others find where targets begin. */
template <typename T, typename C, int N>
static __global__ void __launch_bounds__(THREADS)
    prepare_kernel(const __grid_constant__ add_args a, uint32_t *begin, unsigned walks)
{
    if (blockIdx.x >= walks) {
        find_begins(a, begin,
                    (int64_t)(blockIdx.x - walks) * (blockDim.x * blockDim.y) + threadIdx.y * blockDim.x + threadIdx.x);
        return;
    }
    walk_pos w;
    if (!locate_walk(a, &w) || w.end - w.begin < a.chunk || a.keys[w.begin] == a.none ||
        a.keys[w.begin] != a.keys[w.end - 1])
        return;
    int64_t column[2];
    locate(a.column_at, w.column, column);
    C sum[N] = {};
#pragma unroll 1
    for (int64_t base = w.begin; base < w.end; base += FRESH_BATCH) { /* chunks are whole batches */
        raw<T, N, C> x[FRESH_BATCH];
#pragma unroll
        for (int u = 0; u < FRESH_BATCH; u++)
            x[u].load(a.source, a.source_dtype, (int64_t)a.positions[base + u] * a.source_step + column[1]);
#pragma unroll
        for (int u = 0; u < FRESH_BATCH; u++)
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += x[u].get(i);
    }
    C *to = partial_at<C, N>(a, w.chunk, 0, w.column);
#pragma unroll
    for (int i = 0; i < N; i++)
        to[i] = sum[i];
}

/* Adds the slices of entries `at` … `end`, all of one target, to its sum. */
template <typename T, typename C, int N>
__device__ __forceinline__ void add_entries(const add_args &a, uint32_t at, uint32_t end, int64_t column_offset, C *sum)
{
#pragma unroll 1
    for (; at < end; at += FRESH_BATCH) {
        raw<T, N, C> x[FRESH_BATCH];
#pragma unroll
        for (int u = 0; u < FRESH_BATCH; u++)
            if (at + u < end)
                x[u].load(a.source, a.source_dtype, (int64_t)a.positions[at + u] * a.source_step + column_offset);
#pragma unroll
        for (int u = 0; u < FRESH_BATCH; u++)
            if (at + u < end)
#pragma unroll
                for (int i = 0; i < N; i++)
                    sum[i] += x[u].get(i);
    }
}

/* The sum of all entries of a target, `at` … `end`. Whole chunks among them are added separately, in the type of sums
 * of sums. */
template <typename T, typename C, int N>
__device__ __forceinline__ void sum_entries(const add_args &a, uint32_t at, uint32_t end, int64_t column_index,
                                            int64_t column_offset, C *sum)
{
    typedef typename total_of<C>::type D;
    const uint32_t chunk = (uint32_t)a.chunk, first = (at + chunk - 1) / chunk, last = end / chunk;
    const bool has_chunks = first < last;
#pragma unroll 1
    for (int side = 0; side < 2; side++) /* before the chunks, and after */
        add_entries<T, C, N>(a,
                             side == 0    ? at
                             : has_chunks ? last * chunk
                                          : end,
                             side == 0 && has_chunks ? first * chunk : end, column_offset, sum);
    if (!has_chunks)
        return;
    D chunk_sum[N] = {};
#pragma unroll 1
    for (uint32_t c = first; c < last; c += 2) {
        vec<C, N> part[2];
#pragma unroll
        for (int u = 0; u < 2; u++)
            if (c + u < last)
                part[u] = *(const vec<C, N> *)partial_at<C, N>(a, c + u, 0, column_index);
#pragma unroll
        for (int u = 0; u < 2; u++)
            if (c + u < last)
#pragma unroll
                for (int i = 0; i < N; i++)
                    chunk_sum[i] += (D)part[u].at[i];
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = (C)(chunk_sum[i] + (D)sum[i]);
}

/* Bytes: the source read once, y written once. First the targets with at most one entry, as most have, with all loads
 * in flight; then the others. */
template <typename T, typename Y, typename C, int N>
static __global__ void __launch_bounds__(THREADS, N > 4 ? 3 : 4)
    fresh_kernel(const __grid_constant__ add_args a, const uint32_t *begin)
{
    const int64_t first = ((int64_t)(blockIdx.x / a.tiles) * blockDim.y + threadIdx.y) * TARGETS;
    const int64_t column_index = (int64_t)(blockIdx.x % a.tiles) * blockDim.x + threadIdx.x;
    if (first >= a.limit || column_index >= a.columns)
        return;
    uint32_t at[TARGETS + 1], many = 0;
    raw<T, N, C> x[TARGETS];
    int64_t column[2];
#pragma unroll
    for (int k = 0; k <= TARGETS; k++)
        at[k] = begin[first + k < a.limit ? first + k : a.limit];
    locate(a.column_at, column_index, column);
#pragma unroll
    for (int k = 0; k < TARGETS; k++)
        if (at[k + 1] - at[k] == 1)
            x[k].load(a.source, a.source_dtype, (int64_t)a.positions[at[k]] * a.source_step + column[1]);
#pragma unroll
    for (int k = 0; k < TARGETS; k++) {
        C sum[N] = {};
        if (at[k + 1] - at[k] == 1)
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += x[k].get(i);
        /* targets with several entries come later */
        many |= at[k + 1] - at[k] > 1 ? 1u << k : 0;
        if (at[k + 1] - at[k] <= 1 && first + k < a.limit)
            put<Y, N, C>::at(a.y, a.y_dtype, (first + k) * a.y_step + column[0], sum);
    }
#pragma unroll 1
    for (; many; many &= many - 1) {
        const int64_t target = first + __ffs(many) - 1;
        C sum[N] = {};
        sum_entries<T, C, N>(a, begin[target], begin[target + 1], column_index, column[1], sum);
        put<Y, N, C>::at(a.y, a.y_dtype, target * a.y_step + column[0], sum);
    }
}

/* Grid: blocks of about 256 threads; a group of targets, or a chunk, per row of a block. Bytes: the source once, y
 * once. */
template <typename T, typename Y, typename C, int N>
static void launch_fresh(const tarn__call *call, add_args *a, uint32_t *begin)
{
    dim3 block = walk_block(a);
    int64_t chunks = (a->count + a->chunk - 1) / a->chunk, groups = (a->limit + TARGETS - 1) / TARGETS;
    unsigned walks = blocks_for(chunks, block.y) * (unsigned)a->tiles,
             entries = blocks_for(a->count + 1, block.x * block.y);
    prepare_kernel<T, C, N><<<walks + entries, block, 0, stream_of(call)>>>(*a, begin, walks);
    fresh_kernel<T, Y, C, N>
        <<<blocks_for(groups, block.y) * (unsigned)a->tiles, block, 0, stream_of(call)>>>(*a, begin);
}

#endif
