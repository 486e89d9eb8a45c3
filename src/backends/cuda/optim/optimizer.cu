/* optimizer.cu: the updates of parameters; the formulas are those of optim/sgd.c and optim/adam.c.
 *
 * Each element is read and written once: AdamW moves 7 · 4 bytes of an f32 element, SGD 3 or 5 · 4. The optimizer hands
 * over flat, dense buffers, which go 16 bytes at a time; other layouts and mixtures of dtypes go one by one. In a
 * captured step the numbers that change are read from device memory; they are the same f64 numbers that the host hands
 * over otherwise. The factor of a clipped gradient lies there always. */
#include "backends/cuda/common/element.cuh"

/* In the order of the nest: what is written first. */
enum { PARAMETER, FIRST, SECOND, GRADIENT, OPERANDS };

/* ---- formulas ---------------------------------------------------------------------------------------------------- */

template <typename C> struct sgd {
    enum { states = 0 };
    C lr, decay;

    static __host__ __device__ sgd of(const tarn__optimizer_step &s, const tarn__step_scalars &now)
    {
        return sgd{(C)now.lr, (C)s.decay};
    }
    __device__ __forceinline__ bool reads_states() const
    {
        return false;
    }
    __device__ __forceinline__ void update(C *x) const
    {
        x[PARAMETER] -= lr * (decay != 0 ? x[GRADIENT] + decay * x[PARAMETER] : x[GRADIENT]);
    }
};

template <typename C> struct momentum {
    enum { states = 1 };
    C lr, decay, keep, take;
    bool is_first, is_nesterov;

    static __host__ __device__ momentum of(const tarn__optimizer_step &s, const tarn__step_scalars &now)
    {
        return momentum{(C)now.lr, (C)s.decay, (C)s.beta1, (C)(1 - s.dampening), now.step == 1, s.nesterov != 0};
    }
    __device__ __forceinline__ bool reads_states() const
    {
        return !is_first;
    }
    __device__ __forceinline__ void update(C *x) const
    {
        C g = decay != 0 ? x[GRADIENT] + decay * x[PARAMETER] : x[GRADIENT];
        x[FIRST] = is_first ? g : keep * x[FIRST] + take * g;
        x[PARAMETER] -= lr * (is_nesterov ? g + keep * x[FIRST] : x[FIRST]);
    }
};

__device__ __forceinline__ float root(float x)
{
    return sqrtf(x);
}
__device__ __forceinline__ double root(double x)
{
    return sqrt(x);
}

template <typename C> struct adamw {
    enum { states = 2 };
    C take1, beta2, take2, epsilon, keep, size, scale, decay;

    static __host__ __device__ adamw of(const tarn__optimizer_step &s, const tarn__step_scalars &now)
    {
        return adamw{(C)(1 - s.beta1), (C)s.beta2,  (C)(1 - s.beta2), (C)s.epsilon,
                     (C)now.keep,      (C)now.size, (C)now.scale,     (C)s.decay};
    }
    __device__ __forceinline__ bool reads_states() const
    {
        return true;
    }
    __device__ __forceinline__ void update(C *x) const
    {
        C g = decay != 0 ? x[GRADIENT] + decay * x[PARAMETER] : x[GRADIENT];
        x[FIRST] += (g - x[FIRST]) * take1;
        x[SECOND] = beta2 * x[SECOND] + take2 * g * g;
        x[PARAMETER] = keep * x[PARAMETER] - size * x[FIRST] / (root(x[SECOND]) * scale + epsilon);
    }
};

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

template <typename C> struct flat_args {
    C *at[OPERANDS];
    const double *factor; /* of the gradient; NULL: 1 */
    int64_t packs;
    int head, tail; /* elements before the first pack and after the last */
};

template <typename Rule> __device__ __forceinline__ bool takes_part(int k)
{
    return k == PARAMETER || k == GRADIENT || k <= Rule::states;
}

template <typename C> __device__ __forceinline__ C factor_of(const double *factor)
{
    return factor ? (C)*factor : (C)1;
}

/* Elements outside the packs, at most 6: one each for the first threads. */
template <typename Rule, typename C>
static __device__ __noinline__ void update_edges(const flat_args<C> &a, const Rule &rule)
{
    constexpr int N = pack_size<C>::value;
    int i = (int)threadIdx.x;
    if (i >= a.head + a.tail)
        return;
    int64_t at = i < a.head ? i : i + a.packs * N;
    C x[OPERANDS];
#pragma unroll
    for (int k = 0; k < OPERANDS; k++)
        if (takes_part<Rule>(k) && (k == PARAMETER || k == GRADIENT || rule.reads_states()))
            x[k] = a.at[k][at];
    x[GRADIENT] *= factor_of<C>(a.factor);
    rule.update(x);
#pragma unroll
    for (int k = 0; k < GRADIENT; k++)
        if (takes_part<Rule>(k))
            a.at[k][at] = x[k];
}

#define PACKS 2 /* a thread: all loaded before the first is updated */

template <typename Rule, typename C>
__device__ __forceinline__ void load_packs(const flat_args<C> &a, const Rule &rule, int64_t at,
                                           pack<C, pack_size<C>::value> *x)
{
#pragma unroll
    for (int k = 0; k < OPERANDS; k++)
        if (takes_part<Rule>(k) && (k == PARAMETER || k == GRADIENT || rule.reads_states()))
            x[k] = *(const pack<C, pack_size<C>::value> *)(a.at[k] + at);
}

