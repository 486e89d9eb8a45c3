/* nn.h: modules: layers with named parameters.
 *
 * A module has parameters, which are trained, buffers, which are not (the running means of a batchnorm), and children;
 * all have names, and full names ("0.weight") are those that PyTorch gives the same network, so that weights can be
 * exchanged by name. */
#ifndef TARN_NN_H
#define TARN_NN_H

#include <stdio.h>
#include <tarn/autograd.h>
#include <tarn/ops.h>

#ifdef __cplusplus
#include <initializer_list>

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

/* A fully connected layer: x · weightᵀ + bias. Parameters "weight" [out, in] and "bias" [out], f32, uniform in
 * ±1/sqrt(in) as torch's. The caller owns the module. */
TARN_API tarn_module *tarn_linear(int64_t in, int64_t out, tarn_device device);

/* Options of tarn_linear_with(); zero is every field's default. */
typedef struct tarn_linear_options {
    bool no_bias;
    tarn_dtype dtype; /* default f32 */
} tarn_linear_options;

/* A fully connected layer with options. `...` is a const tarn_linear_options *, or NULL. */
TARN_API tarn_module *tarn_linear_with_sized(int64_t in, int64_t out, tarn_device device,
                                             const tarn_linear_options *options, size_t options_size);
#define tarn_linear_with(in, out, device, ...) \
    tarn_linear_with_sized(in, out, device, __VA_ARGS__, sizeof(tarn_linear_options))

/* A layer that applies an activation. The caller owns the module. */
TARN_API tarn_module *tarn_activation(tarn_activation_kind kind);

/* A layer that zeroes elements with probability p and divides the others by 1 - p while it is in training mode, and
 * else returns x. The caller owns the module. */
TARN_API tarn_module *tarn_dropout_layer(double p);

/* A layer that makes one axis of `first_axis` (negative: counted from the last) and all axes after it. The caller owns
 * the module. */
TARN_API tarn_module *tarn_flatten(int first_axis);

/* A table of `count` rows of `size` numbers: x is i64 or i32 indices, the result has one more axis. Parameter "weight"
 * [count, size], f32, normal with mean 0 and deviation 1 as torch's. The caller owns the module. */
TARN_API tarn_module *tarn_embedding_layer(int64_t count, int64_t size, tarn_device device);

/* Options of tarn_embedding_layer_with(); zero is every field's default. */
typedef struct tarn_embedding_options {
    tarn_dtype dtype; /* default f32 */
} tarn_embedding_options;

/* A table with options. `...` is a const tarn_embedding_options *, or NULL. */
TARN_API tarn_module *tarn_embedding_layer_with_sized(int64_t count, int64_t size, tarn_device device,
                                                      const tarn_embedding_options *options, size_t options_size);
#define tarn_embedding_layer_with(count, size, device, ...) \
    tarn_embedding_layer_with_sized(count, size, device, __VA_ARGS__, sizeof(tarn_embedding_options))

/* tarn_layernorm() and tarn_rmsnorm() over a last axis of `size` elements, as layers. Parameters "weight" [size], ones,
 * and, of LayerNorm, "bias" [size], zeros; f32. The caller owns the module. */
TARN_API tarn_module *tarn_layernorm_layer(int64_t size, tarn_device device);
TARN_API tarn_module *tarn_rmsnorm_layer(int64_t size, tarn_device device);

/* Options of the norms; zero is every field's default. */
typedef struct tarn_norm_options {
    double epsilon;   /* default 1e-5; of RMSNorm 1e-6 */
    bool no_affine;   /* neither weight nor bias */
    bool no_bias;     /* RMSNorm never has one */
    tarn_dtype dtype; /* of the parameters; default f32 */
} tarn_norm_options;

/* Norms with options. `...` is a const tarn_norm_options *, or NULL. */
TARN_API tarn_module *tarn_layernorm_layer_with_sized(int64_t size, tarn_device device,
                                                      const tarn_norm_options *options, size_t options_size);
TARN_API tarn_module *tarn_rmsnorm_layer_with_sized(int64_t size, tarn_device device, const tarn_norm_options *options,
                                                    size_t options_size);
