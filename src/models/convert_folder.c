/* convert_folder.c: Hugging Face folders to GGUF files, and back, for the Llama family. The tensors of one axis that a GGUF file has in f32 are named in its metadata
 * by the type they had, so that they get it back. */
#include <stdio.h>
#include <string.h>
#include <tarn/safetensors.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/memory.h"
#include "formats/document.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "models/convert.h"
#include "models/llama.h"
#include "models/llama_gguf.h"
#include "models/weights.h"

#define WIDENED "tarn.widened." /* and the type that the tensors named there had */

/* ---- folder to GGUF -------------------------------------------------------------------------------------------------------- */

static bool read_config(const tarn__conversion *c, tarn_llama_config *config)
{
    tarn__model_path where;
    tarn__document *document = tarn__model_path_in(c->function, c->from, "config.json", &where) ? tarn__document_open(c->function, where.text) : NULL;
    const char *type = document ? tarn__document_text(document, "model_type") : NULL;
    bool good = type != NULL;
    if (good && !tarn__llama_family_of(type))
        good = tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': the model_type '%.64s' is not converted; llama, mistral, qwen2 and qwen3 are",
                           c->function, where.text, type);
    good = good && tarn__llama_read_config(c->function, document, TARN_F32, config) && tarn__llama_complete(c->function, config);
    tarn__document_free(document);
    return good;
}

static tarn_safetensors *open_weights(const tarn__conversion *c)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    tarn__model_path where;
    for (int i = 0; i < 2; i++)
        if (tarn__model_path_in(c->function, c->from, names[i], &where) && tarn__path_exists(where.text))
            return tarn_safetensors_open(where.text);
    tarn__raise(TARN_ERROR_IO, "%s: '%s' has no model.safetensors and no model.safetensors.index.json", c->function, c->from);
    return NULL;
}

/* A head that shares the embedding, which some programs write all the same: it must be a copy, or it would be lost in silence. */
static bool check_copy(const tarn__conversion *c, const tarn_safetensors *weights, int index, const tarn_safetensors_entry *head)
{
    tarn_safetensors_entry table;
    int other = tarn_safetensors_find(weights, "model.embed_tokens.weight");
    if (other >= 0 && !tarn_safetensors_info(weights, other, &table))
        return false;
    bool same = other >= 0 && table.dtype == head->dtype && table.bytes == head->bytes &&
                memcmp(tarn__safetensors_elements(weights, index), tarn__safetensors_elements(weights, other), (size_t)head->bytes) == 0;
    return same || tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': 'model.embed_tokens.weight' and '%.200s' differ, but tie_word_embeddings is true",
                               c->function, c->from, head->name);
}

static bool add_from_folder(tarn__conversion *c, const tarn_llama_config *config, const tarn_safetensors *weights, int index)
{
    char name[TARN__LLAMA_NAME];
    tarn_safetensors_entry e;
    if (!tarn_safetensors_info(weights, index, &e) || tarn__llama_ignores(e.name))
        return !tarn_failed();
    if (!tarn__llama_name_in_gguf(e.name, name))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' holds '%.200s', which a %s does not have", c->function, c->from, e.name,
                           config->family);
    if (e.dtype != TARN_F32 && e.dtype != TARN_F16 && e.dtype != TARN_BF16)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': tensor '%.200s' is %s; weights of F32, F16 and BF16 are converted",
                           c->function, c->from, e.name, e.dtype_name);
    int64_t heads = tarn__llama_turned_heads(config, name), rows = e.shape.rank ? e.shape.size[0] : 1;
    if (heads && rows % (2 * heads))
        return tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': the %lld rows of '%.200s' are no pairs of %lld heads", c->function, c->from,
                           (long long)rows, e.name, (long long)heads);
    bool is_head = strcmp(name, config->tied ? "token_embd.weight" : "output.weight") == 0;
    if (config->tied && strcmp(name, "output.weight") == 0)
        return check_copy(c, weights, index, &e);
    const tarn__rows one = {.function = c->function,
                            .path = c->from,
                            .elements = tarn__safetensors_elements(weights, index),
                            .shape = e.shape,
                            .from = e.dtype,
                            .order = heads ? TARN__ROWS_TO_NEIGHBOURS : TARN__ROWS_KEPT,
                            .heads = heads};
    return tarn__convert_add(c, name, &one, is_head);
}

