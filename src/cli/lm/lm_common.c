/* lm_common.c: options that say how a language model is opened. */
#include "cli/lm/lm_common.h"

#include <sys/stat.h>
#include <tarn/lora.h>

int tarn__lm_options(const char *command, const tarn__options *o, tarn_kv_type *kv_type)
{
    if (o->kv_type && !tarn_kv_type_parse(o->kv_type, kv_type)) {
        fprintf(stderr, "tarn %s: --kv: '%s' is none of model, f32, bf16, f16 and q8_0\n", command, o->kv_type);
        tarn_clear_error();
        return TARN__MISUSED;
    }
    if (o->gpu_layers && tarn_device_equal(o->device, tarn_device_cpu())) {
        fprintf(stderr, "tarn %s: --gpu-layers: the model runs on the CPU; name another device with --device\n",
                command);
        return TARN__MISUSED;
    }
    return TARN__DONE;
}

tarn_tokenizer *tarn__lm_tokenizer(const tarn__options *o)
{
    char path[4096];
    struct stat about;
    bool is_named = o->adapter && (size_t)snprintf(path, sizeof(path), "%s/tokenizer.json", o->adapter) < sizeof(path);
    return tarn_tokenizer_open(is_named && stat(path, &about) == 0 ? o->adapter : o->words[0]);
}

tarn_module *tarn__lm_model(const tarn__options *o, const tarn_run_weights *weights)
{
    tarn_model_open_options how = {.as_stored = o->dtype_count == 0 && !weights->quantize,
                                   .device_layers = o->gpu_layers,
                                   .quantize = weights->quantize};
    how.dtype = o->dtype_count > 0 ? o->dtypes[0].dtype : TARN_F32;
    tarn_module *model = tarn_model_open(weights->path, o->device, &how);
    if (!model && how.as_stored && tarn_error_code() == TARN_ERROR_DTYPE) {
        tarn_clear_error(); /* of several element types, of which f32 has the numbers of all but f64 */
        how.as_stored = false;
        model = tarn_model_open(weights->path, o->device, &how);
        if (model)
            fprintf(stderr, "(its weights are of several element types: it runs in f32; --dtype names another)\n");
    }
    if (!model || !o->adapter || tarn_lora_load(model, o->adapter))
        return model;
    tarn_module_free(model);
    return NULL;
}
