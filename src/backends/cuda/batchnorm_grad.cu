/* batchnorm_grad.cu: the gradients of batchnorm, batchnorm with relu, and groupnorm.
 *
 *   gx = rstd · (gw - mean(gw) - x̂ · mean(gw · x̂)) with gw = g · weight and x̂ = (x - mean) · rstd, means over a set
 *
 * with fixed statistics without the means. The sums of g and g · x̂ over each channel are the gradients of bias and weight, and from them come
 * the means: one kernel sums chunks, one adds them up, one makes the sets' means (for batchnorm that before it does), and one writes gx. Bytes: x and g read twice, gx written.
 * With fixed statistics gx needs no sums: the first kernel writes it on its way, or where no sums are wanted the last one, from g alone. Then x and
 * g are read once.
 *
 * relu lets g through where its result is above 0. Where nothing was added before it that result is made again from x: no byte more is moved. Else
 * it is read: the kernel of sums then writes what goes through, the gradient of what was added, and gx is made from that. Bytes: x, y and g read, that
 * written; it and x read, gx written. */
#include "backends/cuda/channels_last.cuh"

#define BOTH_AT_ONCE 2 /* packs of x and of g that a thread loads before it computes, by rows */

/* ---- chunks ----------------------------------------------------------------------------------------------------------------- */

/* By columns a kernel knows where relu's result comes from: registers would not do for both. */
enum { NO_RELU, RELU_REMADE, RELU_READ };

/* relu's result is made again from x, and is above 0 where it is above `least`; or it is read. */
template <typename C> struct relu_gate {
    bool is_remade;
    C least;
};

/* A pack of g, as far as relu lets it through; `numbers` are those of element i of the pack, or the same for all. */
template <typename R, bool HAS_RELU, bool IS_BY_ROWS>
__device__ __forceinline__ void let_through(const channel_numbers<typename R::real> *numbers, const relu_gate<typename R::real> &gate,
                                            const typename R::raw &x, const typename R::raw &y, const typename R::raw &g, typename R::real *up)
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

template <typename R, bool HAS_RELU> static __global__ void __launch_bounds__(THREADS) sum_rows(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    __shared__ double space[WARP];
    const channel_piece p = piece_by_rows(a);
    const row_walk<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    const relu_gate<C> gate = {a.is_remade, (C)a.least};
    channel_numbers<C> numbers;
    numbers.fetch(a, p.batch, p.channel);
    double sum = 0, product = 0;
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += BOTH_AT_ONCE * step) {
        typename R::raw x[BOTH_AT_ONCE], g[BOTH_AT_ONCE], y[BOTH_AT_ONCE];
        int64_t offset[BOTH_AT_ONCE][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                g[u] = R::fetch(a.operand[G], offset[u][G], 0);
                if (HAS_RELU && !a.is_remade)
                    y[u] = R::fetch(a.operand[BESIDE], offset[u][BESIDE], 0);
            }
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++) {
            if (at + u * step >= p.end)
                break;
            C up[N], ups = 0, products = 0;
            let_through<R, HAS_RELU, true>(&numbers, gate, x[u], y[u], g[u], up);
#pragma unroll
            for (int i = 0; i < N; i++) {
                ups += up[i];
                products += up[i] * (numbers.distance(R::element(x[u], i)) * numbers.rstd);
            }
            sum += (double)ups;
            product += (double)products;
            if (a.writes_scaled)
                store_scaled<R, true>(a, offset[u][TO], up, &numbers);
            if (HAS_RELU && a.operand[PASSED].base)
                R::store(a.operand[PASSED], offset[u][PASSED], 0, up);
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

template <typename C, int RELU> __device__ __forceinline__ relu_gate<C> gate_by_columns(const channel_args &a)
{
    return relu_gate<C>{RELU == RELU_REMADE, RELU == RELU_REMADE ? kept((C)a.least) : (C)0};
}

/* Packs of x, g and, where relu's result is read, of that. */
template <typename R, int RELU> struct packs_at_once {
    static constexpr int DEPTH = at_once<R>(RELU == RELU_READ ? 3 : 2);
    typename R::raw x[DEPTH], g[DEPTH], y[DEPTH];

    /* From number `begin` of the thread's positions on; x only where it is wanted. */
    __device__ __forceinline__ void fetch(const channel_args &a, const channel_piece &p, const column_walk<R> &walk, int begin, bool wants_x)
    {
#pragma unroll
        for (int u = 0; u < DEPTH; u++)
            if (begin + u < walk.count) {
                const position<R> at = walk.at(a, p, begin + u);
                g[u] = R::fetch(a.operand[G], at.in(G), 0);
                if (wants_x)
                    x[u] = R::fetch(a.operand[X], at.in(X), 0);
                if (RELU == RELU_READ)
                    y[u] = R::fetch(a.operand[BESIDE], at.in(BESIDE), 0);
            }
    }
};

/* Adds the sums of a group to the thread's in `space`, and begins anew. */
template <int N, typename C> __device__ __forceinline__ void put_away(C *ups, C *products, double (*space)[THREADS])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        space[i][threadIdx.x] += (double)ups[i];
        space[N + i][threadIdx.x] += (double)products[i];
        ups[i] = products[i] = 0;
    }
}

