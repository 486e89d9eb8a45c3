/* convert_merged.c: conversion with LoRA adapters merged into the weights, to a folder or a GGUF file.
 *
 * The whole model is in memory. Weights without an adapter are copied from their source unchanged: from a GGUF file
 * to another in their own type, quantized or not. */
#include <stdio.h>
#include <string.h>
#include <tarn/safetensors.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/memory.h"
#include "formats/gguf.h"
#include "models/convert/convert.h"
#include "models/hf/weights.h"
#include "models/lora/lora.h"

#define HEAD "output.weight" /* in GGUF files of all architectures */

/* State of one conversion. */
typedef struct merger {
    tarn__conversion *c;
    tarn_gguf *file; /* source; NULL: a folder */
    tarn_module *model;
    tarn__lora_layers list; /* modules with adapters are selected; others may be saved */
} merger;

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* True if any weight of the file is quantized. */
static bool has_quantized(const tarn_gguf *file)
{
    tarn_gguf_entry e;
    for (int i = 0; i < tarn_gguf_count(file) && tarn_gguf_info(file, i, &e); i++)
        if (tarn__gguf_iquant(file, i) || (e.dtype != TARN_DTYPE_COUNT && tarn__is_quantized(e.dtype)))
            return true;
    return false;
}

/* dtype that quantized weights are dequantized to: precise enough for the type they become. */
static tarn_model_open_options open_options(const merger *m)
{
    const tarn_convert_options *o = &m->c->options;
    bool is_bf16 = !o->quantize || (!o->mixture && o->type == TARN_BF16);
    if (!m->file || !has_quantized(m->file))
        return (tarn_model_open_options){.as_stored = true};
    return (tarn_model_open_options){.dtype = is_bf16 ? TARN_BF16 : TARN_F32};
}

/* Opens the model, loads its adapters, lists them, and merges them. */
static bool open_merged(merger *m)
{
    if (tarn__ends_with(m->c->from, ".gguf") && !(m->file = tarn_gguf_open(m->c->from)))
        return false;
    tarn_model_open_options how = open_options(m);
    m->model = tarn_failed() ? NULL : tarn_model_open(m->c->from, tarn_device_cpu(), &how);
    if (!m->model)
        return false;
    tarn_model_info before, after;
    if (!tarn_model_query(m->model, &before) || !tarn_lora_load(m->model, m->c->options.adapter) ||
        !tarn__lora_list(m->c->function, m->model, &m->list) || !tarn_lora_merge(m->model))
        return false;
    m->c->config = *tarn__model_config(m->model);
    m->c->arch = tarn__arch_of_config(&m->c->config);
    return !m->file || !tarn__ends_with(m->c->to, ".gguf") ||
           (tarn_model_query(m->model, &after) && after.vocab_size == before.vocab_size) ||
           tarn__raise(TARN_ERROR_UNSUPPORTED,
                       "%s: '%s' adds tokens, and '%s' has a tokenizer without them; convert the model's folder",
                       m->c->function, m->c->options.adapter, m->c->from);
}

/* True if a tensor, by its full name, is a weight with an adapter, or belongs to a saved module. */
static bool is_changed(const merger *m, const char *name)
{
    const char *last = strrchr(name, '.');
    size_t length = last ? (size_t)(last - name) : 0;
    for (int i = 0; last && i < m->list.count; i++) {
        const tarn__lora_layer *layer = &m->list.layer[i];
        if (strlen(layer->path) == length && memcmp(layer->path, name, length) == 0)
            return layer->is_saved || ((layer->is_selected || layer->has_tokens) && strcmp(last, ".weight") == 0);
    }
    return false;
}

/* ---- to a GGUF file ---------------------------------------------------------------------------------------------- */

/* Adds a tensor of the model, which is on the CPU and contiguous. */
static bool add_tensor(const merger *m, const char *stored, const tarn_tensor *tensor, bool is_head)
{
    tarn__weight_rows rows = {.function = m->c->function,
                              .path = m->c->from,
                              .elements = tarn_data(tensor),
                              .shape = tarn__shape_of(tensor),
                              .from = tensor->view.dtype};
    if (tensor->view.dtype == TARN_F64)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: '%s': tensor '%.200s' is F64; F32, F16 and BF16 can be converted", m->c->function,
                           m->c->from, stored);
    return rows.elements && tarn__gguf_set_layout(&m->c->config, stored, stored, true, &rows) &&
           tarn__convert_add(m->c, stored, &rows, is_head);
}

