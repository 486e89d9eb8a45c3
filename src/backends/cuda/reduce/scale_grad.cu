/* scale_grad.cu: the gradients of x · w where w is repeated along axes of x: gx = g · w, and gw, the sums of g · x.
 *
 * Two forms, those that ops/reduce/scale_grad.c asks for: w has one number for each row (the sums run along the
 * innermost axis), or w is one row (the sums run over all rows). x and g are read and gx is written once in either.
 * Rows and columns are cut into chunks by shape alone, where uncut there would be too little to do at a time; the
 * chunks' sums go to scratch in f64 and a second kernel adds them in order. Products are added in the type computed in
 * a few at a time, and in f64 from there. */
#include "backends/cuda/common/rows.cuh"

enum { X, G, GX, FACTOR, SUM, OPERANDS }; /* FACTOR is w, SUM its gradient */

#define AHEAD 4           /* packs of x, and of g, that a thread loads together */
#define ENOUGH_WARPS 4096 /* rows are not cut where there are so many */
#define LEAST_PACKS 128   /* of a row in a chunk */
#define GOOD_ROWS 128     /* in a chunk, by columns */
#define ENOUGH_BLOCKS 1024
#define MOST_CHUNKS 1024
#define SLICES 32 /* of the chunks, in the second kernel */

struct scale_args {
    row_set<OPERANDS> rows; /* GX has no base where it is not wanted */
    int64_t packs;          /* of a row */
    int64_t chunk, chunks;  /* packs of a row, or rows */
    int width_bits;         /* by columns: packs side by side in a block, as a power of 2 */
    double *partial;        /* (rows, chunks) or (chunks, length) */
};

/* ---- one number of w a row --------------------------------------------------------------------------------------- */

/* A warp a row, or a chunk of one. R reads x and g, W writes gx. */
template <typename R, typename W>
static __global__ void __launch_bounds__(THREADS) row_kernel(const __grid_constant__ scale_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    const int lane = threadIdx.x % WARP;
    const int64_t task = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    const int64_t row = a.chunks > 1 ? task / a.chunks : task, begin = (task - row * a.chunks) * a.chunk;
    const int64_t end = begin + a.chunk < a.packs ? begin + a.chunk : a.packs;
    int64_t offset[OPERANDS];
    if (row >= a.rows.count)
        return;
    locate_row(a.rows, row, offset);
    const C factor = load_any<C>(a.rows.operand[FACTOR].base, a.rows.operand[FACTOR].dtype, offset[FACTOR]);
    double sum = 0;
    for (int64_t at = begin + lane; at < end; at += WARP * AHEAD) {
        typename R::raw x[AHEAD], g[AHEAD];
        C part = 0;
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            if (at + u * WARP < end) {
                x[u] = R::fetch(a.rows.operand[X], offset[X], at + u * WARP);
                g[u] = R::fetch(a.rows.operand[G], offset[G], at + u * WARP);
            }
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
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
        sum += (double)part;
    }
    sum = over_warp<add_up>(sum);
    if (lane != 0)
        return;
    if (a.chunks > 1)
        a.partial[task] = sum;
    else
        store_any(a.rows.operand[SUM].base, a.rows.operand[SUM].dtype, offset[SUM], (C)sum);
}

