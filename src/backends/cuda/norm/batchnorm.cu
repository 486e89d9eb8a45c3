/* batchnorm.cu: batchnorm, batchnorm with relu, and groupnorm. Gradients: batchnorm_grad.cu.
 *
 * Three kernels: mean and squared distances of chunks of channels; mean and 1 / std of the sets from them, and the
 * running statistics; the result. Bytes: x read twice, y written. One read suffices for mean and variance without
 * cancellation: a few elements are measured from the first of them in the compute type, and these groups are merged in
 * f64, as distances from the chunk's first element. With fixed statistics the first kernel is skipped. A residual is
 * read once, with x. If a device can keep much of x in shared memory, batchnorm is one kernel instead
 * (batchnorm_persistent.cu). */
#include "backends/cuda/norm/batchnorm_nchw.cuh"
#include "backends/cuda/norm/batchnorm_nhwc.cuh"

/* ---- statistics of sets ------------------------------------------------------------------------------------------ */

/* By a warp, or by a block that has a set to itself: sums of the distances of the chunks' means from the first one,
 * `from`, and of their squares with the chunks' own. What cancels afterwards is at most the first chunk's share of the
 * variance times the number of chunks: within f64's precision. */
template <int LANES>
__device__ __forceinline__ void reduce_moments(const channel_args &a, int64_t batch, int64_t group, double *from,
                                               double *sum, double *squares)
{
    *sum = *squares = 0;
    *from = a.partial_one[batch * a.chunks * a.channels + group * a.members];
    for (int64_t item = threadIdx.x % LANES; item < a.members * a.chunks; item += LANES) {
        int64_t chunk = a.members > 1 ? item / a.members : item, channel = group * a.members + item - chunk * a.members,
                begin, end;
        int64_t at = (batch * a.chunks + chunk) * a.channels + channel;
        chunk_bounds(a, (uint32_t)chunk, &begin, &end);
        double apart = a.partial_one[at] - *from, step = (double)(end - begin) * apart;
        *sum += step;
        *squares += a.partial_two[at] + step * apart;
    }
    reduce_pair<LANES>(sum, squares);
}

