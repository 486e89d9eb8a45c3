/* cross_entropy_fused.cu: cross entropy and its gradient at once: a row of logits is read from memory once, and kept in
 * shared memory while its largest element and sum of exponentials are found, so that two thirds of the bytes of the two
 * kernels are moved. Two blocks, with a row each, share a multiprocessor: while one waits for its row, the other
 * computes.
 *
 * Rows that shared memory does not hold, or that are not made of packs, go through the two kernels one after the other.
 */
#include <atomic>

#include "backends/cuda/softmax/cross_entropy.cuh"

enum { GRADIENT = ROW_OPERANDS, SLOPES, LOSS, OPERANDS };

#define ROW_THREADS 512
#define IN_FLIGHT 4                    /* packs that a thread has on their way */
#define MOST_BYTES ((size_t)104 << 10) /* of a row: two of them fit on a multiprocessor */

struct both_args {
    row_set<OPERANDS> rows;
    target_rule targets;
    fault_place faults;
    double smoothing, scale;
};

template <typename R> __device__ __forceinline__ void clear_row(const both_args &a, const int64_t *offset)
{
    typename R::real none[R::width] = {};
    for (int at = threadIdx.x; at < (int)(a.rows.length / R::width); at += blockDim.x)
        R::store(a.rows.operand[SLOPES], offset[SLOPES], at, none);
}

__device__ __forceinline__ void write_loss(const both_args &a, const int64_t *offset, double loss)
{
    store_any(a.rows.operand[LOSS].base, a.rows.operand[LOSS].dtype, offset[LOSS], loss);
}

/* The row from memory to `held`: its largest element, the sum of exponentials, and where labels are smoothed the sum of
 * all, as far as this thread has seen them. */
template <typename R>
__device__ __forceinline__ void take_row(const both_args &a, int64_t row, typename R::raw *held,
                                         running<typename R::real> &seen, double &all)
{
    typedef typename R::real C;
    const int packs = (int)(a.rows.length / R::width), threads = (int)blockDim.x;
    for (int at = threadIdx.x; at < packs; at += IN_FLIGHT * threads) {
        typename R::raw raw[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++)
            if (at + u * threads < packs)
                raw[u] = R::fetch(a.rows.operand[LOGITS], row, at + u * threads);
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++)
            if (at + u * threads < packs) {
                C x[R::width], part = 0;
                held[at + u * threads] = raw[u];
#pragma unroll
                for (int i = 0; i < R::width; i++)
                    x[i] = R::element(raw[u], i), part += x[i];
                seen.template take<R::width>(x);
                if (a.smoothing > 0)
                    all += (double)part;
            }
    }
}

/* Each thread writes the packs that it has taken; the target's element is made in f64 by the thread that wrote its
 * pack. */
template <typename R>
__device__ __forceinline__ void write_slopes(const both_args &a, const int64_t *offset, const typename R::raw *held,
                                             double log_sum, int64_t target, double logit)
{
    typedef typename R::real C;
    const double even = a.smoothing / (double)a.rows.length;
    const double g =
        load_any<double>(a.rows.operand[GRADIENT].base, a.rows.operand[GRADIENT].dtype, offset[GRADIENT]) * a.scale;
    const C shift = (C)log_sum, factor = exponential((C)((double)shift - log_sum)), less = (C)even, by = (C)g;
    const int packs = (int)(a.rows.length / R::width);
    for (int at = threadIdx.x; at < packs; at += blockDim.x) {
        const typename R::raw raw = held[at];
        C y[R::width];
#pragma unroll
        for (int i = 0; i < R::width; i++)
            y[i] = (exponential(R::element(raw, i) - shift) * factor - less) * by;
        R::store(a.rows.operand[SLOPES], offset[SLOPES], at, y);
    }
    const row_operand &to = a.rows.operand[SLOPES];
    if (target / R::width % blockDim.x == threadIdx.x)
        store_any(to.base, to.dtype, offset[SLOPES] + target * to.along,
                  (exp(logit - log_sum) - even - (1 - a.smoothing)) * g);
}

