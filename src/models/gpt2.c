/* gpt2.c: GPT-2 put together, and the values its parameters begin with. */
#include "models/gpt2.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "core/random.h"
#include "models/children.h"

#define LARGEST INT32_MAX /* of the sizes: products of two stay within 64 bits */
#define MOST_LAYERS 1024
#define DEVIATION 0.02 /* of the weights at the beginning */

/* ---- configurations -------------------------------------------------------------------------------------------------------- */

static bool check_sizes(const char *function, const tarn_gpt2_config *c)
{
    const struct {
        const char *name;
        int64_t value, low, high;
    } sizes[] = {{"vocab", c->vocab, 1, LARGEST}, {"context", c->context, 1, LARGEST}, {"layers", c->layers, 1, MOST_LAYERS},
                 {"heads", c->heads, 1, LARGEST}, {"width", c->width, 1, LARGEST},     {"inner", c->inner, 0, LARGEST}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (sizes[i].value < sizes[i].low || sizes[i].value > sizes[i].high)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: .%s is %lld; it must be from %lld to %lld", function, sizes[i].name,
                               (long long)sizes[i].value, (long long)sizes[i].low, (long long)sizes[i].high);
    if (c->width % c->heads)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: .heads %lld do not divide .width %lld", function, (long long)c->heads,
                           (long long)c->width);
    return true;
}

static bool check_config(const char *function, const tarn_gpt2_config *c)
{
    if (!check_sizes(function, c))
        return false;
    if (!(c->dropout >= 0 && c->dropout < 1) || !(c->attention_dropout < 1) || !(c->embedding_dropout < 1))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: .dropout %g, .attention_dropout %g and .embedding_dropout %g are probabilities below 1, the first from 0",
                           function, c->dropout, c->attention_dropout, c->embedding_dropout);
    if (!(c->epsilon >= 0) || !isfinite(c->epsilon))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .epsilon is %g; it must be a number from 0", function, c->epsilon);
    if ((int)c->recompute < TARN_RECOMPUTE_NONE || (int)c->recompute > TARN_RECOMPUTE_BLOCK)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .recompute is %d; it must be one of TARN_RECOMPUTE_NONE, _CHEAP and _BLOCK", function,
                           (int)c->recompute);
    if (c->has_end && (c->end < 0 || c->end >= c->vocab))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .end is token %lld of a vocabulary of %lld", function, (long long)c->end,
                           (long long)c->vocab);
    return tarn__check_parameter_dtype(function, c->dtype);
}

/* A probability of its own, or the common one; none is negative, so that a completed configuration stays what it is. */
static double dropout_of(double own, double common)
{
    double p = own == 0 ? common : own;
    return p > 0 ? p : -1;
}

static tarn_gpt2_config completed(const tarn_gpt2_config *config)
{
    tarn_gpt2_config c = *config;
    c.inner = c.inner ? c.inner : 4 * c.width;
    c.epsilon = c.epsilon > 0 ? c.epsilon : 1e-5;
    c.attention_dropout = dropout_of(c.attention_dropout, c.dropout);
    c.embedding_dropout = dropout_of(c.embedding_dropout, c.dropout);
    return c;
}

bool tarn_gpt2_config_named_sized(const char *name, tarn_gpt2_config *config, size_t config_size)
{
    static const struct {
        const char *names[3];
        int64_t layers, heads, width;
    } sizes[] = {{{"gpt2", "gpt2-124m", "gpt2-small"}, 12, 12, 768},
                 {{"gpt2-medium", "gpt2-350m", "gpt2-355m"}, 24, 16, 1024},
                 {{"gpt2-large", "gpt2-774m", "gpt2-762m"}, 36, 20, 1280},
                 {{"gpt2-xl", "gpt2-1.5b", "gpt2-1558m"}, 48, 25, 1600}};
    if (tarn_failed())
        return false;
    if (!name || !config)
        return tarn__raise(TARN_ERROR_ARGUMENT, "gpt2_config_named: the %s is NULL", name ? "configuration" : "name");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int k = 0; k < 3; k++)
            if (strcmp(name, sizes[i].names[k]) == 0) {
                tarn_gpt2_config c = {.vocab = 50257,
                                      .context = 1024,
                                      .layers = sizes[i].layers,
                                      .heads = sizes[i].heads,
                                      .width = sizes[i].width,
                                      .has_end = true,
                                      .end = 50256};
                memset(config, 0, config_size); /* a newer header's struct has fields that are not known here */
                memcpy(config, &c, config_size < sizeof(c) ? config_size : sizeof(c));
                return true;
            }
    return tarn__raise(TARN_ERROR_ARGUMENT, "gpt2_config_named: there is no '%.64s'; there are gpt2, gpt2-medium, gpt2-large and gpt2-xl",
                       name);
}

