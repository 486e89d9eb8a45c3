/* nn.h: modules: layers with named parameters.
 *
 * A module has parameters, which are trained, buffers, which are not (the running statistics of a batchnorm), and
 * children. Full names ("0.weight") equal those of PyTorch for the same network, so that weights can be exchanged by
 * name. */
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
struct tarn_comm; /* tarn/parallel.h */

/* Fully connected layer: x · weightᵀ + bias. Parameters "weight" [out, in] and "bias" [out], f32, uniform in
 * ±1/sqrt(in) as in torch. The caller owns the module. */
TARN_API tarn_module *tarn_linear(int64_t in, int64_t out, tarn_device device);

/* Options of tarn_linear_with(); zero is every field's default. */
typedef struct tarn_linear_options {
    bool no_bias;
    tarn_dtype dtype; /* default f32 */
} tarn_linear_options;

/* Fully connected layer with options. `...` is a const tarn_linear_options *, or NULL. */
TARN_API tarn_module *tarn_linear_with_sized(int64_t in, int64_t out, tarn_device device,
                                             const tarn_linear_options *options, size_t options_size);
#define tarn_linear_with(in, out, device, ...) \
    tarn_linear_with_sized(in, out, device, __VA_ARGS__, sizeof(tarn_linear_options))

/* An activation layer. The caller owns the module. */
TARN_API tarn_module *tarn_activation(tarn_activation_kind kind);

/* In training mode zeroes elements with probability p and divides the others by 1 - p; else returns x. The caller
 * owns the module. */
TARN_API tarn_module *tarn_dropout_layer(double p);

/* Merges `first_axis` (negative: counted from the last) and all axes after it into one. The caller owns the module. */
TARN_API tarn_module *tarn_flatten(int first_axis);

/* Embedding table of `count` rows of `size` elements: x is i64 or i32 indices, the result has one more axis.
 * Parameter "weight" [count, size], f32, standard normal as in torch. The caller owns the module. */
TARN_API tarn_module *tarn_embedding_layer(int64_t count, int64_t size, tarn_device device);

/* Options of tarn_embedding_layer_with(); zero is every field's default. */
typedef struct tarn_embedding_options {
    tarn_dtype dtype; /* default f32 */
} tarn_embedding_options;

/* Embedding table with options. `...` is a const tarn_embedding_options *, or NULL. */
TARN_API tarn_module *tarn_embedding_layer_with_sized(int64_t count, int64_t size, tarn_device device,
                                                      const tarn_embedding_options *options, size_t options_size);
#define tarn_embedding_layer_with(count, size, device, ...) \
    tarn_embedding_layer_with_sized(count, size, device, __VA_ARGS__, sizeof(tarn_embedding_options))

/* tarn_layernorm() and tarn_rmsnorm() over a last axis of `size` elements, as layers. Parameters "weight" [size],
 * ones, and, of LayerNorm, "bias" [size], zeros; f32. The caller owns the module. */
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

/* tarn_conv2d() as a layer: a square kernel of `kernel` × `kernel`, stride 1, no padding. Parameters "weight" [out,
 * in / groups, rows, columns] and "bias" [out], f32, uniform in ±1/sqrt(in / groups · rows · columns) as in torch.
 * The caller owns the module. */
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

/* tarn_conv_transpose2d() as a layer: a square kernel, stride 1, no padding. Parameters "weight" [in, out / groups,
 * rows, columns] and "bias" [out], f32, uniform in ±1/sqrt(out / groups · rows · columns) as in torch. The caller owns
 * the module. */
TARN_API tarn_module *tarn_conv_transpose2d_layer(int64_t in, int64_t out, int64_t kernel, tarn_device device);

/* Options of tarn_conv_transpose2d_layer_with(), rows before columns; zero is the default of every field but the
 * kernel. */
