/* gpt2_forward.c: what GPT-2 computes.
 *
 * x is what passes by all blocks, [B, T, width]; each block adds twice to it: attention of a norm of x, and an mlp of a
 * norm of what that made. The norm that follows an addition belongs to the next part, and what is dropped out of what
 * is added belongs to the addition: one pass makes them all. With a cache the tokens follow those it holds, and nothing
 * is dropped out. Documents that share a row look at themselves alone. Each block has a scope of its own: when it is
 * done, only what passes on and what backward needs is left. */
#include "autograd/tape.h"
#include "models/lm/gpt2.h"
#include "nn/lora.h"
#include "ops/internal.h"

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static tarn_tensor *own(const tarn_module *module, const char *name)
{
    return tarn__module_own(module, name);
}

static tarn_tensor *dropped(const tarn_module *module, tarn_tensor *x, double p, const tarn__kv_cache *cache)
{
    return p > 0 && module->training && !cache ? tarn_dropout(x, p) : x;
}

/* *x = *x + delta, which `part` made; the result is the norm of that. */
static tarn_tensor *add_and_normalise(const tarn_module *part, tarn_tensor **x, tarn_tensor *delta,
                                      const tarn_module *norm, const tarn__kv_cache *cache)
{
    const tarn_gpt2_config *c = part->ctx;
    double p = part->training && !cache ? c->dropout : 0;
    return tarn__dropout_residual_norm(*x, delta, p, own(norm, "weight"), own(norm, "bias"), false, c->epsilon, x);
}

/* Rows of a table of blocks come as what the norms are. */
tarn_tensor *tarn__gpt2_embedding_forward(tarn_module *table, tarn_tensor *index, void *ctx)
{
    return tarn__embedding_as(own(table, "weight"), index, ((const tarn_gpt2_config *)ctx)->dtype);
}

tarn_tensor *tarn__gpt2_projection_forward(tarn_module *projection, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return tarn__lora_forward(projection, x);
}

tarn_tensor *tarn__gpt2_head_forward(tarn_module *head, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return tarn_linear_apply(x, own(head, "weight"), NULL);
}

