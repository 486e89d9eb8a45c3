/* tape.c: nodes of the tape: recording, anomaly checks, freeing long chains without recursion; and gradients of
 * leaves.
 *
 * The modes (no_grad, selective recompute, anomaly) and the watch are per thread. A node and its lists are one
 * allocation, so recording costs one call of the allocator. */
#include "autograd/tape.h"

#include <string.h>

#include "base/memory.h"

static _Thread_local int no_grad_depth;
static _Thread_local int recompute_depth;
static _Thread_local bool anomaly;
static _Thread_local int rules_running;
static _Thread_local tarn__grad_watch *watch; /* borrowed; NULL: none */
static _Atomic uint64_t next_sequence = 1;

void tarn_no_grad_open(void)
{
    no_grad_depth++;
}

void tarn_no_grad_close(void)
{
    if (no_grad_depth > 0)
        no_grad_depth--;
    else
        tarn__raise(TARN_ERROR_ARGUMENT, "no_grad_close: no section is open on this thread");
}

bool tarn_grad_enabled(void)
{
    return no_grad_depth == 0;
}

int tarn__grad_force(void)
{
    int depth = no_grad_depth;
    no_grad_depth = 0;
    return depth;
}

void tarn__grad_unforce(int depth)
{
    no_grad_depth = depth;
}

void tarn__recompute_open(void)
{
    recompute_depth++;
}

void tarn__recompute_close(void)
{
    recompute_depth--;
}

bool tarn__is_recomputing(void)
{
    return recompute_depth > 0;
}

void tarn__grad_watch_open(tarn__grad_watch *opened)
{
    opened->begin = atomic_load_explicit(&next_sequence, memory_order_relaxed);
    opened->has_passed = opened->is_inside = false;
    watch = opened;
}

void tarn__grad_watch_close(void)
{
    watch = NULL;
}

tarn__grad_watch *tarn__grad_watch_of_thread(void)
{
    return watch;
}

void tarn_set_anomaly(bool on)
{
    anomaly = on;
}

bool tarn__anomaly(void)
{
    return anomaly;
}

void tarn__anomaly_rule_open(void)
{
    rules_running++;
}

void tarn__anomaly_rule_close(void)
{
    rules_running--;
}

static bool needs_grad(const tarn_tensor *tensor)
{
    return tensor && (tensor->origin->requires_grad || tensor->origin->grad_fn);
}

/* A tensor needs a gradient if it is a leaf that requires one or the result of a recorded operation. */
bool tarn__recording_needed(tarn_tensor *const *inputs, int count)
{
    if (no_grad_depth > 0)
        return false;
    for (int i = 0; i < count; i++)
        if (needs_grad(inputs[i]))
            return true;
    return false;
}

/* ---- anomaly mode ------------------------------------------------------------------------------------------------ */

/* The number of non-finite values; -1 on error. */
static int64_t count_nonfinite(const char *function, tarn_tensor *tensor)
{
    if (!tensor || !tarn__is_float(tensor->view.dtype) || tarn__view_count(&tensor->view) == 0)
        return 0;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *count = scope ? tarn__tensor_new(function, TARN_SCALAR, TARN_I64, tarn__device(tensor)) : NULL;
    tarn__fill none = {0};
    bool good = count && tarn__run(&(tarn__launch){.kernel = TARN__K_count_nonfinite,
                                                   .function = function,
                                                   .inputs = 1,
                                                   .outputs = 1,
                                                   .in = {tensor},
                                                   .out = {count},
                                                   .params = &none,
                                                   .params_bytes = sizeof(none)});
    int64_t found = good ? (int64_t)tarn_item(count) : -1;
    tarn_scope_close(scope);
    return found;
}

/* True when a tensor of the list is not finite, so that the operation is not to blame; also on error. */
static bool any_nonfinite(const char *function, tarn_tensor *const *tensors, int count)
{
    for (int i = 0; i < count; i++)
        if (count_nonfinite(function, tensors[i]) != 0)
            return true;
    return false;
}

/* Names the operation and its result's shape. */
static bool raise_anomaly(const char *function, const char *what, const tarn_tensor *result, int64_t found)
{
    return tarn__raise(
        TARN_ERROR_ARGUMENT,
        "anomaly: %s%s produced %lld value%s that %s not finite from finite operands; its result is %s %s", what,
        function, (long long)found, found == 1 ? "" : "s", found == 1 ? "is" : "are",
        tarn_dtype_name(result->view.dtype), TARN__SHAPE_STRING(result));
}

/* Raises if an output is not finite although all inputs are. */
static bool check_forward(const tarn__recording *r)
{
    for (int i = 0; i < r->output_count; i++) {
        int64_t found = count_nonfinite(r->function, r->outputs[i]);
        if (found > 0)
            return any_nonfinite(r->function, r->inputs, r->input_count)
                       ? !tarn_failed()
                       : raise_anomaly(r->function, "", r->outputs[i], found);
        if (found < 0)
            return false;
    }
    return true;
}