#define tarn_layernorm_layer_with(size, device, ...) \
    tarn_layernorm_layer_with_sized(size, device, __VA_ARGS__, sizeof(tarn_norm_options))
#define tarn_rmsnorm_layer_with(size, device, ...) \
    tarn_rmsnorm_layer_with_sized(size, device, __VA_ARGS__, sizeof(tarn_norm_options))

/* tarn_conv2d() as a layer: a square kernel of `kernel` × `kernel`, stride 1, no padding. Parameters "weight" [out, in
 * / groups, rows, columns] and "bias" [out], f32, uniform in ±1/sqrt(in / groups · rows · columns) as torch's. The
 * caller owns the module. */
TARN_API tarn_module *tarn_conv2d_layer(int64_t in, int64_t out, int64_t kernel, tarn_device device);

/* Options of tarn_conv2d_layer_with(), rows before columns; zero is the default of every field but the kernel. */
typedef struct tarn_conv2d_layer_options {
    int64_t kernel[2];   /* required */
    int64_t stride[2];   /* 0: 1 */
    int64_t padding[2];  /* rows and columns of zeros on each side */
    int64_t dilation[2]; /* 0: 1 */
    int64_t groups;      /* 0: 1 */
    bool no_bias;
    tarn_dtype dtype; /* default f32 */
} tarn_conv2d_layer_options;

/* The same with options. `...` is a const tarn_conv2d_layer_options *. */
TARN_API tarn_module *tarn_conv2d_layer_with_sized(int64_t in, int64_t out, tarn_device device,
                                                   const tarn_conv2d_layer_options *options, size_t options_size);
#define tarn_conv2d_layer_with(in, out, device, ...) \
    tarn_conv2d_layer_with_sized(in, out, device, __VA_ARGS__, sizeof(tarn_conv2d_layer_options))

/* tarn_max_pool2d(), tarn_avg_pool2d() and tarn_global_avg_pool2d() as layers. `...` is a const tarn_pool2d_options *;
 * its kernel is required. The caller owns the module. */
TARN_API tarn_module *tarn_max_pool2d_layer_sized(const tarn_pool2d_options *options, size_t options_size);
TARN_API tarn_module *tarn_avg_pool2d_layer_sized(const tarn_pool2d_options *options, size_t options_size);
TARN_API tarn_module *tarn_global_avg_pool2d_layer(void);
#define tarn_max_pool2d_layer(...) tarn_max_pool2d_layer_sized(__VA_ARGS__, sizeof(tarn_pool2d_options))
#define tarn_avg_pool2d_layer(...) tarn_avg_pool2d_layer_sized(__VA_ARGS__, sizeof(tarn_pool2d_options))

/* tarn_groupnorm() as a layer: `groups` groups of neighbouring channels. Parameters "weight" [channels], ones, and
 * "bias" [channels], zeros; f32. The caller owns the module. */
TARN_API tarn_module *tarn_groupnorm_layer(int64_t groups, int64_t channels, tarn_device device);

/* The same with options. `...` is a const tarn_norm_options *, or NULL. */
TARN_API tarn_module *tarn_groupnorm_layer_with_sized(int64_t groups, int64_t channels, tarn_device device,
                                                      const tarn_norm_options *options, size_t options_size);
#define tarn_groupnorm_layer_with(groups, channels, device, ...) \
    tarn_groupnorm_layer_with_sized(groups, channels, device, __VA_ARGS__, sizeof(tarn_norm_options))

/* tarn_batchnorm() as a layer, for x [N, channels, ...] of any rank from 2. Parameters "weight", ones, and "bias",
 * zeros; buffers "running_mean", "running_var" (f32, or f64) and "num_batches_tracked" (i64), as torch's. In training
 * mode it uses the batch's statistics and lets the running ones take them in; else it uses the running ones. The caller
 * owns the module. */
TARN_API tarn_module *tarn_batchnorm2d(int64_t channels, tarn_device device);

