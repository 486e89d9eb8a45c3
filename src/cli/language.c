/* language.c: options that say how a language model is opened. */
#include "cli/language.h"

int tarn__language_options(const char *command, const tarn__options *o, tarn_kv *kv)
{
    if (o->kv && !tarn_kv_parse(o->kv, kv)) {
        fprintf(stderr, "tarn %s: --kv: '%s' is none of model, f32, bf16, f16 and int8\n", command, o->kv);
        tarn_clear_error();
        return TARN__MISUSED;
    }
    if (o->gpu_layers && tarn_device_equal(o->device, tarn_device_cpu())) {
        fprintf(stderr, "tarn %s: --gpu-layers: the model runs on the CPU; name another device with --device\n", command);
        return TARN__MISUSED;
    }
    return TARN__DONE;
}

tarn_module *tarn__language_model(const tarn__options *o)
{
    const tarn_model_open_options how = {.dtype = o->dtypes[0].dtype, .device_layers = o->gpu_layers};
    return tarn_model_open(o->words[0], o->device, &how);
}
