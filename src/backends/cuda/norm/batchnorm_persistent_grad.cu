/* batchnorm_persistent_grad.cu: gradients of batchnorm with computed statistics, with or without relu, in one
 * persistent kernel (channel_persistent.cuh).
 *
 * Bytes: x and g read once as far as they stay in shared memory, gx written. If relu's result is read, that too, and
 * the gated gradient is written: it then replaces g. */
#include "backends/cuda/norm/batchnorm_grad.cuh"
#include "backends/cuda/norm/channel_persistent.cuh"

#define IN_FLIGHT 4 /* vectors of a thread's operands in flight */
#define REREADS 2   /* vectors of a thread's operands read again at a time */

/* Sums of a thread's g and g · x̂ after relu's gradient; in NHWC of N channels. */
template <typename T, int RELU, bool IS_NCHW> struct persistent_sums {
    typedef typed<T, vec_size<T>::value> R;
    static constexpr int N = R::width, CHANNELS = IS_NCHW ? 1 : N;
    double v[2 * CHANNELS];

    template <typename Ring>
    __device__ __forceinline__ void add(const channel_args &a, const persistent_args &h,
                                        const persistent_range<T, IS_NCHW> &p, Ring &ring,
                                        const channel_stats<float> *stats, const relu_gate<float> &gate)
    {
#pragma unroll
        for (int k = 0; k < 2 * CHANNELS; k++)
            v[k] = 0;
#pragma unroll 1
        for (int begin = 0; begin < p.turns; begin += F32_GROUP) {
            float g_sums[CHANNELS] = {}, gx_sums[CHANNELS] = {};
            const int end = p.turns - begin < F32_GROUP ? p.turns : begin + F32_GROUP;
#pragma unroll 1
            for (int turn = begin; turn < end; turn++)
                add_vec(a, h, p, ring, stats, gate, turn, g_sums, gx_sums);
#pragma unroll
            for (int i = 0; i < CHANNELS; i++) {
                v[i] += (double)g_sums[i];
                v[CHANNELS + i] += (double)gx_sums[i];
            }
        }
    }
    template <typename Ring>
    __device__ __forceinline__ void
    add_vec(const channel_args &a, const persistent_args &h, const persistent_range<T, IS_NCHW> &p, Ring &ring,
            const channel_stats<float> *stats, const relu_gate<float> &gate, int turn, float *g_sums, float *gx_sums)
    {
        float gated[N];
        ring.take(h);
        uint4 *g_at = ring.at(ring.taken_at, 1);
        const typename R::raw x = vec_at<T>(ring.at(ring.taken_at, 0)), g = vec_at<T>(g_at);
        typename R::raw y;
        if (RELU == RELU_READ)
            y = vec_at<T>(ring.streamed_at(h, turn));
        gate_grad<R, RELU != NO_RELU, IS_NCHW>(stats, gate, x, y, g, gated);
        if (RELU == RELU_READ) {
            R::store(a.operand[GATED], p.offset(h, turn), 0, gated);
            typename R::raw narrowed;
            narrow_vec(narrowed, gated);
            memcpy(g_at, &narrowed, sizeof(narrowed));
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const channel_stats<float> &n = stats[IS_NCHW ? 0 : i];
            g_sums[IS_NCHW ? 0 : i] += gated[i];
            gx_sums[IS_NCHW ? 0 : i] += gated[i] * (n.centered(R::element(x, i)) * n.rstd);
        }
        ring.load(h, p);
    }
};

/* Publishes the block's partial sums: NCHW by thread 0, NHWC by thread c for channel c. */
template <int N, bool IS_NCHW>
__device__ __forceinline__ void publish_partial(const channel_args &a, const persistent_args &h, double *v,
                                                double *space)
{
    const int me = (int)threadIdx.x;
    if constexpr (IS_NCHW) {
        __shared__ double of_warps[WARP];
        const double sum = block_reduce<plus>(v[0], of_warps, 0.0), product = block_reduce<plus>(v[1], of_warps, 0.0);
        if (me == 0)
            h.partials[blockIdx.x] = double2{sum, product};
    } else {
        const double2 sums = reduce_nhwc<N>(h, v, space);
        if (me < a.channels)
            h.partials[blockIdx.x * a.channels + me] = sums;
    }
}

