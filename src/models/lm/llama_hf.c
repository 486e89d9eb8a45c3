/* llama_hf.c: the Llama family in Hugging Face folders: keys of config.json, and weights of model.safetensors.
 *
 * Settings that tarn does not support are errors that name them: a model must never be computed as something else
 * than it is. */
#include <math.h>
#include <string.h>

#include "models/hf/weights.h"
#include "models/lm/llama.h"

#define MAX_SIZE INT32_MAX

/* State of one read. */
typedef struct reader {
    const char *function;
    const tarn__json_file *config;
    const tarn__llama_variant *variant;
    tarn_llama_config c;
} reader;

/* A nested key: "rope_scaling.factor". */
static bool is_there(const reader *r, const char *key)
{
    tarn__member_kind kind = tarn__json_file_kind(r->config, key);
    return kind != TARN__MEMBER_MISSING && kind != TARN__MEMBER_NULL;
}

/* Raises an unsupported setting. Always false. */
static bool unsupported(const reader *r, const char *key, const char *what)
{
    return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: config.json: \"%s\": %s is not supported", r->function, key, what);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* An integer, or the variant's default. */
static bool int_or(const reader *r, const char *key, int64_t default_value, int64_t *value)
{
    *value = default_value;
    return !is_there(r, key) || tarn__json_file_int(r->config, key, 1, MAX_SIZE, value);
}

/* A positive number, or the default. */
static bool real_or(const reader *r, const char *key, double default_value, double *value)
{
    *value = default_value;
    if (is_there(r, key) && !tarn__json_file_real(r->config, key, value))
        return false;
    return (*value > 0 && isfinite(*value)) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"%s\" is %g; it must be a number above 0", r->function,
                       key, *value);
}

/* Sizes, with transformers' defaults of the variant for missing keys. */
static bool read_sizes(reader *r)
{
    tarn_llama_config *c = &r->c;
    const tarn__json_file *d = r->config;
    if (!tarn__json_file_int(d, "vocab_size", 1, MAX_SIZE, &c->vocab_size) ||
        !tarn__json_file_int(d, "max_position_embeddings", 1, MAX_SIZE, &c->context) ||
        !tarn__json_file_int(d, "num_hidden_layers", 1, MAX_SIZE, &c->layers) ||
        !tarn__json_file_int(d, "num_attention_heads", 1, MAX_SIZE, &c->heads) ||
        !tarn__json_file_int(d, "hidden_size", 1, MAX_SIZE, &c->hidden_size) ||
        !tarn__json_file_int(d, "intermediate_size", 1, MAX_SIZE, &c->ffn_size))
        return false;
    return int_or(r, "num_key_value_heads", r->variant->kv_heads ? r->variant->kv_heads : c->heads, &c->kv_heads) &&
           int_or(r, "head_dim", r->variant->head_dim, &c->head_dim) && real_or(r, "rms_norm_eps", 1e-6, &c->epsilon);
}

/* ---- RoPE -------------------------------------------------------------------------------------------------------- */

/* The member of an object: "rope_scaling.factor". */
typedef struct key {
    char text[96];
} key;

static const char *inside(key *to, const char *object, const char *member)
{
    size_t length = strlen(object);
    memcpy(to->text, object, length);
    to->text[length] = '.';
    memcpy(to->text + length + 1, member, strlen(member) + 1);
    return to->text;
}

/* Raises an unknown key: ignoring it would silently change the model. */
static bool check_rope_member(const char *name, const char *text, void *ctx)
{
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "factor",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "original_max_position_embeddings"};
    const reader *r = ctx;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(name, known[i]) == 0)
            return true;
    if (strcmp(name, "partial_rotary_factor") == 0 && (strcmp(text, "1") == 0 || strcmp(text, "1.0") == 0))
        return true;
    return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: config.json: RoPE with \"%.64s\": %.64s is not supported",
                       r->function, name, text);
}

