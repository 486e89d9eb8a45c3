/* backend.c: the OpenCL backend as the core sees it: memory, queue, events, faults, the kernel table.
 *
 * Functions return false or NULL after a failure, whose sentence is kept per thread (tarn__cl_failure()). Failures of
 * asynchronous work surface at the device's next poll. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/opencl/runtime/opencl.h"
#include "base/kernel/peak_flops.h"

const tarn__host *tarn__cl_host;
static tarn__kernel_row rows[TARN__KERNEL_COUNT];
static _Thread_local char failure[256];

/* ---- failures ---------------------------------------------------------------------------------------------------- */

void tarn__cl_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure, sizeof(failure), format, arguments);
    va_end(arguments);
}

const char *tarn__cl_failure(void)
{
    return failure;
}

const char *tarn__cl_error_name(cl_int error)
{
    static _Thread_local char number[32];
    static const struct {
        cl_int error;
        const char *name;
    } names[] = {
        {CL_SUCCESS, "no error"},
        {CL_DEVICE_NOT_FOUND, "device not found"},
        {CL_DEVICE_NOT_AVAILABLE, "device not available"},
        {CL_COMPILER_NOT_AVAILABLE, "no compiler"},
        {CL_MEM_OBJECT_ALLOCATION_FAILURE, "allocation failed"},
        {CL_OUT_OF_RESOURCES, "out of resources"},
        {CL_OUT_OF_HOST_MEMORY, "out of host memory"},
        {CL_BUILD_PROGRAM_FAILURE, "program does not compile"},
        {CL_INVALID_VALUE, "invalid value"},
        {CL_INVALID_KERNEL_ARGS, "missing kernel argument"},
        {CL_INVALID_ARG_SIZE, "invalid argument size"},
        {CL_INVALID_ARG_INDEX, "argument index out of range"},
        {CL_INVALID_KERNEL_NAME, "kernel not found in program"},
        {CL_INVALID_WORK_GROUP_SIZE, "invalid work-group size"},
        {CL_INVALID_WORK_ITEM_SIZE, "invalid work-item size"},
        {CL_INVALID_BUFFER_SIZE, "invalid buffer size"},
        {CL_INVALID_COMMAND_QUEUE, "invalid command queue"},
        {CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, "failed event in wait list"},
        {-1001, "no driver installed"}, /* of the loader */
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i].error == error)
            return names[i].name;
    snprintf(number, sizeof(number), "error %d", error);
    return number;
}

/* The sentence names what failed and OpenCL's error. */
bool tarn__cl_check(cl_int error, const char *what)
{
    if (error != CL_SUCCESS)
        tarn__cl_fail("%s: %s (OpenCL %d)", what, tarn__cl_error_name(error), error);
    return error == CL_SUCCESS;
}

void tarn__cl_set_failed(tarn__cl_device *device)
{
    if (!device->has_failed)
        snprintf(device->failure, sizeof(device->failure), "%s", failure);
    device->has_failed = true;
}

bool tarn__cl_is_lost(const tarn__cl_device *device)
{
    return __atomic_load_n(&device->is_lost, __ATOMIC_ACQUIRE);
}