/* Sums of a channel over all peers: NCHW in every lane of a warp, NHWC in thread c for channel c. */
template <bool IS_NCHW>
__device__ __forceinline__ double2 reduce_peers(const channel_args &a, const persistent_args &h, double *space)
{
    const int me = (int)threadIdx.x, channels = (int)a.channels;
    double2 sums = {0, 0};
    auto take = [&](const double2 &partial, int) {
        sums.x += partial.x;
        sums.y += partial.y;
    };
    if constexpr (IS_NCHW) {
        for_partials(h, h.partials + blockIdx.x / h.peers * h.peers, 1, me % WARP, WARP, take);
        return double2{warp_reduce<plus>(sums.x), warp_reduce<plus>(sums.y)};
    } else {
        for_partials(h, h.partials + (me & (channels - 1)), channels, me / channels, NHWC_THREADS / channels, take);
        return reduce_thread_rows(sums, channels, (double2 *)space);
    }
}

/* Means of a channel from its sums, by the thread that has them; `factor` is rstd · weight / elements. `is_first` in
 * one of the peers, which stores the gradients of weight and bias. */
__device__ __forceinline__ void finalize_channel(const channel_sums &s, int channel, bool is_first, double rstd,
                                                 double factor, double2 sums, channel_stats<float> *stats)
{
    stats->mean_g = (float)(factor * sums.x);
    stats->mean_gx = (float)(rstd * (factor * sums.y));
    if (is_first) {
        store_param(s.gweight, channel, sums.y);
        store_param(s.gbias, channel, sums.x);
    }
}

/* One vector of gx. */
template <typename T, int RELU, bool IS_NCHW>
__device__ __forceinline__ void write_vec(const channel_args &a, const channel_stats<float> *stats,
                                          const relu_gate<float> &gate, int64_t offset,
                                          const vec<T, vec_size<T>::value> &x, const vec<T, vec_size<T>::value> &g)
{
    typedef typed<T, vec_size<T>::value> R;
    float gated[R::width];
    gate_grad<R, RELU == RELU_RECOMPUTED, IS_NCHW>(stats, gate, x, x, g, gated);
#pragma unroll
    for (int i = 0; i < R::width; i++) {
        const channel_stats<float> &n = stats[IS_NCHW ? 0 : i];
        gated[i] = gated[i] * n.scale - n.mean_g - n.centered(R::element(x, i)) * n.mean_gx;
    }
    R::store(a.operand[OUT], offset, 0, gated);
}

/* The gradient of x, from the last vector to the first: those read again are in flight while others are written from
 * shared memory. */
template <typename T, int RELU, bool IS_NCHW, typename Ring>
__device__ __forceinline__ void write_range(const channel_args &a, const persistent_args &h,
                                            const persistent_range<T, IS_NCHW> &p, Ring &ring,
                                            const channel_stats<float> *stats, const relu_gate<float> &gate)
{
    typedef typed<T, vec_size<T>::value> R;
    const row_operand &from = a.operand[RELU == RELU_READ ? GATED : G];
    const int left = p.turns > h.slots ? p.turns - h.slots : 0;
#pragma unroll 1
    for (int reread = left - 1, held = p.turns - 1; reread >= 0 || held >= left; reread -= REREADS, held -= REREADS) {
        typename R::raw x[REREADS], g[REREADS];
#pragma unroll
        for (int u = 0; u < REREADS; u++)
            if (reread - u >= 0) {
                x[u] = R::fetch(a.operand[X], p.offset(h, reread - u), 0);
                g[u] = R::fetch(from, p.offset(h, reread - u), 0);
            }
#pragma unroll
        for (int u = 0; u < REREADS; u++)
            if (held - u >= left) {
                write_vec<T, RELU, IS_NCHW>(a, stats, gate, p.offset(h, held - u), vec_at<T>(ring.at(ring.taken_at, 0)),
                                            vec_at<T>(ring.at(ring.taken_at, 1)));
                ring.step_back(h);
            }
#pragma unroll
        for (int u = 0; u < REREADS; u++)
            if (reread - u >= 0)
                write_vec<T, RELU, IS_NCHW>(a, stats, gate, p.offset(h, reread - u), x[u], g[u]);
    }
}