/* ---- modules --------------------------------------------------------------------------------------------------------------- */

typedef struct making {
    const char *function;
    tarn_gpt2_config config;
    tarn__placement where;
    tarn_device device; /* of what is being made */
    bool draw;
} making;

static tarn_module *new_module(const making *m, const char *kind, tarn_forward_fn forward)
{
    return tarn__module_new_with(m->function, kind, forward, &m->config, sizeof(m->config));
}

/* Gives a module the parameter "weight", and frees the module where that fails. */
static tarn_module *with_weight(const making *m, tarn_module *module, int64_t rows, int64_t columns, double deviation)
{
    tarn_shape shape = TARN_SHAPE(rows, columns);
    tarn_tensor *values = !module   ? NULL
                          : m->draw ? tarn_normal(shape, 0, deviation, m->config.dtype, m->device)
                                    : tarn_empty(shape, m->config.dtype, m->device);
    if (values && tarn_module_add_parameter(module, "weight", values))
        return module;
    tarn_module_free(module);
    return NULL;
}

static tarn_module *make_table(const making *m, int64_t rows)
{
    return with_weight(m, new_module(m, "embedding", tarn__gpt2_table_forward), rows, m->config.width, DEVIATION);
}

static tarn_module *make_norm(const making *m)
{
    const tarn_norm_options options = {.epsilon = m->config.epsilon, .dtype = m->config.dtype};
    return tarn_layernorm_layer_with(m->config.width, m->device, &options);
}

/* A linear layer whose weight is [in, out]: transformers calls it Conv1D. */
static tarn_module *make_projection(const making *m, int64_t in, int64_t out, double deviation)
{
    tarn_module *module = with_weight(m, new_module(m, "projection", tarn__gpt2_projection_forward), in, out, deviation);
    tarn_tensor *bias = module ? tarn_zeros(TARN_SHAPE(out), m->config.dtype, m->device) : NULL;
    if (bias && tarn_module_add_parameter(module, "bias", bias)) {
        module->linear = TARN__LINEAR_IN_OUT;
        return module;
    }
    tarn_module_free(module);
    return NULL;
}

/* The two parts of a block: a projection in, one out. Drawn one after the other, so that a seed means the same with every compiler. */
static tarn_module *make_part(const making *m, const char *kind, tarn_forward_fn forward, const char *name, int64_t out, int64_t back)
{
    const char *const names[] = {name, "c_proj"};
    /* What 2 · layers parts add to the same numbers grows with their root. */
    double added = DEVIATION / sqrt(2 * (double)m->config.layers);
    tarn_module *first = make_projection(m, m->config.width, out, DEVIATION);
    tarn_module *second = make_projection(m, back, m->config.width, added);
    return tarn__with_children(new_module(m, kind, forward), names, (tarn_module *const[]){first, second}, 2);
}

static tarn_module *make_block(const making *m)
{
    static const char *const names[] = {"ln_1", "attn", "ln_2", "mlp"};
    const tarn_gpt2_config *c = &m->config;
    tarn_module *attention = make_part(m, "attention", tarn__gpt2_attention_forward, "c_attn", 3 * c->width, c->width);
    tarn_module *mlp = make_part(m, "mlp", tarn__gpt2_mlp_forward, "c_fc", c->inner, c->inner);
    tarn_module *const parts[] = {make_norm(m), attention, make_norm(m), mlp};
    return tarn__with_children(new_module(m, "block", tarn__gpt2_block_forward), names, parts, 4);
}

