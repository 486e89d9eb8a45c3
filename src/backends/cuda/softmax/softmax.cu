/* softmax.cu: softmax and log_softmax along one axis. Bytes: x read once, y written once, except for very long rows and
 * columns (softmax.cuh).
 *
 * A row with a +infinity, or with nothing but -infinity, becomes NaN by arithmetic. */
#include "backends/cuda/softmax/softmax.cuh"

/* P vectors per thread in registers, loaded before the first is used. */
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
    typename R::raw raw[P];
    C x[P][N], row_max = minus_infinity<C>(), sum = 0;
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs)
            raw[p] = R::fetch(a.rows.operand[IN], offset[IN], me + p * threads);
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[p][i] = R::element(raw[p], i);
                row_max = max_op::of(row_max, x[p][i]);
            }
        }
    /* the max over the row; exponentials are then at most 1 */
    row_max = row_reduce<is_warp, max_op>(row_max, minus_infinity<C>());
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                C e = exp_of(x[p][i] - row_max);
                sum += e;
                x[p][i] = a.is_log ? x[p][i] - row_max : e;
            }
        }
    /* at most 32 elements per thread: f32 sums suffice */
    sum = row_reduce<is_warp, plus>(sum, (C)0);
    C factor = a.is_log ? log_of(sum) : 1 / sum;
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
#pragma unroll
            for (int i = 0; i < N; i++)
                x[p][i] = a.is_log ? x[p][i] - factor : x[p][i] * factor;
            R::store(a.rows.operand[OUT], offset[OUT], me + p * threads, x[p]);
        }
}

/* The result of one element from the row's max and sum. */
template <typename C> __device__ __forceinline__ C finish(C x, C row_max, C factor, bool is_log)
{
    return is_log ? (x - row_max) - factor : exp_of(x - row_max) * factor;
}

/* One block per row of any length; U vectors are loaded at a time. */
template <typename R>
static __global__ void __launch_bounds__(1024) stream_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width, U = 4;
    int64_t vecs = a.rows.length / N, offset[OPERANDS];
    locate_row(a.rows, blockIdx.x, offset);
    running<C> run = {minus_infinity<C>(), 0};
    for (int64_t at = threadIdx.x; at < vecs; at += U * blockDim.x) {
        typename R::raw raw[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            if (at + u * blockDim.x < vecs)
                raw[u] = R::fetch(a.rows.operand[IN], offset[IN], at + u * blockDim.x);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (at + u * blockDim.x < vecs) {
                C x[N];
#pragma unroll
                for (int i = 0; i < N; i++)
                    x[i] = R::element(raw[u], i);
                run.template take<N>(x);
            }
    }
    /* merge the threads' online states: rescale to the common max, then add */
    C row_max = row_reduce<false, max_op>(run.row_max, minus_infinity<C>());
    run.rescale_to(row_max);
    double sum = row_reduce<false, plus>(run.sum, 0.0);
    C factor = (C)(a.is_log ? log(sum) : 1 / sum);
    for (int64_t at = threadIdx.x; at < vecs; at += blockDim.x) {
        typename R::raw raw = R::fetch(a.rows.operand[IN], offset[IN], at);
        C x[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = finish(R::element(raw, i), row_max, factor, a.is_log);
        R::store(a.rows.operand[OUT], offset[OUT], at, x);
    }
}

/* 32 adjacent columns per block; warp s takes elements s, s + slices, ... of each. */
template <typename R>
static __global__ void __launch_bounds__(COLUMNS *MAX_SLICES) columns_kernel(const __grid_constant__ softmax_args a)
{
    typedef typename R::real C;
    __shared__ C row_maxes[MAX_SLICES][COLUMNS];
    __shared__ double sums[MAX_SLICES][COLUMNS];
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
    row_maxes[slice][column] = run.row_max;
    sums[slice][column] = run.sum;
    __syncthreads();
    C row_max = minus_infinity<C>();
    double sum = 0;
    /* every warp merges all slices, in the same order */
    for (int s = 0; s < slices; s++)
        row_max = max_op::of(row_max, row_maxes[s][column]);
    for (int s = 0; s < slices; s++) {
        run = {row_maxes[s][column], sums[s][column]};
        run.rescale_to(row_max);
        sum += run.sum;
    }
    C factor = (C)(a.is_log ? log(sum) : 1 / sum);
    for (int64_t at = slice; at < length; at += slices) {
        C y = finish(R::element(R::fetch(a.rows.operand[IN], offset[IN], at), 0), row_max, factor, a.is_log);
        R::store(a.rows.operand[OUT], offset[OUT], at, &y);
    }
}

/* Launchers for run_softmax(). */
struct forward {
    enum { rows_in_registers = 1 };
    /* Grid: a warp or a block per row. Bytes: a read and a write per element. */
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

/* Two operands: y and x. */
static void run_softmax_forward(const tarn__call *call)
{
    run_softmax<forward, 2>(call, false);
}

static void run_log_softmax_forward(const tarn__call *call)
{
    run_softmax<forward, 2>(call, true);
}

/* No scratch: rows that do not fit are read again. */
void tarn__cuda_register_softmax(tarn__kernel_row *rows)
{
    rows[TARN__K_softmax] = tarn__row(run_softmax_forward, TARN__FLOATS);
    rows[TARN__K_log_softmax] = tarn__row(run_log_softmax_forward, TARN__FLOATS);
    rows[TARN__K_softmax_grad] = tarn__row(tarn__cuda_run_softmax_grad, TARN__FLOATS);
    rows[TARN__K_log_softmax_grad] = tarn__row(tarn__cuda_run_log_softmax_grad, TARN__FLOATS);
}
