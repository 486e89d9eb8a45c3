/* image.c: checks of image operations, results in the memory layout of their operands, and the gradient of a bias.
 *
 * Images are [N, C, H, W] by shape; NCHW or NHWC is a matter of strides. An operation's result follows its operand,
 * so a network stays in one layout without conversions.
 *
 * Limits keep sums of a few sizes far from overflow; products are checked where they occur. */
#include "ops/op.h"

/* Empty batches are allowed; empty images are not. */
bool tarn__check_image(const char *function, const tarn_tensor *x, const char *role)
{
    if (!tarn__check(function, x, role) || !tarn__check_dtype(function, x, TARN__FLOATS, role))
        return false;
    const int64_t *size = x->view.shape;
    if (x->view.rank != 4)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: %s %s has rank %d, but must be [N, C, H, W]", function, role,
                           TARN__SHAPE_STRING(x), x->view.rank);
    if (size[1] < 1 || size[2] < 1 || size[3] < 1 || size[2] > TARN__IMAGE_LIMIT || size[3] > TARN__IMAGE_LIMIT)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "%s: %s %s: only the first axis may be empty, and rows and columns are at most %lld",
                           function, role, TARN__SHAPE_STRING(x), (long long)TARN__IMAGE_LIMIT);
    return true;
}

bool tarn__check_pair(const char *function, const char *word, const int64_t *value, int64_t low)
{
    for (int i = 0; i < 2; i++)
        if (value[i] < low || value[i] > TARN__IMAGE_LIMIT)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s %lld of the %s is outside %lld to %lld", function, word,
                               (long long)value[i], i == 0 ? "rows" : "columns", (long long)low,
                               (long long)TARN__IMAGE_LIMIT);
    return true;
}

/* One value counts for height and width. */
bool tarn__attribute_pair(const tarn__invocation *v, const char *name, int64_t default_value, int64_t *pair)
{
    tarn_shape list = tarn__attribute_shape(v, name);
    if (list.rank > 2)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s has %d values; expected one, or one each for height and width",
                           v->name, name, list.rank);
    pair[0] = list.rank > 0 ? list.size[0] : default_value;
    pair[1] = list.rank > 0 ? list.size[list.rank - 1] : default_value;
    return true;
}

/* Axes of size 1 have arbitrary strides, so a single column is judged by its rows. */
bool tarn__channels_last(const tarn_tensor *x)
{
    const tarn__view *view = &x->view;
    return view->shape[1] > 1 && view->stride[1] == 1 &&
           (view->shape[3] == 1 ? view->shape[2] > 1 && view->stride[2] != 1 : view->stride[3] != 1);
}

tarn_tensor *tarn__image_like(const char *function, const tarn_tensor *like, tarn_shape shape, tarn_dtype dtype,
                              tarn_device device)
{
    static const int channels_last[] = {0, 2, 3, 1};
    return tarn__channels_last(like) ? tarn__tensor_new_ordered(function, shape, dtype, device, channels_last)
                                     : tarn__tensor_new(function, shape, dtype, device);
}

/* The sums go into a vector viewed as [1, O, 1, 1]. */
bool tarn__channel_bias_backward(const tarn__backward *b, int input, tarn_tensor *g)
{
    const tarn__tensor_spec *spec = tarn__input_spec(b, input);
    tarn_tensor *sums = tarn__grad_buffer(b, input, tarn__grad_dtype(b, input));
    if (!sums)
        return false;
    /* the view is changed in place: a second tensor on the storage would keep a leaf from taking it over */
    tarn__view vector = sums->view;
    sums->view.rank = 4;
    for (int i = 0; i < 4; i++) {
        sums->view.shape[i] = i == 1 ? spec->shape.size[0] : 1;
        sums->view.stride[i] = i == 1 ? 1 : 0;
    }
    tarn__reduce reduce = {.scale = 1};
    bool good = tarn__kernel_call(TARN__K_sum, b->function, reduce, TARN__IN(g), TARN__OUT(sums));
    sums->view = vector;
    return good && tarn__accumulate_grad(b, input, sums);
}
