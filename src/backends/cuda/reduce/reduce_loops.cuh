/* reduce_loops.cuh: the loops of all reductions. A reduction defines a small state per output and how an element is
 * added to it; which elements, in which order and by which thread is decided here.
 *
 * Two forms, by layout. Rows: the innermost axis is reduced, and a group of adjacent threads walks the elements of one
 * output. Columns: the innermost axis is kept, adjacent threads have adjacent outputs and walk in step. A unit is what
 * a group or a column of threads computes: one output, or a vector of them. With too few units to fill a device the
 * walk is split into chunks; their states go to scratch, and a second kernel merges them.
 *
 * All splits depend on the shape alone and are merged in a fixed order. A thread adds BATCH vectors to a batch in the
 * elements' compute type, then the batch to its state, which is f64 for sums: the error of a long sum is that of a
 * short one. */
#ifndef TARN__CUDA_REDUCE_LOOPS_CUH
#define TARN__CUDA_REDUCE_LOOPS_CUH

#include <type_traits>

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/reduce/reduce_plan.cuh"

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* All dtypes that are computed in i64. */
struct any_integer {
};

/* Loads N elements of T; `one` loads a single one of the tail. */
template <typename T, int N> struct source {
    typedef vec<T, N> vec_type;
    static __device__ __forceinline__ vec_type load(const void *x, tarn_dtype, int64_t at)
    {
        return *(const vec_type *)((const T *)x + at);
    }
    static __device__ __forceinline__ compute<T> get(const vec_type &p, int k)
    {
        return widen(p.at[k]);
    }
    static __device__ __forceinline__ compute<T> one(const void *x, tarn_dtype, int64_t at)
    {
        return widen(((const T *)x)[at]);
    }
};
template <> struct source<any_integer, 1> {
    typedef int64_t vec_type;
    static __device__ __forceinline__ vec_type load(const void *x, tarn_dtype dtype, int64_t at)
    {
        return load_any<int64_t>(x, dtype, at);
    }
    static __device__ __forceinline__ int64_t get(const vec_type &p, int)
    {
        return p;
    }
    static __device__ __forceinline__ int64_t one(const void *x, tarn_dtype dtype, int64_t at)
    {
        return load_any<int64_t>(x, dtype, at);
    }
};

/* Not inlined: rare, and it would be repeated for every load of a batch. */
static __device__ __noinline__ int64_t any_offset(const offset_calc<1> &reduced, int64_t step)
{
    int64_t offset[1];
    locate(reduced, step, offset);
    return offset[0];
}

