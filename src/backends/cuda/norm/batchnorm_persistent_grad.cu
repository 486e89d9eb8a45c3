/* batchnorm_persistent_grad.cu: the gradients of batchnorm with its own statistics, and with relu, in one kernel (see
 * channel_persistent.cuh).
 *
 * Bytes: x and g read once as far as they are held, gx written. Where relu's result is read, that is, too, and what
 * goes through is written: it then takes the place of g. */
#include "backends/cuda/norm/batchnorm_grad.cuh"
#include "backends/cuda/norm/channel_persistent.cuh"

#define AHEAD 4 /* packs of a thread's operands under way */
#define AGAIN 2 /* packs of a thread's operands that are read again at a time */

/* Sums of a thread's g and g · x̂, as far as relu lets g through: by columns of N channels. */
template <typename T, int RELU, bool IS_BY_ROWS> struct held_sums {
    typedef typed<T, pack_size<T>::value> R;
    static constexpr int N = R::width, CHANNELS = IS_BY_ROWS ? 1 : N;
    double v[2 * CHANNELS];

    template <typename Ring>
    __device__ __forceinline__ void add(const channel_args &a, const held_args &h, const held_piece<T, IS_BY_ROWS> &p,
                                        Ring &ring, const channel_numbers<float> *numbers, const relu_gate<float> &gate)
    {
#pragma unroll
        for (int k = 0; k < 2 * CHANNELS; k++)
            v[k] = 0;
#pragma unroll 1
        for (int begin = 0; begin < p.turns; begin += HELD_GROUP) {
            float ups[CHANNELS] = {}, products[CHANNELS] = {};
            const int end = p.turns - begin < HELD_GROUP ? p.turns : begin + HELD_GROUP;
#pragma unroll 1
            for (int turn = begin; turn < end; turn++)
                add_pack(a, h, p, ring, numbers, gate, turn, ups, products);
#pragma unroll
            for (int i = 0; i < CHANNELS; i++) {
                v[i] += (double)ups[i];
                v[CHANNELS + i] += (double)products[i];
            }
        }
    }
    template <typename Ring>
    __device__ __forceinline__ void
    add_pack(const channel_args &a, const held_args &h, const held_piece<T, IS_BY_ROWS> &p, Ring &ring,
             const channel_numbers<float> *numbers, const relu_gate<float> &gate, int turn, float *ups, float *products)
    {
        float up[N];
        ring.take(h);
        uint4 *g_at = ring.at(ring.taken_at, 1);
        const typename R::raw x = pack_at<T>(ring.at(ring.taken_at, 0)), g = pack_at<T>(g_at);
        typename R::raw y;
        if (RELU == RELU_READ)
            y = pack_at<T>(ring.more_at(h, turn));
        let_through<R, RELU != NO_RELU, IS_BY_ROWS>(numbers, gate, x, y, g, up);
        if (RELU == RELU_READ) {
            R::store(a.operand[PASSED], p.offset(h, turn), 0, up);
            typename R::raw passed;
            narrow_pack(passed, up);
            memcpy(g_at, &passed, sizeof(passed));
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const channel_numbers<float> &n = numbers[IS_BY_ROWS ? 0 : i];
            ups[IS_BY_ROWS ? 0 : i] += up[i];
            products[IS_BY_ROWS ? 0 : i] += up[i] * (n.distance(R::element(x, i)) * n.rstd);
        }
        ring.ask(h, p);
    }
};

/* The block's part: by rows by thread 0, by columns by thread c that of channel c. */
template <int N, bool IS_BY_ROWS>
__device__ __forceinline__ void put_part(const channel_args &a, const held_args &h, double *v, double *space)
{
    const int me = (int)threadIdx.x;
    if constexpr (IS_BY_ROWS) {
        __shared__ double of_warps[WARP];
        const double sum = over_block<add_up>(v[0], of_warps, 0.0), product = over_block<add_up>(v[1], of_warps, 0.0);
        if (me == 0)
            h.parts[blockIdx.x] = double2{sum, product};
    } else {
        const double2 sums = over_columns<N>(h, v, space);
        if (me < a.channels)
            h.parts[blockIdx.x * a.channels + me] = sums;
    }
}

/* The sums of a channel over all blocks that share it: by rows in every lane of a warp, by columns in thread c of
 * channel c. */
