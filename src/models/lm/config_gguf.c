/* config_gguf.c: configurations as metadata of GGUF files.
 *
 * Keys are those of llama.cpp. Settings without such a key have keys of tarn's own, which begin with "tarn.": the
 * model_type where several share an architecture, dropout probabilities, which layers have a window. RoPE's are in
 * config_gguf_rope.c. */
#include <math.h>
#include <string.h>

#include "formats/gguf.h"
#include "models/gguf/gguf_arch.h"

#define FAMILY "tarn.family"
#define DROPOUT "tarn.gpt2.dropout" /* of outputs, attention weights, embeddings */
#define ACTIVATION "tarn.activation"
#define WINDOWS "tarn.window_layers"  /* numbers of layers */
#define NO_ROPE "tarn.no_rope_layers" /* numbers of layers */
#define SCALE "tarn.attention_scale"
#define SCALE_BY_LAYER "tarn.scale_attention_by_layer"

/* Key of the norms' epsilon. */
static const char *epsilon_key(const tarn__arch *arch)
{
    return arch->norm == TARN__NORM_LAYER ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Layers of a set by number. */
static bool put_layers(const tarn_lm_layers *set, int64_t layers, const char *key, tarn_gguf_writer *writer)
{
    uint32_t numbers[TARN_LM_MAX_LAYERS];
    int64_t count = 0;
    for (int64_t i = 0; i < layers; i++)
        if (tarn__layers_have(set, i))
            numbers[count++] = (uint32_t)i;
    return tarn_gguf_add_array(writer, key, TARN_GGUF_U32, numbers, count);
}

/* Windows, and layers without RoPE. */
static bool put_patterns(const tarn_lm_config *c, const tarn__arch *arch, tarn_gguf_writer *writer)
{
    if (c->window && (!tarn__gguf_put_int(writer, arch->gguf, "attention.sliding_window", c->window) ||
                      !put_layers(&c->windows, c->layers, WINDOWS, writer)))
        return false;
    return !arch->nope_interval || put_layers(&c->no_rope, c->layers, NO_ROPE, writer);
}

/* Scales and soft caps. A scale of attention without a key of llama.cpp has one of tarn's own. */
static bool put_scales(const tarn_lm_config *c, const tarn__arch *arch, tarn_gguf_writer *writer)
{
    const char *a = arch->gguf;
    bool has_own = c->attention_scale > 0 && !arch->has_multipliers;
    if (has_own && !tarn_gguf_add_value(writer, SCALE, TARN_GGUF_F64, &c->attention_scale))
        return false;
    const struct {
        const char *rest;
        double value;
    } reals[] = {{"attn_logit_softcapping", c->attention_softcap},
                 {"final_logit_softcapping", c->logit_softcap},
                 {"attention.scale", arch->has_multipliers ? c->attention_scale : 0},
                 {"embedding_scale", arch->has_multipliers ? c->embedding_scale : 0},
                 {"residual_scale", c->residual_scale},
                 {"logit_scale", c->logit_scale > 0 ? 1 / c->logit_scale : 0}};
    bool good = true;
    for (size_t i = 0; good && i < sizeof(reals) / sizeof(reals[0]); i++)
        good = !(reals[i].value > 0) || tarn__gguf_put_real(writer, a, reals[i].rest, reals[i].value);
    return good;
}

/* The activation where it is not the architecture's, and the parallel residual. */
static bool put_switches(const tarn_lm_config *c, const tarn__arch *arch, tarn_gguf_writer *writer)
{
    tarn__gguf_path to;
    if (c->scale_by_layer && !tarn_gguf_add_value(writer, SCALE_BY_LAYER, TARN_GGUF_BOOL, &c->scale_by_layer))
        return false;
    if (strcmp(c->activation, arch->activation) != 0 && !tarn__gguf_put_string(writer, ACTIVATION, c->activation))
        return false;
    return !arch->is_parallel ||
           tarn_gguf_add_value(writer, tarn__gguf_key_of(arch->gguf, "use_parallel_residual", &to), TARN_GGUF_BOOL,
                               &(bool){!c->sequential});
}

static bool put_dropouts(const tarn_lm_config *c, tarn_gguf_writer *writer)
{
    const double dropouts[] = {c->dropout, fmax(c->attention_dropout, 0), fmax(c->embedding_dropout, 0)};
    return tarn_gguf_add_array(writer, DROPOUT, TARN_GGUF_F64, dropouts, 3);
}

bool tarn__model_put_gguf(const tarn_lm_config *c, tarn_gguf_writer *writer)
{
    const tarn__arch *arch = tarn__arch_of_config(c);
    const char *a = arch->gguf;
    const struct {
        const char *rest;
        int64_t value;
        bool is_there;
    } ints[] = {{"vocab_size", c->vocab_size, true},
                {"context_length", c->context, true},
                {"embedding_length", c->hidden_size, true},
                {"block_count", c->layers, true},
                {"feed_forward_length", c->ffn_size, true},
                {"attention.head_count", c->heads, true},
                {"attention.head_count_kv", c->kv_heads, arch->has_gqa},
                {"attention.key_length", c->head_dim, arch->has_gqa},
                {"attention.value_length", c->head_dim, arch->has_gqa}};
    bool good = tarn__gguf_put_string(writer, TARN__GGUF_ARCHITECTURE, a) &&
                (tarn__arch_in_gguf("", "", a) == arch || tarn__gguf_put_string(writer, FAMILY, c->arch));
    for (size_t i = 0; good && i < sizeof(ints) / sizeof(ints[0]); i++)
        good = !ints[i].is_there || tarn__gguf_put_int(writer, a, ints[i].rest, ints[i].value);
    return good && tarn__gguf_put_real(writer, a, epsilon_key(arch), c->epsilon) &&
           (!arch->has_rope || tarn__gguf_put_rope(c, arch, writer)) && put_patterns(c, arch, writer) &&
           put_scales(c, arch, writer) && put_switches(c, arch, writer) &&
           (!(arch->dropout > 0) || put_dropouts(c, writer));
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef tarn__gguf_model_reader reader;

static bool has_tensor(const reader *r, const char *name)
{
    return tarn_gguf_find(r->of.file, name) >= 0;
}

/* Sizes; those of a head are left to the configuration's check where they do not divide. key_length and value_length
 * default to hidden_size / heads. */
static bool get_sizes(const reader *r)
{
    tarn_lm_config *c = r->c;
    int64_t values = 0;
    if (!tarn__gguf_get_int(&r->of, "context_length", 0, &c->context) ||
        !tarn__gguf_get_int(&r->of, "embedding_length", 0, &c->hidden_size) ||
        !tarn__gguf_get_int(&r->of, "block_count", 0, &c->layers) ||
        !tarn__gguf_get_int(&r->of, "feed_forward_length", 0, &c->ffn_size) ||
        !tarn__gguf_get_int(&r->of, "attention.head_count", 0, &c->heads) ||
        !tarn__gguf_get_int(&r->of, "attention.head_count_kv", c->heads, &c->kv_heads) ||
        !tarn__gguf_get_real(&r->of, epsilon_key(r->arch), 0, &c->epsilon))
        return false;
    int64_t head = c->hidden_size / c->heads > 0 ? c->hidden_size / c->heads : 1;
    if (!r->arch->has_gqa && c->kv_heads != c->heads)
        return tarn__gguf_unsupported(&r->of, "this architecture with grouped-query attention");
    if (r->arch->has_gqa && (!tarn__gguf_get_int(&r->of, "attention.key_length", head, &c->head_dim) ||
                             !tarn__gguf_get_int(&r->of, "attention.value_length", c->head_dim, &values)))
        return false;
    if (r->arch->has_gqa && values != c->head_dim)
        return tarn__gguf_unsupported(&r->of, "a head_dim of values other than that of keys");
    head = c->head_dim ? c->head_dim : head;
    if (r->arch->has_rope && !tarn__gguf_get_int(&r->of, "rope.dimension_count", head, &c->rope.dims))
        return false;
    return tarn__gguf_get_vocab(&r->of, &c->vocab_size);
}

/* A set of layers under one of tarn's keys. */
static bool get_layers(const reader *r, const char *key, tarn_lm_layers *set)
{
    tarn_gguf_value value;
    int64_t numbers[TARN_LM_MAX_LAYERS];
    bool good = tarn_gguf_has(r->of.file, key, &value) && value.count <= r->c->layers &&
                tarn_gguf_ints(r->of.file, key, numbers, value.count);
    for (int64_t i = 0; good && i < value.count; i++) {
        good = numbers[i] >= 0 && numbers[i] < r->c->layers;
        if (good)
            tarn__layers_add(set, numbers[i]);
    }
    return good || tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%s' must be an array of layers' numbers", r->of.function,
                               r->of.file->path, key);
}

/* Windows, and layers without RoPE: under tarn's keys, or by the architecture's pattern. A window of 0 is none. */
static bool get_patterns(const reader *r)
{
    tarn_lm_config *c = r->c;
    tarn__gguf_path to;
    const tarn_gguf *file = r->of.file;
    if (r->arch->nope_interval) {
        if (!tarn_gguf_has(file, NO_ROPE, NULL))
            tarn__layers_add_pattern(&c->no_rope, c->layers, r->arch->nope_interval, true);
        else if (!get_layers(r, NO_ROPE, &c->no_rope))
            return false;
    }
    if (!tarn__gguf_has_key(&r->of, "attention.sliding_window"))
        return !tarn_failed();
    if (!tarn_gguf_int(file, tarn__gguf_key_of(r->of.architecture, "attention.sliding_window", &to), 0,
                       TARN__GGUF_MAX_INT, &c->window))
        return tarn__raise_within(r->of.function);
    if (c->window >= c->context && !r->arch->has_window)
        c->window = 0; /* it covers all positions */
    if (c->window && !r->arch->has_window)
        return tarn__gguf_unsupported(&r->of, "a sliding window of attention of this architecture");
    if (!c->window)
        return true;
    if (tarn_gguf_has(file, WINDOWS, NULL))
        return get_layers(r, WINDOWS, &c->windows);
    tarn__layers_add_pattern(&c->windows, c->layers, r->arch->window_pattern, false);
    return true;
}

/* A positive number under a key; 0: none. */
static bool get_optional(const reader *r, const char *rest, double *value)
{
    *value = 0;
    return !tarn__gguf_has_key(&r->of, rest) || tarn__gguf_get_real(&r->of, rest, 0, value);
}

/* Layers of the largest models of Gemma 2 and 3, whose scale of attention no key has. */
enum { GEMMA2_27B_LAYERS = 46, GEMMA3_27B_LAYERS = 62 };

/* Scales and soft caps. */
static bool get_scales(const reader *r)
{
    tarn_lm_config *c = r->c;
    double divisor = 0;
    if (r->arch->query_scalar > 0) {
        bool is_27b = c->layers == (r->arch->has_local_rope ? GEMMA3_27B_LAYERS : GEMMA2_27B_LAYERS);
        c->attention_scale = 1 / sqrt(is_27b ? (double)c->hidden_size / (double)c->heads : (double)c->head_dim);
    }
    if (tarn_gguf_has(r->of.file, SCALE, NULL) && !tarn_gguf_real(r->of.file, SCALE, &c->attention_scale))
        return tarn__raise_within(r->of.function);
    if (r->arch->has_softcaps && (!get_optional(r, "attn_logit_softcapping", &c->attention_softcap) ||
                                  !get_optional(r, "final_logit_softcapping", &c->logit_softcap)))
        return false;
    if (!r->arch->has_multipliers)
        return !tarn_failed();
    if (!get_optional(r, "attention.scale", &c->attention_scale) ||
        !get_optional(r, "embedding_scale", &c->embedding_scale) ||
        !get_optional(r, "residual_scale", &c->residual_scale) || !get_optional(r, "logit_scale", &divisor))
        return false;
    c->logit_scale = divisor > 0 ? 1 / divisor : 0;
    return true;
}

/* The activation under tarn's key, and the parallel residual. */
static bool get_switches(const reader *r)
{
    tarn__gguf_path to;
    tarn_activation_kind kind;
    bool is_parallel = true;
    if (tarn_gguf_has(r->of.file, SCALE_BY_LAYER, NULL) &&
        !tarn_gguf_bool(r->of.file, SCALE_BY_LAYER, &r->c->scale_by_layer))
        return tarn__raise_within(r->of.function);
    if (tarn_gguf_has(r->of.file, ACTIVATION, NULL)) {
        const char *name = tarn_gguf_string(r->of.file, ACTIVATION, NULL);
        if (!name)
            return tarn__raise_within(r->of.function);
        if (!tarn__activation_named(name, &kind, &r->c->activation))
            return tarn__gguf_unsupported(&r->of, "the activation under '" ACTIVATION "'");
    }
    if (r->arch->is_parallel && tarn__gguf_has_key(&r->of, "use_parallel_residual") &&
        !tarn_gguf_bool(r->of.file, tarn__gguf_key_of(r->of.architecture, "use_parallel_residual", &to), &is_parallel))
        return tarn__raise_within(r->of.function);
    /* as in llama.cpp, whose converter writes true where config.json has no such key */
    if (r->arch->has_one_norm)
        is_parallel = !has_tensor(r, "blk.0.ffn_norm.weight");
    r->c->sequential = !is_parallel;
    return !tarn_failed();
}

/* Dropout probabilities under tarn's key, or transformers' default. */
static bool get_dropouts(const reader *r)
{
    double p[3] = {r->arch->dropout, r->arch->dropout, r->arch->dropout};
    if (tarn_gguf_has(r->of.file, DROPOUT, NULL) && !tarn_gguf_reals(r->of.file, DROPOUT, p, 3))
        return tarn__raise_within(r->of.function);
    for (int i = 0; i < 3; i++)
        if (!(p[i] >= 0 && p[i] < 1))
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '" DROPOUT "' has %g; they must be from 0 to below 1",
                               r->of.function, r->of.file->path, p[i]);
    r->c->dropout = p[0];
    r->c->attention_dropout = p[1] > 0 ? p[1] : -1;
    r->c->embedding_dropout = p[2] > 0 ? p[2] : -1;
    return true;
}