template <typename R>
static __global__ void __launch_bounds__(ROW_THREADS, 2) both_kernel(const __grid_constant__ both_args a)
{
    typedef typename R::real C;
    extern __shared__ uint4 shared[];
    typename R::raw *const held = (typename R::raw *)shared;
    int64_t offset[OPERANDS];
    locate_row(a.rows, blockIdx.x, offset);
    const int64_t target = target_of(a.rows, a.targets, offset);
    if (!counts(a.targets, target, a.rows.length)) {
        if (threadIdx.x == 0) {
            if (!is_ignored(a.targets, target))
                report_fault(a.faults, target, a.rows.length);
            write_loss(a, offset, 0);
        }
        clear_row<R>(a, offset);
        return;
    }
    running<C> seen = {minus_infinity<C>(), 0};
    double all = 0;
    take_row<R>(a, offset[LOGITS], held, seen, all);
    /* all of the row is in `held` from here on */
    const C most = over_row<false, take_larger>(seen.most, minus_infinity<C>());
    seen.raise_to(most);
    const double log_sum = log(over_row<false, add_up>(seen.sum, 0.0));
    const double logit = (double)R::element(held[target / R::width], (int)(target % R::width));
    if (a.smoothing > 0)
        all = over_row<false, add_up>(all, 0.0);
    if (threadIdx.x == 0) {
        double loss = log_sum - (logit - (double)most);
        if (a.smoothing > 0)
            loss = (1 - a.smoothing) * loss + a.smoothing * (log_sum - (all / (double)a.rows.length - (double)most));
        write_loss(a, offset, loss);
    }
    write_slopes<R>(a, offset, held, (double)most + log_sum, target, logit);
}

/* ---- starting it ------------------------------------------------------------------------------------------------- */

/* More shared memory than a kernel has without asking is asked for once on each device. */
template <typename R> static bool may_hold(int device)
{
    static std::atomic<int8_t> answers[64]; /* 1: yes, -1: no; threads that ask at once get the same */
    std::atomic<int8_t> &answer = answers[device];
    if (answer.load(std::memory_order_relaxed) == 0) {
        bool is_allowed =
            cudaFuncSetAttribute((const void *)both_kernel<R>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)MOST_BYTES) == cudaSuccess;
        answer.store(is_allowed ? 1 : -1, std::memory_order_relaxed);
        if (!is_allowed)
            cudaGetLastError(); /* not kept for the next poll to find */
    }
    return answer.load(std::memory_order_relaxed) > 0;
}

/* Grid: a block a row, of a size that depends on the row alone. Bytes: logits read, gradient written. False: not for
 * this kernel. */
template <typename T> static bool launch(const tarn__call *call, const both_args &a)
{
    typedef typed<T, pack_size<T>::value> R;
    size_t bytes = (size_t)a.rows.length * sizeof(T);
    if (bytes > MOST_BYTES || call->out[1]->dtype != call->in[0]->dtype || !has_packs(a.rows, LOGITS, R::width) ||
        !has_packs(a.rows, SLOPES, R::width) || !may_hold<R>(call->device))
        return false;
    both_kernel<R>
        <<<blocks_for(a.rows.count, 1), warps_for(a.rows.length, 16, ROW_THREADS), bytes, stream_of(call)>>>(a);
    return true;
}

static int64_t rows_in(const tarn__call *call)
{
    return call->in[0]->shape[0];
}

size_t tarn__cuda_cross_entropy_fused_scratch(const tarn__call *call)
{
    return (size_t)rows_in(call) * sizeof(double);
}

/* The two kernels, with the logarithms in scratch. */
static void run_apart(const tarn__call *call)
{
    tarn__view log_sum = {};
    log_sum.memory = call->scratch;
    log_sum.dtype = TARN_F64;
    log_sum.rank = 1;
    log_sum.shape[0] = rows_in(call);
    log_sum.stride[0] = 1;
    tarn__call loss = *call, slopes = *call;
    loss.inputs = 2;
    loss.out[1] = &log_sum;
    tarn__cuda_run_cross_entropy(&loss);
    slopes.inputs = 4;
    slopes.outputs = 1;
    slopes.in[2] = &log_sum;
    slopes.in[3] = call->in[2];
    slopes.out[0] = call->out[1];
    tarn__cuda_run_cross_entropy_grad(&slopes);
}

void tarn__cuda_run_cross_entropy_fused(const tarn__call *call)
{
    const tarn__cross_entropy *params = (const tarn__cross_entropy *)call->params;
    tarn__view target = as_column(call->in[1]), g = as_column(call->in[2]), loss = as_column(call->out[0]);
    const tarn__view *views[OPERANDS] = {call->in[0], &target, NULL, &g, call->out[1], &loss};
    tarn__nest nest;
    both_args a = {};
    a.rows = rows_of<OPERANDS>(1, views, &nest);
    a.faults = faults_of(call);
    a.targets = targets_of(call);
    a.smoothing = params->smoothing;
    a.scale = params->scale;
    tarn_dtype dtype = call->in[0]->dtype;
    if (a.rows.count == 0)
        return;
    bool is_done = a.rows.length > 0 && (dtype == TARN_F32    ? launch<float>(call, a)
                                         : dtype == TARN_BF16 ? launch<bf16>(call, a)
                                         : dtype == TARN_F16  ? launch<f16>(call, a)
                                                              : false);
    if (!is_done)
        run_apart(call);
}
