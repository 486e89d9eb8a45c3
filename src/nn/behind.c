/* behind.c: a sum and a relu behind a module, which are one pass with the batchnorm that the module ends with, if it
 * does: as the blocks of a ResNet, relu(body(x) + shortcut(x)), and any batchnorm with a relu behind it. Modules stay
 * what they are; whoever observes them sees each, a batchnorm with the result of that pass. */
#include "nn/module.h"

bool tarn__ends_with_batchnorm(const tarn_module *module)
{
    if (tarn__is_sequential(module))
        return module->children > 0 && tarn__ends_with_batchnorm(module->child[module->children - 1]);
    return tarn__is_batchnorm(module) || (tarn__is_residual(module) && tarn__ends_with_batchnorm(module->child[0]));
}

/* relu(body(x) + shortcut(x)), or + x. */
static tarn_tensor *residual_relu(tarn_module *module, tarn_tensor *x)
{
    tarn_tensor *past = module->children > 1 ? tarn_forward(module->child[1], x) : x;
    return past ? tarn__forward_relu(module->child[0], x, past) : NULL;
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
    if (tarn__is_residual(module) && !residual && tarn__ends_with_batchnorm(module))
        return tarn__observe_output(module, residual_relu(module, x));
    tarn_tensor *y = tarn_forward(module, x);
    return y ? tarn_relu(residual ? tarn_add(y, residual) : y) : NULL;
}