typedef struct tarn_conv_transpose2d_layer_options {
    int64_t kernel[2];         /* required */
    int64_t stride[2];         /* 0: 1 */
    int64_t padding[2];        /* rows and columns cut off on each side */
    int64_t output_padding[2]; /* rows and columns added at the end; less than the stride */
    int64_t dilation[2];       /* 0: 1 */
    int64_t groups;            /* 0: 1 */
    bool no_bias;
    tarn_dtype dtype; /* default f32 */
} tarn_conv_transpose2d_layer_options;

/* The same with options. `...` is a const tarn_conv_transpose2d_layer_options *. */
TARN_API tarn_module *tarn_conv_transpose2d_layer_with_sized(int64_t in, int64_t out, tarn_device device,
                                                             const tarn_conv_transpose2d_layer_options *options,
                                                             size_t options_size);
#define tarn_conv_transpose2d_layer_with(in, out, device, ...) \
    tarn_conv_transpose2d_layer_with_sized(in, out, device, __VA_ARGS__, sizeof(tarn_conv_transpose2d_layer_options))

/* tarn_conv1d() as a layer, for sequences [N, in, L]: stride 1, no padding. Parameters "weight" [out, in / groups,
 * kernel] and "bias" [out], f32, uniform in ±1/sqrt(in / groups · kernel) as in torch. The caller owns the module. */
TARN_API tarn_module *tarn_conv1d_layer(int64_t in, int64_t out, int64_t kernel, tarn_device device);

/* Options of tarn_conv1d_layer_with(); zero is the default of every field but the kernel. */
typedef struct tarn_conv1d_layer_options {
    int64_t kernel;   /* required */
    int64_t stride;   /* 0: 1 */
    int64_t padding;  /* zeros on each side */
    int64_t dilation; /* 0: 1 */
    int64_t groups;   /* 0: 1 */
    bool no_bias;
    tarn_dtype dtype; /* default f32 */
} tarn_conv1d_layer_options;

/* The same with options. `...` is a const tarn_conv1d_layer_options *. */
TARN_API tarn_module *tarn_conv1d_layer_with_sized(int64_t in, int64_t out, tarn_device device,
                                                   const tarn_conv1d_layer_options *options, size_t options_size);
#define tarn_conv1d_layer_with(in, out, device, ...) \
    tarn_conv1d_layer_with_sized(in, out, device, __VA_ARGS__, sizeof(tarn_conv1d_layer_options))

/* tarn_max_pool2d(), tarn_avg_pool2d() and tarn_global_avg_pool2d() as layers. `...` is a const tarn_pool2d_options *;
 * its kernel is required. The caller owns the module. */
TARN_API tarn_module *tarn_max_pool2d_layer_sized(const tarn_pool2d_options *options, size_t options_size);
TARN_API tarn_module *tarn_avg_pool2d_layer_sized(const tarn_pool2d_options *options, size_t options_size);
TARN_API tarn_module *tarn_global_avg_pool2d_layer(void);
#define tarn_max_pool2d_layer(...) tarn_max_pool2d_layer_sized(__VA_ARGS__, sizeof(tarn_pool2d_options))
#define tarn_avg_pool2d_layer(...) tarn_avg_pool2d_layer_sized(__VA_ARGS__, sizeof(tarn_pool2d_options))

/* tarn_upsample() as a layer, as torch's Upsample. `...` is a const tarn_upsample_options *. The caller owns the
 * module.
 */
TARN_API tarn_module *tarn_upsample_layer_sized(const tarn_upsample_options *options, size_t options_size);
#define tarn_upsample_layer(...) tarn_upsample_layer_sized(__VA_ARGS__, sizeof(tarn_upsample_options))

/* tarn_groupnorm() as a layer: `groups` groups of neighbouring channels. Parameters "weight" [channels], ones, and
 * "bias" [channels], zeros; f32. The caller owns the module. */
TARN_API tarn_module *tarn_groupnorm_layer(int64_t groups, int64_t channels, tarn_device device);

/* The same with options. `...` is a const tarn_norm_options *, or NULL. */
TARN_API tarn_module *tarn_groupnorm_layer_with_sized(int64_t groups, int64_t channels, tarn_device device,
                                                      const tarn_norm_options *options, size_t options_size);
