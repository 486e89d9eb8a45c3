/* reduce.c: reductions: sum, mean, prod, max, min, argmax, argmin, var; and cumsum.
 *
 * Kernels keep x's rank with size 1 on reduced axes; without keepdim those axes are removed from the result
 * afterwards, and inserted again in its gradient.
 *
 * Saved: prod and var save x; max and min save x and the result; sum and mean save nothing. Kernels add in a fixed
 * order by shape, so sums are deterministic.
 *
 * Reduced axes may be any set: kernels merge adjacent ones first. */
#include "ops/op.h"

/* Params of a reduction's record. */
typedef struct reduce_record {
    tarn__reduce params;
    uint32_t mask; /* the reduced axes of x */
    int64_t count; /* elements per result */
} reduce_record;

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* Removes the axes of the mask, all of size 1, from a tensor not shared yet. */
static void drop_axes(tarn_tensor *y, uint32_t mask)
{
    int rank = 0;
    for (int i = 0; i < y->view.rank; i++)
        if (!((mask >> i) & 1)) {
            y->view.shape[rank] = y->view.shape[i];
            y->view.stride[rank++] = y->view.stride[i];
        }
    y->view.rank = rank;
}

/* A view of a result or gradient with the reduced axes restored: of size 1, or expanded to x's sizes. */
static tarn_tensor *with_axes(tarn_tensor *y, const tarn_shape *x, uint32_t mask, bool expanded)
{
    tarn_tensor *view = tarn__tensor_view(y);
    if (!view)
        return NULL;
    bool kept = y->view.rank == x->rank;
    for (int i = 0, from = 0; i < x->rank; i++) {
        bool reduced = (mask >> i) & 1;
        view->view.shape[i] = reduced && !expanded ? 1 : x->size[i];
        view->view.stride[i] = reduced ? 0 : y->view.stride[from];
        from += !reduced || kept;
    }
    view->view.rank = x->rank;
    return view;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Elements per result. */
static int64_t count_reduced(const tarn_tensor *x, uint32_t mask)
{
    int64_t count = 1;
    for (int i = 0; i < x->view.rank; i++)
        count *= (mask >> i) & 1 ? x->view.shape[i] : 1;
    return count;
}

/* Runs the kernel; the reduced axes still have size 1. */
static tarn_tensor *reduce(tarn__kernel kernel, const char *function, tarn_tensor *x, tarn_dtype dtype,
                           const reduce_record *r)
{
    tarn_shape shape = tarn__shape_of(x);
    for (int i = 0; i < shape.rank; i++)
        shape.size[i] = (r->mask >> i) & 1 ? 1 : shape.size[i];
    tarn_tensor *y = tarn__tensor_new(function, shape, dtype, tarn__device(x));
    return y && tarn__kernel_call(kernel, function, r->params, TARN__IN(x), TARN__OUT(y)) ? y : NULL;
}

/* Fills in mask and count of the record. */
static bool check_reduction(const char *function, const tarn_tensor *x, tarn_axes axes, uint32_t dtypes,
                            reduce_record *r)
{
    if (!tarn__check(function, x, "x") || !tarn__check_dtype(function, x, dtypes, "x") ||
        !tarn__axes_mask(function, axes, x->view.rank, &r->mask))
        return false;
    r->count = count_reduced(x, r->mask);
    return true;
}

/* max, min, argmax and argmin of no elements are undefined. */
static bool check_not_empty(const char *function, const tarn_tensor *x, uint32_t mask)
{
    for (int i = 0; i < x->view.rank; i++)
        if (((mask >> i) & 1) && x->view.shape[i] == 0)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: axis %d of x, which is %s, has no elements to choose from",
                               function, i, TARN__SHAPE_STRING(x));
    return true;
}

/* Integers and bools are summed and multiplied in i64. */
static tarn_dtype sum_dtype(const tarn_tensor *x)
{
    return tarn__is_float(x->view.dtype) ? x->view.dtype : TARN_I64;
}

/* ---- sum, mean --------------------------------------------------------------------------------------------------- */

/* Every element gets the gradient of its sum: an expanded view, no copy. */
static bool sum_backward(const tarn__backward *b)
{
    const reduce_record *r = b->params;
    return tarn__accumulate_grad(b, 0, with_axes(b->grads[0], &tarn__input_spec(b, 0)->shape, r->mask, true));
}

static bool mean_backward(const tarn__backward *b)
{
    const reduce_record *r = b->params;
    tarn_tensor *g = tarn_mul(b->grads[0], tarn_scalar(r->params.scale));
    return g && tarn__accumulate_grad(b, 0, with_axes(g, &tarn__input_spec(b, 0)->shape, r->mask, true));
}

