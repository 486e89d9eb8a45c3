/* lora_file.c: folders of adapters in PEFT's format: adapter_config.json and adapter_model.safetensors.
 *
 * Loading checks the whole folder before it changes the model. Saving writes both files under temporary names first,
 * so that a failed write leaves the old adapters. */
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/os/files.h"
#include "formats/safetensors.h"
#include "models/hf/weights.h"
#include "models/lora/lora.h"

#define CONFIG "adapter_config.json"
#define WEIGHTS "adapter_model.safetensors"

/* Name of a matrix in the file. */
typedef struct matrix_name {
    char text[512];
} matrix_name;

/* PEFT's name of A or B. */
static const char *name_of(const tarn__lora_layer *layer, int which, matrix_name *to)
{
    snprintf(to->text, sizeof(to->text), "base_model.model.%s.lora_%s.weight", layer->path,
             which == TARN__ADAPTER_A ? "A" : "B");
    return to->text;
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

/* Writes A and B of every adapter, with checksums. */
static bool save_weights(const tarn__lora_layers *list, const char *path)
{
    matrix_name name;
    tarn_safetensors_writer *writer = tarn_safetensors_create(path);
    bool good =
        writer && tarn_safetensors_add_metadata(writer, "format", "pt") && tarn_safetensors_add_checksums(writer);
    for (int i = 0; i < list->count; i++)
        for (int k = 0; good && list->layer[i].is_selected && k < 2; k++)
            good = tarn_safetensors_add(writer, name_of(&list->layer[i], k, &name),
                                        tarn__adapter_weight(list->layer[i].module, k));
    if (good)
        return tarn_safetensors_finish(writer);
    tarn_safetensors_cancel(writer);
    return false;
}

/* Paths of the files, and of the new ones until both are complete. */
typedef struct adapter_files {
    tarn__model_path config, weights, new_config, new_weights;
} adapter_files;

/* False with an error if a path is too long. */
static bool name_files(const char *function, const char *folder, adapter_files *files)
{
    return tarn__model_path_in(function, folder, CONFIG, &files->config) &&
           tarn__model_path_in(function, folder, WEIGHTS, &files->weights) &&
           tarn__model_path_in(function, folder, CONFIG ".new", &files->new_config) &&
           tarn__model_path_in(function, folder, WEIGHTS ".new", &files->new_weights);
}

/* Writes both new files next to the old ones. */
static bool write_new(const char *function, const tarn__lora_layers *list, const char *base_model,
                      const adapter_files *files)
{
    if (!save_weights(list, files->new_weights.text))
        return tarn__raise_within(function);
    tarn__json_file *config = tarn__json_file_new(function);
    bool good = config && tarn__lora_write_config(list, base_model, config) &&
                tarn__json_file_save(config, files->new_config.text);
    tarn__json_file_free(config);
    return good;
}

/* While the weights are replaced there is no adapter_config.json: one adapter's matrices are never read with the
 * scale of another. */
static bool save_folder(const char *function, const tarn__lora_layers *list, const char *folder, const char *base_model)
{
    adapter_files files;
    if (!name_files(function, folder, &files) || !(tarn__path_exists(folder) || tarn__folder_make(function, folder)))
        return false;
    if (write_new(function, list, base_model, &files)) {
        tarn__file_remove(files.config.text);
        if (tarn__file_rename(function, files.new_weights.text, files.weights.text) &&
            tarn__file_rename(function, files.new_config.text, files.config.text))
            return true;
    }
    tarn__file_remove(files.new_weights.text);
    tarn__file_remove(files.new_config.text);
    return false;
}

/* A model without adapters is an error: an empty folder would open as one that was trained. */
bool tarn_lora_save(const tarn_module *model, const char *folder, const char *base_model)
{
    const char *function = "lora_save";
    tarn__lora_layers list;
    int selected = 0;
    bool good = tarn__lora_list(function, model, &list);
    for (int i = 0; good && i < list.count; i++)
        selected += list.layer[i].is_selected;
    if (good && selected == 0)
        good = tarn__raise(TARN_ERROR_ARGUMENT, "%s: the model has no adapters; tarn_model_write() saves all of it",
                           function);
    good = good && save_folder(function, &list, folder, base_model);
    tarn__lora_release(&list);
    return good;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* State of one load. */
typedef struct loader {
    const char *function, *path;
    const tarn_safetensors *file;
    tarn__lora_layers list;
} loader;

/* Raises unless the file has a matrix of a layer with the right shape and dtype. */
static bool check_matrix(const loader *l, const tarn__lora_layer *layer, int which, tarn_safetensors_entry *entry)
{
    matrix_name name;
    int index = tarn_safetensors_find(l->file, name_of(layer, which, &name));
    if (index < 0)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no '%s', which " CONFIG " asks for", l->function, l->path,
                           name.text);
    if (!tarn_safetensors_info(l->file, index, entry))
        return tarn__raise_within(l->function);
    bool is_a = which == TARN__ADAPTER_A;
    int64_t rows = is_a ? layer->settings.rank : tarn__linear_out(layer->module),
            columns = is_a ? tarn__linear_in(layer->module) : layer->settings.rank;
    if (entry->shape.rank != 2 || entry->shape.size[0] != rows || entry->shape.size[1] != columns)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': '%s' is %s, but must be [%lld, %lld] in this model",
                           l->function, l->path, name.text,
                           tarn__shape_string(entry->shape.size, entry->shape.rank, &(tarn__shape_buffer){{0}}),
                           (long long)rows, (long long)columns);
    return (entry->dtype != TARN_DTYPE_COUNT && tarn__is_float(entry->dtype)) ||
           tarn__raise(TARN_ERROR_DTYPE, "%s: '%s': '%s' is %s; adapters are of a float dtype", l->function, l->path,
                       name.text, entry->dtype_name);
}