template <bool IS_BY_ROWS>
__device__ __forceinline__ double2 over_sharers(const channel_args &a, const held_args &h, double *space)
{
    const int me = (int)threadIdx.x, channels = (int)a.channels;
    double2 sums = {0, 0};
    auto take = [&](const double2 &part, int) {
        sums.x += part.x;
        sums.y += part.y;
    };
    if constexpr (IS_BY_ROWS) {
        for_parts(h, h.parts + blockIdx.x / h.sharers * h.sharers, 1, me % WARP, WARP, take);
        return double2{over_warp<add_up>(sums.x), over_warp<add_up>(sums.y)};
    } else {
        for_parts(h, h.parts + (me & (channels - 1)), channels, me / channels, COLUMN_THREADS / channels, take);
        return over_rows_of_threads(sums, channels, (double2 *)space);
    }
}

/* A channel's means from its sums, by the thread that has them; `share` is rstd · weight / elements. `is_first` in one
 * of the blocks that share it, which writes the gradients of weight and bias. */
__device__ __forceinline__ void settle_channel(const channel_sums &s, int channel, bool is_first, double rstd,
                                               double share, double2 sums, channel_numbers<float> *numbers)
{
    numbers->first = (float)(share * sums.x);
    numbers->second = (float)(rstd * (share * sums.y));
    if (is_first) {
        put(s.gweight, channel, sums.y);
        put(s.gbias, channel, sums.x);
    }
}

template <typename T, int RELU, bool IS_BY_ROWS>
__device__ __forceinline__ void write_pack(const channel_args &a, const channel_numbers<float> *numbers,
                                           const relu_gate<float> &gate, int64_t offset,
                                           const pack<T, pack_size<T>::value> &x, const pack<T, pack_size<T>::value> &g)
{
    typedef typed<T, pack_size<T>::value> R;
    float up[R::width];
    let_through<R, RELU == RELU_REMADE, IS_BY_ROWS>(numbers, gate, x, x, g, up);
#pragma unroll
    for (int i = 0; i < R::width; i++) {
        const channel_numbers<float> &n = numbers[IS_BY_ROWS ? 0 : i];
        up[i] = up[i] * n.scale - n.first - n.distance(R::element(x, i)) * n.second;
    }
    R::store(a.operand[TO], offset, 0, up);
}

/* The gradient of x, from the last pack to the first: those that are read again are on their way while others are
 * written from shared memory. */
template <typename T, int RELU, bool IS_BY_ROWS, typename Ring>
__device__ __forceinline__ void write_piece(const channel_args &a, const held_args &h,
                                            const held_piece<T, IS_BY_ROWS> &p, Ring &ring,
                                            const channel_numbers<float> *numbers, const relu_gate<float> &gate)
{
    typedef typed<T, pack_size<T>::value> R;
    const row_operand &from = a.operand[RELU == RELU_READ ? PASSED : G];
    const int left = p.turns > h.places ? p.turns - h.places : 0;
#pragma unroll 1
    for (int again = left - 1, held = p.turns - 1; again >= 0 || held >= left; again -= AGAIN, held -= AGAIN) {
        typename R::raw x[AGAIN], g[AGAIN];
#pragma unroll
        for (int u = 0; u < AGAIN; u++)
            if (again - u >= 0) {
                x[u] = R::fetch(a.operand[X], p.offset(h, again - u), 0);
                g[u] = R::fetch(from, p.offset(h, again - u), 0);
            }
#pragma unroll
        for (int u = 0; u < AGAIN; u++)
            if (held - u >= left) {
                write_pack<T, RELU, IS_BY_ROWS>(a, numbers, gate, p.offset(h, held - u),
                                                pack_at<T>(ring.at(ring.taken_at, 0)),
                                                pack_at<T>(ring.at(ring.taken_at, 1)));
                ring.back(h);
            }
#pragma unroll
        for (int u = 0; u < AGAIN; u++)
            if (again - u >= 0)
                write_pack<T, RELU, IS_BY_ROWS>(a, numbers, gate, p.offset(h, again - u), x[u], g[u]);
    }
}

