/* movement.c: views with another shape or order of axes: reshape, unsqueeze, squeeze, permute, transpose, expand,
 * flip. (Slices are in slice.c, joined tensors in concat.c.)
 *
 * All results share the storage, and so the version, of the operand; only reshape may have to copy. Backward is the
 * inverse movement of the gradient.
 *
 * A view costs one header and no kernel. Quantized tensors may be moved as long as blocks stay whole and on the last
 * axis (tarn__check_layout()). */
#include <string.h>

#include "ops/op.h"

/* A view of x with the rank, shape and strides of `layout`, starting `skip` elements after x. */
static tarn_tensor *view_of(const char *function, tarn_tensor *x, const tarn__view *layout, int64_t skip)
{
    tarn_tensor *view = tarn__check_layout(function, layout) ? tarn__tensor_view(x) : NULL;
    if (!view)
        return NULL;
    view->view = *layout;
    tarn__tensor_set_start(view, x->start + skip);
    return view;
}

/* ---- reshape ----------------------------------------------------------------------------------------------------- */

/* A run: adjacent axes that are contiguous with each other and act as one. */
typedef struct run {
    int64_t size, stride;
} run;

/* The maximal runs of a view, outermost first; axes of size 1 are dropped. Returns their number. */
static int find_runs(const tarn__view *view, run *runs)
{
    int count = 0;
    for (int i = 0; i < view->rank; i++) {
        if (view->shape[i] == 1)
            continue;
        if (count > 0 && runs[count - 1].stride == view->stride[i] * view->shape[i]) {
            runs[count - 1].size *= view->shape[i];
            runs[count - 1].stride = view->stride[i];
        } else {
            runs[count++] = (run){view->shape[i], view->stride[i]};
        }
    }
    return count;
}

/* Computes strides for to's shape over from's elements. False when a new axis would span two runs: a copy is needed. */
static bool restride(tarn__view *to, const tarn__view *from)
{
    run runs[TARN_MAX_RANK];
    int at = find_runs(from, runs);
    if (tarn__view_count(from) == 0 || at == 0) {
        tarn__view_set_row_major(to);
        return true;
    }
    /* New axes are cut from the innermost run outwards; `left` is the remainder of the current run. */
    run left = runs[--at];
    for (int axis = to->rank - 1; axis >= 0; axis--) {
        int64_t size = to->shape[axis];
        if (left.size == 1 && size != 1)
            left = runs[--at];
        if (left.size % size != 0)
            return false;
        to->stride[axis] = left.stride;
        left.stride *= size;
        left.size /= size;
    }
    return true;
}

/* Infers a size of -1 and compares the number of elements. */
static bool resolve_shape(const tarn_tensor *x, tarn_shape *shape)
{
    int open = -1;
    int64_t unit = 1; /* the inferred size is a multiple of this: the block size on the last axis */
    tarn_shape known = *shape;
    for (int i = 0; i < shape->rank && i < TARN_MAX_RANK; i++)
        if (shape->size[i] == -1) {
            if (open >= 0)
                return tarn__raise(TARN_ERROR_SHAPE,
                                   "reshape: sizes of axes %d and %d are both -1; only one can be inferred", open, i);
            open = i;
            known.size[i] = unit = i == shape->rank - 1 ? tarn__dtypes[x->view.dtype].block_elements : 1;
        }
    if (!tarn__check_shape("reshape", known, x->view.dtype))
        return false;
    /* Cannot overflow: tarn__check_shape() has bounded the number of elements. */
    int64_t have = tarn__view_count(&x->view), product = 1;
    for (int i = 0; i < known.rank; i++)
        product *= known.size[i];
    if (open >= 0 && product == 0)
        return tarn__raise(TARN_ERROR_SHAPE, "reshape: the size -1 of axis %d is ambiguous: another size is 0", open);
    if (open >= 0 && have % product == 0)
        known.size[open] = have / product * unit;
    else if (have != product)
        return tarn__raise(TARN_ERROR_SHAPE, "reshape: %s has %lld elements, which %s%lld do not fill",
                           TARN__SHAPE_STRING(x), (long long)have, open >= 0 ? "multiples of " : "",
                           (long long)product);
    *shape = known;
    return true;
}

/* Also for unsqueeze and squeeze. */
static bool reshape_backward(const tarn__backward *b)
{
    return tarn__accumulate_grad(b, 0, tarn_reshape(b->grads[0], tarn__input_spec(b, 0)->shape));
}

