/* pinned.c: copies to the device that run beside its kernels: from pinned memory, on a second stream.
 *
 * Two events order the streams. Before a copy the second stream waits for what the device's stream has been given so
 * far, because the target may be a block that those kernels still use. `join` makes the device's stream wait for the
 * copies; the host waits for nothing but the memory. */
#include "backends/cuda/runtime/cuda.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct lane {
    char *host;           /* pinned */
    cudaEvent_t before;   /* on the device's stream, when a copy was sent */
    cudaEvent_t done;     /* behind the copies */
    cudaEvent_t from, to; /* around the next copy, where somebody measures it; the caller's */
} lane;

/* Made with the first lane; lives as long as the device. */
static bool has_stream(tarn__cuda_device *d)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    bool good =
        d->copies || tarn__cuda_good(cudaStreamCreateWithFlags(&d->copies, cudaStreamNonBlocking), "making a stream");
    pthread_mutex_unlock(&lock);
    return good;
}

void *tarn__cuda_pinned_new(int index, size_t bytes, void **host)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    lane *l = d && has_stream(d) ? calloc(1, sizeof(*l)) : NULL;
    if (!l)
        return NULL;
    /* Blocking: whoever waits for a copy sleeps, because it is a loader's thread and the cores have work. */
    if (tarn__cuda_good(cudaHostAlloc((void **)&l->host, bytes, cudaHostAllocPortable), "pinned host memory") &&
        tarn__cuda_good(cudaEventCreateWithFlags(&l->before, cudaEventDisableTiming), "making an event") &&
        tarn__cuda_good(cudaEventCreateWithFlags(&l->done, cudaEventDisableTiming | cudaEventBlockingSync),
                        "making an event")) {
        *host = l->host;
        return l;
    }
    tarn__cuda_pinned_free(index, l);
    return NULL;
}

void tarn__cuda_pinned_free(int index, void *memory)
{
    lane *l = memory;
    if (!tarn__cuda_at(index))
        return;
    if (l->done)
        cudaEventDestroy(l->done);
    if (l->before)
        cudaEventDestroy(l->before);
    if (l->host)
        cudaFreeHost(l->host);
    free(l);
}

static tarn__cuda_device *open_device(int index)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    if (!d || !d->is_capturing)
        return d;
    tarn__cuda_fail("a copy from the host inside a step that is being captured");
    return NULL;
}

void tarn__cuda_pinned_mark(int index, void *memory, void *from, void *to)
{
    lane *l = memory;
    (void)index;
    l->from = from;
    l->to = to;
}

/* Records an event that was asked for, once. */
static bool mark(cudaEvent_t *event, cudaStream_t stream)
{
    cudaEvent_t asked = *event;
    *event = NULL;
    return !asked || tarn__cuda_good(cudaEventRecord(asked, stream), "recording an event");
}

bool tarn__cuda_pinned_send(int index, void *memory, size_t from, void *to, int64_t offset, size_t bytes)
{
    tarn__cuda_device *d = open_device(index);
    lane *l = memory;
    return d && tarn__cuda_good(cudaEventRecord(l->before, d->stream), "recording an event") &&
           tarn__cuda_good(cudaStreamWaitEvent(d->copies, l->before, 0), "ordering streams") &&
           mark(&l->from, d->copies) &&
           tarn__cuda_good(
               cudaMemcpyAsync((char *)to + offset, l->host + from, bytes, cudaMemcpyHostToDevice, d->copies),
               "a copy to the device") &&
           mark(&l->to, d->copies) && tarn__cuda_good(cudaEventRecord(l->done, d->copies), "recording an event");
}

bool tarn__cuda_pinned_join(int index, void *memory)
{
    tarn__cuda_device *d = open_device(index);
    return d && tarn__cuda_good(cudaStreamWaitEvent(d->stream, ((lane *)memory)->done, 0), "ordering streams");
}

bool tarn__cuda_pinned_wait(int index, void *memory)
{
    return tarn__cuda_at(index) && tarn__cuda_good(cudaEventSynchronize(((lane *)memory)->done), "waiting for a copy");
}
