/* gpt2.c: construction and initialization of GPT-2.
 *
 * Parameters are created one after another in a fixed order, so that a seed gives the same model with every
 * compiler. */
#include "models/lm/gpt2.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "core/tensor/random.h"
#include "models/gguf/gguf_arch.h"
#include "nn/module.h"

/* Standard deviation of the initial weights. */
#define INIT_STD 0.02 /* of the weights at the beginning */

/* ---- modules ----------------------------------------------------------------------------------------------------- */

/* State of one construction. */
typedef struct builder {
    const char *function;
    tarn_gpt2_config config;
    tarn__device_map map;
    tarn_device device; /* of the modules under construction */
    bool draw;
    const tarn__model_source *source; /* NULL: initialized, or uninitialized */
} builder;

typedef struct name {
    char text[96];
} name;

/* "PATH.PART" */
static const char *join(name *to, const char *path, const char *part)
{
    snprintf(to->text, sizeof(to->text), "%s.%s", path, part);
    return to->text;
}

/* A module whose ctx is a copy of the configuration. */
static tarn_module *new_module(const builder *m, const char *kind, tarn_forward_fn forward)
{
    return tarn__module_new_with(m->function, kind, forward, &m->config, sizeof(m->config));
}

/* The parameter PATH.PART from the source. */
static tarn_tensor *from_source(const builder *m, const char *path, const char *part, tarn_shape shape)
{
    name full;
    return m->source->give(m->source->ctx, join(&full, path, part), shape, m->device);
}

/* Adds the parameter "weight" to a module, and frees the module on failure. */
static tarn_module *with_weight(const builder *m, tarn_module *module, const char *path, int64_t rows, int64_t columns,
                                double std)
{
    tarn_shape shape = TARN_SHAPE(rows, columns);
    tarn_tensor *values = !module     ? NULL
                          : m->source ? from_source(m, path, "weight", shape)
                          : m->draw   ? tarn_normal(shape, 0, std, m->config.dtype, m->device)
                                      : tarn_empty(shape, m->config.dtype, m->device);
    if (values && (tarn__is_float(values->view.dtype) ? tarn_module_add_parameter(module, "weight", values)
                                                      : tarn_module_add_buffer(module, "weight", values)))
        return module;
    tarn_module_free(module);
    return NULL;
}

/* Token or position embedding, [rows, hidden_size]. */
static tarn_module *make_embedding(const builder *m, const char *path, int64_t rows)
{
    return with_weight(m, new_module(m, "embedding", tarn__gpt2_embedding_forward), path, rows, m->config.hidden_size,
                       INIT_STD);
}

/* LayerNorm creates its own parameters; values of a source are copied into them. */
static tarn_module *make_norm(const builder *m, const char *path)
{
    static const char *const parts[] = {"weight", "bias"};
    const tarn_norm_options options = {.epsilon = m->config.epsilon, .dtype = m->config.dtype};
    tarn_module *norm = tarn_layernorm_layer_with(m->config.hidden_size, m->device, &options);
    bool good = norm != NULL;
    tarn_no_grad_open(); /* writes to parameters in place */
    for (int i = 0; good && m->source && i < 2; i++) {
        tarn_tensor *values = from_source(m, path, parts[i], TARN_SHAPE(m->config.hidden_size));
        good = values && tarn_copy(tarn__module_own(norm, parts[i]), values);
        tarn_free(values);
    }
    tarn_no_grad_close();
    if (good)
        return norm;
    tarn_module_free(norm);
    return NULL;
}

/* Biases start at 0. */
static bool add_bias(const builder *m, tarn_module *module, const char *path, int64_t out)
{
    tarn_shape shape = TARN_SHAPE(out);
    tarn_tensor *bias = m->source ? from_source(m, path, "bias", shape) : tarn_zeros(shape, m->config.dtype, m->device);
    return bias && tarn_module_add_parameter(module, "bias", bias);
}

/* A linear layer with weight [in, out], transformers' Conv1D; quantized it is [out, in]. */
static tarn_module *make_projection(const builder *m, const char *path, int64_t in, int64_t out, double std)
{
    tarn_module *module =
        with_weight(m, new_module(m, "projection", tarn__gpt2_projection_forward), path, in, out, std);
    if (module && add_bias(m, module, path, out)) {
        module->linear =
            tarn__is_float(tarn__module_own(module, "weight")->view.dtype) ? TARN__LINEAR_IN_OUT : TARN__LINEAR_OUT_IN;
        return module;
    }
    tarn_module_free(module);
    return NULL;
}

