/* module.h: the module, and what the files of nn share.
 *
 * A module is a forward function with named parameters, buffers (state without a gradient, as running means) and
 * children. It owns its children and a reference to each tensor. A module has at most one parent, so a tree has one
 * root; every entry knows its path from there ("0.weight"), and its name seen from an inner module is the end of that
 * path.
 *
 * One tensor may be a parameter of several modules (tied weights). Walks visit it once, at its first entry in order:
 * own entries before those of children. Modules are not locked: one thread builds and calls a tree at a time. */
#ifndef TARN__MODULE_H
#define TARN__MODULE_H

#include <tarn/nn.h>

#include "core/tensor/tensor.h"

/* A parameter or a buffer. */
typedef struct tarn__parameter {
    char *path;          /* from the root of the tree, owned; the last component is the name it was added with */
    tarn_tensor *tensor; /* retained */
    bool is_buffer;
} tarn__parameter;

/* Layout of a linear weight: (out, in) for x · weightᵀ, or (in, out) for x · weight. Such layers can have LoRA
 * adapters. */
typedef enum tarn__linear_form { TARN__NOT_LINEAR = 0, TARN__LINEAR_OUT_IN, TARN__LINEAR_IN_OUT } tarn__linear_form;

struct tarn__adapter; /* lora.h */

struct tarn_module {
    char *kind;
    tarn_forward_fn forward;
    void *ctx;
    void (*release)(void *ctx); /* NULL: nothing to do */
    size_t settings_bytes;      /* ctx is an owned copy of that size; 0: it belongs to the caller */
    bool is_callback;           /* forward is a caller's function and runs in a scope of its own */
    bool training;
    tarn__linear_form linear;
    struct tarn__adapter *adapter; /* owned; NULL: none */
    bool is_saved;                 /* its own parameters are trained, and saved with the adapters of the model */
    tarn_module *parent;           /* borrowed; NULL: a root, owned by the caller */
    char *name;                    /* in the parent */
    tarn__parameter *parameter;
    int parameters, parameter_capacity;
    tarn_module **child; /* owned */
    int children, child_capacity;
};

/* A module without parameters, owned by the caller. Takes ctx, on failure too. NULL with an error. */
tarn_module *tarn__module_new(const char *function, const char *kind, tarn_forward_fn forward, void *ctx,
                              void (*release)(void *ctx));

/* The same with a copy of a layer's settings as ctx. */
tarn_module *tarn__module_new_with(const char *function, const char *kind, tarn_forward_fn forward,
                                   const void *settings, size_t bytes);

/* Frees a module and its subtree even where it has a parent, which must forget it. */
void tarn__module_free_tree(tarn_module *module);

/* The module's own parameter or buffer of that name; NULL: it has none. Borrowed. */
tarn_tensor *tarn__module_own(const tarn_module *module, const char *name);

/* Reports the output y of a module to the thread's observer, if it has one. Returns y; NULL is not reported. */
tarn_tensor *tarn__observe_output(tarn_module *module, tarn_tensor *y);

/* relu(module(x) + residual), residual may be NULL; one fused operation where the module ends with a batchnorm. Borrows
 * all; the result belongs to the open scope. The second is the batchnorm layer's own. */
tarn_tensor *tarn__forward_relu(tarn_module *module, tarn_tensor *x, tarn_tensor *residual);
tarn_tensor *tarn__batchnorm_relu(tarn_module *module, tarn_tensor *x, tarn_tensor *residual);
bool tarn__ends_with_batchnorm(const tarn_module *module);

/* Calls child *i of a sequential, fused with a relu after it where possible: *i is then advanced to the relu. */
tarn_tensor *tarn__forward_at(tarn_module *module, int *i, tarn_tensor *x);

/* The kind of a layer, by its forward function. A residual's children are its body and perhaps a shortcut. */
bool tarn__is_batchnorm(const tarn_module *module);
bool tarn__is_relu(const tarn_module *module);
bool tarn__is_sequential(const tarn_module *module);
bool tarn__is_residual(const tarn_module *module);

/* Raises when the module is NULL. */
bool tarn__check_module(const char *function, const tarn_module *module);

