/* batchnorm.cu: batchnorm, batchnorm with relu, and groupnorm. Their gradients are in batchnorm_grad.cu.
 *
 * Three kernels: mean and squared distances of chunks of channels; the sets' means and 1 / deviations from them, and the running statistics;
 * the result. Bytes: x read twice, y written. One read is enough for mean and squares, and nothing cancels that matters: a few elements are
 * measured from the first of them in the type computed in, and these groups are put together in f64, as distances from the chunk's first element.
 * With fixed statistics the first kernel is left out. What is added to the result before relu is read once, beside x. */
#include "backends/cuda/channels_last.cuh"

/* ---- chunks ----------------------------------------------------------------------------------------------------------------- */

/* Sums of a group's distances from its first element, and of their squares. */
template <typename C> struct group_sums {
    C first, sum, squares;

    __device__ __forceinline__ void begin(C x)
    {
        first = x;
        sum = squares = 0;
    }
    __device__ __forceinline__ void take(C x)
    {
        C d = x - first;
        sum += d;
        squares += d * d;
    }
    /* False where squares may have left what f32 can hold: the group is then measured in f64. */
    __device__ __forceinline__ bool is_exact() const
    {
        return sizeof(C) == sizeof(double) || (squares > (C)1e-30 && squares < (C)1e30) || (squares == 0 && sum == 0);
    }
    /* Adds the group's `count` elements as distances from `from`. */
    __device__ __forceinline__ void add_to(double from, double count, double *all, double *all_squares) const
    {
        double apart = (double)first - from, step = count * apart;
        *all += step + (double)sum;
        *all_squares += (double)squares + apart * (step + 2 * (double)sum);
    }
};

__device__ __forceinline__ void take_exactly(double x, double from, double *sum, double *squares)
{
    double d = x - from;
    *sum += d;
    *squares += d * d;
}

template <typename R, bool> static __global__ void __launch_bounds__(THREADS) measure_rows(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    __shared__ double space[WARP];
    const channel_piece p = piece_by_rows(a);
    const row_walk<R> walk(a, p);
    const double from = (double)R::element(R::fetch(a.operand[X], walk.base[X], 0), 0);
    const int64_t step = (int64_t)blockDim.x * N;
    double sum = 0, squares = 0;
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += AT_ONCE * step) {
        typename R::raw x[AT_ONCE];
        int64_t offset[CHANNEL_OPERANDS];
        int packs = 0;
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset);
                x[u] = R::fetch(a.operand[X], offset[X], 0);
                packs++;
            }
        group_sums<typename R::real> group;
        group.begin(R::element(x[0], 0));
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (u < packs)
#pragma unroll
                for (int i = 0; i < N; i++)
                    group.take(R::element(x[u], i));
        if (group.is_exact()) {
            group.add_to(from, (double)(packs * N), &sum, &squares);
            continue;
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (u < packs)
#pragma unroll
                for (int i = 0; i < N; i++)
                    take_exactly((double)R::element(x[u], i), from, &sum, &squares);
    }
    sum = over_block<add_up>(sum, space, 0.0);
    squares = over_block<add_up>(squares, space, 0.0);
    if (threadIdx.x == 0) {
        double count = (double)(p.end - p.begin);
        a.part_one[p.part] = from + sum / count;
        a.part_two[p.part] = squares - sum * sum / count;
    }
}

#define GROUP 16 /* positions of a thread's channels that make a group */

