/* conv.c: two-dimensional convolution.
 *
 * The gradient of x is a convolution of the result's gradient, that of the weight a sum over images, that of the bias a
 * sum. Kernels read any layout; results and the gradient of x have that of x. */
#include <string.h>

#include "ops/op.h"

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* Options that mean 1 where they are 0 become 1. */
static tarn__conv2d fill_in(const tarn_conv2d_options *o)
{
    tarn__conv2d tail = {.groups = o->groups ? o->groups : 1, .tf32 = tarn__tf32()};
    for (int i = 0; i < 2; i++) {
        tail.stride[i] = o->stride[i] ? o->stride[i] : 1;
        tail.padding[i] = o->padding[i];
        tail.dilation[i] = o->dilation[i] ? o->dilation[i] : 1;
    }
    return tail;
}

static bool check_operands(tarn_tensor **operand, const tarn__conv2d *tail)
{
    static const char *const roles[] = {"x", "weight", "bias"};
    if (!tarn__unify_operands("conv2d", operand, roles, operand[2] ? 3 : 2) ||
        !tarn__check_image("conv2d", operand[0], "x"))
        return false;
    const tarn_tensor *x = operand[0], *weight = operand[1], *bias = operand[2];
    const int64_t *size = weight->view.shape, groups = tail->groups;
    if (weight->view.rank != 4 || size[0] < 1 || size[1] < 1 || size[2] < 1 || size[3] < 1 ||
        size[2] > TARN__IMAGE_LIMIT || size[3] > TARN__IMAGE_LIMIT)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "conv2d: weight %s is not [O, C / groups, KH, KW] with at least one of each",
                           TARN__SHAPE_STRING(weight));
    if (groups < 1 || x->view.shape[1] % groups != 0 || size[0] % groups != 0)
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "conv2d: groups %lld divides not both the channels of x %s (%lld) and those of weight %s (%lld)",
            (long long)groups, TARN__SHAPE_STRING(x), (long long)x->view.shape[1], TARN__SHAPE_STRING(weight),
            (long long)size[0]);
    if (size[1] != x->view.shape[1] / groups)
        return tarn__raise(
            TARN_ERROR_SHAPE,
            "conv2d: x %s and weight %s do not fit: %lld channels in groups of %lld, but the weight takes %lld",
            TARN__SHAPE_STRING(x), TARN__SHAPE_STRING(weight), (long long)x->view.shape[1],
            (long long)(x->view.shape[1] / groups), (long long)size[1]);
    if (bias && (bias->view.rank != 1 || bias->view.shape[0] != size[0] || bias->is_constant))
        return tarn__raise(TARN_ERROR_SHAPE, "conv2d: bias %s does not fit weight %s: it must be [%lld]",
                           TARN__SHAPE_STRING(bias), TARN__SHAPE_STRING(weight), (long long)size[0]);
    return true;
}

