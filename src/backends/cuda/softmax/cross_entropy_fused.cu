/* cross_entropy_fused.cu: cross entropy and its gradient in one kernel: a row of logits is read from memory once and
 * stays in shared memory while its max and sum are computed, so two thirds of the bytes of the two kernels are moved.
 *
 *   async      long rows, two of which fit in shared memory: cross_entropy_async.cuh
 *   row        shorter rows: a block per row; several share a multiprocessor: one waits while another computes
 *
 * Rows that do not fit in shared memory, or are not whole vectors, run the two kernels. */
#include <atomic>

#include "backends/cuda/softmax/cross_entropy_async.cuh"

#define MAX_ROW_THREADS 512
#define IN_FLIGHT 4                   /* vectors of a thread in flight */
#define MAX_BYTES ((size_t)104 << 10) /* of a row: two fit on a multiprocessor */
#define MIN_ASYNC 16384               /* elements; shorter rows have more blocks per multiprocessor */
static_assert(MAX_ASYNC_VECS * sizeof(uint4) >= MAX_BYTES, "a thread has vectors for the longest row");

/* Gradient of a row whose target does not count. */
template <typename R> __device__ __forceinline__ void clear_row(const fused_args &a, const int64_t *offset)
{
    typename R::real none[R::width] = {};
    for (int at = threadIdx.x; at < (int)(a.rows.length / R::width); at += blockDim.x)
        R::store(a.rows.operand[GRAD], offset[GRAD], at, none);
}

/* Loads the row into shared memory and updates this thread's max, sum of exponentials and, for label smoothing, sum of
 * logits. */
template <typename R>
__device__ __forceinline__ void load_row(const fused_args &a, int64_t row, typename R::raw *row_smem,
                                         running<typename R::real> &state, double &logit_sum)
{
    typedef typename R::real C;
    const int vecs = (int)(a.rows.length / R::width), threads = (int)blockDim.x;
    for (int at = threadIdx.x; at < vecs; at += IN_FLIGHT * threads) {
        typename R::raw raw[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++)
            if (at + u * threads < vecs)
                raw[u] = R::fetch(a.rows.operand[LOGITS], row, at + u * threads);
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++)
            if (at + u * threads < vecs) {
                C x[R::width], part = 0;
                /* kept for the gradient */
                row_smem[at + u * threads] = raw[u];
#pragma unroll
                for (int i = 0; i < R::width; i++)
                    x[i] = R::element(raw[u], i), part += x[i];
                state.template take<R::width>(x);
                if (a.smoothing > 0)
                    logit_sum += (double)part;
            }
    }
}

/* Each thread writes the vectors it loaded; the target's element is computed in f64 by the thread that wrote its
 * vector. */
template <typename R>
__device__ __forceinline__ void write_grads(const fused_args &a, const int64_t *offset, const typename R::raw *row_smem,
                                            double lse, int64_t target, double logit)
{
    typedef typename R::real C;
    const double smoothed = a.smoothing / (double)a.rows.length;
    const double g =
        load_any<double>(a.rows.operand[GRADIENT].base, a.rows.operand[GRADIENT].dtype, offset[GRADIENT]) * a.scale;
    /* lse in two parts: shift, and a factor for the rest */
    const C shift = (C)lse, factor = exp_of((C)((double)shift - lse)), smoothed_c = (C)smoothed, by = (C)g;
    const int vecs = (int)(a.rows.length / R::width);
    for (int at = threadIdx.x; at < vecs; at += blockDim.x) {
        const typename R::raw raw = row_smem[at];
        C y[R::width];
#pragma unroll
        for (int i = 0; i < R::width; i++)
            y[i] = (exp_of(R::element(raw, i) - shift) * factor - smoothed_c) * by;
        R::store(a.rows.operand[GRAD], offset[GRAD], at, y);
    }
    const row_operand &to = a.rows.operand[GRAD];
    if (target / R::width % blockDim.x == threadIdx.x)
        store_any(to.base, to.dtype, offset[GRAD] + target * to.along,
                  (exp(logit - lse) - smoothed - (1 - a.smoothing)) * g);
}

