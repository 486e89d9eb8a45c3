/* pinned.c: pinned buffers: uploads from pinned host memory on a second queue, overlapping with kernels.
 *
 * Events order the queues. An upload waits for what the main queue has been given so far, because its target may be a
 * pool block that those kernels still use. `join` makes the main queue wait for the uploads; the host waits only before
 * it rewrites the memory. */
#include <stdlib.h>

#include "backends/opencl/runtime/opencl.h"

typedef struct pinned {
    pthread_mutex_t lock; /* guards `done`: another thread may wait for it */
    cl_mem memory;
    char *host;
    cl_event done;       /* of the last upload; NULL: none yet */
    cl_event *from, *to; /* recorded around the next upload where it is measured; borrowed */
} pinned;

/* Creates the second queue with the first pinned buffer; it lives as long as the device. */
static bool has_queue(tarn__cl_device *d)
{
    cl_int error = CL_SUCCESS;
    pthread_mutex_lock(&d->lock);
    if (!d->copy_queue)
        d->copy_queue = clCreateCommandQueue(d->context, d->id, CL_QUEUE_PROFILING_ENABLE, &error);
    pthread_mutex_unlock(&d->lock);
    return tarn__cl_check(error, "creating a queue");
}

/* Owned by the caller; *host is valid until it is freed. */
void *tarn__cl_pinned_new(int index, size_t bytes, void **host)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    pinned *l = d && has_queue(d) ? calloc(1, sizeof(*l)) : NULL;
    if (!l)
        return NULL;
    l->host = tarn__cl_alloc_pinned(d, bytes, &l->memory);
    if (!l->host) {
        free(l);
        return NULL;
    }
    pthread_mutex_init(&l->lock, NULL);
    *host = l->host;
    return l;
}

void tarn__cl_pinned_free(int index, void *memory)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    pinned *l = memory;
    if (l->done)
        clReleaseEvent(l->done);
    if (d)
        clEnqueueUnmapMemObject(d->queue, l->memory, l->host, 0, NULL, NULL);
    clReleaseMemObject(l->memory);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

void tarn__cl_pinned_set_events(int index, void *memory, void *from, void *to)
{
    pinned *l = memory;
    (void)index;
    l->from = from;
    l->to = to;
}

/* Records a requested event, once. */
static bool record_event(cl_event **event, cl_command_queue queue)
{
    cl_event *requested = *event;
    *event = NULL;
    return !requested || tarn__cl_check(clEnqueueMarkerWithWaitList(queue, 0, NULL, requested), "recording an event");
}

/* Enqueues an upload after `before`; it becomes the last one of the buffer. */
static bool enqueue(tarn__cl_device *d, pinned *l, cl_event before, size_t from, cl_mem to, size_t offset, size_t bytes)
{
    cl_event done = NULL;
    if (!tarn__cl_check(clEnqueueBarrierWithWaitList(d->copy_queue, 1, &before, NULL), "ordering queues") ||
        !record_event(&l->from, d->copy_queue) ||
        !tarn__cl_check(
            clEnqueueWriteBuffer(d->copy_queue, to, CL_FALSE, offset, bytes, l->host + from, 0, NULL, &done),
            "an upload"))
        return false;
    pthread_mutex_lock(&l->lock);
    if (l->done)
        clReleaseEvent(l->done);
    l->done = done;
    pthread_mutex_unlock(&l->lock);
    return record_event(&l->to, d->copy_queue) && tarn__cl_check(clFlush(d->copy_queue), "flushing the queue");
}

/* Returns at once. The host must not write the range before tarn__cl_pinned_wait(). */
bool tarn__cl_pinned_upload(int index, void *buffer, size_t from, void *to, int64_t offset, size_t bytes)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    cl_event before = NULL;
    if (!d)
        return false;
    bool good = tarn__cl_check(clEnqueueMarkerWithWaitList(d->queue, 0, NULL, &before), "recording an event") &&
                tarn__cl_check(clFlush(d->queue), "flushing the queue") &&
                enqueue(d, buffer, before, from, to, (size_t)offset, bytes);
    if (before)
        clReleaseEvent(before);
    return good || tarn__cl_check_lost(d);
}

/* The event of the last upload, retained for the caller; NULL when there was none. */
static cl_event last_copy(pinned *l)
{
    pthread_mutex_lock(&l->lock);
    cl_event done = l->done;
    if (done)
        clRetainEvent(done);
    pthread_mutex_unlock(&l->lock);
    return done;
}

bool tarn__cl_pinned_join(int index, void *memory)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    cl_event done = last_copy(memory);
    bool good =
        d && (!done || tarn__cl_check(clEnqueueBarrierWithWaitList(d->queue, 1, &done, NULL), "ordering queues") ||
              tarn__cl_check_lost(d));
    if (done)
        clReleaseEvent(done);
    return good;
}

bool tarn__cl_pinned_wait(int index, void *memory)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    cl_event done = last_copy(memory);
    bool good =
        d && (!done || tarn__cl_check(clWaitForEvents(1, &done), "waiting for a copy") || tarn__cl_check_lost(d));
    if (done)
        clReleaseEvent(done);
    return good;
}
