/* dropout.c: elements zeroed at random while the network is trained, and left alone otherwise. */
#include "nn/module.h"

static tarn_tensor *forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    return module->training ? tarn_dropout(x, *(const double *)ctx) : x;
}

tarn_module *tarn_dropout_layer(double p)
{
    if (tarn_failed())
        return NULL;
    if (!(p >= 0 && p <= 1)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "dropout_layer: probability %g is outside 0 to 1", p);
        return NULL;
    }
    return tarn__module_new_with("dropout_layer", "dropout", forward, &p, sizeof(p));
}
