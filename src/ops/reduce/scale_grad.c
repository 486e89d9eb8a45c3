/* scale_grad.c: the gradients of x · w where w is repeated along axes of x. The composed form writes all products g · x
 * and sums them afterwards; here they are summed as they are made. */
#include <string.h>

#include "ops/op.h"

#define LEAST_ALONG 64 /* elements of the innermost axis, and outputs or rows: less is left to the composed form */
#define LEAST_ROWS 16

/* Which operand is w; -1: none, or both. */
static int repeated(const tarn__backward *b)
{
    int64_t all = tarn__view_count(&b->grads[0]->view);
    if (!b->saved[0] || !b->saved[1])
        return -1;
    bool first = tarn__view_count(&b->saved[0]->view) < all, second = tarn__view_count(&b->saved[1]->view) < all;
    return first == second ? -1 : first ? 0 : 1;
}

/* w as x's shape sees it: axes of size 1 in front. */
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

/* The longest axis along which the elements of x and g are neighbours; -1: none. */
static int innermost(const tarn__view *x, const tarn__view *g)
{
    for (int i = 0; i < x->rank; i++)
        if (x->stride[i] == 1 && g->stride[i] == 1 && x->shape[i] >= LEAST_ALONG)
            return i;
    return -1;
}

bool tarn__scale_fits(const tarn__backward *b)
{
    int small = repeated(b);
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
    return tarn__view_count(g) / x->shape[axis] >= LEAST_ROWS;
}

bool tarn__scale_backward(const tarn__backward *b)
{
    int small = repeated(b), large = 1 - small;
    tarn_tensor *x = b->saved[large], *g = b->grads[0], *w = tarn__tensor_view(b->saved[small]), *gx = NULL;
    tarn_tensor *gw =
        tarn__tensor_new(b->function, tarn__shape_of(b->saved[small]), tarn__grad_dtype(b, small), tarn__device(x));
    if (tarn__needs_grad(b, large))
        gx = tarn__result_like(b->function, (tarn_tensor *[]){g}, 1, tarn__shape_of(g), tarn__grad_dtype(b, large),
                               tarn__device(g));
    if (!w || !gw || tarn_failed())
        return false;
    tarn__view whole = gw->view; /* a second tensor on its memory would keep a leaf from taking it over */
    w->view = aligned(&w->view, x->view.rank);
    gw->view = aligned(&gw->view, x->view.rank);
    tarn__elementwise none = {0};
    bool good = tarn__kernel_call(TARN__K_scale_grad, b->function, none, TARN__IN(x, w, g), TARN__OUT(gx, gw));
    gw->view = whole;
    return good && (!gx || tarn__accumulate_grad(b, large, gx)) && tarn__accumulate_grad(b, small, gw);
}