#define tarn_groupnorm_layer_with(groups, channels, device, ...) \
    tarn_groupnorm_layer_with_sized(groups, channels, device, __VA_ARGS__, sizeof(tarn_norm_options))

/* Instance norm of x [N, channels, ...]: each channel of each sample by itself, which is tarn_groupnorm() with one
 * channel per group. Without parameters, as torch's InstanceNorm. The caller owns the module. */
TARN_API tarn_module *tarn_instancenorm_layer(int64_t channels, tarn_device device);

/* Options of tarn_instancenorm_layer_with(); zero is every field's default. */
typedef struct tarn_instancenorm_options {
    bool affine;      /* parameters "weight" [channels], ones, and "bias" [channels], zeros */
    double epsilon;   /* default 1e-5 */
    tarn_dtype dtype; /* of the parameters; default f32 */
} tarn_instancenorm_options;

/* The same with options. `...` is a const tarn_instancenorm_options *, or NULL. */
TARN_API tarn_module *tarn_instancenorm_layer_with_sized(int64_t channels, tarn_device device,
                                                         const tarn_instancenorm_options *options, size_t options_size);
#define tarn_instancenorm_layer_with(channels, device, ...) \
    tarn_instancenorm_layer_with_sized(channels, device, __VA_ARGS__, sizeof(tarn_instancenorm_options))

/* tarn_batchnorm() as a layer, for x [N, channels, ...] of any rank from 2. Parameters "weight", ones, and "bias",
 * zeros; buffers "running_mean", "running_var" (f32, or f64) and "num_batches_tracked" (i64), as in torch. In
 * training mode it uses the batch statistics and updates the running ones; else it uses the running ones. The caller
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

/* In training mode the batchnorms of a module use the statistics of the batches of all ranks, as torch's SyncBatchNorm;
 * backward exchanges sums, too. Batches have the same size on all ranks, which run the same layers in the same order.
 * `comm` (tarn/parallel.h) is borrowed by the module; NULL: statistics of the own batch. A module without batchnorms is
 * an error. */
TARN_API bool tarn_batchnorm_sync(tarn_module *module, struct tarn_comm *comm);

/* LSTM and GRU over sequences, as torch's: from `in` features to `hidden` ones, one layer. x is [T, B, in], the result
 * [T, B, hidden]: the hidden state of each step, from a state of zeros; tarn_recurrent_forward() takes and gives
 * states. All sequences of a batch have the same length. Parameters "weight_ih_l0" [gates · hidden, in], "weight_hh_l0"
 * [gates · hidden, hidden], "bias_ih_l0" and "bias_hh_l0" [gates · hidden], then those of "_l0_reverse", "_l1" …; f32,
 * uniform in ±1/sqrt(hidden); 4 gates of an LSTM, 3 of a GRU. The caller owns the module. */
TARN_API tarn_module *tarn_lstm_layer(int64_t in, int64_t hidden, tarn_device device);
TARN_API tarn_module *tarn_gru_layer(int64_t in, int64_t hidden, tarn_device device);

/* Options of recurrent layers; zero is every field's default. */
typedef struct tarn_recurrent_options {
    int64_t layers;     /* 0: 1; a layer takes the result of the one before */
    bool bidirectional; /* a second direction from the last step back; results are [T, B, 2 · hidden] */
    bool batch_first;   /* x and result are [B, T, features]; states are not */
    bool no_bias;
    double dropout;   /* of the result of each layer but the last, in training mode */
    tarn_dtype dtype; /* of the parameters; default f32 */
} tarn_recurrent_options;

/* The same with options. `...` is a const tarn_recurrent_options *, or NULL. */
TARN_API tarn_module *tarn_lstm_layer_with_sized(int64_t in, int64_t hidden, tarn_device device,
                                                 const tarn_recurrent_options *options, size_t options_size);
TARN_API tarn_module *tarn_gru_layer_with_sized(int64_t in, int64_t hidden, tarn_device device,
                                                const tarn_recurrent_options *options, size_t options_size);
