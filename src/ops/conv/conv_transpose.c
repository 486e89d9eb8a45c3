/* conv_transpose.c: transposed convolution of images.
 *
 * A transposed convolution is the gradient of a convolution to its image: forward runs that kernel, the gradient of x
 * is the convolution itself, and the gradient of the weight is the convolution's with image and gradient exchanged. So
 * every backend that has the kernels of conv2d has it.
 *
 * Saved: x for the weight's gradient, weight for that of x, each only if needed. FLOPs of each of the three are those
 * of the convolution. The bias is added in place. */
#include <string.h>

#include "ops/op.h"

/* x [N, C, H, W], weight [C, O / groups, KH, KW], bias [O] or NULL; groups divides C. */
static bool check_operands(tarn_tensor **operand, int64_t groups)
{
    static const char *const roles[] = {"x", "weight", "bias"};
    if (!tarn__unify_operands("conv_transpose2d", operand, roles, operand[2] ? 3 : 2) ||
        !tarn__check_image("conv_transpose2d", operand[0], "x"))
        return false;
    const tarn_tensor *x = operand[0], *weight = operand[1], *bias = operand[2];
    const int64_t *size = weight->view.shape;
    if (weight->view.rank != 4 || size[0] < 1 || size[1] < 1 || size[2] < 1 || size[3] < 1 ||
        size[2] > TARN__IMAGE_LIMIT || size[3] > TARN__IMAGE_LIMIT)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "conv_transpose2d: weight %s is not [C, O / groups, KH, KW] with at least one of each",
                           TARN__SHAPE_STRING(weight));
    if (size[0] != x->view.shape[1])
        return tarn__raise(TARN_ERROR_SHAPE, "conv_transpose2d: weight %s has %lld channels, but x %s has %lld",
                           TARN__SHAPE_STRING(weight), (long long)size[0], TARN__SHAPE_STRING(x),
                           (long long)x->view.shape[1]);
    if (groups < 1 || size[0] % groups != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "conv_transpose2d: groups is %lld, which does not divide the %lld channels of x %s",
                           (long long)groups, (long long)size[0], TARN__SHAPE_STRING(x));
    if (bias && (bias->view.rank != 1 || bias->view.shape[0] != size[1] * groups || bias->is_constant))
        return tarn__raise(TARN_ERROR_SHAPE, "conv_transpose2d: bias %s does not fit weight %s: it must be [%lld]",
                           TARN__SHAPE_STRING(bias), TARN__SHAPE_STRING(weight), (long long)(size[1] * groups));
    return true;
}

/* Output size per axis: (size - 1) · stride - 2 · padding + dilation · (kernel - 1) + output_padding + 1. Below a
 * stride of output_padding the convolution of the result has the size of x again. */
static bool shape_of_result(const tarn_tensor *x, const tarn_tensor *weight, const tarn__conv2d *params,
                            const int64_t *output_padding, tarn_shape *shape)
{
    *shape = TARN_SHAPE(x->view.shape[0], weight->view.shape[1] * params->groups, 0, 0);
    /* Each axis by itself; products are bounded before they are formed. */
    for (int i = 0; i < 2; i++) {
        int64_t kernel = weight->view.shape[2 + i], steps = x->view.shape[2 + i] - 1;
        if (output_padding[i] >= params->stride[i])
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "conv_transpose2d: an output_padding of %lld must be less than the stride, %lld",
                               (long long)output_padding[i], (long long)params->stride[i]);
        if ((steps > 0 && params->stride[i] > TARN__IMAGE_LIMIT / steps) ||
            (kernel > 1 && params->dilation[i] > TARN__IMAGE_LIMIT / (kernel - 1)))
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "conv_transpose2d: a stride of %lld or a dilation of %lld is too large for x %s and "
                               "weight %s",
                               (long long)params->stride[i], (long long)params->dilation[i], TARN__SHAPE_STRING(x),
                               TARN__SHAPE_STRING(weight));
        int64_t size = steps * params->stride[i] - 2 * params->padding[i] + params->dilation[i] * (kernel - 1) +
                       output_padding[i] + 1;
        if (size < 1)
            return tarn__raise(TARN_ERROR_SHAPE,
                               "conv_transpose2d: a padding of %lld leaves no %s of x %s with weight %s",
                               (long long)params->padding[i], i == 0 ? "rows" : "columns", TARN__SHAPE_STRING(x),
                               TARN__SHAPE_STRING(weight));
        shape->size[2 + i] = size;
    }
    return true;
}

/* The convolution of g, in its layout, which is that of x. */
static bool x_backward(const tarn__backward *b, const tarn__conv2d *given, tarn_tensor *g)
{
    const tarn__tensor_spec *spec = tarn__input_spec(b, 0);
    tarn__conv2d params = *given;
    tarn_tensor *gx = tarn__image_like(b->function, g, spec->shape, g->view.dtype, spec->device);
    return gx &&
           tarn__kernel_call(TARN__K_conv2d, b->function, params, TARN__IN(g, b->saved[1], NULL), TARN__OUT(gx)) &&
           tarn__accumulate_grad(b, 0, gx);
}

