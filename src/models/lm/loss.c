/* loss.c: the loss of language models. */
#include "base/dtype.h"
#include "models/lm/arch.h"
#include "nn/lora.h"

/* Raises unless positions and starts have the shape of the tokens. */
static bool check_documents(const char *function, const tarn_tensor *tokens, const tarn__documents *d)
{
    if (!tarn__check(function, d->positions, "positions") || !tarn__check(function, d->document_starts, "starts"))
        return false;
    return (tarn__same_shape(&tokens->view, &d->positions->view) &&
            tarn__same_shape(&tokens->view, &d->document_starts->view)) ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: positions %s and starts %s must have the shape of the tokens, %s",
                       function, TARN__SHAPE_STRING(d->positions), TARN__SHAPE_STRING(d->document_starts),
                       TARN__SHAPE_STRING(tokens));
}

/* [B, T, hidden_size] of all tokens. */
static tarn_tensor *hidden_states(tarn_module *model, tarn_tensor *tokens, const tarn__documents *documents)
{
    tarn_module *body = model->child[TARN__MODEL_BODY];
    return documents ? tarn__model_hidden(body, tokens, documents) : tarn_forward(body, tokens);
}

/* The loss leaves its scope. */
static tarn_tensor *finish(const char *function, tarn_scope *scope, tarn_tensor *loss)
{
    if (loss)
        tarn_scope_return(scope, loss);
    else
        tarn__raise_within(function);
    tarn_scope_close(scope);
    return loss;
}

/* Loss over targets that are not ignored. An unquantized head is computed in chunks, so that the whole logits are
 * never stored. */
tarn_tensor *tarn__model_loss_of(const char *function, tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets,
                                 const tarn__documents *documents)
{
    const int64_t ignored = -100;
    if (!tarn__arch_of(function, model) || !tarn__check(function, tokens, "tokens") ||
        !tarn__check(function, targets, "targets") || (documents && !check_documents(function, tokens, documents)))
        return NULL;
    const tarn_lm_config *c = tarn__model_config(model);
    tarn_scope *scope = tarn_scope_open();
    tarn_module *head = model->child[TARN__MODEL_HEAD];
    tarn_tensor *weight = tarn__module_own(head, "weight"), *x = hidden_states(model, tokens, documents);
    tarn_cross_entropy_options options = {.ignore_index = &ignored};
    bool has_tokens = head->adapter && head->adapter->is_tokens;
    bool is_quantized = x && !tarn__is_float(weight->view.dtype), is_whole = head->adapter && !has_tokens;
    if (x && has_tokens) {
        weight = tarn__tokens_weight(head, x->view.dtype);
        is_quantized = false;
    }
    /* A quantized head computes all logits at once, as one with an adapter does. Where a gradient is needed, for
     * adapters below it, they would take too much memory: then the head is dequantized and the loss computed in
     * chunks. */
    if (is_quantized && tarn_needs_grad(x) && !is_whole) {
        weight = tarn_cast(weight, x->view.dtype);
        is_quantized = false;
    }
    if (x && (is_quantized || is_whole)) {
        tarn_tensor *logits = tarn__model_finish_logits(c, tarn_forward(head, x));
        return finish(function, scope, logits ? tarn_cross_entropy(logits, targets, &options) : NULL);
    }
    if (x && c->logit_scale > 0)
        x = tarn_mul(x, tarn_scalar(c->logit_scale)); /* fewer elements than the logits */
    options.softcap = c->logit_softcap;
    tarn_tensor *loss = x && weight ? tarn_linear_cross_entropy(x, weight, targets, &options) : NULL;
    return finish(function, scope, loss);
}

tarn_tensor *tarn__model_loss(const char *function, tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets)
{
    return tarn__model_loss_of(function, model, tokens, targets, NULL);
}

tarn_tensor *tarn_model_loss(tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets)
{
    const char *function = "model_loss";
    return tarn__arch_of(function, model) ? tarn__model_loss(function, model, tokens, targets) : NULL;
}
