/* lora.h: LoRA adapters of language models: the layers that can have them, those that do, and the modules that are
 * trained and saved with them. */
#ifndef TARN__LORA_H
#define TARN__LORA_H

#include <tarn/lora.h>

#include "formats/json_file.h"
#include "models/hf/weights.h"
#include "models/lm/arch.h"
#include "nn/lora_groups.h"

/* What a module with parameters is to adapters. */
typedef enum tarn__lora_kind {
    TARN__LORA_LINEAR,
    TARN__LORA_HEAD,      /* a target only by name, as in PEFT */
    TARN__LORA_EMBEDDING, /* of tokens; the same */
    TARN__LORA_NO_TARGET  /* a norm or a position embedding, which can only be saved */
} tarn__lora_kind;

/* A module with parameters. */
typedef struct tarn__lora_layer {
    tarn_module *module; /* borrowed */
    char *path;          /* "model.layers.0.self_attn.q_proj"; owned */
    tarn__lora_kind kind;
    bool is_selected;       /* has an adapter, or gets one */
    bool is_saved;          /* is trained whole, or will be */
    tarn__adapter settings; /* of the adapter, if it is selected */
    bool has_tokens;        /* has trained rows, or gets them */
    int64_t *token, tokens; /* those that it gets: ids, owned by the list, and their number */
} tarn__lora_layer;

/* All modules with parameters of a model. Owns its paths and tokens. */
typedef struct tarn__lora_layers {
    tarn__lora_layer *layer;
    int count, capacity;
    tarn__linear_form form; /* layout of the architecture's weights, quantized or not */
} tarn__lora_layers;

/* Lists the modules of a language model that have parameters, in tree order; those with adapters are selected. The
 * caller releases the list, on failure too. False with an error. */
bool tarn__lora_list(const char *function, const tarn_module *model, tarn__lora_layers *list);
void tarn__lora_release(tarn__lora_layers *list);

/* Selects targets by name or path suffix. Returns their number. */
int tarn__lora_select(tarn__lora_layers *list, const char *name, size_t length);

/* True if a path is the name, or ends with a dot and the name. */
bool tarn__lora_name_matches(const char *path, const char *name, size_t length);

/* Freezes everything but the adapters and the saved modules. False with an error. */
bool tarn__lora_freeze(const char *function, tarn_module *model, const tarn__lora_layers *list);

/* Makes the modules of the list that are to be saved trainable copies, notes changed embeddings, and freezes the rest:
 * the last step of adding adapters. False with an error. */
bool tarn__lora_start(const char *function, tarn_module *model, const tarn__lora_layers *list);

/* Raises unless the model is a language model without adapters. */
bool tarn__lora_check_none(const char *function, const tarn_module *model);

/* Scale by rank, alpha and rslora. */
double tarn__lora_scale(const tarn__adapter *settings);

/* Saved modules (lora_saved.c). Marks those whose paths end so, and returns their number; raises those that have
 * adapters too. */
int tarn__lora_select_saved(tarn__lora_layers *list, const char *name, size_t length);
bool tarn__lora_check_saved(const char *function, const tarn__lora_layers *list);

/* Replaces quantized and tied parameters of a module by copies of its own, in the model's dtype. False with an error.
 */
bool tarn__lora_make_own(tarn_module *model, tarn_module *module);

/* True if the head shares its weight with the token embedding. */
bool tarn__lora_is_tied(const tarn_module *model);

/* The token embedding, borrowed. NULL: none. */
tarn_module *tarn__lora_token_embedding(const tarn_module *model);

/* Grows token embedding and head to that many rows, dequantized to the model's dtype; one that has as many stays. New
 * rows are drawn as transformers' resize_token_embeddings() does, from a normal distribution with the mean of the old
 * rows and 1e-9 of their covariance; without a seed (NULL) they are the mean. False with an error. */
bool tarn__lora_add_tokens(const char *function, tarn_module *model, int64_t vocab_size, const uint64_t *seed);

/* Replaces the weight that token embedding and head share. Takes the tensor, which belongs to the open scope. False
 * with an error. */
bool tarn__lora_replace_tied(tarn_module *model, tarn_tensor *weight);

/* Brings the model's configuration in line with the weights of its embedding and head. Raises different sizes. */
bool tarn__lora_note_embeddings(const char *function, tarn_module *model);

/* Trained rows of token embedding and head (lora_tokens.c). False with an error. Setting copies the ids, and raises
 * negative and equal ones; `where` is for errors. The layer of a kind, of which a model has one at most; NULL: none. */
