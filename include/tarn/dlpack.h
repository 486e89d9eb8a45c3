/* dlpack.h: tensors shared with other libraries without a copy, by DLPack: PyTorch, NumPy, JAX, CuPy and others. Its
 * structs are those of <dlpack/dlpack.h>, which this header does not need.
 *
 * Both sides have the same memory: a write on one is seen on the other, and is not known to the tape of the other.
 * Work on a device is not waited for: before another stream uses an exported tensor, call tarn_synchronize() or wait
 * for tarn_native_stream(); the same holds the other way. The memory of an export may be used again as soon as it is
 * deleted: on a GPU a consumer waits for its own work first. */
#ifndef TARN_DLPACK_H
#define TARN_DLPACK_H

#include <tarn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* Exports a tensor of the CPU or CUDA as DLPack 1.0, with its strides. The result retains the memory, also where the
 * tensor is freed; its deleter releases it, from any thread. A tensor that requires a gradient (tarn_detach() it), one
 * of a quantized dtype and memory without an address are errors. The caller owns the result: it calls the deleter, or
 * gives the result to a consumer. NULL with an error. */
TARN_API struct DLManagedTensorVersioned *tarn_dlpack_export(tarn_tensor *tensor);

/* The same for consumers of DLPack before 1.0. */
TARN_API struct DLManagedTensor *tarn_dlpack_export_legacy(tarn_tensor *tensor);

/* A tensor on the memory of another library, of the CPU or CUDA; it belongs to the open scope. Takes ownership of
 * `managed`, on failure too: its deleter is called when the last tensor on the memory is freed, by that thread, for a
 * device after the work that was queued. Memory that is marked as read-only is copied. Dtypes that tarn lacks, more
 * than TARN_MAX_RANK axes and elements that are not aligned are errors. */
TARN_API tarn_tensor *tarn_dlpack_import(struct DLManagedTensorVersioned *managed);

/* The same from producers of DLPack before 1.0. */
TARN_API tarn_tensor *tarn_dlpack_import_legacy(struct DLManagedTensor *managed);

/* ---- Python's capsules, for a package that makes them without code of its own in C ---- */

/* PyCapsule_IsValid() and PyCapsule_GetPointer(), with void * for PyObject *. */
typedef int (*tarn_capsule_is_valid_fn)(void *capsule, const char *name);
typedef void *(*tarn_capsule_get_pointer_fn)(void *capsule, const char *name);

/* Sets the functions that tarn_dlpack_capsule_destroy() calls, as libtarn is not linked with Python: before the first
 * capsule, for the whole process. NULL is an error. */
TARN_API bool tarn_dlpack_set_capsule_functions(tarn_capsule_is_valid_fn is_valid,
                                                tarn_capsule_get_pointer_fn get_pointer);

/* Name of a capsule on a DLManagedTensorVersioned or a DLManagedTensor, as a producer makes it or after a consumer took
 * its tensor. A string of libtarn: a capsule retains its name as a pointer, and may outlive every string of Python. */
TARN_API const char *tarn_dlpack_capsule_name(bool is_versioned, bool is_used);

/* Destructor of capsules on exports, for PyCapsule_New(): deletes the export unless a consumer took it and renamed the
 * capsule. Leaves other capsules and NULL alone. It runs no Python code and raises nothing, so that it may run with an
 * exception pending and while the interpreter shuts down; the interpreter's lock is held, as for every destructor. */
TARN_API void tarn_dlpack_capsule_destroy(void *capsule);

#ifdef __cplusplus
}
#endif
#endif
