/* slice.c: slices of a tensor: shrink, slice, stride, split. All are views that share the operand's storage.
 *
 * Backward writes into a slice of the operand's gradient accumulator, so that the slices of one tensor collect in
 * one gradient, without a temporary of the full size for each.
 *
 * A step or start is a matter of strides and offset; only backward touches memory. Quantized tensors can be sliced
 * between blocks. */
#include <string.h>

#include "ops/op.h"

/* A strided slice: on every axis i, elements begin[i], begin[i] + step[i] …, size[i] of them. */
typedef struct strided_slice {
    int64_t begin[TARN_MAX_RANK], size[TARN_MAX_RANK], step[TARN_MAX_RANK];
} strided_slice;

/* The slice that is all of x. */
static strided_slice full_slice(const tarn_tensor *x)
{
    strided_slice w = {.step = {1, 1, 1, 1, 1, 1, 1, 1}};
    memcpy(w.size, x->view.shape, sizeof(w.size));
    return w;
}

/* A view of a slice of x in the open scope. An empty slice starts where x does, so that it stays inside the storage. */
static tarn_tensor *slice_of(const char *function, tarn_tensor *x, const strided_slice *w)
{
    tarn__view layout = x->view;
    int64_t skip = 0;
    for (int i = 0; i < x->view.rank; i++) {
        layout.shape[i] = w->size[i];
        layout.stride[i] = w->size[i] > 1 ? x->view.stride[i] * w->step[i] : x->view.stride[i];
        skip += w->begin[i] * x->view.stride[i];
    }
    /* Quantized views count elements; tarn__check_layout() rejects an offset inside a block. */
    layout.offset += skip;
    tarn_tensor *view = tarn__check_layout(function, &layout) ? tarn__tensor_view(x) : NULL;
    if (!view)
        return NULL;
    view->view = layout;
    tarn__tensor_set_start(view, tarn__view_count(&layout) > 0 ? x->start + skip : x->start);
    return view;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Writes a gradient to a slice of an accumulator: over zeros, or added to the values there. */
static bool accumulate_slice(const char *function, const tarn__grad_acc *acc, tarn_tensor *to, tarn_tensor *grad)
{
    if (!to || !grad)
        return false;
    if (acc->beta == 0)
        return tarn__copy_elements(function, to, grad);
    tarn__elementwise none = {0};
    tarn_tensor *same = tarn_cast(grad, to->view.dtype);
    return same && tarn__kernel_call(TARN__K_add, function, none, TARN__IN(to, same), TARN__OUT(to), .reads_output = 1);
}

/* Into an empty accumulator the gradient and the zeros around it are written by one pad kernel. */
static bool slice_backward(const tarn__backward *b)
{
    const strided_slice *w = b->params;
    tarn__grad_acc acc;
    if (!tarn__grad_acc_open(b, 0, &acc))
        return false;
    /* Other slices have written to the accumulator, or pad cannot: add to the slice alone. */
    if (acc.beta != 0 || !tarn__view_is_contiguous(&acc.tensor->view))
        return (acc.beta != 0 || tarn__fill_with(b->function, acc.tensor, 0)) &&
               accumulate_slice(b->function, &acc, slice_of(b->function, acc.tensor, w), b->grads[0]) &&
               tarn__grad_acc_close(b, 0, &acc);
    tarn__pad pad = {0};
    memcpy(pad.begin, w->begin, sizeof(pad.begin));
    memcpy(pad.step, w->step, sizeof(pad.step));
    return tarn__kernel_call(TARN__K_pad, b->function, pad, TARN__IN(b->grads[0]), TARN__OUT(acc.tensor)) &&
           tarn__grad_acc_close(b, 0, &acc);
}

/* ---- shrink, slice, stride --------------------------------------------------------------------------------------- */

/* Checks a list of one value per axis. */
static bool check_list(const char *function, const tarn_tensor *x, tarn_shape list, const char *what)
{
    return list.rank == x->view.rank || tarn__raise(TARN_ERROR_SHAPE, "%s: %d %s given for x %s of rank %d", function,
                                                    list.rank, what, TARN__SHAPE_STRING(x), x->view.rank);
}

/* The view, recorded with its slice as params. */
static tarn_tensor *record_slice(const char *function, tarn_tensor *x, const strided_slice *w)
{
    tarn_tensor *y = slice_of(function, x, w);
    return y && tarn__finish(function, slice_backward, *w, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

/* Restricts one axis to [begin, end). */
static bool cut(const char *function, const tarn_tensor *x, strided_slice *w, int axis, int64_t begin, int64_t end)
{
    if (begin < 0 || begin > end || end > x->view.shape[axis])
        return tarn__raise(TARN_ERROR_SHAPE, "%s: %lld to %lld is outside 0 to %lld of axis %d of x %s", function,
                           (long long)begin, (long long)end, (long long)x->view.shape[axis], axis,
                           TARN__SHAPE_STRING(x));
    w->begin[axis] = begin;
    w->size[axis] = end - begin;
    return true;
}

/* x [sizes] -> [end - begin per axis]. The lists have one entry per axis of x. */
tarn_tensor *tarn_shrink(tarn_tensor *x, tarn_shape begin, tarn_shape end)
{
    if (!(x = tarn__operand_any("shrink", x)) || !check_list("shrink", x, begin, "beginnings") ||
        !check_list("shrink", x, end, "ends"))
        return NULL;
    strided_slice w = full_slice(x);
    for (int i = 0; i < x->view.rank; i++)
        if (!cut("shrink", x, &w, i, begin.size[i], end.size[i]))
            return NULL;
    return record_slice("shrink", x, &w);
}

/* Resolves the axis of an operation for which rank 0 is an error. */
static int real_axis(const char *function, const tarn_tensor *x, int axis)
{
    if (x->view.rank > 0)
        return tarn__check_axis(function, axis, x->view.rank);
    tarn__raise(TARN_ERROR_SHAPE, "%s: x has rank 0 and no axis %d", function, axis);
    return -1;
}

/* x -> x[begin:end] along one axis. */
tarn_tensor *tarn_slice(tarn_tensor *x, int axis, int64_t begin, int64_t end)
{
    if (!(x = tarn__operand_any("slice", x)) || (axis = real_axis("slice", x, axis)) < 0)
        return NULL;
    strided_slice w = full_slice(x);
    return cut("slice", x, &w, axis, begin, end) ? record_slice("slice", x, &w) : NULL;
}

/* x -> every steps[i]-th element of axis i, from the first: ceil(size / step) elements. */
tarn_tensor *tarn_stride(tarn_tensor *x, tarn_shape steps)
{
    if (!(x = tarn__operand_any("stride", x)) || !check_list("stride", x, steps, "steps"))
        return NULL;
    strided_slice w = full_slice(x);
    for (int i = 0; i < x->view.rank; i++) {
        int64_t step = steps.size[i];
        if (step < 1) {
            tarn__raise(TARN_ERROR_ARGUMENT, "stride: step %lld of axis %d is not positive", (long long)step, i);
            return NULL;
        }
        w.step[i] = step;
        w.size[i] = w.size[i] > 0 ? (w.size[i] - 1) / step + 1 : 0;
    }
    return record_slice("stride", x, &w);
}

bool tarn__apply_shrink(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_shrink(v->in[0], tarn__attribute_shape(v, "begin"), tarn__attribute_shape(v, "end"))) != NULL;
}

/* The end defaults to the size of the axis, which must be resolved first. */
bool tarn__apply_slice(const tarn__invocation *v, tarn_tensor **out)
{
    int axis = tarn__attribute_int_clamped(v, "axis", 0), own;
    if (!tarn__check_any("slice", v->in[0], "x") || (own = real_axis("slice", v->in[0], axis)) < 0)
        return false;
    int64_t begin = tarn__attribute_int(v, "begin", 0), end = tarn__attribute_int(v, "end", v->in[0]->view.shape[own]);
    return (out[0] = tarn_slice(v->in[0], axis, begin, end)) != NULL;
}

bool tarn__apply_stride(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_stride(v->in[0], tarn__attribute_shape(v, "steps"))) != NULL;
}

/* ---- split ------------------------------------------------------------------------------------------------------- */

/* One node for all parts; parts without a gradient count as zero. */
static bool split_backward(const tarn__backward *b)
{
    const int *axis = b->params;
    tarn__grad_acc acc;
    bool good = tarn__grad_acc_open(b, 0, &acc);
    /* w moves along the axis, one part at a time. */
    strided_slice w = good ? full_slice(acc.tensor) : (strided_slice){0};
    for (int i = 0; good && i < b->node->outputs; i++) {
        w.size[*axis] = b->node->output_spec[i].shape.size[*axis];
        tarn_tensor *part = slice_of(b->function, acc.tensor, &w);
        if (b->grads[i])
            good = accumulate_slice(b->function, &acc, part, b->grads[i]);
        else
            good = part && (acc.beta != 0 || tarn__fill_with(b->function, part, 0));
        w.begin[*axis] += w.size[*axis];
    }
    return good && tarn__grad_acc_close(b, 0, &acc);
}

/* The sizes must add up to the axis. */
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
    /* Parts must cover the axis, as in PyTorch. */
    return left == 0 ||
           tarn__raise(TARN_ERROR_SHAPE, "split: the %d sizes add up to %lld, but axis %d of x %s has %lld elements",
                       count, (long long)(x->view.shape[axis] - left), axis, TARN__SHAPE_STRING(x),
                       (long long)x->view.shape[axis]);
}

/* x -> `count` views along an axis. One node records all parts, so backward runs once, after the last part's
 * gradient. */
bool tarn_split(tarn_tensor *x, int axis, const int64_t *sizes, int count, tarn_tensor **parts)
{
    if (!(x = tarn__operand_any("split", x)))
        return false;
    if (!sizes || !parts || count < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "split: %d parts%s", count,
                           sizes && parts ? "" : "; sizes or outputs are NULL");
    if ((axis = real_axis("split", x, axis)) < 0 || !check_split(x, axis, sizes, count))
        return false;
    strided_slice w = full_slice(x);
    bool good = true;
    for (int i = 0; good && i < count; i++) {
        w.size[axis] = sizes[i];
        good = (parts[i] = slice_of("split", x, &w)) != NULL;
        w.begin[axis] += sizes[i];
    }
    return good &&
           tarn__finish("split", split_backward, axis, TARN__INPUTS(x), .outputs = parts, .output_count = count);
}

/* As many outputs as the attribute has sizes. */
bool tarn__apply_split(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_shape sizes = tarn__attribute_shape(v, "sizes");
    return tarn_split(v->in[0], tarn__attribute_int_clamped(v, "axis", 0), sizes.size, sizes.rank, out);
}
