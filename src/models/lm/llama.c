/* llama.c: models of the Llama family put together, and the values their parameters begin with. */
#include "models/lm/llama.h"

#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "core/tensor/random.h"
#include "models/gguf/gguf_arch.h"
#include "models/hf/weights.h"
#include "nn/module.h"

#define DEVIATION 0.02 /* of the weights at the beginning */

typedef struct making {
    const char *function;
    tarn_llama_config config;
    tarn__device_map where;
    tarn_device device; /* of what is being made */
    const tarn__model_source *source;
} making;

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* First values: normal, but for norms (1) and biases (0). The source of a new model. */
static tarn_tensor *draw(void *ctx, const char *name, tarn_shape shape, tarn_device device)
{
    tarn_dtype dtype = ((const making *)ctx)->config.dtype;
    if (shape.rank == 2)
        return tarn_normal(shape, 0, DEVIATION, dtype, device);
    return tarn__ends_with(name, ".bias") ? tarn_zeros(shape, dtype, device) : tarn_ones(shape, dtype, device);
}

/* No values: they will be read from a file. */
static tarn_tensor *leave_empty(void *ctx, const char *name, tarn_shape shape, tarn_device device)
{
    (void)name;
    return tarn_empty(shape, ((const making *)ctx)->config.dtype, device);
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

typedef struct name {
    char text[96];
} name;

/* "PREFIX.PART"; of a prefix without text "PART". */
static const char *join(name *to, const char *prefix, const char *part)
{
    snprintf(to->text, sizeof(to->text), "%s%s%s", prefix, prefix[0] ? "." : "", part);
    return to->text;
}

static tarn_module *new_module(const making *m, const char *kind, tarn_forward_fn forward)
{
    return tarn__module_new_with(m->function, kind, forward, &m->config, sizeof(m->config));
}

/* Gives a module the parameter PATH.PART, and frees the module where that fails. */
static tarn_module *with_parameter(const making *m, tarn_module *module, const char *path, const char *part,
                                   tarn_shape shape)
{
    name full;
    tarn_tensor *values = module ? m->source->give(m->source->ctx, join(&full, path, part), shape, m->device) : NULL;
    if (values && (tarn__is_float(values->view.dtype) ? tarn_module_add_parameter(module, part, values)
                                                      : tarn_module_add_buffer(module, part, values)))
        return module;
    tarn_module_free(module);
    return NULL;
}

static tarn_module *make_norm(const making *m, const char *path, int64_t size)
{
    return with_parameter(m, new_module(m, "rmsnorm", tarn__llama_norm_forward), path, "weight", TARN_SHAPE(size));
}

static tarn_module *make_linear(const making *m, const char *path, int64_t in, int64_t out, bool has_bias)
{
    tarn_module *module =
        with_parameter(m, new_module(m, "linear", tarn__llama_linear_forward), path, "weight", TARN_SHAPE(out, in));
    if (module)
        module->linear = TARN__LINEAR_OUT_IN;
    return has_bias ? with_parameter(m, module, path, "bias", TARN_SHAPE(out)) : module;
}

static tarn_module *make_attention(const making *m, const char *path)
{
    static const char *const names[] = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"};
    const tarn_llama_config *c = &m->config;
    int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
    tarn_module *parts[6];
    name to;
    int count = c->qk_norm ? 6 : 4;
    for (int i = 0; i < count; i++) { /* one after the other, so that a seed means the same with every compiler */
        const char *part = join(&to, path, names[i]);
        parts[i] = i >= TARN__LLAMA_Q_NORM ? make_norm(m, part, c->head_dim)
                   : i == TARN__LLAMA_O
                       ? make_linear(m, part, queries, c->hidden_size, false)
                       : make_linear(m, part, c->hidden_size, i == TARN__LLAMA_Q ? queries : keys, c->qkv_bias);
    }
    return tarn__with_children(new_module(m, "attention", tarn__llama_attention_forward), names, parts, count);
}

static tarn_module *make_mlp(const making *m, const char *path)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    const tarn_llama_config *c = &m->config;
    tarn_module *parts[3];
    name to;
    for (int i = 0; i < 3; i++) {
        bool is_down = i == TARN__LLAMA_DOWN;
        parts[i] = make_linear(m, join(&to, path, names[i]), is_down ? c->ffn_size : c->hidden_size,
                               is_down ? c->hidden_size : c->ffn_size, false);
    }
    return tarn__with_children(new_module(m, "mlp", tarn__llama_mlp_forward), names, parts, 3);
}

