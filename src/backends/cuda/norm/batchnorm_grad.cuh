/* batchnorm_grad.cuh: shared by the gradient kernels of batchnorm and groupnorm: relu's gradient, channel sums, and
 * vectors of results. */
#ifndef TARN__CUDA_BATCHNORM_GRAD_CUH
#define TARN__CUDA_BATCHNORM_GRAD_CUH

#include "backends/cuda/norm/channel_stats.cuh"

/* Where relu's result comes from is a template argument: registers would not suffice for both. */
enum { NO_RELU, RELU_RECOMPUTED, RELU_READ };

/* relu's result is recomputed from x, and positive above `zero_limit`; or it is read. */
template <typename C> struct relu_gate {
    bool is_recomputed;
    C zero_limit;
};

/* A vector of g after relu's gradient; `stats` are per element of the vector, or one for all. */
template <typename R, bool HAS_RELU, bool IS_NCHW>
__device__ __forceinline__ void gate_grad(const channel_stats<typename R::real> *stats,
                                          const relu_gate<typename R::real> &gate, const typename R::raw &x,
                                          const typename R::raw &y, const typename R::raw &g, typename R::real *gated)
{
    typedef typename R::real C;
#pragma unroll
    for (int i = 0; i < R::width; i++) {
        gated[i] = R::element(g, i);
        if (HAS_RELU)
            gated[i] = gate.is_recomputed
                           ? relu_grad(gated[i], stats[IS_NCHW ? 0 : i].normalized(R::element(x, i)), gate.zero_limit)
                           : relu_grad(gated[i], R::element(y, i), (C)0);
    }
}

/* A vector of gx with fixed statistics. */
template <typename R, bool IS_NCHW>
__device__ __forceinline__ void store_scaled(const channel_args &a, int64_t offset, const typename R::real *gated,
                                             const channel_stats<typename R::real> *stats)
{
    typename R::real gx[R::width];
#pragma unroll
    for (int i = 0; i < R::width; i++)
        gx[i] = gated[i] * stats[IS_NCHW ? 0 : i].scale;
    R::store(a.operand[OUT], offset, 0, gx);
}

/* Sums and destinations of the parameter gradients. */
struct channel_sums {
    double *sum, *product;      /* (batches, channels) */
    row_operand gweight, gbias; /* base NULL: not needed */
    /* if a set is a channel: its means times rstd, computed with its sums; else NULL */
    double *first, *second;
};

/* 1 without a weight. */
__device__ __forceinline__ double channel_weight(const channel_args &a, int64_t channel)
{
    return a.weight.base ? load_any<double>(a.weight.base, a.weight.dtype, channel * a.weight.along) : 1.0;
}

/* Skipped if not needed. */
__device__ __forceinline__ void store_param(const row_operand &to, int64_t channel, double value)
{
    if (to.base)
        store_any(to.base, to.dtype, channel * to.along, value);
}

/* A vector of gx, and of g after relu, as far as they are needed. `stats` as above. */
template <typename R, bool HAS_RELU, bool IS_NCHW>
__device__ __forceinline__ void store_grads(const channel_args &a, const relu_gate<typename R::real> &gate, int64_t to,
                                            int64_t to_gated, const typename R::raw &x, const typename R::raw &y,
                                            const typename R::raw &g, const channel_stats<typename R::real> *stats)
{
    typedef typename R::real C;
    C gated[R::width], gx[R::width];
    gate_grad<R, HAS_RELU, IS_NCHW>(stats, gate, x, y, g, gated);
#pragma unroll
    for (int i = 0; i < R::width; i++) {
        const channel_stats<C> &n = stats[IS_NCHW ? 0 : i];
        gx[i] = gated[i] * n.scale;
        if (a.mean_g)
            gx[i] = gx[i] - n.mean_g - n.centered(R::element(x, i)) * n.mean_gx;
    }
    if (!HAS_RELU || gate.is_recomputed || a.operand[OUT].base)
        R::store(a.operand[OUT], to, 0, gx);
    if (HAS_RELU && !gate.is_recomputed && a.operand[GATED].base)
        R::store(a.operand[GATED], to_gated, 0, gated);
}

/* batchnorm_persistent_grad.cu: the gradients of batchnorm in one kernel, if that is the way to run them; else false,
 * and nothing is launched. And the scratch it needs after that of channels and sets. */
bool tarn__cuda_batchnorm_persistent_grad(const tarn__call *call, const channel_args &a, const channel_sums &s);
size_t tarn__cuda_batchnorm_persistent_grad_scratch(const tarn__call *call, const channel_args &a);

#endif
