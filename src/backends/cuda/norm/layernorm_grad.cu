/* layernorm_grad.cu: gradients of layernorm and rmsnorm, alone or after a residual add, whose gradient is added to gx.
 *
 *   gx = rstd · (gw - mean(gw) - x̂ · mean(gw · x̂)) with gw = g · weight and x̂ = (x - mean) · rstd;
 *   rmsnorm lacks the first mean
 *
 * The gradients of weight and bias are column sums, Σ g · x̂ and Σ g. Rows are split into chunks by their number and
 * length alone. A block owns a chunk; its threads own columns and accumulate them over the chunk's rows in registers.
 * The chunks' sums (chunks, 2, length) go to scratch, and a second kernel adds them in order, in f64. Bytes: x and g
 * read, gx written, once each; the sums are a few per cent more.
 *
 *   registers  rows of up to 1,024 elements: the block's warps take rows in turn, and are added when the chunk is done;
 *              rows of up to 8,192: the block takes one row after the other
 *   async      the same for 16-bit rows of up to 1,024 elements in vectors: layernorm_grad_async.cuh
 *   stream     anything else: rows are read twice, and the column sums are kept in scratch */
#include "backends/cuda/norm/layernorm_grad_async.cuh"

#define WARP_ELEMENTS 32       /* elements of a row per thread, by warp */
#define WARP_ELEMENTS_SMALL 24 /* if these are enough: leaves more registers */
#define BLOCK_ELEMENTS 16
#define MAX_BLOCK 512                       /* threads */
#define SLICES 32                           /* of the chunks, in the second kernel */
#define PARTIAL_ELEMENTS ((int64_t)8 << 20) /* approximate size of the partial sums of long rows */

/* The weight's elements of a vector, with the offset; 1 without a weight. */
template <typename R>
__device__ __forceinline__ void fetch_weight(const grad_args &a, int64_t at, typename R::real *weight)
{
    typedef typename R::real C;
    if (a.weight.base) {
        typename R::raw raw = R::fetch(a.weight, 0, at);
#pragma unroll
        for (int i = 0; i < R::width; i++)
            weight[i] = R::element(raw, i) + (C)a.offset;
    } else {
#pragma unroll
        for (int i = 0; i < R::width; i++)
            weight[i] = (C)1;
    }
}

/* Adds a vector to the row's two sums and to its columns' sums. */
template <typename R>
__device__ __forceinline__ void add_terms(const grad_args &a, const typename R::raw &x, const typename R::raw &g,
                                          int64_t at, typename R::real mean, typename R::real rstd,
                                          typename R::real *sums, typename R::real *gweight, typename R::real *gbias)
{
    typedef typename R::real C;
    C weight[R::width];
    fetch_weight<R>(a, at, weight);
#pragma unroll
    for (int i = 0; i < R::width; i++) {
        /* x̂, g and g · weight of one element */
        C hat = (R::element(x, i) - mean) * rstd, up = R::element(g, i), gw = up * weight[i];
        sums[0] += gw;
        sums[1] += gw * hat;
        gweight[i] += up * hat;
        gbias[i] += up;
    }
}

/* gx of a vector, plus the residual's gradient. */
template <typename R, bool has_residual>
__device__ __forceinline__ void write_gx(const grad_args &a, const typename R::raw &x, const typename R::raw &g,
                                         int64_t to, int64_t residual_row, int64_t at, typename R::real mean,
                                         typename R::real rstd, const typename R::real *means)
{
    typedef typename R::real C;
    C weight[R::width], gx[R::width];
    typename R::raw residual;
    if (has_residual)
        residual = R::fetch(a.rows.operand[RESIDUAL], residual_row, at);
    fetch_weight<R>(a, at, weight);
#pragma unroll
    for (int i = 0; i < R::width; i++)
        gx[i] = rstd * (R::element(g, i) * weight[i] - means[0] - (R::element(x, i) - mean) * rstd * means[1]) +
                (has_residual ? R::element(residual, i) : (C)0);
    R::store(a.rows.operand[OUT], to, at, gx);
}