static tarn_module *make_block(const making *m, int64_t layer)
{
    static const char *const names[] = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"};
    char path[48];
    name to;
    snprintf(path, sizeof(path), "model.layers.%lld", (long long)layer);
    tarn_module *attention = make_attention(m, join(&to, path, names[0]));
    tarn_module *mlp = make_mlp(m, join(&to, path, names[1]));
    tarn_module *first = make_norm(m, join(&to, path, names[2]), m->config.hidden_size);
    tarn_module *const parts[] = {attention, mlp, first,
                                  make_norm(m, join(&to, path, names[3]), m->config.hidden_size)};
    return tarn__with_children(new_module(m, "block", tarn__llama_layer_forward), names, parts, 4);
}

static tarn_module *make_blocks(const making *m)
{
    size_t bytes = sizeof(tarn_module *) * (size_t)m->config.layers;
    tarn_module **blocks = tarn__alloc(bytes), *all = NULL;
    for (int64_t i = 0; blocks && i < m->config.layers; i++) {
        making there = *m;
        there.device = tarn__device_of_layer(&m->where, i);
        blocks[i] = make_block(&there, i);
    }
    if (blocks)
        all = tarn_sequential_from(blocks, (int)m->config.layers); /* which frees them where one failed */
    tarn__release(blocks, bytes);
    return all;
}

static tarn_module *make_body(const making *m)
{
    static const char *const names[] = {"embed_tokens", "layers", "norm"};
    tarn_shape table = TARN_SHAPE(m->config.vocab_size, m->config.hidden_size);
    tarn_module *tokens = new_module(m, "embedding", tarn__llama_embedding_forward);
    tokens = with_parameter(m, tokens, "model.embed_tokens", "weight", table);
    tarn_module *blocks = make_blocks(m);
    tarn_module *const parts[] = {tokens, blocks, make_norm(m, "model.norm", m->config.hidden_size)};
    return tarn__with_children(new_module(m, "llama body", tarn__llama_body_forward), names, parts, 3);
}

/* A head that shares the tokens' table gets it when it has its place in the tree: the name of a shared tensor is that
 * of its first place. */
static bool share_table(tarn_module *model)
{
    tarn_tensor *table = tarn__module_own(model->child[TARN__MODEL_BODY]->child[TARN__LLAMA_TOKEN_EMBEDDING], "weight");
    tarn_module *head = model->child[TARN__MODEL_HEAD];
    return tarn__is_float(table->view.dtype) ? tarn_module_add_parameter(head, "weight", table)
                                             : tarn_module_add_buffer(head, "weight", table);
}

static tarn_module *make_model(const making *m)
{
    static const char *const names[] = {"model", "lm_head"};
    const tarn_llama_config *c = &m->config;
    tarn_module *body = make_body(m);
    tarn_module *head = c->tie_embeddings ? new_module(m, "linear", tarn__llama_linear_forward)
                                          : make_linear(m, "lm_head", c->hidden_size, c->vocab_size, false);
    tarn_module *const parts[] = {body, head};
    tarn_module *model = tarn__with_children(new_module(m, "llama", tarn__llama_model_forward), names, parts, 2);
    if (!model || !c->tie_embeddings || share_table(model))
        return model;
    tarn_module_free(model);
    return NULL;
}

