/* conv.c: the 2-d convolution layer: weight (out, in / groups, kernel_h, kernel_w), bias (out); and pooling layers.
 *
 * ctx is a tarn_conv2d_options, ready for the operation; the layer's own options are read by the constructor alone. */
#include <math.h>
#include <string.h>

#include "nn/module.h"

/* x (N, in, H, W) to (N, out, H', W'). */
static tarn_tensor *conv2d_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    return tarn_conv2d(x, tarn__module_own(module, "weight"), tarn__module_own(module, "bias"),
                       (const tarn_conv2d_options *)ctx);
}

/* Everything that can be checked without an image; tarn_conv2d() checks the rest. 0 means the default, but for .kernel.
 */
static bool check(int64_t in, int64_t out, const tarn_conv2d_layer_options *options)
{
    const char *const names[] = {"kernel", "stride", "padding", "dilation"};
    const int64_t *const pairs[] = {options->kernel, options->stride, options->padding, options->dilation};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++)
            if (pairs[i][k] < (i == 0))
                return tarn__raise(TARN_ERROR_ARGUMENT, "conv2d_layer: .%s is [%lld, %lld]; both must be at least %d",
                                   names[i], (long long)pairs[i][0], (long long)pairs[i][1], i == 0);
    if (in < 1 || out < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "conv2d_layer: from %lld to %lld channels; both must be at least 1",
                           (long long)in, (long long)out);
    if (options->groups < 1 || in % options->groups || out % options->groups)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "conv2d_layer: %lld groups do not divide both %lld channels in and %lld out",
                           (long long)options->groups, (long long)in, (long long)out);
    return tarn__check_parameter_dtype("conv2d_layer", options->dtype);
}

/* Uniform in ±1 / sqrt(fan_in), as torch.nn.Conv2d; fan_in = in / groups · kernel_h · kernel_w. */
static bool add_parameters(tarn_module *module, int64_t in, int64_t out, tarn_device device,
                           const tarn_conv2d_layer_options *o)
{
    tarn_shape shape = TARN_SHAPE(out, in / o->groups, o->kernel[0], o->kernel[1]);
    if (!tarn__check_shape("conv2d_layer", shape, o->dtype))
        return false;
    double bound = 1 / sqrt((double)shape.size[1] * (double)o->kernel[0] * (double)o->kernel[1]);
    return tarn__add_uniform(module, "weight", shape, bound, o->dtype, device) &&
           (o->no_bias || tarn__add_uniform(module, "bias", TARN_SHAPE(out), bound, o->dtype, device));
}

tarn_module *tarn_conv2d_layer_with_sized(int64_t in, int64_t out, tarn_device device,
                                          const tarn_conv2d_layer_options *options, size_t options_size)
{
    tarn_conv2d_layer_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    chosen.groups = chosen.groups ? chosen.groups : 1;
    if (tarn_failed() || !check(in, out, &chosen))
        return NULL;
    tarn_conv2d_options s = {.groups = chosen.groups};
    memcpy(s.stride, chosen.stride, sizeof(s.stride));
    memcpy(s.padding, chosen.padding, sizeof(s.padding));
    memcpy(s.dilation, chosen.dilation, sizeof(s.dilation));
    tarn_module *module = tarn__module_new_with("conv2d_layer", "conv2d", conv2d_forward, &s, sizeof(s));
    if (module && add_parameters(module, in, out, device, &chosen))
        return module;
    tarn__raise_within("conv2d_layer");
    tarn_module_free(module);
    return NULL;
}

/* A square kernel, stride 1, no padding. */
tarn_module *tarn_conv2d_layer(int64_t in, int64_t out, int64_t kernel, tarn_device device)
{
    return tarn_conv2d_layer_with(in, out, device, &(tarn_conv2d_layer_options){.kernel = {kernel, kernel}});
}

/* ---- pooling ----------------------------------------------------------------------------------------------------- */

/* Pooling layers over images (N, C, H, W). They have no parameters; ctx is a copy of the options. */

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
