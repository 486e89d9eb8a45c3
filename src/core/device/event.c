/* event.c: events in a device's stream, to wait for and to measure time between. Synchronous devices read the host's
 * clock.
 *
 * The caller owns an event and frees it with tarn_event_free(). Events cannot be recorded inside a captured step.
 *
 * Times are in microseconds. On an asynchronous device they are the device's own, with the resolution of its events. */
#include <math.h>
#include <time.h>

#include "base/error.h"
#include "base/memory.h"
#include "core/launch/graph.h"
#include "core/profile/profiler.h"

struct tarn_event {
    tarn_device device;
    const tarn__backend *backend;
    void *handle; /* the backend's event; NULL: host clock */
    double time;  /* host clock in microseconds */
};

/* Microseconds of a monotonic clock. */
static double clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* Records the current end of the device's stream. NULL with an error. */
tarn_event *tarn_event_record(tarn_device device)
{
    const tarn__backend *backend = tarn_failed() ? NULL : tarn__backend_of(device, "event_record");
    tarn_event *event =
        backend && tarn__not_captured("event_record", device, "an event") ? tarn__alloc(sizeof(*event)) : NULL;
    if (!event)
        return NULL;
    *event = (tarn_event){.device = device, .backend = backend, .time = clock_now()};
    if (!backend->event_new)
        return event;
    event->handle = backend->event_new(device.index);
    if (event->handle && backend->event_record(device.index, event->handle, backend->stream(device.index)))
        return event;
    tarn__raise(TARN_ERROR_DEVICE, "event_record: %s", backend->failure());
    tarn_event_free(event);
    return NULL;
}

/* Waiting may reveal a fault of earlier kernels, so the device is polled. */
bool tarn_event_wait(tarn_event *event)
{
    if (tarn_failed())
        return false;
    if (!event)
        return tarn__raise(TARN_ERROR_ARGUMENT, "event_wait: the event is NULL");
    if (!event->handle)
        return true;
    tarn__timing timing = {0};
    if (tarn__is_profiling())
        tarn__timing_begin(&timing, TARN_PROFILE_WAIT, "event", NULL, event->device);
    bool good = event->backend->event_wait(event->device.index, event->handle);
    tarn__timing_end(&timing);
    if (!good)
        return tarn__raise(TARN_ERROR_DEVICE, "event_wait: %s", event->backend->failure());
    return tarn__device_poll(event->device, "event_wait");
}

/* Waits for both events; NaN with an error. Both must be of one device. */
double tarn_event_elapsed(tarn_event *from, tarn_event *to)
{
    double microseconds = (double)NAN;
    if (!from || !to || !tarn__same_device(from->device, to->device)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "event_elapsed: %s",
                    from && to ? "the events are of two devices" : "an event is NULL");
        return microseconds;
    }
    if (!tarn_event_wait(from) || !tarn_event_wait(to))
        return microseconds;
    if (!from->handle)
        return to->time - from->time;
    if (!from->backend->event_elapsed(from->device.index, from->handle, to->handle, &microseconds))
        tarn__raise(TARN_ERROR_DEVICE, "event_elapsed: %s", from->backend->failure());
    return microseconds;
}

void tarn_event_free(tarn_event *event)
{
    if (!event)
        return;
    if (event->handle)
        event->backend->event_free(event->device.index, event->handle);
    tarn__release(event, sizeof(*event));
}
