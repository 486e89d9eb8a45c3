/* scan.cu: running sums along an axis, in f64 (i64 for integers) whatever the dtype; the eight elements of a 16-bit
 * pack among themselves in f32.
 *
 * Lines along the densest axis: a warp a line where there are many, else a block a line or a chunk of one. Other axes:
 * a thread a column, or a chunk of one. Chunks are cut by shape alone; where there are several, a first launch sums
 * each, and the second begins every chunk with what the sums before it make. A sum from the end is one from the
 * beginning with the strides turned round. */
#include "backends/cuda/common/lines.cuh"

#define MANY_LINES 1024   /* from here on a warp takes a line */
#define CHUNK_ITEMS 2048  /* of a line, at least */
#define MOST_CHUNKS 2048  /* of a line */
#define FEWEST_COLUMNS 16 /* fewer columns are taken as lines */
#define ENOUGH_THREADS 131072
#define COLUMN_CHUNKS 32 /* of a column at most */
#define COLUMN_LEAST 64  /* elements of a column's chunk */
#define AHEAD 8          /* elements of a column that are loaded together */
#define PACKS 4          /* packs of a line that a lane loads together */

struct scan_args {
    const void *x;
    void *y;
    tarn_dtype x_dtype, y_dtype;
    int64_t lines, items;   /* packs of a line, or elements */
    int64_t x_step, y_step; /* from one to the next in the order of summing */
    bool is_turned;         /* packs are to be read from their end */
    int64_t chunk, chunks;
    void *sums;       /* of chunks: (lines, chunks) or (chunks, columns) */
    places<2> places; /* y, x across the axis */
};

/* What goes to a storer: f64 would reach 16 bits by way of slow code. */
template <typename T, typename C> struct stored_as {
    typedef wide<T> type;
};
template <typename C> struct stored_as<mixed, C> {
    typedef C type;
};

/* What sums within a pack are made in: conversions to and from f64 are slow, and 16-bit results need none for each
 * element. */
template <typename T, int N, typename C> struct packed_as {
    typedef C type;
};
template <typename C> struct packed_as<bf16, 8, C> {
    typedef float type;
};
template <typename C> struct packed_as<f16, 8, C> {
    typedef float type;
};

template <typename C> __device__ __forceinline__ C scan_warp(C x)
{
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        C lower = __shfl_up_sync(FULL_WARP, x, step);
        if (lane >= step)
            x += lower;
    }
    return x;
}

/* Running sums within one pack; the last is the whole. */
template <typename T, int N, typename L>
__device__ __forceinline__ void scan_pack(const scan_args &a, const raw<T, N, L> &x, bool is_there, L *sum)
{
    L run = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (is_there)
            run += a.is_turned ? x.get(N - 1 - i) : x.get(i);
        sum[i] = run;
    }
}

/* True where f32 lost its range within the pack: then f64 goes over it again. */
template <int N, typename C, typename L> __device__ __forceinline__ bool is_lost(const L *sum)
{
    if constexpr (sizeof(L) < sizeof(C))
        return !isfinite(sum[N - 1]);
    else
        return false;
}

template <typename T, int N, typename L, typename C>
__device__ __forceinline__ C whole_of(const raw<T, N, L> &x, const L *sum)
{
    C whole = (C)sum[N - 1];
    if (is_lost<N, C>(sum)) {
        whole = 0;
        for (int i = 0; i < N; i++)
            whole += (C)x.get(i);
    }
    return whole;
}

/* `before` plus the sums within the pack; where those are f32 it comes in two parts, the second what rounding took from
 * the first. */
template <typename T, int N, typename L, typename C>
__device__ __forceinline__ void store_pack(const scan_args &a, int64_t at, const raw<T, N, L> &x, const L *sum,
                                           C before)
{
    typedef typename stored_as<T, C>::type O;
    O out[N];
    if constexpr (sizeof(L) < sizeof(C)) {
        const L high = (L)before, low = isfinite(high) ? (L)(before - (C)high) : (L)0;
#pragma unroll
        for (int i = 0; i < N; i++)
            out[i] = (O)(high + (low + (a.is_turned ? sum[N - 1 - i] : sum[i])));
        if (is_lost<N, C>(sum) || !isfinite(high)) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                before += (C)(a.is_turned ? x.get(N - 1 - i) : x.get(i));
                if (a.is_turned)
                    out[N - 1 - i] = (O)before;
                else
                    out[i] = (O)before;
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            out[i] = (O)(before + (a.is_turned ? sum[N - 1 - i] : sum[i]));
    }
    put<T, N, O>::at(a.y, a.y_dtype, at, out);
}

