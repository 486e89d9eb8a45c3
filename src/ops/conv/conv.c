/* conv.c: two-dimensional convolution.
 *
 * dgrad is a convolution of the result's gradient, wgrad a sum over images, the bias gradient a sum. Kernels read
 * any layout (NCHW, NHWC); results and dgrad have the layout of x.
 *
 * Saved: x for wgrad, weight for dgrad, each only if needed. wgrad accumulates straight into the weight's gradient
 * (beta); dgrad and the bias gradient are new tensors. Backends choose the algorithm (im2col, implicit GEMM, cuDNN)
 * by shape alone or by autotuning, which resumed runs replay.
 *
 * FLOPs of dgrad and wgrad equal those of forward each. */
#include <string.h>

#include "ops/op.h"

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* Kernel params; zeros that mean 1 become 1. */
static tarn__conv2d params_of(const tarn_conv2d_options *o)
{
    tarn__conv2d params = {.groups = o->groups ? o->groups : 1, .tf32 = tarn__tf32()};
    for (int i = 0; i < 2; i++) {
        params.stride[i] = o->stride[i] ? o->stride[i] : 1;
        params.padding[i] = o->padding[i];
        params.dilation[i] = o->dilation[i] ? o->dilation[i] : 1;
    }
    return params;
}

/* x [N, C, H, W], weight [O, C / groups, KH, KW], bias [O] or NULL; groups divides C and O. */
static bool check_operands(tarn_tensor **operand, const tarn__conv2d *params)
{
    static const char *const roles[] = {"x", "weight", "bias"};
    if (!tarn__unify_operands("conv2d", operand, roles, operand[2] ? 3 : 2) ||
        !tarn__check_image("conv2d", operand[0], "x"))
        return false;
    const tarn_tensor *x = operand[0], *weight = operand[1], *bias = operand[2];
    const int64_t *size = weight->view.shape, groups = params->groups;
    if (weight->view.rank != 4 || size[0] < 1 || size[1] < 1 || size[2] < 1 || size[3] < 1 ||
        size[2] > TARN__IMAGE_LIMIT || size[3] > TARN__IMAGE_LIMIT)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "conv2d: weight %s is not [O, C / groups, KH, KW] with at least one of each",
                           TARN__SHAPE_STRING(weight));
    if (groups < 1 || x->view.shape[1] % groups != 0 || size[0] % groups != 0)
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "conv2d: groups is %lld, which does not divide both the channels of x %s (%lld) and of weight %s (%lld)",
            (long long)groups, TARN__SHAPE_STRING(x), (long long)x->view.shape[1], TARN__SHAPE_STRING(weight),
            (long long)size[0]);
    if (size[1] != x->view.shape[1] / groups)
        return tarn__raise(
            TARN_ERROR_SHAPE,
            "conv2d: x %s and weight %s do not fit: %lld channels in groups of %lld, but the weight expects %lld",
            TARN__SHAPE_STRING(x), TARN__SHAPE_STRING(weight), (long long)x->view.shape[1],
            (long long)(x->view.shape[1] / groups), (long long)size[1]);
    if (bias && (bias->view.rank != 1 || bias->view.shape[0] != size[0] || bias->is_constant))
        return tarn__raise(TARN_ERROR_SHAPE, "conv2d: bias %s does not fit weight %s: it must be [%lld]",
                           TARN__SHAPE_STRING(bias), TARN__SHAPE_STRING(weight), (long long)size[0]);
    return true;
}