static bool get_bos_eos(const reader *r)
{
    tarn_lm_config *c = r->c;
    tarn__gguf_bos_eos t;
    if (!tarn__gguf_get_bos_eos(&r->of, c->vocab_size, &t))
        return false;
    c->eos_count = r->arch->is_eos_bos && t.eos_count > 1 ? 1 : t.eos_count;
    memcpy(c->eos, t.eos, sizeof(*t.eos) * (size_t)c->eos_count);
    c->has_bos = r->arch->is_eos_bos ? c->eos_count > 0 : t.has_bos;
    c->bos = r->arch->is_eos_bos ? c->eos[0] : t.bos;
    return true;
}

/* The architecture, or the model_type under tarn's own key. */
static bool get_arch(reader *r)
{
    const char *type = r->of.architecture;
    if (tarn_gguf_has(r->of.file, FAMILY, NULL) && !(type = tarn_gguf_string(r->of.file, FAMILY, NULL)))
        return tarn__raise_within(r->of.function);
    const tarn__arch *arch = strcmp(type, r->of.architecture) == 0 ? r->arch : tarn__arch_find(type);
    if (!arch)
        arch = r->arch;
    if (strcmp(arch->gguf, r->of.architecture) != 0)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': tarn.family '%.64s' does not match the architecture %s",
                           r->of.function, r->of.file->path, type, r->of.architecture);
    r->arch = arch;
    r->c->arch = arch->type;
    return true;
}

