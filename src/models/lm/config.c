/* config.c: configurations of language models: checks, defaults, and what follows from them.
 *
 * tarn__model_complete() is the one way from a configuration with zeros for defaults to a complete one, and a
 * complete one passes through it unchanged: models, files and checkpoints all go through it. What it refuses could
 * not be built, or could not be written back as its model_type. */
#include <math.h>
#include <string.h>

#include "models/lm/arch.h"

#define MAX_SIZE INT32_MAX                  /* products of two sizes fit 64 bits */
#define MAX_HEAD_DIM (2 * TARN__ROPE_PAIRS) /* that RoPE supports */

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Raises sizes out of range. Zero is a default where the lower bound is 0; a gated MLP has no default FFN size, so
 * its bound is 1. */
static bool check_sizes(const char *function, const tarn_lm_config *c, const tarn__arch *arch)
{
    const struct {
        const char *name;
        int64_t value, low, high;
    } rows[] = {{"vocab_size", c->vocab_size, 1, MAX_SIZE},
                {"context", c->context, 1, MAX_SIZE},
                {"layers", c->layers, 1, TARN_LM_MAX_LAYERS},
                {"heads", c->heads, 1, MAX_SIZE},
                {"hidden_size", c->hidden_size, 1, MAX_SIZE},
                {"ffn_size", c->ffn_size, arch->is_gated, MAX_SIZE},
                {"kv_heads", c->kv_heads, 0, MAX_SIZE},
                {"head_dim", c->head_dim, 0, MAX_HEAD_DIM},
                {"window", c->window, 0, MAX_SIZE},
                {"rope_original_context", c->rope.original_context, 0, INT64_MAX}};
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

static bool check_numbers(const char *function, const tarn_lm_config *c)
{
    const struct {
        const char *name;
        double value;
    } rows[] = {{"epsilon", c->epsilon},
                {"rope_theta", c->rope.base},
                {"rope_local_base", c->rope_local_base},
                {"rope_factor", c->rope.factor},
                {"rope_low_freq_factor", c->rope.low_freq_factor},
                {"rope_high_freq_factor", c->rope.high_freq_factor},
                {"attention_scale", c->attention_scale},
                {"attention_softcap", c->attention_softcap},
                {"logit_softcap", c->logit_softcap},
                {"embedding_scale", c->embedding_scale},
                {"residual_scale", c->residual_scale},
                {"logit_scale", c->logit_scale}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (!check_number(function, rows[i].name, rows[i].value))
            return false;
    /* comparisons are written so that NaN fails them */
    return (c->dropout >= 0 && c->dropout < 1 && c->attention_dropout < 1 && c->embedding_dropout < 1) ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "%s: .dropout is %g, .attention_dropout %g, .embedding_dropout %g; they must be below 1, "
                       "the first at least 0",
                       function, c->dropout, c->attention_dropout, c->embedding_dropout);
}

/* Raises invalid RoPE settings; 0 stands for a default, so low and high are compared with defaults resolved. The
 * range test by unsigned also catches negative numbers. */
static bool check_rope(const char *function, const tarn_lm_config *c)
{
    if ((unsigned)c->rope.scaling > TARN_ROPE_LONGROPE)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .rope_scaling is %d; it must be one of TARN_ROPE_…", function,
                           (int)c->rope.scaling);
    double low = c->rope.low_freq_factor > 0 ? c->rope.low_freq_factor : 1,
           high = c->rope.high_freq_factor > 0 ? c->rope.high_freq_factor : 4;
    return c->rope.scaling != TARN_ROPE_LLAMA3 || low < high ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "%s: .rope_low_freq_factor is %g; it must be below .rope_high_freq_factor, which is %g",
                       function, low, high);
}

/* Raises a setting that the architecture does not have: such a model could not be saved as its model_type. */
static bool check_features(const char *function, const tarn_lm_config *c, const tarn__arch *arch)
{
    const char *wrong =
        c->attention_bias && !arch->keys->attention_bias                    ? "attention_bias"
        : c->mlp_bias && !arch->keys->mlp_bias                              ? "mlp_bias"
        : c->window && !arch->has_window                                    ? "window"
        : (c->attention_softcap || c->logit_softcap) && !arch->has_softcaps ? "attention_softcap or .logit_softcap"
        : (c->residual_scale || c->logit_scale) && !arch->has_multipliers   ? "residual_scale or .logit_scale"
        : c->sequential && !arch->is_parallel                               ? "sequential"
        : c->scale_by_layer && !arch->is_scale_switched                     ? "scale_by_layer"
        : c->dropout > 0 && !arch->keys->dropout                            ? "dropout"
                                                                            : NULL;
    return !wrong || tarn__raise(TARN_ERROR_ARGUMENT, "%s: .%s is set, but .arch is %s, which does not have it",
                                 function, wrong, arch->type);
}

