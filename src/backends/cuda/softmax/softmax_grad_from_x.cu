/* softmax_grad_from_x.cu: gradients of softmax and log_softmax of 16-bit operands. Their result was rounded, so it is
 * recomputed from x, with e = exp(x - max): gx = e / Σe · (g - Σ g e / Σe), and g - e / Σe · Σ g. Bytes: x and g read
 * once, gx written once, except for very long rows and columns, and for rows that are no whole vectors (softmax.cuh).
 * The gradient of a leaf is f32. */
#include "backends/cuda/softmax/softmax.cuh"

/* ---- row statistics ---------------------------------------------------------------------------------------------- */

/* e^x for x <= 0: 11 bits of the result are kept. Error |x| · 2^-24 and two units in the last place; subnormal where
 * f32 is. */
__device__ __forceinline__ float exp_nonpositive(float x)
{
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}
__device__ __forceinline__ double exp_nonpositive(double x)
{
    return exp(x);
}

/* What every element needs: 1 / Σe, and Σ g e / Σe or Σ g. */
template <typename C> struct row_factors {
    C row_max, inverse, dot;
    bool is_log, needs_f64;
    __device__ __forceinline__ row_factors(C largest, C sum, C dots, bool log_form)
    {
        row_max = largest;
        inverse = 1 / sum;
        dot = log_form ? dots : dots * inverse;
        is_log = log_form;
        needs_f64 = log_form && !(fabs((double)dot) < 0x1p64);
    }
    __device__ __forceinline__ C of(C x, C g) const
    {
        if (needs_f64) /* times so large a sum, an exponential below f32's range still counts */
            return of_f64(x, g);
        const C e = exp_nonpositive(x - row_max);
        return is_log ? g - e * inverse * dot : e * inverse * (g - dot);
    }
    /* Not inlined: rare, and it would be repeated for every element. */
    __device__ __noinline__ C of_f64(C x, C g) const
    {
        return (C)((double)g - exp((double)x - (double)row_max) * (double)inverse * (double)dot);
    }
};

/* Online softmax with a second sum: of g e, or of g. */
template <typename C> struct weighted_softmax {
    C row_max;
    double sum, dot;

    template <int N> __device__ __forceinline__ void take(const C *x, const C *g, bool is_log)
    {
        C here = x[0], part = 0, dots = 0;
#pragma unroll
        for (int i = 1; i < N; i++)
            here = max_op::of(here, x[i]);
        if (here > row_max)
            rescale_to(here, is_log);
        C shift = row_max == minus_infinity<C>() ? (C)0 : row_max;
#pragma unroll
        for (int i = 0; i < N; i++) {
            C e = exp_nonpositive(x[i] - shift);
            part += e;
            dots += is_log ? g[i] : e * g[i];
        }
        sum += (double)part;
        dot += (double)dots;
    }

    /* Rescales the sums to a max that is at least this one. */
    __device__ __forceinline__ void rescale_to(C all, bool is_log)
    {
        double factor = row_max == all ? 1.0 : (double)exp_of(row_max - all);
        sum *= factor;
        dot = is_log ? dot : dot * factor;
        row_max = all;
    }
};

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* P vectors of x and of g per thread in registers; exponentials are computed twice, since keeping them would halve the
 * number of resident rows. R reads, W writes as many elements. */
template <typename R, typename W, int P, bool is_warp>
static __global__ void __launch_bounds__(is_warp ? WARP *WARPS_PER_BLOCK : 1024, is_warp ? 8 : 1)
    register_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    int64_t row = row_number<is_warp>(), offset[OPERANDS];
    if (row >= a.rows.count)
        return;
    const int vecs = (int)(a.rows.length / N), me = row_thread<is_warp>(), threads = row_threads<is_warp>();
    locate_row(a.rows, row, offset);
    typename R::raw x[P], g[P];
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
            x[p] = R::fetch(a.rows.operand[IN], offset[IN], me + p * threads);
            g[p] = R::fetch(a.rows.operand[GRADIENT], offset[GRADIENT], me + p * threads);
        }
    C row_max = minus_infinity<C>(), sum = 0, dots = 0;
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
#pragma unroll
            for (int i = 0; i < N; i++)
                row_max = max_op::of(row_max, R::element(x[p], i));
        }
    /* x and g stay in registers over three steps: max, sums, gradient */
    row_max = row_reduce<is_warp, max_op>(row_max, minus_infinity<C>());
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                C e = exp_nonpositive(R::element(x[p], i) - row_max);
                sum += e;
                dots += a.is_log ? R::element(g[p], i) : e * R::element(g[p], i);
            }
        }
    sum = row_reduce<is_warp, plus>(sum, (C)0);
    dots = row_reduce<is_warp, plus>(dots, (C)0);
    const row_factors<C> by(row_max, sum, dots, a.is_log);
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
            C gx[N];
