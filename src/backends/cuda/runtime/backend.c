/* backend.c: NVIDIA GPUs as a backend: the devices, their memory, streams and events, and the kernel table. */
#include "backends/cuda/cudnn/cudnn.h"
#include "backends/cuda/runtime/autotune.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MAX_DEVICES 64
#define LEAST_MAJOR 8 /* of the compute capability */

static tarn__cuda_device devices[MAX_DEVICES];
static bool ready[MAX_DEVICES];
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
    cudaGetLastError(); /* not kept for the next call to find */
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

/* ---- devices ----------------------------------------------------------------------------------------------------- */

int tarn__cuda_count(void)
{
    return count;
}

/* The fault record: written by the device, read by the host without a call. */
static bool set_up(tarn__cuda_device *d, int index)
{
    void *record = NULL;
    if (!tarn__cuda_good(cudaSetDevice(index), "choosing the device") ||
        !tarn__cuda_good(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "making a stream") ||
        !tarn__cuda_good(cudaHostAlloc(&record, sizeof(tarn__fault), cudaHostAllocMapped | cudaHostAllocPortable),
                         "host memory") ||
        !tarn__cuda_good(cudaMalloc((void **)&d->fault_lock, sizeof(int)), "device memory") ||
        !tarn__cuda_good(cudaMemsetAsync(d->fault_lock, 0, sizeof(int), d->stream), "clearing memory") ||
        !tarn__cuda_good(cudaMalloc((void **)&d->counters, sizeof(int) * TARN__CUDA_COUNTERS), "device memory") ||
        !tarn__cuda_good(cudaMemsetAsync(d->counters, 0, sizeof(int) * TARN__CUDA_COUNTERS, d->stream),
                         "clearing memory") ||
        !tarn__cuda_good(cudaDeviceGetAttribute(&d->multiprocessors, cudaDevAttrMultiProcessorCount, index),
                         "asking the device") ||
        !tarn__cuda_good(cudaDeviceGetAttribute(&d->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index),
                         "asking the device") ||
        !tarn__cuda_good(cudaDeviceGetAttribute(&d->major, cudaDevAttrComputeCapabilityMajor, index),
                         "asking the device"))
        return false;
    memset(record, 0, sizeof(tarn__fault));
    d->fault = record;
    return true;
}

tarn__cuda_device *tarn__cuda_at(int index)
{
    /* this thread's, as we left it: asking each time costs more than the launch's own checks */
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
        if (!tarn__cuda_good(cudaSetDevice(index), "choosing the device"))
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
    if (!tarn__cuda_good(cudaGetDeviceProperties(&properties, index), "asking the device") || !tarn__cuda_at(index) ||
        !tarn__cuda_good(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for the memory"))
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

/* Kernels are assembled for 8.0 and 9.0, and kept as PTX for later devices (CMakeLists.txt): earlier ones have no code.
 */
static const char *unusable(int index)
{
    static _Thread_local char why[128];
    int major = LEAST_MAJOR, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index) != cudaSuccess) {
        cudaGetLastError(); /* whoever uses it finds out */
        return NULL;
    }
    snprintf(why, sizeof(why), "its compute capability is %d.%d, and this build has code for %d.0 and later", major,
             minor, LEAST_MAJOR);
    return major < LEAST_MAJOR ? why : NULL;
}

/* ---- memory, stream, events -------------------------------------------------------------------------------------- */

static void *alloc(int index, size_t bytes)
{
    void *memory = NULL;
    return tarn__cuda_at(index) && tarn__cuda_good(cudaMalloc(&memory, bytes), "device memory") ? memory : NULL;
}

static void release(int index, void *memory, size_t bytes)
{
    (void)bytes;
    if (tarn__cuda_at(index))
        tarn__cuda_good(cudaFree(memory), "freeing device memory");
}

static void *stream_of(int index)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    return d ? d->stream : NULL;
}

static bool synchronize(int index)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    if (!d)
        return false;
    if (d->is_capturing) {
        tarn__cuda_fail("a step that is being captured cannot wait for the device");
        return false;
    }
    return tarn__cuda_good(cudaStreamSynchronize(d->stream), "waiting for the device");
}

static bool poll(int index, tarn__fault *fault)
{
    tarn__cuda_device *d = tarn__cuda_at(index);
    if (!d || d->has_failed || !tarn__cuda_good(cudaGetLastError(), "a kernel")) {
        if (d)
            d->has_failed = false;
        return false;
    }
    if (!__atomic_load_n(&d->fault->raised, __ATOMIC_ACQUIRE) || d->is_capturing)
        return true;
    *fault = *d->fault;
    d->fault->raised = 0;
    return tarn__cuda_good(cudaMemsetAsync(d->fault_lock, 0, sizeof(int), d->stream), "clearing memory");
}