/* Output size per axis: (size + 2 · padding - dilation · (kernel - 1) - 1) / stride + 1. */
static bool shape_of_result(const tarn_tensor *x, const tarn_tensor *weight, const tarn__conv2d *params,
                            tarn_shape *shape)
{
    *shape = TARN_SHAPE(x->view.shape[0], weight->view.shape[0], 0, 0);
    for (int i = 0; i < 2; i++) {
        int64_t size = x->view.shape[2 + i], kernel = weight->view.shape[2 + i];
        if (kernel > 1 && params->dilation[i] > TARN__IMAGE_LIMIT / (kernel - 1))
            return tarn__raise(TARN_ERROR_ARGUMENT, "conv2d: a dilation of %lld is too large for weight %s",
                               (long long)params->dilation[i], TARN__SHAPE_STRING(weight));
        int64_t space = size + 2 * params->padding[i] - params->dilation[i] * (kernel - 1) - 1;
        if (space < 0)
            return tarn__raise(
                TARN_ERROR_SHAPE,
                "conv2d: the kernel of weight %s is larger than x %s: %lld %s, padding included, against %lld",
                TARN__SHAPE_STRING(weight), TARN__SHAPE_STRING(x), (long long)(params->dilation[i] * (kernel - 1) + 1),
                i == 0 ? "rows" : "columns", (long long)(size + 2 * params->padding[i]));
        shape->size[2 + i] = space / params->stride[i] + 1;
    }
    return true;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The gradient has the layout of g, which is that of x. */
static bool dgrad(const tarn__backward *b, tarn__conv2d params, tarn_tensor *g)
{
    const tarn__tensor_spec *spec = tarn__input_spec(b, 0);
    tarn_tensor *gx = tarn__image_like(b->function, g, spec->shape, tarn__grad_dtype(b, 0), spec->device);
    return gx &&
           tarn__kernel_call(TARN__K_conv2d_grad_x, b->function, params, TARN__IN(g, b->saved[1]), TARN__OUT(gx)) &&
           tarn__accumulate_grad(b, 0, gx);
}

/* Accumulates straight into the weight's gradient (beta). */
static bool wgrad(const tarn__backward *b, tarn__conv2d params, tarn_tensor *g)
{
    tarn__grad_acc acc;
    if (!tarn__grad_acc_open(b, 1, &acc))
        return false;
    params.beta = acc.beta;
    return tarn__kernel_call(TARN__K_conv2d_grad_weight, b->function, params, TARN__IN(b->saved[0], g),
                             TARN__OUT(acc.tensor), .reads_output = acc.beta != 0) &&
           tarn__grad_acc_close(b, 1, &acc);
}

/* Each gradient is computed only where needed; x and weight are saved only for the gradient of the other. */
static bool conv2d_backward(const tarn__backward *b)
{
    tarn__conv2d params;
    memcpy(&params, b->params, sizeof(params));
    return (!tarn__needs_grad(b, 0) || dgrad(b, params, b->grads[0])) &&
           (!tarn__needs_grad(b, 1) || wgrad(b, params, b->grads[0])) &&
           (b->node->inputs < 3 || !tarn__needs_grad(b, 2) || tarn__channel_bias_backward(b, 2, b->grads[0]));
}

/* ---- conv2d ------------------------------------------------------------------------------------------------------ */

/* x [N, C, H, W] -> y [N, O, OH, OW] in x's layout. FLOPs: 2 · N · O · OH · OW · C / groups · KH · KW. */
tarn_tensor *tarn_conv2d_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias,
                               const tarn_conv2d_options *options, size_t options_size)
{
    tarn_conv2d_options o = {0};
    tarn_tensor *operand[] = {x, weight, bias};
    tarn_shape shape;
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    tarn__conv2d params = params_of(&o);
    if (!check_operands(operand, &params) || !tarn__check_pair("conv2d", "stride", params.stride, 1) ||
        !tarn__check_pair("conv2d", "padding", params.padding, 0) ||
        !tarn__check_pair("conv2d", "dilation", params.dilation, 1) ||
        !shape_of_result(operand[0], operand[1], &params, &shape))
        return NULL;
    x = operand[0], weight = operand[1], bias = operand[2];
    tarn_tensor *y = tarn__image_like("conv2d", x, shape, x->view.dtype, tarn__device(x));
    if (!y || !tarn__kernel_call(TARN__K_conv2d, "conv2d", params, TARN__IN(x, weight, bias), TARN__OUT(y)))
        return NULL;
    /* wgrad reads x, dgrad reads the weight: an operand of a gradient that is not needed is not saved. */
    tarn_tensor *saved[] = {tarn_needs_grad(weight) ? x : NULL, tarn_needs_grad(x) ? weight : NULL};
    bool good = tarn__finish("conv2d", conv2d_backward, params, TARN__INPUTS(x, weight, bias), TARN__OUTPUTS(y),
                             TARN__SAVED(saved[0], saved[1]));
    return good ? y : NULL;
}

/* stride, padding and dilation may be one value for both axes. */
bool tarn__apply_conv2d(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_conv2d_options o = {.groups = tarn__attribute_int(v, "groups", 1)};
    return tarn__attribute_pair(v, "stride", 1, o.stride) && tarn__attribute_pair(v, "padding", 0, o.padding) &&
           tarn__attribute_pair(v, "dilation", 1, o.dilation) &&
           (out[0] = tarn_conv2d(v->in[0], v->in[1], v->in[2], &o)) != NULL;
}
