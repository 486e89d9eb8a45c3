/* scatter.cu: scatter_add and index_add.
 *
 * Deterministic: the terms of one element are added in the order of the source, or in an order fixed by the indices and
 * the shape. 16-bit floats are summed in f32 and rounded once. No atomics.
 *
 * index_add of few slices: a block per slice looks for others with the same target (one launch). scatter_add along a
 * short axis: a thread, or a block, per line. Everything else is sorted by target first: scatter_sorted.cuh, and
 * scatter_fresh.cuh if y's old values do not count. */
#include <cub/device/device_radix_sort.cuh>

#include "backends/cuda/index/scatter_fresh.cuh"

#define MAX_FEW_SLICES 1024 /* up to here index_add compares indices instead of sorting them */
#define MAX_THREAD_LINE 8   /* up to here a thread per line of scatter_add */
#define MAX_BLOCK_LINE 2048 /* up to here a block can */
#define BLOCK_LINE 512      /* and up to here it is fast for any number of lines */
#define FEW_LINES 256
#define MIN_CHUNK 32
#define SCATTER_MAX_CHUNKS 8192

/* ---- few slices -------------------------------------------------------------------------------------------------- */

/* The block of a target's first slice adds all of them, in order; the blocks of the others return. */
template <typename T, typename Y, typename C, int N>
static __global__ void __launch_bounds__(THREADS) few_kernel(const __grid_constant__ add_args a)
{
    __shared__ int found[THREADS], counts[THREADS / WARP];
    int entry = (int)(blockIdx.x / a.tiles), count = (int)a.count, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t key = index_at(a.index, a.is_long, entry * a.index_step), offset2[2] = {0, 0};
    if ((uint64_t)key >= (uint64_t)a.limit) {
        if (threadIdx.x == 0)
            report_fault(a.faults, key, a.limit);
        return;
    }
    bool is_later = false;
    for (int j = threadIdx.x; j < entry; j += THREADS)
        is_later = is_later || index_at(a.index, a.is_long, j * a.index_step) == key;
    /* an earlier slice has this target: its block adds this one, too */
    if (__syncthreads_or(is_later))
        return;
    int64_t column = (int64_t)(blockIdx.x % a.tiles) * THREADS + threadIdx.x;
    bool has_column = column < a.columns;
    C sum[N];
    if (has_column) {
        raw<Y, N, C> y;
        locate(a.column_at, column, offset2);
        y.load(a.y, a.y_dtype, key * a.y_step + offset2[0]);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] = y.get(i);
    }
    for (int base = entry; base < count; base += THREADS) {
        int j = base + (int)threadIdx.x, before = 0, total = 0;
        bool is_same = j < count && index_at(a.index, a.is_long, j * a.index_step) == key;
        /* compact the matching slices, in order */
        unsigned same = __ballot_sync(FULL_WARP, is_same);
        if (lane == 0)
            counts[warp] = __popc(same);
        __syncthreads();
        for (int k = 0; k < THREADS / WARP; k++) {
            before += k < warp ? counts[k] : 0;
            total += counts[k];
        }
        if (is_same)
            found[before + __popc(same & ((1u << lane) - 1))] = j;
        __syncthreads();
        for (int first = 0; has_column && first < total; first += BATCH) {
            raw<T, N, C> x[BATCH];
#pragma unroll
            for (int u = 0; u < BATCH; u++)
                if (first + u < total)
                    x[u].load(a.source, a.source_dtype, found[first + u] * a.source_step + offset2[1]);
#pragma unroll
            for (int u = 0; u < BATCH; u++)
                if (first + u < total)
#pragma unroll
                    for (int i = 0; i < N; i++)
                        sum[i] += x[u].get(i);
        }
        __syncthreads();
    }
    if (has_column)
        put<Y, N, C>::at(a.y, a.y_dtype, key * a.y_step + offset2[0], sum);
}

/* ---- lines of scatter_add ---------------------------------------------------------------------------------------- */

