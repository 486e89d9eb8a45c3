/* tensor.h: the tensor header, scopes, and the checks that every operation uses.
 *
 * Ownership: a tensor belongs to the scope that was open when it was created, and is freed with it, unless the
 * caller keeps a handle (tarn_keep()) or the library retains it. Headers are freed into quarantine, so that use
 * after free is an error instead of undefined behaviour. */
#ifndef TARN__TENSOR_H
#define TARN__TENSOR_H

#include <stdatomic.h>
#include <tarn/tensor.h>

#include "base/error.h"
#include "core/memory/storage.h"

/* The node that produced a tensor, as far as core knows it: a reference-counted record. The nodes of the tape begin
 * with one. */
typedef struct tarn__grad_fn {
    _Atomic int references;
    void (*release)(struct tarn__grad_fn *grad_fn); /* called with the last reference */
} tarn__grad_fn;

/* States of a header: a freed one stays readable in quarantine, so that its use is reported. */
#define TARN__TENSOR_LIVE 0x7461726eu
#define TARN__TENSOR_FREED 0x64656164u

/* A handle from tarn_keep() is a second header on the storage of the tensor it was made from, its origin. grad_fn,
 * requires_grad, grad, optimizer and name belong to the origin alone and are accessed as tensor->origin->…: handle and
 * tensor are the same parameter. */
struct tarn_tensor {
    _Atomic int references; /* one for its scope or the caller, one per use inside the library */
    _Atomic int kept;       /* of these, those owned by callers, outside scopes */
    tarn_tensor *origin;    /* itself, or the tensor a handle was made from, retained */
    uint32_t state;         /* TARN__TENSOR_LIVE or _FREED, else not a tensor; placed where free() does not write */
    tarn__view view;        /* memory and offset copied from the storage */
    tarn__storage *storage;
    int64_t start;                /* first element, in elements from the storage's start */
    tarn_scope *scope;            /* NULL for a handle */
    tarn_tensor *previous, *next; /* in the scope; of a handle: among its origin's handles */
    tarn_tensor *handles;         /* handles of this origin, updated when its storage changes */
    char *name;
    double constant; /* of a tarn_scalar() */
    bool is_constant;
    bool requires_grad;     /* a leaf that collects a gradient */
    tarn__grad_fn *grad_fn; /* the node whose output it is, retained; NULL for a leaf */
    int grad_fn_output;     /* index among that node's outputs */
    tarn_tensor *grad;      /* of a leaf; owned */
    bool grad_is_set;       /* grad has a value, not just memory */
    uint64_t first_use;     /* of a leaf: its first node of the last watched pass (autograd/tape.h) */
    void *optimizer;        /* the optimizer that owns its memory; NULL: none */
};

/* ---- lifetime -------------------------------------------------------------------------------------------------- */

/* A new contiguous, uninitialized tensor in the open scope. NULL with an error naming `function`. */
tarn_tensor *tarn__tensor_new(const char *function, tarn_shape shape, tarn_dtype dtype, tarn_device device);

/* The same with a given order of axes: axis order[0] has the largest stride. */
tarn_tensor *tarn__tensor_new_ordered(const char *function, tarn_shape shape, tarn_dtype dtype, tarn_device device,
                                      const int *order);

/* A contiguous tensor on an existing storage, in the open scope. Takes over the reference to it, even on failure. */
tarn_tensor *tarn__tensor_on(const char *function, tarn_shape shape, tarn_dtype dtype, tarn__storage *storage);

/* A view of x's storage in the open scope. The caller sets shape and strides in result->view, and the start with
 * tarn__tensor_set_start(). */
tarn_tensor *tarn__tensor_view(tarn_tensor *x);
void tarn__tensor_set_start(tarn_tensor *view, int64_t start);

/* Moves a tensor and its handles to another storage and makes it contiguous. Takes over the reference to `storage`;
 * the elements are not copied. */
void tarn__tensor_set_storage(tarn_tensor *tensor, tarn__storage *storage);

/* A new handle of the tensor's origin, in no scope, with one reference. NULL with an error. */
tarn_tensor *tarn__tensor_handle(tarn_tensor *tensor);

