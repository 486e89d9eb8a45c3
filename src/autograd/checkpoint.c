/* checkpoint.c: a block that is computed twice instead of stored.
 *
 * Forward runs the block once and keeps only its inputs, its result and where the generators stood. Backward runs it
 * again, recorded, on detached inputs and walks that record: parameters used inside get their gradients there, the
 * inputs' are handed on. */
#include "autograd/tape.h"
#include "base/memory.h"
#include "core/tensor/random.h"

typedef struct checkpoint_params {
    tarn_checkpoint_fn block;
    void *ctx;
    tarn__rng_state generator;
} checkpoint_params;

/* Runs the block in a scope of its own and moves its result to the scope around it; `fresh` says whether the block made
 * it. */
static tarn_tensor *run_block(tarn_checkpoint_fn block, void *ctx, tarn_tensor *const *inputs, int count, bool *fresh)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *result = scope ? block(inputs, count, ctx) : NULL;
    *fresh = false;
    if (scope && !result)
        tarn__raise(TARN_ERROR_ARGUMENT, "checkpoint: the block returned NULL");
    if (result && !tarn_failed())
        result = tarn__scope_pass_out(scope, result, fresh);
    tarn_scope_close(scope);
    return tarn_failed() ? NULL : result;
}

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
    tarn_tensor *result = run_block(p->block, p->ctx, inputs, count, &fresh);
    tarn__random_restore(&now);
    bool good = result && tarn_backward_from(result, b->grads[0], NULL);
    tarn__grad_unforce(depth);
    return good;
}

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

tarn_tensor *tarn_checkpoint(tarn_checkpoint_fn block, void *ctx, tarn_tensor *const *inputs, int count)
{
    if (tarn_failed())
        return NULL;
    if (!block || !inputs || count < 1) {
        tarn__raise(TARN_ERROR_ARGUMENT, "checkpoint: a block and at least one input are required");
        return NULL;
    }
    for (int i = 0; i < count; i++)
        if (!tarn__check_any("checkpoint", inputs[i], "an input"))
            return NULL;
    checkpoint_params p = {block, ctx, tarn__random_save()};
    bool fresh;
    tarn_tensor *stored = run_block(block, ctx, inputs, count, &fresh);
    if (!stored)
        return NULL;
    if (!stored->origin->history) /* nothing inside wants a gradient, or nothing is being recorded */
        return stored;
    tarn_tensor *result = tarn_detach(stored);
    if (fresh)
        tarn_free(stored); /* and with it the record of the first run */
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
