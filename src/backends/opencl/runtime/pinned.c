/* pinned.c: copies to the device that run beside its kernels: from pinned memory, on a second queue.
 *
 * Events order the queues. A copy waits for what the device's queue has been given so far, because the target may be a
 * block that those kernels still use. `join` makes the device's queue wait for the copies; the host waits for nothing
 * but the memory. */
#include <stdlib.h>

#include "backends/opencl/runtime/opencl.h"

typedef struct lane {
    pthread_mutex_t lock; /* of `done`, which another thread may wait for */
    cl_mem memory;
    char *host;
    cl_event done;       /* of the last copy; NULL: none was sent */
    cl_event *from, *to; /* around the next copy, where somebody measures it; the caller's */
} lane;

/* Made with the first lane; lives as long as the device. */
static bool has_queue(tarn__cl_device *d)
{
    cl_int error = CL_SUCCESS;
    pthread_mutex_lock(&d->lock);
    if (!d->copies)
        d->copies = clCreateCommandQueue(d->context, d->id, CL_QUEUE_PROFILING_ENABLE, &error);
    pthread_mutex_unlock(&d->lock);
    return tarn__cl_check(error, "making a queue");
}

void *tarn__cl_pinned_new(int index, size_t bytes, void **host)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    lane *l = d && has_queue(d) ? calloc(1, sizeof(*l)) : NULL;
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
    lane *l = memory;
    if (l->done)
        clReleaseEvent(l->done);
    if (d)
        clEnqueueUnmapMemObject(d->queue, l->memory, l->host, 0, NULL, NULL);
    clReleaseMemObject(l->memory);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

void tarn__cl_pinned_mark(int index, void *memory, void *from, void *to)
{
    lane *l = memory;
    (void)index;
    l->from = from;
    l->to = to;
}

/* Records an event that was asked for, once. */
static bool mark(cl_event **event, cl_command_queue queue)
{
    cl_event *asked = *event;
    *event = NULL;
    return !asked || tarn__cl_check(clEnqueueMarkerWithWaitList(queue, 0, NULL, asked), "recording an event");
}

/* Behind `before`, as the last copy of the lane. */
static bool enqueue(tarn__cl_device *d, lane *l, cl_event before, size_t from, cl_mem to, size_t offset, size_t bytes)
{
    cl_event done = NULL;
    if (!tarn__cl_check(clEnqueueBarrierWithWaitList(d->copies, 1, &before, NULL), "ordering queues") ||
        !mark(&l->from, d->copies) ||
        !tarn__cl_check(clEnqueueWriteBuffer(d->copies, to, CL_FALSE, offset, bytes, l->host + from, 0, NULL, &done),
                        "a copy to the device"))
        return false;
    pthread_mutex_lock(&l->lock);
    if (l->done)
        clReleaseEvent(l->done);
    l->done = done;
    pthread_mutex_unlock(&l->lock);
    return mark(&l->to, d->copies) && tarn__cl_check(clFlush(d->copies), "sending work to the device");
}

bool tarn__cl_pinned_send(int index, void *memory, size_t from, void *to, int64_t offset, size_t bytes)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    cl_event before = NULL;
    if (!d)
        return false;
    bool good = tarn__cl_check(clEnqueueMarkerWithWaitList(d->queue, 0, NULL, &before), "recording an event") &&
                tarn__cl_check(clFlush(d->queue), "sending work to the device") &&
                enqueue(d, memory, before, from, to, (size_t)offset, bytes);
    if (before)
        clReleaseEvent(before);
    return good || tarn__cl_check_lost(d);
}

/* The last copy's event, held for the caller; NULL when none was sent. */
static cl_event last_copy(lane *l)
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
