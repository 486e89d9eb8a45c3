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

int tarn__hf_find_tensor(const tarn__gguf_arch *arch, const tarn_safetensors *file, const char *name)
{
    const char *body = arch->body;
    int index = tarn_safetensors_find(file, name);
    if (index < 0 && body && strncmp(name, body, strlen(body)) == 0)
        index = tarn_safetensors_find(file, name + strlen(body));
    return index;
}

/* Compares the bytes of both tensors. */
bool tarn__hf_check_head(const char *function, const tarn__gguf_arch *arch, const tarn_safetensors *file,
                         const char *path, int head)
{
    tarn_safetensors_entry of_head, of_embedding;
    char embedding[TARN__GGUF_NAME_CAPACITY];
    snprintf(embedding, sizeof(embedding), "%sweight", arch->top_names[0].folder);
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
    tarn__gguf_traits traits;
    tarn_dtype dtype, quantize;
    int loaded; /* tensors loaded so far */
} loader;

/* Matrices of the layers: "model.layers.0.self_attn.q_proj.weight". */
static bool is_to_quantize(const loader *r, const char *name, tarn_shape shape)
{
    const char *layers = r->arch->gguf->block;
    return shape.rank == 2 && strncmp(name, layers, strlen(layers)) == 0;
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
    int index = tarn__hf_find_tensor(r->arch->gguf, r->file, name);
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
    int known = r->loaded;
    for (int i = 0; i < tarn_safetensors_count(r->file); i++) {
        const char *name = tarn_safetensors_name(r->file, i);
        bool is_shared = r->traits.tie_embeddings && strcmp(name, "lm_head.weight") == 0;
        known += is_shared || r->arch->ignores(name);
        if (is_shared && !tarn__hf_check_head(r->function, r->arch->gguf, r->file, r->path, i))
            return false;
    }
    return known == tarn_safetensors_count(r->file) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has %d tensors; a %s of this config.json has %d", r->function,
                       r->path, tarn_safetensors_count(r->file), r->traits.arch, known);
}

/* Checksums are verified before the model is built. */
tarn_module *tarn__hf_quantize_on_load(const char *function, const tarn__arch *arch, const tarn__json_file *config,
                                       const char *path, const tarn_model_open_options *options,
                                       const tarn__device_map *map)
{
    tarn__any_config c = {0};
    tarn_safetensors *file =
        arch->gguf->read(function, config, options->dtype, &c) ? tarn_safetensors_open(path) : NULL;
    loader r = {.function = function,
                .path = path,
                .file = file,
                .arch = arch,
                .dtype = options->dtype,
                .quantize = options->quantize};
    if (file)
        arch->gguf->traits(&c, &r.traits);
    bool is_whole = file && tarn__safetensors_verify(function, file);
    tarn_module *model = is_whole ? arch->gguf->make(function, &c, map, &(tarn__model_source){load_tensor, &r}) : NULL;
    bool good = model && check_all_loaded(&r) && tarn_module_train(model, false);
    tarn_safetensors_close(file);
    if (good)
        return model;
    tarn_module_free(model);
    tarn__raise_within(function);
    return NULL;
}
