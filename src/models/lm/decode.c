/* decode.c: the fused decode step of a few sequences, one token each.
 *
 * Its time is the bytes of the weights and the number of kernels: five per layer on a device that has them. A norm
 * is fused into the matmuls after it, a residual addition into the matmul before it. Devices without these kernels
 * compose them (ops/attention/decode.c), with the same results. */
#include "models/lm/arch.h"
#include "nn/lora.h"
#include "ops/internal.h"

/* Sequences up to which this step is used: a policy on every device, not a limit of kernels, which their rows' `fits`
 * have. Beyond, the weights are read for so many rows that the general matmuls of the forward pass are faster. */
#define MAX_SEQUENCES 8

/* A module's own parameter or buffer. */
static tarn_tensor *own(const tarn_module *module, const char *name)
{
    return tarn__module_own(module, name);
}

/* True if the fused operations compute such layers: a norm before each part, and nothing between a part's last matmul
 * and the residual addition. Quantized or [out, in] weights only. */
static bool fits_arch(const tarn__model_ctx *ctx)
{
    const tarn__arch *arch = ctx->arch;
    return arch->norms == TARN__NORMS_PRE && (!arch->is_parallel || ctx->config.sequential);
}

/* True if a linear layer has neither a LoRA adapter nor a weight [in, out]. */
static bool fits_linear(const tarn_module *linear)
{
    return !linear->adapter && linear->linear != TARN__LINEAR_IN_OUT;
}

/* True if no layer of attention and MLP has an adapter. A gated MLP has no biases in the fused operations. */
static bool fits_layer(const tarn_module *layer)
{
    const tarn_module *attention = tarn__model_child(layer, TARN__ROLE_ATTENTION),
                      *mlp = tarn__model_child(layer, TARN__ROLE_MLP);
    bool is_gated = ((const tarn__model_ctx *)layer->ctx)->arch->is_gated, good = true;
    for (int i = 0; i < attention->children; i++)
        good = good && fits_linear(attention->child[i]);
    for (int i = 0; i < mlp->children; i++)
        good = good && fits_linear(mlp->child[i]) && !(is_gated && own(mlp->child[i], "bias"));
    return good;
}

/* At most MAX_SEQUENCES sequences, and no transfers between layers. */
bool tarn__model_can_decode(const tarn_module *model, const tarn_tensor *tokens, const tarn__kv_cache *cache)
{
    const tarn__model_ctx *ctx = model->ctx;
    const tarn_module *layers = tarn__model_layers(model);
    bool good = fits_arch(ctx) && tokens->view.rank == 2 && tokens->view.shape[1] == 1 &&
                tokens->view.shape[0] <= MAX_SEQUENCES && cache->dev_count == 1 &&
                !model->child[TARN__MODEL_HEAD]->adapter;
    for (int i = 0; good && i < layers->children; i++)
        good = fits_layer(layers->child[i]);
    return good;
}

/* A norm, as the fused operations take it. */
static tarn__decode_norm norm_of(const tarn_module *norm)
{
    const tarn__norm_ctx *n = norm->ctx;
    return (tarn__decode_norm){.weight = own(norm, "weight"),
                               .epsilon = n->epsilon,
                               .offset = tarn__norm_offset(n),
                               .is_layernorm = n->kind == TARN__NORM_LAYER,
                               .bias = own(norm, "bias")};
}

/* Scale of a part's output in the residual addition. */
static double scale_of(const tarn__model_ctx *ctx)
{
    return ctx->config.residual_scale > 0 ? ctx->config.residual_scale : 1;
}

/* Queries, keys and values of norm(x), [B, 1, heads, head_dim] each. */
static bool project(const tarn_module *attention, const tarn__decode_norm *norm, tarn_tensor *x, tarn_tensor **part)
{
    const tarn_module *one = tarn__model_child(attention, TARN__ROLE_QKV);
    tarn_tensor *weights[3], *biases[3];
    for (int i = 0; i < (one ? 1 : 3); i++) {
        const tarn_module *linear = one ? one : tarn__model_child(attention, TARN__ROLE_Q + i);
        weights[i] = own(linear, "weight");
        biases[i] = own(linear, "bias");
    }
    if (!tarn__norm_linear(x, norm, weights, biases, one ? 1 : 3, part))
        return false;
    if (one)
        return tarn__attention_split(attention, part[0], part);
    for (int i = 0; i < 3; i++)
        if (!(part[i] = tarn__attention_heads(attention, TARN__ROLE_Q + i, part[i])))
            return false;
    return true;
}

