/* gpt2_forward.c: the forward pass of GPT-2.
 *
 * x is the residual stream, [B, T, hidden_size]; each layer adds to it twice: attention of norm(x), and the MLP of
 * norm(x). Dropout, residual addition and the norm of the next part are one fused operation. With a KV cache the
 * tokens follow those in the cache, and there is no dropout. Packed documents attend to themselves only. Every layer
 * has its own scope: after it only the residual stream and the activations of backward are left. */
#include "autograd/tape.h"
#include "models/lm/gpt2.h"
#include "nn/lora.h"
#include "ops/internal.h"

/* ---- sub-modules ------------------------------------------------------------------------------------------------- */

/* A module's own parameter or buffer. */
static tarn_tensor *own(const tarn_module *module, const char *name)
{
    return tarn__module_own(module, name);
}

/* Dropout in training mode without a cache; else x. */
static tarn_tensor *maybe_dropout(const tarn_module *module, tarn_tensor *x, double p, const tarn__kv_cache *cache)
{
    return p > 0 && module->training && !cache ? tarn_dropout(x, p) : x;
}

/* *x = *x + delta, the output of `part`; returns the norm of the sum. */
static tarn_tensor *add_and_normalize(const tarn_module *part, tarn_tensor **x, tarn_tensor *delta,
                                      const tarn_module *norm, const tarn__kv_cache *cache)
{
    const tarn_gpt2_config *c = part->ctx;
    double p = part->training && !cache ? c->dropout : 0;
    return tarn__dropout_residual_norm(*x, delta, p, own(norm, "weight"), own(norm, "bias"), false, 0, c->epsilon, x);
}

/* Rows of a quantized embedding are dequantized to the dtype of the norms. */
tarn_tensor *tarn__gpt2_embedding_forward(tarn_module *embedding, tarn_tensor *index, void *ctx)
{
    return tarn__lora_embedding(
        embedding, index, tarn__embedding_as(own(embedding, "weight"), index, ((const tarn_gpt2_config *)ctx)->dtype));
}

tarn_tensor *tarn__gpt2_projection_forward(tarn_module *projection, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return tarn__lora_forward(projection, x);
}

tarn_tensor *tarn__gpt2_head_forward(tarn_module *head, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return tarn__lora_forward(head, x);
}

