/* scan.cu: cumsum along an axis, in f64 (i64 for integers) whatever the dtype; the eight elements of a 16-bit vector
 * among themselves in f32.
 *
 * Lines along the contiguous axis: a warp per line if there are many, else a block per line or chunk of one. Other
 * axes: a thread per column, or chunk of one. Chunks depend on the shape alone; with several, a first launch sums each,
 * and the second starts every chunk from the sums before it. A reverse scan is a forward one with negated strides. */
#include "backends/cuda/common/lines.cuh"

#define MANY_LINES 1024  /* from here on a warp per line */
#define CHUNK_ITEMS 2048 /* of a line, at least */
#define MAX_CHUNKS 2048  /* of a line */
#define MIN_COLUMNS 16   /* fewer columns are processed as lines */
#define ENOUGH_THREADS 131072
#define COLUMN_CHUNKS 32    /* of a column, at most */
#define MIN_COLUMN_CHUNK 64 /* elements of a column's chunk */
#define LOADS 8             /* elements of a column loaded together */
#define VECS 4              /* vectors of a line that a lane loads together */

/* Kernel arguments; strides are negated for a reverse scan. */
struct scan_args {
    const void *x;
    void *y;
    tarn_dtype x_dtype, y_dtype;
    int64_t lines, items;   /* vectors of a line, or elements */
    int64_t x_step, y_step; /* strides in scan order */
    bool is_reversed;       /* vectors are read from their end */
    int64_t chunk, chunks;
    void *sums;             /* of chunks: (lines, chunks) or (chunks, columns) */
    offset_calc<2> offsets; /* y, x across the axis */
};

/* Type passed to the store: f64 to 16 bits is slow. */
template <typename T, typename C> struct stored_as {
    typedef compute<T> type;
};
template <typename C> struct stored_as<mixed, C> {
    typedef C type;
};

/* Type of sums within a vector: f64 conversions are slow, and 16-bit results do not need them per element. */
template <typename T, int N, typename C> struct vec_sum_type {
    typedef C type;
};
template <typename C> struct vec_sum_type<bf16, 8, C> {
    typedef float type;
};
template <typename C> struct vec_sum_type<f16, 8, C> {
    typedef float type;
};

/* Inclusive prefix sum over the warp (Hillis-Steele). */
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

/* Prefix sums within one vector; the last is its total. */
template <typename T, int N, typename L>
__device__ __forceinline__ void scan_vec(const scan_args &a, const raw<T, N, L> &x, bool is_there, L *sum)
{
    L run = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (is_there)
            run += a.is_reversed ? x.get(N - 1 - i) : x.get(i);
        sum[i] = run;
    }
}

/* True if f32 overflowed within the vector: f64 recomputes it. */
template <int N, typename C, typename L> __device__ __forceinline__ bool left_f32_range(const L *sum)
{
    if constexpr (sizeof(L) < sizeof(C))
        return !isfinite(sum[N - 1]);
    else
        return false;
}

/* Total of a vector. */
template <typename T, int N, typename L, typename C>
__device__ __forceinline__ C whole_of(const raw<T, N, L> &x, const L *sum)
{
    C whole = (C)sum[N - 1];
    if (left_f32_range<N, C>(sum)) {
        whole = 0;
        for (int i = 0; i < N; i++)
            whole += (C)x.get(i);
    }
    return whole;
}

/* Stores `before` plus the sums within the vector; if those are f32, `before` is split in two parts, the second being
 * the first one's rounding error. */
template <typename T, int N, typename L, typename C>
__device__ __forceinline__ void store_vec(const scan_args &a, int64_t at, const raw<T, N, L> &x, const L *sum, C before)
{
    typedef typename stored_as<T, C>::type O;
    O out[N];
    if constexpr (sizeof(L) < sizeof(C)) {
        const L high = (L)before, low = isfinite(high) ? (L)(before - (C)high) : (L)0;
#pragma unroll
        for (int i = 0; i < N; i++)
            out[i] = (O)(high + (low + (a.is_reversed ? sum[N - 1 - i] : sum[i])));
        if (left_f32_range<N, C>(sum) || !isfinite(high)) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                before += (C)(a.is_reversed ? x.get(N - 1 - i) : x.get(i));
                if (a.is_reversed)
                    out[N - 1 - i] = (O)before;
                else
                    out[i] = (O)before;
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            out[i] = (O)(before + (a.is_reversed ? sum[N - 1 - i] : sum[i]));
    }
    put<T, N, O>::at(a.y, a.y_dtype, at, out);
}

