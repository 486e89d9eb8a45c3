/* folder.c: models in Hugging Face folders: config.json says what it is, model.safetensors has the weights. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "models/kinds.h"

/* ---- kinds ----------------------------------------------------------------------------------------------------------------- */

static const tarn__model_kind *const kinds[] = {&tarn__gpt2_kind};
#define KINDS ((int)(sizeof(kinds) / sizeof(kinds[0])))

const tarn__model_kind *tarn__model_kind_of(const char *function, const tarn_module *module)
{
    if (tarn_failed() || !tarn__check_module(function, module))
        return NULL;
    for (int i = 0; i < KINDS; i++)
        if (module->forward == kinds[i]->forward)
            return kinds[i];
    tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s module is no language model, such as tarn_model_gpt2() makes", function, module->kind);
    return NULL;
}

const tarn__model_kind *tarn__model_kind_named(const char *function, const char *path, const char *name)
{
    char known[128] = "";
    for (int i = 0; i < KINDS; i++) {
        if (strcmp(name, kinds[i]->name) == 0)
            return kinds[i];
        snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s", i ? ", " : "", kinds[i]->name);
    }
    tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': the model_type '%.64s' is none that tarn knows: %s", function, path, name, known);
    return NULL;
}

/* ---- folders --------------------------------------------------------------------------------------------------------------- */

typedef struct path {
    char text[4096];
} path;

/* "FOLDER/name"; NULL with an error. */
static const char *path_in(const char *function, const char *folder, const char *name, path *to)
{
    if (!folder || !folder[0])
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the folder is %s", function, folder ? "empty" : "NULL");
    else if ((size_t)snprintf(to->text, sizeof(to->text), "%s/%s", folder, name) < sizeof(to->text))
        return to->text;
    else
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the name of the folder has %zu bytes, which is too long", function, strlen(folder));
    return NULL;
}

static bool exists(const char *function, const char *folder, const char *name)
{
    path there;
    return path_in(function, folder, name, &there) && tarn__path_exists(there.text);
}

/* Where the weights are, or what to do when they are in another form. */
static const char *weights_in(const char *function, const char *folder, path *to)
{
    if (exists(function, folder, "model.safetensors"))
        return path_in(function, folder, "model.safetensors", to);
    const char *advice = exists(function, folder, "model.safetensors.index.json")
                             ? "its weights are in several files; save them as one (max_shard_size in save_pretrained)"
                         : exists(function, folder, "pytorch_model.bin")
                             ? "its weights are in pytorch_model.bin; save them with safe_serialization=True"
                             : "it has no weights";
    tarn__raise(TARN_ERROR_IO, "%s: '%s' has no model.safetensors: %s", function, folder, advice);
    return NULL;
}

static tarn_module *open_with(const char *function, const char *folder, const tarn__document *config, const char *config_path,
                              tarn_dtype dtype, tarn_device device)
{
    path weights;
    const char *name = tarn__document_text(config, "model_type");
    const tarn__model_kind *kind = name ? tarn__model_kind_named(function, config_path, name) : NULL;
    if (!kind || !weights_in(function, folder, &weights))
        return NULL;
    tarn_module *model = kind->make(function, config, dtype, device);
    if (model && kind->load(function, model, weights.text) && tarn_module_train(model, false))
        return model;
    tarn_module_free(model);
    return NULL;
}

tarn_module *tarn_model_open_sized(const char *folder, tarn_device device, const tarn_model_open_options *options, size_t options_size)
{
    const char *function = "model_open";
    tarn_model_open_options chosen = {0};
    path where;
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed() || !tarn__check_parameter_dtype(function, chosen.dtype) || !path_in(function, folder, "config.json", &where))
        return NULL;
    tarn__document *config = tarn__document_open(function, where.text);
    tarn_module *model = config ? open_with(function, folder, config, where.text, chosen.dtype, device) : NULL;
    tarn__document_free(config);
    return model;
}

/* The files of a model, and what they are called until both are complete. */
typedef struct model_files {
    path config, weights, new_config, new_weights;
} model_files;

static bool name_files(const char *function, const char *folder, model_files *files)
{
    return path_in(function, folder, "config.json", &files->config) && path_in(function, folder, "model.safetensors", &files->weights) &&
           path_in(function, folder, "config.json.new", &files->new_config) &&
           path_in(function, folder, "model.safetensors.new", &files->new_weights);
}

static bool write_new(const char *function, const tarn__model_kind *kind, const tarn_module *model, const model_files *files)
{
    if (!tarn_module_save(model, files->new_weights.text))
        return tarn__raise_within(function);
    tarn__document *config = tarn__document_new(function);
    bool good = config && tarn__document_set_text(config, "model_type", kind->name) && kind->describe(model, config) &&
                tarn__document_save(config, files->new_config.text);
    tarn__document_free(config);
    return good;
}

/* Puts the new files in the place of the old ones. While the weights change there is no config.json: nobody opens one model's weights as
 * another's. */
static bool replace_files(const char *function, const model_files *files)
{
    tarn__file_remove(files->config.text);
    return tarn__file_rename(function, files->new_weights.text, files->weights.text) &&
           tarn__file_rename(function, files->new_config.text, files->config.text);
}

bool tarn_model_write(const tarn_module *model, const char *folder)
{
    const char *function = "model_write";
    model_files files;
    const tarn__model_kind *kind = tarn__model_kind_of(function, model);
    if (!kind || !name_files(function, folder, &files) || !(tarn__path_exists(folder) || tarn__folder_make(function, folder)))
        return false;
    if (write_new(function, kind, model, &files) && replace_files(function, &files))
        return true;
    tarn__file_remove(files.new_weights.text);
    tarn__file_remove(files.new_config.text);
    return false;
}
