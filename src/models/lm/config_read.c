/* config_read.c: configurations from config.json files, and weights of model.safetensors.
 *
 * Settings that tarn does not support are errors that name them: a model must never be computed as something else
 * than it is. */
#include <math.h>
#include <string.h>

#include "models/lm/config_json.h"

#define MAX_SIZE INT32_MAX

/* ---- members ----------------------------------------------------------------------------------------------------- */

bool tarn__config_has(const tarn__config_reader *r, const char *key)
{
    tarn__member_kind kind = key ? tarn__json_file_kind(r->json, key) : TARN__MEMBER_MISSING;
    return kind != TARN__MEMBER_MISSING && kind != TARN__MEMBER_NULL;
}

bool tarn__config_unsupported(const tarn__config_reader *r, const char *key, const char *what)
{
    return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: config.json: \"%s\": %s is not supported", r->function, key, what);
}

/* An integer, or the architecture's default. */
static bool int_or(const tarn__config_reader *r, const char *key, int64_t default_value, int64_t *value)
{
    *value = default_value;
    return !tarn__config_has(r, key) || tarn__json_file_int(r->json, key, 1, MAX_SIZE, value);
}

bool tarn__config_real(const tarn__config_reader *r, const char *key, double default_value, double *value)
{
    *value = default_value;
    if (tarn__config_has(r, key) && !tarn__json_file_real(r->json, key, value))
        return false;
    return (*value > 0 && isfinite(*value)) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"%s\" is %g; it must be a number above 0", r->function,
                       key, *value);
}

/* A positive number; 0 if the key is missing or null. */
static bool real_or_none(const tarn__config_reader *r, const char *key, double *value)
{
    *value = 0;
    return !tarn__config_has(r, key) || tarn__config_real(r, key, 0, value);
}

static bool bool_or(const tarn__config_reader *r, const char *key, bool default_value, bool *value)
{
    *value = default_value;
    return !tarn__config_has(r, key) || tarn__json_file_bool(r->json, key, value);
}

/* Raises a switch that is on. */
static bool check_off(const tarn__config_reader *r, const char *key)
{
    bool on;
    return bool_or(r, key, false, &on) && (!on || tarn__config_unsupported(r, key, "true"));
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Sizes, with transformers' defaults of the architecture for missing keys. */
static bool read_sizes(tarn__config_reader *r)
{
    tarn_lm_config *c = &r->c;
    const tarn__config_keys *keys = r->arch->keys;
    const tarn__json_file *d = r->json;
    if (!tarn__json_file_int(d, "vocab_size", 1, MAX_SIZE, &c->vocab_size) ||
        !tarn__json_file_int(d, keys->context, 1, MAX_SIZE, &c->context) ||
        !tarn__json_file_int(d, keys->layers, 1, MAX_SIZE, &c->layers) ||
        !tarn__json_file_int(d, keys->heads, 1, MAX_SIZE, &c->heads) ||
        !tarn__json_file_int(d, keys->hidden_size, 1, MAX_SIZE, &c->hidden_size) ||
        !(r->arch->has_rope ? tarn__json_file_int(d, keys->ffn_size, 1, MAX_SIZE, &c->ffn_size)
                            : int_or(r, keys->ffn_size, 4 * c->hidden_size, &c->ffn_size)) ||
        !tarn__config_real(r, keys->epsilon, r->arch->epsilon, &c->epsilon))
        return false;
    if (!r->arch->has_gqa)
        return true;
    return int_or(r, "num_key_value_heads", r->arch->kv_heads ? r->arch->kv_heads : c->heads, &c->kv_heads) &&
           int_or(r, "head_dim", r->arch->head_dim, &c->head_dim);
}

/* ---- attention and MLP ------------------------------------------------------------------------------------------- */

/* Biases that the architecture always has need no key; a key that it lacks must be off. */
static bool read_biases(tarn__config_reader *r)
{
    const tarn__config_keys *keys = r->arch->keys;
    if (keys->attention_bias ? !bool_or(r, keys->attention_bias, r->arch->has_biases, &r->c.attention_bias)
                             : !check_off(r, "attention_bias"))
        return false;
    return keys->mlp_bias ? bool_or(r, keys->mlp_bias, r->arch->has_biases, &r->c.mlp_bias) : check_off(r, "mlp_bias");
}

static bool read_activation(tarn__config_reader *r)
{
    const char *key = r->arch->is_legacy_gelu && tarn__config_has(r, "hidden_activation") ? "hidden_activation"
                                                                                          : r->arch->keys->activation;
    bool is_there = r->arch->is_legacy_gelu ? tarn__config_has(r, key) : tarn__json_file_has(r->json, key);
    const char *name = is_there ? tarn__json_file_string(r->json, key) : NULL;
    if (!name) {
        r->c.activation = r->arch->activation;
        return !tarn_failed();
    }
    /* Gemma's first files say gelu and mean its tanh form */
    tarn_activation_kind kind;
    bool is_tanh = r->arch->is_legacy_gelu && strcmp(name, "gelu") == 0;
    return tarn__activation_named(is_tanh ? r->arch->activation : name, &kind, &r->c.activation) ||
           tarn__raise(TARN_ERROR_UNSUPPORTED,
                       "%s: config.json: the %s '%.64s' is not supported; silu, gelu, gelu_pytorch_tanh and relu are",
                       r->function, key, name);
}

/* Dropout probabilities, in [0, 1). None is -1 in the configuration, where 0 means "as dropout". */
static bool read_dropouts(tarn__config_reader *r)
{
    const tarn__config_keys *keys = r->arch->keys;
    const struct {
        const char *key;
        double *to;
    } rows[] = {{keys->dropout, &r->c.dropout},
                {keys->attention_dropout, &r->c.attention_dropout},
                {keys->embedding_dropout, &r->c.embedding_dropout}};
    for (int i = 0; i < 3; i++) {
        double p = rows[i].key ? r->arch->dropout : 0;
        if (i == 2 && keys->dropout && !keys->embedding_dropout)
            break; /* as dropout */
        if (rows[i].key && tarn__json_file_has(r->json, rows[i].key) && !tarn__json_file_real(r->json, rows[i].key, &p))
            return false;
        if (isnan(p) && !(r->arch->dropout > 0))
            p = 0; /* null */
        if (!(p >= 0 && p < 1))
            return tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"%s\" is %g; it must be from 0 to below 1",
                               r->function, rows[i].key, p);
        *rows[i].to = p > 0 || i == 0 ? p : -1;
    }
    return true;
}