/* The first packs are on their way while the channels' numbers are made. */
template <typename R, int RELU>
static __global__ void __launch_bounds__(THREADS, BLOCKS_BY(R)) sum_columns(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width, DEPTH = packs_at_once<R, RELU>::DEPTH;
    const channel_piece p = piece_by_columns<N>(a);
    const column_walk<R> walk(a, p);
    const int me = (int)threadIdx.x;
    __shared__ double space[2 * N][THREADS];
    __shared__ channel_numbers<C> table[WARP * N];
    const relu_gate<C> gate = gate_by_columns<C, RELU>(a);
    channel_numbers<C> numbers[N];
    packs_at_once<R, RELU> packs;
    C ups[N] = {}, products[N] = {};
#pragma unroll
    for (int k = 0; k < 2 * N; k++)
        space[k][me] = 0;
#pragma unroll 1
    for (int begin = 0; begin == 0 || begin < walk.count; begin += DEPTH) {
        packs.fetch(a, p, walk, begin, true);
        if (begin == 0)
            fetch_numbers<R>(a, p, table, numbers);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (begin + u >= walk.count)
                break;
            C up[N];
            let_through<R, RELU != NO_RELU, false>(numbers, gate, packs.x[u], packs.y[u], packs.g[u], up);
#pragma unroll
            for (int i = 0; i < N; i++) {
                ups[i] += up[i];
                products[i] += up[i] * (numbers[i].distance(R::element(packs.x[u], i)) * numbers[i].rstd);
            }
            if (a.writes_scaled)
                store_scaled<R, false>(a, walk.at(a, p, begin + u).in(TO), up, numbers);
            if (RELU == RELU_READ && a.operand[PASSED].base)
                R::store(a.operand[PASSED], walk.at(a, p, begin + u).in(PASSED), 0, up);
        }
        if ((begin + DEPTH) % GROUP == 0 || begin + DEPTH >= walk.count)
            put_away<N>(ups, products, space);
        leave_in_memory();
    }
    over_warps<2 * N>(a, space);
    if (me >= a.across * N || p.tile + me >= a.channels)
        return;
    a.part_one[p.part + me] = over_tile(space[me % N], me / N);
    a.part_two[p.part + me] = over_tile(space[N + me % N], me / N);
}

/* ---- channels and sets ------------------------------------------------------------------------------------------------------ */

