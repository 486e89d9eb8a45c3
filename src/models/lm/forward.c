/* forward.c: the forward pass of language models.
 *
 * x is the residual stream, [B, T, hidden_size]; each layer adds to it twice: attention of norm(x), and the MLP of
 * norm(x), or both at once where the residual is parallel. Dropout, residual addition and the norm of the next part
 * are one fused operation. With a KV cache the tokens follow those in the cache, and there is no dropout. Packed
 * documents attend to themselves only. Every layer has its own scope: after it only the residual stream and the
 * activations of backward are left. */
#include "autograd/tape.h"
#include "models/lm/arch.h"
#include "nn/lora_groups.h"
#include "ops/internal.h"

/* ---- the residual stream ----------------------------------------------------------------------------------------- */

/* The stream between two parts: x, and the input of the next part: its norm, or x itself where the layer has no norm
 * before its parts. */
typedef struct stream {
    tarn_tensor *x, *normed; /* normed NULL: x itself */
} stream;

static tarn_tensor *input_of(const stream *s)
{
    return s->normed ? s->normed : s->x;
}

/* True for a pass that continues sequences in a KV cache. */
static bool has_cache(const tarn__forward_ctx *p)
{
    return p->cache || p->pages;
}

/* Dropout of the outputs of a layer's parts: in training mode, without a cache. */
static double dropout_of(const tarn_module *layer, const tarn__forward_ctx *pass)
{
    double p = tarn__model_config(layer)->dropout;
    return p > 0 && layer->training && !has_cache(pass) ? p : 0;
}

static tarn_tensor *maybe_dropout(tarn_tensor *x, double p)
{
    return x && p > 0 ? tarn_dropout(x, p) : x;
}

/* Device of a layer: that of any of its weights. */
static tarn_tensor *to_layer(tarn_tensor *x, const tarn_module *layer)
{
    return tarn__to_device_of(x, tarn__model_child(tarn__model_child(layer, TARN__ROLE_ATTENTION), TARN__ROLE_O));
}

/* x plus a part's output after dropout, and its norm (NULL: none), which may be on another device: then the sum is
 * transferred, once. */
static bool add_output(stream *s, tarn_tensor *delta, double p, tarn_module *norm)
{
    if (!delta)
        return false;
    if (norm && tarn__is_on_device_of(delta, norm)) {
        const tarn__norm_ctx *n = norm->ctx;
        s->normed = tarn__dropout_residual_norm(s->x, delta, p, tarn__module_own(norm, "weight"),
                                                tarn__module_own(norm, "bias"), n->kind != TARN__NORM_LAYER,
                                                tarn__norm_offset(n), n->epsilon, &s->x);
        return s->normed != NULL;
    }
    delta = maybe_dropout(delta, p);
    s->x = delta ? tarn_add(s->x, delta) : NULL;
    s->x = s->x && norm ? tarn__to_device_of(s->x, norm) : s->x;
    s->normed = s->x && norm ? tarn_forward(norm, s->x) : NULL;
    return s->x && (!norm || s->normed);
}

/* ---- one layer --------------------------------------------------------------------------------------------------- */

/* Post-norm and scale of a part's output. */
static tarn_tensor *finish_output(const tarn_module *layer, tarn__role post, tarn_tensor *y)
{
    tarn_module *norm = tarn__model_child(layer, post);
    double scale = tarn__model_config(layer)->residual_scale;
    y = y && norm ? tarn_forward(norm, y) : y;
    return y && scale > 0 ? tarn_mul(y, tarn_scalar(scale)) : y;
}

/* Output of attention in its own scope, which frees queries, keys and values before the MLP. */
static tarn_tensor *run_attention(const tarn_module *layer, tarn_tensor *x, const tarn__forward_ctx *p)
{
    tarn_module *attention = tarn__model_child(layer, TARN__ROLE_ATTENTION);
    tarn_scope *scope = tarn_scope_open();
    if (!scope)
        return NULL;
    tarn_tensor *y =
        has_cache(p) || p->document_starts ? tarn__attention_with(attention, x, p) : tarn_forward(attention, x);
    y = finish_output(layer, TARN__ROLE_ATTENTION_POST, y);
    y = y ? tarn_scope_return(scope, y) : NULL;
    tarn_scope_close(scope);
    return y;
}

