/* convert_hf.c: Hugging Face folders to GGUF files, and back.
 *
 * Norms, biases and position embeddings become f32 in a GGUF file. Their original types are stored in the metadata,
 * so that a round trip restores them. */
#include <stdio.h>
#include <string.h>
#include <tarn/safetensors.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/memory.h"
#include "formats/gguf.h"
#include "formats/json_file.h"
#include "formats/safetensors.h"
#include "models/convert/convert.h"
#include "models/gguf/gguf_arch.h"
#include "models/hf/hf.h"
#include "models/hf/weights.h"

#define WIDENED "tarn.widened." /* and the type that the tensors named there had */

/* ---- folder to GGUF ---------------------------------------------------------------------------------------------- */

/* Reads the configuration of the folder. */
static bool read_config(tarn__conversion *c)
{
    tarn__model_path where;
    tarn__json_file *document = tarn__model_config_open(c->function, c->from, &where);
    const char *type = document ? tarn__json_file_string(document, "model_type") : NULL;
    c->arch = type ? tarn__arch_named(c->function, where.text, type) : NULL;
    bool good = c->arch && tarn__model_read_config(c->function, document, TARN_F32, &c->config);
    tarn__json_file_free(document);
    return good;
}

/* Opens the weights, one file or shards. */
static tarn_safetensors *open_weights(const tarn__conversion *c)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    tarn__model_path where;
    for (int i = 0; i < 2; i++)
        if (tarn__model_path_in(c->function, c->from, names[i], &where) && tarn__path_exists(where.text))
            return tarn_safetensors_open(where.text);
    tarn__raise(TARN_ERROR_IO, "%s: '%s' has no model.safetensors and no model.safetensors.index.json", c->function,
                c->from);
    return NULL;
}

/* Adds one tensor of the folder. A copy of tied embeddings under the head's name is checked and dropped. */
static bool add_from_folder(tarn__conversion *c, const tarn_safetensors *weights, int index)
{
    char name[TARN__GGUF_NAME_CAPACITY];
    tarn_safetensors_entry e;
    if (!tarn_safetensors_info(weights, index, &e) || tarn__has_ending(e.name, c->arch->names->ignored))
        return !tarn_failed();
    if (!tarn__gguf_name_of(c->arch, e.name, name))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has an unknown tensor '%.200s'; a %s has none of that name",
                           c->function, c->from, e.name, c->config.arch);
    if (e.dtype != TARN_F32 && e.dtype != TARN_F16 && e.dtype != TARN_BF16)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: '%s': tensor '%.200s' is %s; F32, F16 and BF16 can be converted", c->function, c->from,
                           e.name, e.dtype_name);
    if (c->config.tie_embeddings && strcmp(name, "output.weight") == 0)
        return tarn__hf_check_head(c->function, c->arch, weights, c->from, index);
    tarn__weight_rows one = {.function = c->function,
                             .path = c->from,
                             .elements = tarn__safetensors_data(weights, index),
                             .shape = e.shape,
                             .from = e.dtype};
    return tarn__gguf_set_layout(&c->config, name, e.name, true, &one) &&
           tarn__convert_add(c, name, &one, tarn__convert_is_head(&c->config, name));
}

/* Lists the tensors that became f32 without being asked for. */
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
    bool good = count == 0 || tarn_gguf_add_strings(writer, key, names, NULL, count);
    tarn__release(names, sizeof(*names) * (size_t)c->jobs);
    return good;
}

/* Metadata first, then tensors: the order of the file. */
bool tarn__convert_write_gguf(tarn__conversion *c, tarn_gguf_writer *writer)
{
    bool has_tokenizer = tarn__convert_has_tokenizer(c);
    const tarn__gguf_bos_eos tokens = tarn__gguf_bos_eos_of(&c->config);
    return tarn__model_put_gguf(&c->config, writer) && tarn__gguf_put_bos_eos(&tokens, has_tokenizer, writer) &&
           (!has_tokenizer || tarn__convert_put_tokenizer(c, writer)) && put_widened(c, TARN_BF16, writer) &&
           put_widened(c, TARN_F16, writer) && tarn__convert_put(c, writer);
}

/* Tensors are checked before the file is created: their names and dtypes, and that none is missing. */
bool tarn__convert_from_hf(tarn__conversion *c)
{
    tarn_safetensors *weights = read_config(c) ? open_weights(c) : NULL;
    bool good = weights && tarn__safetensors_verify(c->function, weights);
    for (int i = 0; good && i < tarn_safetensors_count(weights); i++)
        good = add_from_folder(c, weights, i);
    good = good && tarn__convert_check_names(c, false);
    tarn_gguf_writer *writer = good ? tarn_gguf_create(c->to) : NULL;
    good = writer && tarn__convert_write_gguf(c, writer);
    if (good)
        good = tarn_gguf_finish(writer);
    else
        tarn_gguf_cancel(writer);
    tarn_safetensors_close(weights);
    return good;
}

