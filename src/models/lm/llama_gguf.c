/* llama_gguf.c: the Llama family in GGUF files: tensor names, and its configuration as metadata.
 *
 * Keys are those of llama.cpp. Settings without such a key have keys of tarn's own, which begin with "tarn.": the
 * variant if it is Mistral, and the parameters of llama3's RoPE scaling, of which other programs read only the
 * resulting factors per frequency. */
#include <math.h>
#include <string.h>

#include "formats/gguf.h"
#include "models/gguf/gguf_arch.h"
#include "models/lm/llama.h"

#define FAMILY "tarn.family"
#define SCALING "tarn.rope.llama3"      /* factor, low_freq_factor, high_freq_factor, original context */
#define FREQUENCIES "rope_freqs.weight" /* tensor of llama3's divisors per frequency */

/* ---- names ------------------------------------------------------------------------------------------------------- */

static const tarn__gguf_tensor_name top_names[] = {
    {"model.embed_tokens.", "token_embd.", TARN__GGUF_ALWAYS, TARN__GGUF_NEVER, TARN__GGUF_SAME},
    {"model.norm.", "output_norm.", TARN__GGUF_ALWAYS, TARN__GGUF_NEVER, TARN__GGUF_SAME},
    {"lm_head.", "output.", TARN__GGUF_UNTIED, TARN__GGUF_NEVER, TARN__GGUF_SAME},
    {0}};

static const tarn__gguf_tensor_name layer_names[] = {
    {"input_layernorm.", "attn_norm.", TARN__GGUF_ALWAYS, TARN__GGUF_NEVER, TARN__GGUF_SAME},
    {"self_attn.q_proj.", "attn_q.", TARN__GGUF_ALWAYS, TARN__GGUF_QKV_BIAS, TARN__GGUF_QUERIES},
    {"self_attn.k_proj.", "attn_k.", TARN__GGUF_ALWAYS, TARN__GGUF_QKV_BIAS, TARN__GGUF_KEYS},
    {"self_attn.v_proj.", "attn_v.", TARN__GGUF_ALWAYS, TARN__GGUF_QKV_BIAS, TARN__GGUF_SAME},
    {"self_attn.o_proj.", "attn_output.", TARN__GGUF_ALWAYS, TARN__GGUF_NEVER, TARN__GGUF_SAME},
    {"self_attn.q_norm.", "attn_q_norm.", TARN__GGUF_QK_NORM, TARN__GGUF_NEVER, TARN__GGUF_SAME},
    {"self_attn.k_norm.", "attn_k_norm.", TARN__GGUF_QK_NORM, TARN__GGUF_NEVER, TARN__GGUF_SAME},
    {"post_attention_layernorm.", "ffn_norm.", TARN__GGUF_ALWAYS, TARN__GGUF_NEVER, TARN__GGUF_SAME},
    {"mlp.gate_proj.", "ffn_gate.", TARN__GGUF_ALWAYS, TARN__GGUF_NEVER, TARN__GGUF_SAME},
    {"mlp.up_proj.", "ffn_up.", TARN__GGUF_ALWAYS, TARN__GGUF_NEVER, TARN__GGUF_SAME},
    {"mlp.down_proj.", "ffn_down.", TARN__GGUF_ALWAYS, TARN__GGUF_NEVER, TARN__GGUF_SAME},
    {0}};

/* general.architecture of a variant. */
static const char *architecture_of(const char *arch)
{
    return strcmp(arch, "mistral") == 0 ? "llama" : arch;
}

/* Properties of a configuration that the common code needs. */
static void traits(const void *config, tarn__gguf_traits *t)
{
    const tarn_llama_config *c = config;
    *t = (tarn__gguf_traits){.arch = c->arch,
                             .vocab_size = c->vocab_size,
                             .layers = c->layers,
                             .heads = c->heads,
                             .kv_heads = c->kv_heads,
                             .tie_embeddings = c->tie_embeddings,
                             .qkv_bias = c->qkv_bias,
                             .qk_norm = c->qk_norm,
                             .is_interleaved = strcmp(architecture_of(c->arch), "llama") == 0,
                             .tokens = {.has_bos = c->has_bos, .bos = c->bos, .eos_count = c->eos_count}};
    memcpy(t->tokens.eos, c->eos, sizeof(c->eos));
}

/* ---- writing metadata -------------------------------------------------------------------------------------------- */

/* Divisor of llama3's scaling for the frequency of a pair: 1 for short wavelengths, rope_factor for long ones,
 * interpolated between. */
