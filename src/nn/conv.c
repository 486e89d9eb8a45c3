/* conv.c: convolution layers: conv2d and conv1d with weight (out, in / groups, kernel…), conv_transpose2d with weight
 * (in, out / groups, kernel…), and bias (out).
 *
 * ctx is the options of the operation; the layer's own options are read by the constructor alone. */
#include <math.h>
#include <string.h>

#include "nn/module.h"

/* Forward functions: tarn__module_own() gives NULL for a bias that .no_bias left out. */

/* x (N, in, H, W) to (N, out, H', W'). */
static tarn_tensor *conv2d_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    return tarn_conv2d(x, tarn__module_own(module, "weight"), tarn__module_own(module, "bias"),
                       (const tarn_conv2d_options *)ctx);
}

static tarn_tensor *conv_transpose2d_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    return tarn_conv_transpose2d(x, tarn__module_own(module, "weight"), tarn__module_own(module, "bias"),
                                 (const tarn_conv_transpose2d_options *)ctx);
}

/* x (N, in, L) to (N, out, L'). */
static tarn_tensor *conv1d_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    return tarn_conv1d(x, tarn__module_own(module, "weight"), tarn__module_own(module, "bias"),
                       (const tarn_conv1d_options *)ctx);
}

/* ---- what they share --------------------------------------------------------------------------------------------- */

/* A layer before it is made. Its options are those of the transposed one, which has all of them. */
typedef struct plan {
    const char *function, *kind;
    tarn_forward_fn forward;
    int64_t in, out;
    tarn_device device;
    int axes; /* of the kernel: the last ones of each pair */
    tarn_conv_transpose2d_layer_options options;
} plan;

/* Everything that can be checked without an image; the operation checks the rest. 0 means the default, but for .kernel.
 */
static bool check(const plan *p)
{
    const tarn_conv_transpose2d_layer_options *o = &p->options;
    const char *const names[] = {"kernel", "stride", "padding", "output_padding", "dilation"};
    const int64_t *const pairs[] = {o->kernel, o->stride, o->padding, o->output_padding, o->dilation};
    for (int i = 0; i < 5; i++)
        for (int k = 2 - p->axes; k < 2; k++)
            if (pairs[i][k] < (i == 0))
                return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .%s is %lld%s; must be at least %d", p->function, names[i],
                                   (long long)pairs[i][k],
                                   p->axes == 1 ? ""
                                   : k == 0     ? " in the rows"
                                                : " in the columns",
                                   i == 0);
    if (p->in < 1 || p->out < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: from %lld to %lld channels; both must be at least 1", p->function,
                           (long long)p->in, (long long)p->out);
    if (o->groups < 1 || p->in % o->groups || p->out % o->groups)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: %lld groups do not divide both %lld channels in and %lld out",
                           p->function, (long long)o->groups, (long long)p->in, (long long)p->out);
    return tarn__check_parameter_dtype(p->function, o->dtype);
}

/* Uniform in ±1 / sqrt(fan_in) as torch's layers, where fan_in is the size of the weight behind its first axis. */
static bool add_parameters(tarn_module *module, const plan *p, bool is_transposed)
{
    const tarn_conv_transpose2d_layer_options *o = &p->options;
    tarn_shape shape = TARN_SHAPE(is_transposed ? p->in : p->out, (is_transposed ? p->out : p->in) / o->groups);
    double fan_in = (double)shape.size[1];
    for (int k = 2 - p->axes; k < 2; k++) {
        shape.size[shape.rank++] = o->kernel[k];
        fan_in *= (double)o->kernel[k];
    }
    if (!tarn__check_shape(p->function, shape, o->dtype))
        return false;
    double bound = 1 / sqrt(fan_in);
    return tarn__add_uniform(module, "weight", shape, bound, o->dtype, p->device) &&
           (o->no_bias || tarn__add_uniform(module, "bias", TARN_SHAPE(p->out), bound, o->dtype, p->device));
}

