/* reduce_grad.cuh: gradients of reductions that follow from x, the output's upstream gradient and a state of that
 * output.
 *
 * An operation is a reduction (reduce_loops.cuh) that also defines the gradient of an element:
 *       factors, factors_of(g, state)   computed once per output
 *       grad(x, result, factors)        the gradient of one element
 *       state_of(first, second)         a state from the values that result() and second() returned
 *
 * Two ways. In registers, for rows that fit a block: x is read once. In two passes, for any layout and dtype: states by
 * a reduction, then every element from x and its output's state. */
#ifndef TARN__CUDA_REDUCE_GRAD_CUH
#define TARN__CUDA_REDUCE_GRAD_CUH

#include "backends/cuda/reduce/reduce_loops.cuh"

#define REG_VECS 4 /* vectors per thread in registers */

/* ---- in registers ------------------------------------------------------------------------------------------------ */

#define MAX_ROW_THREADS 512 /* per block, at most */

/* Every thread of the group gets the state: up to 32 adjacent threads, or the whole block. */
template <typename Op> __device__ __forceinline__ void broadcast_state(typename Op::state &s, int group)
{
    __shared__ typename Op::state space[MAX_ROW_THREADS / WARP];
    for (int step = (group < WARP ? group : WARP) / 2; step > 0; step /= 2)
        Op::merge(s, shuffle_state(s, step));
    if (group <= WARP)
        return;
    if (threadIdx.x % WARP == 0)
        space[threadIdx.x / WARP] = s;
    __syncthreads();
    s = space[0];
    for (int i = 1; i < (int)blockDim.x / WARP; i++)
        Op::merge(s, space[i]);
}

/* A group of threads per row. Bytes: x read and gx written once. */
template <typename Op, typename T, int N>
static __global__ void __launch_bounds__(MAX_ROW_THREADS, 2)
    register_rows(const __grid_constant__ reduce_args a, T *gx, int group)
{
    typedef compute<T> C;
    int groups = (int)blockDim.x / group, lane = (int)threadIdx.x % group;
    int64_t unit = (int64_t)blockIdx.x * groups + threadIdx.x / group, offset[3] = {0, 0, 0};
    bool is_here = unit < a.units;
    vec<T, N> x[REG_VECS];
    C y = 0, g = 0;
    typename Op::state s = Op::start();
    if (is_here) {
        locate(a.outer, unit, offset);
        typename Op::batch b = begin_batch<Op>(s);
#pragma unroll
        for (int u = 0; u < REG_VECS; u++)
            if (lane + u * group < a.length)
                x[u] = *(const vec<T, N> *)((const T *)a.x + offset[0] + (lane + u * group) * N);
        y = Op::aux(a, offset[2]);
        g = load_any<C>(a.y, a.y_dtype, offset[1]);
#pragma unroll
        for (int u = 0; u < REG_VECS; u++)
            if (lane + u * group < a.length)
#pragma unroll
                for (int k = 0; k < N; k++)
                    Op::take(b, widen(x[u].at[k]), y, 0);
        end_batch<Op>(s, b);
    }
    broadcast_state<Op>(s, group);
    if (!is_here)
        return;
    /* once per row, then every element from registers */
    typename Op::factors by = Op::factors_of(g, s);
#pragma unroll
    for (int u = 0; u < REG_VECS; u++)
        if (lane + u * group < a.length) {
#pragma unroll
            for (int k = 0; k < N; k++)
                x[u].at[k] = narrow<T>(Op::grad(widen(x[u].at[k]), y, by));
            *(vec<T, N> *)(gx + offset[0] + (lane + u * group) * N) = x[u];
        }
}

/* Threads per row and per block: short rows take groups of 1 … 32 of 256 threads; longer ones a block of as many
 * threads as hold them. */
struct row_group {
    int threads, block;
};

static row_group row_group_of(const reduce_args &a)
{
    int needed = (int)divide_up(a.length, REG_VECS), whole_warps = (int)divide_up(needed, WARP) * WARP;
    return needed <= WARP ? row_group{1 << bits_for(needed), THREADS} : row_group{whole_warps, whole_warps};
}

/* Grid: all rows, block / threads of them per block. */
template <template <typename> class Op, typename T>
static void launch_register_rows(const reduce_args &a, void *gx, cudaStream_t stream)
{
    const row_group group = row_group_of(a);
    register_rows<Op<compute<T>>, T, vec_size<T>::value>
        <<<blocks_for(a.units, group.block / group.threads), group.block, 0, stream>>>(a, (T *)gx, group.threads);
}

/* ---- in two passes ----------------------------------------------------------------------------------------------- */

/* Arguments of the second pass. */
struct grad_args {
    const void *in[5]; /* x, g, result or NULL, first and second part of the state (f64) */
    void *gx;
    tarn_dtype dtype[3], gx_dtype;
    int64_t count;
    bool is_inner;
    int64_t inner[4];
    offset_calc<6> operands; /* x, gx, g, result, parts of the state */
};