/* Options of tarn_batchnorm2d_with(); zero is every field's default. */
typedef struct tarn_batchnorm2d_options {
    double momentum;  /* default 0.1 */
    double epsilon;   /* default 1e-5 */
    bool no_affine;   /* neither weight nor bias */
    bool no_tracking; /* no running statistics: always the batch's */
    tarn_dtype dtype; /* of the parameters; default f32 */
} tarn_batchnorm2d_options;

/* The same with options. `...` is a const tarn_batchnorm2d_options *, or NULL. */
TARN_API tarn_module *tarn_batchnorm2d_with_sized(int64_t channels, tarn_device device,
                                                  const tarn_batchnorm2d_options *options, size_t options_size);
#define tarn_batchnorm2d_with(channels, device, ...) \
    tarn_batchnorm2d_with_sized(channels, device, __VA_ARGS__, sizeof(tarn_batchnorm2d_options))

/* body(x) + shortcut(x); without a shortcut (NULL), + x. Takes both, on failure too. Parameters are named "body.…" and
 * "shortcut.…". The caller owns the module. */
TARN_API tarn_module *tarn_residual(tarn_module *body, tarn_module *shortcut);

/* ---- trees of modules -------------------------------------------------------------------------------------------- */

/* Modules one after the other, from an array; a NULL at the end of it does not count. Takes the modules, on failure too
 * (where one is NULL because it failed, the rest are freed). Parameters are named "0.weight", "2.bias" … as in torch. A
 * relu behind what ends with a batchnorm, also behind a tarn_residual(), is one pass with it: tarn_batchnorm_relu().
 * The caller owns the module. */
TARN_API tarn_module *tarn_sequential_from(tarn_module *const *modules, int count);

/* The same, written out: tarn_sequential(tarn_linear(2, 16, device), tarn_activation(TARN_TANH), NULL). */
#ifdef __cplusplus
extern "C++" {
inline tarn_module *tarn__sequential_list(std::initializer_list<tarn_module *> modules)
{
    return tarn_sequential_from(modules.begin(), (int)modules.size());
}
}
#define tarn_sequential(...) tarn__sequential_list({__VA_ARGS__})
#else
#define tarn_sequential(...) \
    tarn_sequential_from((tarn_module *const[]){__VA_ARGS__}, \
                         (int)(sizeof((tarn_module *const[]){__VA_ARGS__}) / sizeof(tarn_module *)))
#endif

/* What a user's own layer does: `forward` makes the result from x; `release` (may be NULL) frees ctx. */
typedef tarn_tensor *(*tarn_forward_fn)(tarn_module *module, tarn_tensor *x, void *ctx);

/* A user's own layer. Takes ctx: `release` is called when the module is freed, or if this call fails. */
TARN_API tarn_module *tarn_module_new(const char *kind, tarn_forward_fn forward, void *ctx, void (*release)(void *ctx));

/* Gives a user's own layer a parameter: takes `tensor` (a handle from tarn_keep(), or out of its scope), on failure
 * too, names it and lets gradients flow into it, unless it holds blocks. A parameter of another module is shared.
 * Returns the parameter, which lives as long as the module; a handle that was given is freed. */
TARN_API tarn_tensor *tarn_module_add_parameter(tarn_module *module, const char *name, tarn_tensor *tensor);

/* Gives a user's own layer a buffer: a tensor of any dtype that is part of its state and moves, is saved and is loaded
 * with it, but is not trained. Takes the tensor, as above. Returns the buffer, which lives as long as the module. */
TARN_API tarn_tensor *tarn_module_add_buffer(tarn_module *module, const char *name, tarn_tensor *tensor);

/* Gives a user's own layer a child; takes it, on failure too. */
TARN_API bool tarn_module_add_child(tarn_module *module, const char *name, tarn_module *child);

/* Applies a module. */
TARN_API tarn_tensor *tarn_forward(tarn_module *module, tarn_tensor *x);

/* Puts a module and all below it into training mode, in which they begin, or out of it: dropout and batchnorm behave
 * differently. */
TARN_API bool tarn_module_train(tarn_module *module, bool training);

/* True when the module is in training mode; a user's own layer may ask in its forward function. */
TARN_API bool tarn_module_is_training(const tarn_module *module);

