/* decode.c: the fused decode step of a few sequences, one token each.
 *
 * Its time is the bytes of the weights and the number of kernels: five per layer of most architectures. A norm is fused
 * into the matmuls after it, a residual addition into the matmul before it, or into a norm between them. Operands that
 * a kernel does not take are composed (ops/attention/decode.c). */
#include "models/lm/arch.h"
#include "nn/lora.h"
#include "ops/internal.h"

/* The step is used for up to MAX_SEQUENCES sequences on every device; for up to MAX_FUSED_SEQUENCES if the device's
 * kernels support that many rows in all linear layers; for more if a layer also composes as well as the general pass.
 * Otherwise the general matmuls of the forward pass are faster with that many rows. */
#define MAX_SEQUENCES 8
#define MAX_FUSED_SEQUENCES 16

/* A module's own parameter or buffer. */
static tarn_tensor *own(const tarn_module *module, const char *name)
{
    return tarn__module_own(module, name);
}

/* True if no linear layer of a part has a LoRA adapter. */
static bool has_no_adapter(const tarn_module *part)
{
    bool good = true;
    for (int i = 0; i < part->children; i++)
        good = good && !part->child[i]->adapter;
    return good;
}

/* True if a layer composes as well as the general pass: norms before sequential parts, weights [out, in], gates without
 * biases. For others the general pass takes fewer operations: one for a residual addition and the next norm, for an MLP
 * without a gate, for a gate. */
static bool is_composable(const tarn_module *layer)
{
    const tarn__arch *arch = ((const tarn__model_ctx *)layer->ctx)->arch;
    const tarn_module *attention = tarn__model_child(layer, TARN__ROLE_ATTENTION),
                      *mlp = tarn__model_child(layer, TARN__ROLE_MLP);
    bool good = arch->norms == TARN__NORMS_PRE && !tarn__layer_is_parallel(layer);
    for (int i = 0; i < attention->children; i++)
        good = good && attention->child[i]->linear != TARN__LINEAR_IN_OUT;
    for (int i = 0; i < mlp->children; i++)
        good = good && mlp->child[i]->linear != TARN__LINEAR_IN_OUT && !(arch->is_gated && own(mlp->child[i], "bias"));
    return good;
}

/* True if the device has the kernels of this step, judged by that of the head. */
static bool has_kernels(const tarn_module *model)
{
    return tarn__decode_rows_fit(1, own(tarn__model_child(model->child[TARN__MODEL_BODY], TARN__ROLE_NORM), "weight"),
                                 own(model->child[TARN__MODEL_HEAD], "weight"));
}

/* True if kernels support so many rows of x with all weights of a part of a layer. */
static bool rows_fit(const tarn_module *model, const tarn_module *part, int64_t rows)
{
    tarn_tensor *norm = own(tarn__model_child(model->child[TARN__MODEL_BODY], TARN__ROLE_NORM), "weight");
    bool good = true;
    for (int i = 0; good && i < part->children; i++)
        good = part->child[i]->linear == TARN__NOT_LINEAR ||
               (part->child[i]->linear != TARN__LINEAR_IN_OUT &&
                tarn__decode_rows_fit(rows, norm, own(part->child[i], "weight")));
    return good;
}

/* True if the step supports this many rows, above MAX_SEQUENCES: asked of the first layer, since layers are alike. */
static bool many_rows_fit(const tarn_module *model, int64_t rows)
{
    const tarn_module *layer = tarn__model_layers(model)->child[0];
    return rows_fit(model, tarn__model_child(layer, TARN__ROLE_ATTENTION), rows) &&
           rows_fit(model, tarn__model_child(layer, TARN__ROLE_MLP), rows) &&
           (rows <= MAX_FUSED_SEQUENCES || is_composable(layer));
}

/* A linear layer, as the fused operations take it. */
typedef struct linear {
    tarn_tensor *weight; /* [out, in]: of one stored as [in, out] a transposed view */
    tarn_tensor *bias;   /* or NULL */
} linear;

static linear linear_of(const tarn_module *module)
{
    tarn_tensor *weight = own(module, "weight");
    return (linear){module->linear == TARN__LINEAR_IN_OUT ? tarn__transposed(weight) : weight, own(module, "bias")};
}

/* Some of the outputs of a linear layer. */
static linear slice_of(const linear *whole, int64_t begin, int64_t end)
{
    return (linear){tarn_slice(whole->weight, 0, begin, end),
                    whole->bias ? tarn_slice(whole->bias, 0, begin, end) : NULL};
}

