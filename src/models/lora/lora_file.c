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
#define PREFIX "base_model.model." /* before every name */

/* Name of a matrix in the file. */
typedef struct matrix_name {
    char text[512];
} matrix_name;

/* DoRA's magnitude, after A and B. */
enum { MAGNITUDE = TARN__ADAPTER_B + 1, PARTS };

/* PEFT's name of A, B or the magnitude. */
static const char *name_of(const tarn__lora_layer *layer, int which, matrix_name *to)
{
    static const char *const of_linear[] = {"lora_A.weight", "lora_B.weight", "lora_magnitude_vector"},
                             *const of_embedding[] = {"lora_embedding_A", "lora_embedding_B", ""};
    snprintf(to->text, sizeof(to->text), PREFIX "%s.%s", layer->path,
             (layer->kind == TARN__LORA_EMBEDDING ? of_embedding : of_linear)[which]);
    return to->text;
}

/* PEFT's name of a parameter of a saved module. */
static const char *saved_name(const tarn_module *model, const tarn__parameter *parameter, matrix_name *to)
{
    snprintf(to->text, sizeof(to->text), PREFIX "%s", tarn__name_from(model, parameter));
    return to->text;
}

/* PEFT's name of the trained rows of an embedding or head. */
static const char *tokens_name(const tarn__lora_layer *layer, matrix_name *to)
{
    snprintf(to->text, sizeof(to->text), PREFIX "%s.token_adapter.trainable_tokens_delta", layer->path);
    return to->text;
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

/* Writes an adapter, or the parameters of a saved module. */
static bool save_layer(const tarn_module *model, const tarn__lora_layer *layer, tarn_safetensors_writer *writer)
{
    matrix_name name;
    const tarn_module *module = layer->module;
    bool good = true;
    for (int k = 0; good && layer->is_selected && k < 2; k++)
        good = tarn_safetensors_add(writer, name_of(layer, k, &name), tarn__adapter_weight(module, k));
    if (good && layer->is_selected && module->adapter->has_magnitude)
        good = tarn_safetensors_add(writer, name_of(layer, MAGNITUDE, &name),
                                    tarn__module_own(module, "lora_magnitude_vector"));
    if (good && layer->has_tokens && !module->adapter->is_tied)
        good = tarn_safetensors_add(writer, tokens_name(layer, &name), tarn__tokens_rows(module));
    for (int i = 0; good && layer->is_saved && i < module->parameters; i++)
        good =
            tarn_safetensors_add(writer, saved_name(model, &module->parameter[i], &name), module->parameter[i].tensor);
    return good;
}

/* Writes every adapter and saved module, with checksums. */
static bool save_weights(const tarn_module *model, const tarn__lora_layers *list, const char *path)
{
    tarn_safetensors_writer *writer = tarn_safetensors_create(path);
    bool good =
        writer && tarn_safetensors_add_metadata(writer, "format", "pt") && tarn_safetensors_add_checksums(writer);
    for (int i = 0; good && i < list->count; i++)
        good = save_layer(model, &list->layer[i], writer);
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
static bool write_new(const char *function, const tarn_module *model, const tarn__lora_layers *list,
                      const char *base_model, const adapter_files *files)
{
    if (!save_weights(model, list, files->new_weights.text))
        return tarn__raise_within(function);
    tarn__json_file *config = tarn__json_file_new(function);
    bool good = config && tarn__lora_write_config(list, base_model, config) &&
                tarn__json_file_save(config, files->new_config.text);
    tarn__json_file_free(config);
    return good;
}

/* While the weights are replaced there is no adapter_config.json: one adapter's matrices are never read with the
 * scale of another. */
static bool save_folder(const char *function, const tarn_module *model, const tarn__lora_layers *list,
                        const char *folder, const char *base_model)
{
    adapter_files files;
    if (!name_files(function, folder, &files) || !(tarn__path_exists(folder) || tarn__folder_make(function, folder)))
        return false;
    if (write_new(function, model, list, base_model, &files)) {
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
    good =
        good && (folder && tarn__ends_with(folder, ".gguf") ? tarn__lora_save_gguf(function, model, folder)
                                                            : save_folder(function, model, &list, folder, base_model));
    tarn__lora_release(&list);
    return good;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* State of one load. */
typedef struct loader {
    const char *function, *path;
    const tarn_safetensors *file;
    tarn_module *model;
    tarn__lora_set *set; /* takes the adapters; NULL: the model has them */
    tarn__lora_layers list;
} loader;

/* The entry of that name. False with an error if the file lacks it. */
static bool find_entry(const loader *l, const char *name, tarn_safetensors_entry *entry)
{
    int index = tarn_safetensors_find(l->file, name);
    if (index < 0)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no '%s', which " CONFIG " asks for", l->function, l->path,
                           name);
    return tarn_safetensors_info(l->file, index, entry) || tarn__raise_within(l->function);
}

/* Raises unless an entry has that shape and a float dtype. `rows` -1: any. */
static bool check_entry(const loader *l, const tarn_safetensors_entry *entry, tarn_shape shape)
{
    bool fits = entry->shape.rank == shape.rank;
    for (int i = 0; fits && i < shape.rank; i++)
        fits = shape.size[i] < 0 ? entry->shape.size[i] > 0 : entry->shape.size[i] == shape.size[i];
    if (!fits)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': '%s' is %s, but must be %s in this model", l->function, l->path,
                           entry->name,
                           tarn__shape_string(entry->shape.size, entry->shape.rank, &(tarn__shape_buffer){{0}}),
                           tarn__shape_string(shape.size, shape.rank, &(tarn__shape_buffer){{0}}));
    return (entry->dtype != TARN_DTYPE_COUNT && tarn__is_float(entry->dtype)) ||
           tarn__raise(TARN_ERROR_DTYPE, "%s: '%s': '%s' is %s; adapters are of a float dtype", l->function, l->path,
                       entry->name, entry->dtype_name);
}

/* Shape of A, B or the magnitude of a layer. */
static tarn_shape shape_of(const tarn__lora_layer *layer, int which)
{
    const tarn_tensor *weight = tarn__module_own(layer->module, "weight");
    bool is_embedding = layer->kind == TARN__LORA_EMBEDDING;
    int64_t in = is_embedding ? weight->view.shape[0] : tarn__linear_in(layer->module),
            out = is_embedding ? weight->view.shape[1] : tarn__linear_out(layer->module);
    if (which == MAGNITUDE)
        return TARN_SHAPE(out);
    return which == TARN__ADAPTER_A ? TARN_SHAPE(layer->settings.rank, in) : TARN_SHAPE(out, layer->settings.rank);
}

/* Checks the entries of an adapter and counts them. */
static bool check_adapter(const loader *l, const tarn__lora_layer *layer, int *count)
{
    tarn_safetensors_entry entry[PARTS];
    matrix_name name;
    int parts = layer->settings.has_magnitude ? PARTS : MAGNITUDE;
    for (int i = 0; i < parts; i++)
        if (!find_entry(l, name_of(layer, i, &name), &entry[i]) || !check_entry(l, &entry[i], shape_of(layer, i)))
            return false;
    if (entry[0].dtype != entry[1].dtype)
        return tarn__raise(TARN_ERROR_DTYPE, "%s: '%s': '%.200s' is %s and '%.200s' %s; both must be of one dtype",
                           l->function, l->path, entry[0].name, entry[0].dtype_name, entry[1].name,
                           entry[1].dtype_name);
    *count += parts;
    return true;
}

/* Rows of token embedding and head may differ from the model's: tokens were added. */
static tarn_shape saved_shape(const loader *l, const tarn__lora_layer *layer, const tarn_tensor *tensor)
{
    tarn_shape shape = tarn__shape_of(tensor);
    bool is_transposed = tarn__is_quantized(tensor->view.dtype) && layer->kind == TARN__LORA_LINEAR &&
                         l->list.form == TARN__LINEAR_IN_OUT;
    if (is_transposed)
        shape = TARN_SHAPE(shape.size[1], shape.size[0]);
    if (layer->kind == TARN__LORA_HEAD || layer->module == tarn__lora_token_embedding(l->model))
        shape.size[0] = -1;
    return shape;
}

/* Checks the entries of a saved module and counts them. */
static bool check_saved(const loader *l, const tarn__lora_layer *layer, int *count)
{
    tarn_safetensors_entry entry;
    matrix_name name;
    const tarn_module *module = layer->module;
    for (int i = 0; i < module->parameters; i++, ++*count)
        if (!find_entry(l, saved_name(l->model, &module->parameter[i], &name), &entry) ||
            !check_entry(l, &entry, saved_shape(l, layer, module->parameter[i].tensor)))
            return false;
    return true;
}

/* PEFT also writes the base weights of embeddings and heads that are targets, or were resized. The name of such an
 * entry; NULL: there is none. */
static const char *base_entry(const loader *l, const tarn__lora_layer *layer, matrix_name *to)
{
    static const char *const middle[] = {".base_layer", ".token_adapter.base_layer", ""};
    bool can_be = (layer->kind == TARN__LORA_HEAD || layer->kind == TARN__LORA_EMBEDDING) && !layer->is_saved;
    for (int i = 0; can_be && i < 3; i++) {
        snprintf(to->text, sizeof(to->text), PREFIX "%s%s.weight", layer->path, middle[i]);
        if (tarn_safetensors_find(l->file, to->text) >= 0)
            return to->text;
    }
    return NULL;
}

/* Checks such an entry and counts it. */
static bool check_base(const loader *l, const tarn__lora_layer *layer, int *count)
{
    tarn_safetensors_entry entry;
    matrix_name name;
    const char *found = base_entry(l, layer, &name);
    if (!found)
        return true;
    ++*count;
    return find_entry(l, found, &entry) &&
           check_entry(l, &entry, saved_shape(l, layer, tarn__module_own(layer->module, "weight")));
}

/* True if a layer has an entry of trained rows: its own, or one that PEFT writes again for a tied head. */
static bool has_rows_entry(const loader *l, const tarn__lora_layer *layer)
{
    matrix_name name;
    bool is_shared = layer->kind == TARN__LORA_HEAD && tarn__lora_shares_tokens(l->model, &l->list);
    return is_shared ? tarn_safetensors_find(l->file, tokens_name(layer, &name)) >= 0 : layer->tokens > 0;
}

/* Checks the entry of trained rows and counts it. Tokens above the model's were added: no more than there are rows. */
static bool check_tokens(const loader *l, const tarn__lora_layer *layer, int *count)
{
    tarn_safetensors_entry entry;
    matrix_name name;
    const tarn_tensor *weight = tarn__module_own(layer->module, "weight");
    const char *base = base_entry(l, layer, &name);
    int64_t rows = base && find_entry(l, base, &entry) ? entry.shape.size[0] : weight->view.shape[0];
    const tarn__lora_layer *of = layer->tokens ? layer : tarn__lora_layer_of(&l->list, TARN__LORA_EMBEDDING);
    if (!find_entry(l, tokens_name(layer, &name), &entry) ||
        !check_entry(l, &entry, TARN_SHAPE(of->tokens, weight->view.shape[1])))
        return false;
    ++*count;
    return tarn__lora_highest_token(of) < rows + (base ? 0 : of->tokens) ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "%s: '%s': the trained token %lld of '%s' is far above the %lld tokens of this model",
                       l->function, l->path, (long long)tarn__lora_highest_token(of), layer->path, (long long)rows);
}

/* True if a name in the file is that of a tensor that is read. */
static bool is_known(const loader *l, const char *name)
{
    matrix_name own;
    for (int i = 0; i < l->list.count; i++) {
        const tarn__lora_layer *layer = &l->list.layer[i];
        for (int k = 0; layer->is_selected && k < (layer->settings.has_magnitude ? PARTS : MAGNITUDE); k++)
            if (strcmp(name, name_of(layer, k, &own)) == 0)
                return true;
        for (int k = 0; layer->is_saved && k < layer->module->parameters; k++)
            if (strcmp(name, saved_name(l->model, &layer->module->parameter[k], &own)) == 0)
                return true;
        const char *base = base_entry(l, layer, &own);
        if (base && strcmp(name, base) == 0)
            return true;
        if (has_rows_entry(l, layer) && strcmp(name, tokens_name(layer, &own)) == 0)
            return true;
    }
    return false;
}

/* All checks come before the model is changed. */
static bool check_file(const loader *l)
{
    int expected = 0;
    for (int i = 0; i < l->list.count; i++) {
        const tarn__lora_layer *layer = &l->list.layer[i];
        if ((layer->is_selected && !check_adapter(l, layer, &expected)) ||
            (layer->is_saved && !check_saved(l, layer, &expected)) || !check_base(l, layer, &expected) ||
            (has_rows_entry(l, layer) && !check_tokens(l, layer, &expected)))
            return false;
    }
    /* Only a file with more tensors than expected can have unknown ones: searching names is quadratic. */
    for (int i = 0; tarn_safetensors_count(l->file) != expected && i < tarn_safetensors_count(l->file); i++)
        if (!is_known(l, tarn_safetensors_name(l->file, i)))
            return tarn__raise(TARN_ERROR_FORMAT,
                               "%s: '%s' has an unknown tensor '%.200s'; adapters must belong to layers that " CONFIG
                               " names",
                               l->function, l->path, tarn_safetensors_name(l->file, i));
    return true;
}

/* Reads an adapter to the device of the layer. */
static bool add_layer(const loader *l, const tarn__lora_layer *layer)
{
    matrix_name name;
    tarn_device device = tarn__device(tarn__module_own(layer->module, "weight"));
    tarn_tensor *a = tarn_safetensors_read(l->file, name_of(layer, TARN__ADAPTER_A, &name), device);
    tarn_tensor *b = a ? tarn_safetensors_read(l->file, name_of(layer, TARN__ADAPTER_B, &name), device) : NULL;
    if (!b) {
        tarn_free(a);
        return false;
    }
    if (!tarn__adapter_add(layer->module, &layer->settings, a, b) || !layer->settings.has_magnitude)
        return layer->module->adapter != NULL;
    tarn_tensor *magnitude = tarn_safetensors_read(l->file, name_of(layer, MAGNITUDE, &name), device);
    if (magnitude)
        return tarn__adapter_add_magnitude(layer->module, magnitude);
    tarn__adapter_remove(layer->module);
    return false;
}

/* Reads a parameter in the model's dtype. A tied weight that is read for embedding and head stays tied if both are
 * base weights: the second read writes the same values again. */
static bool read_parameter(const loader *l, tarn_module *module, const char *own, const char *name, bool is_saved)
{
    tarn_model_info info;
    tarn_tensor *before = tarn__module_own(module, own);
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *values =
        scope && tarn_model_query(l->model, &info) ? tarn_safetensors_read(l->file, name, tarn__device(before)) : NULL;
    bool is_quantized = tarn__is_quantized(before->view.dtype);
    bool fits = values && !is_quantized && tarn__same_shape(&values->view, &before->view);
    tarn_no_grad_open();
    /* A quantized base weight is the caller's choice, unless its size changed. */
    bool good = values != NULL;
    if (good && fits)
        good = tarn_copy(before, values);
    else if (good && (is_saved || !is_quantized || values->view.shape[0] != before->view.shape[0])) {
        tarn_tensor *cast = tarn_clone(tarn_cast(values, is_quantized ? info.dtype : before->view.dtype));
        bool stays_tied = !is_saved && module == tarn__lora_token_embedding(l->model) && tarn__lora_is_tied(l->model);
        good = cast && (stays_tied ? tarn__lora_replace_tied(l->model, cast) : tarn__module_replace(module, own, cast));
    }
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return good;
}

/* Base weights in the file of an adapter that requests choose. */
static bool check_values(const loader *l, const tarn__lora_layer *layer)
{
    matrix_name name;
    const char *base = base_entry(l, layer, &name);
    return !base ||
           tarn__lora_check_base(l->function, l->path, l->file, base, tarn__module_own(layer->module, "weight"));
}

/* Reads the parameters of a saved module, and base weights that the file has. */
static bool read_layer(const loader *l, const tarn__lora_layer *layer)
{
    matrix_name name;
    tarn_module *module = layer->module;
    const char *base = base_entry(l, layer, &name);
    bool good = !base || read_parameter(l, module, "weight", base, false);
    good = good && (!layer->is_saved || tarn__lora_make_own(l->model, module));
    for (int i = 0; good && layer->is_saved && i < module->parameters; i++) {
        const char *dot = strrchr(module->parameter[i].path, '.');
        good = read_parameter(l, module, dot ? dot + 1 : module->parameter[i].path,
                              saved_name(l->model, &module->parameter[i], &name), true);
    }
    return good;
}

/* Grows embedding and head for trained tokens above theirs, of which the file has the rows alone. */
static bool grow(const loader *l)
{
    int64_t wanted = 0, rows = INT64_MAX;
    for (int i = 0; i < l->list.count; i++) {
        const tarn__lora_layer *layer = &l->list.layer[i];
        if (layer->kind != TARN__LORA_EMBEDDING && layer->kind != TARN__LORA_HEAD)
            continue;
        int64_t own = tarn__module_own(layer->module, "weight")->view.shape[0],
                highest = tarn__lora_highest_token(layer);
        rows = own < rows ? own : rows;
        wanted = highest + 1 > wanted ? highest + 1 : wanted;
    }
    return wanted <= rows || tarn__lora_add_tokens(l->function, l->model, wanted, NULL);
}

/* Reads the trained rows of embedding and head, then those that the head shares. */
static bool add_tokens(const loader *l)
{
    matrix_name name;
    bool good = grow(l);
    for (int i = 0; good && i < l->list.count; i++) {
        const tarn__lora_layer *layer = &l->list.layer[i];
        if (!layer->tokens || (layer->kind == TARN__LORA_HEAD && tarn__lora_shares_tokens(l->model, &l->list)))
            continue;
        tarn_tensor *rows = tarn_safetensors_read(l->file, tokens_name(layer, &name),
                                                  tarn__device(tarn__module_own(layer->module, "weight")));
        good = rows && tarn__tokens_add(layer->module, layer->token, layer->tokens, rows);
    }
    return good && tarn__lora_share_tokens(l->model, &l->list);
}

/* Weights first: a magnitude's factor follows from them. Adapters are removed on failure; weights that were read
 * stay. */
static bool add_all(const loader *l)
{
    bool good = true;
    for (int i = 0; good && i < l->list.count; i++)
        good = l->set ? check_values(l, &l->list.layer[i]) : read_layer(l, &l->list.layer[i]);
    good = good && (l->set || add_tokens(l));
    for (int i = 0; good && i < l->list.count; i++)
        good = !l->list.layer[i].is_selected || add_layer(l, &l->list.layer[i]);
    good = !good    ? tarn__raise_within(l->function)
           : l->set ? tarn__lora_take_all(&l->list, l->set)
                    : tarn__lora_start(l->function, l->model, &l->list);
    for (int i = 0; !good && i < l->list.count; i++)
        tarn__adapter_remove(l->list.layer[i].module);
    return good;
}

/* Checks the whole file, checksums included, before the model is changed. */
static bool load_weights(loader *l, const char *path)
{
    tarn_safetensors *file = tarn_safetensors_open(path);
    if (!file)
        return tarn__raise_within(l->function);
    l->file = file;
    l->path = path;
    bool good = check_file(l) && tarn__safetensors_verify(l->function, file) && add_all(l);
    tarn_safetensors_close(file);
    return good;
}

/* The configuration selects the layers; the file must have exactly their tensors. */
bool tarn__lora_load(const char *function, tarn_module *model, const char *folder, tarn__lora_set *set)
{
    loader l = {.function = function, .model = model, .set = set};
    adapter_files files;
    if (!tarn__lora_check_none(l.function, model))
        return false;
    if (folder && tarn__ends_with(folder, ".gguf"))
        return tarn__lora_load_gguf(l.function, model, folder, set);
    if (!name_files(l.function, folder, &files))
        return false;
    tarn__json_file *config = tarn__json_file_open(l.function, files.config.text);
    bool good = config && tarn__lora_list(l.function, model, &l.list) &&
                tarn__lora_read_config(l.function, config, files.config.text, &l.list) &&
                tarn__lora_check_tokens(l.function, model, &l.list) &&
                (!set || tarn__lora_check_set(l.function, files.config.text, &l.list)) &&
                load_weights(&l, files.weights.text);
    tarn__json_file_free(config);
    tarn__lora_release(&l.list);
    return good;
}

bool tarn_lora_load(tarn_module *model, const char *folder)
{
    return tarn__lora_load("lora_load", model, folder, NULL);
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

bool tarn__lora_base_with(const char *function, const char *folder, tarn__model_path *base,
                          tarn_model_open_options *options)
{
    if (!tarn__lora_base_of(function, folder, base) || !read_quantize(function, folder, &options->quantize))
        return false;
    options->as_stored &= !options->quantize; /* as in the run */
    return true;
}

/* Opens the base model, quantized as in the run, and loads the adapters. */
tarn_module *tarn__lora_open_folder(const char *function, const char *folder, tarn_device device,
                                    const tarn_model_open_options *options)
{
    tarn_model_open_options selected = *options;
    tarn__model_path base;
    if (!tarn__lora_base_with(function, folder, &base, &selected))
        return NULL;
    tarn_module *model = tarn_model_open(base.text, device, &selected);
    if (model && tarn_lora_load(model, folder) && tarn_module_train(model, false))
        return model;
    tarn_module_free(model);
    tarn__raise_within(function);
    return NULL;
}
