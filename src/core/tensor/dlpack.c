/* dlpack.c: tensors shared with other libraries. The structs of DLPack are declared here as its ABI fixes them.
 *
 * What is exported retains the storage, not the tensor: an optimizer or tarn_module_to() may move the tensor to another
 * storage, and the consumer keeps the memory that it got. What is imported is a borrowed storage whose owner is the
 * producer's struct.
 *
 * Python destroys a capsule wherever its last reference ends: in a consumer that refuses it, with that exception
 * pending, or when the interpreter has cleared all modules. No Python code can run there, hence a destructor in C. Both
 * functions that it calls are free of side effects: PyCapsule_IsValid() never raises, and PyCapsule_GetPointer() only
 * for a capsule that is not valid. */
#include <stdio.h>
#include <string.h>
#include <tarn/dlpack.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "core/device/device.h"
#include "core/tensor/tensor.h"

enum { DL_HOST = 1, DL_DEVICE = 2, DL_PINNED = 3, DL_MANAGED = 13 }; /* kinds of memory; others belong to no backend */
enum { DL_INT, DL_UINT, DL_FLOAT, DL_OPAQUE, DL_BFLOAT, DL_COMPLEX, DL_BOOL, DL_CODES };
enum { DL_MAJOR = 1, DL_MINOR = 0 };
#define DL_READ_ONLY ((uint64_t)1)

typedef struct dl_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t rank;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides; /* strides in elements; NULL: row-major */
    uint64_t byte_offset;
} dl_tensor;

struct DLManagedTensor {
    dl_tensor tensor;
    void *ctx;
    void (*deleter)(struct DLManagedTensor *self);
};

struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    dl_tensor tensor;
};

static const struct {
    tarn_dtype dtype;
    uint8_t code, bits;
} types[] = {{TARN_F32, DL_FLOAT, 32}, {TARN_F64, DL_FLOAT, 64}, {TARN_BF16, DL_BFLOAT, 16}, {TARN_F16, DL_FLOAT, 16},
             {TARN_I32, DL_INT, 32},   {TARN_I64, DL_INT, 64},   {TARN_U8, DL_UINT, 8},      {TARN_BOOL, DL_BOOL, 8}};
enum { TYPES = sizeof(types) / sizeof(*types) };

/* ---- export ------------------------------------------------------------------------------------------------------ */

/* What a consumer holds; the struct it knows is one of the first two. */
typedef struct exported {
    struct DLManagedTensorVersioned versioned;
    struct DLManagedTensor legacy;
    tarn__storage *storage; /* retained */
    int64_t shape[TARN_MAX_RANK], strides[TARN_MAX_RANK];
} exported;

static void release_export(exported *shared)
{
    tarn__storage_release(shared->storage);
    tarn__release(shared, sizeof(*shared));
}

static void delete_versioned(struct DLManagedTensorVersioned *self)
{
    release_export(self->ctx);
}

static void delete_legacy(struct DLManagedTensor *self)
{
    release_export(self->ctx);
}

/* Raises unless the tensor can be shared. */
static bool check_export(const char *function, tarn_tensor *tensor)
{
    if (!tarn__check(function, tensor, "the tensor"))
        return false;
    if (tensor->origin->requires_grad || tensor->origin->grad_fn)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: the tensor requires a gradient, which DLPack cannot share; detach it first", function);
    tarn_device device = tarn__device(tensor);
    const tarn__backend *backend = tarn__backend_of(device, function);
    return backend && ((!tarn__is_meta(device) && backend->dlpack_memory) ||
                       tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: the tensor is on %s, whose memory DLPack cannot share",
                                   function, backend->name));
}