/* A warp per line: reads and writes each element once, VECS · 512 bytes of a line in flight. */
template <typename T, int N, typename C>
static __global__ void __launch_bounds__(THREADS) warp_kernel(const __grid_constant__ scan_args a)
{
    typedef typename vec_sum_type<T, N, C>::type L;
    int64_t line = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP, offset[2];
    int lane = threadIdx.x % WARP;
    if (line >= a.lines)
        return;
    locate(a.offsets, line, offset);
    C carry = 0;
    for (int64_t first = lane; first - lane < a.items; first += WARP * VECS) {
        raw<T, N, L> x[VECS];
#pragma unroll
        for (int u = 0; u < VECS; u++)
            if (first + u * WARP < a.items)
                x[u].load(a.x, a.x_dtype, offset[1] + (first + u * WARP) * a.x_step);
#pragma unroll
        for (int u = 0; u < VECS; u++) {
            int64_t item = first + u * WARP;
            L sum[N];
            scan_vec<T, N, L>(a, x[u], item < a.items, sum);
            C through = scan_warp(whole_of<T, N, L, C>(x[u], sum)), before = __shfl_up_sync(FULL_WARP, through, 1);
            if (item < a.items)
                store_vec<T, N, L, C>(a, offset[0] + item * a.y_step, x[u], sum, lane > 0 ? carry + before : carry);
            /* the last lane's total carries over to the next vectors */
            carry += __shfl_sync(FULL_WARP, through, WARP - 1);
        }
    }
}

/* Sum of each chunk of a line, a block each. */
template <typename T, int N, typename C>
static __global__ void __launch_bounds__(THREADS) chunk_sum_kernel(const __grid_constant__ scan_args a)
{
    __shared__ C space[WARP];
    int64_t line = blockIdx.x / a.chunks, begin = blockIdx.x % a.chunks * a.chunk, offset[2];
    int64_t end = begin + a.chunk < a.items ? begin + a.chunk : a.items;
    locate(a.offsets, line, offset);
    C sum = 0;
#pragma unroll 4
    for (int64_t item = begin + threadIdx.x; item < end; item += THREADS) {
        raw<T, N, C> x;
        x.load(a.x, a.x_dtype, offset[1] + item * a.x_step);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum += x.get(i);
    }
    sum = block_reduce<plus>(sum, space, (C)0);
    if (threadIdx.x == 0)
        ((C *)a.sums)[blockIdx.x] = sum;
}

/* A chunk of a line, or a whole one, per block. */
template <typename T, int N, typename C>
static __global__ void __launch_bounds__(THREADS) chunk_kernel(const __grid_constant__ scan_args a)
{
    typedef typename vec_sum_type<T, N, C>::type L;
    __shared__ C space[WARP];
    int64_t line = blockIdx.x / a.chunks, chunk = blockIdx.x % a.chunks, begin = chunk * a.chunk, offset[2];
    int64_t end = begin + a.chunk < a.items ? begin + a.chunk : a.items;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    locate(a.offsets, line, offset);
    C carry = 0;
    for (int64_t k = threadIdx.x; k < chunk; k += THREADS)
        carry += ((const C *)a.sums)[line * a.chunks + k];
    /* start from the sums of all chunks before */
    if (chunk > 0)
        carry = block_reduce<plus>(carry, space, (C)0);
    for (int64_t first = begin; first < end; first += THREADS) {
        int64_t item = first + threadIdx.x;
        raw<T, N, L> x;
        L sum[N];
        if (item < end)
            x.load(a.x, a.x_dtype, offset[1] + item * a.x_step);
        scan_vec<T, N, L>(a, x, item < end, sum);
        C through = scan_warp(whole_of<T, N, L, C>(x, sum)), before = __shfl_up_sync(FULL_WARP, through, 1);
        if (lane == WARP - 1)
            space[warp] = through;
        __syncthreads();
        /* totals of the warps before this one */
        C lower = carry;
#pragma unroll
        for (int k = 0; k < THREADS / WARP; k++) {
            if (k < warp)
                lower += space[k];
            carry += space[k];
        }
        __syncthreads();
        if (item < end)
            store_vec<T, N, L, C>(a, offset[0] + item * a.y_step, x, sum, lane > 0 ? lower + before : lower);
    }
}