static tarn_tensor *run_mlp(const tarn_module *layer, tarn_tensor *x)
{
    return finish_output(layer, TARN__ROLE_MLP_POST, tarn_forward(tarn__model_child(layer, TARN__ROLE_MLP), x));
}

/* Attention and MLP of the same x. */
static tarn_tensor *run_parallel(const tarn_module *layer, const stream *s, const tarn__forward_ctx *p)
{
    tarn_module *norm = tarn__model_child(layer, TARN__ROLE_MLP_NORM);
    tarn_tensor *attended = maybe_dropout(run_attention(layer, input_of(s), p), dropout_of(layer, p)),
                *y = attended ? s->x : NULL;
    if (y)
        y = norm ? tarn_forward(norm, y) : input_of(s);
    y = y ? maybe_dropout(run_mlp(layer, y), dropout_of(layer, p)) : NULL;
    return y ? tarn_add(y, attended) : NULL;
}

bool tarn__layer_is_parallel(const tarn_module *layer)
{
    const tarn__model_ctx *ctx = layer->ctx;
    return ctx->arch->is_parallel && !ctx->config.sequential;
}

/* One layer as a function of x alone, for tarn_forward() and recomputation: nothing is fused across layers. */
static tarn_tensor *layer_with(tarn_module *layer, tarn_tensor *x, const tarn__forward_ctx *p)
{
    tarn_module *norm = tarn__model_child(layer, TARN__ROLE_ATTENTION_NORM);
    double drop = dropout_of(layer, p);
    stream s = {x, norm ? tarn_forward(norm, x) : NULL};
    if (norm && !s.normed)
        return NULL;
    if (tarn__layer_is_parallel(layer))
        return add_output(&s, run_parallel(layer, &s, p), 0, NULL) ? s.x : NULL;
    bool good =
        add_output(&s, run_attention(layer, input_of(&s), p), drop, tarn__model_child(layer, TARN__ROLE_MLP_NORM)) &&
        add_output(&s, run_mlp(layer, input_of(&s)), drop, NULL);
    return good ? s.x : NULL;
}

tarn_tensor *tarn__layer_forward(tarn_module *layer, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return layer_with(layer, x, &(tarn__forward_ctx){0});
}

/* ---- all layers -------------------------------------------------------------------------------------------------- */

/* A layer as a tarn_checkpoint_fn. */
static tarn_tensor *checkpointed_layer(tarn_tensor *const *inputs, int count, void *layer)
{
    return count > 1 ? layer_with(layer, inputs[0],
                                  &(tarn__forward_ctx){.positions = inputs[1], .document_starts = inputs[2]})
                     : tarn_forward(layer, inputs[0]);
}

/* Full recomputation: layers under tarn_checkpoint(). They exchange one tensor, so additions and norms are not fused
 * across them. */
static tarn_tensor *run_recomputed(tarn_module *body, const tarn__forward_ctx *p, tarn_tensor *x)
{
    const tarn_module *layers = tarn__model_child(body, TARN__ROLE_LAYERS);
    tarn_module *norm = tarn__model_child(body, TARN__ROLE_NORM);
    for (int i = 0; x && i < layers->children; i++)
        if ((x = to_layer(x, layers->child[i])) != NULL)
            x = tarn_checkpoint(checkpointed_layer, layers->child[i],
                                (tarn_tensor *[]){x, p->positions, p->document_starts}, p->document_starts ? 3 : 1);
    x = tarn__to_device_of(x, norm);
    return x ? tarn_forward(norm, x) : NULL;
}

static void free_tensor(tarn_tensor **x)
{
    tarn_free(*x);
    *x = NULL;
}