/* A warp a line: reads and writes each element once, PACKS · 512 bytes of a line under way. */
template <typename T, int N, typename C>
static __global__ void __launch_bounds__(THREADS) warp_kernel(const __grid_constant__ scan_args a)
{
    typedef typename packed_as<T, N, C>::type L;
    int64_t line = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP, offset[2];
    int lane = threadIdx.x % WARP;
    if (line >= a.lines)
        return;
    locate(a.places, line, offset);
    C carry = 0;
    for (int64_t first = lane; first - lane < a.items; first += WARP * PACKS) {
        raw<T, N, L> x[PACKS];
#pragma unroll
        for (int u = 0; u < PACKS; u++)
            if (first + u * WARP < a.items)
                x[u].load(a.x, a.x_dtype, offset[1] + (first + u * WARP) * a.x_step);
#pragma unroll
        for (int u = 0; u < PACKS; u++) {
            int64_t item = first + u * WARP;
            L sum[N];
            scan_pack<T, N, L>(a, x[u], item < a.items, sum);
            C through = scan_warp(whole_of<T, N, L, C>(x[u], sum)), before = __shfl_up_sync(FULL_WARP, through, 1);
            if (item < a.items)
                store_pack<T, N, L, C>(a, offset[0] + item * a.y_step, x[u], sum, lane > 0 ? carry + before : carry);
            carry += __shfl_sync(FULL_WARP, through, WARP - 1);
        }
    }
}

/* The sum of each chunk of a line, a block each. */
template <typename T, int N, typename C>
static __global__ void __launch_bounds__(THREADS) chunk_sum_kernel(const __grid_constant__ scan_args a)
{
    __shared__ C space[WARP];
    int64_t line = blockIdx.x / a.chunks, begin = blockIdx.x % a.chunks * a.chunk, offset[2];
    int64_t end = begin + a.chunk < a.items ? begin + a.chunk : a.items;
    locate(a.places, line, offset);
    C sum = 0;
#pragma unroll 4
    for (int64_t item = begin + threadIdx.x; item < end; item += THREADS) {
        raw<T, N, C> x;
        x.load(a.x, a.x_dtype, offset[1] + item * a.x_step);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum += x.get(i);
    }
    sum = over_block<add_up>(sum, space, (C)0);
    if (threadIdx.x == 0)
        ((C *)a.sums)[blockIdx.x] = sum;
}

/* A chunk of a line a block, or a line. */
template <typename T, int N, typename C>
static __global__ void __launch_bounds__(THREADS) chunk_kernel(const __grid_constant__ scan_args a)
{
    typedef typename packed_as<T, N, C>::type L;
    __shared__ C space[WARP];
    int64_t line = blockIdx.x / a.chunks, chunk = blockIdx.x % a.chunks, begin = chunk * a.chunk, offset[2];
    int64_t end = begin + a.chunk < a.items ? begin + a.chunk : a.items;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    locate(a.places, line, offset);
    C carry = 0;
    for (int64_t k = threadIdx.x; k < chunk; k += THREADS)
        carry += ((const C *)a.sums)[line * a.chunks + k];
    if (chunk > 0)
        carry = over_block<add_up>(carry, space, (C)0);
    for (int64_t first = begin; first < end; first += THREADS) {
        int64_t item = first + threadIdx.x;
        raw<T, N, L> x;
        L sum[N];
        if (item < end)
            x.load(a.x, a.x_dtype, offset[1] + item * a.x_step);
        scan_pack<T, N, L>(a, x, item < end, sum);
        C through = scan_warp(whole_of<T, N, L, C>(x, sum)), before = __shfl_up_sync(FULL_WARP, through, 1);
        if (lane == WARP - 1)
            space[warp] = through;
        __syncthreads();
        C lower = carry;
#pragma unroll
        for (int k = 0; k < THREADS / WARP; k++) {
            if (k < warp)
                lower += space[k];
            carry += space[k];
        }
        __syncthreads();
        if (item < end)
            store_pack<T, N, L, C>(a, offset[0] + item * a.y_step, x, sum, lane > 0 ? lower + before : lower);
    }
}

