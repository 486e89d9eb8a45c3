/* movement.c: the same elements seen differently: reshape, permute, transpose, expand, unsqueeze, squeeze, shrink, slice, stride, flip, split.
 *
 * All of them make a view that shares its storage, and so its version, with the operand; only a reshape may have to copy. Backward is the
 * inverse movement of the gradient. Where that leaves elements without a gradient (a part of a tensor was taken), the rule writes into a
 * window of the operand's sink, so that the parts of one tensor gather in one gradient without temporaries of the whole. */
#include <string.h>

#include "ops/op.h"

/* x, or a constant as a tensor. */
static tarn_tensor *take(const char *function, tarn_tensor *x)
{
    return tarn__check(function, x, "x") ? tarn__materialize(function, x, TARN_F32, tarn_device_cpu()) : NULL;
}

/* A view of x with the rank, shape and strides of `layout`, beginning `skip` elements after x does. */
static tarn_tensor *view_of(tarn_tensor *x, const tarn__view *layout, int64_t skip)
{
    tarn_tensor *view = tarn__tensor_view(x);
    if (!view)
        return NULL;
    view->view = *layout;
    tarn__tensor_restart(view, x->start + skip);
    return view;
}

/* A list of numbers, one for each axis. */
static bool check_list(const char *function, const tarn_tensor *x, tarn_shape list, const char *what)
{
    return list.rank == x->view.rank || tarn__raise(TARN_ERROR_SHAPE, "%s: %d %s given for x %s of rank %d", function, list.rank, what,
                                                    TARN__SHAPE_TEXT(x), x->view.rank);
}

/* ---- reshape ---------------------------------------------------------------------------------------------------------------- */

/* Axes that lie evenly behind each other in memory act as one. */
typedef struct run {
    int64_t size, stride;
} run;

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

