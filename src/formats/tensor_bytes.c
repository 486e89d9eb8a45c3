/* tensor_bytes.c: a tensor's elements on their way to a file. */
#include "formats/tensor_bytes.h"

#include "base/dtype.h"
#include "base/memory.h"
#include "core/launch/graph.h"
#include "core/launch/launch.h"
#include "core/tensor/tensor.h"

#define PIECE ((size_t)16 << 20) /* bytes that come from a device at a time */

static bool write_from_device(const tarn__storage *storage, int64_t offset, size_t bytes, tarn__output *output)
{
    char *at = tarn__output_extend(output, bytes);
    if (at || tarn_failed())
        return at && tarn__storage_download(storage, offset, at, bytes);
    size_t piece = bytes < PIECE ? bytes : PIECE;
    char *staging = tarn__alloc(piece);
    bool good = staging != NULL;
    for (size_t done = 0; good && done < bytes; done += piece) {
        size_t now = bytes - done < piece ? bytes - done : piece;
        good = tarn__storage_download(storage, offset + (int64_t)done, staging, now) &&
               tarn__output_write(output, staging, now);
    }
    tarn__release(staging, piece);
    return good;
}

bool tarn__write_tensor_bytes(const char *function, tarn_tensor *tensor, tarn__output *output)
{
    size_t bytes = (size_t)tarn__bytes_of(tensor->view.dtype, tarn__view_count(&tensor->view));
    tarn_device device = tarn__device(tensor);
    if (bytes == 0)
        return true;
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
