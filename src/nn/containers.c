/* containers.c: modules built from modules: sequential, residual, and the fused relu at their ends.
 *
 * Containers own their children. A constructor takes the modules it is given, on failure too, except those that another
 * module owns already.
 *
 * relu(batchnorm(x) + residual) is one kernel. Containers look for the pattern at run time, through sequentials and
 * residuals, so that a ResNet block relu(body(x) + shortcut(x)) uses it without a module of its own. The tree stays as
 * it was built, and observers see every module once: the batchnorm then reports the output of the fused pass. */
#include <stdio.h>

#include "nn/module.h"

/* ---- sequential -------------------------------------------------------------------------------------------------- */

/* A relu after a module that ends with a batchnorm is fused with it. */
tarn_tensor *tarn__forward_at(tarn_module *module, int *i, tarn_tensor *x)
{
    tarn_module *child = module->child[*i], *next = *i + 1 < module->children ? module->child[*i + 1] : NULL;
    if (!next || !tarn__is_relu(next) || !tarn__ends_with_batchnorm(child))
        return tarn_forward(child, x);
    ++*i;
    return tarn__observe_output(next, tarn__forward_relu(child, x, NULL));
}

static tarn_tensor *sequential_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    for (int i = 0; x && i < module->children; i++)
        x = tarn__forward_at(module, &i, x);
    return x;
}

bool tarn__is_sequential(const tarn_module *module)
{
    return module->forward == sequential_forward;
}

/* Frees a module given to a constructor that fails, unless another module owns it. */
static void free_given(tarn_module *module)
{
    if (module && !module->parent)
        tarn_module_free(module);
}

/* The same for a list, in which a module may appear twice by mistake. */
static void free_all_given(tarn_module *const *modules, int count)
{
    for (int i = 0; i < count; i++) {
        bool seen = false;
        for (int k = 0; k < i && !seen; k++)
            seen = modules[k] == modules[i];
        if (!seen)
            free_given(modules[i]);
    }
}

/* All modules must be distinct and without a parent. */
static bool check_given(tarn_module *const *modules, int count)
{
    for (int i = 0; i < count; i++) {
        if (!modules[i])
            return tarn__raise(TARN_ERROR_ARGUMENT, "sequential: module %d of %d is NULL", i, count);
        if (modules[i]->parent)
            return tarn__raise(TARN_ERROR_ARGUMENT, "sequential: module %d is already a child of another module", i);
        for (int k = 0; k < i; k++)
            if (modules[k] == modules[i])
                return tarn__raise(TARN_ERROR_ARGUMENT,
                                   "sequential: modules %d and %d are the same; a module has one parent", k, i);
    }
    return true;
}

tarn_module *tarn_sequential_from(tarn_module *const *modules, int count)
{
    if (!modules || count < 0) {
        tarn__raise(TARN_ERROR_ARGUMENT, "sequential: %s", modules ? "the count is negative" : "the list is NULL");
        return NULL;
    }
    int used = count > 0 && !modules[count - 1] ? count - 1 : count; /* tarn_sequential() ends its list with NULL */
    bool good = !tarn_failed() && check_given(modules, used);
    tarn_module *module = good ? tarn__module_new("sequential", "sequential", sequential_forward, NULL, NULL) : NULL;
    if (!module) {
        free_all_given(modules, count);
        return NULL;
    }
    for (int i = 0; i < used; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%d", i);
        if (!tarn_module_add_child(module, name,
                                   modules[i])) { /* it has freed modules[i]; the module owns those before */
            free_all_given(modules + i + 1, used - i - 1);
            tarn_module_free(module);
            return NULL;
        }
    }
    return module;
}

/* ---- residual: body(x) + shortcut(x), or body(x) + x ------------------------------------------------------------- */

enum { BODY, SHORTCUT }; /* its children */