/* Parameters of llama3's scaling, which are all required. */
static bool read_llama3(reader *r, const char *object)
{
    key to;
    tarn_llama_config *c = &r->c;
    c->rope_scaling = TARN_ROPE_LLAMA3;
    if (!tarn__json_file_real(r->config, inside(&to, object, "low_freq_factor"), &c->rope_low_freq_factor) ||
        !tarn__json_file_real(r->config, inside(&to, object, "high_freq_factor"), &c->rope_high_freq_factor) ||
        !tarn__json_file_int(r->config, inside(&to, object, "original_max_position_embeddings"), 1, INT64_MAX,
                             &c->rope_original_context))
        return false;
    return (c->rope_low_freq_factor > 0 && c->rope_high_freq_factor > c->rope_low_freq_factor &&
            isfinite(c->rope_high_freq_factor)) ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "%s: config.json: \"%s\": low_freq_factor is %g and high_freq_factor %g; both must be above 0, "
                       "the first below the second",
                       r->function, object, c->rope_low_freq_factor, c->rope_high_freq_factor);
}

/* rope_scaling, or rope_parameters as transformers 5 writes it. */
static bool read_scaling(reader *r, const char *object)
{
    key to;
    if (tarn__json_file_kind(r->config, object) != TARN__MEMBER_OBJECT)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"%s\" is not an object", r->function, object);
    bool is_old = !tarn__json_file_has(r->config, inside(&to, object, "rope_type")) &&
                  tarn__json_file_has(r->config, inside(&to, object, "type"));
    inside(&to, object, is_old ? "type" : "rope_type");
    const char *type = is_there(r, to.text) ? tarn__json_file_string(r->config, to.text) : "default";
    if (!type)
        return false;
    bool is_default = strcmp(type, "default") == 0;
    /* before its keys, which depend on it */
    if (!is_default && strcmp(type, "linear") != 0 && strcmp(type, "llama3") != 0)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: config.json: RoPE scaling '%.64s' is not supported; default, linear and llama3 are",
                           r->function, type);
    if (!tarn__json_file_each(r->config, object, check_rope_member, r))
        return false;
    if (is_default)
        return true;
    if (!tarn__json_file_has(r->config, inside(&to, object, "factor")))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"%s\" has no factor", r->function, object);
    r->c.rope_scaling = TARN_ROPE_LINEAR;
    return real_or(r, to.text, NAN, &r->c.rope_factor) && (type[1] == 'i' || read_llama3(r, object));
}

/* transformers 5 writes rope_parameters, older versions rope_theta and rope_scaling. */
static bool read_rope(reader *r)
{
    bool has_new = is_there(r, "rope_parameters"), has_old = is_there(r, "rope_scaling");
    double theta;
    if (has_new && has_old)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: config.json has both \"rope_parameters\" and \"rope_scaling\"; only one is expected",
                           r->function);
    if (!real_or(r, "rope_theta", 10000, &theta) ||
        !real_or(r, has_old ? "rope_scaling.rope_theta" : "rope_parameters.rope_theta", theta, &r->c.rope_theta))
        return false;
    if (is_there(r, "rope_theta") && r->c.rope_theta != theta)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"rope_theta\" is %g, but that of \"%s\" %g",
                           r->function, theta, has_old ? "rope_scaling" : "rope_parameters", r->c.rope_theta);
    return !(has_new || has_old) || read_scaling(r, has_new ? "rope_parameters" : "rope_scaling");
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* transformers writes its own default tokens into the configuration of models that lack them; those outside the
 * vocabulary are ignored. */
static bool is_in_vocab(const tarn_llama_config *c, int64_t token)
{
    return token >= 0 && token < c->vocab_size;
}