/* Layer i: the stream before and after. Frees the previous one as early as possible; on failure it may be freed
 * already. */
static bool run_layer(tarn_module *body, int i, const tarn__forward_ctx *p, stream *s)
{
    const tarn_module *layers = tarn__model_child(body, TARN__ROLE_LAYERS), *layer = layers->child[i];
    double drop = dropout_of(layer, p);
    tarn_module *next = i + 1 < layers->children ? tarn__model_child(layers->child[i + 1], TARN__ROLE_ATTENTION_NORM)
                                                 : tarn__model_child(body, TARN__ROLE_NORM);
    tarn_scope *scope = tarn_scope_open();
    stream after = {scope ? to_layer(s->x, layer) : NULL, s->normed}; /* a norm has moved x already */
    bool good = after.x != NULL;
    if (good && tarn__layer_is_parallel(layer)) {
        good = add_output(&after, run_parallel(layer, &after, p), 0, next);
    } else if (good) {
        tarn_tensor *delta = run_attention(layer, input_of(&after), p);
        good = add_output(&after, delta, drop, tarn__model_child(layer, TARN__ROLE_MLP_NORM));
        if (good) {
            free_tensor(&delta);
            free_tensor(&s->x);
            free_tensor(&s->normed);
            good = add_output(&after, run_mlp(layer, input_of(&after)), drop, next);
        }
    }
    good = good && tarn_scope_return(scope, after.x) && (!after.normed || tarn_scope_return(scope, after.normed));
    tarn_scope_close(scope);
    if (good) {
        free_tensor(&s->x);
        free_tensor(&s->normed);
        *s = after;
    }
    return good;
}

/* Positions and starts of packed documents on the device of the next layer. */
static bool move_documents(tarn__forward_ctx *p, const tarn_module *layer)
{
    p->positions = to_layer(p->positions, layer);
    p->document_starts = to_layer(p->document_starts, layer);
    return !tarn_failed();
}

/* Runs the layers with the norm of each fused into the addition before it. */
static tarn_tensor *run_layers(tarn_module *body, const tarn__forward_ctx *p, tarn_tensor *x)
{
    const tarn_module *layers = tarn__model_child(body, TARN__ROLE_LAYERS);
    tarn_module *norm = tarn__model_child(layers->child[0], TARN__ROLE_ATTENTION_NORM);
    tarn__forward_ctx here = *p;
    x = norm ? tarn__to_device_of(x, norm) : x;
    stream s = {x, x && norm ? tarn_forward(norm, x) : NULL};
    bool good = x && (!norm || s.normed);
    for (int i = 0; good && i < layers->children; i++)
        good = move_documents(&here, layers->child[i]) && run_layer(body, i, &here, &s);
    return good ? s.normed : NULL;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static bool check_tokens(const tarn_lm_config *c, const tarn_tensor *tokens)
{
    if (tokens->view.rank != 2 || tokens->view.shape[0] < 1 || tokens->view.shape[1] < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: the tokens are %s; they must be [B, T], at least one of each",
                           c->arch, TARN__SHAPE_STRING(tokens));
    if (tokens->view.shape[1] > c->context)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: %lld tokens are more than the context of %lld", c->arch,
                           (long long)tokens->view.shape[1], (long long)c->context);
    return true;
}

tarn_tensor *tarn__model_embed(tarn_module *body, tarn_tensor *tokens, const tarn__forward_ctx *p)
{
    const tarn_lm_config *c = tarn__model_config(body);
    if (!p->pages && !check_tokens(c, tokens))
        return NULL;
    tarn_tensor *x = tarn_forward(tarn__model_child(body, TARN__ROLE_TOKENS), tokens);
    const tarn_module *learned = tarn__model_child(body, TARN__ROLE_POSITIONS);
    if (x && learned) {
        tarn_tensor *weight = tarn__module_own(learned, "weight"),
                    *positions = p->cache   ? tarn__kv_cache_positions(p->cache, -1)
                                 : p->pages ? p->pages->index[0].positions
                                            : p->positions;
        x = tarn_add(x,
                     positions ? tarn_embedding(weight, positions) : tarn_slice(weight, 0, 0, tokens->view.shape[1]));
    }
    return c->embedding_dropout > 0 && body->training && !has_cache(p) ? maybe_dropout(x, c->embedding_dropout) : x;
}