/* Attention or MLP of a layer: a projection in, one out. The output projections start smaller: 2 · layers of them
 * add up in the residual stream, whose variance would grow with their number. */
static tarn_module *make_part(const builder *m, const char *path, const char *kind, tarn_forward_fn forward,
                              const char *first_name, int64_t out, int64_t back)
{
    const char *const names[] = {first_name, "c_proj"};
    name to;

    double added = INIT_STD / sqrt(2 * (double)m->config.layers);
    tarn_module *first = make_projection(m, join(&to, path, names[0]), m->config.hidden_size, out, INIT_STD);
    tarn_module *second = make_projection(m, join(&to, path, names[1]), back, m->config.hidden_size, added);
    return tarn__with_children(new_module(m, kind, forward), names, (tarn_module *const[]){first, second}, 2);
}

/* Layer number `layer`: attention and MLP before the norms, in the order of initialization. */
static tarn_module *make_layer(const builder *m, int64_t layer)
{
    static const char *const names[] = {"ln_1", "attn", "ln_2", "mlp"};
    const tarn_gpt2_config *c = &m->config;
    char path[48];
    name to;
    snprintf(path, sizeof(path), "transformer.h.%lld", (long long)layer);
    tarn_module *attention = make_part(m, join(&to, path, names[1]), "attention", tarn__gpt2_attention_forward,
                                       "c_attn", 3 * c->hidden_size, c->hidden_size);
    tarn_module *mlp =
        make_part(m, join(&to, path, names[3]), "mlp", tarn__gpt2_mlp_forward, "c_fc", c->ffn_size, c->ffn_size);
    tarn_module *first = make_norm(m, join(&to, path, names[0]));
    tarn_module *const parts[] = {first, attention, make_norm(m, join(&to, path, names[2])), mlp};
    return tarn__with_children(new_module(m, "block", tarn__gpt2_layer_forward), names, parts, 4);
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
    static const char *const names[] = {"wte", "wpe", "h", "ln_f"};
    tarn_module *tokens = make_embedding(m, "transformer.wte", m->config.vocab_size),
                *positions = make_embedding(m, "transformer.wpe", m->config.context);
    tarn_module *layers = make_layers(m);
    tarn_module *const parts[] = {tokens, positions, layers, make_norm(m, "transformer.ln_f")};
    return tarn__with_children(new_module(m, "gpt2 body", tarn__gpt2_body_forward), names, parts, 4);
}

/* Ties the head to the token embedding. Only now that the head is in the tree: the name of a shared parameter is
 * that of its first module. */
static bool tie_head(tarn_module *model)
{
    tarn_tensor *embedding =
        tarn__module_own(model->child[TARN__MODEL_BODY]->child[TARN__GPT2_TOKEN_EMBEDDING], "weight");
    tarn_module *head = model->child[TARN__MODEL_HEAD];
    return tarn__is_float(embedding->view.dtype) ? tarn_module_add_parameter(head, "weight", embedding)
                                                 : tarn_module_add_buffer(head, "weight", embedding);
}

/* An untied head gets its own weight; a tied one is tied once it is in the tree. */
static tarn_module *make_model(const builder *m)
{
    static const char *const names[] = {"transformer", "lm_head"};
    const tarn_gpt2_config *c = &m->config;
    tarn_module *body = make_body(m), *head = new_module(m, "head", tarn__gpt2_head_forward);
    if (c->untie_embeddings)
        head = with_weight(m, head, "lm_head", c->vocab_size, c->hidden_size, INIT_STD);
    tarn_module *model = tarn__with_children(new_module(m, "gpt2", tarn__gpt2_model_forward), names,
                                             (tarn_module *const[]){body, head}, 2);
    if (!model || c->untie_embeddings || tie_head(model))
        return model;
    tarn_module_free(model);
    return NULL;
}

tarn_module *tarn__gpt2_make(const char *function, const tarn_gpt2_config *config, const tarn__device_map *map,
                             bool draw, const tarn__model_source *source)
{
    builder m = {function, *config, *map, map->device, draw, source};
    if (tarn_failed() || !tarn__gpt2_complete(function, &m.config) ||
        !tarn__device_map_check(function, map, m.config.layers))
        return NULL;
    tarn_module *model = make_model(&m);
    if (!model)
        tarn__raise_within(function);
    return model;
}

