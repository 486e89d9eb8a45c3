/* hf_folder.c: model folders of Hugging Face: opening and writing.
 *
 * config.json describes the model; model.safetensors holds its weights, or model.safetensors.index.json names the
 * shards. Writes are atomic per file, and never leave the configuration of one model with the weights of another:
 * while the weights are replaced there is no config.json. */
#include <stdio.h>
#include <string.h>
#include <tarn/lora.h>

#include "base/dtype.h"
#include "base/os/files.h"
#include "formats/file_type.h"
#include "models/gguf/gguf_arch.h"
#include "models/hf/hf.h"
#include "models/hf/weights.h"
#include "models/lora/lora.h"

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* EOS tokens of generation_config.json, which often has more than config.json. */
#define EOS_MEMBER "eos_token_id"

/* Copies one EOS token, or a list of them, to a list in `config`. */
static bool copy_eos(const tarn__json_file *from, tarn__json_file *config)
{
    size_t count = 0;
    int64_t token;
    switch (tarn__json_file_kind(from, EOS_MEMBER)) {
    case TARN__MEMBER_MISSING:
    case TARN__MEMBER_NULL: return true;
    case TARN__MEMBER_ARRAY: break;
    default:
        return tarn__json_file_int(from, EOS_MEMBER, INT64_MIN, INT64_MAX, &token) &&
               tarn__json_file_add_int(config, TARN__GENERATION_EOS, token);
    }
    bool good = tarn__json_file_count(from, EOS_MEMBER, TARN_MODEL_MAX_EOS, &count);
    for (size_t i = 0; good && i < count; i++)
        good = tarn__json_file_int_at(from, EOS_MEMBER, i, INT64_MIN, INT64_MAX, &token) &&
               tarn__json_file_add_int(config, TARN__GENERATION_EOS, token);
    return good;
}

/* Adds the EOS tokens of generation_config.json, if the folder has one. */
static bool add_eos(const char *function, const char *folder, tarn__json_file *config)
{
    tarn__model_path where;
    if (!tarn__model_path_in(function, folder, "generation_config.json", &where))
        return false;
    if (!tarn__path_exists(where.text))
        return true;
    tarn__json_file *from = tarn__json_file_open(function, where.text);
    bool good = from && copy_eos(from, config);
    tarn__json_file_free(from);
    return good;
}

/* Checks first that the path is a folder, so that a missing one is named as such and not as a missing file in it. */
tarn__json_file *tarn__model_config_open(const char *function, const char *folder, tarn__model_path *where)
{
    if (!tarn__check_model_path(function, folder, "a model's folder or .gguf file"))
        return NULL;
    tarn__json_file *config = tarn__model_path_in(function, folder, "config.json", where)
                                  ? tarn__json_file_open(function, where->text)
                                  : NULL;
    if (config && add_eos(function, folder, config))
        return config;
    tarn__json_file_free(config);
    return NULL;
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* True if a folder has a file of that name. */
static bool exists(const char *function, const char *folder, const char *name)
{
    tarn__model_path there;
    return tarn__model_path_in(function, folder, name, &there) && tarn__path_exists(there.text);
}

/* Path of the weights; raises an error with advice if they are in another format. */
static const char *weights_in(const char *function, const char *folder, tarn__model_path *to)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    for (int i = 0; i < 2; i++)
        if (exists(function, folder, names[i]))
            return tarn__model_path_in(function, folder, names[i], to);
    const char *advice =
        exists(function, folder, "pytorch_model.bin") || exists(function, folder, "pytorch_model.bin.index.json")
            ? "its weights are in pytorch_model.bin; save them with safe_serialization=True"
            : "it has no weights";
    tarn__raise(TARN_ERROR_IO, "%s: '%s' has no model.safetensors: %s", function, folder, advice);
    return NULL;
}

