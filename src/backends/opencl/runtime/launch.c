/* launch.c: the launch API: a kernel, its arguments, its grid; declined calls; reading of fault records.
 *
 * The device's lock is taken by tarn__cl_try() and released by end(), because a cl_kernel holds its arguments: two
 * threads must not interleave theirs. A thread has one launch at a time. */
#include <string.h>

#include "backends/opencl/runtime/opencl.h"

/* State of the calling thread's current call, cleared by tarn__cl_declined(). */
static _Thread_local bool has_declined;
static _Thread_local bool has_begun; /* part of it has been enqueued */

bool tarn__cl_declined(int index)
{
    (void)index;
    bool declined = has_declined;
    has_declined = has_begun = false;
    return declined;
}

const char *tarn__cl_dtype_name(tarn_dtype dtype)
{
    return dtype == TARN_BOOL ? "boolean" : tarn__dtypes[dtype].name;
}

/* ---- for prepare() ----------------------------------------------------------------------------------------------- */

void *tarn__cl_reserve_job(const tarn__call *call, tarn__plan *plan, size_t bytes)
{
    return tarn__cl_device_at(call->device) ? tarn__plan_reserve(plan, bytes) : NULL;
}

const tarn__cl_kernel *tarn__cl_find(const tarn__call *call, const char *source, const char *kernel,
                                     const char *options)
{
    tarn__cl_device *device = call->is_meta ? NULL : tarn__cl_device_alive(call->device);
    if (!device)
        return NULL;
    pthread_mutex_lock(&device->lock);
    const tarn__cl_kernel *found = tarn__cl_get_kernel(device, source, kernel, options);
    pthread_mutex_unlock(&device->lock);
    return found;
}

bool tarn__cl_allows(const tarn__cl_kernel *kernel, size_t items)
{
    return kernel && kernel->max_items >= items;
}

/* The largest power of two of at most `items`, at least 1. */
static size_t power_of_two(size_t items)
{
    size_t group = 1;
    while (2 * group <= items)
        group *= 2;
    return group;
}

size_t tarn__cl_group_of(const tarn__cl_kernel *kernel)
{
    return power_of_two(kernel ? kernel->max_items : 1);
}

tarn__plan_status tarn__cl_ready(const tarn__call *call, bool found)
{
    return found || call->is_meta || !tarn__cl_device_alive(call->device) ? TARN__PLAN_READY : TARN__PLAN_DECLINED;
}

/* ---- begin ------------------------------------------------------------------------------------------------------- */

/* A call that was declined enqueues nothing more: the CPU runs all of it. */
tarn__cl_launch tarn__cl_try(const tarn__call *call, const char *source, const char *kernel, const char *options,
                             size_t items)
{
    tarn__cl_launch launch = {
        .device = tarn__cl_device_at(call->device), .name = kernel, .reads_output = call->reads_output != 0};
    if (!launch.device || has_declined || tarn__cl_is_lost(launch.device))
        return launch;
    pthread_mutex_lock(&launch.device->lock);
    const tarn__cl_kernel *found = tarn__cl_get_kernel(launch.device, source, kernel, options);
    launch.kernel = found ? found->kernel : NULL;
    launch.max_items = found ? found->max_items : 0;
    launch.good = launch.max_items >= items;
    if (!launch.good)
        pthread_mutex_unlock(&launch.device->lock);
    return launch;
}

tarn__cl_launch tarn__cl_begin_kernel(const tarn__call *call, const tarn__cl_kernel *kernel)
{
    tarn__cl_launch launch = {.device = tarn__cl_device_at(call->device), .reads_output = call->reads_output != 0};
    if (!launch.device || has_declined || tarn__cl_is_lost(launch.device))
        return launch;
    has_declined = !tarn__cl_allows(kernel, 1);
    if (has_declined)
        return launch;
    pthread_mutex_lock(&launch.device->lock);
    launch.kernel = kernel->kernel;
    launch.max_items = kernel->max_items;
    launch.name = kernel->function;
    launch.good = true;
    return launch;
}

size_t tarn__cl_max_group(const tarn__cl_launch *launch)
{
    return power_of_two(launch->max_items);
}

static void end(tarn__cl_launch *launch)
{
    launch->good = false;
    pthread_mutex_unlock(&launch->device->lock);
}