/* Blames the rule only if its upstream gradients and saved tensors are finite. */
bool tarn__check_gradient(const tarn__backward *b, tarn_tensor *grad)
{
    int64_t found = count_nonfinite(b->function, grad);
    if (found <= 0)
        return found == 0;
    if (any_nonfinite(b->function, b->grads, b->node->outputs) || any_nonfinite(b->function, b->saved, b->node->saves))
        return !tarn_failed();
    return raise_anomaly(b->function, "the backward of ", grad, found);
}

/* ---- releasing ------------------------------------------------------------------------------------------------- */

/* Also called by the backward pass, to free saved tensors early; safe to call twice. */
void tarn__node_release(tarn__node *node)
{
    for (int i = 0; i < node->saves; i++) {
        tarn__node *producer = node->saved[i].producer;
        tarn__tensor_release(node->saved[i].tensor);
        node->saved[i] = (tarn__saved){0};
        if (producer)
            tarn__grad_fn_release(&producer->base);
    }
    for (int i = 0; i < node->inputs; i++) {
        tarn__node *source = node->edge[i].node;
        node->edge[i].node = NULL;
        tarn__tensor_release(node->edge[i].leaf);
        node->edge[i].leaf = NULL;
        if (source)
            tarn__grad_fn_release(&source->base);
    }
    for (int i = 0; i < node->outputs; i++) {
        tarn__tensor_release(node->grad[i]);
        node->grad[i] = NULL;
    }
    if (node->params_release)
        node->params_release(node->params);
    node->params_release = NULL;
    node->released = true;
}

static _Thread_local tarn__node *pending_release;
static _Thread_local bool is_draining;

/* Releasing the last node of a long chain releases the one before it, and so on: a list replaces the recursion. */
static void release_node(tarn__grad_fn *grad_fn)
{
    tarn__node *node = (tarn__node *)grad_fn;
    node->next_dead = pending_release;
    pending_release = node;
    if (is_draining)
        return;
    is_draining = true;
    while (pending_release) {
        node = pending_release;
        pending_release = node->next_dead;
        tarn__node_release(node);
        tarn__release(node, node->bytes);
    }
    is_draining = false;
}

/* ---- recording --------------------------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

/* One allocation for the node, its lists and the params. */
static tarn__node *new_node(const tarn__recording *r)
{
    size_t edges = round_up(sizeof(tarn__edge) * (size_t)r->input_count),
           saves = round_up(sizeof(tarn__saved) * (size_t)r->saved_count);
    size_t grads = round_up(sizeof(tarn_tensor *) * (size_t)r->output_count),
           made = round_up(sizeof(tarn__tensor_spec) * (size_t)r->output_count);
    size_t head = round_up(sizeof(tarn__node)), bytes = head + edges + saves + grads + made + round_up(r->params_bytes);
    char *memory = tarn__alloc(bytes);
    if (!memory)
        return NULL;
    tarn__node *node = (tarn__node *)memory;
    node->edge = (tarn__edge *)(memory + head);
    node->saved = (tarn__saved *)(memory + head + edges);
    node->grad = (tarn_tensor **)(memory + head + edges + saves);
    node->output_spec = (tarn__tensor_spec *)(memory + head + edges + saves + grads);
    node->params = memory + head + edges + saves + grads + made;
    node->bytes = bytes;
    return node;
}

static tarn__tensor_spec spec_of(const tarn_tensor *tensor)
{
    return (tarn__tensor_spec){tarn__shape_of(tensor), tensor->view.dtype, tarn__device(tensor)};
}

/* Sets where the gradient of an input goes: its node, its leaf, or nowhere. Retains either. `sequence` is the new
 * node's. */
static void connect(tarn__edge *edge, tarn_tensor *input, uint64_t sequence)
{
    if (!input)
        return;
    input = input->origin;
    edge->spec = spec_of(input);
    edge->output = input->grad_fn_output;
    if (input->grad_fn) {
        edge->node = (tarn__node *)input->grad_fn;
        tarn__grad_fn_retain(input->grad_fn);
    } else if (input->requires_grad) {
        edge->leaf = input;
        tarn__tensor_retain(input);
        if (watch && input->first_use < watch->begin)
            input->first_use = sequence;
    }
}

static bool is_recomputed(const tarn_tensor *tensor)
{
    return tensor->grad_fn && ((const tarn__node *)tensor->grad_fn)->recompute && tensor->grad_fn_output == 0;
}

/* Saves a tensor for the rule: an output as an alias without grad_fn (no cycle), a recomputable one as its node,
 * anything else as it is, with the version that backward compares. */
