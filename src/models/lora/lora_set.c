/* lora_set.c: adapters that requests choose (nn/lora_groups.h), loaded beside a model that stays as it is. */
#include "models/lora/lora.h"

#include "base/dtype.h"

/* Modules to save and trained tokens hold for every row of a pass. */
bool tarn__lora_check_set(const char *function, const char *path, const tarn__lora_layers *list)
{
    for (int i = 0; i < list->count; i++) {
        const tarn__lora_layer *layer = &list->layer[i];
        if (layer->is_saved || layer->tokens > 0)
            return tarn__raise(TARN_ERROR_UNSUPPORTED,
                               "%s: '%s' %s '%s', which an adapter that requests choose cannot do; load it with "
                               "tarn_lora_load() (--adapter)",
                               function, path, layer->is_saved ? "replaces all of" : "replaces rows of", layer->path);
    }
    return true;
}

/* PEFT copies the weights of embeddings and heads that are targets or were resized. Those of a quantized model are the
 * caller's choice, as in tarn_lora_load(). */
bool tarn__lora_check_base(const char *function, const char *path, const tarn_safetensors *file, const char *name,
                           tarn_tensor *own)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *values = scope ? tarn_safetensors_read(file, name, tarn__device(own)) : NULL;
    bool good = values != NULL, is_same = good && tarn__same_shape(&values->view, &own->view);
    tarn_no_grad_open();
    if (is_same && !tarn__is_quantized(own->view.dtype)) {
        tarn_tensor *most = tarn_max(tarn_abs(tarn_sub(tarn_cast(values, own->view.dtype), own)), TARN_ALL_AXES, false);
        is_same = most && tarn_item(most) == 0;
        good = !tarn_failed();
    }
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return good && (is_same || tarn__raise(TARN_ERROR_UNSUPPORTED,
                                           "%s: '%s': '%.200s' is another weight than the model's, which an adapter "
                                           "that requests choose cannot replace; load it with tarn_lora_load() "
                                           "(--adapter)",
                                           function, path, name));
}

bool tarn__lora_take_all(const tarn__lora_layers *list, tarn__lora_set *set)
{
    bool good = true;
    for (int i = 0; good && i < list->count; i++)
        good = !list->layer[i].is_selected || tarn__lora_set_take(set, list->layer[i].module);
    return good;
}