/* x + attention(norm(x)), [B, 1, hidden_size]. */
static tarn_tensor *attend(const tarn_module *layer, tarn_tensor *x, tarn__kv_cache *cache)
{
    const tarn_module *attention = tarn__model_child(layer, TARN__ROLE_ATTENTION),
                      *o = tarn__model_child(attention, TARN__ROLE_O);
    const tarn__model_ctx *ctx = attention->ctx;
    tarn_rope_options rope;
    const tarn__decode_attention_options how = tarn__attention_options(ctx, cache->step.max_keys, &rope);
    const tarn__decode_norm norm = norm_of(tarn__model_child(layer, TARN__ROLE_ATTENTION_NORM));
    tarn_tensor *part[3],
        *y = project(attention, &norm, x, part)
                 ? tarn__kv_cache_rotate_and_attend(cache, ctx->layer, part[0], part[1], part[2], &how)
                 : NULL;
    return y ? tarn__linear_residual(y, own(o, "weight"), own(o, "bias"), x, scale_of(ctx)) : NULL;
}

/* Hidden activations of the MLP of norm(x). */
static tarn_tensor *activate(const tarn_module *mlp, const tarn__decode_norm *norm, tarn_tensor *x)
{
    tarn_activation_kind activation = ((const tarn__model_ctx *)mlp->ctx)->activation;
    const tarn_module *gate = tarn__model_child(mlp, TARN__ROLE_GATE), *up = tarn__model_child(mlp, TARN__ROLE_UP),
                      *both = tarn__model_child(mlp, TARN__ROLE_GATE_UP);
    if (!both)
        return gate ? tarn__norm_gate_up(x, norm, own(gate, "weight"), own(up, "weight"), activation)
                    : tarn__norm_up(x, norm, own(up, "weight"), own(up, "bias"), activation);
    int64_t ffn_size = tarn__linear_out(both) / 2;
    tarn_tensor *weight = own(both, "weight"),
                *halves[] = {tarn_slice(weight, 0, 0, ffn_size), tarn_slice(weight, 0, ffn_size, 2 * ffn_size)};
    return halves[0] && halves[1] ? tarn__norm_gate_up(x, norm, halves[0], halves[1], activation) : NULL;
}

/* x + mlp(norm(x)), [B, 1, hidden_size]. */
static tarn_tensor *run_mlp(const tarn_module *layer, tarn_tensor *x)
{
    const tarn_module *mlp = tarn__model_child(layer, TARN__ROLE_MLP), *down = tarn__model_child(mlp, TARN__ROLE_DOWN);
    const tarn__decode_norm norm = norm_of(tarn__model_child(layer, TARN__ROLE_MLP_NORM));
    tarn_tensor *h = activate(mlp, &norm, x);
    return h ? tarn__linear_residual(h, own(down, "weight"), own(down, "bias"), x, scale_of(layer->ctx)) : NULL;
}

/* One layer: the residual stream before and after; frees the former. */
static tarn_tensor *run_layer(const tarn_module *layer, tarn_tensor *x, tarn__kv_cache *cache)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *y = scope ? attend(layer, x, cache) : NULL;
    y = y ? run_mlp(layer, y) : NULL;
    y = y ? tarn_scope_return(scope, y) : NULL;
    tarn_scope_close(scope);
    if (y)
        tarn_free(x);
    return y;
}

/* Logits [B, vocab_size]: the last norm is fused into the head. */
tarn_tensor *tarn__model_decode(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache)
{
    tarn_module *body = model->child[TARN__MODEL_BODY];
    const tarn_module *layers = tarn__model_layers(model), *head = model->child[TARN__MODEL_HEAD];
    tarn_tensor *x = tarn__model_embed(body, tokens, &(tarn__forward_ctx){.cache = cache}),
                *weight = own(head, "weight"), *bias = own(head, "bias"), *y = NULL;
    for (int i = 0; x && i < layers->children; i++)
        x = run_layer(layers->child[i], x, cache);
    const tarn__decode_norm norm = norm_of(tarn__model_child(body, TARN__ROLE_NORM));
    y = x && tarn__norm_linear(x, &norm, &weight, &bias, 1, &y) ? tarn_squeeze(y, 1) : NULL;
    return tarn__model_finish_logits(tarn__model_config(model), y);
}
