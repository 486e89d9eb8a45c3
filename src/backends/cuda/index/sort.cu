/* sort.cu: sort and topk along an axis.
 *
 * Elements become unsigned keys in the requested order: NaN the largest, -0 and 0 equal, all bits flipped for
 * descending. A key and the element's position in its line form an entry; no two are equal, so any correct sort is
 * stable. Values are fetched by position, so their bits are preserved.
 *
 * A tile of a line is sorted in shared memory (bitonic); a line of one tile is done. Longer ones are merged: each
 * launch merges runs in pairs, where an entry's rank in the new run is its own plus the number of smaller entries in
 * the other. Only the first k of each run are kept, so topk does little after the first step. */
#include "backends/cuda/common/lines.cuh"

#define SORT_THREADS 512 /* per block */
#define TILE_BYTES 32768
#define MIN_TILE 1024 /* entries per block: several lines if they are short */

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* How a dtype's bits become a key. */
struct order {
    int size;          /* bytes */
    uint64_t sign;     /* the sign bit; 0: unsigned */
    uint64_t infinity; /* bits of infinity, 0 for integers: above it is NaN */
    uint64_t flip;     /* all bits of the dtype for descending, else 0 */
};

/* Every dtype is sorted as unsigned integers of its size. */
static order order_of(tarn_dtype dtype, bool is_descending)
{
    order o = {};
    o.size = (int)tarn__dtype_bytes(dtype);
    uint64_t all = UINT64_MAX >> (64 - 8 * o.size);
    o.sign = dtype == TARN_U8 || dtype == TARN_BOOL ? 0 : all / 2 + 1;
    o.infinity = dtype == TARN_F32    ? 0x7f800000u
                 : dtype == TARN_F64  ? UINT64_C(0x7ff0000000000000)
                 : dtype == TARN_BF16 ? 0x7f80u
                 : dtype == TARN_F16  ? 0x7c00u
                                      : 0;
    o.flip = is_descending ? all : 0;
    return o;
}

/* Bits of an element of `size` bytes. */
__device__ __forceinline__ uint64_t bits_at(const void *base, int size, int64_t at)
{
    switch (size) {
    case 4: return ((const uint32_t *)base)[at];
    case 2: return ((const uint16_t *)base)[at];
    case 8: return ((const uint64_t *)base)[at];
    default: return ((const uint8_t *)base)[at];
    }
}

/* Negative floats decrease with their bits, so those are flipped; everything else moves above them. */
__device__ __forceinline__ uint64_t key_of(const order &o, uint64_t bits)
{
    if (o.infinity) {
        uint64_t size = bits & (o.sign - 1);
        if (size > o.infinity)
            return (o.sign | (o.sign - 1)) ^ o.flip;
        if (size == 0)
            return o.sign ^ o.flip;
        if (bits & o.sign)
            return (~bits & (o.sign | (o.sign - 1))) ^ o.flip;
    }
    return (bits ^ o.sign) ^ o.flip;
}

/* ---- entries: key and position, in 8 bytes for keys of up to 4, else in 16 --------------------------------------- */

typedef uint64_t short_entry;
struct alignas(16) long_entry {
    uint64_t key, position;
};

template <typename E> __device__ __forceinline__ E entry_of(uint64_t key, uint32_t position);
template <> __device__ __forceinline__ short_entry entry_of(uint64_t key, uint32_t position)
{
    return key << 32 | position;
}
template <> __device__ __forceinline__ long_entry entry_of(uint64_t key, uint32_t position)
{
    return long_entry{key, position};
}

__device__ __forceinline__ bool is_before(short_entry a, short_entry b)
{
    return a < b;
}
__device__ __forceinline__ bool is_before(const long_entry &a, const long_entry &b)
{
    return a.key < b.key || (a.key == b.key && a.position < b.position);
}

