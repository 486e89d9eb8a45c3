/* batchnorm.c: batchnorm over all axes but the second, alone and with relu, and its gradient, on the engine of
 * channel_stats.h. */
#include "backends/opencl/norm/channel_stats.h"

static void describe_forward(const tarn__call *call, tarn__cl_channel_job *c)
{
    const bool has_relu = call->inputs > 5;
    const tarn__view *views[TARN__CL_CHANNEL_OPERANDS] = {[TARN__CL_X] = call->in[0], [TARN__CL_Y] = call->out[0]};
    views[TARN__CL_RESIDUAL] = has_relu ? call->in[5] : NULL;
    tarn__cl_channels_describe(c, call, views, false, 1, has_relu);
}

static void describe_backward(const tarn__call *call, tarn__cl_channel_job *c)
{
    const bool has_relu = call->inputs > 5;
    const tarn__view *views[TARN__CL_CHANNEL_OPERANDS] = {
        [TARN__CL_X] = call->in[0], [TARN__CL_Y] = call->out[0], [TARN__CL_GRAD_Y] = call->in[4]};
    views[TARN__CL_RESIDUAL] = has_relu ? call->in[6] : NULL;
    views[TARN__CL_GRAD_RESIDUAL] = has_relu ? call->out[3] : NULL;
    tarn__cl_channels_describe(c, call, views, false, 1, has_relu);
}

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

/* Where relu's result is not given it is made again from x, before rounding: `least` is half of the smallest number
 * above 0. */
static void run_batchnorm_grad(const tarn__call *call)
{
    static const double half_of_the_least[] = {
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
                                    .least = has_relu && !call->in[6] ? half_of_the_least[call->in[0]->dtype] : 0,
                                    .training = ((const tarn__batchnorm *)call->params)->training});
}

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

void tarn__cl_register_batchnorm(tarn__kernel_row *rows)
{
    rows[TARN__K_batchnorm] = (tarn__kernel_row){run_batchnorm, TARN__FLOATS, batchnorm_scratch};
    rows[TARN__K_batchnorm_grad] = (tarn__kernel_row){run_batchnorm_grad, TARN__FLOATS, batchnorm_grad_scratch};
    rows[TARN__K_batchnorm_relu] = rows[TARN__K_batchnorm]; /* they have more operands */
    rows[TARN__K_batchnorm_relu_grad] = rows[TARN__K_batchnorm_grad];
}
