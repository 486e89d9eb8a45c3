/* device_map.h: where the parts of a language model lie: all on one device, or its last blocks on the CPU.
 *
 * The first blocks, the tables of tokens and positions, the last norm and the head lie on the device. So what passes
 * between the blocks leaves the device once for each step and comes back once, logits and the choice of a token stay
 * there, and a head that shares the tokens' table needs no second one. */
#ifndef TARN__DEVICE_MAP_H
#define TARN__DEVICE_MAP_H

#include "nn/module.h"

typedef struct tarn__device_map {
    tarn_device device;
    int64_t layers; /* blocks that lie on the device; 0: all of them */
} tarn__device_map;

/* Raises unless a model of so many blocks can be placed like this. */
bool tarn__device_map_check(const char *function, const tarn__device_map *where, int64_t layers);

/* The device of a block. */
tarn_device tarn__device_of_layer(const tarn__device_map *where, int64_t block);

/* How many blocks of a language model lie where its head does. */
int64_t tarn__device_layers(const tarn_module *model);

/* The blocks of a language model. Borrowed. */
tarn_module *tarn__model_layers(const tarn_module *model);

/* True when x lies where a module with a "weight" does. NULL, which is no tensor, lies everywhere. */
bool tarn__is_on_device_of(const tarn_tensor *x, const tarn_module *module);

/* x where a module with a "weight" lies: x itself, or a copy in the open scope. NULL with an error; NULL stays NULL. */
tarn_tensor *tarn__to_device_of(tarn_tensor *x, const tarn_module *module);

#endif
