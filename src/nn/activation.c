/* activation.c: a layer that applies one of the element-wise operations. */
#include "nn/module.h"

typedef struct activation {
    const char *name;
    tarn_tensor *(*apply)(tarn_tensor *x);
} activation;

static tarn_tensor *leaky_relu(tarn_tensor *x)
{
    return tarn_leaky_relu(x, 0.01);
}

static const activation activations[] = {
    [TARN_RELU] = {"relu", tarn_relu},          [TARN_LEAKY_RELU] = {"leaky_relu", leaky_relu},
    [TARN_GELU] = {"gelu", tarn_gelu},          [TARN_GELU_ERF] = {"gelu_erf", tarn_gelu_erf},
    [TARN_SILU] = {"silu", tarn_silu},          [TARN_TANH] = {"tanh", tarn_tanh},
    [TARN_SIGMOID] = {"sigmoid", tarn_sigmoid}, [TARN_SOFTPLUS] = {"softplus", tarn_softplus},
};

static tarn_tensor *forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module;
    const activation *row = ctx;
    return row->apply(x);
}

bool tarn__is_relu(const tarn_module *module)
{
    return module->forward == forward && module->ctx == &activations[TARN_RELU];
}

tarn_module *tarn_activation(tarn_activation_kind kind)
{
    if (tarn_failed())
        return NULL;
    if ((unsigned)kind >= sizeof(activations) / sizeof(activations[0])) {
        tarn__raise(TARN_ERROR_ARGUMENT, "activation: %d is no activation", (int)kind);
        return NULL;
    }
    const activation *row = &activations[kind];
    return tarn__module_new("activation", row->name, forward, (void *)row, NULL);
}
