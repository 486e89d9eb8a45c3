/* flatten.c: the last axes made one, between the convolutions of a network and its linear layers. */
#include "nn/module.h"

static tarn_tensor *forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module;
    int first = tarn__check_axis("flatten", *(const int *)ctx, x->view.rank);
    if (first < 0)
        return NULL;
    tarn_shape shape = tarn__shape_of(x);
    for (int i = first + 1; i < shape.rank; i++)
        shape.size[first] *= shape.size[i];
    shape.rank = first + 1;
    return tarn_reshape(x, shape);
}

tarn_module *tarn_flatten(int first_axis)
{
    if (tarn_failed())
        return NULL;
    if (first_axis < -TARN_MAX_RANK || first_axis >= TARN_MAX_RANK) {
        tarn__raise(TARN_ERROR_ARGUMENT, "flatten: axis %d is outside every tensor, which has at most %d axes",
                    first_axis, TARN_MAX_RANK);
        return NULL;
    }
    return tarn__module_new_with("flatten", "flatten", forward, &first_axis, sizeof(first_axis));
}
