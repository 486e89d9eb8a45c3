/* archs.c: the rows of architectures, their names in files, and lookups.
 *
 * A row says how an architecture differs from the plainest one; code elsewhere asks the row rather than the name.
 * The names of a module in a folder and in a GGUF file stand side by side, with the layout that the GGUF file has it
 * in (arch.h). */
#include <stdio.h>
#include <string.h>

#include "models/lm/arch.h"

/* ---- names ------------------------------------------------------------------------------------------------------- */

#define ROLE(role, folder, gguf, layout) \
    { \
        TARN__ROLE_##role, folder, gguf, TARN__GGUF_##layout \
    }

/* Llama and most of its successors. */
static const tarn__module_name llama_top[] = {
    ROLE(TOKENS, "embed_tokens", "token_embd", SAME), ROLE(NORM, "norm", "output_norm", SAME), {0}};

#define LLAMA_ATTENTION \
    ROLE(Q, "self_attn.q_proj", "attn_q", QUERIES), ROLE(K, "self_attn.k_proj", "attn_k", KEYS), \
        ROLE(V, "self_attn.v_proj", "attn_v", SAME), ROLE(O, "self_attn.o_proj", "attn_output", SAME), \
        ROLE(Q_NORM, "self_attn.q_norm", "attn_q_norm", SAME), ROLE(K_NORM, "self_attn.k_norm", "attn_k_norm", SAME)
#define LLAMA_MLP \
    ROLE(GATE, "mlp.gate_proj", "ffn_gate", SAME), ROLE(UP, "mlp.up_proj", "ffn_up", SAME), \
        ROLE(DOWN, "mlp.down_proj", "ffn_down", SAME)

static const tarn__module_name llama_layer[] = {LLAMA_ATTENTION,
                                                LLAMA_MLP,
                                                ROLE(ATTENTION_NORM, "input_layernorm", "attn_norm", SAME),
                                                ROLE(MLP_NORM, "post_attention_layernorm", "ffn_norm", SAME),
                                                {0}};

/* RoPE frequencies in files of older versions of transformers, which follow from the configuration. */
static const char *const frequencies[] = {".rotary_emb.inv_freq", NULL};

static const tarn__model_names llama_names = {.body = "model",
                                              .head = "lm_head",
                                              .layers = "layers",
                                              .top = llama_top,
                                              .layer = llama_layer,
                                              .ignored = frequencies};

/* Norms of Gemma: GGUF files hold weight + 1. */
static const tarn__module_name gemma_top[] = {
    ROLE(TOKENS, "embed_tokens", "token_embd", SAME), ROLE(NORM, "norm", "output_norm", PLUS_1), {0}};
static const tarn__module_name gemma_layer[] = {LLAMA_ATTENTION,
                                                LLAMA_MLP,
                                                ROLE(ATTENTION_NORM, "input_layernorm", "attn_norm", PLUS_1),
                                                ROLE(MLP_NORM, "post_attention_layernorm", "ffn_norm", PLUS_1),
                                                {0}};
static const tarn__model_names gemma_names = {.body = "model",
                                              .head = "lm_head",
                                              .layers = "layers",
                                              .top = gemma_top,
                                              .layer = gemma_layer,
                                              .ignored = frequencies};

static const tarn__module_name gemma2_layer[] = {
    ROLE(Q, "self_attn.q_proj", "attn_q", SAME),
    ROLE(K, "self_attn.k_proj", "attn_k", SAME),
    ROLE(V, "self_attn.v_proj", "attn_v", SAME),
    ROLE(O, "self_attn.o_proj", "attn_output", SAME),
    ROLE(Q_NORM, "self_attn.q_norm", "attn_q_norm", PLUS_1),
    ROLE(K_NORM, "self_attn.k_norm", "attn_k_norm", PLUS_1),
    LLAMA_MLP,
    ROLE(ATTENTION_NORM, "input_layernorm", "attn_norm", PLUS_1),
    ROLE(ATTENTION_POST, "post_attention_layernorm", "post_attention_norm", PLUS_1),
    ROLE(MLP_NORM, "pre_feedforward_layernorm", "ffn_norm", PLUS_1),
    ROLE(MLP_POST, "post_feedforward_layernorm", "post_ffw_norm", PLUS_1),
    {0}};
static const tarn__model_names gemma2_names = {.body = "model",
                                               .head = "lm_head",
                                               .layers = "layers",
                                               .top = gemma_top,
                                               .layer = gemma2_layer,
                                               .ignored = frequencies};

