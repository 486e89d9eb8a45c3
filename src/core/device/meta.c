/* meta.c: meta devices (device.h): backends whose memory functions do nothing. Addresses are handed out one after
 * the other and never reused, so that each tensor has its own; nothing is ever read or written there.
 *
 * Backends are created on demand under `lock` and never change afterwards. The table of slot i serves devices of
 * slot i + TARN__BACKENDS. */
#include "core/device/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define ALIGNMENT 256

static tarn__backend backends[TARN__BACKENDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Unique, aligned, non-NULL addresses; they never run out in 64 bits. */
static void *alloc(int index, size_t bytes)
{
    static _Atomic uintptr_t next = ALIGNMENT;
    (void)index;
    return (void *)atomic_fetch_add(&next, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static void release(int index, void *memory, size_t bytes)
{
    (void)index, (void)memory, (void)bytes;
}

static bool upload(int index, void *memory, int64_t offset, const void *host, size_t bytes, void *stream)
{
    (void)index, (void)memory, (void)offset, (void)host, (void)bytes, (void)stream;
    return true;
}

/* Reads give 0. */
static bool download(int index, const void *memory, int64_t offset, void *host, size_t bytes, void *stream)
{
    (void)index, (void)memory, (void)offset, (void)stream;
    memset(host, 0, bytes);
    return true;
}

static bool peer(int to_index, void *to, int64_t to_offset, int from_index, const void *from, int64_t from_offset,
                 size_t bytes, void *stream)
{
    (void)to_index, (void)to, (void)to_offset, (void)from_index, (void)from, (void)from_offset, (void)bytes,
        (void)stream;
    return true;
}

static bool synchronize(int index)
{
    (void)index;
    return true;
}

/* Device queries, kernels and capture support are the original's, so operations decide as on the real device;
 * everything that moves bytes or waits is replaced. */
static tarn__backend meta_backend_of(const tarn__backend *original)
{
    return (tarn__backend){.kernels_hash = original->kernels_hash,
                           .name = original->name,
                           .version = original->version,
                           .plain_addresses = original->plain_addresses, /* offsets are aligned as on the device */
                           .has_tf32 = original->has_tf32,
                           .has_bf16 = original->has_bf16,
                           .auto_priority = original->auto_priority,
                           .device_count = original->device_count,
                           .device_query = original->device_query,
                           .peak_flops = original->peak_flops,
                           .alloc = alloc,
                           .release = release,
                           .upload = upload,
                           .download = download,
                           .peer = peer,
                           .synchronize = synchronize,
                           .capture_begin = original->capture_begin,
                           .capture_end = original->capture_end,
                           .graph_launch = original->graph_launch,
                           .graph_free = original->graph_free,
                           .write_inline = original->write_inline,
                           .failure = original->failure,
                           .kernels = original->kernels};
}

const tarn__backend *tarn__meta_backend_at(int slot)
{
    return backends[slot].name ? &backends[slot] : NULL;
}

/* The same index in the meta backend's slot. */
tarn_device tarn__meta_device_of(tarn_device device)
{
    const tarn__backend *original = tarn__is_meta(device) ? NULL : tarn__backend_of(device, "meta_device");
    if (!original)
        return device;
    pthread_mutex_lock(&lock);
    if (!backends[device.backend].name)
        backends[device.backend] = meta_backend_of(original);
    pthread_mutex_unlock(&lock);
    return (tarn_device){device.backend + TARN__BACKENDS, device.index};
}
