/* module.h: what a module is.
 *
 * A module is a forward function with parameters and children, both named. It owns them: parameters are tensors that it holds, children are
 * freed with it. A module has at most one parent, so the tree has one root; every parameter knows its path from there ("0.weight"), and a
 * name relative to a module below the root is the end of that path. The same tensor may be a parameter of several modules (tying); whoever
 * lists the parameters of a module meets it once, where it comes first. */
#ifndef TARN__MODULE_H
#define TARN__MODULE_H

#include <tarn/nn.h>

#include "core/tensor.h"

typedef struct tarn__parameter {
    char *path;          /* from the root of the tree; its last part is the name it was added with */
    tarn_tensor *tensor; /* held */
} tarn__parameter;

struct tarn_module {
    char *kind;
    tarn_forward_fn forward;
    void *ctx;
    void (*release)(void *ctx); /* NULL: nothing to do */
    bool is_callback;           /* forward is a caller's function and runs in a scope of its own */
    tarn_module *parent;        /* NULL: a root, which its caller owns */
    char *name;                 /* in the parent */
    tarn__parameter *parameter;
    int parameters, parameter_room;
    tarn_module **child; /* owned */
    int children, child_room;
};

/* A module without parameters. Takes ctx, on failure too. */
tarn_module *tarn__module_new(const char *function, const char *kind, tarn_forward_fn forward, void *ctx, void (*release)(void *ctx));

/* Raises when the module is NULL. */
bool tarn__check_module(const char *function, const tarn_module *module);

/* Where a tensor comes first among a module's parameters; NULL: nowhere. */
const tarn__parameter *tarn__module_first(const tarn_module *module, const tarn_tensor *tensor);

/* Calls `visit` for every parameter, a module's own first, then its children's, until it returns false. */
typedef bool (*tarn__visit_fn)(const tarn__parameter *parameter, void *ctx);
void tarn__module_walk(const tarn_module *module, tarn__visit_fn visit, void *ctx);

/* All parameter tensors of a module, borrowed from it; the caller releases the list. False with an error raised. */
typedef struct tarn__tensors {
    tarn_tensor **tensor;
    int count;
} tarn__tensors;
bool tarn__module_tensors(const tarn_module *module, tarn__tensors *list);
void tarn__tensors_release(tarn__tensors *list);

/* What tensor->trainer points to: an optimizer keeps the tensor's memory in a flat buffer, and moving it is the optimizer's work. `move`
 * brings those of the listed tensors that it trains, with their gradients and state, to a device: all of them or, with an error, none. */
typedef struct tarn__trainer {
    bool (*move)(struct tarn__trainer *trainer, const tarn__tensors *list, tarn_device device);
} tarn__trainer;

#endif