/* Adds a tensor of the model under its GGUF name. */
static bool add_from_model(const tarn__parameter *parameter, void *ctx)
{
    const merger *m = ctx;
    char stored[TARN__GGUF_NAME_CAPACITY];
    const char *name = tarn__name_from(m->model, parameter);
    if (!tarn__gguf_name_of(m->c->arch, name, stored))
        return tarn__raise(TARN_ERROR_INTERNAL, "%s: '%.200s' has no name in a GGUF file", m->c->function, name);
    return add_tensor(m, stored, parameter->tensor, tarn__convert_is_head(&m->c->config, stored));
}

/* A merged weight, counted with the type and bytes of its entry in the file: it was dequantized when the model was
 * opened. */
static bool add_merged(const merger *m, const tarn_gguf_entry *e, const tarn_tensor *tensor)
{
    tarn_convert_summary *s = &m->c->summary;
    if (!add_tensor(m, e->name, tensor, false))
        return false;
    const tarn__weight_rows *rows = &m->c->job[m->c->jobs - 1].rows;
    s->before += e->bytes - tarn__bytes_of(rows->from, tarn__view_count(&tensor->view));
    s->changed += (rows->to != e->dtype) - (rows->to != rows->from);
    return true;
}

/* An entry of the source file: merged weights from the model, others unchanged. */
static bool add_from_file(const merger *m, int index)
{
    char name[TARN__GGUF_NAME_CAPACITY];
    tarn_gguf_entry e;
    if (!tarn_gguf_info(m->file, index, &e))
        return false;
    if (tarn__gguf_folder_name_of(m->c->arch, e.name, name) && is_changed(m, name))
        return add_merged(m, &e, tarn_module_find(m->model, name));
    const tarn__weight_rows rows = {.function = m->c->function,
                                    .path = m->c->from,
                                    .elements = tarn__gguf_elements(m->file, index),
                                    .shape = e.shape,
                                    .from = e.dtype,
                                    .iquant = tarn__gguf_iquant(m->file, index)};
    return tarn__convert_add(m->c, e.name, &rows, tarn__convert_is_head(&m->c->config, e.name));
}

/* From a folder all tensors come from the model; from a GGUF file its order and metadata are kept. */
static bool put_all(merger *m, tarn_gguf_writer *writer)
{
    bool good = true;
    const char *chat;
    if (!m->file) {
        tarn__module_walk_over(m->model, TARN__MODULE_STATE, add_from_model, m);
        return !tarn_failed() && tarn__convert_write_gguf(m->c, writer);
    }
    for (int i = 0; good && i < tarn_gguf_count(m->file); i++)
        good = add_from_file(m, i);
    if (good && !m->c->config.tie_embeddings && tarn_gguf_find(m->file, HEAD) < 0) /* the adapters untied them */
        good = add_tensor(m, HEAD, tarn__module_own(m->model->child[TARN__MODEL_HEAD], "weight"), true);
    return good && tarn__convert_put_chat(m->c, writer, &chat) && tarn__convert_copy_metadata(m->file, chat, writer) &&
           tarn__convert_put(m->c, writer);
}

static bool write_gguf(merger *m)
{
    tarn_gguf_writer *writer = tarn_gguf_create(m->c->to);
    if (writer && put_all(m, writer))
        return tarn_gguf_finish(writer);
    tarn_gguf_cancel(writer);
    return false;
}

/* ---- to a folder ------------------------------------------------------------------------------------------------- */

/* Copies a file atomically. */
static bool copy_file(const char *function, const char *from, const char *to)
{
    tarn__map map;
    tarn__output output;
    if (!tarn__map_open(&map, function, from))
        return false;
    bool good = tarn__output_open(&output, function, to);
    if (good && !tarn__output_write(&output, map.memory, map.bytes)) {
        tarn__output_discard(&output);
        good = false;
    }
    good = good && tarn__output_commit(&output);
    tarn__map_close(&map);
    return good;
}

