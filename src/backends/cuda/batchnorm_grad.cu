/* batchnorm_grad.cu: the gradients of batchnorm and groupnorm.
 *
 *   gx = rstd · (gw - mean(gw) - x̂ · mean(gw · x̂)) with gw = g · weight and x̂ = (x - mean) · rstd, means over a set
 *
 * with fixed statistics without the means. The sums of g and g · x̂ over each channel are the gradients of bias and weight, and from them come
 * the means: one kernel sums chunks, one adds them up, one makes the sets' means, and one writes gx. Bytes: x and g read twice, gx written.
 * With fixed statistics gx needs no sums: the first kernel writes it on its way, or where no sums are wanted the last one, from g alone. Then x and
 * g are read once. */
#include "backends/cuda/channels.cuh"

#define BOTH_AT_ONCE 2 /* packs of x and of g that a thread loads before it computes */

/* ---- chunks ----------------------------------------------------------------------------------------------------------------- */

/* A pack of gx with fixed statistics. */
template <typename R>
__device__ __forceinline__ void store_scaled(const channel_args &a, int64_t offset, const typename R::raw &g, const typename R::real *scale)
{
    typename R::real gx[R::width];
#pragma unroll
    for (int i = 0; i < R::width; i++)
        gx[i] = R::element(g, i) * scale[i];
    R::store(a.operand[TO], offset, 0, gx);
}

template <typename R> static __global__ void __launch_bounds__(THREADS) sum_rows(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    __shared__ double space[WARP];
    const channel_piece p = piece_by_rows(a);
    const row_walk<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    channel_numbers<C> numbers;
    numbers.fetch(a, p.batch, p.channel);
    C scale[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        scale[i] = numbers.scale;
    double sum = 0, product = 0;
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += BOTH_AT_ONCE * step) {
        typename R::raw x[BOTH_AT_ONCE], g[BOTH_AT_ONCE];
        int64_t offset[BOTH_AT_ONCE][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                g[u] = R::fetch(a.operand[G], offset[u][G], 0);
            }
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++) {
            if (at + u * step >= p.end)
                break;
            C ups = 0, products = 0;
#pragma unroll
            for (int i = 0; i < N; i++) {
                C up = R::element(g[u], i);
                ups += up;
                products += up * (numbers.distance(R::element(x[u], i)) * numbers.rstd);
            }
            sum += (double)ups;
            product += (double)products;
            if (a.writes_scaled)
                store_scaled<R>(a, offset[u][TO], g[u], scale);
        }
    }
    sum = over_block<add_up>(sum, space, 0.0);
    product = over_block<add_up>(product, space, 0.0);
    if (threadIdx.x == 0) {
        a.part_one[p.part] = sum;
        a.part_two[p.part] = product;
    }
}

#define GROUP 8 /* positions whose numbers are added in the type computed in before they are in f64 */

/* Positions at, at + rows, ... before the piece's end, GROUP at most, of a thread's N channels. */
template <typename R>
__device__ __forceinline__ void sum_group(const channel_args &a, const channel_piece &p, int64_t at, int rows,
                                          const channel_numbers<typename R::real> *numbers, const typename R::real *scale, double *sums)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    C ups[N] = {}, products[N] = {};
#pragma unroll 1
    for (int part = 0; part < GROUP && at + part * rows < p.end; part += BOTH_AT_ONCE) {
        typename R::raw x[BOTH_AT_ONCE], g[BOTH_AT_ONCE];
        int64_t offset[BOTH_AT_ONCE][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++)
            if (at + (part + u) * rows < p.end) {
                place(a, p, at + (part + u) * rows, offset[u]);
                x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                g[u] = R::fetch(a.operand[G], offset[u][G], 0);
            }
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++) {
            if (at + (part + u) * rows >= p.end)
                break;
#pragma unroll
            for (int i = 0; i < N; i++) {
                C up = R::element(g[u], i);
                ups[i] += up;
                products[i] += up * (numbers[i].distance(R::element(x[u], i)) * numbers[i].rstd);
            }
            if (a.writes_scaled)
                store_scaled<R>(a, offset[u][TO], g[u], scale);
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        sums[i] += (double)ups[i];
        sums[N + i] += (double)products[i];
    }
}