static double factor_at(const tarn_llama_config *c, int64_t pair)
{
    double wavelength = 2 * 3.14159265358979323846 * pow(c->rope_theta, 2 * (double)pair / (double)c->head_dim);
    double rotations = (double)c->rope_original_context / wavelength; /* over the context of training */
    double smooth = (rotations - c->rope_low_freq_factor) / (c->rope_high_freq_factor - c->rope_low_freq_factor);
    return smooth >= 1 ? 1 : smooth <= 0 ? c->rope_factor : 1 / ((1 - smooth) / c->rope_factor + smooth);
}

/* Writes the parameters for tarn, and the divisors as a tensor for llama.cpp. */
static bool put_llama3(const tarn_llama_config *c, tarn_gguf_writer *writer)
{
    const double params[] = {c->rope_factor, c->rope_low_freq_factor, c->rope_high_freq_factor,
                             (double)c->rope_original_context};
    float factors[TARN__ROPE_PAIRS];
    int64_t pairs = c->head_dim / 2;
    for (int64_t i = 0; i < pairs; i++)
        factors[i] = (float)factor_at(c, i);
    tarn_tensor *tensor = tarn_from_f32(factors, TARN_SHAPE(pairs), tarn_device_cpu());
    return tarn_gguf_add_array(writer, SCALING, TARN_GGUF_F64, params, 4) && tensor &&
           tarn_gguf_add(writer, FREQUENCIES, tensor);
}

/* RoPE as llama.cpp's keys. */
static bool put_rope(const tarn_llama_config *c, const char *a, tarn_gguf_writer *writer)
{
    tarn__gguf_path to;
    if (!tarn__gguf_put_real(writer, a, "rope.freq_base", c->rope_theta) ||
        !tarn__gguf_put_int(writer, a, "rope.dimension_count", c->head_dim))
        return false;
    if (c->rope_scaling == TARN_ROPE_LINEAR)
        return tarn__gguf_put_string(writer, tarn__gguf_key_of(a, "rope.scaling.type", &to), "linear") &&
               tarn__gguf_put_real(writer, a, "rope.scaling.factor", c->rope_factor);
    return c->rope_scaling == TARN_ROPE_DEFAULT || put_llama3(c, writer);
}

/* Writes the metadata of a configuration. */
static bool put(const void *config, tarn_gguf_writer *writer)
{
    const tarn_llama_config *c = config;
    const char *a = architecture_of(c->arch);
    const struct {
        const char *rest;
        int64_t value;
    } ints[] = {{"vocab_size", c->vocab_size},
                {"context_length", c->context},
                {"embedding_length", c->hidden_size},
                {"block_count", c->layers},
                {"feed_forward_length", c->ffn_size},
                {"attention.head_count", c->heads},
                {"attention.head_count_kv", c->kv_heads},
                {"attention.key_length", c->head_dim},
                {"attention.value_length", c->head_dim}};
    bool good = tarn__gguf_put_string(writer, TARN__GGUF_ARCHITECTURE, a) &&
                (strcmp(a, c->arch) == 0 || tarn__gguf_put_string(writer, FAMILY, c->arch));
    for (size_t i = 0; good && i < sizeof(ints) / sizeof(ints[0]); i++)
        good = tarn__gguf_put_int(writer, a, ints[i].rest, ints[i].value);
    return good && tarn__gguf_put_real(writer, a, "attention.layer_norm_rms_epsilon", c->epsilon) &&
           put_rope(c, a, writer);
}

/* ---- reading metadata -------------------------------------------------------------------------------------------- */

/* State of one read. */
typedef struct reader {
    tarn__gguf_reader of;
    tarn_llama_config *c;
} reader;

/* Sizes; key_length and value_length default to hidden_size / heads. */
static bool get_sizes(const reader *r)
{
    tarn_llama_config *c = r->c;
    int64_t values = 0, rotated = 0;
    if (!tarn__gguf_get_int(&r->of, "context_length", 0, &c->context) ||
        !tarn__gguf_get_int(&r->of, "embedding_length", 0, &c->hidden_size) ||
        !tarn__gguf_get_int(&r->of, "block_count", 0, &c->layers) ||
        !tarn__gguf_get_int(&r->of, "feed_forward_length", 0, &c->ffn_size) ||
        !tarn__gguf_get_int(&r->of, "attention.head_count", 0, &c->heads) ||
        !tarn__gguf_get_int(&r->of, "attention.head_count_kv", c->heads, &c->kv_heads) ||
        !tarn__gguf_get_int(&r->of, "attention.key_length", c->hidden_size / c->heads, &c->head_dim) ||
        !tarn__gguf_get_int(&r->of, "attention.value_length", c->head_dim, &values) ||
        !tarn__gguf_get_int(&r->of, "rope.dimension_count", c->head_dim, &rotated) ||
        !tarn__gguf_get_real(&r->of, "attention.layer_norm_rms_epsilon", 0, &c->epsilon))
        return false;
    if (values != c->head_dim || rotated != c->head_dim)
        return tarn__gguf_unsupported(&r->of, values != c->head_dim ? "a head_dim of values other than that of keys"
                                                                    : "partial RoPE");
    return tarn__gguf_get_vocab(&r->of, &c->vocab_size);
}