#define TEMPLATES "additional_chat_templates"

/* Copies a file of the source that exists. */
static bool copy_named(const merger *m, const char *name)
{
    tarn__model_path from, to;
    if (!tarn__model_path_in(m->c->function, m->c->text, name, &from) ||
        !tarn__model_path_in(m->c->function, m->c->to, name, &to))
        return false;
    return !tarn__path_exists(from.text) || strcmp(from.text, to.text) == 0 ||
           copy_file(m->c->function, from.text, to.text);
}

/* A chat template next to the default one. False ends the visit with an error. */
static bool copy_template(const char *name, void *ctx)
{
    const merger *m = ctx;
    char path[512];
    bool is_one = tarn__ends_with(name, ".jinja") && strlen(name) < 256;
    snprintf(path, sizeof(path), TEMPLATES "/%.256s", name);
    return !is_one || copy_named(m, path);
}

static bool copy_templates(merger *m)
{
    tarn__model_path from, to;
    if (!tarn__model_path_in(m->c->function, m->c->text, TEMPLATES, &from) ||
        !tarn__model_path_in(m->c->function, m->c->to, TEMPLATES, &to) || !tarn__path_exists(from.text))
        return !tarn_failed();
    if (!tarn__path_exists(to.text) && !tarn__folder_make(m->c->function, to.text))
        return false;
    tarn__folder_names(from.text, copy_template, m);
    return !tarn_failed();
}

/* Tokenizer files and generation_config.json. */
static bool write_tokenizer(merger *m)
{
    static const char *const names[] = {
        "tokenizer.json", "tokenizer.model",   "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
        "merges.txt",     "added_tokens.json", "chat_template.jinja",   "generation_config.json",  "chat_template.json",
        "vocab.txt"};
    bool good = true;
    if (m->file && strcmp(m->c->text, m->c->from) == 0)
        return tarn__convert_get_tokenizer(m->c, m->file);
    m->c->summary.has_tokenizer = tarn__convert_has_tokenizer(m->c);
    for (size_t i = 0; good && i < sizeof(names) / sizeof(names[0]); i++)
        good = copy_named(m, names[i]);
    return good && copy_templates(m);
}

/* dtype of a tensor in the source file. */
static tarn_dtype dtype_before(const merger *m, const tarn__parameter *parameter)
{
    char stored[TARN__GGUF_NAME_CAPACITY];
    tarn_gguf_entry e = {.dtype = parameter->tensor->view.dtype};
    if (m->file && tarn__gguf_name_of(m->c->arch, tarn__name_from(m->model, parameter), stored))
        tarn_gguf_info(m->file, tarn_gguf_find(m->file, stored), &e);
    return e.dtype;
}

/* Counts a tensor for the summary. */
static bool count_one(const tarn__parameter *parameter, void *ctx)
{
    const merger *m = ctx;
    tarn_convert_summary *s = &m->c->summary;
    tarn_model_info info;
    tarn_dtype before = dtype_before(m, parameter), after = parameter->tensor->view.dtype;
    if (tarn__is_quantized(after) && tarn_model_query(m->model, &info))
        after = info.dtype; /* as tarn_model_write() dequantizes it */
    int64_t count = tarn__view_count(&parameter->tensor->view);
    s->tensors++;
    s->changed += before != after;
    s->before += tarn__bytes_of(before, count);
    s->after += tarn__bytes_of(after, count);
    return !tarn_failed();
}

static bool write_folder(merger *m)
{
    tarn__module_walk_over(m->model, TARN__MODULE_STATE, count_one, m);
    return !tarn_failed() && write_tokenizer(m) && tarn_model_write(m->model, m->c->to);
}

bool tarn__convert_merged(tarn__conversion *c)
{
    merger m = {.c = c};
    bool good = open_merged(&m) && (tarn__ends_with(c->to, ".gguf") ? write_gguf(&m) : write_folder(&m));
    tarn_module_free(m.model);
    tarn__lora_release(&m.list);
    tarn_gguf_close(m.file);
    return good;
}