template <typename R> static __global__ void __launch_bounds__(THREADS) sum_columns(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    const channel_piece p = piece_by_columns<N>(a);
    const int row = (int)threadIdx.x / a.across, rows = THREADS / a.across;
    const bool takes_part = p.channel < a.channels;
    double sums[2 * N] = {};
    if (takes_part) {
        channel_numbers<C> numbers[N];
        C scale[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            numbers[i].fetch(a, p.batch, p.channel + i);
            scale[i] = numbers[i].scale;
        }
#pragma unroll 1
        for (int64_t at = p.begin + row; at < p.end; at += GROUP * rows)
            sum_group<R>(a, p, at, rows, numbers, scale, sums);
    }
    over_positions<2 * N>(a, sums);
    if (row != 0 || !takes_part)
        return;
#pragma unroll
    for (int i = 0; i < N; i++) {
        a.part_one[p.part + i] = sums[i];
        a.part_two[p.part + i] = sums[N + i];
    }
}

/* ---- channels and sets ------------------------------------------------------------------------------------------------------ */

struct channel_sums {
    double *sum, *product;      /* (batches, channels) */
    row_operand gweight, gbias; /* base NULL: not wanted */
};

__device__ __forceinline__ void put(const row_operand &to, int64_t channel, double value)
{
    if (to.base)
        store_any(to.base, to.dtype, channel * to.along, value);
}

/* A warp or a block a channel of a batch: adds up its chunks. Where there is one batch these are the gradients of weight and bias. */
template <int LANES> static __global__ void __launch_bounds__(THREADS)
    add_chunks(const __grid_constant__ channel_args a, const __grid_constant__ channel_sums s)
{
    int64_t number = (int64_t)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (number >= a.batches * a.channels)
        return;
    int64_t batch = number / a.channels, channel = number % a.channels;
    double sum = 0, product = 0;
    for (int64_t chunk = threadIdx.x % LANES; chunk < a.chunks; chunk += LANES) {
        int64_t at = (batch * a.chunks + chunk) * a.channels + channel;
        sum += a.part_one[at];
        product += a.part_two[at];
    }
    sum = over_warp<add_up>(sum);
    product = over_warp<add_up>(product);
    if (LANES > WARP) {
        __shared__ double of_warp[LANES / WARP][2];
        if (threadIdx.x % WARP == 0)
            of_warp[threadIdx.x / WARP][0] = sum, of_warp[threadIdx.x / WARP][1] = product;
        __syncthreads();
        sum = product = 0;
        for (int i = 0; i < LANES / WARP; i++)
            sum += of_warp[i][0], product += of_warp[i][1];
    }
    if (threadIdx.x % LANES != 0)
        return;
    s.sum[number] = sum;
    s.product[number] = product;
    if (a.batches == 1) {
        put(s.gweight, channel, product);
        put(s.gbias, channel, sum);
    }
}

/* A thread a channel: its gradients from those of all batches. */
static __global__ void __launch_bounds__(THREADS)
    add_batches(const __grid_constant__ channel_args a, const __grid_constant__ channel_sums s)
{
    int64_t channel = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (channel >= a.channels)
        return;
    double sum = 0, product = 0;
    for (int64_t batch = 0; batch < a.batches; batch++) {
        sum += s.sum[batch * a.channels + channel];
        product += s.product[batch * a.channels + channel];
    }
    put(s.gweight, channel, product);
    put(s.gbias, channel, sum);
}