/* A thread per line. Elements with the same target are found by comparing. */
template <typename C>
static __global__ void __launch_bounds__(THREADS) thread_line_kernel(const __grid_constant__ add_args a, int64_t lines)
{
    int64_t line = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[3];
    if (line >= lines)
        return;
    locate(a.line_at, line, offset);
    for (int64_t k = 0; k < a.length; k++) {
        int64_t at = index_at(a.index, a.is_long, offset[1] + k * a.index_step);
        if ((uint64_t)at >= (uint64_t)a.limit) {
            report_fault(a.faults, at, a.limit);
            continue;
        }
        /* a target is handled at its first element */
        bool is_done = false;
        for (int64_t j = 0; j < k && !is_done; j++)
            is_done = index_at(a.index, a.is_long, offset[1] + j * a.index_step) == at;
        if (is_done)
            continue;
        int64_t to = offset[0] + at * a.y_step;
        C sum = load_any<C>(a.y, a.y_dtype, to);
        for (int64_t j = k; j < a.length; j++)
            if (index_at(a.index, a.is_long, offset[1] + j * a.index_step) == at)
                sum += load_any<C>(a.source, a.source_dtype, offset[2] + j * a.source_step);
        store_any(a.y, a.y_dtype, to, sum);
    }
}

/* A block per line, which is staged in shared memory; valid indices are below 2^31. */
template <typename C>
static __global__ void __launch_bounds__(THREADS) block_line_kernel(const __grid_constant__ add_args a)
{
    __shared__ uint32_t target[MAX_BLOCK_LINE];
    __shared__ C value[MAX_BLOCK_LINE];
    const uint32_t none = 0xffffffffu;
    int length = (int)a.length;
    int64_t offset[3];
    locate(a.line_at, blockIdx.x, offset);
    for (int k = threadIdx.x; k < length; k += THREADS) {
        int64_t at = index_at(a.index, a.is_long, offset[1] + k * a.index_step);
        bool is_good = (uint64_t)at < (uint64_t)a.limit;
        if (!is_good)
            report_fault(a.faults, at, a.limit);
        target[k] = is_good ? (uint32_t)at : none;
        value[k] = load_any<C>(a.source, a.source_dtype, offset[2] + k * a.source_step);
    }
    __syncthreads();
    for (int k = threadIdx.x; k < length; k += THREADS) {
        uint32_t own = target[k];
        /* a target is handled at its first element */
        bool is_done = own == none;
        for (int j = 0; j < k && !is_done; j++)
            is_done = target[j] == own;
        if (is_done)
            continue;
        int64_t to = offset[0] + (int64_t)own * a.y_step;
        C sum = load_any<C>(a.y, a.y_dtype, to);
        for (int j = k; j < length; j++)
            if (target[j] == own)
                sum += value[j];
        store_any(a.y, a.y_dtype, to, sum);
    }
}

/* ---- planning ---------------------------------------------------------------------------------------------------- */

typedef enum method { NOTHING, FEW, THREAD_LINES, BLOCK_LINES, SORTED } method;

/* How a call runs: from its shapes alone. The job of both kernels. */
typedef struct add_plan {
    method method;
    tarn__nest columns; /* index_add: y and source across the axis */
    tarn__nest lines;   /* scatter_add: y, index and source across the axis */
    int64_t length, limit;
    int64_t group; /* lines sorted together: as many as 31 bits can tell apart */
    int64_t entries, chunk;
    size_t keys_bytes, partial_bytes, begin_bytes; /* begin: start of each target's entries, see scatter_fresh.cuh */
} add_plan;

/* Bytes of a partial sum. */
static size_t compute_bytes(tarn_dtype dtype)
{
    return dtype == TARN_F32 || dtype == TARN_BF16 || dtype == TARN_F16 ? 4 : 8;
}

/* Chunks of a power of 2, at most SCATTER_MAX_CHUNKS. */
static void plan_sorted(add_plan *p, int64_t entries, int64_t columns, tarn_dtype dtype)
{
    p->method = SORTED;
    p->entries = entries;
    p->chunk = MIN_CHUNK;
    while (entries / p->chunk > SCATTER_MAX_CHUNKS)
        p->chunk *= 2;
    int64_t chunks = (entries + p->chunk - 1) / p->chunk;
    p->keys_bytes = tarn__cuda_align(sizeof(uint32_t) * (size_t)entries);
    p->partial_bytes = tarn__cuda_align(compute_bytes(dtype) * (size_t)(2 * chunks * columns));
}

