/* batchnorm_persistent.cu: batchnorm with statistics computed from x, and its gradients, with or without relu, each in
 * one persistent kernel (channel_persistent.cuh).
 *
 * Both kernels run the same steps (the functions below, in this order):
 *   1. load the block's range through a ring of shared memory, and add it up per channel: some vectors in
 *      f32, their sums in f64
 *   2. publish the block's partial sums
 *   3. wait for the peers, the blocks of the same channels; add up all partials, every block in the same order
 *   4. finalize the channels: NCHW thread 0 the block's only one, NHWC thread c channel c; one of the peers stores what
 *      the call returns per channel
 *   5. write the results, from the last vector to the first: the last ones are resident, the others are read again
 *
 *   forward    x read once as far as it stays in shared memory, y written; a residual is read, too
 *   backward   x and g read once as far as they stay, gx written; if relu's result is read, that too, and the gated
 *              gradient is written: it then replaces g */
#include <type_traits>

#include "backends/cuda/norm/batchnorm.cuh"
#include "backends/cuda/norm/channel_persistent.cuh"

/* vectors of a thread's operands in flight, and read again at a time; backward has two resident operands */
#define X_AHEAD 8
#define X_REREADS 4
#define GRAD_AHEAD 4
#define GRAD_REREADS 2

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* x, and the residual if it is resident. */
template <int MODE> constexpr __host__ __device__ int resident_operands()
{
    return MODE == ADD_RELU_RESIDENT ? 2 : 1;
}

/* What the thread that finalizes a channel loads before its sums are known. */
struct channel_inputs {
    double weight, old_mean, old_variance, first; /* first: in NHWC, the block's first element */
    float bias;

    __device__ __forceinline__ void fetch(const channel_args &a, const stat_args &s, int channel)
    {
        weight = load_param(a.weight, channel, 1);
        bias = a.bias.base ? load_any<float>(a.bias.base, a.bias.dtype, channel * a.bias.along) : 0;
        old_mean = load_param(s.running_mean, channel, 0);
        old_variance = load_param(s.running_variance, channel, 0);
    }
};

/* Sums of a thread's distances from the block's first element of the channel, and of their squares; in NHWC of N
 * channels. */