/* A warp a set: rstd times the means of gw and gw · x̂. */
static __global__ void __launch_bounds__(WARP * WARPS_A_BLOCK)
    average(const __grid_constant__ channel_args a, const __grid_constant__ channel_sums s)
{
    int64_t set = (int64_t)blockIdx.x * WARPS_A_BLOCK + threadIdx.x / WARP;
    if (set >= a.batches * a.groups)
        return;
    int64_t batch = set / a.groups, group = set % a.groups;
    double sum = 0, product = 0;
    for (int64_t member = threadIdx.x % WARP; member < a.members; member += WARP) {
        int64_t channel = group * a.members + member;
        double weight = a.weight.base ? load_any<double>(a.weight.base, a.weight.dtype, channel * a.weight.along) : 1.0;
        sum += weight * s.sum[batch * a.channels + channel];
        product += weight * s.product[batch * a.channels + channel];
    }
    sum = over_warp<add_up>(sum);
    product = over_warp<add_up>(product);
    if (threadIdx.x % WARP == 0) {
        a.first[set] = a.rstd[set] * sum / a.values;
        a.second[set] = a.rstd[set] * product / a.values;
    }
}

/* ---- the gradient of x ------------------------------------------------------------------------------------------------------ */

/* Packs at the offsets, all loaded before the first is stored: the compiler cannot know that they lie apart. `numbers` are those of element i of a
 * pack, or the same for all. */
template <typename R, bool IS_BY_ROWS>
__device__ __forceinline__ void grad_packs(const channel_args &a, int packs, const int64_t (*offset)[CHANNEL_OPERANDS],
                                           const channel_numbers<typename R::real> *numbers)
{
    typedef typename R::real C;
    typename R::raw x[BOTH_AT_ONCE], g[BOTH_AT_ONCE];
#pragma unroll
    for (int u = 0; u < BOTH_AT_ONCE; u++)
        if (u < packs) {
            g[u] = R::fetch(a.operand[G], offset[u][G], 0);
            if (a.first)
                x[u] = R::fetch(a.operand[X], offset[u][X], 0);
        }
#pragma unroll
    for (int u = 0; u < BOTH_AT_ONCE; u++) {
        if (u >= packs)
            break;
        C gx[R::width];
#pragma unroll
        for (int i = 0; i < R::width; i++) {
            const channel_numbers<C> &n = numbers[IS_BY_ROWS ? 0 : i];
            gx[i] = R::element(g[u], i) * n.scale;
            if (a.first)
                gx[i] = gx[i] - n.first - n.distance(R::element(x[u], i)) * n.rstd * n.second;
        }
        R::store(a.operand[TO], offset[u][TO], 0, gx);
    }
}

template <typename R> static __global__ void __launch_bounds__(THREADS) grad_rows(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    const channel_piece p = piece_by_rows(a);
    const row_walk<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    channel_numbers<typename R::real> numbers;
    numbers.fetch(a, p.batch, p.channel);
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += BOTH_AT_ONCE * step) {
        int64_t offset[BOTH_AT_ONCE][CHANNEL_OPERANDS];
        int packs = 0;
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                packs++;
            }
        grad_packs<R, true>(a, packs, offset, &numbers);
    }
}

template <typename R> static __global__ void __launch_bounds__(THREADS) grad_columns(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    const channel_piece p = piece_by_columns<N>(a);
    const int row = (int)threadIdx.x / a.across, rows = THREADS / a.across;
    if (p.channel >= a.channels)
        return;
    channel_numbers<typename R::real> numbers[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        numbers[i].fetch(a, p.batch, p.channel + i);
    for (int64_t at = p.begin + row; at < p.end; at += BOTH_AT_ONCE * rows) {
        int64_t offset[BOTH_AT_ONCE][CHANNEL_OPERANDS];
        int packs = 0;
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++)
            if (at + u * rows < p.end) {
                place(a, p, at + u * rows, offset[u]);
                packs++;
            }
        grad_packs<R, false>(a, packs, offset, numbers);
    }
}

