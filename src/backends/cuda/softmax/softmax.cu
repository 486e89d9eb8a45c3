/* softmax.cu: softmax and log_softmax along one axis. Read x once, write y once, but for very long rows and columns
 * (see softmax.cuh).
 *
 * A row with an infinity of the wrong sign, or with nothing but -infinity, becomes NaN by arithmetic. */
#include "backends/cuda/softmax/softmax.cuh"

/* P packs a thread in registers, loaded before the first is used. */
template <typename R, int P, bool is_warp>
static __global__ void __launch_bounds__(is_warp ? WARP *WARPS_A_BLOCK : 1024)
    held_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    int64_t row = row_number<is_warp>(), offset[OPERANDS];
    if (row >= a.rows.count)
        return;
    const int packs = (int)(a.rows.length / N), me = row_thread<is_warp>(), threads = row_threads<is_warp>();
    locate_row(a.rows, row, offset);
    typename R::raw raw[P];
    C x[P][N], most = minus_infinity<C>(), sum = 0;
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < packs)
            raw[p] = R::fetch(a.rows.operand[IN], offset[IN], me + p * threads);
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < packs) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[p][i] = R::element(raw[p], i);
                most = take_larger::of(most, x[p][i]);
            }
        }
    most = over_row<is_warp, take_larger>(most, minus_infinity<C>());
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < packs) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                C e = exponential(x[p][i] - most);
                sum += e;
                x[p][i] = a.is_log ? x[p][i] - most : e;
            }
        }
    sum = over_row<is_warp, add_up>(sum, (C)0);
    C factor = a.is_log ? logarithm(sum) : 1 / sum;
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < packs) {
#pragma unroll
            for (int i = 0; i < N; i++)
                x[p][i] = a.is_log ? x[p][i] - factor : x[p][i] * factor;
            R::store(a.rows.operand[OUT], offset[OUT], me + p * threads, x[p]);
        }
}

template <typename C> __device__ __forceinline__ C finish(C x, C most, C factor, bool is_log)
{
    return is_log ? (x - most) - factor : exponential(x - most) * factor;
}

/* A block a row of any length; U packs are loaded at a time. */
template <typename R>
static __global__ void __launch_bounds__(1024) stream_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width, U = 4;
    int64_t packs = a.rows.length / N, offset[OPERANDS];
    locate_row(a.rows, blockIdx.x, offset);
    running<C> run = {minus_infinity<C>(), 0};
    for (int64_t at = threadIdx.x; at < packs; at += U * blockDim.x) {
        typename R::raw raw[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            if (at + u * blockDim.x < packs)
                raw[u] = R::fetch(a.rows.operand[IN], offset[IN], at + u * blockDim.x);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (at + u * blockDim.x < packs) {
                C x[N];
#pragma unroll
                for (int i = 0; i < N; i++)
                    x[i] = R::element(raw[u], i);
                run.template take<N>(x);
            }
    }
    C most = over_row<false, take_larger>(run.most, minus_infinity<C>());
    run.raise_to(most);
    double sum = over_row<false, add_up>(run.sum, 0.0);
    C factor = (C)(a.is_log ? log(sum) : 1 / sum);
    for (int64_t at = threadIdx.x; at < packs; at += blockDim.x) {
        typename R::raw raw = R::fetch(a.rows.operand[IN], offset[IN], at);
        C x[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = finish(R::element(raw, i), most, factor, a.is_log);
        R::store(a.rows.operand[OUT], offset[OUT], at, x);
    }
}

/* 32 neighbouring columns a block; warp s takes elements s, s + slices, ... of each. */
template <typename R>
static __global__ void __launch_bounds__(COLUMNS *MOST_SLICES) columns_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    __shared__ C mosts[MOST_SLICES][COLUMNS];
    __shared__ double sums[MOST_SLICES][COLUMNS];
    const int column = threadIdx.x, slice = threadIdx.y, slices = blockDim.y;
    int64_t row = (int64_t)blockIdx.x * COLUMNS + column, offset[OPERANDS],
            length = row < a.rows.count ? a.rows.length : 0;
    if (row < a.rows.count)
        locate_row(a.rows, row, offset);
    running<C> run = {minus_infinity<C>(), 0};
    for (int64_t at = slice; at < length; at += 4 * slices) {
        C x[4];
#pragma unroll
        for (int u = 0; u < 4; u++)
            x[u] = at + u * slices < length ? R::element(R::fetch(a.rows.operand[IN], offset[IN], at + u * slices), 0)
                                            : minus_infinity<C>();
        run.template take<4>(x);
    }
    mosts[slice][column] = run.most;
    sums[slice][column] = run.sum;
    __syncthreads();
    C most = minus_infinity<C>();
    double sum = 0;
    for (int s = 0; s < slices; s++)
        most = take_larger::of(most, mosts[s][column]);
    for (int s = 0; s < slices; s++) {
        run = {mosts[s][column], sums[s][column]};
        run.raise_to(most);
        sum += run.sum;
    }
    C factor = (C)(a.is_log ? log(sum) : 1 / sum);
    for (int64_t at = slice; at < length; at += slices) {
        C y = finish(R::element(R::fetch(a.rows.operand[IN], offset[IN], at), 0), most, factor, a.is_log);
        R::store(a.rows.operand[OUT], offset[OUT], at, &y);
    }
}

struct forward {
    enum { rows_held = 1 };
    /* Grid: a warp or a block a row. Bytes: a read and a write of each element. */
    template <typename R, int P, bool is_warp>
    static void held(const tarn__call *call, const softmax_args &a, unsigned blocks, unsigned threads)
    {
        held_kernel<R, P, is_warp><<<blocks, threads, 0, stream_of(call)>>>(a);
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

static void run_softmax_forward(const tarn__call *call)
{
    run_softmax<forward, 2>(call, false);
}

static void run_log_softmax_forward(const tarn__call *call)
{
    run_softmax<forward, 2>(call, true);
}

void tarn__cuda_softmax(tarn__kernel_row *rows)
{
    rows[TARN__K_softmax] = tarn__kernel_row{run_softmax_forward, TARN__FLOATS, NULL};
    rows[TARN__K_log_softmax] = tarn__kernel_row{run_log_softmax_forward, TARN__FLOATS, NULL};
    rows[TARN__K_softmax_grad] = tarn__kernel_row{tarn__cuda_run_softmax_grad, TARN__FLOATS, NULL};
    rows[TARN__K_log_softmax_grad] = tarn__kernel_row{tarn__cuda_run_log_softmax_grad, TARN__FLOATS, NULL};
}
