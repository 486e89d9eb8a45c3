/* batchnorm_grad.cu: the gradients of batchnorm, batchnorm with relu, and groupnorm.
 *
 *   gx = rstd · (gw - mean(gw) - x̂ · mean(gw · x̂)) with gw = g · weight and x̂ = (x - mean) · rstd, means over a set
 *
 * with fixed statistics without the means. The sums of g and g · x̂ over each channel are the gradients of bias and
 * weight, and from them come the means: one kernel sums chunks, one adds them up, one makes the sets' means (for
 * batchnorm that before it does), and one writes gx. Bytes: x and g read twice, gx written. With fixed statistics gx
 * needs no sums: the first kernel writes it on its way, or where no sums are wanted the last one, from g alone. Then x
 * and g are read once. Where the device can hold much of x and g, the gradients of batchnorm are one kernel instead
 * (batchnorm_persistent_grad.cu).
 *
 * relu lets g through where its result is above 0. Where nothing was added before it that result is made again from x:
 * no byte more is moved. Else it is read: the kernel of sums then writes what goes through, the gradient of what was
 * added, and gx is made from that. Bytes: x, y and g read, that written; it and x read, gx written. */
#include "backends/cuda/norm/batchnorm_grad_nchw.cuh"
#include "backends/cuda/norm/batchnorm_grad_nhwc.cuh"

/* ---- channels and sets ------------------------------------------------------------------------------------------- */

/* A warp or a block a channel of a batch: adds up its chunks. Where there is one batch these are the gradients of
 * weight and bias. */
template <int LANES>
static __global__ void __launch_bounds__(THREADS)
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
static __global__ void __launch_bounds__(WARP *WARPS_A_BLOCK)
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

/* ---- starting them ----------------------------------------------------------------------------------------------- */

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
    *s = channel_sums{(double *)call->scratch,
                      (double *)call->scratch + a.batches * a.channels,
                      vector_of(call->out[1]),
                      vector_of(call->out[2]),
                      NULL,
                      NULL};
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
    const bool has_own_statistics = ((const tarn__batchnorm *)call->params)->training != 0;
    if (!has_own_statistics || !tarn__cuda_batchnorm_persistent_grad(call, a, s))
        backward(call, a, s, has_own_statistics);
}

static size_t scratch_batchnorm_grad(const tarn__call *call)
{
    channel_sums s;
    const channel_args a = describe(call, false, 0, &s);
    const size_t held =
                     sizeof(double) * (size_t)(4 * a.channels) + tarn__cuda_batchnorm_persistent_grad_scratch(call, a),
                 passes = scratch_bytes(a);
    return held > passes ? held : passes;
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
