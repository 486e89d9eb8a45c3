/* activation_checkpoint.c: activation checkpointing: a function that is computed twice instead of stored.
 *
 * Forward runs the function once and saves only its inputs, its result and the state of the random number generator.
 * Backward runs it again, recorded, on detached inputs and runs backward over that record: parameters used inside
 * get their gradients there, those of the inputs are passed on. Dropout draws the same mask twice.
 *
 * Memory: inputs and result are stored instead of all activations inside; time: one more forward pass. Checkpointed
 * functions may be nested. */
#include "autograd/tape.h"
#include "base/memory.h"
#include "core/tensor/random.h"

/* Copied into the node; `ctx` is borrowed and must outlive backward. */
typedef struct checkpoint_params {
    tarn_checkpoint_fn function;
    void *ctx;
    tarn__rng_state generator;
} checkpoint_params;

/* Runs the function in its own scope and moves the result to the enclosing one; `fresh`: the function created it. */
static tarn_tensor *run_function(tarn_checkpoint_fn function, void *ctx, tarn_tensor *const *inputs, int count,
                                 bool *fresh)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *result = scope ? function(inputs, count, ctx) : NULL;
    *fresh = false;
    if (scope && !result)
        tarn__raise(TARN_ERROR_ARGUMENT, "checkpoint: the function returned NULL");
    if (result && !tarn_failed())
        result = tarn__scope_pass_out(scope, result, fresh);
    tarn_scope_close(scope);
    return tarn_failed() ? NULL : result;
}

/* Runs the function again, recorded, with the saved state of the generator, then backward from its result. */
static bool recompute(const tarn__backward *b, tarn_tensor **inputs)
{
    const checkpoint_params *p = b->params;
    int count = b->node->inputs;
    for (int i = 0; i < count; i++) {
        inputs[i] = tarn_detach(b->saved[i]);
        if (!inputs[i] || (tarn__needs_grad(b, i) && !tarn_requires_grad(inputs[i], true)))
            return false;
    }
    tarn__rng_state now = tarn__random_save();
    tarn__random_restore(&p->generator);
    int depth = tarn__grad_force();
    bool fresh;
    tarn_tensor *result = run_function(p->function, p->ctx, inputs, count, &fresh);
    tarn__random_restore(&now);
    bool good = result && tarn_backward_from(result, b->grads[0], NULL);
    tarn__grad_unforce(depth);
    return good;
}

/* Inputs without a gradient (nothing reached them) are skipped. */
static bool checkpoint_backward(const tarn__backward *b)
{
    int count = b->node->inputs;
    tarn_tensor **inputs = tarn__alloc(sizeof(*inputs) * (size_t)count);
    bool good = inputs && recompute(b, inputs);
    for (int i = 0; good && i < count; i++)
        if (tarn__needs_grad(b, i) && inputs[i]->grad_is_set)
            good = tarn__accumulate_grad(b, i, inputs[i]->grad);
    tarn__release(inputs, sizeof(*inputs) * (size_t)count);
    return good;
}

/* The result shares no nodes with the first run; its node has the inputs as edges and `always` records it, because
 * parameters inside the function may need gradients even if no input does. */
tarn_tensor *tarn_checkpoint(tarn_checkpoint_fn function, void *ctx, tarn_tensor *const *inputs, int count)
{
    if (tarn_failed())
        return NULL;
    if (!function || !inputs || count < 1) {
        tarn__raise(TARN_ERROR_ARGUMENT, "checkpoint: a function and at least one input are required");
        return NULL;
    }
    for (int i = 0; i < count; i++)
        if (!tarn__check_any("checkpoint", inputs[i], "an input"))
            return NULL;
    checkpoint_params p = {function, ctx, tarn__random_save()};
    bool fresh;
    tarn_tensor *stored = run_function(function, ctx, inputs, count, &fresh);
    if (!stored)
        return NULL;
    if (!stored->origin->grad_fn) /* nothing inside needs a gradient, or recording is off */
        return stored;
    tarn_tensor *result = tarn_detach(stored);
    if (fresh)
        tarn_free(stored); /* frees the record of the first run */
    bool good = result && tarn__record(&(tarn__recording){.function = "checkpoint",
                                                          .rule = checkpoint_backward,
                                                          .inputs = inputs,
                                                          .input_count = count,
                                                          .outputs = &result,
                                                          .output_count = 1,
                                                          .saved = inputs,
                                                          .saved_count = count,
                                                          .params = &p,
                                                          .params_bytes = sizeof(p),
                                                          .always = true});
    return good ? result : NULL;
}
