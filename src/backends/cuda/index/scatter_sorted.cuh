/* scatter_sorted.cuh: y[target] += source[entry], with the entries sorted by target.
 *
 * An entry is what one index element moves: a slice of `columns` vectors (index_add), or one element of one of many
 * lines (scatter_add). Entries are sorted stably by target and split into chunks of a fixed length. A thread walks one
 * column of one chunk. Runs of one target within the chunk are added to y directly, in order; a run that crosses a
 * chunk's end leaves its sums in `partials`, and the thread of the chunk it began in adds those up, in order. A target
 * named a hundred thousand times costs no more than as many different ones, and the order of sums depends on the
 * indices alone. */
#ifndef TARN__CUDA_SCATTER_SORTED_CUH
#define TARN__CUDA_SCATTER_SORTED_CUH

#include "backends/cuda/common/lines.cuh"

#define BATCH 4 /* entries whose loads are in flight */
#define MAX_SMALL ((int64_t)1 << 31)

/* Arguments of all scatter kernels. */
struct add_args {
    void *y;
    const void *source, *index;
    tarn_dtype y_dtype, source_dtype;
    int is_long;
    int64_t count;                      /* entries */
    int64_t limit, y_step, source_step; /* along the axis */
    int64_t index_step, length;         /* of the index along the axis */
    int64_t columns;                    /* vectors per slice */
    int tiles;                          /* blocks that the columns take */
    offset_calc<2> column_at;           /* y, source */
    bool is_lined;                      /* scatter_add: entry e is element e % length of line e / length */
    int64_t first_line;
    divider by_limit, by_length;
    offset_calc<3> line_at; /* y, index, source */
    /* key of an index outside the axis, larger than any other: line · limit + index */
    uint32_t none;
    uint32_t *keys, *positions;
    void *partials; /* (chunks, 2, columns · N): of the run that enters the chunk, and of the one that leaves it */
    int64_t chunk;  /* a power of 2 */
    fault_slot faults;
};

/* Offset of an entry's source, without its column. */
__device__ __forceinline__ int64_t source_offset(const add_args &a, uint32_t position)
{
    if (!a.is_lined)
        return (int64_t)position * a.source_step;
    int64_t offset[3];
    uint32_t line = divide_small(position, a.by_length);
    locate(a.line_at, a.first_line + line, offset);
    return offset[2] + (int64_t)(position - line * (uint32_t)a.length) * a.source_step;
}

/* Offset of a key's target, without its column. */
__device__ __forceinline__ int64_t target_offset(const add_args &a, uint32_t key)
{
    if (!a.is_lined)
        return (int64_t)key * a.y_step;
    int64_t offset[3];
    uint32_t line = divide_small(key, a.by_limit);
    locate(a.line_at, a.first_line + line, offset);
    return offset[0] + (int64_t)(key - line * (uint32_t)a.limit) * a.y_step;
}

/* Grid: an entry per thread. Bytes: the index read, 8 bytes written per entry. */
static __global__ void __launch_bounds__(THREADS) key_kernel(const __grid_constant__ add_args a)
{
    int64_t entry = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[3] = {0, 0, 0};
    if (entry >= a.count)
        return;
    uint32_t line = 0;
    if (a.is_lined) {
        line = divide_small((uint32_t)entry, a.by_length);
        locate(a.line_at, a.first_line + line, offset);
    }
    int64_t at = index_at(a.index, a.is_long, offset[1] + (entry - (int64_t)line * a.length) * a.index_step);
    bool is_good = (uint64_t)at < (uint64_t)a.limit;
    if (!is_good)
        report_fault(a.faults, at, a.limit);
    a.keys[entry] = is_good ? line * (uint32_t)a.limit + (uint32_t)at : a.none;
    a.positions[entry] = (uint32_t)entry;
}

/* The chunk and column of a thread. */
struct walk_pos {
    int64_t chunk, column, begin, end;
    uint32_t before, after; /* keys next to the chunk; `none` at the ends: no run crosses them */
};

/* False for threads without a chunk or column. */
__device__ __forceinline__ bool locate_walk(const add_args &a, walk_pos *w)
{
    w->chunk = (int64_t)(blockIdx.x / a.tiles) * blockDim.y + threadIdx.y;
    w->column = (int64_t)(blockIdx.x % a.tiles) * blockDim.x + threadIdx.x;
    w->begin = w->chunk * a.chunk;
    w->end = w->begin + a.chunk < a.count ? w->begin + a.chunk : a.count;
    if (w->begin >= w->end || w->column >= a.columns)
        return false;
    w->before = w->begin > 0 ? a.keys[w->begin - 1] : a.none;
    w->after = w->end < a.count ? a.keys[w->end] : a.none;
    return true;
}

template <typename C, int N>
__device__ __forceinline__ C *partial_at(const add_args &a, int64_t chunk, int side, int64_t column)
{
    return (C *)a.partials + ((chunk * 2 + side) * a.columns + column) * N;
}

/* Stores the sum of a run: to y if it is complete, else to the partial sums. */
template <typename Y, typename C, int N>
__device__ __forceinline__ void end_run(const add_args &a, const walk_pos &w, uint32_t key, int64_t column_offset,
                                        const C *sum)
{
    if (key == a.none)
        return;
    /* the run crosses a chunk boundary */
    if (key == w.before || key == w.after) {
        C *to = partial_at<C, N>(a, w.chunk, key == w.before ? 0 : 1, w.column);
#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = sum[i];
        return;
    }
    put<Y, N, C>::at(a.y, a.y_dtype, target_offset(a, key) + column_offset, sum);
}

