/* llama_config.c: configurations of the Llama family: variants, published sizes, checks, and sizes of new models. */
#include <math.h>
#include <string.h>

#include "models/lm/llama.h"

#define MAX_SIZE INT32_MAX /* products of two sizes fit 64 bits */
#define MAX_LAYERS 1024
#define MAX_HEAD_DIM (2 * TARN__ROPE_PAIRS) /* that RoPE supports */

/* ---- families ---------------------------------------------------------------------------------------------------- */

static const tarn__llama_variant variants[] = {
    {.type = "llama", .architecture = "LlamaForCausalLM"},
    {.type = "mistral", .architecture = "MistralForCausalLM", .kv_heads = 8, .window = 4096},
    {.type = "qwen2", .architecture = "Qwen2ForCausalLM", .qkv_bias = true, .kv_heads = 32},
    {.type = "qwen3", .architecture = "Qwen3ForCausalLM", .qk_norm = true, .kv_heads = 32, .head_dim = 128},
};
#define VARIANT_COUNT (sizeof(variants) / sizeof(variants[0]))

const char *const tarn__llama_types[] = {"llama", "mistral", "qwen2", "qwen3", NULL};

const tarn__llama_variant *tarn__llama_variant_of(const char *type)
{
    for (size_t i = 0; i < VARIANT_COUNT; i++)
        if (strcmp(type, variants[i].type) == 0)
            return &variants[i];
    return NULL;
}

/* ---- published sizes --------------------------------------------------------------------------------------------- */

/* A published configuration. */
typedef struct published {
    const char *name;
    tarn_llama_config config;
} published;

/* Common to the sizes of Llama 3.2. */
#define LLAMA_3 \
    .vocab_size = 128256, .context = 131072, .kv_heads = 8, .epsilon = 1e-5, .rope_theta = 500000, \
    .rope_scaling = TARN_ROPE_LLAMA3, .rope_factor = 32, .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, \
    .rope_original_context = 8192, .tie_embeddings = true, .has_bos = true, .bos = 128000, .eos_count = 1, \
    .eos = {128001}

static const published sizes[] = {
    {"llama-1b", {LLAMA_3, .layers = 16, .heads = 32, .hidden_size = 2048, .ffn_size = 8192, .head_dim = 64}},
    {"llama-3b", {LLAMA_3, .layers = 28, .heads = 24, .hidden_size = 3072, .ffn_size = 8192, .head_dim = 128}},
    {"smollm-135m",
     {.vocab_size = 49152,
      .context = 2048,
      .layers = 30,
      .heads = 9,
      .kv_heads = 3,
      .hidden_size = 576,
      .ffn_size = 1536,
      .epsilon = 1e-5,
      .rope_theta = 10000,
      .tie_embeddings = true,
      .has_bos = true,
      .eos_count = 1}},
};

/* A published configuration by name; NULL: none. */
static const published *find_published(const char *name)
{
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (strcmp(name, sizes[i].name) == 0)
            return &sizes[i];
    return NULL;
}

bool tarn_llama_config_named_sized(const char *name, tarn_llama_config *config, size_t config_size)
{
    const char *function = "llama_config_named";
    if (tarn_failed())
        return false;
    if (!name || !config)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s is NULL", function, name ? "configuration" : "name");
    const published *found = find_published(name);
    if (!found)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%.64s' not found; it must be llama-1b, llama-3b or smollm-135m",
                           function, name);
    memset(config, 0, config_size); /* fields of a newer header become zero */
    memcpy(config, &found->config, config_size < sizeof(*config) ? config_size : sizeof(*config));
    return true;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Raises sizes out of range. */
static bool check_sizes(const char *function, const tarn_llama_config *c)
{
    const struct {
        const char *name;
        int64_t value, low, high;
    } rows[] = {{"vocab_size", c->vocab_size, 1, MAX_SIZE},
                {"context", c->context, 1, MAX_SIZE},
                {"layers", c->layers, 1, MAX_LAYERS},
                {"heads", c->heads, 1, MAX_SIZE},
                {"hidden_size", c->hidden_size, 1, MAX_SIZE},
                {"ffn_size", c->ffn_size, 1, MAX_SIZE},
                {"kv_heads", c->kv_heads, 0, MAX_SIZE},
                {"head_dim", c->head_dim, 0, MAX_HEAD_DIM},
                {"rope_original_context", c->rope_original_context, 0, INT64_MAX}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].value < rows[i].low || rows[i].value > rows[i].high)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: .%s is %lld; it must be from %lld to %lld", function,
                               rows[i].name, (long long)rows[i].value, (long long)rows[i].low, (long long)rows[i].high);
    if (!c->head_dim && c->hidden_size % c->heads)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "%s: .heads is %lld; it must divide .hidden_size, which is %lld, unless .head_dim is given",
                           function, (long long)c->heads, (long long)c->hidden_size);
    if (c->kv_heads && c->heads % c->kv_heads)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: .kv_heads is %lld; it must divide .heads, which is %lld", function,
                           (long long)c->kv_heads, (long long)c->heads);
    return true;
}

