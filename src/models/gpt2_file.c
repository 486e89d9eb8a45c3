/* gpt2_file.c: GPT-2 as transformers keeps it: the members of config.json, and the names in model.safetensors. */
#include <math.h>
#include <string.h>
#include <tarn/safetensors.h>

#include "models/gpt2.h"

#define LARGEST INT32_MAX

/* ---- config.json ----------------------------------------------------------------------------------------------------------- */

/* A number where the file has one; `otherwise`, as transformers has it, where the member is missing. */
static bool real_or(const tarn__document *config, const char *key, double otherwise, double *value)
{
    *value = otherwise;
    return !tarn__document_has(config, key) || tarn__document_real(config, key, value);
}

/* A whole number where the file has one; *there is false where it is missing or null. */
static bool whole_or_none(const tarn__document *config, const char *key, int64_t *value, bool *there)
{
    double number = NAN;
    *there = false;
    if (!real_or(config, key, NAN, &number))
        return false;
    *there = !isnan(number);
    return !*there || tarn__document_whole(config, key, INT64_MIN, INT64_MAX, value);
}

/* A switch that must stand as tarn computes it. */
static bool check_switch(const char *function, const tarn__document *config, const char *key, bool wanted)
{
    bool value = wanted;
    if (tarn__document_has(config, key) && !tarn__document_bool(config, key, &value))
        return false;
    return value == wanted || tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: config.json: a GPT-2 with \"%s\": %s is not supported", function,
                                          key, value ? "true" : "false");
}

/* The tanh form of GELU has several names. */
static bool check_activation(const char *function, const tarn__document *config)
{
    static const char *const key = "activation_function";
    const char *name = tarn__document_has(config, key) ? tarn__document_text(config, key) : "gelu_new";
    return name && (strcmp(name, "gelu_new") == 0 || strcmp(name, "gelu_pytorch_tanh") == 0 ||
                    tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: config.json: the activation_function '%.64s' is not supported; gelu_new is",
                                function, name));
}

static bool read_sizes(const tarn__document *config, tarn_gpt2_config *c)
{
    bool has_inner;
    if (!tarn__document_whole(config, "vocab_size", 1, LARGEST, &c->vocab) ||
        !tarn__document_whole(config, "n_positions", 1, LARGEST, &c->context) ||
        !tarn__document_whole(config, "n_layer", 1, LARGEST, &c->layers) ||
        !tarn__document_whole(config, "n_head", 1, LARGEST, &c->heads) || !tarn__document_whole(config, "n_embd", 1, LARGEST, &c->width) ||
        !whole_or_none(config, "n_inner", &c->inner, &has_inner))
        return false;
    return !has_inner || tarn__document_whole(config, "n_inner", 1, LARGEST, &c->inner);
}

/* A probability of dropout, below 1; none is negative, since 0 would mean another one. */
static bool read_dropout(const char *function, const tarn__document *config, const char *key, double *p)
{
    if (!real_or(config, key, 0.1, p))
        return false;
    if (!(*p >= 0 && *p < 1))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"%s\" is %g; it must be from 0 to below 1", function, key, *p);
    return true;
}

static bool read_rest(const char *function, const tarn__document *config, tarn_gpt2_config *c)
{
    if (!read_dropout(function, config, "resid_pdrop", &c->dropout) ||
        !read_dropout(function, config, "attn_pdrop", &c->attention_dropout) ||
        !read_dropout(function, config, "embd_pdrop", &c->embedding_dropout) || !real_or(config, "layer_norm_epsilon", 1e-5, &c->epsilon) ||
        !whole_or_none(config, "eos_token_id", &c->end, &c->has_end))
        return false;
    if (!(c->epsilon > 0) || !isfinite(c->epsilon))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"layer_norm_epsilon\" is %g; it must be a number above 0", function,
                           c->epsilon);
    c->attention_dropout = c->attention_dropout > 0 ? c->attention_dropout : -1;
    c->embedding_dropout = c->embedding_dropout > 0 ? c->embedding_dropout : -1;
    /* transformers writes GPT-2's own into the configuration of models that lack it: a token that can never come. */
    c->has_end = c->has_end && c->end >= 0 && c->end < c->vocab;
    return true;
}

