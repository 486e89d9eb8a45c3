/* containers.c: modules one after the other. */
#include <stdio.h>

#include "nn/module.h"

/* A relu behind what ends with a batchnorm is one pass with it. */
tarn_tensor *tarn__forward_at(tarn_module *module, int *i, tarn_tensor *x)
{
    tarn_module *child = module->child[*i], *next = *i + 1 < module->children ? module->child[*i + 1] : NULL;
    if (!next || !tarn__is_relu(next) || !tarn__ends_with_batchnorm(child))
        return tarn_forward(child, x);
    ++*i;
    return tarn__observe_output(next, tarn__forward_relu(child, x, NULL));
}

static tarn_tensor *forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    for (int i = 0; x && i < module->children; i++)
        x = tarn__forward_at(module, &i, x);
    return x;
}

bool tarn__is_sequential(const tarn_module *module)
{
    return module->forward == forward;
}

/* Frees what was given, each once, except what another module owns. */
static void free_given(tarn_module *const *modules, int count)
{
    for (int i = 0; i < count; i++) {
        bool met = false;
        for (int k = 0; k < i && !met; k++)
            met = modules[k] == modules[i];
        if (!met && modules[i] && !modules[i]->parent)
            tarn_module_free(modules[i]);
    }
}

static bool check_given(tarn_module *const *modules, int count)
{
    for (int i = 0; i < count; i++) {
        if (!modules[i])
            return tarn__raise(TARN_ERROR_ARGUMENT, "sequential: module %d of %d is NULL", i, count);
        if (modules[i]->parent)
            return tarn__raise(TARN_ERROR_ARGUMENT, "sequential: module %d is a child of another module already", i);
        for (int k = 0; k < i; k++)
            if (modules[k] == modules[i])
                return tarn__raise(TARN_ERROR_ARGUMENT,
                                   "sequential: modules %d and %d are the same; each can have one place", k, i);
    }
    return true;
}

tarn_module *tarn_sequential_from(tarn_module *const *modules, int count)
{
    if (!modules || count < 0) {
        tarn__raise(TARN_ERROR_ARGUMENT, "sequential: %s", modules ? "the count is negative" : "the list is NULL");
        return NULL;
    }
    int used = count > 0 && !modules[count - 1] ? count - 1 : count;
    bool good = !tarn_failed() && check_given(modules, used);
    tarn_module *module = good ? tarn__module_new("sequential", "sequential", forward, NULL, NULL) : NULL;
    if (!module) {
        free_given(modules, count);
        return NULL;
    }
    for (int i = 0; i < used; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%d", i);
        if (!tarn_module_add_child(module, name, modules[i])) {
            free_given(modules + i + 1, used - i - 1);
            tarn_module_free(module);
            return NULL;
        }
    }
    return module;
}
