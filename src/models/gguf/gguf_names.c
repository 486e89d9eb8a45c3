/* gguf_names.c: tensor names and layouts in GGUF files and in Hugging Face folders. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "models/gguf/gguf_arch.h"

/* The rest of a string after a prefix and a dot; NULL without that prefix. */
static const char *after_prefix(const char *text, const char *beginning)
{
    size_t length = strlen(beginning);
    return strncmp(text, beginning, length) == 0 && text[length] == '.' ? text + length + 1 : NULL;
}

/* "12.rest" → 12 and "rest"; NULL if there is no layer number. */
static const char *layer_of(const char *text, int *layer)
{
    char *end;
    if (text[0] < '0' || text[0] > '9' || (text[0] == '0' && text[1] != '.'))
        return NULL;
    long number = strtol(text, &end, 10);
    *layer = (int)number;
    return number < 100000 && *end == '.' ? end + 1 : NULL;
}

/* ---- parsing names ----------------------------------------------------------------------------------------------- */

/* A name taken apart. */
typedef struct found {
    const tarn__module_name *row; /* NULL: unknown name */
    int layer;                    /* -1: outside of layers */
    const char *last;             /* "weight" or "bias" */
} found;

/* Searches a list of names. */
static bool find_in(const tarn__module_name *rows, const char *name, bool in_folder, found *f)
{
    for (f->row = rows; f->row->folder; f->row++) {
        f->last = after_prefix(name, in_folder ? f->row->folder : f->row->gguf);
        if (f->last && (strcmp(f->last, "weight") == 0 || strcmp(f->last, "bias") == 0))
            return true;
    }
    f->row = NULL;
    return false;
}

/* The head has the same name in all GGUF files, and stands beside the body in folders. */
static tarn__module_name head_row(const tarn__arch *arch)
{
    return (tarn__module_name){TARN__ROLE_HEAD, arch->names->head, "output", TARN__GGUF_SAME};
}

/* Takes the name of a tensor of the body apart: without the body's prefix in folders. */
static found find_in_body(const tarn__arch *arch, const char *name, bool in_folder)
{
    found f = {.layer = -1};
    if (find_in(arch->names->top, name, in_folder, &f))
        return f;
    const char *inside = after_prefix(name, in_folder ? arch->names->layers : "blk"),
               *rest = inside ? layer_of(inside, &f.layer) : NULL;
    if (rest)
        find_in(arch->names->layer, rest, in_folder, &f);
    return f;
}