/* `settings` is the ctx of the forward function. */
static tarn_module *create(const plan *p, bool is_transposed, const void *settings, size_t size)
{
    tarn_module *module = tarn__module_new_with(p->function, p->kind, p->forward, settings, size);
    if (module && add_parameters(module, p, is_transposed))
        return module;
    tarn__raise_within(p->function);
    tarn_module_free(module);
    return NULL;
}

/* ---- conv2d ------------------------------------------------------------------------------------------------------ */

tarn_module *tarn_conv2d_layer_with_sized(int64_t in, int64_t out, tarn_device device,
                                          const tarn_conv2d_layer_options *options, size_t options_size)
{
    tarn_conv2d_layer_options o = {0};
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    tarn_conv2d_options s = {.stride = {o.stride[0], o.stride[1]},
                             .padding = {o.padding[0], o.padding[1]},
                             .dilation = {o.dilation[0], o.dilation[1]},
                             .groups = o.groups ? o.groups : 1};
    plan p = {"conv2d_layer",
              "conv2d",
              conv2d_forward,
              in,
              out,
              device,
              2,
              {.kernel = {o.kernel[0], o.kernel[1]},
               .stride = {o.stride[0], o.stride[1]},
               .padding = {o.padding[0], o.padding[1]},
               .dilation = {o.dilation[0], o.dilation[1]},
               .groups = s.groups,
               .no_bias = o.no_bias,
               .dtype = o.dtype}};
    return tarn_failed() || !check(&p) ? NULL : create(&p, false, &s, sizeof(s));
}

/* A square kernel, stride 1, no padding. */
tarn_module *tarn_conv2d_layer(int64_t in, int64_t out, int64_t kernel, tarn_device device)
{
    return tarn_conv2d_layer_with(in, out, device, &(tarn_conv2d_layer_options){.kernel = {kernel, kernel}});
}

/* ---- conv_transpose2d -------------------------------------------------------------------------------------------- */

tarn_module *tarn_conv_transpose2d_layer_with_sized(int64_t in, int64_t out, tarn_device device,
                                                    const tarn_conv_transpose2d_layer_options *options,
                                                    size_t options_size)
{
    tarn_conv_transpose2d_layer_options o = {0};
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    o.groups = o.groups ? o.groups : 1;
    tarn_conv_transpose2d_options s = {.stride = {o.stride[0], o.stride[1]},
                                       .padding = {o.padding[0], o.padding[1]},
                                       .output_padding = {o.output_padding[0], o.output_padding[1]},
                                       .dilation = {o.dilation[0], o.dilation[1]},
                                       .groups = o.groups};
    plan p = {"conv_transpose2d_layer", "conv_transpose2d", conv_transpose2d_forward, in, out, device, 2, o};
    return tarn_failed() || !check(&p) ? NULL : create(&p, true, &s, sizeof(s));
}

tarn_module *tarn_conv_transpose2d_layer(int64_t in, int64_t out, int64_t kernel, tarn_device device)
{
    return tarn_conv_transpose2d_layer_with(in, out, device,
                                            &(tarn_conv_transpose2d_layer_options){.kernel = {kernel, kernel}});
}

/* ---- conv1d ------------------------------------------------------------------------------------------------------ */

tarn_module *tarn_conv1d_layer_with_sized(int64_t in, int64_t out, tarn_device device,
                                          const tarn_conv1d_layer_options *options, size_t options_size)
{
    tarn_conv1d_layer_options o = {0};
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    tarn_conv1d_options s = {o.stride, o.padding, o.dilation, o.groups ? o.groups : 1};
    plan p = {"conv1d_layer",
              "conv1d",
              conv1d_forward,
              in,
              out,
              device,
              1,
              {.kernel = {1, o.kernel},
               .stride = {1, o.stride},
               .padding = {0, o.padding},
               .dilation = {1, o.dilation},
               .groups = s.groups,
               .no_bias = o.no_bias,
               .dtype = o.dtype}};
    return tarn_failed() || !check(&p) ? NULL : create(&p, false, &s, sizeof(s));
}

tarn_module *tarn_conv1d_layer(int64_t in, int64_t out, int64_t kernel, tarn_device device)
{
    return tarn_conv1d_layer_with(in, out, device, &(tarn_conv1d_layer_options){.kernel = kernel});
}