/* ---- windows and layers without RoPE ----------------------------------------------------------------------------- */

/* Layers with a window where the file has no list of them. */
static bool default_windows(tarn__config_reader *r)
{
    tarn_lm_config *c = &r->c;
    int64_t first = 0, pattern = r->arch->window_pattern;
    if (r->arch->nope_interval) { /* layers without RoPE have it */
        c->windows = c->no_rope;
        return true;
    }
    if (r->arch->is_window_switched && !int_or(r, "max_window_layers", 28, &first))
        return false;
    if (r->arch->has_local_rope && !int_or(r, "sliding_window_pattern", pattern, &pattern))
        return false;
    for (int64_t i = first; i < c->layers; i++)
        if (!pattern || (i + 1) % pattern)
            tarn__layers_add(&c->windows, i);
    return true;
}

/* The list of layers' types, checked even where the window is off. */
static bool read_layer_types(tarn__config_reader *r, bool has_window)
{
    size_t count = 0;
    bool good = tarn__json_file_count(r->json, "layer_types", MAX_SIZE, &count);
    if (good && (int64_t)count != r->c.layers)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"layer_types\" has %zu elements for %lld layers",
                           r->function, count, (long long)r->c.layers);
    for (size_t i = 0; good && i < count; i++) {
        const char *type = tarn__json_file_string_at(r->json, "layer_types", i);
        bool is_window = type && strcmp(type, "sliding_attention") == 0;
        good = type && ((is_window && has_window) || strcmp(type, "full_attention") == 0 ||
                        tarn__config_unsupported(r, "layer_types", type));
        if (good && is_window)
            tarn__layers_add(&r->c.windows, (int64_t)i);
    }
    return good;
}

/* A window that no layer has is none. */
static bool read_window(tarn__config_reader *r)
{
    static const tarn_lm_layers none;
    tarn_lm_config *c = &r->c;
    bool on = r->arch->has_window;
    if (r->arch->is_window_switched || !on) {
        if (!bool_or(r, "use_sliding_window", false, &on))
            return false;
        if (on && !r->arch->has_window)
            return tarn__config_unsupported(r, "use_sliding_window", "true");
    }
    int64_t window = r->arch->window;
    if (on && tarn__json_file_has(r->json, "sliding_window")) {
        window = 0;
        if (tarn__config_has(r, "sliding_window") &&
            !tarn__json_file_int(r->json, "sliding_window", 1, MAX_SIZE, &window))
            return false;
    }
    on = on && window > 0;
    if (tarn__config_has(r, "layer_types") ? !read_layer_types(r, on) : on && !default_windows(r))
        return false;
    c->window = on && memcmp(&c->windows, &none, sizeof(none)) != 0 ? window : 0;
    return true;
}

