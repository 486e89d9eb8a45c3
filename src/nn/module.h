/* module.h: what a module is.
 *
 * A module is a forward function with parameters, buffers (state that is not trained: running means) and children, all
 * named. It owns them: parameters and buffers are tensors that it holds, children are freed with it. A module has at
 * most one parent, so the tree has one root; every parameter and buffer knows its path from there ("0.weight"), and a
 * name relative to a module below the root is the end of that path. The same tensor may be a parameter of several
 * modules (tying); whoever lists the parameters of a module meets it once, where it comes first. */
#ifndef TARN__MODULE_H
#define TARN__MODULE_H

#include <tarn/nn.h>

#include "core/tensor/tensor.h"

/* A parameter or a buffer. */
typedef struct tarn__parameter {
    char *path;          /* from the root of the tree; its last part is the name it was added with */
    tarn_tensor *tensor; /* held */
    bool is_buffer;
} tarn__parameter;

/* How the weight of a layer that can have an adapter lies: x · weightᵀ or x · weight. */
typedef enum tarn__linear_form { TARN__NOT_LINEAR = 0, TARN__LINEAR_OUT_IN, TARN__LINEAR_IN_OUT } tarn__linear_form;

struct tarn__adapter; /* lora.h */

struct tarn_module {
    char *kind;
    tarn_forward_fn forward;
    void *ctx;
    void (*release)(void *ctx); /* NULL: nothing to do */
    size_t settings_bytes;      /* ctx is a record of that size, owned; 0: it is the caller's */
    bool is_callback;           /* forward is a caller's function and runs in a scope of its own */
    bool training;
    tarn__linear_form linear;
    struct tarn__adapter *adapter; /* owned; NULL: none */
    tarn_module *parent;           /* NULL: a root, which its caller owns */
    char *name;                    /* in the parent */
    tarn__parameter *parameter;
    int parameters, parameter_capacity;
    tarn_module **child; /* owned */
    int children, child_capacity;
};

/* A module without parameters. Takes ctx, on failure too. */
tarn_module *tarn__module_new(const char *function, const char *kind, tarn_forward_fn forward, void *ctx,
                              void (*release)(void *ctx));

/* A module whose ctx is a copy of a layer's settings. */
tarn_module *tarn__module_new_with(const char *function, const char *kind, tarn_forward_fn forward,
                                   const void *settings, size_t bytes);

/* Frees a module and all below it, whoever its parent is. */
void tarn__module_free_tree(tarn_module *module);

/* The module's own parameter or buffer of that name; NULL: it has none. Borrowed. */
tarn_tensor *tarn__module_own(const tarn_module *module, const char *name);

/* Shows y, what a module made, to whoever observes modules. Returns it; NULL stays NULL. */
tarn_tensor *tarn__observe_output(tarn_module *module, tarn_tensor *y);

/* relu(module(x) + residual), residual may be NULL; as one operation where the module ends with a batchnorm. Borrows
 * all; the result belongs to the open scope. The second is for a batchnorm layer alone. */
tarn_tensor *tarn__forward_relu(tarn_module *module, tarn_tensor *x, tarn_tensor *residual);
tarn_tensor *tarn__batchnorm_relu(tarn_module *module, tarn_tensor *x, tarn_tensor *residual);
bool tarn__ends_with_batchnorm(const tarn_module *module);

/* Child *i of a sequential, and the relu behind it where both are one operation: *i is then moved on to that. */
tarn_tensor *tarn__forward_at(tarn_module *module, int *i, tarn_tensor *x);

/* What a layer is. A residual's children are its body and, if it has one, its shortcut. */
bool tarn__is_batchnorm(const tarn_module *module);
bool tarn__is_relu(const tarn_module *module);
bool tarn__is_sequential(const tarn_module *module);
bool tarn__is_residual(const tarn_module *module);

/* Raises when the module is NULL. */
bool tarn__check_module(const char *function, const tarn_module *module);

