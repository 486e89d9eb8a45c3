/* backend.c: the CUDA backend: devices, their memory, streams and events, and the kernel table.
 *
 * A device is set up on first use and lives as long as the process. Every kernel of a device runs on its one stream.
 * Failures are kept per thread as a sentence (tarn__cuda_failure); asynchronous ones surface in poll(). Functions may
 * be called from any thread; `lock` guards device set-up only. */
#include "backends/cuda/cudnn/cudnn.h"
#include "backends/cuda/runtime/autotune.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/kernel/peak_flops.h"

#define MIN_MAJOR 8 /* compute capability */

static tarn__cuda_device devices[TARN__CUDA_MAX_DEVICES];
static bool ready[TARN__CUDA_MAX_DEVICES];
static int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tarn__kernel_row rows[TARN__KERNEL_COUNT];
static _Thread_local char failure[256];

/* ---- failures ---------------------------------------------------------------------------------------------------- */

void tarn__cuda_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure, sizeof(failure), format, arguments);
    va_end(arguments);
}

bool tarn__cuda_good(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return true;
    tarn__cuda_fail("%s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
    cudaGetLastError(); /* clear the sticky error: the next call must not report it */
    return false;
}

void tarn__cuda_set_failed(int index)
{
    devices[index].has_failed = true;
}

const char *tarn__cuda_failure(void)
{
    return failure;
}

const char *tarn__cuda_env(const char *name, const char *former)
{
    const char *text = getenv(name);
    return text ? text : getenv(former);
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

int tarn__cuda_count(void)
{
    return count;
}

/* Creates the stream, the fault record and the counters of a device. The fault record is mapped host memory: the device
 * writes it, the host reads it without a call. Nothing is freed on failure: a device that cannot be set up fails every
 * later call too. */
static bool set_up(tarn__cuda_device *d, int index)
{
    void *record = NULL;
    if (!tarn__cuda_good(cudaSetDevice(index), "cannot select the device") ||
        !tarn__cuda_good(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "cannot create a stream") ||
        !tarn__cuda_good(cudaHostAlloc(&record, sizeof(tarn__fault), cudaHostAllocMapped | cudaHostAllocPortable),
                         "cannot allocate host memory") ||
        !tarn__cuda_good(cudaMalloc((void **)&d->fault_lock, sizeof(int)), "cannot allocate device memory") ||
        !tarn__cuda_good(cudaMemsetAsync(d->fault_lock, 0, sizeof(int), d->stream), "cannot clear device memory") ||
        !tarn__cuda_good(cudaMalloc((void **)&d->counters, sizeof(int) * TARN__CUDA_COUNTERS),
                         "cannot allocate device memory") ||
        !tarn__cuda_good(cudaMemsetAsync(d->counters, 0, sizeof(int) * TARN__CUDA_COUNTERS, d->stream),
                         "cannot clear device memory") ||
        !tarn__cuda_good(cudaDeviceGetAttribute(&d->multiprocessors, cudaDevAttrMultiProcessorCount, index),
                         "cannot query the device") ||
        !tarn__cuda_good(cudaDeviceGetAttribute(&d->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index),
                         "cannot query the device") ||
        !tarn__cuda_good(cudaDeviceGetAttribute(&d->major, cudaDevAttrComputeCapabilityMajor, index),
                         "cannot query the device"))
        return false;
    memset(record, 0, sizeof(tarn__fault));
    d->fault = record;
    return true;
}

/* Double-checked: `ready` is read without the lock on the hot path. With several GPUs cudaSetDevice runs each time,
 * since other code in the process may have changed the current device. */
tarn__cuda_device *tarn__cuda_at(int index)
{
    /* the device this thread made current last: cudaGetDevice on every call costs more than the checks of a launch */
    static _Thread_local int current = -1;
    if (!__atomic_load_n(&ready[index], __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&lock);
        bool good = ready[index] || set_up(&devices[index], index);
        __atomic_store_n(&ready[index], good, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&lock);
        current = -1;
        if (!good)
            return NULL;
    }
    if (current != index || count > 1) {
        if (!tarn__cuda_good(cudaSetDevice(index), "cannot select the device"))
            return NULL;
        current = index;
    }
    return &devices[index];
}

static bool device_query(int index, tarn_device_info *info)
{
    struct cudaDeviceProp properties;
    size_t free_bytes = 0, total_bytes = 0;
    int driver = 0;
    if (!tarn__cuda_good(cudaGetDeviceProperties(&properties, index), "cannot query the device") ||
        !tarn__cuda_at(index) ||
        !tarn__cuda_good(cudaMemGetInfo(&free_bytes, &total_bytes), "cannot query the device's memory"))
        return false;
    cudaDriverGetVersion(&driver);
    snprintf(info->type, sizeof(info->type), "gpu");
    snprintf(info->vendor, sizeof(info->vendor), "NVIDIA");
    snprintf(info->description, sizeof(info->description), "%s", properties.name);
    snprintf(info->detail, sizeof(info->detail),
             "compute capability %d.%d, %d multiprocessors, driver for CUDA %d.%d, %s", properties.major,
             properties.minor, properties.multiProcessorCount, driver / 1000, driver % 1000 / 10, tarn__cudnn_about());
    info->memory_total = (int64_t)total_bytes;
    info->memory_free = (int64_t)free_bytes;
    return true;
}

static double peak_flops(int index, const char *precision)
{
    tarn_device_info info = {0};
    return device_query(index, &info) ? tarn__peak_flops_of(info.description, precision) : 0;
}

/* Kernels are compiled for 8.0 and 9.0, with PTX for later devices (CMakeLists.txt). Older devices have no code.
 * Returns NULL for a usable device, else the reason, valid until this thread's next call. */
static const char *unusable(int index)
{
    static _Thread_local char why[128];
    int major = MIN_MAJOR, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index) != cudaSuccess) {
        cudaGetLastError(); /* the first use of the device reports it */
        return NULL;
    }
    snprintf(why, sizeof(why), "compute capability is %d.%d; this build needs %d.0 or later", major, minor, MIN_MAJOR);
    return major < MIN_MAJOR ? why : NULL;
}