/* Means of gw and gw · x̂ over the row, from the threads' sums. */
template <bool is_warp, typename C>
__device__ __forceinline__ void row_means(const grad_args &a, const double *sums, C *means)
{
    means[0] = a.is_centred ? mean_of(row_reduce<is_warp, plus>(sums[0], 0.0), a.length, a.inverse, (C)0) : (C)0;
    means[1] = mean_of(row_reduce<is_warp, plus>(sums[1], 0.0), a.length, a.inverse, (C)0);
}

/* One row, P vectors of x and of g per thread in registers. */
template <typename R, int P, bool is_warp, bool has_residual>
__device__ __forceinline__ void grad_row(const grad_args &a, int64_t row, typename R::real (*gweight)[R::width],
                                         typename R::real (*gbias)[R::width])
{
    typedef typename R::real C;
    const int vecs = (int)(a.rows.length / R::width), me = row_thread<is_warp>(), threads = row_threads<is_warp>();
    int64_t offset[OPERANDS];
    locate_row(a.rows, row, offset);
    typename R::raw x[P], g[P];
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
            x[p] = R::fetch(a.rows.operand[IN], offset[IN], me + p * threads);
            g[p] = R::fetch(a.rows.operand[GRADIENT], offset[GRADIENT], me + p * threads);
        }
    C mean = load_row_stat<C>(a, MEAN, offset[MEAN]), rstd = load_row_stat<C>(a, RSTD, offset[RSTD]), sums[2] = {0, 0},
      means[2];
    if constexpr (P == 1 && sizeof(C) == 8)
        if (a.is_short) /* the saved statistics were rounded: recompute them */
            row_stats<R, P, is_warp>(x, vecs, a.is_centred, a.length, a.inverse, a.epsilon, &mean, &rstd);
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs)
            add_terms<R>(a, x[p], g[p], me + p * threads, mean, rstd, sums, gweight[p], gbias[p]);
    if (!a.wants_gx)
        return;
    const double parts[2] = {(double)sums[0], (double)sums[1]};
    row_means<is_warp>(a, parts, means);
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs)
            write_gx<R, has_residual>(a, x[p], g[p], offset[OUT], offset[RESIDUAL], me + p * threads, mean, rstd,
                                      means);
}

/* Writes a chunk's column sums: directly if the block's threads own them, added over the warps in order if each warp
 * has its own. */
template <typename R, int P, bool is_warp>
__device__ __forceinline__ void write_partial(const grad_args &a, int operand, const typename R::real (*sums)[R::width])
{
    typedef typename R::real C;
    constexpr int N = R::width;
    __shared__ C space[is_warp ? WARPS_PER_BLOCK : 1][is_warp ? P * N * WARP : 1];
    const int vecs = (int)(a.rows.length / N), me = row_thread<is_warp>(), threads = row_threads<is_warp>();
    C *to = (C *)a.partial + ((int64_t)blockIdx.x * 2 + operand) * a.rows.length;
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                int column = (me + p * threads) * N + i;
                if (is_warp)
                    space[threadIdx.x / WARP][column] = sums[p][i];
                else
                    to[column] = sums[p][i];
            }
        }
    if (!is_warp)
        return;
    __syncthreads();
    for (int column = threadIdx.x; column < (int)a.rows.length; column += WARP * WARPS_PER_BLOCK) {
        C sum = space[0][column];
        for (int warp = 1; warp < WARPS_PER_BLOCK; warp++)
            sum += space[warp][column];
        to[column] = sum;
    }
    __syncthreads();
}

template <typename R, int P, bool is_warp, bool has_residual>
static __global__ void __launch_bounds__(is_warp ? WARP *WARPS_PER_BLOCK : MAX_BLOCK, is_warp ? 3 : 1)
    register_kernel(const __grid_constant__ grad_args a)
{
    typedef typename R::real C;
    C gweight[P][R::width] = {}, gbias[P][R::width] = {};
    int64_t row = blockIdx.x * a.chunk_rows,
            end = row + a.chunk_rows < a.rows.count ? row + a.chunk_rows : a.rows.count;
    /* rows of the chunk: in turn by warps, or all threads together */
    for (row += is_warp ? threadIdx.x / WARP : 0; row < end; row += is_warp ? WARPS_PER_BLOCK : 1)
        grad_row<R, P, is_warp, has_residual>(a, row, gweight, gbias);
    if (a.wants_weight)
        write_partial<R, P, is_warp>(a, 0, gweight);
    if (a.wants_bias)
        write_partial<R, P, is_warp>(a, 1, gbias);
}