/* A block for THREADS · PACKS packs: up to eight loads of 16 bytes in flight in a thread. */
template <typename Rule, typename C>
static __global__ void __launch_bounds__(THREADS)
    flat_kernel(const __grid_constant__ flat_args<C> a, const __grid_constant__ tarn__optimizer_step step)
{
    constexpr int N = pack_size<C>::value;
    const Rule rule = Rule::of(step, step.live ? *step.live : step.now);
    const int64_t first = (int64_t)blockIdx.x * (THREADS * PACKS) + threadIdx.x;
    const C factor = factor_of<C>(a.factor);
    pack<C, N> x[PACKS][OPERANDS];
#pragma unroll
    for (int u = 0; u < PACKS; u++)
        if (first + u * THREADS < a.packs)
            load_packs<Rule, C>(a, rule, (first + u * THREADS) * N + a.head, x[u]);
#pragma unroll
    for (int u = 0; u < PACKS; u++) {
        if (first + u * THREADS >= a.packs)
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
            if (takes_part<Rule>(k))
                store_pack(a.at[k] + (first + u * THREADS) * N + a.head, x[u][k]);
    }
    if (blockIdx.x == 0 && a.head + a.tail > 0)
        update_edges<Rule, C>(a, rule);
}

struct strided_args {
    void *base[OPERANDS];
    tarn_dtype dtype[OPERANDS];
    const double *factor;
    int64_t count;
    places<OPERANDS> places;
};

template <typename Rule, typename C>
static __global__ void __launch_bounds__(THREADS)
    strided_kernel(const __grid_constant__ strided_args a, const __grid_constant__ tarn__optimizer_step step)
{
    const Rule rule = Rule::of(step, step.live ? *step.live : step.now);
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[OPERANDS];
    if (at >= a.count)
        return;
    locate(a.places, at, offset);
    C x[OPERANDS];
#pragma unroll
    for (int k = 0; k < OPERANDS; k++)
        if (takes_part<Rule>(k) && (k == PARAMETER || k == GRADIENT || rule.reads_states()))
            x[k] = load_any<C>(a.base[k], a.dtype[k], offset[k]);
    x[GRADIENT] *= factor_of<C>(a.factor);
    rule.update(x);
#pragma unroll
    for (int k = 0; k < GRADIENT; k++)
        if (takes_part<Rule>(k))
            store_any(a.base[k], a.dtype[k], offset[k], x[k]);
}

/* ---- starting them ----------------------------------------------------------------------------------------------- */

/* True where all operands are dense, of the type computed in, and as far from the next 16 bytes as each other. */
template <typename C>
static bool lie_flat(const tarn__view *const *views, const tarn__nest *nest, tarn_dtype dtype, flat_args<C> *a)
{
    constexpr int N = pack_size<C>::value;
    size_t beyond = (uintptr_t)tarn__view_at(views[PARAMETER]) % 16;
    if (nest->rank > 1)
        return false;
    for (int k = 0; k < OPERANDS; k++) {
        if (!views[k])
            continue;
        if (views[k]->dtype != dtype || (nest->rank == 1 && nest->stride[k][0] != 1) ||
            (uintptr_t)tarn__view_at(views[k]) % 16 != beyond)
            return false;
        a->at[k] = data_of<C>(views[k]);
    }
    int64_t head = (int64_t)((16 - beyond) % 16 / sizeof(C));
    head = head < nest->count ? head : nest->count;
    a->head = (int)head;
    a->packs = (nest->count - head) / N;
    a->tail = (int)(nest->count - head - a->packs * N);
    return true;
}

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
    if (lie_flat<C>(views, &nest, dtype, &flat)) {
        flat_kernel<Rule, C><<<blocks_for(flat.packs, THREADS * PACKS), THREADS, 0, stream_of(call)>>>(flat, step);
        return;
    }
    strided_args a = {};
    a.factor = flat.factor;
    for (int k = 0; k < OPERANDS; k++) {
        a.base[k] = views[k] ? tarn__view_at(views[k]) : NULL;
        a.dtype[k] = views[k] ? views[k]->dtype : dtype;
    }
    a.count = nest.count;
    a.places = places_of<OPERANDS>(&nest);
    strided_kernel<Rule, C><<<blocks_for(a.count, THREADS), THREADS, 0, stream_of(call)>>>(a, step);
}

/* The gradient's dtype says what to compute in. */
template <template <typename> class Rule> static void run(const tarn__call *call)
{
    if (call->in[0]->dtype == TARN_F64)
        run_in<Rule<double>, double>(call, TARN_F64);
    else
        run_in<Rule<float>, float>(call, TARN_F32);
}

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

void tarn__cuda_optimizer(tarn__kernel_row *rows)
{
    uint32_t dtypes = TARN__BIT(TARN_F32) | TARN__BIT(TARN_F64); /* of the gradient */
    rows[TARN__K_sgd] = tarn__kernel_row{run_sgd, dtypes, NULL};
    rows[TARN__K_adamw] = tarn__kernel_row{run_adamw, dtypes, NULL};
}
