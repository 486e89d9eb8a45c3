/* lora.h: what the files about adapters share: the layers of a model that can have them, and the ones that do. */
#ifndef TARN__LORA_H
#define TARN__LORA_H

#include <tarn/lora.h>

#include "formats/json_file.h"
#include "models/hf/weights.h"
#include "models/lm/arch.h"
#include "nn/lora.h"

/* A linear layer of a model, but for the head. */
typedef struct tarn__lora_layer {
    tarn_module *module; /* borrowed */
    char *path;          /* "model.layers.0.self_attn.q_proj"; owned */
    bool is_chosen;
} tarn__lora_layer;

typedef struct tarn__lora_layers {
    tarn__lora_layer *layer;
    int count, capacity;
    tarn__linear_form form; /* of the model's kind, blocks or not */
} tarn__lora_layers;

/* All linear layers of a language model, in the tree's order, but for the head; those that have adapters are chosen.
 * The caller releases the list, on failure too. False with an error. */
bool tarn__lora_list(const char *function, const tarn_module *model, tarn__lora_layers *list);
void tarn__lora_release(tarn__lora_layers *list);

/* Chooses the layers of a name: called so, or with a path that ends so. How many there are. */
int tarn__lora_select(tarn__lora_layers *list, const char *name, size_t length);

/* True when a layer's path is the name, or ends in a dot and the name. */
bool tarn__lora_name_matches(const char *path, const char *name, size_t length);

/* Freezes all of a model but the adapters. False with an error. */
bool tarn__lora_freeze(const char *function, tarn_module *model, const tarn__lora_layers *list);

/* Raises unless the model is a language model without adapters. */
bool tarn__lora_check_none(const char *function, const tarn_module *model);

/* What follows from rank, alpha and rslora. */
double tarn__lora_scale(const tarn__adapter *settings);

/* adapter_config.json (lora_config.c). Reading chooses the layers that it names. `path` is for errors. */
bool tarn__lora_read_config(const char *function, const tarn__json_file *document, const char *path,
                            tarn__adapter *settings, tarn__lora_layers *list);
bool tarn__lora_write_config(const tarn__lora_layers *list, const char *base_model, tarn__json_file *document);

/* Folders that hold adapters without a model (lora_open.c): whether one is such; where the model lies that
 * adapter_config.json names; and that model with them, out of training mode, which the caller owns. Errors begin with
 * `function`. */
bool tarn__lora_is_folder(const char *function, const char *folder);
bool tarn__lora_base_of(const char *function, const char *folder, tarn__model_path *base);
tarn_module *tarn__lora_open_folder(const char *function, const char *folder, tarn_device device,
                                    const tarn_model_open_options *options);

#endif
