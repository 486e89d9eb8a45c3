/* tensor.c: lifetime, checks and queries of tensors. Headers are reference-counted; the storage is shared by views.
 * Freed headers go into quarantine with their name, so that an error can tell which tensor was used after free.
 *
 * Threads: reference counts are atomic, so a tensor may be released by any thread; everything else of a header is
 * written by one thread at a time. handles_lock guards the handle lists of all origins: they change rarely. */
#include "core/tensor/tensor.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

/* ---- life -------------------------------------------------------------------------------------------------------- */

/* A zeroed header with one reference, its own origin, in no scope. */
static tarn_tensor *new_header(void)
{
    tarn_tensor *tensor = tarn__alloc(sizeof(*tensor));
    if (!tensor)
        return NULL;
    tensor->references = 1;
    tensor->origin = tensor;
    tensor->state = TARN__TENSOR_LIVE;
    return tensor;
}

/* Stores the name in place of the strides of a freed header, for the error message. */
static void note_name(tarn_tensor *tensor, const char *name)
{
    char *note = (char *)tensor->view.stride;
    size_t length = strlen(name), capacity = sizeof(tensor->view.stride) - 1;
    length = length < capacity ? length : capacity;
    memcpy(note, name, length);
    note[length] = '\0';
}

/* Poisons the header, stores its name for error messages, and puts it into quarantine. */
static void release_header(tarn_tensor *tensor)
{
    if (tensor->origin == tensor)
        tensor->view.stride[0] = 0;
    if (tensor->name) {
        note_name(tensor, tensor->name);
        tarn__string_free(tensor->name);
    }
    tensor->storage = NULL;
    tensor->state = TARN__TENSOR_FREED;
    tarn__release_late(tensor, sizeof(*tensor));
}

/* Copies memory and offset of the storage into the view. A quantized view has its byte offset in `base`, because the
 * storage's offset need not be a multiple of the block size. */
static void place_view(tarn_tensor *tensor)
{
    const tarn__dtype *row = &tarn__dtypes[tensor->view.dtype];
    bool is_plain = row->block_elements == 1; /* its storage starts at a multiple of the element size */
    tensor->view.memory = tensor->storage->memory;
    tensor->view.offset = (is_plain ? tensor->storage->offset / row->block_bytes : 0) + tensor->start;
    tensor->view.base = is_plain ? 0 : tensor->storage->offset;
}

/* Header and storage; nothing is initialized. Strides follow `order`, innermost last. */
tarn_tensor *tarn__tensor_new_ordered(const char *function, tarn_shape shape, tarn_dtype dtype, tarn_device device,
                                      const int *order)
{
    if (tarn_failed() || !tarn__check_shape(function, shape, dtype) || !tarn__backend_of(device, function))
        return NULL;
    tarn_tensor *tensor = new_header();
    if (!tensor) {
        tarn__raise_within(function);
        return NULL;
    }
    tensor->view.dtype = dtype;
    tensor->view.rank = shape.rank;
    memcpy(tensor->view.shape, shape.size, sizeof(tensor->view.shape));
    int64_t next = 1;
    for (int i = shape.rank - 1; i >= 0; i--) {
        int axis = order ? order[i] : i;
        tensor->view.stride[axis] = next;
        next *= shape.size[axis] > 0 ? shape.size[axis] : 1;
    }
    tensor->storage = tarn__storage_new(device, (size_t)tarn__bytes_of(dtype, tarn__view_count(&tensor->view)));
    if (!tensor->storage) {
        release_header(tensor);
        tarn__raise_within(function);
        return NULL;
    }
    place_view(tensor);
    tarn__scope_add(tensor);
    return tensor;
}

tarn_tensor *tarn__tensor_new(const char *function, tarn_shape shape, tarn_dtype dtype, tarn_device device)
{
    return tarn__tensor_new_ordered(function, shape, dtype, device, NULL);
}

/* On failure the storage's reference is dropped, so the caller has nothing to clean up. */
tarn_tensor *tarn__tensor_on(const char *function, tarn_shape shape, tarn_dtype dtype, tarn__storage *storage)
{
    tarn_tensor *tensor = !tarn_failed() && tarn__check_shape(function, shape, dtype) ? new_header() : NULL;
    if (!tensor) {
        tarn__storage_release(storage);
        tarn__raise_within(function);
        return NULL;
    }
    tensor->view.dtype = dtype;
    tensor->view.rank = shape.rank;
    memcpy(tensor->view.shape, shape.size, sizeof(tensor->view.shape));
    tensor->storage = storage;
    tarn__view_set_row_major(&tensor->view);
    place_view(tensor);
    tarn__scope_add(tensor);
    return tensor;
}