template <typename T, int RELU, bool IS_BY_ROWS>
static __global__ void __launch_bounds__(COLUMN_THREADS, 1)
    hold_grad(const __grid_constant__ channel_args a, const __grid_constant__ channel_sums s,
              const __grid_constant__ held_args h)
{
    constexpr int N = pack_size<T>::value, CHANNELS = IS_BY_ROWS ? 1 : N;
    __shared__ channel_numbers<float> table[IS_BY_ROWS ? 1 : HELD_CHANNELS];
    const held_piece<T, IS_BY_ROWS> p(a, h);
    const int me = (int)threadIdx.x, own = IS_BY_ROWS ? p.channel : me;
    const bool is_settler = IS_BY_ROWS ? me == 0 : me < a.channels,
               is_first = IS_BY_ROWS ? blockIdx.x % h.sharers == 0 : blockIdx.x == 0;
    const relu_gate<float> gate = {RELU == RELU_REMADE, (float)a.least};
    int *counters = h.counters + (IS_BY_ROWS ? 2 * p.channel : 0);
    double *space = (double *)(held_memory + (2 * h.places + (RELU == RELU_READ ? AHEAD : 0)) * blockDim.x);
    held_ring<T, 2, RELU == RELU_READ, AHEAD, IS_BY_ROWS> ring = {
        {(const T *)a.operand[X].base, (const T *)a.operand[G].base}};
    held_sums<T, RELU, IS_BY_ROWS> sums;
    channel_numbers<float> numbers[CHANNELS];
    if constexpr (RELU == RELU_READ)
        ring.from[2] = (const T *)a.operand[BESIDE].base;
    ring.begin(h, p);
    double rstd = 0, share = 0;
    if (is_settler) {
        table[IS_BY_ROWS ? 0 : me].fetch(a, 0, own);
        rstd = a.rstd[own];
        share = rstd * weight_of(a, own) * h.inverse_of_all;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < CHANNELS; i++)
        numbers[i] = table[IS_BY_ROWS ? 0 : p.channel + i];
    sums.add(a, h, p, ring, numbers, gate);
    put_part<N, IS_BY_ROWS>(a, h, sums.v, space);
    wait_for_sharers(counters, h.sharers);
    const double2 all = over_sharers<IS_BY_ROWS>(a, h, space);
    leave_sharers(counters, h.sharers);
    if (is_settler)
        settle_channel(s, own, is_first, rstd, share, all, &table[IS_BY_ROWS ? 0 : me]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < CHANNELS; i++)
        numbers[i] = table[IS_BY_ROWS ? 0 : p.channel + i];
    write_piece<T, RELU, IS_BY_ROWS>(a, h, p, ring, numbers, gate);
}

/* ---- starting it ------------------------------------------------------------------------------------------------- */

template <typename T, int RELU>
static void launch_relu(const tarn__call *call, const channel_args &a, const channel_sums &s, const held_args &h)
{
    launch_held(call, a.by_rows ? hold_grad<T, RELU, true> : hold_grad<T, RELU, false>, a, s, h);
}

template <typename T>
static void launch_hold(const tarn__call *call, const channel_args &a, const channel_sums &s, const held_args &h)
{
    if (a.operand[BESIDE].base)
        launch_relu<T, RELU_READ>(call, a, s, h);
    else if (a.is_remade)
        launch_relu<T, RELU_REMADE>(call, a, s, h);
    else
        launch_relu<T, NO_RELU>(call, a, s, h);
}

/* Where relu's result is read, what goes through must have somewhere to go. */
static bool plan_grad(const tarn__call *call, const channel_args &a, held_args *h)
{
    const bool is_read = a.operand[BESIDE].base;
    return a.operand[TO].base && is_read == (a.operand[PASSED].base != NULL) &&
           plan_held(call, a, 2, is_read ? 1 : 0, AHEAD, h);
}

size_t tarn__cuda_batchnorm_persistent_grad_scratch(const tarn__call *call, const channel_args &a)
{
    held_args h;
    return plan_grad(call, a, &h) ? part_bytes(a, h) : 0;
}

bool tarn__cuda_batchnorm_persistent_grad(const tarn__call *call, const channel_args &a, const channel_sums &s)
{
    held_args h;
    if (!plan_grad(call, a, &h))
        return false;
    h.parts = (double2 *)a.part_one;
    if (a.operand[X].dtype == TARN_F32)
        launch_hold<float>(call, a, s, h);
    else if (a.operand[X].dtype == TARN_BF16)
        launch_hold<bf16>(call, a, s, h);
    else
        launch_hold<f16>(call, a, s, h);
    return true;
}