tarn_module *tarn__gpt2_from_document(const char *function, const tarn__document *config, tarn_dtype dtype, tarn_device device)
{
    tarn_gpt2_config c = {.dtype = dtype};
    bool good = read_sizes(config, &c) && read_rest(function, config, &c) && check_activation(function, config) &&
                check_switch(function, config, "scale_attn_weights", true) &&
                check_switch(function, config, "scale_attn_by_inverse_layer_idx", false) &&
                check_switch(function, config, "add_cross_attention", false) && check_switch(function, config, "tie_word_embeddings", true);
    return good ? tarn__gpt2_make(function, &c, device, false) : NULL;
}

/* What transformers calls a dtype. */
static const char *torch_name(tarn_dtype dtype)
{
    return dtype == TARN_F64 ? "float64" : dtype == TARN_BF16 ? "bfloat16" : dtype == TARN_F16 ? "float16" : "float32";
}

bool tarn__gpt2_describe(const tarn_module *model, tarn__document *config)
{
    const tarn_gpt2_config *c = model->ctx;
    const struct {
        const char *key;
        int64_t value;
    } wholes[] = {{"vocab_size", c->vocab}, {"n_positions", c->context}, {"n_ctx", c->context}, {"n_layer", c->layers},
                  {"n_head", c->heads},     {"n_embd", c->width},        {"n_inner", c->inner}};
    const struct {
        const char *key;
        double value; /* NaN: null */
    } reals[] = {{"resid_pdrop", c->dropout},
                 {"attn_pdrop", fmax(c->attention_dropout, 0)},
                 {"embd_pdrop", fmax(c->embedding_dropout, 0)},
                 {"layer_norm_epsilon", c->epsilon},
                 {"initializer_range", 0.02}};
    bool good = tarn__document_add_text(config, "architectures", "GPT2LMHeadModel") &&
                tarn__document_set_text(config, "activation_function", "gelu_new") &&
                tarn__document_set_text(config, "torch_dtype", torch_name(c->dtype)) &&
                tarn__document_set_bool(config, "tie_word_embeddings", true);
    for (size_t i = 0; good && i < sizeof(wholes) / sizeof(wholes[0]); i++)
        good = tarn__document_set_whole(config, wholes[i].key, wholes[i].value);
    for (size_t i = 0; good && i < sizeof(reals) / sizeof(reals[0]); i++)
        good = tarn__document_set_real(config, reals[i].key, reals[i].value);
    for (int i = 0; good && i < 2; i++) { /* GPT-2's texts begin with the token that ends them */
        const char *key = i ? "eos_token_id" : "bos_token_id";
        good = c->has_end ? tarn__document_set_whole(config, key, c->end) : tarn__document_set_real(config, key, NAN);
    }
    return good;
}

/* ---- names in files -------------------------------------------------------------------------------------------------------- */

/* True when a module has a parameter under a name with dots. */
static bool has_parameter(const tarn_module *module, const char *name)
{
    const char *dot = strchr(name, '.');
    if (!dot)
        return tarn__module_own(module, name) != NULL;
    size_t length = (size_t)(dot - name);
    for (int i = 0; i < module->children; i++)
        if (strlen(module->child[i]->name) == length && memcmp(module->child[i]->name, name, length) == 0)
            return has_parameter(module->child[i], dot + 1);
    return false;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* Files of older versions of transformers hold the mask of attention. */
static bool is_mask(const char *name)
{
    return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias");
}

/* What does not belong into the model would be lost in silence. */
static bool check_names(const char *function, const tarn_module *top, const tarn_safetensors *file, const char *path)
{
    for (int i = 0; i < tarn_safetensors_count(file); i++) {
        const char *name = tarn_safetensors_name(file, i);
        if (!is_mask(name) && !has_parameter(top, name))
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' holds '%.200s', which a GPT-2 of this config.json does not have", function,
                               path, name);
    }
    return !tarn_failed();
}

bool tarn__gpt2_load(const char *function, tarn_module *model, const char *path)
{
    tarn_safetensors *file = tarn_safetensors_open(path);
    if (!file)
        return tarn__raise_within(function);
    /* Files of GPT2Model, the first one among them, have the body alone. */
    bool is_body = tarn_safetensors_find(file, "wte.weight") >= 0;
    tarn_module *top = is_body ? model->child[TARN__GPT2_BODY] : model;
    bool good = check_names(function, top, file, path);
    tarn_safetensors_close(file);
    if (!good)
        return false;
    return tarn_module_load(top, path, &(tarn_module_load_options){.allow_unexpected = true}) || tarn__raise_within(function);
}
