/* layer.c: the parts of a layer: norms, linear layers, attention and MLP. */
#include <math.h>

#include "base/dtype.h"
#include "base/half.h"
#include "models/lm/arch.h"
#include "nn/lora_groups.h"
#include "ops/internal.h"

/* Tokens of a prompt from which its MLP runs in chunks; the activations of fewer are small next to the weights. */
#define MIN_CHUNKED_ROWS 257
/* Rows of a weight per chunk: small enough that up takes no more memory than down, large enough to occupy a GPU. */
#define CHUNK_ROWS 2048

/* ---- norms, embeddings, linear layers ---------------------------------------------------------------------------- */

/* A module's own parameter or buffer. */
static tarn_tensor *own(const tarn_module *module, const char *name)
{
    return tarn__module_own(module, name);
}

double tarn__norm_offset(const tarn__norm_ctx *norm)
{
    return norm->kind == TARN__NORM_RMS_PLUS_1 ? 1 : 0;
}

tarn_tensor *tarn__norm_forward(tarn_module *norm, tarn_tensor *x, void *ctx)
{
    const tarn__norm_ctx *n = ctx;
    return n->kind == TARN__NORM_LAYER ? tarn_layernorm(x, own(norm, "weight"), own(norm, "bias"), n->epsilon)
                                       : tarn_rmsnorm_offset(x, own(norm, "weight"), tarn__norm_offset(n), n->epsilon);
}

/* A scale as a number of a dtype: transformers rounds that of Gemma. */
static double rounded(double scale, tarn_dtype dtype)
{
    return dtype == TARN_BF16  ? (double)tarn__bf16_to_f32(tarn__f32_to_bf16((float)scale))
           : dtype == TARN_F16 ? (double)tarn__f16_to_f32(tarn__f32_to_f16((float)scale))
                               : scale;
}

/* Rows of a quantized embedding are dequantized to the dtype of the norms. */
tarn_tensor *tarn__token_embedding_forward(tarn_module *embedding, tarn_tensor *index, void *ctx)
{
    const tarn_lm_config *c = ctx;
    tarn_tensor *x =
        tarn__lora_embedding(embedding, index, tarn__embedding_as(own(embedding, "weight"), index, c->dtype));
    if (!x || !(c->embedding_scale > 0))
        return x;
    bool is_rounded = tarn__arch_of_config(c)->is_embedding_scaled;
    return tarn_mul(x, tarn_scalar(is_rounded ? rounded(c->embedding_scale, c->dtype) : c->embedding_scale));
}

tarn_tensor *tarn__linear_forward(tarn_module *linear, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return tarn__lora_forward(linear, x);
}

/* Outputs of `count` children from `first`, which share x: one LoRA operation where they have adapters. */
static bool run_shared(const tarn_module *module, tarn__role first, int count, tarn_tensor *x, tarn_tensor **y)
{
    tarn_module *layers[TARN__MAX_LORA_LINEARS] = {NULL};
    for (int i = 0; i < count; i++)
        layers[i] = tarn__model_child(module, first + i);
    bool good = tarn__lora_forward_shared(layers, count, x, y);
    for (int i = 0; good && i < count; i++)
        tarn__observe_output(layers[i], y[i]);
    return good;
}

/* ---- MLP --------------------------------------------------------------------------------------------------------- */

static tarn_activation_kind activation_of(const tarn_module *mlp)
{
    return ((const tarn__model_ctx *)mlp->ctx)->activation;
}

/* True for an unrecorded prompt and a quantized weight, which devices dequantize in parts. */
static bool fits_chunks(const tarn_module *up, const tarn_tensor *x)
{
    return !tarn_grad_enabled() && tarn_dtype_block_size(own(up, "weight")->view.dtype) > 1 && !up->adapter &&
           !tarn__lora_groups_touch(up) && tarn_count(x) / x->view.shape[x->view.rank - 1] >= MIN_CHUNKED_ROWS;
}

/* act(gate) · up in place of gate, with up in chunks of rows: the widest activations of a prompt take memory for one
 * and a half of them, not for three. */