/* Keys and positions of a batch; entries past the chunk have key `none`. */
__device__ __forceinline__ void load_entries(const add_args &a, const walk_pos &w, int64_t base, uint32_t *key,
                                             uint32_t *position)
{
#pragma unroll
    for (int u = 0; u < BATCH; u++) {
        bool is_valid = base + u < w.end;
        key[u] = is_valid ? a.keys[base + u] : a.none;
        position[u] = is_valid ? a.positions[base + u] : 0;
    }
}

/* Bytes: the source once, the targets read and written once. */
template <typename T, typename Y, typename C, int N>
static __global__ void __launch_bounds__(THREADS) walk_kernel(const __grid_constant__ add_args a)
{
    walk_pos w;
    if (!locate_walk(a, &w))
        return;
    int64_t column[2];
    locate(a.column_at, w.column, column);
    uint32_t open = a.none; /* key of the run that `sum` belongs to */
    uint32_t next_key[BATCH], next_position[BATCH];
    C sum[N];
    load_entries(a, w, w.begin, next_key, next_position);
    for (int64_t base = w.begin; base < w.end; base += BATCH) {
        uint32_t key[BATCH], position[BATCH], previous = base > w.begin ? open : w.before;
        raw<T, N, C> x[BATCH];
        raw<Y, N, C> y[BATCH];
        bool is_new[BATCH], is_complete[BATCH]; /* a run begins here; its sum starts from y */
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            key[u] = next_key[u];
            position[u] = next_position[u];
        }
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            is_new[u] = key[u] != (u > 0 ? key[u - 1] : previous);
            is_complete[u] = is_new[u] && key[u] != w.after;
            if (key[u] == a.none)
                continue;
            x[u].load(a.source, a.source_dtype, source_offset(a, position[u]) + column[1]);
            if (is_complete[u])
                y[u].load(a.y, a.y_dtype, target_offset(a, key[u]) + column[0]);
        }
        load_entries(a, w, base + BATCH, next_key, next_position); /* in flight while this batch's rows arrive */
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            if (key[u] == a.none)
                break; /* only such keys follow */
            if (is_new[u] || open == a.none) {
                end_run<Y, C, N>(a, w, open, column[0], sum);
                open = key[u];
#pragma unroll
                for (int i = 0; i < N; i++)
                    sum[i] = is_complete[u] ? y[u].get(i) : (C)0;
            }
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += x[u].get(i);
        }
    }
    end_run<Y, C, N>(a, w, open, column[0], sum);
}

/* Type that partial sums are added in. */
template <typename C> struct total_of {
    typedef C type;
};
template <> struct total_of<float> {
    typedef double type;
};

/* Adds up the partial sums of the run that leaves this chunk, if it began here. */
template <typename Y, typename C, int N>
static __global__ void __launch_bounds__(THREADS) join_kernel(const __grid_constant__ add_args a)
{
    typedef typename total_of<C>::type D;
    walk_pos w;
    if (!locate_walk(a, &w))
        return;
    /* only the thread whose chunk the run began in */
    uint32_t key = a.keys[w.end - 1];
    if (key == a.none || key != w.after || key == w.before)
        return;
    int64_t column[2], chunks = (a.count + a.chunk - 1) / a.chunk;
    locate(a.column_at, w.column, column);
    int64_t to = target_offset(a, key) + column[0];
    raw<Y, N, C> y;
    y.load(a.y, a.y_dtype, to);
    const C *first = partial_at<C, N>(a, w.chunk, 1, w.column);
    D sum[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = (D)y.get(i) + (D)first[i];
    bool continues = true;
    for (int64_t next = w.chunk + 1; continues; next += BATCH) {
        vec<C, N> part[BATCH];
        bool is_part[BATCH];
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            is_part[u] = next + u < chunks && a.keys[(next + u) * a.chunk] == key;
            const C *from = partial_at<C, N>(a, next + u, 0, w.column);
#pragma unroll
            for (int i = 0; i < N; i++)
                part[u].at[i] = is_part[u] ? from[i] : (C)0;
        }
#pragma unroll
        for (int u = 0; u < BATCH; u++)
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += (D)part[u].at[i];
        continues = is_part[BATCH - 1];
    }
    C result[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        result[i] = (C)sum[i];
    put<Y, N, C>::at(a.y, a.y_dtype, to, result);
}

/* Blocks of about 256 threads: as wide as the columns, and as many rows of threads as fit. */
static inline dim3 walk_block(add_args *a)
{
    /* powers of 2 up to a warp, then whole warps */
    int width = 1;
    while (width < a->columns && width < 32)
        width *= 2;
    if (a->columns > 32)
        width = a->columns < THREADS ? (int)((a->columns + 31) / 32 * 32) : THREADS;
    a->tiles = (int)((a->columns + width - 1) / width);
    return dim3((unsigned)width, (unsigned)(THREADS / width));
}

/* Grid: a chunk per row of a block. */
template <typename T, typename Y, typename C, int N> static void launch_walk(const tarn__call *call, add_args *a)
{
    int64_t chunks = (a->count + a->chunk - 1) / a->chunk;
    dim3 block = walk_block(a);
    unsigned blocks = blocks_for(chunks, block.y) * (unsigned)a->tiles;
    walk_kernel<T, Y, C, N><<<blocks, block, 0, stream_of(call)>>>(*a);
    if (chunks > 1)
        join_kernel<Y, C, N><<<blocks, block, 0, stream_of(call)>>>(*a);
}

#endif
