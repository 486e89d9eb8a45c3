/* module.c: the tree of modules: making it, adding to it, applying it and letting go of it. */
#include "nn/module.h"

#include <string.h>

#include "base/memory.h"
#include "nn/lora.h"

/* The list with room for one more element: itself, or a larger copy. NULL, with the list as it was, when there is no
 * memory. */
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

bool tarn__check_parameter_dtype(const char *function, tarn_dtype dtype)
{
    return ((unsigned)dtype < TARN_DTYPE_COUNT && tarn__is_float(dtype)) ||
           tarn__raise(TARN_ERROR_DTYPE, "%s: parameters cannot be %s; they must be of a float dtype", function,
                       tarn_dtype_name(dtype));
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

tarn_module *tarn__module_new(const char *function, const char *kind, tarn_forward_fn forward, void *ctx,
                              void (*release)(void *ctx))
{
    tarn_module *module = NULL;
    if (!tarn_failed() && kind && forward)
        module = tarn__alloc(sizeof(*module));
    else if (!kind || !forward)
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s is NULL", function, kind ? "forward function" : "kind");
    if (module && !(module->kind = tarn__string_copy(kind))) {
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
    module->training = true;
    return module;
}

tarn_module *tarn__module_new_with(const char *function, const char *kind, tarn_forward_fn forward,
                                   const void *settings, size_t bytes)
{
    tarn_module *module = tarn__module_new(function, kind, forward, NULL, NULL);
    if (!module)
        return NULL;
    module->ctx = tarn__alloc(bytes);
    if (!module->ctx) {
        tarn_module_free(module);
        return NULL;
    }
    module->settings_bytes = bytes;
    memcpy(module->ctx, settings, bytes);
    return module;
}

tarn_module *tarn_module_new(const char *kind, tarn_forward_fn forward, void *ctx, void (*release)(void *ctx))
{
    tarn_module *module = tarn__module_new("module_new", kind, forward, ctx, release);
    if (module)
        module->is_callback = true;
    return module;
}

void tarn__module_free_tree(tarn_module *module)
{
    for (int i = 0; i < module->children; i++)
        tarn__module_free_tree(module->child[i]);
    for (int i = 0; i < module->parameters; i++) {
        tarn__tensor_release(module->parameter[i].tensor);
        tarn__string_free(module->parameter[i].path);
    }
    if (module->release)
        module->release(module->ctx);
    if (module->settings_bytes)
        tarn__release(module->ctx, module->settings_bytes);
    tarn__release(module->adapter, sizeof(*module->adapter));
    tarn__release(module->child, sizeof(*module->child) * (size_t)module->child_capacity);
    tarn__release(module->parameter, sizeof(*module->parameter) * (size_t)module->parameter_capacity);
    tarn__string_free(module->name);
    tarn__string_free(module->kind);
    tarn__release(module, sizeof(*module));
}

void tarn_module_free(tarn_module *module)
{
    if (!module)
        return;
    if (module->parent)
        tarn__raise(TARN_ERROR_ARGUMENT, "module_free: the %s module is child '%s' of a %s module, which frees it",
                    module->kind, module->name, module->parent->kind);
    else
        tarn__module_free_tree(module);
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

/* What holds for parameters and buffers. */
static bool check_state(const char *function, const tarn_module *module, const char *name, const tarn_tensor *tensor)
{
    if (!tarn__check_any(function, tensor, "the tensor") || !tarn__check_module(function, module) ||
        !tarn__check_name(function, module, name))
        return false;
    if (tensor->is_constant)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' is a tarn_scalar(), a constant", function, name);
    if (tensor->origin->history)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' was made by a recorded operation; use tarn_detach() first",
                           function, name);
    return true;
}

static bool append(tarn_module *module, const char *name, tarn_tensor *tensor, bool is_buffer)
{
    tarn__parameter *list =
        with_room(module->parameter, module->parameters, &module->parameter_capacity, sizeof(*list));
    if (!list)
        return false;
    module->parameter = list;
    tarn__parameter *place = &list[module->parameters];
    place->path = tarn__path_of(module, name);
    if (!place->path)
        return false;
    place->tensor = tensor->origin;
    place->is_buffer = is_buffer;
    module->parameters++;
    if (tarn__name_tensor(module, place))
        return true;
    module->parameters--;
    tarn__string_free(place->path);
    return false;
}

/* Takes the reference that the caller gives: its scope's or a kept handle. A tensor that has neither belongs to another
 * module and is tied. Returns the tensor that the module has now. */
static tarn_tensor *take_reference(tarn_tensor *tensor, bool good)
{
    bool is_live = tensor && tensor->state == TARN__TENSOR_LIVE;
    tarn_tensor *result = is_live && good ? tensor->origin : NULL;
    if (is_live && (tensor->scope || atomic_load(&tensor->kept) > 0))
        tarn_free(tensor);
    return result;
}

tarn_tensor *tarn_module_add_parameter(tarn_module *module, const char *name, tarn_tensor *tensor)
{
    const char *function = "module_add_parameter";
    bool good = check_state(function, module, name, tensor) &&
                tarn__check_dtype(function, tensor, TARN__FLOATS | TARN__QUANTIZED, name) &&
                append(module, name, tensor, false);
    if (good) {
        tarn__tensor_retain(tensor->origin);
        tensor->origin->requires_grad = tarn__is_float(tensor->view.dtype); /* blocks stay as they are */
    }
    return take_reference(tensor, good);
}

tarn_tensor *tarn_module_add_buffer(tarn_module *module, const char *name, tarn_tensor *tensor)
{
    const char *function = "module_add_buffer";
    bool good = check_state(function, module, name, tensor);
    if (good && tensor->origin->requires_grad)
        good =
            tarn__raise(TARN_ERROR_ARGUMENT,
                        "%s: '%s' collects a gradient; a buffer has none, make it a parameter instead", function, name);
    good = good && append(module, name, tensor, true);
    if (good)
        tarn__tensor_retain(tensor->origin);
    return take_reference(tensor, good);
}

static bool append_child(tarn_module *module, const char *name, tarn_module *child)
{
    tarn_module **list = with_room(module->child, module->children, &module->child_capacity, sizeof(*list));
    if (!list)
        return false;
    module->child = list;
    child->name = tarn__string_copy(name);
    if (!child->name)
        return false;
    child->parent = module;
    list[module->children++] = child;
    if (tarn__rename_tree(child))
        return true;
    module->children--;
    child->parent = NULL;
    return false;
}

bool tarn_module_add_child(tarn_module *module, const char *name, tarn_module *child)
{
    const char *function = "module_add_child";
    if (child && child->parent) /* not the caller's to give */
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s module is child '%s' of a %s module already", function,
                           child->kind, child->name, child->parent->kind);
    if (child && module && tarn__module_root(module) == child)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a module cannot be a child of itself or of a module inside it",
                           function);
    bool good = !tarn_failed() && tarn__check_module(function, module) && tarn__check_name(function, module, name);
    if (good && !child)
        good = tarn__raise(TARN_ERROR_ARGUMENT, "%s: child '%s' is NULL", function, name);
    if (good && append_child(module, name, child))
        return true;
    tarn_module_free(child);
    return false;
}

/* ---- applying ---------------------------------------------------------------------------------------------------- */

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

static _Thread_local tarn__observer *observer;

tarn__observer *tarn__observe_forward(tarn__observer *wanted)
{
    tarn__observer *before = observer;
    observer = wanted;
    return before;
}

tarn_tensor *tarn__observe_output(tarn_module *module, tarn_tensor *y)
{
    if (observer && y)
        observer->on_output(observer, module, y);
    return y;
}

tarn_tensor *tarn_forward(tarn_module *module, tarn_tensor *x)
{
    if (!tarn__check("forward", x, "x") || !tarn__check_module("forward", module))
        return NULL;
    return tarn__observe_output(module,
                                module->is_callback ? call_back(module, x) : module->forward(module, x, module->ctx));
}
