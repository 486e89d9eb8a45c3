/* scale_grad.cu: gradients of x · w, w broadcast along axes of x: gx = g · w, and gw, the sums of g · x.
 *
 * Two forms, those of ops/reduce/scale_grad.c: w has one value per row (the sums run along the innermost axis), or w is
 * one row (the sums run over all rows). x and g are read and gx is written once in either. Rows and columns are split
 * into chunks by shape alone where there would be too little parallelism; the chunks' sums go to scratch in f64, and a
 * second kernel adds them in order. Products are added in the compute type a few at a time, and in f64 from there. */
#include "backends/cuda/common/rows.cuh"

enum { X, G, GX, FACTOR, SUM, OPERANDS }; /* FACTOR is w, SUM its gradient */

#define LOADS 4            /* vectors of x, and of g, that a thread loads together */
#define MIN_WARPS 4096     /* rows are not split from this number on */
#define MIN_VECS 128       /* of a row in a chunk */
#define ROWS_PER_CHUNK 128 /* per chunk, columns form */
#define MIN_BLOCKS 1024
#define MAX_CHUNKS 1024
#define SLICES 32 /* of the chunks, in the second kernel */

/* Kernel arguments of both forms. */
struct scale_args {
    row_set<OPERANDS> rows; /* GX has no base if it is not needed */
    int64_t vecs;           /* of a row */
    int64_t chunk, chunks;  /* vectors of a row, or rows */
    int width_bits;         /* columns form: adjacent vectors per block, log2 */
    double *partial;        /* (rows, chunks) or (chunks, length) */
};

/* ---- one value of w per row -------------------------------------------------------------------------------------- */

/* A warp per row, or chunk of one. R reads x and g, W writes gx. */
template <typename R, typename W>
static __global__ void __launch_bounds__(THREADS) row_kernel(const __grid_constant__ scale_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    const int lane = threadIdx.x % WARP;
    const int64_t task = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    const int64_t row = a.chunks > 1 ? task / a.chunks : task, begin = (task - row * a.chunks) * a.chunk;
    const int64_t end = begin + a.chunk < a.vecs ? begin + a.chunk : a.vecs;
    int64_t offset[OPERANDS];
    if (row >= a.rows.count)
        return;
    locate_row(a.rows, row, offset);
    const C factor = load_any<C>(a.rows.operand[FACTOR].base, a.rows.operand[FACTOR].dtype, offset[FACTOR]);
    double sum = 0;
    for (int64_t at = begin + lane; at < end; at += WARP * LOADS) {
        typename R::raw x[LOADS], g[LOADS];
        C part = 0;
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if (at + u * WARP < end) {
                x[u] = R::fetch(a.rows.operand[X], offset[X], at + u * WARP);
                g[u] = R::fetch(a.rows.operand[G], offset[G], at + u * WARP);
            }
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if (at + u * WARP < end) {
                C gx[N];
#pragma unroll
                for (int i = 0; i < N; i++) {
                    part += R::element(g[u], i) * R::element(x[u], i);
                    gx[i] = R::element(g[u], i) * factor;
                }
                if (a.rows.operand[GX].base)
                    W::store(a.rows.operand[GX], offset[GX], at + u * WARP, gx);
            }
        /* f64 across batches of loads */
        sum += (double)part;
    }
    sum = warp_reduce<plus>(sum);
    if (lane != 0)
        return;
    if (a.chunks > 1)
        a.partial[task] = sum;
    else
        store_any(a.rows.operand[SUM].base, a.rows.operand[SUM].dtype, offset[SUM], (C)sum);
}

/* A warp per row: lane i adds chunks i, i + 32, ... */
static __global__ void __launch_bounds__(THREADS) combine_rows(const __grid_constant__ scale_args a)
{
    int64_t row = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, offset[OPERANDS];
    if (row >= a.rows.count)
        return;
    double sum = 0;
    for (int64_t chunk = threadIdx.x % WARP; chunk < a.chunks; chunk += WARP)
        sum += a.partial[row * a.chunks + chunk];
    sum = warp_reduce<plus>(sum);
    locate_row(a.rows, row, offset);
    if (threadIdx.x % WARP == 0)
        store_any(a.rows.operand[SUM].base, a.rows.operand[SUM].dtype, offset[SUM], sum);
}

/* ---- w is one row ------------------------------------------------------------------------------------------------ */

/* Adds up the sums of a block's walkers, in order, for each of its columns. */
template <typename C, int N> __device__ __forceinline__ void write_columns(const scale_args &a, const double *sum)
{
    __shared__ double space[THREADS * N]; /* (walkers, columns of the block) */
    const int columns = N << a.width_bits, thread = (int)threadIdx.x;
#pragma unroll
    for (int i = 0; i < N; i++)
        space[thread * N + i] = sum[i];
    __syncthreads();
    for (int column = thread; column < columns; column += THREADS) {
        const int64_t at = (int64_t)blockIdx.x * columns + column;
        double total = 0;
        for (int walker = 0; walker < THREADS >> a.width_bits; walker++)
            total += space[walker * columns + column];
        if (at >= a.rows.length)
            continue;
        if (a.chunks > 1)
            a.partial[blockIdx.y * a.rows.length + at] = total;
        else
            store_any(a.rows.operand[SUM].base, a.rows.operand[SUM].dtype, at * a.rows.operand[SUM].along, (C)total);
    }
}