/* Raises unless parameters may be of the dtype. */
bool tarn__check_parameter_dtype(const char *function, tarn_dtype dtype);

/* Adds a parameter drawn uniformly from [-bound, bound). False with an error. */
bool tarn__add_uniform(tarn_module *module, const char *name, tarn_shape shape, double bound, tarn_dtype dtype,
                       tarn_device device);

/* Adds children under their names and returns the module. Takes the children, on failure too (a NULL child is an
 * earlier failure); then the module is freed as well and the result is NULL. */
tarn_module *tarn__with_children(tarn_module *module, const char *const *names, tarn_module *const *children,
                                 int count);

/* Raises unless a parameter, buffer or child of that name can be added. */
bool tarn__check_name(const char *function, const tarn_module *module, const char *name);

/* The path from the root of something called `name` in a module. The caller releases the text. NULL with an error
 * raised. */
char *tarn__path_of(const tarn_module *module, const char *name);

/* The name of an entry as seen from `module`: the end of its path. Borrowed. */
const char *tarn__name_from(const tarn_module *module, const tarn__parameter *parameter);

/* Names a tensor by its path; a tied tensor gets that of its first entry. */
bool tarn__name_tensor(const tarn_module *module, const tarn__parameter *parameter);

/* Rewrites all paths of a tree that got a new root. False with an error. */
bool tarn__rename_tree(tarn_module *module);

const tarn_module *tarn__module_root(const tarn_module *module);

/* The first entry of a tensor in a module's subtree; NULL: none. */
const tarn__parameter *tarn__module_first(const tarn_module *module, const tarn_tensor *tensor);

/* Calls `visit` for every parameter, buffer or both until it returns false: a module's own first, then its children's.
 * A tied tensor is visited once; with TARN__MODULE_ALIASES at every entry. Entries are borrowed for the call. */
enum { TARN__MODULE_PARAMETERS = 1, TARN__MODULE_BUFFERS = 2, TARN__MODULE_STATE = 3, TARN__MODULE_ALIASES = 4 };
typedef bool (*tarn__visit_fn)(const tarn__parameter *parameter, void *ctx);
void tarn__module_walk_over(const tarn_module *module, int what, tarn__visit_fn visit, void *ctx);
void tarn__module_walk(const tarn_module *module, tarn__visit_fn visit, void *ctx); /* over the parameters */

/* Rounds all parameters to a float dtype; buffers (running statistics) keep theirs. For new modules, without gradients
 * or an optimizer. False with an error. */
bool tarn__module_cast(tarn_module *module, tarn_dtype dtype);

/* Number of tensors that a walk over `what` visits. */
int tarn__module_count(const tarn_module *module, int what);

/* tarn_module_load() from an open file, borrowed; `path` is for errors, which begin with module_load. */
struct tarn_safetensors;
bool tarn__module_load_file(tarn_module *module, const struct tarn_safetensors *file, const char *path,
                            const tarn_module_load_options *options);

/* Installs an observer of every module output on this thread, borrowed until it is replaced; NULL: none. Returns the
 * one before. */
typedef struct tarn__observer {
    void (*on_output)(struct tarn__observer *observer, tarn_module *module, const tarn_tensor *y);
} tarn__observer;
tarn__observer *tarn__observe_forward(tarn__observer *observer);

/* All parameter tensors of a module, or those of `what`, borrowed from it; the caller releases the array. False with an
 * error. */
typedef struct tarn__tensors {
    tarn_tensor **tensor;
    int count;
} tarn__tensors;
bool tarn__module_tensors(const tarn_module *module, tarn__tensors *list);
bool tarn__module_tensors_of(const tarn_module *module, int what, tarn__tensors *list);
void tarn__tensors_release(tarn__tensors *list);

/* Target of tensor->optimizer: the optimizer in whose flat buffer a parameter lives, and which alone can move it.
 * `move` transfers those of the listed tensors that it trains, with gradients and state, to a device: all of them or,
 * with an error, none. */
typedef struct tarn__optimizer_base {
    bool (*move)(struct tarn__optimizer_base *optimizer, const tarn__tensors *list, tarn_device device);
} tarn__optimizer_base;

#endif
