/* nn.h: modules: layers with named parameters. */
#ifndef TARN_NN_H
#define TARN_NN_H

#include <tarn/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_module tarn_module;

/* Activations that a layer can apply. */
typedef enum tarn_activation_kind {
    TARN_RELU = 0,
    TARN_LEAKY_RELU, /* slope 0.01 */
    TARN_GELU,       /* tanh form */
    TARN_GELU_ERF,
    TARN_SILU,
    TARN_TANH,
    TARN_SIGMOID,
    TARN_SOFTPLUS
} tarn_activation_kind;

/* A fully connected layer: x · weightᵀ + bias. Parameters "weight" [out, in] and "bias" [out], f32, uniform in ±1/sqrt(in) as torch's.
 * The caller owns the module. */
TARN_API tarn_module *tarn_linear(int64_t in, int64_t out, tarn_device device);

/* Options of tarn_linear_with(); zero is every field's default. */
typedef struct tarn_linear_options {
    bool no_bias;
    tarn_dtype dtype; /* default f32 */
} tarn_linear_options;

/* A fully connected layer with options. `...` is a const tarn_linear_options *, or NULL. */
TARN_API tarn_module *tarn_linear_with_sized(int64_t in, int64_t out, tarn_device device, const tarn_linear_options *options,
                                             size_t options_size);
#define tarn_linear_with(in, out, device, ...) tarn_linear_with_sized(in, out, device, __VA_ARGS__, sizeof(tarn_linear_options))

/* A layer that applies an activation. The caller owns the module. */
TARN_API tarn_module *tarn_activation(tarn_activation_kind kind);

/* Modules one after the other, from an array; a NULL at the end of it does not count. Takes the modules, on failure too (where one is NULL
 * because it failed, the rest are freed). Parameters are named "0.weight", "2.bias" … as in torch. The caller owns the module. */
TARN_API tarn_module *tarn_sequential_from(tarn_module *const *modules, int count);

/* The same, written out: tarn_sequential(tarn_linear(2, 16, device), tarn_activation(TARN_TANH), NULL). For C; C++ has no arrays without
 * a name, and uses the form above. */
#define tarn_sequential(...) \
    tarn_sequential_from((tarn_module *const[]){__VA_ARGS__}, (int)(sizeof((tarn_module *const[]){__VA_ARGS__}) / sizeof(tarn_module *)))

/* What a user's own layer does: `forward` makes the result from x; `release` (may be NULL) frees ctx. */
typedef tarn_tensor *(*tarn_forward_fn)(tarn_module *module, tarn_tensor *x, void *ctx);

/* A user's own layer. Takes ctx: `release` is called when the module is freed, or if this call fails. */
TARN_API tarn_module *tarn_module_new(const char *kind, tarn_forward_fn forward, void *ctx, void (*release)(void *ctx));

/* Gives a user's own layer a parameter: takes one reference of `tensor` (kept by the caller or in a scope), on failure too, names it and
 * lets gradients flow into it. A parameter of another module is shared. Returns the tensor, which lives as long as the module. */
TARN_API tarn_tensor *tarn_module_add_parameter(tarn_module *module, const char *name, tarn_tensor *tensor);

/* Gives a user's own layer a child; takes it, on failure too. */
TARN_API bool tarn_module_add_child(tarn_module *module, const char *name, tarn_module *child);

/* Applies a module. */
TARN_API tarn_tensor *tarn_forward(tarn_module *module, tarn_tensor *x);

/* How many parameters a module has, its children's included: tensors, and elements in all. */
TARN_API int tarn_module_parameter_count(const tarn_module *module);
TARN_API int64_t tarn_module_element_count(const tarn_module *module);

/* Parameter number `index`, and its full name ("0.weight"): a module's own parameters come first, then its children's, each in the order
 * they were added; one that is shared counts once. Borrowed from the module. */
TARN_API tarn_tensor *tarn_module_parameter(const tarn_module *module, int index);
TARN_API const char *tarn_module_parameter_name(const tarn_module *module, int index);

/* The parameter of that full name; an error that lists near names if there is none. */
TARN_API tarn_tensor *tarn_module_find(const tarn_module *module, const char *name);

/* Moves all parameters to a device, in place: handles stay valid. */
TARN_API bool tarn_module_to(tarn_module *module, tarn_device device);

/* Freezes the parameters (no gradients flow into them), or lets them be trained again. Before the optimizer is made. */
TARN_API bool tarn_module_freeze(tarn_module *module, bool frozen);

/* Frees a module and its children. NULL is allowed; works while an error is pending. */
TARN_API void tarn_module_free(tarn_module *module);

#ifdef __cplusplus
}
#endif
#endif
