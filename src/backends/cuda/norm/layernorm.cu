/* layernorm.cu: layernorm and rmsnorm over the last axis, alone or fused with the residual add before them. Gradients:
 * layernorm_grad.cu.
 *
 * A row of up to 1,024 elements has a warp, one of up to 32,768 a block, and stays in registers while mean, std and
 * result are computed: one read and one write of memory; weight and bias come from L1. Longer rows are read three
 * times, mostly from L2. */
#include "backends/cuda/norm/layernorm.cuh"
#include "backends/cuda/random/dropout.cuh"

/* with a residual add IN is its result, and the last two are its terms */
enum { OUT, IN, MEAN, RSTD, FIRST, SECOND, OPERANDS };

/* Kernel arguments: rows of all operands, and the vectors along them. */
struct norm_args {
    row_set<OPERANDS> rows;
    row_operand weight, bias;
    bool is_centred; /* layernorm, not rmsnorm */
    double epsilon, length, inverse;
    double offset; /* of the weight; 0 without one */
    dropout drop;  /* of the second term */
    source random;
};

/* (x - mean) · rstd · (offset + weight) + bias of one vector. */
template <typename R>
__device__ __forceinline__ void normalize(const norm_args &a, const typename R::raw &x, int64_t to, int64_t at,
                                          typename R::real mean, typename R::real rstd)
{
    typedef typename R::real C;
    typename R::raw weight, bias;
    C y[R::width];
    if (a.weight.base)
        weight = R::fetch(a.weight, 0, at);
    if (a.bias.base)
        bias = R::fetch(a.bias, 0, at);
#pragma unroll
    for (int i = 0; i < R::width; i++)
        y[i] = (R::element(x, i) - mean) * rstd * (a.weight.base ? R::element(weight, i) + (C)a.offset : (C)1) +
               (a.bias.base ? R::element(bias, i) : (C)0);
    R::store(a.rows.operand[OUT], to, at, y);
}

/* Skipped if not needed. */
template <typename C> __device__ __forceinline__ void write_row_stat(const norm_args &a, int k, int64_t at, C value)
{
    if (a.rows.operand[k].base)
        store_any(a.rows.operand[k].base, a.rows.operand[k].dtype, at, value);
}

/* Residual add of a vector: stores the sum, and returns it as rounded, so that the norm sees what was stored. */
template <typename T, int N>
__device__ __forceinline__ vec<T, N> add_vec(const typed<T, N> *, const norm_args &a, const int64_t *offset, int64_t at,
                                             vec<T, N> x, const vec<T, N> &y)
{
    typedef typed<T, N> R;
    typename R::real sum[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = R::element(x, i) + R::element(y, i);
    R::store(a.rows.operand[IN], offset[IN], at, sum);
    narrow_vec(x, sum);
    return x;
}
template <typename C>
__device__ __forceinline__ vec<C, 1> add_vec(const untyped<C> *, const norm_args &a, const int64_t *offset, int64_t at,
                                             const vec<C, 1> &x, const vec<C, 1> &y)
{
    typedef untyped<C> R;
    C sum = x.at[0] + y.at[0];
    R::store(a.rows.operand[IN], offset[IN], at, &sum);
    return R::fetch(a.rows.operand[IN], offset[IN], at);
}

/* Applies dropout to a thread's vectors of the second term, which is contiguous. */
template <int P, typename T, int N>
__device__ __forceinline__ void drop_row(const typed<T, N> *, const norm_args &a, int64_t row, int vecs, vec<T, N> *x)
{
    const source random = resolved(a.random);
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int p = 0; p < P; p++)
        if (lane + p * WARP < vecs)
            drop_vec(a.drop, random, (uint64_t)(row * a.rows.length + (lane + p * WARP) * N), x[p]);
}

/* P vectors per thread in registers. */
template <typename R, int P, bool is_warp, bool is_sum, bool drops = false>
static __global__ void __launch_bounds__(is_warp ? WARP *WARPS_PER_BLOCK : 1024)
    register_kernel(const __grid_constant__ norm_args a)
{
    typedef typename R::real C;
    int64_t row = row_number<is_warp>(), offset[OPERANDS];
    if (row >= a.rows.count)
        return;
    const int vecs = (int)(a.rows.length / R::width), me = row_thread<is_warp>(), threads = row_threads<is_warp>();
    locate_row(a.rows, row, offset);
    typename R::raw x[P], second[is_sum ? P : 1];
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
            x[p] = R::fetch(a.rows.operand[is_sum ? FIRST : IN], offset[is_sum ? FIRST : IN], me + p * threads);
            if (is_sum)
                second[p] = R::fetch(a.rows.operand[SECOND], offset[SECOND], me + p * threads);
        }
    if constexpr (drops)
        drop_row<P>((const R *)NULL, a, row, vecs, second);