static tarn_tensor *gated_in_chunks(const tarn_module *mlp, tarn_tensor *x)
{
    tarn_module *up = tarn__model_child(mlp, TARN__ROLE_UP);
    tarn_tensor *weight = own(up, "weight"), *bias = own(up, "bias"),
                *gate = tarn_forward(tarn__model_child(mlp, TARN__ROLE_GATE), x);
    bool good = gate != NULL;
    tarn__observe_output(up, gate); /* the output of up is as large */
    for (int64_t first = 0, ffn_size = weight->view.shape[0]; good && first < ffn_size; first += CHUNK_ROWS) {
        int64_t end = ffn_size - first < CHUNK_ROWS ? ffn_size : first + CHUNK_ROWS;
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *part = scope ? tarn_linear_apply(x, tarn_slice(weight, 0, first, end),
                                                      bias ? tarn_slice(bias, 0, first, end) : NULL)
                                  : NULL;
        good = part && tarn__gated_inplace(tarn_slice(gate, -1, first, end), part, activation_of(mlp));
        tarn_scope_close(scope);
    }
    return good ? gate : NULL;
}

/* act(gate(x)) · up(x) of one layer for both. */
static tarn_tensor *gated_of_one(tarn_module *gate_up, tarn_tensor *x, tarn_activation_kind activation)
{
    tarn_tensor *both = tarn_forward(gate_up, x), *part[2];
    int64_t ffn_size = both ? tarn_size(both, -1) / 2 : 0;
    if (!both || !tarn_split(both, -1, (const int64_t[]){ffn_size, ffn_size}, 2, part))
        return NULL;
    tarn_tensor *y = tarn_gated(part[0], part[1], activation);
    if (y)
        tarn_free(both);
    return y;
}

/* act(gate(x)) · up(x). The widest activations are freed before the next matmul. */
static tarn_tensor *gated(const tarn_module *mlp, tarn_tensor *x)
{
    tarn_module *up = tarn__model_child(mlp, TARN__ROLE_UP), *one = tarn__model_child(mlp, TARN__ROLE_GATE_UP);
    if (one)
        return gated_of_one(one, x, activation_of(mlp));
    if (fits_chunks(up, x))
        return gated_in_chunks(mlp, x);
    tarn_tensor *part[2]; /* gate, up */
    if (!run_shared(mlp, TARN__ROLE_GATE, 2, x, part))
        return NULL;
    tarn_tensor *y = tarn_gated(part[0], part[1], activation_of(mlp));
    for (int i = 0; y && i < 2; i++)
        tarn_free(part[i]);
    return y;
}

/* down(act(up(x))): one operation without adapters and quantized weights. */
static tarn_tensor *ungated_mlp(tarn_module *up, tarn_module *down, tarn_tensor *x, tarn_activation_kind activation)
{
    tarn_tensor *w[] = {own(up, "weight"), own(down, "weight")}, *b[] = {own(up, "bias"), own(down, "bias")};
    bool is_fusable = up->linear == down->linear && !up->adapter && !down->adapter && !tarn__lora_groups_touch(up) &&
                      !tarn__lora_groups_touch(down) && tarn__is_float(w[0]->view.dtype) &&
                      w[0]->view.dtype == x->view.dtype && w[1]->view.dtype == x->view.dtype;
    if (is_fusable)
        return up->linear == TARN__LINEAR_IN_OUT ? tarn__mlp_in_out(x, w[0], w[1], b[0], b[1], activation)
                                                 : tarn_mlp_with(x, w[0], w[1], b[0], b[1], activation);
    tarn_tensor *y = tarn_forward(up, x);
    const tarn__act_row *act = y ? tarn__act_row_of("mlp", activation) : NULL;
    y = act ? act->apply(y) : NULL;
    return y ? tarn_forward(down, y) : NULL;
}

