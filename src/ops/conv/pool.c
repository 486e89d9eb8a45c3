/* pool.c: 2-D pooling: maximum and average of windows, and the average of whole channels.
 *
 * Shapes: x [N, C, H, W] -> y [N, C, OH, OW] in x's layout. Max pooling saves the argmax within each window (1 byte
 * per output), not x; average pooling saves nothing. Ties go to the first element; NaN counts as the largest. */
#include <string.h>

#include "ops/op.h"

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* Resolves defaults (stride: the kernel size; dilation: 1). Padding is at most half a kernel, so every window sees
 * the image. */
static bool check_options(const char *function, const tarn_pool2d_options *o, tarn__pool2d *params)
{
    *params = (tarn__pool2d){.exclude_padding = o->exclude_padding};
    for (int i = 0; i < 2; i++) {
        params->kernel[i] = o->kernel[i];
        params->stride[i] = o->stride[i] ? o->stride[i] : o->kernel[i];
        params->padding[i] = o->padding[i];
        params->dilation[i] = o->dilation[i] ? o->dilation[i] : 1;
    }
    if (!tarn__check_pair(function, "kernel", params->kernel, 1) ||
        !tarn__check_pair(function, "stride", params->stride, 1) ||
        !tarn__check_pair(function, "padding", params->padding, 0) ||
        !tarn__check_pair(function, "dilation", params->dilation, 1))
        return false;
    for (int i = 0; i < 2; i++) {
        if (params->kernel[i] > 1 && params->dilation[i] > TARN__IMAGE_LIMIT / (params->kernel[i] - 1))
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a dilation of %lld is too large for a kernel of %lld",
                               function, (long long)params->dilation[i], (long long)params->kernel[i]);
        if (params->padding[i] > params->kernel[i] / 2)
            return tarn__raise(
                TARN_ERROR_ARGUMENT,
                "%s: padding %lld is more than half of a kernel of %lld: a window could contain padding only", function,
                (long long)params->padding[i], (long long)params->kernel[i]);
    }
    return true;
}

/* Output size per axis. With ceil_mode the last window must start inside the image or its leading padding. */
static bool shape_of_result(const char *function, const tarn_tensor *x, const tarn__pool2d *params, bool up,
                            tarn_shape *shape)
{
    *shape = TARN_SHAPE(x->view.shape[0], x->view.shape[1], 0, 0);
    for (int i = 0; i < 2; i++) {
        int64_t size = x->view.shape[2 + i], stride = params->stride[i],
                window = params->dilation[i] * (params->kernel[i] - 1) + 1;
        int64_t space = size + 2 * params->padding[i] - window + (up ? stride - 1 : 0);
        int64_t count = space < 0 ? 0 : space / stride + 1;
        if (up && count > 0 && (count - 1) * stride >= size + params->padding[i])
            count--;
        if (count < 1)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: a window of %lld %s does not fit x %s with padding %lld",
                               function, (long long)window, i == 0 ? "rows" : "columns", TARN__SHAPE_STRING(x),
                               (long long)params->padding[i]);
        shape->size[2 + i] = count;
    }
    return true;
}

/* Checks x and the options and creates the result; NULL with an error. */
static tarn_tensor *begin(const char *function, tarn_tensor *x, const tarn_pool2d_options *options, size_t options_size,
                          tarn__pool2d *params)
{
    tarn_pool2d_options o = {0};
    tarn_shape shape;
    if (!tarn__check_image(function, x, "x"))
        return NULL;
    if (!options) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the options are NULL, but must give a kernel", function);
        return NULL;
    }
    memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    if (!check_options(function, &o, params) || !shape_of_result(function, x, params, o.ceil_mode, &shape))
        return NULL;
    return tarn__image_like(function, x, shape, x->view.dtype, tarn__device(x));
}

/* ---- max pooling ----------------------------------------------------------------------------------------------- */

/* Each gradient goes to the argmax of its window. */
static bool max_pool2d_backward(const tarn__backward *b)
{
    const tarn__tensor_spec *spec = tarn__input_spec(b, 0);
    tarn__pool2d params;
    memcpy(&params, b->params, sizeof(params));
    tarn_tensor *gx = tarn__image_like(b->function, b->saved[0], spec->shape, tarn__grad_dtype(b, 0), spec->device);
    return gx &&
           tarn__kernel_call(TARN__K_max_pool2d_grad, b->function, params, TARN__IN(b->grads[0], b->saved[0]),
                             TARN__OUT(gx)) &&
           tarn__accumulate_grad(b, 0, gx);
}

