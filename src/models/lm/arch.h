/* arch.h: the architectures of language models. Model folders, decoders and training know a model by its row here,
 * never by its name.
 *
 * The children of every language model are its body, which maps tokens [B, T] to hidden states [B, T, hidden_size],
 * and its head, whose parameter "weight" is [vocab_size, hidden_size]. */
#ifndef TARN__ARCH_H
#define TARN__ARCH_H

#include <tarn/model.h>

#include "formats/json_file.h"
#include "models/hf/weights.h"
#include "models/lm/device_map.h"
#include "models/lm/kv_cache.h"
#include "nn/module.h"

/* Children of a language model. */
enum { TARN__MODEL_BODY, TARN__MODEL_HEAD };

#define TARN__GENERATION_EOS \
    "generation_eos_token_ids" /* in an opened config.json: a list of those in generation_config.json */

/* Opens the config.json of a folder, puts its path into `where`, and adds the EOS tokens of generation_config.json.
 * The caller owns the file. NULL with an error. */
tarn__json_file *tarn__model_config_open(const char *function, const char *folder, tarn__model_path *where);

/* The public struct, under an internal name for functions that fill it in. */
typedef tarn_model_info tarn__model_info;

/* Sizes of a new model by the options of a run; 0: not given. */
typedef struct tarn__model_sizes {
    int64_t vocab_size, context, layers, heads, kv_heads, hidden_size, ffn_size;
    double dropout;
    tarn_dtype dtype;
    bool has_eos;
    int64_t eos;
    tarn_recompute recompute;
    int64_t max_context; /* of complete sizes: maximum context length of such a model */
} tarn__model_sizes;

/* Documents packed into the rows of a batch: both i32 [B, T]. A token attends to its own document only. */
typedef struct tarn__documents {
    tarn_tensor *positions;       /* of a token in its document */
    tarn_tensor *document_starts; /* index in the row where its document begins */
} tarn__documents;

/* Source of parameters: `give` returns the parameter of that full name and shape on that device, in the open scope.
 * One of a quantized dtype becomes a buffer, which is not trained; a quantized weight of a linear layer is [out,
 * in]. NULL with an error. */
typedef struct tarn__model_source {
    tarn_tensor *(*give)(void *ctx, const char *name, tarn_shape shape, tarn_device device);
    void *ctx;
} tarn__model_source;

struct tarn__gguf_arch; /* gguf_arch.h */

/* One architecture. Functions that can fail take the public function's name for their errors. */
typedef struct tarn__arch {
    const char *const *types; /* model_types of config.json; NULL-terminated */
    const char *const *names; /* names under which new models are trained; NULL-terminated */
    tarn_forward_fn forward;  /* identifies its modules */
    tarn__linear_form linear; /* layout of its linear weights, unless quantized */
    const struct tarn__gguf_arch *gguf;

    /* Creates the model of a config.json, its parameters uninitialized. The caller owns it. NULL with an error. */
    tarn_module *(*make)(const char *function, const tarn__json_file *config, tarn_dtype dtype,
                         const tarn__device_map *where);

    /* Loads the parameters from a safetensors file, or from the shards of an index. */
    bool (*load)(const char *function, tarn_module *model, const char *path);

    /* True for tensor names without effect that such a file may hold. */
    bool (*ignores)(const char *name);

    /* Writes the keys that make() reads, model_type included. */
    bool (*describe)(const tarn_module *model, tarn__json_file *config);

    void (*info)(const tarn_module *model, tarn__model_info *info);

    /* Logits [B, vocab_size] after the last of tokens [B, T], which follow those in the cache and fit. Called within a
     * step of the cache, whose positions and attention it uses. */
    tarn_tensor *(*forward_cached)(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache);

    /* Hidden states [B, T, hidden_size] of packed documents, equal to those of each document alone. */
    tarn_tensor *(*hidden)(tarn_module *body, tarn_tensor *tokens, const tarn__documents *documents);

    /* Fills in sizes that are 0 with those of the named model. Sizes that such a model lacks are an error. */
    bool (*complete)(const char *function, const char *name, tarn__model_sizes *sizes);

    /* Sets dropout and recomputation of an opened model; the caller checks that one without dropout gets 0. */
    void (*tune)(tarn_module *model, double dropout, tarn_recompute recompute);

    /* Notes in the configuration of a model that its embeddings were resized, or no longer share a weight. */
    void (*set_embeddings)(tarn_module *model, int64_t vocab_size, bool tie_embeddings);

    /* The sizes of a model. */
    void (*sizes)(const tarn_module *model, tarn__model_sizes *sizes);

    /* True if such a model supports dropout. */
    bool has_dropout;

    /* Number of parameters of a model of complete sizes, without norms and biases. */
    double (*parameter_count)(const char *name, const tarn__model_sizes *sizes);

    /* A new model of complete sizes, initialized from the seed. The caller owns it. NULL with an error. */
    tarn_module *(*create)(const char *function, const char *name, const tarn__model_sizes *sizes, tarn_device device,
                           uint64_t seed);
} tarn__arch;

/* The rows. */
extern const tarn__arch tarn__gpt2_arch, tarn__llama_arch;

/* The row of a module, and of a model_type. NULL with an error. */
const tarn__arch *tarn__arch_of(const char *function, const tarn_module *module);
const tarn__arch *tarn__arch_named(const char *function, const char *path, const char *type);

/* The row of an architecture in GGUF files. NULL with an error. */
const tarn__arch *tarn__arch_in_gguf(const char *function, const char *path, const char *architecture);

/* The row of a model_type, and of a name for training; NULL, without an error, if there is none. */
const tarn__arch *tarn__arch_find(const char *type);
const tarn__arch *tarn__arch_find_trainable(const char *name);

/* tarn_model_loss() for a checked model. */
tarn_tensor *tarn__model_loss(const char *function, tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets);

/* The same for packed documents. `documents` may be NULL: one per row. */
tarn_tensor *tarn__model_loss_of(const char *function, tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets,
                                 const tarn__documents *documents);

/* Name of a dtype in config.json's torch_dtype. */
const char *tarn__torch_name(tarn_dtype dtype);

#endif
