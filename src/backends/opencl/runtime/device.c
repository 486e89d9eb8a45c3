/* device.c: devices of all OpenCL drivers: discovery, properties, setup.
 *
 * Devices are listed once, when the backend is opened, GPUs first; a device is set up (context, queue, fault record,
 * probes) when it is first used, by one thread while others wait. Neither is undone before the process ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/opencl/runtime/opencl.h"

#define MAX_DEVICES 32
#define MAX_PLATFORMS 16

static tarn__cl_device devices[MAX_DEVICES];
static bool ready[MAX_DEVICES];
static int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int tarn__cl_count(void)
{
    return count;
}

/* ---- discovery --------------------------------------------------------------------------------------------------- */

static void name_platform(cl_platform_id platform, char *name, size_t size)
{
    if (clGetPlatformInfo(platform, CL_PLATFORM_NAME, size, name, NULL) != CL_SUCCESS)
        snprintf(name, size, "(unnamed)");
}

/* Adds is_little-endian devices with a compiler, which kernels and layouts assume; the others are logged. */
static void add_devices(const cl_device_id *ids, cl_uint found, cl_device_type type)
{
    for (cl_uint i = 0; i < found && i < MAX_DEVICES && count < MAX_DEVICES; i++) {
        cl_bool compiles = CL_FALSE, is_little = CL_FALSE;
        clGetDeviceInfo(ids[i], CL_DEVICE_COMPILER_AVAILABLE, sizeof(compiles), &compiles, NULL);
        clGetDeviceInfo(ids[i], CL_DEVICE_ENDIAN_LITTLE, sizeof(is_little), &is_little, NULL);
        if (compiles && is_little) {
            devices[count].id = ids[i];
            devices[count].type = type;
            devices[count].is_cpu = type == CL_DEVICE_TYPE_CPU;
            devices[count].index = count;
            count++;
        } else {
            char name[128] = "";
            clGetDeviceInfo(ids[i], CL_DEVICE_NAME, sizeof(name), name, NULL);
            tarn__cl_host->log(TARN_LOG_WARNING, "opencl: %s is ignored: %s", name,
                               compiles ? "it is big-endian" : "its driver has no compiler");
        }
    }
}

/* False with *error when the driver fails. Having no device of the type is no failure. */
static bool query_devices(cl_platform_id platform, cl_device_type type, cl_int *error)
{
    cl_uint found = 0;
    cl_device_id ids[MAX_DEVICES];
    *error = clGetDeviceIDs(platform, type, MAX_DEVICES, ids, &found);
    if (*error == CL_SUCCESS)
        add_devices(ids, found, type);
    return *error == CL_SUCCESS || *error == CL_DEVICE_NOT_FOUND;
}

/* Logged, since a missing GPU makes `opencl` mean another device. */
static void log_failing_driver(cl_platform_id platform, cl_int error)
{
    char name[64];
    name_platform(platform, name, sizeof(name));
    tarn__cl_host->log(TARN_LOG_WARNING, "opencl: driver %s cannot list its devices: %s (OpenCL %d)", name,
                       tarn__cl_error_name(error), error);
}

/* Names the drivers. PoCL without a writable cache folder is the usual cause. */
static void explain_no_devices(const cl_platform_id *platforms, cl_uint found, char *why, size_t why_size)
{
    char names[256] = "", name[64];
    bool has_pocl = false;
    for (cl_uint i = 0; i < found; i++) {
        name_platform(platforms[i], name, sizeof(name));
        snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i ? ", " : "", name);
        has_pocl = has_pocl || strcmp(name, "Portable Computing Language") == 0;
    }
    snprintf(why, why_size, "no device with a compiler found; OpenCL drivers: %s%s", names,
             has_pocl ? "; PoCL needs a writable folder: XDG_CACHE_HOME, ~/.cache or POCL_CACHE_DIR" : "");
}

/* The Khronos loader splits the list of drivers in place, in the environment: processes started later would see the
 * first driver alone. The list is restored. */
static cl_int query_platforms(cl_platform_id *platforms, cl_uint *found)
{
    char *list = getenv("OCL_ICD_FILENAMES"), *saved = list ? strdup(list) : NULL;
    const cl_int error = clGetPlatformIDs(MAX_PLATFORMS, platforms, found);
    if (saved && getenv("OCL_ICD_FILENAMES") == list)
        memcpy(list, saved, strlen(saved));
    free(saved);
    return error;
}

