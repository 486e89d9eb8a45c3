/* llama_names.c: what the tensors of the Llama family are called in GGUF files and in folders, and whose rows have another order there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/llama_gguf.h"

/* What comes before "weight" or "bias". */
static const struct {
    const char *folder, *gguf;
} tops[] = {{"model.embed_tokens.", "token_embd."}, {"model.norm.", "output_norm."}, {"lm_head.", "output."}},
  parts[] = {{"input_layernorm.", "attn_norm."},    {"self_attn.q_proj.", "attn_q."},
             {"self_attn.k_proj.", "attn_k."},      {"self_attn.v_proj.", "attn_v."},
             {"self_attn.o_proj.", "attn_output."}, {"self_attn.q_norm.", "attn_q_norm."},
             {"self_attn.k_norm.", "attn_k_norm."}, {"post_attention_layernorm.", "ffn_norm."},
             {"mlp.gate_proj.", "ffn_gate."},       {"mlp.up_proj.", "ffn_up."},
             {"mlp.down_proj.", "ffn_down."}};

/* The rest of a text that begins so; NULL: it does not. */
static const char *behind(const char *text, const char *beginning)
{
    size_t length = strlen(beginning);
    return strncmp(text, beginning, length) == 0 ? text + length : NULL;
}

static bool is_last(const char *text)
{
    return strcmp(text, "weight") == 0 || strcmp(text, "bias") == 0;
}

/* "12.rest" → 12 and "rest"; NULL: no number of a layer. */
static const char *layer_of(const char *text, int *layer)
{
    char *end;
    if (text[0] < '0' || text[0] > '9' || (text[0] == '0' && text[1] != '.'))
        return NULL;
    long number = strtol(text, &end, 10);
    *layer = (int)number;
    return number < 100000 && *end == '.' ? end + 1 : NULL;
}

static bool translate(const char *name, bool to_gguf, char *to)
{
    for (size_t i = 0; i < sizeof(tops) / sizeof(tops[0]); i++) {
        const char *last = behind(name, to_gguf ? tops[i].folder : tops[i].gguf);
        if (last && is_last(last))
            return snprintf(to, TARN__LLAMA_NAME, "%s%s", to_gguf ? tops[i].gguf : tops[i].folder, last) > 0;
    }
    int layer = 0;
    const char *inside = behind(name, to_gguf ? "model.layers." : "blk."), *rest = inside ? layer_of(inside, &layer) : NULL;
    for (size_t i = 0; rest && i < sizeof(parts) / sizeof(parts[0]); i++) {
        const char *last = behind(rest, to_gguf ? parts[i].folder : parts[i].gguf);
        if (last && is_last(last))
            return snprintf(to, TARN__LLAMA_NAME, "%s%d.%s%s", to_gguf ? "blk." : "model.layers.", layer,
                            to_gguf ? parts[i].gguf : parts[i].folder, last) > 0;
    }
    return false;
}

bool tarn__llama_name_in_gguf(const char *name, char *to)
{
    return translate(name, true, to);
}

bool tarn__llama_name_in_folder(const char *name, char *to)
{
    return translate(name, false, to);
}

/* Whether a model has a part: its weight, or its bias. */
static bool has_part(const tarn_llama_config *config, const char *part, bool is_bias)
{
    bool is_norm = behind(part, "self_attn.q_norm.") || behind(part, "self_attn.k_norm.");
    bool is_input = behind(part, "self_attn.q_proj.") || behind(part, "self_attn.k_proj.") || behind(part, "self_attn.v_proj.");
    return is_bias ? is_input && config->qkv_bias : !is_norm || config->qk_norm;
}

bool tarn__llama_each_name(const tarn_llama_config *config, bool (*visit)(void *ctx, const char *name), void *ctx)
{
    char name[TARN__LLAMA_NAME];
    for (size_t i = 0; i < sizeof(tops) / sizeof(tops[0]); i++) {
        snprintf(name, sizeof(name), "%sweight", tops[i].folder);
        if (!(config->tied && behind(name, "lm_head.")) && !visit(ctx, name))
            return false;
    }
    for (int64_t layer = 0; layer < config->layers; layer++)
        for (size_t i = 0; i < 2 * sizeof(parts) / sizeof(parts[0]); i++) {
            const char *part = parts[i / 2].folder;
            snprintf(name, sizeof(name), "model.layers.%lld.%s%s", (long long)layer, part, i % 2 ? "bias" : "weight");
            if (has_part(config, part, i % 2) && !visit(ctx, name))
                return false;
        }
    return true;
}

const char *tarn__llama_architecture(const char *family)
{
    return strcmp(family, "mistral") == 0 ? "llama" : family;
}

int64_t tarn__llama_turned_heads(const tarn_llama_config *config, const char *name)
{
    int layer;
    const char *inside = behind(name, "blk."), *part = inside ? layer_of(inside, &layer) : NULL;
    if (!part || strcmp(tarn__llama_architecture(config->family), "llama") != 0)
        return 0;
    return behind(part, "attn_q.") ? config->heads : behind(part, "attn_k.") ? config->kv_heads : 0;
}