/* ---- GGUF to folder ---------------------------------------------------------------------------------------------- */

/* Type of a tensor before it became f32 in the file; unchanged if it was f32. */
static bool original_dtype(const tarn_gguf *file, const char *name, tarn_dtype *dtype)
{
    static const tarn_dtype dtypes[] = {TARN_BF16, TARN_F16};
    char key[64];
    tarn_gguf_value list;
    size_t length;
    for (int i = 0; i < 2; i++) {
        snprintf(key, sizeof(key), WIDENED "%s", tarn_dtype_name(dtypes[i]));
        for (int64_t k = 0; tarn_gguf_has(file, key, &list) && k < list.count; k++) {
            const char *text = tarn_gguf_string_at(file, key, k, &length);
            if (!text)
                return false;
            if (length == strlen(name) && memcmp(text, name, length) == 0)
                *dtype = dtypes[i];
        }
    }
    return true;
}

/* Quantized tensors become f32: safetensors files know no quantized types. A tensor that was widened for GGUF gets
 * its old dtype back. */
static bool add_to_folder(tarn__conversion *c, const tarn_gguf *file, int index)
{
    char name[TARN__GGUF_NAME_CAPACITY];
    tarn_gguf_entry e;
    if (!tarn_gguf_info(file, index, &e) || tarn__gguf_is_derived(e.name))
        return !tarn_failed();
    if (!tarn__gguf_folder_name_of(c->arch, e.name, name))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has an unknown tensor '%.200s'; a %s has none of that name",
                           c->function, c->from, e.name, c->config.arch);
    tarn__iquant iquant = tarn__gguf_iquant(file, index);
    if (e.dtype == TARN_DTYPE_COUNT && !iquant)
        return tarn__convert_unknown(c, e.name, e.dtype_name);
    tarn__weight_rows one = {.function = c->function,
                             .path = c->from,
                             .name = e.name,
                             .elements = tarn__gguf_elements(file, index),
                             .shape = e.shape,
                             .from = e.dtype,
                             .to = iquant || tarn__is_quantized(e.dtype) ? TARN_F32 : e.dtype,
                             .iquant = iquant};
    return (e.dtype != TARN_F32 || original_dtype(file, e.name, &one.to)) &&
           tarn__gguf_set_layout(&c->config, e.name, e.name, false, &one) && tarn__convert_add_as(c, name, &one);
}

/* Every tensor is converted while it is written: one is in memory at a time. */
static bool write_weights(tarn__conversion *c, const tarn_gguf *file, const char *where)
{
    tarn_safetensors_writer *writer = tarn_safetensors_create(where);
    bool good =
        writer && tarn_safetensors_add_metadata(writer, "format", "pt") && tarn_safetensors_add_checksums(writer);
    for (int i = 0; good && i < tarn_gguf_count(file); i++)
        good = add_to_folder(c, file, i);
    good = good && tarn__convert_check_names(c, true);
    for (int i = 0; good && i < c->jobs; i++) {
        tarn__convert_job *job = &c->job[i];
        job->rows.name = job->name;
        good =
            tarn__safetensors_add_streamed(writer, job->name, job->rows.to, job->rows.shape, tarn__convert_write, job);
    }
    if (good)
        return tarn_safetensors_finish(writer);
    tarn_safetensors_cancel(writer);
    return false;
}

static bool write_config(const tarn__conversion *c, const char *where)
{
    tarn__json_file *document = tarn__json_file_new(c->function);
    bool good = document && tarn__model_write_config(&c->config, document) && tarn__json_file_save(document, where);
    tarn__json_file_free(document);
    return good;
}

/* config.json comes last: a folder without one is no model, so what was cut off half-way is not taken for one. */
static bool write_folder(tarn__conversion *c, const tarn_gguf *file)
{
    tarn_gguf_entry embedding = {0};
    tarn__model_path where, weights;
    int tokens = tarn_gguf_find(file, "token_embd.weight");
    if (!tarn__model_path_in(c->function, c->to, "config.json", &where) ||
        !tarn__model_path_in(c->function, c->to, "model.safetensors", &weights) ||
        (tokens >= 0 && !tarn_gguf_info(file, tokens, &embedding)))
        return false;
    bool is_16_bit = embedding.dtype == TARN_F16 || embedding.dtype == TARN_BF16;
    if (!tarn__model_get_gguf(c->function, file, is_16_bit ? embedding.dtype : TARN_F32, &c->config))
        return false;
    c->arch = tarn__arch_of_config(&c->config);
    return write_weights(c, file, weights.text) && tarn__convert_get_tokenizer(c, file) && write_config(c, where.text);
}

bool tarn__convert_to_hf(tarn__conversion *c)
{
    tarn_gguf *file = tarn_gguf_open(c->from);
    if (!file)
        return false;
    bool good = write_folder(c, file);
    tarn_gguf_close(file);
    return good;
}