/* What a module is: "linear", "sequential", or what tarn_module_new() was given. Borrowed from the module. */
TARN_API const char *tarn_module_kind(const tarn_module *module);

/* Sees one module of a tree: `path` is "" for the one where the visit began, "0", "encoder.0" … for those below; valid
 * during the call. False ends the visit. */
typedef bool (*tarn_module_visit_fn)(tarn_module *module, const char *path, void *ctx);

/* Calls `visit` for a module and all below it, parents before children. False when it was ended, or with an error. */
TARN_API bool tarn_module_visit(tarn_module *module, tarn_module_visit_fn visit, void *ctx);

/* ---- parameters and buffers -------------------------------------------------------------------------------------- */

/* How many parameters a module has, its children's included: tensors, and elements in all. */
TARN_API int tarn_module_parameter_count(const tarn_module *module);
TARN_API int64_t tarn_module_element_count(const tarn_module *module);

/* Parameter number `index`, and its full name ("0.weight"): a module's own parameters come first, then its children's,
 * each in the order they were added; one that is shared counts once. Borrowed from the module. */
TARN_API tarn_tensor *tarn_module_parameter(const tarn_module *module, int index);
TARN_API const char *tarn_module_parameter_name(const tarn_module *module, int index);

/* How many buffers a module has, its children's included, buffer number `index`, and its full name ("1.running_mean").
 * Borrowed from the module. */
TARN_API int tarn_module_buffer_count(const tarn_module *module);
TARN_API tarn_tensor *tarn_module_buffer(const tarn_module *module, int index);
TARN_API const char *tarn_module_buffer_name(const tarn_module *module, int index);

/* The parameter or buffer of that full name; an error that lists near names if there is none. */
TARN_API tarn_tensor *tarn_module_find(const tarn_module *module, const char *name);

/* Moves all parameters and buffers to a device, in place: handles stay valid. */
TARN_API bool tarn_module_to(tarn_module *module, tarn_device device);

/* Freezes the parameters (no gradients flow into them), or lets them be trained again; those that hold blocks stay
 * frozen. Before the optimizer is made. */
TARN_API bool tarn_module_freeze(tarn_module *module, bool frozen);

/* ---- files and tables -------------------------------------------------------------------------------------------- */

/* Writes all parameters and buffers to a safetensors file, under their full names; a shared one once, under its first.
 * The file appears whole or not at all. */
TARN_API bool tarn_module_save(const tarn_module *module, const char *path);

/* Options of tarn_module_load(); zero, which is strict, is every field's default. */
typedef struct tarn_module_load_options {
    bool allow_missing;    /* names that the file lacks keep their values */
    bool allow_unexpected; /* names that the module lacks are passed over */
    bool skip_mismatched;  /* those of another shape or kind of dtype keep their values */
} tarn_module_load_options;

/* Reads all parameters and buffers from a safetensors file, by their full names, into their places; float dtypes are
 * converted. Names that are missing, unexpected or of another shape are listed in one error, and then nothing is
 * changed. `...` is a const tarn_module_load_options *, or NULL. */
TARN_API bool tarn_module_load_sized(tarn_module *module, const char *path, const tarn_module_load_options *options,
                                     size_t options_size);
#define tarn_module_load(module, path, ...) \
    tarn_module_load_sized(module, path, __VA_ARGS__, sizeof(tarn_module_load_options))

/* Writes a table of all layers: what they are, the shape of their result for an input of that shape and dtype, their
 * parameters and memory. For that the module is applied once to zeros, outside training mode. The text form gives a
 * text that the caller frees with tarn_string_free(). */
TARN_API bool tarn_module_summary(tarn_module *module, tarn_shape input, tarn_dtype dtype, FILE *file);
TARN_API char *tarn_module_summary_string(tarn_module *module, tarn_shape input, tarn_dtype dtype);

/* Frees a text that a function gave to the caller. NULL is allowed; works while an error is pending. */
TARN_API void tarn_string_free(char *text);

/* Frees a module and its children. NULL is allowed; works while an error is pending. */
TARN_API void tarn_module_free(tarn_module *module);

#ifdef __cplusplus
}
#endif
#endif