#define tarn_lstm_layer_with(in, hidden, device, ...) \
    tarn_lstm_layer_with_sized(in, hidden, device, __VA_ARGS__, sizeof(tarn_recurrent_options))
#define tarn_gru_layer_with(in, hidden, device, ...) \
    tarn_gru_layer_with_sized(in, hidden, device, __VA_ARGS__, sizeof(tarn_recurrent_options))

/* State of a recurrent layer, [layers · directions, B, hidden]. */
typedef struct tarn_recurrent_state {
    tarn_tensor *h; /* hidden */
    tarn_tensor *c; /* cell; of an LSTM */
} tarn_recurrent_state;

/* tarn_forward() of an LSTM or a GRU from the state `first`, a NULL member or pointer being zeros; the state after the
 * last step goes to `last`, which may be NULL. Gradients flow through both. Results belong to the open scope. */
TARN_API tarn_tensor *tarn_recurrent_forward(tarn_module *module, tarn_tensor *x, const tarn_recurrent_state *first,
                                             tarn_recurrent_state *last);

/* body(x) + shortcut(x); without a shortcut (NULL), + x. Takes ownership of both, on failure too. Parameters are
 * named "body.…" and "shortcut.…". The caller owns the module. */
TARN_API tarn_module *tarn_residual(tarn_module *body, tarn_module *shortcut);

/* ---- trees of modules -------------------------------------------------------------------------------------------- */

/* Modules in sequence, from an array; a final NULL is ignored. Takes ownership of the modules, on failure too (where
 * one is NULL because its creation failed, the rest are freed). Parameters are named "0.weight", "2.bias" … as in
 * torch. A relu after a batchnorm, or after a tarn_residual() that ends with one, is fused with it:
 * tarn_batchnorm_relu(). The caller owns the module. */
TARN_API tarn_module *tarn_sequential_from(tarn_module *const *modules, int count);

/* The same with arguments: tarn_sequential(tarn_linear(2, 16, device), tarn_activation(TARN_TANH), NULL). */
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

/* Forward function of a custom layer: computes the result from x. */
typedef tarn_tensor *(*tarn_forward_fn)(tarn_module *module, tarn_tensor *x, void *ctx);

/* A custom layer. Takes ownership of `ctx`: `release` (may be NULL) is called when the module is freed, or if this
 * call fails. */
TARN_API tarn_module *tarn_module_new(const char *kind, tarn_forward_fn forward, void *ctx, void (*release)(void *ctx));

/* Adds a parameter to a custom layer: takes ownership of `tensor` (a handle from tarn_keep(), or out of its scope),
 * on failure too, names it and requires a gradient for it, unless it is quantized. A parameter of another module is
 * shared. Returns the parameter, which lives as long as the module; a handle that was given is freed. */
TARN_API tarn_tensor *tarn_module_add_parameter(tarn_module *module, const char *name, tarn_tensor *tensor);

/* Adds a buffer to a custom layer: a tensor of any dtype that is moved, saved and loaded with the module, but not
 * trained. Takes ownership of the tensor, as above. Returns the buffer, which lives as long as the module. */
TARN_API tarn_tensor *tarn_module_add_buffer(tarn_module *module, const char *name, tarn_tensor *tensor);

/* Adds a child to a custom layer; takes ownership of it, on failure too. */
TARN_API bool tarn_module_add_child(tarn_module *module, const char *name, tarn_module *child);

/* Applies a module. */
TARN_API tarn_tensor *tarn_forward(tarn_module *module, tarn_tensor *x);

/* Sets training mode of a module and its descendants, initially on: it changes dropout and batchnorm. */
TARN_API bool tarn_module_train(tarn_module *module, bool training);

/* True if the module is in training mode; for forward functions of custom layers. */
TARN_API bool tarn_module_is_training(const tarn_module *module);

/* Kind of a module: "linear", "sequential", or the string given to tarn_module_new(). Borrowed from the module. */
TARN_API const char *tarn_module_kind(const tarn_module *module);

