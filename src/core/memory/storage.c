/* storage.c: storages, and every copy between devices: here they are counted and timed.
 *
 * On the CPU a "transfer" is a memcpy and is not counted. Transfers are synchronous towards the host: when an upload
 * returns, the host buffer may be reused; a download has arrived.
 *
 * A storage is never resized. Its version counts in-place writes through any view; a slice has a version of its own,
 * because parameters in a flat buffer are written independently. */
#include "core/memory/storage.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "core/launch/stats.h"
#include "core/profile/profiler.h"

/* The name and purpose are set later by owners that want them in reports. */
tarn__storage *tarn__storage_new(tarn_device device, size_t bytes)
{
    tarn__storage *storage = tarn__alloc(sizeof(*storage));
    if (!storage)
        return NULL;
    storage->references = 1;
    storage->device = device;
    storage->bytes = bytes;
    storage->block = tarn__pool_alloc(device, bytes, storage);
    if (!storage->block) {
        tarn__release(storage, sizeof(*storage));
        return NULL;
    }
    storage->memory = tarn__pool_block_memory(storage->block);
    storage->offset = tarn__pool_block_offset(storage->block);
    return storage;
}

/* A device without addresses keeps the parent's handle and adds the offset. */
tarn__storage *tarn__storage_slice(tarn__storage *parent, int64_t offset, size_t bytes)
{
    tarn__storage *storage = tarn__alloc(sizeof(*storage));
    if (!storage)
        return NULL;
    tarn__storage_retain(parent);
    storage->references = 1;
    storage->device = parent->device;
    storage->bytes = bytes;
    storage->parent = parent;
    bool has_address = tarn__backend_at(parent->device.backend)->plain_addresses;
    storage->memory = has_address ? (char *)parent->memory + offset : parent->memory;
    storage->offset = parent->offset + (has_address ? 0 : offset);
    return storage;
}

tarn__storage *tarn__storage_borrow(tarn_device device, void *memory, size_t bytes, void (*release)(void *owner),
                                    void *owner)
{
    tarn__storage *storage = tarn__alloc(sizeof(*storage));
    if (!storage)
        return NULL;
    storage->references = 1;
    storage->device = device;
    storage->memory = memory;
    storage->bytes = bytes;
    storage->release = release;
    storage->owner = owner;
    return storage;
}

void tarn__storage_retain(tarn__storage *storage)
{
    atomic_fetch_add_explicit(&storage->references, 1, memory_order_relaxed);
}

/* The last reference frees the block, or releases the parent, or calls the owner of borrowed memory. */
void tarn__storage_release(tarn__storage *storage)
{
    if (!storage || atomic_fetch_sub_explicit(&storage->references, 1, memory_order_acq_rel) != 1)
        return;
    tarn__pool_free(storage->block);
    tarn__storage_release(storage->parent);
    if (storage->release)
        storage->release(storage->owner);
    if (storage->name)
        tarn__release(storage->name, strlen(storage->name) + 1);
    tarn__release(storage, sizeof(*storage));
}

/* Under the pool's lock, because the memory table may be reading the old name. */
void tarn__storage_set_name(tarn__storage *storage, const char *name)
{
    char *copy = NULL;
    if (name && name[0]) {
        tarn__error_record saved;
        tarn__error_save(&saved);
        copy = tarn__alloc(strlen(name) + 1);
        tarn_clear_error();
        tarn__error_restore(&saved);
        if (copy)
            memcpy(copy, name, strlen(name) + 1);
    }
    char *before = storage->name;
    if (storage->block)
        before = tarn__pool_rename(storage->block, &storage->name, copy);
    else
        storage->name = copy;
    if (before)
        tarn__release(before, strlen(before) + 1);
}

static bool raise_transfer(const tarn__backend *backend, tarn_device device, const char *what)
{
    char name[32];
    return tarn__raise(TARN_ERROR_DEVICE, "%s %s failed: %s", what, tarn_device_name(device, name, sizeof(name)),
                       backend->failure());
}