tarn_tensor *tarn__gpt2_mlp_forward(tarn_module *mlp, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    tarn_module *up = mlp->child[TARN__GPT2_IN], *down = mlp->child[TARN__GPT2_OUT];
    bool is_plain =
        up->linear == TARN__LINEAR_IN_OUT && down->linear == TARN__LINEAR_IN_OUT && !up->adapter && !down->adapter;
    if (!is_plain) { /* what one operation makes of both has no place for adapters, and none for blocks */
        tarn_tensor *y = tarn_forward(up, x);
        return y ? tarn_forward(down, tarn_gelu(y)) : NULL;
    }
    return tarn__mlp_in_out(x, own(up, "weight"), own(down, "weight"), own(up, "bias"), own(down, "bias"));
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* [B, T, 3 · width] → [B, T, width]; what is packed follows the tokens in the cache, and joins them there. */
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

/* `starts` says where the documents of a row begin; NULL: there is one. */
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

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static tarn_tensor *block_with(tarn_module *block, tarn_tensor *x, tarn_tensor *document_starts)
{
    const tarn_gpt2_config *c = block->ctx;
    tarn_module *attention = block->child[TARN__GPT2_ATTENTION], *mlp = block->child[TARN__GPT2_MLP];
    tarn_tensor *y = tarn_forward(block->child[TARN__GPT2_NORM_1], x);
    y = document_starts && y ? attention_with(attention, y, document_starts, NULL, 0) : tarn_forward(attention, y);
    y = add_and_normalise(attention, &x, y, block->child[TARN__GPT2_NORM_2], NULL);
    return tarn_add(x, dropped(mlp, tarn_forward(mlp, y), c->dropout, NULL));
}

tarn_tensor *tarn__gpt2_layer_forward(tarn_module *block, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return block_with(block, x, NULL);
}

/* Where the tokens of a batch stand; NULL and NULL: from the beginning. */
typedef struct place {
    tarn__kv_cache *cache;
    const tarn__documents *documents;
} place;

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

/* [B, T, width], before the first block. */
static tarn_tensor *embed(tarn_module *body, tarn_tensor *tokens, const place *p)
{
    const tarn_gpt2_config *c = body->ctx;
    if (!check_tokens(body, tokens))
        return NULL;
    tarn_tensor *table = own(body->child[TARN__GPT2_POSITION_EMBEDDING], "weight");
    tarn_tensor *positions = p->cache       ? tarn__kv_cache_positions(p->cache, 0)
                             : p->documents ? p->documents->positions
                                            : NULL;
    tarn_tensor *places = positions ? tarn_embedding(table, positions) : tarn_slice(table, 0, 0, tokens->view.shape[1]);
    return dropped(body, tarn_add(tarn_forward(body->child[TARN__GPT2_TOKEN_EMBEDDING], tokens), places),
                   c->embedding_dropout, p->cache);
}

static tarn_tensor *run_block(tarn_tensor *const *inputs, int count, void *block)
{
    return count > 1 ? block_with(block, inputs[0], inputs[1]) : tarn_forward(block, inputs[0]);
}

/* The same with blocks that backward runs a second time: what passes between them is one tensor, so additions and norms
 * stay apart. */
static tarn_tensor *hidden_recomputed(tarn_module *body, tarn_tensor *x, const tarn__documents *documents)
{
    const tarn_module *blocks = body->child[TARN__GPT2_LAYERS];
    for (int i = 0; x && i < blocks->children; i++)
        if ((x = tarn__to_device_of(x, blocks->child[i]->child[TARN__GPT2_NORM_1])) != NULL)
            x = tarn_checkpoint(run_block, blocks->child[i],
                                (tarn_tensor *[]){x, documents ? documents->document_starts : NULL}, documents ? 2 : 1);
    x = tarn__to_device_of(x, body->child[TARN__GPT2_NORM]);
    return x ? tarn_forward(body->child[TARN__GPT2_NORM], x) : NULL;
}

/* *x = *x + delta, which is brought to where the norm lies: one tensor crosses, not two. The result is its norm. */
static tarn_tensor *cross_and_normalise(const tarn_module *part, tarn_tensor **x, tarn_tensor *delta, tarn_module *norm,
                                        const tarn__kv_cache *cache)
{
    const tarn_gpt2_config *c = part->ctx;
    *x = tarn__to_device_of(tarn_add(*x, dropped(part, delta, c->dropout, cache)), norm);
    return tarn_forward(norm, *x);
}

/* Block i: *x is what passes by and *y its norm, before and after. Those from before are freed. */
static bool pass_block(tarn_module *body, int i, const place *p, tarn_tensor **x, tarn_tensor **y)
{
    const tarn_module *blocks = body->child[TARN__GPT2_LAYERS], *block = blocks->child[i];
    tarn_module *attention = block->child[TARN__GPT2_ATTENTION], *mlp = block->child[TARN__GPT2_MLP];
    tarn_module *next =
        i + 1 < blocks->children ? blocks->child[i + 1]->child[TARN__GPT2_NORM_1] : body->child[TARN__GPT2_NORM];
    tarn_tensor *sum = *x, *normed = NULL;
    tarn_scope *scope = tarn_scope_open();
    if (scope) {
        bool is_alone = !p->cache && !p->documents;
        normed = is_alone
                     ? tarn_forward(attention, *y)
                     : attention_with(attention, *y, p->documents ? p->documents->document_starts : NULL, p->cache, i);
        normed = add_and_normalise(attention, &sum, normed, block->child[TARN__GPT2_NORM_2], p->cache);
        tarn_tensor *delta = tarn_forward(mlp, normed);
        normed = tarn__is_on_device_of(delta, next) ? add_and_normalise(mlp, &sum, delta, next, p->cache)
                                                    : cross_and_normalise(mlp, &sum, delta, next, p->cache);
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

/* [B, T, width], after the last norm. */
static tarn_tensor *hidden(tarn_module *body, tarn_tensor *tokens, const place *p)
{
    const tarn_module *blocks = body->child[TARN__GPT2_LAYERS];
    const tarn_gpt2_config *c = body->ctx;
    tarn_tensor *x = embed(body, tokens, p);
    if (c->recompute == TARN_RECOMPUTE_FULL && !p->cache)
        return hidden_recomputed(body, x, p->documents);
    if (c->recompute == TARN_RECOMPUTE_SELECTIVE)
        tarn__recompute_open();
    tarn_tensor *y = x ? tarn_forward(blocks->child[0]->child[TARN__GPT2_NORM_1], x) : NULL;
    bool good = y != NULL;
    for (int i = 0; good && i < blocks->children; i++)
        good = pass_block(body, i, p, &x, &y);
    if (c->recompute == TARN_RECOMPUTE_SELECTIVE)
        tarn__recompute_close();
    return good ? y : NULL;
}

tarn_tensor *tarn__gpt2_body_forward(tarn_module *body, tarn_tensor *tokens, void *ctx)
{
    (void)ctx;
    return hidden(body, tokens, &(place){0});
}

tarn_tensor *tarn__gpt2_documents_forward(tarn_module *body, tarn_tensor *tokens, const tarn__documents *documents)
{
    return hidden(body, tokens, &(place){.documents = documents});
}

tarn_tensor *tarn__gpt2_model_forward(tarn_module *model, tarn_tensor *tokens, void *ctx)
{
    (void)ctx;
    return tarn_forward(model->child[TARN__MODEL_HEAD], tarn_forward(model->child[TARN__MODEL_BODY], tokens));
}

tarn_tensor *tarn__gpt2_forward_cached(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache)
{
    tarn_tensor *y = hidden(model->child[TARN__MODEL_BODY], tokens, &(place){.cache = cache});
    int64_t T = tokens->view.shape[1];
    tarn_tensor *last = y ? tarn_squeeze(tarn_slice(y, 1, T - 1, T), 1) : NULL;
    return last ? tarn_forward(model->child[TARN__MODEL_HEAD], last) : NULL;
}

tarn_tensor *tarn_gpt2_loss(tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets)
{
    const char *function = "gpt2_loss";
    const tarn__arch *kind = tarn__arch_of(function, model);
    if (kind == &tarn__gpt2_arch)
        return tarn__model_loss(function, model, tokens, targets);
    if (kind)
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the model is no GPT-2", function);
    return NULL;
}
