/* mode.c: going through the modules of a tree, and whether they are being trained. */
#include "nn/module.h"

#include <string.h>

#include "base/memory.h"

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

/* `above` is how much of a path from the root lies above the module where the visit began. */
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
