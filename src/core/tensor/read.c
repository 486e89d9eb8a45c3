/* read.c: copies of values between tensors and the host. Reading waits for the device; errors of earlier kernels
 * surface here.
 *
 * Targets are checked for their exact size: a buffer of another size is an error, not a partial read. Values are
 * converted on the device before the transfer. */
#include <math.h>
#include <string.h>

#include "core/launch/graph.h"
#include "core/launch/launch.h"
#include "core/profile/profiler.h"

/* Copies the elements to the host, row-major, converted to `dtype`; temporaries are in a scope of their own. */
static bool read_as(const char *function, const tarn_tensor *tensor, tarn_dtype dtype, void *values)
{
    tarn_scope *scope =
        tarn__not_captured(function, tarn__device(tensor), "a value read by the host") ? tarn_scope_open() : NULL;
    if (!scope)
        return false;
    tarn_tensor *source = (tarn_tensor *)tensor; /* not modified */
    if (tensor->view.dtype != dtype) {
        source = tarn__tensor_new(function, tarn__shape_of(tensor), dtype, tarn__device(tensor));
        if (source && !tarn__copy_elements(function, source, (tarn_tensor *)tensor))
            source = NULL;
    } else if (!tarn__view_is_contiguous(&tensor->view)) {
        source = tarn__contiguous(function, source);
    }
    /* The download waits for earlier work; while profiling, waiting and copying are timed separately. */
    bool good = source && (!tarn__is_profiling() || tarn_synchronize(tarn__device(source))) &&
                tarn__storage_download(source->storage, tarn__bytes_of(dtype, source->start), values,
                                       (size_t)tarn__bytes_of(dtype, tarn__view_count(&source->view))) &&
                tarn_synchronize(tarn__device(source));
    tarn_scope_close(scope);
    return good;
}

/* Compares the size of the caller's buffer with the tensor's, in bytes or elements. */
static bool check_target(const char *function, const tarn_tensor *tensor, const void *values, uint64_t given,
                         uint64_t needed)
{
    if (!tarn__check_any(function, tensor, "the tensor"))
        return false;
    if (!values && needed > 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the values are NULL", function);
    return given == needed || tarn__raise(TARN_ERROR_SHAPE, "%s: a tensor %s of %s needs %llu; the buffer has %llu",
                                          function, TARN__SHAPE_STRING(tensor), tarn_dtype_name(tensor->view.dtype),
                                          (unsigned long long)needed, (unsigned long long)given);
}

/* Bytes in the tensor's own dtype. */
bool tarn_read(const tarn_tensor *tensor, void *values, size_t bytes)
{
    uint64_t needed = tensor ? (uint64_t)tarn__bytes_of(tensor->view.dtype, tarn__view_count(&tensor->view)) : 0;
    return check_target("read", tensor, values, bytes, needed) && read_as("read", tensor, tensor->view.dtype, values);
}

bool tarn_read_f32(const tarn_tensor *tensor, float *values, int64_t count)
{
    uint64_t needed = tensor ? (uint64_t)tarn__view_count(&tensor->view) : 0;
    return check_target("read_f32", tensor, values, (uint64_t)count, needed) &&
           read_as("read_f32", tensor, TARN_F32, values);
}

bool tarn_read_f64(const tarn_tensor *tensor, double *values, int64_t count)
{
    uint64_t needed = tensor ? (uint64_t)tarn__view_count(&tensor->view) : 0;
    return check_target("read_f64", tensor, values, (uint64_t)count, needed) &&
           read_as("read_f64", tensor, TARN_F64, values);
}

double tarn_item(const tarn_tensor *tensor)
{
    double value = NAN;
    if (!tarn__check("item", tensor, "the tensor"))
        return NAN;
    if (tarn__view_count(&tensor->view) != 1) {
        tarn__raise(TARN_ERROR_SHAPE, "item: a tensor %s has %lld elements, not 1", TARN__SHAPE_STRING(tensor),
                    (long long)tarn__view_count(&tensor->view));
        return NAN;
    }
    return read_as("item", tensor, TARN_F64, &value) ? value : NAN;
}

/* Views one element as rank 0 and reads it: a transfer per call, for tests and debugging. */
double tarn_item_at(const tarn_tensor *tensor, tarn_shape index)
{
    if (!tarn__check("item_at", tensor, "the tensor"))
        return NAN;
    if (index.rank != tensor->view.rank) {
        tarn__raise(TARN_ERROR_SHAPE, "item_at: %d indices for a tensor of rank %d", index.rank, tensor->view.rank);
        return NAN;
    }
    int64_t start = tensor->start;
    for (int i = 0; i < index.rank; i++) {
        int64_t at = index.size[i] < 0 ? index.size[i] + tensor->view.shape[i] : index.size[i];
        if (at < 0 || at >= tensor->view.shape[i]) {
            tarn__raise(TARN_ERROR_ARGUMENT, "item_at: index %lld is outside axis %d, which has %lld elements",
                        (long long)index.size[i], i, (long long)tensor->view.shape[i]);
            return NAN;
        }
        start += at * tensor->view.stride[i];
    }
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *element = scope ? tarn__tensor_view((tarn_tensor *)tensor) : NULL;
    double value = NAN;
    if (element) {
        element->view.rank = 0;
        tarn__tensor_set_start(element, start);
        value = tarn_item(element);
    }
    tarn_scope_close(scope);
    return value;
}

/* Overwriting a recorded result, a constant or an expanded tensor is an error. */
static bool check_writable(const char *function, const tarn_tensor *tensor)
{
    if (tensor->grad_fn)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: the tensor is the result of a recorded operation; write to a detached one", function);
    if (tensor->is_constant)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a tarn_scalar() cannot be written", function);
    for (int i = 0; i < tensor->view.rank; i++)
        if (tensor->view.stride[i] == 0 && tensor->view.shape[i] > 1)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: axis %d is expanded: its elements share memory; clone it first",
                               function, i);
    return true;
}