static exported *share(const char *function, tarn_tensor *tensor)
{
    exported *shared = check_export(function, tensor) ? tarn__alloc(sizeof(*shared)) : NULL;
    if (!shared)
        return NULL;
    const tarn__view *view = &tensor->view;
    tarn_device device = tarn__device(tensor);
    int memory = tarn__backend_of(device, function)->dlpack_memory;
    memcpy(shared->shape, view->shape, sizeof(shared->shape));
    memcpy(shared->strides, view->stride, sizeof(shared->strides));
    shared->storage = tensor->storage;
    tarn__storage_retain(shared->storage);
    dl_tensor described = {.data = tarn__view_at(view),
                           .device = {memory, device.index},
                           .rank = view->rank,
                           .shape = shared->shape,
                           .strides = shared->strides};
    for (int i = 0; i < TYPES; i++)
        if (types[i].dtype == view->dtype) {
            described.dtype.code = types[i].code;
            described.dtype.bits = types[i].bits;
            described.dtype.lanes = 1;
        }
    shared->versioned = (struct DLManagedTensorVersioned){{DL_MAJOR, DL_MINOR}, shared, delete_versioned, 0, described};
    shared->legacy = (struct DLManagedTensor){described, shared, delete_legacy};
    return shared;
}

struct DLManagedTensorVersioned *tarn_dlpack_export(tarn_tensor *tensor)
{
    exported *shared = share("dlpack_export", tensor);
    return shared ? &shared->versioned : NULL;
}

struct DLManagedTensor *tarn_dlpack_export_legacy(tarn_tensor *tensor)
{
    exported *shared = share("dlpack_export_legacy", tensor);
    return shared ? &shared->legacy : NULL;
}

/* ---- import ------------------------------------------------------------------------------------------------------ */

/* The producer's struct, one of both, and the device whose work is waited for before it is deleted. */
typedef struct owner {
    struct DLManagedTensorVersioned *versioned;
    struct DLManagedTensor *legacy;
    const tarn__backend *backend; /* NULL: the host */
    int index;
} owner;

static void delete_managed(const owner *memory)
{
    if (memory->versioned && memory->versioned->deleter)
        memory->versioned->deleter(memory->versioned);
    if (memory->legacy && memory->legacy->deleter)
        memory->legacy->deleter(memory->legacy);
}

static void release_owner(void *ctx)
{
    owner *memory = ctx;
    if (memory->backend)
        memory->backend->synchronize(memory->index);
    delete_managed(memory);
    tarn__release(memory, sizeof(*memory));
}

/* A dtype of tarn; TARN_DTYPE_COUNT with an error. */
static tarn_dtype dtype_of(const char *function, const dl_tensor *given)
{
    static const char *const names[DL_CODES] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
    for (int i = 0; i < TYPES && given->dtype.lanes == 1; i++)
        if (types[i].code == given->dtype.code && types[i].bits == given->dtype.bits)
            return types[i].dtype;
    tarn__raise(TARN_ERROR_DTYPE,
                "%s: the elements are %s of %d bits and %d lanes; tarn has f32, f64, bf16, f16, i32, i64, u8 and bool",
                function, given->dtype.code < DL_CODES ? names[given->dtype.code] : "unknown", given->dtype.bits,
                given->dtype.lanes);
    return TARN_DTYPE_COUNT;
}

/* Finds the device of a backend with this kind of memory; false without one. */
static bool find_backend(const char *function, int memory, int id, tarn_device *device)
{
    const char *backend;
    for (int i = 1; (backend = tarn_backend_name(i)) != NULL; i++) {
        char name[32];
        snprintf(name, sizeof(name), "%s:%d", backend, id);
        if (id < 0 || id >= tarn_device_count(backend))
            continue;
        *device = tarn_device_parse(name);
        const tarn__backend *found = tarn_failed() ? NULL : tarn__backend_of(*device, function);
        if (!found || found->dlpack_memory == memory)
            return found != NULL;
    }
    return false;
}

/* Finds tarn's device; false with an error. Pinned memory is the host's, managed memory its device's. */
static bool find_device(const char *function, const dl_tensor *given, tarn_device *device)
{
    int type = given->device.type, memory = type == DL_PINNED ? DL_HOST : type == DL_MANAGED ? DL_DEVICE : type;
    *device = tarn_device_cpu();
    return memory == DL_HOST || find_backend(function, memory, given->device.id, device) ||
           tarn__raise(
               TARN_ERROR_UNSUPPORTED,
               "%s: the memory is on device %d of DLPack's type %d, which tarn does not have; `tarn info` lists its "
               "devices",
               function, given->device.id, type);
}