/* Raises unless parameters may be of the dtype. */
bool tarn__check_parameter_dtype(const char *function, tarn_dtype dtype);

/* What the norms share: raises unless size and options can be; and gives a module "weight" of ones and "bias" of zeros,
 * as far as the options want them. */
bool tarn__check_norm(const char *function, int64_t size, const tarn_norm_options *options);
bool tarn__add_affine(tarn_module *module, int64_t size, tarn_device device, const tarn_norm_options *options);

/* Raises unless a parameter, buffer or child of that name can be added. */
bool tarn__check_name(const char *function, const tarn_module *module, const char *name);

/* The path from the root of something called `name` in a module. The caller releases the text. NULL with an error
 * raised. */
char *tarn__path_of(const tarn_module *module, const char *name);

/* A parameter's or buffer's name as seen from `module`: its path without what lies above the module. Borrowed. */
const char *tarn__name_from(const tarn_module *module, const tarn__parameter *parameter);

/* Gives a tensor its path as its name; a tied one bears the name of its first place. */
bool tarn__name_tensor(const tarn_module *module, const tarn__parameter *parameter);

/* Makes all paths in a tree anew: it got a new root. */
bool tarn__rename_tree(tarn_module *module);

const tarn_module *tarn__module_root(const tarn_module *module);

/* Where a tensor comes first among a module's parameters and buffers; NULL: nowhere. */
const tarn__parameter *tarn__module_first(const tarn_module *module, const tarn_tensor *tensor);

/* Calls `visit` for every parameter, buffer or both, a module's own first, then its children's, until it returns false.
 * A tied tensor is met once; with TARN__MODULE_ALIASES, wherever it stands. */
enum { TARN__MODULE_PARAMETERS = 1, TARN__MODULE_BUFFERS = 2, TARN__MODULE_STATE = 3, TARN__MODULE_ALIASES = 4 };
typedef bool (*tarn__visit_fn)(const tarn__parameter *parameter, void *ctx);
void tarn__module_walk_over(const tarn_module *module, int what, tarn__visit_fn visit, void *ctx);
void tarn__module_walk(const tarn_module *module, tarn__visit_fn visit, void *ctx); /* over the parameters */

/* Rounds all parameters to a float dtype; buffers (running statistics) keep theirs. The module is new: there are no
 * gradients and no optimizer yet. False with an error. */
bool tarn__module_cast(tarn_module *module, tarn_dtype dtype);

/* How many tensors a walk over `what` meets. */
int tarn__module_count(const tarn_module *module, int what);

/* tarn_module_load() from a file that is open; `path` is for errors, which begin with module_load. */
struct tarn_safetensors;
bool tarn__module_load_file(tarn_module *module, const struct tarn_safetensors *file, const char *path,
                            const tarn_module_load_options *options);

/* Sees the result of every tarn_forward() on this thread while it is set; NULL: none. Returns the one before. */
typedef struct tarn__observer {
    void (*on_output)(struct tarn__observer *observer, tarn_module *module, const tarn_tensor *y);
} tarn__observer;
tarn__observer *tarn__observe_forward(tarn__observer *observer);

/* All parameter tensors of a module (or, with `what`, its buffers too), borrowed from it; the caller releases the list.
 * False with an error raised. */
typedef struct tarn__tensors {
    tarn_tensor **tensor;
    int count;
} tarn__tensors;
bool tarn__module_tensors(const tarn_module *module, tarn__tensors *list);
bool tarn__module_tensors_of(const tarn_module *module, int what, tarn__tensors *list);
void tarn__tensors_release(tarn__tensors *list);

/* What tensor->trainer points to: an optimizer keeps the tensor's memory in a flat buffer, and moving it is the
 * optimizer's work. `move` brings those of the listed tensors that it trains, with their gradients and state, to a
 * device: all of them or, with an error, none. */
typedef struct tarn__trainer {
    bool (*move)(struct tarn__trainer *trainer, const tarn__tensors *list, tarn_device device);
} tarn__trainer;

#endif