/* no_rope_layers has a 1 for layers with RoPE. */
static bool read_no_rope(tarn__config_reader *r)
{
    tarn_lm_config *c = &r->c;
    int64_t interval = r->arch->nope_interval, has_rope;
    size_t count = 0;
    if (!interval)
        return true;
    if (!tarn__config_has(r, "no_rope_layers")) {
        if (!int_or(r, "no_rope_layer_interval", interval, &interval))
            return false;
        for (int64_t i = interval - 1; i < c->layers; i += interval)
            tarn__layers_add(&c->no_rope, i);
        return true;
    }
    bool good = tarn__json_file_count(r->json, "no_rope_layers", MAX_SIZE, &count);
    if (good && (int64_t)count < c->layers)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"no_rope_layers\" has %zu elements for %lld layers",
                           r->function, count, (long long)c->layers);
    for (int64_t i = 0; good && i < c->layers; i++) {
        good = tarn__json_file_int_at(r->json, "no_rope_layers", (size_t)i, 0, 1, &has_rope);
        if (good && !has_rope)
            tarn__layers_add(&c->no_rope, i);
    }
    return good;
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

/* GPT-2's switches of the attention scale. */
static bool read_scale_switches(tarn__config_reader *r)
{
    bool scaled;
    if (!bool_or(r, "scale_attn_weights", true, &scaled) ||
        !bool_or(r, "scale_attn_by_inverse_layer_idx", false, &r->c.scale_by_layer))
        return false;
    r->c.attention_scale = scaled ? 0 : 1;
    return true;
}

static bool read_multipliers(tarn__config_reader *r)
{
    double divisor;
    if (!tarn__config_real(r, "embedding_multiplier", 1, &r->c.embedding_scale) ||
        !tarn__config_real(r, "residual_multiplier", 1, &r->c.residual_scale) ||
        !tarn__config_real(r, "attention_multiplier", 1, &r->c.attention_scale) ||
        !tarn__config_real(r, "logits_scaling", 1, &divisor))
        return false;
    r->c.logit_scale = 1 / divisor;
    return true;
}

/* A soft cap; null is none. */
static bool read_softcap(const tarn__config_reader *r, const char *key, double default_value, double *value)
{
    *value = default_value;
    return !tarn__json_file_has(r->json, key) || real_or_none(r, key, value);
}

static bool read_scales(tarn__config_reader *r)
{
    double scalar;
    bool is_parallel = true;
    if (r->arch->is_parallel && !bool_or(r, "use_parallel_residual", !r->arch->is_sequential, &is_parallel))
        return false;
    r->c.sequential = !is_parallel;
    if (r->arch->is_scale_switched && !read_scale_switches(r))
        return false;
    if (r->arch->has_multipliers && !read_multipliers(r))
        return false;
    if (r->arch->query_scalar > 0) {
        if (!tarn__config_real(r, "query_pre_attn_scalar", r->arch->query_scalar, &scalar))
            return false;
        r->c.attention_scale = 1 / sqrt(scalar);
    }
    return !r->arch->has_softcaps ||
           ((!(r->arch->attention_softcap > 0) ||
             read_softcap(r, "attn_logit_softcapping", r->arch->attention_softcap, &r->c.attention_softcap)) &&
            read_softcap(r, "final_logit_softcapping", r->arch->logit_softcap, &r->c.logit_softcap));
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* transformers writes its own default tokens into the configuration of models that lack them; those outside the
 * vocabulary are ignored. */
static bool is_in_vocab(const tarn_lm_config *c, int64_t token)
{
    return token >= 0 && token < c->vocab_size;
}

/* Adds an EOS token, once. */
static bool add_eos(tarn__config_reader *r, int64_t token)
{
    tarn_lm_config *c = &r->c;
    bool is_known = false;
    for (int i = 0; i < c->eos_count; i++)
        is_known |= c->eos[i] == token;
    if (is_known || !is_in_vocab(c, token))
        return true;
    if (c->eos_count == TARN_MODEL_MAX_EOS)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: config.json and generation_config.json have more than %d EOS tokens", r->function,
                           TARN_MODEL_MAX_EOS);
    c->eos[c->eos_count++] = token;
    return true;
}