/* Replaces an out-of-memory error by one that says what would fit. */
static void explain_folder(const char *function, const char *weights, tarn_dtype dtype, const tarn__arch *arch,
                           const tarn__device_map *where)
{
    tarn__error_record why;
    if (tarn_error_code() != TARN_ERROR_MEMORY)
        return;
    /* Functions do nothing while an error is pending: set it aside, and restore it for the comparison. */
    tarn__error_save(&why);
    tarn_safetensors *file = tarn_safetensors_open(weights);
    tarn__weight_bytes bytes = {0};
    if (file)
        bytes = tarn__safetensors_weight_bytes(file, arch, dtype, TARN_F32);
    tarn_safetensors_close(file);
    tarn__error_restore(&why);
    tarn__model_out_of_memory(function, &bytes, where);
}

/* Opens the model of a read config.json. */
static tarn_module *open_with(const char *function, const char *folder, const tarn__json_file *config,
                              const char *config_path, const tarn_model_open_options *options,
                              const tarn__device_map *where)
{
    tarn__model_path weights;
    tarn_dtype dtype = options->dtype;
    const char *type = tarn__json_file_string(config, "model_type");
    const tarn__arch *arch = type ? tarn__arch_named(function, config_path, type) : NULL;
    if (!arch || !weights_in(function, folder, &weights) ||
        (options->as_stored && !tarn__weights_dtype(function, weights.text, arch->names->ignored, &dtype)))
        return NULL;
    if (options->quantize)
        return tarn__hf_quantize_on_load(function, arch, config, weights.text, options, where);
    tarn_module *model = tarn__model_from_config(function, config, dtype, where);
    if (model && tarn__model_load(function, model, weights.text) && tarn_module_train(model, false))
        return model;
    tarn_module_free(model);
    explain_folder(function, weights.text, dtype, arch, where);
    return NULL;
}

/* Bytes of the weights, while an error is pending. */
static tarn__weight_bytes gguf_bytes(const tarn_gguf *file, tarn_dtype dtype)
{
    tarn__error_record why;
    tarn__error_save(&why);
    tarn__weight_bytes bytes = tarn__gguf_weight_bytes(file, dtype);
    tarn__error_restore(&why);
    return bytes;
}

/* dtype of weights of a GGUF file that are not quantized: with .as_stored, the type of the token embedding. */
static bool gguf_dtype(const tarn_gguf *file, const tarn_model_open_options *options, tarn_dtype *dtype)
{
    tarn_gguf_entry embedding = {.dtype = options->dtype};
    int index = options->as_stored ? tarn_gguf_find(file, "token_embd.weight") : -1;
    bool good = index < 0 || tarn_gguf_info(file, index, &embedding);
    *dtype = embedding.dtype == TARN_BF16 || embedding.dtype == TARN_F16 ? embedding.dtype : options->dtype;
    return good;
}

/* The model of a GGUF file. */
static tarn_module *open_gguf(const char *function, const char *name, const tarn_model_open_options *options,
                              const tarn__device_map *where)
{
    tarn_dtype dtype;
    tarn_gguf *file = tarn_gguf_open(name);
    tarn_module *model =
        file && gguf_dtype(file, options, &dtype) ? tarn__model_from_gguf(function, file, dtype, where) : NULL;
    /* Counted while the file is open; reported after the model's memory is freed. */
    tarn__weight_bytes bytes = {0};
    if (!model && tarn_error_code() == TARN_ERROR_MEMORY)
        bytes = gguf_bytes(file, dtype);
    tarn_gguf_close(file);
    if (!file)
        tarn__raise_within(function);
    if (model && tarn_module_train(model, false))
        return model;
    tarn_module_free(model);
    if (tarn_error_code() == TARN_ERROR_MEMORY)
        tarn__model_out_of_memory(function, &bytes, where);
    return NULL;
}

/* Raises .quantize with another than a quantized dtype, and where weights are not converted. */
static bool check_quantize(const char *function, const char *folder, const tarn_model_open_options *o)
{
    if (!o->quantize)
        return true;
    if ((unsigned)o->quantize >= TARN_DTYPE_COUNT || !tarn__is_quantized(o->quantize))
        return tarn__raise(TARN_ERROR_DTYPE, "%s: .quantize is %s; it must be q8_0, q4_0, q4_k or q6_k", function,
                           (unsigned)o->quantize < TARN_DTYPE_COUNT ? tarn_dtype_name(o->quantize) : "no dtype");
    if (o->dtype == TARN_F64)
        return tarn__raise(TARN_ERROR_DTYPE,
                           "%s: .dtype is f64, which .quantize does not support; use f32, bf16 or f16", function);
    if (tarn__ends_with(folder, ".gguf") || o->as_stored)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .quantize is for folders whose weights are converted; %s",
                           function,
                           o->as_stored ? ".as_stored keeps them" : "weights of a GGUF file stay as they are stored");
    return true;
}

