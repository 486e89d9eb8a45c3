/* pool.c: pooling of images: the largest element or the average of each window, and the average of a whole channel. */
#include <string.h>

#include "ops/op.h"

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static bool check_options(const char *function, const tarn_pool2d_options *o, tarn__pool2d *tail)
{
    *tail = (tarn__pool2d){.exclude_padding = o->exclude_padding};
    for (int i = 0; i < 2; i++) {
        tail->kernel[i] = o->kernel[i];
        tail->stride[i] = o->stride[i] ? o->stride[i] : o->kernel[i];
        tail->padding[i] = o->padding[i];
        tail->dilation[i] = o->dilation[i] ? o->dilation[i] : 1;
    }
    if (!tarn__check_pair(function, "kernel", tail->kernel, 1) ||
        !tarn__check_pair(function, "stride", tail->stride, 1) ||
        !tarn__check_pair(function, "padding", tail->padding, 0) ||
        !tarn__check_pair(function, "dilation", tail->dilation, 1))
        return false;
    for (int i = 0; i < 2; i++) {
        if (tail->kernel[i] > 1 && tail->dilation[i] > TARN__IMAGE_LIMIT / (tail->kernel[i] - 1))
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a dilation of %lld is too large for a kernel of %lld",
                               function, (long long)tail->dilation[i], (long long)tail->kernel[i]);
        if (tail->padding[i] > tail->kernel[i] / 2)
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "%s: padding %lld is more than half of a kernel of %lld: windows would see nothing else",
                               function, (long long)tail->padding[i], (long long)tail->kernel[i]);
    }
    return true;
}

/* How many windows begin inside the padded image, a stride apart. Rounded up, the last one must begin before the
 * padding behind the image. */
static bool shape_of_result(const char *function, const tarn_tensor *x, const tarn__pool2d *tail, bool up,
                            tarn_shape *shape)
{
    *shape = TARN_SHAPE(x->view.shape[0], x->view.shape[1], 0, 0);
    for (int i = 0; i < 2; i++) {
        int64_t size = x->view.shape[2 + i], stride = tail->stride[i],
                window = tail->dilation[i] * (tail->kernel[i] - 1) + 1;
        int64_t room = size + 2 * tail->padding[i] - window + (up ? stride - 1 : 0);
        int64_t count = room < 0 ? 0 : room / stride + 1;
        if (up && count > 0 && (count - 1) * stride >= size + tail->padding[i])
            count--;
        if (count < 1)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: a window of %lld %s does not fit x %s with padding %lld",
                               function, (long long)window, i == 0 ? "rows" : "columns", TARN__SHAPE_STRING(x),
                               (long long)tail->padding[i]);
        shape->size[2 + i] = count;
    }
    return true;
}

/* x's checks, its options and its result; NULL with an error. */
static tarn_tensor *begin(const char *function, tarn_tensor *x, const tarn_pool2d_options *options, size_t options_size,
                          tarn__pool2d *tail)
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
    if (!check_options(function, &o, tail) || !shape_of_result(function, x, tail, o.ceil_mode, &shape))
        return NULL;
    return tarn__image_like(function, x, shape, x->view.dtype, tarn__device(x));
}

/* ---- the largest ------------------------------------------------------------------------------------------------- */

static bool max_pool2d_backward(const tarn__backward *b)
{
    const tarn__tensor_spec *spec = tarn__input_spec(b, 0);
    tarn__pool2d tail;
    memcpy(&tail, b->params, sizeof(tail));
    tarn_tensor *gx = tarn__image_like(b->function, b->saved[0], spec->shape, tarn__grad_dtype(b, 0), spec->device);
    return gx &&
           tarn__kernel_call(TARN__K_max_pool2d_grad, b->function, tail, TARN__IN(b->grads[0], b->saved[0]),
                             TARN__OUT(gx)) &&
           tarn__accumulate_grad(b, 0, gx);
}