/* [B, T, hidden_size] after the last norm. */
static tarn_tensor *hidden_states(tarn_module *body, tarn_tensor *tokens, const tarn__forward_ctx *p)
{
    tarn_recompute recompute = tarn__model_config(body)->recompute;
    tarn_tensor *x = tarn__model_embed(body, tokens, p);
    if (!x)
        return NULL;
    if (recompute == TARN_RECOMPUTE_FULL && !has_cache(p))
        return run_recomputed(body, p, x);
    if (recompute == TARN_RECOMPUTE_SELECTIVE)
        tarn__recompute_open();
    tarn_tensor *y = run_layers(body, p, x);
    if (recompute == TARN_RECOMPUTE_SELECTIVE)
        tarn__recompute_close();
    return y;
}

tarn_tensor *tarn__body_forward(tarn_module *body, tarn_tensor *tokens, void *ctx)
{
    (void)ctx;
    return hidden_states(body, tokens, &(tarn__forward_ctx){0});
}

tarn_tensor *tarn__model_hidden(tarn_module *body, tarn_tensor *tokens, const tarn__documents *documents)
{
    return hidden_states(
        body, tokens,
        &(tarn__forward_ctx){.positions = documents->positions, .document_starts = documents->document_starts});
}

tarn_tensor *tarn__model_finish_logits(const tarn_lm_config *c, tarn_tensor *logits)
{
    return tarn__scale_and_cap(logits, c->logit_scale, c->logit_softcap);
}

tarn_tensor *tarn__model_forward(tarn_module *model, tarn_tensor *tokens, void *ctx)
{
    tarn_tensor *y = tarn_forward(model->child[TARN__MODEL_BODY], tokens);
    y = y ? tarn_forward(model->child[TARN__MODEL_HEAD], y) : NULL;
    return tarn__model_finish_logits(&((const tarn__model_ctx *)ctx)->config, y);
}

tarn_tensor *tarn__model_hidden_cached(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache)
{
    return hidden_states(model->child[TARN__MODEL_BODY], tokens, &(tarn__forward_ctx){.cache = cache});
}

/* Only the last token goes through the head: prefill needs no other logits. */
tarn_tensor *tarn__model_forward_cached(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache)
{
    if (tarn__model_can_decode(model, tokens, cache))
        return tarn__model_decode(model, tokens, cache);
    tarn_tensor *y = tarn__model_hidden_cached(model, tokens, cache);
    int64_t T = tokens->view.shape[1];
    tarn_tensor *last = y ? tarn_squeeze(tarn_slice(y, 1, T - 1, T), 1) : NULL;
    return tarn__model_finish_logits(tarn__model_config(model),
                                     last ? tarn_forward(model->child[TARN__MODEL_HEAD], last) : NULL);
}

tarn_tensor *tarn__model_forward_paged(tarn_module *model, tarn_tensor *tokens, const tarn__page_batch *batch,
                                       tarn_tensor *rows)
{
    tarn__lora_groups_open(batch->adapters, false);
    tarn_tensor *y = hidden_states(model->child[TARN__MODEL_BODY], tokens, &(tarn__forward_ctx){.pages = batch});
    tarn_tensor *last = y ? tarn_index_select(tarn_squeeze(y, 0), 0, rows) : NULL;
    tarn__lora_groups_open(batch->adapters, true);
    tarn_tensor *logits = last ? tarn_forward(model->child[TARN__MODEL_HEAD], last) : NULL;
    tarn__lora_groups_close();
    return tarn__model_finish_logits(tarn__model_config(model), logits);
}