/* A second header on x's storage, in no scope. */
static tarn_tensor *new_header_on(tarn_tensor *x)
{
    tarn_tensor *view = new_header();
    if (!view)
        return NULL;
    view->view = x->view;
    view->storage = x->storage;
    view->start = x->start;
    view->constant = x->constant;
    view->is_constant = x->is_constant;
    if (view->storage)
        tarn__storage_retain(view->storage);
    return view;
}

tarn_tensor *tarn__tensor_view(tarn_tensor *x)
{
    tarn_tensor *view = new_header_on(x);
    if (view)
        tarn__scope_add(view);
    return view;
}

void tarn__tensor_set_start(tarn_tensor *view, int64_t start)
{
    view->start = start;
    place_view(view);
}

/* ---- handles --------------------------------------------------------------------------------------------------- */

static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER; /* of the handle lists of all origins */

/* Handles of handles have the same origin: chains never form. */
tarn_tensor *tarn__tensor_handle(tarn_tensor *tensor)
{
    tarn_tensor *origin = tensor->origin, *handle = new_header_on(origin);
    if (!handle)
        return NULL;
    tarn__tensor_retain(origin);
    handle->origin = origin;
    pthread_mutex_lock(&handles_lock);
    handle->next = origin->handles;
    if (handle->next)
        handle->next->previous = handle;
    origin->handles = handle;
    pthread_mutex_unlock(&handles_lock);
    return handle;
}

/* Removes a handle from its origin's list and releases the origin. */
static void unlink_handle(tarn_tensor *handle)
{
    pthread_mutex_lock(&handles_lock);
    if (handle->previous)
        handle->previous->next = handle->next;
    else
        handle->origin->handles = handle->next;
    if (handle->next)
        handle->next->previous = handle->previous;
    pthread_mutex_unlock(&handles_lock);
    note_name(handle, handle->origin->name ? handle->origin->name : "");
    tarn__tensor_release(handle->origin);
}

/* Used when an optimizer moves parameters into its flat buffer, and when a module moves to another device. The old
 * storage, which the handles share, is released without the lock: the owner of borrowed memory is called back, and may
 * free other tensors. */
void tarn__tensor_set_storage(tarn_tensor *tensor, tarn__storage *storage)
{
    tarn__storage *old = tensor->storage;
    tensor->storage = storage;
    tarn__view_set_row_major(&tensor->view);
    tarn__tensor_set_start(tensor, 0);
    pthread_mutex_lock(&handles_lock);
    for (tarn_tensor *handle = tensor->handles; handle; handle = handle->next) {
        tarn__storage_retain(storage);
        tarn__storage_release(handle->storage);
        handle->storage = storage;
        handle->start = tensor->start;
        handle->view = tensor->view;
    }
    pthread_mutex_unlock(&handles_lock);
    tarn__storage_release(old);
}

/* ---- references -------------------------------------------------------------------------------------------------- */

void tarn__tensor_retain(tarn_tensor *tensor)
{
    atomic_fetch_add_explicit(&tensor->references, 1, memory_order_relaxed);
}

/* The last reference releases grad_fn, gradient and storage; the header goes into quarantine. */
void tarn__tensor_release(tarn_tensor *tensor)
{
    if (!tensor || atomic_fetch_sub_explicit(&tensor->references, 1, memory_order_acq_rel) != 1)
        return;
    if (tensor->origin != tensor)
        unlink_handle(tensor);
    tarn__grad_fn_release(tensor->grad_fn);
    tarn__tensor_release(tensor->grad);
    tarn__storage_release(tensor->storage);
    release_header(tensor);
}

void tarn__grad_fn_retain(tarn__grad_fn *grad_fn)
{
    atomic_fetch_add_explicit(&grad_fn->references, 1, memory_order_relaxed);
}

void tarn__grad_fn_release(tarn__grad_fn *grad_fn)
{
    if (grad_fn && atomic_fetch_sub_explicit(&grad_fn->references, 1, memory_order_acq_rel) == 1)
        grad_fn->release(grad_fn);
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* A freed header still has its dtype, shape and name; anything else is an invalid pointer. */
bool tarn__raise_not_live(const char *function, const tarn_tensor *tensor, const char *role)
{
    if (tensor->state != TARN__TENSOR_FREED)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s is not a tensor: a wrong pointer, or one freed long ago",
                           function, role);
    const char *name = (const char *)tensor->view.stride;
    const char *quote = name[0] ? "'" : "", *end = name[0] ? "' " : "";
    return tarn__raise(
        TARN_ERROR_ARGUMENT,
        "%s: %s was freed: %s%s%s%s %s; use it before tarn_free() or its scope's close, or a handle from "
        "tarn_keep()",
        function, role, quote, name, end, tarn_dtype_name(tensor->view.dtype), TARN__SHAPE_STRING(tensor));
}

