/* parameters.c: walks over the parameters and buffers of a module tree: counting, listing, freezing.
 *
 * The public functions by index walk the tree each time, so a loop over n parameters costs n² / 2 visits: a few hundred
 * parameters, and no cache that could go stale. */
#include "base/memory.h"
#include "nn/module.h"

/* ---- walks ------------------------------------------------------------------------------------------------------- */

/* What a walk visits, and from where. */
typedef struct walk {
    const tarn_module *top;
    int what;
    tarn__visit_fn visit;
    void *ctx;
} walk;

/* Depth first. An entry is skipped where its tensor has an earlier one below `top`. False: stopped by the visitor. */
static bool walk_from(const walk *w, const tarn_module *module)
{
    for (int i = 0; i < module->parameters; i++) {
        const tarn__parameter *parameter = &module->parameter[i];
        bool wanted = w->what & (parameter->is_buffer ? TARN__MODULE_BUFFERS : TARN__MODULE_PARAMETERS);
        bool seen =
            wanted && !(w->what & TARN__MODULE_ALIASES) && tarn__module_first(w->top, parameter->tensor) != parameter;
        if (wanted && !seen && !w->visit(parameter, w->ctx))
            return false;
    }
    for (int i = 0; i < module->children; i++)
        if (!walk_from(w, module->child[i]))
            return false;
    return true;
}

void tarn__module_walk_over(const tarn_module *module, int what, tarn__visit_fn visit, void *ctx)
{
    walk_from(&(walk){module, what, visit, ctx}, module);
}

void tarn__module_walk(const tarn_module *module, tarn__visit_fn visit, void *ctx)
{
    tarn__module_walk_over(module, TARN__MODULE_PARAMETERS, visit, ctx);
}

static bool count_one(const tarn__parameter *parameter, void *count)
{
    (void)parameter;
    ++*(int *)count;
    return true;
}

static bool count_elements(const tarn__parameter *parameter, void *count)
{
    *(int64_t *)count += tarn__view_count(&parameter->tensor->view);
    return true;
}

int tarn__module_count(const tarn_module *module, int what)
{
    int count = 0;
    tarn__module_walk_over(module, what, count_one, &count);
    return count;
}

int tarn_module_parameter_count(const tarn_module *module)
{
    return tarn__check_module("module_parameter_count", module) ? tarn__module_count(module, TARN__MODULE_PARAMETERS)
                                                                : -1;
}

int tarn_module_buffer_count(const tarn_module *module)
{
    return tarn__check_module("module_buffer_count", module) ? tarn__module_count(module, TARN__MODULE_BUFFERS) : -1;
}

int64_t tarn_module_element_count(const tarn_module *module)
{
    int64_t count = 0;
    if (!tarn__check_module("module_element_count", module))
        return -1;
    tarn__module_walk(module, count_elements, &count);
    return count;
}

static bool append_tensor(const tarn__parameter *parameter, void *list)
{
    tarn__tensors *tensors = list;
    tensors->tensor[tensors->count++] = parameter->tensor;
    return true;
}

/* Two walks: one to size the array, one to fill it. */
bool tarn__module_tensors_of(const tarn_module *module, int what, tarn__tensors *list)
{
    int count = tarn__module_count(module, what);
    *list = (tarn__tensors){tarn__alloc(sizeof(tarn_tensor *) * (size_t)count), 0};
    if (!list->tensor)
        return false;
    tarn__module_walk_over(module, what, append_tensor, list);
    return true;
}

bool tarn__module_tensors(const tarn_module *module, tarn__tensors *list)
{
    return tarn__module_tensors_of(module, TARN__MODULE_PARAMETERS, list);
}

void tarn__tensors_release(tarn__tensors *list)
{
    tarn__release(list->tensor, sizeof(tarn_tensor *) * (size_t)list->count);
}

/* ---- by index ---------------------------------------------------------------------------------------------------- */

typedef struct pick {
    int left; /* parameters to skip */
    const tarn__parameter *found;
} pick;

static bool pick_index(const tarn__parameter *parameter, void *ctx)
{
    pick *p = ctx;
    if (p->left-- == 0)
        p->found = parameter;
    return !p->found;
}

/* Borrowed from the module; NULL with an error. */
static const tarn__parameter *by_index(const char *function, const tarn_module *module, int what, int index)
{
    if (!tarn__check_module(function, module))
        return NULL;
    pick p = {index, NULL};
    if (index >= 0)
        tarn__module_walk_over(module, what, pick_index, &p);
    if (!p.found)
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s %d not found; the module has %d", function,
                    what == TARN__MODULE_BUFFERS ? "buffer" : "parameter", index, tarn__module_count(module, what));
    return p.found;
}

tarn_tensor *tarn_module_parameter(const tarn_module *module, int index)
{
    const tarn__parameter *parameter = by_index("module_parameter", module, TARN__MODULE_PARAMETERS, index);
    return parameter ? parameter->tensor : NULL;
}

const char *tarn_module_parameter_name(const tarn_module *module, int index)
{
    const tarn__parameter *parameter = by_index("module_parameter_name", module, TARN__MODULE_PARAMETERS, index);
    return parameter ? tarn__name_from(module, parameter) : NULL;
}

tarn_tensor *tarn_module_buffer(const tarn_module *module, int index)
{
    const tarn__parameter *buffer = by_index("module_buffer", module, TARN__MODULE_BUFFERS, index);
    return buffer ? buffer->tensor : NULL;
}

const char *tarn_module_buffer_name(const tarn_module *module, int index)
{
    const tarn__parameter *buffer = by_index("module_buffer_name", module, TARN__MODULE_BUFFERS, index);
    return buffer ? tarn__name_from(module, buffer) : NULL;
}

/* ---- freezing ---------------------------------------------------------------------------------------------------- */

static bool find_trained(const tarn__parameter *parameter, void *ctx)
{
    const tarn__parameter **found = ctx;
    if (parameter->tensor->optimizer)
        *found = parameter;
    return !*found;
}

/* A gradient that was set is discarded with freezing: the next backward pass does not replace it. */
static bool set_frozen(const tarn__parameter *parameter, void *frozen)
{
    /* quantized weights have no gradient */
    parameter->tensor->requires_grad = !*(bool *)frozen && tarn__is_float(parameter->tensor->view.dtype);
    if (*(bool *)frozen)
        parameter->tensor->grad_is_set = false;
    return true;
}

/* A trained parameter is part of a flat buffer that its optimizer steps as a whole, so freezing it is an error. */
bool tarn_module_freeze(tarn_module *module, bool frozen)
{
    if (tarn_failed() || !tarn__check_module("module_freeze", module))
        return false;
    const tarn__parameter *trained = NULL;
    if (frozen)
        tarn__module_walk(module, find_trained, &trained);
    if (trained)
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "module_freeze: '%s' is trained by an optimizer; freeze before creating it, or free it first",
            trained->path);
    tarn__module_walk(module, set_frozen, &frozen);
    return true;
}
