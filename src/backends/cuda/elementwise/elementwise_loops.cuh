/* elementwise_loops.cuh: the loops of the elementwise kernels.
 *
 * A row of elementwise.def becomes a struct with inputs, outputs and an expression. Two kernels run it:
 * `vector_kernel`, for operands of one dtype whose last axis is contiguous or broadcast, moves 16 bytes at a time;
 * `scalar_kernel`, for any layout and dtype mixture, one element. Both are bound by memory: (inputs + outputs) · bytes
 * per element, each read or written once. */
#ifndef TARN__CUDA_ELEMENTWISE_LOOPS_CUH
#define TARN__CUDA_ELEMENTWISE_LOOPS_CUH

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/elementwise/math.cuh"

enum { IN_F32 = 0, IN_F64 = 1 };

/* ---- expressions: the macros of elementwise.def in terms of the math set M --------------------------------------- */

/* Names used by elementwise.def, mapped to the math set M. */
#define K(c) ((real)(c))
#define ISNAN(x) ((x) != (x))
#define FABS(x) fabs(x)
#define SQRT(x) M::sqrt(x)
#define RSQRT(x) M::inverse_sqrt(x)
#define EXP(x) M::exp(x)
#define EXP_GRAD(x, g) M::exp_grad(x, g)
#define EXP2(x) M::exp2(x)
#define EXP2_GRAD(x, g) M::exp2_grad(x, g)
#define LOG(x) M::log(x)
#define LOG2(x) M::log2(x)
#define SIN(x) M::sin(x)
#define COS(x) M::cos(x)
#define TANH(x) M::tanh(x)
#define SECH2(x) M::tanh_grad(x)
#define ERF(x) M::erf(x)
#define ERF_GRAD(x) M::erf_grad(x)
#define SIGMOID(x) M::sigmoid(x)
#define SIGMOID_GRAD(x) M::sigmoid_grad(x)
#define GELU(x) M::gelu(x)
#define GELU_GRAD(x) M::gelu_grad(x)
#define GELU_ERF(x) M::gelu_erf(x)
#define GELU_ERF_GRAD(x) M::gelu_erf_grad(x)
#define SILU(x) M::silu(x)
#define SILU_GRAD(x) M::silu_grad(x)
#define SOFTPLUS(x) M::softplus(x)
#define SOFTPLUS_GRAD(x, g) M::softplus_grad(x, g)
#define MOD(a, b) M::mod(a, b)
#define MOD_GRAD_B(a, b, g) M::mod_grad_b(a, b, g)
#define POW(a, b) M::power(a, b)
#define POW_GRAD_A(a, b, g) M::power_grad_a(a, b, g)
#define POW_GRAD_B(a, b, g) M::power_grad_b(a, b, g)
#define DIV_GRAD_B(a, b, g) M::quotient_grad_b(a, b, g)

/* Defines an expression: a struct whose run() sees in[], out[], the parameters P0 and P1, and a math set M. */
#define EXPRESSION(name, in_count, out_count, precision, ...) \
    struct name { \
        enum { inputs = in_count, outputs = out_count, is_f64 = precision }; \
        template <typename M> \
        static __device__ __forceinline__ void run(const typename M::real *in, typename M::real *out, \
                                                   typename M::real P0, typename M::real P1) \
        { \
            typedef typename M::real real; \
            __VA_ARGS__ \
        } \
    };

/* The same in f64, for results out of f32's range. Not inlined: rare, and its registers would cost every thread. */
template <typename Op> static __device__ __noinline__ float rerun_f64(float a, float b, double p0, double p1)
{
    const double in[2] = {(double)a, (double)b};
    double out[1];
    Op::template run<f64_math>(in, out, p0, p1);
    return (float)out[0];
}

/* The same for three operands and two results. */
template <typename Op> static __device__ __noinline__ float2 rerun_two_f64(float a, float b, float c)
{
    const double in[3] = {(double)a, (double)b, (double)c};
    double out[2];
    Op::template run<f64_math>(in, out, 0, 0);
    return make_float2((float)out[0], (float)out[1]);
}

/* Runs an expression; those marked for f64 are computed in f32 first and repeated if a result is near the ends of f32's
 * range. */
