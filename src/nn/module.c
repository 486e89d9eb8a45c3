/* module.c: the tree of modules: creating, adding to, calling and freeing it, training mode, visits.
 *
 * Every function that takes a tensor or a module takes it on failure too, so that a caller can nest constructors and
 * check once at the end. */
#include "nn/module.h"

#include <string.h>

#include "base/memory.h"
#include "nn/lora.h"

/* First capacity of parameters and children: most modules have a weight and a bias, and a model has thousands of
 * modules. */
#define FIRST_CAPACITY 2

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

/* ---- creating and freeing ---------------------------------------------------------------------------------------- */

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

/* ctx is copied, so that settings may be a local of the constructor. */
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

/* A module of the caller: its forward function runs as a callback, see call_back(). */
tarn_module *tarn_module_new(const char *kind, tarn_forward_fn forward, void *ctx, void (*release)(void *ctx))
{
    tarn_module *module = tarn__module_new("module_new", kind, forward, ctx, release);
    if (module)
        module->is_callback = true;
    return module;
}

/* Children first: a parameter tied into a child is released there and here, once per reference. */
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
    tarn__adapter_free(module->adapter);
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
        tarn__raise(TARN_ERROR_ARGUMENT, "module_free: the %s module is child '%s' of a %s module, which owns it",
                    module->kind, module->name, module->parent->kind);
    else
        tarn__module_free_tree(module);
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

/* The conditions for parameters and buffers alike: a live tensor, a free name, no grad_fn. */
static bool check_state(const char *function, const tarn_module *module, const char *name, const tarn_tensor *tensor)
{
    if (!tarn__check_any(function, tensor, "the tensor") || !tarn__check_module(function, module) ||
        !tarn__check_name(function, module, name))
        return false;
    if (tensor->is_constant)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: '%s' is a tarn_scalar(), a constant; expected a tensor with storage", function, name);
    if (tensor->origin->grad_fn)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: '%s' is the output of a recorded operation; call tarn_detach() first", function, name);
    return true;
}

/* Adds an entry that borrows the tensor; the callers retain it once this has succeeded. */
static bool append(tarn_module *module, const char *name, tarn_tensor *tensor, bool is_buffer)
{
    if (!tarn__list_reserve_min(&module->parameter, module->parameters, &module->parameter_capacity,
                                sizeof(*module->parameter), FIRST_CAPACITY))
        return false;
    tarn__parameter *entry = &module->parameter[module->parameters];
    entry->path = tarn__path_of(module, name);
    if (!entry->path)
        return false;
    entry->tensor = tensor->origin;
    entry->is_buffer = is_buffer;
    module->parameters++;
    if (tarn__name_tensor(module, entry))
        return true;
    module->parameters--;
    tarn__string_free(entry->path);
    return false;
}

/* Takes over the caller's reference: the open scope's, or a handle retained by tarn_keep(). A tensor with neither
 * belongs to another module and becomes tied. Returns the tensor that the module owns now, NULL after a failure. */
static tarn_tensor *take_reference(tarn_tensor *tensor, bool good)
{
    bool is_live = tensor && tensor->state == TARN__TENSOR_LIVE;
    tarn_tensor *result = is_live && good ? tensor->origin : NULL;
    if (is_live && (tensor->scope || atomic_load(&tensor->kept) > 0))
        tarn_free(tensor);
    return result;
}

/* Floats collect gradients from here on; quantized weights are accepted, frozen. */
tarn_tensor *tarn_module_add_parameter(tarn_module *module, const char *name, tarn_tensor *tensor)
{
    const char *function = "module_add_parameter";
    bool good = check_state(function, module, name, tensor) &&
                tarn__check_dtype(function, tensor, TARN__FLOATS | TARN__QUANTIZED, name) &&
                append(module, name, tensor, false);
    if (good) {
        tarn__tensor_retain(tensor->origin);
        tensor->origin->requires_grad = tarn__is_float(tensor->view.dtype); /* quantized weights are frozen */
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
                        "%s: '%s' collects a gradient, but a buffer has none; add it as a parameter", function, name);
    good = good && append(module, name, tensor, true);
    if (good)
        tarn__tensor_retain(tensor->origin);
    return take_reference(tensor, good);
}