/* Fills in shape and strides, and the elements before and behind the first one; false with an error. */
static bool find_extent(const char *function, const dl_tensor *given, tarn__view *view, int64_t *low, int64_t *high)
{
    if (given->rank < 0 || given->rank > TARN_MAX_RANK)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: %d axes; tarn has at most %d", function, given->rank, TARN_MAX_RANK);
    if (given->rank > 0 && !given->shape)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the shape is NULL", function);
    tarn_shape shape = {.rank = given->rank};
    for (int i = 0; i < given->rank; i++)
        shape.size[i] = given->shape[i];
    if (!tarn__check_shape(function, shape, view->dtype))
        return false;
    view->rank = shape.rank;
    memcpy(view->shape, shape.size, sizeof(view->shape));
    tarn__view_set_row_major(view);
    for (int i = 0; i < view->rank && given->strides; i++)
        view->stride[i] = given->strides[i];
    *low = *high = 0;
    for (int i = 0; i < view->rank; i++) {
        int64_t reach, *end = view->stride[i] < 0 ? low : high;
        if (view->shape[i] > 0 &&
            (__builtin_mul_overflow(view->shape[i] - 1, view->stride[i], &reach) ||
             __builtin_add_overflow(*end, reach, end) || *end < -(INT64_MAX / 16) || *end > INT64_MAX / 16))
            return tarn__raise(TARN_ERROR_SHAPE, "%s: axis %d has %lld elements with stride %lld, beyond any memory",
                               function, i, (long long)view->shape[i], (long long)view->stride[i]);
    }
    return true;
}

/* The storage of the memory from `first` on, of which `memory` becomes the owner. NULL with an error. */
static tarn__storage *storage_on(const char *function, tarn_device device, void *first, int64_t bytes, owner memory)
{
    owner *kept = tarn__alloc(sizeof(*kept));
    if (!kept)
        return NULL;
    if (!tarn__is_cpu(device)) {
        memory.backend = tarn__backend_of(device, function);
        memory.index = device.index;
    }
    *kept = memory;
    tarn__storage *storage = tarn__storage_borrow(device, first, (size_t)bytes, release_owner, kept);
    if (!storage)
        tarn__release(kept, sizeof(*kept));
    return storage;
}

/* Fills in all of a view but its memory, and where it begins and ends; false with an error. */
static bool find_view(const char *function, const dl_tensor *given, tarn_device *device, tarn__view *view, int64_t *low,
                      int64_t *high)
{
    view->dtype = dtype_of(function, given);
    if (view->dtype == TARN_DTYPE_COUNT || !find_device(function, given, device) ||
        !find_extent(function, given, view, low, high))
        return false;
    uintptr_t address = (uintptr_t)given->data + given->byte_offset, size = (uintptr_t)tarn__bytes_of(view->dtype, 1);
    return tarn__view_count(view) == 0 || address % size == 0 ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: the address %#llx is not a multiple of %llu bytes, the size of %s",
                       function, (unsigned long long)address, (unsigned long long)size, tarn_dtype_name(view->dtype));
}

