/* batchnorm_persistent.cu: batchnorm with its own statistics, and with relu, in one kernel (see
 * channel_persistent.cuh).
 *
 * Bytes: x read once as far as it is held, y written; what is added before relu is read beside x. */
#include "backends/cuda/norm/batchnorm.cuh"
#include "backends/cuda/norm/channel_persistent.cuh"

#define AHEAD 8 /* packs of a thread under way */
#define AGAIN 4 /* packs of a thread that are read again at a time */

enum { RELU_OF_HELD = RELU_OF_SUM + 1 }; /* what is added is held, too, and all of both */

template <int HOW> constexpr __host__ __device__ int operands_held()
{
    return HOW == RELU_OF_HELD ? 2 : 1;
}

/* What the thread that settles a channel knows of it before its sums. */
struct channel_vectors {
    double weight, old_mean, old_variance, first; /* first: by columns, the block's first element */
    float bias;

    __device__ __forceinline__ void fetch(const channel_args &a, const set_args &s, int channel)
    {
        weight = a.weight.base ? number_at(a.weight, channel) : 1;
        bias = a.bias.base ? load_any<float>(a.bias.base, a.bias.dtype, channel * a.bias.along) : 0;
        old_mean = number_at(s.running_mean, channel);
        old_variance = number_at(s.running_variance, channel);
    }
};

/* Sums of distances of the thread's elements from the block's first of the channel, and of their squares: by columns of
 * N channels. */
template <typename T, bool IS_BY_ROWS> struct held_moments {
    typedef typed<T, pack_size<T>::value> R;
    static constexpr int N = R::width, CHANNELS = IS_BY_ROWS ? 1 : N;
    double v[2 * CHANNELS];
    typename R::raw first;

    __device__ __forceinline__ double from(int i) const
    {
        return (double)R::element(first, IS_BY_ROWS ? 0 : i);
    }
    __device__ __forceinline__ double *sum(int i)
    {
        return &v[IS_BY_ROWS ? 0 : i];
    }
    __device__ __forceinline__ double *squares(int i)
    {
        return &v[CHANNELS + (IS_BY_ROWS ? 0 : i)];
    }

    template <typename Ring>
    static __device__ __forceinline__ typename R::raw next(const held_args &h, const held_piece<T, IS_BY_ROWS> &p,
                                                           Ring &ring)
    {
        ring.take(h);
        const typename R::raw x = pack_at<T>(ring.at(ring.taken_at, 0));
        ring.ask(h, p);
        return x;
    }
    template <typename Ring>
    __device__ __forceinline__ void measure(const channel_args &a, const held_args &h,
                                            const held_piece<T, IS_BY_ROWS> &p, Ring &ring)
    {
#pragma unroll
        for (int k = 0; k < 2 * CHANNELS; k++)
            v[k] = 0;
        first = R::fetch(a.operand[X], p.offset_of_first(h), 0);
#pragma unroll 1
        for (int begin = 0; begin < p.turns; begin += HELD_GROUP)
            measure_group(a, h, p, ring, begin, p.turns - begin < HELD_GROUP ? p.turns - begin : HELD_GROUP);
    }
    template <typename Ring>
    __device__ __forceinline__ void measure_group(const channel_args &a, const held_args &h,
                                                  const held_piece<T, IS_BY_ROWS> &p, Ring &ring, int begin, int count)
    {
        group_sums<float> group[N];
        bool is_exact = true;
        const typename R::raw lead = next(h, p, ring);
#pragma unroll
        for (int i = 0; i < N; i++)
            group[i].begin(R::element(lead, i)); /* at no distance from itself */
#pragma unroll 1
        for (int turn = 1; turn < count; turn++) {
            const typename R::raw x = next(h, p, ring);
#pragma unroll
            for (int i = 0; i < N; i++)
                group[i].take(R::element(x, i));
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
                take_exactly((double)R::element(x, i), from(i), sum(i), squares(i));
        }
    }
};

/* The block's part, mean and squared distances from it: by rows by thread 0, by columns by thread c that of channel c.
 * `from` is what the sums are measured from. */
template <typename T, bool IS_BY_ROWS>
__device__ __forceinline__ void put_part(const channel_args &a, const held_args &h, const held_piece<T, IS_BY_ROWS> &p,
                                         held_moments<T, IS_BY_ROWS> &m, double from, double *space)
{
    const int me = (int)threadIdx.x;
    const double inverse = p.sharer == h.sharers - 1 ? h.inverse_of_last : h.inverse;
    double2 sums;
    if constexpr (IS_BY_ROWS) {
        __shared__ double of_warps[WARP];
        sums.x = over_block<add_up>(m.v[0], of_warps, 0.0);
        sums.y = over_block<add_up>(m.v[1], of_warps, 0.0);
    } else {
        sums = over_columns<pack_size<T>::value>(h, m.v, space);
    }
    const double apart = sums.x * inverse;
    if (me < (IS_BY_ROWS ? 1 : a.channels))
        h.parts[IS_BY_ROWS ? blockIdx.x : blockIdx.x * a.channels + me] =
            double2{from + apart, sums.y - sums.x * apart};
}

