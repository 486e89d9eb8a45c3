/* batchnorm_persistent.cu: batchnorm with computed statistics, with or without relu, in one persistent kernel
 * (channel_persistent.cuh).
 *
 * Bytes: x read once as far as it stays in shared memory, y written; a residual is read with x. */
#include "backends/cuda/norm/batchnorm.cuh"
#include "backends/cuda/norm/channel_persistent.cuh"

#define IN_FLIGHT 8 /* vectors of a thread in flight */
#define REREADS 4   /* vectors of a thread read again at a time */

enum { ADD_RELU_RESIDENT = ADD_RELU + 1 }; /* the residual is resident, too, and all of both fits */

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
        weight = a.weight.base ? load_param(a.weight, channel) : 1;
        bias = a.bias.base ? load_any<float>(a.bias.base, a.bias.dtype, channel * a.bias.along) : 0;
        old_mean = load_param(s.running_mean, channel);
        old_variance = load_param(s.running_variance, channel);
    }
};

/* Sums of a thread's distances from the block's first element of the channel, and of their squares; in NHWC of N
 * channels. */
template <typename T, bool IS_NCHW> struct persistent_moments {
    typedef typed<T, vec_size<T>::value> R;
    static constexpr int N = R::width, CHANNELS = IS_NCHW ? 1 : N;
    double v[2 * CHANNELS];
    typename R::raw first;

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

/* Publishes the block's partial, mean and squared distances: NCHW by thread 0, NHWC by thread c for channel c. `from`
 * is the reference of the sums. */
template <typename T, bool IS_NCHW>
__device__ __forceinline__ void publish_partial(const channel_args &a, const persistent_args &h,
                                                const persistent_range<T, IS_NCHW> &p,
                                                persistent_moments<T, IS_NCHW> &m, double from, double *space)
{
    const int me = (int)threadIdx.x;
    const double inverse = p.peer == h.peers - 1 ? h.last_inverse : h.inverse;
    double2 sums;
    if constexpr (IS_NCHW) {
        __shared__ double of_warps[WARP];
        sums.x = block_reduce<plus>(m.v[0], of_warps, 0.0);
        sums.y = block_reduce<plus>(m.v[1], of_warps, 0.0);
    } else {
        sums = reduce_nhwc<vec_size<T>::value>(h, m.v, space);
    }
    const double apart = sums.x * inverse;
    if (me < (IS_NCHW ? 1 : a.channels))
        h.partials[IS_NCHW ? blockIdx.x : blockIdx.x * a.channels + me] =
            double2{from + apart, sums.y - sums.x * apart};
}

/* Sums of a channel over all peers, and their reference value: NCHW in every lane of a warp, NHWC in thread c for
 * channel c. */
template <bool IS_NCHW>
__device__ __forceinline__ double2 reduce_peers(const channel_args &a, const persistent_args &h, double *space,
                                                double *from)
{
    const int me = (int)threadIdx.x, channels = (int)a.channels, channel = me & (channels - 1);
    const double2 *partials = IS_NCHW ? h.partials + blockIdx.x / h.peers * h.peers : h.partials + channel;
    const double first = __ldcg(partials).x;
    double2 sums = {0, 0};
    auto take = [&](const double2 &partial, int block) {
        const double apart = partial.x - first, step = (block == h.peers - 1 ? h.last_elements : h.elements) * apart;
        sums.x += step;
        sums.y += partial.y + step * apart;
    };
    *from = first;
    if constexpr (IS_NCHW) {
        for_partials(h, partials, 1, me % WARP, WARP, take);
        return double2{warp_reduce<plus>(sums.x), warp_reduce<plus>(sums.y)};
    } else {
        for_partials(h, partials, channels, me / channels, NHWC_THREADS / channels, take);
        return reduce_thread_rows(sums, channels, (double2 *)space);
    }
}

/* Statistics of a channel from its sums, by the thread that has them. `is_first` in one of the peers, which stores
 * them. */
__device__ __forceinline__ void finalize_channel(const channel_args &a, const persistent_args &h, const stat_args &s,
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
__device__ __forceinline__ void write_vec(const channel_args &a, const channel_stats<float> *stats, int64_t offset,
                                          const vec<T, vec_size<T>::value> &x,
                                          const vec<T, vec_size<T>::value> &residual)
{
    typedef typed<T, vec_size<T>::value> R;
    float y[R::width];
#pragma unroll
    for (int i = 0; i < R::width; i++)
        y[i] = stats[IS_NCHW ? 0 : i].normalized(R::element(x, i));
    add_relu<R, MODE == ADD_RELU_RESIDENT ? ADD_RELU : MODE>(residual, y);
    R::store(a.operand[OUT], offset, 0, y);
}

/* The result, from the last vector to the first: those read again are in flight while others are written from shared
 * memory. */
template <typename T, int MODE, bool IS_NCHW, typename Ring>
__device__ __forceinline__ void write_range(const channel_args &a, const persistent_args &h,
                                            const persistent_range<T, IS_NCHW> &p, Ring &ring,
                                            const channel_stats<float> *stats)
{
    typedef typed<T, vec_size<T>::value> R;
    const int left = p.turns > h.slots ? p.turns - h.slots : 0;
#pragma unroll 1
    for (int reread = left - 1, held = p.turns - 1; reread >= 0 || held >= left; reread -= REREADS, held -= REREADS) {
        typename R::raw x[REREADS], residual[REREADS], residual_held[REREADS];
#pragma unroll
        for (int u = 0; u < REREADS; u++)
            if (reread - u >= 0) {
                x[u] = R::fetch(a.operand[X], p.offset(h, reread - u), 0);
                if (MODE == ADD_RELU)
                    residual[u] = R::fetch(a.operand[AUX], p.offset(h, reread - u), 0);
            }
#pragma unroll
        for (int u = 0; u < REREADS; u++)
            if (MODE == ADD_RELU && held - u >= left)
                residual_held[u] = R::fetch(a.operand[AUX], p.offset(h, held - u), 0);
#pragma unroll
        for (int u = 0; u < REREADS; u++)
            if (held - u >= left) {
                if (MODE == ADD_RELU_RESIDENT)
                    residual_held[u] = vec_at<T>(ring.at(ring.taken_at, resident_operands<MODE>() - 1));
                write_vec<T, MODE, IS_NCHW>(a, stats, p.offset(h, held - u), vec_at<T>(ring.at(ring.taken_at, 0)),
                                            residual_held[u]);
                ring.step_back(h);
            }
#pragma unroll
        for (int u = 0; u < REREADS; u++)
            if (reread - u >= 0)
                write_vec<T, MODE, IS_NCHW>(a, stats, p.offset(h, reread - u), x[u], residual[u]);
    }
}

/* load, add, publish, wait, reduce, write: see channel_persistent.cuh. `space` follows the resident vectors in shared
 * memory. */
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
    smem_ring<T, resident_operands<MODE>(), false, IN_FLIGHT, IS_NCHW> ring = {{(const T *)a.operand[X].base}};
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
    publish_partial<T, IS_NCHW>(a, h, p, moments, IS_NCHW ? moments.from(0) : vectors.first, space);
    /* all partials of the channel are visible after this */
    wait_for_peers(counters, h.peers);
    const double2 sums = reduce_peers<IS_NCHW>(a, h, space, &from);
    /* the last block out resets the counters for the next kernel */
    leave_peers(counters, h.peers);
    if (is_finalizer)
        finalize_channel(a, h, s, own, is_first, vectors, from, sums, &table[IS_NCHW ? 0 : me]);
    __syncthreads();
    channel_stats<float> stats[IS_NCHW ? 1 : N];
#pragma unroll
    for (int i = 0; i < (IS_NCHW ? 1 : N); i++)
        stats[i] = table[IS_NCHW ? 0 : p.channel + i];
    write_range<T, MODE, IS_NCHW>(a, h, p, ring, stats);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* One kernel per dtype, mode and layout. */
template <typename T, int MODE>
static void launch_mode(const tarn__call *call, const channel_args &a, const stat_args &s, const persistent_args &h)
{
    launch_persistent(call, a.is_nchw ? persistent_kernel<T, MODE, true> : persistent_kernel<T, MODE, false>, a, s, h);
}

/* Selects the mode. */
template <typename T>
static void launch_dtype(const tarn__call *call, const channel_args &a, const stat_args &s, const persistent_args &h,
                         bool has_relu, bool both_resident)
{
    if (has_relu && both_resident)
        launch_mode<T, ADD_RELU_RESIDENT>(call, a, s, h);
    else if (has_relu && a.operand[AUX].base)
        launch_mode<T, ADD_RELU>(call, a, s, h);
    else if (has_relu)
        launch_mode<T, RELU>(call, a, s, h);
    else
        launch_mode<T, NO_RELU>(call, a, s, h);
}

/* The residual is resident if all of both fits; if little even of x fits, multipass is as fast. */
static bool plan_forward(const tarn__call *call, const channel_args &a, persistent_args *h, bool *both_resident)
{
    *both_resident = a.operand[AUX].base && plan_persistent(call, a, 2, 0, IN_FLIGHT, h) &&
                     h->slots * (int64_t)h->threads >= h->per_block;
    return *both_resident || (plan_persistent(call, a, 1, 0, IN_FLIGHT, h) &&
                              (!a.operand[AUX].base || 4 * h->slots * (int64_t)h->threads >= h->per_block));
}

/* 0 if the persistent kernel is not used. */
size_t tarn__cuda_batchnorm_persistent_scratch(const tarn__call *call, const channel_args &a)
{
    persistent_args h;
    bool both_resident;
    return plan_forward(call, a, &h, &both_resident) ? partial_bytes(a, h) : 0;
}

/* partial_one of the multipass scratch holds the partials. */
bool tarn__cuda_batchnorm_persistent(const tarn__call *call, const channel_args &a, const stat_args &s, bool has_relu)
{
    persistent_args h;
    bool both_resident;
    if (!plan_forward(call, a, &h, &both_resident))
        return false;
    h.partials = (double2 *)a.partial_one;
    if (a.operand[X].dtype == TARN_F32)
        launch_dtype<float>(call, a, s, h, has_relu, both_resident);
    else if (a.operand[X].dtype == TARN_BF16)
        launch_dtype<bf16>(call, a, s, h, has_relu, both_resident);
    else
        launch_dtype<f16>(call, a, s, h, has_relu, both_resident);
    return true;
}