/* Raises a negative or non-finite number. */
static bool check_number(const char *function, const char *name, double value)
{
    return (value >= 0 && isfinite(value)) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .%s is %g; it must be at least 0", function, name, value);
}

/* Raises invalid RoPE settings; 0 stands for a default, so low and high are compared with defaults resolved. */
static bool check_rope(const char *function, const tarn_llama_config *c)
{
    if (!check_number(function, "rope_theta", c->rope_theta) ||
        !check_number(function, "rope_factor", c->rope_factor) ||
        !check_number(function, "rope_low_freq_factor", c->rope_low_freq_factor) ||
        !check_number(function, "rope_high_freq_factor", c->rope_high_freq_factor))
        return false;
    if ((unsigned)c->rope_scaling > TARN_ROPE_LLAMA3)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: .rope_scaling is %d; it must be TARN_ROPE_DEFAULT, _LINEAR or _LLAMA3", function,
                           (int)c->rope_scaling);
    double low = c->rope_low_freq_factor > 0 ? c->rope_low_freq_factor : 1,
           high = c->rope_high_freq_factor > 0 ? c->rope_high_freq_factor : 4;
    return c->rope_scaling != TARN_ROPE_LLAMA3 || low < high ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "%s: .rope_low_freq_factor is %g; it must be below .rope_high_freq_factor, which is %g",
                       function, low, high);
}

/* Raises switches that contradict the variant: such a model could not be saved as its model_type. */
static bool check_variant(const char *function, const tarn_llama_config *c)
{
    const tarn__llama_variant *variant = tarn__llama_variant_of(c->arch ? c->arch : "llama");
    if (!variant)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .arch is '%.64s'; it must be llama, mistral, qwen2 or qwen3",
                           function, c->arch);
    if (c->qkv_bias != variant->qkv_bias)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: .qkv_bias is %s, but .arch is %s; it must be true for qwen2 and false for the others",
                           function, c->qkv_bias ? "true" : "false", variant->type);
    if (c->qk_norm != variant->qk_norm)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: .qk_norm is %s, but .arch is %s; it must be true for qwen3 and false for the others",
                           function, c->qk_norm ? "true" : "false", variant->type);
    return true;
}

/* Raises a token outside the vocabulary. */
static bool check_token(const char *function, const char *name, int64_t token, int64_t vocab_size)
{
    return (token >= 0 && token < vocab_size) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .%s is token %lld; the vocabulary has %lld", function, name,
                       (long long)token, (long long)vocab_size);
}

static bool check_tokens(const char *function, const tarn_llama_config *c)
{
    if (c->eos_count < 0 || c->eos_count > TARN_MODEL_MAX_EOS)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .eos_count is %d; it must be from 0 to %d", function, c->eos_count,
                           TARN_MODEL_MAX_EOS);
    bool good = !c->has_bos || check_token(function, "bos", c->bos, c->vocab_size);
    for (int i = 0; good && i < c->eos_count; i++)
        good = check_token(function, "eos", c->eos[i], c->vocab_size);
    return good;
}

/* Raises an invalid configuration. */
static bool check(const char *function, const tarn_llama_config *c)
{
    if (!check_sizes(function, c) || !check_number(function, "epsilon", c->epsilon) || !check_rope(function, c) ||
        !check_variant(function, c) || !check_tokens(function, c))
        return false;
    if ((unsigned)c->recompute > TARN_RECOMPUTE_FULL)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: .recompute is %d; it must be TARN_RECOMPUTE_NONE, _SELECTIVE or _FULL", function,
                           (int)c->recompute);
    int64_t head = c->head_dim ? c->head_dim : c->hidden_size / c->heads;
    if (head % 2 || head < 2 || head > MAX_HEAD_DIM)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: head_dim is %lld; RoPE needs an even number from 2 to %d", function,
                           (long long)head, MAX_HEAD_DIM);
    return tarn__check_parameter_dtype(function, c->dtype);
}

/* Zero stands for the default. */
static double or_else(double value, double default_value)
{
    return value > 0 ? value : default_value;
}

