/* names.c: names of parameters, buffers and modules, and the lookup by name.
 *
 * A name is a path from the root with dots ("encoder.0.weight"). Entries hold the full path, rewritten when a tree gets
 * a new root; the name seen from an inner module is the end of that path, so no name is ever built for a lookup. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "nn/module.h"

/* The name given to tarn_module_add_parameter() or tarn_module_add_buffer(). */
static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* Linear: modules have a handful of entries. */
tarn_tensor *tarn__module_own(const tarn_module *module, const char *name)
{
    for (int i = 0; i < module->parameters; i++)
        if (strcmp(last_part(module->parameter[i].path), name) == 0)
            return module->parameter[i].tensor;
    return NULL;
}

/* Parameters, buffers and children share one namespace, since paths do. */
bool tarn__check_name(const char *function, const tarn_module *module, const char *name)
{
    if (!name || !name[0] || strchr(name, '.'))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the name %s%s%s; it must be a string without dots", function,
                           name ? "'" : "", name ? name : "is NULL",
                           name ? (name[0] ? "' contains a dot" : "' is empty") : "");
    for (int i = 0; i < module->parameters; i++)
        if (strcmp(last_part(module->parameter[i].path), name) == 0)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s module already has a %s '%s'", function, module->kind,
                               module->parameter[i].is_buffer ? "buffer" : "parameter", name);
    for (int i = 0; i < module->children; i++)
        if (strcmp(module->child[i]->name, name) == 0)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s module already has a child '%s'", function,
                               module->kind, name);
    return true;
}

/* Length of the part of a path above a module, with its dot: of "encoder.0." */
static size_t prefix_length(const tarn_module *module)
{
    size_t length = 0;
    for (; module->parent; module = module->parent)
        length += strlen(module->name) + 1;
    return length;
}

const char *tarn__name_from(const tarn_module *module, const tarn__parameter *parameter)
{
    return parameter->path + prefix_length(module);
}

/* Filled from the end, since parents are known upwards only. */
char *tarn__path_of(const tarn_module *module, const char *name)
{
    size_t at = prefix_length(module);
    char *path = tarn__alloc(at + strlen(name) + 1);
    if (!path)
        return NULL;
    memcpy(path + at, name, strlen(name));
    for (; module->parent; module = module->parent) {
        path[--at] = '.';
        at -= strlen(module->name);
        memcpy(path + at, module->name, strlen(module->name));
    }
    return path;
}

/* The tree is a few levels deep. */
const tarn_module *tarn__module_root(const tarn_module *module)
{
    while (module->parent)
        module = module->parent;
    return module;
}

/* Own entries before children: the order of every walk. */
const tarn__parameter *tarn__module_first(const tarn_module *module, const tarn_tensor *tensor)
{
    for (int i = 0; i < module->parameters; i++)
        if (module->parameter[i].tensor == tensor)
            return &module->parameter[i];
    for (int i = 0; i < module->children; i++) {
        const tarn__parameter *found = tarn__module_first(module->child[i], tensor);
        if (found)
            return found;
    }
    return NULL;
}

bool tarn__name_tensor(const tarn_module *module, const tarn__parameter *parameter)
{
    return tarn__module_first(tarn__module_root(module), parameter->tensor) != parameter ||
           tarn_set_name(parameter->tensor, parameter->path);
}

/* A failure leaves some paths of the old root; the caller then frees the tree. */
bool tarn__rename_tree(tarn_module *module)
{
    for (int i = 0; i < module->parameters; i++) {
        tarn__parameter *parameter = &module->parameter[i];
        char *path = tarn__path_of(module, last_part(parameter->path));
        if (!path)
            return false;
        tarn__string_free(parameter->path);
        parameter->path = path;
        if (!tarn__name_tensor(module, parameter))
            return false;
    }
    for (int i = 0; i < module->children; i++)
        if (!tarn__rename_tree(module->child[i]))
            return false;
    return true;
}

/* ---- lookup ------------------------------------------------------------------------------------------------------ */

#define SUGGESTIONS 3 /* names that an error lists */
#define COMPARED 95   /* characters of a name that are compared */

/* Levenshtein distance of two names, in one row of the table. */
static int edits_between(const char *a, const char *b)
{
    int row[COMPARED + 1], length = (int)strlen(b);
    length = length < COMPARED ? length : COMPARED;
    for (int j = 0; j <= length; j++)
        row[j] = j;
    for (int i = 0; a[i] && i < COMPARED; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 1; j <= length; j++) {
            int change = diagonal + (a[i] != b[j - 1]), other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = change < other ? change : other;
        }
    }
    return row[length];
}

/* A lookup: what is sought, what was found, and the closest names so far. */
typedef struct search {
    const tarn_module *module;
    const char *name;
    tarn_tensor *found;
    const char *near[SUGGESTIONS]; /* by distance, the closest first */
    int edits[SUGGESTIONS];
    int count;
} search;

/* Inserts the name into the sorted list of suggestions, unless it is the one sought. */
static bool look_at(const tarn__parameter *parameter, void *ctx)
{
    search *s = ctx;
    const char *name = tarn__name_from(s->module, parameter);
    if (strcmp(name, s->name) == 0) {
        s->found = parameter->tensor;
        return false;
    }
    int edits = edits_between(s->name, name), at = s->count < SUGGESTIONS ? s->count++ : SUGGESTIONS;
    for (; at > 0 && edits < s->edits[at - 1]; at--)
        if (at < SUGGESTIONS) {
            s->near[at] = s->near[at - 1];
            s->edits[at] = s->edits[at - 1];
        }
    if (at < SUGGESTIONS) {
        s->near[at] = name;
        s->edits[at] = edits;
    }
    return true;
}

/* The result is borrowed from the module. */
tarn_tensor *tarn_module_find(const tarn_module *module, const char *name)
{
    if (!tarn__check_module("module_find", module))
        return NULL;
    if (!name) {
        tarn__raise(TARN_ERROR_ARGUMENT, "module_find: the name is NULL");
        return NULL;
    }
    search s = {.module = module, .name = name};
    tarn__module_walk_over(module, TARN__MODULE_STATE, look_at, &s);
    if (s.found)
        return s.found;
    char near[SUGGESTIONS * (COMPARED + 5)] = "";
    for (int i = 0; i < s.count; i++)
        snprintf(near + strlen(near), sizeof(near) - strlen(near), "%s'%.*s'", i ? ", " : "", COMPARED, s.near[i]);
    tarn__raise(TARN_ERROR_ARGUMENT, "module_find: parameter or buffer '%s' not found; %s%s", name,
                s.count ? "closest names: " : "the module has no parameters", near);
    return NULL;
}
