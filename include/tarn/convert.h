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
    tarn_dtype type; /* f32, f16, bf16, q8_0, q4_0, q4_k or q6_k */
    bool replace;    /* overwrite an existing file or folder */
    tarn_convert_fn progress;
    void *ctx;
    const char *adapter; /* folder of LoRA adapters (tarn/lora.h) to merge into the weights; NULL: none */
} tarn_convert_options;

/* Result of a conversion. */
typedef struct tarn_convert_summary {
    int tensors;     /* total */
    int changed;     /* converted to another dtype */
    int unquantized; /* not weight matrices (norms, biases, positions): f32 */
    /* rows are not a multiple of the block size: q8_0 instead, or unchanged where q8_0 does not fit either or they
     * are quantized already */
    int fallback;
    int promoted;          /* the head, which is q6_k where the others are q4_k */
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

#ifdef __cplusplus
}
#endif
#endif
