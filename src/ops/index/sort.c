/* sort.c: sort and topk. The gradient of the values goes back to where they came from. */
#include "ops/op.h"

static bool sorted_backward(const tarn__backward *b)
{
    const tarn__along *along = b->params;
    tarn__grad_acc sink;
    return tarn__grad_acc_open(b, 0, &sink) && (sink.beta != 0 || tarn__fill_with(b->function, sink.to, 0)) &&
           tarn__kernel_call(TARN__K_scatter_add, b->function, *along, TARN__IN(b->saved[0], b->grads[0]),
                             TARN__OUT(sink.to), .reads_output = 1) &&
           tarn__grad_acc_close(b, 0, &sink);
}

/* x, or a constant as a tensor, and its axis; NULL with an error. */
static tarn_tensor *take(const char *function, tarn_tensor *x, int *axis, tarn_tensor **values, tarn_tensor **indices)
{
    if (!tarn__check(function, x, "x"))
        return NULL;
    if (!values && !indices) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the places for values and indices are both NULL", function);
        return NULL;
    }
    x = tarn__materialize(function, x, TARN_F32, tarn_device_cpu());
    return x && (*axis = tarn__check_axis(function, *axis, x->view.rank)) >= 0 ? x : NULL;
}

/* Only the values have a history; the indices are made where the caller or the gradient of the values needs them. */
static bool run(tarn__kernel kernel, const char *function, tarn_tensor *x, tarn_shape shape, tarn__along along,
                tarn_tensor **values, tarn_tensor **indices)
{
    tarn_tensor *v = NULL, *i = NULL;
    bool recorded = values && tarn__recording_needed(&x, 1);
    if (values && !(v = tarn__tensor_new(function, shape, x->view.dtype, tarn__device(x))))
        return false;
    if ((indices || recorded) && !(i = tarn__tensor_new(function, shape, TARN_I64, tarn__device(x))))
        return false;
    if (!tarn__kernel_call(kernel, function, along, TARN__IN(x), TARN__OUT(v, i)))
        return false;
    if (!tarn__finish(function, values ? sorted_backward : NULL, along, TARN__INPUTS(x), TARN__OUTPUTS(v),
                      TARN__SAVED(i)))
        return false;
    if (values)
        *values = v;
    if (indices)
        *indices = i;
    return true;
}

bool tarn_sort(tarn_tensor *x, int axis, bool descending, tarn_tensor **values, tarn_tensor **indices)
{
    if (!(x = take("sort", x, &axis, values, indices)))
        return false;
    tarn__along along = {.axis = axis, .reverse = descending};
    return run(TARN__K_sort, "sort", x, tarn__shape_of(x), along, values, indices);
}

bool tarn_topk(tarn_tensor *x, int64_t k, int axis, bool largest, tarn_tensor **values, tarn_tensor **indices)
{
    if (!(x = take("topk", x, &axis, values, indices)))
        return false;
    tarn_shape shape = tarn__shape_of(x);
    int64_t most = x->view.rank ? shape.size[axis] : 1, fewest = x->view.rank ? 0 : 1;
    if (k < fewest || k > most)
        return tarn__raise(TARN_ERROR_SHAPE, "topk: k is %lld, but axis %d of x %s has %lld elements", (long long)k,
                           axis, TARN__SHAPE_STRING(x), (long long)most);
    if (x->view.rank)
        shape.size[axis] = k;
    tarn__along along = {.axis = axis, .reverse = largest};
    return run(TARN__K_topk, "topk", x, shape, along, values, indices);
}

bool tarn__apply_sort(const tarn__invocation *v, tarn_tensor **out)
{
    return tarn_sort(v->in[0], tarn__attribute_int_clamped(v, "axis", -1), tarn__attribute_int(v, "descending", 0) != 0,
                     &out[0], &out[1]);
}

bool tarn__apply_topk(const tarn__invocation *v, tarn_tensor **out)
{
    int axis = tarn__attribute_int_clamped(v, "axis", -1);
    bool largest = tarn__attribute_int(v, "largest", 1) != 0;
    return tarn_topk(v->in[0], tarn__attribute_int(v, "k", 1), axis, largest, &out[0], &out[1]);
}