/* True if a tensor holds the divisors that follow from the configuration. */
static bool are_factors(const tarn_llama_config *c, const float *factors, int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i++)
        if (!(fabs(factor_at(c, i) - (double)factors[i]) <= 1e-4 * fabs((double)factors[i])))
            return false;
    return true;
}

/* Files of other programs have the divisors only: the other parameters are those of the published Llama 3 models,
 * and the divisors are verified against them. */
static bool get_llama3(const reader *r, int index)
{
    tarn_llama_config *c = r->c;
    tarn_gguf_entry entry;
    double params[4] = {0, 1, 4, 8192};
    float factors[TARN__ROPE_PAIRS];
    if (!tarn_gguf_info(r->of.file, index, &entry))
        return false;
    int64_t pairs = entry.shape.size[0];
    if (entry.dtype != TARN_F32 || entry.shape.rank != 1 || pairs * 2 != c->head_dim || pairs > TARN__ROPE_PAIRS)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: '%s': tensor '" FREQUENCIES "' must be f32 with one element per pair of a head",
                           r->of.function, r->of.file->path);
    memcpy(factors, r->of.file->memory + entry.position, (size_t)entry.bytes);
    params[0] = (double)factors[pairs - 1];
    if (tarn_gguf_has(r->of.file, SCALING, NULL) && !tarn_gguf_reals(r->of.file, SCALING, params, 4))
        return tarn__raise_within(r->of.function);
    c->rope_scaling = TARN_ROPE_LLAMA3;
    c->rope_factor = params[0];
    c->rope_low_freq_factor = params[1];
    c->rope_high_freq_factor = params[2];
    c->rope_original_context = params[3] >= 1 && params[3] <= TARN__GGUF_MAX_INT ? (int64_t)params[3] : 0;
    bool good = c->rope_original_context && c->rope_factor >= 1 && c->rope_low_freq_factor > 0 &&
                c->rope_high_freq_factor > c->rope_low_freq_factor && are_factors(c, factors, pairs);
    return good || tarn__gguf_unsupported(&r->of, "a '" FREQUENCIES "' other than of Llama 3's scaling");
}

/* RoPE and its scaling. */
static bool get_rope(const reader *r)
{
    tarn_llama_config *c = r->c;
    tarn__gguf_path to;
    int frequencies = tarn_gguf_find(r->of.file, FREQUENCIES);
    if (!tarn__gguf_get_real(&r->of, "rope.freq_base", 10000, &c->rope_theta))
        return false;
    double linear = 1; /* of files before rope.scaling */
    const char *type =
        tarn__gguf_has_key(&r->of, "rope.scaling.type")
            ? tarn_gguf_string(r->of.file, tarn__gguf_key_of(r->of.architecture, "rope.scaling.type", &to), NULL)
        : tarn__gguf_has_key(&r->of, "rope.scaling.factor") ? "linear" /* as in llama.cpp */
                                                            : "none";
    if (!type)
        return tarn__raise_within(r->of.function);
    if (!tarn__gguf_get_real(&r->of, "rope.scale_linear", 1, &linear))
        return false;
    if (linear != 1)
        return tarn__gguf_unsupported(&r->of, "'rope.scale_linear', which newer files write as rope.scaling,");
    if (strcmp(type, "none") != 0 && strcmp(type, "linear") != 0)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: '%s': RoPE scaling '%.64s' is not supported; linear and llama3 are", r->of.function,
                           r->of.file->path, type);
    if (strcmp(type, "linear") == 0) {
        c->rope_scaling = TARN_ROPE_LINEAR;
        return (frequencies < 0 || tarn__gguf_unsupported(&r->of, "linear scaling together with '" FREQUENCIES "'")) &&
               tarn__gguf_get_real(&r->of, "rope.scaling.factor", 0, &c->rope_factor);
    }
    return frequencies < 0 || get_llama3(r, frequencies);
}