static bool save(tarn__saved *slot, tarn_tensor *tensor, const tarn__recording *r)
{
    if (!tensor)
        return true;
    tensor = tensor->origin;
    if (is_recomputed(tensor)) {
        slot->producer = (tarn__node *)tensor->grad_fn;
        tarn__grad_fn_retain(tensor->grad_fn);
        return true;
    }
    for (int i = 0; i < r->output_count; i++)
        if (r->outputs[i] && r->outputs[i]->origin == tensor) {
            tensor = tarn__tensor_view(tensor);
            if (!tensor)
                return false;
            tarn__tensor_retain(tensor);
            tarn_free(tensor); /* removed from the scope: only the node retains it */
            slot->tensor = tensor;
            slot->version = tensor->storage->version;
            return true;
        }
    tarn__tensor_retain(tensor);
    slot->tensor = tensor;
    slot->version = tensor->storage->version;
    return true;
}

/* The node's own reference is dropped at the end: its outputs keep it alive, and without outputs it is freed at
 * once. */
bool tarn__record(const tarn__recording *r)
{
    if (anomaly && rules_running == 0 && !check_forward(r))
        return false;
    if (!r->rule || !(tarn__recording_needed(r->inputs, r->input_count) || (r->always && no_grad_depth == 0)))
        return true;
    tarn__node *node = new_node(r);
    if (!node)
        return false;
    node->base.references = 1;
    node->base.release = release_node;
    node->function = r->function;
    node->rule = r->rule;
    node->recompute = recompute_depth > 0 ? r->recompute : NULL;
    node->sequence = atomic_fetch_add_explicit(&next_sequence, 1, memory_order_relaxed);
    node->inputs = r->input_count;
    node->outputs = r->output_count;
    node->params_bytes = r->params_bytes;
    if (r->params_bytes)
        memcpy(node->params, r->params, r->params_bytes);
    for (int i = 0; i < r->input_count; i++)
        connect(&node->edge[i], r->inputs[i], node->sequence);
    bool good = true;
    for (int i = 0; good && i < r->saved_count; i++) {
        good = save(&node->saved[i], r->saved[i], r);
        node->saves = good ? i + 1 : i;
    }
    for (int i = 0; good && i < r->output_count; i++) {
        if (!r->outputs[i])
            continue;
        node->output_spec[i] = spec_of(r->outputs[i]);
        tarn__grad_fn_retain(&node->base);
        r->outputs[i]->origin->grad_fn = &node->base;
        r->outputs[i]->origin->grad_fn_output = i;
    }
    if (good)
        node->params_release = r->params_release;
    tarn__grad_fn_release(&node->base);
    return good;
}

/* ---- leaves ------------------------------------------------------------------------------------------------------ */

/* Only float leaves collect gradients. */
tarn_tensor *tarn_requires_grad(tarn_tensor *tensor, bool required)
{
    if (!tarn__check_any("requires_grad", tensor, "the tensor"))
        return NULL;
    if (required && (tensor->is_constant || !tarn__check_dtype("requires_grad", tensor, TARN__FLOATS, "the tensor"))) {
        if (tensor->is_constant)
            tarn__raise(TARN_ERROR_ARGUMENT, "requires_grad: a tarn_scalar() is a constant");
        return NULL;
    }
    if (tensor->origin->grad_fn) {
        tarn__raise(TARN_ERROR_ARGUMENT,
                    "requires_grad: the tensor is the result of a recorded operation; use tarn_detach() first");
        return NULL;
    }
    tensor->origin->requires_grad = required;
    return tensor;
}

bool tarn_needs_grad(const tarn_tensor *tensor)
{
    if (!tensor)
        return tarn__raise(TARN_ERROR_ARGUMENT, "needs_grad: the tensor is NULL");
    return tarn__check_live("needs_grad", tensor, "the tensor") && needs_grad(tensor);
}

/* The gradient, borrowed from the leaf; NULL before the first backward. */
tarn_tensor *tarn_grad(const tarn_tensor *tensor)
{
    if (!tarn__check_any("grad", tensor, "the tensor"))
        return NULL;
    return tensor->origin->grad_is_set ? tensor->origin->grad : NULL;
}

/* Memory that an optimizer provided stays; only the flag is cleared. */
void tarn_zero_grad(tarn_tensor *tensor)
{
    if (!tensor)
        tarn__raise(TARN_ERROR_ARGUMENT, "zero_grad: the tensor is NULL");
    if (!tensor || !tarn__check_live("zero_grad", tensor, "the tensor"))
        return;
    tarn_tensor *leaf = tensor->origin;
    leaf->grad_is_set = false;
    if (!leaf->optimizer) { /* memory of an optimizer stays; any other would cost the next gradient a copy */
        tarn__tensor_release(leaf->grad);
        leaf->grad = NULL;
    }
}

/* A view without grad_fn: shares memory and version. */
tarn_tensor *tarn_detach(tarn_tensor *tensor)
{
    return tarn__check_any("detach", tensor, "the tensor") ? tarn__tensor_view(tensor) : NULL;
}