tarn_tensor *tarn__gpt2_mlp_forward(tarn_module *mlp, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    tarn_module *up = mlp->child[TARN__GPT2_IN], *down = mlp->child[TARN__GPT2_OUT];
    bool is_fusable =
        up->linear == TARN__LINEAR_IN_OUT && down->linear == TARN__LINEAR_IN_OUT && !up->adapter && !down->adapter;
    if (!is_fusable) { /* the fused MLP supports neither adapters nor quantized weights */
        tarn_tensor *y = tarn_forward(up, x);
        return y ? tarn_forward(down, tarn_gelu(y)) : NULL;
    }
    return tarn__mlp_in_out(x, own(up, "weight"), own(down, "weight"), own(up, "bias"), own(down, "bias"), TARN_GELU);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* [B, T, 3 · hidden_size] → [B, T, hidden_size]; appends keys and values to the cache. */
static tarn_tensor *attend_with_cache(const tarn_gpt2_config *c, tarn_tensor *packed, tarn__kv_cache *cache,
                                      int64_t layer)
{
    tarn_tensor *part[3];
    int64_t B = tarn_size(packed, 0), T = tarn_size(packed, 1);
    if (!tarn_split(packed, 2, (const int64_t[]){c->hidden_size, c->hidden_size, c->hidden_size}, 3, part))
        return NULL;
    for (int i = 0; i < 3; i++)
        part[i] = tarn_permute(tarn_reshape(part[i], TARN_SHAPE(B, T, c->heads, c->hidden_size / c->heads)),
                               TARN_AXES(0, 2, 1, 3));
    tarn_tensor *y = tarn__kv_cache_attend(cache, layer, part[0], part[1], part[2], 0);
    return tarn_reshape(tarn_permute(y, TARN_AXES(0, 2, 1, 3)), TARN_SHAPE(B, T, c->hidden_size));
}

/* `document_starts` NULL: one document per row. */
static tarn_tensor *attention_with(tarn_module *attention, tarn_tensor *x, tarn_tensor *document_starts,
                                   tarn__kv_cache *cache, int64_t layer)
{
    const tarn_gpt2_config *c = attention->ctx;
    const tarn_attention_options options = {
        .causal = true,
        .dropout = c->attention_dropout > 0 && attention->training ? c->attention_dropout : 0,
        .document_starts = document_starts};
    tarn_tensor *packed = tarn_forward(attention->child[TARN__GPT2_IN], x);
    if (!packed)
        return NULL;
    tarn_tensor *y = cache ? attend_with_cache(c, packed, cache, layer)
                           : tarn_attention_packed(packed, c->heads, c->heads, &options);
    return y ? tarn_forward(attention->child[TARN__GPT2_OUT], y) : NULL;
}

tarn_tensor *tarn__gpt2_attention_forward(tarn_module *attention, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return attention_with(attention, x, NULL, NULL, 0);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* One layer as a function of x alone: with separate additions and norms, for tarn_forward() and recomputation. */
static tarn_tensor *layer_with(tarn_module *layer, tarn_tensor *x, tarn_tensor *document_starts)
{
    const tarn_gpt2_config *c = layer->ctx;
    tarn_module *attention = layer->child[TARN__GPT2_ATTENTION], *mlp = layer->child[TARN__GPT2_MLP];
    tarn_tensor *y = tarn_forward(layer->child[TARN__GPT2_NORM_1], x);
    y = document_starts && y ? attention_with(attention, y, document_starts, NULL, 0) : tarn_forward(attention, y);
    y = add_and_normalize(attention, &x, y, layer->child[TARN__GPT2_NORM_2], NULL);
    return tarn_add(x, maybe_dropout(mlp, tarn_forward(mlp, y), c->dropout, NULL));
}

tarn_tensor *tarn__gpt2_layer_forward(tarn_module *layer, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return layer_with(layer, x, NULL);
}

/* Context of a forward pass; all NULL: one document per row, from position 0. */
typedef struct forward_ctx {
    tarn__kv_cache *cache;
    const tarn__documents *documents;
} forward_ctx;

static bool check_tokens(const tarn_module *body, const tarn_tensor *tokens)
{
    const tarn_gpt2_config *c = body->ctx;
    if (tokens->view.rank != 2 || tokens->view.shape[0] < 1 || tokens->view.shape[1] < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "gpt2: the tokens are %s; they must be [B, T], at least one of each",
                           TARN__SHAPE_STRING(tokens));
    if (tokens->view.shape[1] > c->context)
        return tarn__raise(TARN_ERROR_SHAPE, "gpt2: %lld tokens are more than the context of %lld",
                           (long long)tokens->view.shape[1], (long long)c->context);
    return true;
}

/* Token plus position embeddings: [B, T, hidden_size]. */
static tarn_tensor *embed(tarn_module *body, tarn_tensor *tokens, const forward_ctx *p)
{
    const tarn_gpt2_config *c = body->ctx;
    if (!check_tokens(body, tokens))
        return NULL;
    tarn_tensor *embedding = own(body->child[TARN__GPT2_POSITION_EMBEDDING], "weight");
    tarn_tensor *positions = p->cache       ? tarn__kv_cache_positions(p->cache, 0)
                             : p->documents ? p->documents->positions
                                            : NULL;
    tarn_tensor *position_rows =
        positions ? tarn_embedding(embedding, positions) : tarn_slice(embedding, 0, 0, tokens->view.shape[1]);
    return maybe_dropout(body, tarn_add(tarn_forward(body->child[TARN__GPT2_TOKEN_EMBEDDING], tokens), position_rows),
                         c->embedding_dropout, p->cache);
}

/* A layer as a tarn_checkpoint_fn. */
static tarn_tensor *checkpointed_layer(tarn_tensor *const *inputs, int count, void *layer)
{
    return count > 1 ? layer_with(layer, inputs[0], inputs[1]) : tarn_forward(layer, inputs[0]);
}

/* Full recomputation: layers under tarn_checkpoint(). They exchange one tensor, so additions and norms are not fused
 * across them. */
static tarn_tensor *hidden_recomputed(tarn_module *body, tarn_tensor *x, const tarn__documents *documents)
{
    const tarn_module *layers = body->child[TARN__GPT2_LAYERS];
    for (int i = 0; x && i < layers->children; i++)
        if ((x = tarn__to_device_of(x, layers->child[i]->child[TARN__GPT2_NORM_1])) != NULL)
            x = tarn_checkpoint(checkpointed_layer, layers->child[i],
                                (tarn_tensor *[]){x, documents ? documents->document_starts : NULL}, documents ? 2 : 1);
    x = tarn__to_device_of(x, body->child[TARN__GPT2_NORM]);
    return x ? tarn_forward(body->child[TARN__GPT2_NORM], x) : NULL;
}

/* *x = *x + delta, moved to the device of the norm: one transfer instead of two. Returns the norm. */
static tarn_tensor *transfer_and_normalize(const tarn_module *part, tarn_tensor **x, tarn_tensor *delta,
                                           tarn_module *norm, const tarn__kv_cache *cache)
{
    const tarn_gpt2_config *c = part->ctx;
    *x = tarn__to_device_of(tarn_add(*x, maybe_dropout(part, delta, c->dropout, cache)), norm);
    return tarn_forward(norm, *x);
}

/* Layer i: *x is the residual stream and *y its norm, before and after. Frees the previous ones. */
static bool run_layer(tarn_module *body, int i, const forward_ctx *p, tarn_tensor **x, tarn_tensor **y)
{
    const tarn_module *layers = body->child[TARN__GPT2_LAYERS], *layer = layers->child[i];
    tarn_module *attention = layer->child[TARN__GPT2_ATTENTION], *mlp = layer->child[TARN__GPT2_MLP];
    tarn_module *next =
        i + 1 < layers->children ? layers->child[i + 1]->child[TARN__GPT2_NORM_1] : body->child[TARN__GPT2_NORM];
    tarn_tensor *sum = *x, *normed = NULL;
    tarn_scope *scope = tarn_scope_open();
    if (scope) {
        bool is_alone = !p->cache && !p->documents;
        normed = is_alone
                     ? tarn_forward(attention, *y)
                     : attention_with(attention, *y, p->documents ? p->documents->document_starts : NULL, p->cache, i);
        normed = add_and_normalize(attention, &sum, normed, layer->child[TARN__GPT2_NORM_2], p->cache);
        tarn_tensor *delta = tarn_forward(mlp, normed);
        normed = tarn__is_on_device_of(delta, next) ? add_and_normalize(mlp, &sum, delta, next, p->cache)
                                                    : transfer_and_normalize(mlp, &sum, delta, next, p->cache);
    }
    bool good = normed && tarn_scope_return(scope, sum) && tarn_scope_return(scope, normed);
    tarn_scope_close(scope);
    if (good) {
        tarn_free(*x);
        tarn_free(*y);
        *x = sum;
        *y = normed;
    }
    return good;
}

/* [B, T, hidden_size] after the last norm. */
static tarn_tensor *hidden_states(tarn_module *body, tarn_tensor *tokens, const forward_ctx *p)
{
    const tarn_module *layers = body->child[TARN__GPT2_LAYERS];
    const tarn_gpt2_config *c = body->ctx;
    tarn_tensor *x = embed(body, tokens, p);
    if (c->recompute == TARN_RECOMPUTE_FULL && !p->cache)
        return hidden_recomputed(body, x, p->documents);
    if (c->recompute == TARN_RECOMPUTE_SELECTIVE)
        tarn__recompute_open();
    tarn_tensor *y = x ? tarn_forward(layers->child[0]->child[TARN__GPT2_NORM_1], x) : NULL;
    bool good = y != NULL;
    for (int i = 0; good && i < layers->children; i++)
        good = run_layer(body, i, p, &x, &y);
    if (c->recompute == TARN_RECOMPUTE_SELECTIVE)
        tarn__recompute_close();
    return good ? y : NULL;
}

tarn_tensor *tarn__gpt2_body_forward(tarn_module *body, tarn_tensor *tokens, void *ctx)
{
    (void)ctx;
    return hidden_states(body, tokens, &(forward_ctx){0});
}

tarn_tensor *tarn__gpt2_documents_forward(tarn_module *body, tarn_tensor *tokens, const tarn__documents *documents)
{
    return hidden_states(body, tokens, &(forward_ctx){.documents = documents});
}

tarn_tensor *tarn__gpt2_model_forward(tarn_module *model, tarn_tensor *tokens, void *ctx)
{
    (void)ctx;
    return tarn_forward(model->child[TARN__MODEL_HEAD], tarn_forward(model->child[TARN__MODEL_BODY], tokens));
}

/* Only the last token goes through the head: prefill needs no other logits. */
tarn_tensor *tarn__gpt2_forward_cached(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache)
{
    tarn_tensor *y = hidden_states(model->child[TARN__MODEL_BODY], tokens, &(forward_ctx){.cache = cache});
    int64_t T = tokens->view.shape[1];
    tarn_tensor *last = y ? tarn_squeeze(tarn_slice(y, 1, T - 1, T), 1) : NULL;
    return last ? tarn_forward(model->child[TARN__MODEL_HEAD], last) : NULL;
}

tarn_tensor *tarn_gpt2_loss(tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets)
{
    const char *function = "gpt2_loss";
    const tarn__arch *arch = tarn__arch_of(function, model);
    if (arch == &tarn__gpt2_arch)
        return tarn__model_loss(function, model, tokens, targets);
    if (arch)
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the model is no GPT-2", function);
    return NULL;
}