/* True if a name in the file is that of a selected layer's matrix. */
static bool is_known(const loader *l, const char *name)
{
    matrix_name own;
    for (int i = 0; i < l->list.count; i++)
        for (int k = 0; l->list.layer[i].is_selected && k < 2; k++)
            if (strcmp(name, name_of(&l->list.layer[i], k, &own)) == 0)
                return true;
    return false;
}

/* All checks come before the model is changed. */
static bool check_file(const loader *l)
{
    tarn_safetensors_entry a, b;
    int expected = 0;
    for (int i = 0; i < l->list.count; i++) {
        const tarn__lora_layer *layer = &l->list.layer[i];
        if (!layer->is_selected)
            continue;
        if (!check_matrix(l, layer, TARN__ADAPTER_A, &a) || !check_matrix(l, layer, TARN__ADAPTER_B, &b))
            return false;
        if (a.dtype != b.dtype)
            return tarn__raise(TARN_ERROR_DTYPE, "%s: '%s': '%.200s' is %s and '%.200s' %s; both must be of one dtype",
                               l->function, l->path, a.name, a.dtype_name, b.name, b.dtype_name);
        expected += 2;
    }
    /* Only a file with more tensors than expected can have unknown ones: searching names is quadratic. */
    for (int i = 0; tarn_safetensors_count(l->file) != expected && i < tarn_safetensors_count(l->file); i++)
        if (!is_known(l, tarn_safetensors_name(l->file, i)))
            return tarn__raise(
                TARN_ERROR_FORMAT,
                "%s: '%s' has an unknown tensor '%.200s'; adapters must belong to linear layers that " CONFIG
                " names, not to the head or embeddings",
                l->function, l->path, tarn_safetensors_name(l->file, i));
    return true;
}

/* Reads both matrices to the device of the layer. */
static bool add_layer(const loader *l, const tarn__lora_layer *layer)
{
    matrix_name name;
    tarn_device device = tarn__device(tarn__module_own(layer->module, "weight"));
    tarn_tensor *a = tarn_safetensors_read(l->file, name_of(layer, TARN__ADAPTER_A, &name), device);
    tarn_tensor *b = a ? tarn_safetensors_read(l->file, name_of(layer, TARN__ADAPTER_B, &name), device) : NULL;
    if (b)
        return tarn__adapter_add(layer->module, &layer->settings, a, b);
    tarn_free(a);
    return false;
}

/* Adds the adapters of all selected layers; removes them on failure. */
static bool add_all(const loader *l, tarn_module *model)
{
    bool good = true;
    for (int i = 0; good && i < l->list.count; i++)
        good = !l->list.layer[i].is_selected || add_layer(l, &l->list.layer[i]);
    good = good ? tarn__lora_freeze(l->function, model, &l->list) : tarn__raise_within(l->function);
    for (int i = 0; !good && i < l->list.count; i++)
        tarn__adapter_remove(l->list.layer[i].module);
    return good;
}

/* Checks the whole file, checksums included, before the model is changed. */
static bool load_weights(loader *l, tarn_module *model, const char *path)
{
    tarn_safetensors *file = tarn_safetensors_open(path);
    if (!file)
        return tarn__raise_within(l->function);
    l->file = file;
    l->path = path;
    bool good = check_file(l) && tarn__safetensors_verify(l->function, file) && add_all(l, model);
    tarn_safetensors_close(file);
    return good;
}

/* The configuration selects the layers; the file must have exactly their matrices. */
bool tarn_lora_load(tarn_module *model, const char *folder)
{
    loader l = {.function = "lora_load"};
    adapter_files files;
    if (!tarn__lora_check_none(l.function, model) || !name_files(l.function, folder, &files))
        return false;
    tarn__json_file *config = tarn__json_file_open(l.function, files.config.text);
    bool good = config && tarn__lora_list(l.function, model, &l.list) &&
                tarn__lora_read_config(l.function, config, files.config.text, &l.list) &&
                load_weights(&l, model, files.weights.text);
    tarn__json_file_free(config);
    tarn__lora_release(&l.list);
    return good;
}

/* ---- opening adapters with their base model ---------------------------------------------------------------------- */

/* Opens a folder of adapters alone as its base model, with the adapters.
 *
 * The base model is found by base_model_name_or_path of adapter_config.json, which must be a local path. */

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
