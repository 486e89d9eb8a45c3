/* batchnorm.c: batchnorm over all axes but the second (the channels), alone and fused with a residual addition and
 * relu, and its gradient. Built on the per-channel passes of channel_stats.h; this file only turns moments into scales.
 *
 * Inputs x, weight, bias, running mean, running variance [, residual]; outputs y, mean, rstd, new running mean and
 * variance. Gradients: x, weight, mean, rstd, g [, bias, relu output]; outputs gx, gweight, gbias [, gradient of the
 * residual]. */
#include <math.h>
#include <string.h>

#include "backends/cpu/norm/channel_stats.h"

/* Sets of few values are computed in f64: little of their gradient survives the subtraction of its means. */
static void describe(const tarn__call *call, const tarn__view *const *views, tarn__channel_plan *c)
{
    const tarn__view *x = call->in[0];
    int64_t values = x->shape[1] > 0 ? tarn__view_count(x) / x->shape[1] : 0;
    TARN__AT_LEVEL(tarn__channel_plan_make)
    (c, false, values <= TARN__SMALL_SET ? COMPUTE_F64 : tarn__compute_of(x->dtype), views);
    c->has_relu = call->inputs > 5;
    tarn__channel_bind(c, NULL);
}

typedef const tarn__view *operands[TARN__CHANNEL_OPERANDS];

static void find_forward(const tarn__call *call, operands views)
{
    memset(views, 0, sizeof(operands));
    views[TARN__CHANNEL_X] = call->in[0];
    views[TARN__CHANNEL_OUT] = call->out[0];
    views[TARN__CHANNEL_RELU] = call->inputs > 5 ? call->in[5] : NULL;
}

