/* softmax_grad_from_x.cu: the gradients of softmax and log_softmax of 16-bit operands. Their result was rounded, so it
 * is made again from x, with e = exp(x - largest): gx = e / Σe · (g - Σ g e / Σe), and g - e / Σe · Σ g. Read x and g
 * once, write gx once, but for very long rows and columns, and for rows that are not made of packs (see softmax.cuh).
 * The gradient of a leaf is f32. */
#include "backends/cuda/softmax/softmax.cuh"

/* ---- what a row comes to ----------------------------------------------------------------------------------------- */

/* e^x for x up to 0: of what is made of it 11 bits are kept. Off by |x| · 2^-24 and the last two bits; subnormal where
 * f32 is. */
__device__ __forceinline__ float exponential_below(float x)
{
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}
__device__ __forceinline__ double exponential_below(double x)
{
    return exp(x);
}

/* What every element needs: 1 / Σe, and Σ g e / Σe or Σ g. */
template <typename C> struct row_numbers {
    C most, inverse, dot;
    bool is_log, is_far;
    __device__ __forceinline__ row_numbers(C largest, C sum, C dots, bool log_form)
    {
        most = largest;
        inverse = 1 / sum;
        dot = log_form ? dots : dots * inverse;
        is_log = log_form;
        is_far = log_form && !(fabs((double)dot) < 0x1p64);
    }
    __device__ __forceinline__ C of(C x, C g) const
    {
        if (is_far) /* times a sum so large, an exponential below f32's range still counts */
            return far_of(x, g);
        const C e = exponential_below(x - most);
        return is_log ? g - e * inverse * dot : e * inverse * (g - dot);
    }
    /* Not inlined: it is rare, and would be there once for every element. */
    __device__ __noinline__ C far_of(C x, C g) const
    {
        return (C)((double)g - exp((double)x - (double)most) * (double)inverse * (double)dot);
    }
};

/* A running sum of exponentials, and one of g e, or of g. */
template <typename C> struct weighted {
    C most;
    double sum, dot;

    template <int N> __device__ __forceinline__ void take(const C *x, const C *g, bool is_log)
    {
        C here = x[0], part = 0, dots = 0;
#pragma unroll
        for (int i = 1; i < N; i++)
            here = take_larger::of(here, x[i]);
        if (here > most)
            raise_to(here, is_log);
        C shift = most == minus_infinity<C>() ? (C)0 : most;
#pragma unroll
        for (int i = 0; i < N; i++) {
            C e = exponential_below(x[i] - shift);
            part += e;
            dots += is_log ? g[i] : e * g[i];
        }
        sum += (double)part;
        dot += (double)dots;
    }

    /* Brings the sums to a largest element that is at least this one. */
    __device__ __forceinline__ void raise_to(C all, bool is_log)
    {
        double factor = most == all ? 1.0 : (double)exponential(most - all);
        sum *= factor;
        dot = is_log ? dot : dot * factor;
        most = all;
    }
};

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* P packs of x and of g a thread in registers; exponentials are made twice, since to keep them would leave room for
 * half as many rows. R reads, W writes as many elements. */
template <typename R, typename W, int P, bool is_warp>
static __global__ void __launch_bounds__(is_warp ? WARP *WARPS_A_BLOCK : 1024, is_warp ? 8 : 1)
    held_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    int64_t row = row_number<is_warp>(), offset[OPERANDS];
    if (row >= a.rows.count)
        return;
    const int packs = (int)(a.rows.length / N), me = row_thread<is_warp>(), threads = row_threads<is_warp>();
    locate_row(a.rows, row, offset);
    typename R::raw x[P], g[P];
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < packs) {
            x[p] = R::fetch(a.rows.operand[IN], offset[IN], me + p * threads);
            g[p] = R::fetch(a.rows.operand[GRADIENT], offset[GRADIENT], me + p * threads);
        }
    C most = minus_infinity<C>(), sum = 0, dots = 0;
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < packs) {
#pragma unroll
            for (int i = 0; i < N; i++)
                most = take_larger::of(most, R::element(x[p], i));
        }
    most = over_row<is_warp, take_larger>(most, minus_infinity<C>());
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < packs) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                C e = exponential_below(R::element(x[p], i) - most);
                sum += e;
                dots += a.is_log ? R::element(g[p], i) : e * R::element(g[p], i);
            }
        }
    sum = over_row<is_warp, add_up>(sum, (C)0);
    dots = over_row<is_warp, add_up>(dots, (C)0);
    const row_numbers<C> by(most, sum, dots, a.is_log);
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < packs) {
            C gx[N];
#pragma unroll
            for (int i = 0; i < N; i++)
                gx[i] = by.of(R::element(x[p], i), R::element(g[p], i));
            W::store(a.rows.operand[OUT], offset[OUT], me + p * threads, gx);
        }
}

template <typename R>
__device__ __forceinline__ void elements_of(const softmax_args &a, int k, const int64_t *offset, int64_t at,
                                            typename R::real *x)
{
    typename R::raw raw = R::fetch(a.rows.operand[k], offset[k], at);
#pragma unroll
    for (int i = 0; i < R::width; i++)
        x[i] = R::element(raw, i);
}

template <typename R, typename W>
__device__ __forceinline__ void write_slopes(const softmax_args &a, const int64_t *offset, int64_t at,
                                             const row_numbers<typename R::real> &by)
{
    typename R::real x[R::width], g[R::width];
    elements_of<R>(a, IN, offset, at, x);
    elements_of<R>(a, GRADIENT, offset, at, g);
#pragma unroll
    for (int i = 0; i < R::width; i++)
        x[i] = by.of(x[i], g[i]);
    W::store(a.rows.operand[OUT], offset[OUT], at, x);
}

