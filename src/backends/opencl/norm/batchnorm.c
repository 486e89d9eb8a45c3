/* batchnorm.c: batchnorm over (N, C, ...), alone and fused with relu, groupnorm, and their gradients, as jobs of the
 * channel engine (channel_stats.h).
 *
 * batchnorm shares a mean between all samples of a channel: a set is a channel. groupnorm shares it between the
 * channels of a group in one sample: a set is a channel of a sample, and C / groups adjacent sets share a mean. */
#include "backends/opencl/norm/channel_stats.h"

/* Inputs x, weight, bias, mean, variance, and with relu a residual or NULL; output y first. In training statistics are
 * x's own and the running ones are updated; else they are given. */
static tarn__cl_channel_operands batchnorm_operands(const tarn__call *call)
{
    const tarn__batchnorm *params = call->params;
    const bool training = params->training, has_relu = call->inputs > 5;
    return (tarn__cl_channel_operands){.view = {[TARN__CL_X] = call->in[0],
                                                [TARN__CL_Y] = call->out[0],
                                                [TARN__CL_RESIDUAL] = has_relu ? call->in[5] : NULL},
                                       .weight = call->in[1],
                                       .bias = call->in[2],
                                       .given_mean = training ? NULL : call->in[3],
                                       .given_variance = training ? NULL : call->in[4],
                                       .mean = call->out[1],
                                       .rstd = call->out[2],
                                       .running_mean = training ? call->out[3] : NULL,
                                       .running_variance = training ? call->out[4] : NULL,
                                       .epsilon = params->epsilon,
                                       .momentum = params->momentum,
                                       .training = training,
                                       .has_relu = has_relu,
                                       .members = 1};
}

/* Inputs x, weight, mean, rstd, gy, and with relu bias and its output or NULL; outputs gx, gweight, gbias, and with
 * relu the gradient of the residual. Where the output of relu is not given it is recomputed from x, before rounding:
 * values up to half of the smallest positive number of the dtype were rounded to 0 by forward, and pass no gradient. */
static tarn__cl_channel_operands batchnorm_grad_operands(const tarn__call *call)
{
    static const double half_smallest[] = {
        [TARN_F32] = 0x1p-150, [TARN_F64] = 0, [TARN_BF16] = 0x1p-134, [TARN_F16] = 0x1p-25};
    const bool has_relu = call->inputs > 5;
    return (tarn__cl_channel_operands){.view = {[TARN__CL_X] = call->in[0],
                                                [TARN__CL_Y] = call->out[0],
                                                [TARN__CL_GRAD_Y] = call->in[4],
                                                [TARN__CL_RESIDUAL] = has_relu ? call->in[6] : NULL,
                                                [TARN__CL_GRAD_RESIDUAL] = has_relu ? call->out[3] : NULL},
                                       .weight = call->in[1],
                                       .bias = has_relu ? call->in[5] : NULL,
                                       .mean = call->in[2],
                                       .rstd = call->in[3],
                                       .gweight = call->out[1],
                                       .gbias = call->out[2],
                                       .min_output = has_relu && !call->in[6] ? half_smallest[call->in[0]->dtype] : 0,
                                       .training = ((const tarn__batchnorm *)call->params)->training,
                                       .has_relu = has_relu,
                                       .members = 1};
}

static int64_t members_of(const tarn__call *call)
{
    return call->in[0]->shape[1] / ((const tarn__groupnorm *)call->params)->groups;
}

/* Inputs x, weight, bias; outputs y, mean, rstd. Always x's own statistics. */
static tarn__cl_channel_operands groupnorm_operands(const tarn__call *call)
{
    return (tarn__cl_channel_operands){.view = {[TARN__CL_X] = call->in[0], [TARN__CL_Y] = call->out[0]},
                                       .weight = call->in[1],
                                       .bias = call->in[2],
                                       .mean = call->out[1],
                                       .rstd = call->out[2],
                                       .epsilon = ((const tarn__groupnorm *)call->params)->epsilon,
                                       .training = true,
                                       .per_sample = true,
                                       .members = members_of(call)};
}

/* Inputs x, weight, mean, rstd, gy; outputs gx, gweight, gbias. */
static tarn__cl_channel_operands groupnorm_grad_operands(const tarn__call *call)
{
    return (tarn__cl_channel_operands){
        .view = {[TARN__CL_X] = call->in[0], [TARN__CL_Y] = call->out[0], [TARN__CL_GRAD_Y] = call->in[4]},
        .weight = call->in[1],
        .mean = call->in[2],
        .rstd = call->in[3],
        .gweight = call->out[1],
        .gbias = call->out[2],
        .training = true,
        .per_sample = true,
        .members = members_of(call)};
}

#define KERNEL(name, direction) \
    static tarn__plan_status prepare_##name(const tarn__call *call, tarn__plan *plan) \
    { \
        const tarn__cl_channel_operands operands = name##_operands(call); \
        return tarn__cl_channels_prepare_##direction(call, &operands, plan); \
    } \
    static void run_##name(const tarn__call *call) \
    { \
        const tarn__cl_channel_operands operands = name##_operands(call); \
        tarn__cl_channels_##direction(call, &operands); \
    }
KERNEL(batchnorm, forward)
KERNEL(batchnorm_grad, backward)
KERNEL(groupnorm, forward)
KERNEL(groupnorm_grad, backward)

void tarn__cl_register_batchnorm(tarn__kernel_row *rows)
{
    rows[TARN__K_batchnorm] = tarn__row_planned(prepare_batchnorm, run_batchnorm, TARN__FLOATS);
    rows[TARN__K_batchnorm_grad] = tarn__row_planned(prepare_batchnorm_grad, run_batchnorm_grad, TARN__FLOATS);
    rows[TARN__K_batchnorm_relu] = rows[TARN__K_batchnorm]; /* distinguished by their operands */
    rows[TARN__K_batchnorm_relu_grad] = rows[TARN__K_batchnorm_grad];
    rows[TARN__K_groupnorm] = tarn__row_planned(prepare_groupnorm, run_groupnorm, TARN__FLOATS);
    rows[TARN__K_groupnorm_grad] = tarn__row_planned(prepare_groupnorm_grad, run_groupnorm_grad, TARN__FLOATS);
}
