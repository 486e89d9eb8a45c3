/* module.c: the tree of modules: making it, naming what is in it, applying it and letting go of it. */
#include "nn/module.h"

#include <string.h>

#include "base/memory.h"

/* ---- small things ---------------------------------------------------------------------------------------------------------- */

static char *copy_text(const char *text)
{
    char *copy = tarn__alloc(strlen(text) + 1);
    return copy ? memcpy(copy, text, strlen(text) + 1) : NULL;
}

static void release_text(char *text)
{
    if (text)
        tarn__release(text, strlen(text) + 1);
}

/* The list with room for one more element: itself, or a larger copy. NULL, with the list as it was, when there is no memory. */
static void *with_room(void *list, int count, int *room, size_t size)
{
    if (count < *room)
        return list;
    int wider = *room ? *room * 2 : 2;
    void *grown = tarn__alloc(size * (size_t)wider);
    if (!grown)
        return NULL;
    if (count)
        memcpy(grown, list, size * (size_t)count);
    tarn__release(list, size * (size_t)*room);
    *room = wider;
    return grown;
}

bool tarn__check_module(const char *function, const tarn_module *module)
{
    return module || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the module is NULL", function);
}

/* Names become parts of paths. */
static bool check_name(const char *function, const tarn_module *module, const char *name)
{
    if (!name || !name[0] || strchr(name, '.'))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the name %s%s%s; it must be a text without dots", function, name ? "'" : "",
                           name ? name : "is NULL", name ? (name[0] ? "' holds a dot" : "' is empty") : "");
    for (int i = 0; i < module->parameters; i++) {
        const char *dot = strrchr(module->parameter[i].path, '.');
        if (strcmp(dot ? dot + 1 : module->parameter[i].path, name) == 0)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s module has a parameter '%s' already", function, module->kind, name);
    }
    for (int i = 0; i < module->children; i++)
        if (strcmp(module->child[i]->name, name) == 0)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s module has a child '%s' already", function, module->kind, name);
    return true;
}

/* ---- life ------------------------------------------------------------------------------------------------------------------ */

tarn_module *tarn__module_new(const char *function, const char *kind, tarn_forward_fn forward, void *ctx, void (*release)(void *ctx))
{
    tarn_module *module = NULL;
    if (!tarn_failed() && kind && forward)
        module = tarn__alloc(sizeof(*module));
    else if (!kind || !forward)
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s is NULL", function, kind ? "forward function" : "kind");
    if (module && !(module->kind = copy_text(kind))) {
        tarn__release(module, sizeof(*module));
        module = NULL;
    }
    if (!module) {
        if (release)
            release(ctx);
        return NULL;
    }
    module->forward = forward;
    module->ctx = ctx;
    module->release = release;
    return module;
}

tarn_module *tarn_module_new(const char *kind, tarn_forward_fn forward, void *ctx, void (*release)(void *ctx))
{
    tarn_module *module = tarn__module_new("module_new", kind, forward, ctx, release);
    if (module)
        module->is_callback = true;
    return module;
}

static void free_tree(tarn_module *module)
{
    for (int i = 0; i < module->children; i++)
        free_tree(module->child[i]);
    for (int i = 0; i < module->parameters; i++) {
        tarn__drop(module->parameter[i].tensor);
        release_text(module->parameter[i].path);
    }
    if (module->release)
        module->release(module->ctx);
    tarn__release(module->child, sizeof(*module->child) * (size_t)module->child_room);
    tarn__release(module->parameter, sizeof(*module->parameter) * (size_t)module->parameter_room);
    release_text(module->name);
    release_text(module->kind);
    tarn__release(module, sizeof(*module));
}

void tarn_module_free(tarn_module *module)
{
    if (!module)
        return;
    if (module->parent)
        tarn__raise(TARN_ERROR_ARGUMENT, "module_free: the %s module is child '%s' of a %s module, which frees it", module->kind,
                    module->name, module->parent->kind);
    else
        free_tree(module);
}

/* ---- names ----------------------------------------------------------------------------------------------------------------- */

/* How much of a path from the root lies above a module: "encoder.0." */
static size_t prefix_length(const tarn_module *module)
{
    size_t length = 0;
    for (; module->parent; module = module->parent)
        length += strlen(module->name) + 1;
    return length;
}

static char *path_of(const tarn_module *module, const char *name)
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

static const tarn_module *root_of(const tarn_module *module)
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

/* A tied tensor bears the name of its first place. */
static bool name_tensor(const tarn_module *module, const tarn__parameter *parameter)
{
    return tarn__module_first(root_of(module), parameter->tensor) != parameter || tarn_set_name(parameter->tensor, parameter->path);
}