/* sum, or sum · 1 / count in the kernel's own rounding. */
static tarn_tensor *sum_or_mean(const char *function, tarn_tensor *x, tarn_axes axes, bool keepdim, bool mean)
{
    reduce_record r = {.params = {.scale = 1}};
    if (!check_reduction(function, x, axes, mean ? TARN__FLOATS : TARN__ALL, &r))
        return NULL;
    if (mean)
        r.params.scale = 1.0 / (double)r.count; /* over no elements infinite, and 0 times that is NaN, as in torch */
    tarn_tensor *y = reduce(TARN__K_sum, function, x, sum_dtype(x), &r);
    if (!y)
        return NULL;
    if (!keepdim)
        drop_axes(y, r.mask);
    return tarn__finish(function, mean ? mean_backward : sum_backward, r, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

tarn_tensor *tarn_sum(tarn_tensor *x, tarn_axes axes, bool keepdim)
{
    return sum_or_mean("sum", x, axes, keepdim, false);
}

tarn_tensor *tarn_mean(tarn_tensor *x, tarn_axes axes, bool keepdim)
{
    return sum_or_mean("mean", x, axes, keepdim, true);
}

/* ---- prod -------------------------------------------------------------------------------------------------------- */

/* A new gradient in x's shape and layout. */
static tarn_tensor *new_gradient(const tarn__backward *b, tarn_tensor *x)
{
    return tarn__result_like(b->function, (tarn_tensor *[]){x}, 1, tarn__shape_of(x), x->view.dtype, tarn__device(x));
}

/* gx[i] = g · product of the other elements. */
static bool prod_backward(const tarn__backward *b)
{
    const reduce_record *r = b->params;
    tarn_tensor *x = b->saved[0], *gx = new_gradient(b, x);
    tarn_tensor *g = gx ? with_axes(b->grads[0], &tarn__input_spec(b, 0)->shape, r->mask, false) : NULL;
    return g && tarn__kernel_call(TARN__K_prod_grad, b->function, r->params, TARN__IN(x, g), TARN__OUT(gx)) &&
           tarn__accumulate_grad(b, 0, gx);
}

/* Saves x; its gradient needs the products of all other elements. */
tarn_tensor *tarn_prod(tarn_tensor *x, tarn_axes axes, bool keepdim)
{
    reduce_record r = {.params = {.scale = 1}};
    if (!check_reduction("prod", x, axes, TARN__ALL, &r))
        return NULL;
    tarn_tensor *y = reduce(TARN__K_prod, "prod", x, sum_dtype(x), &r);
    if (!y)
        return NULL;
    if (!keepdim)
        drop_axes(y, r.mask);
    return tarn__finish("prod", prod_backward, r, TARN__INPUTS(x), TARN__OUTPUTS(y), TARN__SAVED(x)) ? y : NULL;
}

/* ---- max, min ---------------------------------------------------------------------------------------------------- */

/* Elements equal to the result share its gradient equally. */
static bool max_backward(const tarn__backward *b)
{
    const reduce_record *r = b->params;
    const tarn_shape *shape = &tarn__input_spec(b, 0)->shape;
    tarn_tensor *x = b->saved[0], *gx = new_gradient(b, x);
    tarn_tensor *y = gx ? with_axes(b->saved[1], shape, r->mask, false) : NULL;
    tarn_tensor *g = y ? with_axes(b->grads[0], shape, r->mask, false) : NULL;
    return g && tarn__kernel_call(TARN__K_max_grad, b->function, r->params, TARN__IN(x, y, g), TARN__OUT(gx)) &&
           tarn__accumulate_grad(b, 0, gx);
}

/* Saves x and the result, to find the ties. */
static tarn_tensor *max_or_min(tarn__kernel kernel, const char *function, tarn_tensor *x, tarn_axes axes, bool keepdim)
{
    reduce_record r = {.params = {.scale = 1}};
    if (!check_reduction(function, x, axes, TARN__ALL, &r) || !check_not_empty(function, x, r.mask))
        return NULL;
    tarn_tensor *y = reduce(kernel, function, x, x->view.dtype, &r);
    if (!y)
        return NULL;
    if (!keepdim)
        drop_axes(y, r.mask);
    return tarn__finish(function, max_backward, r, TARN__INPUTS(x), TARN__OUTPUTS(y), TARN__SAVED(x, y)) ? y : NULL;
}

tarn_tensor *tarn_max(tarn_tensor *x, tarn_axes axes, bool keepdim)
{
    return max_or_min(TARN__K_max, "max", x, axes, keepdim);
}

tarn_tensor *tarn_min(tarn_tensor *x, tarn_axes axes, bool keepdim)
{
    return max_or_min(TARN__K_min, "min", x, axes, keepdim);
}

/* ---- argmax, argmin ---------------------------------------------------------------------------------------------- */

/* i64 index of the first maximum or minimum along one axis; not differentiable. */
static tarn_tensor *arg_reduce(tarn__kernel kernel, const char *function, tarn_tensor *x, int axis, bool keepdim)
{
    reduce_record r = {.params = {.scale = 1}};
    tarn_axes axes = {1, {axis}};
    if (!check_reduction(function, x, axes, TARN__ALL, &r) || !check_not_empty(function, x, r.mask))
        return NULL;
    tarn_tensor *y = reduce(kernel, function, x, TARN_I64, &r);
    if (!y)
        return NULL;
    if (!keepdim)
        drop_axes(y, r.mask);
    return tarn__finish(function, NULL, r, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

tarn_tensor *tarn_argmax(tarn_tensor *x, int axis, bool keepdim)
{
    return arg_reduce(TARN__K_argmax, "argmax", x, axis, keepdim);
}

tarn_tensor *tarn_argmin(tarn_tensor *x, int axis, bool keepdim)
{
    return arg_reduce(TARN__K_argmin, "argmin", x, axis, keepdim);
}

/* ---- var --------------------------------------------------------------------------------------------------------- */

/* gx = 2 / (count - correction) · g · (x - mean). For 16-bit floats the factor and g are multiplied in f32, to round
 * once. */
static bool var_backward(const tarn__backward *b)
{
    const reduce_record *r = b->params;
    tarn_tensor *x = b->saved[0], *gx = new_gradient(b, x);
    tarn_tensor *g = gx ? tarn_cast(b->grads[0], tarn__acc_dtype(x->view.dtype)) : NULL;
    g = g ? tarn_mul(g, tarn_scalar(2 / ((double)r->count - r->params.correction))) : NULL;
    g = g ? with_axes(g, &tarn__input_spec(b, 0)->shape, r->mask, false) : NULL;
    return g && tarn__kernel_call(TARN__K_var_grad, b->function, r->params, TARN__IN(x, g), TARN__OUT(gx)) &&
           tarn__accumulate_grad(b, 0, gx);
}

/* Variance with Bessel's correction: divides by count - correction. */
tarn_tensor *tarn_var(tarn_tensor *x, tarn_axes axes, double correction, bool keepdim)
{
    reduce_record r = {.params = {.scale = 1, .correction = correction}};
    if (!check_reduction("var", x, axes, TARN__FLOATS, &r))
        return NULL;
    tarn_tensor *y = reduce(TARN__K_var, "var", x, x->view.dtype, &r);
    if (!y)
        return NULL;
    if (!keepdim)
        drop_axes(y, r.mask);
    return tarn__finish("var", var_backward, r, TARN__INPUTS(x), TARN__OUTPUTS(y), TARN__SAVED(x)) ? y : NULL;
}

/* ---- cumsum ------------------------------------------------------------------------------------------------------ */

/* Element i is part of every sum from i on: a cumsum from the end. */
static bool cumsum_backward(const tarn__backward *b)
{
    tarn__along along = *(const tarn__along *)b->params;
    along.reverse = 1;
    tarn_tensor *g = b->grads[0], *gx = new_gradient(b, g);
    return gx && tarn__kernel_call(TARN__K_cumsum, b->function, along, TARN__IN(g), TARN__OUT(gx)) &&
           tarn__accumulate_grad(b, 0, gx);
}

/* Running sum along an axis, in i64 for integers. */
tarn_tensor *tarn_cumsum(tarn_tensor *x, int axis)
{
    if (!tarn__check("cumsum", x, "x"))
        return NULL;
    tarn__along along = {.axis = tarn__check_axis("cumsum", axis, x->view.rank)};
    if (along.axis < 0)
        return NULL;
    tarn_tensor *y =
        tarn__result_like("cumsum", (tarn_tensor *[]){x}, 1, tarn__shape_of(x), sum_dtype(x), tarn__device(x));
    if (!y || !tarn__kernel_call(TARN__K_cumsum, "cumsum", along, TARN__IN(x), TARN__OUT(y)))
        return NULL;
    return tarn__finish("cumsum", cumsum_backward, along, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

/* ---- by name ----------------------------------------------------------------------------------------------------- */

#define APPLY_OVER_AXES(name) \
    bool tarn__apply_##name(const tarn__invocation *v, tarn_tensor **out) \
    { \
        return (out[0] = tarn_##name(v->in[0], tarn__attribute_axes(v, "axes"), \
                                     tarn__attribute_int(v, "keepdim", 0) != 0)) != NULL; \
    }
APPLY_OVER_AXES(sum)
APPLY_OVER_AXES(mean)
APPLY_OVER_AXES(prod)
APPLY_OVER_AXES(max)
APPLY_OVER_AXES(min)

#define APPLY_OVER_AXIS(name) \
    bool tarn__apply_##name(const tarn__invocation *v, tarn_tensor **out) \
    { \
        int axis = tarn__attribute_int_clamped(v, "axis", -1); \
        return (out[0] = tarn_##name(v->in[0], axis, tarn__attribute_int(v, "keepdim", 0) != 0)) != NULL; \
    }
APPLY_OVER_AXIS(argmax)
APPLY_OVER_AXIS(argmin)

bool tarn__apply_var(const tarn__invocation *v, tarn_tensor **out)
{
    out[0] = tarn_var(v->in[0], tarn__attribute_axes(v, "axes"), tarn__attribute_real(v, "correction", 1),
                      tarn__attribute_int(v, "keepdim", 0) != 0);
    return out[0] != NULL;
}

bool tarn__apply_cumsum(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_cumsum(v->in[0], tarn__attribute_int_clamped(v, "axis", -1))) != NULL;
}