static tarn_tensor *residual_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    tarn_tensor *y = tarn_forward(module->child[BODY], x);
    tarn_tensor *skip = y && module->children > SHORTCUT ? tarn_forward(module->child[SHORTCUT], x) : x;
    return y && skip ? tarn_add(y, skip) : NULL;
}

bool tarn__is_residual(const tarn_module *module)
{
    return module->forward == residual_forward;
}

tarn_module *tarn_residual(tarn_module *body, tarn_module *shortcut)
{
    const char *problem = !body              ? "the body is NULL"
                          : body == shortcut ? "body and shortcut are the same module; a module has one parent"
                                             : NULL;
    if (!problem && (body->parent || (shortcut && shortcut->parent)))
        problem = body->parent ? "the body is already a child of another module"
                               : "the shortcut is already a child of another module";
    if (problem)
        tarn__raise(TARN_ERROR_ARGUMENT, "residual: %s", problem);
    tarn_module *module = tarn_failed() ? NULL : tarn__module_new("residual", "residual", residual_forward, NULL, NULL);
    /* tarn_module_add_child() frees the body when it fails; without a module nothing has freed it yet */
    if (!module || !tarn_module_add_child(module, "body", body)) {
        if (!module)
            free_given(body);
        if (shortcut != body)
            free_given(shortcut);
    } else if (!shortcut || tarn_module_add_child(module, "shortcut", shortcut)) {
        return module;
    }
    tarn_module_free(module);
    return NULL;
}

/* ---- the fused relu ---------------------------------------------------------------------------------------------- */

/* A residual's sum is computed last, so its body's batchnorm can take both the sum and the relu. */
bool tarn__ends_with_batchnorm(const tarn_module *module)
{
    if (tarn__is_sequential(module))
        return module->children > 0 && tarn__ends_with_batchnorm(module->child[module->children - 1]);
    return tarn__is_batchnorm(module) || (tarn__is_residual(module) && tarn__ends_with_batchnorm(module->child[BODY]));
}

/* relu(body(x) + shortcut(x)), or relu(body(x) + x). */
static tarn_tensor *residual_relu(tarn_module *module, tarn_tensor *x)
{
    tarn_tensor *skip = module->children > SHORTCUT ? tarn_forward(module->child[SHORTCUT], x) : x;
    return skip ? tarn__forward_relu(module->child[BODY], x, skip) : NULL;
}

static tarn_tensor *sequential_relu(tarn_module *module, tarn_tensor *x, tarn_tensor *residual)
{
    for (int i = 0; x && i < module->children - 1; i++)
        x = tarn__forward_at(module, &i, x);
    return x ? tarn__forward_relu(module->child[module->children - 1], x, residual) : NULL;
}

tarn_tensor *tarn__forward_relu(tarn_module *module, tarn_tensor *x, tarn_tensor *residual)
{
    if (!tarn__check("forward", x, "x"))
        return NULL;
    if (tarn__is_batchnorm(module))
        return tarn__observe_output(module, tarn__batchnorm_relu(module, x, residual));
    if (tarn__is_sequential(module) && tarn__ends_with_batchnorm(module))
        return tarn__observe_output(module, sequential_relu(module, x, residual));
    if (tarn__is_residual(module) && !residual && tarn__ends_with_batchnorm(module)) /* the kernel adds one tensor */
        return tarn__observe_output(module, residual_relu(module, x));
    tarn_tensor *y = tarn_forward(module, x);
    return y ? tarn_relu(residual ? tarn_add(y, residual) : y) : NULL;
}

/* ---- named children ---------------------------------------------------------------------------------------------- */

tarn_module *tarn__with_children(tarn_module *module, const char *const *names, tarn_module *const *children, int count)
{
    bool good = module != NULL;
    for (int i = 0; i < count; i++) {
        if (good && children[i])
            good = tarn_module_add_child(module, names[i], children[i]);
        else
            tarn_module_free(children[i]);
        good = good && children[i];
    }
    if (good)
        return module;
    tarn_module_free(module);
    return NULL;
}
