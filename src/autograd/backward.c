/* backward.c: the backward pass.
 *
 * Nodes are visited by descending sequence number. A tensor's users are recorded after its producer, so all gradients
 * of a node's outputs have arrived when it is visited. The pass is a heap and a loop, never recursion, and frees
 * saved tensors as it goes unless `retain` is set.
 *
 * Gradients of leaves add up over passes; those of inner nodes are dropped after use. A failing rule ends the pass
 * with its error; leaves may then hold partial sums. */
#include <string.h>

#include "autograd/tape.h"
#include "base/memory.h"
#include "core/profile/profiler.h"

typedef struct heap {
    tarn__node **node; /* each retained */
    int count, capacity;
} heap;

/* A max-heap by sequence number. A node is queued once, however many gradients arrive. */
static bool heap_push(heap *h, tarn__node *node)
{
    if (node->queued)
        return true;
    if (!tarn__list_reserve(&h->node, h->count, &h->capacity, sizeof(*h->node)))
        return false;
    tarn__grad_fn_retain(&node->base);
    node->queued = true;
    int i = h->count++;
    for (; i > 0 && h->node[(i - 1) / 2]->sequence < node->sequence; i = (i - 1) / 2)
        h->node[i] = h->node[(i - 1) / 2];
    h->node[i] = node;
    return true;
}

/* Returns the node with the reference the heap had. */
static tarn__node *heap_pop(heap *h)
{
    tarn__node *first = h->node[0], *last = h->node[--h->count];
    int i = 0;
    for (int child; (child = 2 * i + 1) < h->count; i = child) {
        if (child + 1 < h->count && h->node[child + 1]->sequence > h->node[child]->sequence)
            child++;
        if (h->node[child]->sequence <= last->sequence)
            break;
        h->node[i] = h->node[child];
    }
    if (h->count)
        h->node[i] = last;
    first->queued = false;
    return first;
}

/* Raises when the saved tensors were freed by an earlier pass, or one was overwritten since. */
static bool check_saved(const tarn__node *node)
{
    if (node->released)
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "backward: the record of %s was freed by an earlier backward; pass .retain = true to the first one",
            node->function);
    for (int i = 0; i < node->saves; i++) {
        const tarn_tensor *tensor = node->saved[i].tensor;
        if (tensor && tensor->storage->version != node->saved[i].version)
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "backward: %s needs a tensor %s%s%s that was overwritten in place after it was "
                               "recorded; clone it before writing",
                               node->function, TARN__SHAPE_STRING(tensor), tensor->name ? " " : "",
                               tensor->name ? tensor->name : "");
    }
    return true;
}

/* Calls a node's rule, or with `made` recomputes its output 0. A saved tensor may have to be recomputed first,
 * recursively; chains are short, because only norms and activations are recomputed and their operands come from
 * other operations. */
static bool call_rule(tarn__node *node, tarn_tensor **made)
{
    if (!check_saved(node))
        return false;
    tarn_tensor **saved = tarn__alloc(sizeof(*saved) * (size_t)(node->saves + 1));
    bool good = saved != NULL;
    for (int i = 0; good && i < node->saves; i++) {
        saved[i] = node->saved[i].tensor;
        good = !node->saved[i].producer || call_rule(node->saved[i].producer, &saved[i]);
    }
    if (good) {
        tarn__backward b = {node, node->function, node->grad, saved, node->params};
        good = (made ? (*made = node->recompute(&b)) != NULL : node->rule(&b)) && !tarn_failed();
        if (!good && !tarn_failed())
            tarn__raise(TARN_ERROR_INTERNAL, "backward: the rule of %s failed without setting an error",
                        node->function);
    }
    tarn__release(saved, sizeof(*saved) * (size_t)(node->saves + 1));
    return good;
}

/* A scope per node: temporaries of a rule are freed right after it. */
static bool run_node(tarn__node *node)
{
    tarn_scope *scope = tarn_scope_open();
    tarn__anomaly_rule_open();
    bool good = scope && call_rule(node, NULL);
    tarn__anomaly_rule_close();
    tarn_scope_close(scope);
    return good;
}

/* Releases the gradients of a node's outputs. */
static void drop_grads(tarn__node *node)
{
    for (int i = 0; i < node->outputs; i++) {
        tarn__tensor_release(node->grad[i]);
        node->grad[i] = NULL;
    }
}

/* Runs one node and queues the producers of its inputs that got a gradient. */
static bool visit(heap *h, tarn__node *node, bool retain)
{
    if (!run_node(node))
        return false;
    drop_grads(node);
    for (int i = 0; i < node->inputs; i++) {
        tarn__node *source = node->edge[i].node;
        if (source && source->grad[node->edge[i].output] && !heap_push(h, source))
            return false;
    }
    if (!retain)
        tarn__node_release(node);
    return true;
}

/* The watch of a pass that begins; NULL: none, or the pass is one of a checkpointed function. `good`: false with an
 * error. */