static const tarn__module_name olmo2_layer[] = {
    LLAMA_ATTENTION,
    LLAMA_MLP,
    ROLE(ATTENTION_POST, "post_attention_layernorm", "post_attention_norm", SAME),
    ROLE(MLP_POST, "post_feedforward_layernorm", "post_ffw_norm", SAME),
    {0}};
static const tarn__model_names olmo2_names = {.body = "model",
                                              .head = "lm_head",
                                              .layers = "layers",
                                              .top = llama_top,
                                              .layer = olmo2_layer,
                                              .ignored = frequencies};

static const tarn__module_name phi3_layer[] = {ROLE(O, "self_attn.o_proj", "attn_output", SAME),
                                               ROLE(QKV, "self_attn.qkv_proj", "attn_qkv", SAME),
                                               ROLE(GATE_UP, "mlp.gate_up_proj", "ffn_up", SAME),
                                               ROLE(DOWN, "mlp.down_proj", "ffn_down", SAME),
                                               ROLE(ATTENTION_NORM, "input_layernorm", "attn_norm", SAME),
                                               ROLE(MLP_NORM, "post_attention_layernorm", "ffn_norm", SAME),
                                               {0}};
static const tarn__model_names phi3_names = {.body = "model",
                                             .head = "lm_head",
                                             .layers = "layers",
                                             .top = llama_top,
                                             .layer = phi3_layer,
                                             .ignored = frequencies};

static const tarn__module_name starcoder2_layer[] = {LLAMA_ATTENTION,
                                                     ROLE(UP, "mlp.c_fc", "ffn_up", SAME),
                                                     ROLE(DOWN, "mlp.c_proj", "ffn_down", SAME),
                                                     ROLE(ATTENTION_NORM, "input_layernorm", "attn_norm", SAME),
                                                     ROLE(MLP_NORM, "post_attention_layernorm", "ffn_norm", SAME),
                                                     {0}};
static const tarn__model_names starcoder2_names = {.body = "model",
                                                   .head = "lm_head",
                                                   .layers = "layers",
                                                   .top = llama_top,
                                                   .layer = starcoder2_layer,
                                                   .ignored = frequencies};

static const tarn__module_name neox_top[] = {
    ROLE(TOKENS, "embed_in", "token_embd", SAME), ROLE(NORM, "final_layer_norm", "output_norm", SAME), {0}};
static const tarn__module_name neox_layer[] = {ROLE(ATTENTION_NORM, "input_layernorm", "attn_norm", SAME),
                                               ROLE(MLP_NORM, "post_attention_layernorm", "ffn_norm", SAME),
                                               ROLE(QKV, "attention.query_key_value", "attn_qkv", QKV_BY_HEAD),
                                               ROLE(O, "attention.dense", "attn_output", SAME),
                                               ROLE(UP, "mlp.dense_h_to_4h", "ffn_up", SAME),
                                               ROLE(DOWN, "mlp.dense_4h_to_h", "ffn_down", SAME),
                                               {0}};
/* Masks and frequencies in older files. */
static const char *const neox_ignored[] = {".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias", NULL};
static const tarn__model_names neox_names = {.body = "gpt_neox",
                                             .head = "embed_out",
                                             .layers = "layers",
                                             .top = neox_top,
                                             .layer = neox_layer,
                                             .ignored = neox_ignored};

static const tarn__module_name gpt2_top[] = {ROLE(TOKENS, "wte", "token_embd", SAME),
                                             ROLE(POSITIONS, "wpe", "position_embd", F32_TABLE),
                                             ROLE(NORM, "ln_f", "output_norm", SAME),
                                             {0}};
static const tarn__module_name gpt2_layer[] = {ROLE(ATTENTION_NORM, "ln_1", "attn_norm", SAME),
                                               ROLE(QKV, "attn.c_attn", "attn_qkv", TRANSPOSED),
                                               ROLE(O, "attn.c_proj", "attn_output", TRANSPOSED),
                                               ROLE(MLP_NORM, "ln_2", "ffn_norm", SAME),
                                               ROLE(UP, "mlp.c_fc", "ffn_up", TRANSPOSED),
                                               ROLE(DOWN, "mlp.c_proj", "ffn_down", TRANSPOSED),
                                               {0}};
/* Attention masks in files of older versions of transformers. */
static const char *const masks[] = {".attn.bias", ".attn.masked_bias", NULL};
static const tarn__model_names gpt2_names = {.body = "transformer",
                                             .head = "lm_head",
                                             .layers = "h",
                                             .may_lack_body = true,
                                             .top = gpt2_top,
                                             .layer = gpt2_layer,
                                             .ignored = masks};

