/* tensor.h: the tensor, scopes, and the helpers that every operation's face uses. */
#ifndef TARN__TENSOR_H
#define TARN__TENSOR_H

#include <stdatomic.h>
#include <tarn/tensor.h>

#include "base/error.h"
#include "core/memory/storage.h"

/* What made a tensor, as far as the core needs to know: a counted record that releases itself. The tape's nodes begin
 * with one. */
typedef struct tarn__history {
    _Atomic int references;
    void (*release)(struct tarn__history *history); /* called when the last reference is gone */
} tarn__history;

/* What a header is: memory that was freed stays readable in quarantine, so that its use is an error rather than
 * nonsense. */
#define TARN__TENSOR_LIVE 0x7461726eu
#define TARN__TENSOR_FREED 0x64656164u

/* A kept handle is a header of its own on the storage of the tensor that was kept, its origin. What makes a tensor a
 * leaf or a result (history, requires_grad, grad, trainer) and its name are the origin's alone and are reached as
 * tensor->origin->…: the handle and the tensor are the same parameter. */
struct tarn_tensor {
    _Atomic int references; /* one for its scope or keeper, one for each holder inside the library */
    _Atomic int kept;       /* of these, those that belong to callers outside scopes */
    tarn_tensor *origin;    /* itself, or the tensor that was kept, which is held */
    uint32_t state;         /* TARN__TENSOR_LIVE or _FREED; else no tensor; not where free() writes */
    tarn__view view;        /* memory and offset are the storage's, copied */
    tarn__storage *storage;
    int64_t start;                /* first element, in elements from the storage's start */
    tarn_scope *scope;            /* NULL when kept */
    tarn_tensor *previous, *next; /* in the scope; of a kept handle: among its origin's handles */
    tarn_tensor *handles;         /* kept handles of this origin, which follow it to another storage */
    char *name;
    double constant; /* of a tarn_scalar() */
    bool is_constant;
    bool requires_grad;     /* a leaf into which gradients flow */
    tarn__history *history; /* the node that made it, NULL for a leaf */
    int history_output;     /* which of that node's outputs it is */
    tarn_tensor *grad;      /* of a leaf; owned */
    bool grad_is_set;       /* grad holds a value, rather than a place for one */
    void *trainer;          /* the optimizer that owns its memory, NULL: none */
};

/* ---- life -------------------------------------------------------------------------------------------------------- */

/* A tensor on a new storage, dense, uninitialised, in the open scope. NULL with an error naming `function`. */
tarn_tensor *tarn__tensor_new(const char *function, tarn_shape shape, tarn_dtype dtype, tarn_device device);

/* The same with a given layout of a dense tensor: axis order[0] has the largest stride. */
tarn_tensor *tarn__tensor_new_ordered(const char *function, tarn_shape shape, tarn_dtype dtype, tarn_device device,
                                      const int *order);

/* A dense tensor on a storage that is there, in the open scope: takes the reference to it, on failure too. NULL with an
 * error naming `function`. */
tarn_tensor *tarn__tensor_on(const char *function, tarn_shape shape, tarn_dtype dtype, tarn__storage *storage);

/* A view of x's storage in the open scope; the caller sets shape and strides in result->view, and `start` with
 * tarn__tensor_set_start(). */
tarn_tensor *tarn__tensor_view(tarn_tensor *x);
void tarn__tensor_set_start(tarn_tensor *view, int64_t start);

/* Puts a tensor onto another storage, keeping the handle: takes the reference to `storage`. The tensor becomes dense.
 */
void tarn__tensor_set_storage(tarn_tensor *tensor, tarn__storage *storage);

/* A handle of its own on the same storage, in no scope, with one reference. NULL with an error. */
tarn_tensor *tarn__tensor_handle(tarn_tensor *tensor);

/* References that keep a tensor alive beyond its scope. */
void tarn__tensor_retain(tarn_tensor *tensor);
void tarn__tensor_release(tarn_tensor *tensor); /* NULL is allowed */

void tarn__history_retain(tarn__history *history);
void tarn__history_release(tarn__history *history);

/* ---- scopes ------------------------------------------------------------------------------------------------------ */

