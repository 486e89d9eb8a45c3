/* parameters.c: the parameters of a tree of modules: counting, finding, moving and freezing them. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "core/launch.h"
#include "nn/module.h"

/* ---- listing --------------------------------------------------------------------------------------------------------------- */

typedef struct walk {
    const tarn_module *top;
    tarn__visit_fn visit;
    void *ctx;
} walk;

static bool walk_from(const walk *w, const tarn_module *module)
{
    for (int i = 0; i < module->parameters; i++) {
        const tarn__parameter *parameter = &module->parameter[i];
        if (tarn__module_first(w->top, parameter->tensor) == parameter && !w->visit(parameter, w->ctx))
            return false;
    }
    for (int i = 0; i < module->children; i++)
        if (!walk_from(w, module->child[i]))
            return false;
    return true;
}

void tarn__module_walk(const tarn_module *module, tarn__visit_fn visit, void *ctx)
{
    walk_from(&(walk){module, visit, ctx}, module);
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

int tarn_module_parameter_count(const tarn_module *module)
{
    int count = 0;
    if (!tarn__check_module("module_parameter_count", module))
        return -1;
    tarn__module_walk(module, count_one, &count);
    return count;
}

int64_t tarn_module_element_count(const tarn_module *module)
{
    int64_t count = 0;
    if (!tarn__check_module("module_element_count", module))
        return -1;
    tarn__module_walk(module, count_elements, &count);
    return count;
}

static bool put_in_list(const tarn__parameter *parameter, void *list)
{
    tarn__tensors *tensors = list;
    tensors->tensor[tensors->count++] = parameter->tensor;
    return true;
}

bool tarn__module_tensors(const tarn_module *module, tarn__tensors *list)
{
    int count = tarn_module_parameter_count(module);
    *list = (tarn__tensors){tarn__alloc(sizeof(tarn_tensor *) * (size_t)count), 0};
    if (!list->tensor)
        return false;
    tarn__module_walk(module, put_in_list, list);
    return true;
}

void tarn__tensors_release(tarn__tensors *list)
{
    tarn__release(list->tensor, sizeof(tarn_tensor *) * (size_t)list->count);
}

/* ---- by number and by name ------------------------------------------------------------------------------------------------- */

typedef struct pick {
    int left; /* parameters to pass over */
    const tarn__parameter *found;
} pick;

static bool pick_number(const tarn__parameter *parameter, void *ctx)
{
    pick *p = ctx;
    if (p->left-- == 0)
        p->found = parameter;
    return !p->found;
}

static const tarn__parameter *by_number(const char *function, const tarn_module *module, int index)
{
    if (!tarn__check_module(function, module))
        return NULL;
    pick p = {index, NULL};
    if (index >= 0)
        tarn__module_walk(module, pick_number, &p);
    if (!p.found)
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: there is no parameter %d; the module has %d", function, index,
                    tarn_module_parameter_count(module));
    return p.found;
}

tarn_tensor *tarn_module_parameter(const tarn_module *module, int index)
{
    const tarn__parameter *parameter = by_number("module_parameter", module, index);
    return parameter ? parameter->tensor : NULL;
}

/* A parameter's name as seen from `module`: its path without what lies above the module. */
static const char *name_from(const tarn_module *module, const tarn__parameter *parameter)
{
    size_t above = 0;
    for (; module->parent; module = module->parent)
        above += strlen(module->name) + 1;
    return parameter->path + above;
}

const char *tarn_module_parameter_name(const tarn_module *module, int index)
{
    const tarn__parameter *parameter = by_number("module_parameter_name", module, index);
    return parameter ? name_from(module, parameter) : NULL;
}

#define NEAR 3      /* names that an error lists */
#define COMPARED 95 /* characters of a name that count */

/* How many letters must be put in, taken out or changed to make one text of the other. */
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

typedef struct search {
    const tarn_module *module;
    const char *name;
    tarn_tensor *found;
    const char *near[NEAR]; /* the nearest first */
    int edits[NEAR];
    int count;
} search;

static bool look_at(const tarn__parameter *parameter, void *ctx)
{
    search *s = ctx;
    const char *name = name_from(s->module, parameter);
    if (strcmp(name, s->name) == 0) {
        s->found = parameter->tensor;
        return false;
    }
    int edits = edits_between(s->name, name), at = s->count < NEAR ? s->count++ : NEAR;
    for (; at > 0 && edits < s->edits[at - 1]; at--)
        if (at < NEAR) {
            s->near[at] = s->near[at - 1];
            s->edits[at] = s->edits[at - 1];
        }
    if (at < NEAR) {
        s->near[at] = name;
        s->edits[at] = edits;
    }
    return true;
}

