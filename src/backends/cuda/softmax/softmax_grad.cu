/* softmax_grad.cu: gradients of softmax, y · (g - Σ g y), and of log_softmax, g - exp(y) · Σ g. Bytes: y and g read
 * once, gx written once, except for very long rows and columns (softmax.cuh).
 *
 * Σ g y is summed in f64 and subtracted in two parts: a row with one large element leaves little of g - Σ g y. */
#include "backends/cuda/softmax/softmax.cuh"

/* An element's term of the row's sum. */
template <typename C> __device__ __forceinline__ double term(C y, C g, bool is_log)
{
    return is_log ? (double)g : (double)y * (double)g;
}

/* The f64 sum as a value of the compute type and its rounding error. */
template <typename C> struct split_sum {
    C high, low;
    __device__ __forceinline__ split_sum(double sum)
    {
        high = (C)sum;
        low = isfinite(high) ? (C)(sum - (double)high) : (C)0;
    }
};

/* The gradient of one element. */
template <typename C> __device__ __forceinline__ C grad_of(C y, C g, const split_sum<C> &sum, bool is_log)
{
    /* times so large a sum, an exponential below f32's range still counts */
    if (is_log && !(fabs((double)sum.high) < 0x1p64))
        return (C)((double)g - exp((double)y) * (double)sum.high);
    return is_log ? g - exp_of(y) * sum.high : y * ((g - sum.high) - sum.low);
}

/* P vectors of y and of g per thread in registers. */
template <typename R, int P, bool is_warp>
static __global__ void __launch_bounds__(is_warp ? WARP *WARPS_PER_BLOCK : 1024)
    register_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    int64_t row = row_number<is_warp>(), offset[OPERANDS];
    if (row >= a.rows.count)
        return;
    const int vecs = (int)(a.rows.length / N), me = row_thread<is_warp>(), threads = row_threads<is_warp>();
    locate_row(a.rows, row, offset);
    typename R::raw y[P], g[P];
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
            y[p] = R::fetch(a.rows.operand[IN], offset[IN], me + p * threads);
            g[p] = R::fetch(a.rows.operand[GRADIENT], offset[GRADIENT], me + p * threads);
        }
    /* first pass: the row's sum, in f64 */
    double thread_sum = 0;
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
#pragma unroll
            for (int i = 0; i < N; i++)
                thread_sum += term(R::element(y[p], i), R::element(g[p], i), a.is_log);
        }
    /* the row's sum in f64, split once for all its elements */
    split_sum<C> sum(row_reduce<is_warp, plus>(thread_sum, 0.0));
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
            C gx[N];
#pragma unroll
            for (int i = 0; i < N; i++)
                gx[i] = grad_of(R::element(y[p], i), R::element(g[p], i), sum, a.is_log);
            R::store(a.rows.operand[OUT], offset[OUT], me + p * threads, gx);
        }
}

/* One block per row of any length. */
template <typename R>
static __global__ void __launch_bounds__(1024) stream_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    int64_t vecs = a.rows.length / N, offset[OPERANDS];
    locate_row(a.rows, blockIdx.x, offset);
    double thread_sum = 0;
#pragma unroll 2
    for (int64_t at = threadIdx.x; at < vecs; at += blockDim.x) {
        typename R::raw y = R::fetch(a.rows.operand[IN], offset[IN], at),
                        g = R::fetch(a.rows.operand[GRADIENT], offset[GRADIENT], at);
#pragma unroll
        for (int i = 0; i < N; i++)
            thread_sum += term(R::element(y, i), R::element(g, i), a.is_log);
    }
    split_sum<C> sum(row_reduce<false, plus>(thread_sum, 0.0));
#pragma unroll 2
    for (int64_t at = threadIdx.x; at < vecs; at += blockDim.x) {
        typename R::raw y = R::fetch(a.rows.operand[IN], offset[IN], at),
                        g = R::fetch(a.rows.operand[GRADIENT], offset[GRADIENT], at);
        C gx[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            gx[i] = grad_of(R::element(y, i), R::element(g, i), sum, a.is_log);
        R::store(a.rows.operand[OUT], offset[OUT], at, gx);
    }
}

/* 32 adjacent columns per block; warp s takes elements s, s + slices, ... of each. */
template <typename R>
static __global__ void __launch_bounds__(COLUMNS *MAX_SLICES) columns_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    __shared__ double sums[MAX_SLICES][COLUMNS];
    const int column = threadIdx.x, slice = threadIdx.y, slices = blockDim.y;
    int64_t row = (int64_t)blockIdx.x * COLUMNS + column, offset[OPERANDS],
            length = row < a.rows.count ? a.rows.length : 0;
    if (row < a.rows.count)
        locate_row(a.rows, row, offset);
    double thread_sum = 0, all = 0;
#pragma unroll 4
    for (int64_t at = slice; at < length; at += slices)
        thread_sum += term(R::element(R::fetch(a.rows.operand[IN], offset[IN], at), 0),
                           R::element(R::fetch(a.rows.operand[GRADIENT], offset[GRADIENT], at), 0), a.is_log);
    sums[slice][column] = thread_sum;
    __syncthreads();
    /* slices in order, by every warp */
    for (int s = 0; s < slices; s++)
        all += sums[s][column];
    split_sum<C> sum(all);
#pragma unroll 4
    for (int64_t at = slice; at < length; at += slices) {
        C y = R::element(R::fetch(a.rows.operand[IN], offset[IN], at), 0);
        C g = R::element(R::fetch(a.rows.operand[GRADIENT], offset[GRADIENT], at), 0);
        C gx = grad_of(y, g, sum, a.is_log);
        R::store(a.rows.operand[OUT], offset[OUT], at, &gx);
    }
}

/* Launchers for run_softmax(). */
struct backward {
    enum { rows_in_registers = 2 };
    /* Grid: a warp or a block per row. Bytes: two reads and a write per element. */
    template <typename R, int P, bool is_warp>
    static void registers(const tarn__call *call, const softmax_args &a, unsigned blocks, unsigned threads)
    {
        register_kernel<R, P, is_warp><<<blocks, threads, 0, stream_of(call)>>>(a);
    }
    template <typename R> static void stream(const tarn__call *call, const softmax_args &a)
    {
        stream_kernel<R><<<blocks_for(a.rows.count, 1), stream_block(a.rows.length), 0, stream_of(call)>>>(a);
    }
    template <typename R> static void columns(const tarn__call *call, const softmax_args &a)
    {
        columns_kernel<R><<<blocks_for(a.rows.count, COLUMNS), column_block(a.rows.length), 0, stream_of(call)>>>(a);
    }
};

/* 16-bit results were rounded: the autograd then asks for the form that starts from x. */
static void run(const tarn__call *call, bool is_log)
{
    if (((const tarn__along *)call->params)->from_x)
        tarn__cuda_run_softmax_grad_from_x(call, is_log);
    else
        run_softmax<backward, 3>(call, is_log);
}

/* Inputs y (or x) and g. */
void tarn__cuda_run_softmax_grad(const tarn__call *call)
{
    run(call, false);
}

void tarn__cuda_run_log_softmax_grad(const tarn__call *call)
{
    run(call, true);
}
