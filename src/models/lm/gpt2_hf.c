/* gpt2_hf.c: GPT-2 in Hugging Face folders: keys of config.json, and tensor names of model.safetensors. */
#include <math.h>
#include <string.h>

#include "models/hf/weights.h"
#include "models/lm/gpt2.h"

#define MAX_SIZE INT32_MAX

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* A number, or transformers' default if the key is missing. */
static bool real_or(const tarn__json_file *config, const char *key, double default_value, double *value)
{
    *value = default_value;
    return !tarn__json_file_has(config, key) || tarn__json_file_real(config, key, value);
}

/* An integer; *there is false if the key is missing or null. */
static bool int_or_none(const tarn__json_file *config, const char *key, int64_t *value, bool *there)
{
    double number = NAN;
    *there = false;
    if (!real_or(config, key, NAN, &number))
        return false;
    *there = !isnan(number);
    return !*there || tarn__json_file_int(config, key, INT64_MIN, INT64_MAX, value);
}

/* Raises a switch that tarn does not support. */
static bool check_switch(const char *function, const tarn__json_file *config, const char *key, bool wanted)
{
    bool value = wanted;
    if (tarn__json_file_has(config, key) && !tarn__json_file_bool(config, key, &value))
        return false;
    return value == wanted ||
           tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: config.json: a GPT-2 with \"%s\": %s is not supported", function,
                       key, value ? "true" : "false");
}

/* Raises any other activation than the tanh form of GELU, which has several names. */
static bool check_activation(const char *function, const tarn__json_file *config)
{
    static const char *const key = "activation_function";
    const char *name = tarn__json_file_has(config, key) ? tarn__json_file_string(config, key) : "gelu_new";
    return name && (strcmp(name, "gelu_new") == 0 || strcmp(name, "gelu_pytorch_tanh") == 0 ||
                    tarn__raise(TARN_ERROR_UNSUPPORTED,
                                "%s: config.json: the activation_function '%.64s' is not supported; gelu_new is",
                                function, name));
}

static bool read_sizes(const tarn__json_file *config, tarn_gpt2_config *c)
{
    bool has_inner;
    if (!tarn__json_file_int(config, "vocab_size", 1, MAX_SIZE, &c->vocab_size) ||
        !tarn__json_file_int(config, "n_positions", 1, MAX_SIZE, &c->context) ||
        !tarn__json_file_int(config, "n_layer", 1, MAX_SIZE, &c->layers) ||
        !tarn__json_file_int(config, "n_head", 1, MAX_SIZE, &c->heads) ||
        !tarn__json_file_int(config, "n_embd", 1, MAX_SIZE, &c->hidden_size) ||
        !int_or_none(config, "n_inner", &c->ffn_size, &has_inner))
        return false;
    return !has_inner || tarn__json_file_int(config, "n_inner", 1, MAX_SIZE, &c->ffn_size);
}

/* A dropout probability, in [0, 1); transformers' default is 0.1. */
static bool read_dropout(const char *function, const tarn__json_file *config, const char *key, double *p)
{
    if (!real_or(config, key, 0.1, p))
        return false;
    if (!(*p >= 0 && *p < 1))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"%s\" is %g; it must be from 0 to below 1", function,
                           key, *p);
    return true;
}

/* Dropout, epsilon and EOS. A dropout of 0 is stored as -1, since 0 means "as dropout" in the configuration. */
static bool read_rest(const char *function, const tarn__json_file *config, tarn_gpt2_config *c)
{
    if (!read_dropout(function, config, "resid_pdrop", &c->dropout) ||
        !read_dropout(function, config, "attn_pdrop", &c->attention_dropout) ||
        !read_dropout(function, config, "embd_pdrop", &c->embedding_dropout) ||
        !real_or(config, "layer_norm_epsilon", 1e-5, &c->epsilon) ||
        !int_or_none(config, "eos_token_id", &c->eos, &c->has_eos))
        return false;
    if (!(c->epsilon > 0) || !isfinite(c->epsilon))
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: config.json: \"layer_norm_epsilon\" is %g; it must be a number above 0", function,
                           c->epsilon);
    c->attention_dropout = c->attention_dropout > 0 ? c->attention_dropout : -1;
    c->embedding_dropout = c->embedding_dropout > 0 ? c->embedding_dropout : -1;
    /* transformers writes GPT-2's own EOS into the configuration of models that lack one */
    c->has_eos = c->has_eos && c->eos >= 0 && c->eos < c->vocab_size;
    return true;
}