/* The sums of a channel over all blocks that share it, and the number that they are measured from: by rows in every
 * lane of a warp, by columns in thread c of channel c. */
template <bool IS_BY_ROWS>
__device__ __forceinline__ double2 over_sharers(const channel_args &a, const held_args &h, double *space, double *from)
{
    const int me = (int)threadIdx.x, channels = (int)a.channels, channel = me & (channels - 1);
    const double2 *parts = IS_BY_ROWS ? h.parts + blockIdx.x / h.sharers * h.sharers : h.parts + channel;
    const double first = __ldcg(parts).x;
    double2 sums = {0, 0};
    auto take = [&](const double2 &part, int block) {
        const double apart = part.x - first, step = (block == h.sharers - 1 ? h.elements_of_last : h.elements) * apart;
        sums.x += step;
        sums.y += part.y + step * apart;
    };
    *from = first;
    if constexpr (IS_BY_ROWS) {
        for_parts(h, parts, 1, me % WARP, WARP, take);
        return double2{over_warp<add_up>(sums.x), over_warp<add_up>(sums.y)};
    } else {
        for_parts(h, parts, channels, me / channels, COLUMN_THREADS / channels, take);
        return over_rows_of_threads(sums, channels, (double2 *)space);
    }
}

/* A channel's numbers from its sums; by the thread that has them. `is_first` in one of the blocks that share it, which
 * writes them down. */
__device__ __forceinline__ void settle_channel(const channel_args &a, const held_args &h, const set_args &s,
                                               int channel, bool is_first, const channel_vectors &of, double from,
                                               double2 sums, channel_numbers<float> *numbers)
{
    const double apart = sums.x * h.inverse_of_all, squares = sums.y - sums.x * apart, mean = from + apart;
    const double rstd = rsqrt(squares * h.inverse_of_all + s.epsilon);
    numbers->make(mean, rstd, of.weight, of.bias, 0, 0);
    if (!is_first)
        return;
    take_in(s.running_mean, channel, of.old_mean, s.momentum, mean);
    take_in(s.running_variance, channel, of.old_variance, s.momentum, squares / (a.values - 1));
    if (s.mean) {
        s.mean[channel] = mean;
        s.rstd[channel] = rstd;
    }
}

template <typename T, int HOW, bool IS_BY_ROWS>
__device__ __forceinline__ void write_pack(const channel_args &a, const channel_numbers<float> *numbers, int64_t offset,
                                           const pack<T, pack_size<T>::value> &x,
                                           const pack<T, pack_size<T>::value> &beside)
{
    typedef typed<T, pack_size<T>::value> R;
    float y[R::width];
#pragma unroll
    for (int i = 0; i < R::width; i++)
        y[i] = numbers[IS_BY_ROWS ? 0 : i].normal(R::element(x, i));
    add_and_cut<R, HOW == RELU_OF_HELD ? RELU_OF_SUM : HOW>(beside, y);
    R::store(a.operand[TO], offset, 0, y);
}

/* The result, from the last pack to the first: those that are read again are on their way while others are written from
 * shared memory. */
template <typename T, int HOW, bool IS_BY_ROWS, typename Ring>
__device__ __forceinline__ void write_piece(const channel_args &a, const held_args &h,
                                            const held_piece<T, IS_BY_ROWS> &p, Ring &ring,
                                            const channel_numbers<float> *numbers)
{
    typedef typed<T, pack_size<T>::value> R;
    const int left = p.turns > h.places ? p.turns - h.places : 0;
#pragma unroll 1
    for (int again = left - 1, held = p.turns - 1; again >= 0 || held >= left; again -= AGAIN, held -= AGAIN) {
        typename R::raw x[AGAIN], beside[AGAIN], beside_held[AGAIN];
#pragma unroll
        for (int u = 0; u < AGAIN; u++)
            if (again - u >= 0) {
                x[u] = R::fetch(a.operand[X], p.offset(h, again - u), 0);
                if (HOW == RELU_OF_SUM)
                    beside[u] = R::fetch(a.operand[BESIDE], p.offset(h, again - u), 0);
            }
#pragma unroll
        for (int u = 0; u < AGAIN; u++)
            if (HOW == RELU_OF_SUM && held - u >= left)
                beside_held[u] = R::fetch(a.operand[BESIDE], p.offset(h, held - u), 0);
#pragma unroll
        for (int u = 0; u < AGAIN; u++)
            if (held - u >= left) {
                if (HOW == RELU_OF_HELD)
                    beside_held[u] = pack_at<T>(ring.at(ring.taken_at, operands_held<HOW>() - 1));
                write_pack<T, HOW, IS_BY_ROWS>(a, numbers, p.offset(h, held - u), pack_at<T>(ring.at(ring.taken_at, 0)),
                                               beside_held[u]);
                ring.back(h);
            }
#pragma unroll
        for (int u = 0; u < AGAIN; u++)
            if (again - u >= 0)
                write_pack<T, HOW, IS_BY_ROWS>(a, numbers, p.offset(h, again - u), x[u], beside[u]);
    }
}

