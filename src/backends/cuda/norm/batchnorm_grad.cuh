/* batchnorm_grad.cuh: what the forms of the gradients of batchnorm and groupnorm share: what relu lets through, where
 * sums go, and packs of results. */
#ifndef TARN__BATCHNORM_GRAD_CUH
#define TARN__BATCHNORM_GRAD_CUH

#include "backends/cuda/norm/channel_stats.cuh"

/* Where relu's result comes from is known when a kernel is compiled: registers would not do for both. */
enum { NO_RELU, RELU_REMADE, RELU_READ };

/* relu's result is made again from x, and is above 0 where it is above `least`; or it is read. */
template <typename C> struct relu_gate {
    bool is_remade;
    C least;
};

/* A pack of g, as far as relu lets it through; `numbers` are those of element i of the pack, or the same for all. */
template <typename R, bool HAS_RELU, bool IS_BY_ROWS>
__device__ __forceinline__ void let_through(const channel_numbers<typename R::real> *numbers,
                                            const relu_gate<typename R::real> &gate, const typename R::raw &x,
                                            const typename R::raw &y, const typename R::raw &g, typename R::real *up)
{
    typedef typename R::real C;
#pragma unroll
    for (int i = 0; i < R::width; i++) {
        up[i] = R::element(g, i);
        if (HAS_RELU)
            up[i] = gate.is_remade ? passed(up[i], numbers[IS_BY_ROWS ? 0 : i].normal(R::element(x, i)), gate.least)
                                   : passed(up[i], R::element(y, i), (C)0);
    }
}

/* A pack of gx with fixed statistics. */
template <typename R, bool IS_BY_ROWS>
__device__ __forceinline__ void store_scaled(const channel_args &a, int64_t offset, const typename R::real *up,
                                             const channel_numbers<typename R::real> *numbers)
{
    typename R::real gx[R::width];
#pragma unroll
    for (int i = 0; i < R::width; i++)
        gx[i] = up[i] * numbers[IS_BY_ROWS ? 0 : i].scale;
    R::store(a.operand[TO], offset, 0, gx);
}

struct channel_sums {
    double *sum, *product;      /* (batches, channels) */
    row_operand gweight, gbias; /* base NULL: not wanted */
    /* where a set is a channel: its means times rstd, made from its sums at once; else NULL */
    double *first, *second;
};

__device__ __forceinline__ double weight_of(const channel_args &a, int64_t channel)
{
    return a.weight.base ? load_any<double>(a.weight.base, a.weight.dtype, channel * a.weight.along) : 1.0;
}

__device__ __forceinline__ void put(const row_operand &to, int64_t channel, double value)
{
    if (to.base)
        store_any(to.base, to.dtype, channel * to.along, value);
}

/* A pack of gx and of what goes through relu, as far as they are wanted. `numbers` are those of element i of the pack,
 * or the same for all. */
template <typename R, bool HAS_RELU, bool IS_BY_ROWS>
__device__ __forceinline__ void store_grads(const channel_args &a, const relu_gate<typename R::real> &gate, int64_t to,
                                            int64_t to_passed, const typename R::raw &x, const typename R::raw &y,
                                            const typename R::raw &g, const channel_numbers<typename R::real> *numbers)
{
    typedef typename R::real C;
    C up[R::width], gx[R::width];
    let_through<R, HAS_RELU, IS_BY_ROWS>(numbers, gate, x, y, g, up);
#pragma unroll
    for (int i = 0; i < R::width; i++) {
        const channel_numbers<C> &n = numbers[IS_BY_ROWS ? 0 : i];
        gx[i] = up[i] * n.scale;
        if (a.first)
            gx[i] = gx[i] - n.first - n.distance(R::element(x, i)) * n.second;
    }
    if (!HAS_RELU || gate.is_remade || a.operand[TO].base)
        R::store(a.operand[TO], to, 0, gx);
    if (HAS_RELU && !gate.is_remade && a.operand[PASSED].base)
        R::store(a.operand[PASSED], to_passed, 0, up);
}

/* In batchnorm_persistent_grad.cu: the gradients of batchnorm with its own statistics in one kernel, where that is the
 * way to take; else false, and nothing is started. What it needs behind the scratch of channels and sets. */
bool tarn__cuda_batchnorm_persistent_grad(const tarn__call *call, const channel_args &a, const channel_sums &s);
size_t tarn__cuda_batchnorm_persistent_grad_scratch(const tarn__call *call, const channel_args &a);

#endif
