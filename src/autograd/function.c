/* function.c: user-defined differentiable operations (tarn_function()). The library takes over `ctx` and calls
 * `release` once: when the node is freed, or at once if nothing was recorded.
 *
 * The user's backward runs unrecorded, in the node's scope; gradients it returns are borrowed and checked for shape,
 * dtype and device before they are accumulated. */
#include "autograd/tape.h"
#include "base/memory.h"

typedef struct function_params {
    tarn_backward_fn backward;
    tarn_backward_saved_fn backward_saved; /* alternative for functions that save tensors */
    void *ctx;
    void (*release)(void *ctx);
} function_params;

static void release_function(void *params)
{
    const function_params *p = params;
    if (p->release)
        p->release(p->ctx);
}

/* Checks shape, dtype and device of the gradient of input `i` and accumulates it. */
static bool accumulate(const tarn__backward *b, int i, tarn_tensor *grad)
{
    const tarn__tensor_spec *spec = tarn__input_spec(b, i);
    if (!tarn__check_live(b->function, grad, "the gradient of an input"))
        return false;
    tarn__view shape = {.rank = spec->shape.rank};
    for (int k = 0; k < shape.rank; k++)
        shape.shape[k] = spec->shape.size[k];
    if (!tarn__same_shape(&grad->view, &shape) || !tarn__is_float(grad->view.dtype) ||
        !tarn__same_device(tarn__device(grad), spec->device))
        return tarn__raise(TARN_ERROR_SHAPE,
                           "%s: the gradient of input %d is %s %s, the input %s %s, or they are on different devices",
                           b->function, i, tarn_dtype_name(grad->view.dtype), TARN__SHAPE_STRING(grad),
                           tarn_dtype_name(spec->dtype),
                           tarn__shape_string(spec->shape.size, spec->shape.rank, &(tarn__shape_buffer){{0}}));
    return tarn__accumulate_grad(b, i, grad);
}

/* Calls the user's rule and accumulates its gradients; NULL entries are skipped. */
static bool function_backward(const tarn__backward *b)
{
    const function_params *p = b->params;
    int count = b->node->inputs;
    tarn_tensor **grads = tarn__alloc(sizeof(*grads) * (size_t)count);
    if (!grads)
        return false;
    bool good =
        p->backward ? p->backward(b->grads, grads, p->ctx) : p->backward_saved(b->grads, b->saved, grads, p->ctx);
    if (!good && !tarn_failed())
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: a user's backward failed without setting an error", b->function);
    for (int i = 0; good && i < count; i++)
        good = !grads[i] || !tarn__needs_grad(b, i) || accumulate(b, i, grads[i]);
    tarn__release(grads, sizeof(*grads) * (size_t)count);
    return good;
}

/* Outputs must be fresh floats: not recorded, not leaves, and no two alike. */
static bool check_outputs(const char *function, tarn_tensor *const *outputs, int count)
{
    for (int i = 0; i < count; i++) {
        const tarn_tensor *y = outputs[i];
        if (!tarn__check(function, y, "an output") || !tarn__check_dtype(function, y, TARN__FLOATS, "an output"))
            return false;
        if (y->origin->grad_fn || y->origin->requires_grad || y->is_constant)
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "%s: output %d is already part of a recorded computation; compute it between "
                               "tarn_no_grad_open() and tarn_no_grad_close()",
                               function, i);
        for (int k = 0; k < i; k++)
            if (outputs[k]->origin == y->origin)
                return tarn__raise(TARN_ERROR_ARGUMENT, "%s: outputs %d and %d are the same tensor", function, k, i);
    }
    return true;
}

/* Saved tensors may be NULL, but not constants, which have no version. */
static bool check_saved(const char *function, tarn_tensor *const *saved, int count)
{
    if (count < 0 || (count > 0 && !saved))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a list of %d saved tensors%s", function, count,
                           saved ? "" : " that is NULL");
    for (int i = 0; i < count; i++) {
        if (saved[i] && !tarn__check_any(function, saved[i], "a saved tensor"))
            return false;
        if (saved[i] && saved[i]->is_constant)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: saved tensor %d is a tarn_scalar(); put its value into ctx",
                               function, i);
    }
    return true;
}

/* Checks everything before ctx is recorded. */
static bool check_function(const tarn__recording *r, bool has_backward)
{
    if (tarn_failed())
        return false;
    if (!r->inputs || r->input_count < 1 || !r->outputs || r->output_count < 1 || !has_backward)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: inputs, outputs and a backward are required", r->function);
    for (int i = 0; i < r->input_count; i++)
        if (!tarn__check_any(r->function, r->inputs[i], "an input"))
            return false;
    return check_outputs(r->function, r->outputs, r->output_count) &&
           check_saved(r->function, r->saved, r->saved_count);
}

/* Common part of both forms. Takes over ctx, on failure as well. */
static bool record_function(tarn__recording r, function_params p)
{
    r.rule = function_backward;
    r.params = &p;
    r.params_bytes = sizeof(p);
    r.params_release = release_function;
    bool good = check_function(&r, p.backward || p.backward_saved);
    bool needed = good && tarn__recording_needed(r.inputs, r.input_count);
    good = good && tarn__record(&r);
    if ((!good || !needed) && p.release)
        p.release(p.ctx);
    return good;
}

bool tarn_function(tarn_tensor *const *inputs, int input_count, tarn_tensor *const *outputs, int output_count,
                   tarn_backward_fn backward, void *ctx, void (*release)(void *ctx))
{
    return record_function((tarn__recording){.function = "function",
                                             .inputs = inputs,
                                             .input_count = input_count,
                                             .outputs = outputs,
                                             .output_count = output_count},
                           (function_params){.backward = backward, .ctx = ctx, .release = release});
}

bool tarn_function_save(tarn_tensor *const *inputs, int input_count, tarn_tensor *const *outputs, int output_count,
                        tarn_tensor *const *saved, int saved_count, tarn_backward_saved_fn backward, void *ctx,
                        void (*release)(void *ctx))
{
    return record_function((tarn__recording){.function = "function_save",
                                             .inputs = inputs,
                                             .input_count = input_count,
                                             .outputs = outputs,
                                             .output_count = output_count,
                                             .saved = saved,
                                             .saved_count = saved_count},
                           (function_params){.backward_saved = backward, .ctx = ctx, .release = release});
}
