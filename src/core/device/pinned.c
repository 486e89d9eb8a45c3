/* pinned.c: pinned buffers (pinned.h): the backend's, or plain memory with synchronous uploads.
 *
 * The data loader writes batches into pinned buffers on its own threads and uploads them here while the device
 * computes the step before. On devices without pinned buffers the same calls copy synchronously, so callers need no
 * second path.
 *
 * Errors name the function of the caller (loader_next), because users never see these buffers. */
#include "core/device/pinned.h"

#include "base/memory.h"
#include "core/launch/graph.h"
#include "core/launch/stats.h"

/* Raises the backend's reason. */
static bool raise_failure(const char *function, const tarn__pinned *pinned)
{
    char name[32];
    return tarn__raise(TARN_ERROR_DEVICE, "%s: a copy to %s failed: %s", function,
                       tarn_device_name(pinned->device, name, sizeof(name)),
                       tarn__backend_at(pinned->device.backend)->failure());
}

/* Pinned memory is a limited resource of the system, so failure is an error with its size. */
bool tarn__pinned_new(const char *function, tarn__pinned *pinned, tarn_device device, size_t bytes)
{
    *pinned = (tarn__pinned){.device = device, .bytes = bytes ? bytes : 1};
    const tarn__backend *backend = tarn__backend_of(device, function);
    if (!backend)
        return false;
    if (backend->pinned_new) {
        pinned->handle = backend->pinned_new(device.index, pinned->bytes, &pinned->memory);
        return pinned->handle || tarn__raise(TARN_ERROR_MEMORY, "%s: %zu bytes of host memory for copies: %s", function,
                                             pinned->bytes, backend->failure());
    }
    pinned->memory = tarn__alloc_aligned(pinned->bytes);
    return pinned->memory ||
           tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory: %zu bytes for batches", function, pinned->bytes);
}

/* One upload, by the backend or as a plain copy. */
static bool upload(tarn__pinned *pinned, size_t from, tarn_tensor *to, int64_t bytes)
{
    const tarn__storage *storage = to->storage;
    int64_t start = tarn__bytes_of(to->view.dtype, to->start);
    if (!pinned->handle)
        return tarn__storage_upload(to->storage, start, (const char *)pinned->memory + from, (size_t)bytes);
    return tarn__backend_at(pinned->device.backend)
        ->pinned_upload(pinned->device.index, pinned->handle, from, storage->memory, storage->offset + start,
                        (size_t)bytes);
}

/* Uploads between two joins are one record where the device has no copy events to tell them apart. */
static bool upload_profiled(tarn__pinned *pinned, size_t from, tarn_tensor *to, int64_t bytes)
{
    tarn__timing timing;
    tarn__timing_begin(&timing, TARN_PROFILE_LOADER_COPY, "batch", "loader_next", pinned->device);
    timing.record.bytes = (double)bytes;
    if (pinned->handle)
        tarn__timing_pinned(&timing, pinned->handle, pinned->device, (double)bytes);
    bool good = upload(pinned, from, to, bytes);
    if (!timing.is_under_way)
        tarn__timing_end(&timing);
    else if (pinned->under_way.generation)
        pinned->under_way.record.bytes += (double)bytes;
    else
        pinned->under_way = timing;
    return good;
}

/* Not allowed while the device is captured: a graph would replay the host's old data. */
bool tarn__pinned_upload(const char *function, tarn__pinned *pinned, size_t from, tarn_tensor *to)
{
    int64_t bytes = tarn__bytes_of(to->view.dtype, tarn__view_count(&to->view));
    if (!tarn__not_captured(function, pinned->device, "a copy from the host"))
        return false;
    if (bytes == 0)
        return true;
    if (pinned->handle) {
        tarn__count(TARN__UPLOADS, 1);
        tarn__count(TARN__UPLOAD_BYTES, bytes);
    }
    bool good = tarn__is_profiling() ? upload_profiled(pinned, from, to, bytes) : upload(pinned, from, to, bytes);
    return good || (!tarn_failed() && raise_failure(function, pinned));
}

/* Makes the device's stream wait for the uploads; the host does not wait. */
bool tarn__pinned_join(const char *function, tarn__pinned *pinned)
{
    tarn__timing_end(&pinned->under_way);
    return !pinned->handle ||
           tarn__backend_at(pinned->device.backend)->pinned_join(pinned->device.index, pinned->handle) ||
           raise_failure(function, pinned);
}

bool tarn__pinned_wait(const char *function, tarn__pinned *pinned)
{
    return !pinned->handle ||
           tarn__backend_at(pinned->device.backend)->pinned_wait(pinned->device.index, pinned->handle) ||
           raise_failure(function, pinned);
}

/* Waits first: the device may still read the buffer. */
void tarn__pinned_free(tarn__pinned *pinned)
{
    if (pinned->handle) {
        const tarn__backend *backend = tarn__backend_at(pinned->device.backend);
        backend->pinned_wait(pinned->device.index, pinned->handle);
        backend->pinned_free(pinned->device.index, pinned->handle);
    } else {
        tarn__release(pinned->memory, pinned->bytes);
    }
    *pinned = (tarn__pinned){0};
}