/* A block a row of any length. */
template <typename R, typename W>
static __global__ void __launch_bounds__(1024) stream_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    int64_t packs = a.rows.length / R::width, offset[OPERANDS];
    locate_row(a.rows, blockIdx.x, offset);
    weighted<C> run = {minus_infinity<C>(), 0, 0};
#pragma unroll 2
    for (int64_t at = threadIdx.x; at < packs; at += blockDim.x) {
        C x[R::width], g[R::width];
        elements_of<R>(a, IN, offset, at, x);
        elements_of<R>(a, GRADIENT, offset, at, g);
        run.template take<R::width>(x, g, a.is_log);
    }
    C most = over_row<false, take_larger>(run.most, minus_infinity<C>());
    run.raise_to(most, a.is_log);
    C sum = (C)over_row<false, add_up>(run.sum, 0.0), dots = (C)over_row<false, add_up>(run.dot, 0.0);
    const row_numbers<C> by(most, sum, dots, a.is_log);
#pragma unroll 2
    for (int64_t at = threadIdx.x; at < packs; at += blockDim.x)
        write_slopes<R, W>(a, offset, at, by);
}

/* 32 neighbouring columns a block; warp s takes elements s, s + slices, ... of each. */
template <typename R, typename W>
static __global__ void __launch_bounds__(COLUMNS *MOST_SLICES) columns_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    __shared__ weighted<C> all[MOST_SLICES][COLUMNS];
    const int column = threadIdx.x, slice = threadIdx.y, slices = blockDim.y;
    int64_t row = (int64_t)blockIdx.x * COLUMNS + column, offset[OPERANDS],
            length = row < a.rows.count ? a.rows.length : 0;
    if (row < a.rows.count)
        locate_row(a.rows, row, offset);
    weighted<C> run = {minus_infinity<C>(), 0, 0};
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
    all[slice][column] = run;
    __syncthreads();
    C most = minus_infinity<C>();
    double sum = 0, dots = 0;
    for (int s = 0; s < slices; s++)
        most = take_larger::of(most, all[s][column].most);
    for (int s = 0; s < slices; s++) {
        run = all[s][column];
        run.raise_to(most, a.is_log);
        sum += run.sum;
        dots += run.dot;
    }
    const row_numbers<C> by(most, (C)sum, (C)dots, a.is_log);
    for (int64_t at = slice; at < length; at += slices)
        write_slopes<R, W>(a, offset, at, by);
}

/* ---- starting them ----------------------------------------------------------------------------------------------- */

template <typename R, typename W> static void launch_stream(const tarn__call *call, const softmax_args &a)
{
    stream_kernel<R, W><<<blocks_for(a.rows.count, 1), stream_block(a.rows.length), 0, stream_of(call)>>>(a);
}

template <typename R, typename W> static void launch_columns(const tarn__call *call, const softmax_args &a)
{
    columns_kernel<R, W><<<blocks_for(a.rows.count, COLUMNS), column_block(a.rows.length), 0, stream_of(call)>>>(a);
}

/* Rows of whole packs of 16-bit x and g, gx of type O. Grid: a warp or a block a row. Bytes: two reads and a write of
 * each element. */
template <typename T, typename O> static void launch_packs(const tarn__call *call, const softmax_args &a)
{
    constexpr int N = pack_size<T>::value, EACH = 32, HELD = 16; /* elements of a thread of a warp, and of a block */
    typedef typed<T, N> R;
    typedef typed<O, N> W;
    if (a.rows.length <= WARP * EACH)
        held_kernel<R, W, EACH / N, true><<<warp_blocks(a.rows.count), WARP * WARPS_A_BLOCK, 0, stream_of(call)>>>(a);
    else if (a.rows.length <= 1024 * HELD)
        held_kernel<R, W, HELD / N, false>
            <<<blocks_for(a.rows.count, 1), warps_for(a.rows.length, HELD, 1024), 0, stream_of(call)>>>(a);
    else
        launch_stream<R, W>(call, a);
}

/* 16-bit x and g. False where the mixture of dtypes is a rare one. */
template <typename T> static bool launch_typed(const tarn__call *call, const softmax_args &a, bool by_columns)
{
    constexpr int N = pack_size<T>::value;
    tarn_dtype dtype = call->in[0]->dtype, out = call->out[0]->dtype;
    bool is_packed =
        !by_columns && has_packs(a.rows, OUT, N) && has_packs(a.rows, IN, N) && has_packs(a.rows, GRADIENT, N);
    if (call->in[1]->dtype != dtype || (out != dtype && !(out == TARN_F32 && is_packed)))
        return false;
    if (by_columns)
        launch_columns<typed<T, 1>, typed<T, 1>>(call, a);
    else if (is_packed && out == dtype)
        launch_packs<T, T>(call, a);
    else if (is_packed)
        launch_packs<T, float>(call, a);
    else if (a.rows.length <= 512)
        held_kernel<typed<T, 1>, typed<T, 1>, 16, true>
            <<<warp_blocks(a.rows.count), WARP * WARPS_A_BLOCK, 0, stream_of(call)>>>(a);
    else
        launch_stream<typed<T, 1>, typed<T, 1>>(call, a);
    return true;
}

template <typename C> static void launch_any(const tarn__call *call, const softmax_args &a, bool by_columns)
{
    if (by_columns)
        launch_columns<untyped<C>, untyped<C>>(call, a);
    else
        launch_stream<untyped<C>, untyped<C>>(call, a);
}

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
