/* cross_entropy_grad.cu: gradient of cross entropy with respect to the logits: g · (softmax - smoothing / C), and 1 -
 * smoothing less at the target.
 *
 * softmax is recomputed from the logits and the LSE, which is subtracted in two parts, as f32 holds only one: the rest
 * is a factor. Bytes: logits read once, gradient written once. */
#include "backends/cuda/softmax/cross_entropy.cuh"

enum { GRADIENT = ROW_OPERANDS, GRAD, OPERANDS };

/* Rows: logits, target, LSE, g, gradient. */
struct grad_args {
    row_set<OPERANDS> rows;
    target_rule targets;
    double smoothing, scale;
};

/* exp(x - shift) · factor is the probability; `smoothed` is subtracted, and all is scaled by g. */
template <typename C> struct row_factors {
    C shift, factor, smoothed, g;
};

/* vecs_in_flight vectors, loaded before the first is used. `is_whole`: no bounds checks. */
template <typename R, typename W, typename I, bool is_whole>
__device__ __forceinline__ void write_vecs(const grad_args &a, const int64_t *offset, I at, I vecs,
                                           const row_factors<typename R::real> &by)
{
    typedef typename R::real C;
    constexpr int U = vecs_in_flight<R>;
    const I threads = (I)blockDim.x;
    typename R::raw x[U];
#pragma unroll
    for (int u = 0; u < U; u++)
        if (is_whole || at + u * threads < vecs)
            x[u] = R::fetch(a.rows.operand[LOGITS], offset[LOGITS], at + u * threads);
#pragma unroll
    for (int u = 0; u < U; u++)
        if (is_whole || at + u * threads < vecs) {
            C y[R::width];
#pragma unroll
            for (int i = 0; i < R::width; i++)
                y[i] = (exp_of(R::element(x[u], i) - by.shift) * by.factor - by.smoothed) * by.g;
            W::store(a.rows.operand[GRAD], offset[GRAD], at + u * threads, y);
        }
}

/* A row whose target does not count: gradient 0. */
template <typename W> __device__ __forceinline__ void clear_row(const grad_args &a, const int64_t *offset)
{
    typename W::real none[W::width] = {};
    for (int64_t at = threadIdx.x; at < a.rows.length / W::width; at += blockDim.x)
        W::store(a.rows.operand[GRAD], offset[GRAD], at, none);
}

/* R reads logits, W writes their gradient; I is the index type. The target's element is computed in f64 by the thread
 * that wrote its vector. */
template <typename R, typename W, typename I>
static __global__ void __launch_bounds__(MAX_THREADS, 5) grad_kernel(const __grid_constant__ grad_args a)
{
    typedef typename R::real C;
    const I vecs = (I)(a.rows.length / R::width), step = (I)(vecs_in_flight<R> * blockDim.x);
    int64_t offset[OPERANDS];
    locate_row(a.rows, blockIdx.x, offset);
    const int64_t target = target_of(a.rows, a.targets, offset);
    if (!counts(a.targets, target, a.rows.length)) {
        clear_row<W>(a, offset);
        return;
    }
    const double lse = ((const double *)a.rows.operand[LSE].base)[offset[LSE]],
                 smoothed = a.smoothing / (double)a.rows.length;
    const double g =
        load_any<double>(a.rows.operand[GRADIENT].base, a.rows.operand[GRADIENT].dtype, offset[GRADIENT]) * a.scale;
    /* lse = shift + rest: exp(rest) is a factor of every probability */
    const C shift = (C)lse;
    const row_factors<C> by = {shift, exp_of((C)((double)shift - lse)), (C)smoothed, (C)g};
    const bool has_target = target / R::width % blockDim.x == threadIdx.x;
    /* before the gradient overwrites the logits: they may share memory */
    const double logit = has_target ? logit_at(a.rows, offset, target) : 0;
    I at = (I)threadIdx.x;
    /* whole batches without bounds checks, then the rest */
    for (; at + (step - (I)blockDim.x) < vecs; at += step)
        write_vecs<R, W, I, true>(a, offset, at, vecs, by);
    if (at < vecs)
        write_vecs<R, W, I, false>(a, offset, at, vecs, by);
    /* the target's element is overwritten: 1 - smoothing less, in f64 */
    if (!has_target)
        return;
    const row_operand &to = a.rows.operand[GRAD];
    double probability = exp(logit - lse);
    store_any(to.base, to.dtype, offset[GRAD] + target * to.along, (probability - smoothed - (1 - a.smoothing)) * g);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Grid: a block per row. Bytes: logits read, gradient written. */
template <typename R, typename W, typename I> static void launch(const tarn__call *call, const grad_args &a)
{
    grad_kernel<R, W, I>
        <<<blocks_for(a.rows.count, 1), warps_for(a.rows.length, 16, MAX_THREADS), 0, stream_of(call)>>>(a);
}

/* The gradient of 16-bit logits is f32 if they are a leaf: 4 elements are 16 bytes of it. */
template <typename T> static void launch_typed(const tarn__call *call, const grad_args &a)
{
    constexpr int N = vec_size<T>::value;
    bool is_same = call->out[0]->dtype == call->in[0]->dtype;
    if (is_same && has_vecs(a.rows, LOGITS, N) && has_vecs(a.rows, GRAD, N))
        launch<typed<T, N>, typed<T, N>, int32_t>(call, a);
    else if (is_same)
        launch<typed<T, 1>, typed<T, 1>, int32_t>(call, a);
    else if (call->out[0]->dtype == TARN_F32 && has_vecs(a.rows, LOGITS, 4) && has_vecs(a.rows, GRAD, 4))
        launch<typed<T, 4>, typed<float, 4>, int32_t>(call, a);
    else
        launch<untyped<float>, untyped<float>, int64_t>(call, a);
}

/* Inputs logits, targets, LSE (f64), g per row. */
void tarn__cuda_run_cross_entropy_grad(const tarn__call *call)
{
    const tarn__cross_entropy *params = (const tarn__cross_entropy *)call->params;
    tarn__view target = as_column(call->in[1]), lse = as_column(call->in[2]), g = as_column(call->in[3]);
    const tarn__view *views[OPERANDS] = {call->in[0], &target, &lse, &g, call->out[0]};
    tarn__nest nest;
    grad_args a = {};
    a.rows = rows_of<OPERANDS>(1, views, &nest);
    if (a.rows.count == 0 || a.rows.length == 0)
        return;
    a.targets = targets_of(call);
    a.smoothing = params->smoothing;
    a.scale = params->scale;
    tarn_dtype dtype = call->in[0]->dtype;
    if (dtype == TARN_F64)
        launch<untyped<double>, untyped<double>, int64_t>(call, a);
    else if (a.rows.length >= LONG_ROW)
        launch<untyped<float>, untyped<float>, int64_t>(call, a);
    else if (dtype == TARN_F32)
        launch_typed<float>(call, a);
    else if (dtype == TARN_BF16)
        launch_typed<bf16>(call, a);
    else
        launch_typed<f16>(call, a);
}
