/* device_map.h: the devices of a language model's layers: all on one, spread over several in order, or the last ones on
 * the CPU (offloading).
 *
 * The token and position embeddings, the last norm and the head are on the first device. So the residual stream is
 * transferred once at each boundary between two devices and once from the last device to the first, logits and sampling
 * stay there, and tied embeddings need no second copy. */
#ifndef TARN__DEVICE_MAP_H
#define TARN__DEVICE_MAP_H

#include <tarn/model.h>

#include "nn/module.h"

/* Devices in the order of their layers. A device may recur. */
typedef struct tarn__device_map {
    int count; /* at least 1 */
    tarn_device device[TARN_SPLIT_MAX_DEVICES];
    int64_t layers[TARN_SPLIT_MAX_DEVICES];
    bool is_whole; /* the last device's number is given too; else it has the layers that are left */
} tarn__device_map;

/* All layers on one device. */
tarn__device_map tarn__device_map_one(tarn_device device);

/* The first `layers` layers (0: all) on the device, the others on the CPU. */
tarn__device_map tarn__device_map_offload(tarn_device device, int64_t layers);

/* The map of the options of a call: `split`, if it is not NULL, else `layers` as above on the device. Raises a wrong
 * split, both at once, and a device that is not the split's first. */
bool tarn__device_map_choose(const char *function, tarn_device device, int64_t layers, const tarn_model_split *split,
                             tarn__device_map *map);

/* Raises unless a model of `layers` layers can be mapped so. */
bool tarn__device_map_check(const char *function, const tarn__device_map *map, int64_t layers);

/* Index of a layer's device in the map. */
int tarn__device_map_index(const tarn__device_map *map, int64_t layer);

/* Device of a layer. */
tarn_device tarn__device_of_layer(const tarn__device_map *map, int64_t layer);

/* True if all devices are the CPU. */
bool tarn__device_map_is_cpu(const tarn__device_map *map);

/* The map of a model by where its layers are; the first device is the head's, and may have none. Raises where there are
 * more changes of the device than a map has. */
bool tarn__model_device_map(const char *function, const tarn_module *model, tarn__device_map *map);

/* Number of leading layers on the device of the head. */
int64_t tarn__device_layers(const tarn_module *model);

/* The layers of a language model, a sequential module. Borrowed. */
tarn_module *tarn__model_layers(const tarn_module *model);

/* True if x is on the device of a module with a "weight"; true for NULL. */
bool tarn__is_on_device_of(const tarn_tensor *x, const tarn_module *module);

/* x on the device of a module with a "weight": x itself, or a copy in the open scope. NULL with an error; NULL for
 * NULL. */
tarn_tensor *tarn__to_device_of(tarn_tensor *x, const tarn_module *module);

/* ---- partitioning layers by memory (device_partition.c) ---------------------------------------------------------- */

/* Layers of `bytes` each, the bytes of the first device besides them, and the devices. */
typedef struct tarn__partition {
    int64_t layers, other;
    const int64_t *bytes;                  /* [layers] */
    int count;                             /* devices */
    bool is_host[TARN_SPLIT_MAX_DEVICES];  /* the CPU: takes what does not fit the others */
    double weight[TARN_SPLIT_MAX_DEVICES]; /* free bytes, or a proportion; 0: no layers */
} tarn__partition;

/* Partitions adjacent layers over the devices in order, so that the largest ratio of a device's bytes to its weight is
 * minimal; a CPU next to other devices gets as few bytes as leave each of them a tenth of its memory. False with an
 * error. */
bool tarn__partition_layers(const char *function, const tarn__partition *partition, int64_t *layers);

#endif