bool tarn__lora_set_tokens(const char *function, const char *where, tarn__lora_layer *layer, const int64_t *token,
                           int64_t count);
tarn__lora_layer *tarn__lora_layer_of(const tarn__lora_layers *list, tarn__lora_kind kind);

/* True if the head gets the trained rows of the embedding, since both share a weight. */
bool tarn__lora_shares_tokens(const tarn_module *model, const tarn__lora_layers *list);

/* Raises layers that get trained rows and are saved or have adapters too. */
bool tarn__lora_check_tokens(const char *function, const tarn_module *model, const tarn__lora_layers *list);

/* The highest id that a layer gets; -1: none. */
int64_t tarn__lora_highest_token(const tarn__lora_layer *layer);

/* Adds rows with the values of the weights, in a dtype; and those of a head that shares them, once the embedding has
 * its own. */
bool tarn__lora_add_trained_tokens(const char *function, const tarn_module *model, const tarn__lora_layers *list,
                                   tarn_dtype dtype);
bool tarn__lora_share_tokens(const tarn_module *model, const tarn__lora_layers *list);

/* Their member of adapter_config.json. */
bool tarn__lora_read_tokens(const char *function, const tarn__json_file *document, const char *path,
                            tarn__lora_layers *list);
bool tarn__lora_write_tokens(const tarn__lora_layers *list, tarn__json_file *document);

/* adapter_config.json (lora_config.c). Reading selects the layers that it names and fills in their settings. `path` is
 * for errors. */
bool tarn__lora_read_config(const char *function, const tarn__json_file *document, const char *path,
                            tarn__lora_layers *list);
bool tarn__lora_write_config(const tarn__lora_layers *list, const char *base_model, tarn__json_file *document);

/* Adapters in GGUF files (lora_gguf.c), of a model that has them or gets them. False with an error; the model is then
 * unchanged. */
bool tarn__lora_save_gguf(const char *function, const tarn_module *model, const char *path);
bool tarn__lora_load_gguf(const char *function, tarn_module *model, const char *path, tarn__lora_set *set);

/* tarn_lora_load(); or, with a set, the adapters of a folder or a GGUF file for the rows of requests: the set has them,
 * and the model is unchanged. Raises those that replace parameters of the model. False with an error; the set may then
 * have some entries. */
bool tarn__lora_load(const char *function, tarn_module *model, const char *folder, tarn__lora_set *set);

/* Parts of that (lora_set.c): raises layers that replace parameters, and a base weight in a file that is not the
 * model's `own`; moves the adapters of all layers to the set. */
bool tarn__lora_check_base(const char *function, const char *path, const tarn_safetensors *file, const char *name,
                           tarn_tensor *own);
bool tarn__lora_check_set(const char *function, const char *path, const tarn__lora_layers *list);
bool tarn__lora_take_all(const tarn__lora_layers *list, tarn__lora_set *set);

/* Layer names as PEFT matches them (lora_match.c). A pattern is a regular expression in Python's syntax; `path` is for
 * errors. `found` is called for every layer of the list, selected or not. False with an error. */
typedef enum tarn__lora_anchor {
    TARN__LORA_WHOLE, /* the whole path matches */
    TARN__LORA_SUFFIX /* the path, or what follows one of its dots */
} tarn__lora_anchor;
bool tarn__lora_each_match(const char *function, const char *path, const char *pattern, tarn__lora_anchor anchor,
                           const tarn__lora_layers *list, void (*found)(tarn__lora_layer *layer, void *ctx), void *ctx);

/* The number of the block a layer is in: the first number in its path, after `pattern` if that is not NULL. -1: none;
 * -2 with an error. */
int64_t tarn__lora_block_of(const char *function, const char *path, const char *pattern, const char *layer);

/* Folders of adapters without a model (lora_file.c): whether one is such; the path of the base model that
 * adapter_config.json names; and that model with the adapters, out of training mode, which the caller owns. */
bool tarn__lora_is_folder(const char *function, const char *folder);
bool tarn__lora_base_of(const char *function, const char *folder, tarn__model_path *base);

/* The same, with the quantization of the run in the options of the base model. */
bool tarn__lora_base_with(const char *function, const char *folder, tarn__model_path *base,
                          tarn_model_open_options *options);
tarn_module *tarn__lora_open_folder(const char *function, const char *folder, tarn_device device,
                                    const tarn_model_open_options *options);

#endif