/* One block per row. Bytes: logits read, gradient written, once each. */
template <typename R>
static __global__ void __launch_bounds__(MAX_ROW_THREADS, 2) fused_kernel(const __grid_constant__ fused_args a)
{
    typedef typename R::real C;
    extern __shared__ uint4 shared[];
    typename R::raw *const row_smem = (typename R::raw *)shared;
    int64_t offset[OPERANDS];
    locate_row(a.rows, blockIdx.x, offset);
    const int64_t target = target_of(a.rows, a.targets, offset);
    if (!counts(a.targets, target, a.rows.length)) {
        if (threadIdx.x == 0) {
            if (!is_ignored(a.targets, target))
                report_fault(a.faults, target, a.rows.length);
            write_loss(a, offset[LOSS], 0);
        }
        clear_row<R>(a, offset);
        return;
    }
    running<C> state = {minus_infinity<C>(), 0};
    double logit_sum = 0;
    load_row<R>(a, offset[LOGITS], row_smem, state, logit_sum);
    /* contains a barrier: the whole row is in shared memory from here on */
    const C row_max = row_reduce<false, max_op>(state.row_max, minus_infinity<C>());
    state.rescale_to(row_max);
    const double lse = log(row_reduce<false, plus>(state.sum, 0.0));
    /* the target's logit, from shared memory */
    const double logit = (double)R::element(row_smem[target / R::width], (int)(target % R::width));
    if (a.smoothing > 0)
        logit_sum = row_reduce<false, plus>(logit_sum, 0.0);
    if (threadIdx.x == 0)
        write_loss(a, offset[LOSS],
                   row_loss(a, lse, logit - (double)row_max, logit_sum / (double)a.rows.length - (double)row_max));
    write_grads<R>(a, offset, row_smem, (double)row_max + lse, target, logit);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Requests more than the default shared memory for a kernel, once per device. */
static bool request_shared(std::atomic<int8_t> *answers, int device, const void *kernel, size_t bytes)
{
    /* 1: yes, -1: no; concurrent first calls store the same answer */
    std::atomic<int8_t> &answer = answers[device];
    if (answer.load(std::memory_order_relaxed) == 0) {
        bool is_allowed =
            tarn__cuda_at(device) &&
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) == cudaSuccess;
        answer.store(is_allowed ? 1 : -1, std::memory_order_relaxed);
        if (!is_allowed)
            cudaGetLastError(); /* clear the sticky error: the next poll must not report it */
    }
    return answer.load(std::memory_order_relaxed) > 0;
}

template <typename R> static bool fits_one(int device)
{
    static std::atomic<int8_t> answers[TARN__CUDA_MAX_DEVICES];
    return request_shared(answers, device, (const void *)fused_kernel<R>, MAX_BYTES);
}

template <typename R> static bool fits_two(int device)
{
    static std::atomic<int8_t> answers[TARN__CUDA_MAX_DEVICES];
    return request_shared(answers, device, (const void *)async_kernel<R>, 2 * MAX_BYTES);
}

/* True if a row fits the shared memory, in vectors. On a meta device the kernel is not asked. */
template <typename T> static bool is_supported(const tarn__call *call, const row_set<OPERANDS> &rows)
{
    typedef typed<T, vec_size<T>::value> R;
    return (size_t)rows.length * sizeof(T) <= MAX_BYTES && call->out[1]->dtype == call->in[0]->dtype &&
           has_vecs(rows, LOGITS, R::width) && has_vecs(rows, GRAD, R::width) &&
           (call->is_meta || fits_one<R>(call->device));
}

/* The kernel, and with it the order of sums, depends on the row's length and the device alone. Grid: a block per
 * multiprocessor for long rows, else per row. Bytes: logits read, gradient written. */
template <typename T> static void launch(const tarn__call *call, const fused_args &a)
{
    typedef typed<T, vec_size<T>::value> R;
    size_t bytes = (size_t)a.rows.length * sizeof(T);
    if (a.rows.length >= MIN_ASYNC && fits_two<R>(call->device))
        async_kernel<R>
            <<<async_blocks(call->device, a.rows.count), ASYNC_THREADS + WARP, 2 * bytes, stream_of(call)>>>(a);
    else
        fused_kernel<R>
            <<<blocks_for(a.rows.count, 1), warps_for(a.rows.length, 16, MAX_ROW_THREADS), bytes, stream_of(call)>>>(a);
}

