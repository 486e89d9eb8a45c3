/* convert.h: models from one kind of file to another: Hugging Face folders and GGUF files, of GPT-2 and the Llama
 * family; and any GGUF file with weights of another type. */
#ifndef TARN_CONVERT_H
#define TARN_CONVERT_H

#include <tarn/gguf.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sees how far it is: bytes of tensors written, of how many, and the tensor that was the last. */
typedef void (*tarn_convert_fn)(int64_t done, int64_t all, const char *name, void *ctx);

/* Options of tarn_model_convert(); zero is every field's default. */
typedef struct tarn_convert_options {
    bool quantize;   /* weights become `type`; default: they keep theirs */
    tarn_dtype type; /* f32, f16, bf16, q8_0, q4_0, q4_k or q6_k */
    bool replace;    /* what is there already may be replaced */
    tarn_convert_fn progress;
    void *ctx;
    const char *adapter; /* a folder of adapters (tarn/lora.h) that become part of the weights; NULL: none */
} tarn_convert_options;

/* What was done. */
typedef struct tarn_convert_summary {
    int tensors;     /* in all */
    int changed;     /* that got another element type */
    int unquantized; /* no matrices of weights (norms, biases, positions): kept in f32, or made f32 */
    /* whose rows are no whole number of blocks: made q8_0, or kept as they are where q8_0's are none either, or they
     * are blocks already */
    int uneven;
    int promoted;          /* the head, which is q6_k where the others are q4_k */
    bool has_tokenizer;    /* between a folder and a GGUF file: there was one */
    int64_t before, after; /* bytes of elements */
} tarn_convert_summary;

/* Writes the model of `from`, a Hugging Face folder or a GGUF file, to `to`: a GGUF file if that ends in ".gguf", else
 * a folder.
 *
 * Between a folder and a GGUF file names, the order of the rows that rotary positions turn, GPT-2's matrices,
 * configuration, tokenizer and chat template are translated as llama.cpp has them; weights keep their bits, and come
 * back with their bits and types. In a GGUF file tensors of one axis and the table of positions are f32, as llama.cpp
 * wants them. In a folder, blocks become f32. With .quantize, which needs a GGUF file as `to`, weights that hold NaN or
 * infinity are refused by name; from a GGUF file, of any architecture, all else is handed on unchanged. A folder that
 * holds adapters alone (a run's, or PEFT's) stands for the model that its adapter_config.json names, with .adapter.
 * With .adapter the model is opened in memory, its adapters are merged into the weights, and both `from` and `to` may
 * be folders, or both be GGUF files; weights in blocks that an adapter changes become bf16 then, or what .quantize asks
 * for, and in a GGUF file all others stay as they are; tokenizer and chat template are those of the adapters' folder
 * where it has them. Files appear whole or not at all; of a folder, config.json comes last. `summary` may be NULL,
 * `...` is a const tarn_convert_options *, or NULL. Folders need jansson, as all of safetensors.h. */
TARN_API bool tarn_model_convert_sized(const char *from, const char *to, tarn_convert_summary *summary,
                                       const tarn_convert_options *options, size_t options_size);
#define tarn_model_convert(from, to, summary, ...) \
    tarn_model_convert_sized(from, to, summary, __VA_ARGS__, sizeof(tarn_convert_options))

#ifdef __cplusplus
}
#endif
#endif
