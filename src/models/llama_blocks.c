/* llama_blocks.c: a folder of the Llama family whose linear layers become blocks while they are read, for training adapters beside them (QLoRA) in little memory.
 *
 * One tensor at a time is made from the mapped file, so that the whole model never lies in memory as elements. Head, embedding, norms and biases stay elements: they
 * are few, and the head decides between tokens. */
#include <string.h>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/safetensors.h"
#include "models/llama.h"
#include "models/rows.h"
#include "models/weights.h"

#define TABLE "model.embed_tokens.weight"
#define HEAD "lm_head.weight"

typedef struct reading {
    const char *function, *path;
    const tarn_safetensors *file;
    const tarn_llama_config *config;
    tarn_dtype blocks;
    int given;
} reading;

/* "…q_proj.weight", "…down_proj.weight": the matrices of the blocks. */
static bool becomes_blocks(const char *name, tarn_shape shape)
{
    return shape.rank == 2 && tarn__ends_with(name, "_proj.weight");
}

static bool check_entry(const reading *r, const tarn_safetensors_entry *e, tarn_shape shape, tarn_dtype to)
{
    bool same = e->shape.rank == shape.rank;
    for (int i = 0; same && i < shape.rank; i++)
        same = e->shape.size[i] == shape.size[i];
    if (!same)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "%s: '%s': tensor '%.200s' has %d axes, the first of %lld, but config.json asks for %d, the first of %lld",
                           r->function, r->path, e->name, e->shape.rank, (long long)(e->shape.rank ? e->shape.size[0] : 1), shape.rank,
                           (long long)shape.size[0]);
    if (e->dtype != TARN_F32 && e->dtype != TARN_F16 && e->dtype != TARN_BF16)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': tensor '%.200s' is %s; weights of F32, F16 and BF16 become blocks",
                           r->function, r->path, e->name, e->dtype_name);
    int64_t row = shape.size[shape.rank - 1], whole = (int64_t)tarn__dtypes[to].block_elements;
    return row % whole == 0 ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': the rows of '%.200s' have %lld elements, which are no whole blocks of %s (%lld)%s",
                       r->function, r->path, e->name, (long long)row, tarn_dtype_name(to), (long long)whole,
                       row % 32 == 0 ? "; q8_0 has blocks of 32" : "");
}

/* The source of the parameters. */
static tarn_tensor *give(void *ctx, const char *name, tarn_shape shape, tarn_device device)
{
    reading *r = ctx;
    tarn_safetensors_entry e;
    int index = tarn_safetensors_find(r->file, name);
    tarn_dtype to = becomes_blocks(name, shape) ? r->blocks : r->config->dtype;
    if (index < 0) {
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no tensor '%.200s'", r->function, r->path, name);
        return NULL;
    }
    if (!tarn_safetensors_info(r->file, index, &e) || !check_entry(r, &e, shape, to))
        return NULL;
    r->given++;
    const tarn__rows rows = {.function = r->function,
                             .path = r->path,
                             .name = name,
                             .elements = tarn__safetensors_elements(r->file, index),
                             .shape = shape,
                             .from = e.dtype,
                             .to = to,
                             .order = TARN__ROWS_KEPT};
    return tarn__rows_tensor(&rows, device);
}

/* A head beside the table that it shares, which some programs write: it must be a copy. */
static bool is_copy(const reading *r, int head)
{
    tarn_safetensors_entry of_head, of_table;
    int table = tarn_safetensors_find(r->file, TABLE);
    return table >= 0 && tarn_safetensors_info(r->file, head, &of_head) && tarn_safetensors_info(r->file, table, &of_table) &&
           of_head.dtype == of_table.dtype && of_head.bytes == of_table.bytes &&
           memcmp(tarn__safetensors_elements(r->file, head), tarn__safetensors_elements(r->file, table), (size_t)of_head.bytes) == 0;
}

/* What does not belong into the model would be lost in silence. */
static bool check_all_given(const reading *r)
{
    int known = r->given;
    for (int i = 0; i < tarn_safetensors_count(r->file); i++) {
        const char *name = tarn_safetensors_name(r->file, i);
        if (tarn__llama_ignores(name)) {
            known++;
        } else if (r->config->tied && strcmp(name, HEAD) == 0) {
            known++;
            if (!is_copy(r, i))
                return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '" TABLE "' and '" HEAD "' differ, but tie_word_embeddings is true",
                                   r->function, r->path);
        }
    }
    return known == tarn_safetensors_count(r->file) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' holds %d tensors, but a %s of this config.json has %d", r->function, r->path,
                       tarn_safetensors_count(r->file), r->config->family, known);
}

tarn_module *tarn__llama_from_folder(const char *function, const tarn__document *config, const char *path,
                                     const tarn_model_open_options *options, const tarn__placement *where)
{
    tarn_llama_config c = {0};
    const char *type = tarn__document_text(config, "model_type");
    if (!type)
        return NULL;
    if (!tarn__llama_family_of(type)) {
        tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: weights of a %.64s cannot become blocks; those of llama, mistral, qwen2 and qwen3 can",
                    function, type);
        return NULL;
    }
    tarn_safetensors *file = tarn__llama_read_config(function, config, options->dtype, &c) ? tarn_safetensors_open(path) : NULL;
    reading r = {.function = function, .path = path, .file = file, .config = &c, .blocks = options->blocks};
    tarn_module *model = file ? tarn__llama_make(function, &c, where, &(tarn__llama_source){give, &r}) : NULL;
    bool good = model && check_all_given(&r) && tarn_module_train(model, false);
    tarn_safetensors_close(file);
    if (good)
        return model;
    tarn_module_free(model);
    tarn__raise_within(function);
    return NULL;
}
