/* scatter.cu: adding at indices: scatter_add and index_add.
 *
 * Sums have the same bits in every run: what goes to one element is added in the order of the source, or in an order
 * that the indices and the shape fix. 16-bit floats are summed in f32 and rounded once. No atomics.
 *
 * index_add of few slices: a block for each looks for others of the same target (one launch). scatter_add along a short
 * axis: a thread, or a block, for each line. Everything else is sorted by target first: see scatter_sorted.cuh, and
 * scatter_fresh.cuh for a y that has no old values. */
#include <cub/device/device_radix_sort.cuh>

#include "backends/cuda/index/scatter_fresh.cuh"

#define FEW_SLICES 1024 /* up to here index_add compares indices instead of sorting them */
#define FEW_ELEMENTS 8  /* up to here a thread takes a line of scatter_add */
#define LINE_MOST 2048  /* up to here a block can */
#define LINE_GOOD 512   /* and up to here it is quick enough for any number of lines */
#define LINES_FEW 256
#define CHUNK_LEAST 32
#define CHUNKS_MOST 8192

/* ---- few slices -------------------------------------------------------------------------------------------------- */

/* The block of the first slice that goes to a target adds all of them, in order; the blocks of the others end. */
template <typename T, typename Y, typename C, int N>
static __global__ void __launch_bounds__(THREADS) few_kernel(const __grid_constant__ add_args a)
{
    __shared__ int found[THREADS], counts[THREADS / WARP];
    int entry = (int)(blockIdx.x / a.tiles), count = (int)a.count, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t key = index_at(a.index, a.is_long, entry * a.index_step), place[2] = {0, 0};
    if ((uint64_t)key >= (uint64_t)a.limit) {
        if (threadIdx.x == 0)
            report_fault(a.faults, key, a.limit);
        return;
    }
    bool is_later = false;
    for (int j = threadIdx.x; j < entry; j += THREADS)
        is_later = is_later || index_at(a.index, a.is_long, j * a.index_step) == key;
    if (__syncthreads_or(is_later))
        return;
    int64_t column = (int64_t)(blockIdx.x % a.tiles) * THREADS + threadIdx.x;
    bool has_column = column < a.columns;
    C sum[N];
    if (has_column) {
        raw<Y, N, C> y;
        locate(a.column_at, column, place);
        y.load(a.y, a.y_dtype, key * a.y_step + place[0]);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] = y.get(i);
    }
    for (int base = entry; base < count; base += THREADS) {
        int j = base + (int)threadIdx.x, before = 0, total = 0;
        bool is_same = j < count && index_at(a.index, a.is_long, j * a.index_step) == key;
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
                    x[u].load(a.source, a.source_dtype, found[first + u] * a.source_step + place[1]);
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
        put<Y, N, C>::at(a.y, a.y_dtype, key * a.y_step + place[0], sum);
}

/* ---- lines of scatter_add ---------------------------------------------------------------------------------------- */

/* A thread a line. Elements of the same target are found by comparing. */
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

