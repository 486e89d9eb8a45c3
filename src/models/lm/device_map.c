/* device_map.c: offloading layers of a language model to the CPU (device_map.h). */
#include "models/lm/device_map.h"

#include <tarn/model.h>

#include "models/lm/arch.h"

bool tarn__device_map_check(const char *function, const tarn__device_map *map, int64_t layers)
{
    if (map->layers < 0 || map->layers > layers)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %lld layers on the device; it must be from 1 to the model's %lld",
                           function, (long long)map->layers, (long long)layers);
    return true;
}

int tarn__device_map_index(const tarn__device_map *map, int64_t layer)
{
    return map->layers > 0 && layer >= map->layers;
}

bool tarn__device_map_is_cpu(const tarn__device_map *map)
{
    return tarn__is_cpu(map->device);
}

tarn_device tarn__device_of_layer(const tarn__device_map *map, int64_t layer)
{
    return map->layers == 0 || layer < map->layers ? map->device : tarn_device_cpu();
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

/* Counts leading layers on the head's device: only those can be followed by CPU layers. */
int64_t tarn__device_layers(const tarn_module *model)
{
    const tarn_module *layers = tarn__model_layers(model);
    tarn_device device = tarn__device(tarn__module_own(model->child[TARN__MODEL_HEAD], "weight"));
    int64_t count = 0;
    while (count < layers->children && tarn__same_device(tarn__device(any_tensor(layers->child[count])), device))
        count++;
    return count;
}

bool tarn__model_device_map(const char *function, const tarn_module *model, tarn__device_map *map)
{
    const tarn_module *layers = tarn__model_layers(model);
    *map = (tarn__device_map){.device = tarn__device(tarn__module_own(model->child[TARN__MODEL_HEAD], "weight")),
                              .layers = tarn__device_layers(model)};
    for (int i = 0; i < layers->children; i++)
        if (map->layers == 0 ||
            !tarn__same_device(tarn__device(any_tensor(layers->child[i])), tarn__device_of_layer(map, i)))
            return tarn__raise(
                TARN_ERROR_UNSUPPORTED,
                "%s: layer %d is on another device than the head, and not as tarn_model_offload() does it", function,
                i);
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

/* Moves the layers of one side of the map. The caller first moves those that leave the device, to free memory for
 * the others. */
static bool move_layers(const tarn_module *layers, const tarn__device_map *map, bool on_device)
{
    for (int i = 0; i < layers->children; i++)
        if ((i < map->layers) == on_device && !tarn_module_to(layers->child[i], tarn__device_of_layer(map, i)))
            return false;
    return true;
}

bool tarn_model_offload(tarn_module *model, tarn_device device, int64_t layers)
{
    const char *function = "model_offload";
    if (!tarn__arch_of(function, model))
        return false;
    tarn_module *all = tarn__model_layers(model), *body = model->child[TARN__MODEL_BODY];
    const tarn__device_map map = {.device = device, .layers = layers ? layers : all->children};
    if (!tarn__device_map_check(function, &map, all->children))
        return false;
    bool good = move_layers(all, &map, false) && move_layers(all, &map, true);
    for (int i = 0; good && i < body->children; i++)
        good = body->child[i] == all || tarn_module_to(body->child[i], device);
    return (good && tarn_module_to(model->child[TARN__MODEL_HEAD], device)) || tarn__raise_within(function);
}
