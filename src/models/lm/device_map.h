/* device_map.h: the devices of a language model's layers: all on one device, or its last layers on the CPU.
 *
 * The first layers, the token and position embeddings, the last norm and the head are on the device. So the residual
 * stream leaves the device once per forward pass and returns once, logits and sampling stay there, and tied
 * embeddings need no second copy. */
#ifndef TARN__DEVICE_MAP_H
#define TARN__DEVICE_MAP_H

#include "nn/module.h"

typedef struct tarn__device_map {
    tarn_device device;
    int64_t layers; /* layers on the device; 0: all */
} tarn__device_map;

/* Raises unless a model of `layers` layers can be mapped so. */
bool tarn__device_map_check(const char *function, const tarn__device_map *map, int64_t layers);

/* Index of a layer's device: 0, or 1 for those on the CPU where the others are not. */
int tarn__device_map_index(const tarn__device_map *map, int64_t layer);

/* True if all layers are on the CPU. */
bool tarn__device_map_is_cpu(const tarn__device_map *map);

/* The map of a model by where its layers are. Raises layers that are not on the head's device, or on the CPU after all
 * that are. */
bool tarn__model_device_map(const char *function, const tarn_module *model, tarn__device_map *map);

/* Device of a layer. */
tarn_device tarn__device_of_layer(const tarn__device_map *map, int64_t layer);

/* Number of layers on the device of the head. */
int64_t tarn__device_layers(const tarn_module *model);

/* The layers of a language model, a sequential module. Borrowed. */
tarn_module *tarn__model_layers(const tarn_module *model);

/* True if x is on the device of a module with a "weight"; true for NULL. */
bool tarn__is_on_device_of(const tarn_tensor *x, const tarn_module *module);

/* x on the device of a module with a "weight": x itself, or a copy in the open scope. NULL with an error; NULL for
 * NULL. */
tarn_tensor *tarn__to_device_of(tarn_tensor *x, const tarn_module *module);

#endif