__device__ __forceinline__ int64_t position_of(short_entry a)
{
    return (int64_t)(uint32_t)a;
}
__device__ __forceinline__ int64_t position_of(const long_entry &a)
{
    return (int64_t)a.position;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Kernel arguments; `from` and `to` alternate between two buffers. */
struct sort_args {
    const void *x;
    void *values;     /* NULL: not needed */
    int64_t *indices; /* NULL: not needed */
    order order;
    int64_t lines, length, keep; /* elements of a line, and of its result */
    int64_t x_step, values_step, indices_step;
    int64_t span, tiles;  /* elements that a run covers, runs per line */
    int64_t line_entries; /* entries of a line in the buffers */
    int padded, together; /* tile size as a power of two, and tiles per block */
    bool is_last;         /* results are written instead of a run */
    const void *from;     /* runs; min(keep, span) apart within a line */
    void *to;
    offset_calc<3> offsets; /* x, values, indices across the axis */
};

/* Entry `rank` of a line's result. */
template <typename E>
__device__ __forceinline__ void write_result(const sort_args &a, int64_t line, int64_t rank, const E &entry)
{
    int64_t offset[3], position = position_of(entry);
    locate(a.offsets, line, offset);
    if (a.indices)
        a.indices[offset[2] + rank * a.indices_step] = position;
    if (!a.values)
        return;
    int64_t from = offset[0] + position * a.x_step, to = offset[1] + rank * a.values_step;
    switch (a.order.size) {
    case 4: ((uint32_t *)a.values)[to] = ((const uint32_t *)a.x)[from]; break;
    case 2: ((uint16_t *)a.values)[to] = ((const uint16_t *)a.x)[from]; break;
    case 8: ((uint64_t *)a.values)[to] = ((const uint64_t *)a.x)[from]; break;
    default: ((uint8_t *)a.values)[to] = ((const uint8_t *)a.x)[from]; break;
    }
}

/* Bitonic sort of every `padded` adjacent entries of `count`; both are powers of two. */
template <typename E> __device__ __forceinline__ void sort_tiles(E *entries, int count, int padded)
{
    for (int size = 2; size <= padded; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int pair = threadIdx.x; pair < count / 2; pair += SORT_THREADS) {
                int low = 2 * pair - (pair & (step - 1)), high = low + step;
                /* bitonic: the direction alternates between halves */
                bool is_rising = (low & (padded - 1) & size) == 0;
                E a = entries[low], b = entries[high];
                if (is_before(b, a) == is_rising) {
                    entries[low] = b;
                    entries[high] = a;
                }
            }
        }
    __syncthreads();
}

/* Bytes: x read once, the kept part of each tile written. Padding sorts after every element. */
template <typename E>
static __global__ void __launch_bounds__(SORT_THREADS) tile_kernel(const __grid_constant__ sort_args a)
{
    __shared__ E entries[TILE_BYTES / sizeof(E)];
    int count = a.padded * a.together;
    /* tiles of all lines, line by line */
    int64_t first = (int64_t)blockIdx.x * a.together, all = a.lines * a.tiles;
    int64_t apart = a.keep < a.span ? a.keep : a.span;
    for (int i = threadIdx.x; i < count; i += SORT_THREADS) {
        int64_t tile = first + i / a.padded, line = tile / a.tiles, at = tile % a.tiles * a.span + i % a.padded,
                offset[3];
        bool is_valid = tile < all && i % a.padded < a.span && at < a.length;
        if (is_valid)
            locate(a.offsets, line, offset);
        entries[i] =
            is_valid ? entry_of<E>(key_of(a.order, bits_at(a.x, a.order.size, offset[0] + at * a.x_step)), (uint32_t)at)
                     : entry_of<E>(UINT64_MAX, UINT32_MAX);
    }
    sort_tiles(entries, count, a.padded);
    for (int i = threadIdx.x; i < count; i += SORT_THREADS) {
        int64_t tile = first + i / a.padded, line = tile / a.tiles, run = tile % a.tiles, rank = i % a.padded;
        int64_t left = a.length - run * a.span, run_length = left < apart ? left : apart;
        if (tile >= all || rank >= run_length)
            continue;
        if (a.is_last)
            write_result(a, line, rank, entries[i]);
        else
            ((E *)a.to)[line * a.line_entries + run * apart + rank] = entries[i];
    }
}

/* Entries in run `run`, at most `apart`. */
__device__ __forceinline__ int64_t run_size(const sort_args &a, int64_t run, int64_t apart)
{
    int64_t left = a.length - run * a.span;
    return left < 0 ? 0 : left < apart ? left : apart;
}

/* Merges runs in pairs. Grid: an entry per thread; each reads and writes one, after a binary search in the other
 * run. */
template <typename E>
static __global__ void __launch_bounds__(THREADS) merge_kernel(const __grid_constant__ sort_args a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, apart = a.keep < a.span ? a.keep : a.span;
    int64_t line = at / (a.tiles * apart), run = at / apart % a.tiles, rank = at % apart, other = run ^ 1;
    if (line >= a.lines || rank >= run_size(a, run, apart))
        return;
    const E *runs = (const E *)a.from + line * a.line_entries;
    E own = runs[run * apart + rank];
    int64_t low = 0, high = run_size(a, other, apart), wide = a.keep < 2 * a.span ? a.keep : 2 * a.span;
    /* entries of the other run before this one */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (is_before(runs[other * apart + middle], own))
            low = middle + 1;
        else
            high = middle;
    }
    /* rank in the merged run */
    rank += low;
    if (rank >= wide)
        return;
    if (a.is_last)
        write_result(a, line, rank, own);
    else
        ((E *)a.to)[line * a.line_entries + run / 2 * wide + rank] = own;
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* k of topk; the whole line for sort. Either output may be NULL. */
static int64_t keep_of(const tarn__call *call)
{
    return tarn__axis_size(call->out[0] ? call->out[0] : call->out[1], ((const tarn__along *)call->params)->axis);
}

