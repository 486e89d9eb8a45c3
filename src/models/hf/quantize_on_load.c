/* quantize_on_load.c: a folder whose linear layers become blocks while they are read, for training adapters beside them
 * (QLoRA) in little memory.
 *
 * One tensor at a time is made from the mapped file, so that the whole model never lies in memory as elements. Head,
 * embedding, norms and biases stay elements: they are few, and the head decides between tokens. */
#include "models/hf/folder_blocks.h"

#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/safetensors.h"

/* ---- what readers of folders share ------------------------------------------------------------------------------- */

int tarn__hf_find_tensor(const tarn__gguf_arch *kind, const tarn_safetensors *file, const char *name)
{
    const char *body = kind->body;
    int index = tarn_safetensors_find(file, name);
    if (index < 0 && body && strncmp(name, body, strlen(body)) == 0)
        index = tarn_safetensors_find(file, name + strlen(body));
    return index;
}

bool tarn__hf_check_head(const char *function, const tarn__gguf_arch *kind, const tarn_safetensors *file,
                         const char *path, int head)
{
    tarn_safetensors_entry of_head, of_table;
    char table[TARN__GGUF_NAME_CAPACITY];
    snprintf(table, sizeof(table), "%sweight", kind->tops[0].folder);
    int index = tarn__hf_find_tensor(kind, file, table);
    bool is_copy =
        index >= 0 && tarn_safetensors_info(file, head, &of_head) && tarn_safetensors_info(file, index, &of_table) &&
        of_head.dtype == of_table.dtype && of_head.bytes == of_table.bytes &&
        memcmp(tarn__safetensors_data(file, head), tarn__safetensors_data(file, index), (size_t)of_head.bytes) == 0;
    return is_copy ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%s' and '%.200s' differ, but tie_word_embeddings is true",
                       function, path, table, tarn_safetensors_name(file, head));
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

typedef struct reading {
    const char *function, *path;
    const tarn_safetensors *file;
    const tarn__arch *kind;
    tarn__gguf_traits traits;
    tarn_dtype dtype, blocks;
    int given;
} reading;

/* "model.layers.0.self_attn.q_proj.weight": the matrices of the layers. */
static bool becomes_blocks(const reading *r, const char *name, tarn_shape shape)
{
    const char *layers = r->kind->gguf->block;
    return shape.rank == 2 && strncmp(name, layers, strlen(layers)) == 0;
}

/* `made` is the shape of what is made: rows of blocks are outputs. */
static bool check_entry(const reading *r, const tarn_safetensors_entry *e, tarn_shape shape, tarn_shape made,
                        tarn_dtype to)
{
    bool same = e->shape.rank == shape.rank;
    for (int i = 0; same && i < shape.rank; i++)
        same = e->shape.size[i] == shape.size[i];
    if (!same)
        return tarn__raise(
            TARN_ERROR_SHAPE,
            "%s: '%s': tensor '%.200s' has %d axes, the first of %lld, but config.json asks for %d, the first of %lld",
            r->function, r->path, e->name, e->shape.rank, (long long)(e->shape.rank ? e->shape.size[0] : 1), shape.rank,
            (long long)shape.size[0]);
    if (e->dtype != TARN_F32 && e->dtype != TARN_F16 && e->dtype != TARN_BF16)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: '%s': tensor '%.200s' is %s; weights of F32, F16 and BF16 become blocks", r->function,
                           r->path, e->name, e->dtype_name);
    int64_t row = made.size[made.rank - 1], whole = (int64_t)tarn__dtypes[to].block_elements;
    return row % whole == 0 ||
           tarn__raise(TARN_ERROR_SHAPE,
                       "%s: '%s': the rows of '%.200s' have %lld elements, which are no whole blocks of %s (%lld)%s",
                       r->function, r->path, e->name, (long long)row, tarn_dtype_name(to), (long long)whole,
                       row % 32 == 0 ? "; q8_0 has blocks of 32" : "");
}

/* The source of the parameters. */
static tarn_tensor *give(void *ctx, const char *name, tarn_shape shape, tarn_device device)
{
    reading *r = ctx;
    tarn_safetensors_entry e;
    int index = tarn__hf_find_tensor(r->kind->gguf, r->file, name);
    bool is_blocks = becomes_blocks(r, name, shape), is_turned = is_blocks && r->kind->linear == TARN__LINEAR_IN_OUT;
    tarn__weight_rows rows = {.function = r->function,
                              .path = r->path,
                              .name = name,
                              .shape = is_turned ? TARN_SHAPE(shape.size[1], shape.size[0]) : shape,
                              .to = is_blocks ? r->blocks : r->dtype,
                              .order = is_turned ? TARN__ROWS_TRANSPOSED : TARN__ROWS_UNCHANGED};
    if (index < 0) {
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no tensor '%.200s'", r->function, r->path, name);
        return NULL;
    }
    if (!tarn_safetensors_info(r->file, index, &e) || !check_entry(r, &e, shape, rows.shape, rows.to))
        return NULL;
    r->given++;
    rows.elements = tarn__safetensors_data(r->file, index);
    rows.from = e.dtype;
    return tarn__weight_rows_tensor(&rows, device);
}

/* What does not belong into the model would be lost in silence. */
static bool check_all_given(const reading *r)
{
    int known = r->given;
    for (int i = 0; i < tarn_safetensors_count(r->file); i++) {
        const char *name = tarn_safetensors_name(r->file, i);
        bool is_shared = r->traits.tie_embeddings && strcmp(name, "lm_head.weight") == 0;
        known += is_shared || r->kind->ignores(name);
        if (is_shared && !tarn__hf_check_head(r->function, r->kind->gguf, r->file, r->path, i))
            return false;
    }
    return known == tarn_safetensors_count(r->file) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' holds %d tensors, but a %s of this config.json has %d", r->function,
                       r->path, tarn_safetensors_count(r->file), r->traits.arch, known);
}

tarn_module *tarn__hf_quantize_on_load(const char *function, const tarn__arch *kind, const tarn__json_file *config,
                                       const char *path, const tarn_model_open_options *options,
                                       const tarn__device_map *where)
{
    tarn__any_config c = {0};
    tarn_safetensors *file =
        kind->gguf->read(function, config, options->dtype, &c) ? tarn_safetensors_open(path) : NULL;
    reading r = {.function = function,
                 .path = path,
                 .file = file,
                 .kind = kind,
                 .dtype = options->dtype,
                 .blocks = options->quantize};
    if (file)
        kind->gguf->traits(&c, &r.traits);
    bool is_whole = file && tarn__safetensors_verify(function, file);
    tarn_module *model = is_whole ? kind->gguf->make(function, &c, where, &(tarn__model_source){give, &r}) : NULL;
    bool good = model && check_all_given(&r) && tarn_module_train(model, false);
    tarn_safetensors_close(file);
    if (good)
        return model;
    tarn_module_free(model);
    tarn__raise_within(function);
    return NULL;
}