/* scatter_add: lines are independent. */
static void plan_lines(add_plan *p, const tarn__view *index, const tarn__view *source, const tarn__view *y, int axis)
{
    tarn__view rest[] = {tarn__view_across(y, axis, index), tarn__view_across(index, axis, index),
                         tarn__view_across(source, axis, index)};
    const tarn__view *views[] = {&rest[0], &rest[1], &rest[2]};
    tarn__nest_make(&p->lines, 3, views);
    p->length = tarn__axis_size(index, axis);
    p->limit = tarn__axis_size(y, axis);
    int64_t lines = p->lines.count, longer = p->length > p->limit ? p->length : p->limit;
    if (lines * p->length == 0) {
        p->method = NOTHING;
    } else if (p->length <= MAX_THREAD_LINE || longer >= MAX_SMALL) {
        p->method = THREAD_LINES;
    } else if (p->length <= BLOCK_LINE || (p->length <= MAX_BLOCK_LINE && lines <= FEW_LINES)) {
        p->method = BLOCK_LINES;
    } else {
        p->group = (MAX_SMALL - 1) / longer < lines ? (MAX_SMALL - 1) / longer : lines;
        plan_sorted(p, p->group * p->length, 1, y->dtype);
    }
}

/* index_add: one index per slice. Too many slices for 31-bit keys fall back to lines. */
static void plan_slices(add_plan *p, const tarn__call *call)
{
    const tarn__view *index = call->in[0], *source = call->in[1], *y = call->out[0];
    int axis = ((const tarn__along *)call->params)->axis;
    tarn__view rest[] = {tarn__view_across(y, axis, y), tarn__view_across(source, axis, y)};
    const tarn__view *views[] = {&rest[0], &rest[1]};
    tarn__nest_make(&p->columns, 2, views);
    p->length = index->shape[0];
    p->limit = y->shape[axis];
    if (p->length * p->columns.count == 0) {
        p->method = NOTHING;
    } else if (p->length <= MAX_FEW_SLICES && p->length * ((p->columns.count + THREADS - 1) / THREADS) < MAX_SMALL) {
        p->method = FEW;
    } else if (p->length >= MAX_SMALL || p->limit >= MAX_SMALL) {
        tarn__view repeated = tarn__view_repeated(index, source, axis);
        plan_lines(p, &repeated, source, y, axis);
    } else {
        plan_sorted(p, p->length, p->columns.count, y->dtype);
        if (!(call->reads_output & 1)) {
            /* fewer chunks than the partial sums have space for */
            p->chunk = p->chunk > MIN_FRESH_CHUNK ? p->chunk : MIN_FRESH_CHUNK;
            p->begin_bytes = tarn__cuda_align(sizeof(uint32_t) * (size_t)(p->limit + 1));
        }
    }
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Keys and positions, twice; partial sums; starts; and the sort's own scratch at the end. */
static size_t scratch_of(const tarn__call *call, const add_plan *p)
{
    if (p->method != SORTED)
        return 0;
    size_t sort_bytes = 0;
    cub::DoubleBuffer<uint32_t> none;
    tarn__cuda_at(call->device);
    cub::DeviceRadixSort::SortPairs(NULL, sort_bytes, none, none, (int)p->entries, 0, 32, stream_of(call));
    return 4 * p->keys_bytes + p->partial_bytes + p->begin_bytes + tarn__cuda_align(sort_bytes);
}

static tarn__plan_status prepare_scatter_add(const tarn__call *call, tarn__plan *plan)
{
    add_plan *p = reserve_job<add_plan>(plan);
    if (!p)
        return TARN__PLAN_FAILED;
    *p = add_plan();
    plan_lines(p, call->in[0], call->in[1], call->out[0], ((const tarn__along *)call->params)->axis);
    plan->scratch_bytes = scratch_of(call, p);
    return TARN__PLAN_READY;
}

static tarn__plan_status prepare_index_add(const tarn__call *call, tarn__plan *plan)
{
    add_plan *p = reserve_job<add_plan>(plan);
    if (!p)
        return TARN__PLAN_FAILED;
    *p = add_plan();
    plan_slices(p, call);
    plan->scratch_bytes = scratch_of(call, p);
    return TARN__PLAN_READY;
}

/* Computes keys and sorts them with their positions (CUB radix sort): 3 launches up to about 4,000 entries, some 8
 * beyond. */
static void sort_entries(const tarn__call *call, const add_plan *p, add_args *a, int64_t lines)
{
    char *scratch = (char *)call->scratch;
    uint32_t *buffers[4];
    for (int i = 0; i < 4; i++)
        buffers[i] = (uint32_t *)(scratch + (size_t)i * p->keys_bytes);
    a->keys = buffers[0];
    a->positions = buffers[2];
    a->partials = scratch + 4 * p->keys_bytes;
    a->none = (uint32_t)(lines * a->limit);
    key_kernel<<<blocks_for(a->count, THREADS), THREADS, 0, stream_of(call)>>>(*a);
    size_t used = 4 * p->keys_bytes + p->partial_bytes + p->begin_bytes, left = call->scratch_bytes - used;
    cub::DoubleBuffer<uint32_t> keys(buffers[0], buffers[1]), positions(buffers[2], buffers[3]);
    /* sort only the bits that keys can have */
    int bits = 1;
    while (a->none >> bits)
        bits++;
    cub::DeviceRadixSort::SortPairs(scratch + used, left, keys, positions, (int)a->count, 0, bits, stream_of(call));
    a->keys = keys.Current();
    a->positions = positions.Current();
}

/* Common arguments; columns and lines are filled in by the callers. */
static add_args args_of(const tarn__call *call, const add_plan *p)
{
    const tarn__view *index = call->in[0], *source = call->in[1], *y = call->out[0];
    int axis = ((const tarn__along *)call->params)->axis;
    add_args a = {};
    a.y = tarn__view_at(y);
    a.y_dtype = y->dtype;
    a.source = tarn__view_at(source);
    a.source_dtype = source->dtype;
    a.index = tarn__view_at(index);
    a.is_long = index->dtype == TARN_I64;
    a.limit = p->limit;
    a.length = p->length;
    a.count = p->length;
    a.y_step = tarn__axis_stride(y, axis);
    a.source_step = tarn__axis_stride(source, axis);
    a.columns = 1;
    a.chunk = p->chunk;
    a.faults = faults_of(call);
    return a;
}

/* Slices, in vectors of N if possible. `is_fresh`: y has no old values, and entries are sorted. */
template <typename T, typename Y, typename C, int N>
static bool add_slices(const tarn__call *call, const add_plan *p, add_args a, bool is_fresh)
{
    tarn__nest nest = p->columns;
    int last = nest.rank - 1;
    if (N > 1) {
        if (!can_vectorize_axis(&nest, 0, a.y, sizeof(Y), N) || !can_vectorize_axis(&nest, 1, a.source, sizeof(T), N) ||
            a.y_step % N || a.source_step % N)
            return false;
        nest.shape[last] /= N;
        nest.count /= N;
        nest.stride[0][last] = nest.stride[1][last] = N;
    }
    a.columns = nest.count;
    a.column_at = offset_calc_of<2>(&nest);
    a.index_step = call->in[0]->stride[0];
    if (p->method == FEW) {
        a.tiles = (int)((a.columns + THREADS - 1) / THREADS);
        few_kernel<T, Y, C, N><<<(unsigned)(a.count * a.tiles), THREADS, 0, stream_of(call)>>>(a);
    } else {
        sort_entries(call, p, &a, 1);
        if constexpr (N > 1) {
            if (is_fresh) {
                launch_fresh<T, Y, C, N>(call, &a, (uint32_t *)((char *)a.partials + p->partial_bytes));
                return true;
            }
        }
        launch_walk<T, Y, C, N>(call, &a);
    }
    return true;
}

/* False for rare dtypes or layouts. */
static bool run_packed_slices(const tarn__call *call, const add_plan *p, bool is_fresh)
{
    add_args a = args_of(call, p);
    tarn_dtype from = call->in[1]->dtype, to = call->out[0]->dtype;
    return from == TARN_F32 && to == TARN_F32     ? add_slices<float, float, float, 4>(call, p, a, is_fresh)
           : from == TARN_BF16 && to == TARN_F32  ? add_slices<bf16, float, float, 8>(call, p, a, is_fresh)
           : from == TARN_F16 && to == TARN_F32   ? add_slices<f16, float, float, 8>(call, p, a, is_fresh)
           : from == TARN_BF16 && to == TARN_BF16 ? add_slices<bf16, bf16, float, 8>(call, p, a, is_fresh)
           : from == TARN_F16 && to == TARN_F16   ? add_slices<f16, f16, float, 8>(call, p, a, is_fresh)
                                                  : false;
}

/* Vectors, else one by one in the target's compute type. */
static void run_slices(const tarn__call *call, const add_plan *p)
{
    tarn_dtype to = call->out[0]->dtype;
    if (run_packed_slices(call, p, false))
        return;
    add_args a = args_of(call, p);
    if (to == TARN_F64)
        add_slices<mixed, mixed, double, 1>(call, p, a, false);
    else if (tarn__is_float(to))
        add_slices<mixed, mixed, float, 1>(call, p, a, false);
    else
        add_slices<mixed, mixed, int64_t, 1>(call, p, a, false);
}

/* Sorted lines go in groups whose keys fit 31 bits. */
template <typename C> static void add_lines(const tarn__call *call, const add_plan *p, add_args a)
{
    int64_t lines = p->lines.count;
    a.is_lined = true;
    a.line_at = offset_calc_of<3>(&p->lines);
    if (p->method == THREAD_LINES) {
        thread_line_kernel<C><<<blocks_for(lines, THREADS), THREADS, 0, stream_of(call)>>>(a, lines);
        return;
    }
    if (p->method == BLOCK_LINES) {
        block_line_kernel<C><<<(unsigned)lines, THREADS, 0, stream_of(call)>>>(a);
        return;
    }
    a.by_limit = divider_of(a.limit);
    a.by_length = divider_of(a.length);
    for (a.first_line = 0; a.first_line < lines; a.first_line += p->group) {
        int64_t here = lines - a.first_line < p->group ? lines - a.first_line : p->group;
        a.count = here * a.length;
        sort_entries(call, p, &a, here);
        launch_walk<mixed, mixed, C, 1>(call, &a);
    }
}

/* Sums in f64 for f64, i64 for integers, else f32. */
static void run_lines(const tarn__call *call, const add_plan *p, int64_t index_step)
{
    add_args a = args_of(call, p);
    a.index_step = index_step;
    if (a.y_dtype == TARN_F64)
        add_lines<double>(call, p, a);
    else if (tarn__is_float(a.y_dtype))
        add_lines<float>(call, p, a);
    else
        add_lines<int64_t>(call, p, a);
}

static void run_scatter_add(const tarn__call *call)
{
    const add_plan *p = job_of<add_plan>(call);
    if (p->method != NOTHING)
        run_lines(call, p, tarn__axis_stride(call->in[0], ((const tarn__along *)call->params)->axis));
}

/* Zeroes y: no old values, and the kernels below add to it. */
static void clear(const tarn__call *call)
{
    tarn__fill zero = {};
    tarn__call part = *call;
    part.inputs = 0;
    part.params = &zero;
    part.params_bytes = sizeof(zero);
    tarn__cuda_rows()[TARN__K_fill].run(&part);
}

/* reads_output tells whether y's old values count. */
static void run_index_add(const tarn__call *call)
{
    const add_plan *p = job_of<add_plan>(call);
    if (!(call->reads_output & 1)) {
        if (p->method == SORTED && p->lines.count == 0 && run_packed_slices(call, p, true))
            return;
        clear(call);
    }
    if (p->method == FEW || (p->method == SORTED && p->lines.count == 0))
        run_slices(call, p);
    else if (p->method != NOTHING)
        run_lines(call, p, call->in[0]->stride[0]);
}

void tarn__cuda_register_scatter(tarn__kernel_row *rows)
{
    rows[TARN__K_scatter_add] = tarn__row_planned(prepare_scatter_add, run_scatter_add, TARN__INDEXES);
    rows[TARN__K_index_add] = tarn__row_planned(prepare_index_add, run_index_add, TARN__INDEXES);
}