/* Ends a launch after an error of the driver. */
static void abandon(tarn__cl_launch *launch)
{
    tarn__cl_check_lost(launch->device);
    tarn__cl_set_failed(launch->device);
    end(launch);
}

tarn__cl_launch tarn__cl_begin(const tarn__call *call, const char *source, const char *kernel, const char *options)
{
    tarn__cl_launch launch = tarn__cl_try(call, source, kernel, options, 1);
    has_declined = has_declined || (launch.device && !launch.good && !tarn__cl_is_lost(launch.device));
    return launch;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* The next argument. Does nothing for a launch that is not good. */
static void set(tarn__cl_launch *launch, size_t bytes, const void *value)
{
    if (!launch->good)
        return;
    cl_int error = clSetKernelArg(launch->kernel, launch->next, bytes, value);
    if (error != CL_SUCCESS) {
        tarn__cl_fail("argument %u of kernel '%s', %zu bytes: %s (OpenCL %d)", launch->next, launch->name, bytes,
                      tarn__cl_error_name(error), error);
        abandon(launch);
    }
    launch->next++;
}

void tarn__cl_arg_value(tarn__cl_launch *launch, const void *value, size_t bytes)
{
    set(launch, bytes, value);
}

void tarn__cl_arg_int(tarn__cl_launch *launch, int32_t value)
{
    set(launch, sizeof(value), &value);
}

void tarn__cl_arg_long(tarn__cl_launch *launch, int64_t value)
{
    set(launch, sizeof(value), &value);
}

void tarn__cl_arg_real(tarn__cl_launch *launch, double value)
{
    float narrow = (float)value;
    if (launch->good && launch->device->has_f64)
        set(launch, sizeof(value), &value);
    else
        set(launch, sizeof(narrow), &narrow);
}

static void set_memory(tarn__cl_launch *launch, void *memory, int64_t offset)
{
    cl_mem buffer = memory;
    set(launch, sizeof(buffer), memory ? &buffer : NULL);
    tarn__cl_arg_long(launch, offset);
}

void tarn__cl_arg_view(tarn__cl_launch *launch, const tarn__view *view)
{
    if (!view)
        set_memory(launch, NULL, 0);
    else if (tarn__is_quantized(view->dtype))
        set_memory(launch, view->memory, view->base + tarn__bytes_of(view->dtype, view->offset));
    else
        set_memory(launch, view->memory, view->offset);
}

void tarn__cl_arg_scratch(tarn__cl_launch *launch, const tarn__call *call, int64_t bytes)
{
    set_memory(launch, call->scratch, call->scratch_offset + bytes);
}

void tarn__cl_arg_fault(tarn__cl_launch *launch, const tarn__call *call)
{
    if (!launch->good)
        return;
    set_memory(launch, launch->device->fault_record, (int64_t)(intptr_t)call->function);
    launch->has_fault = true;
}

void tarn__cl_arg_fault_later(tarn__cl_launch *launch, const tarn__call *call)
{
    tarn__cl_arg_fault(launch, call);
    launch->defers_fault = launch->has_fault;
    launch->has_fault = false;
}

/* ---- enqueue ----------------------------------------------------------------------------------------------------- */

/* The default group: PoCL vectorizes over 64 work-items; 256 hide the latency of a GPU's memory. */
static size_t default_group(const tarn__cl_launch *launch)
{
    size_t items = launch->device->is_cpu ? 64 : 256;
    while (items > launch->max_items)
        items /= 2;
    return items;
}

static bool is_under_way(cl_event event)
{
    cl_int status = CL_COMPLETE;
    return event &&
           clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL) == CL_SUCCESS &&
           status > CL_COMPLETE;
}

/* Replaces the read before it, whose result no poll has taken yet: a fault stays in the record until it is cleared. */
static bool read_record(tarn__cl_device *d)
{
    if (d->record_read)
        clReleaseEvent(d->record_read);
    d->record_read = NULL;
    d->is_unread = d->is_deferred = false;
    return tarn__cl_check(clEnqueueReadBuffer(d->queue, d->fault_record, CL_FALSE, 0, sizeof(*d->host_record),
                                              d->host_record, 0, NULL, &d->record_read),
                          "reading the fault record") &&
           tarn__cl_check(clFlush(d->queue), "flushing the queue");
}