/* As the forward kernel; the channels' statistics come from the saved mean and rstd before the first load is used. */
template <typename T, int RELU, bool IS_NCHW>
static __global__ void __launch_bounds__(NHWC_THREADS, 1)
    persistent_grad_kernel(const __grid_constant__ channel_args a, const __grid_constant__ channel_sums s,
                           const __grid_constant__ persistent_args h)
{
    constexpr int N = vec_size<T>::value, CHANNELS = IS_NCHW ? 1 : N;
    __shared__ channel_stats<float> table[IS_NCHW ? 1 : MAX_CHANNELS];
    const persistent_range<T, IS_NCHW> p(a, h);
    const int me = (int)threadIdx.x, own = IS_NCHW ? p.channel : me;
    const bool is_finalizer = IS_NCHW ? me == 0 : me < a.channels,
               is_first = IS_NCHW ? blockIdx.x % h.peers == 0 : blockIdx.x == 0;
    const relu_gate<float> gate = {RELU == RELU_RECOMPUTED, (float)a.relu_zero};
    int *counters = h.counters + (IS_NCHW ? 2 * p.channel : 0);
    double *space = (double *)(persistent_smem + (2 * h.slots + (RELU == RELU_READ ? IN_FLIGHT : 0)) * blockDim.x);
    smem_ring<T, 2, RELU == RELU_READ, IN_FLIGHT, IS_NCHW> ring = {
        {(const T *)a.operand[X].base, (const T *)a.operand[G].base}};
    persistent_sums<T, RELU, IS_NCHW> sums;
    channel_stats<float> stats[CHANNELS];
    if constexpr (RELU == RELU_READ)
        ring.from[2] = (const T *)a.operand[AUX].base;
    /* the first loads are in flight before anything else */
    ring.start(h, p);
    double rstd = 0, factor = 0;
    if (is_finalizer) {
        table[IS_NCHW ? 0 : me].fetch(a, 0, own);
        rstd = a.rstd[own];
        factor = rstd * channel_weight(a, own) * h.channel_inverse;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < CHANNELS; i++)
        stats[i] = table[IS_NCHW ? 0 : p.channel + i];
    /* reads the whole range; the last vectors stay in shared memory */
    sums.add(a, h, p, ring, stats, gate);
    publish_partial<N, IS_NCHW>(a, h, sums.v, space);
    /* all partials of the channel are visible after this */
    wait_for_peers(counters, h.peers);
    const double2 all = reduce_peers<IS_NCHW>(a, h, space);
    leave_peers(counters, h.peers);
    if (is_finalizer)
        finalize_channel(s, own, is_first, rstd, factor, all, &table[IS_NCHW ? 0 : me]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < CHANNELS; i++)
        stats[i] = table[IS_NCHW ? 0 : p.channel + i];
    write_range<T, RELU, IS_NCHW>(a, h, p, ring, stats, gate);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

template <typename T, int RELU>
static void launch_relu(const tarn__call *call, const channel_args &a, const channel_sums &s, const persistent_args &h)
{
    launch_persistent(call, a.is_nchw ? persistent_grad_kernel<T, RELU, true> : persistent_grad_kernel<T, RELU, false>,
                      a, s, h);
}

/* Selects where relu's result comes from. */
template <typename T>
static void launch_dtype(const tarn__call *call, const channel_args &a, const channel_sums &s, const persistent_args &h)
{
    if (a.operand[AUX].base)
        launch_relu<T, RELU_READ>(call, a, s, h);
    else if (a.is_recomputed)
        launch_relu<T, RELU_RECOMPUTED>(call, a, s, h);
    else
        launch_relu<T, NO_RELU>(call, a, s, h);
}

/* If relu's result is read, the gated gradient must have somewhere to go. */
static bool plan_grad(const tarn__call *call, const channel_args &a, persistent_args *h)
{
    const bool is_read = a.operand[AUX].base;
    return a.operand[OUT].base && is_read == (a.operand[GATED].base != NULL) &&
           plan_persistent(call, a, 2, is_read ? 1 : 0, IN_FLIGHT, h);
}

size_t tarn__cuda_batchnorm_persistent_grad_scratch(const tarn__call *call, const channel_args &a)
{
    persistent_args h;
    return plan_grad(call, a, &h) ? partial_bytes(a, h) : 0;
}

/* False: run multipass. */
bool tarn__cuda_batchnorm_persistent_grad(const tarn__call *call, const channel_args &a, const channel_sums &s)
{
    persistent_args h;
    if (!plan_grad(call, a, &h))
        return false;
    h.partials = (double2 *)a.partial_one;
    if (a.operand[X].dtype == TARN_F32)
        launch_dtype<float>(call, a, s, h);
    else if (a.operand[X].dtype == TARN_BF16)
        launch_dtype<bf16>(call, a, s, h);
    else
        launch_dtype<f16>(call, a, s, h);
    return true;
}