#pragma unroll
            for (int i = 0; i < N; i++)
                gx[i] = by.of(R::element(x[p], i), R::element(g[p], i));
            W::store(a.rows.operand[OUT], offset[OUT], me + p * threads, gx);
        }
}

/* Loads and widens one vector. */
template <typename R>
__device__ __forceinline__ void elements_of(const softmax_args &a, int k, const int64_t *offset, int64_t at,
                                            typename R::real *x)
{
    typename R::raw raw = R::fetch(a.rows.operand[k], offset[k], at);
#pragma unroll
    for (int i = 0; i < R::width; i++)
        x[i] = R::element(raw, i);
}

/* One vector of gx, rereading x and g. */
template <typename R, typename W>
__device__ __forceinline__ void write_grads(const softmax_args &a, const int64_t *offset, int64_t at,
                                            const row_factors<typename R::real> &by)
{
    typename R::real x[R::width], g[R::width];
    elements_of<R>(a, IN, offset, at, x);
    elements_of<R>(a, GRADIENT, offset, at, g);
#pragma unroll
    for (int i = 0; i < R::width; i++)
        x[i] = by.of(x[i], g[i]);
    W::store(a.rows.operand[OUT], offset[OUT], at, x);
}

/* One block per row of any length. */
template <typename R, typename W>
static __global__ void __launch_bounds__(1024) stream_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    int64_t vecs = a.rows.length / R::width, offset[OPERANDS];
    locate_row(a.rows, blockIdx.x, offset);
    weighted_softmax<C> run = {minus_infinity<C>(), 0, 0};
#pragma unroll 2
    for (int64_t at = threadIdx.x; at < vecs; at += blockDim.x) {
        C x[R::width], g[R::width];
        elements_of<R>(a, IN, offset, at, x);
        elements_of<R>(a, GRADIENT, offset, at, g);
        run.template take<R::width>(x, g, a.is_log);
    }
    C row_max = row_reduce<false, max_op>(run.row_max, minus_infinity<C>());
    /* merge the threads' states: rescale to the common max, then add */
    run.rescale_to(row_max, a.is_log);
    C sum = (C)row_reduce<false, plus>(run.sum, 0.0), dots = (C)row_reduce<false, plus>(run.dot, 0.0);
    const row_factors<C> by(row_max, sum, dots, a.is_log);
#pragma unroll 2
    for (int64_t at = threadIdx.x; at < vecs; at += blockDim.x)
        write_grads<R, W>(a, offset, at, by);
}

/* 32 adjacent columns per block; warp s takes elements s, s + slices, ... of each. */
template <typename R, typename W>
static __global__ void __launch_bounds__(COLUMNS *MAX_SLICES) columns_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    __shared__ weighted_softmax<C> all[MAX_SLICES][COLUMNS];
    const int column = threadIdx.x, slice = threadIdx.y, slices = blockDim.y;
    int64_t row = (int64_t)blockIdx.x * COLUMNS + column, offset[OPERANDS],
            length = row < a.rows.count ? a.rows.length : 0;
    if (row < a.rows.count)
        locate_row(a.rows, row, offset);
    weighted_softmax<C> run = {minus_infinity<C>(), 0, 0};
    for (int64_t at = slice; at < length; at += 4 * slices) {
        C x[4], g[4];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            bool is_there = at + u * slices < length;
            x[u] = is_there ? R::element(R::fetch(a.rows.operand[IN], offset[IN], at + u * slices), 0)
                            : minus_infinity<C>();
            g[u] =
                is_there ? R::element(R::fetch(a.rows.operand[GRADIENT], offset[GRADIENT], at + u * slices), 0) : (C)0;
        }
        run.template take<4>(x, g, a.is_log);
    }
    /* one state per slice and column, merged in order by every warp */
    all[slice][column] = run;
    __syncthreads();
    C row_max = minus_infinity<C>();
    double sum = 0, dots = 0;
    for (int s = 0; s < slices; s++)
        row_max = max_op::of(row_max, all[s][column].row_max);
    for (int s = 0; s < slices; s++) {
        run = all[s][column];
        run.rescale_to(row_max, a.is_log);
        sum += run.sum;
        dots += run.dot;
    }
    const row_factors<C> by(row_max, (C)sum, (C)dots, a.is_log);
    for (int64_t at = slice; at < length; at += slices)
        write_grads<R, W>(a, offset, at, by);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Grid: a block per row. */