/* Sum of each chunk of a column, a thread each. */
template <typename T, typename C>
static __global__ void __launch_bounds__(THREADS) column_sum_kernel(const __grid_constant__ scan_args a)
{
    int64_t task = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[2];
    int64_t column = task % a.lines, begin = task / a.lines * a.chunk,
            end = begin + a.chunk < a.items ? begin + a.chunk : a.items;
    if (task >= a.lines * a.chunks)
        return;
    locate(a.offsets, column, offset);
    C sum = 0;
#pragma unroll 8
    for (int64_t i = begin; i < end; i++) {
        raw<T, 1, C> x;
        x.load(a.x, a.x_dtype, offset[1] + i * a.x_step);
        sum += x.get(0);
    }
    ((C *)a.sums)[task] = sum;
}

/* A column, or a chunk of one, per thread; coalesced over columns. */
template <typename T, typename C>
static __global__ void __launch_bounds__(THREADS) column_kernel(const __grid_constant__ scan_args a)
{
    int64_t task = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[2];
    int64_t column = task % a.lines, chunk = task / a.lines, begin = chunk * a.chunk;
    int64_t end = begin + a.chunk < a.items ? begin + a.chunk : a.items;
    if (chunk >= a.chunks)
        return;
    locate(a.offsets, column, offset);
    C sum = 0;
    /* start from the sums of all chunks before */
    for (int64_t k = 0; k < chunk; k++)
        sum += ((const C *)a.sums)[k * a.lines + column];
    for (int64_t first = begin; first < end; first += LOADS) {
        raw<T, 1, C> x[LOADS];
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if (first + u < end)
                x[u].load(a.x, a.x_dtype, offset[1] + (first + u) * a.x_step);
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if (first + u < end) {
                typename stored_as<T, C>::type out[1];
                sum += x[u].get(0);
                out[0] = (typename stored_as<T, C>::type)sum;
                put<T, 1, typename stored_as<T, C>::type>::at(a.y, a.y_dtype, offset[0] + (first + u) * a.y_step, out);
            }
    }
}

/* ---- planning ---------------------------------------------------------------------------------------------------- */

/* A call's geometry. */
struct scan_plan {
    int64_t length, x_step, y_step;
    int64_t x_first, y_first; /* elements to the scan's first: a reverse scan starts at the last vector */
    bool is_vectorized, by_columns;
    scan_args args; /* without addresses; 0 lines: nothing to do */
};

/* True for 16-byte vectors of floats of one dtype: both contiguous along the axis, every line aligned. */
static bool has_vecs(const scan_plan *p, const tarn__nest *nest, const tarn__view *x, const tarn__view *y)
{
    size_t size = tarn__dtype_bytes(x->dtype);
    int n = 16 / (int)size;
    if (x->dtype != y->dtype || !tarn__is_float(x->dtype) || size == 8 || p->length % n || p->x_step != 1 ||
        p->y_step != 1 || !is_aligned(tarn__view_at(x), 16) || !is_aligned(tarn__view_at(y), 16))
        return false;
    for (int i = 0; i < nest->rank; i++)
        if (nest->stride[0][i] % n || nest->stride[1][i] % n)
            return false;
    return true;
}

/* By shape alone: the order of sums must not depend on the device. */
static void cut_chunks(scan_args *a, bool by_columns)
{
    if (by_columns) {
        int64_t wanted = ENOUGH_THREADS / a->lines, max_chunks = a->items / MIN_COLUMN_CHUNK;
        wanted = wanted < max_chunks ? wanted : max_chunks;
        wanted = wanted < 1 ? 1 : wanted < COLUMN_CHUNKS ? wanted : COLUMN_CHUNKS;
        a->chunk = (a->items + wanted - 1) / wanted;
    } else if (a->lines >= MANY_LINES) {
        a->chunk = a->items;
    } else {
        a->chunk = CHUNK_ITEMS;
        while (a->items / a->chunk > MAX_CHUNKS)
            a->chunk *= 2;
    }
    a->chunks = (a->items + a->chunk - 1) / a->chunk;
}