/* A tensor on the memory, which is released with it; on failure at once. An empty one has no memory to borrow. */
static tarn_tensor *borrow(const char *function, const dl_tensor *given, owner memory)
{
    tarn_device device = {0, 0};
    tarn__view view = {0};
    int64_t low = 0, high = 0;
    bool is_valid = find_view(function, given, &device, &view, &low, &high);
    bool is_empty = is_valid && tarn__view_count(&view) == 0;
    tarn_shape shape = {.rank = view.rank};
    memcpy(shape.size, view.shape, sizeof(shape.size));
    tarn__storage *storage = NULL;
    if (is_valid && !is_empty) {
        int64_t size = tarn__bytes_of(view.dtype, 1);
        char *first = (char *)given->data + given->byte_offset + low * size;
        storage = storage_on(function, device, first, (high - low + 1) * size, memory);
    }
    if (!storage) {
        delete_managed(&memory);
        return is_empty ? tarn__tensor_new(function, shape, view.dtype, device) : NULL;
    }
    tarn_tensor *tensor = tarn__tensor_on(function, shape, view.dtype, storage);
    if (!tensor)
        return NULL;
    memcpy(tensor->view.stride, view.stride, sizeof(tensor->view.stride));
    tarn__tensor_set_start(tensor, -low);
    return tensor;
}

tarn_tensor *tarn_dlpack_import(struct DLManagedTensorVersioned *managed)
{
    const char *function = "dlpack_import";
    if (!managed) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the managed tensor is NULL", function);
        return NULL;
    }
    owner memory = {.versioned = managed};
    if (tarn_failed() || managed->version.major != DL_MAJOR) {
        tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: the struct is DLPack %u.%u; expected version 1.x", function,
                    managed->version.major, managed->version.minor);
        delete_managed(&memory);
        return NULL;
    }
    if (!(managed->flags & DL_READ_ONLY))
        return borrow(function, &managed->tensor, memory);
    tarn_scope *scope = tarn_scope_open(); /* tensors can be written: a copy of memory that cannot */
    if (!scope) {
        delete_managed(&memory);
        return NULL;
    }
    tarn_tensor *given = borrow(function, &managed->tensor, memory);
    tarn_tensor *copy = given ? tarn_clone(given) : NULL;
    if (copy)
        tarn_scope_return(scope, copy);
    tarn_scope_close(scope);
    return copy;
}

tarn_tensor *tarn_dlpack_import_legacy(struct DLManagedTensor *managed)
{
    const char *function = "dlpack_import_legacy";
    if (!managed) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the managed tensor is NULL", function);
        return NULL;
    }
    owner memory = {.legacy = managed};
    if (tarn_failed()) {
        delete_managed(&memory);
        return NULL;
    }
    return borrow(function, &managed->tensor, memory);
}

/* ---- Python's capsules ------------------------------------------------------------------------------------------- */

/* The same functions from whichever interpreter of the process sets them. */
static _Atomic tarn_capsule_is_valid_fn capsule_is_valid;
static _Atomic tarn_capsule_get_pointer_fn capsule_get_pointer;

bool tarn_dlpack_set_capsule_functions(tarn_capsule_is_valid_fn is_valid, tarn_capsule_get_pointer_fn get_pointer)
{
    if (!is_valid || !get_pointer)
        return tarn__raise(TARN_ERROR_ARGUMENT, "dlpack_set_capsule_functions: %s() is NULL",
                           is_valid ? "PyCapsule_GetPointer" : "PyCapsule_IsValid");
    capsule_get_pointer = get_pointer;
    capsule_is_valid = is_valid;
    return true;
}

const char *tarn_dlpack_capsule_name(bool is_versioned, bool is_used)
{
    static const char *const names[2][2] = {{"dltensor", "used_dltensor"},
                                            {"dltensor_versioned", "used_dltensor_versioned"}};
    return names[is_versioned][is_used];
}

/* What a capsule of that name holds; NULL if it has another name. */
static void *held_as(void *capsule, const char *name)
{
    return capsule_is_valid(capsule, name) ? capsule_get_pointer(capsule, name) : NULL;
}

void tarn_dlpack_capsule_destroy(void *capsule)
{
    if (!capsule || !capsule_is_valid)
        return;
    struct DLManagedTensorVersioned *versioned = held_as(capsule, tarn_dlpack_capsule_name(true, false));
    if (versioned)
        versioned->deleter(versioned);
    struct DLManagedTensor *legacy = held_as(capsule, tarn_dlpack_capsule_name(false, false));
    if (legacy)
        legacy->deleter(legacy);
}
