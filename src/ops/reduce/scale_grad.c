/* scale_grad.c: gradients of x · w where w is broadcast along axes of x: a scale per row or per column. The composed
 * form writes all products g · x and sums them afterwards; here they are summed as they are computed. */
#include <string.h>

#include "ops/op.h"

/* Elements of the innermost axis, and rows, from which the kernel is used: a policy, since the kernel supports any. It
 * pays off where it reads whole vectors and sums many rows at once; the composed form runs below. */
#define MIN_ALONG 64
#define MIN_ROWS 16

/* The broadcast operand, 0 or 1; -1: none or both. */
static int broadcast_operand(const tarn__backward *b)
{
    int64_t all = tarn__view_count(&b->grads[0]->view);
    if (!b->saved[0] || !b->saved[1])
        return -1;
    bool first = tarn__view_count(&b->saved[0]->view) < all, second = tarn__view_count(&b->saved[1]->view) < all;
    return first == second ? -1 : first ? 0 : 1;
}

/* w with x's rank: leading axes of size 1. */
static tarn__view aligned(const tarn__view *w, int rank)
{
    tarn__view view = *w;
    int lead = rank - w->rank;
    memmove(view.shape + lead, w->shape, sizeof(int64_t) * (size_t)w->rank);
    memmove(view.stride + lead, w->stride, sizeof(int64_t) * (size_t)w->rank);
    for (int i = 0; i < lead; i++)
        view.shape[i] = 1, view.stride[i] = 0;
    view.rank = rank;
    return view;
}

/* An axis of at least MIN_ALONG elements with stride 1 in both x and g; -1: none. */
static int innermost(const tarn__view *x, const tarn__view *g)
{
    for (int i = 0; i < x->rank; i++)
        if (x->stride[i] == 1 && g->stride[i] == 1 && x->shape[i] >= MIN_ALONG)
            return i;
    return -1;
}

/* w must be broadcast over all axes but the innermost (a scale per column), or over that alone (a scale per row),
 * and there must be enough rows for the kernel to pay off. */
bool tarn__scale_fits(const tarn__backward *b)
{
    int small = broadcast_operand(b);
    if (small < 0 || !tarn__needs_grad(b, small))
        return false;
    const tarn__view *x = &b->saved[1 - small]->view, *g = &b->grads[0]->view;
    int axis = x->rank == g->rank ? innermost(x, g) : -1;
    if (axis < 0)
        return false;
    tarn__view w = aligned(&b->saved[small]->view, x->rank);
    bool by_row = w.shape[axis] == 1;
    for (int i = 0; i < x->rank; i++)
        if (i != axis && x->shape[i] > 1 && ((w.shape[i] > 1) != by_row || x->stride[i] == 1))
            return false;
    return tarn__view_count(g) / x->shape[axis] >= MIN_ROWS;
}

/* One kernel reads x, w and g once and writes gx and the sums for gw. */
bool tarn__scale_backward(const tarn__backward *b)
{
    int small = broadcast_operand(b), large = 1 - small;
    tarn_tensor *x = b->saved[large], *g = b->grads[0], *w = tarn__tensor_view(b->saved[small]), *gx = NULL;
    tarn_tensor *gw =
        tarn__tensor_new(b->function, tarn__shape_of(b->saved[small]), tarn__grad_dtype(b, small), tarn__device(x));
    if (tarn__needs_grad(b, large))
        gx = tarn__result_like(b->function, (tarn_tensor *[]){g}, 1, tarn__shape_of(g), tarn__grad_dtype(b, large),
                               tarn__device(g));
    if (!w || !gw || tarn_failed())
        return false;
    /* the view is changed in place: a second tensor on the storage would keep a leaf from taking it over */
    tarn__view whole = gw->view;
    w->view = aligned(&w->view, x->view.rank);
    gw->view = aligned(&gw->view, x->view.rank);
    tarn__elementwise none = {0};
    bool good = tarn__kernel_call(TARN__K_scale_grad, b->function, none, TARN__IN(x, w, g), TARN__OUT(gx, gw));
    gw->view = whole;
    return good && (!gx || tarn__accumulate_grad(b, large, gx)) && tarn__accumulate_grad(b, small, gw);
}