/* Puts a new tensor, with its one reference, into the open scope. */
void tarn__scope_add(tarn_tensor *tensor);

/* Takes a tensor out of its scope: the caller owns it and releases it with tarn_free(). One that is in none gets
 * another such reference. For results that the library stores; NULL with an error. */
tarn_tensor *tarn__scope_take(tarn_tensor *tensor);

/* The innermost open scope; NULL: the root. */
tarn_scope *tarn__scope_top(void);

/* Ends a callback that ran in `scope` (NULL with an error where it returned a freed tensor): closes what it left open
 * inside, and moves its result to the scope around. Returns the result; `made_inside` (may be NULL) says whether it
 * belonged to one of these scopes. */
tarn_tensor *tarn__scope_pass_out(tarn_scope *scope, tarn_tensor *tensor, bool *made_inside);

/* ---- checks at the door ------------------------------------------------------------------------------------------ */

/* Raises when the tensor, not NULL, was freed or is none. Every public function that takes a tensor comes by here. */
bool tarn__raise_not_live(const char *function, const tarn_tensor *tensor, const char *role);
static inline bool tarn__check_live(const char *function, const tarn_tensor *tensor, const char *role)
{
    return tensor->state == TARN__TENSOR_LIVE || tarn__raise_not_live(function, tensor, role);
}

/* False while an error is pending; raises one when the tensor is NULL or was freed. `role` is "x", "weight" … */
bool tarn__check_any(const char *function, const tarn_tensor *tensor, const char *role);

/* The same, and raises one when the tensor holds blocks: what computes with elements takes none. */
bool tarn__check(const char *function, const tarn_tensor *tensor, const char *role);

/* Raises unless blocks stay whole and along the last axis in a view of them that has this layout; other dtypes may have
 * any. */
bool tarn__check_layout(const char *function, const tarn__view *layout);

/* Raises unless the dtype is in the mask. */
bool tarn__check_dtype(const char *function, const tarn_tensor *tensor, uint32_t mask, const char *role);

/* Raises unless the sizes are valid and their product, in bytes, fits. */
bool tarn__check_shape(const char *function, tarn_shape shape, tarn_dtype dtype);

/* Turns a negative axis into a positive one; -1 with an error when it is outside the rank. */
int tarn__check_axis(const char *function, int axis, int rank);

/* ---- small conveniences ------------------------------------------------------------------------------------------ */

static inline tarn_device tarn__device(const tarn_tensor *tensor)
{
    return tensor->storage ? tensor->storage->device : (tarn_device){0, 0};
}

static inline bool tarn__same_shape(const tarn__view *a, const tarn__view *b)
{
    bool same = a->rank == b->rank;
    for (int i = 0; same && i < a->rank; i++)
        same = a->shape[i] == b->shape[i];
    return same;
}

tarn_shape tarn__shape_of(const tarn_tensor *tensor);

/* Writes "[32, 768]" into `text` and returns it. There is room for eight numbers of 20 characters. */
typedef struct tarn__shape_buffer {
    char text[192];
} tarn__shape_buffer;
const char *tarn__shape_string(const int64_t *size, int rank, tarn__shape_buffer *text);
#define TARN__SHAPE_STRING(tensor) \
    tarn__shape_string((tensor)->view.shape, (tensor)->view.rank, &(tarn__shape_buffer){{0}})

/* Raises the version of a tensor that was written in place. */
static inline void tarn__bump_version(tarn_tensor *tensor)
{
    atomic_fetch_add_explicit(&tensor->storage->version, 1, memory_order_relaxed);
}

/* ---- quantized tensors ------------------------------------------------------------------------------------------- */

/* Tensor x of blocks as its bytes, u8: the last axis grows or shrinks, the others stay. A view in the open scope. */
tarn_tensor *tarn__quant_bytes(tarn_tensor *x);

/* Copies where one of both holds blocks, on one device: blocks to blocks of the same kind, byte for byte; blocks to
 * floats. Anything else raises an error. */
bool tarn__quant_copy(const char *function, tarn_tensor *to, tarn_tensor *from);

#endif
