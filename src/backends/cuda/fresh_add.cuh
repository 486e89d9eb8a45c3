/* fresh_add.cuh: many additions at indices where y's old values do not count: y[target] becomes the sum of its entries' slices, 0 where it has none.
 *
 * Entries are sorted by target, as for sorted_add.cuh. Here a thread has one column of a few neighbouring targets and walks along their
 * entries, which are neighbours too; so every element of y is written once and none is read. Where a target has very many, the chunks that lie
 * within its entries are summed before, side by side, and the thread adds those sums. */
#ifndef TARN__FRESH_ADD_CUH
#define TARN__FRESH_ADD_CUH

#include "backends/cuda/sorted_add.cuh"

#define TARGETS 4     /* of a thread, neighbours */
#define FRESH_BATCH 4 /* entries whose loads are under way at the same time */
#define FRESH_CHUNK 64 /* entries of a chunk, at least */

static inline __host__ __device__ int64_t target_groups(int64_t limit)
{
    return (limit + TARGETS - 1) / TARGETS;
}

/* The first of the sorted entries whose key is not below `key`. */
__device__ __forceinline__ uint32_t first_entry(const add_args &a, int64_t key)
{
    uint32_t low = 0, high = (uint32_t)a.count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (a.keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Where the entries of each group of targets begin, and behind the last those of bad indices: a thread each, in the blocks from `walks` on. The
 * blocks before sum chunks that belong to one target. */
template <typename T, typename C, int N>
static __global__ void __launch_bounds__(THREADS) prepare_kernel(const __grid_constant__ add_args a, uint32_t *begin, unsigned walks)
{
    if (blockIdx.x >= walks) {
        int64_t group = (int64_t)(blockIdx.x - walks) * (blockDim.x * blockDim.y) + threadIdx.y * blockDim.x + threadIdx.x;
        int64_t key = group * TARGETS < a.limit ? group * TARGETS : a.limit;
        if (group <= target_groups(a.limit))
            begin[group] = first_entry(a, key);
        return;
    }
    walk_place w;
    if (!place_walk(a, &w) || w.end - w.begin < a.chunk || a.keys[w.begin] == a.none || a.keys[w.begin] != a.keys[w.end - 1])
        return;
    int64_t column[2];
    locate(a.column_at, w.column, column);
    C sum[N] = {};
#pragma unroll 1
    for (int64_t base = w.begin; base < w.end; base += FRESH_BATCH) { /* a chunk is made of whole batches */
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

/* The sum of the target that a thread is at: `far` has that of whole chunks. */
template <typename C, int N> struct open_sum {
    typedef typename total_of<C>::type D;
    C near[N];
    D far[N];
    bool is_far;

    __device__ __forceinline__ void clear()
    {
        is_far = false;
#pragma unroll
        for (int i = 0; i < N; i++)
            near[i] = 0, far[i] = 0;
    }
    template <typename Y> __device__ __forceinline__ void store(const add_args &a, int64_t target, int64_t column_offset)
    {
        if (is_far) {
#pragma unroll
            for (int i = 0; i < N; i++)
                near[i] = (C)(far[i] + (D)near[i]);
        }
        put<Y, N, C>::at(a.y, a.y_dtype, target * a.y_step + column_offset, near);
    }
};

/* Ends targets before `next`: the open one with its sum, others with 0. */
template <typename Y, typename C, int N>
__device__ __forceinline__ void go_to(const add_args &a, open_sum<C, N> &sum, int64_t *target, int64_t next, int64_t column_offset)
{
    for (; *target < next; ++*target) {
        sum.template store<Y>(a, *target, column_offset);
        sum.clear();
    }
}

/* Takes in as many chunks from `base` on as belong to the key there; returns how many entries those are. */
template <typename C, int N>
__device__ __forceinline__ int64_t add_chunks(const add_args &a, open_sum<C, N> &sum, uint32_t key, int64_t base, int64_t end, int64_t column)
{
    typedef typename total_of<C>::type D;
    int64_t taken = 0;
    bool is_whole[FRESH_BATCH];
#pragma unroll
    for (int u = 0; u < FRESH_BATCH; u++)
        is_whole[u] = base + (u + 1) * a.chunk <= end && a.keys[base + (u + 1) * a.chunk - 1] == key;
#pragma unroll
    for (int u = 0; u < FRESH_BATCH; u++)
        if (is_whole[u]) {
            const pack<C, N> part = *(const pack<C, N> *)partial_at<C, N>(a, base / a.chunk + u, 0, column);
            taken += a.chunk;
#pragma unroll
            for (int i = 0; i < N; i++)
                sum.far[i] += (D)part.at[i];
        }
    sum.is_far = sum.is_far || taken > 0;
    return taken;
}

/* Reads the source once, and writes all of y. */
template <typename T, typename Y, typename C, int N>
static __global__ void __launch_bounds__(THREADS, N > 4 ? 3 : 4) fresh_kernel(const __grid_constant__ add_args a, const uint32_t *begin)
{
    const int64_t group = (int64_t)(blockIdx.x / a.tiles) * blockDim.y + threadIdx.y;
    const int64_t own = (int64_t)(blockIdx.x % a.tiles) * blockDim.x + threadIdx.x;
    int64_t target = group * TARGETS, last = target + TARGETS < a.limit ? target + TARGETS : a.limit, column[2];
    if (target >= a.limit || own >= a.columns)
        return;
    const int64_t end = begin[group + 1];
    int64_t base = begin[group];
    locate(a.column_at, own, column);
    open_sum<C, N> sum;
    sum.clear();
    while (base < end) {
        const int64_t room = a.chunk - (base & (a.chunk - 1)), most = base + (room < FRESH_BATCH ? room : FRESH_BATCH);
        const int64_t here = most < end ? most : end; /* a batch ends with its chunk at the latest, so that the next one is seen whole */
        if (room == a.chunk) {
            uint32_t key = a.keys[base];
            if (base + a.chunk <= end && a.keys[base + a.chunk - 1] == key) {
                go_to<Y, C, N>(a, sum, &target, key, column[0]);
                base += add_chunks<C, N>(a, sum, key, base, end, own);
                continue;
            }
        }
        uint32_t key[FRESH_BATCH];
        raw<T, N, C> x[FRESH_BATCH];
#pragma unroll
        for (int u = 0; u < FRESH_BATCH; u++)
            if (base + u < here) {
                key[u] = a.keys[base + u];
                x[u].load(a.source, a.source_dtype, (int64_t)a.positions[base + u] * a.source_step + column[1]);
            }
#pragma unroll
        for (int u = 0; u < FRESH_BATCH; u++)
            if (base + u < here) {
                go_to<Y, C, N>(a, sum, &target, key[u], column[0]);
#pragma unroll
                for (int i = 0; i < N; i++)
                    sum.near[i] += x[u].get(i);
            }
        base = here;
    }
    go_to<Y, C, N>(a, sum, &target, last, column[0]);
}

/* Grid: blocks of about 256 threads; a group of targets, or a chunk, for each row of a block. Bytes: the source once, y once. */
template <typename T, typename Y, typename C, int N> static void start_fresh(const tarn__call *call, add_args *a, uint32_t *begin)
{
    dim3 block = walk_block(a);
    int64_t chunks = (a->count + a->chunk - 1) / a->chunk, groups = target_groups(a->limit);
    unsigned walks = blocks_for(chunks, block.y) * (unsigned)a->tiles, searches = blocks_for(groups + 1, block.x * block.y);
    prepare_kernel<T, C, N><<<walks + searches, block, 0, stream_of(call)>>>(*a, begin, walks);
    fresh_kernel<T, Y, C, N><<<blocks_for(groups, block.y) * (unsigned)a->tiles, block, 0, stream_of(call)>>>(*a, begin);
}

#endif