/* After a kernel that may fault, its record is read without waiting; the next poll that finds the read complete
 * examines it. A read costs as much as a small kernel: while one is under way the next is deferred, until a poll finds
 * the first complete or something waits for the device. */
static bool record_faults(tarn__cl_device *d)
{
    d->is_unread = true;
    return is_under_way(d->record_read) || read_record(d);
}

bool tarn__cl_read_faults(tarn__cl_device *d)
{
    return !d->is_unread || read_record(d);
}

bool tarn__cl_flush_faults(tarn__cl_device *d)
{
    pthread_mutex_lock(&d->lock);
    d->is_unread = d->is_unread || d->is_deferred;
    bool good = tarn__cl_read_faults(d);
    pthread_mutex_unlock(&d->lock);
    return good;
}

/* True where a driver reports only at enqueue that it lacks resources for such work-groups. A lost device reports the
 * same, but its queue does not finish. A call that has begun is not repeated on the CPU if it reads its own output. */
static bool is_refused(const tarn__cl_launch *launch, cl_int error)
{
    if (has_begun && launch->reads_output)
        return false;
    return error == CL_INVALID_WORK_GROUP_SIZE || error == CL_INVALID_WORK_ITEM_SIZE ||
           (error == CL_OUT_OF_RESOURCES && clFinish(launch->device->queue) == CL_SUCCESS);
}

/* `whole` is the grid rounded up to work-groups; no size is 0. */
static void enqueue(tarn__cl_launch *launch, int rank, const size_t *whole, const size_t *group)
{
    tarn__cl_device *d = launch->device;
    cl_int error = clEnqueueNDRangeKernel(d->queue, launch->kernel, (cl_uint)rank, NULL, whole, group, 0, NULL, NULL);
    bool good = error == CL_SUCCESS;
    if (is_refused(launch, error)) {
        tarn__cl_host->log(TARN_LOG_INFO, "opencl:%d: kernel '%s' refused by the driver: %s (OpenCL %d)", d->index,
                           launch->name, tarn__cl_error_name(error), error);
        has_declined = good = true;
    } else if (!good) {
        tarn__cl_fail("kernel '%s': %s (OpenCL %d)", launch->name, tarn__cl_error_name(error), error);
    } else {
        has_begun = true;
        d->is_deferred = d->is_deferred || launch->defers_fault;
        good = !launch->has_fault || record_faults(d);
    }
    good ? end(launch) : abandon(launch);
}

/* A work-group beyond the kernel's limit declines the call. */
void tarn__cl_enqueue(tarn__cl_launch *launch, int rank, const size_t *global, const size_t *local)
{
    size_t group[3] = {1, 1, 1}, whole[3], items = 1;
    bool is_empty = false;
    if (!launch->good)
        return;
    if (local)
        memcpy(group, local, sizeof(group[0]) * (size_t)rank);
    else
        group[0] = default_group(launch);
    for (int i = 0; i < rank; i++) {
        is_empty = is_empty || global[i] == 0;
        whole[i] = (global[i] + group[i] - 1) / group[i] * group[i];
        items *= group[i];
    }
    has_declined = has_declined || items > launch->max_items;
    if (has_declined || is_empty)
        end(launch);
    else
        enqueue(launch, rank, whole, group);
}

void tarn__cl_enqueue_independent(tarn__cl_launch *launch, int rank, const size_t *global, size_t most)
{
    size_t group[3] = {tarn__cl_max_group(launch), 1, 1};
    group[0] = group[0] < most ? group[0] : most;
    tarn__cl_enqueue(launch, rank, global, group);
}

void tarn__cl_copy_bytes(const tarn__call *call, void *to, int64_t to_offset, const void *from, int64_t from_offset,
                         size_t bytes)
{
    tarn__cl_device *d = tarn__cl_device_alive(call->device);
    if (!d || bytes == 0)
        return;
    has_begun = true;
    if (!tarn__cl_check(clEnqueueCopyBuffer(d->queue, (cl_mem)from, to, (size_t)from_offset, (size_t)to_offset, bytes,
                                            0, NULL, NULL),
                        "a copy on the device")) {
        tarn__cl_check_lost(d);
        pthread_mutex_lock(&d->lock);
        tarn__cl_set_failed(d);
        pthread_mutex_unlock(&d->lock);
    }
}
