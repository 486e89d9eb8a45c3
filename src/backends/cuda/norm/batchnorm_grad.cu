/* batchnorm_grad.cu: gradients of batchnorm, batchnorm with relu, and groupnorm.
 *
 *   gx = rstd · (gw - mean(gw) - x̂ · mean(gw · x̂)) with gw = g · weight and x̂ = (x - mean) · rstd, means over a set
 *
 * Fixed statistics have no means. The sums of g and g · x̂ over each channel are the gradients of bias and weight, and
 * give the means: one kernel sums chunks, one adds them up, one computes the sets' means (for batchnorm the second one
 * does), and one writes gx. Bytes: x and g read twice, gx written. With fixed statistics gx needs no sums: the first
 * kernel writes it too, or, if no sums are needed, the last one from g alone; x and g are then read once. If the device
 * can keep much of x and g in shared memory, batchnorm's gradients are one kernel instead
 * (batchnorm_persistent.cu).
 *
 * relu passes g where its result is positive. Without a residual that result is recomputed from x: no additional bytes.
 * With one it is read: the summing kernel then writes the gated gradient, which is also the residual's, and gx is
 * computed from it. Bytes: x, y and g read, that written; it and x read, gx written. */
#include "backends/cuda/norm/batchnorm_nchw.cuh"
#include "backends/cuda/norm/batchnorm_nhwc.cuh"

/* ---- channels and sets ------------------------------------------------------------------------------------------- */

/* A warp or a block per channel of a batch: adds up its chunks. With one batch these are the gradients of weight and
 * bias. */
template <int LANES>
static __global__ void __launch_bounds__(THREADS)
    reduce_chunks(const __grid_constant__ channel_args a, const __grid_constant__ channel_sums s)
{
    int64_t index = (int64_t)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (index >= a.batches * a.channels)
        return;
    int64_t channel = index, batch = pop_batch(a, channel, a.channels);
    double sum = 0, product = 0, factor = s.first ? a.rstd[index] * load_param(a.weight, channel, 1) : 0;
    for (int64_t chunk = threadIdx.x % LANES; chunk < a.chunks; chunk += LANES) {
        int64_t at = (batch * a.chunks + chunk) * a.channels + channel;
        sum += a.partial_one[at];
        product += a.partial_two[at];
    }
    reduce_pair<LANES>(&sum, &product);
    if (threadIdx.x % LANES != 0)
        return;
    s.sum[index] = sum;
    s.product[index] = product;
    if (a.batches == 1) {
        store_param(s.gweight, channel, product);
        store_param(s.gbias, channel, sum);
    }
    if (s.first) {
        s.first[index] = factor * sum / a.values;
        s.second[index] = factor * product / a.values;
    }
}

/* A thread per channel: its gradients over all batches. */
static __global__ void __launch_bounds__(THREADS)
    reduce_batches(const __grid_constant__ channel_args a, const __grid_constant__ channel_sums s)
{
    int64_t channel = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (channel >= a.channels)
        return;
    double sum = 0, product = 0;
    for (int64_t batch = 0; batch < a.batches; batch++) {
        sum += s.sum[batch * a.channels + channel];
        product += s.product[batch * a.channels + channel];
    }
    store_param(s.gweight, channel, product);
    store_param(s.gbias, channel, sum);
}

