/* batchnorm.cuh: arithmetic shared by all kernels of batchnorm and groupnorm, forward and backward: moments of a few
 * elements, a vector of results, relu, a vector of gradients, and the arguments beside channel_args.
 *
 * Kernels are templates over an accessor R (rows.cuh: dtype, vector width, compute type R::real) and a relu mode.
 * `stats` are those of the elements of a vector: one for all in NCHW, one per element in NHWC. */
#ifndef TARN__CUDA_BATCHNORM_CUH
#define TARN__CUDA_BATCHNORM_CUH

#include "backends/cuda/norm/channel_stats.cuh"

/* Relu modes. They are template arguments: registers would not suffice for all in one kernel. */
enum {
    NO_RELU,
    RELU,              /* of the result alone */
    ADD_RELU,          /* of the result plus a residual, AUX */
    ADD_RELU_RESIDENT, /* the same, in the persistent kernel with the residual in shared memory, too */
    /* backward: relu's result is recomputed from x; with a residual it is read from AUX */
    RELU_RECOMPUTED = RELU,
    RELU_READ = ADD_RELU
};

/* The mode of a call. */
static inline int relu_mode(const channel_args &a)
{
    return !a.has_relu ? NO_RELU : a.operand[AUX].base ? ADD_RELU : RELU;
}

/* LAUNCH (channel_stats.cuh) with the call's relu mode. */
#define LAUNCH_RELU(nchw_kernel, nhwc_kernel, call, a) \
    do { \
        const int mode_ = relu_mode(a); \
        if (mode_ == ADD_RELU) \
            LAUNCH(nchw_kernel, nhwc_kernel, ADD_RELU, call, a); \
        else if (mode_ == RELU) \
            LAUNCH(nchw_kernel, nhwc_kernel, RELU, call, a); \
        else \
            LAUNCH(nchw_kernel, nhwc_kernel, NO_RELU, call, a); \
    } while (0)