/* The suffix ".gguf" decides between a file and a folder; a folder of adapters is recognized by its files. */
tarn_module *tarn_model_open_sized(const char *folder, tarn_device device, const tarn_model_open_options *options,
                                   size_t options_size)
{
    const char *function = "model_open";
    tarn_model_open_options chosen = {0};
    tarn__model_path where;
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed() || !tarn__check_parameter_dtype(function, chosen.dtype) ||
        !tarn__model_path_in(function, folder, "config.json", &where))
        return NULL;
    if (chosen.as_stored && chosen.dtype != TARN_F32) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: .dtype is %s, but .as_stored keeps that of the file; set one of them",
                    function, tarn_dtype_name(chosen.dtype));
        return NULL;
    }
    tarn__device_map map;
    if (!check_quantize(function, folder, &chosen) ||
        !tarn__device_map_choose(function, device, chosen.device_layers, chosen.split, &map))
        return NULL;
    if (tarn__ends_with(folder, ".gguf"))
        return open_gguf(function, folder, &chosen, &map);
    if (tarn__lora_is_folder(function, folder))
        return tarn__lora_open_folder(function, folder, device, &chosen);
    tarn__json_file *config = tarn__model_config_open(function, folder, &where);
    tarn_module *model = config ? open_with(function, folder, config, where.text, &chosen, &map) : NULL;
    tarn__json_file_free(config);
    return model;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static bool gguf_sizes(const char *function, const char *path, const tarn_model_open_options *o, tarn_lm_config *config,
                       tarn__weight_bytes *bytes)
{
    tarn_dtype dtype;
    tarn_gguf *file = tarn_gguf_open(path);
    bool good = file && gguf_dtype(file, o, &dtype) && tarn__model_get_gguf(function, file, dtype, config);
    if (good)
        *bytes = tarn__gguf_weight_bytes(file, dtype);
    tarn_gguf_close(file);
    return good || tarn__raise_within(function);
}

static bool folder_sizes(const char *function, const char *folder, const tarn_model_open_options *o,
                         tarn_lm_config *config, tarn__weight_bytes *bytes)
{
    tarn__model_path where, weights;
    tarn_dtype dtype = o->dtype;
    tarn__json_file *file = tarn__model_config_open(function, folder, &where);
    const char *type = file ? tarn__json_file_string(file, "model_type") : NULL;
    const tarn__arch *arch = type ? tarn__arch_named(function, where.text, type) : NULL;
    bool good = arch && weights_in(function, folder, &weights) &&
                (!o->as_stored || tarn__weights_dtype(function, weights.text, arch->names->ignored, &dtype)) &&
                tarn__model_read_config(function, file, dtype, config);
    tarn_safetensors *tensors = good ? tarn_safetensors_open(weights.text) : NULL;
    if (tensors)
        *bytes = tarn__safetensors_weight_bytes(tensors, arch, dtype, o->quantize);
    tarn_safetensors_close(tensors);
    tarn__json_file_free(file);
    return tensors || tarn__raise_within(function);
}