/* The child's paths are rewritten, since its root is now that of the module. */
static bool append_child(tarn_module *module, const char *name, tarn_module *child)
{
    if (!tarn__list_reserve_min(&module->child, module->children, &module->child_capacity, sizeof(*module->child),
                                FIRST_CAPACITY))
        return false;
    child->name = tarn__string_copy(name);
    if (!child->name)
        return false;
    child->parent = module;
    module->child[module->children++] = child;
    if (tarn__rename_tree(child))
        return true;
    module->children--;
    child->parent = NULL;
    return false;
}

/* The test for the root keeps the tree free of cycles: only a root can be added, and it must not be the module's own.
 */
bool tarn_module_add_child(tarn_module *module, const char *name, tarn_module *child)
{
    const char *function = "module_add_child";
    if (child && child->parent) /* owned by another module: not taken, not freed */
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s module is already child '%s' of a %s module", function,
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

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* A forward function of the caller runs in a scope of its own: its temporaries are freed, its result is passed out. */
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

/* Per thread: a summary or a search for non-finite values must not see the modules of other threads. */
static _Thread_local tarn__observer *observer;

tarn__observer *tarn__observe_forward(tarn__observer *next)
{
    tarn__observer *before = observer;
    observer = next;
    return before;
}

tarn_tensor *tarn__observe_output(tarn_module *module, tarn_tensor *y)
{
    if (observer && y)
        observer->on_output(observer, module, y);
    return y;
}

/* Built-in layers run in the open scope: their temporaries live until the caller closes it. */
tarn_tensor *tarn_forward(tarn_module *module, tarn_tensor *x)
{
    if (!tarn__check("forward", x, "x") || !tarn__check_module("forward", module))
        return NULL;
    return tarn__observe_output(module,
                                module->is_callback ? call_back(module, x) : module->forward(module, x, module->ctx));
}

/* ---- training mode and visits ------------------------------------------------------------------------------------ */

/* Dropout and batchnorm read the flag; containers carry it for their children. */
static void set_training(tarn_module *module, bool training)
{
    module->training = training;
    for (int i = 0; i < module->children; i++)
        set_training(module->child[i], training);
}

bool tarn_module_train(tarn_module *module, bool training)
{
    if (tarn_failed() || !tarn__check_module("module_train", module))
        return false;
    set_training(module, training);
    return true;
}

bool tarn_module_is_training(const tarn_module *module)
{
    return tarn__check_module("module_is_training", module) && module->training;
}

const char *tarn_module_kind(const tarn_module *module)
{
    return tarn__check_module("module_kind", module) ? module->kind : NULL;
}

/* Paths are built from the root; `above` is the length of the part above the module where the visit began. */
static bool visit_from(tarn_module *module, const char *path, size_t above, tarn_module_visit_fn visit, void *ctx)
{
    if (!visit(module, path, ctx))
        return false;
    for (int i = 0; i < module->children; i++) {
        char *longer = tarn__path_of(module, module->child[i]->name);
        bool more = longer && visit_from(module->child[i], longer + above, above, visit, ctx);
        tarn__string_free(longer);
        if (!more)
            return false;
    }
    return true;
}

bool tarn_module_visit(tarn_module *module, tarn_module_visit_fn visit, void *ctx)
{
    if (tarn_failed() || !tarn__check_module("module_visit", module))
        return false;
    if (!visit)
        return tarn__raise(TARN_ERROR_ARGUMENT, "module_visit: the function is NULL");
    size_t above = 0;
    for (const tarn_module *at = module; at->parent; at = at->parent)
        above += strlen(at->name) + 1;
    return visit_from(module, "", above, visit, ctx) && !tarn_failed();
}
