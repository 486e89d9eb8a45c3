/* lora_open.c: a folder that holds adapters alone, opened as the model that they were trained with, together with them.
 */
#include <string.h>

#include "base/os/files.h"
#include "models/hf/weights.h"
#include "models/lora/lora.h"

static bool holds(const char *function, const char *folder, const char *name)
{
    tarn__model_path there;
    return tarn__model_path_in(function, folder, name, &there) && tarn__path_exists(there.text);
}

bool tarn__lora_is_folder(const char *function, const char *folder)
{
    return holds(function, folder, "adapter_config.json") && !holds(function, folder, "model.safetensors") &&
           !holds(function, folder, "model.safetensors.index.json");
}

bool tarn__lora_base_of(const char *function, const char *folder, tarn__model_path *base)
{
    static const char *const key = "base_model_name_or_path";
    tarn__model_path path;
    tarn__json_file *config = tarn__model_path_in(function, folder, "adapter_config.json", &path)
                                  ? tarn__json_file_open(function, path.text)
                                  : NULL;
    bool is_there = config && tarn__json_file_kind(config, key) == TARN__MEMBER_STRING;
    const char *name = is_there ? tarn__json_file_string(config, key) : NULL;
    bool good = name && name[0] && strlen(name) < sizeof(base->text);
    if (good)
        memcpy(base->text, name, strlen(name) + 1);
    else if (config)
        tarn__raise(TARN_ERROR_FORMAT,
                    "%s: '%s' does not name the model that the adapters belong to; open that, and load them with "
                    "tarn_lora_load() (--adapter)",
                    function, path.text);
    if (good && !tarn__path_exists(base->text))
        good = tarn__raise(TARN_ERROR_IO,
                           "%s: the adapters in '%s' belong to '%s', which is not there; open the model where it is, "
                           "and load them with tarn_lora_load() (--adapter)",
                           function, folder, base->text);
    tarn__json_file_free(config);
    return good;
}

/* The folder of a run says how its frozen weights were read. */
static bool read_blocks(const char *function, const char *folder, tarn_dtype *blocks)
{
    tarn__model_path path;
    if (*blocks || !holds(function, folder, "config.json"))
        return !tarn_failed();
    tarn__json_file *config =
        tarn__model_path_in(function, folder, "config.json", &path) ? tarn__json_file_open(function, path.text) : NULL;
    const char *name = config && tarn__json_file_kind(config, "train.quantize") == TARN__MEMBER_STRING
                           ? tarn__json_file_string(config, "train.quantize")
                           : "";
    *blocks = tarn__quant_type_named(name);
    bool known = !name[0] || *blocks ||
                 tarn__raise(TARN_ERROR_FORMAT,
                             "%s: '%s': the weights were quantized to '%.32s', which are no blocks that tarn knows",
                             function, path.text, name);
    tarn__json_file_free(config);
    return config && known;
}

tarn_module *tarn__lora_open_folder(const char *function, const char *folder, tarn_device device,
                                    const tarn_model_open_options *options)
{
    tarn_model_open_options chosen = *options;
    tarn__model_path base;
    if (!tarn__lora_base_of(function, folder, &base) || !read_blocks(function, folder, &chosen.quantize))
        return NULL;
    chosen.as_stored &= !chosen.quantize; /* as the run had it */
    tarn_module *model = tarn_model_open(base.text, device, &chosen);
    if (model && tarn_lora_load(model, folder) && tarn_module_train(model, false))
        return model;
    tarn_module_free(model);
    tarn__raise_within(function);
    return NULL;
}
