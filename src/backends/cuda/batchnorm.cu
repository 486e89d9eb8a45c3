/* batchnorm.cu: batchnorm, batchnorm with relu, and groupnorm. Their gradients are in batchnorm_grad.cu.
 *
 * Three kernels: mean and squared distances of chunks of channels; the sets' means and 1 / deviations from them, and the running statistics;
 * the result. Bytes: x read twice, y written. One read is enough for mean and squares, and nothing cancels that matters: a few elements are
 * measured from the first of them in the type computed in, and these groups are put together in f64, as distances from the chunk's first element.
 * With fixed statistics the first kernel is left out. What is added to the result before relu is read once, beside x. */
#include "backends/cuda/channels.cuh"

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

/* A thread's positions at, at + rows, ... before `end`, GROUP at most, of its N channels. */
template <typename R>
__device__ __forceinline__ void measure_group(const channel_args &a, const channel_piece &p, int64_t at, int rows, const double *from, double *sums)
{
    constexpr int N = R::width;
    group_sums<typename R::real> group[N];
    int count = 0;
    bool is_exact = true;
#pragma unroll 1
    for (int part = 0; part < GROUP && at + part * rows < p.end; part += AT_ONCE) {
        typename R::raw x[AT_ONCE];
        int64_t offset[CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (at + (part + u) * rows < p.end) {
                place(a, p, at + (part + u) * rows, offset);
                x[u] = R::fetch(a.operand[X], offset[X], 0);
                count++;
            }
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (part == 0)
                group[i].begin(R::element(x[0], i));
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
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
            group[i].add_to(from[i], (double)count, &sums[i], &sums[N + i]);
        return;
    }
#pragma unroll 1
    for (int u = 0; u < count; u++) {
        int64_t offset[CHANNEL_OPERANDS];
        place(a, p, at + u * rows, offset);
        typename R::raw x = R::fetch(a.operand[X], offset[X], 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            take_exactly((double)R::element(x, i), from[i], &sums[i], &sums[N + i]);
    }
}

template <typename R, bool> static __global__ void __launch_bounds__(THREADS) measure_columns(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    const channel_piece p = piece_by_columns<N>(a);
    const int row = (int)threadIdx.x / a.across, rows = THREADS / a.across;
    const bool takes_part = p.channel < a.channels;
    double from[N], sums[2 * N] = {};
    if (takes_part) {
        int64_t offset[CHANNEL_OPERANDS];
        place(a, p, p.begin, offset);
        typename R::raw x = R::fetch(a.operand[X], offset[X], 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            from[i] = (double)R::element(x, i);
#pragma unroll 1
        for (int64_t at = p.begin + row; at < p.end; at += GROUP * rows)
            measure_group<R>(a, p, at, rows, from, sums);
    }
    __shared__ double space[2 * N][THREADS];
#pragma unroll
    for (int k = 0; k < 2 * N; k++)
        space[k][threadIdx.x] = sums[k];
    over_positions<2 * N>(a, space);
    if (row != 0 || !takes_part)
        return;
    double count = (double)(p.end - p.begin);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const double sum = space[i][threadIdx.x];
        a.part_one[p.part + i] = from[i] + sum / count;
        a.part_two[p.part + i] = space[N + i][threadIdx.x] - sum * sum / count;
    }
}

/* ---- sets ------------------------------------------------------------------------------------------------------------------- */

struct set_args {
    double epsilon, momentum;
    row_operand fixed_mean, fixed_variance; /* base NULL: the set's own */
    row_operand running_mean, running_variance;
    double *mean, *rstd; /* kept for backward; NULL: not wanted */
};

/* A mean, the sum of squared distances from it, and of how many elements. */
struct moments {
    double mean, squares, count;

    __device__ __forceinline__ void merge(double mean_b, double squares_b, double count_b)
    {
        if (count_b == 0)
            return;
        double delta = mean_b - mean, share = count_b / (count + count_b);
        mean += delta * share;
        squares += squares_b + delta * delta * count * share;
        count += count_b;
    }
};

/* By a warp, or by a block that has a set to itself. */
template <int LANES> __device__ __forceinline__ moments moments_of_set(const channel_args &a, int64_t batch, int64_t group)
{
    moments m = {0, 0, 0};
    for (int64_t item = threadIdx.x % LANES; item < a.members * a.chunks; item += LANES) {
        int64_t chunk = item / a.members, channel = group * a.members + item % a.members, begin, end;
        int64_t at = (batch * a.chunks + chunk) * a.channels + channel;
        chunk_bounds(a, (uint32_t)chunk, &begin, &end);
        m.merge(a.part_one[at], a.part_two[at], (double)(end - begin));
    }
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        double mean = __shfl_xor_sync(FULL_WARP, m.mean, step), squares = __shfl_xor_sync(FULL_WARP, m.squares, step);
        m.merge(mean, squares, __shfl_xor_sync(FULL_WARP, m.count, step));
    }
    if (LANES > WARP) {
        __shared__ double of_warp[LANES / WARP][3];
        double *own = of_warp[threadIdx.x / WARP];
        if (threadIdx.x % WARP == 0)
            own[0] = m.mean, own[1] = m.squares, own[2] = m.count;
        __syncthreads();
        m = {0, 0, 0};
        for (int i = 0; i < LANES / WARP; i++)
            m.merge(of_warp[i][0], of_warp[i][1], of_warp[i][2]);
    }
    return m;
}

__device__ __forceinline__ void take_in(const row_operand &running, int64_t at, double momentum, double value)
{
    if (running.base)
        store_any(running.base, running.dtype, at * running.along,
                  (1 - momentum) * load_any<double>(running.base, running.dtype, at * running.along) + momentum * value);
}

/* A warp or a block a set: whoever has few parts to put together needs no more than a warp. */
template <int LANES> static __global__ void __launch_bounds__(THREADS) settle(const __grid_constant__ channel_args a, const __grid_constant__ set_args s)
{
    int64_t set = (int64_t)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (set >= a.batches * a.groups)
        return;
    double mean, variance;
    if (s.fixed_mean.base) {
        mean = load_any<double>(s.fixed_mean.base, s.fixed_mean.dtype, set * s.fixed_mean.along);
        variance = load_any<double>(s.fixed_variance.base, s.fixed_variance.dtype, set * s.fixed_variance.along);
    } else {
        moments m = moments_of_set<LANES>(a, set / a.groups, set % a.groups);
        mean = m.mean;
        variance = m.squares / a.values;
        if (threadIdx.x % LANES == 0) {
            take_in(s.running_mean, set, s.momentum, mean);
            take_in(s.running_variance, set, s.momentum, m.squares / (a.values - 1));
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

template <typename R, bool HAS_RELU> static __global__ void __launch_bounds__(THREADS) normalise_columns(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width;
    const channel_piece p = piece_by_columns<N>(a);
    const int row = (int)threadIdx.x / a.across, rows = THREADS / a.across;
    if (p.channel >= a.channels)
        return;
    channel_numbers<C> numbers[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        numbers[i].fetch(a, p.batch, p.channel + i);
    for (int64_t at = p.begin + row; at < p.end; at += AT_ONCE * rows) {
        typename R::raw x[AT_ONCE], beside[AT_ONCE];
        int64_t offset[AT_ONCE][CHANNEL_OPERANDS];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (at + u * rows < p.end) {
                place(a, p, at + u * rows, offset[u]);
                x[u] = R::fetch(a.operand[X], offset[u][X], 0);
                if (HAS_RELU && a.operand[BESIDE].base)
                    beside[u] = R::fetch(a.operand[BESIDE], offset[u][BESIDE], 0);
            }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (at + u * rows >= p.end)
                break;
            C y[N];
#pragma unroll
            for (int i = 0; i < N; i++)
                y[i] = numbers[i].normal(R::element(x[u], i));
            if (HAS_RELU)
                add_and_cut<R>(a, beside[u], y);
            R::store(a.operand[TO], offset[u][TO], 0, y);
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
