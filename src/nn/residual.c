/* residual.c: body(x) + shortcut(x), or + x. */
#include "nn/module.h"

enum { BODY, SHORTCUT };

static tarn_tensor *forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    tarn_tensor *y = tarn_forward(module->child[BODY], x);
    tarn_tensor *past = y && module->children > SHORTCUT ? tarn_forward(module->child[SHORTCUT], x) : x;
    return y && past ? tarn_add(y, past) : NULL;
}

bool tarn__is_residual(const tarn_module *module)
{
    return module->forward == forward;
}

/* Frees a module that was given, unless another one owns it. */
static void free_given(tarn_module *module)
{
    if (module && !module->parent)
        tarn_module_free(module);
}

tarn_module *tarn_residual(tarn_module *body, tarn_module *shortcut)
{
    const char *problem = !body              ? "the body is NULL"
                          : body == shortcut ? "body and shortcut are the same module; each can have one place"
                                             : NULL;
    if (!problem && (body->parent || (shortcut && shortcut->parent)))
        problem = body->parent ? "the body is a child of another module already"
                               : "the shortcut is a child of another module already";
    if (problem)
        tarn__raise(TARN_ERROR_ARGUMENT, "residual: %s", problem);
    tarn_module *module = tarn_failed() ? NULL : tarn__module_new("residual", "residual", forward, NULL, NULL);
    /* which has freed the body, if there was a module to add it to */
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