tarn_tensor *tarn__mlp_forward(tarn_module *mlp, tarn_tensor *x, void *ctx)
{
    const tarn__model_ctx *c = ctx;
    tarn_module *down = tarn__model_child(mlp, TARN__ROLE_DOWN);
    if (!c->arch->is_gated)
        return ungated_mlp(tarn__model_child(mlp, TARN__ROLE_UP), down, x, c->activation);
    tarn_tensor *h = gated(mlp, x), *y = h ? tarn_forward(down, h) : NULL;
    tarn_free(h);
    return y;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* The rotation of a layer. Pair factors stay in ctx. */
static tarn_rope_options rope_of(const tarn__model_ctx *ctx, int64_t length)
{
    const tarn_lm_config *c = &ctx->config;
    tarn_rope_options rope = c->rope;
    rope.axis = 1;
    rope.interleaved = false;
    rope.length = length;
    if (c->rope_local_base > 0 && tarn__layer_has_window(c, ctx->layer))
        rope = (tarn_rope_options){.axis = 1, .base = c->rope_local_base, .dims = rope.dims};
    if (rope.scaling == TARN_ROPE_LONGROPE) {
        rope.pair_factors = c->rope_factors[0];
        rope.long_pair_factors = c->rope_factors[1];
        rope.pair_factor_count = rope.dims / 2;
    }
    return rope;
}

tarn__decode_attention_options tarn__attention_options(const tarn__model_ctx *ctx, int64_t length,
                                                       tarn_rope_options *rope)
{
    const tarn_lm_config *c = &ctx->config;
    double scale = c->attention_scale;
    if (c->scale_by_layer)
        scale = (scale > 0 ? scale : 1 / sqrt((double)c->head_dim)) / (double)(ctx->layer + 1);
    *rope = rope_of(ctx, length);
    return (tarn__decode_attention_options){.rope = tarn__layer_has_rope(c, ctx->layer) ? rope : NULL,
                                            .scale = scale,
                                            .window = tarn__layer_has_window(c, ctx->layer) ? c->window : 0,
                                            .softcap = c->attention_softcap};
}

/* Values are never normalized. */
static tarn_tensor *norm_of_role(const tarn_module *attention, tarn__role role, tarn_tensor *y)
{
    tarn_module *norm = role == TARN__ROLE_Q   ? tarn__model_child(attention, TARN__ROLE_Q_NORM)
                        : role == TARN__ROLE_K ? tarn__model_child(attention, TARN__ROLE_K_NORM)
                                               : NULL;
    return norm ? tarn_forward(norm, y) : y;
}

/* Queries, keys or values y [B, T, heads · head_dim] as [B, T, heads, head_dim]. */
static tarn_tensor *heads_of(const tarn_lm_config *c, tarn_tensor *y)
{
    return tarn_reshape(y, TARN_SHAPE(tarn_size(y, 0), tarn_size(y, 1), tarn_size(y, 2) / c->head_dim, c->head_dim));
}

/* Queries, keys and values of one layer, which has them head by head: [B, T, heads, head_dim] each. */
static bool split_by_head(const tarn_lm_config *c, tarn_tensor *packed, tarn_tensor **part)
{
    const int64_t sizes[] = {c->head_dim, c->head_dim, c->head_dim};
    tarn_tensor *heads =
        tarn_reshape(packed, TARN_SHAPE(tarn_size(packed, 0), tarn_size(packed, 1), c->heads, 3 * c->head_dim));
    return heads && tarn_split(heads, 3, sizes, 3, part);
}

/* Queries, keys and values of one layer, split as [B, T, heads, head_dim]. */
static bool split_heads(const tarn_lm_config *c, tarn_tensor *packed, tarn_tensor **part)
{
    const int64_t sizes[] = {c->heads * c->head_dim, c->kv_heads * c->head_dim, c->kv_heads * c->head_dim};
    if (!tarn_split(packed, 2, sizes, 3, part))
        return false;
    for (int i = 0; i < 3; i++)
        if (!(part[i] = heads_of(c, part[i])))
            return false;
    return true;
}

bool tarn__attention_split(const tarn_module *attention, tarn_tensor *packed, tarn_tensor **part)
{
    const tarn__model_ctx *ctx = attention->ctx;
    return ctx->arch->fused & TARN__FUSED_BY_HEAD ? split_by_head(&ctx->config, packed, part)
                                                  : split_heads(&ctx->config, packed, part);
}

/* A norm of all heads at once comes before they are told apart. */
tarn_tensor *tarn__attention_heads(const tarn_module *attention, tarn__role role, tarn_tensor *y)
{
    const tarn__model_ctx *ctx = attention->ctx;
    bool is_full = ctx->arch->qk_norm == TARN__QK_NORM_FULL;
    y = is_full ? norm_of_role(attention, role, y) : y;
    y = y ? heads_of(&ctx->config, y) : NULL;
    return y && !is_full ? norm_of_role(attention, role, y) : y;
}

/* Queries, keys and values of x, [B, T, heads, head_dim] each. */
static bool project(tarn_module *attention, tarn_tensor *x, tarn_tensor **part)
{
    tarn_module *one = tarn__model_child(attention, TARN__ROLE_QKV);
    if (one) {
        tarn_tensor *packed = tarn_forward(one, x);
        return packed && tarn__attention_split(attention, packed, part);
    }
    if (!run_shared(attention, TARN__ROLE_Q, 3, x, part))
        return false;
    for (int i = 0; i < 3; i++)
        if (!(part[i] = tarn__attention_heads(attention, TARN__ROLE_Q + i, part[i])))
            return false;
    return true;
}

/* Attention without a cache, over queries, keys and values of this pass. `rope` NULL: no rotation. */
static tarn_tensor *attend_full(tarn_tensor **part, const tarn_rope_options *rope, const tarn__forward_ctx *p,
                                const tarn_attention_options *options)
{
    tarn_shape whole =
        TARN_SHAPE(tarn_size(part[0], 0), tarn_size(part[0], 1), tarn_size(part[0], 2) * tarn_size(part[0], 3));
    for (int i = 0; i < 3; i++) {
        part[i] = rope && i < 2 ? tarn_rope(part[i], p->positions, rope) : part[i];
        if (!part[i] || !(part[i] = tarn_permute(part[i], TARN_AXES(0, 2, 1, 3))))
            return NULL;
    }
    tarn_tensor *y = tarn_attention(part[0], part[1], part[2], options);
    y = y ? tarn_permute(y, TARN_AXES(0, 2, 1, 3)) : NULL;
    return y ? tarn_reshape(y, whole) : NULL;
}

/* Attention over the projections of x: [B, T, heads · head_dim]. Those of one layer that need no rotation stay packed,
 * forward and backward. */
static tarn_tensor *attend(tarn_module *attention, tarn_tensor *x, const tarn__forward_ctx *p)
{
    const tarn__model_ctx *ctx = attention->ctx;
    const tarn_lm_config *c = &ctx->config;
    tarn_module *one = tarn__model_child(attention, TARN__ROLE_QKV);
    tarn_rope_options rope;
    int64_t length = p->cache ? tarn__kv_cache_rope_length(p->cache) : p->pages ? p->pages->context : tarn_size(x, 1);
    const tarn__decode_attention_options how = tarn__attention_options(ctx, length, &rope);
    const tarn_attention_options options = {
        .causal = true,
        .scale = how.scale,
        .dropout = c->attention_dropout > 0 && attention->training ? c->attention_dropout : 0,
        .document_starts = p->document_starts,
        .window = how.window,
        .softcap = how.softcap};
    tarn_tensor *part[3]; /* queries, keys, values */
    if (one && !how.rope && !p->cache && !p->pages && !(ctx->arch->fused & TARN__FUSED_BY_HEAD)) {
        tarn_tensor *packed = tarn_forward(one, x);
        return packed ? tarn_attention_packed(packed, c->heads, c->kv_heads, &options) : NULL;
    }
    if (!project(attention, x, part))
        return NULL;
    if (p->pages)
        return tarn__kv_pages_attend(p->pages, ctx->layer, part[0], part[1], part[2], &how);
    return p->cache ? tarn__kv_cache_rotate_and_attend(p->cache, ctx->layer, part[0], part[1], part[2], &how)
                    : attend_full(part, how.rope, p, &options);
}

tarn_tensor *tarn__attention_with(tarn_module *attention, tarn_tensor *x, const tarn__forward_ctx *p)
{
    tarn_tensor *y = attend(attention, x, p);
    return y ? tarn_forward(tarn__model_child(attention, TARN__ROLE_O), y) : NULL;
}

tarn_tensor *tarn__attention_forward(tarn_module *attention, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return tarn__attention_with(attention, x, &(tarn__forward_ctx){0});
}
