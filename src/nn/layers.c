/* layers.c: the fully connected layer, y = x · weightᵀ + bias. */
#include <math.h>
#include <string.h>

#include "nn/module.h"

static tarn_tensor *forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return tarn_linear_apply(x, tarn__module_own(module, "weight"), tarn__module_own(module, "bias"));
}

static bool add(tarn_module *module, const char *name, tarn_shape shape, double bound, tarn_dtype dtype,
                tarn_device device)
{
    tarn_tensor *values = tarn_uniform(shape, -bound, bound, dtype, device);
    return values && tarn_module_add_parameter(module, name, values);
}

tarn_module *tarn_linear_with_sized(int64_t in, int64_t out, tarn_device device, const tarn_linear_options *options,
                                    size_t options_size)
{
    tarn_linear_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed())
        return NULL;
    if (in < 1 || out < 1) {
        tarn__raise(TARN_ERROR_SHAPE, "linear: from %lld to %lld features; both must be at least 1", (long long)in,
                    (long long)out);
        return NULL;
    }
    if (!tarn__check_parameter_dtype("linear", chosen.dtype))
        return NULL;
    tarn_module *module = tarn__module_new("linear", "linear", forward, NULL, NULL);
    double bound = 1 / sqrt((double)in);
    if (module && add(module, "weight", TARN_SHAPE(out, in), bound, chosen.dtype, device) &&
        (chosen.no_bias || add(module, "bias", TARN_SHAPE(out), bound, chosen.dtype, device)))
        return module;
    tarn__raise_within("linear");
    tarn_module_free(module);
    return NULL;
}

tarn_module *tarn_linear(int64_t in, int64_t out, tarn_device device)
{
    return tarn_linear_with(in, out, device, NULL);
}