/* The result's shape: as many places as the kernel fits into the padded image, a stride apart. */
static bool shape_of_result(const tarn_tensor *x, const tarn_tensor *weight, const tarn__conv2d *tail,
                            tarn_shape *shape)
{
    *shape = TARN_SHAPE(x->view.shape[0], weight->view.shape[0], 0, 0);
    for (int i = 0; i < 2; i++) {
        int64_t size = x->view.shape[2 + i], kernel = weight->view.shape[2 + i];
        if (kernel > 1 && tail->dilation[i] > TARN__IMAGE_LIMIT / (kernel - 1))
            return tarn__raise(TARN_ERROR_ARGUMENT, "conv2d: a dilation of %lld is too large for weight %s",
                               (long long)tail->dilation[i], TARN__SHAPE_STRING(weight));
        int64_t room = size + 2 * tail->padding[i] - tail->dilation[i] * (kernel - 1) - 1;
        if (room < 0)
            return tarn__raise(
                TARN_ERROR_SHAPE,
                "conv2d: the kernel of weight %s is larger than x %s: %lld %s, padding included, against %lld",
                TARN__SHAPE_STRING(weight), TARN__SHAPE_STRING(x), (long long)(tail->dilation[i] * (kernel - 1) + 1),
                i == 0 ? "rows" : "columns", (long long)(size + 2 * tail->padding[i]));
        shape->size[2 + i] = room / tail->stride[i] + 1;
    }
    return true;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The sum over images, rows and columns, into a vector seen as [1, O, 1, 1]. */
static bool put_bias(const tarn__backward *b, tarn_tensor *g)
{
    const tarn__tensor_spec *spec = tarn__input_spec(b, 2);
    tarn_tensor *sums = tarn__grad_buffer(b, 2, tarn__grad_dtype(b, 2));
    if (!sums)
        return false;
    tarn__view vector = sums->view; /* a second tensor on its memory would keep a leaf from taking it over */
    sums->view.rank = 4;
    for (int i = 0; i < 4; i++) {
        sums->view.shape[i] = i == 1 ? spec->shape.size[0] : 1;
        sums->view.stride[i] = i == 1 ? 1 : 0;
    }
    tarn__reduce reduce = {.scale = 1};
    bool good = tarn__kernel_call(TARN__K_sum, b->function, reduce, TARN__IN(g), TARN__OUT(sums));
    sums->view = vector;
    return good && tarn__accumulate_grad(b, 2, sums);
}

static bool put_x(const tarn__backward *b, tarn__conv2d tail, tarn_tensor *g)
{
    const tarn__tensor_spec *spec = tarn__input_spec(b, 0);
    tarn_tensor *gx = tarn__image_like(b->function, g, spec->shape, tarn__grad_dtype(b, 0), spec->device);
    return gx && tarn__kernel_call(TARN__K_conv2d_grad_x, b->function, tail, TARN__IN(g, b->saved[1]), TARN__OUT(gx)) &&
           tarn__accumulate_grad(b, 0, gx);
}

static bool put_weight(const tarn__backward *b, tarn__conv2d tail, tarn_tensor *g)
{
    tarn__grad_acc sink;
    if (!tarn__grad_acc_open(b, 1, &sink))
        return false;
    tail.beta = sink.beta;
    return tarn__kernel_call(TARN__K_conv2d_grad_weight, b->function, tail, TARN__IN(b->saved[0], g),
                             TARN__OUT(sink.to), .reads_output = sink.beta != 0) &&
           tarn__grad_acc_close(b, 1, &sink);
}

static bool conv2d_backward(const tarn__backward *b)
{
    tarn__conv2d tail;
    memcpy(&tail, b->params, sizeof(tail));
    return (!tarn__needs_grad(b, 0) || put_x(b, tail, b->grads[0])) &&
           (!tarn__needs_grad(b, 1) || put_weight(b, tail, b->grads[0])) &&
           (b->node->inputs < 3 || !tarn__needs_grad(b, 2) || put_bias(b, b->grads[0]));
}

/* ---- conv2d ------------------------------------------------------------------------------------------------------ */

tarn_tensor *tarn_conv2d_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias,
                               const tarn_conv2d_options *options, size_t options_size)
{
    tarn_conv2d_options o = {0};
    tarn_tensor *operand[] = {x, weight, bias};
    tarn_shape shape;
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    tarn__conv2d tail = fill_in(&o);
    if (!check_operands(operand, &tail) || !tarn__check_pair("conv2d", "stride", tail.stride, 1) ||
        !tarn__check_pair("conv2d", "padding", tail.padding, 0) ||
        !tarn__check_pair("conv2d", "dilation", tail.dilation, 1) ||
        !shape_of_result(operand[0], operand[1], &tail, &shape))
        return NULL;
    x = operand[0], weight = operand[1], bias = operand[2];
    tarn_tensor *y = tarn__image_like("conv2d", x, shape, x->view.dtype, tarn__device(x));
    if (!y || !tarn__kernel_call(TARN__K_conv2d, "conv2d", tail, TARN__IN(x, weight, bias), TARN__OUT(y)))
        return NULL;
    tarn_tensor *saved[] = {tarn_needs_grad(weight) ? x : NULL, tarn_needs_grad(x) ? weight : NULL};
    bool good = tarn__finish("conv2d", conv2d_backward, tail, TARN__INPUTS(x, weight, bias), TARN__OUTPUTS(y),
                             TARN__SAVED(saved[0], saved[1]));
    return good ? y : NULL;
}

bool tarn__apply_conv2d(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_conv2d_options o = {.groups = tarn__attribute_int(v, "groups", 1)};
    return tarn__attribute_pair(v, "stride", 1, o.stride) && tarn__attribute_pair(v, "padding", 0, o.padding) &&
           tarn__attribute_pair(v, "dilation", 1, o.dilation) &&
           (out[0] = tarn_conv2d(v->in[0], v->in[1], v->in[2], &o)) != NULL;
}
