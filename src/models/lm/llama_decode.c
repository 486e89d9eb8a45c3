/* llama_decode.c: the fused decode step of a few sequences, one token each.
 *
 * Its time is the bytes of the weights and the number of kernels: five per layer on a device that has them. A norm
 * is fused into the matmuls after it, a residual addition into the matmul before it. Devices without these kernels
 * compose them (ops/attention/decode.c), with the same results. */
#include "models/lm/llama.h"
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

/* True if a layer has neither LoRA adapters nor MLP biases, which the fused kernels lack. */
static bool has_no_adapter(const tarn_module *layer)
{
    const tarn_module *attention = layer->child[TARN__LLAMA_ATTENTION], *mlp = layer->child[TARN__LLAMA_MLP];
    bool good = true;
    for (int i = TARN__LLAMA_Q; i <= TARN__LLAMA_O; i++)
        good = good && !attention->child[i]->adapter;
    for (int i = TARN__LLAMA_GATE; i <= TARN__LLAMA_DOWN; i++)
        good = good && !mlp->child[i]->adapter && !own(mlp->child[i], "bias");
    return good;
}

/* At most MAX_SEQUENCES sequences, and no transfers between layers. */
bool tarn__llama_can_decode(const tarn_module *model, const tarn_tensor *tokens, const tarn__kv_cache *cache)
{
    const tarn_module *layers = model->child[TARN__MODEL_BODY]->child[TARN__LLAMA_LAYERS];
    bool good = tokens->view.rank == 2 && tokens->view.shape[1] == 1 && tokens->view.shape[0] <= MAX_SEQUENCES &&
                cache->dev_count == 1 && !model->child[TARN__MODEL_HEAD]->adapter;
    for (int i = 0; good && i < layers->children; i++)
        good = has_no_adapter(layers->child[i]);
    return good;
}

/* Weight and epsilon of a norm, as the fused kernels take them. */
static tarn__decode_norm norm_of(const tarn_module *norm)
{
    return (tarn__decode_norm){.weight = own(norm, "weight"),
                               .epsilon = ((const tarn_llama_config *)norm->ctx)->epsilon};
}

/* x + attention(norm(x)), [B, 1, hidden_size]. */
static tarn_tensor *attend(const tarn_module *layer, tarn_tensor *x, tarn__kv_cache *cache, int64_t index)
{
    const tarn_module *attention = layer->child[TARN__LLAMA_ATTENTION], *o = attention->child[TARN__LLAMA_O];
    const tarn_llama_config *c = attention->ctx;
    const tarn_rope_options rope = tarn__llama_rope(c);
    const tarn__decode_norm norm = norm_of(layer->child[TARN__LLAMA_NORM_1]);
    tarn_tensor *weights[3], *biases[3], *part[3];
    for (int i = 0; i < 3; i++) {
        weights[i] = own(attention->child[TARN__LLAMA_Q + i], "weight");
        biases[i] = own(attention->child[TARN__LLAMA_Q + i], "bias");
    }
    bool good = tarn__norm_linear(x, &norm, weights, biases, 3, part);
    for (int i = 0; good && i < 3; i++) {
        part[i] = tarn_reshape(part[i], TARN_SHAPE(tarn_size(x, 0), 1, i == 0 ? c->heads : c->kv_heads, c->head_dim));
        part[i] = part[i] ? tarn__llama_norm_heads(attention, TARN__LLAMA_Q + i, part[i]) : NULL;
        good = part[i] != NULL;
    }
    tarn_tensor *y = good ? tarn__kv_cache_rotate_and_attend(cache, index, part[0], part[1], part[2], &rope) : NULL;
    return y ? tarn__linear_residual(y, own(o, "weight"), own(o, "bias"), x, 1) : NULL;
}

/* x + mlp(norm(x)), [B, 1, hidden_size]. */
static tarn_tensor *run_mlp(const tarn_module *layer, tarn_tensor *x)
{
    const tarn_module *mlp = layer->child[TARN__LLAMA_MLP];
    const tarn__decode_norm norm = norm_of(layer->child[TARN__LLAMA_NORM_2]);
    tarn_tensor *h = tarn__norm_gate_up(x, &norm, own(mlp->child[TARN__LLAMA_GATE], "weight"),
                                        own(mlp->child[TARN__LLAMA_UP], "weight"), TARN_SILU);
    return h ? tarn__linear_residual(h, own(mlp->child[TARN__LLAMA_DOWN], "weight"), NULL, x, 1) : NULL;
}

/* One layer: the residual stream before and after; frees the former. */
static tarn_tensor *run_layer(const tarn_module *layer, tarn_tensor *x, tarn__kv_cache *cache, int64_t index)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *y = scope ? attend(layer, x, cache, index) : NULL;
    y = y ? run_mlp(layer, y) : NULL;
    y = y ? tarn_scope_return(scope, y) : NULL;
    tarn_scope_close(scope);
    if (y)
        tarn_free(x);
    return y;
}

/* Logits [B, vocab_size]: the last norm is fused into the head. */
tarn_tensor *tarn__llama_decode(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache)
{
    const tarn_module *body = model->child[TARN__MODEL_BODY], *layers = body->child[TARN__LLAMA_LAYERS],
                      *head = model->child[TARN__MODEL_HEAD];
    tarn_tensor *x = tarn_forward(body->child[TARN__LLAMA_TOKEN_EMBEDDING], tokens), *weight = own(head, "weight"),
                *bias = own(head, "bias"), *y = NULL;
    for (int i = 0; x && i < layers->children; i++)
        x = run_layer(layers->child[i], x, cache, i);
    const tarn__decode_norm norm = norm_of(body->child[TARN__LLAMA_NORM]);
    return x && tarn__norm_linear(x, &norm, &weight, &bias, 1, &y) ? tarn_squeeze(y, 1) : NULL;
}