/* Begins timing a copy while profiling. */
static void begin_copy(tarn__timing *timing, const char *name, tarn_device device, size_t bytes)
{
    timing->generation = 0;
    if (!tarn__is_profiling())
        return;
    tarn__timing_begin(timing, TARN_PROFILE_COPY, name, NULL, device);
    timing->record.bytes = (double)bytes;
}

static void *stream_of(const tarn__backend *backend, int index)
{
    return backend->stream ? backend->stream(index) : NULL;
}

/* Blocks until the host buffer may be reused. */
bool tarn__storage_upload(tarn__storage *to, int64_t offset, const void *host, size_t bytes)
{
    const tarn__backend *backend = tarn__backend_at(to->device.backend);
    if (bytes == 0)
        return true;
    if (backend->on_host) {
        memcpy((char *)to->memory + to->offset + offset, host, bytes);
        return true;
    }
    tarn__count(TARN__UPLOADS, 1);
    tarn__count(TARN__UPLOAD_BYTES, (int64_t)bytes);
    int index = to->device.index;
    tarn__timing timing;
    begin_copy(&timing, "upload", to->device, bytes);
    bool good = backend->upload(index, to->memory, to->offset + offset, host, bytes, stream_of(backend, index));
    tarn__timing_end(&timing);
    return good || raise_transfer(backend, to->device, "a copy to");
}

/* Blocks until the bytes have arrived. */
bool tarn__storage_download(const tarn__storage *from, int64_t offset, void *host, size_t bytes)
{
    const tarn__backend *backend = tarn__backend_at(from->device.backend);
    if (bytes == 0)
        return true;
    if (backend->on_host) {
        memcpy(host, (const char *)from->memory + from->offset + offset, bytes);
        return true;
    }
    tarn__count(TARN__DOWNLOADS, 1);
    tarn__count(TARN__DOWNLOAD_BYTES, (int64_t)bytes);
    int index = from->device.index;
    tarn__timing timing;
    begin_copy(&timing, "download", from->device, bytes);
    bool good = backend->download(index, from->memory, from->offset + offset, host, bytes, stream_of(backend, index));
    tarn__timing_end(&timing);
    return good || raise_transfer(backend, from->device, "a copy from");
}

/* Copies through host memory in chunks of 16 MiB, between backends that do not know each other. */
static bool transfer_staged(tarn__storage *to, int64_t to_offset, const tarn__storage *from, int64_t from_offset,
                            size_t bytes)
{
    size_t piece = bytes < ((size_t)16 << 20) ? bytes : (size_t)16 << 20;
    void *staging = tarn__alloc(piece);
    bool good = staging != NULL;
    for (size_t done = 0; good && done < bytes; done += piece) {
        size_t now = bytes - done < piece ? bytes - done : piece;
        good = tarn__storage_download(from, from_offset + (int64_t)done, staging, now) &&
               tarn__storage_upload(to, to_offset + (int64_t)done, staging, now);
    }
    tarn__release(staging, piece);
    return good;
}

/* Prefers the shortest way: host memory on either side needs one copy, one backend a peer copy, else staging. */
bool tarn__storage_transfer(tarn__storage *to, int64_t to_offset, const tarn__storage *from, int64_t from_offset,
                            size_t bytes)
{
    const tarn__backend *source = tarn__backend_at(from->device.backend),
                        *target = tarn__backend_at(to->device.backend);
    if (source->on_host)
        return tarn__storage_upload(to, to_offset, (const char *)from->memory + from->offset + from_offset, bytes);
    if (target->on_host)
        return tarn__storage_download(from, from_offset, (char *)to->memory + to->offset + to_offset, bytes);
    if (source != target || !source->peer)
        return transfer_staged(to, to_offset, from, from_offset, bytes);
    tarn__count(TARN__PEERS, 1);
    tarn__count(TARN__PEER_BYTES, (int64_t)bytes);
    tarn__timing timing;
    begin_copy(&timing, "peer copy", to->device, bytes);
    bool good = source->peer(to->device.index, to->memory, to->offset + to_offset, from->device.index, from->memory,
                             from->offset + from_offset, bytes, stream_of(target, to->device.index));
    tarn__timing_end(&timing);
    return good || raise_transfer(target, to->device, "a copy to");
}
