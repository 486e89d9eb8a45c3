/* gguf_names.c: tensor names and layouts in GGUF files and in Hugging Face folders. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "models/gguf/gguf_arch.h"

/* The rest of a string after a prefix; NULL without that prefix. */
static const char *after_prefix(const char *text, const char *beginning)
{
    size_t length = strlen(beginning);
    return strncmp(text, beginning, length) == 0 ? text + length : NULL;
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
    const tarn__gguf_tensor_name *row; /* NULL: unknown name */
    int layer;                         /* -1: outside of layers */
    const char *last;                  /* "weight" or "bias" */
} found;

/* Searches a list of names. */
static bool find_in(const tarn__gguf_tensor_name *rows_of_names, const char *name, bool in_folder, found *f)
{
    for (f->row = rows_of_names; f->row->folder; f->row++) {
        f->last = after_prefix(name, in_folder ? f->row->folder : f->row->gguf);
        if (f->last && (strcmp(f->last, "weight") == 0 || strcmp(f->last, "bias") == 0))
            return true;
    }
    f->row = NULL;
    return false;
}

/* Takes a full name apart. */
static found find_full(const tarn__gguf_arch *arch, const char *name, bool in_folder)
{
    found f = {.layer = -1};
    if (find_in(arch->top_names, name, in_folder, &f))
        return f;
    const char *inside = after_prefix(name, in_folder ? arch->block : "blk."),
               *rest = inside ? layer_of(inside, &f.layer) : NULL;
    if (rest)
        find_in(arch->layer_names, rest, in_folder, &f);
    return f;
}

/* The same for a name that may lack the body's prefix. */
static found find(const tarn__gguf_arch *arch, const char *name, bool in_folder)
{
    char full[TARN__GGUF_NAME_CAPACITY];
    found f = find_full(arch, name, in_folder);
    if (f.row || !in_folder || !arch->body ||
        snprintf(full, sizeof(full), "%s%s", arch->body, name) >= (int)sizeof(full))
        return f;
    f = find_full(arch, full, true);
    if (f.row)
        f.last = strrchr(name, '.') + 1;
    return f;
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

/* Writes a name in the other form. */
static bool write_name(const tarn__gguf_arch *arch, const found *f, bool to_gguf, char *to)
{
    if (!f->row)
        return false;
    const char *beginning = to_gguf ? f->row->gguf : f->row->folder;
    if (f->layer < 0)
        return snprintf(to, TARN__GGUF_NAME_CAPACITY, "%s%s", beginning, f->last) > 0;
    return snprintf(to, TARN__GGUF_NAME_CAPACITY, "%s%d.%s%s", to_gguf ? "blk." : arch->block, f->layer, beginning,
                    f->last) > 0;
}

bool tarn__gguf_name_of(const tarn__gguf_arch *arch, const char *folder_name, char *to)
{
    found f = find(arch, folder_name, true);
    return write_name(arch, &f, true, to);
}

bool tarn__gguf_folder_name_of(const tarn__gguf_arch *arch, const char *gguf_name, char *to)
{
    found f = find(arch, gguf_name, false);
    return write_name(arch, &f, false, to);
}

static tarn__gguf_layout layout_at(const tarn__gguf_arch *arch, const char *name, bool in_folder)
{
    found f = find(arch, name, in_folder);
    bool is_there = f.row && (f.row->layout != TARN__GGUF_TRANSPOSED || strcmp(f.last, "weight") == 0);
    return is_there ? f.row->layout : TARN__GGUF_SAME;
}

tarn__gguf_layout tarn__gguf_layout_of(const tarn__gguf_arch *arch, const char *gguf_name)
{
    return layout_at(arch, gguf_name, false);
}

tarn__gguf_layout tarn__gguf_folder_layout_of(const tarn__gguf_arch *arch, const char *folder_name)
{
    return layout_at(arch, folder_name, true);
}

bool tarn__gguf_is_derived(const tarn__gguf_arch *arch, const char *gguf_name)
{
    return arch->derived_tensor && strcmp(gguf_name, arch->derived_tensor) == 0;
}

/* True if a model has a tensor under that condition. */
static bool has(const tarn__gguf_traits *t, tarn__gguf_condition when)
{
    switch (when) {
    case TARN__GGUF_ALWAYS: return true;
    case TARN__GGUF_UNTIED: return !t->tie_embeddings;
    case TARN__GGUF_QKV_BIAS: return t->qkv_bias;
    case TARN__GGUF_QK_NORM: return t->qk_norm;
    default: return false;
    }
}

/* Visits the names of a list under a prefix. */
static bool visit_all(const tarn__gguf_tensor_name *rows_of_names, const tarn__gguf_traits *t, const char *beginning,
                      bool (*visit)(void *ctx, const char *name), void *ctx)
{
    char name[TARN__GGUF_NAME_CAPACITY];
    for (; rows_of_names->folder; rows_of_names++)
        for (int is_bias = 0; is_bias < 2; is_bias++) {
            snprintf(name, sizeof(name), "%s%s%s", beginning, rows_of_names->folder, is_bias ? "bias" : "weight");
            if (has(t, is_bias ? rows_of_names->bias : rows_of_names->weight) && !visit(ctx, name))
                return false;
        }
    return true;
}

bool tarn__gguf_each_name(const tarn__gguf_arch *arch, const tarn__gguf_traits *traits,
                          bool (*visit)(void *ctx, const char *name), void *ctx)
{
    char beginning[64];
    bool good = visit_all(arch->top_names, traits, "", visit, ctx);
    for (int64_t layer = 0; good && layer < traits->layers; layer++) {
        snprintf(beginning, sizeof(beginning), "%s%lld.", arch->block, (long long)layer);
        good = visit_all(arch->layer_names, traits, beginning, visit, ctx);
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

bool tarn__gguf_set_layout(const tarn__gguf_arch *arch, const tarn__gguf_traits *traits, const char *gguf_name,
                           const char *name, bool to_gguf, tarn__weight_rows *rows)
{
    tarn__gguf_layout layout = tarn__gguf_layout_of(arch, gguf_name);
    int64_t heads = layout == TARN__GGUF_QUERIES ? traits->heads : layout == TARN__GGUF_KEYS ? traits->kv_heads : 0;
    int64_t count = rows->shape.rank ? rows->shape.size[0] : 1;
    rows->order = TARN__ROWS_UNCHANGED;
    if (layout == TARN__GGUF_TRANSPOSED)
        transpose(rows);
    if (!heads || !traits->is_interleaved)
        return true;
    if (count % (2 * heads))
        return tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': the %lld rows of '%.200s' are not pairs of %lld heads",
                           rows->function, rows->path, (long long)count, name, (long long)heads);
    rows->order = to_gguf ? TARN__ROWS_INTERLEAVED : TARN__ROWS_SPLIT_HALVES;
    rows->heads = heads;
    return true;
}