/* A warp per set: rstd times the means of gw and gw · x̂. */
static __global__ void __launch_bounds__(WARP *WARPS_PER_BLOCK)
    set_means(const __grid_constant__ channel_args a, const __grid_constant__ channel_sums s)
{
    int64_t set = (int64_t)blockIdx.x * WARPS_PER_BLOCK + threadIdx.x / WARP;
    if (set >= a.batches * a.groups)
        return;
    int64_t batch = set / a.groups, group = set % a.groups;
    double sum = 0, product = 0;
    for (int64_t member = threadIdx.x % WARP; member < a.members; member += WARP) {
        int64_t channel = group * a.members + member;
        double weight = load_param(a.weight, channel, 1);
        sum += weight * s.sum[batch * a.channels + channel];
        product += weight * s.product[batch * a.channels + channel];
    }
    sum = warp_reduce<plus>(sum);
    product = warp_reduce<plus>(product);
    if (threadIdx.x % WARP == 0) {
        a.mean_g[set] = a.rstd[set] * sum / a.values;
        a.mean_gx[set] = a.rstd[set] * product / a.values;
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Values up to this round to 0 in the dtype: half of its smallest subnormal. */
static double relu_zero_of(tarn_dtype dtype)
{
    return dtype == TARN_F16 ? 0x1p-25 : dtype == TARN_BF16 ? 0x1p-134 : dtype == TARN_F32 ? 0x1p-150 : 0;
}

static void set_operands(const tarn__call *call, const tarn__view **given)
{
    const bool has_relu = call->inputs > 5;
    for (int k = 0; k < CHANNEL_OPERANDS; k++)
        given[k] = NULL;
    given[X] = call->in[0], given[OUT] = call->out[0], given[G] = call->in[4];
    if (has_relu) {
        given[AUX] = call->in[6];
        given[GATED] = call->out[3];
    }
}

/* Everything but addresses that a job keeps: planning still looks at their alignment. */
static channel_args describe(const tarn__call *call, bool with_batches, int64_t groups)
{
    const tarn__view *given[CHANNEL_OPERANDS];
    set_operands(call, given);
    channel_args a = channel_args_of(with_batches, groups, given);
    choose_chunks(&a);
    a.has_relu = call->inputs > 5;
    a.relu_zero = relu_zero_of(call->in[0]->dtype);
    return a;
}

/* The job's arguments with addresses. Scratch: two sums per channel of each batch, two values per set, then the chunks'
 * partials. */
static channel_args args_of(const tarn__call *call, channel_sums *s)
{
    const tarn__view *given[CHANNEL_OPERANDS];
    channel_args a = job_of<channel_job>(call)->args;
    set_operands(call, given);
    set_addresses(&a, given);
    a.weight = vector_of(call->in[1]);
    a.bias = vector_of(a.has_relu ? call->in[5] : NULL);
    a.mean = data_of<double>(call->in[2]);
    a.rstd = data_of<double>(call->in[3]);
    *s = channel_sums{(double *)call->scratch,
                      (double *)call->scratch + a.batches * a.channels,
                      vector_of(call->out[1]),
                      vector_of(call->out[2]),
                      NULL,
                      NULL};
    a.partial_one = s->product + a.batches * a.channels + 2 * a.batches * a.groups;
    a.partial_two = a.partial_one + partial_count(a);
    return a;
}

/* The summing kernel has written g after relu's gradient: use it as g from here on, if it has g's precision. */
static void use_gated(channel_args *a)
{
    if (a->operand[GATED].dtype == a->operand[G].dtype) {
        a->operand[G] = a->operand[GATED];
        a->channel_stride[G] = a->channel_stride[GATED];
        a->batch_stride[G] = a->batch_stride[GATED];
        for (int i = 0; i < a->at.rank; i++)
            a->at.stride[G][i] = a->at.stride[GATED][i];
        a->operand[AUX].base = NULL;
        a->has_relu = false;
    }
    a->operand[GATED].base = NULL;
}

/* Σ g and Σ g · x̂ per channel: chunks, then channels, then batches (groupnorm). */
static void launch_sums(const tarn__call *call, const channel_args &a, const channel_sums &s)
{
    LAUNCH_RELU(sum_nchw, sum_nhwc, call, a);
    if (a.batches * a.channels > 0 && a.chunks > WARP_PARTS)
        reduce_chunks<THREADS><<<(unsigned)(a.batches * a.channels), THREADS, 0, stream_of(call)>>>(a, s);
    else if (a.batches * a.channels > 0)
        reduce_chunks<WARP><<<warp_blocks(a.batches * a.channels), WARP * WARPS_PER_BLOCK, 0, stream_of(call)>>>(a, s);
    if (a.batches != 1 && a.channels > 0 && (s.gweight.base || s.gbias.base))
        reduce_batches<<<blocks_for(a.channels, THREADS), THREADS, 0, stream_of(call)>>>(a, s);
}

/* Up to four launches; those without a consumer are skipped. `is_training`: statistics were computed from x, so gx has
 * the means' terms. */
static void run_multipass(const tarn__call *call, channel_args &a, channel_sums &s, bool is_training)
{
    const bool has_sums = is_training || s.gweight.base || s.gbias.base;
    double *means = s.product + a.batches * a.channels;
    if (has_sums) {
        if (is_training && a.batches * a.members == 1)
            /* a set is a channel: reduce_chunks also computes the means */
            s.first = means, s.second = means + a.groups;
        /* fixed statistics: gx = g · scale, written by the summing kernel */
        a.writes_scaled = !is_training && call->out[0];
        launch_sums(call, a, s);
        if (a.has_relu && a.operand[GATED].base)
            use_gated(&a);
    }
    const bool wants_gx = call->out[0] && !a.writes_scaled, wants_gated = a.has_relu && a.operand[GATED].base;
    if (!(wants_gx || wants_gated) || a.count == 0 || a.batches * a.groups == 0)
        return;
    if (is_training) {
        a.mean_g = means;
        a.mean_gx = means + a.batches * a.groups;
        if (!s.first)
            set_means<<<warp_blocks(a.batches * a.groups), WARP * WARPS_PER_BLOCK, 0, stream_of(call)>>>(a, s);
    }
    /* the end of x and g is still in the cache */
    a.is_reversed = has_sums;
    LAUNCH_RELU(grad_nchw, grad_nhwc, call, a);
}

/* Inputs x, weight, mean, rstd, g, bias, relu's result; outputs gx, gweight, gbias, and the residual's gradient. */
static bool is_training(const tarn__call *call)
{
    return ((const tarn__batchnorm *)call->params)->training != 0;
}

static tarn__plan_status prepare_persistent(const tarn__call *call, tarn__plan *plan)
{
    channel_job *j = reserve_job<channel_job>(plan);
    if (!j)
        return TARN__PLAN_FAILED;
    j->args = describe(call, false, 0);
    size_t partials = tarn__cuda_plan_batchnorm_persistent_grad(call, j->args, j);
    if (partials == 0)
        return TARN__PLAN_DECLINED;
    plan->scratch_bytes = sizeof(double) * (size_t)(4 * j->args.channels) + partials;
    clear_addresses(&j->args);
    return TARN__PLAN_READY;
}

static void run_persistent(const tarn__call *call)
{
    channel_sums s;
    const channel_args a = args_of(call, &s);
    tarn__cuda_batchnorm_persistent_grad(call, a, s, *job_of<channel_job>(call));
}

static tarn__plan_status prepare_sets(const tarn__call *call, tarn__plan *plan, bool with_batches, int64_t groups)
{
    channel_job *j = reserve_job<channel_job>(plan);
    if (!j)
        return TARN__PLAN_FAILED;
    channel_args *a = &j->args;
    *a = describe(call, with_batches, groups);
    plan->scratch_bytes =
        sizeof(double) * (size_t)(2 * a->batches * a->channels + 2 * a->batches * a->groups + 2 * partial_count(*a));
    clear_addresses(a);
    return TARN__PLAN_READY;
}

static tarn__plan_status prepare_batchnorm_grad(const tarn__call *call, tarn__plan *plan)
{
    return prepare_sets(call, plan, false, 0);
}

static void run_batchnorm_grad(const tarn__call *call)
{
    channel_sums s;
    channel_args a = args_of(call, &s);
    run_multipass(call, a, s, is_training(call));
}

/* Always multipass: sets span several channels. */
static tarn__plan_status prepare_groupnorm_grad(const tarn__call *call, tarn__plan *plan)
{
    return prepare_sets(call, plan, true, ((const tarn__groupnorm *)call->params)->groups);
}

static void run_groupnorm_grad(const tarn__call *call)
{
    channel_sums s;
    channel_args a = args_of(call, &s);
    run_multipass(call, a, s, true);
}

/* batchnorm_grad and batchnorm_relu_grad are distinguished by the number of inputs. */
void tarn__cuda_register_batchnorm_grad(tarn__kernel_row *rows)
{
    static tarn__kernel_row multipass[2];
    const tarn__kernel kernels[] = {TARN__K_batchnorm_grad, TARN__K_batchnorm_relu_grad};
    for (int i = 0; i < 2; i++) {
        rows[kernels[i]] =
            tarn__row_named(tarn__row_planned(prepare_batchnorm_grad, run_batchnorm_grad, TARN__FLOATS), "multipass");
        tarn__kernel_row row =
            tarn__row_fits(tarn__row_planned(prepare_persistent, run_persistent, TARN__FLOATS), is_training);
        tarn__push_row(rows, kernels[i], tarn__row_named(row, "persistent"), &multipass[i]);
    }
    rows[TARN__K_groupnorm_grad] = tarn__row_planned(prepare_groupnorm_grad, run_groupnorm_grad, TARN__FLOATS);
}
