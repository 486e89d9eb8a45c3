/* gguf_names.c: what the tensors of a model are called in GGUF files and in folders, and how they lie in each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "models/gguf/gguf_arch.h"

/* The rest of a text that begins so; NULL: it does not. */
static const char *behind(const char *text, const char *beginning)
{
    size_t length = strlen(beginning);
    return strncmp(text, beginning, length) == 0 ? text + length : NULL;
}

/* "12.rest" → 12 and "rest"; NULL: no number of a layer. */
static const char *layer_of(const char *text, int *layer)
{
    char *end;
    if (text[0] < '0' || text[0] > '9' || (text[0] == '0' && text[1] != '.'))
        return NULL;
    long number = strtol(text, &end, 10);
    *layer = (int)number;
    return number < 100000 && *end == '.' ? end + 1 : NULL;
}

/* ---- where a name belongs ---------------------------------------------------------------------------------------- */

typedef struct found {
    const tarn__gguf_tensor_name *place; /* NULL: nowhere */
    int layer;                           /* -1: outside of blocks */
    const char *last;                    /* "weight" or "bias" */
} found;

static bool find_in(const tarn__gguf_tensor_name *places, const char *name, bool in_folder, found *f)
{
    for (f->place = places; f->place->folder; f->place++) {
        f->last = behind(name, in_folder ? f->place->folder : f->place->gguf);
        if (f->last && (strcmp(f->last, "weight") == 0 || strcmp(f->last, "bias") == 0))
            return true;
    }
    f->place = NULL;
    return false;
}

/* A whole name. */
static found find_whole(const tarn__gguf_arch *kind, const char *name, bool in_folder)
{
    found f = {.layer = -1};
    if (find_in(kind->tops, name, in_folder, &f))
        return f;
    const char *inside = behind(name, in_folder ? kind->block : "blk."),
               *rest = inside ? layer_of(inside, &f.layer) : NULL;
    if (rest)
        find_in(kind->parts, rest, in_folder, &f);
    return f;
}

/* The same of a name that may lack its beginning. */
static found find(const tarn__gguf_arch *kind, const char *name, bool in_folder)
{
    char whole[TARN__GGUF_NAME_CAPACITY];
    found f = find_whole(kind, name, in_folder);
    if (f.place || !in_folder || !kind->body ||
        snprintf(whole, sizeof(whole), "%s%s", kind->body, name) >= (int)sizeof(whole))
        return f;
    f = find_whole(kind, whole, true);
    if (f.place)
        f.last = strrchr(name, '.') + 1;
    return f;
}

/* ---- what can be asked ------------------------------------------------------------------------------------------- */

static bool write_name(const tarn__gguf_arch *kind, const found *f, bool to_gguf, char *to)
{
    if (!f->place)
        return false;
    const char *beginning = to_gguf ? f->place->gguf : f->place->folder;
    if (f->layer < 0)
        return snprintf(to, TARN__GGUF_NAME_CAPACITY, "%s%s", beginning, f->last) > 0;
    return snprintf(to, TARN__GGUF_NAME_CAPACITY, "%s%d.%s%s", to_gguf ? "blk." : kind->block, f->layer, beginning,
                    f->last) > 0;
}

bool tarn__gguf_name_of(const tarn__gguf_arch *kind, const char *folder_name, char *to)
{
    found f = find(kind, folder_name, true);
    return write_name(kind, &f, true, to);
}

bool tarn__gguf_folder_name_of(const tarn__gguf_arch *kind, const char *gguf_name, char *to)
{
    found f = find(kind, gguf_name, false);
    return write_name(kind, &f, false, to);
}

static tarn__gguf_layout layout_at(const tarn__gguf_arch *kind, const char *name, bool in_folder)
{
    found f = find(kind, name, in_folder);
    bool is_there = f.place && (f.place->layout != TARN__GGUF_TRANSPOSED || strcmp(f.last, "weight") == 0);
    return is_there ? f.place->layout : TARN__GGUF_SAME;
}

tarn__gguf_layout tarn__gguf_layout_of(const tarn__gguf_arch *kind, const char *gguf_name)
{
    return layout_at(kind, gguf_name, false);
}

tarn__gguf_layout tarn__gguf_folder_layout_of(const tarn__gguf_arch *kind, const char *folder_name)
{
    return layout_at(kind, folder_name, true);
}

bool tarn__gguf_is_derived(const tarn__gguf_arch *kind, const char *gguf_name)
{
    return kind->derived && strcmp(gguf_name, kind->derived) == 0;
}

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

/* The names of a list, with what comes before them. */
static bool visit_all(const tarn__gguf_tensor_name *places, const tarn__gguf_traits *t, const char *beginning,
                      bool (*visit)(void *ctx, const char *name), void *ctx)
{
    char name[TARN__GGUF_NAME_CAPACITY];
    for (; places->folder; places++)
        for (int is_bias = 0; is_bias < 2; is_bias++) {
            snprintf(name, sizeof(name), "%s%s%s", beginning, places->folder, is_bias ? "bias" : "weight");
            if (has(t, is_bias ? places->bias : places->weight) && !visit(ctx, name))
                return false;
        }
    return true;
}

bool tarn__gguf_each_name(const tarn__gguf_arch *kind, const tarn__gguf_traits *traits,
                          bool (*visit)(void *ctx, const char *name), void *ctx)
{
    char beginning[64];
    bool good = visit_all(kind->tops, traits, "", visit, ctx);
    for (int64_t layer = 0; good && layer < traits->layers; layer++) {
        snprintf(beginning, sizeof(beginning), "%s%lld.", kind->block, (long long)layer);
        good = visit_all(kind->parts, traits, beginning, visit, ctx);
    }
    return good;
}

/* ---- how rows lie ------------------------------------------------------------------------------------------------ */

static void transpose(tarn__weight_rows *rows)
{
    if (rows->shape.rank != 2)
        return; /* of a wrong shape, which is seen where the model's is known */
    int64_t first = rows->shape.size[0];
    rows->shape.size[0] = rows->shape.size[1];
    rows->shape.size[1] = first;
    rows->order = TARN__ROWS_TRANSPOSED;
}

bool tarn__gguf_set_layout(const tarn__gguf_arch *kind, const tarn__gguf_traits *traits, const char *gguf_name,
                           const char *name, bool to_gguf, tarn__weight_rows *rows)
{
    tarn__gguf_layout layout = tarn__gguf_layout_of(kind, gguf_name);
    int64_t heads = layout == TARN__GGUF_QUERIES ? traits->heads : layout == TARN__GGUF_KEYS ? traits->kv_heads : 0;
    int64_t count = rows->shape.rank ? rows->shape.size[0] : 1;
    rows->order = TARN__ROWS_UNCHANGED;
    if (layout == TARN__GGUF_TRANSPOSED)
        transpose(rows);
    if (!heads || !traits->has_neighbours)
        return true;
    if (count % (2 * heads))
        return tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': the %lld rows of '%.200s' are no pairs of %lld heads",
                           rows->function, rows->path, (long long)count, name, (long long)heads);
    rows->order = to_gguf ? TARN__ROWS_INTERLEAVED : TARN__ROWS_SPLIT_HALVES;
    rows->heads = heads;
    return true;
}