/* ---- keys of config.json ----------------------------------------------------------------------------------------- */

#define COMMON_KEYS \
    .context = "max_position_embeddings", .layers = "num_hidden_layers", .heads = "num_attention_heads", \
    .hidden_size = "hidden_size", .ffn_size = "intermediate_size", .attention_dropout = "attention_dropout"

static const tarn__config_keys llama_keys = {COMMON_KEYS, .epsilon = "rms_norm_eps", .activation = "hidden_act"};
static const tarn__config_keys bias_keys = {COMMON_KEYS, .epsilon = "rms_norm_eps", .activation = "hidden_act",
                                            .attention_bias = "attention_bias"};
static const tarn__config_keys biases_keys = {COMMON_KEYS, .epsilon = "rms_norm_eps", .activation = "hidden_act",
                                              .attention_bias = "attention_bias", .mlp_bias = "mlp_bias"};
static const tarn__config_keys gemma2_keys = {COMMON_KEYS, .epsilon = "rms_norm_eps", .activation = "hidden_activation",
                                              .attention_bias = "attention_bias"};
static const tarn__config_keys phi3_keys = {COMMON_KEYS, .epsilon = "rms_norm_eps", .activation = "hidden_act",
                                            .dropout = "resid_pdrop", .embedding_dropout = "embd_pdrop"};
static const tarn__config_keys starcoder2_keys = {COMMON_KEYS,
                                                  .epsilon = "norm_epsilon",
                                                  .activation = "hidden_act",
                                                  .dropout = "residual_dropout",
                                                  .embedding_dropout = "embedding_dropout",
                                                  .attention_bias = "use_bias",
                                                  .mlp_bias = "use_bias"};
static const tarn__config_keys neox_keys = {COMMON_KEYS,
                                            .epsilon = "layer_norm_eps",
                                            .activation = "hidden_act",
                                            .dropout = "hidden_dropout",
                                            .attention_bias = "attention_bias",
                                            .rope_base = "rotary_emb_base",
                                            .rotary_factor = "rotary_pct"};
/* Its dropout is that of the MLP's output alone; each head has a q/k norm of its own. */
static const char *const stablelm_refused[] = {"hidden_dropout", "qk_layernorm", NULL};
static const tarn__config_keys stablelm_keys = {COMMON_KEYS, .epsilon = "layer_norm_eps", .activation = "hidden_act",
                                                .attention_bias = "use_qkv_bias", .refused = stablelm_refused};
static const tarn__config_keys gpt2_keys = {.context = "n_positions",
                                            .layers = "n_layer",
                                            .heads = "n_head",
                                            .hidden_size = "n_embd",
                                            .ffn_size = "n_inner",
                                            .epsilon = "layer_norm_epsilon",
                                            .activation = "activation_function",
                                            .dropout = "resid_pdrop",
                                            .attention_dropout = "attn_pdrop",
                                            .embedding_dropout = "embd_pdrop"};

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static const char *const gpt2_sizes[] = {"gpt2-124m", "gpt2-350m", "gpt2-774m", "gpt2-1.5b", NULL};
static const char *const llama_sizes[] = {"llama-1b", "llama-3b", "smollm-135m", NULL};
static const char *const gemma2_sizes[] = {"gemma-2-2b", NULL};
static const char *const phi3_sizes[] = {"phi-3-mini", NULL};

/* Common to most; to Llama and its successors; to Gemma. */
#define MODERN .linear = TARN__LINEAR_OUT_IN, .has_rope = true, .has_gqa = true
#define LLAMA MODERN, .norm = TARN__NORM_RMS, .norms = TARN__NORMS_PRE, .activation = "silu", .is_gated = true
#define GEMMA \
    MODERN, .norm = TARN__NORM_RMS_PLUS_1, .activation = "gelu_pytorch_tanh", .is_gated = true, \
            .is_embedding_scaled = true, .is_tied = true, .head_dim = 256, .epsilon = 1e-6