/* ---- memory, stream, events -------------------------------------------------------------------------------------- */

/* Device memory for the pool of core/: owned by the caller until release(). cudaMalloc aligns to 256 bytes. */
static void *alloc(int index, size_t bytes)
{
    void *memory = NULL;
    return tarn__cuda_at(index) && tarn__cuda_good(cudaMalloc(&memory, bytes), "cannot allocate device memory") ? memory
                                                                                                                : NULL;
}

static void release(int index, void *memory, size_t bytes)
{
    (void)bytes;
    if (tarn__cuda_at(index))
        tarn__cuda_good(cudaFree(memory), "cannot free device memory");
}

static void *stream_of(int index)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    return d ? d->stream : NULL;
}

/* Waits for the device's stream. Not possible during a capture: nothing has run yet. */
static bool synchronize(int index)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    if (!d)
        return false;
    if (d->is_capturing) {
        tarn__cuda_fail("cannot wait for the device while a step is captured");
        return false;
    }
    return tarn__cuda_good(cudaStreamSynchronize(d->stream), "waiting for the device failed");
}

/* Reports failed launches, then an index fault that a kernel raised. Returns false for a failure, whose sentence is
 * tarn__cuda_failure(). Does not wait: a fault raised after this call is seen by the next one. */
static bool poll(int index, tarn__fault *fault)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    if (!d || d->has_failed || !tarn__cuda_good(cudaGetLastError(), "a kernel failed")) {
        if (d)
            d->has_failed = false;
        return false;
    }
    if (!__atomic_load_n(&d->fault->raised, __ATOMIC_ACQUIRE) || d->is_capturing)
        return true;
    *fault = *d->fault;
    d->fault->raised = 0;
    return tarn__cuda_good(cudaMemsetAsync(d->fault_lock, 0, sizeof(int), d->stream), "cannot clear device memory");
}

static void *event_new(int index)
{
    cudaEvent_t event = NULL;
    return tarn__cuda_at(index) && tarn__cuda_good(cudaEventCreate(&event), "cannot create an event") ? event : NULL;
}

static void event_free(int index, void *event)
{
    if (tarn__cuda_at(index))
        cudaEventDestroy(event);
}

static bool event_record(int index, void *event, void *stream)
{
    return tarn__cuda_at(index) && tarn__cuda_good(cudaEventRecord(event, stream), "cannot record an event");
}