/* The convolution's image is g, the gradient of its result is x. Accumulates straight into the weight's gradient. */
static bool weight_backward(const tarn__backward *b, const tarn__conv2d *given, tarn_tensor *g)
{
    tarn__grad_acc acc;
    tarn__conv2d params = *given;
    if (!tarn__grad_acc_open(b, 1, &acc))
        return false;
    params.beta = acc.beta;
    return tarn__kernel_call(TARN__K_conv2d_grad_weight, b->function, params, TARN__IN(g, b->saved[0]),
                             TARN__OUT(acc.tensor), .reads_output = acc.beta != 0) &&
           tarn__grad_acc_close(b, 1, &acc);
}

/* The bias is summed over all positions of its channel. */
static bool conv_transpose2d_backward(const tarn__backward *b)
{
    tarn__conv2d params;
    memcpy(&params, b->params, sizeof(params));
    return (!tarn__needs_grad(b, 0) || x_backward(b, &params, b->grads[0])) &&
           (!tarn__needs_grad(b, 1) || weight_backward(b, &params, b->grads[0])) &&
           (b->node->inputs < 3 || !tarn__needs_grad(b, 2) || tarn__channel_bias_backward(b, 2, b->grads[0]));
}

/* Forward, not recorded. With a bias a 16-bit result is rounded once: it is computed in f32 first. */
static tarn_tensor *compute(tarn_tensor **operand, const tarn__conv2d *given, tarn_shape shape)
{
    tarn_tensor *x = operand[0], *bias = operand[2];
    tarn_dtype dtype = bias ? tarn__acc_dtype(x->view.dtype) : x->view.dtype;
    tarn__conv2d params = *given;
    tarn_tensor *y = tarn__image_like("conv_transpose2d", x, shape, dtype, tarn__device(x));
    if (!y ||
        !tarn__kernel_call(TARN__K_conv2d_grad_x, "conv_transpose2d", params, TARN__IN(x, operand[1]), TARN__OUT(y)))
        return NULL;
    if (!bias)
        return y;
    tarn_tensor *channels = tarn_reshape(tarn_cast(tarn_detach(bias), dtype), TARN_SHAPE(shape.size[1], 1, 1));
    return tarn_add_inplace(y, channels) ? tarn_cast(y, x->view.dtype) : NULL;
}

/* The operands are checked. */
static tarn_tensor *record(tarn_tensor **operand, const tarn__conv2d *given, tarn_tensor *y)
{
    tarn_tensor *x = operand[0], *weight = operand[1], *bias = operand[2];
    tarn__conv2d params = *given;
    /* The gradient of each needs the other. */
    tarn_tensor *saved[] = {tarn_needs_grad(weight) ? x : NULL, tarn_needs_grad(x) ? weight : NULL};
    bool good = y && tarn__finish("conv_transpose2d", conv_transpose2d_backward, params, TARN__INPUTS(x, weight, bias),
                                  TARN__OUTPUTS(y), TARN__SAVED(saved[0], saved[1]));
    return good ? y : NULL;
}

/* x [N, C, H, W] -> y [N, O, OH, OW] in x's layout. FLOPs: 2 · N · C · H · W · O / groups · KH · KW. */
tarn_tensor *tarn_conv_transpose2d_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias,
                                         const tarn_conv_transpose2d_options *options, size_t options_size)
{
    tarn_conv_transpose2d_options o = {0};
    tarn_tensor *operand[] = {x, weight, bias};
    tarn_shape shape;
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    tarn__conv2d params = {.groups = o.groups ? o.groups : 1, .tf32 = tarn__tf32()};
    for (int i = 0; i < 2; i++) {
        params.stride[i] = o.stride[i] ? o.stride[i] : 1;
        params.padding[i] = o.padding[i];
        params.dilation[i] = o.dilation[i] ? o.dilation[i] : 1;
    }
    if (!check_operands(operand, params.groups) || !tarn__check_pair("conv_transpose2d", "stride", params.stride, 1) ||
        !tarn__check_pair("conv_transpose2d", "padding", params.padding, 0) ||
        !tarn__check_pair("conv_transpose2d", "output_padding", o.output_padding, 0) ||
        !tarn__check_pair("conv_transpose2d", "dilation", params.dilation, 1) ||
        !shape_of_result(operand[0], operand[1], &params, o.output_padding, &shape))
        return NULL;
    return record(operand, &params, compute(operand, &params, shape));
}

bool tarn__apply_conv_transpose2d(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_conv_transpose2d_options o = {.groups = tarn__attribute_int(v, "groups", 1)};
    return tarn__attribute_pair(v, "stride", 1, o.stride) && tarn__attribute_pair(v, "padding", 0, o.padding) &&
           tarn__attribute_pair(v, "output_padding", 0, o.output_padding) &&
           tarn__attribute_pair(v, "dilation", 1, o.dilation) &&
           (out[0] = tarn_conv_transpose2d(v->in[0], v->in[1], v->in[2], &o)) != NULL;
}