static const tarn__arch archs[] = {
    {.type = "gpt2",
     .hf_class = "GPT2LMHeadModel",
     .gguf = "gpt2",
     .label = "GPT-2",
     .names = &gpt2_names,
     .keys = &gpt2_keys,
     .sizes = gpt2_sizes,
     .linear = TARN__LINEAR_IN_OUT,
     .norm = TARN__NORM_LAYER,
     .norms = TARN__NORMS_PRE,
     .biases = TARN__BIAS_QKV | TARN__BIAS_O | TARN__BIAS_MLP,
     .fused = TARN__FUSED_QKV,
     .activation = "gelu_new",
     .is_scale_switched = true,
     .is_eos_bos = true,
     .is_tied = true,
     .epsilon = 1e-5,
     .dropout = 0.1},
    {LLAMA, .type = "llama", .hf_class = "LlamaForCausalLM", .gguf = "llama", .names = &llama_names,
     .keys = &biases_keys, .sizes = llama_sizes, .is_interleaved = true, .epsilon = 1e-6, .rope_base = 10000},
    {LLAMA, .type = "mistral", .hf_class = "MistralForCausalLM", .gguf = "llama", .names = &llama_names,
     .keys = &llama_keys, .is_interleaved = true, .has_window = true, .kv_heads = 8, .window = 4096, .epsilon = 1e-6,
     .rope_base = 10000},
    {LLAMA, .type = "qwen2", .hf_class = "Qwen2ForCausalLM", .gguf = "qwen2", .names = &llama_names,
     .keys = &llama_keys, .biases = TARN__BIAS_QKV, .has_window = true, .is_window_switched = true, .kv_heads = 32,
     .window = 4096, .epsilon = 1e-6, .rope_base = 10000},
    {LLAMA, .type = "qwen3", .hf_class = "Qwen3ForCausalLM", .gguf = "qwen3", .names = &llama_names, .keys = &bias_keys,
     .qk_norm = TARN__QK_NORM_HEAD, .has_window = true, .is_window_switched = true, .kv_heads = 32, .head_dim = 128,
     .window = 4096, .epsilon = 1e-6, .rope_base = 10000},
    {LLAMA, .type = "phi3", .hf_class = "Phi3ForCausalLM", .gguf = "phi3", .names = &phi3_names, .keys = &phi3_keys,
     .sizes = phi3_sizes, .fused = TARN__FUSED_QKV | TARN__FUSED_GATE_UP, .has_window = true, .has_longrope = true,
     .epsilon = 1e-5, .rope_base = 10000},
    {LLAMA, .type = "smollm3", .hf_class = "SmolLM3ForCausalLM", .gguf = "smollm3", .names = &llama_names,
     .keys = &biases_keys, .is_interleaved = true, .has_window = true, .is_window_switched = true, .is_tied = true,
     .kv_heads = 4, .nope_interval = 4, .epsilon = 1e-6, .rope_base = 2000000},
    {LLAMA, .type = "granite", .hf_class = "GraniteForCausalLM", .gguf = "granite", .names = &llama_names,
     .keys = &biases_keys, .is_interleaved = true, .has_multipliers = true, .epsilon = 1e-6, .rope_base = 10000},
    {MODERN, .type = "olmo2", .hf_class = "Olmo2ForCausalLM", .gguf = "olmo2", .names = &olmo2_names,
     .keys = &bias_keys, .norm = TARN__NORM_RMS, .norms = TARN__NORMS_POST, .qk_norm = TARN__QK_NORM_FULL,
     .activation = "silu", .is_gated = true, .epsilon = 1e-5, .rope_base = 10000},
    {MODERN, .type = "starcoder2", .hf_class = "Starcoder2ForCausalLM", .gguf = "starcoder2",
     .names = &starcoder2_names, .keys = &starcoder2_keys, .norm = TARN__NORM_LAYER, .norms = TARN__NORMS_PRE,
     .has_biases = true, .activation = "gelu_pytorch_tanh", .has_window = true, .is_tied = true, .kv_heads = 2,
     .epsilon = 1e-5, .rope_base = 10000},
    {.type = "gpt_neox",
     .hf_class = "GPTNeoXForCausalLM",
     .gguf = "gptneox",
     .names = &neox_names,
     .keys = &neox_keys,
     .linear = TARN__LINEAR_OUT_IN,
     .norm = TARN__NORM_LAYER,
     .norms = TARN__NORMS_PRE,
     .biases = TARN__BIAS_MLP,
     .has_biases = true,
     .fused = TARN__FUSED_QKV | TARN__FUSED_BY_HEAD,
     .activation = "gelu",
     .has_rope = true,
     .is_parallel = true,
     .epsilon = 1e-5,
     .rope_base = 10000,
     .rotary_factor = 0.25},
    {MODERN, .type = "stablelm", .hf_class = "StableLmForCausalLM", .gguf = "stablelm", .names = &llama_names,
     .keys = &stablelm_keys, .norm = TARN__NORM_LAYER, .norms = TARN__NORMS_PRE, .activation = "silu", .is_gated = true,
     .is_parallel = true, .is_sequential = true, .has_one_norm = true, .is_o_unbiased = true, .kv_heads = 32,
     .epsilon = 1e-5, .rope_base = 10000, .rotary_factor = 0.25},
    {GEMMA, .type = "gemma", .hf_class = "GemmaForCausalLM", .gguf = "gemma", .names = &gemma_names, .keys = &bias_keys,
     .norms = TARN__NORMS_PRE, .is_legacy_gelu = true, .kv_heads = 16, .rope_base = 10000},
    {GEMMA, .type = "gemma2", .hf_class = "Gemma2ForCausalLM", .gguf = "gemma2", .names = &gemma2_names,
     .keys = &gemma2_keys, .sizes = gemma2_sizes, .norms = TARN__NORMS_PRE | TARN__NORMS_POST, .has_window = true,
     .has_softcaps = true, .kv_heads = 4, .window = 4096, .window_pattern = 2, .rope_base = 10000,
     .attention_softcap = 50, .logit_softcap = 30, .query_scalar = 256},
    {GEMMA, .type = "gemma3_text", .hf_class = "Gemma3ForCausalLM", .gguf = "gemma3", .names = &gemma2_names,
     .keys = &gemma2_keys, .norms = TARN__NORMS_PRE | TARN__NORMS_POST, .qk_norm = TARN__QK_NORM_HEAD,
     .has_window = true, .has_softcaps = true, .has_local_rope = true, .kv_heads = 4, .window = 4096,
     .window_pattern = 6, .rope_base = 1000000, .rope_local_base = 10000, .query_scalar = 256},
};
#define ARCH_COUNT ((int)(sizeof(archs) / sizeof(archs[0])))

