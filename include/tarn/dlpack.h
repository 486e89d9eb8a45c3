/* dlpack.h: tensors shared with other libraries without a copy, by DLPack: PyTorch, NumPy, JAX, CuPy and others. Its
 * structs are those of <dlpack/dlpack.h>, which this header does not need.
 *
 * Both sides share the memory: a write by one is visible to the other, but not recorded by its tape. Nothing waits for
 * work on a device: before another stream uses an exported tensor, call tarn_synchronize() or wait for
 * tarn_native_stream(), and likewise before tarn uses an imported one. tarn may reuse the memory of an export as soon
 * as it is deleted: on a GPU the consumer waits for its own work first. */
#ifndef TARN_DLPACK_H
#define TARN_DLPACK_H

#include <tarn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* Exports a tensor of the CPU or CUDA as DLPack 1.0, with its strides. The result retains the memory even if the tensor
 * is freed; its deleter releases it, from any thread. Errors: a tensor that requires a gradient (tarn_detach() it), a
 * quantized dtype, memory without an address. The caller owns the result: it calls the deleter, or passes the result to
 * a consumer. NULL on error. */
TARN_API struct DLManagedTensorVersioned *tarn_dlpack_export(tarn_tensor *tensor);

/* The same for consumers of DLPack before 1.0. */
TARN_API struct DLManagedTensor *tarn_dlpack_export_legacy(tarn_tensor *tensor);

/* A tensor on the memory of another library, on the CPU or CUDA; it belongs to the open scope. Takes ownership of
 * `managed`, on failure too: its deleter is called when the last tensor on the memory is freed, by that thread, on a
 * device after the queued work. Memory that is marked as read-only is copied. Errors: dtypes that tarn lacks, more than
 * TARN_MAX_RANK axes, unaligned elements. NULL on error. */
TARN_API tarn_tensor *tarn_dlpack_import(struct DLManagedTensorVersioned *managed);

/* The same for producers of DLPack before 1.0. */
TARN_API tarn_tensor *tarn_dlpack_import_legacy(struct DLManagedTensor *managed);

/* ---- Python's capsules, for a package without C code of its own ---- */

/* PyCapsule_IsValid() and PyCapsule_GetPointer(), with void * for PyObject *. */
typedef int (*tarn_capsule_is_valid_fn)(void *capsule, const char *name);
typedef void *(*tarn_capsule_get_pointer_fn)(void *capsule, const char *name);

/* Sets the functions that tarn_dlpack_capsule_destroy() calls, for the whole process, since libtarn does not link
 * Python. Call it before the first capsule. NULL is an error. */
TARN_API bool tarn_dlpack_set_capsule_functions(tarn_capsule_is_valid_fn is_valid,
                                                tarn_capsule_get_pointer_fn get_pointer);

/* Name of a capsule on a DLManagedTensorVersioned or a DLManagedTensor, as the producer creates it, or after a consumer
 * took its tensor. The string belongs to libtarn: a capsule stores its name as a pointer and may outlive every string
 * of Python. */
TARN_API const char *tarn_dlpack_capsule_name(bool is_versioned, bool is_used);

/* Destructor of capsules on exports, for PyCapsule_New(): deletes the export unless a consumer took it and renamed the
 * capsule. Ignores other capsules and NULL. It runs no Python code and raises nothing, so that it may run with an
 * exception pending and while the interpreter shuts down. The caller holds the interpreter's lock, as for every
 * destructor. */
TARN_API void tarn_dlpack_capsule_destroy(void *capsule);

#ifdef __cplusplus
}
#endif
#endif