/* A warp or a block per set: few partials need only a warp. */
template <int LANES>
static __global__ void __launch_bounds__(THREADS)
    finalize_stats(const __grid_constant__ channel_args a, const __grid_constant__ stat_args s)
{
    int64_t set = (int64_t)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (set >= a.batches * a.groups)
        return;
    double mean, variance;
    if (s.fixed_mean.base) {
        mean = load_param(s.fixed_mean, set, 0);
        variance = load_param(s.fixed_variance, set, 0);
    } else {
        /* running statistics are read before the reduction, so that the loads overlap */
        double old_mean = load_param(s.running_mean, set, 0), old_variance = load_param(s.running_variance, set, 0);
        int64_t group = set, batch = pop_batch(a, group, a.groups);
        double from, sum, squares;
        reduce_moments<LANES>(a, batch, group, &from, &sum, &squares);
        double apart = sum / a.values;
        squares -= sum * apart;
        mean = from + apart;
        variance = squares / a.values;
        if (threadIdx.x % LANES == 0) {
            update_running(s.running_mean, set, old_mean, s.momentum, mean);
            /* the running variance is unbiased, as in PyTorch */
            update_running(s.running_variance, set, old_variance, s.momentum, squares / (a.values - 1));
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

/* ---- launching --------------------------------------------------------------------------------------------------- */

static void set_operands(const tarn__call *call, const tarn__view **given)
{
    for (int k = 0; k < CHANNEL_OPERANDS; k++)
        given[k] = NULL;
    given[X] = call->in[0];
    given[OUT] = call->out[0];
    given[AUX] = call->inputs > 5 ? call->in[5] : NULL;
}

/* Everything but addresses that a job keeps: planning still looks at their alignment. */
static channel_args describe(const tarn__call *call, bool with_batches, int64_t groups)
{
    const tarn__view *given[CHANNEL_OPERANDS];
    set_operands(call, given);
    channel_args a = channel_args_of(with_batches, groups, given);
    choose_chunks(&a);
    a.has_relu = call->inputs > 5;
    return a;
}

/* The job's arguments with addresses. Scratch: mean and 1 / std per set, then the chunks' partials. */
static channel_args args_of(const tarn__call *call)
{
    const tarn__view *given[CHANNEL_OPERANDS];
    channel_args a = job_of<channel_job>(call)->args;
    set_operands(call, given);
    set_addresses(&a, given);
    a.weight = vector_of(call->in[1]);
    a.bias = vector_of(call->in[2]);
    a.mean = (double *)call->scratch;
    a.rstd = a.mean + a.batches * a.groups;
    a.partial_one = a.rstd + a.batches * a.groups;
    a.partial_two = a.partial_one + partial_count(a);
    return a;
}

/* Grid: a block per chunk, a warp (or block) per set, a block per chunk. */
static void run_multipass(const tarn__call *call, channel_args a, const stat_args &s)
{
    if (a.batches * a.groups == 0)
        return;
    if (!s.fixed_mean.base)
        LAUNCH(stats_nchw, stats_nhwc, NO_RELU, call, a);
    if (!s.fixed_mean.base && a.members * a.chunks > WARP_PARTS)
        finalize_stats<THREADS><<<(unsigned)(a.batches * a.groups), THREADS, 0, stream_of(call)>>>(a, s);
    else
        finalize_stats<WARP><<<warp_blocks(a.batches * a.groups), WARP * WARPS_PER_BLOCK, 0, stream_of(call)>>>(a, s);
    /* the end of x is still in the cache */
    a.is_reversed = !s.fixed_mean.base;
    LAUNCH_RELU(normalize_nchw, normalize_nhwc, call, a);
}

/* Inputs x, weight, bias, fixed mean and variance, with relu a residual; outputs y, saved mean and rstd, running mean
 * and variance. All but x and y may be NULL. */
static stat_args stats_of(const tarn__call *call)
{
    const tarn__batchnorm *params = (const tarn__batchnorm *)call->params;
    return stat_args{
        params->epsilon,         params->momentum,        vector_of(call->in[3]),        vector_of(call->in[4]),
        vector_of(call->out[3]), vector_of(call->out[4]), data_of<double>(call->out[1]), data_of<double>(call->out[2])};
}

/* One kernel computes the batch's statistics and normalizes. */
static bool fits_persistent(const tarn__call *call)
{
    return !call->in[3];
}

static tarn__plan_status prepare_persistent(const tarn__call *call, tarn__plan *plan)
{
    channel_job *j = reserve_job<channel_job>(plan);
    if (!j)
        return TARN__PLAN_FAILED;
    j->args = describe(call, false, 0);
    size_t partials = tarn__cuda_plan_batchnorm_persistent(call, j->args, j);
    if (partials == 0)
        return TARN__PLAN_DECLINED;
    plan->scratch_bytes = sizeof(double) * (size_t)(2 * j->args.channels) + partials;
    clear_addresses(&j->args);
    return TARN__PLAN_READY;
}

static void run_persistent(const tarn__call *call)
{
    tarn__cuda_batchnorm_persistent(call, args_of(call), stats_of(call), *job_of<channel_job>(call));
}

/* Scratch: (batches, groups) twice, (batches, chunks, channels) twice. */
static tarn__plan_status prepare_sets(const tarn__call *call, tarn__plan *plan, bool with_batches, int64_t groups)
{
    channel_job *j = reserve_job<channel_job>(plan);
    if (!j)
        return TARN__PLAN_FAILED;
    channel_args *a = &j->args;
    *a = describe(call, with_batches, groups);
    plan->scratch_bytes = sizeof(double) * (size_t)(2 * a->batches * a->groups + 2 * partial_count(*a));
    clear_addresses(a);
    return TARN__PLAN_READY;
}

static tarn__plan_status prepare_batchnorm(const tarn__call *call, tarn__plan *plan)
{
    return prepare_sets(call, plan, false, 0);
}

static void run_batchnorm(const tarn__call *call)
{
    run_multipass(call, args_of(call), stats_of(call));
}

/* A set is a group of channels of one sample: always multipass. */
static tarn__plan_status prepare_groupnorm(const tarn__call *call, tarn__plan *plan)
{
    return prepare_sets(call, plan, true, ((const tarn__groupnorm *)call->params)->groups);
}

static void run_groupnorm(const tarn__call *call)
{
    stat_args s = {};
    s.epsilon = ((const tarn__groupnorm *)call->params)->epsilon;
    s.mean = data_of<double>(call->out[1]);
    s.rstd = data_of<double>(call->out[2]);
    channel_args a = args_of(call);
    if (a.count > 0)
        run_multipass(call, a, s);
}

/* batchnorm and batchnorm_relu are distinguished by the number of inputs. */
void tarn__cuda_register_batchnorm(tarn__kernel_row *rows)
{
    static tarn__kernel_row multipass[2];
    const tarn__kernel kernels[] = {TARN__K_batchnorm, TARN__K_batchnorm_relu};
    for (int i = 0; i < 2; i++) {
        rows[kernels[i]] =
            tarn__row_named(tarn__row_planned(prepare_batchnorm, run_batchnorm, TARN__FLOATS), "multipass");
        tarn__kernel_row row =
            tarn__row_fits(tarn__row_planned(prepare_persistent, run_persistent, TARN__FLOATS), fits_persistent);
        tarn__push_row(rows, kernels[i], tarn__row_named(row, "persistent"), &multipass[i]);
    }
    rows[TARN__K_groupnorm] = tarn__row_planned(prepare_groupnorm, run_groupnorm, TARN__FLOATS);
}
