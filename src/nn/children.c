/* children.c: modules put together from parts. */
#include "nn/children.h"

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