template <typename T, int HOW, bool IS_BY_ROWS>
static __global__ void __launch_bounds__(COLUMN_THREADS, 1)
    hold(const __grid_constant__ channel_args a, const __grid_constant__ set_args s,
         const __grid_constant__ held_args h)
{
    constexpr int N = pack_size<T>::value;
    __shared__ channel_numbers<float> table[IS_BY_ROWS ? 1 : HELD_CHANNELS];
    const held_piece<T, IS_BY_ROWS> p(a, h);
    const int me = (int)threadIdx.x, own = IS_BY_ROWS ? p.channel : me;
    const bool is_settler = IS_BY_ROWS ? me == 0 : me < a.channels,
               is_first = IS_BY_ROWS ? blockIdx.x % h.sharers == 0 : blockIdx.x == 0;
    int *counters = h.counters + (IS_BY_ROWS ? 2 * p.channel : 0);
    double *space = (double *)(held_memory + operands_held<HOW>() * h.places * blockDim.x), from;
    held_ring<T, operands_held<HOW>(), false, AHEAD, IS_BY_ROWS> ring = {{(const T *)a.operand[X].base}};
    held_moments<T, IS_BY_ROWS> moments;
    channel_vectors vectors = {};
    if constexpr (HOW == RELU_OF_HELD)
        ring.from[1] = (const T *)a.operand[BESIDE].base;
    ring.begin(h, p);
    if (is_settler)
        vectors.fetch(a, s, own);
    if (is_settler && !IS_BY_ROWS)
        vectors.first = (double)widen(((const T *)a.operand[X].base)[p.place_of(h, p.first - threadIdx.x) + me]);
    moments.measure(a, h, p, ring);
    put_part<T, IS_BY_ROWS>(a, h, p, moments, IS_BY_ROWS ? moments.from(0) : vectors.first, space);
    wait_for_sharers(counters, h.sharers);
    const double2 sums = over_sharers<IS_BY_ROWS>(a, h, space, &from);
    leave_sharers(counters, h.sharers);
    if (is_settler)
        settle_channel(a, h, s, own, is_first, vectors, from, sums, &table[IS_BY_ROWS ? 0 : me]);
    __syncthreads();
    channel_numbers<float> numbers[IS_BY_ROWS ? 1 : N];
#pragma unroll
    for (int i = 0; i < (IS_BY_ROWS ? 1 : N); i++)
        numbers[i] = table[IS_BY_ROWS ? 0 : p.channel + i];
    write_piece<T, HOW, IS_BY_ROWS>(a, h, p, ring, numbers);
}

/* ---- starting it ------------------------------------------------------------------------------------------------- */

template <typename T, int HOW>
static void launch_how(const tarn__call *call, const channel_args &a, const set_args &s, const held_args &h)
{
    launch_held(call, a.by_rows ? hold<T, HOW, true> : hold<T, HOW, false>, a, s, h);
}

template <typename T>
static void launch_hold(const tarn__call *call, const channel_args &a, const set_args &s, const held_args &h,
                        bool has_relu, bool holds_both)
{
    if (has_relu && holds_both)
        launch_how<T, RELU_OF_HELD>(call, a, s, h);
    else if (has_relu && a.operand[BESIDE].base)
        launch_how<T, RELU_OF_SUM>(call, a, s, h);
    else if (has_relu)
        launch_how<T, RELU>(call, a, s, h);
    else
        launch_how<T, NO_RELU>(call, a, s, h);
}

/* What is added is held beside x where there is room for all of both; where there is little room even for x, passes are
 * as fast. */
static bool plan_forward(const tarn__call *call, const channel_args &a, held_args *h, bool *holds_both)
{
    *holds_both =
        a.operand[BESIDE].base && plan_held(call, a, 2, 0, AHEAD, h) && h->places * (int64_t)h->threads >= h->piece;
    return *holds_both || (plan_held(call, a, 1, 0, AHEAD, h) &&
                           (!a.operand[BESIDE].base || 4 * h->places * (int64_t)h->threads >= h->piece));
}

size_t tarn__cuda_batchnorm_persistent_scratch(const tarn__call *call, const channel_args &a)
{
    held_args h;
    bool holds_both;
    return plan_forward(call, a, &h, &holds_both) ? part_bytes(a, h) : 0;
}

bool tarn__cuda_batchnorm_persistent(const tarn__call *call, const channel_args &a, const set_args &s, bool has_relu)
{
    held_args h;
    bool holds_both;
    if (!plan_forward(call, a, &h, &holds_both))
        return false;
    h.parts = (double2 *)a.part_one;
    if (a.operand[X].dtype == TARN_F32)
        launch_hold<float>(call, a, s, h, has_relu, holds_both);
    else if (a.operand[X].dtype == TARN_BF16)
        launch_hold<bf16>(call, a, s, h, has_relu, holds_both);
    else
        launch_hold<f16>(call, a, s, h, has_relu, holds_both);
    return true;
}