/* Names the tensors that became f32 although nobody asked for another type. */
static bool put_widened(const tarn__conversion *c, tarn_dtype dtype, tarn_gguf_writer *writer)
{
    char key[64];
    const char **names = c->options.quantize ? NULL : tarn__alloc(sizeof(*names) * (size_t)c->jobs);
    int64_t count = 0;
    if (c->options.quantize || !names)
        return c->options.quantize;
    for (int i = 0; i < c->jobs; i++)
        if (c->job[i].rows.from == dtype && c->job[i].rows.to == TARN_F32)
            names[count++] = c->job[i].name;
    snprintf(key, sizeof(key), WIDENED "%s", tarn_dtype_name(dtype));
    bool good = count == 0 || tarn_gguf_add_texts(writer, key, names, NULL, count);
    tarn__release(names, sizeof(*names) * (size_t)c->jobs);
    return good;
}

bool tarn__convert_write_gguf(tarn__conversion *c, const tarn_llama_config *config, tarn_gguf_writer *writer)
{
    bool has_text = tarn__convert_has_text(c);
    return tarn__llama_put_metadata(config, has_text, writer) && (!has_text || tarn__convert_put_text(c, config, writer)) &&
           put_widened(c, TARN_BF16, writer) && put_widened(c, TARN_F16, writer) && tarn__convert_put(c, writer);
}

bool tarn__convert_from_folder(tarn__conversion *c)
{
    tarn_llama_config config = {0};
    tarn_safetensors *weights = read_config(c, &config) ? open_weights(c) : NULL;
    bool good = weights != NULL;
    for (int i = 0; good && i < tarn_safetensors_count(weights); i++)
        good = add_from_folder(c, &config, weights, i);
    good = good && tarn__convert_check_names(c, &config, false);
    tarn_gguf_writer *writer = good ? tarn_gguf_create(c->to) : NULL;
    good = writer && tarn__convert_write_gguf(c, &config, writer);
    if (good)
        good = tarn_gguf_finish(writer);
    else
        tarn_gguf_cancel(writer);
    tarn_safetensors_close(weights);
    return good;
}

/* ---- GGUF to folder -------------------------------------------------------------------------------------------------------- */

/* The type that a tensor had before it was made f32 for the file; f32: it was that. */
static bool narrowed(const tarn_gguf *file, const char *name, tarn_dtype *dtype)
{
    static const tarn_dtype dtypes[] = {TARN_BF16, TARN_F16};
    char key[64];
    tarn_gguf_value list;
    size_t length;
    for (int i = 0; i < 2; i++) {
        snprintf(key, sizeof(key), WIDENED "%s", tarn_dtype_name(dtypes[i]));
        for (int64_t k = 0; tarn_gguf_has(file, key, &list) && k < list.count; k++) {
            const char *text = tarn_gguf_texts(file, key, k, &length);
            if (!text)
                return false;
            if (length == strlen(name) && memcmp(text, name, length) == 0)
                *dtype = dtypes[i];
        }
    }
    return true;
}

/* Adds the tensor of an entry, as the folder has it. */
static bool add_entry(tarn__conversion *c, const tarn_gguf *file, const tarn_llama_config *config, const tarn_gguf_entry *e, const char *name)
{
    int64_t heads = tarn__llama_turned_heads(config, e->name), rows = e->shape.rank ? e->shape.size[0] : 1;
    if (e->dtype == TARN_DTYPE_COUNT)
        return tarn__convert_unknown(c, e->name, e->dtype_name);
    tarn_dtype dtype = tarn__is_blocks(e->dtype) ? TARN_F32 : e->dtype;
    if (e->dtype == TARN_F32 && !narrowed(file, e->name, &dtype))
        return false;
    if (heads && rows % (2 * heads))
        return tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': the %lld rows of '%.200s' are no pairs of %lld heads", c->function, c->from,
                           (long long)rows, e->name, (long long)heads);
    const tarn__rows one = {c->function, c->from,  e->name, file->memory + e->position,
                            e->shape,    e->dtype, dtype,   heads ? TARN__ROWS_TO_HALVES : TARN__ROWS_KEPT,
                            heads};
    return tarn__convert_add_as(c, name, &one);
}