template <typename T, bool IS_NCHW> struct persistent_moments {
    typedef typed<T, vec_size<T>::value> R;
    static constexpr int N = R::width, CHANNELS = IS_NCHW ? 1 : N;
    double v[2 * CHANNELS]; /* sums, then squares */
    typename R::raw first;  /* reference of all distances */

    __device__ __forceinline__ double from(int i) const
    {
        return (double)R::element(first, IS_NCHW ? 0 : i);
    }
    __device__ __forceinline__ double *sum(int i)
    {
        return &v[IS_NCHW ? 0 : i];
    }
    __device__ __forceinline__ double *squares(int i)
    {
        return &v[CHANNELS + (IS_NCHW ? 0 : i)];
    }

    /* Takes the next vector of x, and starts the load of one more. */
    template <typename Ring>
    static __device__ __forceinline__ typename R::raw next(const persistent_args &h,
                                                           const persistent_range<T, IS_NCHW> &p, Ring &ring)
    {
        ring.take(h);
        const typename R::raw x = vec_at<T>(ring.at(ring.taken_at, 0));
        ring.load(h, p);
        return x;
    }
    template <typename Ring>
    __device__ __forceinline__ void add_all(const channel_args &a, const persistent_args &h,
                                            const persistent_range<T, IS_NCHW> &p, Ring &ring)
    {
#pragma unroll
        for (int k = 0; k < 2 * CHANNELS; k++)
            v[k] = 0;
        first = R::fetch(a.operand[X], p.first_offset(h), 0);
#pragma unroll 1
        for (int begin = 0; begin < p.turns; begin += F32_GROUP)
            add_group(a, h, p, ring, begin, p.turns - begin < F32_GROUP ? p.turns - begin : F32_GROUP);
    }
    /* `count` vectors from `begin` on, each element of a vector as a group of its own. If one may have left f32's
     * range, all are measured again in f64. */
    template <typename Ring>
    __device__ __forceinline__ void add_group(const channel_args &a, const persistent_args &h,
                                              const persistent_range<T, IS_NCHW> &p, Ring &ring, int begin, int count)
    {
        group_moments<float> group[N];
        bool is_exact = true;
        const typename R::raw lead = next(h, p, ring);
#pragma unroll
        for (int i = 0; i < N; i++)
            group[i].start(R::element(lead, i)); /* its own distance is 0 */
#pragma unroll 1
        for (int turn = 1; turn < count; turn++) {
            const typename R::raw x = next(h, p, ring);
#pragma unroll
            for (int i = 0; i < N; i++)
                group[i].add(R::element(x, i));
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            is_exact = is_exact && group[i].is_exact();
        if (is_exact) {
#pragma unroll
            for (int i = 0; i < N; i++)
                group[i].add_to(from(i), (double)count, sum(i), squares(i));
            return;
        }
#pragma unroll 1
        for (int turn = begin; turn < begin + count; turn++) {
            const typename R::raw x = R::fetch(a.operand[X], p.offset(h, turn), 0);
#pragma unroll
            for (int i = 0; i < N; i++)
                take_f64((double)R::element(x, i), from(i), sum(i), squares(i));
        }
    }
};

/* The block's mean and squared distances of each channel. `from` is the reference of the sums. */
template <typename T, bool IS_NCHW>
__device__ __forceinline__ void publish_moments(const channel_args &a, const persistent_args &h,
                                                const persistent_range<T, IS_NCHW> &p,
                                                persistent_moments<T, IS_NCHW> &m, double from, double *space)
{
    const int me = (int)threadIdx.x;
    const double inverse = p.peer == h.peers - 1 ? h.last_inverse : h.inverse;
    const double2 sums = reduce_block<vec_size<T>::value, IS_NCHW>(h, m.v, space);
    const double apart = sums.x * inverse;
    if (me < (IS_NCHW ? 1 : a.channels))
        h.partials[IS_NCHW ? blockIdx.x : blockIdx.x * a.channels + me] =
            double2{from + apart, sums.y - sums.x * apart};
}

/* Sums over all peers of the distances of their means from the first one, `from`, and of the squared distances. */
template <bool IS_NCHW>
__device__ __forceinline__ double2 reduce_moments(const channel_args &a, const persistent_args &h, double *space,
                                                  double *from)
{
    const double2 *partials = peer_partials<IS_NCHW>(a, h);
    const double first = __ldcg(partials).x;
    *from = first;
    return reduce_peers<IS_NCHW>(a, h, partials, space, [&](double2 &sums, const double2 &partial, int peer) {
        const double apart = partial.x - first, step = (peer == h.peers - 1 ? h.last_elements : h.elements) * apart;
        sums.x += step;
        sums.y += partial.y + step * apart;
    });
}

/* Statistics of a channel from its sums, by the thread that has them. These are distances from the mean of one block:
 * little cancels. The running variance is unbiased, as in PyTorch. */
__device__ __forceinline__ void finalize_stats(const channel_args &a, const persistent_args &h, const stat_args &s,
                                               int channel, bool is_first, const channel_inputs &of, double from,
                                               double2 sums, channel_stats<float> *stats)
{
    const double apart = sums.x * h.channel_inverse, squares = sums.y - sums.x * apart, mean = from + apart;
    const double rstd = rsqrt(squares * h.channel_inverse + s.epsilon);
    stats->make(mean, rstd, of.weight, of.bias, 0, 0);
    if (!is_first)
        return;
    update_running(s.running_mean, channel, of.old_mean, s.momentum, mean);
    update_running(s.running_variance, channel, of.old_variance, s.momentum, squares / (a.values - 1));
    if (s.mean) {
        s.mean[channel] = mean;
        s.rstd[channel] = rstd;
    }
}

/* One vector of y from resident or reread x. */
template <typename T, int MODE, bool IS_NCHW>
__device__ __forceinline__ void store_result(const channel_args &a, int64_t to, const vec<T, vec_size<T>::value> &x,
                                             const vec<T, vec_size<T>::value> &residual,
                                             const channel_stats<float> *stats)
{
    typedef typed<T, vec_size<T>::value> R;
    float y[R::width];
    normalize_vec<R, MODE, IS_NCHW>(stats, x, residual, y);
    R::store(a.operand[OUT], to, 0, y);
}

/* The result, from the last vector to the first: those read again are in flight while others are written from shared
 * memory. */
template <typename T, int MODE, bool IS_NCHW, typename Ring>
__device__ __forceinline__ void write_results(const channel_args &a, const persistent_args &h,
                                              const persistent_range<T, IS_NCHW> &p, Ring &ring,
                                              const channel_stats<float> *stats)
{
    typedef typed<T, vec_size<T>::value> R;
    const int left = p.turns > h.slots ? p.turns - h.slots : 0;
#pragma unroll 1
    for (int reread = left - 1, resident = p.turns - 1; reread >= 0 || resident >= left;
         reread -= X_REREADS, resident -= X_REREADS) {
        typename R::raw x[X_REREADS], residual[X_REREADS], resident_residual[X_REREADS];
#pragma unroll
        for (int u = 0; u < X_REREADS; u++)
            if (reread - u >= 0) {
                x[u] = R::fetch(a.operand[X], p.offset(h, reread - u), 0);
                if (MODE == ADD_RELU)
                    residual[u] = R::fetch(a.operand[AUX], p.offset(h, reread - u), 0);
            }
#pragma unroll
        for (int u = 0; u < X_REREADS; u++)
            if (MODE == ADD_RELU && resident - u >= left)
                resident_residual[u] = R::fetch(a.operand[AUX], p.offset(h, resident - u), 0);
#pragma unroll
        for (int u = 0; u < X_REREADS; u++)
            if (resident - u >= left) {
                if (MODE == ADD_RELU_RESIDENT)
                    resident_residual[u] = vec_at<T>(ring.at(ring.taken_at, resident_operands<MODE>() - 1));
                store_result<T, MODE, IS_NCHW>(a, p.offset(h, resident - u), vec_at<T>(ring.at(ring.taken_at, 0)),
                                               resident_residual[u], stats);
                ring.step_back(h);
            }
#pragma unroll
        for (int u = 0; u < X_REREADS; u++)
            if (reread - u >= 0)
                store_result<T, MODE, IS_NCHW>(a, p.offset(h, reread - u), x[u], residual[u], stats);
    }
}

/* Forward. Grid: all blocks that fit the device at once. `space` follows the resident vectors in shared memory. Bytes:
 * x read, y written. */
template <typename T, int MODE, bool IS_NCHW>
static __global__ void __launch_bounds__(NHWC_THREADS, 1)
    persistent_kernel(const __grid_constant__ channel_args a, const __grid_constant__ stat_args s,
                      const __grid_constant__ persistent_args h)
{
    constexpr int N = vec_size<T>::value;
    __shared__ channel_stats<float> table[IS_NCHW ? 1 : MAX_CHANNELS];
    const persistent_range<T, IS_NCHW> p(a, h);
    const int me = (int)threadIdx.x, own = IS_NCHW ? p.channel : me;
    const bool is_finalizer = IS_NCHW ? me == 0 : me < a.channels,
               is_first = IS_NCHW ? blockIdx.x % h.peers == 0 : blockIdx.x == 0;
    int *counters = h.counters + (IS_NCHW ? 2 * p.channel : 0);
    double *space = (double *)(persistent_smem + resident_operands<MODE>() * h.slots * blockDim.x), from;
    smem_ring<T, resident_operands<MODE>(), false, X_AHEAD, IS_NCHW> ring = {{(const T *)a.operand[X].base}};
    persistent_moments<T, IS_NCHW> moments;
    channel_inputs vectors = {};
    if constexpr (MODE == ADD_RELU_RESIDENT)
        ring.from[1] = (const T *)a.operand[AUX].base;
    /* the first loads are in flight before anything else */
    ring.start(h, p);
    if (is_finalizer)
        vectors.fetch(a, s, own);
    if (is_finalizer && !IS_NCHW)
        vectors.first = (double)widen(((const T *)a.operand[X].base)[p.offset_of(h, p.first - threadIdx.x) + me]);
    /* reads the whole range; the last vectors stay in shared memory */
    moments.add_all(a, h, p, ring);
    publish_moments<T, IS_NCHW>(a, h, p, moments, IS_NCHW ? moments.from(0) : vectors.first, space);
    /* all partials of the channel are visible after this */
    wait_for_peers(counters, h.peers);
    const double2 sums = reduce_moments<IS_NCHW>(a, h, space, &from);
    /* the last block out resets the counters for the next kernel */
    leave_peers(counters, h.peers);
    if (is_finalizer)
        finalize_stats(a, h, s, own, is_first, vectors, from, sums, &table[IS_NCHW ? 0 : me]);
    __syncthreads();
    channel_stats<float> stats[IS_NCHW ? 1 : N];
#pragma unroll
    for (int i = 0; i < (IS_NCHW ? 1 : N); i++)
        stats[i] = table[IS_NCHW ? 0 : p.channel + i];
    write_results<T, MODE, IS_NCHW>(a, h, p, ring, stats);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Sums of a thread's g and g · x̂ after relu's gradient; in NHWC of N channels. */
template <typename T, int MODE, bool IS_NCHW> struct persistent_sums {
    typedef typed<T, vec_size<T>::value> R;
    static constexpr int N = R::width, CHANNELS = IS_NCHW ? 1 : N;
    double v[2 * CHANNELS];

    /* The thread's whole range; F32_GROUP vectors in f32 at a time. */
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
    /* One vector: gates g, adds it up, and loads the next. */
    template <typename Ring>
    __device__ __forceinline__ void
    add_vec(const channel_args &a, const persistent_args &h, const persistent_range<T, IS_NCHW> &p, Ring &ring,
            const channel_stats<float> *stats, const relu_gate<float> &gate, int turn, float *g_sums, float *gx_sums)
    {
        float gated[N];
        ring.take(h);
        /* the gated gradient takes the place of g, for the last step */
        uint4 *g_at = ring.at(ring.taken_at, 1);
        const typename R::raw x = vec_at<T>(ring.at(ring.taken_at, 0)), g = vec_at<T>(g_at);
        typename R::raw y;
        if (MODE == RELU_READ)
            y = vec_at<T>(ring.streamed_at(h, turn));
        gate_grad<R, MODE != NO_RELU, IS_NCHW>(stats, gate, x, y, g, gated);
        if (MODE == RELU_READ) {
            R::store(a.operand[GATED], p.offset(h, turn), 0, gated);
            typename R::raw narrowed;
            narrow_vec(narrowed, gated);
            memcpy(g_at, &narrowed, sizeof(narrowed));
        }
        add_grads<R, IS_NCHW>(stats, x, gated, g_sums, gx_sums);
        ring.load(h, p);
    }
};

/* The block's sums of each channel. */
template <int N, bool IS_NCHW>
__device__ __forceinline__ void publish_sums(const channel_args &a, const persistent_args &h, double *v, double *space)
{
    const int me = (int)threadIdx.x;
    const double2 sums = reduce_block<N, IS_NCHW>(h, v, space);
    if (IS_NCHW ? me == 0 : me < a.channels)
        h.partials[IS_NCHW ? blockIdx.x : blockIdx.x * a.channels + me] = sums;
}

/* Sums over all peers. */
template <bool IS_NCHW>
__device__ __forceinline__ double2 reduce_sums(const channel_args &a, const persistent_args &h, double *space)
{
    return reduce_peers<IS_NCHW>(a, h, peer_partials<IS_NCHW>(a, h), space,
                                 [](double2 &sums, const double2 &partial, int) {
                                     sums.x += partial.x;
                                     sums.y += partial.y;
                                 });
}

/* Means of a channel from its sums, by the thread that has them; `factor` is rstd · weight / elements. */
__device__ __forceinline__ void finalize_grads(const channel_sums &s, int channel, bool is_first, double rstd,
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
template <typename T, int MODE, bool IS_NCHW>
__device__ __forceinline__ void store_gx(const channel_args &a, const channel_stats<float> *stats,
                                         const relu_gate<float> &gate, int64_t offset,
                                         const vec<T, vec_size<T>::value> &x, const vec<T, vec_size<T>::value> &g)
{
    typedef typed<T, vec_size<T>::value> R;
    float gated[R::width];
    gate_grad<R, MODE == RELU_RECOMPUTED, IS_NCHW>(stats, gate, x, x, g, gated);
#pragma unroll
    for (int i = 0; i < R::width; i++) {
        const channel_stats<float> &n = stats[IS_NCHW ? 0 : i];
        gated[i] = gated[i] * n.scale - n.mean_g - n.centered(R::element(x, i)) * n.mean_gx;
    }
    R::store(a.operand[OUT], offset, 0, gated);
}

/* The gradient of x, from the last vector to the first: those read again are in flight while others are written from
 * shared memory. */
template <typename T, int MODE, bool IS_NCHW, typename Ring>
__device__ __forceinline__ void write_grads(const channel_args &a, const persistent_args &h,
                                            const persistent_range<T, IS_NCHW> &p, Ring &ring,
                                            const channel_stats<float> *stats, const relu_gate<float> &gate)
{
    typedef typed<T, vec_size<T>::value> R;
    const row_operand &from = a.operand[MODE == RELU_READ ? GATED : G];
    const int left = p.turns > h.slots ? p.turns - h.slots : 0;
#pragma unroll 1
    for (int reread = left - 1, resident = p.turns - 1; reread >= 0 || resident >= left;
         reread -= GRAD_REREADS, resident -= GRAD_REREADS) {
        typename R::raw x[GRAD_REREADS], g[GRAD_REREADS];
#pragma unroll
        for (int u = 0; u < GRAD_REREADS; u++)
            if (reread - u >= 0) {
                x[u] = R::fetch(a.operand[X], p.offset(h, reread - u), 0);
                g[u] = R::fetch(from, p.offset(h, reread - u), 0);
            }
#pragma unroll
        for (int u = 0; u < GRAD_REREADS; u++)
            if (resident - u >= left) {
                store_gx<T, MODE, IS_NCHW>(a, stats, gate, p.offset(h, resident - u),
                                           vec_at<T>(ring.at(ring.taken_at, 0)), vec_at<T>(ring.at(ring.taken_at, 1)));
                ring.step_back(h);
            }
#pragma unroll
        for (int u = 0; u < GRAD_REREADS; u++)
            if (reread - u >= 0)
                store_gx<T, MODE, IS_NCHW>(a, stats, gate, p.offset(h, reread - u), x[u], g[u]);
    }
}

/* Backward. Grid as forward. The channels' statistics come from the saved mean and rstd, while the first loads are in
 * flight. Bytes: x and g read, gx written. */
template <typename T, int MODE, bool IS_NCHW>
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
    const relu_gate<float> gate = {MODE == RELU_RECOMPUTED, (float)a.relu_zero};
    int *counters = h.counters + (IS_NCHW ? 2 * p.channel : 0);
    double *space = (double *)(persistent_smem + (2 * h.slots + (MODE == RELU_READ ? GRAD_AHEAD : 0)) * blockDim.x);
    smem_ring<T, 2, MODE == RELU_READ, GRAD_AHEAD, IS_NCHW> ring = {
        {(const T *)a.operand[X].base, (const T *)a.operand[G].base}};
    persistent_sums<T, MODE, IS_NCHW> sums;
    channel_stats<float> stats[CHANNELS];
    if constexpr (MODE == RELU_READ)
        ring.from[2] = (const T *)a.operand[AUX].base;
    /* the first loads are in flight before anything else */
    ring.start(h, p);
    double rstd = 0, factor = 0;
    if (is_finalizer) {
        table[IS_NCHW ? 0 : me].fetch(a, 0, own);
        rstd = a.rstd[own];
        factor = rstd * load_param(a.weight, own, 1) * h.channel_inverse;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < CHANNELS; i++)
        stats[i] = table[IS_NCHW ? 0 : p.channel + i];
    /* reads the whole range; the last vectors stay in shared memory */
    sums.add(a, h, p, ring, stats, gate);
    publish_sums<N, IS_NCHW>(a, h, sums.v, space);
    wait_for_peers(counters, h.peers);
    const double2 all = reduce_sums<IS_NCHW>(a, h, space);
    leave_peers(counters, h.peers);
    if (is_finalizer)
        finalize_grads(s, own, is_first, rstd, factor, all, &table[IS_NCHW ? 0 : me]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < CHANNELS; i++)
        stats[i] = table[IS_NCHW ? 0 : p.channel + i];
    write_grads<T, MODE, IS_NCHW>(a, h, p, ring, stats, gate);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* The two kernels by dtype, relu mode and layout. Backward has no ADD_RELU_RESIDENT. */
struct forward {
    template <typename T, int MODE, bool IS_NCHW> static auto kernel()
    {
        return persistent_kernel<T, MODE, IS_NCHW>;
    }
};
struct backward {
    template <typename T, int MODE, bool IS_NCHW> static auto kernel()
    {
        return persistent_grad_kernel<T, MODE, IS_NCHW>;
    }
};

template <typename Way, typename T, int MODE, typename S>
static void launch_layout(const tarn__call *call, const channel_args &a, const S &s, const persistent_args &h)
{
    launch_persistent(call, a.is_nchw ? Way::template kernel<T, MODE, true>() : Way::template kernel<T, MODE, false>(),
                      a, s, h);
}

template <typename Way, typename T, typename S>
static void launch_mode(const tarn__call *call, const channel_args &a, const S &s, const persistent_args &h, int mode)
{
    if (mode == NO_RELU)
        launch_layout<Way, T, NO_RELU>(call, a, s, h);
    else if (mode == RELU)
        launch_layout<Way, T, RELU>(call, a, s, h);
    else if (mode == ADD_RELU)
        launch_layout<Way, T, ADD_RELU>(call, a, s, h);
    else if constexpr (std::is_same<Way, forward>::value)
        launch_layout<Way, T, ADD_RELU_RESIDENT>(call, a, s, h);
}

/* partial_one of the multipass scratch holds the partials. */
template <typename Way, typename S>
static void launch_dtype(const tarn__call *call, const channel_args &a, const S &s, persistent_args h, int mode)
{
    h.partials = (double2 *)a.partial_one;
    if (a.operand[X].dtype == TARN_F32)
        launch_mode<Way, float>(call, a, s, h, mode);
    else if (a.operand[X].dtype == TARN_BF16)
        launch_mode<Way, bf16>(call, a, s, h, mode);
    else
        launch_mode<Way, f16>(call, a, s, h, mode);
}

/* The residual is resident if all of both fits; if little even of x fits, multipass is as fast. */
static bool plan_forward(const tarn__call *call, const channel_args &a, persistent_args *h, bool *both_resident)
{
    *both_resident = a.operand[AUX].base && plan_persistent(call, a, 2, 0, X_AHEAD, h) &&
                     h->slots * (int64_t)h->threads >= h->per_block;
    return *both_resident || (plan_persistent(call, a, 1, 0, X_AHEAD, h) &&
                              (!a.operand[AUX].base || 4 * h->slots * (int64_t)h->threads >= h->per_block));
}

/* If relu's result is read, the gated gradient must have somewhere to go. */
static bool plan_grad(const tarn__call *call, const channel_args &a, persistent_args *h)
{
    const bool is_read = a.operand[AUX].base;
    return a.operand[OUT].base && is_read == (a.operand[GATED].base != NULL) &&
           plan_persistent(call, a, 2, is_read ? 1 : 0, GRAD_AHEAD, h);
}

size_t tarn__cuda_plan_batchnorm_persistent(const tarn__call *call, const channel_args &a, channel_job *j)
{
    bool both_resident;
    if (!plan_forward(call, a, &j->persistent, &both_resident))
        return 0;
    j->relu_mode = both_resident ? ADD_RELU_RESIDENT : relu_mode(a);
    return partial_bytes(a, j->persistent);
}

size_t tarn__cuda_plan_batchnorm_persistent_grad(const tarn__call *call, const channel_args &a, channel_job *j)
{
    if (!plan_grad(call, a, &j->persistent))
        return 0;
    j->relu_mode = relu_mode(a);
    return partial_bytes(a, j->persistent);
}

void tarn__cuda_batchnorm_persistent(const tarn__call *call, const channel_args &a, const stat_args &s,
                                     const channel_job &j)
{
    launch_dtype<forward>(call, a, s, j.persistent, j.relu_mode);
}

void tarn__cuda_batchnorm_persistent_grad(const tarn__call *call, const channel_args &a, const channel_sums &s,
                                          const channel_job &j)
{
    launch_dtype<backward>(call, a, s, j.persistent, j.relu_mode);
}