/* 16 bytes of x and of gx per thread; `inner` are the strides of g, result and states within a vector, 0 if it has one
 * output. */
template <typename Op, typename T, int N>
static __global__ void __launch_bounds__(THREADS) grad_vectorized(const __grid_constant__ grad_args a)
{
    typedef compute<T> C;
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[6];
    if (at >= a.count)
        return;
    locate(a.operands, at, offset);
    vec<T, N> x = *(const vec<T, N> *)((const T *)a.in[0] + offset[0]);
    C y = 0;
    typename Op::factors by;
#pragma unroll
    for (int k = 0; k < N; k++) {
        if (k == 0 || a.is_inner) {
            C g = load_any<C>(a.in[1], a.dtype[1], offset[2] + k * a.inner[0]);
            double second = a.in[4] ? ((const double *)a.in[4])[offset[5] + k * a.inner[3]] : 0;
            y = a.in[2] ? load_any<C>(a.in[2], a.dtype[2], offset[3] + k * a.inner[1]) : (C)0;
            by = Op::factors_of(g, Op::state_of(((const double *)a.in[3])[offset[4] + k * a.inner[2]], second));
        }
        x.at[k] = narrow<T>(Op::grad(widen(x.at[k]), y, by));
    }
    *(vec<T, N> *)((T *)a.gx + offset[1]) = x;
}

/* One element per thread, any layout. */
template <typename Op, typename C>
static __global__ void __launch_bounds__(THREADS) grad_general(const __grid_constant__ grad_args a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[6];
    if (at >= a.count)
        return;
    locate(a.operands, at, offset);
    C x = load_any<C>(a.in[0], a.dtype[0], offset[0]), g = load_any<C>(a.in[1], a.dtype[1], offset[2]);
    C y = a.in[2] ? load_any<C>(a.in[2], a.dtype[2], offset[3]) : (C)0;
    double second = a.in[4] ? ((const double *)a.in[4])[offset[5]] : 0;
    typename Op::state s = Op::state_of(((const double *)a.in[3])[offset[4]], second);
    store_any(a.gx, a.gx_dtype, offset[1], Op::grad(x, y, Op::factors_of(g, s)));
}

/* Operands of a gradient; result is NULL for prod. */
struct gradient {
    const tarn__view *x, *g, *result, *gx;
};

/* States of the two-pass gradient in scratch: f64, g's shape; the second part follows the first. */
static tarn__view states_view(const gradient *d, void *scratch)
{
    tarn__view view = *d->g;
    view.memory = scratch;
    view.offset = 0;
    view.dtype = TARN_F64;
    tarn__view_set_row_major(&view);
    return view;
}

/* Second operand of the reduction: the result; prod has none, and its second pass needs g's offsets. */
static const tarn__view *aux_of(const gradient *d)
{
    return d->result ? d->result : d->g;
}

/* Plans the reduction of a two-pass gradient. Returns the bytes of scratch: two f64 arrays of states, and the
 * reduction's chunks. */
static size_t plan_states(reduce_args *a, const gradient *d)
{
    tarn__view states = states_view(d, NULL);
    size_t bytes = 2 * sizeof(double) * (size_t)tarn__view_count(&states);
    return plan_reduce(a, d->x, &states, aux_of(d)) ? bytes + states_bytes(*a) : bytes;
}

/* Turns the nest into one of vectors, if x and gx allow it. */
static bool vectorize_grads(grad_args *s, tarn__nest *nest)
{
    int last = nest->rank - 1, n = vec_width_of(s->dtype[0]);
    if (n == 1 || last < 0 || nest->shape[last] % n != 0 || s->gx_dtype != s->dtype[0] || !is_aligned(s->in[0], 16) ||
        !is_aligned(s->gx, 16))
        return false;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i <= last; i++)
            if (i == last ? nest->stride[k][i] != 1 : nest->stride[k][i] % n != 0)
                return false;
    /* strides of g, result and states within a vector */
    for (int k = 0; k < 4; k++) {
        s->inner[k] = nest->stride[2 + k][last];
        s->is_inner = s->is_inner || s->inner[k] != 0;
    }
    for (int k = 0; k < 6; k++)
        nest->stride[k][last] *= n;
    nest->shape[last] /= n;
    nest->count /= n;
    return true;
}