/* A block has 2^width_bits adjacent vectors and a chunk of rows; the walkers that share a vector take rows in turn. */
template <typename R, typename W>
static __global__ void __launch_bounds__(THREADS, 2) column_kernel(const __grid_constant__ scale_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    const int width = 1 << a.width_bits, walkers = THREADS >> a.width_bits;
    const int64_t at = (int64_t)blockIdx.x * width + (threadIdx.x & (width - 1)), begin = blockIdx.y * a.chunk;
    const int64_t end = at >= a.vecs ? 0 : begin + a.chunk < a.rows.count ? begin + a.chunk : a.rows.count;
    const row_operand &w = a.rows.operand[FACTOR];
    double sum[N] = {};
    C factor[N] = {};
    if (at < a.vecs) {
#pragma unroll
        for (int i = 0; i < N; i++)
            factor[i] = load_any<C>(w.base, w.dtype, (at * N + i) * w.along);
    }
#pragma unroll 1
    for (int64_t row = begin + (threadIdx.x >> a.width_bits); row < end; row += walkers * LOADS) {
        typename R::raw x[LOADS], g[LOADS];
        C part[N] = {};
        int64_t to[LOADS];
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if (row + u * walkers < end) {
                int64_t offset[OPERANDS];
                locate_row(a.rows, row + u * walkers, offset);
                x[u] = R::fetch(a.rows.operand[X], offset[X], at);
                g[u] = R::fetch(a.rows.operand[G], offset[G], at);
                to[u] = offset[GX];
            }
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if (row + u * walkers < end) {
                C gx[N];
#pragma unroll
                for (int i = 0; i < N; i++) {
                    part[i] += R::element(g[u], i) * R::element(x[u], i);
                    gx[i] = R::element(g[u], i) * factor[i];
                }
                if (a.rows.operand[GX].base)
                    W::store(a.rows.operand[GX], to[u], at, gx);
            }
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] += (double)part[i];
    }
    write_columns<C, N>(a, sum);
}