/* A view wherever the strides allow it, else a contiguous copy. One size may be -1. */
tarn_tensor *tarn_reshape(tarn_tensor *x, tarn_shape shape)
{
    if (!(x = tarn__operand_any("reshape", x)) || !resolve_shape(x, &shape))
        return NULL;
    tarn__view layout = x->view;
    layout.rank = shape.rank;
    memcpy(layout.shape, shape.size, sizeof(layout.shape));
    int none = 0;
    tarn_tensor *y;
    if (restride(&layout, &x->view)) {
        y = view_of("reshape", x, &layout, 0);
    } else {
        y = tarn__tensor_new("reshape", tarn__shape_of(x), x->view.dtype, tarn__device(x));
        if (!y || !tarn__copy_elements("reshape", y, x))
            return NULL;
        /* The copy has the shape of x and is row-major, so the new shape needs no further copy. */
        y->view.rank = shape.rank;
        memcpy(y->view.shape, shape.size, sizeof(y->view.shape));
        tarn__view_set_row_major(&y->view);
    }
    return y && tarn__finish("reshape", reshape_backward, none, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

bool tarn__apply_reshape(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_reshape(v->in[0], tarn__attribute_shape(v, "shape"))) != NULL;
}

/* ---- unsqueeze, squeeze ------------------------------------------------------------------------------------------ */

/* The new axis gets the stride it would have in a contiguous tensor, so that layout checks keep working. */
tarn_tensor *tarn_unsqueeze(tarn_tensor *x, int axis)
{
    if (!(x = tarn__operand_any("unsqueeze", x)))
        return NULL;
    int rank = x->view.rank;
    if (rank == TARN_MAX_RANK) {
        tarn__raise(TARN_ERROR_SHAPE, "unsqueeze: x %s already has %d axes, the maximum", TARN__SHAPE_STRING(x), rank);
        return NULL;
    }
    if ((axis = tarn__check_axis("unsqueeze", axis, rank + 1)) < 0)
        return NULL;
    tarn__view layout = x->view;
    memmove(layout.shape + axis + 1, x->view.shape + axis, sizeof(int64_t) * (size_t)(rank - axis));
    memmove(layout.stride + axis + 1, x->view.stride + axis, sizeof(int64_t) * (size_t)(rank - axis));
    layout.shape[axis] = 1;
    layout.stride[axis] = axis < rank ? x->view.shape[axis] * x->view.stride[axis] : 1;
    layout.rank++;
    int none = 0;
    tarn_tensor *y = view_of("unsqueeze", x, &layout, 0);
    return y && tarn__finish("unsqueeze", reshape_backward, none, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

/* An axis of size 1 is removed; any other size is an error. */
tarn_tensor *tarn_squeeze(tarn_tensor *x, int axis)
{
    if (!(x = tarn__operand_any("squeeze", x)) || (axis = tarn__check_axis("squeeze", axis, x->view.rank)) < 0)
        return NULL;
    tarn__view layout = x->view;
    if (x->view.rank > 0) {
        if (x->view.shape[axis] != 1) {
            tarn__raise(TARN_ERROR_SHAPE, "squeeze: axis %d of x %s has size %lld, not 1", axis, TARN__SHAPE_STRING(x),
                        (long long)x->view.shape[axis]);
            return NULL;
        }
        layout.rank--;
        memmove(layout.shape + axis, x->view.shape + axis + 1, sizeof(int64_t) * (size_t)(layout.rank - axis));
        memmove(layout.stride + axis, x->view.stride + axis + 1, sizeof(int64_t) * (size_t)(layout.rank - axis));
    }
    int none = 0;
    tarn_tensor *y = view_of("squeeze", x, &layout, 0);
    return y && tarn__finish("squeeze", reshape_backward, none, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

bool tarn__apply_unsqueeze(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_unsqueeze(v->in[0], tarn__attribute_int_clamped(v, "axis", 0))) != NULL;
}

bool tarn__apply_squeeze(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_squeeze(v->in[0], tarn__attribute_int_clamped(v, "axis", 0))) != NULL;
}

/* ---- permute, transpose ------------------------------------------------------------------------------------------ */

/* The params are the inverse permutation, so that backward is a view as well. */
static bool permute_backward(const tarn__backward *b)
{
    const tarn_axes *inverse = b->params;
    return tarn__accumulate_grad(b, 0, tarn_permute(b->grads[0], *inverse));
}

/* order[i] is the axis of x that becomes axis i; its inverse is recorded for backward. */
static tarn_tensor *permute(const char *function, tarn_tensor *x, const int *order)
{
    tarn__view layout = x->view;
    tarn_axes inverse = {.count = x->view.rank};
    for (int i = 0; i < x->view.rank; i++) {
        layout.shape[i] = x->view.shape[order[i]];
        layout.stride[i] = x->view.stride[order[i]];
        inverse.axis[order[i]] = i;
    }
    tarn_tensor *y = view_of(function, x, &layout, 0);
    return y && tarn__finish(function, permute_backward, inverse, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

/* A complete permutation of the axes. */
tarn_tensor *tarn_permute(tarn_tensor *x, tarn_axes axes)
{
    uint32_t mask;
    if (!(x = tarn__operand_any("permute", x)))
        return NULL;
    if (axes.count != x->view.rank) {
        tarn__raise(TARN_ERROR_SHAPE, "permute: %d axes given for x %s of rank %d", axes.count, TARN__SHAPE_STRING(x),
                    x->view.rank);
        return NULL;
    }
    if (!tarn__axes_mask("permute", axes, x->view.rank, &mask))
        return NULL;
    /* Negative axes count from the last. */
    for (int i = 0; i < axes.count; i++)
        axes.axis[i] += axes.axis[i] < 0 ? x->view.rank : 0;
    return permute("permute", x, axes.axis);
}

/* Swaps two axes. */
tarn_tensor *tarn_transpose(tarn_tensor *x, int a, int b)
{
    int order[TARN_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
    if (!(x = tarn__operand_any("transpose", x)) || (a = tarn__check_axis("transpose", a, x->view.rank)) < 0 ||
        (b = tarn__check_axis("transpose", b, x->view.rank)) < 0)
        return NULL;
    order[a] = b;
    order[b] = a;
    return permute("transpose", x, order);
}

bool tarn__apply_permute(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_permute(v->in[0], tarn__attribute_axes(v, "axes"))) != NULL;
}

bool tarn__apply_transpose(const tarn__invocation *v, tarn_tensor **out)
{
    int a = tarn__attribute_int_clamped(v, "a", -2), b = tarn__attribute_int_clamped(v, "b", -1);
    return (out[0] = tarn_transpose(v->in[0], a, b)) != NULL;
}

/* ---- expand ------------------------------------------------------------------------------------------------------ */

static bool expand_backward(const tarn__backward *b)
{
    return tarn__accumulate_grad(b, 0, b->grads[0]); /* accumulation sums over broadcast axes */
}

/* One axis of an expansion: a new axis or one of size 1 gets stride 0; -1 keeps the size. */
static bool expand_axis(const tarn_tensor *x, tarn_shape *shape, int axis, tarn__view *layout)
{
    int own = axis - (shape->rank - x->view.rank);
    int64_t have = own >= 0 ? x->view.shape[own] : 1, *size = &shape->size[axis];
    if (own >= 0 && *size == -1)
        *size = have;
    if (own >= 0 && have != 1 && *size != have)
        return tarn__raise(TARN_ERROR_SHAPE, "expand: axis %d of x %s has size %lld, which cannot become %lld", own,
                           TARN__SHAPE_STRING(x), (long long)have, (long long)*size);
    layout->shape[axis] = *size;
    layout->stride[axis] = own >= 0 && have == *size ? x->view.stride[own] : 0;
    return true;
}

/* Broadcasts x to `shape` without a copy; accumulation sums the gradient over the expanded axes. */
tarn_tensor *tarn_expand(tarn_tensor *x, tarn_shape shape)
{
    if (!(x = tarn__operand_any("expand", x)))
        return NULL;
    if (shape.rank < x->view.rank || shape.rank > TARN_MAX_RANK) {
        tarn__raise(TARN_ERROR_SHAPE, "expand: x %s cannot have %d axes, only %d to %d", TARN__SHAPE_STRING(x),
                    shape.rank, x->view.rank, TARN_MAX_RANK);
        return NULL;
    }
    tarn__view layout = x->view;
    layout.rank = shape.rank;
    for (int i = 0; i < shape.rank; i++)
        if (!expand_axis(x, &shape, i, &layout))
            return NULL;
    if (!tarn__check_shape("expand", shape, x->view.dtype))
        return NULL;
    int none = 0;
    tarn_tensor *y = view_of("expand", x, &layout, 0);
    return y && tarn__finish("expand", expand_backward, none, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

bool tarn__apply_expand(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_expand(v->in[0], tarn__attribute_shape(v, "shape"))) != NULL;
}

/* ---- flip -------------------------------------------------------------------------------------------------------- */

/* A view with negated strides, starting at the last element of each flipped axis. */
static tarn_tensor *flipped(tarn_tensor *x, uint32_t mask)
{
    tarn__view layout = x->view;
    int64_t skip = 0, empty = tarn__view_count(&x->view) == 0;
    for (int i = 0; i < x->view.rank; i++)
        if ((mask >> i) & 1) {
            skip += empty ? 0 : (x->view.shape[i] - 1) * x->view.stride[i];
            layout.stride[i] = -x->view.stride[i];
        }
    return view_of("flip", x, &layout, skip);
}

/* A flip is its own inverse. */
static bool flip_backward(const tarn__backward *b)
{
    const uint32_t *mask = b->params;
    return tarn__accumulate_grad(b, 0, flipped(b->grads[0], *mask));
}

/* Reverses axes; the gradient is flipped back. */
tarn_tensor *tarn_flip(tarn_tensor *x, tarn_axes axes)
{
    uint32_t mask;
    if (!(x = tarn__operand_any("flip", x)) || !tarn__axes_mask("flip", axes, x->view.rank, &mask))
        return NULL;
    tarn_tensor *y = flipped(x, mask);
    return y && tarn__finish("flip", flip_backward, mask, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

bool tarn__apply_flip(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_flip(v->in[0], tarn__attribute_axes(v, "axes"))) != NULL;
}