struct channel_sums {
    double *sum, *product;      /* (batches, channels) */
    row_operand gweight, gbias; /* base NULL: not wanted */
    double *first, *second;     /* where a set is a channel: its means times rstd, made from its sums at once; else NULL */
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

/* A warp or a block a channel of a batch: adds up its chunks. Where there is one batch these are the gradients of weight and bias. */
template <int LANES> static __global__ void __launch_bounds__(THREADS)
    add_chunks(const __grid_constant__ channel_args a, const __grid_constant__ channel_sums s)
{
    int64_t number = (int64_t)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (number >= a.batches * a.channels)
        return;
    int64_t channel = number, batch = batch_digit(a, channel, a.channels);
    double sum = 0, product = 0, factor = s.first ? a.rstd[number] * weight_of(a, channel) : 0;
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
    if (s.first) {
        s.first[number] = factor * sum / a.values;
        s.second[number] = factor * product / a.values;
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
        double weight = weight_of(a, channel);
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

/* A pack of gx and of what goes through relu, as far as they are wanted. `numbers` are those of element i of the pack, or the same for all. */
template <typename R, bool HAS_RELU, bool IS_BY_ROWS>
__device__ __forceinline__ void store_grads(const channel_args &a, const relu_gate<typename R::real> &gate, int64_t to, int64_t to_passed,
                                            const typename R::raw &x, const typename R::raw &y, const typename R::raw &g,
                                            const channel_numbers<typename R::real> *numbers)
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

/* All is loaded before the first result is stored: the compiler cannot know that they lie apart. */
template <typename R, bool HAS_RELU> static __global__ void __launch_bounds__(THREADS) grad_rows(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    const channel_piece p = piece_by_rows(a);
    const row_walk<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    const relu_gate<typename R::real> gate = {a.is_remade, (typename R::real)a.least};
    channel_numbers<typename R::real> numbers;
    numbers.fetch(a, p.batch, p.channel);
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += BOTH_AT_ONCE * step) {
        typename R::raw x[BOTH_AT_ONCE], g[BOTH_AT_ONCE], y[BOTH_AT_ONCE];
        int64_t offset[BOTH_AT_ONCE][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                g[u] = R::fetch(a.operand[G], offset[u][G], 0);
                if (a.first || (HAS_RELU && a.is_remade))
                    x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                if (HAS_RELU && !a.is_remade)
                    y[u] = R::fetch(a.operand[BESIDE], offset[u][BESIDE], 0);
            }
#pragma unroll
        for (int u = 0; u < BOTH_AT_ONCE; u++)
            if (at + u * step < p.end)
                store_grads<R, HAS_RELU, true>(a, gate, offset[u][TO], offset[u][PASSED], x[u], y[u], g[u], &numbers);
    }
}

/* Likewise; the first packs are on their way while the channels' numbers are made. */
template <typename R, int RELU>
static __global__ void __launch_bounds__(THREADS, BLOCKS_BY(R)) grad_columns(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width, DEPTH = packs_at_once<R, RELU>::DEPTH;
    const channel_piece p = piece_by_columns<N>(a);
    const column_walk<R> walk(a, p);
    const bool wants_x = a.first || RELU == RELU_REMADE;
    __shared__ channel_numbers<typename R::real> table[WARP * N];
    const relu_gate<typename R::real> gate = gate_by_columns<typename R::real, RELU>(a);
    channel_numbers<typename R::real> numbers[N];
    packs_at_once<R, RELU> packs;
#pragma unroll 1
    for (int begin = 0; begin == 0 || begin < walk.count; begin += DEPTH) {
        packs.fetch(a, p, walk, begin, wants_x);
        if (begin == 0)
            fetch_numbers<R>(a, p, table, numbers);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (begin + u >= walk.count)
                break;
            const position<R> at = walk.at(a, p, begin + u);
            store_grads<R, RELU != NO_RELU, false>(a, gate, at.in(TO), at.in(PASSED), packs.x[u], packs.y[u], packs.g[u], numbers);
        }
    }
}

/* ---- starting them ---------------------------------------------------------------------------------------------------------- */

/* What is not above this is 0 when it is rounded to the dtype. */
static double half_of_the_least(tarn_dtype dtype)
{
    return dtype == TARN_F16 ? 0x1p-25 : dtype == TARN_BF16 ? 0x1p-134 : dtype == TARN_F32 ? 0x1p-150 : 0;
}

/* Scratch: two sums of each channel of each batch, two numbers of each set, then what chunks give. */
static channel_args describe(const tarn__call *call, bool with_batches, int64_t groups, channel_sums *s)
{
    const bool has_relu = call->inputs > 5;
    const tarn__view *given[CHANNEL_OPERANDS] = {call->in[0], call->out[0], call->in[4]};
    if (has_relu) {
        given[BESIDE] = call->in[6];
        given[PASSED] = call->out[3];
    }
    channel_args a = channels_of(with_batches, groups, given);
    choose_chunks(&a);
    a.is_remade = has_relu && !call->in[6];
    a.least = half_of_the_least(call->in[0]->dtype);
    a.weight = vector_of(call->in[1]);
    a.bias = vector_of(has_relu ? call->in[5] : NULL);
    a.mean = data_of<double>(call->in[2]);
    a.rstd = data_of<double>(call->in[3]);
    *s = channel_sums{(double *)call->scratch, (double *)call->scratch + a.batches * a.channels, vector_of(call->out[1]),
                      vector_of(call->out[2]), NULL, NULL};
    a.part_one = s->product + a.batches * a.channels + 2 * a.batches * a.groups;
    a.part_two = a.part_one + partial_count(a);
    return a;
}

static size_t scratch_bytes(const channel_args &a)
{
    return sizeof(double) * (size_t)(2 * a.batches * a.channels + 2 * a.batches * a.groups + 2 * partial_count(a));
}

/* The kernel of sums has written what goes through relu: from here on that is g, where it is as exact. */
static bool take_passed(channel_args *a)
{
    const bool is_exact = a->operand[PASSED].dtype == a->operand[G].dtype;
    if (is_exact) {
        a->operand[G] = a->operand[PASSED];
        a->channel_stride[G] = a->channel_stride[PASSED];
        a->batch_stride[G] = a->batch_stride[PASSED];
        for (int i = 0; i < a->at.rank; i++)
            a->at.stride[G][i] = a->at.stride[PASSED][i];
        a->operand[BESIDE].base = NULL;
    }
    a->operand[PASSED].base = NULL;
    return is_exact;
}

static void sum_up(const tarn__call *call, const channel_args &a, const channel_sums &s, bool has_relu)
{
    if (has_relu && a.is_remade)
        LAUNCH(sum_rows, sum_columns, RELU_REMADE, call, a);
    else if (has_relu)
        LAUNCH(sum_rows, sum_columns, RELU_READ, call, a);
    else
        LAUNCH(sum_rows, sum_columns, NO_RELU, call, a);
    if (a.batches * a.channels > 0 && a.chunks > FOR_A_WARP)
        add_chunks<THREADS><<<(unsigned)(a.batches * a.channels), THREADS, 0, stream_of(call)>>>(a, s);
    else if (a.batches * a.channels > 0)
        add_chunks<WARP><<<warp_blocks(a.batches * a.channels), WARP * WARPS_A_BLOCK, 0, stream_of(call)>>>(a, s);
    if (a.batches != 1 && a.channels > 0 && (s.gweight.base || s.gbias.base))
        add_batches<<<blocks_for(a.channels, THREADS), THREADS, 0, stream_of(call)>>>(a, s);
}

static void backward(const tarn__call *call, channel_args &a, channel_sums &s, bool has_own_statistics)
{
    const bool has_sums = has_own_statistics || s.gweight.base || s.gbias.base;
    double *means = s.product + a.batches * a.channels;
    bool has_relu = call->inputs > 5;
    if (has_sums) {
        if (has_own_statistics && a.batches * a.members == 1)
            s.first = means, s.second = means + a.groups;
        a.writes_scaled = !has_own_statistics && call->out[0];
        sum_up(call, a, s, has_relu);
        if (has_relu && a.operand[PASSED].base)
            has_relu = !take_passed(&a);
    }
    const bool wants_gx = call->out[0] && !a.writes_scaled, wants_passed = has_relu && a.operand[PASSED].base;
    if (!(wants_gx || wants_passed) || a.count == 0 || a.batches * a.groups == 0)
        return;
    if (has_own_statistics) {
        a.first = means;
        a.second = means + a.batches * a.groups;
        if (!s.first)
            average<<<warp_blocks(a.batches * a.groups), WARP * WARPS_A_BLOCK, 0, stream_of(call)>>>(a, s);
    }
    a.from_end = has_sums;
    if (has_relu && a.is_remade)
        LAUNCH(grad_rows, grad_columns, RELU_REMADE, call, a);
    else if (has_relu)
        LAUNCH(grad_rows, grad_columns, RELU_READ, call, a);
    else
        LAUNCH(grad_rows, grad_columns, NO_RELU, call, a);
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
    rows[TARN__K_batchnorm_relu_grad] = tarn__kernel_row{run_batchnorm_grad, TARN__FLOATS, scratch_batchnorm_grad};
    rows[TARN__K_groupnorm_grad] = tarn__kernel_row{run_groupnorm_grad, TARN__FLOATS, scratch_groupnorm_grad};
}