bool tarn__llama_complete(const char *function, tarn_llama_config *c)
{
    if (!check(function, c))
        return false;
    c->arch = tarn__llama_variant_of(c->arch ? c->arch : "llama")->type;
    c->kv_heads = c->kv_heads ? c->kv_heads : c->heads;
    c->head_dim = c->head_dim ? c->head_dim : c->hidden_size / c->heads;
    c->epsilon = or_else(c->epsilon, 1e-5);
    c->rope_theta = or_else(c->rope_theta, 10000);
    c->rope_factor = or_else(c->rope_factor, 8);
    c->rope_low_freq_factor = or_else(c->rope_low_freq_factor, 1);
    c->rope_high_freq_factor = or_else(c->rope_high_freq_factor, 4);
    c->rope_original_context = c->rope_original_context ? c->rope_original_context : 8192;
    return true;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

#define DEFAULT_CONTEXT 2048 /* for training: shorter than that of most published models */

const char *const tarn__llama_names[] = {"llama",    "mistral",  "qwen2",       "qwen3",
                                         "llama-1b", "llama-3b", "smollm-135m", NULL};

/* A published configuration, or a variant without sizes; with tied embeddings, as in all small models. */
static tarn_llama_config base_config(const char *name)
{
    const published *found = find_published(name);
    const tarn__llama_variant *variant = found ? NULL : tarn__llama_variant_of(name);
    if (found)
        return found->config;
    return (tarn_llama_config){
        .tie_embeddings = true, .arch = variant->type, .qkv_bias = variant->qkv_bias, .qk_norm = variant->qk_norm};
}

/* Zero stands for the default. */
static int64_t or_default(int64_t given, int64_t default_value)
{
    return given ? given : default_value;
}

/* As many weights in three matrices as GPT-2's MLP has in two, rounded up to 32. */
static int64_t default_ffn_size(int64_t hidden_size)
{
    return (8 * hidden_size / 3 + 31) / 32 * 32;
}

/* Another hidden size or number of heads drops the published kv_heads and ffn_size, which belong to the published
 * shape. */
bool tarn__llama_complete_sizes(const char *function, const char *name, tarn__model_sizes *s)
{
    tarn_llama_config c = base_config(name);
    bool changed = (s->hidden_size && s->hidden_size != c.hidden_size) || (s->heads && s->heads != c.heads);
    s->vocab_size = or_default(s->vocab_size, c.vocab_size);
    s->context = or_default(s->context, c.context < DEFAULT_CONTEXT ? c.context : DEFAULT_CONTEXT);
    s->max_context = c.context > s->context ? c.context : s->context;
    s->layers = or_default(s->layers, c.layers);
    s->heads = or_default(s->heads, c.heads);
    s->hidden_size = or_default(s->hidden_size, c.hidden_size);
    s->kv_heads = or_default(s->kv_heads, changed ? s->heads : c.kv_heads);
    s->ffn_size = or_default(s->ffn_size, changed || !c.ffn_size ? default_ffn_size(s->hidden_size) : c.ffn_size);
    if (s->dropout > 0)
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

/* The configuration of complete sizes. Another hidden size or number of heads drops the published head_dim. */
static tarn_llama_config config_of(const char *name, const tarn__model_sizes *s)
{
    tarn_llama_config c = base_config(name);
    if (s->hidden_size != c.hidden_size || s->heads != c.heads)
        c.head_dim = 0;
    c.vocab_size = s->vocab_size;
    c.context = s->context;
    c.layers = s->layers;
    c.heads = s->heads;
    c.kv_heads = s->kv_heads;
    c.hidden_size = s->hidden_size;
    c.ffn_size = s->ffn_size;
    c.dtype = s->dtype;
    c.recompute = s->recompute;
    c.has_bos = s->has_eos; /* the tokenizer's, which ends one document before the next begins */
    c.eos_count = s->has_eos;
    c.bos = c.eos[0] = s->has_eos ? s->eos : 0;
    return c;
}

/* Q and O have heads · head_dim rows, K and V kv_heads · head_dim, each of hidden_size elements; gate, up and down
 * ffn_size. */
double tarn__llama_parameter_count(const char *name, const tarn__model_sizes *s)
{
    tarn_llama_config c = config_of(name, s);
    double hidden_size = (double)c.hidden_size,
           head = c.head_dim ? (double)c.head_dim : floor(hidden_size / (double)c.heads);
    double block = 2 * hidden_size * head * (double)(c.heads + c.kv_heads) + 3 * hidden_size * (double)c.ffn_size;
    return hidden_size * (double)c.vocab_size * (c.tie_embeddings ? 1 : 2) + (double)c.layers * block;
}

tarn_module *tarn__llama_create(const char *function, const char *name, const tarn__model_sizes *s, tarn_device device,
                                uint64_t seed)
{
    tarn_llama_config c = config_of(name, s);
    tarn_module *model = tarn_model_llama(&c, device, seed);
    if (!model)
        tarn__raise_within(function);
    return model;
}
