/* gpt2_hf.c: GPT-2 as transformers keeps it: the members of config.json, and the names in model.safetensors. */
#include <math.h>
#include <string.h>

#include "models/hf/weights.h"
#include "models/lm/gpt2.h"

#define LARGEST INT32_MAX

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* A number where the file has one; `otherwise`, as transformers has it, where the member is missing. */
static bool real_or(const tarn__json_file *config, const char *key, double default_value, double *value)
{
    *value = default_value;
    return !tarn__json_file_has(config, key) || tarn__json_file_real(config, key, value);
}

/* A whole number where the file has one; *there is false where it is missing or null. */
static bool whole_or_none(const tarn__json_file *config, const char *key, int64_t *value, bool *there)
{
    double number = NAN;
    *there = false;
    if (!real_or(config, key, NAN, &number))
        return false;
    *there = !isnan(number);
    return !*there || tarn__json_file_int(config, key, INT64_MIN, INT64_MAX, value);
}

/* A switch that must stand as tarn computes it. */
static bool check_switch(const char *function, const tarn__json_file *config, const char *key, bool wanted)
{
    bool value = wanted;
    if (tarn__json_file_has(config, key) && !tarn__json_file_bool(config, key, &value))
        return false;
    return value == wanted ||
           tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: config.json: a GPT-2 with \"%s\": %s is not supported", function,
                       key, value ? "true" : "false");
}

/* The tanh form of GELU has several names. */
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
    if (!tarn__json_file_int(config, "vocab_size", 1, LARGEST, &c->vocab_size) ||
        !tarn__json_file_int(config, "n_positions", 1, LARGEST, &c->context) ||
        !tarn__json_file_int(config, "n_layer", 1, LARGEST, &c->layers) ||
        !tarn__json_file_int(config, "n_head", 1, LARGEST, &c->heads) ||
        !tarn__json_file_int(config, "n_embd", 1, LARGEST, &c->hidden_size) ||
        !whole_or_none(config, "n_inner", &c->ffn_size, &has_inner))
        return false;
    return !has_inner || tarn__json_file_int(config, "n_inner", 1, LARGEST, &c->ffn_size);
}

/* A probability of dropout, below 1; none is negative, since 0 would mean another one. */
static bool read_dropout(const char *function, const tarn__json_file *config, const char *key, double *p)
{
    if (!real_or(config, key, 0.1, p))
        return false;
    if (!(*p >= 0 && *p < 1))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"%s\" is %g; it must be from 0 to below 1", function,
                           key, *p);
    return true;
}

static bool read_rest(const char *function, const tarn__json_file *config, tarn_gpt2_config *c)
{
    if (!read_dropout(function, config, "resid_pdrop", &c->dropout) ||
        !read_dropout(function, config, "attn_pdrop", &c->attention_dropout) ||
        !read_dropout(function, config, "embd_pdrop", &c->embedding_dropout) ||
        !real_or(config, "layer_norm_epsilon", 1e-5, &c->epsilon) ||
        !whole_or_none(config, "eos_token_id", &c->eos, &c->has_eos))
        return false;
    if (!(c->epsilon > 0) || !isfinite(c->epsilon))
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: config.json: \"layer_norm_epsilon\" is %g; it must be a number above 0", function,
                           c->epsilon);
    c->attention_dropout = c->attention_dropout > 0 ? c->attention_dropout : -1;
    c->embedding_dropout = c->embedding_dropout > 0 ? c->embedding_dropout : -1;
    /* transformers writes GPT-2's own into the configuration of models that lack it: a token that can never come. */
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
                                    const tarn__device_map *where)
{
    tarn_gpt2_config c;
    return tarn__gpt2_read_config(function, config, dtype, &c) ? tarn__gpt2_make(function, &c, where, false, NULL)
                                                               : NULL;
}

bool tarn__gpt2_write_config(const tarn_gpt2_config *c, tarn__json_file *config)
{
    const struct {
        const char *key;
        int64_t value;
    } wholes[] = {{"vocab_size", c->vocab_size}, {"n_positions", c->context}, {"n_ctx", c->context},
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
    for (size_t i = 0; good && i < sizeof(wholes) / sizeof(wholes[0]); i++)
        good = tarn__json_file_set_int(config, wholes[i].key, wholes[i].value);
    for (size_t i = 0; good && i < sizeof(reals) / sizeof(reals[0]); i++)
        good = tarn__json_file_set_real(config, reals[i].key, reals[i].value);
    for (int i = 0; good && i < 2; i++) { /* GPT-2's texts begin with the token that ends them */
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

/* Files of older versions of transformers hold the mask of attention. */
bool tarn__gpt2_ignores(const char *name)
{
    return tarn__ends_with(name, ".attn.bias") || tarn__ends_with(name, ".attn.masked_bias");
}

bool tarn__gpt2_load(const char *function, tarn_module *model, const char *path)
{
    tarn_safetensors *file = tarn_safetensors_open(path);
    if (!file)
        return tarn__raise_within(function);
    /* Files of GPT2Model, the first one among them, have the body alone. */
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