static bool event_wait(int index, void *event)
{
    return tarn__cuda_at(index) && tarn__cuda_good(cudaEventSynchronize(event), "waiting for an event failed");
}

/* Time between two recorded events, which must both have passed. */
static bool event_elapsed(int index, void *from, void *to, double *microseconds)
{
    float milliseconds = 0;
    if (!tarn__cuda_at(index) ||
        !tarn__cuda_good(cudaEventElapsedTime(&milliseconds, from, to), "cannot measure the time between two events"))
        return false;
    *microseconds = (double)milliseconds * 1e3;
    return true;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define REGISTER_YES(unit) tarn__cuda_register_##unit(rows);
#define REGISTER_NO(unit)

/* An empty row means: not on this backend; the caller falls back to the CPU. */
static void fill_table(void)
{
#define UNIT(family, unit, cpu, cuda, opencl) REGISTER_##cuda(unit)
#include "base/kernel/families.def"
#undef UNIT
}

const tarn__kernel_row *tarn__cuda_rows(void)
{
    return rows;
}

static tarn__backend backend = {
    .name = "cuda",
    .plain_addresses = true,
    .has_tf32 = true,
    .has_bf16 = true,
    .dlpack_memory = 2,
    .auto_priority = 200,
    .device_count = tarn__cuda_count,
    .device_query = device_query,
    .peak_flops = peak_flops,
    .unusable = unusable,
    .alloc = alloc,
    .release = release,
    .upload = tarn__cuda_upload,
    .download = tarn__cuda_download,
    .peer = tarn__cuda_peer,
    .stream = stream_of,
    .synchronize = synchronize,
    .poll = poll,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_elapsed = event_elapsed,
    .capture_begin = tarn__cuda_capture_begin,
    .capture_end = tarn__cuda_capture_end,
    .graph_launch = tarn__cuda_graph_launch,
    .graph_free = tarn__cuda_graph_free,
    .write_inline = tarn__cuda_write_inline,
    .pinned_new = tarn__cuda_pinned_new,
    .pinned_free = tarn__cuda_pinned_free,
    .pinned_upload = tarn__cuda_pinned_send,
    .pinned_join = tarn__cuda_pinned_join,
    .pinned_wait = tarn__cuda_pinned_wait,
    .pinned_set_events = tarn__cuda_pinned_mark,
    .tuning_export = tarn__cuda_tuning_export,
    .tuning_import = tarn__cuda_tuning_import,
    .failure = tarn__cuda_failure,
    .kernels = rows,
};

/* Driver version against the runtime's: the driver is too old, or missing. */
static void describe_driver(char *why, size_t why_size)
{
    int needed = 0, driver = 0;
    cudaRuntimeGetVersion(&needed);
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
        snprintf(why, why_size, "the NVIDIA driver supports CUDA %d.%d; this build needs %d.%d: install a newer driver",
                 driver / 1000, driver % 1000 / 10, needed / 1000, needed % 1000 / 10);
    else
        snprintf(why, why_size, "the NVIDIA driver (libcuda.so.1) is not installed");
}

/* Counts the devices; writes the reason to `why` if there are none. */
static void find_devices(char *why, size_t why_size)
{
    cudaError_t error = cudaGetDeviceCount(&count);
    bool is_found = error == cudaSuccess && count > 0;
    count = !is_found ? 0 : count > TARN__CUDA_MAX_DEVICES ? TARN__CUDA_MAX_DEVICES : count;
    if (error == cudaErrorInsufficientDriver)
        describe_driver(why, why_size);
    else if (error != cudaSuccess && error != cudaErrorNoDevice)
        snprintf(why, why_size, "%s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
    else if (!is_found)
        snprintf(why, why_size, "the NVIDIA driver finds no GPU");
}

TARN_API const tarn__backend *tarn_backend_entry(const tarn__host *host, char *why, size_t why_size);

const tarn__backend *tarn_backend_entry(const tarn__host *host, char *why, size_t why_size)
{
    find_devices(why, why_size); /* the kernel table exists without a device */
    backend.kernels_hash = tarn__kernels_hash();
    backend.version = host->version;
    fill_table();
    return &backend;
}
