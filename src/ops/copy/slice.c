/* slice.c: parts of a tensor: shrink, slice, stride, split. All are views that share their storage with the operand.
 *
 * In backward the rule writes into a window of the operand's sink, so that the parts taken of one tensor gather in one
 * gradient, without a temporary of the whole for each. */
#include <string.h>

#include "ops/op.h"

/* Of every axis i, size[i] elements: begin[i], begin[i] + step[i] … */
typedef struct window {
    int64_t begin[TARN_MAX_RANK], size[TARN_MAX_RANK], step[TARN_MAX_RANK];
} window;

static window whole(const tarn_tensor *x)
{
    window w = {.step = {1, 1, 1, 1, 1, 1, 1, 1}};
    memcpy(w.size, x->view.shape, sizeof(w.size));
    return w;
}

static tarn_tensor *window_of(const char *function, tarn_tensor *x, const window *w)
{
    tarn__view layout = x->view;
    int64_t skip = 0;
    for (int i = 0; i < x->view.rank; i++) {
        layout.shape[i] = w->size[i];
        layout.stride[i] = w->size[i] > 1 ? x->view.stride[i] * w->step[i] : x->view.stride[i];
        skip += w->begin[i] * x->view.stride[i];
    }
    layout.offset += skip;
    tarn_tensor *view = tarn__check_layout(function, &layout) ? tarn__tensor_view(x) : NULL;
    if (!view)
        return NULL;
    view->view = layout;
    tarn__tensor_set_start(view, tarn__view_count(&layout) > 0 ? x->start + skip : x->start);
    return view;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Puts a gradient into a window of a sink: over zeros, or added to what is there. */
static bool put_in_window(const char *function, const tarn__grad_acc *sink, tarn_tensor *to, tarn_tensor *grad)
{
    if (!to || !grad)
        return false;
    if (sink->beta == 0)
        return tarn__copy_elements(function, to, grad);
    tarn__elementwise none = {0};
    tarn_tensor *same = tarn_cast(grad, to->view.dtype);
    return same && tarn__kernel_call(TARN__K_add, function, none, TARN__IN(to, same), TARN__OUT(to), .reads_output = 1);
}

/* An empty sink takes the gradient and the zeros around it in one pass. */
static bool window_backward(const tarn__backward *b)
{
    const window *w = b->params;
    tarn__grad_acc sink;
    if (!tarn__grad_acc_open(b, 0, &sink))
        return false;
    if (sink.beta != 0 || !tarn__view_is_contiguous(&sink.to->view))
        return (sink.beta != 0 || tarn__fill_with(b->function, sink.to, 0)) &&
               put_in_window(b->function, &sink, window_of(b->function, sink.to, w), b->grads[0]) &&
               tarn__grad_acc_close(b, 0, &sink);
    tarn__pad spread = {0};
    memcpy(spread.begin, w->begin, sizeof(spread.begin));
    memcpy(spread.step, w->step, sizeof(spread.step));
    return tarn__kernel_call(TARN__K_pad, b->function, spread, TARN__IN(b->grads[0]), TARN__OUT(sink.to)) &&
           tarn__grad_acc_close(b, 0, &sink);
}

/* ---- shrink, slice, stride --------------------------------------------------------------------------------------- */

/* A list of numbers, one for each axis. */
static bool check_list(const char *function, const tarn_tensor *x, tarn_shape list, const char *what)
{
    return list.rank == x->view.rank || tarn__raise(TARN_ERROR_SHAPE, "%s: %d %s given for x %s of rank %d", function,
                                                    list.rank, what, TARN__SHAPE_STRING(x), x->view.rank);
}

static tarn_tensor *take_window(const char *function, tarn_tensor *x, const window *w)
{
    tarn_tensor *y = window_of(function, x, w);
    return y && tarn__finish(function, window_backward, *w, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

static bool cut(const char *function, const tarn_tensor *x, window *w, int axis, int64_t begin, int64_t end)
{
    if (begin < 0 || begin > end || end > x->view.shape[axis])
        return tarn__raise(TARN_ERROR_SHAPE, "%s: %lld to %lld is outside 0 to %lld of axis %d of x %s", function,
                           (long long)begin, (long long)end, (long long)x->view.shape[axis], axis,
                           TARN__SHAPE_STRING(x));
    w->begin[axis] = begin;
    w->size[axis] = end - begin;
    return true;
}

tarn_tensor *tarn_shrink(tarn_tensor *x, tarn_shape begin, tarn_shape end)
{
    if (!(x = tarn__operand_any("shrink", x)) || !check_list("shrink", x, begin, "beginnings") ||
        !check_list("shrink", x, end, "ends"))
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
    if (!(x = tarn__operand_any("slice", x)) || (axis = real_axis("slice", x, axis)) < 0)
        return NULL;
    window w = whole(x);
    return cut("slice", x, &w, axis, begin, end) ? take_window("slice", x, &w) : NULL;
}

tarn_tensor *tarn_stride(tarn_tensor *x, tarn_shape steps)
{
    if (!(x = tarn__operand_any("stride", x)) || !check_list("stride", x, steps, "steps"))
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
    int axis = tarn__attribute_int_clamped(v, "axis", 0), own = real_axis("slice", v->in[0], axis);
    if (own < 0)
        return false;
    int64_t begin = tarn__attribute_int(v, "begin", 0), end = tarn__attribute_int(v, "end", v->in[0]->view.shape[own]);
    return (out[0] = tarn_slice(v->in[0], axis, begin, end)) != NULL;
}

bool tarn__apply_stride(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_stride(v->in[0], tarn__attribute_shape(v, "steps"))) != NULL;
}

/* ---- split ------------------------------------------------------------------------------------------------------- */

/* One node for all parts: those that no gradient reached count as zero. */
static bool split_backward(const tarn__backward *b)
{
    const int *axis = b->params;
    tarn__grad_acc sink;
    bool good = tarn__grad_acc_open(b, 0, &sink);
    window w = good ? whole(sink.to) : (window){0};
    for (int i = 0; good && i < b->node->outputs; i++) {
        w.size[*axis] = b->node->output_spec[i].shape.size[*axis];
        tarn_tensor *part = window_of(b->function, sink.to, &w);
        if (b->grads[i])
            good = put_in_window(b->function, &sink, part, b->grads[i]);
        else
            good = part && (sink.beta != 0 || tarn__fill_with(b->function, part, 0));
        w.begin[*axis] += w.size[*axis];
    }
    return good && tarn__grad_acc_close(b, 0, &sink);
}

static bool check_split(const tarn_tensor *x, int axis, const int64_t *sizes, int count)
{
    int64_t left = x->view.shape[axis];
    for (int i = 0; i < count; i++) {
        if (sizes[i] < 0 || sizes[i] > left)
            return tarn__raise(TARN_ERROR_SHAPE,
                               "split: part %d of size %lld does not fit: axis %d of x %s has %lld elements left", i,
                               (long long)sizes[i], axis, TARN__SHAPE_STRING(x), (long long)left);
        left -= sizes[i];
    }
    return left == 0 ||
           tarn__raise(TARN_ERROR_SHAPE, "split: the %d sizes add up to %lld, but axis %d of x %s has %lld elements",
                       count, (long long)(x->view.shape[axis] - left), axis, TARN__SHAPE_STRING(x),
                       (long long)x->view.shape[axis]);
}

bool tarn_split(tarn_tensor *x, int axis, const int64_t *sizes, int count, tarn_tensor **parts)
{
    if (!(x = tarn__operand_any("split", x)))
        return false;
    if (!sizes || !parts || count < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "split: %d parts%s", count,
                           sizes && parts ? "" : ", and their sizes or their place are NULL");
    if ((axis = real_axis("split", x, axis)) < 0 || !check_split(x, axis, sizes, count))
        return false;
    window w = whole(x);
    bool good = true;
    for (int i = 0; good && i < count; i++) {
        w.size[axis] = sizes[i];
        good = (parts[i] = window_of("split", x, &w)) != NULL;
        w.begin[axis] += sizes[i];
    }
    return good &&
           tarn__finish("split", split_backward, axis, TARN__INPUTS(x), .outputs = parts, .output_count = count);
}

bool tarn__apply_split(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_shape sizes = tarn__attribute_shape(v, "sizes");
    return tarn_split(v->in[0], tarn__attribute_int_clamped(v, "axis", 0), sizes.size, sizes.rank, out);
}