/* The same for a full name; `head` is storage for the head's row. */
static found find(const tarn__arch *arch, const char *name, bool in_folder, tarn__module_name head[2])
{
    found f = {.layer = -1};
    head[0] = head_row(arch);
    head[1] = (tarn__module_name){0};
    if (find_in(head, name, in_folder, &f))
        return f;
    const char *inside = in_folder ? after_prefix(name, arch->names->body) : name;
    if (inside)
        f = find_in_body(arch, inside, in_folder);
    return f.row || !in_folder || !arch->names->may_lack_body ? f : find_in_body(arch, name, true);
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

/* Writes a name in the other form. */
static bool write_name(const tarn__arch *arch, const found *f, bool to_gguf, char *to)
{
    const tarn__model_names *names = arch->names;
    size_t capacity = TARN__GGUF_NAME_CAPACITY;
    if (!f->row)
        return false;
    if (f->row->role == TARN__ROLE_HEAD || (to_gguf && f->layer < 0))
        return snprintf(to, capacity, "%s.%s", to_gguf ? f->row->gguf : f->row->folder, f->last) > 0;
    if (to_gguf)
        return snprintf(to, capacity, "blk.%d.%s.%s", f->layer, f->row->gguf, f->last) > 0;
    if (f->layer < 0)
        return snprintf(to, capacity, "%s.%s.%s", names->body, f->row->folder, f->last) > 0;
    return snprintf(to, capacity, "%s.%s.%d.%s.%s", names->body, names->layers, f->layer, f->row->folder, f->last) > 0;
}

bool tarn__gguf_name_of(const tarn__arch *arch, const char *folder_name, char *to)
{
    tarn__module_name head[2];
    found f = find(arch, folder_name, true, head);
    return write_name(arch, &f, true, to);
}

bool tarn__gguf_folder_name_of(const tarn__arch *arch, const char *gguf_name, char *to)
{
    tarn__module_name head[2];
    found f = find(arch, gguf_name, false, head);
    return write_name(arch, &f, false, to);
}

static tarn__gguf_layout layout_at(const tarn__arch *arch, const char *name, bool in_folder)
{
    tarn__module_name head[2];
    found f = find(arch, name, in_folder, head);
    bool is_there = f.row && (f.row->layout != TARN__GGUF_TRANSPOSED || strcmp(f.last, "weight") == 0);
    return is_there ? f.row->layout : TARN__GGUF_SAME;
}

tarn__gguf_layout tarn__gguf_layout_of(const tarn__arch *arch, const char *gguf_name)
{
    return layout_at(arch, gguf_name, false);
}

tarn__gguf_layout tarn__gguf_folder_layout_of(const tarn__arch *arch, const char *folder_name)
{
    return layout_at(arch, folder_name, true);
}

bool tarn__gguf_is_derived(const char *gguf_name)
{
    return strcmp(gguf_name, TARN__GGUF_FREQUENCIES) == 0 || strcmp(gguf_name, TARN__GGUF_SHORT_FACTORS) == 0 ||
           strcmp(gguf_name, TARN__GGUF_LONG_FACTORS) == 0;
}

/* Visits the weight of a module under a prefix, and its bias if it has one. */
static bool visit_module(const tarn_lm_config *c, const tarn__module_name *row, const char *prefix,
                         bool (*visit)(void *ctx, const char *name), void *ctx)
{
    char name[TARN__GGUF_NAME_CAPACITY];
    bool good = true;
    for (int is_bias = 0; good && is_bias < 1 + tarn__model_has_bias(c, row->role); is_bias++) {
        snprintf(name, sizeof(name), "%s%s.%s", prefix, row->folder, is_bias ? "bias" : "weight");
        good = visit(ctx, name);
    }
    return good;
}

/* Visits the modules of a list that a model has. */
static bool visit_all(const tarn_lm_config *c, const tarn__module_name *rows, const char *prefix,
                      bool (*visit)(void *ctx, const char *name), void *ctx)
{
    bool good = true;
    for (; good && rows->folder; rows++)
        good = !tarn__model_has(c, rows->role) || visit_module(c, rows, prefix, visit, ctx);
    return good;
}

bool tarn__gguf_each_name(const tarn_lm_config *config, bool (*visit)(void *ctx, const char *name), void *ctx)
{
    char prefix[64];
    const tarn__arch *arch = tarn__arch_of_config(config);
    const tarn__model_names *names = arch->names;
    tarn__module_name head = head_row(arch);
    snprintf(prefix, sizeof(prefix), "%s.", names->body);
    bool good = visit_all(config, names->top, prefix, visit, ctx) &&
                (config->tie_embeddings || visit_module(config, &head, "", visit, ctx));
    for (int64_t layer = 0; good && layer < config->layers; layer++) {
        snprintf(prefix, sizeof(prefix), "%s.%s.%lld.", names->body, names->layers, (long long)layer);
        good = visit_all(config, names->layer, prefix, visit, ctx);
    }
    return good;
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

/* Marks a matrix as transposed. Another rank is left alone: the shape check of the model reports it. */
static void transpose(tarn__weight_rows *rows)
{
    if (rows->shape.rank != 2)
        return; /* wrong rank: reported where the model's shape is known */
    int64_t first = rows->shape.size[0];
    rows->shape.size[0] = rows->shape.size[1];
    rows->shape.size[1] = first;
    rows->order = TARN__ROWS_TRANSPOSED;
}

bool tarn__gguf_set_layout(const tarn_lm_config *config, const char *gguf_name, const char *name, bool to_gguf,
                           tarn__weight_rows *rows)
{
    const tarn__arch *arch = tarn__arch_of_config(config);
    tarn__gguf_layout layout = tarn__gguf_layout_of(arch, gguf_name);
    int64_t heads = layout == TARN__GGUF_QUERIES ? config->heads : layout == TARN__GGUF_KEYS ? config->kv_heads : 0;
    int64_t count = rows->shape.rank ? rows->shape.size[0] : 1;
    rows->order = TARN__ROWS_UNCHANGED;
    if (layout == TARN__GGUF_TRANSPOSED)
        transpose(rows);
    if (layout == TARN__GGUF_PLUS_1)
        rows->shift = to_gguf ? 1 : -1;
    if (layout == TARN__GGUF_QKV_BY_HEAD) {
        if (count % (3 * config->heads))
            return tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': the %lld rows of '%.200s' are not of %lld heads",
                               rows->function, rows->path, (long long)count, name, (long long)config->heads);
        rows->order = to_gguf ? TARN__ROWS_QKV_BLOCKS : TARN__ROWS_QKV_BY_HEAD;
        rows->heads = config->heads;
    }
    if (!heads || !arch->is_interleaved)
        return true;
    if (count % (2 * heads))
        return tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': the %lld rows of '%.200s' are not pairs of %lld heads",
                           rows->function, rows->path, (long long)count, name, (long long)heads);
    rows->order = to_gguf ? TARN__ROWS_INTERLEAVED : TARN__ROWS_SPLIT_HALVES;
    rows->heads = heads;
    return true;
}