/* A block a line, which lies in shared memory: indices that are good are below 2^31. */
template <typename C>
static __global__ void __launch_bounds__(THREADS) block_line_kernel(const __grid_constant__ add_args a)
{
    __shared__ uint32_t target[LINE_MOST];
    __shared__ C value[LINE_MOST];
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

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

typedef enum way { NOTHING, FEW, THREAD_LINES, BLOCK_LINES, SORTED } way;

/* How a call is carried out: from its shapes alone. */
typedef struct add_plan {
    way way;
    tarn__nest columns; /* index_add: y and source across the axis */
    tarn__nest lines;   /* scatter_add: y, index and source across the axis */
    int64_t length, limit;
    int64_t group; /* lines that are sorted together: as many as 31 bits can tell apart */
    int64_t entries, chunk;
    size_t keys_bytes, partial_bytes, begin_bytes; /* begin: of targets' entries, see scatter_fresh.cuh */
} add_plan;

static size_t rounded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static size_t compute_bytes(tarn_dtype dtype)
{
    return dtype == TARN_F32 || dtype == TARN_BF16 || dtype == TARN_F16 ? 4 : 8;
}

static void plan_sorted(add_plan *p, int64_t entries, int64_t columns, tarn_dtype dtype)
{
    p->way = SORTED;
    p->entries = entries;
    p->chunk = CHUNK_LEAST;
    while (entries / p->chunk > CHUNKS_MOST)
        p->chunk *= 2;
    int64_t chunks = (entries + p->chunk - 1) / p->chunk;
    p->keys_bytes = rounded(sizeof(uint32_t) * (size_t)entries);
    p->partial_bytes = rounded(compute_bytes(dtype) * (size_t)(2 * chunks * columns));
}

static void plan_lines(add_plan *p, const tarn__view *index, const tarn__view *source, const tarn__view *y, int axis)
{
    tarn__view rest[] = {tarn__view_across(y, axis, index), tarn__view_across(index, axis, index),
                         tarn__view_across(source, axis, index)};
    const tarn__view *views[] = {&rest[0], &rest[1], &rest[2]};
    tarn__nest_make(&p->lines, 3, views);
    p->length = tarn__axis_size(index, axis);
    p->limit = tarn__axis_size(y, axis);
    int64_t lines = p->lines.count, wider = p->length > p->limit ? p->length : p->limit;
    if (lines * p->length == 0) {
        p->way = NOTHING;
    } else if (p->length <= FEW_ELEMENTS || wider >= MOST_SMALL) {
        p->way = THREAD_LINES;
    } else if (p->length <= LINE_GOOD || (p->length <= LINE_MOST && lines <= LINES_FEW)) {
        p->way = BLOCK_LINES;
    } else {
        p->group = (MOST_SMALL - 1) / wider < lines ? (MOST_SMALL - 1) / wider : lines;
        plan_sorted(p, p->group * p->length, 1, y->dtype);
    }
}

static add_plan plan_scatter(const tarn__call *call)
{
    add_plan p = {};
    plan_lines(&p, call->in[0], call->in[1], call->out[0], ((const tarn__along *)call->params)->axis);
    return p;
}

static add_plan plan_slices(const tarn__call *call)
{
    const tarn__view *index = call->in[0], *source = call->in[1], *y = call->out[0];
    int axis = ((const tarn__along *)call->params)->axis;
    add_plan p = {};
    tarn__view rest[] = {tarn__view_across(y, axis, y), tarn__view_across(source, axis, y)};
    const tarn__view *views[] = {&rest[0], &rest[1]};
    tarn__nest_make(&p.columns, 2, views);
    p.length = index->shape[0];
    p.limit = y->shape[axis];
    if (p.length * p.columns.count == 0) {
        p.way = NOTHING;
    } else if (p.length <= FEW_SLICES && p.length * ((p.columns.count + THREADS - 1) / THREADS) < MOST_SMALL) {
        p.way = FEW;
    } else if (p.length >= MOST_SMALL || p.limit >= MOST_SMALL) {
        tarn__view wide = tarn__view_repeated(index, source, axis);
        plan_lines(&p, &wide, source, y, axis);
    } else {
        plan_sorted(&p, p.length, p.columns.count, y->dtype);
        if (!(call->reads_output & 1)) {
            p.chunk = p.chunk > FRESH_CHUNK ? p.chunk : FRESH_CHUNK; /* fewer than the partial sums have room for */
            p.begin_bytes = rounded(sizeof(uint32_t) * (size_t)(p.limit + 1));
        }
    }
    return p;
}

/* ---- carrying it out --------------------------------------------------------------------------------------------- */

/* Keys and positions, twice; partial sums; beginnings; and the room that sorting itself needs, at the end. */
static size_t scratch_of(const tarn__call *call, const add_plan *p)
{
    if (p->way != SORTED)
        return 0;
    size_t room = 0;
    cub::DoubleBuffer<uint32_t> none;
    tarn__cuda_at(call->device);
    cub::DeviceRadixSort::SortPairs(NULL, room, none, none, (int)p->entries, 0, 32, stream_of(call));
    return 4 * p->keys_bytes + p->partial_bytes + p->begin_bytes + rounded(room);
}

size_t tarn__cuda_scratch_scatter_add(const tarn__call *call)
{
    add_plan p = plan_scatter(call);
    return scratch_of(call, &p);
}

size_t tarn__cuda_scratch_index_add(const tarn__call *call)
{
    add_plan p = plan_slices(call);
    return scratch_of(call, &p);
}

/* Makes keys and sorts them with their positions: 3 launches up to about 4000 entries, some 8 beyond. */
static void sort_entries(const tarn__call *call, const add_plan *p, add_args *a, int64_t lines)
{
    char *room = (char *)call->scratch;
    uint32_t *held[4];
    for (int i = 0; i < 4; i++)
        held[i] = (uint32_t *)(room + (size_t)i * p->keys_bytes);
    a->keys = held[0];
    a->positions = held[2];
    a->partials = room + 4 * p->keys_bytes;
    a->none = (uint32_t)(lines * a->limit);
    key_kernel<<<blocks_for(a->count, THREADS), THREADS, 0, stream_of(call)>>>(*a);
    size_t used = 4 * p->keys_bytes + p->partial_bytes + p->begin_bytes, left = call->scratch_bytes - used;
    cub::DoubleBuffer<uint32_t> keys(held[0], held[1]), positions(held[2], held[3]);
    int bits = 1;
    while (a->none >> bits)
        bits++;
    cub::DeviceRadixSort::SortPairs(room + used, left, keys, positions, (int)a->count, 0, bits, stream_of(call));
    a->keys = keys.Current();
    a->positions = positions.Current();
}

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

/* Slices, in packs of N where that fits. `is_fresh`: y has no old values, and they are sorted. */
template <typename T, typename Y, typename C, int N>
static bool add_slices(const tarn__call *call, const add_plan *p, add_args a, bool is_fresh)
{
    tarn__nest nest = p->columns;
    int last = nest.rank - 1;
    if (N > 1) {
        if (!is_packable(&nest, 0, a.y, sizeof(Y), N) || !is_packable(&nest, 1, a.source, sizeof(T), N) ||
            a.y_step % N || a.source_step % N)
            return false;
        nest.shape[last] /= N;
        nest.count /= N;
        nest.stride[0][last] = nest.stride[1][last] = N;
    }
    a.columns = nest.count;
    a.column_at = places_of<2>(&nest);
    a.index_step = call->in[0]->stride[0];
    if (p->way == FEW) {
        a.tiles = (int)((a.columns + THREADS - 1) / THREADS);
        few_kernel<T, Y, C, N><<<(unsigned)(a.count * a.tiles), THREADS, 0, stream_of(call)>>>(a);
    } else {
        sort_entries(call, p, &a, 1);
        if constexpr (N > 1) {
            if (is_fresh) {
                start_fresh<T, Y, C, N>(call, &a, (uint32_t *)((char *)a.partials + p->partial_bytes));
                return true;
            }
        }
        start_walk<T, Y, C, N>(call, &a);
    }
    return true;
}

/* False where dtypes or layouts are rare ones. */
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

template <typename C> static void add_lines(const tarn__call *call, const add_plan *p, add_args a)
{
    int64_t lines = p->lines.count;
    a.is_lined = true;
    a.line_at = places_of<3>(&p->lines);
    if (p->way == THREAD_LINES) {
        thread_line_kernel<C><<<blocks_for(lines, THREADS), THREADS, 0, stream_of(call)>>>(a, lines);
        return;
    }
    if (p->way == BLOCK_LINES) {
        block_line_kernel<C><<<(unsigned)lines, THREADS, 0, stream_of(call)>>>(a);
        return;
    }
    a.by_limit = divider_of(a.limit);
    a.by_length = divider_of(a.length);
    for (a.first_line = 0; a.first_line < lines; a.first_line += p->group) {
        int64_t here = lines - a.first_line < p->group ? lines - a.first_line : p->group;
        a.count = here * a.length;
        sort_entries(call, p, &a, here);
        start_walk<mixed, mixed, C, 1>(call, &a);
    }
}

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

void tarn__cuda_run_scatter_add(const tarn__call *call)
{
    add_plan p = plan_scatter(call);
    if (p.way != NOTHING)
        run_lines(call, &p, tarn__axis_stride(call->in[0], ((const tarn__along *)call->params)->axis));
}

static void clear(const tarn__call *call)
{
    tarn__fill zero = {};
    tarn__call part = *call;
    part.inputs = 0;
    part.params = &zero;
    part.params_bytes = sizeof(zero);
    tarn__cuda_rows()[TARN__K_fill].run(&part);
}

void tarn__cuda_run_index_add(const tarn__call *call)
{
    add_plan p = plan_slices(call);
    if (!(call->reads_output & 1)) {
        if (p.way == SORTED && p.lines.count == 0 && run_packed_slices(call, &p, true))
            return;
        clear(call);
    }
    if (p.way == FEW || (p.way == SORTED && p.lines.count == 0))
        run_slices(call, &p);
    else if (p.way != NOTHING)
        run_lines(call, &p, call->in[0]->stride[0]);
}