template <typename R, typename W> static void launch_stream(const tarn__call *call, const softmax_args &a)
{
    stream_kernel<R, W><<<blocks_for(a.rows.count, 1), stream_block(a.rows.length), 0, stream_of(call)>>>(a);
}

/* Grid: a block per 32 columns. */
template <typename R, typename W> static void launch_columns(const tarn__call *call, const softmax_args &a)
{
    columns_kernel<R, W><<<blocks_for(a.rows.count, COLUMNS), column_block(a.rows.length), 0, stream_of(call)>>>(a);
}

/* Rows of vectors of 16-bit x and g; gx of type O. Grid: a warp or a block per row. Bytes: two reads and a write per
 * element. */
template <typename T, typename O> static void launch_packs(const tarn__call *call, const softmax_args &a)
{
    /* elements per thread of a warp, and of a block */
    constexpr int N = vec_size<T>::value, WARP_ELEMENTS = 32, BLOCK_ELEMENTS = 16;
    typedef typed<T, N> R;
    typedef typed<O, N> W;
    if (a.rows.length <= WARP * WARP_ELEMENTS)
        register_kernel<R, W, WARP_ELEMENTS / N, true>
            <<<warp_blocks(a.rows.count), WARP * WARPS_PER_BLOCK, 0, stream_of(call)>>>(a);
    else if (a.rows.length <= 1024 * BLOCK_ELEMENTS)
        register_kernel<R, W, BLOCK_ELEMENTS / N, false>
            <<<blocks_for(a.rows.count, 1), warps_for(a.rows.length, BLOCK_ELEMENTS, 1024), 0, stream_of(call)>>>(a);
    else
        launch_stream<R, W>(call, a);
}

/* 16-bit x and g. False for a rare dtype mixture. */
template <typename T> static bool launch_typed(const tarn__call *call, const softmax_args &a, bool by_columns)
{
    constexpr int N = vec_size<T>::value;
    tarn_dtype dtype = call->in[0]->dtype, out = call->out[0]->dtype;
    bool is_vectorized =
        !by_columns && has_vecs(a.rows, OUT, N) && has_vecs(a.rows, IN, N) && has_vecs(a.rows, GRADIENT, N);
    if (call->in[1]->dtype != dtype || (out != dtype && !(out == TARN_F32 && is_vectorized)))
        return false;
    if (by_columns)
        launch_columns<typed<T, 1>, typed<T, 1>>(call, a);
    else if (is_vectorized && out == dtype)
        launch_packs<T, T>(call, a);
    else if (is_vectorized)
        launch_packs<T, float>(call, a);
    else if (a.rows.length <= 512)
        register_kernel<typed<T, 1>, typed<T, 1>, 16, true>
            <<<warp_blocks(a.rows.count), WARP * WARPS_PER_BLOCK, 0, stream_of(call)>>>(a);
    else
        launch_stream<typed<T, 1>, typed<T, 1>>(call, a);
    return true;
}

/* Dtype mixtures, element by element. */
template <typename C> static void launch_any(const tarn__call *call, const softmax_args &a, bool by_columns)
{
    if (by_columns)
        launch_columns<untyped<C>, untyped<C>>(call, a);
    else
        launch_stream<untyped<C>, untyped<C>>(call, a);
}

/* Inputs x and g. */
void tarn__cuda_run_softmax_grad_from_x(const tarn__call *call, bool is_log)
{
    const tarn__view *views[OPERANDS] = {call->out[0], call->in[0], call->in[1]};
    softmax_args a = {};
    tarn__nest nest;
    a.is_log = is_log;
    a.rows = rows_of<OPERANDS>(((const tarn__along *)call->params)->axis, views, &nest);
    if (a.rows.count == 0 || a.rows.length == 0)
        return;
    tarn_dtype dtype = call->in[0]->dtype;
    bool by_columns = has_columns(nest, a.rows);
    if ((dtype == TARN_BF16 && launch_typed<bf16>(call, a, by_columns)) ||
        (dtype == TARN_F16 && launch_typed<f16>(call, a, by_columns)))
        return;
    if (dtype == TARN_F64 || call->out[0]->dtype == TARN_F64)
        launch_any<double>(call, a, by_columns);
    else
        launch_any<float>(call, a, by_columns);
}
