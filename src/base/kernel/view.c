/* view.c: counting, ordering and collapsing strided views. Pure functions of shapes and strides; no memory is read. */
#include "base/kernel/view.h"

int64_t tarn__view_count(const tarn__view *view)
{
    int64_t count = 1;
    for (int i = 0; i < view->rank; i++)
        count *= view->shape[i];
    return count;
}

bool tarn__view_is_contiguous(const tarn__view *view)
{
    int64_t expected = 1;
    for (int i = view->rank - 1; i >= 0; i--) {
        if (view->shape[i] != 1 && view->stride[i] != expected)
            return tarn__view_count(view) == 0;
        expected *= view->shape[i];
    }
    return true;
}

bool tarn__view_order(const tarn__view *view, int *order)
{
    for (int i = 0; i < view->rank; i++) {
        int k = i;
        for (; k > 0 && view->stride[order[k - 1]] < view->stride[i]; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
    int64_t expected = 1;
    for (int i = view->rank - 1; i >= 0; i--) {
        if (view->shape[order[i]] != 1 && view->stride[order[i]] != expected)
            return false;
        expected *= view->shape[order[i]];
    }
    return true;
}

void tarn__view_set_row_major(tarn__view *view)
{
    int64_t next = 1;
    for (int i = view->rank - 1; i >= 0; i--) {
        view->stride[i] = next;
        next *= view->shape[i] > 0 ? view->shape[i] : 1;
    }
}

int64_t tarn__axis_size(const tarn__view *view, int axis)
{
    return view->rank ? view->shape[axis] : 1;
}

int64_t tarn__axis_stride(const tarn__view *view, int axis)
{
    return view && view->rank ? view->stride[axis] : 0;
}

tarn__view tarn__view_across(const tarn__view *view, int axis, const tarn__view *like)
{
    tarn__view rest = *view;
    rest.rank = 0;
    for (int i = 0; i < view->rank; i++)
        if (i != axis) {
            rest.shape[rest.rank] = like->shape[i];
            rest.stride[rest.rank++] = view->stride[i];
        }
    return rest;
}

tarn__view tarn__view_repeated(const tarn__view *index, const tarn__view *like, int axis)
{
    tarn__view wide = *like;
    wide.memory = index->memory;
    wide.base = index->base;
    wide.offset = index->offset;
    wide.dtype = index->dtype;
    for (int i = 0; i < like->rank; i++)
        wide.stride[i] = i == axis ? index->stride[0] : 0;
    return wide;
}

bool tarn__view_has_one_stride(const tarn__view *view, int first, int last, int64_t *stride)
{
    int64_t size = 1;
    *stride = 1;
    for (int i = last; i >= first; i--) {
        if (view->shape[i] == 1)
            continue;
        if (size > 1 && view->stride[i] != *stride * size)
            return false;
        if (size == 1)
            *stride = view->stride[i];
        size *= view->shape[i];
    }
    return true;
}

int tarn__view_innermost(const tarn__view *view)
{
    int axis = 0;
    for (int i = 0; i < view->rank; i++)
        if (view->stride[i] == 1 && view->shape[i] > 1)
            axis = i;
    return axis;
}

/* The stride of an operand along an axis of the first view's shape; 0 where it broadcasts. */
static int64_t stride_at(const tarn__view *view, int axis, int rank)
{
    int own = view ? axis - (rank - view->rank) : -1;
    return own < 0 || view->shape[own] == 1 ? 0 : view->stride[own];
}

static int64_t magnitude(int64_t value)
{
    return value < 0 ? -value : value;
}

/* True when axis b belongs outside axis a: its stride is larger in the first operand that distinguishes them. */
static bool comes_before(const tarn__nest *nest, int b, int a)
{
    for (int k = 0; k < nest->operands; k++) {
        int64_t sa = magnitude(nest->stride[k][a]), sb = magnitude(nest->stride[k][b]);
        if (sa != sb && sa != 0 && sb != 0)
            return sb > sa;
    }
    return false;
}

static void swap_axes(tarn__nest *nest, int a, int b)
{
    int64_t size = nest->shape[a];
    nest->shape[a] = nest->shape[b];
    nest->shape[b] = size;
    for (int k = 0; k < nest->operands; k++) {
        int64_t stride = nest->stride[k][a];
        nest->stride[k][a] = nest->stride[k][b];
        nest->stride[k][b] = stride;
    }
}

/* Two adjacent axes act as one when, in every operand, stepping the outer one equals running through the inner one. */
static bool can_merge(const tarn__nest *nest, int outer, int inner)
{
    for (int k = 0; k < nest->operands; k++)
        if (nest->stride[k][outer] != nest->stride[k][inner] * nest->shape[inner])
            return false;
    return true;
}

/* Insertion sort and a linear merge: ranks are at most TARN_MAX_RANK, and small operations pay this on every call. */
void tarn__nest_make(tarn__nest *nest, int operands, const tarn__view *const *views)
{
    const tarn__view *first = views[0];
    nest->operands = operands;
    nest->rank = 0;
    nest->count = tarn__view_count(first);
    for (int axis = 0; axis < first->rank; axis++) {
        if (first->shape[axis] == 1)
            continue;
        nest->shape[nest->rank] = first->shape[axis];
        for (int k = 0; k < operands; k++)
            nest->stride[k][nest->rank] = stride_at(views[k], axis, first->rank);
        nest->rank++;
    }
    for (int i = 1; i < nest->rank; i++)
        for (int j = i; j > 0 && comes_before(nest, j, j - 1); j--)
            swap_axes(nest, j, j - 1);
    int kept = 0;
    for (int i = 1; i < nest->rank; i++) {
        if (can_merge(nest, kept, i)) {
            nest->shape[kept] *= nest->shape[i];
            for (int k = 0; k < operands; k++)
                nest->stride[k][kept] = nest->stride[k][i];
        } else {
            kept++;
            nest->shape[kept] = nest->shape[i];
            for (int k = 0; k < operands; k++)
                nest->stride[k][kept] = nest->stride[k][i];
        }
    }
    if (nest->rank > 0)
        nest->rank = kept + 1;
}

bool tarn__nest_is_contiguous(const tarn__nest *nest, int operand)
{
    int64_t expected = 1;
    for (int i = nest->rank - 1; i >= 0; i--) {
        if (nest->stride[operand][i] != expected)
            return false;
        expected *= nest->shape[i];
    }
    return true;
}
