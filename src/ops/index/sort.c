/* sort.c: sort and topk. The gradient of the values is scattered back to their original positions.
 *
 * Sorting is stable, NaN sorts as the largest value, and the order of equal elements is the same on all backends.
 *
 * topk selects without sorting the whole row where the backend can; the result is the same. */
#include "ops/op.h"

/* gx[index] += g: a scatter_add into the accumulator. */
static bool sorted_backward(const tarn__backward *b)
{
    const tarn__along *along = b->params;
    tarn__grad_acc acc;
    return tarn__grad_acc_open(b, 0, &acc) && (acc.beta != 0 || tarn__fill_with(b->function, acc.tensor, 0)) &&
           tarn__kernel_call(TARN__K_scatter_add, b->function, *along, TARN__IN(b->saved[0], b->grads[0]),
                             TARN__OUT(acc.tensor), .reads_output = 1) &&
           tarn__grad_acc_close(b, 0, &acc);
}

/* Checks x and the axis; a constant becomes a tensor. NULL with an error. */
static tarn_tensor *check_operand(const char *function, tarn_tensor *x, int *axis, tarn_tensor **values,
                                  tarn_tensor **indices)
{
    if (!tarn__check(function, x, "x"))
        return NULL;
    if (!values && !indices) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: values and indices are both NULL", function);
        return NULL;
    }
    x = tarn__materialize(function, x, TARN_F32, tarn_device_cpu());
    return x && (*axis = tarn__check_axis(function, *axis, x->view.rank)) >= 0 ? x : NULL;
}

/* Indices are computed if the caller wants them or the gradient of the values needs them; only the values are
 * recorded. */
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

/* Ascending or descending, stable. */
bool tarn_sort(tarn_tensor *x, int axis, bool descending, tarn_tensor **values, tarn_tensor **indices)
{
    if (!(x = check_operand("sort", x, &axis, values, indices)))
        return false;
    tarn__along along = {.axis = axis, .reverse = descending};
    return run(TARN__K_sort, "sort", x, tarn__shape_of(x), along, values, indices);
}

/* The k largest (or smallest) elements along an axis, sorted; ties keep their order. */
bool tarn_topk(tarn_tensor *x, int64_t k, int axis, bool largest, tarn_tensor **values, tarn_tensor **indices)
{
    if (!(x = check_operand("topk", x, &axis, values, indices)))
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
