/* convert.h: model conversion between Hugging Face folders and GGUF files, for GPT-2 and the Llama family;
 * quantization of any GGUF file. */
#ifndef TARN_CONVERT_H
#define TARN_CONVERT_H

#include <tarn/gguf.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Progress callback: bytes of tensors written, of `all`, and the last tensor written. */
typedef void (*tarn_convert_fn)(int64_t done, int64_t all, const char *name, void *ctx);

/* Options of tarn_model_convert(); zero is every field's default. */
typedef struct tarn_convert_options {
    bool quantize;   /* convert weights to `type`; default: they keep their type */
    tarn_dtype type; /* f32, f16, bf16 or a quantized dtype */
    bool replace;    /* overwrite an existing file or folder */
    tarn_convert_fn progress;
    void *ctx;
    const char *adapter; /* LoRA adapters to merge into the weights, as of tarn_lora_load(); NULL: none */
    /* with .quantize, instead of .type: a mixture of types by llama.cpp's name ("Q4_K_M"; tarn_convert_mixture_at()) */
    const char *mixture;
    /* with .quantize: importance of the weights' columns, which the search for scales is weighted by (all types but
     * q8_0): "text:FILE", the mean squares of the activations while the model reads that text, or a file of llama.cpp's
     * imatrix; NULL: none */
    const char *importance;
} tarn_convert_options;

/* Result of a conversion. */
typedef struct tarn_convert_summary {
    int tensors;     /* total */
    int changed;     /* converted to another dtype */
    int unquantized; /* not weight matrices (norms, biases, positions): f32 */
    /* rows are not a multiple of the block size: q8_0 instead (of a mixture, a type of similar size with blocks of
     * 32), or unchanged where that does not fit either or they are quantized already */
    int fallback;
    int promoted;          /* the head, which is q6_k where the others are q4_k; of a mixture, all of more bits */
    bool has_tokenizer;    /* between a folder and a GGUF file: a tokenizer was converted */
    int64_t before, after; /* bytes of elements */
} tarn_convert_summary;

/* Writes the model of `from`, a Hugging Face folder or a GGUF file, to `to`: a GGUF file if that ends in ".gguf",
 * else a folder.
 *
 * Between a folder and a GGUF file names, the row order of RoPE weights, GPT-2's transposed matrices, configuration,
 * tokenizer and chat template are translated as in llama.cpp; weights keep their values, and a round trip restores
 * bits and types. In a GGUF file 1-D tensors and position embeddings are f32, as llama.cpp requires. In a folder
 * quantized weights are dequantized to f32. With .quantize, which needs a GGUF file as `to`, non-finite weights are
 * an error that names them; from a GGUF file of any architecture everything else is copied unchanged.
 *
 * A folder of adapters alone (a run's, or PEFT's) stands for the model that its adapter_config.json names, with
 * .adapter. With .adapter the model is loaded, its adapters are merged into the weights, and `from` and `to` may
 * both be folders, or both GGUF files; quantized weights with an adapter become bf16, or the type of .quantize, and
 * in a GGUF file all others stay unchanged; tokenizer and chat template come from the adapters' folder where it has
 * them.
 *
 * Atomic write; of a folder, config.json is written last. `summary` may be NULL, `...` is a const
 * tarn_convert_options *, or NULL. Folders need jansson, as all of safetensors.h. */
TARN_API bool tarn_model_convert_sized(const char *from, const char *to, tarn_convert_summary *summary,
                                       const tarn_convert_options *options, size_t options_size);
#define tarn_model_convert(from, to, summary, ...) \
    tarn_model_convert_sized(from, to, summary, __VA_ARGS__, sizeof(tarn_convert_options))

/* Names of the mixtures: Q2_K, Q3_K_S, Q3_K_M, Q3_K_L, Q4_0, Q4_1, Q4_K_S, Q4_K_M, Q5_0, Q5_1, Q5_K_S, Q5_K_M, Q6_K,
 * Q8_0, IQ4_NL, IQ4_XS. The head, or a tied token embedding, is Q6_K (in Q8_0 Q8_0); value and output projections and
 * ffn_down have more bits than the others in some or all layers, by llama.cpp's rules. NULL past the last one. */
TARN_API const char *tarn_convert_mixture_at(int index);

#ifdef __cplusplus
}
#endif
#endif
