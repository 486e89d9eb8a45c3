/* backend.c: OpenCL's devices as a backend: memory, queue and events, and the kernel table. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/opencl/runtime/opencl.h"

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
        {CL_MEM_OBJECT_ALLOCATION_FAILURE, "no memory for an object"},
        {CL_OUT_OF_RESOURCES, "out of resources"},
        {CL_OUT_OF_HOST_MEMORY, "out of host memory"},
        {CL_BUILD_PROGRAM_FAILURE, "a program does not compile"},
        {CL_INVALID_VALUE, "invalid value"},
        {CL_INVALID_KERNEL_ARGS, "an argument of a kernel is missing"},
        {CL_INVALID_ARG_SIZE, "invalid size of an argument"},
        {CL_INVALID_ARG_INDEX, "a kernel has fewer arguments"},
        {CL_INVALID_KERNEL_NAME, "no such kernel in its program"},
        {CL_INVALID_WORK_GROUP_SIZE, "invalid size of a group"},
        {CL_INVALID_WORK_ITEM_SIZE, "invalid size of a group's axis"},
        {CL_INVALID_BUFFER_SIZE, "invalid size of a buffer"},
        {CL_INVALID_COMMAND_QUEUE, "the queue is not valid any more"},
        {CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, "what was waited for failed"},
        {-1001, "no driver is installed"}, /* of the loader */
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i].error == error)
            return names[i].name;
    snprintf(number, sizeof(number), "error %d", error);
    return number;
}

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

bool tarn__cl_check_lost(tarn__cl_device *device)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (tarn__cl_is_lost(device) || clFinish(device->queue) == CL_SUCCESS)
        return false;
    pthread_mutex_lock(&lock);
    if (!tarn__cl_is_lost(device)) {
        snprintf(device->loss, sizeof(device->loss),
                 "%s is lost (%s); what lay there is gone, and nothing runs on it until the program is started again",
                 device->name, failure);
        __atomic_store_n(&device->is_lost, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    tarn__cl_fail("%s", device->loss);
    return false;
}

tarn__cl_device *tarn__cl_device_alive(int index)
{
    tarn__cl_device *d = tarn__cl_device_at(index);
    if (!d || !tarn__cl_is_lost(d))
        return d;
    tarn__cl_fail("%s", d->loss);
    return NULL;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Drivers may put off taking memory until it is used; moving it to the device asks for it now, while there is a caller
 * to tell. */
static bool is_there(tarn__cl_device *d, cl_mem memory)
{
    return tarn__cl_check(
        clEnqueueMigrateMemObjects(d->queue, 1, &memory, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED, 0, NULL, NULL),
        "device memory");
}

/* Counts memory in or out; false where there is less left. */
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

static void *alloc(int index, size_t bytes)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    cl_int error;
    if (!d || !reserve(d, bytes))
        return NULL;
    cl_mem memory = clCreateBuffer(d->context, CL_MEM_READ_WRITE, bytes, NULL, &error);
    if (tarn__cl_check(error, "device memory") && is_there(d, memory))
        return memory;
    if (memory)
        clReleaseMemObject(memory);
    unreserve(d, bytes);
    return NULL;
}

/* What is still enqueued holds the memory until it is done. */
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

/* Under the lock: hands a fault over that has been read, and clears the device's record behind everything enqueued. */
static bool take_fault(tarn__cl_device *d, tarn__fault *fault)
{
    static const tarn__cl_fault_record none;
    cl_int status = CL_QUEUED;
    if (!tarn__cl_check(clGetEventInfo(d->reading, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL),
                        "asking for an event"))
        return false;
    if (status > CL_COMPLETE)
        return true;
    clReleaseEvent(d->reading);
    d->reading = NULL;
    if (!tarn__cl_check(status, "a kernel"))
        return tarn__cl_check_lost(d);
    if (!d->seen->raised)
        return true;
    *fault = (tarn__fault){.raised = 1,
                           .function = (const char *)(uintptr_t)d->seen->function,
                           .value = d->seen->value,
                           .limit = d->seen->limit};
    d->seen->raised = 0;
    return tarn__cl_check(clEnqueueWriteBuffer(d->queue, d->record, CL_FALSE, 0, sizeof(none), &none, 0, NULL, NULL),
                          "clearing memory");
}

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
    good = good && (!d->reading || take_fault(d, fault)) && (d->reading || tarn__cl_read_faults(d));
    pthread_mutex_unlock(&d->lock);
    return good;
}

/* An event is a marker in the queue, made anew when it is recorded. */
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
    cl_event *place = event;
    if (*place)
        clReleaseEvent(*place);
    *place = NULL;
    return d && ((tarn__cl_flush_faults(d) &&
                  tarn__cl_check(clEnqueueMarkerWithWaitList(stream, 0, NULL, place), "recording an event")) ||
                 tarn__cl_check_lost(d));
}

static bool event_wait(int index, void *event)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    return d && (tarn__cl_check(clWaitForEvents(1, event), "waiting for an event") || tarn__cl_check_lost(d));
}

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

static void fill_table(void)
{
    tarn__cl_register_copy(rows);
    tarn__cl_register_elementwise(rows);
    tarn__cl_register_random(rows);
    tarn__cl_register_reduce(rows);
    tarn__cl_register_reduce_grad(rows);
    tarn__cl_register_gather(rows);
    tarn__cl_register_scatter(rows);
    tarn__cl_register_sort(rows);
    tarn__cl_register_pad(rows);
    tarn__cl_register_scan(rows);
    tarn__cl_register_quantize(rows);
    tarn__cl_register_kv_q8(rows);
    tarn__cl_register_matmul(rows);
    tarn__cl_register_attention(rows);
    tarn__cl_register_conv(rows);
    tarn__cl_register_layernorm(rows);
    tarn__cl_register_softmax(rows);
    tarn__cl_register_cross_entropy(rows);
    tarn__cl_register_optimizer(rows);
    tarn__cl_register_clip(rows);
    tarn__cl_register_rope(rows);
    tarn__cl_register_pool(rows);
    tarn__cl_register_batchnorm(rows);
    tarn__cl_register_groupnorm(rows);
    tarn__cl_register_fused(rows);
    tarn__cl_register_quant_matmul(rows);
}

/* A kernel whose program does not compile. */
static void kernel_without(const tarn__call *call)
{
    tarn__cl_launch launch = tarn__cl_begin(call, "disabled", "none", "");
    tarn__cl_enqueue(&launch, 1, (size_t[]){1}, NULL);
}

static void take_out_unwanted(void)
{
    for (int k = 0; k < TARN__KERNEL_COUNT; k++)
        if (rows[k].run && tarn__cl_is_disabled(tarn__kernel_names[k]))
            rows[k].run = kernel_without;
}

const tarn__kernel_row *tarn__cl_kernel_table(void)
{
    return rows;
}

static tarn__backend backend = {
    .name = "opencl",
    .device_count = tarn__cl_count,
    .device_query = tarn__cl_device_query,
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
    .pinned_upload = tarn__cl_pinned_send,
    .pinned_join = tarn__cl_pinned_join,
    .pinned_wait = tarn__cl_pinned_wait,
    .pinned_set_events = tarn__cl_pinned_mark,
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
    tarn__cl_find_devices(why, why_size); /* without one there is still the table */
    backend.kernels_hash = tarn__kernels_hash();
    backend.version = host->version;
    fill_table();
    take_out_unwanted();
    return &backend;
}
