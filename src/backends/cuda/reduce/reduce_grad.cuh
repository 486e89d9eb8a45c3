/* reduce_grad.cuh: gradients of reductions where an element's share follows from x, the upstream gradient of its output
 * and a state of that output.
 *
 * An operation is a reduction (see reduce_loops.cuh) that says besides what every element gets:
 *     shares, shares_of(g, state)   what is made once for each output
 *     share(x, result, shares)      the gradient of one element
 *     state_of(first, second)       a state from the two numbers that result() and second() made of it
 *
 * Two ways: in registers, for rows that a block can hold: x is read once. In two steps, for any layout and dtype:
 * states by a fold, then every element from x and its output's state. */
#ifndef TARN__CUDA_SHARES_CUH
#define TARN__CUDA_SHARES_CUH

#include "backends/cuda/reduce/reduce_loops.cuh"

#define HELD 4 /* packs a thread holds at a time */

/* ---- in registers ------------------------------------------------------------------------------------------------ */

#define HELD_THREADS 512 /* of a block, at most */

/* Every thread of the group gets the state: up to 32 neighbours, or the whole block. */
template <typename Op> __device__ __forceinline__ void share_state(typename Op::state &s, int group)
{
    __shared__ typename Op::state space[HELD_THREADS / WARP];
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

/* A group of threads for each row; x read and gx written once. */
template <typename Op, typename T, int N>
static __global__ void __launch_bounds__(HELD_THREADS, 2)
    share_rows(const __grid_constant__ fold_args a, T *gx, int group)
{
    typedef wide<T> C;
    int groups = (int)blockDim.x / group, lane = (int)threadIdx.x % group;
    int64_t unit = (int64_t)blockIdx.x * groups + threadIdx.x / group, offset[3] = {0, 0, 0};
    bool is_here = unit < a.units;
    pack<T, N> x[HELD];
    C y = 0, g = 0;
    typename Op::state s = Op::start();
    if (is_here) {
        locate(a.kept, unit, offset);
        typename Op::batch b = open_batch<Op>(s);
#pragma unroll
        for (int u = 0; u < HELD; u++)
            if (lane + u * group < a.length)
                x[u] = *(const pack<T, N> *)((const T *)a.x + offset[0] + (lane + u * group) * N);
        y = Op::aux(a, offset[2]);
        g = load_any<C>(a.y, a.y_dtype, offset[1]);
#pragma unroll
        for (int u = 0; u < HELD; u++)
            if (lane + u * group < a.length)
#pragma unroll
                for (int k = 0; k < N; k++)
                    Op::take(b, widen(x[u].at[k]), y, 0);
        close_batch<Op>(s, b);
    }
    share_state<Op>(s, group);
    if (!is_here)
        return;
    typename Op::shares by = Op::shares_of(g, s);
#pragma unroll
    for (int u = 0; u < HELD; u++)
        if (lane + u * group < a.length) {
#pragma unroll
            for (int k = 0; k < N; k++)
                x[u].at[k] = narrow<T>(Op::share(widen(x[u].at[k]), y, by));
            *(pack<T, N> *)(gx + offset[0] + (lane + u * group) * N) = x[u];
        }
}

/* Short rows: 256 threads with a group of 1 … 32 each; longer ones: a block of as many threads as hold them. */
template <template <typename> class Op, typename T>
static void launch_shared_rows(const fold_args &a, void *gx, cudaStream_t stream)
{
    int needed = (int)divide_up(a.length, HELD);
    bool is_short = needed <= WARP;
    int group = is_short ? 1 << bits_for(needed) : (int)divide_up(needed, WARP) * WARP,
        block = is_short ? THREADS : group;
    share_rows<Op<wide<T>>, T, pack_size<T>::value>
        <<<blocks_for(a.units, block / group), block, 0, stream>>>(a, (T *)gx, group);
}

/* ---- in two steps ------------------------------------------------------------------------------------------------ */

struct share_args {
    const void *in[5]; /* x, g, result or NULL, first and second part of the state (f64) */
    void *gx;
    tarn_dtype dtype[3], gx_dtype;
    int64_t count;
    bool is_inner;
    int64_t inner[4];
    places<6> operands; /* x, gx, g, result, parts of the state */
};

/* A pack of 16 bytes of x and of gx a thread; `inner` are the strides of g, result and parts inside a pack, 0 where it
 * has one output. */
template <typename Op, typename T, int N>
static __global__ void __launch_bounds__(THREADS) share_packed(const __grid_constant__ share_args a)
{
    typedef wide<T> C;
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[6];
    if (at >= a.count)
        return;
    locate(a.operands, at, offset);
    pack<T, N> x = *(const pack<T, N> *)((const T *)a.in[0] + offset[0]);
    C y = 0;
    typename Op::shares by;
#pragma unroll
    for (int k = 0; k < N; k++) {
        if (k == 0 || a.is_inner) {
            C g = load_any<C>(a.in[1], a.dtype[1], offset[2] + k * a.inner[0]);
            double second = a.in[4] ? ((const double *)a.in[4])[offset[5] + k * a.inner[3]] : 0;
            y = a.in[2] ? load_any<C>(a.in[2], a.dtype[2], offset[3] + k * a.inner[1]) : (C)0;
            by = Op::shares_of(g, Op::state_of(((const double *)a.in[3])[offset[4] + k * a.inner[2]], second));
        }
        x.at[k] = narrow<T>(Op::share(widen(x.at[k]), y, by));
    }
    *(pack<T, N> *)((T *)a.gx + offset[1]) = x;
}

/* One element a thread. */
template <typename Op, typename C>
static __global__ void __launch_bounds__(THREADS) share_any(const __grid_constant__ share_args a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[6];
    if (at >= a.count)
        return;
    locate(a.operands, at, offset);
    C x = load_any<C>(a.in[0], a.dtype[0], offset[0]), g = load_any<C>(a.in[1], a.dtype[1], offset[2]);
    C y = a.in[2] ? load_any<C>(a.in[2], a.dtype[2], offset[3]) : (C)0;
    double second = a.in[4] ? ((const double *)a.in[4])[offset[5]] : 0;
    typename Op::state s = Op::state_of(((const double *)a.in[3])[offset[4]], second);
    store_any(a.gx, a.gx_dtype, offset[1], Op::share(x, y, Op::shares_of(g, s)));
}

/* Operands of a gradient; result is NULL for prod. */
struct gradient {
    const tarn__view *x, *g, *result, *gx;
};

/* The states of a two-step gradient, in scratch: f64, in the shape of g; the second part follows the first. */
static tarn__view states_view(const gradient *d, void *scratch)
{
    tarn__view view = *d->g;
    view.memory = scratch;
    view.offset = 0;
    view.dtype = TARN_F64;
    tarn__view_set_row_major(&view);
    return view;
}

/* What goes through the fold beside x: the result; products have none, and their second step needs g's places. */
static const tarn__view *aux_of(const gradient *d)
{
    return d->result ? d->result : d->g;
}

static size_t two_steps_scratch(const gradient *d)
{
    tarn__view states = states_view(d, NULL);
    return 2 * sizeof(double) * (size_t)tarn__view_count(&states) + fold_scratch(d->x, &states, aux_of(d));
}

/* Turns the nest into one of packs, where x and gx allow it. */
static bool pack_shares(share_args *s, tarn__nest *nest)
{
    int last = nest->rank - 1, n = pack_of(s->dtype[0]);
    if (n == 1 || last < 0 || nest->shape[last] % n != 0 || s->gx_dtype != s->dtype[0] || !is_aligned(s->in[0], 16) ||
        !is_aligned(s->gx, 16))
        return false;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i <= last; i++)
            if (i == last ? nest->stride[k][i] != 1 : nest->stride[k][i] % n != 0)
                return false;
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

/* Every element once more: x read, gx written. */
template <template <typename> class Op> static void launch_shares(share_args s, tarn__nest *nest, cudaStream_t stream)
{
    bool is_packed = pack_shares(&s, nest);
    s.count = nest->count;
    s.operands = places_of<6>(nest);
    unsigned blocks = blocks_for(s.count, THREADS);
    if (is_packed && s.dtype[0] == TARN_F32)
        share_packed<Op<float>, float, 4><<<blocks, THREADS, 0, stream>>>(s);
    else if (is_packed && s.dtype[0] == TARN_BF16)
        share_packed<Op<float>, bf16, 8><<<blocks, THREADS, 0, stream>>>(s);
    else if (is_packed)
        share_packed<Op<float>, f16, 8><<<blocks, THREADS, 0, stream>>>(s);
    else if (s.dtype[0] == TARN_F64)
        share_any<Op<double>, double><<<blocks, THREADS, 0, stream>>>(s);
    else
        share_any<Op<float>, float><<<blocks, THREADS, 0, stream>>>(s);
}

static bool same_layout(const tarn__view *x, const tarn__view *gx)
{
    if (x->dtype != gx->dtype || !is_aligned(tarn__view_at(gx), 16))
        return false;
    for (int i = 0; i < x->rank; i++)
        if (x->shape[i] != 1 && x->stride[i] != gx->stride[i])
            return false;
    return true;
}

/* The states, in scratch. False where there are none. */
template <template <typename> class Op>
static bool fold_states(const tarn__call *call, const gradient *d, fold_args *a, tarn__view *first, tarn__view *second)
{
    *first = *second = states_view(d, call->scratch);
    second->offset = tarn__view_count(first);
    if (!plan_fold(a, d->x, first, aux_of(d)))
        return false;
    a->partial = (double *)call->scratch + 2 * second->offset;
    a->second = d->result ? NULL : (double *)tarn__view_at(second);
    fold_floats<Op>(*a, stream_of(call));
    return true;
}

/* Every element from the states. */
template <template <typename> class Op>
static void share_states(const tarn__call *call, const gradient *d, const fold_args &a, const tarn__view *first,
                         const tarn__view *second)
{
    share_args s = {};
    const tarn__view *views[] = {d->x, d->gx, d->g, d->result, first, second};
    tarn__nest nest;
    tarn__nest_make(&nest, 6, views);
    s.in[0] = tarn__view_at(d->x), s.in[1] = tarn__view_at(d->g), s.in[2] = d->result ? tarn__view_at(d->result) : NULL;
    s.in[3] = tarn__view_at(first), s.in[4] = a.second;
    s.dtype[0] = d->x->dtype, s.dtype[1] = d->g->dtype, s.dtype[2] = d->result ? d->result->dtype : TARN_F32;
    s.gx = tarn__view_at(d->gx), s.gx_dtype = d->gx->dtype;
    launch_shares<Op>(s, &nest, stream_of(call));
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

/* Whether x and gx can be moved in packs, at the same offsets. The plan is that of a fold with g as its result. */
static bool plan_packs(const gradient *d, fold_args *a)
{
    return plan_fold(a, d->x, d->g, d->result) && a->pack > 1 && a->tail == 0 && same_layout(d->x, d->gx);
}

/* Whether a block holds a row, and there are rows enough. */
static bool holds_rows(const fold_args &a)
{
    return !a.by_columns && a.reduced.rank == 1 && a.length <= HELD * HELD_THREADS &&
           (a.units >= 64 || a.length <= THREADS);
}

#endif