/* Grid: one vector or element per thread. Bytes: x read, gx written. */
template <template <typename> class Op> static void launch_grads(grad_args s, tarn__nest *nest, cudaStream_t stream)
{
    bool is_vectorized = vectorize_grads(&s, nest);
    s.count = nest->count;
    s.operands = offset_calc_of<6>(nest);
    unsigned blocks = blocks_for(s.count, THREADS);
    if (is_vectorized && s.dtype[0] == TARN_F32)
        grad_vectorized<Op<float>, float, 4><<<blocks, THREADS, 0, stream>>>(s);
    else if (is_vectorized && s.dtype[0] == TARN_BF16)
        grad_vectorized<Op<float>, bf16, 8><<<blocks, THREADS, 0, stream>>>(s);
    else if (is_vectorized)
        grad_vectorized<Op<float>, f16, 8><<<blocks, THREADS, 0, stream>>>(s);
    else if (s.dtype[0] == TARN_F64)
        grad_general<Op<double>, double><<<blocks, THREADS, 0, stream>>>(s);
    else
        grad_general<Op<float>, float><<<blocks, THREADS, 0, stream>>>(s);
}

/* True if gx can be written at x's offsets. */
static bool same_layout(const tarn__view *x, const tarn__view *gx)
{
    if (x->dtype != gx->dtype || !is_aligned(tarn__view_at(gx), 16))
        return false;
    for (int i = 0; i < x->rank; i++)
        if (x->shape[i] != 1 && x->stride[i] != gx->stride[i])
            return false;
    return true;
}

/* Computes the states into scratch, by the plan in `a`. False if there are none. */
template <template <typename> class Op>
static bool reduce_states(const tarn__call *call, const gradient *d, reduce_args *a, tarn__view *first,
                          tarn__view *second)
{
    /* two f64 values per output, then the reduction's own scratch */
    *first = *second = states_view(d, call->scratch);
    second->offset = tarn__view_count(first);
    if (a->outputs == 0)
        return false;
    set_addresses(a, d->x, first, aux_of(d));
    a->partial = (double *)call->scratch + 2 * second->offset;
    a->second = d->result ? NULL : (double *)tarn__view_at(second);
    reduce_floats<Op>(*a, stream_of(call));
    return true;
}

/* Computes every element from the states. */
template <template <typename> class Op>
static void grad_from_states(const tarn__call *call, const gradient *d, const reduce_args &a, const tarn__view *first,
                             const tarn__view *second)
{
    grad_args s = {};
    const tarn__view *views[] = {d->x, d->gx, d->g, d->result, first, second};
    tarn__nest nest;
    tarn__nest_make(&nest, 6, views);
    s.in[0] = tarn__view_at(d->x), s.in[1] = tarn__view_at(d->g), s.in[2] = d->result ? tarn__view_at(d->result) : NULL;
    s.in[3] = tarn__view_at(first), s.in[4] = a.second;
    s.dtype[0] = d->x->dtype, s.dtype[1] = d->g->dtype, s.dtype[2] = d->result ? d->result->dtype : TARN_F32;
    s.gx = tarn__view_at(d->gx), s.gx_dtype = d->gx->dtype;
    launch_grads<Op>(s, &nest, stream_of(call));
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

/* Calls launch(T()) for the dtypes that come in vectors. */
template <typename Launch> static void by_vec_dtype(tarn_dtype dtype, const Launch &launch)
{
    if (dtype == TARN_F32)
        launch(float());
    else if (dtype == TARN_BF16)
        launch(bf16());
    else
        launch(f16());
}

/* True if x and gx move in vectors, at the same offsets. The plan is that of a reduction with g as its result. */
static bool plan_vectorized(const gradient *d, reduce_args *a)
{
    return plan_reduce(a, d->x, d->g, d->result) && a->vec_width > 1 && a->tail == 0 && same_layout(d->x, d->gx);
}

/* True if a block holds a row in registers, and there are enough rows. */
static bool fits_registers(const reduce_args &a)
{
    return !a.by_columns && a.reduced.rank == 1 && a.length <= REG_VECS * MAX_ROW_THREADS &&
           (a.units >= 64 || a.length <= THREADS);
}

/* A gradient that runs in registers if it can, else in two passes. */
struct grad_job {
    bool in_registers;
    reduce_args reduction; /* of the states, or of the rows in registers */
};

static tarn__plan_status prepare_grad(tarn__plan *plan, const gradient *d)
{
    grad_job *j = reserve_job<grad_job>(plan);
    if (!j)
        return TARN__PLAN_FAILED;
    j->in_registers = plan_vectorized(d, &j->reduction) && fits_registers(j->reduction);
    if (!j->in_registers)
        plan->scratch_bytes = plan_states(&j->reduction, d);
    return TARN__PLAN_READY;
}

/* In registers; false if rows do not fit: nothing is launched then. */
template <template <typename> class Op> static bool run_in_registers(const tarn__call *call, const gradient *d)
{
    const grad_job *j = job_of<grad_job>(call);
    if (!j->in_registers)
        return false;
    reduce_args a = j->reduction;
    set_addresses(&a, d->x, d->g, d->result);
    by_vec_dtype(d->x->dtype,
                 [&](auto of) { launch_register_rows<Op, decltype(of)>(a, tarn__view_at(d->gx), stream_of(call)); });
    return true;
}

#endif