template <typename Op, typename M>
__device__ __forceinline__ void run_checked(const typename M::real *in, typename M::real *out, typename M::real p0,
                                            typename M::real p1)
{
    Op::template run<M>(in, out, p0, p1);
    if constexpr (Op::is_f64 && sizeof(typename M::real) == sizeof(float)) {
        /* the last operand scales the results: x, or the upstream gradient */
        const float scale = in[Op::inputs - 1];
        if constexpr (Op::outputs == 2) {
            if (needs_f64(out[0], scale) || needs_f64(out[1], scale)) {
                const float2 both = rerun_two_f64<Op>(in[0], in[1], scale);
                out[0] = both.x, out[1] = both.y;
            }
        } else if (needs_f64(out[0], scale)) {
            out[0] = rerun_f64<Op>(in[0], scale, (double)p0, (double)p1);
        }
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Kernel arguments for an expression computed in C. */
template <typename Op, typename C> struct elementwise_args {
    const void *in[Op::inputs];
    void *out[Op::outputs];
    tarn_dtype in_dtype[Op::inputs], out_dtype[Op::outputs];
    uint32_t constants; /* bit k: input k is constant[k] */
    uint32_t dense;     /* bit k: input k is contiguous along the last axis; else it has one value there */
    C constant[Op::inputs];
    C p0, p1;
    int64_t count; /* vectors, or elements */
    int tail;      /* elements after the last vector, if everything is one row */
    offset_calc<Op::outputs + Op::inputs> offsets;
};

/* The last few elements of a row, by the first threads of block 0. Not inlined: its registers would cost every
 * thread. */
template <typename Op, typename T, typename O, int N>
static __device__ __noinline__ void run_tail(const elementwise_args<Op, compute<T>> &a)
{
    typedef compute<T> C;
    int64_t at = a.count * N + threadIdx.x;
    if ((int)threadIdx.x >= a.tail)
        return;
    C x[Op::inputs], y[Op::outputs];
#pragma unroll
    for (int k = 0; k < Op::inputs; k++)
        x[k] = (a.constants >> k) & 1 ? a.constant[k] : widen(((const T *)a.in[k])[(a.dense >> k) & 1 ? at : 0]);
    run_checked<Op, typename math_of<T>::type>(x, y, a.p0, a.p1);
#pragma unroll
    for (int k = 0; k < Op::outputs; k++)
        ((O *)a.out[k])[at] = narrow<O>(y[k]);
}

/* Operand k of a vector: its elements, one value for all of them, or a constant. Uniform over all threads, so branches
 * cost nothing. */
template <typename Op, typename T, int N>
__device__ __forceinline__ void widen_operand(const elementwise_args<Op, compute<T>> &a, int k, const vec<T, N> &x,
                                              compute<T> *y)
{
    if ((a.dense >> k) & 1) {
        widen_vec(x, y);
        return;
    }
    compute<T> one = (a.constants >> k) & 1 ? a.constant[k] : widen(x.at[0]);
#pragma unroll
    for (int i = 0; i < N; i++)
        y[i] = one;
}

/* Offsets of a vector. One row, and rows that repeat or skip something, are nearly all calls: those need no loop over
 * axes, whose steps depend on each other. */
template <int N> __device__ __forceinline__ void locate_vec(const offset_calc<N> &p, int64_t at, int64_t *offset)
{
    if (p.rank <= 1) {
#pragma unroll
        for (int k = 0; k < N; k++)
            offset[k] = at * p.stride[k][0];
    } else if (p.rank == 2 && p.is_small) {
        uint32_t row = divide_small((uint32_t)at, p.size[1]), here = (uint32_t)at - row * (uint32_t)p.size[1].by;
#pragma unroll
        for (int k = 0; k < N; k++)
            offset[k] = (int64_t)row * p.stride[k][0] + (int64_t)here * p.stride[k][1];
    } else {
        locate(p, at, offset);
    }
}

/* U vectors of N elements per thread, all loaded before the first is computed. */
template <typename Op, typename T, typename O, int N, int U>
static __global__ void __launch_bounds__(THREADS)
    vector_kernel(const __grid_constant__ elementwise_args<Op, compute<T>> a)
{
    typedef compute<T> C;
    constexpr int OUT = Op::outputs, IN = Op::inputs;
    int64_t first = (int64_t)blockIdx.x * (THREADS * U) + threadIdx.x;
    vec<T, N> x[U][IN];
    int64_t to[U][OUT];
#pragma unroll
    for (int u = 0; u < U; u++) {
        int64_t at = first + u * THREADS, offset[OUT + IN];
        if (at >= a.count)
            continue;
        locate_vec(a.offsets, at, offset);
#pragma unroll
        for (int k = 0; k < OUT; k++)
            to[u][k] = offset[k];
#pragma unroll
        for (int k = 0; k < IN; k++) {
            const T *from = (const T *)a.in[k] + offset[OUT + k];
            if ((a.dense >> k) & 1)
                x[u][k] = *(const vec<T, N> *)from;
            else if (!((a.constants >> k) & 1))
                x[u][k].at[0] = *from;
        }
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (first + u * THREADS >= a.count)
            break;
        C from[IN][N], results[OUT][N];
#pragma unroll
        for (int k = 0; k < IN; k++)
            widen_operand(a, k, x[u][k], from[k]);
#pragma unroll
        for (int i = 0; i < N; i++) {
            C in[IN], out[OUT];
#pragma unroll
            for (int k = 0; k < IN; k++)
                in[k] = from[k][i];
            run_checked<Op, typename math_of<T>::type>(in, out, a.p0, a.p1);
#pragma unroll
            for (int k = 0; k < OUT; k++)
                results[k][i] = out[k];
        }
#pragma unroll
        for (int k = 0; k < OUT; k++) {
            vec<O, N> y;
            narrow_vec(results[k], y);
            *(vec<O, N> *)((O *)a.out[k] + to[u][k]) = y;
        }
    }
    /* one block handles the tail of a row */
    if (a.tail && blockIdx.x == 0)
        run_tail<Op, T, O, N>(a);
}

/* One element per thread, any layout and dtype. */
template <typename Op, typename M>
static __global__ void __launch_bounds__(THREADS)
    scalar_kernel(const __grid_constant__ elementwise_args<Op, typename M::real> a)
{
    typedef typename M::real C;
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[Op::outputs + Op::inputs];
    if (at >= a.count)
        return;
    locate(a.offsets, at, offset);
    C x[Op::inputs], y[Op::outputs];
#pragma unroll
    for (int k = 0; k < Op::inputs; k++)
        x[k] = (a.constants >> k) & 1 ? a.constant[k] : load_any<C>(a.in[k], a.in_dtype[k], offset[Op::outputs + k]);
    run_checked<Op, M>(x, y, a.p0, a.p1);
#pragma unroll
    for (int k = 0; k < Op::outputs; k++)
        store_any(a.out[k], a.out_dtype[k], offset[k], y[k]);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* A scalar operand in the compute type. */
static inline void constant_as(const tarn__scalar *number, float *x)
{
    *x = (float)number->real;
}
static inline void constant_as(const tarn__scalar *number, double *x)
{
    *x = number->real;
}
static inline void constant_as(const tarn__scalar *number, int64_t *x)
{
    *x = number->integer;
}

/* P0 and P1 in the compute type. */
static inline void parameter_as(double p, float *x)
{
    *x = (float)p;
}
static inline void parameter_as(double p, double *x)
{
    *x = p;
}
/* Saturates: an integer tensor clamped with an infinite bound. */
static inline void parameter_as(double p, int64_t *x)
{
    *x = p >= 0x1p63 ? INT64_MAX : p <= -0x1p63 ? INT64_MIN : (int64_t)p;
}

/* Outputs first, then inputs; constants have no view. */
template <typename Op> static void nest_of(const tarn__call *call, tarn__nest *nest)
{
    const tarn__view *views[Op::outputs + Op::inputs];
    for (int k = 0; k < Op::outputs; k++)
        views[k] = call->out[k];
    for (int k = 0; k < Op::inputs; k++)
        views[Op::outputs + k] = call->in[k];
    tarn__nest_make(nest, Op::outputs + Op::inputs, views);
}

/* Addresses, dtypes and constants; offsets are filled in later. */
template <typename Op, typename C> static elementwise_args<Op, C> args_of(const tarn__call *call)
{
    const tarn__elementwise *params = (const tarn__elementwise *)call->params;
    elementwise_args<Op, C> a = {};
    for (int k = 0; k < Op::outputs; k++) {
        a.out[k] = tarn__view_at(call->out[k]);
        a.out_dtype[k] = call->out[k]->dtype;
    }
    for (int k = 0; k < Op::inputs; k++) {
        if ((params->constants >> k) & 1) {
            a.constants |= 1u << k;
            constant_as(&params->constant[k], &a.constant[k]);
        } else {
            a.in[k] = tarn__view_at(call->in[k]);
            a.in_dtype[k] = call->in[k]->dtype;
        }
    }
    parameter_as(params->p0, &a.p0);
    parameter_as(params->p1, &a.p1);
    return a;
}

/* Turns the nest into one of vectors, if every operand's layout and alignment allow it. */
template <typename Op, typename T, typename O, int N>
static bool vectorize_nest(const tarn__call *call, tarn__nest *nest, elementwise_args<Op, compute<T>> *a)
{
    constexpr int operands = Op::outputs + Op::inputs;
    int last = nest->rank - 1;
    /* only a single row may have a tail */
    bool is_row = nest->rank <= 1;
    if (nest->rank == 0 || (!is_row && nest->shape[last] % N != 0))
        return false;
    /* every operand must allow vectors, or the whole call goes element by element */
    for (int k = 0; k < operands; k++) {
        bool is_output = k < Op::outputs;
        const tarn__view *view = is_output ? call->out[k] : call->in[k - Op::outputs];
        if (!view)
            continue;
        int64_t inner = nest->stride[k][last];
        /* outputs contiguous; inputs contiguous or broadcast */
        if (inner != 1 && (is_output || inner != 0))
            return false;
        if (inner == 1 && !is_aligned(tarn__view_at(view), (is_output ? sizeof(O) : sizeof(T)) * N))
            return false;
        for (int i = 0; inner == 1 && i < last; i++)
            if (nest->stride[k][i] % N != 0)
                return false;
        if (!is_output && inner == 1)
            a->dense |= 1u << (k - Op::outputs);
        nest->stride[k][last] = inner * N;
    }
    a->tail = is_row ? (int)(nest->shape[last] % N) : 0;
    nest->shape[last] /= N;
    nest->count /= N;
    return true;
}

/* Grid: U vectors per thread, 256 threads per block; U is 1 with many operands, to save registers. False: use
 * launch_scalar(). */
template <typename Op, typename T, typename O> static bool launch_vectorized(const tarn__call *call)
{
    constexpr int N = 16 / (int)(sizeof(T) > sizeof(O) ? sizeof(T) : sizeof(O)),
                  U = Op::inputs + Op::outputs > 3 ? 1 : 2;
    for (int k = 0; k < Op::inputs; k++)
        if (call->in[k] && call->in[k]->dtype != (call->in[0] ? call->in[0] : call->in[1])->dtype)
            return false;
    tarn__nest nest;
    nest_of<Op>(call, &nest);
    elementwise_args<Op, compute<T>> a = args_of<Op, compute<T>>(call);
    if (!vectorize_nest<Op, T, O, N>(call, &nest, &a))
        return false;
    a.count = nest.count;
    a.offsets = offset_calc_of<Op::outputs + Op::inputs>(&nest);
    vector_kernel<Op, T, O, N, U><<<blocks_for(a.count, THREADS * U), THREADS, 0, stream_of(call)>>>(a);
    return true;
}

/* Grid: one element per thread. */
template <typename Op, typename M> static void launch_scalar(const tarn__call *call)
{
    tarn__nest nest;
    nest_of<Op>(call, &nest);
    elementwise_args<Op, typename M::real> a = args_of<Op, typename M::real>(call);
    a.count = nest.count;
    a.offsets = offset_calc_of<Op::outputs + Op::inputs>(&nest);
    scalar_kernel<Op, M><<<blocks_for(a.count, THREADS), THREADS, 0, stream_of(call)>>>(a);
}

/* The first tensor operand decides the compute type. */
static inline tarn_dtype leading_dtype(const tarn__call *call)
{
    for (int k = 0; k < call->inputs; k++)
        if (call->in[k])
            return call->in[k]->dtype;
    return call->out[0]->dtype;
}

/* The first output may be NULL in gradients of two operands. */
static inline bool is_empty(const tarn__call *call)
{
    return tarn__view_count(call->out[0] ? call->out[0] : call->out[1]) == 0;
}

/* An expression on floats. Results have the operands' dtype, or else go one by one. */
template <typename Op> static void run_floats(const tarn__call *call)
{
    tarn_dtype dtype = leading_dtype(call);
    if (is_empty(call))
        return;
    bool is_same = true;
    for (int k = 0; k < Op::outputs; k++)
        is_same = is_same && call->out[k]->dtype == dtype;
    /* f64 has no vector kernel */
    bool done = is_same && (dtype == TARN_F32    ? launch_vectorized<Op, float, float>(call)
                            : dtype == TARN_BF16 ? launch_vectorized<Op, bf16, bf16>(call)
                            : dtype == TARN_F16  ? launch_vectorized<Op, f16, f16>(call)
                                                 : false);
    if (!done && dtype == TARN_F64)
        launch_scalar<Op, f64_math>(call);
    else if (!done)
        launch_scalar<Op, f32_math>(call);
}

/* An expression on any dtype. */
template <typename Op> static void run_any(const tarn__call *call)
{
    if (tarn__is_float(leading_dtype(call)))
        run_floats<Op>(call);
    else if (!is_empty(call))
        launch_scalar<Op, int_math>(call);
}

#endif