/* A contiguous tensor is uploaded in place; others through a temporary and a strided copy. */
bool tarn_write(tarn_tensor *tensor, const void *values, size_t bytes)
{
    uint64_t needed = tensor ? (uint64_t)tarn__bytes_of(tensor->view.dtype, tarn__view_count(&tensor->view)) : 0;
    if (!check_target("write", tensor, values, bytes, needed) || !check_writable("write", tensor) ||
        !tarn__not_captured("write", tarn__device(tensor), "a copy from the host"))
        return false;
    tarn__bump_version(tensor);
    if (tarn__view_is_contiguous(&tensor->view))
        return tarn__storage_upload(tensor->storage, tarn__bytes_of(tensor->view.dtype, tensor->start), values, bytes);
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *received =
        scope ? tarn_from(values, tarn__shape_of(tensor), tensor->view.dtype, tarn__device(tensor)) : NULL;
    bool good = received && tarn__copy_elements("write", tensor, received);
    tarn_scope_close(scope);
    return good;
}

/* Converts dtype and layout, between any devices; the target's version is incremented. */
bool tarn_copy(tarn_tensor *to, const tarn_tensor *from)
{
    if (!tarn__check_any("copy", to, "the target") || !tarn__check_any("copy", from, "the source") ||
        !check_writable("copy", to))
        return false;
    if (!tarn__same_shape(&to->view, &from->view))
        return tarn__raise(TARN_ERROR_SHAPE, "copy: %s cannot be copied into %s", TARN__SHAPE_STRING(from),
                           TARN__SHAPE_STRING(to));
    tarn__bump_version(to);
    if (to->storage != from->storage)
        return tarn__copy_elements("copy", to, (tarn_tensor *)from);
    tarn_scope *scope = tarn_scope_open(); /* elements may overlap: copied through a temporary */
    tarn_tensor *between =
        scope ? tarn__tensor_new("copy", tarn__shape_of(from), from->view.dtype, tarn__device(from)) : NULL;
    bool good = between && tarn__copy_elements("copy", between, (tarn_tensor *)from) &&
                tarn__copy_elements("copy", to, between);
    tarn_scope_close(scope);
    return good;
}