/* ---- starting them ---------------------------------------------------------------------------------------------------------- */

/* Scratch: two sums of each channel of each batch, two numbers of each set, then what chunks give. */
static channel_args describe(const tarn__call *call, bool with_batches, int64_t groups, channel_sums *s)
{
    channel_args a = channels_of(with_batches, groups, call->in[0], call->out[0], call->in[4]);
    choose_chunks(&a);
    a.weight = vector_of(call->in[1]);
    a.bias = vector_of(NULL);
    a.mean = data_of<double>(call->in[2]);
    a.rstd = data_of<double>(call->in[3]);
    *s = channel_sums{(double *)call->scratch, (double *)call->scratch + a.batches * a.channels, vector_of(call->out[1]),
                      vector_of(call->out[2])};
    a.part_one = s->product + a.batches * a.channels + 2 * a.batches * a.groups;
    a.part_two = a.part_one + partial_count(a);
    return a;
}

static size_t scratch_bytes(const channel_args &a)
{
    return sizeof(double) * (size_t)(2 * a.batches * a.channels + 2 * a.batches * a.groups + 2 * partial_count(a));
}

static void backward(const tarn__call *call, channel_args &a, const channel_sums &s, bool has_own_statistics)
{
    const bool has_sums = has_own_statistics || s.gweight.base || s.gbias.base;
    if (has_sums) {
        a.writes_scaled = !has_own_statistics && call->out[0];
        LAUNCH(sum_rows, sum_columns, call, a);
        if (a.batches * a.channels > 0 && a.chunks > FOR_A_WARP)
            add_chunks<THREADS><<<(unsigned)(a.batches * a.channels), THREADS, 0, stream_of(call)>>>(a, s);
        else if (a.batches * a.channels > 0)
            add_chunks<WARP><<<warp_blocks(a.batches * a.channels), WARP * WARPS_A_BLOCK, 0, stream_of(call)>>>(a, s);
        if (a.batches != 1 && a.channels > 0 && (s.gweight.base || s.gbias.base))
            add_batches<<<blocks_for(a.channels, THREADS), THREADS, 0, stream_of(call)>>>(a, s);
    }
    if (!call->out[0] || a.writes_scaled || a.count == 0 || a.batches * a.groups == 0)
        return;
    if (has_own_statistics) {
        a.first = s.product + a.batches * a.channels;
        a.second = a.first + a.batches * a.groups;
        average<<<warp_blocks(a.batches * a.groups), WARP * WARPS_A_BLOCK, 0, stream_of(call)>>>(a, s);
    }
    a.from_end = has_sums;
    LAUNCH(grad_rows, grad_columns, call, a);
}

static void run_batchnorm_grad(const tarn__call *call)
{
    channel_sums s;
    channel_args a = describe(call, false, 0, &s);
    backward(call, a, s, ((const tarn__batchnorm *)call->params)->training != 0);
}

static size_t scratch_batchnorm_grad(const tarn__call *call)
{
    channel_sums s;
    return scratch_bytes(describe(call, false, 0, &s));
}

static void run_groupnorm_grad(const tarn__call *call)
{
    channel_sums s;
    channel_args a = describe(call, true, ((const tarn__groupnorm *)call->params)->groups, &s);
    backward(call, a, s, true);
}

static size_t scratch_groupnorm_grad(const tarn__call *call)
{
    channel_sums s;
    return scratch_bytes(describe(call, true, ((const tarn__groupnorm *)call->params)->groups, &s));
}

void tarn__cuda_batchnorm_grad(tarn__kernel_row *rows)
{
    rows[TARN__K_batchnorm_grad] = tarn__kernel_row{run_batchnorm_grad, TARN__FLOATS, scratch_batchnorm_grad};
    rows[TARN__K_groupnorm_grad] = tarn__kernel_row{run_groupnorm_grad, TARN__FLOATS, scratch_groupnorm_grad};
}
