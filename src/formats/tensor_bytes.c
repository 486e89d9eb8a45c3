/* tensor_bytes.c: elements of tensors, from the host's memory or downloaded from a device, into an output file. */
#include "formats/tensor_bytes.h"

#include "base/dtype.h"
#include "base/memory.h"
#include "core/launch/graph.h"
#include "core/launch/launch.h"
#include "core/tensor/tensor.h"

#define STAGING_BYTES ((size_t)16 << 20) /* bytes per download */

/* Downloads straight into the output's memory where it is mapped, else through a buffer of at most STAGING_BYTES. */
static bool write_from_device(const tarn__storage *storage, int64_t offset, size_t bytes, tarn__output *output)
{
    char *at = tarn__output_extend(output, bytes);
    if (at || tarn_failed())
        return at && tarn__storage_download(storage, offset, at, bytes);
    size_t chunk = bytes < STAGING_BYTES ? bytes : STAGING_BYTES;
    char *buffer = tarn__alloc(chunk);
    bool good = buffer != NULL;
    for (size_t done = 0; good && done < bytes; done += chunk) {
        size_t now = bytes - done < chunk ? bytes - done : chunk;
        good = tarn__storage_download(storage, offset + (int64_t)done, buffer, now) &&
               tarn__output_write(output, buffer, now);
    }
    tarn__release(buffer, chunk);
    return good;
}

/* A strided tensor is copied on its device first; then one block of bytes is written. Waits for the device: the
 * elements must be final. */
bool tarn__write_tensor_bytes(const char *function, tarn_tensor *tensor, tarn__output *output)
{
    size_t bytes = (size_t)tarn__bytes_of(tensor->view.dtype, tarn__view_count(&tensor->view));
    tarn_device device = tarn__device(tensor);
    if (bytes == 0)
        return true;
    /* The copy of a strided tensor lives in a scope of its own. A captured graph cannot read values on the host. */
    tarn_scope *scope = tarn__not_captured(function, device, "values read by the host") ? tarn_scope_open() : NULL;
    tarn_tensor *dense = scope ? tarn__contiguous(function, tensor) : NULL;
    bool good = dense && tarn_synchronize(device);
    if (good) {
        int64_t offset = tarn__bytes_of(dense->view.dtype, dense->start);
        const tarn__storage *storage = dense->storage;
        good = tarn__backend_at(device.backend)->on_host
                   ? tarn__output_write(output, (const char *)storage->memory + storage->offset + offset, bytes)
                   : write_from_device(storage, offset, bytes, output);
    }
    tarn_scope_close(scope);
    return good;
}