static bool get_bos_eos(const reader *r)
{
    tarn_llama_config *c = r->c;
    tarn__gguf_bos_eos t;
    if (!tarn__gguf_get_bos_eos(&r->of, c->vocab_size, &t))
        return false;
    c->has_bos = t.has_bos;
    c->bos = t.bos;
    c->eos_count = t.eos_count;
    memcpy(c->eos, t.eos, sizeof(*t.eos) * (size_t)t.eos_count);
    return true;
}

/* The architecture, or the variant under tarn's own key. */
static bool get_variant(const reader *r)
{
    const char *arch = r->of.architecture;
    if (tarn_gguf_has(r->of.file, FAMILY, NULL) && !(arch = tarn_gguf_string(r->of.file, FAMILY, NULL)))
        return tarn__raise_within(r->of.function);
    const tarn__llama_variant *variant = tarn__llama_variant_of(arch);
    if (!variant || strcmp(architecture_of(variant->type), r->of.architecture) != 0)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': tarn.family '%.64s' does not match the architecture %s",
                           r->of.function, r->of.file->path, arch, r->of.architecture);
    r->c->arch = variant->type;
    return true;
}

/* Raises attention biases that the variant lacks, and longrope factors: by name, since the generic error for an
 * unknown tensor would say little. */
static bool check_tensors(const reader *r)
{
    static const char *const biases[] = {"blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias",
                                         "blk.0.attn_output.bias"};
    static const char *const factors[] = {"rope_factors_long.weight", "rope_factors_short.weight"};
    const tarn__llama_variant *variant = tarn__llama_variant_of(r->c->arch);
    for (int i = variant->qkv_bias ? 3 : 0; i < 4; i++)
        if (tarn_gguf_find(r->of.file, biases[i]) >= 0)
            return tarn__raise(TARN_ERROR_UNSUPPORTED,
                               "%s: '%s': attention biases ('%s') of the architecture %s are not supported",
                               r->of.function, r->of.file->path, biases[i], r->of.architecture);
    for (int i = 0; i < 2; i++)
        if (tarn_gguf_find(r->of.file, factors[i]) >= 0)
            return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': RoPE scaling 'longrope' ('%s') is not supported",
                               r->of.function, r->of.file->path, factors[i]);
    return !tarn_failed();
}

static bool check_rest(const reader *r)
{
    int64_t window = 0;
    if (!check_tensors(r))
        return false;
    if (tarn__gguf_has_key(&r->of, "expert_count"))
        return tarn__gguf_unsupported(&r->of, "a mixture of experts");
    if (!tarn__gguf_get_int(&r->of, "attention.sliding_window", TARN__GGUF_MAX_INT, &window))
        return false;
    return window >= r->c->context || tarn__gguf_unsupported(&r->of, "a sliding window of attention");
}

/* Reads a configuration from metadata. Biases, norms of heads and tied embeddings follow from the tensors of the
 * file. */
static bool get(const char *function, const tarn_gguf *file, tarn_dtype dtype, void *config)
{
    tarn_llama_config *c = config;
    reader r = {{function, tarn_gguf_string(file, TARN__GGUF_ARCHITECTURE, NULL), file}, c};
    if (!get_variant(&r) || !get_sizes(&r) || !get_rope(&r) || !get_bos_eos(&r) || !check_rest(&r))
        return false;
    c->dtype = dtype;
    c->qkv_bias = tarn_gguf_find(file, "blk.0.attn_q.bias") >= 0;
    c->qk_norm = tarn_gguf_find(file, "blk.0.attn_q_norm.weight") >= 0;
    c->tie_embeddings = tarn_gguf_find(file, "output.weight") < 0;
    return !tarn_failed() && tarn__llama_complete(function, c);
}

/* ---- the row ----------------------------------------------------------------------------------------------------- */

static bool read_config(const char *function, const tarn__json_file *document, tarn_dtype dtype, void *config)
{
    return tarn__llama_read_config(function, document, dtype, config) && tarn__llama_complete(function, config);
}

static bool write_config(const void *config, tarn__json_file *document)
{
    return tarn__llama_write_config(config, document);
}

static tarn_module *make(const char *function, const void *config, const tarn__device_map *map,
                         const tarn__model_source *source)
{
    return tarn__llama_make(function, config, map, source);
}

static const char *const architectures[] = {"llama", "qwen2", "qwen3", NULL};

const tarn__gguf_arch tarn__llama_gguf = {
    .architectures = architectures,
    .block = "model.layers.",
    .derived_tensor = FREQUENCIES,
    .top_names = top_names,
    .layer_names = layer_names,
    .traits = traits,
    .read = read_config,
    .write = write_config,
    .get = get,
    .put = put,
    .make = make,
};