/* 32 columns per block; warp s adds chunks s, s + 32, ..., and the first warp adds the warps. */
static __global__ void __launch_bounds__(WARP *SLICES) combine_columns(const __grid_constant__ scale_args a)
{
    __shared__ double space[SLICES][WARP];
    const int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.x;
    double sum = 0;
    if (column < a.rows.length) {
#pragma unroll 4
        for (int64_t chunk = threadIdx.y; chunk < a.chunks; chunk += SLICES)
            sum += a.partial[chunk * a.rows.length + column];
    }
    space[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= a.rows.length)
        return;
    for (int slice = 1; slice < SLICES; slice++)
        sum += space[slice][threadIdx.x];
    store_any(a.rows.operand[SUM].base, a.rows.operand[SUM].dtype, column * a.rows.operand[SUM].along, sum);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Elements per access: 16 bytes of them, or 1. gx may be f32 if the others have 16 bits. */
static int vec_width(const scale_args &a)
{
    const row_operand *o = a.rows.operand;
    int n = o[X].dtype == TARN_F32 ? 4 : o[X].dtype == TARN_BF16 || o[X].dtype == TARN_F16 ? 8 : 1;
    bool is_same = o[G].dtype == o[X].dtype && (!o[GX].base || o[GX].dtype == o[X].dtype || o[GX].dtype == TARN_F32);
    return is_same && has_vecs(a.rows, X, n) && has_vecs(a.rows, G, n) && has_vecs(a.rows, GX, n) ? n : 1;
}

/* Chunks of a row only if there are too few rows. */
static void split_rows(scale_args *a)
{
    int64_t wanted = a->rows.count > 0 ? (MIN_WARPS + a->rows.count - 1) / a->rows.count : 1,
            max_splits = a->vecs / MIN_VECS;
    wanted = wanted < max_splits ? wanted : max_splits;
    wanted = wanted < 1 ? 1 : wanted;
    a->chunk = (a->vecs + wanted - 1) / wanted;
    a->chunks = a->chunk > 0 ? (a->vecs + a->chunk - 1) / a->chunk : 1;
}

/* Halves the chunk until there are enough blocks, then bounds the number of chunks. */
static void split_columns(scale_args *a)
{
    while (a->width_bits < 5 && ((int64_t)1 << a->width_bits) < a->vecs)
        a->width_bits++;
    int64_t tiles = (a->vecs + ((int64_t)1 << a->width_bits) - 1) >> a->width_bits;
    int64_t min_chunk = LOADS * (THREADS >> a->width_bits); /* rows that a block's walkers load together */
    a->chunk = min_chunk > ROWS_PER_CHUNK ? min_chunk : ROWS_PER_CHUNK;
    while (a->chunk > min_chunk && tiles * ((a->rows.count + a->chunk - 1) / a->chunk) < MIN_BLOCKS)
        a->chunk /= 2;
    while ((a->rows.count + a->chunk - 1) / a->chunk > MAX_CHUNKS)
        a->chunk *= 2;
    a->chunks = (a->rows.count + a->chunk - 1) / a->chunk;
    a->chunks = a->chunks < 1 ? 1 : a->chunks;
}

struct scale_job {
    bool by_row; /* w has one value per row */
    int width;
    scale_args args; /* without addresses */
};

static void set_operands(const tarn__call *call, const tarn__view **views)
{
    views[X] = call->in[0], views[G] = call->in[2], views[GX] = call->out[0], views[FACTOR] = call->in[1],
    views[SUM] = call->out[1];
}

/* By shape, dtypes and alignment alone. Scratch: one f64 sum per chunk and row, or column. */
static tarn__plan_status prepare_scale_grad(const tarn__call *call, tarn__plan *plan)
{
    const tarn__view *views[OPERANDS];
    const int axis = tarn__view_innermost(call->in[0]);
    scale_job *j = reserve_job<scale_job>(plan);
    tarn__nest nest;
    if (!j)
        return TARN__PLAN_FAILED;
    scale_args *a = &j->args;
    set_operands(call, views);
    j->by_row = call->out[1]->shape[axis] == 1;
    *a = scale_args{};
    a->rows = rows_of<OPERANDS>(axis, views, &nest);
    j->width = vec_width(*a);
    a->vecs = a->rows.length / j->width;
    j->by_row ? split_rows(a) : split_columns(a);
    if (a->chunks > 1)
        plan->scratch_bytes = sizeof(double) * (size_t)(a->chunks * (j->by_row ? a->rows.count : a->rows.length));
    clear_addresses(&a->rows);
    return TARN__PLAN_READY;
}

/* Grid: a warp per row or chunk of one; or a block per tile of columns and chunk of rows. Bytes: two reads and a write
 * per element. */
template <typename R, typename W> static void launch_as(const tarn__call *call, const scale_args &a, bool by_row)
{
    cudaStream_t stream = stream_of(call);
    if (by_row) {
        row_kernel<R, W><<<blocks_for(a.rows.count * a.chunks, THREADS / WARP), THREADS, 0, stream>>>(a);
        if (a.chunks > 1)
            combine_rows<<<blocks_for(a.rows.count, THREADS / WARP), THREADS, 0, stream>>>(a);
        return;
    }
    dim3 grid(blocks_for(a.vecs, (int64_t)1 << a.width_bits), (unsigned)a.chunks);
    column_kernel<R, W><<<grid, THREADS, 0, stream>>>(a);
    if (a.chunks > 1)
        combine_columns<<<blocks_for(a.rows.length, WARP), dim3(WARP, SLICES), 0, stream>>>(a);
}

/* gx may be f32 for 16-bit x: a leaf's gradient. */
template <typename T> static void launch_vecs(const tarn__call *call, const scale_args &a, bool by_row)
{
    constexpr int N = vec_size<T>::value;
    if (call->out[0] && call->out[0]->dtype != call->in[0]->dtype)
        launch_as<typed<T, N>, typed<float, N>>(call, a, by_row);
    else
        launch_as<typed<T, N>, typed<T, N>>(call, a, by_row);
}

/* Inputs x, w, g; outputs gx (may be NULL), gw. */
static void run_scale_grad(const tarn__call *call)
{
    const tarn__view *views[OPERANDS];
    const scale_job *j = job_of<scale_job>(call);
    scale_args a = j->args;
    const bool by_row = j->by_row;
    const int width = j->width;
    set_operands(call, views);
    set_addresses(&a.rows, views);
    a.partial = (double *)call->scratch;
    tarn_dtype dtype = call->in[0]->dtype;
    if (a.rows.length == 0 || (by_row && a.rows.count == 0))
        return;
    if (width > 1 && dtype == TARN_F32)
        launch_as<typed<float, 4>, typed<float, 4>>(call, a, by_row);
    else if (width > 1 && dtype == TARN_BF16)
        launch_vecs<bf16>(call, a, by_row);
    else if (width > 1)
        launch_vecs<f16>(call, a, by_row);
    else if (dtype == TARN_F64)
        launch_as<untyped<double>, untyped<double>>(call, a, by_row);
    else
        launch_as<untyped<float>, untyped<float>>(call, a, by_row);
}

void tarn__cuda_register_scale_grad(tarn__kernel_row *rows)
{
    rows[TARN__K_scale_grad] = tarn__row_planned(prepare_scale_grad, run_scale_grad, TARN__FLOATS);
}