/* Visits one module of a tree: `path` is "" for the root of the visit, "0", "encoder.0" … below; valid during the
 * call. False stops. */
typedef bool (*tarn_module_visit_fn)(tarn_module *module, const char *path, void *ctx);

/* Calls `visit` for a module and its descendants, parents before children. False if `visit` stopped, or with an
 * error. */
TARN_API bool tarn_module_visit(tarn_module *module, tarn_module_visit_fn visit, void *ctx);

/* ---- parameters and buffers -------------------------------------------------------------------------------------- */

/* Number of parameter tensors of a module and its descendants, and number of their elements. */
TARN_API int tarn_module_parameter_count(const tarn_module *module);
TARN_API int64_t tarn_module_element_count(const tarn_module *module);

/* Parameter number `index`, and its full name ("0.weight"): a module's own parameters first, then its children's,
 * each in the order of addition; a shared one counts once. Borrowed from the module. */
TARN_API tarn_tensor *tarn_module_parameter(const tarn_module *module, int index);
TARN_API const char *tarn_module_parameter_name(const tarn_module *module, int index);

/* Number of buffers of a module and its descendants, buffer number `index`, and its full name ("1.running_mean").
 * Borrowed from the module. */
TARN_API int tarn_module_buffer_count(const tarn_module *module);
TARN_API tarn_tensor *tarn_module_buffer(const tarn_module *module, int index);
TARN_API const char *tarn_module_buffer_name(const tarn_module *module, int index);

/* The parameter or buffer of that full name; an error that lists similar names if there is none. */
TARN_API tarn_tensor *tarn_module_find(const tarn_module *module, const char *name);

/* Moves all parameters and buffers to a device, in place: handles stay valid. */
TARN_API bool tarn_module_to(tarn_module *module, tarn_device device);

/* Freezes the parameters (no gradients), or unfreezes them; quantized ones stay frozen. Call it before the optimizer
 * is created. */
TARN_API bool tarn_module_freeze(tarn_module *module, bool frozen);

/* ---- files and tables -------------------------------------------------------------------------------------------- */

/* Writes all parameters and buffers to a safetensors file under their full names; a shared one once, under its
 * first. Atomic write. */
TARN_API bool tarn_module_save(const tarn_module *module, const char *path);

/* Options of tarn_module_load(); zero, which is strict, is every field's default. */
typedef struct tarn_module_load_options {
    bool allow_missing;    /* names missing in the file keep their values */
    bool allow_unexpected; /* names that the module lacks are ignored */
    bool skip_mismatched;  /* those of another shape or kind of dtype keep their values */
} tarn_module_load_options;

/* Reads all parameters and buffers from a safetensors file by full name, in place; float dtypes are converted. Names
 * that are missing, unexpected or of another shape are listed in one error, and nothing changes. `...` is a const
 * tarn_module_load_options *, or NULL. */
TARN_API bool tarn_module_load_sized(tarn_module *module, const char *path, const tarn_module_load_options *options,
                                     size_t options_size);
#define tarn_module_load(module, path, ...) \
    tarn_module_load_sized(module, path, __VA_ARGS__, sizeof(tarn_module_load_options))

/* Writes a table of all layers: kind, output shape for an input of that shape and dtype, parameters and memory. Runs
 * the module once on zeros, outside training mode. The string form returns a string that the caller frees with
 * tarn_string_free(). */
TARN_API bool tarn_module_summary(tarn_module *module, tarn_shape input, tarn_dtype dtype, FILE *file);
TARN_API char *tarn_module_summary_string(tarn_module *module, tarn_shape input, tarn_dtype dtype);

/* Frees a string returned to the caller. NULL is allowed; works while an error is pending. */
TARN_API void tarn_string_free(char *text);

/* Frees a module and its children. NULL is allowed; works while an error is pending. */
TARN_API void tarn_module_free(tarn_module *module);

#ifdef __cplusplus
}
#endif
#endif