/* Biases that the architecture may have follow from the tensors. Others are raised by name, since the generic error
 * for an unknown tensor would say little. */
static bool get_biases(const reader *r)
{
    static const char *const biases[] = {"blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias",
                                         "blk.0.attn_output.bias"};
    bool found[4];
    for (int i = 0; i < 4; i++) {
        found[i] = has_tensor(r, biases[i]);
        bool is_fixed = r->arch->biases & (i < 3 ? TARN__BIAS_QKV : TARN__BIAS_O);
        bool may_be = r->arch->keys->attention_bias && !(i == 3 && r->arch->is_o_unbiased);
        if (found[i] && !is_fixed && !may_be)
            return tarn__raise(TARN_ERROR_UNSUPPORTED,
                               "%s: '%s': attention biases ('%s') of the architecture %s are not supported",
                               r->of.function, r->of.file->path, biases[i], r->of.architecture);
    }
    r->c->attention_bias = r->arch->keys->attention_bias &&
                           (found[0] || found[1] || found[2] || found[3] || has_tensor(r, "blk.0.attn_qkv.bias"));
    r->c->mlp_bias = r->arch->keys->mlp_bias && has_tensor(r, "blk.0.ffn_down.bias");
    return !tarn_failed();
}

/* Tied embeddings follow from the tensors. */
bool tarn__model_get_gguf(const char *function, const tarn_gguf *file, tarn_dtype dtype, tarn_lm_config *config)
{
    const char *architecture = tarn_gguf_string(file, TARN__GGUF_ARCHITECTURE, NULL);
    *config = (tarn_lm_config){.dtype = dtype};
    if (!architecture)
        return tarn__raise_within(function);
    reader r = {{function, architecture, file}, tarn__arch_in_gguf(function, file->path, architecture), config};
    if (!r.arch || !get_arch(&r) || !get_sizes(&r) || (r.arch->has_rope && !tarn__gguf_get_rope(&r)) ||
        !get_bos_eos(&r) || !get_biases(&r) || !get_patterns(&r) || !get_scales(&r) || !get_switches(&r) ||
        (r.arch->dropout > 0 && !get_dropouts(&r)) ||
        (tarn__gguf_has_key(&r.of, "expert_count") && !tarn__gguf_unsupported(&r.of, "a mixture of experts")))
        return false;
    config->tie_embeddings = !has_tensor(&r, "output.weight");
    return !tarn_failed() && tarn__model_complete(function, config);
}
