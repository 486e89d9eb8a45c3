/* pool.c: layers that change the size of images (N, C, H, W): pooling and upsampling. They have no parameters; ctx is a
 * copy of the options. */
#include <string.h>

#include "nn/module.h"
#include "ops/op.h"

/* Forward functions; the module has no state. */
static tarn_tensor *max_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module;
    return tarn_max_pool2d(x, (const tarn_pool2d_options *)ctx);
}

static tarn_tensor *avg_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module;
    return tarn_avg_pool2d(x, (const tarn_pool2d_options *)ctx);
}

/* (N, C, H, W) to (N, C, 1, 1), whatever the size of the image. */
static tarn_tensor *global_avg_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module, (void)ctx;
    return tarn_global_avg_pool2d(x);
}

static tarn_tensor *upsample_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module;
    return tarn_upsample(x, (const tarn_upsample_options *)ctx);
}

/* Checks what can be checked without an image; the operation checks the rest. */
static tarn_module *create(const char *function, const char *kind, tarn_forward_fn forward,
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
    return create("max_pool2d_layer", "max_pool2d", max_forward, options, options_size);
}

tarn_module *tarn_avg_pool2d_layer_sized(const tarn_pool2d_options *options, size_t options_size)
{
    return create("avg_pool2d_layer", "avg_pool2d", avg_forward, options, options_size);
}

tarn_module *tarn_global_avg_pool2d_layer(void)
{
    return tarn__module_new("global_avg_pool2d_layer", "global_avg_pool2d", global_avg_forward, NULL, NULL);
}

tarn_module *tarn_upsample_layer_sized(const tarn_upsample_options *options, size_t options_size)
{
    tarn_upsample_options chosen = {.size = {0}};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    return !tarn_failed() && tarn__upsample_check("upsample_layer", &chosen)
               ? tarn__module_new_with("upsample_layer", "upsample", upsample_forward, &chosen, sizeof(chosen))
               : NULL;
}