static void *event_new(int index)
{
    cudaEvent_t event = NULL;
    return tarn__cuda_at(index) && tarn__cuda_good(cudaEventCreate(&event), "making an event") ? event : NULL;
}

static void event_free(int index, void *event)
{
    if (tarn__cuda_at(index))
        cudaEventDestroy(event);
}

static bool event_record(int index, void *event, void *stream)
{
    return tarn__cuda_at(index) && tarn__cuda_good(cudaEventRecord(event, stream), "recording an event");
}

static bool event_wait(int index, void *event)
{
    return tarn__cuda_at(index) && tarn__cuda_good(cudaEventSynchronize(event), "waiting for an event");
}

static bool event_elapsed(int index, void *from, void *to, double *microseconds)
{
    float milliseconds = 0;
    if (!tarn__cuda_at(index) ||
        !tarn__cuda_good(cudaEventElapsedTime(&milliseconds, from, to), "the time between two events"))
        return false;
    *microseconds = (double)milliseconds * 1e3;
    return true;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static void fill_table(void)
{
    tarn__cuda_unary(rows);
    tarn__cuda_binary(rows);
    tarn__cuda_binary_grad(rows);
    tarn__cuda_swiglu(rows);
    tarn__cuda_compare(rows);
    tarn__cuda_copy(rows);
    tarn__cuda_dequantize(rows);
    tarn__cuda_quant_matmul(rows);
    tarn__cuda_kv_q8(rows);
    tarn__cuda_fill(rows);
    tarn__cuda_pad(rows);
    tarn__cuda_random(rows);
    tarn__cuda_reduce(rows);
    tarn__cuda_argmax(rows);
    tarn__cuda_var_grad(rows);
    tarn__cuda_scan(rows);
    tarn__cuda_gather(rows);
    tarn__cuda_sort(rows);
    tarn__cuda_matmul(rows);
    tarn__cuda_conv(rows);
    tarn__cuda_pool(rows);
    tarn__cuda_softmax(rows);
    tarn__cuda_layernorm(rows);
    tarn__cuda_attention(rows);
    tarn__cuda_rope(rows);
    tarn__cuda_decode_gemv(rows);
    tarn__cuda_decode_attention(rows);
    tarn__cuda_decode_argmax(rows);
    tarn__cuda_batchnorm(rows);
    tarn__cuda_batchnorm_grad(rows);
    tarn__cuda_cross_entropy(rows);
    tarn__cuda_optimizer(rows);
    tarn__cuda_clip(rows);
    tarn__cuda_scale_grad(rows);
}

const tarn__kernel_row *tarn__cuda_rows(void)
{
    return rows;
}

static tarn__backend backend = {
    .name = "cuda",
    .plain_addresses = true,
    .has_tf32 = true,
    .device_count = tarn__cuda_count,
    .device_query = device_query,
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

/* What the runtime needs, and what the driver has: an older driver is installed, or none at all. */
static void tell_driver(char *why, size_t why_size)
{
    int needed = 0, driver = 0;
    cudaRuntimeGetVersion(&needed);
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
        snprintf(why, why_size, "NVIDIA's driver is for CUDA %d.%d, and this build needs %d.%d: install a newer driver",
                 driver / 1000, driver % 1000 / 10, needed / 1000, needed % 1000 / 10);
    else
        snprintf(why, why_size, "NVIDIA's driver, libcuda.so.1, is not installed");
}

/* Counts the devices; where there are none, says why. */
static void find_devices(char *why, size_t why_size)
{
    cudaError_t error = cudaGetDeviceCount(&count);
    bool is_found = error == cudaSuccess && count > 0;
    count = !is_found ? 0 : count > MAX_DEVICES ? MAX_DEVICES : count;
    if (error == cudaErrorInsufficientDriver)
        tell_driver(why, why_size);
    else if (error != cudaSuccess && error != cudaErrorNoDevice)
        snprintf(why, why_size, "%s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
    else if (!is_found)
        snprintf(why, why_size, "NVIDIA's driver finds no GPU");
}

TARN_API const tarn__backend *tarn_backend_entry(const tarn__host *host, char *why, size_t why_size);

const tarn__backend *tarn_backend_entry(const tarn__host *host, char *why, size_t why_size)
{
    find_devices(why, why_size); /* without one there is still the table */
    backend.kernels_hash = tarn__kernels_hash();
    backend.version = host->version;
    fill_table();
    return &backend;
}