/* The argmax within each window: one byte where a window has at most 255 elements, so that 255 can mean "none". */
static tarn_tensor *new_argmax(const tarn_tensor *y, const tarn__pool2d *params)
{
    return tarn__image_like("max_pool2d", y, tarn__shape_of(y),
                            params->kernel[0] * params->kernel[1] < 256 ? TARN_U8 : TARN_I32, tarn__device(y));
}

/* The argmax is computed only if something will be recorded. */
tarn_tensor *tarn_max_pool2d_sized(tarn_tensor *x, const tarn_pool2d_options *options, size_t options_size)
{
    tarn__pool2d params;
    tarn_tensor *y = begin("max_pool2d", x, options, options_size, &params), *argmax = NULL;
    if (!y)
        return NULL;
    if (params.exclude_padding) {
        tarn__raise(TARN_ERROR_ARGUMENT,
                    "max_pool2d: exclude_padding is an option of avg_pool2d; padding is never the maximum");
        return NULL;
    }
    if (params.kernel[0] > INT32_MAX / params.kernel[1]) {
        tarn__raise(TARN_ERROR_ARGUMENT, "max_pool2d: a kernel of %lld x %lld has more than %d elements",
                    (long long)params.kernel[0], (long long)params.kernel[1], INT32_MAX);
        return NULL;
    }
    if (tarn__recording_needed(&x, 1) && !(argmax = new_argmax(y, &params)))
        return NULL;
    if (!tarn__kernel_call(TARN__K_max_pool2d, "max_pool2d", params, TARN__IN(x), TARN__OUT(y, argmax)))
        return NULL;
    return tarn__finish("max_pool2d", max_pool2d_backward, params, TARN__INPUTS(x), TARN__OUTPUTS(y),
                        TARN__SAVED(argmax))
               ? y
               : NULL;
}

/* Options from the attributes of a call by name. */
static bool options_of(const tarn__invocation *v, tarn_pool2d_options *o)
{
    *o = (tarn_pool2d_options){.ceil_mode = tarn__attribute_int(v, "ceil_mode", 0),
                               .exclude_padding = tarn__attribute_int(v, "exclude_padding", 0)};
    return tarn__attribute_pair(v, "kernel", 0, o->kernel) && tarn__attribute_pair(v, "stride", 0, o->stride) &&
           tarn__attribute_pair(v, "padding", 0, o->padding) && tarn__attribute_pair(v, "dilation", 1, o->dilation);
}

bool tarn__apply_max_pool2d(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_pool2d_options o;
    return options_of(v, &o) && (out[0] = tarn_max_pool2d(v->in[0], &o)) != NULL;
}

/* ---- average pooling ------------------------------------------------------------------------------------------- */

/* Each gradient is spread evenly over its window; nothing is saved. */
static bool avg_pool2d_backward(const tarn__backward *b)
{
    const tarn__tensor_spec *spec = tarn__input_spec(b, 0);
    tarn__pool2d params;
    memcpy(&params, b->params, sizeof(params));
    tarn_tensor *gx = tarn__image_like(b->function, b->grads[0], spec->shape, tarn__grad_dtype(b, 0), spec->device);
    return gx &&
           tarn__kernel_call(TARN__K_avg_pool2d_grad, b->function, params, TARN__IN(b->grads[0]), TARN__OUT(gx)) &&
           tarn__accumulate_grad(b, 0, gx);
}

/* Sums each window in a fixed order and divides by its size, padding included unless exclude_padding. */
tarn_tensor *tarn_avg_pool2d_sized(tarn_tensor *x, const tarn_pool2d_options *options, size_t options_size)
{
    tarn__pool2d params;
    tarn_tensor *y = begin("avg_pool2d", x, options, options_size, &params);
    if (!y)
        return NULL;
    if (params.dilation[0] != 1 || params.dilation[1] != 1) {
        tarn__raise(TARN_ERROR_ARGUMENT, "avg_pool2d: dilation is not supported; it is an option of max_pool2d");
        return NULL;
    }
    if (!tarn__kernel_call(TARN__K_avg_pool2d, "avg_pool2d", params, TARN__IN(x), TARN__OUT(y)))
        return NULL;
    return tarn__finish("avg_pool2d", avg_pool2d_backward, params, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

bool tarn__apply_avg_pool2d(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_pool2d_options o;
    return options_of(v, &o) && (out[0] = tarn_avg_pool2d(v->in[0], &o)) != NULL;
}

/* A mean over H and W: [N, C, 1, 1]. */
tarn_tensor *tarn_global_avg_pool2d(tarn_tensor *x)
{
    return tarn__check_image("global_avg_pool2d", x, "x") ? tarn_mean(x, TARN_AXES(2, 3), true) : NULL;
}

bool tarn__apply_global_avg_pool2d(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_global_avg_pool2d(v->in[0])) != NULL;
}
