/* accumulate.c: accumulation of gradients: broadcasting is undone, dtypes are converted and gradients are added
 * here, and nowhere else.
 *
 * A gradient is accumulated in place only when no one else can see it: its tensor has one reference and its storage
 * one owner. Gradients are added in the order of the backward pass, so results are deterministic. */
#include <string.h>

#include "autograd/tape.h"

bool tarn__needs_grad(const tarn__backward *b, int i)
{
    const tarn__edge *edge = &b->node->edge[i];
    return edge->node || edge->leaf;
}

const tarn__tensor_spec *tarn__input_spec(const tarn__backward *b, int i)
{
    return &b->node->edge[i].spec;
}

tarn_dtype tarn__grad_dtype(const tarn__backward *b, int i)
{
    const tarn__edge *edge = &b->node->edge[i];
    return edge->leaf ? tarn__acc_dtype(edge->spec.dtype) : edge->spec.dtype;
}

/* Sizes only; strides may differ. */
static bool same_shape(const tarn_tensor *tensor, const tarn__tensor_spec *spec)
{
    if (tensor->view.rank != spec->shape.rank)
        return false;
    return memcmp(tensor->view.shape, spec->shape.size, sizeof(int64_t) * (size_t)spec->shape.rank) == 0;
}

/* Sums a gradient over broadcast axes into a contiguous tensor of the input's shape. */
static bool unbroadcast(const char *function, tarn_tensor *grad, const tarn__tensor_spec *spec, tarn_tensor *sum)
{
    /* the view is changed in place: a second tensor on the storage would keep a leaf from taking it over */
    tarn__view whole = sum->view;
    int lead = grad->view.rank - spec->shape.rank;
    memmove(sum->view.shape + lead, whole.shape, sizeof(int64_t) * (size_t)spec->shape.rank);
    memmove(sum->view.stride + lead, whole.stride, sizeof(int64_t) * (size_t)spec->shape.rank);
    for (int i = 0; i < lead; i++)
        sum->view.shape[i] = 1, sum->view.stride[i] = 0;
    sum->view.rank = grad->view.rank;
    tarn__reduce reduce = {.scale = 1};
    bool good = tarn__run(&(tarn__launch){.kernel = TARN__K_sum,
                                          .function = function,
                                          .inputs = 1,
                                          .outputs = 1,
                                          .in = {grad},
                                          .out = {sum},
                                          .params = &reduce,
                                          .params_bytes = sizeof(reduce)});
    sum->view = whole;
    return good;
}

/* Writes the gradient in the input's shape to a contiguous tensor of any dtype. */
static bool fit_into(const char *function, tarn_tensor *grad, const tarn__tensor_spec *spec, tarn_tensor *out)
{
    return same_shape(grad, spec) ? tarn__copy_elements(function, out, grad) : unbroadcast(function, grad, spec, out);
}

/* The gradient in the input's shape and the given dtype; itself if it fits already. */
static tarn_tensor *fit(const char *function, tarn_tensor *grad, const tarn__tensor_spec *spec, tarn_dtype dtype)
{
    if (same_shape(grad, spec) && grad->view.dtype == dtype)
        return grad;
    tarn_tensor *fitted = tarn__tensor_new(function, spec->shape, dtype, spec->device);
    return fitted && fit_into(function, grad, spec, fitted) ? fitted : NULL;
}

/* out = a + b; `out` may be a or b. */
static bool add(const char *function, tarn_tensor *a, tarn_tensor *b, tarn_tensor *out)
{
    tarn__elementwise none = {0};
    return tarn__run(&(tarn__launch){.kernel = TARN__K_add,
                                     .function = function,
                                     .inputs = 2,
                                     .outputs = 1,
                                     .in = {a, b},
                                     .out = {out},
                                     .params = &none,
                                     .params_bytes = sizeof(none)});
}

/* True when accumulating in place is invisible to others. */
static bool is_exclusive(const tarn_tensor *tensor)
{
    return atomic_load(&tensor->references) == 1 && atomic_load(&tensor->storage->references) == 1;
}

/* Allocates a leaf's gradient unless it has one; an optimizer may have provided it in its flat buffer. */
static bool allocate_leaf_grad(const char *function, tarn_tensor *leaf)
{
    if (leaf->grad)
        return true;
    leaf->grad =
        tarn__tensor_new(function, tarn__shape_of(leaf), tarn__acc_dtype(leaf->view.dtype), tarn__device(leaf));
    if (!leaf->grad)
        return false;
    tarn__tensor_retain(leaf->grad);
    tarn_free(leaf->grad);
    return true;
}

/* Stores the first gradient of a leaf in its existing memory, where the rule may have computed it already. */
static bool store_first(const char *function, tarn_tensor *leaf, const tarn__tensor_spec *spec, tarn_tensor *grad)
{
    leaf->grad_is_set = grad == leaf->grad || fit_into(function, grad, spec, leaf->grad);
    tarn__bump_version(leaf->grad);
    return leaf->grad_is_set;
}

/* In order: into existing empty memory, by taking over a fresh tensor, by copying, or by adding. */
static bool accumulate_leaf(const char *function, tarn_tensor *leaf, const tarn__tensor_spec *spec, tarn_tensor *grad)
{
    bool is_separate = leaf->grad && (grad == leaf->grad || grad->storage != leaf->grad->storage);
    if (is_separate && !leaf->grad_is_set && tarn__view_is_contiguous(&leaf->grad->view))
        return store_first(function, leaf, spec, grad);
    tarn_tensor *fitted = fit(function, grad, spec, tarn__acc_dtype(spec->dtype));
    if (!fitted)
        return false;
    /* A gradient that only this scope owns becomes the leaf's without a copy. */
    bool fresh = fitted->scope && fitted->scope == tarn__scope_top() && atomic_load(&fitted->references) == 1 &&
                 atomic_load(&fitted->storage->references) == 1 && tarn__view_is_contiguous(&fitted->view);
    if (!leaf->grad && fresh) {
        tarn__tensor_retain(fitted);
        leaf->grad = fitted;
        leaf->grad_is_set = true;
        return true;
    }
    if (!allocate_leaf_grad(function, leaf))
        return false;
    bool good = leaf->grad_is_set ? add(function, leaf->grad, fitted, leaf->grad)
                                  : tarn__copy_elements(function, leaf->grad, fitted);
    leaf->grad_is_set = leaf->grad_is_set || good;
    tarn__bump_version(leaf->grad);
    return good;
}