/* A thread owns the same columns in every row, so it may accumulate them in scratch. */
template <typename C, bool has_residual>
static __global__ void __launch_bounds__(THREADS) stream_kernel(const __grid_constant__ grad_args a)
{
    typedef untyped<C> R;
    const int64_t length = a.rows.length;
    C *partial = (C *)a.partial + (int64_t)blockIdx.x * 2 * length;
    for (int64_t at = threadIdx.x; at < length; at += blockDim.x) {
        if (a.wants_weight)
            partial[at] = 0;
        if (a.wants_bias)
            partial[length + at] = 0;
    }
    int64_t row = blockIdx.x * a.chunk_rows,
            end = row + a.chunk_rows < a.rows.count ? row + a.chunk_rows : a.rows.count, offset[OPERANDS];
    for (; row < end; row++) {
        locate_row(a.rows, row, offset);
        C mean = load_row_stat<C>(a, MEAN, offset[MEAN]), rstd = load_row_stat<C>(a, RSTD, offset[RSTD]), means[2];
        double sums[2] = {0, 0};
        for (int64_t at = threadIdx.x; at < length; at += blockDim.x) {
            C terms[2] = {0, 0}, gweight = 0, gbias = 0;
            add_terms<R>(a, R::fetch(a.rows.operand[IN], offset[IN], at),
                         R::fetch(a.rows.operand[GRADIENT], offset[GRADIENT], at), at, mean, rstd, terms, &gweight,
                         &gbias);
            sums[0] += (double)terms[0];
            sums[1] += (double)terms[1];
            if (a.wants_weight)
                partial[at] += gweight;
            if (a.wants_bias)
                partial[length + at] += gbias;
        }
        if (!a.wants_gx)
            continue;
        /* second read of the row: its means are known now */
        row_means<false>(a, sums, means);
        for (int64_t at = threadIdx.x; at < length; at += blockDim.x)
            write_gx<R, has_residual>(a, R::fetch(a.rows.operand[IN], offset[IN], at),
                                      R::fetch(a.rows.operand[GRADIENT], offset[GRADIENT], at), offset[OUT],
                                      offset[RESIDUAL], at, mean, rstd, means);
    }
}

/* Partial sums of all chunks; a destination without a base is skipped. */
struct combine_args {
    const void *partial;
    row_operand to[2];
    int64_t chunks, length;
};

/* 32 columns per block; warp s adds chunks s, s + 32, ..., and the first warp adds the warps. Grid: (columns / 32, 2)
 * for weight and bias. */