static tarn_module *make_blocks(const making *m)
{
    size_t bytes = sizeof(tarn_module *) * (size_t)m->config.layers;
    tarn_module **blocks = tarn__alloc(bytes), *all = NULL;
    for (int64_t i = 0; blocks && i < m->config.layers; i++) {
        making there = *m;
        there.device = tarn__placed(&m->where, i);
        blocks[i] = make_block(&there);
    }
    if (blocks)
        all = tarn_sequential_from(blocks, (int)m->config.layers); /* which frees them where one failed */
    tarn__release(blocks, bytes);
    return all;
}

static tarn_module *make_body(const making *m)
{
    static const char *const names[] = {"wte", "wpe", "h", "ln_f"};
    tarn_module *tokens = make_table(m, m->config.vocab), *positions = make_table(m, m->config.context), *blocks = make_blocks(m);
    tarn_module *const parts[] = {tokens, positions, blocks, make_norm(m)};
    return tarn__with_children(new_module(m, "gpt2 body", tarn__gpt2_body_forward), names, parts, 4);
}

/* The head gets the tokens' table when it has its place in the tree: the name of a shared parameter is that of its first place. */
static tarn_module *make_model(const making *m)
{
    static const char *const names[] = {"transformer", "lm_head"};
    tarn_module *const parts[] = {make_body(m), new_module(m, "head", tarn__gpt2_head_forward)};
    tarn_module *model = tarn__with_children(new_module(m, "gpt2", tarn__gpt2_model_forward), names, parts, 2);
    if (!model)
        return NULL;
    tarn_tensor *shared = tarn__module_own(model->child[TARN__MODEL_BODY]->child[TARN__GPT2_TOKENS], "weight");
    if (tarn_module_add_parameter(model->child[TARN__MODEL_HEAD], "weight", shared))
        return model;
    tarn_module_free(model);
    return NULL;
}

tarn_module *tarn__gpt2_make(const char *function, const tarn_gpt2_config *config, const tarn__placement *where, bool draw)
{
    if (tarn_failed() || !check_config(function, config) || !tarn__check_placement(function, where, config->layers))
        return NULL;
    making m = {function, completed(config), *where, where->device, draw};
    tarn_module *model = make_model(&m);
    if (!model)
        tarn__raise_within(function);
    return model;
}

tarn_module *tarn_model_gpt2_sized(const tarn_gpt2_config *config, size_t config_size, tarn_device device, uint64_t seed)
{
    tarn_gpt2_config own = {0};
    if (tarn_failed())
        return NULL;
    if (!config) {
        tarn__raise(TARN_ERROR_ARGUMENT, "model_gpt2: the configuration is NULL");
        return NULL;
    }
    memcpy(&own, config, config_size < sizeof(own) ? config_size : sizeof(own));
    tarn__generator callers = tarn__random_save();
    tarn_seed(seed);
    tarn_module *model = tarn__gpt2_make("model_gpt2", &own, &(tarn__placement){.device = device}, true);
    tarn__random_restore(&callers);
    return model;
}

/* ---- asking ---------------------------------------------------------------------------------------------------------------- */

bool tarn_gpt2_config_of_sized(const tarn_module *model, tarn_gpt2_config *config, size_t config_size)
{
    const tarn__model_kind *kind = tarn__model_kind_of("gpt2_config_of", model);
    if (!kind)
        return false;
    if (kind != &tarn__gpt2_kind || !config)
        return tarn__raise(TARN_ERROR_ARGUMENT, "gpt2_config_of: %s", config ? "the model is no GPT-2" : "the configuration is NULL");
    memset(config, 0, config_size);
    memcpy(config, model->ctx, config_size < sizeof(*config) ? config_size : sizeof(*config));
    return true;
}

