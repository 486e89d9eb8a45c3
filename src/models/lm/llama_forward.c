/* llama_forward.c: the forward pass of the Llama family.
 *
 * x is the residual stream, [B, T, hidden_size]; each layer adds to it twice: attention of norm(x), and the gated
 * MLP of norm(x). Residual addition and the norm of the next part are one fused operation. With a KV cache the
 * tokens follow those in the cache, where keys are stored rotated (RoPE). Packed documents attend to themselves
 * only. Every layer has its own scope: after it only the residual stream and the activations of backward are left. */
#include "autograd/tape.h"
#include "models/lm/llama.h"
#include "nn/lora.h"
#include "ops/internal.h"

/* Tokens of a prompt from which its MLP runs in chunks; the activations of fewer are small next to the weights. */
#define MIN_CHUNKED_ROWS 64
/* Rows of a weight per chunk: small enough that up takes no more memory than down, large enough to occupy a GPU. */
#define CHUNK_ROWS 2048

/* ---- sub-modules ------------------------------------------------------------------------------------------------- */

/* A module's own parameter or buffer. */
static tarn_tensor *own(const tarn_module *module, const char *name)
{
    return tarn__module_own(module, name);
}

/* *x = *x + delta; returns the norm of the sum. */
static tarn_tensor *add_and_normalize(tarn_tensor **x, tarn_tensor *delta, const tarn_module *norm)
{
    const tarn_llama_config *c = norm->ctx;
    return delta ? tarn_residual_norm(*x, delta, own(norm, "weight"), NULL, true, c->epsilon, x) : NULL;
}

tarn_tensor *tarn__llama_norm_forward(tarn_module *norm, tarn_tensor *x, void *ctx)
{
    return tarn_rmsnorm(x, own(norm, "weight"), ((const tarn_llama_config *)ctx)->epsilon);
}

/* Rows of a quantized embedding are dequantized to the dtype of the norms. */
tarn_tensor *tarn__llama_embedding_forward(tarn_module *embedding, tarn_tensor *index, void *ctx)
{
    return tarn__lora_embedding(
        embedding, index, tarn__embedding_as(own(embedding, "weight"), index, ((const tarn_llama_config *)ctx)->dtype));
}

tarn_tensor *tarn__llama_linear_forward(tarn_module *linear, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return tarn__lora_forward(linear, x);
}

/* Outputs of `count` children from `first`, which share x: one LoRA operation where they have adapters. */
static bool run_shared(const tarn_module *module, int first, int count, tarn_tensor *x, tarn_tensor **y)
{
    bool good = tarn__lora_forward_shared(module->child + first, count, x, y);
    for (int i = 0; good && i < count; i++)
        tarn__observe_output(module->child[first + i], y[i]);
    return good;
}

/* True for an unrecorded prompt and a quantized weight, which devices dequantize in parts. */
static bool fits_chunks(const tarn_module *up, const tarn_tensor *x)
{
    return !tarn_grad_enabled() && tarn_dtype_block_size(own(up, "weight")->view.dtype) > 1 && !up->adapter &&
           tarn_count(x) / x->view.shape[x->view.rank - 1] >= MIN_CHUNKED_ROWS;
}

/* silu(gate) · up in place of gate, with up in chunks of rows: the widest activations of a prompt take memory for
 * one and a half of them, not for three. */
static tarn_tensor *gated_in_chunks(const tarn_module *mlp, tarn_tensor *x)
{
    tarn_module *up = mlp->child[TARN__LLAMA_UP];
    tarn_tensor *weight = own(up, "weight"), *bias = own(up, "bias"),
                *gate = tarn_forward(mlp->child[TARN__LLAMA_GATE], x);
    bool good = gate != NULL;
    tarn__observe_output(up, gate); /* the output of up is as large */
    for (int64_t first = 0, ffn_size = weight->view.shape[0]; good && first < ffn_size; first += CHUNK_ROWS) {
        int64_t end = ffn_size - first < CHUNK_ROWS ? ffn_size : first + CHUNK_ROWS;
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *part = scope ? tarn_linear_apply(x, tarn_slice(weight, 0, first, end),
                                                      bias ? tarn_slice(bias, 0, first, end) : NULL)
                                  : NULL;
        good = part && tarn__gated_inplace(tarn_slice(gate, -1, first, end), part, TARN_SILU);
        tarn_scope_close(scope);
    }
    return good ? gate : NULL;
}