bool tarn__check_any(const char *function, const tarn_tensor *tensor, const char *role)
{
    if (tarn_failed())
        return false;
    return tensor ? tarn__check_live(function, tensor, role)
                  : tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s is NULL", function, role);
}

bool tarn__check(const char *function, const tarn_tensor *tensor, const char *role)
{
    if (!tarn__check_any(function, tensor, role))
        return false;
    return !tarn__is_quantized(tensor->view.dtype) ||
           tarn__raise(TARN_ERROR_DTYPE, "%s: %s is %s, a quantized dtype; convert it with tarn_cast() first", function,
                       role, tarn_dtype_name(tensor->view.dtype));
}

/* The error lists the accepted dtypes. Constants pass: they convert to any. */
bool tarn__check_dtype(const char *function, const tarn_tensor *tensor, uint32_t mask, const char *role)
{
    if (tensor->is_constant || ((mask >> tensor->view.dtype) & 1))
        return true;
    char names[160] = "";
    for (int i = 0; i < TARN_DTYPE_COUNT; i++)
        if ((mask >> i) & 1)
            snprintf(names + strlen(names), sizeof(names) - strlen(names), " %s", tarn__dtypes[i].name);
    return tarn__raise(TARN_ERROR_DTYPE, "%s: %s is %s, but must be one of%s; convert it with tarn_cast()", function,
                       role, tarn_dtype_name(tensor->view.dtype), names);
}

/* Limits the byte count to half of 63 bits, so that offsets and sums of two sizes cannot overflow. */
bool tarn__check_shape(const char *function, tarn_shape shape, tarn_dtype dtype)
{
    if ((unsigned)dtype >= TARN_DTYPE_COUNT)
        return tarn__raise(TARN_ERROR_DTYPE, "%s: unknown dtype %d", function, (int)dtype);
    if (shape.rank < 0 || shape.rank > TARN_MAX_RANK)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: rank %d is outside 0 to %d", function, shape.rank, TARN_MAX_RANK);
    int64_t limit = INT64_MAX / 2 / (int64_t)tarn__dtype_bytes(dtype), count = 1,
            block = tarn__dtypes[dtype].block_elements;
    if (block > 1 && (shape.rank == 0 || shape.size[shape.rank - 1] % block != 0))
        return tarn__raise(
            TARN_ERROR_SHAPE,
            "%s: the last axis of %s does not fit %s: its size must be a multiple of the quant block size, %lld",
            function, tarn__shape_string(shape.size, shape.rank, &(tarn__shape_buffer){{0}}), tarn_dtype_name(dtype),
            (long long)block);
    for (int i = 0; i < shape.rank; i++) {
        int64_t size = shape.size[i];
        if (size < 0)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: size %lld of axis %d is negative", function, (long long)size, i);
        if (size > 0 && count > limit / size)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: %s has more bytes than can be addressed", function,
                               tarn__shape_string(shape.size, shape.rank, &(tarn__shape_buffer){{0}}));
        count *= size > 0 ? size : 1;
    }
    return true;
}

/* The last axis keeps stride 1 and whole blocks; outer axes step by whole blocks. */
bool tarn__check_layout(const char *function, const tarn__view *layout)
{
    if (!tarn__is_quantized(layout->dtype))
        return true;
    int64_t block = tarn__dtypes[layout->dtype].block_elements;
    int last = layout->rank - 1;
    bool whole = last >= 0 && layout->shape[last] % block == 0, empty = tarn__view_count(layout) == 0;
    whole = whole && (empty || (layout->stride[last] == 1 && layout->offset % block == 0));
    for (int i = 0; whole && !empty && i < last; i++)
        whole = layout->shape[i] == 1 || layout->stride[i] % block == 0;
    return whole ||
           tarn__raise(TARN_ERROR_SHAPE,
                       "%s: x is %s, with quant blocks of %lld elements along its last axis: it must stay last, and be "
                       "split between blocks",
                       function, tarn_dtype_name(layout->dtype), (long long)block);
}

int tarn__check_axis(const char *function, int axis, int rank)
{
    int axes = rank > 0 ? rank : 1; /* rank 0 accepts axes 0 and -1, as torch does */
    if (axis >= -axes && axis < axes)
        return axis < 0 ? axis + axes : axis;
    tarn__raise(TARN_ERROR_SHAPE, "%s: axis %d is outside %d to %d of a tensor of rank %d", function, axis, -axes,
                axes - 1, rank);
    return -1;
}