static void find_backward(const tarn__call *call, operands views)
{
    const bool has_relu = call->inputs > 5;
    views[TARN__CHANNEL_X] = call->in[0];
    views[TARN__CHANNEL_OUT] = call->out[0];
    views[TARN__CHANNEL_G] = call->in[4];
    views[TARN__CHANNEL_RELU] = has_relu ? call->in[6] : NULL;
    views[TARN__CHANNEL_RELU_GRAD] = has_relu ? call->out[3] : NULL;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Scratch: per channel mean, sum of squared deviations (then the scale), bias; then the passes' own. */
static tarn__plan_status prepare_batchnorm(const tarn__call *call, tarn__plan *plan)
{
    tarn__channel_plan *c = tarn__plan_reserve(plan, sizeof(*c));
    operands views;
    if (!c)
        return TARN__PLAN_FAILED;
    find_forward(call, views);
    describe(call, views, c);
    plan->scratch_bytes = sizeof(double) * (size_t)(TARN__AT_LEVEL(tarn__channel_scratch)(c) + 3 * c->channels);
    return TARN__PLAN_READY;
}

/* Updates the running statistics with a channel's own, the variance with Bessel's correction (n - 1). */
static void update_running(const tarn__call *call, int64_t channel, double mean, double squares, double count)
{
    double momentum = ((const tarn__batchnorm *)call->params)->momentum;
    store_scalar(call->out[3], channel, (1 - momentum) * load_scalar(call->out[3], channel, 0) + momentum * mean);
    store_scalar(call->out[4], channel,
                 (1 - momentum) * load_scalar(call->out[4], channel, 0) + momentum * squares / (count - 1));
}

/* Training: batch statistics, saved and merged into the running ones. Evaluation: the running statistics. The
 * per-channel part is O(C) and runs on the calling thread; both passes over x are parallel. */
static void kernel_batchnorm(const tarn__call *call)
{
    const tarn__batchnorm *params = call->params;
    tarn__channel_plan c = *(const tarn__channel_plan *)tarn__plan_job(call->plan);
    operands views;
    find_forward(call, views);
    tarn__channel_bind(&c, views);
    double *mean = call->scratch, *scale = mean + c.channels, *bias = scale + c.channels;
    if (params->training)
        TARN__AT_LEVEL(tarn__channel_moments)(&c, mean, scale, bias + c.channels);
    for (int64_t i = 0; i < c.channels; i++) {
        double variance = params->training ? scale[i] / (double)c.count : load_scalar(call->in[4], i, 0);
        if (params->training)
            update_running(call, i, mean[i], scale[i], (double)c.count);
        else
            mean[i] = load_scalar(call->in[3], i, 0);
        double rstd = 1 / sqrt(variance + params->epsilon);
        store_scalar(call->out[1], i, mean[i]);
        store_scalar(call->out[2], i, rstd);
        scale[i] = rstd * load_scalar(call->in[1], i, 1);
        bias[i] = load_scalar(call->in[2], i, 0);
    }
    TARN__AT_LEVEL(tarn__channel_normalize)(&c, &(tarn__channel_stats){.mean = mean, .scale = scale, .bias = bias});
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Scratch: per channel mean, rstd, scale, bias, and two sums; then the passes' own. Where relu's output was not saved
 * it is recomputed from x, before rounding: `relu_min` is half of the smallest positive subnormal, which rounds to 0 in
 * x's dtype. */
static tarn__plan_status prepare_batchnorm_grad(const tarn__call *call, tarn__plan *plan)
{
    static const double half_min_subnormal[] = {
        [TARN_F32] = 0x1p-150, [TARN_F64] = 0, [TARN_BF16] = 0x1p-134, [TARN_F16] = 0x1p-25};
    tarn__channel_plan *c = tarn__plan_reserve(plan, sizeof(*c));
    operands views;
    if (!c)
        return TARN__PLAN_FAILED;
    find_backward(call, views);
    describe(call, views, c);
    c->relu_min = c->has_relu && !call->in[6] ? half_min_subnormal[call->in[0]->dtype] : 0;
    plan->scratch_bytes = sizeof(double) * (size_t)(TARN__AT_LEVEL(tarn__channel_scratch)(c) + 6 * c->channels);
    return TARN__PLAN_READY;
}

/* gx = scale · (g - mean(g) - x̂ · mean(g · x̂)) with x̂ = (x - mean) · rstd and scale = weight · rstd; without the
 * two means in evaluation mode, where the statistics do not depend on x. Reads x and g twice: for the two sums, then
 * for gx. */
static void kernel_batchnorm_grad(const tarn__call *call)
{
    bool training = ((const tarn__batchnorm *)call->params)->training;
    tarn__channel_plan c = *(const tarn__channel_plan *)tarn__plan_job(call->plan);
    operands views;
    find_backward(call, views);
    tarn__channel_bind(&c, views);
    double *mean = call->scratch, *rstd = mean + c.channels, *scale = rstd + c.channels, *bias = scale + c.channels,
           *sum = bias + c.channels, *g_xhat = sum + c.channels;
    for (int64_t i = 0; i < c.channels; i++) {
        mean[i] = load_scalar(call->in[2], i, 0);
        rstd[i] = load_scalar(call->in[3], i, 0);
        scale[i] = rstd[i] * load_scalar(call->in[1], i, 1);
        bias[i] = load_scalar(c.has_relu ? call->in[5] : NULL, i, 0);
    }
    tarn__channel_stats stats = {.mean = mean, .rstd = rstd, .scale = scale, .bias = bias};
    if (training || call->out[1] || call->out[2])
        TARN__AT_LEVEL(tarn__channel_grad_sums)(&c, &stats, sum, g_xhat, g_xhat + c.channels);
    for (int64_t i = 0; (training || call->out[1] || call->out[2]) && i < c.channels; i++) {
        store_scalar(call->out[1], i, g_xhat[i]);
        store_scalar(call->out[2], i, sum[i]);
        sum[i] *= scale[i] / (double)c.count;
        g_xhat[i] *= scale[i] / (double)c.count;
    }
    if (training)
        stats.first = sum, stats.second = g_xhat;
    if (call->out[0] || (c.has_relu && call->out[3]))
        TARN__AT_LEVEL(tarn__channel_grad)(&c, &stats);
}

void TARN__AT_LEVEL(tarn__cpu_register_batchnorm)(tarn__kernel_row *rows)
{
    rows[TARN__K_batchnorm] = tarn__row_planned(prepare_batchnorm, kernel_batchnorm, TARN__FLOATS);
    rows[TARN__K_batchnorm_grad] = tarn__row_planned(prepare_batchnorm_grad, kernel_batchnorm_grad, TARN__FLOATS);
    rows[TARN__K_batchnorm_relu] = rows[TARN__K_batchnorm]; /* the same kernels: the fused form has more operands */
    rows[TARN__K_batchnorm_relu_grad] = rows[TARN__K_batchnorm_grad];
}
