/* groupnorm.c: groupnorm over the channels of a group and all axes after them, per sample, and its gradient.
 * channel_stats.h measures every channel of every sample; this file merges the channels of a group.
 *
 * mean and rstd are saved in f64, one per (sample, group).
 *
 * Few elements per group switch to f64, as in batchnorm.c. */
#include <math.h>

#include "backends/cpu/norm/channel_stats.h"

/* Channel statistics per (sample, channel); groups are merged from them. */
typedef struct job {
    tarn__channel_plan c;
    int64_t groups, members; /* channels per group */
    double values;           /* elements that share a mean */
} job;

static void bind(job *j, const tarn__call *call, const tarn__view *g)
{
    tarn__channel_bind(&j->c, (const tarn__view *[TARN__CHANNEL_OPERANDS]){call->in[0], call->out[0], g});
}

/* The channel plan with batches: statistics per sample. Scratch: `values` per (sample, channel), then the passes' own.
 */
static tarn__plan_status prepare(const tarn__call *call, tarn__plan *plan, const tarn__view *g, int64_t values)
{
    const tarn__view *x = call->in[0];
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    j->groups = ((const tarn__groupnorm *)call->params)->groups;
    j->members = x->shape[1] / j->groups;
    int64_t sets = x->shape[0] * j->groups, shared = sets > 0 ? tarn__view_count(x) / sets : 0;
    j->values = (double)shared;
    TARN__AT_LEVEL(tarn__channel_plan_make)
    (&j->c, true, shared <= TARN__SMALL_SET ? COMPUTE_F64 : tarn__compute_of(x->dtype),
     (const tarn__view *[TARN__CHANNEL_OPERANDS]){x, call->out[0], g});
    tarn__channel_bind(&j->c, NULL);
    plan->scratch_bytes =
        sizeof(double) * (size_t)(TARN__AT_LEVEL(tarn__channel_scratch)(&j->c) + values * j->c.batches * j->c.channels);
    return TARN__PLAN_READY;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Per (sample, channel): mean, sum of squared deviations (then the scale), bias. */
static tarn__plan_status prepare_groupnorm(const tarn__call *call, tarn__plan *plan)
{
    return prepare(call, plan, NULL, 3);
}

/* Group `set`, counted over all samples: from the moments of its channels to their mean, scale and bias, in place. */
static void finish_group(const tarn__call *call, const job *j, int64_t set, double *mean, double *scale, double *bias)
{
    double group_mean = 0, squares = 0;
    for (int64_t i = 0; i < j->members; i++)
        tarn__merge_moments(&group_mean, &squares, (double)(i * j->c.count), mean[i], scale[i], (double)j->c.count);
    double rstd = 1 / sqrt(squares / j->values + ((const tarn__groupnorm *)call->params)->epsilon);
    if (call->out[1]) {
        ((double *)tarn__view_at(call->out[1]))[set] = group_mean;
        ((double *)tarn__view_at(call->out[2]))[set] = rstd;
    }
    for (int64_t i = 0; i < j->members; i++) {
        int64_t channel = set % j->groups * j->members + i;
        mean[i] = group_mean;
        scale[i] = rstd * load_scalar(call->in[1], channel, 1);
        bias[i] = load_scalar(call->in[2], channel, 0);
    }
}

/* Moments of all channels in parallel, then O(N · C) work on the calling thread, then the result in parallel. */
static void kernel_groupnorm(const tarn__call *call)
{
    job j = *(const job *)tarn__plan_job(call->plan);
    bind(&j, call, NULL);
    int64_t all = j.c.batches * j.c.channels;
    double *mean = call->scratch, *scale = mean + all, *bias = scale + all;
    if (j.values == 0)
        return;
    TARN__AT_LEVEL(tarn__channel_moments)(&j.c, mean, scale, bias + all);
    for (int64_t set = 0; set < j.c.batches * j.groups; set++)
        finish_group(call, &j, set, mean + set * j.members, scale + set * j.members, bias + set * j.members);
    TARN__AT_LEVEL(tarn__channel_normalize)
    (&j.c, &(tarn__channel_stats){.mean = mean, .scale = scale, .bias = bias});
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Per (sample, channel): mean, rstd, scale, and two sums. */
static tarn__plan_status prepare_groupnorm_grad(const tarn__call *call, tarn__plan *plan)
{
    return prepare(call, plan, call->in[4], 5);
}

/* gweight = Σ g · x̂ and gbias = Σ g, over all samples in order. */
static void put_sums(const tarn__call *call, const job *j, const double *sum, const double *g_xhat)
{
    for (int64_t i = 0; i < j->c.channels; i++) {
        double all = 0, g_xhats = 0;
        for (int64_t b = 0; b < j->c.batches; b++) {
            all += sum[b * j->c.channels + i];
            g_xhats += g_xhat[b * j->c.channels + i];
        }
        store_scalar(call->out[1], i, g_xhats);
        store_scalar(call->out[2], i, all);
    }
}

/* gx = rstd · (gw - mean(gw) - x̂ · mean(gw · x̂)) with gw = g · weight: replaces the channel sums of a group by its
 * means, times rstd. */
static void average_group(const job *j, const double *scale, double *sum, double *g_xhat)
{
    double all = 0, g_xhats = 0;
    for (int64_t i = 0; i < j->members; i++) {
        all += sum[i] * scale[i];
        g_xhats += g_xhat[i] * scale[i];
    }
    for (int64_t i = 0; i < j->members; i++) {
        sum[i] = all / j->values;
        g_xhat[i] = g_xhats / j->values;
    }
}

/* Per-channel sums give gweight and gbias first; only then are they replaced by group means for gx. */
static void kernel_groupnorm_grad(const tarn__call *call)
{
    job j = *(const job *)tarn__plan_job(call->plan);
    bind(&j, call, call->in[4]);
    int64_t all = j.c.batches * j.c.channels;
    double *mean = call->scratch, *rstd = mean + all, *scale = rstd + all, *sum = scale + all, *g_xhat = sum + all;
    for (int64_t i = 0; i < all; i++) {
        mean[i] = ((const double *)tarn__view_at(call->in[2]))[i / j.members];
        rstd[i] = ((const double *)tarn__view_at(call->in[3]))[i / j.members];
        scale[i] = rstd[i] * load_scalar(call->in[1], i % j.c.channels, 1);
    }
    tarn__channel_stats stats = {.mean = mean, .rstd = rstd, .scale = scale};
    TARN__AT_LEVEL(tarn__channel_grad_sums)(&j.c, &stats, sum, g_xhat, g_xhat + all);
    put_sums(call, &j, sum, g_xhat);
    if (!call->out[0])
        return;
    for (int64_t set = 0; set < j.c.batches * j.groups; set++)
        average_group(&j, scale + set * j.members, sum + set * j.members, g_xhat + set * j.members);
    stats.first = sum, stats.second = g_xhat;
    TARN__AT_LEVEL(tarn__channel_grad)(&j.c, &stats);
}

void TARN__AT_LEVEL(tarn__cpu_register_groupnorm)(tarn__kernel_row *rows)
{
    rows[TARN__K_groupnorm] = tarn__row_planned(prepare_groupnorm, kernel_groupnorm, TARN__FLOATS);
    rows[TARN__K_groupnorm_grad] = tarn__row_planned(prepare_groupnorm_grad, kernel_groupnorm_grad, TARN__FLOATS);
}