static void facts(const tarn_module *model, tarn__model_facts *f)
{
    const tarn_gpt2_config *c = model->ctx;
    const tarn_tensor *weight = tarn__module_own(model->child[TARN__MODEL_HEAD], "weight");
    *f = (tarn__model_facts){.type = "gpt2",
                             .vocab = c->vocab,
                             .context = c->context,
                             .layers = c->layers,
                             .width = c->width,
                             .heads = c->heads,
                             .kv_heads = c->heads,
                             .head_width = c->width / c->heads,
                             .dtype = weight->view.dtype,
                             .device = tarn__device(weight),
                             .device_layers = tarn__device_layers(model),
                             .has_begin = c->has_end, /* GPT-2's texts begin with the token that ends them */
                             .begin = c->end,
                             .has_end = c->has_end,
                             .end = c->end};
}

/* ---- for training ---------------------------------------------------------------------------------------------------------- */

static bool complete(const char *function, const char *name, tarn__model_sizes *s)
{
    tarn_gpt2_config named;
    if (!tarn_gpt2_config_named(name, &named))
        return tarn__raise_within(function);
    s->vocab = s->vocab ? s->vocab : named.vocab;
    s->context = s->longest = s->context ? s->context : named.context;
    s->layers = s->layers ? s->layers : named.layers;
    s->heads = s->heads ? s->heads : named.heads;
    s->width = s->width ? s->width : named.width;
    s->inner = s->inner ? s->inner : 4 * s->width;
    if (s->kv_heads && s->kv_heads != s->heads)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: kv_heads is for Llama models; a %s has as many heads of keys as of queries", function, name);
    s->kv_heads = s->heads;
    return true;
}

static double numbers(const char *name, const tarn__model_sizes *s)
{
    (void)name;
    double width = (double)s->width;
    return width * (double)(s->vocab + s->context) + (double)s->layers * (4 * width * width + 2 * width * (double)s->inner);
}

static int64_t working(const tarn__model_sizes *s)
{
    return s->recompute == TARN_RECOMPUTE_BLOCK ? 12 * s->width + 4 * s->inner : 4 * s->width + 3 * s->inner;
}

static tarn_module *fresh(const char *function, const char *name, const tarn__model_sizes *s, tarn_device device, uint64_t seed)
{
    (void)name;
    tarn_gpt2_config config = {.vocab = s->vocab,
                               .context = s->context,
                               .layers = s->layers,
                               .heads = s->heads,
                               .width = s->width,
                               .inner = s->inner,
                               .dropout = s->dropout,
                               .dtype = s->dtype,
                               .has_end = s->has_end,
                               .end = s->end,
                               .recompute = s->recompute};
    tarn_module *model = tarn_model_gpt2(&config, device, seed);
    if (!model)
        tarn__raise_within(function);
    return model;
}

/* Every module but the norms, whose settings are of another size, has the configuration. */
static void tune(tarn_module *module, double dropout, tarn_recompute recompute)
{
    tarn_gpt2_config *c = module->settings_bytes == sizeof(*c) ? module->ctx : NULL;
    if (c) {
        c->recompute = recompute;
        c->dropout = dropout;
        c->attention_dropout = c->embedding_dropout = dropout_of(0, dropout);
    }
    for (int i = 0; i < module->children; i++)
        tune(module->child[i], dropout, recompute);
}

static void sizes(const tarn_module *model, tarn__model_sizes *s)
{
    const tarn_gpt2_config *c = model->ctx;
    *s = (tarn__model_sizes){.vocab = c->vocab,
                             .context = c->context,
                             .layers = c->layers,
                             .heads = c->heads,
                             .kv_heads = c->heads,
                             .width = c->width,
                             .inner = c->inner};
}

static const char *const types[] = {"gpt2", NULL};
static const char *const names[] = {"gpt2", "gpt2-124m", "gpt2-350m", "gpt2-774m", "gpt2-1.5b", NULL};

const tarn__model_kind tarn__gpt2_kind = {
    .types = types,
    .names = names,
    .forward = tarn__gpt2_model_forward,
    .make = tarn__gpt2_from_document,
    .load = tarn__gpt2_load,
    .ignores = tarn__gpt2_ignores,
    .describe = tarn__gpt2_describe,
    .facts = facts,
    .step = tarn__gpt2_step,
    .hidden = tarn__gpt2_documents_forward,
    .complete = complete,
    .numbers = numbers,
    .working = working,
    .fresh = fresh,
    .tune = tune,
    .sizes = sizes,
    .has_dropout = true,
};