#pragma unroll
    for (int p = 0; is_sum && p < P; p++) /* after all loads: a store between them would delay the next */
        if (me + p * threads < vecs)
            x[p] = add_vec((const R *)NULL, a, offset, me + p * threads, x[p], second[p]);
    C mean, rstd;
    /* two passes over registers */
    row_stats<R, P, is_warp>(x, vecs, a.is_centred, a.length, a.inverse, a.epsilon, &mean, &rstd);
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs)
            normalize<R>(a, x[p], offset[OUT], me + p * threads, mean, rstd);
    /* saved for backward, if wanted */
    if (me == 0) {
        write_row_stat(a, MEAN, offset[MEAN], mean);
        write_row_stat(a, RSTD, offset[RSTD], rstd);
    }
}

/* One block per row of any length. A thread reads only elements of the sum that it wrote itself. */
template <typename R, bool is_sum>
static __global__ void __launch_bounds__(1024) stream_kernel(const __grid_constant__ norm_args a)
{
    typedef typename R::real C;
    int64_t vecs = a.rows.length / R::width, offset[OPERANDS];
    locate_row(a.rows, blockIdx.x, offset);
    double sum = 0, squares = 0;
    C mean = 0;
    if (is_sum)
        for (int64_t at = threadIdx.x; at < vecs; at += blockDim.x)
            add_vec((const R *)NULL, a, offset, at, R::fetch(a.rows.operand[FIRST], offset[FIRST], at),
                    R::fetch(a.rows.operand[SECOND], offset[SECOND], at));
    if (a.is_centred) {
#pragma unroll 4
        for (int64_t at = threadIdx.x; at < vecs; at += blockDim.x)
            sum += vec_sum<R>(R::fetch(a.rows.operand[IN], offset[IN], at));
        mean = mean_of(row_reduce<false, plus>(sum, 0.0), a.length, a.inverse, (C)0);
    }
#pragma unroll 4
    for (int64_t at = threadIdx.x; at < vecs; at += blockDim.x) {
        typename R::raw x = R::fetch(a.rows.operand[IN], offset[IN], at);
        C part = 0;
#pragma unroll
        for (int i = 0; i < R::width; i++) {
            C d = R::element(x, i) - mean;
            part += d * d;
        }
        squares += (double)part;
    }
    squares = row_reduce<false, plus>(squares, 0.0);
    C rstd = inverse_root((double)mean_of(squares, a.length, a.inverse, (C)0) + a.epsilon, (C)0);
    for (int64_t at = threadIdx.x; at < vecs; at += blockDim.x)
        normalize<R>(a, R::fetch(a.rows.operand[IN], offset[IN], at), offset[OUT], at, mean, rstd);
    if (threadIdx.x == 0) {
        write_row_stat(a, MEAN, offset[MEAN], mean);
        write_row_stat(a, RSTD, offset[RSTD], rstd);
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Grid: a warp or a block per row. Bytes: a read and a write per element; the residual add one more of both. E:
 * elements per thread of a warp; BLOCK_ELEMENTS: of a block. */
template <typename R, int E, int BLOCK_ELEMENTS, bool is_sum>
static void launch_as(const tarn__call *call, const norm_args &a)
{
    int64_t length = a.rows.length, count = a.rows.count;
    if (length <= WARP * E)
        register_kernel<R, E / R::width, true, is_sum>
            <<<warp_blocks(count), WARP * WARPS_PER_BLOCK, 0, stream_of(call)>>>(a);
    else if (length <= 1024 * BLOCK_ELEMENTS)
        register_kernel<R, BLOCK_ELEMENTS / R::width, false, is_sum>
            <<<blocks_for(count, 1), warps_for(length, BLOCK_ELEMENTS, 1024), 0, stream_of(call)>>>(a);
    else
        stream_kernel<R, is_sum><<<blocks_for(count, 1), 1024, 0, stream_of(call)>>>(a);
}

template <typename T, int N> static bool is_vectorized(const norm_args &a)
{
    bool good = vector_has_vecs(a.weight, N) && vector_has_vecs(a.bias, N);
    for (int k : {(int)OUT, (int)IN, (int)FIRST, (int)SECOND})
        good = good && has_vecs(a.rows, k, N);
    return good;
}

/* Grid: a warp per row of up to 1,024 elements, in P vectors of N per lane; with few elements N is 4, which leaves
 * fewer lanes without work. False: not in vectors, or longer. */
template <typename T, bool is_sum, bool drops> static bool launch_by_warp(const tarn__call *call, const norm_args &a)
{
    constexpr int SIZE = vec_size<T>::value;
    const int64_t length = a.rows.length;
    const unsigned blocks = warp_blocks(a.rows.count), threads = WARP * WARPS_PER_BLOCK;
    if (!is_vectorized<T, SIZE>(a) || length > 32 * WARP)
        return false;
    if (length <= 3 * WARP * 4)
        register_kernel<typed<T, 4>, 3, true, is_sum, drops><<<blocks, threads, 0, stream_of(call)>>>(a);
    else if (length <= 4 * WARP * 4)
        register_kernel<typed<T, 4>, 4, true, is_sum, drops><<<blocks, threads, 0, stream_of(call)>>>(a);
    else if (length <= 24 * WARP)
        register_kernel<typed<T, SIZE>, 24 / SIZE, true, is_sum, drops><<<blocks, threads, 0, stream_of(call)>>>(a);
    else
        register_kernel<typed<T, SIZE>, 32 / SIZE, true, is_sum, drops><<<blocks, threads, 0, stream_of(call)>>>(a);
    return true;
}

/* Vectors if every operand allows them. With a residual add f32 and single elements keep half as many per thread of a
 * block, to save registers. */
template <typename T, bool is_sum> static void launch(const tarn__call *call, const norm_args &a)
{
    constexpr int N = vec_size<T>::value;
    if (launch_by_warp<T, is_sum, false>(call, a))
        return;
    if (is_vectorized<T, N>(a))
        launch_as<typed<T, N>, 32, is_sum && sizeof(T) == 4 ? 16 : 32, is_sum>(call, a);
    else
        launch_as<typed<T, 1>, 32, is_sum ? 8 : 16, is_sum>(call, a);
}

/* Sets the rows; false if there are none. */
static bool set_rows(const tarn__view *const *views, norm_args &a)
{
    tarn__nest nest;
    a.rows = rows_of<OPERANDS>(views[OUT]->rank - 1, views, &nest);
    a.length = (double)a.rows.length;
    a.inverse = 1 / a.length;
    return a.rows.count > 0 && a.rows.length > 0;
}

/* True if the result, the vectors and, with a residual add, its terms have the dtype of x. */
static bool is_same_dtype(const tarn__view *const *views, const norm_args &a)
{
    const tarn_dtype dtype = views[IN]->dtype;
    return views[OUT]->dtype == dtype && (!a.weight.base || a.weight.dtype == dtype) &&
           (!a.bias.base || a.bias.dtype == dtype) && (!views[FIRST] || views[FIRST]->dtype == dtype) &&
           (!views[SECOND] || views[SECOND]->dtype == dtype);
}

/* The operands in `views` have one dtype, but for the row statistics and, rarely, the result and the vectors. */
template <bool is_sum> static void run(const tarn__call *call, const tarn__view *const *views, norm_args &a)
{
    if (!set_rows(views, a))
        return;
    tarn_dtype dtype = views[IN]->dtype;
    if (a.rows.length <= SHORT_ROW)
        launch_as<untyped<double>, 1, 8, is_sum>(call, a);
    else if (dtype == TARN_F64)
        launch_as<untyped<double>, 16, 8, is_sum>(call, a);
    else if (!is_same_dtype(views, a))
        launch_as<untyped<float>, 1, is_sum ? 8 : 16, is_sum>(call, a);
    else if (dtype == TARN_F32)
        launch<float, is_sum>(call, a);
    else if (dtype == TARN_BF16)
        launch<bf16, is_sum>(call, a);
    else
        launch<f16, is_sum>(call, a);
}

/* Inputs x, weight, bias; outputs y, [mean,] rstd. Saved statistics may be NULL. */
static void run_forward(const tarn__call *call, bool is_centred)
{
    const tarn__view *views[OPERANDS] = {call->out[0], call->in[0], is_centred ? call->out[1] : NULL,
                                         call->out[is_centred ? 2 : 1]};
    norm_args a = {};
    a.weight = vector_of(call->in[1]);
    a.bias = vector_of(is_centred ? call->in[2] : NULL);
    a.is_centred = is_centred;
    a.epsilon = ((const tarn__norm *)call->params)->epsilon;
    a.offset = is_centred ? 0 : ((const tarn__norm *)call->params)->offset;
    run<false>(call, views, a);
}

static norm_args residual_args_of(const tarn__call *call)
{
    const tarn__residual_norm *params = (const tarn__residual_norm *)call->params;
    norm_args a = {};
    a.weight = vector_of(call->in[2]);
    a.bias = vector_of(call->in[3]);
    a.is_centred = !params->rms;
    a.epsilon = params->epsilon;
    a.offset = params->rms ? params->offset : 0;
    return a;
}

/* Inputs a, b, weight, bias; outputs a + b, the norm of it, mean, rstd. */
static void run_residual_norm(const tarn__call *call)
{
    const tarn__view *views[OPERANDS] = {call->out[1], call->out[0], call->out[2],
                                         call->out[3], call->in[0],  call->in[1]};
    norm_args a = residual_args_of(call);
    run<true>(call, views, a);
}

/* The same with dropout of b, in the kernel of the norm if it fits. Else dropout runs first and writes to the memory of
 * the norm's result, of which the norm reads a row before it writes it. */
static void run_dropout_residual_norm(const tarn__call *call)
{
    const tarn__random *random = &((const tarn__residual_norm *)call->params)->random;
    const tarn__view *views[OPERANDS] = {call->out[1], call->out[0], call->out[2],
                                         call->out[3], call->in[0],  call->in[1]};
    norm_args a = residual_args_of(call);
    a.drop = dropout::of(random);
    a.random = source{random->seed, random->offset, random->live};
    if (!set_rows(views, a))
        return;
    const tarn_dtype dtype = views[IN]->dtype;
    if (a.rows.length > SHORT_ROW && a.rows.length <= 32 * WARP && is_same_dtype(views, a) &&
        (dtype == TARN_F32    ? launch_by_warp<float, true, true>(call, a)
         : dtype == TARN_BF16 ? launch_by_warp<bf16, true, true>(call, a)
                              : launch_by_warp<f16, true, true>(call, a)))
        return;
    tarn__cuda_dropout(call, random, call->in[1], call->out[1]);
    views[SECOND] = call->out[1];
    run<true>(call, views, a);
}

/* Inputs x, weight, [mean,] rstd, g; outputs gx, gweight, [gbias]. */
static layernorm_grad grad_of(const tarn__call *call, bool is_centred)
{
    int after = is_centred ? 3 : 2;
    return layernorm_grad{call->in[0],
                          call->in[1],
                          is_centred ? call->in[2] : NULL,
                          call->in[after],
                          call->in[after + 1],
                          NULL,
                          call->out[0],
                          call->out[1],
                          is_centred ? call->out[2] : NULL,
                          is_centred,
                          ((const tarn__norm *)call->params)->epsilon,
                          is_centred ? 0 : ((const tarn__norm *)call->params)->offset};
}

/* Inputs x (the sum), weight, mean, rstd, g, the residual's gradient; outputs gx, gweight, gbias; with dropout the
 * gradient of delta. */
static layernorm_grad residual_grad_of(const tarn__call *call, bool drops)
{
    const tarn__residual_norm *params = (const tarn__residual_norm *)call->params;
    return layernorm_grad{call->in[0],
                          call->in[1],
                          call->in[2],
                          call->in[3],
                          call->in[4],
                          call->in[5],
                          call->out[0],
                          call->out[1],
                          call->out[2],
                          !params->rms,
                          params->epsilon,
                          params->rms ? params->offset : 0,
                          drops ? call->out[3] : NULL,
                          &params->random};
}

static void run_layernorm(const tarn__call *call)
{
    run_forward(call, true);
}
static void run_rmsnorm(const tarn__call *call)
{
    run_forward(call, false);
}

#define GRADIENT(name, ...) \
    static tarn__plan_status prepare_##name(const tarn__call *call, tarn__plan *plan) \
    { \
        const layernorm_grad of = __VA_ARGS__; \
        return tarn__cuda_prepare_layernorm_grad(plan, &of); \
    } \
    static void run_##name(const tarn__call *call) \
    { \
        const layernorm_grad of = __VA_ARGS__; \
        tarn__cuda_run_layernorm_grad(call, &of); \
    }
GRADIENT(layernorm_grad, grad_of(call, true))
GRADIENT(rmsnorm_grad, grad_of(call, false))
GRADIENT(residual_norm_grad, residual_grad_of(call, false))
GRADIENT(dropout_residual_norm_grad, residual_grad_of(call, true))

void tarn__cuda_register_layernorm(tarn__kernel_row *rows)
{
    rows[TARN__K_layernorm] = tarn__row(run_layernorm, TARN__FLOATS);
    rows[TARN__K_layernorm_grad] = tarn__row_planned(prepare_layernorm_grad, run_layernorm_grad, TARN__FLOATS);
    rows[TARN__K_rmsnorm] = tarn__row(run_rmsnorm, TARN__FLOATS);
    rows[TARN__K_rmsnorm_grad] = tarn__row_planned(prepare_rmsnorm_grad, run_rmsnorm_grad, TARN__FLOATS);
    rows[TARN__K_residual_norm] = tarn__row(run_residual_norm, TARN__FLOATS);
    rows[TARN__K_residual_norm_grad] =
        tarn__row_planned(prepare_residual_norm_grad, run_residual_norm_grad, TARN__FLOATS);
    rows[TARN__K_dropout_residual_norm] = tarn__row(run_dropout_residual_norm, TARN__FLOATS & ~TARN__BIT(TARN_F64));
    rows[TARN__K_dropout_residual_norm_grad] = tarn__row_planned(
        prepare_dropout_residual_norm_grad, run_dropout_residual_norm_grad, TARN__FLOATS & ~TARN__BIT(TARN_F64));
}
