/* groupnorm.c: groupnorm, over the channels of a group and all that lies behind them, and its gradient, on the engine
 * of channel_stats.h. */
#include "backends/opencl/norm/channel_stats.h"

static void describe(const tarn__call *call, const tarn__view *up, tarn__cl_channel_job *c)
{
    const tarn__view *views[TARN__CL_CHANNEL_OPERANDS] = {
        [TARN__CL_X] = call->in[0], [TARN__CL_Y] = call->out[0], [TARN__CL_GRAD_Y] = up};
    tarn__cl_channels_describe(c, call, views, true,
                               call->in[0]->shape[1] / ((const tarn__groupnorm *)call->params)->groups, false);
}

static void run_groupnorm(const tarn__call *call)
{
    tarn__cl_channel_job c;
    describe(call, NULL, &c);
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
    describe(call, call->in[4], &c);
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
    describe(call, NULL, &c);
    return tarn__cl_channels_scratch(&c);
}

static size_t groupnorm_grad_scratch(const tarn__call *call)
{
    tarn__cl_channel_job c;
    describe(call, call->in[4], &c);
    return tarn__cl_channels_scratch(&c);
}

void tarn__cl_register_groupnorm(tarn__kernel_row *rows)
{
    rows[TARN__K_groupnorm] = (tarn__kernel_row){run_groupnorm, TARN__FLOATS, groupnorm_scratch};
    rows[TARN__K_groupnorm_grad] = (tarn__kernel_row){run_groupnorm_grad, TARN__FLOATS, groupnorm_grad_scratch};
}
