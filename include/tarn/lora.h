/* lora.h: LoRA adapters of language models: low-rank matrices next to frozen weights; only the adapters are trained.
 *
 * A linear layer with an adapter computes y = linear(x) + scale · B(A(dropout(x))), A [rank, in], B [out, rank]; an
 * embedding y = rows[i] + scale · Aᵀ[i] · Bᵀ, A [rank, rows], B [columns, rank]. Names, files and defaults are those of
 * PEFT: parameters are called "….q_proj.lora_A.weight", "….q_proj.lora_B.weight" and "….embed_tokens.lora_embedding_A",
 * and either program reads the folders of the other. The base weights may have any dtype; with quantized ones (Q8_0,
 * Q4_K …) this is QLoRA. Whole modules can be trained and saved with the adapters (modules_to_save), or single
 * rows of embedding and head, as for new tokens (trained_tokens). */
#ifndef TARN_LORA_H
#define TARN_LORA_H

#include <tarn/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Options of tarn_lora_add(); zero is the default of every field but the first. */
typedef struct tarn_lora_options {
    int64_t rank;   /* required: from 1 to 65536 */
    double alpha;   /* scale is alpha / rank; 0: 8, as in PEFT */
    double dropout; /* dropout probability of x before A in training mode, in [0, 1) */
    /* linear layers and embeddings by name or path suffix, "q_proj,v_proj"; NULL: all linear layers but the head */
    const char *targets;
    uint64_t seed;    /* of A's initialization; the thread's generator is not used */
    tarn_dtype dtype; /* of A and B; default f32 */
    bool rslora;      /* scale is alpha / sqrt(rank) instead */
    /* modules that are trained whole, "embed_tokens,lm_head": all whose path ends so; NULL: none */
    const char *modules_to_save;
    /* ids of tokens whose rows of the token embedding and the head are trained (PEFT's trainable_token_indices), and
     * their number; 0: none */
    const int64_t *trained_tokens;
    int64_t trained_token_count;
} tarn_lora_options;

/* Adds adapters to layers of a model and freezes all other parameters: only A, B and the modules to save get gradients.
 * A is uniform in ±1/sqrt(in), B zero, for embeddings A zero and B normal, so that the outputs do not change. A module
 * to save is dequantized to the model's dtype; one with tied embeddings gets a copy of its own, as in PEFT. Errors: a
 * model that has adapters already or is trained by an optimizer, a name that no layer has, and trained tokens of a
 * module that is a target or saved. A head that shares the embedding's weight shares its trained rows. `...` is a const
 * tarn_lora_options *. */
TARN_API bool tarn_lora_add_sized(tarn_module *model, const tarn_lora_options *options, size_t options_size);
#define tarn_lora_add(model, ...) tarn_lora_add_sized(model, __VA_ARGS__, sizeof(tarn_lora_options))

/* True if a model has adapters, or modules that are saved with them. */
TARN_API bool tarn_lora_has(const tarn_module *model);

/* Merges the adapters into the base weights, weight + scale · B @ A, rounded once, and removes them. Quantized
 * weights with an adapter are dequantized to the model's dtype; others are unchanged. Tied embeddings are untied if
 * one of them has an adapter. Parameters stay frozen. An error while an optimizer trains the adapters. */
TARN_API bool tarn_lora_merge(tarn_module *model);

/* Writes the adapters, saved modules and trained tokens to a folder in PEFT's format, creating it if needed, or the
 * adapters to a file that ends in ".gguf", in llama.cpp's format, which has none of the others, nor DoRA. A folder:
 * adapter_config.json and adapter_model.safetensors. `base_model` is the name or path of the base model to record
 * there; NULL: none. Existing files stay until both new ones are complete next to them; then the old
 * adapter_config.json is removed first, so that a kill leaves the old adapters, the new ones, or a folder that does not
 * open. Needs jansson, as all of safetensors.h. */
TARN_API bool tarn_lora_save(const tarn_module *model, const char *folder, const char *base_model);

/* Adds the adapters of a folder written by PEFT or tarn_lora_save(), or of a GGUF file, in their dtype there, and
 * freezes the rest as tarn_lora_add() does. Layers may be named by patterns and have ranks of their own. Saved modules
 * are cast to the model's dtype; if embedding and head have other rows than the model's, or trained tokens are above
 * them, tokens were added, and the model has them afterwards. DoRA adapters can be used and merged, not trained.
 * Unsupported settings (biases …) are an error that names them; the model is then unchanged. */
TARN_API bool tarn_lora_load(tarn_module *model, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