/* References beyond the scope. */
void tarn__tensor_retain(tarn_tensor *tensor);
void tarn__tensor_release(tarn_tensor *tensor); /* NULL is allowed */

void tarn__grad_fn_retain(tarn__grad_fn *grad_fn);
void tarn__grad_fn_release(tarn__grad_fn *grad_fn);

/* ---- scopes ------------------------------------------------------------------------------------------------------ */

/* Adds a new tensor, with its one reference, to the open scope. */
void tarn__scope_add(tarn_tensor *tensor);

/* Takes a tensor out of its scope: the caller owns it and releases it with tarn_free(). A tensor in no scope gets
 * another such reference. For results stored by the library; NULL with an error. */
tarn_tensor *tarn__scope_take(tarn_tensor *tensor);

/* The innermost open scope of this thread; NULL: the root scope. */
tarn_scope *tarn__scope_top(void);

/* Ends a user's callback that ran in `scope`: closes scopes it left open and moves its result to the enclosing
 * scope. Returns the result, or NULL with an error where it was freed. `made_inside` (may be NULL) says whether it
 * belonged to one of these scopes. */
tarn_tensor *tarn__scope_pass_out(tarn_scope *scope, tarn_tensor *tensor, bool *made_inside);

/* ---- argument checks ------------------------------------------------------------------------------------------- */

/* Raises when the tensor, not NULL, was freed or is not one. Every public function with a tensor argument calls
 * this. */
bool tarn__raise_not_live(const char *function, const tarn_tensor *tensor, const char *role);
static inline bool tarn__check_live(const char *function, const tarn_tensor *tensor, const char *role)
{
    return tensor->state == TARN__TENSOR_LIVE || tarn__raise_not_live(function, tensor, role);
}

/* False while an error is pending; raises one when the tensor is NULL or freed. `role` is "x", "weight" … */
bool tarn__check_any(const char *function, const tarn_tensor *tensor, const char *role);

/* The same; also raises for quantized tensors, which only a few operations support. */
bool tarn__check(const char *function, const tarn_tensor *tensor, const char *role);

/* Raises for a view of a quantized tensor that would cut blocks or move them off the last axis; other dtypes pass. */
bool tarn__check_layout(const char *function, const tarn__view *layout);

/* Raises unless the dtype is in the mask. */
bool tarn__check_dtype(const char *function, const tarn_tensor *tensor, uint32_t mask, const char *role);

/* Raises unless the sizes are valid and the bytes fit in 63 bits. */
bool tarn__check_shape(const char *function, tarn_shape shape, tarn_dtype dtype);

/* Resolves a negative axis; -1 with an error when it is out of range. */
int tarn__check_axis(const char *function, int axis, int rank);

/* ---- accessors ------------------------------------------------------------------------------------------------- */

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

/* Writes "[32, 768]" into `text` and returns it. 192 bytes hold eight sizes of 20 characters. */
typedef struct tarn__shape_buffer {
    char text[192];
} tarn__shape_buffer;
const char *tarn__shape_string(const int64_t *size, int rank, tarn__shape_buffer *text);
#define TARN__SHAPE_STRING(tensor) \
    tarn__shape_string((tensor)->view.shape, (tensor)->view.rank, &(tarn__shape_buffer){{0}})

/* Increments the version of a tensor's storage, before or after an in-place write. */
static inline void tarn__bump_version(tarn_tensor *tensor)
{
    atomic_fetch_add_explicit(&tensor->storage->version, 1, memory_order_relaxed);
}

/* ---- quantized tensors ------------------------------------------------------------------------------------------- */

/* A quantized tensor as its bytes, u8: the last axis changes its size, the others stay. A view in the open scope. */
tarn_tensor *tarn__quant_bytes(tarn_tensor *x);

/* Copies with a quantized operand, on one device: quantized to the same type byte for byte, quantized to floats.
 * Anything else raises an error; tarn_cast() quantizes. */
bool tarn__quant_copy(const char *function, tarn_tensor *to, tarn_tensor *from);

#endif
