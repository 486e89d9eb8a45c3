/* cross_entropy.cu: cross entropy of rows of logits: loss = lse - logit[target], smoothed if requested. One block per
 * row computes max and sum of exponentials in one pass (online softmax). Gradient: cross_entropy_grad.cu; both at once:
 * cross_entropy_fused.cu. */
#include "backends/cuda/softmax/cross_entropy.cuh"

enum { LOSS = ROW_OPERANDS, OPERANDS };

/* Rows: logits, target, LSE (for backward), loss. */
struct loss_args {
    row_set<OPERANDS> rows;
    target_rule targets;
    fault_slot faults;
    double smoothing;
};

/* A thread's state of its row. */
template <typename C> struct row_state {
    running<C> softmax;
    double logit_sum; /* sum of logits, for label smoothing */
};

/* U vectors, all loaded before the first is used; G of them are added together. */
template <typename R, typename I, bool is_whole>
__device__ __forceinline__ void take_packs(const loss_args &a, int64_t row, I at, I vecs,
                                           row_state<typename R::real> &s)
{
    typedef typename R::real C;
    constexpr int N = R::width, U = vecs_in_flight<R>, G = U * N < 8 ? U : N < 8 ? 8 / N : 1;
    const I threads = (I)blockDim.x;
    typename R::raw raw[U];
#pragma unroll
    for (int u = 0; u < U; u++)
        if (is_whole || at + u * threads < vecs)
            raw[u] = R::fetch(a.rows.operand[LOGITS], row, at + u * threads);
#pragma unroll
    for (int first = 0; first < U; first += G) {
        C x[G * N];
#pragma unroll
        for (int u = 0; u < G; u++)
#pragma unroll
            for (int i = 0; i < N; i++)
                x[u * N + i] =
                    is_whole || at + (first + u) * threads < vecs ? R::element(raw[first + u], i) : minus_infinity<C>();
        s.softmax.template take<G * N>(x);
        if (a.smoothing > 0) {
            C part = 0;
#pragma unroll
            for (int k = 0; k < G * N; k++)
                part += is_whole || at + (first + k / N) * threads < vecs ? x[k] : (C)0;
            s.logit_sum += (double)part;
        }
    }
}

/* A missing output has no base. */
__device__ __forceinline__ void write_row_value(const loss_args &a, int k, const int64_t *offset, double value)
{
    if (a.rows.operand[k].base)
        store_any(a.rows.operand[k].base, a.rows.operand[k].dtype, offset[k], value);
}