static void make_plan(const tarn__call *call, scan_plan *p)
{
    const tarn__view *x = call->in[0], *y = call->out[0];
    const tarn__along *along = (const tarn__along *)call->params;
    tarn__view rest[] = {tarn__view_across(y, along->axis, y), tarn__view_across(x, along->axis, x)};
    const tarn__view *views[] = {&rest[0], &rest[1]};
    *p = scan_plan();
    if (tarn__view_count(y) == 0)
        return;
    tarn__nest nest; /* y, x across the axis */
    tarn__nest_make(&nest, 2, views);
    p->length = tarn__axis_size(x, along->axis);
    p->x_step = p->length > 1 ? tarn__axis_stride(x, along->axis) : 1;
    p->y_step = p->length > 1 ? tarn__axis_stride(y, along->axis) : 1;
    /* columns if another axis is denser than the scanned one */
    int last = nest.rank - 1;
    p->by_columns =
        last >= 0 && nest.shape[last] >= MIN_COLUMNS && magnitude(nest.stride[0][last]) < magnitude(p->y_step);
    p->is_vectorized = !p->by_columns && has_vecs(p, &nest, x, y);
    int64_t n = p->is_vectorized ? 16 / (int64_t)tarn__dtype_bytes(x->dtype) : 1;
    scan_args *a = &p->args;
    a->x_dtype = x->dtype;
    a->y_dtype = y->dtype;
    a->lines = nest.count;
    a->items = p->length / n;
    int64_t direction = along->reverse ? -1 : 1, back = along->reverse ? p->length - n : 0;
    p->x_first = back * p->x_step;
    p->y_first = back * p->y_step;
    a->x_step = direction * p->x_step * n;
    a->y_step = direction * p->y_step * n;
    a->is_reversed = along->reverse != 0;
    a->offsets = offset_calc_of<2>(&nest);
    cut_chunks(a, p->by_columns);
}

/* Scratch: one f64 or i64 sum per chunk. */
static tarn__plan_status prepare_cumsum(const tarn__call *call, tarn__plan *plan)
{
    scan_plan *p = reserve_job<scan_plan>(plan);
    if (!p)
        return TARN__PLAN_FAILED;
    make_plan(call, p);
    if (p->args.chunks > 1)
        plan->scratch_bytes = 8 * (size_t)(p->args.lines * p->args.chunks);
    return TARN__PLAN_READY;
}

static scan_args args_of(const tarn__call *call, const scan_plan *p)
{
    const tarn__view *x = call->in[0], *y = call->out[0];
    scan_args a = p->args;
    a.x = (const char *)tarn__view_at(x) + p->x_first * (int64_t)tarn__dtype_bytes(x->dtype);
    a.y = (char *)tarn__view_at(y) + p->y_first * (int64_t)tarn__dtype_bytes(y->dtype);
    a.sums = call->scratch;
    return a;
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Grid: a thread per column, or per chunk of one. */
template <typename T, typename C> static void start_columns(const tarn__call *call, const scan_args *a)
{
    unsigned blocks = blocks_for(a->lines * a->chunks, THREADS);
    if (a->chunks > 1)
        column_sum_kernel<T, C><<<blocks, THREADS, 0, stream_of(call)>>>(*a);
    column_kernel<T, C><<<blocks, THREADS, 0, stream_of(call)>>>(*a);
}

/* Grid: a warp per line, or a block per chunk. */
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

/* Dispatch by layout and dtype. */
static void run_cumsum(const tarn__call *call)
{
    const scan_plan *p = job_of<scan_plan>(call);
    if (p->args.lines == 0)
        return;
    const scan_args bound = args_of(call, p), *a = &bound;
    /* F64, and everything not listed below: one by one */
    tarn_dtype same = a->x_dtype == a->y_dtype ? a->x_dtype : TARN_F64;
    bool is_real = tarn__is_float(a->x_dtype);
    if (p->by_columns) {
        switch (same) {
        case TARN_F32: start_columns<float, double>(call, a); break;
        case TARN_BF16: start_columns<bf16, double>(call, a); break;
        case TARN_F16: start_columns<f16, double>(call, a); break;
        default: is_real ? start_columns<mixed, double>(call, a) : start_columns<mixed, int64_t>(call, a);
        }
        return;
    }
    switch (p->is_vectorized ? same : TARN_F64) {
    case TARN_F32: start_lines<float, 4, double>(call, a); break;
    case TARN_BF16: start_lines<bf16, 8, double>(call, a); break;
    case TARN_F16: start_lines<f16, 8, double>(call, a); break;
    default: is_real ? start_lines<mixed, 1, double>(call, a) : start_lines<mixed, 1, int64_t>(call, a);
    }
}

void tarn__cuda_register_scan(tarn__kernel_row *rows)
{
    rows[TARN__K_cumsum] = tarn__row_planned(prepare_cumsum, run_cumsum, TARN__ALL);
}