/* ---- lookups ----------------------------------------------------------------------------------------------------- */

static bool contains(const char *const *list, const char *word)
{
    for (; list && *list; list++)
        if (strcmp(*list, word) == 0)
            return true;
    return false;
}

/* A language model is recognized by its forward function. */
const tarn__arch *tarn__arch_of(const char *function, const tarn_module *module)
{
    if (tarn_failed() || !tarn__check_module(function, module))
        return NULL;
    if (module->forward == tarn__model_forward)
        return ((const tarn__model_ctx *)module->ctx)->arch;
    tarn__raise(TARN_ERROR_ARGUMENT,
                "%s: the module is a %s; it must be a language model, as of tarn_model_lm() or tarn_model_open()",
                function, module->kind);
    return NULL;
}

/* Complete configurations have the row's own string: a forward pass looks them up without comparing characters. */
const tarn__arch *tarn__arch_find(const char *type)
{
    for (int i = 0; i < ARCH_COUNT; i++)
        if (archs[i].type == type)
            return &archs[i];
    for (int i = 0; i < ARCH_COUNT; i++)
        if (strcmp(archs[i].type, type) == 0)
            return &archs[i];
    return NULL;
}

const tarn__arch *tarn__arch_find_trainable(const char *name)
{
    for (int i = 0; i < ARCH_COUNT; i++)
        if (strcmp(archs[i].type, name) == 0 || contains(archs[i].sizes, name))
            return &archs[i];
    return NULL;
}

/* Names of all rows, each once. Rows of one GGUF name stand together. */
static void list_names(bool of_gguf, char *list, size_t capacity)
{
    list[0] = '\0';
    for (int i = 0; i < ARCH_COUNT; i++) {
        const char *name = of_gguf ? archs[i].gguf : archs[i].type;
        if (!of_gguf || i == 0 || strcmp(name, archs[i - 1].gguf) != 0)
            snprintf(list + strlen(list), capacity - strlen(list), "%s%s", i ? ", " : "", name);
    }
}

const tarn__arch *tarn__arch_named(const char *function, const char *path, const char *type)
{
    char known[256];
    const tarn__arch *arch = tarn__arch_find(type);
    if (arch)
        return arch;
    list_names(false, known, sizeof(known));
    tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': the model_type '%.64s' is not supported; supported are %s", function,
                path, type, known);
    return NULL;
}

const tarn__arch *tarn__arch_in_gguf(const char *function, const char *path, const char *architecture)
{
    char known[256];
    for (int i = 0; i < ARCH_COUNT; i++)
        if (strcmp(archs[i].gguf, architecture) == 0)
            return &archs[i];
    list_names(true, known, sizeof(known));
    tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': the architecture '%.64s' is not supported; supported are %s",
                function, path, architecture, known);
    return NULL;
}
