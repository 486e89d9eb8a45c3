/* config_write.c: configurations as config.json files, with the keys of transformers. */
#include <math.h>
#include <string.h>

#include "models/lm/config_json.h"

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static bool write_sizes(const tarn_lm_config *c, const tarn__arch *arch, tarn__json_file *json)
{
    const tarn__config_keys *keys = arch->keys;
    const struct {
        const char *key;
        int64_t value;
    } ints[] = {{"vocab_size", c->vocab_size},
                {keys->context, c->context},
                {arch->has_rope ? NULL : "n_ctx", c->context},
                {keys->layers, c->layers},
                {keys->heads, c->heads},
                {arch->has_gqa ? "num_key_value_heads" : NULL, c->kv_heads},
                {arch->has_gqa ? "head_dim" : NULL, c->head_dim},
                {keys->hidden_size, c->hidden_size},
                {keys->ffn_size, c->ffn_size}};
    bool good = true;
    for (size_t i = 0; good && i < sizeof(ints) / sizeof(ints[0]); i++)
        good = !ints[i].key || tarn__json_file_set_int(json, ints[i].key, ints[i].value);
    return good;
}

/* Reals by key; a NULL key is skipped. */
static bool write_reals(const tarn_lm_config *c, const tarn__arch *arch, tarn__json_file *json)
{
    const tarn__config_keys *keys = arch->keys;
    bool has_multipliers = arch->has_multipliers, has_softcaps = arch->has_softcaps;
    double scale = c->attention_scale > 0 ? c->attention_scale : 1 / sqrt((double)c->head_dim);
    const struct {
        const char *key;
        double value; /* NaN: null */
    } reals[] = {
        {keys->epsilon, c->epsilon},
        {"initializer_range", 0.02},
        {keys->dropout, c->dropout},
        {keys->attention_dropout, fmax(c->attention_dropout, 0)},
        {keys->embedding_dropout, fmax(c->embedding_dropout, 0)},
        {has_multipliers ? "embedding_multiplier" : NULL, c->embedding_scale > 0 ? c->embedding_scale : 1},
        {has_multipliers ? "residual_multiplier" : NULL, c->residual_scale > 0 ? c->residual_scale : 1},
        {has_multipliers ? "attention_multiplier" : NULL, scale},
        {has_multipliers ? "logits_scaling" : NULL, c->logit_scale > 0 ? 1 / c->logit_scale : 1},
        {has_softcaps ? "attn_logit_softcapping" : NULL, c->attention_softcap > 0 ? c->attention_softcap : NAN},
        {has_softcaps ? "final_logit_softcapping" : NULL, c->logit_softcap > 0 ? c->logit_softcap : NAN}};
    bool good = true;
    for (size_t i = 0; good && i < sizeof(reals) / sizeof(reals[0]); i++)
        good = !reals[i].key || tarn__json_file_set_real(json, reals[i].key, reals[i].value);
    return good;
}

/* 1 / scale², where it should have been a whole number: rounding made it another. */
static bool write_query_scalar(const tarn_lm_config *c, const tarn__arch *arch, tarn__json_file *json)
{
    double scalar = c->attention_scale > 0 ? 1 / (c->attention_scale * c->attention_scale) : (double)c->head_dim;
    if (!(arch->query_scalar > 0))
        return true;
    return fabs(scalar - round(scalar)) < 1e-9 * scalar
               ? tarn__json_file_set_int(json, "query_pre_attn_scalar", (int64_t)round(scalar))
               : tarn__json_file_set_real(json, "query_pre_attn_scalar", scalar);
}

/* The switches that config.json has. */
static bool write_bools(const tarn_lm_config *c, const tarn__arch *arch, tarn__json_file *json)
{
    const tarn__config_keys *keys = arch->keys;
    bool is_one_key = keys->mlp_bias && keys->attention_bias && strcmp(keys->mlp_bias, keys->attention_bias) == 0;
    bool good = tarn__json_file_set_bool(json, "tie_word_embeddings", c->tie_embeddings);
    if (good && keys->attention_bias)
        good = tarn__json_file_set_bool(json, keys->attention_bias, c->attention_bias);
    if (good && keys->mlp_bias && !is_one_key)
        good = tarn__json_file_set_bool(json, keys->mlp_bias, c->mlp_bias);
    if (good && arch->is_parallel)
        good = tarn__json_file_set_bool(json, "use_parallel_residual", !c->sequential);
    if (good && arch->is_scale_switched)
        good = tarn__json_file_set_bool(json, "scale_attn_weights", !(c->attention_scale > 0)) &&
               tarn__json_file_set_bool(json, "scale_attn_by_inverse_layer_idx", c->scale_by_layer);
    return good;
}

/* The window, and a list of layers that have it where some do not. */
static bool write_window(const tarn_lm_config *c, const tarn__arch *arch, tarn__json_file *json)
{
    if (!arch->has_window)
        return true;
    int64_t window = c->window ? c->window : arch->window_pattern ? arch->window : 0; /* which needs a number */
    bool good = window ? tarn__json_file_set_int(json, "sliding_window", window)
                       : tarn__json_file_set_real(json, "sliding_window", NAN); /* null: none */
    if (good && arch->is_window_switched)
        good = tarn__json_file_set_bool(json, "use_sliding_window", c->window > 0);
    bool is_listed = arch->is_window_switched || arch->window_pattern;
    for (int64_t i = 0; good && is_listed && i < c->layers; i++)
        good = tarn__json_file_add_string(json, "layer_types",
                                          tarn__layer_has_window(c, i) ? "sliding_attention" : "full_attention");
    return good;
}

static bool write_no_rope(const tarn_lm_config *c, const tarn__arch *arch, tarn__json_file *json)
{
    bool good = true;
    for (int64_t i = 0; good && arch->nope_interval && i < c->layers; i++)
        good = tarn__json_file_add_int(json, "no_rope_layers", tarn__layer_has_rope(c, i));
    return good;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* A token, or null. */
static bool write_token(tarn__json_file *json, const char *member, bool is_one, int64_t token)
{
    return is_one ? tarn__json_file_set_int(json, member, token) : tarn__json_file_set_real(json, member, NAN);
}

static bool write_tokens(const tarn_lm_config *c, tarn__json_file *json)
{
    /* transformers' default of some architectures is a token, which a vocabulary may lack */
    if (!write_token(json, "pad_token_id", false, 0) || !write_token(json, "bos_token_id", c->has_bos, c->bos))
        return false;
    if (c->eos_count < 2)
        return write_token(json, "eos_token_id", c->eos_count > 0, c->eos[0]);
    bool good = true;
    for (int i = 0; good && i < c->eos_count; i++)
        good = tarn__json_file_add_int(json, "eos_token_id", c->eos[i]);
    return good;
}

bool tarn__model_write_config(const tarn_lm_config *c, tarn__json_file *json)
{
    const tarn__arch *arch = tarn__arch_of_config(c);
    return tarn__json_file_set_string(json, "model_type", arch->type) &&
           tarn__json_file_add_string(json, "architectures", arch->hf_class) &&
           tarn__json_file_set_string(json, arch->keys->activation, c->activation) &&
           tarn__json_file_set_string(json, "torch_dtype", tarn__torch_name(c->dtype)) && write_sizes(c, arch, json) &&
           write_reals(c, arch, json) && write_query_scalar(c, arch, json) && write_bools(c, arch, json) &&
           write_window(c, arch, json) && write_no_rope(c, arch, json) &&
           (!arch->has_rope || tarn__config_write_rope(c, json)) && write_tokens(c, json);
}