/* clFinish() tells a lost device from a call that failed for reasons of its own. */
bool tarn__cl_check_lost(tarn__cl_device *device)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (tarn__cl_is_lost(device) || clFinish(device->queue) == CL_SUCCESS)
        return false;
    pthread_mutex_lock(&lock);
    if (!tarn__cl_is_lost(device)) {
        snprintf(device->lost_reason, sizeof(device->lost_reason),
                 "%s is lost (%s): its tensors are gone; restart the program to use it again", device->name, failure);
        __atomic_store_n(&device->is_lost, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    tarn__cl_fail("%s", device->lost_reason);
    return false;
}

tarn__cl_device *tarn__cl_device_alive(int index)
{
    tarn__cl_device *d = tarn__cl_device_at(index);
    if (!d || !tarn__cl_is_lost(d))
        return d;
    tarn__cl_fail("%s", d->lost_reason);
    return NULL;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Drivers may defer allocation until first use; migrating the buffer forces it now, while the caller can get the error.
 */
static bool force_allocation(tarn__cl_device *d, cl_mem memory)
{
    return tarn__cl_check(
        clEnqueueMigrateMemObjects(d->queue, 1, &memory, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED, 0, NULL, NULL),
        "device memory");
}

/* Accounts for an allocation; false where it would exceed the device's memory, which drivers may overcommit. */
static bool reserve(tarn__cl_device *d, size_t bytes)
{
    pthread_mutex_lock(&d->lock);
    bool fits = bytes <= d->memory_total - d->memory_used;
    d->memory_used += fits ? bytes : 0;
    pthread_mutex_unlock(&d->lock);
    return fits;
}

static void unreserve(tarn__cl_device *d, size_t bytes)
{
    pthread_mutex_lock(&d->lock);
    d->memory_used -= bytes;
    pthread_mutex_unlock(&d->lock);
}

/* NULL: the pool then releases its cache and tries again. */
static void *alloc(int index, size_t bytes)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    cl_int error;
    if (!d || !reserve(d, bytes))
        return NULL;
    cl_mem memory = clCreateBuffer(d->context, CL_MEM_READ_WRITE, bytes, NULL, &error);
    if (tarn__cl_check(error, "device memory") && force_allocation(d, memory))
        return memory;
    if (memory)
        clReleaseMemObject(memory);
    unreserve(d, bytes);
    return NULL;
}

/* Commands still enqueued retain the buffer until they are done. */
static void release(int index, void *memory, size_t bytes)
{
    tarn__cl_device *d = tarn__cl_device_at(index);
    if (d && tarn__cl_check(clReleaseMemObject(memory), "freeing device memory"))
        unreserve(d, bytes);
}

/* ---- queue and events -------------------------------------------------------------------------------------------- */

static void *stream_of(int index)
{
    tarn__cl_device *d = tarn__cl_device_at(index);
    return d ? d->queue : NULL;
}

static bool synchronize(int index)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    return d && ((tarn__cl_flush_faults(d) && tarn__cl_check(clFinish(d->queue), "waiting for the device")) ||
                 tarn__cl_check_lost(d));
}

/* Under the lock. Reports a fault whose read has completed, and clears the device's record after everything enqueued.
 */
static bool take_fault(tarn__cl_device *d, tarn__fault *fault)
{
    static const tarn__cl_fault_record none;
    cl_int status = CL_QUEUED;
    if (!tarn__cl_check(
            clGetEventInfo(d->record_read, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL),
            "querying an event"))
        return false;
    if (status > CL_COMPLETE)
        return true;
    clReleaseEvent(d->record_read);
    d->record_read = NULL;
    if (!tarn__cl_check(status, "a kernel"))
        return tarn__cl_check_lost(d);
    if (!d->host_record->raised)
        return true;
    *fault = (tarn__fault){.raised = 1,
                           .function = (const char *)(uintptr_t)d->host_record->function,
                           .value = d->host_record->value,
                           .limit = d->host_record->limit};
    d->host_record->raised = 0;
    return tarn__cl_check(
        clEnqueueWriteBuffer(d->queue, d->fault_record, CL_FALSE, 0, sizeof(none), &none, 0, NULL, NULL),
        "clearing memory");
}

/* Called often and never waits: reports a failure or fault that has surfaced. */
static bool poll(int index, tarn__fault *fault)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    if (!d)
        return false;
    pthread_mutex_lock(&d->lock);
    bool good = !d->has_failed;
    if (!good)
        tarn__cl_fail("%s", d->failure);
    d->has_failed = false;
    good = good && (!d->record_read || take_fault(d, fault)) && (d->record_read || tarn__cl_read_faults(d));
    pthread_mutex_unlock(&d->lock);
    return good;
}

/* An event is a marker in the queue, created anew when it is recorded; the handle is owned by the caller. */
static void *event_new(int index)
{
    (void)index;
    cl_event *event = calloc(1, sizeof(*event));
    if (!event)
        tarn__cl_fail("out of host memory for an event");
    return event;
}

static void event_free(int index, void *event)
{
    (void)index;
    if (*(cl_event *)event)
        clReleaseEvent(*(cl_event *)event);
    free(event);
}

static bool event_record(int index, void *event, void *stream)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    cl_event *slot = event;
    if (*slot)
        clReleaseEvent(*slot);
    *slot = NULL;
    return d && ((tarn__cl_flush_faults(d) &&
                  tarn__cl_check(clEnqueueMarkerWithWaitList(stream, 0, NULL, slot), "recording an event")) ||
                 tarn__cl_check_lost(d));
}

