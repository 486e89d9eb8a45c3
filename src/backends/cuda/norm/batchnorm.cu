/* batchnorm.cu: batchnorm, batchnorm with relu, and groupnorm. Their gradients are in batchnorm_grad.cu.
 *
 * Three kernels: mean and squared distances of chunks of channels; the sets' means and 1 / deviations from them, and
 * the running statistics; the result. Bytes: x read twice, y written. One read is enough for mean and squares, and
 * nothing cancels that matters: a few elements are measured from the first of them in the type computed in, and these
 * groups are put together in f64, as distances from the chunk's first element. With fixed statistics the first kernel
 * is left out. What is added to the result before relu is read once, beside x. Where a device can hold much of x,
 * batchnorm is one kernel instead (batchnorm_persistent.cu). */
#include "backends/cuda/norm/batchnorm_nchw.cuh"
#include "backends/cuda/norm/batchnorm_nhwc.cuh"

/* ---- sets -------------------------------------------------------------------------------------------------------- */

/* Sums of distances from one number, and of their squares. */
struct moments {
    double sum, squares;
};

/* By a warp, or by a block that has a set to itself: the distances of chunks' means from the first one, and the chunks'
 * own squares. What cancels afterwards is no larger than the first chunk's part in the variance, times the number of
 * chunks: f64 has digits enough for that. */
template <int LANES>
__device__ __forceinline__ moments moments_of_set(const channel_args &a, int64_t batch, int64_t group, double *from)
{
    moments m = {0, 0};
    *from = a.part_one[batch * a.chunks * a.channels + group * a.members];
    for (int64_t item = threadIdx.x % LANES; item < a.members * a.chunks; item += LANES) {
        int64_t chunk = a.members > 1 ? item / a.members : item, channel = group * a.members + item - chunk * a.members,
                begin, end;
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

/* A warp or a block a set: whoever has few parts to put together needs no more than a warp. */
template <int LANES>
static __global__ void __launch_bounds__(THREADS)
    settle(const __grid_constant__ channel_args a, const __grid_constant__ set_args s)
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

/* ---- starting them ----------------------------------------------------------------------------------------------- */

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
        LAUNCH(measure_rows, measure_columns, NO_RELU, call, a);
    if (!s.fixed_mean.base && a.members * a.chunks > FOR_A_WARP)
        settle<THREADS><<<(unsigned)(a.batches * a.groups), THREADS, 0, stream_of(call)>>>(a, s);
    else
        settle<WARP><<<warp_blocks(a.batches * a.groups), WARP * WARPS_A_BLOCK, 0, stream_of(call)>>>(a, s);
    a.from_end = !s.fixed_mean.base;
    if (has_relu && a.operand[BESIDE].base)
        LAUNCH(normalise_rows, normalise_columns, RELU_OF_SUM, call, a);
    else if (has_relu)
        LAUNCH(normalise_rows, normalise_columns, RELU, call, a);
    else
        LAUNCH(normalise_rows, normalise_columns, NO_RELU, call, a);
}

static void run_normalised(const tarn__call *call, bool has_relu)
{
    const tarn__batchnorm *params = (const tarn__batchnorm *)call->params;
    set_args s = {
        params->epsilon,         params->momentum,        vector_of(call->in[3]),        vector_of(call->in[4]),
        vector_of(call->out[3]), vector_of(call->out[4]), data_of<double>(call->out[1]), data_of<double>(call->out[2])};
    const channel_args a = describe(call, false, 0);
    if (s.fixed_mean.base || !tarn__cuda_batchnorm_persistent(call, a, s, has_relu))
        forward(call, a, s, has_relu);
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
    const channel_args a = describe(call, false, 0);
    const size_t held = sizeof(double) * (size_t)(2 * a.channels) + tarn__cuda_batchnorm_persistent_scratch(call, a),
                 passes = scratch_bytes(a);
    return held > passes ? held : passes;
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