static bool add_to_folder(tarn__conversion *c, const tarn_gguf *file, const tarn_llama_config *config, int index)
{
    char name[TARN__LLAMA_NAME];
    tarn_gguf_entry e;
    if (!tarn_gguf_info(file, index, &e) || strcmp(e.name, TARN__GGUF_FREQUENCIES) == 0)
        return !tarn_failed();
    if (!tarn__llama_name_in_folder(e.name, name))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' holds '%.200s', which a %s does not have", c->function, c->from, e.name,
                           config->family);
    return add_entry(c, file, config, &e, name);
}

/* Each tensor is made when it is its turn to be written: none but that is in memory. */
static bool write_weights(tarn__conversion *c, const tarn_gguf *file, const tarn_llama_config *config, const char *where)
{
    tarn_safetensors_writer *writer = tarn_safetensors_create(where);
    bool good = writer && tarn_safetensors_add_metadata(writer, "format", "pt");
    for (int i = 0; good && i < tarn_gguf_count(file); i++)
        good = add_to_folder(c, file, config, i);
    good = good && tarn__convert_check_names(c, config, true);
    for (int i = 0; good && i < c->jobs; i++) {
        tarn__convert_job *job = &c->job[i];
        job->rows.name = job->name;
        good = tarn__safetensors_add_made(writer, job->name, job->rows.to, job->rows.shape, tarn__convert_write, job);
    }
    if (good)
        return tarn_safetensors_finish(writer);
    tarn_safetensors_cancel(writer);
    return false;
}

static bool write_config(const tarn__conversion *c, const tarn_llama_config *config, const char *where)
{
    tarn__document *document = tarn__document_new(c->function);
    bool good = document && tarn__llama_write_config(config, document) && tarn__document_save(document, where);
    tarn__document_free(document);
    return good;
}

static bool write_folder(tarn__conversion *c, const tarn_gguf *file)
{
    tarn_llama_config config = {0};
    tarn_gguf_entry table = {0};
    tarn__model_path where, weights, new_weights;
    int tokens = tarn_gguf_find(file, "token_embd.weight");
    if (!tarn__model_path_in(c->function, c->to, "config.json", &where) || !tarn__model_path_in(c->function, c->to, "model.safetensors", &weights) ||
        !tarn__model_path_in(c->function, c->to, "model.safetensors.new", &new_weights))
        return false;
    if (!c->options.replace && (tarn__path_exists(where.text) || tarn__path_exists(weights.text)))
        return tarn__raise(TARN_ERROR_IO, "%s: there is a model in '%s' already; it is replaced only with .replace (--force)", c->function,
                           c->to);
    if (!tarn__llama_get_metadata(c->function, file, &config) || !tarn__llama_complete(c->function, &config) ||
        !tarn_gguf_info(file, tokens, &table) || !(tarn__path_exists(c->to) || tarn__folder_make(c->function, c->to)))
        return false;
    config.dtype = table.dtype == TARN_F16 || table.dtype == TARN_BF16 ? table.dtype : TARN_F32;
    if (!write_weights(c, file, &config, new_weights.text)) /* most that can fail: what was there stays until then */
        return false;
    tarn__file_remove(where.text); /* nobody opens one model's weights as another's */
    if (!tarn__file_rename(c->function, new_weights.text, weights.text)) {
        tarn__file_remove(new_weights.text);
        return false;
    }
    return tarn__convert_get_text(c, file) && write_config(c, &config, where.text);
}

bool tarn__convert_to_folder(tarn__conversion *c)
{
    tarn_gguf *file = tarn_gguf_open(c->from);
    if (!file)
        return false;
    bool good = write_folder(c, file);
    tarn_gguf_close(file);
    return good;
}
