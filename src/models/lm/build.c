/* build.c: construction and initialization of language models.
 *
 * A walk over the name tables of the architecture: their order is that of transformers, and the order in which
 * parameters are created, one after another, so that a seed gives the same model with every compiler. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "core/tensor/random.h"
#include "models/lm/arch.h"

#define INIT_STD 0.02  /* standard deviation of the initial weights */
#define MAX_CHILDREN 8 /* of a layer, attention or MLP */

/* State of one construction. */
typedef struct builder {
    const char *function;
    tarn__model_ctx ctx;
    tarn__device_map map;
    tarn_device device; /* of the modules under construction */
    bool draw;
    const tarn__model_source *source; /* NULL: initialized, or uninitialized */
} builder;

/* ---- parameters -------------------------------------------------------------------------------------------------- */

typedef struct name {
    char text[96];
} name;

/* "PATH.PART" */
static const char *join(name *to, const char *path, const char *part)
{
    snprintf(to->text, sizeof(to->text), "%s.%s", path, part);
    return to->text;
}

/* Initial value of the elements of a parameter with one axis. */
typedef enum first_value { ZEROS, ONES } first_value;

/* Adds the parameter PATH.PART to a module, and frees the module on failure. Quantized tensors become buffers. */
static tarn_module *with(const builder *m, tarn_module *module, const char *path, const char *part, tarn_shape shape,
                         double std, first_value first)
{
    name full;
    tarn_dtype dtype = m->ctx.config.dtype;
    tarn_tensor *values = !module           ? NULL
                          : m->source       ? m->source->give(m->source->ctx, join(&full, path, part), shape, m->device)
                          : !m->draw        ? tarn_empty(shape, dtype, m->device)
                          : shape.rank == 2 ? tarn_normal(shape, 0, std, dtype, m->device)
                          : first == ONES   ? tarn_ones(shape, dtype, m->device)
                                            : tarn_zeros(shape, dtype, m->device);
    if (values && (tarn__is_float(values->view.dtype) ? tarn_module_add_parameter(module, part, values)
                                                      : tarn_module_add_buffer(module, part, values)))
        return module;
    tarn_module_free(module);
    return NULL;
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

/* A module whose ctx is a copy of the builder's, with the children's indices by role. */
static tarn_module *new_module(const builder *m, const char *kind, tarn_forward_fn forward, const int8_t *child)
{
    tarn__model_ctx ctx = m->ctx;
    memcpy(ctx.child, child, sizeof(ctx.child));
    return tarn__module_new_with(m->function, kind, forward, &ctx, sizeof(ctx));
}

/* A weight of 0 means the identity where 1 is added to it. */
static tarn_module *make_norm(const builder *m, const char *path, tarn__role role, int64_t size)
{
    const tarn__arch *arch = m->ctx.arch;
    const tarn__norm_ctx ctx = {arch->norm, m->ctx.config.epsilon};
    tarn_module *norm = tarn__module_new_with(m->function, arch->norm == TARN__NORM_LAYER ? "layernorm" : "rmsnorm",
                                              tarn__norm_forward, &ctx, sizeof(ctx));
    norm = with(m, norm, path, "weight", TARN_SHAPE(size), 0, arch->norm == TARN__NORM_RMS_PLUS_1 ? ZEROS : ONES);
    return tarn__model_has_bias(&m->ctx.config, role) ? with(m, norm, path, "bias", TARN_SHAPE(size), 0, ZEROS) : norm;
}

/* A linear layer. Its weight is [out, in], but [in, out] in transformers' Conv1D, unless quantized. */
static tarn_module *make_linear(const builder *m, const char *path, tarn__role role, int64_t in, int64_t out)
{
    bool is_in_out = m->ctx.arch->linear == TARN__LINEAR_IN_OUT;
    /* Output projections of a GPT-2 start smaller: 2 · layers of them add up in the residual stream, whose variance
     * would grow with their number. */
    bool is_output = role == TARN__ROLE_O || role == TARN__ROLE_DOWN;
    double std = is_in_out && is_output ? INIT_STD / sqrt(2 * (double)m->ctx.config.layers) : INIT_STD;
    tarn_module *module = tarn__module_new(m->function, "linear", tarn__linear_forward, NULL, NULL);
    module = with(m, module, path, "weight", is_in_out ? TARN_SHAPE(in, out) : TARN_SHAPE(out, in), std, ZEROS);
    if (module)
        module->linear = is_in_out && tarn__is_float(tarn__module_own(module, "weight")->view.dtype)
                             ? TARN__LINEAR_IN_OUT
                             : TARN__LINEAR_OUT_IN;
    return tarn__model_has_bias(&m->ctx.config, role) ? with(m, module, path, "bias", TARN_SHAPE(out), 0, ZEROS)
                                                      : module;
}

/* A norm or linear layer inside a layer, by its role. */
static tarn_module *make_leaf(const builder *m, const char *path, tarn__role role)
{
    const tarn_lm_config *c = &m->ctx.config;
    int64_t hidden = c->hidden_size, ffn = c->ffn_size, queries = c->heads * c->head_dim,
            keys = c->kv_heads * c->head_dim;
    bool is_full = m->ctx.arch->qk_norm == TARN__QK_NORM_FULL;
    switch (role) {
    case TARN__ROLE_Q: return make_linear(m, path, role, hidden, queries);
    case TARN__ROLE_K:
    case TARN__ROLE_V: return make_linear(m, path, role, hidden, keys);
    case TARN__ROLE_QKV: return make_linear(m, path, role, hidden, queries + 2 * keys);
    case TARN__ROLE_O: return make_linear(m, path, role, queries, hidden);
    case TARN__ROLE_Q_NORM: return make_norm(m, path, role, is_full ? queries : c->head_dim);
    case TARN__ROLE_K_NORM: return make_norm(m, path, role, is_full ? keys : c->head_dim);
    case TARN__ROLE_GATE:
    case TARN__ROLE_UP: return make_linear(m, path, role, hidden, ffn);
    case TARN__ROLE_GATE_UP: return make_linear(m, path, role, hidden, 2 * ffn);
    case TARN__ROLE_DOWN: return make_linear(m, path, role, ffn, hidden);
    default: return make_norm(m, path, role, hidden);
    }
}

/* Children under construction. */
typedef struct parts {
    const char *names[MAX_CHILDREN];
    tarn_module *modules[MAX_CHILDREN];
    int8_t child[TARN__ROLE_COUNT];
    int count;
} parts;

static void begin_parts(parts *p)
{
    p->count = 0;
    memset(p->child, -1, sizeof(p->child));
}

static void add_part(parts *p, tarn__role role, const char *part, tarn_module *module)
{
    p->child[role] = (int8_t)p->count;
    p->names[p->count] = part;
    p->modules[p->count++] = module;
}

static tarn_module *finish(const builder *m, const parts *p, const char *kind, tarn_forward_fn forward)
{
    return tarn__with_children(new_module(m, kind, forward, p->child), p->names, p->modules, p->count);
}

/* Length of a row's group, "self_attn" in "self_attn.q_proj"; 0: none. */
static size_t group_length(const tarn__module_name *row)
{
    const char *dot = strchr(row->folder, '.');
    return dot ? (size_t)(dot - row->folder) : 0;
}

static bool is_in_group(const tarn__module_name *row, const char *group, size_t length)
{
    return row->folder && group_length(row) == length && strncmp(row->folder, group, length) == 0;
}

/* Attention or MLP: the adjacent rows of its group. Returns the row after them. */
static const tarn__module_name *make_group(const builder *m, const tarn__module_name *row, const char *path,
                                           parts *layer, name *group_name)
{
    parts p;
    name to;
    size_t length = group_length(row);
    const char *group = row->folder;
    bool is_attention = row->role >= TARN__ROLE_Q && row->role <= TARN__ROLE_K_NORM;
    begin_parts(&p);
    for (; is_in_group(row, group, length); row++)
        if (tarn__model_has(&m->ctx.config, row->role))
            add_part(&p, row->role, row->folder + length + 1, make_leaf(m, join(&to, path, row->folder), row->role));
    snprintf(group_name->text, sizeof(group_name->text), "%.*s", (int)length, group);
    add_part(layer, is_attention ? TARN__ROLE_ATTENTION : TARN__ROLE_MLP, group_name->text,
             is_attention ? finish(m, &p, "attention", tarn__attention_forward)
                          : finish(m, &p, "mlp", tarn__mlp_forward));
    return row;
}

static tarn_module *make_layer(builder *m, int64_t layer)
{
    const tarn__model_names *names = m->ctx.arch->names;
    char path[64];
    name to, groups[2];
    int group_count = 0;
    parts p;
    snprintf(path, sizeof(path), "%s.%s.%lld", names->body, names->layers, (long long)layer);
    m->ctx.layer = layer;
    m->device = tarn__device_of_layer(&m->map, layer);
    begin_parts(&p);
    for (const tarn__module_name *row = names->layer; row->folder;) {
        if (group_length(row)) {
            row = make_group(m, row, path, &p, &groups[group_count++]);
            continue;
        }
        if (tarn__model_has(&m->ctx.config, row->role))
            add_part(&p, row->role, row->folder, make_leaf(m, join(&to, path, row->folder), row->role));
        row++;
    }
    return finish(m, &p, "block", tarn__layer_forward);
}

/* Every layer is created on the device that the map has for it. */
static tarn_module *make_layers(const builder *m)
{
    int64_t count = m->ctx.config.layers;
    size_t bytes = sizeof(tarn_module *) * (size_t)count;
    tarn_module **layers = tarn__alloc(bytes), *all = NULL;
    for (int64_t i = 0; layers && i < count; i++) {
        builder there = *m;
        layers[i] = make_layer(&there, i);
    }
    if (layers)
        all = tarn_sequential_from(layers, (int)count); /* frees all of them if one failed */
    tarn__release(layers, bytes);
    return all;
}

/* Token or position embedding, [rows, hidden_size]. */
static tarn_module *make_embedding(const builder *m, const char *path, int64_t rows)
{
    tarn_module *module = tarn__module_new_with(m->function, "embedding", tarn__token_embedding_forward, &m->ctx.config,
                                                sizeof(m->ctx.config));
    return with(m, module, path, "weight", TARN_SHAPE(rows, m->ctx.config.hidden_size), INIT_STD, ZEROS);
}

/* The layers stand before the last norm. */
static tarn_module *make_body(const builder *m)
{
    const tarn__model_names *names = m->ctx.arch->names;
    const tarn_lm_config *c = &m->ctx.config;
    name to;
    parts p;
    begin_parts(&p);
    for (const tarn__module_name *row = names->top; row->folder; row++) {
        const char *path = join(&to, names->body, row->folder);
        if (row->role == TARN__ROLE_NORM) {
            add_part(&p, TARN__ROLE_LAYERS, names->layers, make_layers(m));
            add_part(&p, row->role, row->folder, make_norm(m, path, row->role, c->hidden_size));
        } else {
            add_part(&p, row->role, row->folder,
                     make_embedding(m, path, row->role == TARN__ROLE_TOKENS ? c->vocab_size : c->context));
        }
    }
    return finish(m, &p, "body", tarn__body_forward);
}

/* Ties the head to the token embedding. Only now that the head is in the tree: the name of a shared tensor is that
 * of its first module. */
static bool tie_head(tarn_module *model)
{
    tarn_module *head = model->child[TARN__MODEL_HEAD];
    tarn_tensor *embedding =
        tarn__module_own(tarn__model_child(model->child[TARN__MODEL_BODY], TARN__ROLE_TOKENS), "weight");
    return tarn__is_float(embedding->view.dtype) ? tarn_module_add_parameter(head, "weight", embedding)
                                                 : tarn_module_add_buffer(head, "weight", embedding);
}

/* A tied head is created without a weight and tied once it is in the tree. */
static tarn_module *make_model(const builder *m)
{
    const tarn__model_names *names = m->ctx.arch->names;
    const tarn_lm_config *c = &m->ctx.config;
    parts p;
    begin_parts(&p);
    tarn_module *body = make_body(m), *head = tarn__module_new(m->function, "linear", tarn__linear_forward, NULL, NULL);
    if (head && !c->tie_embeddings) {
        head = with(m, head, names->head, "weight", TARN_SHAPE(c->vocab_size, c->hidden_size), INIT_STD, ZEROS);
        if (head)
            head->linear = TARN__LINEAR_OUT_IN;
    }
    add_part(&p, TARN__ROLE_LAYERS, names->body, body); /* TARN__MODEL_BODY */
    add_part(&p, TARN__ROLE_HEAD, names->head, head);
    tarn_module *model = finish(m, &p, c->arch, tarn__model_forward);
    if (!model || !c->tie_embeddings || tie_head(model))
        return model;
    tarn_module_free(model);
    return NULL;
}

tarn_module *tarn__model_make(const char *function, const tarn_lm_config *config, const tarn__device_map *map,
                              bool draw, const tarn__model_source *source)
{
    builder m = {.function = function,
                 .ctx = {.config = *config},
                 .map = *map,
                 .device = map->device[0],
                 .draw = draw,
                 .source = source};
    if (tarn_failed() || !tarn__model_complete(function, &m.ctx.config) ||
        !tarn__device_map_check(function, map, m.ctx.config.layers))
        return NULL;
    m.ctx.arch = tarn__arch_of_config(&m.ctx.config);
    tarn__activation_named(m.ctx.config.activation, &m.ctx.activation, &m.ctx.config.activation);
    tarn_module *model = make_model(&m);
    if (!model)
        tarn__raise_within(function);
    return model;
}

tarn_module *tarn__model_new(const char *function, const tarn_lm_config *config, tarn_device device, uint64_t seed)
{
    tarn__rng_state callers = tarn__random_save();
    const tarn__device_map only = tarn__device_map_one(device);
    tarn_seed(seed);
    tarn_module *model = tarn__model_make(function, config, &only, true, NULL);
    tarn__random_restore(&callers);
    return model;
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

const tarn_lm_config *tarn__model_config(const tarn_module *model)
{
    return &((const tarn__model_ctx *)model->ctx)->config;
}

tarn_module *tarn__model_child(const tarn_module *module, tarn__role role)
{
    int index = ((const tarn__model_ctx *)module->ctx)->child[role];
    return index >= 0 ? module->child[index] : NULL;
}

/* Fills in tarn_model_info. The dtype is that of the norms: other weights may be quantized. */
void tarn__model_describe(const tarn_module *model, tarn__model_info *f)
{
    const tarn_lm_config *c = tarn__model_config(model);
    const tarn_tensor *weight =
        tarn__module_own(tarn__model_child(model->child[TARN__MODEL_BODY], TARN__ROLE_NORM), "weight");
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

int64_t tarn__model_short_context(const tarn_module *model)
{
    const tarn_lm_config *c = tarn__model_config(model);
    bool has_both = c->rope.scaling == TARN_ROPE_LONGROPE && c->rope.original_context < c->context;
    return has_both ? c->rope.original_context : 0;
}

int64_t tarn__model_window(const tarn_module *model)
{
    const tarn_lm_config *c = tarn__model_config(model);
    for (int64_t i = 0; i < c->layers; i++)
        if (!tarn__layer_has_window(c, i))
            return 0;
    return c->window;
}

/* Modules with the configuration are recognized by the size of their settings. */
void tarn__model_tune(tarn_module *module, double dropout, tarn_recompute recompute)
{
    tarn__model_ctx *ctx = module->settings_bytes == sizeof(*ctx) ? module->ctx : NULL;
    if (ctx) {
        ctx->config.recompute = recompute;
        ctx->config.dropout = dropout;
        ctx->config.attention_dropout = ctx->config.embedding_dropout = tarn__model_dropout(0, dropout);
    }
    for (int i = 0; i < module->children; i++)
        tarn__model_tune(module->child[i], dropout, recompute);
}
void tarn__model_set_embeddings(tarn_module *model, int64_t vocab_size, bool tie_embeddings)
{
    tarn__model_ctx *const all[] = {model->ctx, model->child[TARN__MODEL_BODY]->ctx};
    for (int i = 0; i < 2; i++) {
        all[i]->config.vocab_size = vocab_size;
        all[i]->config.tie_embeddings = tie_embeddings;
    }
}

const char *tarn__torch_name(tarn_dtype dtype)
{
    return dtype == TARN_F64 ? "float64" : dtype == TARN_BF16 ? "bfloat16" : dtype == TARN_F16 ? "float16" : "float32";
}

bool tarn_model_query_sized(const tarn_module *model, tarn_model_info *info, size_t info_size)
{
    const char *function = "model_query";
    tarn_model_info found = {0};
    if (!tarn__arch_of(function, model))
        return false;
    if (!info)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the result is NULL", function);
    tarn__model_describe(model, &found);
    memset(info, 0, info_size);
    memcpy(info, &found, info_size < sizeof(found) ? info_size : sizeof(found));
    return true;
}
