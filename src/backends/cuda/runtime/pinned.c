/* pinned.c: asynchronous uploads from pinned host memory, on a second stream, concurrent with kernels.
 *
 * Two events order the streams. Before a copy, the copy stream waits for the work enqueued on the device's stream so
 * far: those kernels may still use the destination. `join` makes the device's stream wait for the copies. The host
 * waits only before it refills the buffer. A buffer belongs to one thread at a time; copies of a step that is being
 * captured are rejected. */
#include "backends/cuda/runtime/cuda.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct pinned_buffer {
    char *host;           /* pinned, owned */
    cudaEvent_t before;   /* recorded on the device's stream before a copy */
    cudaEvent_t done;     /* recorded after the copies */
    cudaEvent_t from, to; /* around the next copy, for profiling; borrowed, NULL: none */
} pinned_buffer;

/* The copy stream of a device, created with its first pinned buffer; lives as long as the device. */
static bool has_stream(tarn__cuda_device *d)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    bool ok = d->copies ||
              tarn__cuda_good(cudaStreamCreateWithFlags(&d->copies, cudaStreamNonBlocking), "cannot create a stream");
    pthread_mutex_unlock(&lock);
    return ok;
}

/* `*host` is the buffer's memory, borrowed until tarn__cuda_pinned_free(). NULL on failure. */
void *tarn__cuda_pinned_new(int index, size_t bytes, void **host)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    pinned_buffer *p = d && has_stream(d) ? calloc(1, sizeof(*p)) : NULL;
    if (!p)
        return NULL;
    /* Blocking sync: the waiting thread is a data loader's, and the cores have other work. */
    if (tarn__cuda_good(cudaHostAlloc((void **)&p->host, bytes, cudaHostAllocPortable),
                        "cannot allocate pinned host memory") &&
        tarn__cuda_good(cudaEventCreateWithFlags(&p->before, cudaEventDisableTiming), "cannot create an event") &&
        tarn__cuda_good(cudaEventCreateWithFlags(&p->done, cudaEventDisableTiming | cudaEventBlockingSync),
                        "cannot create an event")) {
        *host = p->host;
        return p;
    }
    tarn__cuda_pinned_free(index, p);
    return NULL;
}

void tarn__cuda_pinned_free(int index, void *memory)
{
    pinned_buffer *p = memory;
    if (!tarn__cuda_at(index))
        return;
    if (p->done)
        cudaEventDestroy(p->done);
    if (p->before)
        cudaEventDestroy(p->before);
    if (p->host)
        cudaFreeHost(p->host);
    free(p);
}

static tarn__cuda_device *open_device(int index)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    if (!d || !d->is_capturing)
        return d;
    tarn__cuda_fail("cannot copy from the host while a step is captured");
    return NULL;
}

void tarn__cuda_pinned_mark(int index, void *memory, void *from, void *to)
{
    pinned_buffer *p = memory;
    (void)index;
    p->from = from;
    p->to = to;
}

/* Records a requested event once. */
static bool mark(cudaEvent_t *event, cudaStream_t stream)
{
    cudaEvent_t requested = *event;
    *event = NULL;
    return !requested || tarn__cuda_good(cudaEventRecord(requested, stream), "cannot record an event");
}

/* Enqueues one copy and returns. The bytes must not change until `wait`. */
bool tarn__cuda_pinned_send(int index, void *memory, size_t from, void *to, int64_t offset, size_t bytes)
{
    tarn__cuda_device *d = open_device(index);
    pinned_buffer *p = memory;
    return d && tarn__cuda_good(cudaEventRecord(p->before, d->stream), "cannot record an event") &&
           tarn__cuda_good(cudaStreamWaitEvent(d->copies, p->before, 0), "cannot order two streams") &&
           mark(&p->from, d->copies) &&
           tarn__cuda_good(
               cudaMemcpyAsync((char *)to + offset, p->host + from, bytes, cudaMemcpyHostToDevice, d->copies),
               "cannot copy to the device") &&
           mark(&p->to, d->copies) && tarn__cuda_good(cudaEventRecord(p->done, d->copies), "cannot record an event");
}

bool tarn__cuda_pinned_join(int index, void *memory)
{
    tarn__cuda_device *d = open_device(index);
    return d && tarn__cuda_good(cudaStreamWaitEvent(d->stream, ((pinned_buffer *)memory)->done, 0),
                                "cannot order two streams");
}

bool tarn__cuda_pinned_wait(int index, void *memory)
{
    return tarn__cuda_at(index) &&
           tarn__cuda_good(cudaEventSynchronize(((pinned_buffer *)memory)->done), "waiting for a copy failed");
}