/* A warp a row: lane i takes chunks i, i + 32, ... */
static __global__ void __launch_bounds__(THREADS) combine_rows(const __grid_constant__ scale_args a)
{
    int64_t row = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, offset[OPERANDS];
    if (row >= a.rows.count)
        return;
    double sum = 0;
    for (int64_t chunk = threadIdx.x % WARP; chunk < a.chunks; chunk += WARP)
        sum += a.partial[row * a.chunks + chunk];
    sum = over_warp<add_up>(sum);
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

/* A block has 2^width_bits packs side by side and a chunk of rows; the walkers that share a pack take rows in turn. */
template <typename R, typename W>
static __global__ void __launch_bounds__(THREADS, 2) column_kernel(const __grid_constant__ scale_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    const int width = 1 << a.width_bits, walkers = THREADS >> a.width_bits;
    const int64_t at = (int64_t)blockIdx.x * width + (threadIdx.x & (width - 1)), begin = blockIdx.y * a.chunk;
    const int64_t end = at >= a.packs ? 0 : begin + a.chunk < a.rows.count ? begin + a.chunk : a.rows.count;
    const row_operand &w = a.rows.operand[FACTOR];
    double sum[N] = {};
    C factor[N] = {};
    if (at < a.packs) {
#pragma unroll
        for (int i = 0; i < N; i++)
            factor[i] = load_any<C>(w.base, w.dtype, (at * N + i) * w.along);
    }
#pragma unroll 1
    for (int64_t row = begin + (threadIdx.x >> a.width_bits); row < end; row += walkers * AHEAD) {
        typename R::raw x[AHEAD], g[AHEAD];
        C part[N] = {};
        int64_t to[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            if (row + u * walkers < end) {
                int64_t offset[OPERANDS];
                locate_row(a.rows, row + u * walkers, offset);
                x[u] = R::fetch(a.rows.operand[X], offset[X], at);
                g[u] = R::fetch(a.rows.operand[G], offset[G], at);
                to[u] = offset[GX];
            }
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
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

/* 32 columns a block; warp s adds chunks s, s + 32, ..., and the first warp adds the warps. */
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

/* ---- starting them ----------------------------------------------------------------------------------------------- */

/* How many elements the kernels move at once: 16 bytes of them, or 1. gx may be f32 where the others have 16 bits. */
static int pack_width(const scale_args &a)
{
    const row_operand *o = a.rows.operand;
    int n = o[X].dtype == TARN_F32 ? 4 : o[X].dtype == TARN_BF16 || o[X].dtype == TARN_F16 ? 8 : 1;
    bool is_same = o[G].dtype == o[X].dtype && (!o[GX].base || o[GX].dtype == o[X].dtype || o[GX].dtype == TARN_F32);
    return is_same && has_packs(a.rows, X, n) && has_packs(a.rows, G, n) && has_packs(a.rows, GX, n) ? n : 1;
}

static void cut_rows(scale_args *a)
{
    int64_t wanted = a->rows.count > 0 ? (ENOUGH_WARPS + a->rows.count - 1) / a->rows.count : 1,
            most = a->packs / LEAST_PACKS;
    wanted = wanted < most ? wanted : most;
    wanted = wanted < 1 ? 1 : wanted;
    a->chunk = (a->packs + wanted - 1) / wanted;
    a->chunks = a->chunk > 0 ? (a->packs + a->chunk - 1) / a->chunk : 1;
}

static void cut_columns(scale_args *a)
{
    while (a->width_bits < 5 && ((int64_t)1 << a->width_bits) < a->packs)
        a->width_bits++;
    int64_t tiles = (a->packs + ((int64_t)1 << a->width_bits) - 1) >> a->width_bits;
    int64_t least = AHEAD * (THREADS >> a->width_bits); /* what a block's walkers load together */
    a->chunk = least > GOOD_ROWS ? least : GOOD_ROWS;
    while (a->chunk > least && tiles * ((a->rows.count + a->chunk - 1) / a->chunk) < ENOUGH_BLOCKS)
        a->chunk /= 2;
    while ((a->rows.count + a->chunk - 1) / a->chunk > MOST_CHUNKS)
        a->chunk *= 2;
    a->chunks = (a->rows.count + a->chunk - 1) / a->chunk;
    a->chunks = a->chunks < 1 ? 1 : a->chunks;
}

/* By shape, dtypes and alignment alone. True: w has one number a row. */
static bool make_args(const tarn__call *call, scale_args *a, int *width)
{
    const tarn__view *views[OPERANDS] = {call->in[0], call->in[2], call->out[0], call->in[1], call->out[1]};
    const int axis = tarn__view_innermost(call->in[0]);
    const bool by_row = call->out[1]->shape[axis] == 1;
    tarn__nest nest;
    *a = scale_args{};
    a->rows = rows_of<OPERANDS>(axis, views, &nest);
    *width = pack_width(*a);
    a->packs = a->rows.length / *width;
    a->partial = (double *)call->scratch;
    by_row ? cut_rows(a) : cut_columns(a);
    return by_row;
}

static size_t scratch_scale_grad(const tarn__call *call)
{
    scale_args a;
    int width;
    bool by_row = make_args(call, &a, &width);
    return a.chunks > 1 ? sizeof(double) * (size_t)(a.chunks * (by_row ? a.rows.count : a.rows.length)) : 0;
}

/* Grid: a warp a row or chunk of one; or a block a tile of columns and chunk of rows. Bytes: two reads and a write of
 * each element. */
template <typename R, typename W> static void launch_as(const tarn__call *call, const scale_args &a, bool by_row)
{
    cudaStream_t stream = stream_of(call);
    if (by_row) {
        row_kernel<R, W><<<blocks_for(a.rows.count * a.chunks, THREADS / WARP), THREADS, 0, stream>>>(a);
        if (a.chunks > 1)
            combine_rows<<<blocks_for(a.rows.count, THREADS / WARP), THREADS, 0, stream>>>(a);
        return;
    }
    dim3 grid(blocks_for(a.packs, (int64_t)1 << a.width_bits), (unsigned)a.chunks);
    column_kernel<R, W><<<grid, THREADS, 0, stream>>>(a);
    if (a.chunks > 1)
        combine_columns<<<blocks_for(a.rows.length, WARP), dim3(WARP, SLICES), 0, stream>>>(a);
}

template <typename T> static void launch_packs(const tarn__call *call, const scale_args &a, bool by_row)
{
    constexpr int N = pack_size<T>::value;
    if (call->out[0] && call->out[0]->dtype != call->in[0]->dtype)
        launch_as<typed<T, N>, typed<float, N>>(call, a, by_row);
    else
        launch_as<typed<T, N>, typed<T, N>>(call, a, by_row);
}

static void run_scale_grad(const tarn__call *call)
{
    scale_args a;
    int width;
    bool by_row = make_args(call, &a, &width);
    tarn_dtype dtype = call->in[0]->dtype;
    if (a.rows.length == 0 || (by_row && a.rows.count == 0))
        return;
    if (width > 1 && dtype == TARN_F32)
        launch_as<typed<float, 4>, typed<float, 4>>(call, a, by_row);
    else if (width > 1 && dtype == TARN_BF16)
        launch_packs<bf16>(call, a, by_row);
    else if (width > 1)
        launch_packs<f16>(call, a, by_row);
    else if (dtype == TARN_F64)
        launch_as<untyped<double>, untyped<double>>(call, a, by_row);
    else
        launch_as<untyped<float>, untyped<float>>(call, a, by_row);
}

void tarn__cuda_scale_grad(tarn__kernel_row *rows)
{
    rows[TARN__K_scale_grad] = tarn__kernel_row{run_scale_grad, TARN__FLOATS, scratch_scale_grad};
}
