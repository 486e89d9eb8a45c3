/* arch.h: the kinds of language models. Folders, decoders and training know a model by its row here, and none by its
 * name.
 *
 * The children of every language model are its body, which makes [B, T, width] of tokens [B, T], and its head, whose
 * parameter "weight" is [vocab, width]. */
#ifndef TARN__ARCH_H
#define TARN__ARCH_H

#include <tarn/model.h>

#include "formats/json_file.h"
#include "models/hf/weights.h"
#include "models/lm/device_map.h"
#include "models/lm/kv_cache.h"
#include "nn/module.h"

enum { TARN__MODEL_BODY, TARN__MODEL_HEAD };

#define TARN__GENERATION_EOS \
    "generation_eos_token_ids" /* in an opened config.json: a list of those in generation_config.json */

/* The config.json of a folder, whose name `where` has then, with the tokens that end a text of the
 * generation_config.json beside it. The caller owns the document. NULL with an error. */
tarn__json_file *tarn__model_config_open(const char *function, const char *folder, tarn__model_path *where);

/* What whoever decodes must know of a model. */
typedef tarn_model_info tarn__model_info;

/* What the options of a run say of a new model; 0: nothing. */
typedef struct tarn__model_sizes {
    int64_t vocab_size, context, layers, heads, kv_heads, hidden_size, ffn_size;
    double dropout;
    tarn_dtype dtype;
    bool has_eos;
    int64_t eos;
    tarn_recompute recompute;
    int64_t max_context; /* of complete sizes: the most tokens that such a model can look at */
} tarn__model_sizes;

/* Documents that stand beside each other in the rows of a batch: i32 [B, T] both. A token looks at its own document
 * alone. */
typedef struct tarn__documents {
    tarn_tensor *positions;       /* of a token in its document */
    tarn_tensor *document_starts; /* where in the row its document begins */
} tarn__documents;

/* Where parameters come from: `give` makes the one of that full name, of that shape, on that device, in the open scope.
 * One that is of no float dtype (blocks of packed numbers) becomes a buffer, which is not trained; the weight of a
 * linear layer is [out, in] then. NULL with an error. */
typedef struct tarn__model_source {
    tarn_tensor *(*give)(void *ctx, const char *name, tarn_shape shape, tarn_device device);
    void *ctx;
} tarn__model_source;

struct tarn__gguf_arch; /* gguf_arch.h */

typedef struct tarn__arch {
    const char *const *types; /* its model_types in config.json; NULL ends them */
    const char *const *names; /* under which new ones can be trained; NULL ends them */
    tarn_forward_fn forward;  /* that its modules have, and no others */
    tarn__linear_form linear; /* of its linear layers, but for blocks */
    const struct tarn__gguf_arch *gguf;

    /* A model as config.json says, its parameters without values. The caller owns it. NULL with an error. */
    tarn_module *(*make)(const char *function, const tarn__json_file *config, tarn_dtype dtype,
                         const tarn__device_map *where);

    /* Reads the parameters from a safetensors file, or from those that an index names. */
    bool (*load)(const char *function, tarn_module *model, const char *path);

    /* True for names that such a file may hold beside the parameters, and that mean nothing. */
    bool (*ignores)(const char *name);

    /* Writes what make() reads, model_type included. */
    bool (*describe)(const tarn_module *model, tarn__json_file *config);

    void (*info)(const tarn_module *model, tarn__model_info *info);

    /* Logits [B, vocab] of what follows the last of the tokens [B, T], which come after those in the cache, within a
     * step of it: their positions are tarn__kv_cache_positions(), and what attends is tarn__kv_cache_attend(). They
     * fit. */
    tarn_tensor *(*step)(tarn_module *model, tarn_tensor *tokens, tarn__kv_cache *cache);

    /* [B, T, width] of documents beside each other: the body's result, as each would have it alone. */
    tarn_tensor *(*hidden)(tarn_module *body, tarn_tensor *tokens, const tarn__documents *documents);

    /* Fills in the sizes that are 0 with those of the model of that name. Sizes that such a model does not have are an
     * error. */
    bool (*complete)(const char *function, const char *name, tarn__model_sizes *sizes);

    /* Sets how a model that was opened is trained; one that has no dropout takes 0 alone, which its caller sees to. */
    void (*tune)(tarn_module *model, double dropout, tarn_recompute recompute);

    /* The sizes of a model. */
    void (*sizes)(const tarn_module *model, tarn__model_sizes *sizes);

    /* True when such a model has dropout. */
    bool has_dropout;

    /* How many parameters a model of complete sizes has, but for norms and biases. */
    double (*parameter_count)(const char *name, const tarn__model_sizes *sizes);

    /* A new model of complete sizes, drawn from the seed. The caller owns it. NULL with an error. */
    tarn_module *(*create)(const char *function, const char *name, const tarn__model_sizes *sizes, tarn_device device,
                           uint64_t seed);
} tarn__arch;

extern const tarn__arch tarn__gpt2_arch, tarn__llama_arch;

/* The row of a module, and the row of a model_type. NULL with an error. */
const tarn__arch *tarn__arch_of(const char *function, const tarn_module *module);
const tarn__arch *tarn__arch_named(const char *function, const char *path, const char *type);

/* The row of what GGUF files call an architecture. NULL with an error. */
const tarn__arch *tarn__arch_in_gguf(const char *function, const char *path, const char *architecture);

/* The row of a model_type, and the row of a name that new models are trained under; NULL, which is no error: there is
 * none. */
const tarn__arch *tarn__arch_find(const char *type);
const tarn__arch *tarn__arch_find_trainable(const char *name);

/* The body, but for the check that it is a language model's: tarn_model_loss(). */
tarn_tensor *tarn__model_loss(const char *function, tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets);

/* The same of documents beside each other. `documents` may be NULL: a row is one. */
tarn_tensor *tarn__model_loss_of(const char *function, tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets,
                                 const tarn__documents *documents);

/* What config.json's torch_dtype calls a dtype. */
const char *tarn__torch_name(tarn_dtype dtype);

#endif