/* A tree got a new root: all its paths become longer. */
static bool rename_tree(tarn_module *module)
{
    for (int i = 0; i < module->parameters; i++) {
        tarn__parameter *parameter = &module->parameter[i];
        const char *dot = strrchr(parameter->path, '.');
        char *path = path_of(module, dot ? dot + 1 : parameter->path);
        if (!path)
            return false;
        release_text(parameter->path);
        parameter->path = path;
        if (!name_tensor(module, parameter))
            return false;
    }
    for (int i = 0; i < module->children; i++)
        if (!rename_tree(module->child[i]))
            return false;
    return true;
}

/* ---- adding ---------------------------------------------------------------------------------------------------------------- */

static bool check_parameter(const char *function, const tarn_module *module, const char *name, const tarn_tensor *tensor)
{
    if (!tarn__check(function, tensor, "the tensor") || !tarn__check_module(function, module) || !check_name(function, module, name))
        return false;
    if (tensor->is_constant)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' is a tarn_scalar(), a constant", function, name);
    if (tensor->history)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' was made by a recorded operation; use tarn_detach() first", function, name);
    return tarn__check_dtype(function, tensor, TARN__FLOATS, name);
}

static bool append_parameter(tarn_module *module, const char *name, tarn_tensor *tensor)
{
    tarn__parameter *list = with_room(module->parameter, module->parameters, &module->parameter_room, sizeof(*list));
    if (!list)
        return false;
    module->parameter = list;
    tarn__parameter *place = &list[module->parameters];
    place->path = path_of(module, name);
    if (!place->path)
        return false;
    place->tensor = tensor;
    module->parameters++;
    if (name_tensor(module, place))
        return true;
    module->parameters--;
    release_text(place->path);
    return false;
}

tarn_tensor *tarn_module_add_parameter(tarn_module *module, const char *name, tarn_tensor *tensor)
{
    bool good = check_parameter("module_add_parameter", module, name, tensor) && append_parameter(module, name, tensor);
    if (good) {
        tarn__hold(tensor);
        tensor->requires_grad = true;
    }
    /* The reference that the caller gives: its scope's or a kept one. A tensor that has neither belongs to another module and is tied. */
    if (tensor && (tensor->scope || atomic_load(&tensor->kept) > 0))
        tarn_free(tensor);
    return good ? tensor : NULL;
}

static bool append_child(tarn_module *module, const char *name, tarn_module *child)
{
    tarn_module **list = with_room(module->child, module->children, &module->child_room, sizeof(*list));
    if (!list)
        return false;
    module->child = list;
    child->name = copy_text(name);
    if (!child->name)
        return false;
    child->parent = module;
    list[module->children++] = child;
    if (rename_tree(child))
        return true;
    module->children--;
    child->parent = NULL;
    return false;
}

bool tarn_module_add_child(tarn_module *module, const char *name, tarn_module *child)
{
    const char *function = "module_add_child";
    if (child && child->parent) /* not the caller's to give */
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s module is child '%s' of a %s module already", function, child->kind,
                           child->name, child->parent->kind);
    if (child && module && root_of(module) == child)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a module cannot be a child of itself or of a module inside it", function);
    bool good = !tarn_failed() && tarn__check_module(function, module) && check_name(function, module, name);
    if (good && !child)
        good = tarn__raise(TARN_ERROR_ARGUMENT, "%s: child '%s' is NULL", function, name);
    if (good && append_child(module, name, child))
        return true;
    tarn_module_free(child);
    return false;
}

/* ---- applying -------------------------------------------------------------------------------------------------------------- */

static tarn_tensor *call_back(tarn_module *module, tarn_tensor *x)
{
    tarn_scope *scope = tarn_scope_open();
    if (!scope)
        return NULL;
    tarn_tensor *y = module->forward(module, x, module->ctx);
    if (!y && !tarn_failed())
        tarn__raise(TARN_ERROR_ARGUMENT, "forward: the %s module returned no tensor and raised no error", module->kind);
    if (y && !tarn_failed())
        y = tarn__scope_pass_out(scope, y, NULL);
    tarn_scope_close(scope);
    return tarn_failed() ? NULL : y;
}

tarn_tensor *tarn_forward(tarn_module *module, tarn_tensor *x)
{
    if (!tarn__check("forward", x, "x") || !tarn__check_module("forward", module))
        return NULL;
    return module->is_callback ? call_back(module, x) : module->forward(module, x, module->ctx);
}