tarn_tensor *tarn__llama_mlp_forward(tarn_module *mlp, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    if (fits_chunks(mlp->child[TARN__LLAMA_UP], x)) {
        tarn_tensor *gated = gated_in_chunks(mlp, x),
                    *y = gated ? tarn_forward(mlp->child[TARN__LLAMA_DOWN], gated) : NULL;
        tarn_free(gated);
        return y;
    }
    tarn_tensor *part[2]; /* gate, up */
    tarn_tensor *gated = run_shared(mlp, TARN__LLAMA_GATE, 2, x, part) ? tarn_swiglu(part[0], part[1]) : NULL;
    if (!gated)
        return NULL;
    for (int i = 0; i < 2; i++)
        tarn_free(part[i]); /* the widest activations: freed before the next matmul */
    tarn_tensor *y = tarn_forward(mlp->child[TARN__LLAMA_DOWN], gated);
    tarn_free(gated);
    return y;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Queries, keys or values y [B, T, heads · head_dim] as [B, T, heads, head_dim]. */
static tarn_tensor *heads_of(const tarn_llama_config *c, tarn_tensor *y)
{
    return tarn_reshape(y, TARN_SHAPE(tarn_size(y, 0), tarn_size(y, 1), tarn_size(y, 2) / c->head_dim, c->head_dim));
}

/* The same, normalized if the model has qk_norm. */
static tarn_tensor *normed_heads_of(const tarn_module *attention, int part, tarn_tensor *y)
{
    y = heads_of(attention->ctx, y);
    return y ? tarn__llama_norm_heads(attention, part, y) : NULL;
}

/* Values are never normalized. */
tarn_tensor *tarn__llama_norm_heads(const tarn_module *attention, int part, tarn_tensor *heads)
{
    const tarn_llama_config *c = attention->ctx;
    return c->qk_norm && part != TARN__LLAMA_V
               ? tarn_forward(attention->child[part == TARN__LLAMA_Q ? TARN__LLAMA_Q_NORM : TARN__LLAMA_K_NORM], heads)
               : heads;
}

tarn_rope_options tarn__llama_rope(const tarn_llama_config *c)
{
    return (tarn_rope_options){.axis = 1,
                               .base = c->rope_theta,
                               .scaling = c->rope_scaling,
                               .factor = c->rope_factor,
                               .low_freq_factor = c->rope_low_freq_factor,
                               .high_freq_factor = c->rope_high_freq_factor,
                               .original_context = c->rope_original_context};
}

/* Context of a forward pass, for all layers. */
typedef struct forward_ctx {
    tarn__kv_cache *cache;        /* NULL: none */
    tarn_tensor *positions;       /* NULL: those of the cache, or from 0 */
    tarn_tensor *document_starts; /* NULL: one document per row */
} forward_ctx;

/* Attention without a cache, over queries, keys and values of this pass. */
static tarn_tensor *attend_full(tarn_tensor **part, const tarn_rope_options *rope, const forward_ctx *p)
{
    tarn_shape whole =
        TARN_SHAPE(tarn_size(part[0], 0), tarn_size(part[0], 1), tarn_size(part[0], 2) * tarn_size(part[0], 3));
    for (int i = 0; i < 3; i++) {
        part[i] = i < 2 ? tarn_rope(part[i], p->positions, rope) : part[i];
        if (!part[i] || !(part[i] = tarn_permute(part[i], TARN_AXES(0, 2, 1, 3))))
            return NULL;
    }
    tarn_tensor *y = tarn_attention(part[0], part[1], part[2],
                                    &(tarn_attention_options){.causal = true, .document_starts = p->document_starts});
    y = y ? tarn_permute(y, TARN_AXES(0, 2, 1, 3)) : NULL;
    return y ? tarn_reshape(y, whole) : NULL;
}

/* Attention of x; appends keys and values to the cache, if there is one. */
static tarn_tensor *attention_with(tarn_module *attention, tarn_tensor *x, const forward_ctx *p, int64_t layer)
{
    const tarn_rope_options rope = tarn__llama_rope(attention->ctx);
    tarn_tensor *part[3]; /* queries, keys, values */
    if (!run_shared(attention, TARN__LLAMA_Q, 3, x, part))
        return NULL;
    for (int i = 0; i < 3; i++)
        if (!(part[i] = normed_heads_of(attention, TARN__LLAMA_Q + i, part[i])))
            return NULL;
    tarn_tensor *y = p->cache ? tarn__kv_cache_rotate_and_attend(p->cache, layer, part[0], part[1], part[2], &rope)
                              : attend_full(part, &rope, p);
    return y ? tarn_forward(attention->child[TARN__LLAMA_O], y) : NULL;
}

tarn_tensor *tarn__llama_attention_forward(tarn_module *attention, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return attention_with(attention, x, &(forward_ctx){0}, 0);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* One layer as a function of x alone: with separate additions and norms, for tarn_forward() and recomputation. */
static tarn_tensor *layer_with(tarn_module *layer, tarn_tensor *x, const forward_ctx *p)
{
    tarn_module *attention = layer->child[TARN__LLAMA_ATTENTION];
    tarn_tensor *y = tarn_forward(layer->child[TARN__LLAMA_NORM_1], x);
    if (y)
        y = p->document_starts ? attention_with(attention, y, p, 0) : tarn_forward(attention, y);
    y = add_and_normalize(&x, y, layer->child[TARN__LLAMA_NORM_2]);
    y = y ? tarn_forward(layer->child[TARN__LLAMA_MLP], y) : NULL;
    return y ? tarn_add(x, y) : NULL;
}

tarn_tensor *tarn__llama_layer_forward(tarn_module *layer, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return layer_with(layer, x, &(forward_ctx){0});
}

static bool check_tokens(const tarn_llama_config *c, const tarn_tensor *tokens)
{
    if (tokens->view.rank != 2 || tokens->view.shape[0] < 1 || tokens->view.shape[1] < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "llama: the tokens are %s; they must be [B, T], at least one of each",
                           TARN__SHAPE_STRING(tokens));
    if (tokens->view.shape[1] > c->context)
        return tarn__raise(TARN_ERROR_SHAPE, "llama: %lld tokens are more than the context of %lld",
                           (long long)tokens->view.shape[1], (long long)c->context);
    return true;
}

/* A layer as a tarn_checkpoint_fn. */
static tarn_tensor *checkpointed_layer(tarn_tensor *const *inputs, int count, void *layer)
{
    return count > 1
               ? layer_with(layer, inputs[0], &(forward_ctx){.positions = inputs[1], .document_starts = inputs[2]})
               : tarn_forward(layer, inputs[0]);
}

/* Full recomputation: layers under tarn_checkpoint(). They exchange one tensor, so additions and norms are not fused
 * across them. */
static tarn_tensor *hidden_recomputed(tarn_module *body, const forward_ctx *p, tarn_tensor *x)
{
    const tarn_module *layers = body->child[TARN__LLAMA_LAYERS];
    for (int i = 0; x && i < layers->children; i++)
        if ((x = tarn__to_device_of(x, layers->child[i]->child[TARN__LLAMA_NORM_1])) != NULL)
            x = tarn_checkpoint(checkpointed_layer, layers->child[i],
                                (tarn_tensor *[]){x, p->positions, p->document_starts}, p->document_starts ? 3 : 1);
    x = tarn__to_device_of(x, body->child[TARN__LLAMA_NORM]);
    return x ? tarn_forward(body->child[TARN__LLAMA_NORM], x) : NULL;
}

/* *x = *x + delta, moved to the device of the norm: one transfer instead of two. Returns the norm. */
static tarn_tensor *transfer_and_normalize(tarn_tensor **x, tarn_tensor *delta, tarn_module *norm)
{
    *x = tarn__to_device_of(tarn_add(*x, delta), norm);
    return *x ? tarn_forward(norm, *x) : NULL;
}

/* Attention in its own scope, which frees queries, keys and values before the MLP. */
static tarn_tensor *run_attention(tarn_module *attention, tarn_tensor *y, const forward_ctx *p, int64_t layer)
{
    tarn_scope *scope = tarn_scope_open();
    if (!scope)
        return NULL;
    y = p->cache || p->document_starts ? attention_with(attention, y, p, layer) : tarn_forward(attention, y);
    y = y ? tarn_scope_return(scope, y) : NULL;
    tarn_scope_close(scope);
    return y;
}

static void free_tensor(tarn_tensor **x)
{
    tarn_free(*x);
    *x = NULL;
}

/* Layer i: *x is the residual stream and *y its norm, before and after. Frees the previous ones as early as
 * possible; on failure they may be freed already. */
static bool run_layer(tarn_module *body, int i, const forward_ctx *p, tarn_tensor **x, tarn_tensor **y)
{
    const tarn_module *layers = body->child[TARN__LLAMA_LAYERS], *layer = layers->child[i];
    tarn_module *next =
        i + 1 < layers->children ? layers->child[i + 1]->child[TARN__LLAMA_NORM_1] : body->child[TARN__LLAMA_NORM];
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *sum = *x, *delta = scope ? run_attention(layer->child[TARN__LLAMA_ATTENTION], *y, p, i) : NULL;
    tarn_tensor *normed = add_and_normalize(&sum, delta, layer->child[TARN__LLAMA_NORM_2]);
    if (normed) {
        free_tensor(&delta);
        free_tensor(x);
        free_tensor(y);
        delta = tarn_forward(layer->child[TARN__LLAMA_MLP], normed);
    }
    if (normed && delta)
        normed = tarn__is_on_device_of(delta, next) ? add_and_normalize(&sum, delta, next)
                                                    : transfer_and_normalize(&sum, delta, next);
    bool good = normed && delta && tarn_scope_return(scope, sum) && tarn_scope_return(scope, normed);
    tarn_scope_close(scope);
    if (good) {
        *x = sum;
        *y = normed;
    }
    return good;
}

/* Runs the layers with the norm of each fused into the addition before it. */
static tarn_tensor *run_layers(tarn_module *body, const forward_ctx *p, tarn_tensor *x)
{
    const tarn_module *layers = body->child[TARN__LLAMA_LAYERS];
    tarn_tensor *y = x ? tarn_forward(layers->child[0]->child[TARN__LLAMA_NORM_1], x) : NULL;
    bool good = y != NULL;
    for (int i = 0; good && i < layers->children; i++)
        good = run_layer(body, i, p, &x, &y);
    return good ? y : NULL;
}

/* [B, T, hidden_size] after the last norm. */
static tarn_tensor *hidden_states(tarn_module *body, tarn_tensor *tokens, const forward_ctx *p)
{
    const tarn_llama_config *c = body->ctx;
    if (!check_tokens(c, tokens))
        return NULL;
    tarn_tensor *x = tarn_forward(body->child[TARN__LLAMA_TOKEN_EMBEDDING], tokens);
    if (!x)
        return NULL;
    if (c->recompute == TARN_RECOMPUTE_FULL && !p->cache)
        return hidden_recomputed(body, p, x);
    if (c->recompute == TARN_RECOMPUTE_SELECTIVE)
        tarn__recompute_open();
    tarn_tensor *y = run_layers(body, p, x);
    if (c->recompute == TARN_RECOMPUTE_SELECTIVE)
        tarn__recompute_close();
    return y;
}

tarn_tensor *tarn__llama_body_forward(tarn_module *body, tarn_tensor *tokens, void *ctx)
{
    (void)ctx;
    return hidden_states(body, tokens, &(forward_ctx){0});
}

tarn_tensor *tarn__llama_documents_forward(tarn_module *body, tarn_tensor *tokens, const tarn__documents *documents)
{
    return hidden_states(
        body, tokens, &(forward_ctx){.positions = documents->positions, .document_starts = documents->document_starts});
}

tarn_tensor *tarn__llama_model_forward(tarn_module *model, tarn_tensor *tokens, void *ctx)
{
    (void)ctx;
    tarn_tensor *y = tarn_forward(model->child[TARN__MODEL_BODY], tokens);
    return y ? tarn_forward(model->child[TARN__MODEL_HEAD], y) : NULL;
}

/* Only the last token goes through the head: prefill needs no other logits. */
tarn_tensor *tarn__llama_forward_cached(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache)
{
    if (tarn__llama_can_decode(model, tokens, cache))
        return tarn__llama_decode(model, tokens, cache);
    tarn_tensor *y = hidden_states(model->child[TARN__MODEL_BODY], tokens, &(forward_ctx){.cache = cache});
    int64_t T = tokens->view.shape[1];
    tarn_tensor *last = y ? tarn_squeeze(tarn_slice(y, 1, T - 1, T), 1) : NULL;
    return last ? tarn_forward(model->child[TARN__MODEL_HEAD], last) : NULL;
}
