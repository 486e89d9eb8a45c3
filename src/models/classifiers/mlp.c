/* mlp.c: multilayer perceptron: flatten, linear layers with ReLU, a linear output. */
#include <tarn/model.h>

#include "base/error.h"

/* Bounds the array of layers. */
#define MAX_HIDDEN 64

/* Raises invalid sizes. */
static bool check(int64_t inputs, const int64_t *hidden, int hidden_count, int64_t classes)
{
    if (tarn_failed())
        return false;
    if (inputs < 1 || classes < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "model_mlp: %lld inputs and %lld classes; both must be at least 1",
                           (long long)inputs, (long long)classes);
    if (hidden_count < 0 || hidden_count > MAX_HIDDEN)
        return tarn__raise(TARN_ERROR_ARGUMENT, "model_mlp: %d hidden layers; it must be from 0 to %d", hidden_count,
                           MAX_HIDDEN);
    if (hidden_count > 0 && !hidden)
        return tarn__raise(TARN_ERROR_ARGUMENT, "model_mlp: %d hidden layers, but hidden is NULL", hidden_count);
    for (int i = 0; i < hidden_count; i++)
        if (hidden[i] < 1)
            return tarn__raise(TARN_ERROR_SHAPE, "model_mlp: hidden[%d] is %lld; it must be at least 1", i,
                               (long long)hidden[i]);
    return true;
}

/* inputs, hidden[0], …, classes: hidden_count + 1 linear layers. The model belongs to the caller. */
tarn_module *tarn_model_mlp(int64_t inputs, const int64_t *hidden, int hidden_count, int64_t classes,
                            tarn_device device)
{
    tarn_module *layer[2 * MAX_HIDDEN + 2];
    int count = 0;
    if (!check(inputs, hidden, hidden_count, classes))
        return NULL;
    /* Images and vectors alike: [N, …] becomes [N, inputs]. */
    layer[count++] = tarn_flatten(1);
    for (int i = 0; i < hidden_count; i++) {
        layer[count++] = tarn_linear(i ? hidden[i - 1] : inputs, hidden[i], device);
        layer[count++] = tarn_activation(TARN_RELU);
    }
    layer[count++] = tarn_linear(hidden_count ? hidden[hidden_count - 1] : inputs, classes, device);
    tarn_module *model = tarn_sequential_from(layer, count);
    if (!model)
        tarn__raise_within("model_mlp");
    return model;
}