/* Places are the numbers of the largest elements in their windows, in one byte where a window has so few that 255 is
 * left for "none". */
static tarn_tensor *make_places(const tarn_tensor *y, const tarn__pool2d *tail)
{
    return tarn__image_like("max_pool2d", y, tarn__shape_of(y),
                            tail->kernel[0] * tail->kernel[1] < 256 ? TARN_U8 : TARN_I32, tarn__device(y));
}

/* Where the largest elements lie is kept only where something will be recorded. */
tarn_tensor *tarn_max_pool2d_sized(tarn_tensor *x, const tarn_pool2d_options *options, size_t options_size)
{
    tarn__pool2d tail;
    tarn_tensor *y = begin("max_pool2d", x, options, options_size, &tail), *places = NULL;
    if (!y)
        return NULL;
    if (tail.exclude_padding) {
        tarn__raise(TARN_ERROR_ARGUMENT,
                    "max_pool2d: exclude_padding is an option of averages: padding is never the largest element");
        return NULL;
    }
    if (tail.kernel[0] > INT32_MAX / tail.kernel[1]) {
        tarn__raise(TARN_ERROR_ARGUMENT, "max_pool2d: a kernel of %lld x %lld has more than %d elements",
                    (long long)tail.kernel[0], (long long)tail.kernel[1], INT32_MAX);
        return NULL;
    }
    if (tarn__recording_needed(&x, 1) && !(places = make_places(y, &tail)))
        return NULL;
    if (!tarn__kernel_call(TARN__K_max_pool2d, "max_pool2d", tail, TARN__IN(x), TARN__OUT(y, places)))
        return NULL;
    return tarn__finish("max_pool2d", max_pool2d_backward, tail, TARN__INPUTS(x), TARN__OUTPUTS(y), TARN__SAVED(places))
               ? y
               : NULL;
}

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

/* ---- averages ---------------------------------------------------------------------------------------------------- */

static bool avg_pool2d_backward(const tarn__backward *b)
{
    const tarn__tensor_spec *spec = tarn__input_spec(b, 0);
    tarn__pool2d tail;
    memcpy(&tail, b->params, sizeof(tail));
    tarn_tensor *gx = tarn__image_like(b->function, b->grads[0], spec->shape, tarn__grad_dtype(b, 0), spec->device);
    return gx && tarn__kernel_call(TARN__K_avg_pool2d_grad, b->function, tail, TARN__IN(b->grads[0]), TARN__OUT(gx)) &&
           tarn__accumulate_grad(b, 0, gx);
}

tarn_tensor *tarn_avg_pool2d_sized(tarn_tensor *x, const tarn_pool2d_options *options, size_t options_size)
{
    tarn__pool2d tail;
    tarn_tensor *y = begin("avg_pool2d", x, options, options_size, &tail);
    if (!y)
        return NULL;
    if (tail.dilation[0] != 1 || tail.dilation[1] != 1) {
        tarn__raise(TARN_ERROR_ARGUMENT, "avg_pool2d: dilation is an option of maxima; averages have none");
        return NULL;
    }
    if (!tarn__kernel_call(TARN__K_avg_pool2d, "avg_pool2d", tail, TARN__IN(x), TARN__OUT(y)))
        return NULL;
    return tarn__finish("avg_pool2d", avg_pool2d_backward, tail, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

bool tarn__apply_avg_pool2d(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_pool2d_options o;
    return options_of(v, &o) && (out[0] = tarn_avg_pool2d(v->in[0], &o)) != NULL;
}

tarn_tensor *tarn_global_avg_pool2d(tarn_tensor *x)
{
    return tarn__check_image("global_avg_pool2d", x, "x") ? tarn_mean(x, TARN_AXES(2, 3), true) : NULL;
}

bool tarn__apply_global_avg_pool2d(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_global_avg_pool2d(v->in[0])) != NULL;
}
