/* noise.c: noise on the parameters of a model. */
#include "support/noise.h"

tarn_module *add_noise(tarn_module *model)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_seed(4);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_tensor *noise = tarn_normal(tarn_shape_of(p), 0, 0.1, tarn_dtype_of(p), tarn_device_cpu());
        tarn_copy(p, tarn_add(tarn_detach(p), tarn_to(noise, tarn_device_of(p))));
    }
    tarn_scope_close(scope);
    return model;
}
