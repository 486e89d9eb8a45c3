/* batchnorm.c: batchnorm over (N, C, ...), alone and fused with relu, groupnorm, and their gradients, as jobs of the
 * channel engine (channel_stats.h).
 *
 * batchnorm shares a mean between all samples of a channel: a set is a channel. groupnorm shares it between the
 * channels of a group in one sample: a set is a channel of a sample, and C / groups adjacent sets share a mean. */
#include "backends/opencl/norm/channel_stats.h"

/* Inputs x, weight, bias, mean, variance, and with relu a residual or NULL; output y first. */
static void describe_forward(const tarn__call *call, tarn__cl_channel_job *c)
{
    const bool has_relu = call->inputs > 5;
    const tarn__view *views[TARN__CL_CHANNEL_OPERANDS] = {[TARN__CL_X] = call->in[0], [TARN__CL_Y] = call->out[0]};
    views[TARN__CL_RESIDUAL] = has_relu ? call->in[5] : NULL;
    tarn__cl_channels_describe(c, call, views, false, 1, has_relu);
}

/* Inputs x, weight, mean, rstd, gy, and with relu bias and its output or NULL; outputs gx, gweight, gbias, and with
 * relu the gradient of the residual. */
static void describe_backward(const tarn__call *call, tarn__cl_channel_job *c)
{
    const bool has_relu = call->inputs > 5;
    const tarn__view *views[TARN__CL_CHANNEL_OPERANDS] = {
        [TARN__CL_X] = call->in[0], [TARN__CL_Y] = call->out[0], [TARN__CL_GRAD_Y] = call->in[4]};
    views[TARN__CL_RESIDUAL] = has_relu ? call->in[6] : NULL;
    views[TARN__CL_GRAD_RESIDUAL] = has_relu ? call->out[3] : NULL;
    tarn__cl_channels_describe(c, call, views, false, 1, has_relu);
}

/* In training statistics are x's own and the running ones are updated; else they are given. */
static void run_batchnorm(const tarn__call *call)
{
    const tarn__batchnorm *params = call->params;
    const bool training = params->training;
    tarn__cl_channel_job c;
    describe_forward(call, &c);
    tarn__cl_channels_forward(call, &c,
                              &(tarn__cl_channel_vectors){.weight = call->in[1],
                                                          .bias = call->in[2],
                                                          .given_mean = training ? NULL : call->in[3],
                                                          .given_variance = training ? NULL : call->in[4],
                                                          .mean = call->out[1],
                                                          .rstd = call->out[2],
                                                          .running_mean = training ? call->out[3] : NULL,
                                                          .running_variance = training ? call->out[4] : NULL,
                                                          .epsilon = params->epsilon,
                                                          .momentum = params->momentum,
                                                          .training = training});
}

/* Where the output of relu is not given it is recomputed from x, before rounding: values up to half of the smallest
 * positive number of the dtype were rounded to 0 by forward, and pass no gradient. */
static void run_batchnorm_grad(const tarn__call *call)
{
    static const double half_smallest[] = {
        [TARN_F32] = 0x1p-150, [TARN_F64] = 0, [TARN_BF16] = 0x1p-134, [TARN_F16] = 0x1p-25};
    const bool has_relu = call->inputs > 5;
    tarn__cl_channel_job c;
    describe_backward(call, &c);
    tarn__cl_channels_backward(
        call, &c,
        &(tarn__cl_channel_vectors){.weight = call->in[1],
                                    .bias = has_relu ? call->in[5] : NULL,
                                    .mean = call->in[2],
                                    .rstd = call->in[3],
                                    .gweight = call->out[1],
                                    .gbias = call->out[2],
                                    .min_output = has_relu && !call->in[6] ? half_smallest[call->in[0]->dtype] : 0,
                                    .training = ((const tarn__batchnorm *)call->params)->training});
}

/* Descriptions are repeated for scratch; they are cheap. */
static size_t batchnorm_scratch(const tarn__call *call)
{
    tarn__cl_channel_job c;
    describe_forward(call, &c);
    return tarn__cl_channels_scratch(&c);
}

static size_t batchnorm_grad_scratch(const tarn__call *call)
{
    tarn__cl_channel_job c;
    describe_backward(call, &c);
    return tarn__cl_channels_scratch(&c);
}

/* ---- groupnorm --------------------------------------------------------------------------------------------------- */

/* Inputs x, weight, bias or mean, rstd and gy. */
static void describe_groups(const tarn__call *call, const tarn__view *gy, tarn__cl_channel_job *c)
{
    const tarn__view *views[TARN__CL_CHANNEL_OPERANDS] = {
        [TARN__CL_X] = call->in[0], [TARN__CL_Y] = call->out[0], [TARN__CL_GRAD_Y] = gy};
    tarn__cl_channels_describe(c, call, views, true,
                               call->in[0]->shape[1] / ((const tarn__groupnorm *)call->params)->groups, false);
}

/* Always x's own statistics; none for an empty tensor. */
static void run_groupnorm(const tarn__call *call)
{
    tarn__cl_channel_job c;
    describe_groups(call, NULL, &c);
    if (c.values == 0)
        return;
    tarn__cl_channels_forward(call, &c,
                              &(tarn__cl_channel_vectors){.weight = call->in[1],
                                                          .bias = call->in[2],
                                                          .mean = call->out[1],
                                                          .rstd = call->out[2],
                                                          .epsilon = ((const tarn__groupnorm *)call->params)->epsilon,
                                                          .training = true});
}

static void run_groupnorm_grad(const tarn__call *call)
{
    tarn__cl_channel_job c;
    describe_groups(call, call->in[4], &c);
    tarn__cl_channels_backward(call, &c,
                               &(tarn__cl_channel_vectors){.weight = call->in[1],
                                                           .mean = call->in[2],
                                                           .rstd = call->in[3],
                                                           .gweight = call->out[1],
                                                           .gbias = call->out[2],
                                                           .training = true});
}

static size_t groupnorm_scratch(const tarn__call *call)
{
    tarn__cl_channel_job c;
    describe_groups(call, NULL, &c);
    return tarn__cl_channels_scratch(&c);
}

static size_t groupnorm_grad_scratch(const tarn__call *call)
{
    tarn__cl_channel_job c;
    describe_groups(call, call->in[4], &c);
    return tarn__cl_channels_scratch(&c);
}

void tarn__cl_register_batchnorm(tarn__kernel_row *rows)
{
    rows[TARN__K_batchnorm] = tarn__row(run_batchnorm, TARN__FLOATS, batchnorm_scratch);
    rows[TARN__K_batchnorm_grad] = tarn__row(run_batchnorm_grad, TARN__FLOATS, batchnorm_grad_scratch);
    rows[TARN__K_batchnorm_relu] = rows[TARN__K_batchnorm]; /* distinguished by their operands */
    rows[TARN__K_batchnorm_relu_grad] = rows[TARN__K_batchnorm_grad];
    rows[TARN__K_groupnorm] = tarn__row(run_groupnorm, TARN__FLOATS, groupnorm_scratch);
    rows[TARN__K_groupnorm_grad] = tarn__row(run_groupnorm_grad, TARN__FLOATS, groupnorm_grad_scratch);
}
