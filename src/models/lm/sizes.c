/* sizes.c: published configurations of language models, and sizes of new models for training. */
#include <math.h>
#include <string.h>

#include "models/lm/arch.h"

/* ---- published configurations ------------------------------------------------------------------------------------ */

/* A published configuration. */
typedef struct published {
    const char *names[3];
    tarn_lm_config config;
} published;

/* Common to the sizes of GPT-2. */
#define GPT_2 \
    .arch = "gpt2", .vocab_size = 50257, .context = 1024, .tie_embeddings = true, .has_bos = true, .bos = 50256, \
    .eos_count = 1, .eos = {50256}

/* Common to the sizes of Llama 3.2. */
#define LLAMA_3 \
    .arch = "llama", .vocab_size = 128256, .context = 131072, .kv_heads = 8, .epsilon = 1e-5, \
    .rope = {.base = 500000, \
             .scaling = TARN_ROPE_LLAMA3, \
             .factor = 32, \
             .low_freq_factor = 1, \
             .high_freq_factor = 4, \
             .original_context = 8192}, \
    .tie_embeddings = true, .has_bos = true, .bos = 128000, .eos_count = 1, .eos = {128001}

static const published sizes[] = {
    {{"gpt2", "gpt2-124m", "gpt2-small"}, {GPT_2, .layers = 12, .heads = 12, .hidden_size = 768}},
    {{"gpt2-medium", "gpt2-350m", "gpt2-355m"}, {GPT_2, .layers = 24, .heads = 16, .hidden_size = 1024}},
    {{"gpt2-large", "gpt2-774m", "gpt2-762m"}, {GPT_2, .layers = 36, .heads = 20, .hidden_size = 1280}},
    {{"gpt2-xl", "gpt2-1.5b", "gpt2-1558m"}, {GPT_2, .layers = 48, .heads = 25, .hidden_size = 1600}},
    {{"llama-1b"}, {LLAMA_3, .layers = 16, .heads = 32, .hidden_size = 2048, .ffn_size = 8192, .head_dim = 64}},
    {{"llama-3b"}, {LLAMA_3, .layers = 28, .heads = 24, .hidden_size = 3072, .ffn_size = 8192, .head_dim = 128}},
    {{"smollm-135m"},
     {.arch = "llama",
      .vocab_size = 49152,
      .context = 2048,
      .layers = 30,
      .heads = 9,
      .kv_heads = 3,
      .hidden_size = 576,
      .ffn_size = 1536,
      .epsilon = 1e-5,
      .rope = {.base = 10000},
      .tie_embeddings = true,
      .has_bos = true,
      .eos_count = 1}},
    {{"gemma-2-2b"},
     {.arch = "gemma2",
      .vocab_size = 256000,
      .context = 8192,
      .layers = 26,
      .heads = 8,
      .kv_heads = 4,
      .head_dim = 256,
      .hidden_size = 2304,
      .ffn_size = 9216,
      .tie_embeddings = true,
      .has_bos = true,
      .bos = 2,
      .eos_count = 1,
      .eos = {1}}},
    {{"phi-3-mini"},
     {.arch = "phi3",
      .vocab_size = 32064,
      .context = 4096,
      .window = 2047,
      .layers = 32,
      .heads = 32,
      .kv_heads = 32,
      .head_dim = 96,
      .hidden_size = 3072,
      .ffn_size = 8192,
      .has_bos = true,
      .bos = 1,
      .eos_count = 1,
      .eos = {32000}}},
};

/* A published configuration by name; NULL: none. */
static const tarn_lm_config *find_published(const char *name)
{
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int k = 0; k < 3 && sizes[i].names[k]; k++)
            if (strcmp(name, sizes[i].names[k]) == 0)
                return &sizes[i].config;
    return NULL;
}

/* Settings that an architecture has unless config.json says otherwise; patterns of layers for any number of them. */
static void set_defaults(const tarn__arch *arch, tarn_lm_config *c)
{
    c->attention_bias = arch->has_biases && arch->keys->attention_bias;
    c->mlp_bias = arch->has_biases && arch->keys->mlp_bias;
    c->sequential = arch->is_sequential;
    c->attention_softcap = arch->attention_softcap;
    c->logit_softcap = arch->logit_softcap;
    c->rope_local_base = arch->rope_local_base;
    if (arch->window_pattern) {
        c->window = arch->window;
        tarn__layers_add_pattern(&c->windows, TARN_LM_MAX_LAYERS, arch->window_pattern, false);
    }
    if (arch->nope_interval)
        tarn__layers_add_pattern(&c->no_rope, TARN_LM_MAX_LAYERS, arch->nope_interval, true);
}

/* A published configuration, or the defaults of an architecture, with tied embeddings as in all small models. False,
 * without an error, for an unknown name. */
static bool find_config(const char *name, tarn_lm_config *c)
{
    const tarn_lm_config *found = find_published(name);
    const tarn__arch *arch = tarn__arch_find(found ? found->arch : name);
    if (!arch)
        return false;
    *c = found ? *found : (tarn_lm_config){.arch = arch->type, .tie_embeddings = true};
    set_defaults(arch, c);
    return true;
}

bool tarn__model_config_named(const char *name, tarn_lm_config *config)
{
    const tarn_lm_config *found = find_published(name);
    if (found)
        *config = *found;
    return found != NULL;
}

