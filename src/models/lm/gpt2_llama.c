/* gpt2_llama.c: the public configurations of GPT-2 and of the Llama family, in terms of tarn_lm_config.
 *
 * Each struct has the settings of one family alone. The sized functions take the size that the caller's header has:
 * a shorter struct is filled up with zeros, which are the defaults. */
#include <string.h>

#include "models/lm/arch.h"

/* Copies a configuration to a caller whose header may be older or newer: fields that one does not know become zero. */
static void copy_out(void *to, size_t to_size, const void *from, size_t from_size)
{
    memset(to, 0, to_size);
    memcpy(to, from, to_size < from_size ? to_size : from_size);
}

/* Raises a NULL argument. */
static bool check_named(const char *function, const char *name, const void *config)
{
    return (name && config) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s is NULL", function, name ? "configuration" : "name");
}

/* ---- any architecture -------------------------------------------------------------------------------------------- */

tarn_module *tarn_model_lm_sized(const tarn_lm_config *config, size_t config_size, tarn_device device, uint64_t seed)
{
    tarn_lm_config own = {0};
    if (tarn_failed())
        return NULL;
    if (!config) {
        tarn__raise(TARN_ERROR_ARGUMENT, "model_lm: the configuration is NULL");
        return NULL;
    }
    memcpy(&own, config, config_size < sizeof(own) ? config_size : sizeof(own));
    return tarn__model_new("model_lm", &own, device, seed);
}

/* The complete configuration: every default is resolved. */
bool tarn_lm_config_of_sized(const tarn_module *model, tarn_lm_config *config, size_t config_size)
{
    const char *function = "lm_config_of";
    if (!tarn__arch_of(function, model))
        return false;
    if (!config)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the configuration is NULL", function);
    copy_out(config, config_size, tarn__model_config(model), sizeof(*config));
    return true;
}

/* ---- GPT-2 ------------------------------------------------------------------------------------------------------- */

static tarn_lm_config from_gpt2(const tarn_gpt2_config *c)
{
    return (tarn_lm_config){.arch = "gpt2",
                            .vocab_size = c->vocab_size,
                            .context = c->context,
                            .layers = c->layers,
                            .heads = c->heads,
                            .hidden_size = c->hidden_size,
                            .ffn_size = c->ffn_size,
                            .epsilon = c->epsilon,
                            .tie_embeddings = !c->untie_embeddings,
                            .dtype = c->dtype,
                            .dropout = c->dropout,
                            .attention_dropout = c->attention_dropout,
                            .embedding_dropout = c->embedding_dropout,
                            .recompute = c->recompute,
                            .has_bos = c->has_eos, /* GPT-2 uses EOS as BOS */
                            .bos = c->has_eos ? c->eos : 0,
                            .eos_count = c->has_eos,
                            .eos = {c->eos}};
}

/* from_gpt2() the other way; what GPT-2 does not have is left out. */
static tarn_gpt2_config to_gpt2(const tarn_lm_config *c)
{
    return (tarn_gpt2_config){.vocab_size = c->vocab_size,
                              .context = c->context,
                              .layers = c->layers,
                              .heads = c->heads,
                              .hidden_size = c->hidden_size,
                              .ffn_size = c->ffn_size,
                              .dropout = c->dropout,
                              .attention_dropout = c->attention_dropout,
                              .embedding_dropout = c->embedding_dropout,
                              .epsilon = c->epsilon,
                              .dtype = c->dtype,
                              .has_eos = c->eos_count > 0,
                              .eos = c->eos[0],
                              .recompute = c->recompute,
                              .untie_embeddings = !c->tie_embeddings};
}

tarn_module *tarn_model_gpt2_sized(const tarn_gpt2_config *config, size_t config_size, tarn_device device,
                                   uint64_t seed)
{
    tarn_gpt2_config own = {0};
    if (tarn_failed())
        return NULL;
    if (!config) {
        tarn__raise(TARN_ERROR_ARGUMENT, "model_gpt2: the configuration is NULL");
        return NULL;
    }
    memcpy(&own, config, config_size < sizeof(own) ? config_size : sizeof(own));
    tarn_lm_config c = from_gpt2(&own);
    return tarn__model_new("model_gpt2", &c, device, seed);
}

bool tarn_gpt2_config_named_sized(const char *name, tarn_gpt2_config *config, size_t config_size)
{
    const char *function = "gpt2_config_named";
    tarn_lm_config found;
    if (tarn_failed() || !check_named(function, name, config))
        return false;
    if (!tarn__model_config_named(name, &found) || strcmp(found.arch, "gpt2") != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: '%.64s' not found; it must be gpt2, gpt2-medium, gpt2-large or gpt2-xl", function,
                           name);
    tarn_gpt2_config c = to_gpt2(&found);
    copy_out(config, config_size, &c, sizeof(c));
    return true;
}

bool tarn_gpt2_config_of_sized(const tarn_module *model, tarn_gpt2_config *config, size_t config_size)
{
    const tarn__arch *arch = tarn__arch_of("gpt2_config_of", model);
    if (!arch)
        return false;
    if (strcmp(arch->type, "gpt2") != 0 || !config)
        return tarn__raise(TARN_ERROR_ARGUMENT, "gpt2_config_of: %s",
                           config ? "the model is no GPT-2" : "the configuration is NULL");
    tarn_gpt2_config c = to_gpt2(tarn__model_config(model));
    copy_out(config, config_size, &c, sizeof(c));
    return true;
}