/* The sum of each chunk of a column, a thread each. */
template <typename T, typename C>
static __global__ void __launch_bounds__(THREADS) column_sum_kernel(const __grid_constant__ scan_args a)
{
    int64_t task = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[2];
    int64_t column = task % a.lines, begin = task / a.lines * a.chunk,
            end = begin + a.chunk < a.items ? begin + a.chunk : a.items;
    if (task >= a.lines * a.chunks)
        return;
    locate(a.places, column, offset);
    C sum = 0;
#pragma unroll 8
    for (int64_t i = begin; i < end; i++) {
        raw<T, 1, C> x;
        x.load(a.x, a.x_dtype, offset[1] + i * a.x_step);
        sum += x.get(0);
    }
    ((C *)a.sums)[task] = sum;
}

/* A column a thread, or a chunk of one. */
template <typename T, typename C>
static __global__ void __launch_bounds__(THREADS) column_kernel(const __grid_constant__ scan_args a)
{
    int64_t task = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[2];
    int64_t column = task % a.lines, chunk = task / a.lines, begin = chunk * a.chunk;
    int64_t end = begin + a.chunk < a.items ? begin + a.chunk : a.items;
    if (chunk >= a.chunks)
        return;
    locate(a.places, column, offset);
    C sum = 0;
    for (int64_t k = 0; k < chunk; k++)
        sum += ((const C *)a.sums)[k * a.lines + column];
    for (int64_t first = begin; first < end; first += AHEAD) {
        raw<T, 1, C> x[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            if (first + u < end)
                x[u].load(a.x, a.x_dtype, offset[1] + (first + u) * a.x_step);
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            if (first + u < end) {
                typename stored_as<T, C>::type out[1];
                sum += x[u].get(0);
                out[0] = (typename stored_as<T, C>::type)sum;
                put<T, 1, typename stored_as<T, C>::type>::at(a.y, a.y_dtype, offset[0] + (first + u) * a.y_step, out);
            }
    }
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

struct scan_plan {
    tarn__nest nest; /* y, x across the axis */
    int64_t length, x_step, y_step;
    bool is_packed, by_columns;
    scan_args args;
};

/* Packs of 16 bytes of floats of one dtype, where both lie dense along the axis and every line begins on a pack. */
static bool has_packs(const scan_plan *p, const tarn__view *x, const tarn__view *y)
{
    size_t size = tarn__dtype_bytes(x->dtype);
    int n = 16 / (int)size;
    if (x->dtype != y->dtype || !tarn__is_float(x->dtype) || size == 8 || p->length % n || p->x_step != 1 ||
        p->y_step != 1 || !is_aligned(tarn__view_at(x), 16) || !is_aligned(tarn__view_at(y), 16))
        return false;
    for (int i = 0; i < p->nest.rank; i++)
        if (p->nest.stride[0][i] % n || p->nest.stride[1][i] % n)
            return false;
    return true;
}

static void cut_chunks(scan_args *a, bool by_columns)
{
    if (by_columns) {
        int64_t wanted = ENOUGH_THREADS / a->lines, most = a->items / COLUMN_LEAST;
        wanted = wanted < most ? wanted : most;
        wanted = wanted < 1 ? 1 : wanted < COLUMN_CHUNKS ? wanted : COLUMN_CHUNKS;
        a->chunk = (a->items + wanted - 1) / wanted;
    } else if (a->lines >= MANY_LINES) {
        a->chunk = a->items;
    } else {
        a->chunk = CHUNK_ITEMS;
        while (a->items / a->chunk > MOST_CHUNKS)
            a->chunk *= 2;
    }
    a->chunks = (a->items + a->chunk - 1) / a->chunk;
}

/* False when there is nothing to do. */
static bool make_plan(const tarn__call *call, scan_plan *p)
{
    const tarn__view *x = call->in[0], *y = call->out[0];
    const tarn__along *along = (const tarn__along *)call->params;
    tarn__view rest[] = {tarn__view_across(y, along->axis, y), tarn__view_across(x, along->axis, x)};
    const tarn__view *views[] = {&rest[0], &rest[1]};
    if (tarn__view_count(y) == 0)
        return false;
    *p = scan_plan();
    tarn__nest_make(&p->nest, 2, views);
    p->length = tarn__axis_size(x, along->axis);
    p->x_step = p->length > 1 ? tarn__axis_stride(x, along->axis) : 1;
    p->y_step = p->length > 1 ? tarn__axis_stride(y, along->axis) : 1;
    int last = p->nest.rank - 1;
    p->by_columns =
        last >= 0 && p->nest.shape[last] >= FEWEST_COLUMNS && magnitude(p->nest.stride[0][last]) < magnitude(p->y_step);
    p->is_packed = !p->by_columns && has_packs(p, x, y);
    int64_t n = p->is_packed ? 16 / (int64_t)tarn__dtype_bytes(x->dtype) : 1;
    scan_args *a = &p->args;
    a->x_dtype = x->dtype;
    a->y_dtype = y->dtype;
    a->lines = p->nest.count;
    a->items = p->length / n;
    int64_t turn = along->reverse ? -1 : 1, back = along->reverse ? p->length - n : 0; /* from the last pack on */
    a->x = (const char *)tarn__view_at(x) + back * p->x_step * (int64_t)tarn__dtype_bytes(x->dtype);
    a->y = (char *)tarn__view_at(y) + back * p->y_step * (int64_t)tarn__dtype_bytes(y->dtype);
    a->x_step = turn * p->x_step * n;
    a->y_step = turn * p->y_step * n;
    a->is_turned = along->reverse != 0;
    a->sums = call->scratch;
    a->places = places_of<2>(&p->nest);
    cut_chunks(a, p->by_columns);
    return true;
}

static size_t scratch_cumsum(const tarn__call *call)
{
    scan_plan p;
    return make_plan(call, &p) && p.args.chunks > 1 ? 8 * (size_t)(p.args.lines * p.args.chunks) : 0;
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

template <typename T, typename C> static void start_columns(const tarn__call *call, const scan_args *a)
{
    unsigned blocks = blocks_for(a->lines * a->chunks, THREADS);
    if (a->chunks > 1)
        column_sum_kernel<T, C><<<blocks, THREADS, 0, stream_of(call)>>>(*a);
    column_kernel<T, C><<<blocks, THREADS, 0, stream_of(call)>>>(*a);
}

template <typename T, int N, typename C> static void start_lines(const tarn__call *call, const scan_args *a)
{
    if (a->lines >= MANY_LINES) {
        warp_kernel<T, N, C><<<blocks_for(a->lines, THREADS / WARP), THREADS, 0, stream_of(call)>>>(*a);
        return;
    }
    unsigned blocks = (unsigned)(a->lines * a->chunks);
    if (a->chunks > 1)
        chunk_sum_kernel<T, N, C><<<blocks, THREADS, 0, stream_of(call)>>>(*a);
    chunk_kernel<T, N, C><<<blocks, THREADS, 0, stream_of(call)>>>(*a);
}

static void run_cumsum(const tarn__call *call)
{
    scan_plan p;
    if (!make_plan(call, &p))
        return;
    const scan_args *a = &p.args;
    /* F64 and what is not listed below: one by one */
    tarn_dtype same = a->x_dtype == a->y_dtype ? a->x_dtype : TARN_F64;
    bool is_real = tarn__is_float(a->x_dtype);
    if (p.by_columns) {
        switch (same) {
        case TARN_F32: start_columns<float, double>(call, a); break;
        case TARN_BF16: start_columns<bf16, double>(call, a); break;
        case TARN_F16: start_columns<f16, double>(call, a); break;
        default: is_real ? start_columns<mixed, double>(call, a) : start_columns<mixed, int64_t>(call, a);
        }
        return;
    }
    switch (p.is_packed ? same : TARN_F64) {
    case TARN_F32: start_lines<float, 4, double>(call, a); break;
    case TARN_BF16: start_lines<bf16, 8, double>(call, a); break;
    case TARN_F16: start_lines<f16, 8, double>(call, a); break;
    default: is_real ? start_lines<mixed, 1, double>(call, a) : start_lines<mixed, 1, int64_t>(call, a);
    }
}

void tarn__cuda_scan(tarn__kernel_row *rows)
{
    rows[TARN__K_cumsum] = tarn__kernel_row{run_cumsum, TARN__ALL, scratch_cumsum};
}