/* Adds an EOS token, once. */
static bool add_eos(reader *r, int64_t token)
{
    tarn_llama_config *c = &r->c;
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
static bool read_eos(reader *r, const char *member)
{
    size_t count = 0;
    int64_t token;
    bool is_list = tarn__json_file_kind(r->config, member) == TARN__MEMBER_ARRAY;
    if (!is_there(r, member))
        return true;
    if (!is_list)
        return tarn__json_file_int(r->config, member, INT64_MIN, INT64_MAX, &token) && add_eos(r, token);
    bool good = tarn__json_file_count(r->config, member, TARN_MODEL_MAX_EOS, &count);
    for (size_t i = 0; good && i < count; i++)
        good = tarn__json_file_int_at(r->config, member, i, INT64_MIN, INT64_MAX, &token) && add_eos(r, token);
    return good;
}

/* EOS tokens of generation_config.json are added to those of config.json, as transformers stops at both. */
static bool read_bos_eos(reader *r)
{
    tarn_llama_config *c = &r->c;
    if (is_there(r, "bos_token_id") && !tarn__json_file_int(r->config, "bos_token_id", INT64_MIN, INT64_MAX, &c->bos))
        return false;
    c->has_bos = is_there(r, "bos_token_id") && is_in_vocab(c, c->bos);
    return read_eos(r, "eos_token_id") && read_eos(r, TARN__GENERATION_EOS);
}

/* ---- unsupported settings ---------------------------------------------------------------------------------------- */

/* Raises a switch that is on. */
static bool check_off(const reader *r, const char *member)
{
    bool on = false;
    if (is_there(r, member) && !tarn__json_file_bool(r->config, member, &on))
        return false;
    return !on || unsupported(r, member, "true");
}

static bool check_activation(const reader *r)
{
    const char *name = is_there(r, "hidden_act") ? tarn__json_file_string(r->config, "hidden_act") : "silu";
    return name &&
           (strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0 ||
            tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: config.json: the hidden_act '%.64s' is not supported; silu is",
                        r->function, name));
}

/* Raises a sliding window shorter than the context. */
static bool check_window(const reader *r)
{
    int64_t window;
    size_t layers = 0;
    if (!check_off(r, "use_sliding_window"))
        return false;
    if (r->variant->window) { /* Mistral's has no switch, and applies unless it is null */
        int64_t usual = tarn__json_file_has(r->config, "sliding_window") ? INT64_MAX : r->variant->window;
        if (!int_or(r, "sliding_window", usual, &window))
            return false;
        if (window < r->c.context)
            return tarn__raise(
                TARN_ERROR_UNSUPPORTED,
                "%s: config.json: a \"sliding_window\" of %lld tokens is not supported in a context of %lld",
                r->function, (long long)window, (long long)r->c.context);
    }
    if (!is_there(r, "layer_types"))
        return true;
    bool good = tarn__json_file_count(r->config, "layer_types", MAX_SIZE, &layers);
    for (size_t i = 0; good && i < layers; i++) {
        const char *type = tarn__json_file_string_at(r->config, "layer_types", i);
        good = type && (strcmp(type, "full_attention") == 0 || unsupported(r, "layer_types", type));
    }
    return good;
}

/* Raises everything else that tarn does not compute. */
static bool check_rest(const reader *r)
{
    double dropout = 0;
    if (is_there(r, "quantization_config"))
        return unsupported(r, "quantization_config", "a format of another program");
    if (is_there(r, "attention_dropout") && !tarn__json_file_real(r->config, "attention_dropout", &dropout))
        return false;
    if (dropout != 0)
        return unsupported(r, "attention_dropout", "attention dropout");
    double rotated = 1;
    if (is_there(r, "partial_rotary_factor") && !tarn__json_file_real(r->config, "partial_rotary_factor", &rotated))
        return false;
    if (rotated != 1)
        return unsupported(r, "partial_rotary_factor", "partial RoPE");
    return check_off(r, "attention_bias") && check_off(r, "mlp_bias") && check_activation(r) && check_window(r);
}

bool tarn__llama_read_config(const char *function, const tarn__json_file *config, tarn_dtype dtype,
                             tarn_llama_config *to)
{
    const char *type = tarn__json_file_string(config, "model_type");
    reader r = {.function = function,
                .config = config,
                .variant = type ? tarn__llama_variant_of(type) : NULL,
                .c = {.dtype = dtype}};
    if (!r.variant)
        return false;
    r.c.arch = r.variant->type;
    r.c.qkv_bias = r.variant->qkv_bias;
    r.c.qk_norm = r.variant->qk_norm;
    bool good = read_sizes(&r) && read_rope(&r) && read_bos_eos(&r) && check_rest(&r) &&
                (!is_there(&r, "tie_word_embeddings") ||
                 tarn__json_file_bool(config, "tie_word_embeddings", &r.c.tie_embeddings));
    *to = r.c;
    return good;
}

