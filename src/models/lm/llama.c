/* llama.c: construction and initialization of models of the Llama family.
 *
 * Parameters are created one after another in a fixed order, so that a seed gives the same model with every
 * compiler. */
#include "models/lm/llama.h"

#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "core/tensor/random.h"
#include "models/gguf/gguf_arch.h"
#include "models/hf/weights.h"
#include "nn/module.h"

/* Standard deviation of the initial weights. */
#define INIT_STD 0.02 /* of the weights at the beginning */

/* State of one construction. */
typedef struct builder {
    const char *function;
    tarn_llama_config config;
    tarn__device_map map;
    tarn_device device; /* of the modules under construction */
    const tarn__model_source *source;
} builder;

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Initial values: normal, but norms 1 and biases 0. The source of a new model. */
static tarn_tensor *draw(void *ctx, const char *name, tarn_shape shape, tarn_device device)
{
    tarn_dtype dtype = ((const builder *)ctx)->config.dtype;
    if (shape.rank == 2)
        return tarn_normal(shape, 0, INIT_STD, dtype, device);
    return tarn__ends_with(name, ".bias") ? tarn_zeros(shape, dtype, device) : tarn_ones(shape, dtype, device);
}

/* The source of a model whose weights are loaded later. */
static tarn_tensor *leave_empty(void *ctx, const char *name, tarn_shape shape, tarn_device device)
{
    (void)name;
    return tarn_empty(shape, ((const builder *)ctx)->config.dtype, device);
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

typedef struct name {
    char text[96];
} name;

/* "PREFIX.PART"; "PART" for an empty prefix. */
static const char *join(name *to, const char *prefix, const char *part)
{
    snprintf(to->text, sizeof(to->text), "%s%s%s", prefix, prefix[0] ? "." : "", part);
    return to->text;
}

/* A module whose ctx is a copy of the configuration. */
static tarn_module *new_module(const builder *m, const char *kind, tarn_forward_fn forward)
{
    return tarn__module_new_with(m->function, kind, forward, &m->config, sizeof(m->config));
}

/* Adds the parameter PATH.PART to a module, and frees the module on failure. Quantized tensors become buffers. */
static tarn_module *with_parameter(const builder *m, tarn_module *module, const char *path, const char *part,
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

/* RMSNorm has a weight only. */
static tarn_module *make_norm(const builder *m, const char *path, int64_t size)
{
    return with_parameter(m, new_module(m, "rmsnorm", tarn__llama_norm_forward), path, "weight", TARN_SHAPE(size));
}

/* Weight [out, in], as in transformers. */
static tarn_module *make_linear(const builder *m, const char *path, int64_t in, int64_t out, bool has_bias)
{
    tarn_module *module =
        with_parameter(m, new_module(m, "linear", tarn__llama_linear_forward), path, "weight", TARN_SHAPE(out, in));
    if (module)
        module->linear = TARN__LINEAR_OUT_IN;
    return has_bias ? with_parameter(m, module, path, "bias", TARN_SHAPE(out)) : module;
}

/* Q, K, V and O, then the norms of queries and keys if the model has them. */
static tarn_module *make_attention(const builder *m, const char *path)
{
    static const char *const names[] = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"};
    const tarn_llama_config *c = &m->config;
    int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
    tarn_module *parts[6];
    name to;
    int count = c->qk_norm ? 6 : 4;
    for (int i = 0; i < count; i++) {
        const char *part = join(&to, path, names[i]);
        parts[i] = i >= TARN__LLAMA_Q_NORM ? make_norm(m, part, c->head_dim)
                   : i == TARN__LLAMA_O
                       ? make_linear(m, part, queries, c->hidden_size, false)
                       : make_linear(m, part, c->hidden_size, i == TARN__LLAMA_Q ? queries : keys, c->qkv_bias);
    }
    return tarn__with_children(new_module(m, "attention", tarn__llama_attention_forward), names, parts, count);
}

static tarn_module *make_mlp(const builder *m, const char *path)
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

static tarn_module *make_layer(const builder *m, int64_t layer)
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

/* Every layer is created on the device that the map has for it. */
static tarn_module *make_layers(const builder *m)
{
    size_t bytes = sizeof(tarn_module *) * (size_t)m->config.layers;
    tarn_module **layers = tarn__alloc(bytes), *all = NULL;
    for (int64_t i = 0; layers && i < m->config.layers; i++) {
        builder there = *m;
        there.device = tarn__device_of_layer(&m->map, i);
        layers[i] = make_layer(&there, i);
    }
    if (layers)
        all = tarn_sequential_from(layers, (int)m->config.layers); /* frees all of them if one failed */
    tarn__release(layers, bytes);
    return all;
}

static tarn_module *make_body(const builder *m)
{
    static const char *const names[] = {"embed_tokens", "layers", "norm"};
    tarn_shape embedding = TARN_SHAPE(m->config.vocab_size, m->config.hidden_size);
    tarn_module *tokens = new_module(m, "embedding", tarn__llama_embedding_forward);
    tokens = with_parameter(m, tokens, "model.embed_tokens", "weight", embedding);
    tarn_module *layers = make_layers(m);
    tarn_module *const parts[] = {tokens, layers, make_norm(m, "model.norm", m->config.hidden_size)};
    return tarn__with_children(new_module(m, "llama body", tarn__llama_body_forward), names, parts, 3);
}

/* Ties the head to the token embedding. Only now that the head is in the tree: the name of a shared tensor is that
 * of its first module. */
static bool tie_head(tarn_module *model)
{
    tarn_tensor *embedding =
        tarn__module_own(model->child[TARN__MODEL_BODY]->child[TARN__LLAMA_TOKEN_EMBEDDING], "weight");
    tarn_module *head = model->child[TARN__MODEL_HEAD];
    return tarn__is_float(embedding->view.dtype) ? tarn_module_add_parameter(head, "weight", embedding)
                                                 : tarn_module_add_buffer(head, "weight", embedding);
}

/* A tied head is created without a weight and tied once it is in the tree. */
static tarn_module *make_model(const builder *m)
{
    static const char *const names[] = {"model", "lm_head"};
    const tarn_llama_config *c = &m->config;
    tarn_module *body = make_body(m);
    tarn_module *head = c->tie_embeddings ? new_module(m, "linear", tarn__llama_linear_forward)
                                          : make_linear(m, "lm_head", c->hidden_size, c->vocab_size, false);
    tarn_module *const parts[] = {body, head};
    tarn_module *model = tarn__with_children(new_module(m, "llama", tarn__llama_model_forward), names, parts, 2);
    if (!model || !c->tie_embeddings || tie_head(model))
        return model;
    tarn_module_free(model);
    return NULL;
}

tarn_module *tarn__llama_make(const char *function, const tarn_llama_config *config, const tarn__device_map *map,
                              const tarn__model_source *source)
{
    builder m = {.function = function, .config = *config, .map = *map, .device = map->device};
    tarn__model_source empty = {leave_empty, &m};
    if (tarn_failed() || !tarn__llama_complete(function, &m.config) ||
        !tarn__device_map_check(function, map, m.config.layers))
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
    builder m = {.function = function, .config = own};
    tarn__rng_state callers = tarn__random_save();
    tarn_seed(seed);
    tarn_module *model =
        tarn__llama_make(function, &own, &(tarn__device_map){.device = device}, &(tarn__model_source){draw, &m});
    tarn__random_restore(&callers);
    return model;
}

/* ---- queries ------------------------------------------------------------------------------------------------------
 */

bool tarn_llama_config_of_sized(const tarn_module *model, tarn_llama_config *config, size_t config_size)
{
    const char *function = "llama_config_of";
    const tarn__arch *arch = tarn__arch_of(function, model);
    if (!arch)
        return false;
    if (arch != &tarn__llama_arch || !config)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           config ? "the model is none of the Llama family" : "the configuration is NULL");
    memset(config, 0, config_size);
    memcpy(config, model->ctx, config_size < sizeof(*config) ? config_size : sizeof(*config));
    return true;
}

/* Fills in tarn_model_info. The dtype is that of the norms: other weights may be quantized. */
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

/* Recomputation is read from the body; the model keeps a copy for tarn_llama_config_of(). There is no dropout. */
static void tune(tarn_module *model, double dropout, tarn_recompute recompute)
{
    (void)dropout;
    ((tarn_llama_config *)model->ctx)->recompute = recompute;
    ((tarn_llama_config *)model->child[TARN__MODEL_BODY]->ctx)->recompute = recompute;
}

static void set_embeddings(tarn_module *model, int64_t vocab_size, bool tie_embeddings)
{
    tarn_llama_config *const configs[] = {model->ctx, model->child[TARN__MODEL_BODY]->ctx};
    for (int i = 0; i < 2; i++) {
        configs[i]->vocab_size = vocab_size;
        configs[i]->tie_embeddings = tie_embeddings;
    }
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
    .forward_cached = tarn__llama_forward_cached,
    .hidden = tarn__llama_documents_forward,
    .complete = tarn__llama_complete_sizes,
    .parameter_count = tarn__llama_parameter_count,
    .create = tarn__llama_create,
    .tune = tune,
    .set_embeddings = set_embeddings,
    .sizes = sizes,
};