/* R reads logits; I is the index type. Bytes: logits, once. */
template <typename R, typename I>
static __global__ void __launch_bounds__(MAX_THREADS, 4) loss_kernel(const __grid_constant__ loss_args a)
{
    typedef typename R::real C;
    const I vecs = (I)(a.rows.length / R::width), step = (I)(vecs_in_flight<R> * blockDim.x);
    int64_t offset[OPERANDS];
    locate_row(a.rows, blockIdx.x, offset);
    const int64_t target = target_of(a.rows, a.targets, offset);
    if (!counts(a.targets, target, a.rows.length)) {
        if (threadIdx.x == 0) {
            if (!is_ignored(a.targets, target))
                report_fault(a.faults, target, a.rows.length);
            write_row_value(a, LOSS, offset, 0);
            write_row_value(a, LSE, offset, 0);
        }
        return;
    }
    row_state<C> s = {{minus_infinity<C>(), 0}, 0};
    I at = (I)threadIdx.x;
    /* whole batches without bounds checks, then the rest */
    for (; at + (step - (I)blockDim.x) < vecs; at += step)
        take_packs<R, I, true>(a, offset[LOGITS], at, vecs, s);
    if (at < vecs)
        take_packs<R, I, false>(a, offset[LOGITS], at, vecs, s);
    const C row_max = row_reduce<false, max_op>(s.softmax.row_max, minus_infinity<C>());
    /* merge the threads' online states: rescale to the common max, then add in f64 */
    s.softmax.rescale_to(row_max);
    const double sum = row_reduce<false, plus>(s.softmax.sum, 0.0);
    if (a.smoothing > 0)
        s.logit_sum = row_reduce<false, plus>(s.logit_sum, 0.0);
    if (threadIdx.x != 0)
        return;
    /* the loss in f64: lse and logit may be large and close */
    double lse = log(sum), loss = lse - (logit_at(a.rows, offset, target) - (double)row_max);
    if (a.smoothing > 0)
        /* smoothed labels: a uniform part of the probability over all classes */
        loss = (1 - a.smoothing) * loss + a.smoothing * (lse - (s.logit_sum / (double)a.rows.length - (double)row_max));
    write_row_value(a, LOSS, offset, loss);
    write_row_value(a, LSE, offset, (double)row_max + lse);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Grid: a block per row, of a size that depends on the row alone, so that the order of sums is the same on every
 * device. */
template <typename R, typename I> static void launch(const tarn__call *call, const loss_args &a)
{
    loss_kernel<R, I>
        <<<blocks_for(a.rows.count, 1), warps_for(a.rows.length, 16, MAX_THREADS), 0, stream_of(call)>>>(a);
}

/* Vectors if the rows allow them. */
template <typename T> static void launch_typed(const tarn__call *call, const loss_args &a)
{
    if (has_vecs(a.rows, LOGITS, vec_size<T>::value))
        launch<typed<T, vec_size<T>::value>, int32_t>(call, a);
    else
        launch<typed<T, 1>, int32_t>(call, a);
}

/* Inputs logits (rows, classes), targets (rows); outputs loss and, for backward, the LSE in f64. */
void tarn__cuda_run_cross_entropy(const tarn__call *call)
{
    tarn__view target = as_column(call->in[1]), loss = as_column(call->out[0]),
               lse = as_column(call->out[1] ? call->out[1] : call->out[0]);
    const tarn__view *views[OPERANDS] = {call->in[0], &target, call->out[1] ? &lse : NULL, &loss};
    tarn__nest nest;
    loss_args a = {};
    a.rows = rows_of<OPERANDS>(1, views, &nest);
    if (a.rows.count == 0)
        return;
    a.faults = faults_of(call);
    a.targets = targets_of(call);
    a.smoothing = ((const tarn__cross_entropy *)call->params)->smoothing;
    tarn_dtype dtype = call->in[0]->dtype;
    if (dtype == TARN_F64)
        launch<untyped<double>, int64_t>(call, a);
    else if (a.rows.length >= LONG_ROW)
        launch<untyped<float>, int64_t>(call, a);
    else if (dtype == TARN_F32)
        launch_typed<float>(call, a);
    else if (dtype == TARN_BF16)
        launch_typed<bf16>(call, a);
    else
        launch_typed<f16>(call, a);
}

/* The fused row computes loss and gradient in one pass, the composed one by the two other kernels. */
void tarn__cuda_register_cross_entropy(tarn__kernel_row *rows)
{
    rows[TARN__K_cross_entropy] = tarn__row(tarn__cuda_run_cross_entropy, TARN__FLOATS);
    rows[TARN__K_cross_entropy_grad] = tarn__row(tarn__cuda_run_cross_entropy_grad, TARN__FLOATS);
    static tarn__kernel_row composed;
    rows[TARN__K_cross_entropy_with_grad] =
        tarn__row_named(tarn__row_planned(tarn__cuda_prepare_cross_entropy_composed,
                                          tarn__cuda_run_cross_entropy_composed, TARN__FLOATS),
                        "composed");
    tarn__kernel_row fused =
        tarn__row_planned(tarn__cuda_prepare_cross_entropy_fused, tarn__cuda_run_cross_entropy_fused, TARN__FLOATS);
    tarn__push_row(rows, TARN__K_cross_entropy_with_grad, tarn__row_named(fused, "fused"), &composed);
}