bool tarn__cl_find_devices(char *why, size_t why_size)
{
    static const cl_device_type types[] = {CL_DEVICE_TYPE_GPU, CL_DEVICE_TYPE_ACCELERATOR, CL_DEVICE_TYPE_CPU};
    cl_platform_id platforms[MAX_PLATFORMS];
    cl_uint found = 0;
    bool logged[MAX_PLATFORMS] = {false};
    cl_int error = query_platforms(platforms, &found);
    if (error != CL_SUCCESS || found == 0) {
        snprintf(why, why_size,
                 "no OpenCL driver found (%s); install the device's, or PoCL (pocl-opencl-icd) for the CPU",
                 tarn__cl_error_name(error));
        return false;
    }
    found = found > MAX_PLATFORMS ? MAX_PLATFORMS : found;
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (cl_uint i = 0; i < found; i++)
            if (!query_devices(platforms[i], types[t], &error) && !logged[i]) {
                log_failing_driver(platforms[i], error);
                logged[i] = true;
            }
    if (count == 0)
        explain_no_devices(platforms, found, why, why_size);
    return count > 0;
}

/* ---- properties -------------------------------------------------------------------------------------------------- */

/* A string property without surrounding spaces, cut to `size`; "" where the driver has none. */
static void query_string(const tarn__cl_device *d, cl_device_info what, char *text, size_t size)
{
    char all[8192] = "";
    if (clGetDeviceInfo(d->id, what, sizeof(all), all, NULL) != CL_SUCCESS)
        all[0] = 0;
    const char *first = all + strspn(all, " ");
    snprintf(text, size, "%s", first);
    for (size_t length = strlen(text); length > 0 && text[length - 1] == ' '; length--)
        text[length - 1] = 0;
}

static bool is_set(const char *name, const char *value)
{
    const char *text = tarn__cl_variable(name);
    return text && strcmp(text, value) == 0;
}

/* `value`, or the variable where it is set and smaller. */
static size_t at_most(const char *name, size_t value)
{
    const char *text = tarn__cl_variable(name);
    unsigned long long limit = text ? strtoull(text, NULL, 10) : 0;
    return limit > 0 && limit < value ? (size_t)limit : value;
}

/* True when a space-separated list contains the name as a whole word. */
static bool contains_word(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = strstr(list, name); at; at = strstr(at + length, name))
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || at[length] == 0))
            return true;
    return false;
}

/* Intel's subgroups work with every version of the language; the KHR shuffles need OpenCL C 2.0 or later. */
static void query_extensions(tarn__cl_device *d, const char *extensions)
{
    char version[64];
    query_string(d, CL_DEVICE_VERSION, version, sizeof(version));
    const bool has_intel = contains_word(extensions, "cl_intel_subgroups"),
               is_cl2 = strncmp(version, "OpenCL 2", 8) == 0, is_cl3 = strncmp(version, "OpenCL 3", 8) == 0;
    const bool has_khr = contains_word(extensions, "cl_khr_subgroup_shuffle") && (is_cl2 || is_cl3);
    d->has_f64 = contains_word(extensions, "cl_khr_fp64") && !is_set("TARN_OPENCL_FP64", "0");
    d->has_f16 = contains_word(extensions, "cl_khr_fp16") && !is_set("TARN_OPENCL_FP16", "0");
    d->subgroups = is_set("TARN_OPENCL_SUBGROUPS", "0")   ? NULL
                   : has_intel                            ? "INTEL"
                   : has_khr                              ? "KHR"
                   : is_set("TARN_OPENCL_SUBGROUPS", "1") ? "ONE"
                                                          : NULL;
    d->emulates_mma = is_set("TARN_OPENCL_MMA", "1");
    d->has_mma = d->emulates_mma ||
                 (strstr(d->vendor, "NVIDIA") && d->type == CL_DEVICE_TYPE_GPU && !is_set("TARN_OPENCL_MMA", "0"));
    d->language = has_intel || !has_khr ? "CL1.2" : is_cl2 ? "CL2.0" : "CL3.0";
}

/* Properties, as far as variables do not override them. */
static void query_features(tarn__cl_device *d)
{
    char extensions[8192];
    cl_device_local_mem_type local = CL_GLOBAL;
    cl_ulong local_bytes = 0, memory = 0;
    cl_bool shared = CL_FALSE;
    query_string(d, CL_DEVICE_EXTENSIONS, extensions, sizeof(extensions));
    query_extensions(d, extensions);
    clGetDeviceInfo(d->id, CL_DEVICE_LOCAL_MEM_TYPE, sizeof(local), &local, NULL);
    clGetDeviceInfo(d->id, CL_DEVICE_LOCAL_MEM_SIZE, sizeof(local_bytes), &local_bytes, NULL);
    clGetDeviceInfo(d->id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(memory), &memory, NULL);
    clGetDeviceInfo(d->id, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof(shared), &shared, NULL);
    clGetDeviceInfo(d->id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(d->max_group), &d->max_group, NULL);
    clGetDeviceInfo(d->id, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof(d->compute_units), &d->compute_units, NULL);
    d->has_local_memory = local == CL_LOCAL || is_set("TARN_OPENCL_LOCAL_MEM", "1");
    d->in_lockstep = !d->is_cpu || d->has_local_memory;
    d->shares_memory = shared != CL_FALSE;
    d->memory_total = at_most("TARN_OPENCL_MEMORY", (size_t)memory);
    d->local_bytes = at_most("TARN_OPENCL_LOCAL_BYTES", (size_t)local_bytes);
    d->group_limit = at_most("TARN_OPENCL_WORKGROUP", SIZE_MAX);
}