tarn_tensor *tarn_gpt2_loss(tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets)
{
    const char *function = "gpt2_loss";
    const tarn__arch *arch = tarn__arch_of(function, model);
    if (arch && strcmp(arch->type, "gpt2") == 0)
        return tarn__model_loss(function, model, tokens, targets);
    if (arch)
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the model is no GPT-2", function);
    return NULL;
}

/* ---- the Llama family -------------------------------------------------------------------------------------------- */

/* The members of tarn_llama_config: architectures that need no others. */
static const struct family {
    const char *type;
    bool qkv_bias, qk_norm;
} families[] = {{"llama", false, false}, {"mistral", false, false}, {"qwen2", true, false}, {"qwen3", false, true}};

static const struct family *family_of(const char *type)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strcmp(type, families[i].type) == 0)
            return &families[i];
    return NULL;
}

/* Raises switches that contradict the architecture: such a model could not be saved as its model_type. */
static bool check_family(const char *function, const tarn_llama_config *c)
{
    const struct family *family = family_of(c->arch ? c->arch : "llama");
    if (!family)
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "%s: .arch is '%.64s'; it must be llama, mistral, qwen2 or qwen3; tarn_model_lm() has others", function,
            c->arch);
    if (c->qkv_bias != family->qkv_bias)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: .qkv_bias is %s, but .arch is %s; it must be true for qwen2 and false for the others",
                           function, c->qkv_bias ? "true" : "false", family->type);
    if (c->qk_norm != family->qk_norm)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: .qk_norm is %s, but .arch is %s; it must be true for qwen3 and false for the others",
                           function, c->qk_norm ? "true" : "false", family->type);
    return true;
}

static tarn_lm_config from_llama(const tarn_llama_config *c)
{
    tarn_lm_config to = {.arch = c->arch,
                         .vocab_size = c->vocab_size,
                         .context = c->context,
                         .layers = c->layers,
                         .heads = c->heads,
                         .hidden_size = c->hidden_size,
                         .ffn_size = c->ffn_size,
                         .kv_heads = c->kv_heads,
                         .head_dim = c->head_dim,
                         .epsilon = c->epsilon,
                         .tie_embeddings = c->tie_embeddings,
                         .dtype = c->dtype,
                         .rope = {.base = c->rope_theta,
                                  .scaling = c->rope_scaling,
                                  .factor = c->rope_factor,
                                  .low_freq_factor = c->rope_low_freq_factor,
                                  .high_freq_factor = c->rope_high_freq_factor,
                                  .original_context = c->rope_original_context},
                         .recompute = c->recompute,
                         .has_bos = c->has_bos,
                         .bos = c->bos,
                         .eos_count = c->eos_count};
    memcpy(to.eos, c->eos, sizeof(to.eos));
    return to;
}

static tarn_llama_config to_llama(const tarn_lm_config *c)
{
    const struct family *family = family_of(c->arch);
    tarn_llama_config to = {.vocab_size = c->vocab_size,
                            .context = c->context,
                            .layers = c->layers,
                            .heads = c->heads,
                            .hidden_size = c->hidden_size,
                            .ffn_size = c->ffn_size,
                            .kv_heads = c->kv_heads,
                            .head_dim = c->head_dim,
                            .epsilon = c->epsilon,
                            .rope_theta = c->rope.base,
                            .rope_scaling = c->rope.scaling,
                            .rope_factor = c->rope.factor,
                            .rope_low_freq_factor = c->rope.low_freq_factor,
                            .rope_high_freq_factor = c->rope.high_freq_factor,
                            .rope_original_context = c->rope.original_context,
                            .qkv_bias = family->qkv_bias,
                            .qk_norm = family->qk_norm,
                            .tie_embeddings = c->tie_embeddings,
                            .arch = c->arch,
                            .dtype = c->dtype,
                            .has_bos = c->has_bos,
                            .bos = c->bos,
                            .eos_count = c->eos_count,
                            .recompute = c->recompute};
    memcpy(to.eos, c->eos, sizeof(to.eos));
    return to;
}

tarn_module *tarn_model_llama_sized(const tarn_llama_config *config, size_t config_size, tarn_device device,
                                    uint64_t seed)
{
    const char *function = "model_llama";
    tarn_llama_config own = {0};
    if (tarn_failed())
        return NULL;
    if (!config) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the configuration is NULL", function);
        return NULL;
    }
    memcpy(&own, config, config_size < sizeof(own) ? config_size : sizeof(own));
    tarn_lm_config c = from_llama(&own);
    return check_family(function, &own) ? tarn__model_new(function, &c, device, seed) : NULL;
}

bool tarn_llama_config_named_sized(const char *name, tarn_llama_config *config, size_t config_size)
{
    const char *function = "llama_config_named";
    tarn_lm_config found;
    if (tarn_failed() || !check_named(function, name, config))
        return false;
    if (!tarn__model_config_named(name, &found) || strcmp(found.arch, "llama") != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%.64s' not found; it must be llama-1b, llama-3b or smollm-135m",
                           function, name);
    tarn_llama_config c = to_llama(&found);
    copy_out(config, config_size, &c, sizeof(c));
    return true;
}

/* Models with settings that tarn_llama_config lacks are not described by it. */
bool tarn_llama_config_of_sized(const tarn_module *model, tarn_llama_config *config, size_t config_size)
{
    const char *function = "llama_config_of";
    const tarn__arch *arch = tarn__arch_of(function, model);
    if (!arch)
        return false;
    if (!family_of(arch->type) || !config)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           config ? "the model is none of the Llama family" : "the configuration is NULL");
    tarn_llama_config c = to_llama(tarn__model_config(model));
    copy_out(config, config_size, &c, sizeof(c));
    return true;
}