/* A norm, as the fused operations take it; NULL: none. */
static tarn__decode_norm norm_of(const tarn_module *norm)
{
    if (!norm)
        return (tarn__decode_norm){0};
    const tarn__norm_ctx *n = norm->ctx;
    return (tarn__decode_norm){.weight = own(norm, "weight"),
                               .epsilon = n->epsilon,
                               .offset = tarn__norm_offset(n),
                               .is_layernorm = n->kind == TARN__NORM_LAYER,
                               .bias = own(norm, "bias")};
}

/* True for at most MAX_SEQUENCES sequences, or more if kernels support them, without transfers between layers. */
bool tarn__model_can_decode(const tarn_module *model, const tarn_tensor *tokens, const tarn__kv_cache *cache)
{
    const tarn_module *layers = tarn__model_layers(model);
    const int64_t rows = tokens->view.shape[0];
    bool good = tokens->view.rank == 2 && tokens->view.shape[1] == 1 && cache->shape.map.count == 1 &&
                !model->child[TARN__MODEL_HEAD]->adapter,
         is_fused = good && has_kernels(model);
    good = good && (rows <= MAX_SEQUENCES || (is_fused && many_rows_fit(model, rows)));
    for (int i = 0; good && i < layers->children; i++)
        good = has_no_adapter(tarn__model_child(layers->child[i], TARN__ROLE_ATTENTION)) &&
               has_no_adapter(tarn__model_child(layers->child[i], TARN__ROLE_MLP)) &&
               (is_fused || is_composable(layers->child[i]));
    return good;
}

/* Queries, keys and values of norm(x), [B, 1, heads, head_dim] each; x is the residual stream. */
static bool project(const tarn_module *attention, const tarn__decode_norm *norm, tarn__decode_stream *x,
                    tarn_tensor **part)
{
    const tarn_module *one = tarn__model_child(attention, TARN__ROLE_QKV);
    tarn_tensor *weights[3], *biases[3];
    for (int i = 0; i < (one ? 1 : 3); i++) {
        const linear l = linear_of(one ? one : tarn__model_child(attention, TARN__ROLE_Q + i));
        weights[i] = l.weight;
        biases[i] = l.bias;
    }
    if (!tarn__stream_norm_linear(x, norm, weights, biases, one ? 1 : 3, part))
        return false;
    if (one)
        return tarn__attention_split(attention, part[0], part);
    for (int i = 0; i < 3; i++)
        if (!(part[i] = tarn__attention_heads(attention, TARN__ROLE_Q + i, part[i])))
            return false;
    return true;
}

/* Attention of norm(x) before its output projection, [B, 1, heads · head_dim]. */
static tarn_tensor *attend(const tarn_module *attention, const tarn__decode_norm *norm, tarn__decode_stream *x,
                           tarn__kv_cache *cache)
{
    const tarn__model_ctx *ctx = attention->ctx;
    tarn_rope_options rope;
    const tarn__decode_attention_options how = tarn__attention_options(ctx, tarn__kv_cache_rope_length(cache), &rope);
    tarn_tensor *part[3];
    return project(attention, norm, x, part)
               ? tarn__kv_cache_rotate_and_attend(cache, ctx->layer, part[0], part[1], part[2], &how)
               : NULL;
}

/* act(gate) · up of norm(x); a gate with a bias is an operation of its own. */
static tarn_tensor *activate_gated(const linear *gate, const linear *up, const tarn__decode_norm *norm,
                                   tarn__decode_stream *x, tarn_activation_kind activation)
{
    if (!gate->bias && !up->bias)
        return tarn__stream_norm_gate_up(x, norm, gate->weight, up->weight, activation);
    tarn_tensor *weights[] = {gate->weight, up->weight}, *biases[] = {gate->bias, up->bias}, *y[2];
    return tarn__stream_norm_linear(x, norm, weights, biases, 2, y) ? tarn_gated(y[0], y[1], activation) : NULL;
}

