/* optimizer.cu: SGD, SGD with momentum, and AdamW updates by base/kernel/optimizer.def.
 *
 * Each element is read and written once: AdamW moves 7 · 4 bytes per f32 element, SGD 3 or 5 · 4. The optimizer passes
 * flat, contiguous buffers, which move 16 bytes at a time; other layouts and dtype mixtures go one by one. In a
 * captured step the values that change are read from device memory, the same f64 values that the host passes otherwise.
 * The factor of a clipped gradient is always there. */
#include "backends/cuda/common/element.cuh"

/* In the order of the nest: outputs first. */
enum { PARAMETER, FIRST, SECOND, GRADIENT, OPERANDS };

/* ---- formulas ---------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float sqrt_of(float x)
{
    return sqrtf(x);
}
__device__ __forceinline__ double sqrt_of(double x)
{
    return sqrt(x);
}

#define SQRT(x) sqrt_of(x)
#define MEMBER(name, value) C name;
#define MEMBER_FLAG(name, value) bool name;
#define VALUE(name, value) (C)(value),
#define VALUE_FLAG(name, value) value,

/* A rule: its scalars in the compute type, and the update of one element. */
#define RULE(name, count, reads, first, second, parameter) \
    template <typename C> struct name { \
        enum { states = count }; \
        OPTIMIZER_SCALARS_##name(MEMBER, MEMBER_FLAG) \
\
            static __host__ __device__ name of(const tarn__optimizer_step &s, const tarn__step_scalars &now) \
        { \
            return name{OPTIMIZER_SCALARS_##name(VALUE, VALUE_FLAG)}; \
        } \
        __device__ __forceinline__ bool reads_states() const \
        { \
            return reads; \
        } \
        __device__ __forceinline__ void update(C *x) const \
        { \
            C &p = x[PARAMETER], &m = x[FIRST], &v = x[SECOND], raw = x[GRADIENT], g = OPTIMIZER_GRADIENT; \
            if (count > 0) \
                m = first; \
            if (count > 1) \
                v = second; \
            p = parameter; \
        } \
    };
#include "base/kernel/optimizer.def"

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Contiguous buffers with a common misalignment: a head, vectors, a tail. */
template <typename C> struct flat_args {
    C *at[OPERANDS];
    const double *factor; /* of the gradient; NULL: 1 */
    int64_t vecs;
    int head, tail; /* elements before the first vector and after the last */
};

/* Which operands a rule reads or writes. */
template <typename Rule> __device__ __forceinline__ bool is_used(int k)
{
    return k == PARAMETER || k == GRADIENT || k <= Rule::states;
}

/* Clipping factor of the gradient, on the device: written by an earlier kernel of the same step. */
template <typename C> __device__ __forceinline__ C factor_of(const double *factor)
{
    return factor ? (C)*factor : (C)1;
}

/* Elements outside the vectors, at most 6: one each for the first threads. */
template <typename Rule, typename C>
static __device__ __noinline__ void update_edges(const flat_args<C> &a, const Rule &rule)
{
    constexpr int N = vec_size<C>::value;
    int i = (int)threadIdx.x;
    if (i >= a.head + a.tail)
        return;
    int64_t at = i < a.head ? i : i + a.vecs * N;
    C x[OPERANDS];
#pragma unroll
    for (int k = 0; k < OPERANDS; k++)
        if (is_used<Rule>(k) && (k == PARAMETER || k == GRADIENT || rule.reads_states()))
            x[k] = a.at[k][at];
    x[GRADIENT] *= factor_of<C>(a.factor);
    rule.update(x);
#pragma unroll
    for (int k = 0; k < GRADIENT; k++)
        if (is_used<Rule>(k))
            a.at[k][at] = x[k];
}

#define VECS 2 /* per thread: all loaded before the first is updated */

/* Unused states are not loaded; a first step reads none. */
template <typename Rule, typename C>
__device__ __forceinline__ void load_vecs(const flat_args<C> &a, const Rule &rule, int64_t at,
                                          vec<C, vec_size<C>::value> *x)
{
#pragma unroll
    for (int k = 0; k < OPERANDS; k++)
        if (is_used<Rule>(k) && (k == PARAMETER || k == GRADIENT || rule.reads_states()))
            x[k] = *(const vec<C, vec_size<C>::value> *)(a.at[k] + at);
}

/* Grid: THREADS · VECS vectors per block: up to eight 16-byte loads in flight per thread. */
template <typename Rule, typename C>
static __global__ void __launch_bounds__(THREADS)
    flat_kernel(const __grid_constant__ flat_args<C> a, const __grid_constant__ tarn__optimizer_step step)
{
    constexpr int N = vec_size<C>::value;
    /* a captured step reads the current values from device memory */
    const Rule rule = Rule::of(step, step.live ? *step.live : step.now);
    const int64_t first = (int64_t)blockIdx.x * (THREADS * VECS) + threadIdx.x;
    const C factor = factor_of<C>(a.factor);
    vec<C, N> x[VECS][OPERANDS];
#pragma unroll
    for (int u = 0; u < VECS; u++)
        if (first + u * THREADS < a.vecs)
            load_vecs<Rule, C>(a, rule, (first + u * THREADS) * N + a.head, x[u]);
#pragma unroll
    for (int u = 0; u < VECS; u++) {
        if (first + u * THREADS >= a.vecs)
            continue;
#pragma unroll
        for (int i = 0; i < N; i++) {
            C one[OPERANDS] = {x[u][PARAMETER].at[i], x[u][FIRST].at[i], x[u][SECOND].at[i],
                               factor * x[u][GRADIENT].at[i]};
            rule.update(one);
#pragma unroll
            for (int k = 0; k < GRADIENT; k++)
                x[u][k].at[i] = one[k];
        }
#pragma unroll
        for (int k = 0; k < GRADIENT; k++)
            if (is_used<Rule>(k))
                store_vec(a.at[k] + (first + u * THREADS) * N + a.head, x[u][k]);
    }
    /* unaligned ends, by one block */
    if (blockIdx.x == 0 && a.head + a.tail > 0)
        update_edges<Rule, C>(a, rule);
}

/* Any layout and dtypes. */
struct strided_args {
    void *base[OPERANDS];
    tarn_dtype dtype[OPERANDS];
    const double *factor;
    int64_t count;
    offset_calc<OPERANDS> offsets;
};

/* One element per thread, any layout. */
template <typename Rule, typename C>
static __global__ void __launch_bounds__(THREADS)
    strided_kernel(const __grid_constant__ strided_args a, const __grid_constant__ tarn__optimizer_step step)
{
    const Rule rule = Rule::of(step, step.live ? *step.live : step.now);
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[OPERANDS];
    if (at >= a.count)
        return;
    locate(a.offsets, at, offset);
    C x[OPERANDS];
#pragma unroll
    for (int k = 0; k < OPERANDS; k++)
        if (is_used<Rule>(k) && (k == PARAMETER || k == GRADIENT || rule.reads_states()))
            x[k] = load_any<C>(a.base[k], a.dtype[k], offset[k]);
    x[GRADIENT] *= factor_of<C>(a.factor);
    rule.update(x);
#pragma unroll
    for (int k = 0; k < GRADIENT; k++)
        if (is_used<Rule>(k))
            store_any(a.base[k], a.dtype[k], offset[k], x[k]);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* True if all operands are contiguous, of the compute type, and equally misaligned to 16 bytes. */
template <typename C>
static bool are_flat(const tarn__view *const *views, const tarn__nest *nest, tarn_dtype dtype, flat_args<C> *a)
{
    constexpr int N = vec_size<C>::value;
    size_t misalignment = (uintptr_t)tarn__view_at(views[PARAMETER]) % 16;
    if (nest->rank > 1)
        return false;
    for (int k = 0; k < OPERANDS; k++) {
        if (!views[k])
            continue;
        if (views[k]->dtype != dtype || (nest->rank == 1 && nest->stride[k][0] != 1) ||
            (uintptr_t)tarn__view_at(views[k]) % 16 != misalignment)
            return false;
        a->at[k] = data_of<C>(views[k]);
    }
    /* elements up to the first aligned vector */
    int64_t head = (int64_t)((16 - misalignment) % 16 / sizeof(C));
    head = head < nest->count ? head : nest->count;
    a->head = (int)head;
    a->vecs = (nest->count - head) / N;
    a->tail = (int)(nest->count - head - a->vecs * N);
    return true;
}

/* Flat kernel if the operands allow it, else strided. */
template <typename Rule, typename C> static void run_in(const tarn__call *call, tarn_dtype dtype)
{
    const tarn__view *views[OPERANDS] = {call->out[0], Rule::states > 0 ? call->out[1] : NULL,
                                         Rule::states > 1 ? call->out[2] : NULL, call->in[0]};
    const tarn__optimizer_step &step = *(const tarn__optimizer_step *)call->params;
    tarn__nest nest;
    tarn__nest_make(&nest, OPERANDS, views);
    if (nest.count == 0)
        return;
    flat_args<C> flat = {};
    flat.factor = data_of<const double>(call->in[1]);
    if (are_flat<C>(views, &nest, dtype, &flat)) {
        flat_kernel<Rule, C><<<blocks_for(flat.vecs, THREADS * VECS), THREADS, 0, stream_of(call)>>>(flat, step);
        return;
    }
    strided_args a = {};
    a.factor = flat.factor;
    for (int k = 0; k < OPERANDS; k++) {
        a.base[k] = views[k] ? tarn__view_at(views[k]) : NULL;
        a.dtype[k] = views[k] ? views[k]->dtype : dtype;
    }
    a.count = nest.count;
    a.offsets = offset_calc_of<OPERANDS>(&nest);
    strided_kernel<Rule, C><<<blocks_for(a.count, THREADS), THREADS, 0, stream_of(call)>>>(a, step);
}

/* The gradient's dtype decides the compute type. */
template <template <typename> class Rule> static void run(const tarn__call *call)
{
    if (call->in[0]->dtype == TARN_F64)
        run_in<Rule<double>, double>(call, TARN_F64);
    else
        run_in<Rule<float>, float>(call, TARN_F32);
}

/* A momentum buffer selects the rule. */
static void run_sgd(const tarn__call *call)
{
    if (call->outputs > 1 && call->out[1])
        run<momentum>(call);
    else
        run<sgd>(call);
}

static void run_adamw(const tarn__call *call)
{
    run<adamw>(call);
}

void tarn__cuda_register_optimizer(tarn__kernel_row *rows)
{
    uint32_t dtypes = TARN__BIT(TARN_F32) | TARN__BIT(TARN_F64); /* of the gradient */
    rows[TARN__K_sgd] = tarn__row(run_sgd, dtypes);
    rows[TARN__K_adamw] = tarn__row(run_adamw, dtypes);
}
