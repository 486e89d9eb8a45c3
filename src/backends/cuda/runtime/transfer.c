/* transfer.c: copies between host and device, and between devices.
 *
 * Memory of the caller is pageable: the driver would copy it piece by piece and block the caller. These copies go
 * through four pinned staging buffers instead. An upload returns when its last chunk is in pinned memory; the device
 * reads it from there in stream order. A buffer is reused when the event recorded after its copy has passed. One
 * transfer per device at a time (staging.lock); none during a capture. */
#include "backends/cuda/runtime/cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BUFFERS 4
#define BUFFER_BYTES ((size_t)4 << 20)

/* Ring of pinned buffers of one device; `next` is the oldest. */
typedef struct staging {
    pthread_mutex_t lock;
    char *buffer[BUFFERS];
    cudaEvent_t done[BUFFERS];
    int next;
} staging;

/* Created at the first transfer; lives as long as the device. */
static staging *staging_of(tarn__cuda_device *d)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    staging *s = d->staging ? d->staging : calloc(1, sizeof(*s));
    bool ok = s != NULL;
    for (int i = 0; ok && !d->staging && i < BUFFERS; i++)
        ok = tarn__cuda_good(cudaHostAlloc((void **)&s->buffer[i], BUFFER_BYTES, cudaHostAllocPortable),
                             "cannot allocate pinned host memory") &&
             tarn__cuda_good(cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming), "cannot create an event");
    if (ok && !d->staging) {
        pthread_mutex_init(&s->lock, NULL);
        d->staging = s;
    }
    pthread_mutex_unlock(&lock);
    return ok ? s : NULL;
}

static tarn__cuda_device *open_device(int index, const char *what)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    if (!d || !d->is_capturing)
        return d;
    tarn__cuda_fail("cannot %s while a step is captured", what);
    return NULL;
}

/* Host memory is borrowed for the call only. */
bool tarn__cuda_upload(int index, void *memory, int64_t offset, const void *host, size_t bytes, void *stream)
{
    tarn__cuda_device *d = open_device(index, "copy from the host");
    staging *s = d ? staging_of(d) : NULL;
    if (!s)
        return false;
    bool ok = true;
    pthread_mutex_lock(&s->lock);
    for (size_t done = 0; ok && done < bytes; done += BUFFER_BYTES) {
        size_t now = bytes - done < BUFFER_BYTES ? bytes - done : BUFFER_BYTES;
        int i = s->next;
        s->next = (i + 1) % BUFFERS;
        ok = tarn__cuda_good(cudaEventSynchronize(s->done[i]), "waiting for a copy failed");
        if (ok)
            memcpy(s->buffer[i], (const char *)host + done, now);
        ok = ok &&
             tarn__cuda_good(
                 cudaMemcpyAsync((char *)memory + offset + done, s->buffer[i], now, cudaMemcpyHostToDevice, stream),
                 "cannot copy to the device") &&
             tarn__cuda_good(cudaEventRecord(s->done[i], stream), "cannot record an event");
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}

/* Waits for the data. Copies run ahead into all buffers while the host empties the oldest one. */
bool tarn__cuda_download(int index, const void *memory, int64_t offset, void *host, size_t bytes, void *stream)
{
    tarn__cuda_device *d = open_device(index, "copy to the host");
    staging *s = d ? staging_of(d) : NULL;
    if (!s)
        return false;
    bool ok = true;
    size_t requested = 0, received = 0;
    pthread_mutex_lock(&s->lock);
    int first = s->next;
    for (int i = 0; ok && i < BUFFERS; i++)
        ok = tarn__cuda_good(cudaEventSynchronize(s->done[i]), "waiting for a copy failed");
    for (int ahead = 0, at = first; ok && received < bytes;) {
        while (ok && requested < bytes && ahead < BUFFERS) {
            size_t now = bytes - requested < BUFFER_BYTES ? bytes - requested : BUFFER_BYTES;
            int i = (at + ahead++) % BUFFERS;
            ok = tarn__cuda_good(cudaMemcpyAsync(s->buffer[i], (const char *)memory + offset + requested, now,
                                                 cudaMemcpyDeviceToHost, stream),
                                 "cannot copy from the device") &&
                 tarn__cuda_good(cudaEventRecord(s->done[i], stream), "cannot record an event");
            requested += now;
        }
        size_t here = bytes - received < BUFFER_BYTES ? bytes - received : BUFFER_BYTES;
        ok = ok && tarn__cuda_good(cudaEventSynchronize(s->done[at]), "waiting for the device failed");
        if (ok)
            memcpy((char *)host + received, s->buffer[at], here);
        received += here;
        at = (at + 1) % BUFFERS;
        ahead--;
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}

bool tarn__cuda_peer(int to_index, void *to, int64_t to_offset, int from_index, const void *from, int64_t from_offset,
                     size_t bytes, void *stream)
{
    tarn__cuda_device *source = open_device(from_index, "copy between devices");
    cudaEvent_t event;
    if (!source || !tarn__cuda_good(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cannot create an event"))
        return false;
    /* The copy runs after the kernels that write the source, and before those that overwrite it. */
    bool ok = tarn__cuda_good(cudaEventRecord(event, source->stream), "cannot record an event") &&
              open_device(to_index, "copy between devices") &&
              tarn__cuda_good(cudaStreamWaitEvent(stream, event, 0), "cannot order two streams") &&
              tarn__cuda_good(cudaMemcpyPeerAsync((char *)to + to_offset, to_index, (const char *)from + from_offset,
                                                  from_index, bytes, stream),
                              "copy between devices");
    cudaEventDestroy(event);
    cudaEvent_t after;
    if (!ok || !tarn__cuda_good(cudaEventCreateWithFlags(&after, cudaEventDisableTiming), "cannot create an event"))
        return false;
    ok = tarn__cuda_good(cudaEventRecord(after, stream), "cannot record an event") &&
         tarn__cuda_good(cudaStreamWaitEvent(source->stream, after, 0), "cannot order two streams");
    cudaEventDestroy(after);
    return ok;
}