/* Strides for to's shape over from's elements, of which there are as many. False when a new axis would cross from one run into the next. */
static bool restride(tarn__view *to, const tarn__view *from)
{
    run runs[TARN_MAX_RANK];
    int at = find_runs(from, runs);
    if (tarn__view_count(from) == 0 || at == 0) {
        tarn__view_pack(to);
        return true;
    }
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

/* Works out a size of -1, and compares the number of elements. */
static bool resolve_shape(const tarn_tensor *x, tarn_shape *shape)
{
    int open = -1;
    tarn_shape known = *shape;
    for (int i = 0; i < shape->rank && i < TARN_MAX_RANK; i++)
        if (shape->size[i] == -1) {
            if (open >= 0)
                return tarn__raise(TARN_ERROR_SHAPE, "reshape: sizes of axes %d and %d are both -1; only one can be worked out", open, i);
            open = i;
            known.size[i] = 1;
        }
    if (!tarn__check_shape("reshape", known, x->view.dtype))
        return false;
    int64_t have = tarn__view_count(&x->view), product = 1;
    for (int i = 0; i < known.rank; i++)
        product *= known.size[i];
    if (open >= 0 && product == 0)
        return tarn__raise(TARN_ERROR_SHAPE, "reshape: the size -1 of axis %d can be anything, as another size is 0", open);
    if (open >= 0 && have % product == 0)
        known.size[open] = have / product;
    else if (have != product)
        return tarn__raise(TARN_ERROR_SHAPE, "reshape: %s has %lld elements, which %s%lld do not fill", TARN__SHAPE_TEXT(x), (long long)have,
                           open >= 0 ? "multiples of " : "", (long long)product);
    *shape = known;
    return true;
}

/* Also of unsqueeze and squeeze. */
static bool reshape_backward(const tarn__backward *b)
{
    return tarn__put(b, 0, tarn_reshape(b->grads[0], tarn__input_meta(b, 0)->shape));
}

tarn_tensor *tarn_reshape(tarn_tensor *x, tarn_shape shape)
{
    if (!(x = take("reshape", x)) || !resolve_shape(x, &shape))
        return NULL;
    tarn__view layout = x->view;
    layout.rank = shape.rank;
    memcpy(layout.shape, shape.size, sizeof(layout.shape));
    int none = 0;
    tarn_tensor *y;
    if (restride(&layout, &x->view)) {
        y = view_of(x, &layout, 0);
    } else {
        y = tarn__tensor_new("reshape", tarn__shape_of(x), x->view.dtype, tarn__device(x));
        if (!y || !tarn__copy_elements("reshape", y, x))
            return NULL;
        y->view.rank = shape.rank;
        memcpy(y->view.shape, shape.size, sizeof(y->view.shape));
        tarn__view_pack(&y->view);
    }
    return y && tarn__finish("reshape", reshape_backward, none, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

bool tarn__apply_reshape(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_reshape(v->in[0], tarn__attribute_shape(v, "shape"))) != NULL;
}

/* ---- unsqueeze, squeeze ------------------------------------------------------------------------------------------------------ */

tarn_tensor *tarn_unsqueeze(tarn_tensor *x, int axis)
{
    if (!(x = take("unsqueeze", x)))
        return NULL;
    int rank = x->view.rank;
    if (rank == TARN_MAX_RANK) {
        tarn__raise(TARN_ERROR_SHAPE, "unsqueeze: x %s has %d axes already, the most there can be", TARN__SHAPE_TEXT(x), rank);
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
    tarn_tensor *y = view_of(x, &layout, 0);
    return y && tarn__finish("unsqueeze", reshape_backward, none, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

tarn_tensor *tarn_squeeze(tarn_tensor *x, int axis)
{
    if (!(x = take("squeeze", x)) || (axis = tarn__check_axis("squeeze", axis, x->view.rank)) < 0)
        return NULL;
    tarn__view layout = x->view;
    if (x->view.rank > 0) {
        if (x->view.shape[axis] != 1) {
            tarn__raise(TARN_ERROR_SHAPE, "squeeze: axis %d of x %s has size %lld, not 1", axis, TARN__SHAPE_TEXT(x),
                        (long long)x->view.shape[axis]);
            return NULL;
        }
        layout.rank--;
        memmove(layout.shape + axis, x->view.shape + axis + 1, sizeof(int64_t) * (size_t)(layout.rank - axis));
        memmove(layout.stride + axis, x->view.stride + axis + 1, sizeof(int64_t) * (size_t)(layout.rank - axis));
    }
    int none = 0;
    tarn_tensor *y = view_of(x, &layout, 0);
    return y && tarn__finish("squeeze", reshape_backward, none, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

bool tarn__apply_unsqueeze(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_unsqueeze(v->in[0], (int)tarn__attribute_int(v, "axis", 0))) != NULL;
}

bool tarn__apply_squeeze(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_squeeze(v->in[0], (int)tarn__attribute_int(v, "axis", 0))) != NULL;
}

/* ---- permute, transpose ------------------------------------------------------------------------------------------------------ */

static bool permute_backward(const tarn__backward *b)
{
    const tarn_axes *inverse = b->params;
    return tarn__put(b, 0, tarn_permute(b->grads[0], *inverse));
}

static tarn_tensor *permute(const char *function, tarn_tensor *x, const int *order)
{
    tarn__view layout = x->view;
    tarn_axes inverse = {.count = x->view.rank};
    for (int i = 0; i < x->view.rank; i++) {
        layout.shape[i] = x->view.shape[order[i]];
        layout.stride[i] = x->view.stride[order[i]];
        inverse.axis[order[i]] = i;
    }
    tarn_tensor *y = view_of(x, &layout, 0);
    return y && tarn__finish(function, permute_backward, inverse, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

tarn_tensor *tarn_permute(tarn_tensor *x, tarn_axes axes)
{
    uint32_t mask;
    if (!(x = take("permute", x)))
        return NULL;
    if (axes.count != x->view.rank) {
        tarn__raise(TARN_ERROR_SHAPE, "permute: %d axes given for x %s of rank %d", axes.count, TARN__SHAPE_TEXT(x), x->view.rank);
        return NULL;
    }
    if (!tarn__axes_mask("permute", axes, x->view.rank, &mask))
        return NULL;
    for (int i = 0; i < axes.count; i++)
        axes.axis[i] += axes.axis[i] < 0 ? x->view.rank : 0;
    return permute("permute", x, axes.axis);
}

tarn_tensor *tarn_transpose(tarn_tensor *x, int a, int b)
{
    int order[TARN_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
    if (!(x = take("transpose", x)) || (a = tarn__check_axis("transpose", a, x->view.rank)) < 0 ||
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
    int a = (int)tarn__attribute_int(v, "a", -2), b = (int)tarn__attribute_int(v, "b", -1);
    return (out[0] = tarn_transpose(v->in[0], a, b)) != NULL;
}

/* ---- expand ------------------------------------------------------------------------------------------------------------------ */

static bool expand_backward(const tarn__backward *b)
{
    return tarn__put(b, 0, b->grads[0]); /* the sink sums over what was repeated */
}

static bool expand_axis(const tarn_tensor *x, tarn_shape *shape, int axis, tarn__view *layout)
{
    int own = axis - (shape->rank - x->view.rank);
    int64_t have = own >= 0 ? x->view.shape[own] : 1, *size = &shape->size[axis];
    if (own >= 0 && *size == -1)
        *size = have;
    if (own >= 0 && have != 1 && *size != have)
        return tarn__raise(TARN_ERROR_SHAPE, "expand: axis %d of x %s has size %lld, which cannot become %lld", own, TARN__SHAPE_TEXT(x),
                           (long long)have, (long long)*size);
    layout->shape[axis] = *size;
    layout->stride[axis] = own >= 0 && have == *size ? x->view.stride[own] : 0;
    return true;
}

tarn_tensor *tarn_expand(tarn_tensor *x, tarn_shape shape)
{
    if (!(x = take("expand", x)))
        return NULL;
    if (shape.rank < x->view.rank || shape.rank > TARN_MAX_RANK) {
        tarn__raise(TARN_ERROR_SHAPE, "expand: x %s cannot have %d axes, only %d to %d", TARN__SHAPE_TEXT(x), shape.rank, x->view.rank,
                    TARN_MAX_RANK);
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
    tarn_tensor *y = view_of(x, &layout, 0);
    return y && tarn__finish("expand", expand_backward, none, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

bool tarn__apply_expand(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_expand(v->in[0], tarn__attribute_shape(v, "shape"))) != NULL;
}

/* ---- flip -------------------------------------------------------------------------------------------------------------------- */

static tarn_tensor *flipped(tarn_tensor *x, uint32_t mask)
{
    tarn__view layout = x->view;
    int64_t skip = 0, empty = tarn__view_count(&x->view) == 0;
    for (int i = 0; i < x->view.rank; i++)
        if ((mask >> i) & 1) {
            skip += empty ? 0 : (x->view.shape[i] - 1) * x->view.stride[i];
            layout.stride[i] = -x->view.stride[i];
        }
    return view_of(x, &layout, skip);
}

static bool flip_backward(const tarn__backward *b)
{
    const uint32_t *mask = b->params;
    return tarn__put(b, 0, flipped(b->grads[0], *mask));
}

tarn_tensor *tarn_flip(tarn_tensor *x, tarn_axes axes)
{
    uint32_t mask;
    if (!(x = take("flip", x)) || !tarn__axes_mask("flip", axes, x->view.rank, &mask))
        return NULL;
    tarn_tensor *y = flipped(x, mask);
    return y && tarn__finish("flip", flip_backward, mask, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

bool tarn__apply_flip(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_flip(v->in[0], tarn__attribute_axes(v, "axes"))) != NULL;
}

/* ---- windows: shrink, slice, stride ------------------------------------------------------------------------------------------ */

/* Of every axis i the elements begin[i], begin[i] + step[i] … */
typedef struct window {
    int64_t begin[TARN_MAX_RANK], size[TARN_MAX_RANK], step[TARN_MAX_RANK];
} window;

static window whole(const tarn_tensor *x)
{
    window w = {.step = {1, 1, 1, 1, 1, 1, 1, 1}};
    memcpy(w.size, x->view.shape, sizeof(w.size));
    return w;
}

static tarn_tensor *window_of(tarn_tensor *x, const window *w)
{
    tarn__view layout = x->view;
    int64_t skip = 0;
    for (int i = 0; i < x->view.rank; i++) {
        layout.shape[i] = w->size[i];
        layout.stride[i] = w->size[i] > 1 ? x->view.stride[i] * w->step[i] : x->view.stride[i];
        skip += w->begin[i] * x->view.stride[i];
    }
    return view_of(x, &layout, tarn__view_count(&layout) > 0 ? skip : 0);
}

/* Puts a gradient into a window of a sink: over zeros, or added to what is there. */
static bool put_in_window(const char *function, const tarn__sink *sink, tarn_tensor *to, tarn_tensor *grad)
{
    if (!to || !grad)
        return false;
    if (sink->beta == 0)
        return tarn__copy_elements(function, to, grad);
    tarn__elementwise none = {0};
    tarn_tensor *same = tarn_cast(grad, to->view.dtype);
    return same && tarn__kernel_call(TARN__K_add, function, none, TARN__IN(to, same), TARN__OUT(to), .reads_output = 1);
}

static bool window_backward(const tarn__backward *b)
{
    tarn__sink sink;
    if (!tarn__sink_open(b, 0, &sink) || (sink.beta == 0 && !tarn__fill_with(b->function, sink.to, 0)))
        return false;
    return put_in_window(b->function, &sink, window_of(sink.to, b->params), b->grads[0]) && tarn__sink_close(b, 0, &sink);
}

static tarn_tensor *take_window(const char *function, tarn_tensor *x, const window *w)
{
    tarn_tensor *y = window_of(x, w);
    return y && tarn__finish(function, window_backward, *w, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

static bool cut(const char *function, const tarn_tensor *x, window *w, int axis, int64_t begin, int64_t end)
{
    w->begin[axis] = begin;
    w->size[axis] = end - begin;
    return (begin >= 0 && begin <= end && end <= x->view.shape[axis]) ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: %lld to %lld is outside 0 to %lld of axis %d of x %s", function, (long long)begin,
                       (long long)end, (long long)x->view.shape[axis], axis, TARN__SHAPE_TEXT(x));
}

tarn_tensor *tarn_shrink(tarn_tensor *x, tarn_shape begin, tarn_shape end)
{
    if (!(x = take("shrink", x)) || !check_list("shrink", x, begin, "beginnings") || !check_list("shrink", x, end, "ends"))
        return NULL;
    window w = whole(x);
    for (int i = 0; i < x->view.rank; i++)
        if (!cut("shrink", x, &w, i, begin.size[i], end.size[i]))
            return NULL;
    return take_window("shrink", x, &w);
}

/* The axis of an operation that needs one: rank 0 has none. */
static int real_axis(const char *function, const tarn_tensor *x, int axis)
{
    if (x->view.rank > 0)
        return tarn__check_axis(function, axis, x->view.rank);
    tarn__raise(TARN_ERROR_SHAPE, "%s: x has rank 0 and no axis %d", function, axis);
    return -1;
}

tarn_tensor *tarn_slice(tarn_tensor *x, int axis, int64_t begin, int64_t end)
{
    if (!(x = take("slice", x)) || (axis = real_axis("slice", x, axis)) < 0)
        return NULL;
    window w = whole(x);
    return cut("slice", x, &w, axis, begin, end) ? take_window("slice", x, &w) : NULL;
}

tarn_tensor *tarn_stride(tarn_tensor *x, tarn_shape steps)
{
    if (!(x = take("stride", x)) || !check_list("stride", x, steps, "steps"))
        return NULL;
    window w = whole(x);
    for (int i = 0; i < x->view.rank; i++) {
        int64_t step = steps.size[i];
        if (step < 1) {
            tarn__raise(TARN_ERROR_ARGUMENT, "stride: step %lld of axis %d is not positive", (long long)step, i);
            return NULL;
        }
        w.step[i] = step;
        w.size[i] = w.size[i] > 0 ? (w.size[i] - 1) / step + 1 : 0;
    }
    return take_window("stride", x, &w);
}

bool tarn__apply_shrink(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_shrink(v->in[0], tarn__attribute_shape(v, "begin"), tarn__attribute_shape(v, "end"))) != NULL;
}

bool tarn__apply_slice(const tarn__invocation *v, tarn_tensor **out)
{
    int axis = (int)tarn__attribute_int(v, "axis", 0), own = real_axis("slice", v->in[0], axis);
    if (own < 0)
        return false;
    int64_t begin = tarn__attribute_int(v, "begin", 0), end = tarn__attribute_int(v, "end", v->in[0]->view.shape[own]);
    return (out[0] = tarn_slice(v->in[0], axis, begin, end)) != NULL;
}

bool tarn__apply_stride(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_stride(v->in[0], tarn__attribute_shape(v, "steps"))) != NULL;
}

/* ---- split ------------------------------------------------------------------------------------------------------------------- */

/* One node for all parts: those that no gradient reached count as zero. */
static bool split_backward(const tarn__backward *b)
{
    const int *axis = b->params;
    tarn__sink sink;
    bool good = tarn__sink_open(b, 0, &sink);
    window w = good ? whole(sink.to) : (window){0};
    for (int i = 0; good && i < b->node->outputs; i++) {
        w.size[*axis] = b->node->made[i].shape.size[*axis];
        tarn_tensor *part = window_of(sink.to, &w);
        if (b->grads[i])
            good = put_in_window(b->function, &sink, part, b->grads[i]);
        else
            good = part && (sink.beta != 0 || tarn__fill_with(b->function, part, 0));
        w.begin[*axis] += w.size[*axis];
    }
    return good && tarn__sink_close(b, 0, &sink);
}

static bool check_split(const tarn_tensor *x, int axis, const int64_t *sizes, int count)
{
    int64_t left = x->view.shape[axis];
    for (int i = 0; i < count; i++) {
        if (sizes[i] < 0 || sizes[i] > left)
            return tarn__raise(TARN_ERROR_SHAPE, "split: part %d of size %lld does not fit: axis %d of x %s has %lld elements left", i,
                               (long long)sizes[i], axis, TARN__SHAPE_TEXT(x), (long long)left);
        left -= sizes[i];
    }
    return left == 0 || tarn__raise(TARN_ERROR_SHAPE, "split: the %d sizes add up to %lld, but axis %d of x %s has %lld elements", count,
                                    (long long)(x->view.shape[axis] - left), axis, TARN__SHAPE_TEXT(x), (long long)x->view.shape[axis]);
}

bool tarn_split(tarn_tensor *x, int axis, const int64_t *sizes, int count, tarn_tensor **parts)
{
    if (!(x = take("split", x)))
        return false;
    if (!sizes || !parts || count < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "split: %d parts%s", count, sizes && parts ? "" : ", and their sizes or their place are NULL");
    if ((axis = real_axis("split", x, axis)) < 0 || !check_split(x, axis, sizes, count))
        return false;
    window w = whole(x);
    bool good = true;
    for (int i = 0; good && i < count; i++) {
        w.size[axis] = sizes[i];
        good = (parts[i] = window_of(x, &w)) != NULL;
        w.begin[axis] += sizes[i];
    }
    return good && tarn__finish("split", split_backward, axis, TARN__INPUTS(x), .outputs = parts, .output_count = count);
}

bool tarn__apply_split(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_shape sizes = tarn__attribute_shape(v, "sizes");
    return tarn_split(v->in[0], (int)tarn__attribute_int(v, "axis", 0), sizes.size, sizes.rank, out);
}