bool tarn__open_sizes(const char *function, const char *path, const tarn_model_open_options *options,
                      tarn_lm_config *config, tarn__weight_bytes *bytes)
{
    tarn_model_open_options chosen = *options;
    tarn__model_path base;
    if (!tarn__model_path_in(function, path, "config.json", &base) ||
        !tarn__check_model_path(function, path, "a model's folder or .gguf file"))
        return false;
    if (tarn__lora_is_folder(function, path)) {
        if (!tarn__lora_base_with(function, path, &base, &chosen))
            return false;
        path = base.text;
    }
    return tarn__ends_with(path, ".gguf") ? gguf_sizes(function, path, &chosen, config, bytes)
                                          : folder_sizes(function, path, &chosen, config, bytes);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Paths of a model's files, and of the new ones until both are complete. */
typedef struct model_files {
    tarn__model_path config, weights, new_config, new_weights;
} model_files;

/* False with an error if a path is too long. */
static bool name_files(const char *function, const char *folder, model_files *files)
{
    return tarn__model_path_in(function, folder, "config.json", &files->config) &&
           tarn__model_path_in(function, folder, "model.safetensors", &files->weights) &&
           tarn__model_path_in(function, folder, "config.json.new", &files->new_config) &&
           tarn__model_path_in(function, folder, "model.safetensors.new", &files->new_weights);
}

/* State of one write. safetensors has no quantized types: such weights are dequantized to the model's dtype, in the
 * architecture's layout. */
typedef struct saver {
    const tarn__arch *arch;
    const tarn_module *model;
    tarn_safetensors_writer *writer;
    tarn_dtype dtype;
} saver;

/* Adds one parameter to the file. */
static bool add_one(const tarn__parameter *parameter, void *ctx)
{
    const saver *w = ctx;
    tarn_tensor *tensor = parameter->tensor;
    const char *name = tarn__name_from(w->model, parameter);
    bool is_quantized = tarn__is_quantized(tensor->view.dtype);
    if (is_quantized)
        tensor = tarn_cast(tensor, w->dtype);
    if (is_quantized && tarn__gguf_folder_layout_of(w->arch, name) == TARN__GGUF_TRANSPOSED)
        tensor = tarn_transpose(tensor, 0, 1);
    return tensor && tarn_safetensors_add(w->writer, name, tensor);
}

/* Dequantized copies belong to the scope and are freed after the write. */
static bool write_weights(const tarn__arch *arch, const tarn_module *model, const char *path)
{
    tarn_model_info info;
    tarn__model_describe(model, &info);
    tarn_scope *scope = tarn_scope_open();
    saver w = {arch, model, scope ? tarn_safetensors_create(path) : NULL, info.dtype};
    bool is_open = w.writer && tarn_safetensors_add_metadata(w.writer, "format", "pt"); /* PyTorch's layout */
    if (is_open && tarn_safetensors_add_checksums(w.writer))
        tarn__module_walk_over(model, TARN__MODULE_STATE, add_one, &w);
    bool good = !tarn_failed();
    if (good)
        good = tarn_safetensors_finish(w.writer);
    else
        tarn_safetensors_cancel(w.writer);
    tarn_scope_close(scope);
    return good;
}

/* Writes both new files next to the old ones. */
static bool write_new(const char *function, const tarn__arch *arch, const tarn_module *model, const model_files *files)
{
    if (!write_weights(arch, model, files->new_weights.text))
        return tarn__raise_within(function);
    tarn__json_file *config = tarn__json_file_new(function);
    bool good = config && tarn__model_write_config(tarn__model_config(model), config) &&
                tarn__json_file_save(config, files->new_config.text);
    tarn__json_file_free(config);
    return good;
}

/* Replaces the old files. While the weights are replaced there is no config.json, so that no reader combines one
 * model's configuration with another's weights. */
static bool replace_files(const char *function, const model_files *files)
{
    tarn__file_remove(files->config.text);
    return tarn__file_rename(function, files->new_weights.text, files->weights.text) &&
           tarn__file_rename(function, files->new_config.text, files->config.text);
}

/* On failure the temporary files are removed, and the old model stays. */
bool tarn_model_write(const tarn_module *model, const char *folder)
{
    const char *function = "model_write";
    model_files files;
    const tarn__arch *arch = tarn__arch_of(function, model);
    if (arch && tarn_lora_has(model))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: the model has adapters; tarn_lora_save() writes these, and after tarn_lora_merge() "
                           "they are part of its weights",
                           function);
    if (!arch || !name_files(function, folder, &files) ||
        !(tarn__path_exists(folder) || tarn__folder_make(function, folder)))
        return false;
    if (write_new(function, arch, model, &files) && replace_files(function, &files))
        return true;
    tarn__file_remove(files.new_weights.text);
    tarn__file_remove(files.new_config.text);
    return false;
}
