/* lora_open.c: opens a folder of adapters alone as its base model, with the adapters.
 *
 * The base model is found by base_model_name_or_path of adapter_config.json, which must be a local path. */
#include <string.h>

#include "base/os/files.h"
#include "models/hf/weights.h"
#include "models/lora/lora.h"

/* True if a folder has a file of that name. */
static bool holds(const char *function, const char *folder, const char *name)
{
    tarn__model_path there;
    return tarn__model_path_in(function, folder, name, &there) && tarn__path_exists(there.text);
}

/* A merged model next to its adapters is opened as a model. */
bool tarn__lora_is_folder(const char *function, const char *folder)
{
    return holds(function, folder, "adapter_config.json") && !holds(function, folder, "model.safetensors") &&
           !holds(function, folder, "model.safetensors.index.json");
}

/* Raises if the base model is not named or not found. */
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
                    "%s: '%s' does not name the base model of the adapters; open that, and load them with "
                    "tarn_lora_load() (--adapter)",
                    function, path.text);
    if (good && !tarn__path_exists(base->text))
        good = tarn__raise(TARN_ERROR_IO,
                           "%s: the base model of the adapters in '%s' is '%s', which was not found; open it where it "
                           "is, and load them with tarn_lora_load() (--adapter)",
                           function, folder, base->text);
    tarn__json_file_free(config);
    return good;
}

/* The config.json of a run says how its base model was quantized. */
static bool read_quantize(const char *function, const char *folder, tarn_dtype *quantize)
{
    tarn__model_path path;
    if (*quantize || !holds(function, folder, "config.json"))
        return !tarn_failed();
    tarn__json_file *config =
        tarn__model_path_in(function, folder, "config.json", &path) ? tarn__json_file_open(function, path.text) : NULL;
    const char *name = config && tarn__json_file_kind(config, "train.quantize") == TARN__MEMBER_STRING
                           ? tarn__json_file_string(config, "train.quantize")
                           : "";
    *quantize = tarn__quant_type_named(name);
    bool known =
        !name[0] || *quantize ||
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': the weights were quantized to '%.32s', which is not supported",
                    function, path.text, name);
    tarn__json_file_free(config);
    return config && known;
}

/* Opens the base model, quantized as in the run, and loads the adapters. */
tarn_module *tarn__lora_open_folder(const char *function, const char *folder, tarn_device device,
                                    const tarn_model_open_options *options)
{
    tarn_model_open_options selected = *options;
    tarn__model_path base;
    if (!tarn__lora_base_of(function, folder, &base) || !read_quantize(function, folder, &selected.quantize))
        return NULL;
    selected.as_stored &= !selected.quantize; /* as in the run */
    tarn_module *model = tarn_model_open(base.text, device, &selected);
    if (model && tarn_lora_load(model, folder) && tarn_module_train(model, false))
        return model;
    tarn_module_free(model);
    tarn__raise_within(function);
    return NULL;
}