tarn_module *tarn_model_gpt2_sized(const tarn_gpt2_config *config, size_t config_size, tarn_device device,
                                   uint64_t seed)
{
    tarn_gpt2_config own = {0};
    if (tarn_failed())
        return NULL;
    if (!config) {
        tarn__raise(TARN_ERROR_ARGUMENT, "model_gpt2: the configuration is NULL");
        return NULL;
    }
    memcpy(&own, config, config_size < sizeof(own) ? config_size : sizeof(own));
    tarn__rng_state callers = tarn__random_save();
    tarn_seed(seed);
    tarn_module *model = tarn__gpt2_make("model_gpt2", &own, &(tarn__device_map){.device = device}, true, NULL);
    tarn__random_restore(&callers);
    return model;
}

/* ---- queries ------------------------------------------------------------------------------------------------------
 */

bool tarn_gpt2_config_of_sized(const tarn_module *model, tarn_gpt2_config *config, size_t config_size)
{
    const tarn__arch *arch = tarn__arch_of("gpt2_config_of", model);
    if (!arch)
        return false;
    if (arch != &tarn__gpt2_arch || !config)
        return tarn__raise(TARN_ERROR_ARGUMENT, "gpt2_config_of: %s",
                           config ? "the model is no GPT-2" : "the configuration is NULL");
    memset(config, 0, config_size);
    memcpy(config, model->ctx, config_size < sizeof(*config) ? config_size : sizeof(*config));
    return true;
}

/* Fills in tarn_model_info. The dtype is that of the norms: other weights may be quantized. */
static void info(const tarn_module *model, tarn__model_info *f)
{
    const tarn_gpt2_config *c = model->ctx;
    const tarn_tensor *weight = tarn__module_own(model->child[TARN__MODEL_BODY]->child[TARN__GPT2_NORM], "weight");
    *f = (tarn__model_info){.type = "gpt2",
                            .vocab_size = c->vocab_size,
                            .context = c->context,
                            .layers = c->layers,
                            .hidden_size = c->hidden_size,
                            .heads = c->heads,
                            .kv_heads = c->heads,
                            .head_dim = c->hidden_size / c->heads,
                            .dtype = weight->view.dtype,
                            .device = tarn__device(weight),
                            .device_layers = tarn__device_layers(model),
                            .has_bos = c->has_eos, /* GPT-2 uses EOS as BOS */
                            .bos = c->eos,
                            .eos_count = c->has_eos,
                            .eos = {c->eos}};
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* Sets dropout and recomputation of all modules. Norms have other settings, recognized by their size. */
static void tune(tarn_module *module, double dropout, tarn_recompute recompute)
{
    tarn_gpt2_config *c = module->settings_bytes == sizeof(*c) ? module->ctx : NULL;
    if (c) {
        c->recompute = recompute;
        c->dropout = dropout;
        c->attention_dropout = c->embedding_dropout = tarn__gpt2_dropout(0, dropout);
    }
    for (int i = 0; i < module->children; i++)
        tune(module->child[i], dropout, recompute);
}

static void set_embeddings(tarn_module *model, int64_t vocab_size, bool tie_embeddings)
{
    tarn_gpt2_config *const configs[] = {model->ctx, model->child[TARN__MODEL_BODY]->ctx};
    for (int i = 0; i < 2; i++) {
        configs[i]->vocab_size = vocab_size;
        configs[i]->untie_embeddings = !tie_embeddings;
    }
}

static void sizes(const tarn_module *model, tarn__model_sizes *s)
{
    const tarn_gpt2_config *c = model->ctx;
    *s = (tarn__model_sizes){.vocab_size = c->vocab_size,
                             .context = c->context,
                             .layers = c->layers,
                             .heads = c->heads,
                             .kv_heads = c->heads,
                             .hidden_size = c->hidden_size,
                             .ffn_size = c->ffn_size};
}

static const char *const types[] = {"gpt2", NULL};
static const char *const names[] = {"gpt2", "gpt2-124m", "gpt2-350m", "gpt2-774m", "gpt2-1.5b", NULL};

const tarn__arch tarn__gpt2_arch = {
    .types = types,
    .names = names,
    .forward = tarn__gpt2_model_forward,
    .linear = TARN__LINEAR_IN_OUT,
    .gguf = &tarn__gpt2_gguf,
    .make = tarn__gpt2_from_config,
    .load = tarn__gpt2_load,
    .ignores = tarn__gpt2_ignores,
    .describe = tarn__gpt2_describe,
    .info = info,
    .forward_cached = tarn__gpt2_forward_cached,
    .hidden = tarn__gpt2_documents_forward,
    .complete = tarn__gpt2_complete_sizes,
    .parameter_count = tarn__gpt2_parameter_count,
    .create = tarn__gpt2_create,
    .tune = tune,
    .set_embeddings = set_embeddings,
    .sizes = sizes,
    .has_dropout = true,
};