template <typename C>
static __global__ void __launch_bounds__(WARP *SLICES) combine_kernel(const __grid_constant__ combine_args a)
{
    __shared__ double space[SLICES][WARP];
    const row_operand &to = a.to[blockIdx.y];
    int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.x;
    if (!to.base)
        return;
    const C *from = (const C *)a.partial + blockIdx.y * a.length + column;
    double sum = 0;
    if (column < a.length) {
#pragma unroll 8
        /* each warp adds every 32nd chunk, coalesced over columns */
        for (int64_t chunk = threadIdx.y; chunk < a.chunks; chunk += SLICES)
            sum += (double)from[chunk * 2 * a.length];
    }
    space[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= a.length)
        return;
    for (int slice = 1; slice < SLICES; slice++)
        sum += space[slice][threadIdx.x];
    store_any(to.base, to.dtype, column * to.along, sum);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Kernel, by dtype and shape alone. */
enum grad_kind { SHORT, BY_WARP, BY_BLOCK, STREAM };

/* The kernel, and the chunks of rows. */
struct grad_plan {
    grad_kind kind;
    bool in_double;
    int64_t rows, length, chunk_rows, chunks;
};

/* The number of chunks fills 132 multiprocessors evenly with as many blocks as their registers hold, once. Rows per
 * chunk are bounded because they are added in f32. */
static grad_plan plan_of(const layernorm_grad *of)
{
    const tarn__view *x = of->x;
    grad_plan p = {};
    p.length = x->shape[x->rank - 1];
    p.rows = p.length > 0 ? tarn__view_count(x) / p.length : 0;
    bool is_same = of->g->dtype == x->dtype && (!of->weight || of->weight->dtype == x->dtype) &&
                   (!of->gx || of->gx->dtype == x->dtype) && (!of->residual || of->residual->dtype == x->dtype);
    p.in_double = x->dtype == TARN_F64 || p.length <= SHORT_ROW;
    p.kind = p.length <= SHORT_ROW                                              ? SHORT
             : p.in_double || !is_same || p.length > MAX_BLOCK * BLOCK_ELEMENTS ? STREAM
             : p.length <= WARP * WARP_ELEMENTS                                 ? BY_WARP
                                                                                : BY_BLOCK;
    const bool is_short_async = p.kind == BY_WARP && p.length <= ASYNC_SHORT && tarn__dtype_bytes(x->dtype) == 2;
    int64_t partial_rows = PARTIAL_ELEMENTS / (p.length > 0 ? p.length : 1), min_rows = p.kind == SHORT     ? 32
                                                                                        : p.kind == BY_WARP ? 8
                                                                                                            : 2;
    int64_t max_chunks = p.kind == SHORT          ? 132 * 16
                         : is_short_async         ? 132 * ASYNC_BLOCKS_SHORT
                         : p.kind != STREAM       ? 132 * ASYNC_BLOCKS
                         : partial_rows < 132     ? 132
                         : partial_rows < 132 * 4 ? partial_rows
                                                  : 132 * 4;
    p.chunk_rows = (p.rows + max_chunks - 1) / max_chunks;
    p.chunk_rows = p.chunk_rows < min_rows ? min_rows : p.chunk_rows > 512 && p.kind != STREAM ? 512 : p.chunk_rows;
    p.chunks = (p.rows + p.chunk_rows - 1) / p.chunk_rows;
    return p;
}

/* Scratch: partial sums of weight and bias, for all chunks. */
tarn__plan_status tarn__cuda_prepare_layernorm_grad(tarn__plan *plan, const layernorm_grad *of)
{
    grad_plan *p = reserve_job<grad_plan>(plan);
    if (!p)
        return TARN__PLAN_FAILED;
    *p = plan_of(of);
    if (of->gweight || of->gbias)
        plan->scratch_bytes = (size_t)(2 * p->chunks * p->length) * (p->in_double ? sizeof(double) : sizeof(float));
    return TARN__PLAN_READY;
}

/* Grid: a block per chunk. True if dropout was fused. */
template <typename T, bool has_residual>
static bool launch(const tarn__call *call, const grad_plan &p, const grad_args &a)
{
    constexpr int N = vec_size<T>::value;
    bool is_vectorized = has_vecs(a.rows, OUT, N) && has_vecs(a.rows, IN, N) && has_vecs(a.rows, GRADIENT, N) &&
                         has_vecs(a.rows, RESIDUAL, N) && vector_has_vecs(a.weight, N);
    unsigned blocks = (unsigned)p.chunks, threads = warps_for(p.length, BLOCK_ELEMENTS, MAX_BLOCK);
    cudaStream_t stream = stream_of(call);
    if (p.kind == BY_WARP && is_vectorized) {
        if constexpr (sizeof(T) == 2) {
            if (a.dropped)
                launch_async<T, has_residual, true>(a, blocks, stream);
            else
                launch_async<T, has_residual, false>(a, blocks, stream);
            return a.dropped != NULL;
        } else if (p.length <= WARP * WARP_ELEMENTS_SMALL)
            register_kernel<typed<T, N>, WARP_ELEMENTS_SMALL / N, true, has_residual>
                <<<blocks, WARP * WARPS_PER_BLOCK, 0, stream>>>(a);
        else
            register_kernel<typed<T, N>, WARP_ELEMENTS / N, true, has_residual>
                <<<blocks, WARP * WARPS_PER_BLOCK, 0, stream>>>(a);
    } else if (p.kind == BY_WARP) {
        register_kernel<typed<T, 1>, WARP_ELEMENTS, true, has_residual>
            <<<blocks, WARP * WARPS_PER_BLOCK, 0, stream>>>(a);
    } else if (is_vectorized) {
        register_kernel<typed<T, N>, BLOCK_ELEMENTS / N, false, has_residual><<<blocks, threads, 0, stream>>>(a);
    } else {
        register_kernel<typed<T, 1>, BLOCK_ELEMENTS, false, has_residual><<<blocks, threads, 0, stream>>>(a);
    }
    return false;
}

/* Dispatches on the plan's kind and the dtype. True if dropout was fused. */
template <bool has_residual> static bool launch_chunks(const tarn__call *call, const grad_plan &p, const grad_args &a)
{
    tarn_dtype dtype = call->in[0]->dtype;
    unsigned blocks = (unsigned)p.chunks, threads = warps_for(p.length, 1, THREADS);
    if (p.kind == SHORT)
        register_kernel<untyped<double>, 1, true, has_residual>
            <<<blocks, WARP * WARPS_PER_BLOCK, 0, stream_of(call)>>>(a);
    else if (p.kind == STREAM && p.in_double)
        stream_kernel<double, has_residual><<<blocks, threads, 0, stream_of(call)>>>(a);
    else if (p.kind == STREAM)
        stream_kernel<float, has_residual><<<blocks, threads, 0, stream_of(call)>>>(a);
    else
        return dtype == TARN_F32    ? launch<float, has_residual>(call, p, a)
               : dtype == TARN_BF16 ? launch<bf16, has_residual>(call, p, a)
                                    : launch<f16, has_residual>(call, p, a);
    return false;
}

/* Also without rows: the sums are 0 then. */
static void launch_combine(const tarn__call *call, const grad_plan &p, const layernorm_grad *of)
{
    combine_args a = {call->scratch, {vector_of(of->gweight), vector_of(of->gbias)}, p.chunks, p.length};
    if (p.length == 0 || (!a.to[0].base && !a.to[1].base))
        return;
    dim3 blocks(blocks_for(p.length, WARP), 2), threads(WARP, SLICES);
    if (p.in_double)
        combine_kernel<double><<<blocks, threads, 0, stream_of(call)>>>(a);
    else
        combine_kernel<float><<<blocks, threads, 0, stream_of(call)>>>(a);
}

/* Chunks, then the sum over chunks. gx may be skipped: x then stands in for its addresses. */
void tarn__cuda_run_layernorm_grad(const tarn__call *call, const layernorm_grad *of)
{
    const tarn__view *views[OPERANDS] = {of->gx ? of->gx : of->x, of->x, of->mean, of->rstd, of->g, of->residual};
    const grad_plan &p = *job_of<grad_plan>(call);
    tarn__nest nest;
    grad_args a = {};
    a.rows = rows_of<OPERANDS>(of->x->rank - 1, views, &nest);
    a.weight = vector_of(of->weight);
    a.wants_gx = of->gx != NULL;
    a.wants_weight = of->gweight != NULL;
    a.wants_bias = of->gbias != NULL;
    a.is_centred = of->is_centred;
    a.is_short = p.kind == SHORT;
    a.epsilon = of->epsilon;
    a.offset = of->weight ? of->offset : 0;
    a.length = (double)p.length;
    a.inverse = 1 / a.length;
    a.chunk_rows = p.chunk_rows;
    a.partial = call->scratch;
    if (of->dropped) {
        a.dropped = tarn__view_at(of->dropped);
        a.drop = dropout::of(of->random);
        a.random = source{of->random->seed, of->random->offset, of->random->live};
    }
    if (p.chunks > 0 && !(of->residual ? launch_chunks<true>(call, p, a) : launch_chunks<false>(call, p, a)) &&
        of->dropped)
        tarn__cuda_dropout(call, of->random, of->gx, of->dropped);
    launch_combine(call, p, of);
}