/* A tensor for the sum of two gradients, in the memory layout of one of them: the operation before most likely uses
 * it, too. */
static tarn_tensor *new_sum(const char *function, const tarn__tensor_spec *spec, const tarn_tensor *a,
                            const tarn_tensor *b)
{
    int order[TARN_MAX_RANK];
    if (tarn__view_order(&a->view, order) || tarn__view_order(&b->view, order))
        return tarn__tensor_new_ordered(function, spec->shape, spec->dtype, spec->device, order);
    return tarn__tensor_new(function, spec->shape, spec->dtype, spec->device);
}

/* The first gradient is retained without a copy; the second is added in place if the first is exclusive. */
static bool accumulate_node(const char *function, tarn__edge *edge, tarn_tensor *grad)
{
    tarn_tensor **pending = &edge->node->grad[edge->output];
    tarn_tensor *fitted = fit(function, grad, &edge->spec, edge->spec.dtype);
    if (!fitted)
        return false;
    if (!*pending) {
        tarn__tensor_retain(fitted);
        *pending = fitted;
        return true;
    }
    int order[TARN_MAX_RANK];
    /* not an expanded view, whose elements share memory */
    if (is_exclusive(*pending) && tarn__view_order(&(*pending)->view, order))
        return add(function, *pending, fitted, *pending);
    tarn_tensor *sum = new_sum(function, &edge->spec, *pending, fitted);
    if (!sum || !add(function, *pending, fitted, sum))
        return false;
    tarn__tensor_retain(sum);
    tarn__tensor_release(*pending);
    *pending = sum;
    return true;
}

bool tarn__edge_accumulate(const char *function, tarn__edge *edge, tarn_tensor *grad)
{
    if (edge->node)
        return accumulate_node(function, edge, grad);
    return !edge->leaf || accumulate_leaf(function, edge->leaf, &edge->spec, grad);
}

/* `grad` may be NULL after a failed operation: then false, with the pending error. */
bool tarn__accumulate_grad(const tarn__backward *b, int i, tarn_tensor *grad)
{
    if (!tarn__needs_grad(b, i))
        return true;
    return grad && (!tarn__anomaly() || tarn__check_gradient(b, grad)) &&
           tarn__edge_accumulate(b->function, &b->node->edge[i], grad);
}

/* True when another input of the operation is the same tensor: both accumulators may be open at once. */
static bool is_shared(const tarn__backward *b, int i)
{
    const tarn__edge *own = &b->node->edge[i];
    for (int k = 0; k < b->node->inputs; k++) {
        const tarn__edge *other = &b->node->edge[k];
        if (k != i && other->leaf == own->leaf && other->node == own->node && other->output == own->output)
            return true;
    }
    return false;
}

/* Not the leaf's memory where another input is the same tensor: both gradients would be written there. */
tarn_tensor *tarn__grad_buffer(const tarn__backward *b, int i, tarn_dtype dtype)
{
    const tarn__edge *edge = &b->node->edge[i];
    const tarn_tensor *leaf = edge->leaf;
    bool is_free = leaf && leaf->grad && !leaf->grad_is_set && leaf->grad->view.dtype == dtype && !is_shared(b, i);
    return is_free ? leaf->grad : tarn__tensor_new(b->function, edge->spec.shape, dtype, edge->spec.device);
}

/* In order: the leaf's own gradient, a pending gradient no one else sees, else a new tensor with beta 0. */
bool tarn__grad_acc_open(const tarn__backward *b, int i, tarn__grad_acc *acc)
{
    tarn__edge *edge = &b->node->edge[i];
    bool separate = tarn__anomaly() || is_shared(b, i); /* anomaly mode checks the gradient before it is added */
    *acc = (tarn__grad_acc){0};
    if (edge->leaf && !separate) {
        if (!allocate_leaf_grad(b->function, edge->leaf))
            return false;
        acc->leaf = edge->leaf;
        acc->tensor = edge->leaf->grad;
        acc->beta = edge->leaf->grad_is_set ? 1 : 0;
        return true;
    }
    tarn_tensor *pending = edge->node && !separate ? edge->node->grad[edge->output] : NULL;
    if (pending && is_exclusive(pending) && tarn__view_is_contiguous(&pending->view)) {
        acc->tensor = pending;
        acc->beta = 1;
        return true;
    }
    acc->tensor = tarn__tensor_new(b->function, edge->spec.shape, tarn__grad_dtype(b, i), edge->spec.device);
    return acc->tensor != NULL;
}

/* A leaf's gradient is complete; a pending one was updated in place; anything else is accumulated now. */
bool tarn__grad_acc_close(const tarn__backward *b, int i, tarn__grad_acc *acc)
{
    const tarn__edge *edge = &b->node->edge[i];
    if (acc->leaf) {
        acc->leaf->grad_is_set = true;
        tarn__bump_version(acc->leaf->grad);
        return true;
    }
    return (edge->node && acc->tensor == edge->node->grad[edge->output]) || tarn__accumulate_grad(b, i, acc->tensor);
}
