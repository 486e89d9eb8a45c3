/* pinned.c: see pinned.h. */
#include "core/device/pinned.h"

#include "base/memory.h"
#include "core/launch/graph.h"
#include "core/launch/stats.h"

static bool raise_failure(const char *function, const tarn__pinned *lane)
{
    char name[32];
    return tarn__raise(TARN_ERROR_DEVICE, "%s: a copy to %s failed: %s", function,
                       tarn_device_name(lane->device, name, sizeof(name)),
                       tarn__backend_at(lane->device.backend)->failure());
}

bool tarn__pinned_new(const char *function, tarn__pinned *lane, tarn_device device, size_t bytes)
{
    *lane = (tarn__pinned){.device = device, .bytes = bytes ? bytes : 1};
    const tarn__backend *backend = tarn__backend_of(device, function);
    if (!backend)
        return false;
    if (backend->pinned_new) {
        lane->handle = backend->pinned_new(device.index, lane->bytes, &lane->memory);
        return lane->handle || tarn__raise(TARN_ERROR_MEMORY, "%s: %zu bytes of host memory for copies: %s", function,
                                           lane->bytes, backend->failure());
    }
    lane->memory = tarn__alloc_aligned(lane->bytes);
    return lane->memory ||
           tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory: %zu bytes for batches", function, lane->bytes);
}

/* By the backend, or a plain copy. */
static bool send(tarn__pinned *lane, size_t from, tarn_tensor *to, int64_t bytes)
{
    const tarn__storage *storage = to->storage;
    int64_t start = tarn__bytes_of(to->view.dtype, to->start);
    if (!lane->handle)
        return tarn__storage_upload(to->storage, start, (const char *)lane->memory + from, (size_t)bytes);
    return tarn__backend_at(lane->device.backend)
        ->pinned_upload(lane->device.index, lane->handle, from, storage->memory, storage->offset + start,
                        (size_t)bytes);
}

/* Several parts that are sent before a join are one record where no clock tells them apart. */
static bool send_profiled(tarn__pinned *lane, size_t from, tarn_tensor *to, int64_t bytes)
{
    tarn__timing timing;
    tarn__timing_begin(&timing, TARN_PROFILE_LOADER_COPY, "batch", "loader_next", lane->device);
    timing.record.bytes = (double)bytes;
    if (lane->handle)
        tarn__timing_pinned(&timing, lane->handle, lane->device, (double)bytes);
    bool good = send(lane, from, to, bytes);
    if (!timing.is_under_way)
        tarn__timing_end(&timing);
    else if (lane->under_way.generation)
        lane->under_way.record.bytes += (double)bytes;
    else
        lane->under_way = timing;
    return good;
}

bool tarn__pinned_upload(const char *function, tarn__pinned *lane, size_t from, tarn_tensor *to)
{
    int64_t bytes = tarn__bytes_of(to->view.dtype, tarn__view_count(&to->view));
    if (!tarn__not_captured(function, lane->device, "a copy from the host"))
        return false;
    if (bytes == 0)
        return true;
    if (lane->handle) {
        tarn__count(TARN__UPLOADS, 1);
        tarn__count(TARN__UPLOAD_BYTES, bytes);
    }
    bool good = tarn__is_profiling() ? send_profiled(lane, from, to, bytes) : send(lane, from, to, bytes);
    return good || (!tarn_failed() && raise_failure(function, lane));
}

bool tarn__pinned_join(const char *function, tarn__pinned *lane)
{
    tarn__timing_end(&lane->under_way);
    return !lane->handle || tarn__backend_at(lane->device.backend)->pinned_join(lane->device.index, lane->handle) ||
           raise_failure(function, lane);
}

bool tarn__pinned_wait(const char *function, tarn__pinned *lane)
{
    return !lane->handle || tarn__backend_at(lane->device.backend)->pinned_wait(lane->device.index, lane->handle) ||
           raise_failure(function, lane);
}

void tarn__pinned_free(tarn__pinned *lane)
{
    if (lane->handle) {
        const tarn__backend *backend = tarn__backend_at(lane->device.backend);
        backend->pinned_wait(lane->device.index, lane->handle);
        backend->pinned_free(lane->device.index, lane->handle);
    } else {
        tarn__release(lane->memory, lane->bytes);
    }
    *lane = (tarn__pinned){0};
}
