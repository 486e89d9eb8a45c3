/* device_map.c: where the parts of a language model lie. */
#include "models/lm/device_map.h"

#include <tarn/model.h>

#include "models/lm/arch.h"

bool tarn__device_map_check(const char *function, const tarn__device_map *where, int64_t layers)
{
    if (where->layers < 0 || where->layers > layers)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: %lld layers on the device, but the model has %lld; from 1 to all of them can lie there",
                           function, (long long)where->layers, (long long)layers);
    return true;
}

tarn_device tarn__device_of_layer(const tarn__device_map *where, int64_t block)
{
    return where->layers == 0 || block < where->layers ? where->device : tarn_device_cpu();
}

tarn_module *tarn__model_layers(const tarn_module *model)
{
    const tarn_module *body = model->child[TARN__MODEL_BODY];
    int i = 0;
    while (!tarn__is_sequential(body->child[i]))
        i++;
    return body->child[i];
}

/* Any parameter or buffer of a module or of its children; NULL: it has none. */
static const tarn_tensor *some_tensor(const tarn_module *module)
{
    const tarn_tensor *found = module->parameters > 0 ? module->parameter[0].tensor : NULL;
    for (int i = 0; !found && i < module->children; i++)
        found = some_tensor(module->child[i]);
    return found;
}

int64_t tarn__device_layers(const tarn_module *model)
{
    const tarn_module *blocks = tarn__model_layers(model);
    tarn_device device = tarn__device(tarn__module_own(model->child[TARN__MODEL_HEAD], "weight"));
    int64_t count = 0;
    while (count < blocks->children && tarn__same_device(tarn__device(some_tensor(blocks->child[count])), device))
        count++;
    return count;
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

/* First what leaves the device, so that there is room for what comes. */
static bool place_blocks(const tarn_module *blocks, const tarn__device_map *where, bool on_device)
{
    for (int i = 0; i < blocks->children; i++)
        if ((i < where->layers) == on_device && !tarn_module_to(blocks->child[i], tarn__device_of_layer(where, i)))
            return false;
    return true;
}

bool tarn_model_offload(tarn_module *model, tarn_device device, int64_t layers)
{
    const char *function = "model_offload";
    if (!tarn__arch_of(function, model))
        return false;
    tarn_module *blocks = tarn__model_layers(model), *body = model->child[TARN__MODEL_BODY];
    const tarn__device_map where = {.device = device, .layers = layers ? layers : blocks->children};
    if (!tarn__device_map_check(function, &where, blocks->children))
        return false;
    bool good = place_blocks(blocks, &where, false) && place_blocks(blocks, &where, true);
    for (int i = 0; good && i < body->children; i++)
        good = body->child[i] == blocks || tarn_module_to(body->child[i], device);
    return (good && tarn_module_to(model->child[TARN__MODEL_HEAD], device)) || tarn__raise_within(function);
}