/* Offset of a step. Vectors are used with one or two reduced axes only: two cost one more multiplication. */
template <int N> __device__ __forceinline__ int64_t step_offset(const reduce_args &a, int64_t step)
{
    const offset_calc<1> &p = a.reduced;
    if (p.rank <= 1)
        return step * p.stride[0][0];
    if constexpr (N == 1)
        return any_offset(p, step);
    uint32_t row = divide_small((uint32_t)step, p.size[1]), rest = (uint32_t)step - row * (uint32_t)p.size[1].by;
    return (int64_t)row * p.stride[0][0] + (int64_t)rest * p.stride[0][1];
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* A reduction is a struct Op<C> over elements computed in C:
 *       state, batch            accumulator; what elements are added to, BATCH vectors at a time: the state itself
 *                               if the types agree
 *       start(), open()         before the first element
 *       aux(args, offset)       a value that `take` gets with each element of an output
 *       take(batch, x, aux, at) adds one element; `at` is its index within the output
 *       absorb(state, batch), merge(state, state)
 *       result(state, args)     the stored value; second(state) for `args.second`
 *       has_columns             false: there is only ever one output */

/* True if a batch has its own type. */
template <typename Op> constexpr bool has_batch = !std::is_same<typename Op::state, typename Op::batch>::value;

/* Without a batch type elements are added to the state directly. */
template <typename Op> __device__ __forceinline__ typename Op::batch begin_batch(const typename Op::state &s)
{
    if constexpr (has_batch<Op>)
        return Op::open();
    else
        return s;
}

template <typename Op> __device__ __forceinline__ void end_batch(typename Op::state &s, const typename Op::batch &b)
{
    if constexpr (has_batch<Op>)
        Op::absorb(s, b);
    else
        s = b;
}

/* Butterfly exchange of a state, word by word. */
template <typename S> __device__ __forceinline__ S shuffle_state(const S &s, int step)
{
    constexpr int words = (int)(sizeof(S) / sizeof(uint32_t));
    uint32_t word[words];
    S other;
    memcpy(word, &s, sizeof(S));
#pragma unroll
    for (int i = 0; i < words; i++)
        word[i] = __shfl_xor_sync(FULL_WARP, word[i], step);
    memcpy(&other, word, sizeof(S));
    return other;
}

/* Merges over a group of 1 … 32 threads, or the whole block: thread 0 of the group gets the result. */
template <typename Op> __device__ __forceinline__ void merge_group(typename Op::state &s, int group)
{
    __shared__ typename Op::state space[THREADS / WARP];
    for (int step = (group < WARP ? group : WARP) / 2; step > 0; step /= 2)
        Op::merge(s, shuffle_state(s, step));
    if (group <= WARP)
        return;
    if (threadIdx.x % WARP == 0)
        space[threadIdx.x / WARP] = s;
    __syncthreads();
    for (int i = 1; threadIdx.x == 0 && i < THREADS / WARP; i++)
        Op::merge(s, space[i]);
}

/* Merges threads that are `width` apart, N states each: the first row gets the results. Fixed tree order. */
template <typename Op, int N> __device__ __forceinline__ void merge_rows(typename Op::state *s, int width)
{
    __shared__ typename Op::state space[N][THREADS / 2];
    int thread = (int)threadIdx.x;
    for (int half = THREADS / 2; half >= width; half /= 2) {
        if (thread >= half && thread < 2 * half)
#pragma unroll
            for (int k = 0; k < N; k++)
                space[k][thread - half] = s[k];
        __syncthreads();
        if (thread < half)
#pragma unroll
            for (int k = 0; k < N; k++)
                Op::merge(s[k], space[k][thread]);
        __syncthreads();
    }
}

/* A chunk's state goes to scratch, the only one's result to y. */
template <typename Op>
__device__ __forceinline__ void store_state(const reduce_args &a, const typename Op::state &s, int64_t output,
                                            int64_t y_offset)
{
    if (gridDim.y > 1) {
        ((typename Op::state *)a.partial)[(int64_t)blockIdx.y * a.outputs + output] = s;
        return;
    }
    store_any(a.y, a.y_dtype, y_offset, Op::result(s, a));
    if (a.second)
        a.second[y_offset] = Op::second(s);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Grid: (units / groups per block, chunks). Every thread has BATCH 16-byte loads in flight. Bytes: x once. */
template <typename Op, typename T, int N>
static __global__ void __launch_bounds__(THREADS, 4) reduce_rows(const __grid_constant__ reduce_args a)
{
    typedef source<T, N> from;
    int group = 1 << a.width_bits, lane = (int)threadIdx.x & (group - 1);
    int64_t unit = (int64_t)blockIdx.x * (THREADS >> a.width_bits) + (threadIdx.x >> a.width_bits), offset[3];
    int64_t begin = (int64_t)blockIdx.y * a.chunk, end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
    typename Op::state s = Op::start();
    if (unit < a.units) {
        locate(a.outer, unit, offset);
        auto aux = Op::aux(a, offset[2]);
#pragma unroll 1
        for (int64_t i = begin + lane; i < end; i += group * BATCH) {
            typename from::vec_type x[BATCH];
#pragma unroll
            for (int u = 0; u < BATCH; u++)
                if (i + u * group < end)
                    x[u] = from::load(a.x, a.x_dtype, offset[0] + step_offset<N>(a, i + u * group));
            typename Op::batch b = begin_batch<Op>(s);
#pragma unroll
            for (int u = 0; u < BATCH; u++)
                if (i + u * group < end)
#pragma unroll
                    for (int k = 0; k < N; k++)
                        Op::take(b, from::get(x[u], k), aux, (i + u * group) * N + k);
            end_batch<Op>(s, b);
        }
        /* elements after the last vector, by one thread of the last chunk */
        if (a.tail > 0 && lane == 0 && end == a.length) {
            typename Op::batch b = begin_batch<Op>(s);
            for (int64_t i = a.length * N; i < a.count; i++)
                Op::take(b, from::one(a.x, a.x_dtype, i), aux, i);
            end_batch<Op>(s, b);
        }
    }
    /* all threads, also those without a unit: it has barriers */
    merge_group<Op>(s, group);
    if (unit < a.units && lane == 0)
        store_state<Op>(a, s, unit, offset[1]);
}

/* Grid: (units / width of a block, chunks). Bytes: x once. */
template <typename Op, typename T, int N>
static __global__ void __launch_bounds__(THREADS, 3) reduce_columns(const __grid_constant__ reduce_args a)
{
    typedef source<T, N> from;
    typedef decltype(Op::aux(a, 0)) number;
    /* loads in flight, as registers allow */
    constexpr int U = N * (int)sizeof(typename Op::state) > 64 ? BATCH / 2 : BATCH;
    int width = 1 << a.width_bits, rows = THREADS >> a.width_bits, row = (int)(threadIdx.x >> a.width_bits);
    int64_t unit = (int64_t)blockIdx.x * width + (threadIdx.x & (width - 1)), offset[3];
    int64_t begin = (int64_t)blockIdx.y * a.chunk, end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
    typename Op::state s[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        s[k] = Op::start();
    if (unit < a.units) {
        number aux[N];
        locate(a.outer, unit, offset);
#pragma unroll
        for (int k = 0; k < N; k++)
            aux[k] = Op::aux(a, offset[2] + k * a.column_aux);
#pragma unroll 1
        for (int64_t i = begin + row; i < end; i += rows * U) {
            typename from::vec_type x[U];
            typename Op::batch b[N];
#pragma unroll
            for (int u = 0; u < U; u++)
                if (i + u * rows < end)
                    x[u] = from::load(a.x, a.x_dtype, offset[0] + step_offset<N>(a, i + u * rows));
#pragma unroll
            for (int k = 0; k < N; k++)
                b[k] = begin_batch<Op>(s[k]);
#pragma unroll
            for (int u = 0; u < U; u++)
                if (i + u * rows < end)
#pragma unroll
                    for (int k = 0; k < N; k++)
                        Op::take(b[k], from::get(x[u], k), aux[k], i + u * rows);
#pragma unroll
            for (int k = 0; k < N; k++)
                end_batch<Op>(s[k], b[k]);
        }
    }
    /* all threads, also those without a unit: it has barriers */
    merge_rows<Op, N>(s, width);
    if (unit < a.units && row == 0)
#pragma unroll
        for (int k = 0; k < N; k++)
            store_state<Op>(a, s[k], unit * N + k, offset[1] + k * a.column_y);
}

/* Merges the chunks' states in order. Grid: outputs / 2^bits; adjacent threads read adjacent outputs. */
template <typename Op>
static __global__ void __launch_bounds__(THREADS) reduce_chunks(const __grid_constant__ reduce_args a, int bits)
{
    int width = 1 << bits;
    int64_t output = (int64_t)blockIdx.x * width + (threadIdx.x & (width - 1)), offset[3];
    const typename Op::state *partial = (const typename Op::state *)a.partial;
    typename Op::state s = Op::start();
    if (output < a.outputs)
#pragma unroll 8
        for (int64_t c = threadIdx.x >> bits; c < a.chunks; c += THREADS >> bits)
            Op::merge(s, partial[c * a.outputs + output]);
    merge_rows<Op, 1>(&s, width);
    if (output >= a.outputs || (int)threadIdx.x >= width)
        return;
    locate(a.outer, output / a.outputs_per_unit, offset);
    store_state<Op>(a, s, output, offset[1] + output % a.outputs_per_unit * a.column_y);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Grid: units, and chunks along y; a second launch merges the chunks. */
template <template <typename> class Op, typename T, int N>
static void launch_reduce(const reduce_args &a, cudaStream_t stream)
{
    typedef Op<compute<T>> op;
    static_assert(sizeof(typename op::state) <= STATE_BYTES, "scratch has room for the largest state");
    dim3 grid(blocks_for(a.units, a.by_columns ? 1 << a.width_bits : THREADS >> a.width_bits), (unsigned)a.chunks);
    if (!a.by_columns)
        reduce_rows<op, T, N><<<grid, THREADS, 0, stream>>>(a);
    else if constexpr (op::has_columns)
        reduce_columns<op, T, N><<<grid, THREADS, 0, stream>>>(a);
    if (a.chunks > 1) {
        int bits = bits_for(a.outputs);
        bits = bits < 5 ? bits : 5;
        reduce_chunks<op><<<blocks_for(a.outputs, 1 << bits), THREADS, 0, stream>>>(a, bits);
    }
}

/* f64 is not vectorized. */
template <template <typename> class Op> static void reduce_floats(const reduce_args &a, cudaStream_t stream)
{
    switch (a.x_dtype) {
    case TARN_F32:
        a.vec_width > 1 ? launch_reduce<Op, float, 4>(a, stream) : launch_reduce<Op, float, 1>(a, stream);
        break;
    case TARN_BF16:
        a.vec_width > 1 ? launch_reduce<Op, bf16, 8>(a, stream) : launch_reduce<Op, bf16, 1>(a, stream);
        break;
    case TARN_F16: a.vec_width > 1 ? launch_reduce<Op, f16, 8>(a, stream) : launch_reduce<Op, f16, 1>(a, stream); break;
    default: launch_reduce<Op, double, 1>(a, stream); break;
    }
}

/* Integers are loaded one by one and computed in i64. */
template <template <typename> class Op> static void reduce_any(const reduce_args &a, cudaStream_t stream)
{
    if (tarn__is_float(a.x_dtype))
        reduce_floats<Op>(a, stream);
    else
        launch_reduce<Op, any_integer, 1>(a, stream);
}

/* Plans a call that reduces its one input. */
static tarn__plan_status prepare_call(const tarn__call *call, tarn__plan *plan)
{
    reduce_args *a = reserve_job<reduce_args>(plan);
    if (!a)
        return TARN__PLAN_FAILED;
    if (plan_reduce(a, call->in[0], call->out[0], NULL))
        plan->scratch_bytes = states_bytes(*a);
    a->flip = 1;
    a->scale = 1;
    return TARN__PLAN_READY;
}

/* Kernel arguments of such a call; false if there is nothing to do. */
static inline bool args_of_call(reduce_args *a, const tarn__call *call)
{
    *a = *job_of<reduce_args>(call);
    set_addresses(a, call->in[0], call->out[0], NULL);
    a->partial = call->scratch;
    return a->outputs > 0;
}

/* Accumulator of sums and products of elements computed in C. */
template <typename C> struct total_of {
    typedef double type;
};
template <> struct total_of<int64_t> {
    typedef int64_t type;
};

/* min is the max of negated elements: x · -1 for floats, which is exact, and ~x for integers. */
template <typename C> __device__ __forceinline__ C flip_of(const reduce_args &a)
{
    return (C)a.flip;
}
template <> __device__ __forceinline__ int64_t flip_of<int64_t>(const reduce_args &a)
{
    return a.flip < 0 ? -1 : 0;
}
template <typename C> __device__ __forceinline__ C flipped(C x, C flip)
{
    return x * flip;
}
template <> __device__ __forceinline__ int64_t flipped<int64_t>(int64_t x, int64_t flip)
{
    return x ^ flip;
}
/* The start of a maximum. */
template <typename C> __device__ __forceinline__ C lowest(void)
{
    return (C)-CUDART_INF;
}
template <> __device__ __forceinline__ int64_t lowest<int64_t>(void)
{
    return INT64_MIN;
}

#endif