/* GROUP of a thread's positions at most, from number `begin` on, of its N channels, added to its numbers in `space`. */
template <typename R>
__device__ __forceinline__ void measure_group(const channel_args &a, const channel_piece &p, const column_walk<R> &walk, int begin,
                                              const typename R::real (*from)[THREADS], double (*space)[THREADS])
{
    constexpr int N = R::width, DEPTH = at_once<R>(1);
    group_sums<typename R::real> group[N];
    const int count = walk.count - begin < GROUP ? walk.count - begin : GROUP;
    bool is_exact = true;
    leave_in_memory();
#pragma unroll 1
    for (int part = 0; part < count; part += DEPTH) {
        typename R::raw x[DEPTH];
#pragma unroll
        for (int u = 0; u < DEPTH; u++)
            if (part + u < count)
                x[u] = R::fetch(a.operand[X], walk.at(a, p, begin + part + u).in(X), 0);
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (part == 0)
                group[i].begin(R::element(x[0], i));
#pragma unroll
            for (int u = 0; u < DEPTH; u++)
                if (part + u < count)
                    group[i].take(R::element(x[u], i));
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        is_exact = is_exact && group[i].is_exact();
    if (is_exact) {
#pragma unroll
        for (int i = 0; i < N; i++)
            group[i].add_to((double)from[i][threadIdx.x], (double)count, &space[i][threadIdx.x], &space[N + i][threadIdx.x]);
        return;
    }
#pragma unroll 1
    for (int u = 0; u < count; u++) {
        typename R::raw x = R::fetch(a.operand[X], walk.at(a, p, begin + u).in(X), 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            take_exactly((double)R::element(x, i), (double)from[i][threadIdx.x], &space[i][threadIdx.x], &space[N + i][threadIdx.x]);
    }
}

template <typename R, bool> static __global__ void __launch_bounds__(THREADS, BLOCKS_BY(R)) measure_columns(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    const channel_piece p = piece_by_columns<N>(a);
    const column_walk<R> walk(a, p);
    const int me = (int)threadIdx.x;
    __shared__ double space[2 * N][THREADS];
    __shared__ typename R::real from[N][THREADS]; /* the chunk's first elements */
#pragma unroll
    for (int k = 0; k < 2 * N; k++)
        space[k][me] = 0;
    if (walk.count > 0) {
        const typename R::raw x = R::fetch(a.operand[X], position<R>::of(a, p, p.begin).in(X), 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            from[i][me] = R::element(x, i);
#pragma unroll 1
        for (int begin = 0; begin < walk.count; begin += GROUP)
            measure_group<R>(a, p, walk, begin, from, space);
    }
    over_warps<2 * N>(a, space);
    if (me >= a.across * N || p.tile + me >= a.channels)
        return;
    const double count = (double)(p.end - p.begin), sum = over_tile(space[me % N], me / N), squares = over_tile(space[N + me % N], me / N);
    a.part_one[p.part + me] = (double)from[me % N][me / N] + sum / count;
    a.part_two[p.part + me] = squares - sum * sum / count;
}

/* ---- sets ------------------------------------------------------------------------------------------------------------------- */

struct set_args {
    double epsilon, momentum;
    row_operand fixed_mean, fixed_variance; /* base NULL: the set's own */
    row_operand running_mean, running_variance;
    double *mean, *rstd; /* kept for backward; NULL: not wanted */
};

/* Sums of distances from one number, and of their squares. */
struct moments {
    double sum, squares;
};

/* By a warp, or by a block that has a set to itself: the distances of chunks' means from the first one, and the chunks' own squares. What cancels
 * afterwards is no larger than the first chunk's part in the variance, times the number of chunks: f64 has digits enough for that. */
template <int LANES> __device__ __forceinline__ moments moments_of_set(const channel_args &a, int64_t batch, int64_t group, double *from)
{
    moments m = {0, 0};
    *from = a.part_one[batch * a.chunks * a.channels + group * a.members];
    for (int64_t item = threadIdx.x % LANES; item < a.members * a.chunks; item += LANES) {
        int64_t chunk = a.members > 1 ? item / a.members : item, channel = group * a.members + item - chunk * a.members, begin, end;
        int64_t at = (batch * a.chunks + chunk) * a.channels + channel;
        chunk_bounds(a, (uint32_t)chunk, &begin, &end);
        double apart = a.part_one[at] - *from, step = (double)(end - begin) * apart;
        m.sum += step;
        m.squares += a.part_two[at] + step * apart;
    }
    m.sum = over_warp<add_up>(m.sum);
    m.squares = over_warp<add_up>(m.squares);
    if (LANES > WARP) {
        __shared__ moments of_warp[LANES / WARP];
        if (threadIdx.x % WARP == 0)
            of_warp[threadIdx.x / WARP] = m;
        __syncthreads();
        m = {0, 0};
        for (int i = 0; i < LANES / WARP; i++)
            m.sum += of_warp[i].sum, m.squares += of_warp[i].squares;
    }
    return m;
}

__device__ __forceinline__ double number_at(const row_operand &vector, int64_t at)
{
    return vector.base ? load_any<double>(vector.base, vector.dtype, at * vector.along) : 0;
}

__device__ __forceinline__ void take_in(const row_operand &running, int64_t at, double old, double momentum, double value)
{
    if (running.base)
        store_any(running.base, running.dtype, at * running.along, (1 - momentum) * old + momentum * value);
}

/* A warp or a block a set: whoever has few parts to put together needs no more than a warp. */
template <int LANES> static __global__ void __launch_bounds__(THREADS) settle(const __grid_constant__ channel_args a, const __grid_constant__ set_args s)
{
    int64_t set = (int64_t)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (set >= a.batches * a.groups)
        return;
    double mean, variance;
    if (s.fixed_mean.base) {
        mean = number_at(s.fixed_mean, set);
        variance = number_at(s.fixed_variance, set);
    } else {
        double from, old_mean = number_at(s.running_mean, set), old_variance = number_at(s.running_variance, set);
        int64_t group = set, batch = batch_digit(a, group, a.groups);
        moments m = moments_of_set<LANES>(a, batch, group, &from);
        double apart = m.sum / a.values, squares = m.squares - m.sum * apart;
        mean = from + apart;
        variance = squares / a.values;
        if (threadIdx.x % LANES == 0) {
            take_in(s.running_mean, set, old_mean, s.momentum, mean);
            take_in(s.running_variance, set, old_variance, s.momentum, squares / (a.values - 1));
        }
    }
    if (threadIdx.x % LANES != 0)
        return;
    double rstd = 1 / sqrt(variance + s.epsilon);
    a.mean[set] = mean;
    a.rstd[set] = rstd;
    if (s.mean) {
        s.mean[set] = mean;
        s.rstd[set] = rstd;
    }
}

/* ---- the result ------------------------------------------------------------------------------------------------------------- */

/* What is added to a pack of results, if anything, and relu. */
template <typename R> __device__ __forceinline__ void add_and_cut(const channel_args &a, const typename R::raw &beside, typename R::real *y)
{
#pragma unroll
    for (int i = 0; i < R::width; i++) {
        if (a.operand[BESIDE].base)
            y[i] += R::element(beside, i);
        y[i] = y[i] < 0 ? (typename R::real)0 : y[i];
    }
}

/* All is loaded before the first result is stored: the compiler cannot know that they lie apart. */
template <typename R, bool HAS_RELU> static __global__ void __launch_bounds__(THREADS) normalise_rows(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    const channel_piece p = piece_by_rows(a);
    const row_walk<R> walk(a, p);
    const int64_t step = (int64_t)blockDim.x * N;
    channel_numbers<C> numbers;
    numbers.fetch(a, p.batch, p.channel);
    for (int64_t at = p.begin + (int64_t)threadIdx.x * N; at < p.end; at += AT_ONCE * step) {
        typename R::raw x[AT_ONCE], beside[AT_ONCE];
        int64_t offset[AT_ONCE][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (at + u * step < p.end) {
                walk.to(a, p, at + u * step, offset[u]);
                x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                if (HAS_RELU && a.operand[BESIDE].base)
                    beside[u] = R::fetch(a.operand[BESIDE], offset[u][BESIDE], 0);
            }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (at + u * step >= p.end)
                break;
            C y[N];
#pragma unroll
            for (int i = 0; i < N; i++)
                y[i] = numbers.normal(R::element(x[u], i));
            if (HAS_RELU)
                add_and_cut<R>(a, beside[u], y);
            R::store(a.operand[TO], offset[u][TO], 0, y);
        }
    }
}

/* The first packs are on their way while the channels' numbers are made. */
template <typename R, bool HAS_RELU>
static __global__ void __launch_bounds__(THREADS, BLOCKS_BY(R)) normalise_columns(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width, DEPTH = at_once<R>(HAS_RELU ? 2 : 1);
    const channel_piece p = piece_by_columns<N>(a);
    const column_walk<R> walk(a, p);
    __shared__ channel_numbers<C> table[WARP * N];
    channel_numbers<C> numbers[N];
    typename R::raw x[DEPTH], beside[DEPTH];
    for (int begin = 0; begin == 0 || begin < walk.count; begin += DEPTH) {
#pragma unroll
        for (int u = 0; u < DEPTH; u++)
            if (begin + u < walk.count) {
                const position<R> at = walk.at(a, p, begin + u);
                x[u] = R::fetch(a.operand[X], at.in(X), 0);
                if (HAS_RELU && a.operand[BESIDE].base)
                    beside[u] = R::fetch(a.operand[BESIDE], at.in(BESIDE), 0);
            }
        if (begin == 0)
            fetch_numbers<R>(a, p, table, numbers);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (begin + u >= walk.count)
                break;
            C y[N];
#pragma unroll
            for (int i = 0; i < N; i++)
                y[i] = numbers[i].normal(R::element(x[u], i));
            if (HAS_RELU)
                add_and_cut<R>(a, beside[u], y);
            R::store(a.operand[TO], walk.at(a, p, begin + u).in(TO), 0, y);
        }
    }
}

/* ---- starting them ---------------------------------------------------------------------------------------------------------- */

/* Scratch: mean and 1 / deviation of each set, then what chunks give. */
static channel_args describe(const tarn__call *call, bool with_batches, int64_t groups)
{
    const tarn__view *given[CHANNEL_OPERANDS] = {};
    given[X] = call->in[0];
    given[TO] = call->out[0];
    given[BESIDE] = call->inputs > 5 ? call->in[5] : NULL;
    channel_args a = channels_of(with_batches, groups, given);
    choose_chunks(&a);
    a.weight = vector_of(call->in[1]);
    a.bias = vector_of(call->in[2]);
    a.mean = (double *)call->scratch;
    a.rstd = a.mean + a.batches * a.groups;
    a.part_one = a.rstd + a.batches * a.groups;
    a.part_two = a.part_one + partial_count(a);
    return a;
}

static size_t scratch_bytes(const channel_args &a)
{
    return sizeof(double) * (size_t)(2 * a.batches * a.groups + 2 * partial_count(a));
}

/* Grid: a block a chunk, a warp a set, a block a chunk. */
static void forward(const tarn__call *call, channel_args a, const set_args &s, bool has_relu)
{
    if (a.batches * a.groups == 0)
        return;
    if (!s.fixed_mean.base)
        LAUNCH(measure_rows, measure_columns, false, call, a);
    if (!s.fixed_mean.base && a.members * a.chunks > FOR_A_WARP)
        settle<THREADS><<<(unsigned)(a.batches * a.groups), THREADS, 0, stream_of(call)>>>(a, s);
    else
        settle<WARP><<<warp_blocks(a.batches * a.groups), WARP * WARPS_A_BLOCK, 0, stream_of(call)>>>(a, s);
    a.from_end = !s.fixed_mean.base;
    if (has_relu)
        LAUNCH(normalise_rows, normalise_columns, true, call, a);
    else
        LAUNCH(normalise_rows, normalise_columns, false, call, a);
}

static void run_normalised(const tarn__call *call, bool has_relu)
{
    const tarn__batchnorm *params = (const tarn__batchnorm *)call->params;
    set_args s = {params->epsilon,         params->momentum,        vector_of(call->in[3]),        vector_of(call->in[4]),
                  vector_of(call->out[3]), vector_of(call->out[4]), data_of<double>(call->out[1]), data_of<double>(call->out[2])};
    forward(call, describe(call, false, 0), s, has_relu);
}

static void run_batchnorm(const tarn__call *call)
{
    run_normalised(call, false);
}

static void run_batchnorm_relu(const tarn__call *call)
{
    run_normalised(call, true);
}

static size_t scratch_batchnorm(const tarn__call *call)
{
    return scratch_bytes(describe(call, false, 0));
}

static void run_groupnorm(const tarn__call *call)
{
    const tarn__groupnorm *params = (const tarn__groupnorm *)call->params;
    set_args s = {};
    s.epsilon = params->epsilon;
    s.mean = data_of<double>(call->out[1]);
    s.rstd = data_of<double>(call->out[2]);
    channel_args a = describe(call, true, params->groups);
    if (a.count > 0)
        forward(call, a, s, false);
}

static size_t scratch_groupnorm(const tarn__call *call)
{
    return scratch_bytes(describe(call, true, ((const tarn__groupnorm *)call->params)->groups));
}

void tarn__cuda_batchnorm(tarn__kernel_row *rows)
{
    rows[TARN__K_batchnorm] = tarn__kernel_row{run_batchnorm, TARN__FLOATS, scratch_batchnorm};
    rows[TARN__K_batchnorm_relu] = tarn__kernel_row{run_batchnorm_relu, TARN__FLOATS, scratch_batchnorm};
    rows[TARN__K_groupnorm] = tarn__kernel_row{run_groupnorm, TARN__FLOATS, scratch_groupnorm};
}