/* Options of every program. -w: generated code has unused functions. Division and square root are correctly rounded, as
 * on the CPU, where the device supports it. */
void tarn__cl_set_build_options(tarn__cl_device *d)
{
    cl_device_fp_config config = 0;
    clGetDeviceInfo(d->id, CL_DEVICE_SINGLE_FP_CONFIG, sizeof(config), &config, NULL);
    snprintf(d->options, sizeof(d->options), "-cl-std=%s -w%s%s%s%s%s%s%s%s%s", d->subgroups ? d->language : "CL1.2",
             config & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT ? " -cl-fp32-correctly-rounded-divide-sqrt" : "",
             d->has_f64 ? " -DHAS_F64" : "", d->has_f16 ? " -DHAS_F16" : "",
             d->emulates_mma ? " -DMMA_EMULATED"
             : d->has_mma    ? " -DHAS_MMA"
                             : "",
             d->has_local_memory ? " -DHAS_LOCAL_MEMORY" : "", d->in_lockstep ? " -DIN_LOCKSTEP" : "",
             d->is_cpu ? " -DIS_CPU" : "", d->subgroups ? " -DHAS_SUBGROUPS -DSUBGROUPS_" : "",
             d->subgroups ? d->subgroups : "");
}

/* The record on the device, cleared, and its pinned copy on the host. */
static bool create_fault_record(tarn__cl_device *d)
{
    cl_int error;
    tarn__cl_fault_record none = {0};
    d->fault_record = clCreateBuffer(d->context, CL_MEM_READ_WRITE, sizeof(none), NULL, &error);
    d->host_record = (tarn__cl_fault_record *)(void *)tarn__cl_alloc_pinned(d, sizeof(none), &d->host_record_memory);
    return d->host_record && tarn__cl_check(error, "device memory") &&
           tarn__cl_check(
               clEnqueueWriteBuffer(d->queue, d->fault_record, CL_TRUE, 0, sizeof(none), &none, 0, NULL, NULL),
               "clearing memory");
}

/* The queue is in order, with profiling for tarn_event_elapsed(). */
static bool set_up(tarn__cl_device *d)
{
    cl_int error;
    query_string(d, CL_DEVICE_NAME, d->name, sizeof(d->name));
    query_string(d, CL_DEVICE_VENDOR, d->vendor, sizeof(d->vendor));
    query_string(d, CL_DRIVER_VERSION, d->driver, sizeof(d->driver));
    query_features(d);
    d->context = clCreateContext(NULL, 1, &d->id, NULL, NULL, &error);
    if (!tarn__cl_check(error, "creating a context"))
        return false;
    d->queue = clCreateCommandQueue(d->context, d->id, CL_QUEUE_PROFILING_ENABLE, &error);
    if (!tarn__cl_check(error, "creating a queue") || !create_fault_record(d))
        return false;
    tarn__cl_probe_features(d);
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->tile_lock, NULL);
    return true;
}

/* Double-checked: `ready` is set with release order after setup, so that later calls take no lock. A failed setup is
 * tried again by the next call. */
tarn__cl_device *tarn__cl_device_at(int index)
{
    if (!__atomic_load_n(&ready[index], __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&lock);
        bool good = ready[index] || set_up(&devices[index]);
        __atomic_store_n(&ready[index], good, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&lock);
        if (!good)
            return NULL;
    }
    return &devices[index];
}

bool tarn__cl_device_query(int index, tarn_device_info *info)
{
    tarn__cl_device *d = tarn__cl_device_alive(index);
    if (!d)
        return false;
    snprintf(info->description, sizeof(info->description), "%s", d->name);
    snprintf(info->type, sizeof(info->type), "%s",
             d->type == CL_DEVICE_TYPE_GPU ? "gpu"
             : d->is_cpu                   ? "cpu"
                                           : "accelerator");
    snprintf(info->vendor, sizeof(info->vendor), "%s", d->vendor);
    snprintf(info->detail, sizeof(info->detail), "%s by %s, %u compute units, driver %s%s%s%s",
             d->is_cpu                       ? "CPU"
             : d->type == CL_DEVICE_TYPE_GPU ? "GPU"
                                             : "accelerator",
             d->vendor, d->compute_units, d->driver, d->has_f64 ? "" : ", no f64", d->has_f16 ? ", f16" : "",
             d->subgroups ? ", subgroups" : "");
    pthread_mutex_lock(&d->lock);
    info->memory_total = (int64_t)d->memory_total;
    info->memory_free = (int64_t)(d->memory_total - d->memory_used);
    pthread_mutex_unlock(&d->lock);
    return true;
}