static bool event_wait(int index, void *event)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    return d && (tarn__cl_check(clWaitForEvents(1, event), "waiting for an event") || tarn__cl_check_lost(d));
}

/* Between the ends of two markers, by the device's clock. */
static bool event_elapsed(int index, void *from, void *to, double *microseconds)
{
    cl_ulong begin = 0, end = 0;
    (void)index;
    if (!tarn__cl_check(
            clGetEventProfilingInfo(*(cl_event *)from, CL_PROFILING_COMMAND_END, sizeof(begin), &begin, NULL),
            "the time of an event") ||
        !tarn__cl_check(clGetEventProfilingInfo(*(cl_event *)to, CL_PROFILING_COMMAND_END, sizeof(end), &end, NULL),
                        "the time of an event"))
        return false;
    *microseconds = end > begin ? (double)(end - begin) * 1e-3 : 0;
    return true;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define REGISTER_YES(unit) tarn__cl_register_##unit(rows);
#define REGISTER_NO(unit)

static void register_kernels(void)
{
#define UNIT(family, unit, cpu, cuda, opencl) REGISTER_##opencl(unit)
#include "base/kernel/families.def"
#undef UNIT
}

/* A program that never compiles. */
static tarn__plan_status prepare_disabled(const tarn__call *call, tarn__plan *plan)
{
    (void)plan;
    return tarn__cl_ready(call, tarn__cl_find(call, "disabled", "none", "") != NULL);
}

/* The same for kernels that are run as a step of others, without a plan. */
static void kernel_disabled(const tarn__call *call)
{
    tarn__cl_launch launch = tarn__cl_begin(call, "disabled", "none", "");
    tarn__cl_enqueue(&launch, 1, (size_t[]){1}, NULL);
}

static bool fits_none(const tarn__call *call)
{
    (void)call;
    return false;
}

/* Disabled kernels with a `fits` decline all calls, which are then composed: the CPU may not have these kernels. */
static void replace_disabled(void)
{
    for (int k = 0; k < TARN__KERNEL_COUNT; k++)
        if (rows[k].run && tarn__cl_is_disabled(tarn__kernel_names[k]))
            rows[k] = rows[k].fits ? tarn__row_fits(rows[k], fits_none)
                                   : tarn__row_planned(prepare_disabled, kernel_disabled, rows[k].dtypes);
}

const tarn__kernel_row *tarn__cl_kernel_table(void)
{
    return rows;
}

static double peak_flops(int index, const char *precision)
{
    tarn_device_info info = {0};
    return tarn__cl_device_query(index, &info) ? tarn__peak_flops_of(info.description, precision) : 0;
}

static tarn__backend backend = {
    .name = "opencl",
    .auto_priority = 100,
    .device_count = tarn__cl_count,
    .device_query = tarn__cl_device_query,
    .peak_flops = peak_flops,
    .alloc = alloc,
    .release = release,
    .upload = tarn__cl_upload,
    .download = tarn__cl_download,
    .stream = stream_of,
    .synchronize = synchronize,
    .poll = poll,
    .declined = tarn__cl_declined,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_elapsed = event_elapsed,
    .pinned_new = tarn__cl_pinned_new,
    .pinned_free = tarn__cl_pinned_free,
    .pinned_upload = tarn__cl_pinned_upload,
    .pinned_join = tarn__cl_pinned_join,
    .pinned_wait = tarn__cl_pinned_wait,
    .pinned_set_events = tarn__cl_pinned_set_events,
    .failure = tarn__cl_failure,
    .kernels = rows,
};

TARN_API const tarn__backend *tarn_backend_entry(const tarn__host *host, char *why, size_t why_size);

const tarn__backend *tarn_backend_entry(const tarn__host *host, char *why, size_t why_size)
{
    static tarn__host lent;
    lent = *host;
    tarn__cl_host = &lent;
    if (!tarn__cl_check_variables(why, why_size))
        return NULL;
    tarn__cl_find_devices(why, why_size); /* without a device the table still serves `tarn ops` */
    backend.kernels_hash = tarn__kernels_hash();
    backend.version = host->version;
    register_kernels();
    replace_disabled();
    return &backend;
}