tarn_tensor *tarn_module_find(const tarn_module *module, const char *name)
{
    if (!tarn__check_module("module_find", module))
        return NULL;
    if (!name) {
        tarn__raise(TARN_ERROR_ARGUMENT, "module_find: the name is NULL");
        return NULL;
    }
    search s = {.module = module, .name = name};
    tarn__module_walk(module, look_at, &s);
    if (s.found)
        return s.found;
    char near[NEAR * (COMPARED + 5)] = "";
    for (int i = 0; i < s.count; i++)
        snprintf(near + strlen(near), sizeof(near) - strlen(near), "%s'%.*s'", i ? ", " : "", COMPARED, s.near[i]);
    tarn__raise(TARN_ERROR_ARGUMENT, "module_find: there is no parameter '%s'; %s%s", name,
                s.count ? "the nearest names are " : "the module has no parameters", near);
    return NULL;
}

/* ---- moving ---------------------------------------------------------------------------------------------------------------- */

/* A copy of `tensor` on another device, in the open scope. */
static tarn_tensor *copy_on(tarn_tensor *tensor, tarn_device device)
{
    tarn_tensor *copy = tarn__tensor_new("module_to", tarn__shape_of(tensor), tensor->view.dtype, device);
    return copy && tarn__copy_elements("module_to", copy, tensor) ? copy : NULL;
}

static void move_into(tarn_tensor *tensor, const tarn_tensor *copy)
{
    tarn__storage_hold(copy->storage);
    copy->storage->version = tensor->storage->version;
    tarn__tensor_rehouse(tensor, copy->storage);
    tarn__storage_set_name(tensor->storage, tensor->name);
}

static bool is_to_move(const tarn_tensor *tensor, tarn_device device)
{
    return !tensor->trainer && !tarn__same_device(tarn__device(tensor), device);
}

/* First everything that can fail, then the moves. */
static bool move_all(const tarn__tensors *list, tarn_tensor **copy, tarn_device device)
{
    for (int i = 0; i < list->count; i++) {
        tarn_tensor *tensor = list->tensor[i];
        if (!is_to_move(tensor, device))
            continue;
        copy[2 * i] = copy_on(tensor, device);
        copy[2 * i + 1] = copy[2 * i] && tensor->grad_is_set ? copy_on(tensor->grad, device) : NULL;
        if (!copy[2 * i] || (tensor->grad_is_set && !copy[2 * i + 1]))
            return false;
    }
    for (int i = 0; i < list->count; i++) {
        tarn__trainer *trainer = list->tensor[i]->trainer;
        if (trainer && !tarn__same_device(tarn__device(list->tensor[i]), device) && !trainer->move(trainer, list, device))
            return false;
    }
    for (int i = 0; i < list->count; i++) {
        tarn_tensor *tensor = list->tensor[i];
        if (!copy[2 * i])
            continue;
        move_into(tensor, copy[2 * i]);
        if (copy[2 * i + 1]) {
            move_into(tensor->grad, copy[2 * i + 1]);
        } else {
            tarn__drop(tensor->grad);
            tensor->grad = NULL;
        }
    }
    return true;
}

bool tarn_module_to(tarn_module *module, tarn_device device)
{
    tarn__tensors list;
    if (tarn_failed() || !tarn__check_module("module_to", module) || !tarn__backend_of(device, "module_to") ||
        !tarn__module_tensors(module, &list))
        return false;
    size_t bytes = sizeof(tarn_tensor *) * 2 * (size_t)list.count;
    tarn_tensor **copy = tarn__alloc(bytes);
    tarn_scope *scope = copy ? tarn_scope_open() : NULL;
    bool good = scope && move_all(&list, copy, device);
    tarn_scope_close(scope);
    tarn__release(copy, bytes);
    tarn__tensors_release(&list);
    return good;
}

/* ---- freezing -------------------------------------------------------------------------------------------------------------- */

static bool find_trained(const tarn__parameter *parameter, void *ctx)
{
    const tarn__parameter **found = ctx;
    if (parameter->tensor->trainer)
        *found = parameter;
    return !*found;
}

static bool set_frozen(const tarn__parameter *parameter, void *frozen)
{
    parameter->tensor->requires_grad = !*(bool *)frozen;
    if (*(bool *)frozen)
        parameter->tensor->grad_is_set = false;
    return true;
}

bool tarn_module_freeze(tarn_module *module, bool frozen)
{
    if (tarn_failed() || !tarn__check_module("module_freeze", module))
        return false;
    const tarn__parameter *trained = NULL;
    if (frozen)
        tarn__module_walk(module, find_trained, &trained);
    if (trained)
        return tarn__raise(TARN_ERROR_ARGUMENT, "module_freeze: '%s' is trained by an optimizer; freeze before making it, or free it first",
                           trained->path);
    tarn__module_walk(module, set_frozen, &frozen);
    return true;
}