tarn_module *tarn__llama_make(const char *function, const tarn_llama_config *config, const tarn__device_map *where,
                              const tarn__model_source *source)
{
    making m = {.function = function, .config = *config, .where = *where, .device = where->device};
    tarn__model_source empty = {leave_empty, &m};
    if (tarn_failed() || !tarn__llama_complete(function, &m.config) ||
        !tarn__device_map_check(function, where, m.config.layers))
        return NULL;
    m.source = source ? source : &empty;
    tarn_module *model = make_model(&m);
    if (!model)
        tarn__raise_within(function);
    return model;
}

tarn_module *tarn_model_llama_sized(const tarn_llama_config *config, size_t config_size, tarn_device device,
                                    uint64_t seed)
{
    const char *function = "model_llama";
    tarn_llama_config own = {0};
    if (tarn_failed())
        return NULL;
    if (!config) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the configuration is NULL", function);
        return NULL;
    }
    memcpy(&own, config, config_size < sizeof(own) ? config_size : sizeof(own));
    making m = {.function = function, .config = own};
    tarn__rng_state callers = tarn__random_save();
    tarn_seed(seed);
    tarn_module *model =
        tarn__llama_make(function, &own, &(tarn__device_map){.device = device}, &(tarn__model_source){draw, &m});
    tarn__random_restore(&callers);
    return model;
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

bool tarn_llama_config_of_sized(const tarn_module *model, tarn_llama_config *config, size_t config_size)
{
    const char *function = "llama_config_of";
    const tarn__arch *kind = tarn__arch_of(function, model);
    if (!kind)
        return false;
    if (kind != &tarn__llama_arch || !config)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           config ? "the model is none of the Llama family" : "the configuration is NULL");
    memset(config, 0, config_size);
    memcpy(config, model->ctx, config_size < sizeof(*config) ? config_size : sizeof(*config));
    return true;
}

static void info(const tarn_module *model, tarn__model_info *f)
{
    const tarn_llama_config *c = model->ctx;
    const tarn_tensor *weight = tarn__module_own(model->child[TARN__MODEL_BODY]->child[TARN__LLAMA_NORM], "weight");
    *f = (tarn__model_info){.type = c->arch,
                            .vocab_size = c->vocab_size,
                            .context = c->context,
                            .layers = c->layers,
                            .hidden_size = c->hidden_size,
                            .heads = c->heads,
                            .kv_heads = c->kv_heads,
                            .head_dim = c->head_dim,
                            .dtype = weight->view.dtype,
                            .device = tarn__device(weight),
                            .device_layers = tarn__device_layers(model),
                            .has_bos = c->has_bos,
                            .bos = c->bos,
                            .eos_count = c->eos_count};
    memcpy(f->eos, c->eos, sizeof(f->eos));
}

/* The body alone asks what is to be made again; the model says it of itself. */
static void tune(tarn_module *model, double dropout, tarn_recompute recompute)
{
    (void)dropout;
    ((tarn_llama_config *)model->ctx)->recompute = recompute;
    ((tarn_llama_config *)model->child[TARN__MODEL_BODY]->ctx)->recompute = recompute;
}

static void sizes(const tarn_module *model, tarn__model_sizes *s)
{
    const tarn_llama_config *c = model->ctx;
    *s = (tarn__model_sizes){.vocab_size = c->vocab_size,
                             .context = c->context,
                             .layers = c->layers,
                             .heads = c->heads,
                             .kv_heads = c->kv_heads,
                             .hidden_size = c->hidden_size,
                             .ffn_size = c->ffn_size};
}

const tarn__arch tarn__llama_arch = {
    .types = tarn__llama_types,
    .names = tarn__llama_names,
    .forward = tarn__llama_model_forward,
    .linear = TARN__LINEAR_OUT_IN,
    .gguf = &tarn__llama_gguf,
    .make = tarn__llama_from_config,
    .load = tarn__llama_load,
    .ignores = tarn__llama_ignores,
    .describe = tarn__llama_describe,
    .info = info,
    .step = tarn__llama_forward_cached,
    .hidden = tarn__llama_documents_forward,
    .complete = tarn__llama_complete_sizes,
    .parameter_count = tarn__llama_parameter_count,
    .create = tarn__llama_create,
    .tune = tune,
    .sizes = sizes,
};