/* Raises a token outside the vocabulary. */
static bool check_token(const char *function, const char *name, int64_t token, int64_t vocab_size)
{
    return (token >= 0 && token < vocab_size) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .%s is token %lld; the vocabulary has %lld", function, name,
                       (long long)token, (long long)vocab_size);
}

static bool check_tokens(const char *function, const tarn_lm_config *c)
{
    if (c->eos_count < 0 || c->eos_count > TARN_MODEL_MAX_EOS)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .eos_count is %d; it must be from 0 to %d", function, c->eos_count,
                           TARN_MODEL_MAX_EOS);
    bool good = !c->has_bos || check_token(function, "bos", c->bos, c->vocab_size);
    for (int i = 0; good && i < c->eos_count; i++)
        good = check_token(function, "eos", c->eos[i], c->vocab_size);
    return good;
}

/* Raises a head that RoPE cannot rotate. */
static bool check_head(const char *function, const tarn_lm_config *c, const tarn__arch *arch)
{
    int64_t head = c->head_dim ? c->head_dim : c->hidden_size / c->heads;
    if (arch->has_rope && (head % 2 || head < 2 || head > MAX_HEAD_DIM))
        return tarn__raise(TARN_ERROR_SHAPE, "%s: head_dim is %lld; RoPE needs an even number from 2 to %d", function,
                           (long long)head, MAX_HEAD_DIM);
    return (c->rope.dims >= 0 && c->rope.dims % 2 == 0 && c->rope.dims <= head) ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: .rope.dims is %lld; it must be an even number up to head_dim, %lld",
                       function, (long long)c->rope.dims, (long long)head);
}

/* Raises an invalid configuration. */
static bool check(const char *function, const tarn_lm_config *c, const tarn__arch *arch)
{
    if (!check_sizes(function, c, arch) || !check_numbers(function, c) || !check_rope(function, c) ||
        !check_features(function, c, arch) || !check_tokens(function, c))
        return false;
    if ((unsigned)c->recompute > TARN_RECOMPUTE_FULL)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: .recompute is %d; it must be TARN_RECOMPUTE_NONE, _SELECTIVE or _FULL", function,
                           (int)c->recompute);
    return check_head(function, c, arch) && tarn__check_parameter_dtype(function, c->dtype);
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* Names of transformers; the result's string is the table's, so a configuration may keep it. "gelu" is the exact one
 * with erf(), the other two are the approximation by tanh(). */
bool tarn__activation_named(const char *name, tarn_activation_kind *kind, const char **static_name)
{
    static const struct {
        const char *name;
        tarn_activation_kind kind;
    } rows[] = {{"silu", TARN_SILU},     {"swish", TARN_SILU},    {"gelu_pytorch_tanh", TARN_GELU},
                {"gelu_new", TARN_GELU}, {"gelu", TARN_GELU_ERF}, {"relu", TARN_RELU}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(name, rows[i].name) == 0) {
            *kind = rows[i].kind;
            *static_name = rows[i].name;
            return true;
        }
    return false;
}

/* ---- defaults ---------------------------------------------------------------------------------------------------- */

/* Zero stands for the default. */
static double or_else(double value, double default_value)
{
    return value > 0 ? value : default_value;
}

/* Of one place: 0 stands for the common one, and below 0 is none, so that a complete configuration has no zero that
 * would be resolved again. */
double tarn__model_dropout(double own, double common)
{
    double p = own == 0 ? common : own;
    return p > 0 ? p : -1;
}

bool tarn__layers_have(const tarn_lm_layers *set, int64_t layer)
{
    return set->bits[layer / 64] >> layer % 64 & 1;
}

void tarn__layers_add(tarn_lm_layers *set, int64_t layer)
{
    set->bits[layer / 64] |= UINT64_C(1) << layer % 64;
}

/* Every n-th layer, counted from 1, or all but those; n 0: all. */
void tarn__layers_add_pattern(tarn_lm_layers *set, int64_t layers, int64_t n, bool is_nth)
{
    for (int64_t i = 0; i < layers; i++)
        if (!n || ((i + 1) % n == 0) == is_nth)
            tarn__layers_add(set, i);
}

static bool is_empty(const tarn_lm_layers *set)
{
    static const tarn_lm_layers none;
    return memcmp(set, &none, sizeof(none)) == 0;
}

