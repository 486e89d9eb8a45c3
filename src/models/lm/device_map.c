/* device_map.c: maps of layers to devices, and moving a model by one (device_map.h). */
#include "models/lm/device_map.h"

#include <string.h>

#include "models/lm/arch.h"

tarn__device_map tarn__device_map_one(tarn_device device)
{
    return (tarn__device_map){.count = 1, .device = {device}};
}

tarn__device_map tarn__device_map_offload(tarn_device device, int64_t layers)
{
    if (layers == 0)
        return tarn__device_map_one(device);
    return (tarn__device_map){.count = 2, .device = {device, tarn_device_cpu()}, .layers = {layers}};
}

/* Raises a split that no model could have; with how many layers the last device ends is checked with the model. */
static bool check_split(const char *function, tarn_device device, const tarn_model_split *split)
{
    char first[32], given[32];
    if (split->count < 1 || split->count > TARN_SPLIT_MAX_DEVICES)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the split has %d devices; it must have from 1 to %d", function,
                           split->count, TARN_SPLIT_MAX_DEVICES);
    for (int i = 0; i < split->count; i++)
        if (split->layers[i] < 0)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the split has %lld layers on device %d; expected 0 or more",
                               function, (long long)split->layers[i], i);
    return tarn_device_equal(device, split->device[0]) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: the device is %s; it must be the split's first, %s", function,
                       tarn_device_name(device, given, sizeof(given)),
                       tarn_device_name(split->device[0], first, sizeof(first)));
}

bool tarn__device_map_choose(const char *function, tarn_device device, int64_t layers, const tarn_model_split *split,
                             tarn__device_map *map)
{
    *map = tarn__device_map_offload(device, layers);
    if (!split)
        return true;
    if (layers)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .device_layers is %lld, and .split is given; set one of them",
                           function, (long long)layers);
    if (!check_split(function, device, split))
        return false;
    *map = (tarn__device_map){.count = split->count, .is_whole = true};
    memcpy(map->device, split->device, sizeof(map->device));
    memcpy(map->layers, split->layers, sizeof(map->layers));
    return true;
}

bool tarn__device_map_check(const char *function, const tarn__device_map *map, int64_t layers)
{
    int64_t sum = 0;
    for (int i = 0; i < map->count - !map->is_whole; i++)
        sum += map->layers[i];
    if (map->is_whole)
        return sum == layers || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the split has %lld layers; the model has %lld",
                                            function, (long long)sum, (long long)layers);
    return (map->layers[0] >= 0 && sum <= layers) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: %lld layers on the device; it must be from 1 to the model's %lld",
                       function, (long long)map->layers[0], (long long)layers);
}

int tarn__device_map_index(const tarn__device_map *map, int64_t layer)
{
    int index = 0;
    for (int64_t end = map->layers[0]; index < map->count - 1 && layer >= end; end += map->layers[index])
        index++;
    return index;
}

tarn_device tarn__device_of_layer(const tarn__device_map *map, int64_t layer)
{
    return map->device[tarn__device_map_index(map, layer)];
}

bool tarn__device_map_is_cpu(const tarn__device_map *map)
{
    bool good = true;
    for (int i = 0; i < map->count; i++)
        good = good && tarn__is_cpu(map->device[i]);
    return good;
}

/* The only sequential child of the body. */
tarn_module *tarn__model_layers(const tarn_module *model)
{
    const tarn_module *body = model->child[TARN__MODEL_BODY];
    int i = 0;
    while (!tarn__is_sequential(body->child[i]))
        i++;
    return body->child[i];
}

/* Any parameter of a module or its descendants; NULL if there is none. */
static const tarn_tensor *any_tensor(const tarn_module *module)
{
    const tarn_tensor *found = module->parameters > 0 ? module->parameter[0].tensor : NULL;
    for (int i = 0; !found && i < module->children; i++)
        found = any_tensor(module->child[i]);
    return found;
}

static tarn_device head_device(const tarn_module *model)
{
    return tarn__device(tarn__module_own(model->child[TARN__MODEL_HEAD], "weight"));
}

int64_t tarn__device_layers(const tarn_module *model)
{
    const tarn_module *layers = tarn__model_layers(model);
    tarn_device device = head_device(model);
    int64_t count = 0;
    while (count < layers->children && tarn__same_device(tarn__device(any_tensor(layers->child[count])), device))
        count++;
    return count;
}

bool tarn__model_device_map(const char *function, const tarn_module *model, tarn__device_map *map)
{
    const tarn_module *layers = tarn__model_layers(model);
    *map = tarn__device_map_one(head_device(model));
    map->is_whole = true;
    for (int i = 0; i < layers->children; i++) {
        tarn_device device = tarn__device(any_tensor(layers->child[i]));
        if (!tarn__same_device(device, map->device[map->count - 1])) {
            if (map->count == TARN_SPLIT_MAX_DEVICES)
                return tarn__raise(TARN_ERROR_UNSUPPORTED,
                                   "%s: the model's layers change devices %d times or more; at most %d are supported",
                                   function, map->count, TARN_SPLIT_MAX_DEVICES - 1);
            map->device[map->count++] = device;
        }
        map->layers[map->count - 1]++;
    }
    return true;
}

bool tarn__is_on_device_of(const tarn_tensor *x, const tarn_module *module)
{
    return !x || tarn__same_device(tarn__device(x), tarn__device(tarn__module_own(module, "weight")));
}

tarn_tensor *tarn__to_device_of(tarn_tensor *x, const tarn_module *module)
{
    return tarn__is_on_device_of(x, module) ? x : tarn_to(x, tarn__device(tarn__module_own(module, "weight")));
}

/* ---- moving ------------------------------------------------------------------------------------------------------ */

/* Moves the layers that go to the CPU, or those that go to another device. */
static bool move_layers(const tarn_module *layers, const tarn__device_map *map, bool to_host)
{
    for (int i = 0; i < layers->children; i++) {
        tarn_device device = tarn__device_of_layer(map, i);
        if (tarn__is_cpu(device) == to_host && !tarn_module_to(layers->child[i], device))
            return false;
    }
    return true;
}

/* Layers that leave for the CPU go first: their memory is free for the others. */
static bool move_model(tarn_module *model, const tarn__device_map *map)
{
    tarn_module *all = tarn__model_layers(model), *body = model->child[TARN__MODEL_BODY];
    bool good = move_layers(all, map, true) && move_layers(all, map, false);
    for (int i = 0; good && i < body->children; i++)
        good = body->child[i] == all || tarn_module_to(body->child[i], map->device[0]);
    return good && tarn_module_to(model->child[TARN__MODEL_HEAD], map->device[0]);
}

bool tarn_model_offload(tarn_module *model, tarn_device device, int64_t layers)
{
    const char *function = "model_offload";
    if (!tarn__arch_of(function, model))
        return false;
    const tarn__device_map map = tarn__device_map_offload(device, layers);
    if (!tarn__device_map_check(function, &map, tarn__model_layers(model)->children))
        return false;
    return move_model(model, &map) || tarn__raise_within(function);
}

bool tarn_model_split_layers(tarn_module *model, const tarn_model_split *split)
{
    const char *function = "model_split_layers";
    tarn__device_map map;
    if (!tarn__arch_of(function, model))
        return false;
    if (!split)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the split is NULL", function);
    if (!tarn__device_map_choose(function, split->device[0], 0, split, &map) ||
        !tarn__device_map_check(function, &map, tarn__model_layers(model)->children))
        return false;
    return move_model(model, &map) || tarn__raise_within(function);
}