/* Rows of the logits. */
static int64_t rows_in(const tarn__call *call)
{
    return call->in[0]->shape[0];
}

/* Scratch: the LSE of every row. */
tarn__plan_status tarn__cuda_prepare_cross_entropy_composed(const tarn__call *call, tarn__plan *plan)
{
    plan->scratch_bytes = (size_t)rows_in(call) * sizeof(double);
    return TARN__PLAN_READY;
}

/* The two kernels, with the LSE in scratch. */
void tarn__cuda_run_cross_entropy_composed(const tarn__call *call)
{
    tarn__view lse = {};
    if (rows_in(call) == 0)
        return;
    lse.memory = call->scratch;
    lse.dtype = TARN_F64;
    lse.rank = 1;
    lse.shape[0] = rows_in(call);
    lse.stride[0] = 1;
    /* the same outputs by two kernels; the LSE passes through scratch */
    tarn__call loss = *call, grad = *call;
    loss.inputs = 2;
    loss.out[1] = &lse;
    tarn__cuda_run_cross_entropy(&loss);
    grad.inputs = 4;
    grad.outputs = 1;
    grad.in[2] = &lse;
    grad.in[3] = call->in[2];
    grad.out[0] = call->out[1];
    tarn__cuda_run_cross_entropy_grad(&grad);
}

/* Inputs logits, targets, g per row; outputs loss, gradient. The views of single values per row are in `columns`. */
static void set_operands(const tarn__call *call, tarn__view *columns, const tarn__view **views)
{
    const tarn__view *single[] = {call->in[1], call->in[2], call->out[0]};
    for (int i = 0; i < 3; i++)
        columns[i] = as_column(single[i]);
    for (int k = 0; k < OPERANDS; k++)
        views[k] = NULL;
    views[LOGITS] = call->in[0], views[TARGET] = &columns[0], views[GRADIENT] = &columns[1], views[GRAD] = call->out[1],
    views[LOSS] = &columns[2];
}

/* DECLINED where a row does not fit the shared memory, or has no vectors. */
tarn__plan_status tarn__cuda_prepare_cross_entropy_fused(const tarn__call *call, tarn__plan *plan)
{
    tarn__view columns[3];
    const tarn__view *views[OPERANDS];
    tarn__nest nest;
    tarn_dtype dtype = call->in[0]->dtype;
    row_set<OPERANDS> *rows = reserve_job<row_set<OPERANDS>>(plan);
    if (!rows)
        return TARN__PLAN_FAILED;
    set_operands(call, columns, views);
    *rows = rows_of<OPERANDS>(1, views, &nest);
    bool fits = rows->count > 0 && rows->length > 0 &&
                (dtype == TARN_F32    ? is_supported<float>(call, *rows)
                 : dtype == TARN_BF16 ? is_supported<bf16>(call, *rows)
                 : dtype == TARN_F16  ? is_supported<f16>(call, *rows)
                                      : false);
    clear_addresses(rows);
    return fits ? TARN__PLAN_READY : TARN__PLAN_DECLINED;
}

void tarn__cuda_run_cross_entropy_fused(const tarn__call *call)
{
    const tarn__cross_entropy *params = (const tarn__cross_entropy *)call->params;
    tarn__view columns[3];
    const tarn__view *views[OPERANDS];
    fused_args a = {};
    set_operands(call, columns, views);
    a.rows = *job_of<row_set<OPERANDS>>(call);
    set_addresses(&a.rows, views);
    a.faults = faults_of(call);
    a.targets = targets_of(call);
    a.smoothing = params->smoothing;
    a.scale = params->scale;
    switch (call->in[0]->dtype) {
    case TARN_F32: launch<float>(call, a); break;
    case TARN_BF16: launch<bf16>(call, a); break;
    default: launch<f16>(call, a); break;
    }
}