bool tarn__model_complete(const char *function, tarn_lm_config *c)
{
    const tarn__arch *arch = tarn__arch_find(c->arch ? c->arch : "llama");
    if (!arch)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .arch '%.64s' is not supported", function, c->arch);
    tarn_activation_kind kind;
    if (!check(function, c, arch))
        return false;
    if (!tarn__activation_named(c->activation ? c->activation : arch->activation, &kind, &c->activation))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .activation '%.64s' is not supported", function, c->activation);
    c->arch = arch->type;
    c->ffn_size = c->ffn_size ? c->ffn_size : 4 * c->hidden_size;
    c->kv_heads = c->kv_heads ? c->kv_heads : c->heads;
    c->head_dim = c->head_dim ? c->head_dim : c->hidden_size / c->heads;
    c->epsilon = or_else(c->epsilon, 1e-5);
    c->rope.base = or_else(c->rope.base, or_else(arch->rope_base, 10000));
    if (!c->rope.dims && arch->has_rope)
        c->rope.dims = (int64_t)(or_else(arch->rotary_factor, 1) * (double)c->head_dim);
    c->rope.factor = or_else(c->rope.factor, 8);
    c->rope.low_freq_factor = or_else(c->rope.low_freq_factor, 1);
    c->rope.high_freq_factor = or_else(c->rope.high_freq_factor, 4);
    c->rope.original_context = c->rope.original_context ? c->rope.original_context : 8192;
    if (c->window && is_empty(&c->windows))
        tarn__layers_add_pattern(&c->windows, c->layers, 0, false);
    if (arch->is_embedding_scaled)
        c->embedding_scale = or_else(c->embedding_scale, sqrt((double)c->hidden_size));
    c->attention_dropout = tarn__model_dropout(c->attention_dropout, c->dropout);
    c->embedding_dropout = tarn__model_dropout(c->embedding_dropout, c->dropout);
    return true;
}

/* ---- what follows ------------------------------------------------------------------------------------------------ */

const tarn__arch *tarn__arch_of_config(const tarn_lm_config *config)
{
    return tarn__arch_find(config->arch);
}

bool tarn__layer_has_window(const tarn_lm_config *c, int64_t layer)
{
    return c->window && tarn__layers_have(&c->windows, layer);
}

bool tarn__layer_has_rope(const tarn_lm_config *c, int64_t layer)
{
    return tarn__arch_of_config(c)->has_rope && !tarn__layers_have(&c->no_rope, layer);
}

/* Whether the layers (or the model) have a module of a role: an architecture that stores q, k and v in one matrix
 * has QKV instead of the three. */
bool tarn__model_has(const tarn_lm_config *c, tarn__role role)
{
    const tarn__arch *arch = tarn__arch_of_config(c);
    bool one_qkv = arch->fused & TARN__FUSED_QKV, one_gate_up = arch->fused & TARN__FUSED_GATE_UP;
    switch (role) {
    case TARN__ROLE_POSITIONS: return !arch->has_rope;
    case TARN__ROLE_ATTENTION_NORM: return arch->norms & TARN__NORMS_PRE;
    case TARN__ROLE_MLP_NORM: return arch->norms & TARN__NORMS_PRE && (!arch->has_one_norm || c->sequential);
    case TARN__ROLE_ATTENTION_POST:
    case TARN__ROLE_MLP_POST: return arch->norms & TARN__NORMS_POST;
    case TARN__ROLE_Q:
    case TARN__ROLE_K:
    case TARN__ROLE_V: return !one_qkv;
    case TARN__ROLE_QKV: return one_qkv;
    case TARN__ROLE_Q_NORM:
    case TARN__ROLE_K_NORM: return arch->qk_norm != TARN__QK_NORM_NONE;
    case TARN__ROLE_GATE: return arch->is_gated && !one_gate_up;
    case TARN__ROLE_UP: return !one_gate_up;
    case TARN__ROLE_GATE_UP: return one_gate_up;
    default: return true;
    }
}

bool tarn__model_has_bias(const tarn_lm_config *c, tarn__role role)
{
    const tarn__arch *arch = tarn__arch_of_config(c);
    switch (role) {
    case TARN__ROLE_Q:
    case TARN__ROLE_K:
    case TARN__ROLE_V:
    case TARN__ROLE_QKV: return c->attention_bias || arch->biases & TARN__BIAS_QKV;
    case TARN__ROLE_O: return (c->attention_bias && !arch->is_o_unbiased) || arch->biases & TARN__BIAS_O;
    case TARN__ROLE_GATE:
    case TARN__ROLE_UP:
    case TARN__ROLE_GATE_UP:
    case TARN__ROLE_DOWN: return c->mlp_bias || arch->biases & TARN__BIAS_MLP;
    case TARN__ROLE_NORM:
    case TARN__ROLE_ATTENTION_NORM:
    case TARN__ROLE_MLP_NORM: return arch->norm == TARN__NORM_LAYER;
    default: return false;
    }
}