/* One EOS token, or a list of them. */
static bool read_eos(tarn__config_reader *r, const char *member)
{
    size_t count = 0;
    int64_t token;
    bool is_list = tarn__json_file_kind(r->json, member) == TARN__MEMBER_ARRAY;
    if (!tarn__config_has(r, member))
        return true;
    if (!is_list)
        return tarn__json_file_int(r->json, member, INT64_MIN, INT64_MAX, &token) && add_eos(r, token);
    bool good = tarn__json_file_count(r->json, member, TARN_MODEL_MAX_EOS, &count);
    for (size_t i = 0; good && i < count; i++)
        good = tarn__json_file_int_at(r->json, member, i, INT64_MIN, INT64_MAX, &token) && add_eos(r, token);
    return good;
}

/* EOS tokens of generation_config.json are added to those of config.json, as transformers stops at both. */
static bool read_bos_eos(tarn__config_reader *r)
{
    tarn_lm_config *c = &r->c;
    if (tarn__config_has(r, "bos_token_id") &&
        !tarn__json_file_int(r->json, "bos_token_id", INT64_MIN, INT64_MAX, &c->bos))
        return false;
    c->has_bos = tarn__config_has(r, "bos_token_id") && is_in_vocab(c, c->bos);
    if (!read_eos(r, "eos_token_id") || !read_eos(r, TARN__GENERATION_EOS))
        return false;
    if (r->arch->is_eos_bos) {
        c->has_bos = c->eos_count > 0;
        c->bos = c->eos[0];
    }
    return true;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* Raises a switch that is on, or a number other than 0. */
static bool check_refused(const tarn__config_reader *r, const char *key)
{
    double value = 0;
    if (tarn__json_file_kind(r->json, key) != TARN__MEMBER_NUMBER)
        return check_off(r, key);
    return tarn__json_file_real(r->json, key, &value) &&
           (value == 0 || tarn__config_unsupported(r, key, "a number other than 0"));
}

/* Raises everything else that tarn does not compute. */
static bool check_rest(const tarn__config_reader *r)
{
    for (const char *const *key = r->arch->keys->refused; key && *key; key++)
        if (!check_refused(r, *key))
            return false;
    if (tarn__config_has(r, "quantization_config"))
        return tarn__config_unsupported(r, "quantization_config", "a format of another program");
    return check_off(r, "add_cross_attention") && check_off(r, "use_bidirectional_attention");
}

bool tarn__model_read_config(const char *function, const tarn__json_file *document, tarn_dtype dtype,
                             tarn_lm_config *config)
{
    const char *type = tarn__json_file_string(document, "model_type");
    tarn__config_reader r = {
        .function = function, .json = document, .arch = type ? tarn__arch_find(type) : NULL, .c = {.dtype = dtype}};
    if (!r.arch)
        return false;
    r.c.arch = r.arch->type;
    bool good = read_sizes(&r) && (!r.arch->has_rope || tarn__config_read_rope(&r)) && read_no_rope(&r) &&
                read_bos_eos(&r) && check_rest(&r) && read_biases(&r) && read_activation(&r) && read_dropouts(&r) &&
                read_window(&r) && read_scales(&r) &&
                bool_or(&r, "tie_word_embeddings", r.arch->is_tied, &r.c.tie_embeddings);
    *config = r.c;
    return good && tarn__model_complete(function, config);
}

tarn_module *tarn__model_from_config(const char *function, const tarn__json_file *document, tarn_dtype dtype,
                                     const tarn__device_map *map)
{
    tarn_lm_config c;
    return tarn__model_read_config(function, document, dtype, &c) ? tarn__model_make(function, &c, map, false, NULL)
                                                                  : NULL;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* True for a file of the body alone, whose names lack the body's prefix, such as the first published GPT-2. */
static bool is_body(const tarn__arch *arch, const tarn_safetensors *file)
{
    char name[64];
    snprintf(name, sizeof(name), "%s.weight", arch->names->top[0].folder);
    return arch->names->may_lack_body && tarn_safetensors_find(file, name) >= 0;
}

bool tarn__model_load(const char *function, tarn_module *model, const char *path)
{
    const tarn__model_ctx *ctx = model->ctx;
    const tarn__arch *arch = ctx->arch;
    tarn_safetensors *file = tarn_safetensors_open(path);
    if (!file)
        return tarn__raise_within(function);
    bool of_body = is_body(arch, file);
    bool good = !(of_body && !ctx->config.tie_embeddings) ||
                tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no '%s.weight', but tie_word_embeddings is false",
                            function, path, arch->names->head);
    good = good && tarn__weights_load(function, of_body ? model->child[TARN__MODEL_BODY] : model, file, path,
                                      arch->label ? arch->label : arch->type, arch->names->ignored);
    tarn_safetensors_close(file);
    return good;
}