bool tarn_lm_config_named_sized(const char *name, tarn_lm_config *config, size_t config_size)
{
    const char *function = "lm_config_named";
    tarn_lm_config found;
    if (tarn_failed())
        return false;
    if (!name || !config)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s is NULL", function, name ? "configuration" : "name");
    if (!find_config(name, &found))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: '%.64s' not found; it must be an architecture or a published size, such as smollm-135m",
                           function, name);
    memset(config, 0, config_size); /* fields of a newer header become zero */
    memcpy(config, &found, config_size < sizeof(found) ? config_size : sizeof(found));
    return true;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

#define DEFAULT_CONTEXT 2048 /* for training: shorter than that of most published models */

/* Zero stands for the default. */
static int64_t or_default(int64_t given, int64_t default_value)
{
    return given ? given : default_value;
}

/* With a gate as many weights in three matrices as without one in two, rounded up to 32. */
static int64_t default_ffn_size(const tarn__arch *arch, int64_t hidden_size)
{
    return arch->is_gated ? (8 * hidden_size / 3 + 31) / 32 * 32 : 4 * hidden_size;
}

/* Raises settings that a model of the architecture cannot have. */
static bool check_settings(const char *function, const char *name, const tarn__arch *arch, const tarn__model_sizes *s)
{
    if (!arch->has_gqa && s->kv_heads != s->heads)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: kv_heads is for Llama models; a %s has as many key and value heads as query heads",
                           function, name);
    if (s->dropout > 0 && !arch->keys->dropout)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: dropout is %g; a %s does not support it", function, s->dropout,
                           name);
    const char *missing = !s->layers        ? "layers"
                          : !s->heads       ? "heads"
                          : !s->hidden_size ? "hidden_size"
                          : !s->context     ? "context"
                                            : NULL;
    return !missing || tarn__raise(TARN_ERROR_ARGUMENT,
                                   "%s: %s is missing: a %s has no size of its own; give layers, heads, hidden_size "
                                   "and context, or a model with a size, such as "
                                   "smollm-135m",
                                   function, missing, name);
}

/* Another hidden size or number of heads drops the published kv_heads and ffn_size, which belong to the published
 * shape. The context of learned positions is the number of them. */
bool tarn__model_complete_sizes(const char *function, const char *name, tarn__model_sizes *s)
{
    tarn_lm_config c;
    if (!find_config(name, &c))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: unknown language model '%.64s'", function, name);
    const tarn__arch *arch = tarn__arch_find(c.arch);
    bool changed = (s->hidden_size && s->hidden_size != c.hidden_size) || (s->heads && s->heads != c.heads);
    s->vocab_size = or_default(s->vocab_size, c.vocab_size);
    s->context = or_default(s->context, c.context < DEFAULT_CONTEXT ? c.context : DEFAULT_CONTEXT);
    s->max_context = arch->has_rope && c.context > s->context ? c.context : s->context;
    s->layers = or_default(s->layers, c.layers);
    s->heads = or_default(s->heads, c.heads);
    s->hidden_size = or_default(s->hidden_size, c.hidden_size);
    s->kv_heads = or_default(s->kv_heads, changed || !arch->has_gqa ? s->heads : c.kv_heads);
    s->ffn_size = or_default(s->ffn_size, changed || !c.ffn_size ? default_ffn_size(arch, s->hidden_size) : c.ffn_size);
    return check_settings(function, name, arch, s);
}

/* The configuration of complete sizes. Another hidden size or number of heads drops the published head_dim. */
static tarn_lm_config config_of(const char *name, const tarn__model_sizes *s)
{
    tarn_lm_config c = {0};
    find_config(name, &c);
    if (s->hidden_size != c.hidden_size || s->heads != c.heads)
        c.head_dim = 0;
    c.vocab_size = s->vocab_size;
    c.context = s->context;
    c.layers = s->layers;
    c.heads = s->heads;
    c.kv_heads = s->kv_heads;
    c.hidden_size = s->hidden_size;
    c.ffn_size = s->ffn_size;
    c.dropout = s->dropout;
    c.dtype = s->dtype;
    c.recompute = s->recompute;
    c.has_bos = s->has_eos; /* the tokenizer's, which ends one document before the next begins */
    c.eos_count = s->has_eos;
    c.bos = c.eos[0] = s->has_eos ? s->eos : 0;
    return c;
}

/* Q and O have heads · head_dim rows, K and V kv_heads · head_dim, each of hidden_size elements; the two or three
 * matrices of the MLP ffn_size. */
double tarn__model_parameter_count(const char *name, const tarn__model_sizes *s)
{
    tarn_lm_config c = config_of(name, s);
    const tarn__arch *arch = tarn__arch_find(c.arch);
    double hidden = (double)c.hidden_size, head = c.head_dim ? (double)c.head_dim : floor(hidden / (double)c.heads);
    double layer =
        2 * hidden * head * (double)(c.heads + c.kv_heads) + (arch->is_gated ? 3 : 2) * hidden * (double)c.ffn_size;
    return hidden * (double)c.vocab_size * (c.tie_embeddings ? 1 : 2) +
           (arch->has_rope ? 0 : hidden * (double)c.context) + (double)c.layers * layer;
}

tarn_module *tarn__model_create(const char *function, const char *name, const tarn__model_sizes *s, tarn_device device,
                                uint64_t seed)
{
    tarn_lm_config c = config_of(name, s);
    return tarn__model_new(function, &c, device, seed);
}

void tarn__model_sizes_of(const tarn_module *model, tarn__model_sizes *s)
{
    const tarn_lm_config *c = tarn__model_config(model);
    *s = (tarn__model_sizes){.vocab_size = c->vocab_size,
                             .context = c->context,
                             .layers = c->layers,
                             .heads = c->heads,
                             .kv_heads = c->kv_heads,
                             .hidden_size = c->hidden_size,
                             .ffn_size = c->ffn_size};
}