/* Adds up pairs over the LANES threads of a warp or of a whole block; all of them get the sums. */
template <int LANES> __device__ __forceinline__ void reduce_pair(double *first, double *second)
{
    *first = warp_reduce<plus>(*first);
    *second = warp_reduce<plus>(*second);
    if (LANES > WARP) {
        __shared__ double of_warp[LANES / WARP][2];
        if (threadIdx.x % WARP == 0)
            of_warp[threadIdx.x / WARP][0] = *first, of_warp[threadIdx.x / WARP][1] = *second;
        __syncthreads();
        *first = *second = 0;
        for (int i = 0; i < LANES / WARP; i++)
            *first += of_warp[i][0], *second += of_warp[i][1];
    }
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

/* Inputs and outputs of the statistics. */
struct stat_args {
    double epsilon, momentum;
    row_operand fixed_mean, fixed_variance; /* base NULL: computed from x */
    row_operand running_mean, running_variance;
    double *mean, *rstd; /* saved for backward; NULL: not needed */
};

/* Sums of backward, and destinations of the parameter gradients. */
struct channel_sums {
    double *sum, *product;      /* (batches, channels): Σ g and Σ g · x̂ */
    row_operand gweight, gbias; /* base NULL: not needed */
    /* if a set is a channel: its means times rstd, computed with its sums; else NULL */
    double *first, *second;
};

/* Skipped if not needed. */
__device__ __forceinline__ void store_param(const row_operand &vector, int64_t at, double value)
{
    if (vector.base)
        store_any(vector.base, vector.dtype, at * vector.along, value);
}

/* Exponential moving average, as in PyTorch. */
__device__ __forceinline__ void update_running(const row_operand &running, int64_t at, double old, double momentum,
                                               double value)
{
    if (running.base)
        store_any(running.base, running.dtype, at * running.along, (1 - momentum) * old + momentum * value);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Sums of a group's distances from its first element, and of their squares: shifted by an element, nothing cancels. */
template <typename C> struct group_moments {
    C first, sum, squares;

    __device__ __forceinline__ void start(C x)
    {
        first = x;
        sum = squares = 0;
    }
    __device__ __forceinline__ void add(C x)
    {
        C d = x - first;
        sum += d;
        squares += d * d;
    }
    /* False if the squares may have left f32's range: the group is then measured in f64. */
    __device__ __forceinline__ bool is_exact() const
    {
        return sizeof(C) == sizeof(double) || (squares > (C)1e-30 && squares < (C)1e30) || (squares == 0 && sum == 0);
    }
    /* Adds the group's `count` elements, as distances from `from`, to f64 sums. */
    __device__ __forceinline__ void add_to(double from, double count, double *all, double *all_squares) const
    {
        double apart = (double)first - from, step = count * apart;
        *all += step + (double)sum;
        *all_squares += (double)squares + apart * (step + 2 * (double)sum);
    }
};

/* One element, measured in f64. */
__device__ __forceinline__ void take_f64(double x, double from, double *sum, double *squares)
{
    double d = x - from;
    *sum += d;
    *squares += d * d;
}

/* A vector of results: normalized, plus the residual, through relu. Three to five operations per element. */
template <typename R, int MODE, bool IS_NCHW>
__device__ __forceinline__ void normalize_vec(const channel_stats<typename R::real> *stats, const typename R::raw &x,
                                              const typename R::raw &residual, typename R::real *y)
{
#pragma unroll
    for (int i = 0; i < R::width; i++)
        y[i] = stats[IS_NCHW ? 0 : i].normalized(R::element(x, i));
#pragma unroll
    for (int i = 0; i < R::width; i++) {
        if (MODE == ADD_RELU || MODE == ADD_RELU_RESIDENT)
            y[i] += R::element(residual, i);
        if (MODE != NO_RELU)
            y[i] = y[i] < 0 ? (typename R::real)0 : y[i];
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* relu's result is recomputed from x, and positive above `zero_limit`; or it is read. */
template <typename C> struct relu_gate {
    bool is_recomputed;
    C zero_limit;
};

/* A vector of g after relu's gradient. */
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

/* Adds a vector's g and g · x̂ to the sums of its channels: one each in NCHW, R::width in NHWC. */
template <typename R, bool IS_NCHW>
__device__ __forceinline__ void add_grads(const channel_stats<typename R::real> *stats, const typename R::raw &x,
                                          const typename R::real *gated, typename R::real *g_sums,
                                          typename R::real *gx_sums)
{
#pragma unroll
    for (int i = 0; i < R::width; i++) {
        const channel_stats<typename R::real> &n = stats[IS_NCHW ? 0 : i];
        g_sums[IS_NCHW ? 0 : i] += gated[i];
        gx_sums[IS_NCHW ? 0 : i] += gated[i] * (n.centered(R::element(x, i)) * n.rstd);
    }
}

/* A vector of gx with fixed statistics. */
template <typename R, bool IS_NCHW>
__device__ __forceinline__ void store_scaled(const channel_args &a, int64_t to, const typename R::real *gated,
                                             const channel_stats<typename R::real> *stats)
{
    typename R::real gx[R::width];
#pragma unroll
    for (int i = 0; i < R::width; i++)
        gx[i] = gated[i] * stats[IS_NCHW ? 0 : i].scale;
    R::store(a.operand[OUT], to, 0, gx);
}

/* A vector of gx, and of g after relu, as far as they are needed. */
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

/* ---- batchnorm_persistent.cu ------------------------------------------------------------------------------------- */

/* Plan of a persistent kernel, passed by value. */
struct persistent_args {
    int slots;                      /* resident vectors of each operand per thread */
    int across;                     /* NHWC: vectors per position, a power of two */
    int peers;                      /* blocks that share channels */
    int64_t per_block, vecs;        /* vectors per block, but for the last peer; and of all peers */
    divider by_peers, by_line;      /* NCHW: vectors per line */
    int64_t line_stride;            /* NCHW: line stride of a channel */
    double elements, last_elements; /* per channel in a block's range */
    double inverse, last_inverse;   /* 1 / these */
    double channel_inverse;         /* 1 / elements of a channel */
    double2 *partials;              /* NCHW (blocks), NHWC (blocks, channels) */
    /* two per set of peers, 0 between kernels: blocks that have arrived, and that have left */
    int *counters;
    unsigned blocks, threads;
    size_t bytes; /* of shared memory */
};

/* The job of batchnorm, groupnorm and their gradients. */
struct channel_job {
    channel_args args; /* without addresses */
    /* batchnorm in one kernel */
    persistent_args persistent;
    int relu_mode;
};

/* Plans batchnorm, or its gradients, in one kernel: sets all of the job but its args. Returns the bytes of scratch it
 * needs after the statistics of sets (forward) or the sums and means (backward); 0 if multipass is better or the only
 * way. */
size_t tarn__cuda_plan_batchnorm_persistent(const tarn__call *call, const channel_args &a, channel_job *j);
size_t tarn__cuda_plan_batchnorm_persistent_grad(const tarn__call *call, const channel_args &a, channel_job *j);

/* Runs what was planned; `a` are the job's args with addresses. */
void tarn__cuda_batchnorm_persistent(const tarn__call *call, const channel_args &a, const stat_args &s,
                                     const channel_job &j);
void tarn__cuda_batchnorm_persistent_grad(const tarn__call *call, const channel_args &a, const channel_sums &s,
                                          const channel_job &j);

#endif