bool tarn__gpt2_read_config(const char *function, const tarn__json_file *config, tarn_dtype dtype, tarn_gpt2_config *to)
{
    static const char *const key = "tie_word_embeddings";
    tarn_gpt2_config c = {.dtype = dtype};
    bool tie_embeddings = true;
    bool good = read_sizes(config, &c) && read_rest(function, config, &c) && check_activation(function, config) &&
                check_switch(function, config, "scale_attn_weights", true) &&
                check_switch(function, config, "scale_attn_by_inverse_layer_idx", false) &&
                check_switch(function, config, "add_cross_attention", false) &&
                (!tarn__json_file_has(config, key) || tarn__json_file_bool(config, key, &tie_embeddings));
    c.untie_embeddings = !tie_embeddings;
    *to = c;
    return good;
}

tarn_module *tarn__gpt2_from_config(const char *function, const tarn__json_file *config, tarn_dtype dtype,
                                    const tarn__device_map *map)
{
    tarn_gpt2_config c;
    return tarn__gpt2_read_config(function, config, dtype, &c) ? tarn__gpt2_make(function, &c, map, false, NULL) : NULL;
}

bool tarn__gpt2_write_config(const tarn_gpt2_config *c, tarn__json_file *config)
{
    const struct {
        const char *key;
        int64_t value;
    } ints[] = {{"vocab_size", c->vocab_size}, {"n_positions", c->context}, {"n_ctx", c->context},
                {"n_layer", c->layers},        {"n_head", c->heads},        {"n_embd", c->hidden_size},
                {"n_inner", c->ffn_size}};
    const struct {
        const char *key;
        double value; /* NaN: null */
    } reals[] = {{"resid_pdrop", c->dropout},
                 {"attn_pdrop", fmax(c->attention_dropout, 0)},
                 {"embd_pdrop", fmax(c->embedding_dropout, 0)},
                 {"layer_norm_epsilon", c->epsilon},
                 {"initializer_range", 0.02}};
    bool good = tarn__json_file_set_string(config, "model_type", "gpt2") &&
                tarn__json_file_add_string(config, "architectures", "GPT2LMHeadModel") &&
                tarn__json_file_set_string(config, "activation_function", "gelu_new") &&
                tarn__json_file_set_string(config, "torch_dtype", tarn__torch_name(c->dtype)) &&
                tarn__json_file_set_bool(config, "tie_word_embeddings", !c->untie_embeddings);
    for (size_t i = 0; good && i < sizeof(ints) / sizeof(ints[0]); i++)
        good = tarn__json_file_set_int(config, ints[i].key, ints[i].value);
    for (size_t i = 0; good && i < sizeof(reals) / sizeof(reals[0]); i++)
        good = tarn__json_file_set_real(config, reals[i].key, reals[i].value);
    for (int i = 0; good && i < 2; i++) { /* GPT-2 uses EOS as BOS */
        const char *key = i ? "eos_token_id" : "bos_token_id";
        good = c->has_eos ? tarn__json_file_set_int(config, key, c->eos) : tarn__json_file_set_real(config, key, NAN);
    }
    return good;
}

bool tarn__gpt2_describe(const tarn_module *model, tarn__json_file *config)
{
    return tarn__gpt2_write_config(model->ctx, config);
}

/* ---- names in files ---------------------------------------------------------------------------------------------- */

/* Attention masks in files of older versions of transformers. */
bool tarn__gpt2_ignores(const char *name)
{
    return tarn__ends_with(name, ".attn.bias") || tarn__ends_with(name, ".attn.masked_bias");
}

/* Files of GPT2Model, such as the first published one, hold the body without a prefix. */
bool tarn__gpt2_load(const char *function, tarn_module *model, const char *path)
{
    tarn_safetensors *file = tarn_safetensors_open(path);
    if (!file)
        return tarn__raise_within(function);

    bool is_body = tarn_safetensors_find(file, "wte.weight") >= 0;
    const tarn_gpt2_config *c = model->ctx;
    bool good = !(is_body && c->untie_embeddings) ||
                tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no 'lm_head.weight', but tie_word_embeddings is false",
                            function, path);
    good = good && tarn__weights_load(function, is_body ? model->child[TARN__MODEL_BODY] : model, file, path, "GPT-2",
                                      tarn__gpt2_ignores);
    tarn_safetensors_close(file);
    return good;
}
