/* layers.c: the small layers: linear, embedding, activations, dropout, flatten.
 *
 * A layer is a tarn_module whose forward function reads its parameters by name ("weight", "bias") and its settings from
 * ctx. Parameters are initialised as PyTorch's layers of the same name are. Constructors return NULL with an error; the
 * caller owns the module. */
#include <math.h>
#include <string.h>

#include "nn/module.h"

/* ---- linear: y = x · weightᵀ + bias, weight (out, in), bias (out) ------------------------------------------------ */

static tarn_tensor *linear_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return tarn_linear_apply(x, tarn__module_own(module, "weight"), tarn__module_own(module, "bias"));
}

bool tarn__add_uniform(tarn_module *module, const char *name, tarn_shape shape, double bound, tarn_dtype dtype,
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
    tarn_module *module = tarn__module_new("linear", "linear", linear_forward, NULL, NULL);
    double bound = 1 / sqrt((double)in); /* Kaiming's uniform bound with a = sqrt 5, as torch.nn.Linear */
    if (module && tarn__add_uniform(module, "weight", TARN_SHAPE(out, in), bound, chosen.dtype, device) &&
        (chosen.no_bias || tarn__add_uniform(module, "bias", TARN_SHAPE(out), bound, chosen.dtype, device)))
        return module;
    tarn__raise_within("linear");
    tarn_module_free(module);
    return NULL;
}

/* The defaults: f32, with a bias. */
tarn_module *tarn_linear(int64_t in, int64_t out, tarn_device device)
{
    return tarn_linear_with(in, out, device, NULL);
}

/* ---- embedding: rows of weight (count, size), gathered by index -------------------------------------------------- */

static tarn_tensor *embedding_forward(tarn_module *module, tarn_tensor *index, void *ctx)
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
    tarn_module *module = tarn__module_new(function, "embedding", embedding_forward, NULL, NULL);
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

/* ---- activations: one elementwise operation ---------------------------------------------------------------------- */

typedef struct activation {
    const char *name;
    tarn_tensor *(*apply)(tarn_tensor *x);
} activation;

static tarn_tensor *leaky_relu(tarn_tensor *x)
{
    return tarn_leaky_relu(x, 0.01);
}

/* Static rows: ctx of an activation points to one, and modules of one kind share it. */
static const activation activations[] = {
    [TARN_RELU] = {"relu", tarn_relu},          [TARN_LEAKY_RELU] = {"leaky_relu", leaky_relu},
    [TARN_GELU] = {"gelu", tarn_gelu},          [TARN_GELU_ERF] = {"gelu_erf", tarn_gelu_erf},
    [TARN_SILU] = {"silu", tarn_silu},          [TARN_TANH] = {"tanh", tarn_tanh},
    [TARN_SIGMOID] = {"sigmoid", tarn_sigmoid}, [TARN_SOFTPLUS] = {"softplus", tarn_softplus},
};

static tarn_tensor *activation_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module;
    const activation *row = ctx;
    return row->apply(x);
}

bool tarn__is_relu(const tarn_module *module)
{
    return module->forward == activation_forward && module->ctx == &activations[TARN_RELU];
}

tarn_module *tarn_activation(tarn_activation_kind kind)
{
    if (tarn_failed())
        return NULL;
    if ((unsigned)kind >= sizeof(activations) / sizeof(activations[0])) {
        tarn__raise(TARN_ERROR_ARGUMENT, "activation: unknown kind %d; must be from 0 to %d", (int)kind,
                    (int)(sizeof(activations) / sizeof(activations[0])) - 1);
        return NULL;
    }
    const activation *row = &activations[kind];
    return tarn__module_new("activation", row->name, activation_forward, (void *)row, NULL);
}

/* ---- dropout: zeroes elements at random in training mode, the identity in evaluation ----------------------------- */

static tarn_tensor *dropout_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    return module->training ? tarn_dropout(x, *(const double *)ctx) : x;
}

tarn_module *tarn_dropout_layer(double p)
{
    if (tarn_failed())
        return NULL;
    if (!(p >= 0 && p <= 1)) { /* written so that NaN fails */
        tarn__raise(TARN_ERROR_ARGUMENT, "dropout_layer: probability is %g; must be from 0 to 1", p);
        return NULL;
    }
    return tarn__module_new_with("dropout_layer", "dropout", dropout_forward, &p, sizeof(p));
}

/* ---- flatten: merges the axes from first_axis to the last, between convolutions and linear layers ---------------- */

static tarn_tensor *flatten_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module;
    int first = tarn__check_axis("flatten", *(const int *)ctx, x->view.rank);
    if (first < 0)
        return NULL;
    tarn_shape shape = tarn__shape_of(x);
    for (int i = first + 1; i < shape.rank; i++)
        shape.size[first] *= shape.size[i];
    shape.rank = first + 1;
    return tarn_reshape(x, shape);
}

/* The rank is unknown until forward: only an axis that no tensor has is an error here. */
tarn_module *tarn_flatten(int first_axis)
{
    if (tarn_failed())
        return NULL;
    if (first_axis < -TARN_MAX_RANK || first_axis >= TARN_MAX_RANK) {
        tarn__raise(TARN_ERROR_ARGUMENT, "flatten: axis is %d; must be from %d to %d", first_axis, -TARN_MAX_RANK,
                    TARN_MAX_RANK - 1);
        return NULL;
    }
    return tarn__module_new_with("flatten", "flatten", flatten_forward, &first_axis, sizeof(first_axis));
}
