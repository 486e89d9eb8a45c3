/* norm.c: layers that normalize each sample by itself: LayerNorm, RMSNorm, GroupNorm.
 *
 * Also the checks and the affine parameters that batchnorm.c shares. An epsilon of 0 means the layer's default: 1e-5,
 * or 1e-6 for RMSNorm as in Llama. */
#include <math.h>
#include <string.h>

#include "nn/module.h"

typedef struct settings {
    double epsilon;
    int64_t groups; /* of GroupNorm */
} settings;

/* Forward functions: tarn__module_own() gives NULL for parameters that .no_affine or .no_bias left out. */
static tarn_tensor *layernorm(tarn_module *module, tarn_tensor *x, void *ctx)
{
    return tarn_layernorm(x, tarn__module_own(module, "weight"), tarn__module_own(module, "bias"),
                          ((settings *)ctx)->epsilon);
}

static tarn_tensor *rmsnorm(tarn_module *module, tarn_tensor *x, void *ctx)
{
    return tarn_rmsnorm(x, tarn__module_own(module, "weight"), ((settings *)ctx)->epsilon);
}

static tarn_tensor *groupnorm(tarn_module *module, tarn_tensor *x, void *ctx)
{
    const settings *s = ctx;
    return tarn_groupnorm(x, s->groups, tarn__module_own(module, "weight"), tarn__module_own(module, "bias"),
                          s->epsilon);
}

bool tarn__check_norm(const char *function, int64_t size, const tarn_norm_options *options)
{
    if (tarn_failed())
        return false;
    if (size < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: %lld features; must be at least 1", function, (long long)size);
    if (!(options->epsilon >= 0) || !isfinite(options->epsilon))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .epsilon is %g; must be a finite number, at least 0", function,
                           options->epsilon);
    return tarn__check_parameter_dtype(function, options->dtype);
}

/* The identity at first: weight 1, bias 0. */
bool tarn__add_affine(tarn_module *module, int64_t size, tarn_device device, const tarn_norm_options *options)
{
    return options->no_affine ||
           (tarn_module_add_parameter(module, "weight", tarn_ones(TARN_SHAPE(size), options->dtype, device)) &&
            (options->no_bias ||
             tarn_module_add_parameter(module, "bias", tarn_zeros(TARN_SHAPE(size), options->dtype, device))));
}

/* `epsilon` is the default of the kind. */
static tarn_module *create(const char *function, const char *kind, tarn_forward_fn forward, int64_t size,
                           tarn_device device, const tarn_norm_options *options, double epsilon, int64_t groups)
{
    if (!tarn__check_norm(function, size, options))
        return NULL;
    settings s = {options->epsilon > 0 ? options->epsilon : epsilon, groups};
    tarn_module *module = tarn__module_new_with(function, kind, forward, &s, sizeof(s));
    if (module && tarn__add_affine(module, size, device, options))
        return module;
    tarn__raise_within(function);
    tarn_module_free(module);
    return NULL;
}

tarn_module *tarn_layernorm_layer_with_sized(int64_t size, tarn_device device, const tarn_norm_options *options,
                                             size_t options_size)
{
    tarn_norm_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    return create("layernorm_layer", "layernorm", layernorm, size, device, &chosen, 1e-5, 0);
}

tarn_module *tarn_rmsnorm_layer_with_sized(int64_t size, tarn_device device, const tarn_norm_options *options,
                                           size_t options_size)
{
    tarn_norm_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    chosen.no_bias = true; /* rmsnorm has no shift */
    return create("rmsnorm_layer", "rmsnorm", rmsnorm, size, device, &chosen, 1e-6, 0);
}

/* Groups must divide the channels: each has channels / groups of them. */
tarn_module *tarn_groupnorm_layer_with_sized(int64_t groups, int64_t channels, tarn_device device,
                                             const tarn_norm_options *options, size_t options_size)
{
    tarn_norm_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed())
        return NULL;
    if (groups < 1 || channels % groups) {
        tarn__raise(TARN_ERROR_SHAPE, "groupnorm_layer: %lld groups do not divide %lld channels", (long long)groups,
                    (long long)channels);
        return NULL;
    }
    return create("groupnorm_layer", "groupnorm", groupnorm, channels, device, &chosen, 1e-5, groups);
}

tarn_module *tarn_groupnorm_layer(int64_t groups, int64_t channels, tarn_device device)
{
    return tarn_groupnorm_layer_with(groups, channels, device, NULL);
}

tarn_module *tarn_layernorm_layer(int64_t size, tarn_device device)
{
    return tarn_layernorm_layer_with(size, device, NULL);
}

tarn_module *tarn_rmsnorm_layer(int64_t size, tarn_device device)
{
    return tarn_rmsnorm_layer_with(size, device, NULL);
}
