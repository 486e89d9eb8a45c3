/* quantize_on_load.c: quantizes the linear layers of a folder while it is loaded, for training adapters (QLoRA) in
 * little memory.
 *
 * Tensors are converted one at a time from the mapped file, so that the unquantized model is never in memory as a
 * whole. Head, embedding, norms and biases are not quantized: they are small, and the head is sensitive. */
#include "models/hf/hf.h"

#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/safetensors.h"

/* ---- shared with conversion -------------------------------------------------------------------------------------- */

int tarn__hf_find_tensor(const tarn__arch *arch, const tarn_safetensors *file, const char *name)
{
    size_t body = strlen(arch->names->body);
    int index = tarn_safetensors_find(file, name);
    if (index < 0 && arch->names->may_lack_body && strncmp(name, arch->names->body, body) == 0 && name[body] == '.')
        index = tarn_safetensors_find(file, name + body + 1);
    return index;
}

/* Compares the bytes of both tensors. */
bool tarn__hf_check_head(const char *function, const tarn__arch *arch, const tarn_safetensors *file, const char *path,
                         int head)
{
    tarn_safetensors_entry of_head, of_embedding;
    char embedding[TARN__GGUF_NAME_CAPACITY];
    snprintf(embedding, sizeof(embedding), "%s.%s.weight", arch->names->body, arch->names->top[0].folder);
    int index = tarn__hf_find_tensor(arch, file, embedding);
    bool is_copy =
        index >= 0 && tarn_safetensors_info(file, head, &of_head) &&
        tarn_safetensors_info(file, index, &of_embedding) && of_head.dtype == of_embedding.dtype &&
        of_head.bytes == of_embedding.bytes &&
        memcmp(tarn__safetensors_data(file, head), tarn__safetensors_data(file, index), (size_t)of_head.bytes) == 0;
    return is_copy ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%s' and '%.200s' differ, but tie_word_embeddings is true",
                       function, path, embedding, tarn_safetensors_name(file, head));
}

/* ---- quantization ------------------------------------------------------------------------------------------------ */

/* State of one load. */
typedef struct loader {
    const char *function, *path;
    const tarn_safetensors *file;
    const tarn__arch *arch;
    tarn_lm_config config;
    tarn_dtype dtype, quantize;
    int loaded; /* tensors loaded so far */
} loader;

/* Matrices of the layers: "model.layers.0.self_attn.q_proj.weight". */
static bool is_to_quantize(const loader *r, const char *name, tarn_shape shape)
{
    char layers[64];
    int length = snprintf(layers, sizeof(layers), "%s.%s.", r->arch->names->body, r->arch->names->layers);
    return shape.rank == 2 && strncmp(name, layers, (size_t)length) == 0;
}

/* Raises a tensor of another shape or dtype, or whose rows are not a multiple of the block size. `stored` is the
 * shape of the result: quantized weights are [out, in]. */
static bool check_entry(const loader *r, const tarn_safetensors_entry *e, tarn_shape shape, tarn_shape stored,
                        tarn_dtype to)
{
    bool same = e->shape.rank == shape.rank;
    for (int i = 0; same && i < shape.rank; i++)
        same = e->shape.size[i] == shape.size[i];
    if (!same)
        return tarn__raise(
            TARN_ERROR_SHAPE,
            "%s: '%s': tensor '%.200s' has %d axes, the first of %lld; config.json needs %d, the first of %lld",
            r->function, r->path, e->name, e->shape.rank, (long long)(e->shape.rank ? e->shape.size[0] : 1), shape.rank,
            (long long)shape.size[0]);
    if (e->dtype != TARN_F32 && e->dtype != TARN_F16 && e->dtype != TARN_BF16)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: '%s': tensor '%.200s' is %s; F32, F16 and BF16 can be quantized", r->function, r->path,
                           e->name, e->dtype_name);
    int64_t row = stored.size[stored.rank - 1], block = (int64_t)tarn__dtypes[to].block_elements;
    return row % block == 0 ||
           tarn__raise(TARN_ERROR_SHAPE,
                       "%s: '%s': the rows of '%.200s' have %lld elements; %s needs a multiple of %lld%s", r->function,
                       r->path, e->name, (long long)row, tarn_dtype_name(to), (long long)block,
                       row % 32 == 0 ? "; q8_0 needs one of 32" : "");
}

/* The source of the parameters. */
static tarn_tensor *load_tensor(void *ctx, const char *name, tarn_shape shape, tarn_device device)
{
    loader *r = ctx;
    tarn_safetensors_entry e;
    int index = tarn__hf_find_tensor(r->arch, r->file, name);
    bool is_quantized = is_to_quantize(r, name, shape),
         is_transposed = is_quantized && r->arch->linear == TARN__LINEAR_IN_OUT;
    tarn__weight_rows rows = {.function = r->function,
                              .path = r->path,
                              .name = name,
                              .shape = is_transposed ? TARN_SHAPE(shape.size[1], shape.size[0]) : shape,
                              .to = is_quantized ? r->quantize : r->dtype,
                              .order = is_transposed ? TARN__ROWS_TRANSPOSED : TARN__ROWS_UNCHANGED};
    if (index < 0) {
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no tensor '%.200s'", r->function, r->path, name);
        return NULL;
    }
    if (!tarn_safetensors_info(r->file, index, &e) || !check_entry(r, &e, shape, rows.shape, rows.to))
        return NULL;
    r->loaded++;
    rows.elements = tarn__safetensors_data(r->file, index);
    rows.from = e.dtype;
    return tarn__weight_rows_tensor(&rows, device);
}

/* Raises if the file has tensors that the model lacks. */
static bool check_all_loaded(const loader *r)
{
    char head[64];
    int known = r->loaded;
    snprintf(head, sizeof(head), "%s.weight", r->arch->names->head);
    for (int i = 0; i < tarn_safetensors_count(r->file); i++) {
        const char *name = tarn_safetensors_name(r->file, i);
        bool is_shared = r->config.tie_embeddings && strcmp(name, head) == 0;
        known += is_shared || tarn__has_ending(name, r->arch->names->ignored);
        if (is_shared && !tarn__hf_check_head(r->function, r->arch, r->file, r->path, i))
            return false;
    }
    return known == tarn_safetensors_count(r->file) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has %d tensors; a %s of this config.json has %d", r->function,
                       r->path, tarn_safetensors_count(r->file), r->config.arch, known);
}

/* Checksums are verified before the model is built. */
tarn_module *tarn__hf_quantize_on_load(const char *function, const tarn__arch *arch, const tarn__json_file *config,
                                       const char *path, const tarn_model_open_options *options,
                                       const tarn__device_map *map)
{
    loader r = {
        .function = function, .path = path, .arch = arch, .dtype = options->dtype, .quantize = options->quantize};
    tarn_safetensors *file =
        tarn__model_read_config(function, config, options->dtype, &r.config) ? tarn_safetensors_open(path) : NULL;
    r.file = file;
    bool is_whole = file && tarn__safetensors_verify(function, file);
    tarn_module *model =
        is_whole ? tarn__model_make(function, &r.config, map, false, &(tarn__model_source){load_tensor, &r}) : NULL;
    bool good = model && check_all_loaded(&r) && tarn_module_train(model, false);
    tarn_safetensors_close(file);
    if (good)
        return model;
    tarn_module_free(model);
    tarn__raise_within(function);
    return NULL;
}
