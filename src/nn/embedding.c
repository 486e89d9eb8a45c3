/* embedding.c: a table of rows, looked up by index. */
#include <string.h>

#include "nn/module.h"

static tarn_tensor *forward(tarn_module *module, tarn_tensor *index, void *ctx)
{
    (void)ctx;
    return tarn_embedding(tarn__module_own(module, "weight"), index);
}

tarn_module *tarn_embedding_layer_with_sized(int64_t count, int64_t size, tarn_device device,
                                             const tarn_embedding_options *options, size_t options_size)
{
    const char *function = "embedding_layer";
    tarn_embedding_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed() || !tarn__check_parameter_dtype(function, chosen.dtype))
        return NULL;
    if (count < 1 || size < 1) {
        tarn__raise(TARN_ERROR_SHAPE, "%s: %lld rows of %lld features; both must be at least 1", function,
                    (long long)count, (long long)size);
        return NULL;
    }
    tarn_module *module = tarn__module_new(function, "embedding", forward, NULL, NULL);
    tarn_tensor *values = module ? tarn_normal(TARN_SHAPE(count, size), 0, 1, chosen.dtype, device) : NULL;
    if (values && tarn_module_add_parameter(module, "weight", values))
        return module;
    tarn__raise_within(function);
    tarn_module_free(module);
    return NULL;
}

tarn_module *tarn_embedding_layer(int64_t count, int64_t size, tarn_device device)
{
    return tarn_embedding_layer_with(count, size, device, NULL);
}