tarn_module *tarn__llama_from_config(const char *function, const tarn__json_file *config, tarn_dtype dtype,
                                     const tarn__device_map *map)
{
    tarn_llama_config c;
    return tarn__llama_read_config(function, config, dtype, &c) ? tarn__llama_make(function, &c, map, NULL) : NULL;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Writes RoPE with the keys of transformers 4, which version 5 reads too. */
static bool describe_rope(const tarn_llama_config *c, tarn__json_file *config)
{
    if (!tarn__json_file_set_real(config, "rope_theta", c->rope_theta))
        return false;
    if (c->rope_scaling == TARN_ROPE_DEFAULT)
        return tarn__json_file_set_real(config, "rope_scaling", NAN); /* null */
    bool is_llama3 = c->rope_scaling == TARN_ROPE_LLAMA3;
    bool good = tarn__json_file_set_string(config, "rope_scaling.rope_type", is_llama3 ? "llama3" : "linear") &&
                tarn__json_file_set_real(config, "rope_scaling.factor", c->rope_factor);
    return good && (!is_llama3 ||
                    (tarn__json_file_set_real(config, "rope_scaling.low_freq_factor", c->rope_low_freq_factor) &&
                     tarn__json_file_set_real(config, "rope_scaling.high_freq_factor", c->rope_high_freq_factor) &&
                     tarn__json_file_set_int(config, "rope_scaling.original_max_position_embeddings",
                                             c->rope_original_context)));
}

/* A token, or null. */
static bool describe_token(tarn__json_file *config, const char *member, bool is_one, int64_t token)
{
    return is_one ? tarn__json_file_set_int(config, member, token) : tarn__json_file_set_real(config, member, NAN);
}

static bool describe_tokens(const tarn_llama_config *c, tarn__json_file *config)
{
    if (!describe_token(config, "bos_token_id", c->has_bos, c->bos))
        return false;
    if (c->eos_count < 2)
        return describe_token(config, "eos_token_id", c->eos_count > 0, c->eos[0]);
    bool good = true;
    for (int i = 0; good && i < c->eos_count; i++)
        good = tarn__json_file_add_int(config, "eos_token_id", c->eos[i]);
    return good;
}

bool tarn__llama_write_config(const tarn_llama_config *c, tarn__json_file *config)
{
    const tarn__llama_variant *variant = tarn__llama_variant_of(c->arch);
    const struct {
        const char *key;
        int64_t value;
    } ints[] = {{"vocab_size", c->vocab_size},        {"max_position_embeddings", c->context},
                {"num_hidden_layers", c->layers},     {"num_attention_heads", c->heads},
                {"num_key_value_heads", c->kv_heads}, {"head_dim", c->head_dim},
                {"hidden_size", c->hidden_size},      {"intermediate_size", c->ffn_size}};
    bool good = tarn__json_file_set_string(config, "model_type", c->arch) &&
                tarn__json_file_add_string(config, "architectures", variant->architecture) &&
                tarn__json_file_set_string(config, "hidden_act", "silu") &&
                tarn__json_file_set_string(config, "torch_dtype", tarn__torch_name(c->dtype)) &&
                tarn__json_file_set_bool(config, "tie_word_embeddings", c->tie_embeddings) &&
                tarn__json_file_set_real(config, "rms_norm_eps", c->epsilon) &&
                tarn__json_file_set_real(config, "initializer_range", 0.02) &&
                tarn__json_file_set_real(config, "attention_dropout", 0);
    for (size_t i = 0; good && i < sizeof(ints) / sizeof(ints[0]); i++)
        good = tarn__json_file_set_int(config, ints[i].key, ints[i].value);
    if (good && variant->window)
        good = tarn__json_file_set_real(config, "sliding_window", NAN); /* null: none */
    return good && describe_rope(c, config) && describe_tokens(c, config);
}

bool tarn__llama_describe(const tarn_module *model, tarn__json_file *config)
{
    return tarn__llama_write_config(model->ctx, config);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* RoPE frequencies in files of older versions of transformers, which follow from the configuration. */
bool tarn__llama_ignores(const char *name)
{
    return tarn__ends_with(name, ".rotary_emb.inv_freq");
}

bool tarn__llama_load(const char *function, tarn_module *model, const char *path)
{
    const tarn_llama_config *c = model->ctx;
    tarn_safetensors *file = tarn_safetensors_open(path);
    if (!file)
        return tarn__raise_within(function);
    bool good = tarn__weights_load(function, model, file, path, c->arch, tarn__llama_ignores);
    tarn_safetensors_close(file);
    return good;
}