/* Hidden activations of the MLP of norm(x). */
static tarn_tensor *activate(const tarn_module *mlp, const tarn__decode_norm *norm, tarn__decode_stream *x)
{
    tarn_activation_kind activation = ((const tarn__model_ctx *)mlp->ctx)->activation;
    const tarn_module *gate = tarn__model_child(mlp, TARN__ROLE_GATE),
                      *both = tarn__model_child(mlp, TARN__ROLE_GATE_UP);
    linear first = linear_of(both ? both : gate ? gate : tarn__model_child(mlp, TARN__ROLE_UP)), second;
    if (!both && !gate) {
        tarn_tensor *sum = tarn__stream_sum(x);
        return sum ? tarn__norm_up(sum, norm, first.weight, first.bias, activation) : NULL;
    }
    if (both) {
        int64_t ffn_size = tarn__linear_out(both) / 2;
        second = slice_of(&first, ffn_size, 2 * ffn_size);
        first = slice_of(&first, 0, ffn_size);
    } else {
        second = linear_of(tarn__model_child(mlp, TARN__ROLE_UP));
    }
    return tarn_failed() ? NULL : activate_gated(&first, &second, norm, x, activation);
}

/* Adds the output of a part to the stream: the projection of y, its post-norm and its scale, where the layer has
 * them. With a post-norm it becomes the branch of the stream. */
static bool add_output(const tarn_module *layer, const tarn_module *projection, tarn__role post, tarn_tensor *y,
                       tarn__decode_stream *x)
{
    const tarn_module *norm = tarn__model_child(layer, post);
    const tarn_lm_config *c = tarn__model_config(layer);
    const tarn__decode_norm none = {0};
    const double scale = c->residual_scale > 0 ? c->residual_scale : 1;
    linear l = linear_of(projection);
    if (!y || !tarn__stream_sum(x))
        return false;
    if (!norm)
        return (x->sum = tarn__linear_residual(y, l.weight, l.bias, x->sum, scale)) != NULL;
    x->post = norm_of(norm), x->scale = scale;
    return tarn__norm_linear(y, &none, &l.weight, &l.bias, 1, &x->branch);
}

/* One layer: the residual stream before and after. Where it is parallel, the MLP reads the stream before attention,
 * through its own norm or attention's. */
static bool add_parts(const tarn_module *layer, tarn__decode_stream *x, tarn__kv_cache *cache)
{
    const tarn_module *attention = tarn__model_child(layer, TARN__ROLE_ATTENTION),
                      *mlp = tarn__model_child(layer, TARN__ROLE_MLP),
                      *before_attention = tarn__model_child(layer, TARN__ROLE_ATTENTION_NORM),
                      *before_mlp = tarn__model_child(layer, TARN__ROLE_MLP_NORM);
    const bool is_parallel = tarn__layer_is_parallel(layer);
    const tarn__decode_norm first = norm_of(before_attention),
                            second = norm_of(is_parallel && !before_mlp ? before_attention : before_mlp);
    tarn_tensor *attended = attend(attention, &first, x, cache);
    tarn__decode_stream before = *x; /* without a branch, which attend() has added */
    bool good = add_output(layer, tarn__model_child(attention, TARN__ROLE_O), TARN__ROLE_ATTENTION_POST, attended, x);
    tarn_tensor *h = good ? activate(mlp, &second, is_parallel ? &before : x) : NULL;
    return add_output(layer, tarn__model_child(mlp, TARN__ROLE_DOWN), TARN__ROLE_MLP_POST, h, x);
}

/* add_parts() in a scope of its own; frees the stream before. */
static bool run_layer(const tarn_module *layer, tarn__decode_stream *x, tarn__kv_cache *cache)
{
    const tarn__decode_stream before = *x;
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && add_parts(layer, x, cache) && tarn_scope_return(scope, x->sum) &&
                (!x->branch || tarn_scope_return(scope, x->branch));
    tarn_scope_close(scope);
    if (good)
        tarn_free(before.sum), tarn_free(before.branch);
    return good;
}

/* Logits [B, vocab_size]: the last norm, scale and soft cap are fused into the head. */
tarn_tensor *tarn__model_decode(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache)
{
    tarn_module *body = model->child[TARN__MODEL_BODY];
    const tarn_module *layers = tarn__model_layers(model), *head = model->child[TARN__MODEL_HEAD];
    tarn__decode_stream x = {.sum = tarn__model_embed(body, tokens, &(tarn__forward_ctx){.cache = cache})};
    const tarn_lm_config *c = tarn__model_config(model);
    bool good = x.sum != NULL;
    for (int i = 0; good && i < layers->children; i++)
        good = run_layer(layers->child[i], &x, cache);
    const tarn__decode_norm norm = norm_of(tarn__model_child(body, TARN__ROLE_NORM));
    tarn_tensor *y =
        good ? tarn__stream_logits(&x, &norm, own(head, "weight"), own(head, "bias"), c->logit_scale, c->logit_softcap)
             : NULL;
    return y ? tarn_squeeze(y, 1) : NULL;
}
