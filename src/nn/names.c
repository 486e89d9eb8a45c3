/* names.c: what the parameters, buffers and modules of a tree are called: paths from the root, kept up to date as the
 * tree grows. */
#include <string.h>

#include "base/memory.h"
#include "nn/module.h"

/* The name that a parameter or buffer was added with. */
static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

tarn_tensor *tarn__module_own(const tarn_module *module, const char *name)
{
    for (int i = 0; i < module->parameters; i++)
        if (strcmp(last_part(module->parameter[i].path), name) == 0)
            return module->parameter[i].tensor;
    return NULL;
}

bool tarn__check_name(const char *function, const tarn_module *module, const char *name)
{
    if (!name || !name[0] || strchr(name, '.'))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the name %s%s%s; it must be a text without dots", function,
                           name ? "'" : "", name ? name : "is NULL",
                           name ? (name[0] ? "' holds a dot" : "' is empty") : "");
    for (int i = 0; i < module->parameters; i++)
        if (strcmp(last_part(module->parameter[i].path), name) == 0)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s module has a %s '%s' already", function, module->kind,
                               module->parameter[i].is_buffer ? "buffer" : "parameter", name);
    for (int i = 0; i < module->children; i++)
        if (strcmp(module->child[i]->name, name) == 0)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s module has a child '%s' already", function,
                               module->kind, name);
    return true;
}

/* How much of a path from the root lies above a module: "encoder.0." */
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

const tarn_module *tarn__module_root(const tarn_module *module)
{
    while (module->parent)
        module = module->parent;
    return module;
}

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
