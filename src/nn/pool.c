/* pool.c: pooling of images as layers. */
#include <string.h>

#include "nn/module.h"

static tarn_tensor *largest(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module;
    return tarn_max_pool2d(x, (const tarn_pool2d_options *)ctx);
}

static tarn_tensor *average(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module;
    return tarn_avg_pool2d(x, (const tarn_pool2d_options *)ctx);
}

static tarn_tensor *whole(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module, (void)ctx;
    return tarn_global_avg_pool2d(x);
}

/* What can be said before there is an image; the operation checks the rest. */
static tarn_module *make(const char *function, const char *kind, tarn_forward_fn forward,
                         const tarn_pool2d_options *options, size_t options_size)
{
    tarn_pool2d_options chosen = {.stride = {0}};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed())
        return NULL;
    if (!options || chosen.kernel[0] < 1 || chosen.kernel[1] < 1) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: .kernel is [%lld, %lld]; it is required, and both must be at least 1",
                    function, (long long)chosen.kernel[0], (long long)chosen.kernel[1]);
        return NULL;
    }
    for (int i = 0; i < 2; i++)
        if (chosen.stride[i] < 0 || chosen.padding[i] < 0 || chosen.dilation[i] < 0) {
            tarn__raise(TARN_ERROR_ARGUMENT, "%s: .stride, .padding and .dilation cannot be negative", function);
            return NULL;
        }
    return tarn__module_new_with(function, kind, forward, &chosen, sizeof(chosen));
}

tarn_module *tarn_max_pool2d_layer_sized(const tarn_pool2d_options *options, size_t options_size)
{
    return make("max_pool2d_layer", "max_pool2d", largest, options, options_size);
}

tarn_module *tarn_avg_pool2d_layer_sized(const tarn_pool2d_options *options, size_t options_size)
{
    return make("avg_pool2d_layer", "avg_pool2d", average, options, options_size);
}

tarn_module *tarn_global_avg_pool2d_layer(void)
{
    return tarn__module_new("global_avg_pool2d_layer", "global_avg_pool2d", whole, NULL, NULL);
}