static tarn__grad_watch *enter_watch(bool *good)
{
    tarn__grad_watch *watch = tarn__grad_watch_of_thread();
    if (!watch || watch->is_inside)
        return NULL;
    if (watch->has_passed)
        *good = tarn__raise(TARN_ERROR_INTERNAL, "backward: a second pass under one watch of gradients");
    watch->is_inside = true;
    return watch;
}

static void leave_watch(tarn__grad_watch *watch)
{
    if (watch) {
        watch->is_inside = false;
        watch->has_passed = true;
    }
}

/* Nodes above the next one have run, or get no gradient. */
static bool tell_watch(const tarn__grad_watch *watch, const heap *h)
{
    return !watch || watch->passed(watch->ctx, h->count ? h->node[0]->sequence + 1 : 0);
}

/* On failure all pending gradients are dropped, so that a later pass starts clean. */
static bool walk(tarn__node *start, bool retain)
{
    heap h = {0};
    bool good = heap_push(&h, start);
    tarn__grad_watch *watch = enter_watch(&good);
    if (!good)
        drop_grads(start);
    while (good && h.count > 0) {
        tarn__node *node = heap_pop(&h);
        good = visit(&h, node, retain);
        if (!good) {
            drop_grads(node);
            for (int i = 0; i < node->inputs; i++)
                if (node->edge[i].node)
                    drop_grads(node->edge[i].node);
        }
        tarn__grad_fn_release(&node->base);
        good = good && tell_watch(watch, &h);
    }
    leave_watch(watch);
    while (h.count > 0) {
        tarn__node *node = heap_pop(&h);
        drop_grads(node);
        tarn__grad_fn_release(&node->base);
    }
    tarn__release(h.node, sizeof(*h.node) * (size_t)h.capacity);
    return good;
}

/* ---- the public calls -------------------------------------------------------------------------------------------- */

/* Without a given gradient the tensor must be a scalar; its gradient is 1. */
static bool check_upstream(const char *function, const tarn_tensor *tensor, const tarn_tensor *upstream)
{
    if (!tensor->origin->grad_fn && !tensor->origin->requires_grad)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: nothing the tensor was computed from requires a gradient",
                           function);
    if (!upstream)
        return tarn__view_count(&tensor->view) == 1 ||
               tarn__raise(TARN_ERROR_SHAPE,
                           "%s: a tensor %s does not have one element; give its gradient with tarn_backward_from()",
                           function, TARN__SHAPE_STRING(tensor));
    if (!tarn__check_live(function, upstream, "the gradient given"))
        return false;
    if (!tarn__same_shape(&tensor->view, &upstream->view))
        return tarn__raise(TARN_ERROR_SHAPE, "%s: the gradient given is %s, the tensor %s", function,
                           TARN__SHAPE_STRING(upstream), TARN__SHAPE_STRING(tensor));
    if (upstream->view.dtype != tensor->view.dtype)
        return tarn__raise(TARN_ERROR_DTYPE, "%s: the gradient given is %s, the tensor %s", function,
                           tarn_dtype_name(upstream->view.dtype), tarn_dtype_name(tensor->view.dtype));
    return tarn__same_device(tarn__device(tensor), tarn__device(upstream)) ||
           tarn__raise(TARN_ERROR_DEVICE, "%s: the gradient given is on another device than the tensor", function);
}

/* The pass runs unrecorded. A leaf as the starting point just gets the upstream gradient. */
static bool backward(const char *function, tarn_tensor *tensor, tarn_tensor *upstream, bool retain)
{
    if (!tarn__check(function, tensor, "the tensor") || !check_upstream(function, tensor, upstream))
        return false;
    tarn_no_grad_open();
    tarn_scope *scope = tarn_scope_open();
    bool was_inside = tarn__profile_backward(true); /* a checkpointed function runs a backward pass inside another */
    bool good = scope != NULL;
    if (good && !upstream)
        good = (upstream = tarn_ones_like(tensor)) != NULL;
    if (good) {
        tarn__tensor_spec spec = {tarn__shape_of(tensor), tensor->view.dtype, tarn__device(tensor)};
        tarn_tensor *origin = tensor->origin;
        tarn__edge edge = {(tarn__node *)origin->grad_fn, origin->grad_fn ? NULL : origin, origin->grad_fn_output,
                           spec};
        good = tarn__edge_accumulate(function, &edge, upstream);
        if (edge.node && good)
            good = walk(edge.node, retain);
    }
    tarn__profile_backward(was_inside);
    tarn_scope_close(scope);
    tarn_no_grad_close();
    return good;
}

bool tarn_backward(tarn_tensor *loss)
{
    return backward("backward", loss, NULL, false);
}

bool tarn_backward_from_sized(tarn_tensor *tensor, tarn_tensor *upstream, const tarn_backward_options *options,
                              size_t options_size)
{
    tarn_backward_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    return backward("backward_from", tensor, upstream, chosen.retain);
}