/* ---- queries --------------------------------------------------------------------------------------------------- */

const char *tarn__shape_string(const int64_t *size, int rank, tarn__shape_buffer *text)
{
    size_t used = (size_t)snprintf(text->text, sizeof(text->text), "[");
    for (int i = 0; i < rank && i < TARN_MAX_RANK; i++)
        used +=
            (size_t)snprintf(text->text + used, sizeof(text->text) - used, "%s%lld", i ? ", " : "", (long long)size[i]);
    snprintf(text->text + used, sizeof(text->text) - used, "]");
    return text->text;
}

tarn_shape tarn__shape_of(const tarn_tensor *tensor)
{
    tarn_shape shape = {.rank = tensor->view.rank};
    memcpy(shape.size, tensor->view.shape, sizeof(shape.size));
    return shape;
}

/* Checks of queries, which work while an error is pending. */
static bool given(const char *function, const tarn_tensor *tensor)
{
    return tensor ? tarn__check_live(function, tensor, "the tensor")
                  : tarn__raise(TARN_ERROR_ARGUMENT, "%s: the tensor is NULL", function);
}

tarn_dtype tarn_dtype_of(const tarn_tensor *tensor)
{
    return given("dtype_of", tensor) ? tensor->view.dtype : TARN_DTYPE_COUNT;
}

int tarn_rank(const tarn_tensor *tensor)
{
    return given("rank", tensor) ? tensor->view.rank : -1;
}

tarn_shape tarn_shape_of(const tarn_tensor *tensor)
{
    return given("shape_of", tensor) ? tarn__shape_of(tensor) : (tarn_shape){.rank = -1};
}

static int64_t at_axis(const char *function, const tarn_tensor *tensor, const int64_t *list, int axis)
{
    if (tensor->view.rank == 0) {
        tarn__raise(TARN_ERROR_SHAPE, "%s: a tensor of rank 0 has no axis %d", function, axis);
        return -1;
    }
    axis = tarn__check_axis(function, axis, tensor->view.rank);
    return axis < 0 ? -1 : list[axis];
}

int64_t tarn_size(const tarn_tensor *tensor, int axis)
{
    return given("size", tensor) ? at_axis("size", tensor, tensor->view.shape, axis) : -1;
}

int64_t tarn_stride_of(const tarn_tensor *tensor, int axis)
{
    return given("stride_of", tensor) ? at_axis("stride_of", tensor, tensor->view.stride, axis) : -1;
}

int64_t tarn_count(const tarn_tensor *tensor)
{
    return given("count", tensor) ? tarn__view_count(&tensor->view) : -1;
}

int64_t tarn_bytes(const tarn_tensor *tensor)
{
    return given("bytes", tensor) ? tarn__bytes_of(tensor->view.dtype, tarn__view_count(&tensor->view)) : -1;
}

tarn_device tarn_device_of(const tarn_tensor *tensor)
{
    return given("device_of", tensor) ? tarn__device(tensor) : tarn_device_cpu();
}

bool tarn_is_contiguous(const tarn_tensor *tensor)
{
    return given("is_contiguous", tensor) && tarn__view_is_contiguous(&tensor->view);
}

const char *tarn_name(const tarn_tensor *tensor)
{
    return given("name", tensor) && tensor->origin->name ? tensor->origin->name : "";
}

/* The name belongs to the origin and, for memory reports, to the storage. */
tarn_tensor *tarn_set_name(tarn_tensor *tensor, const char *name)
{
    if (!tarn__check_any("set_name", tensor, "the tensor"))
        return NULL;
    if (!name) {
        tarn__raise(TARN_ERROR_ARGUMENT, "set_name: the name is NULL");
        return NULL;
    }
    char *copy = tarn__alloc(strlen(name) + 1);
    if (!copy)
        return NULL;
    memcpy(copy, name, strlen(name) + 1);
    tarn__string_free(tensor->origin->name);
    tensor->origin->name = copy;
    if (tensor->storage)
        tarn__storage_set_name(tensor->storage, name);
    return tensor;
}

/* The address of the first element, for interoperation; an error where memory is only a handle. */
void *tarn_data(const tarn_tensor *tensor)
{
    if (!tarn__check_any("data", tensor, "the tensor"))
        return NULL;
    if (!tensor->storage || !tarn__backend_at(tarn__device(tensor).backend)->plain_addresses) {
        tarn__raise(TARN_ERROR_UNSUPPORTED, "data: %s",
                    tensor->storage ? "memory of this device has no host address" : "a tarn_scalar() has no memory");
        return NULL;
    }
    return tarn__view_at(&tensor->view);
}