/* Tiles of a line, what is kept of them, and tiles per block; no addresses. */
template <typename E> static sort_args shape_of(const tarn__call *call)
{
    sort_args a = {};
    int64_t max_span = (int64_t)(TILE_BYTES / sizeof(E));
    a.length = tarn__axis_size(call->in[0], ((const tarn__along *)call->params)->axis);
    a.keep = keep_of(call);
    a.lines = a.length > 0 ? tarn__view_count(call->in[0]) / a.length : 0;
    a.span = a.length < max_span ? a.length : max_span;
    a.tiles = a.span > 0 ? (a.length + a.span - 1) / a.span : 0;
    a.padded = 1;
    while (a.padded < a.span)
        a.padded *= 2;
    a.together = a.padded < MIN_TILE ? MIN_TILE / a.padded : 1;
    int64_t apart = a.keep < a.span ? a.keep : a.span, last_run = a.length - (a.tiles - 1) * a.span;
    a.line_entries = a.tiles > 1 ? (a.tiles - 1) * apart + (apart < last_run ? apart : last_run) : 0;
    return a;
}

template <typename E> static size_t runs_bytes(const sort_args *a)
{
    return tarn__cuda_align(sizeof(E) * (size_t)(a->lines * a->line_entries));
}

/* log2(tiles) merge launches after the first. */
template <typename E> static void start_sort(const tarn__call *call, sort_args a)
{
    E *runs[2] = {(E *)call->scratch, (E *)((char *)call->scratch + runs_bytes<E>(&a))};
    a.is_last = a.tiles == 1;
    a.to = runs[0];
    tile_kernel<E><<<blocks_for(a.lines * a.tiles, a.together), SORT_THREADS, 0, stream_of(call)>>>(a);
    for (int buffer = 0; a.tiles > 1; buffer ^= 1) {
        int64_t apart = a.keep < a.span ? a.keep : a.span;
        a.is_last = a.tiles == 2;
        a.from = runs[buffer];
        a.to = runs[buffer ^ 1];
        merge_kernel<E><<<blocks_for(a.lines * a.tiles * apart, THREADS), THREADS, 0, stream_of(call)>>>(a);
        a.span *= 2;
        a.tiles = (a.tiles + 1) / 2;
    }
}

/* topk sorts too, but keeps only its first k. */
template <typename E> static void sort_lines(const tarn__call *call)
{
    const tarn__along *along = (const tarn__along *)call->params;
    const tarn__view *x = call->in[0], *values = call->out[0], *indices = call->outputs > 1 ? call->out[1] : NULL;
    int axis = along->axis;
    sort_args a = *job_of<sort_args>(call);
    if (a.lines == 0 || a.keep == 0)
        return;
    a.x = tarn__view_at(x);
    a.values = data_of<void>(values);
    a.indices = data_of<int64_t>(indices);
    a.order = order_of(x->dtype, along->reverse != 0);
    a.x_step = tarn__axis_stride(x, axis);
    a.values_step = values ? tarn__axis_stride(values, axis) : 0;
    a.indices_step = indices ? tarn__axis_stride(indices, axis) : 0;
    tarn__view last_run[3] = {tarn__view_across(x, axis, x)};
    if (values)
        last_run[1] = tarn__view_across(values, axis, values);
    if (indices)
        last_run[2] = tarn__view_across(indices, axis, indices);
    const tarn__view *views[] = {&last_run[0], values ? &last_run[1] : NULL, indices ? &last_run[2] : NULL};
    tarn__nest nest;
    tarn__nest_make(&nest, 3, views);
    a.offsets = offset_calc_of<3>(&nest);
    start_sort<E>(call, a);
}

/* 8-byte dtypes need 16-byte entries. */
static bool is_long_key(const tarn__call *call)
{
    return tarn__dtype_bytes(call->in[0]->dtype) == 8;
}

/* Scratch: the sorted runs, twice. */
static tarn__plan_status prepare_sort(const tarn__call *call, tarn__plan *plan)
{
    sort_args *a = reserve_job<sort_args>(plan);
    if (!a)
        return TARN__PLAN_FAILED;
    *a = is_long_key(call) ? shape_of<long_entry>(call) : shape_of<short_entry>(call);
    plan->scratch_bytes = 2 * (is_long_key(call) ? runs_bytes<long_entry>(a) : runs_bytes<short_entry>(a));
    return TARN__PLAN_READY;
}

static void run_sort(const tarn__call *call)
{
    if (is_long_key(call))
        sort_lines<long_entry>(call);
    else
        sort_lines<short_entry>(call);
}

void tarn__cuda_register_sort(tarn__kernel_row *rows)
{
    rows[TARN__K_sort] = tarn__row_planned(prepare_sort, run_sort, TARN__ALL);
    rows[TARN__K_topk] = tarn__row_planned(prepare_sort, run_sort, TARN__ALL);
}
