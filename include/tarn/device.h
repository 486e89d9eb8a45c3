/* device.h: devices are values: cpu, cuda:0, opencl:1. */
#ifndef TARN_DEVICE_H
#define TARN_DEVICE_H

#include <tarn/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A device: a backend's slot and the index of a device in it. All zero is the CPU. Compare with tarn_device_equal(). */
typedef struct tarn_device {
    int32_t backend;
    int32_t index;
} tarn_device;

/* Properties of one device. */
typedef struct tarn_device_info {
    char name[32];         /* "cpu", "cuda:0" */
    char description[128]; /* the vendor's name of the device */
    char detail[128];      /* instruction set, compute capability or driver */
    int64_t memory_total;  /* bytes, 0 if unknown */
    int64_t memory_free;   /* bytes, 0 if unknown */
    char type[16];         /* "cpu", "gpu" or "accelerator" (OpenCL offers CPUs as well) */
    char vendor[64];       /* "" if unknown */
    bool has_tf32;         /* f32 matmuls run in TF32 where tarn_set_tf32() allows it */
} tarn_device_info;

/* The CPU. */
TARN_API tarn_device tarn_device_cpu(void);

/* The preferred device: a GPU of the backend with the highest priority, else the CPU. Of the released backends CUDA
 * comes before OpenCL. GPUs that this build has no code for are skipped. Never a CPU through another backend, such as
 * OpenCL: the native CPU kernels are faster. */
TARN_API tarn_device tarn_device_auto(void);

/* Parses "cpu", "auto", "cuda" or "cuda:1". A device that is missing, or that this build has no code for, is an
 * error, and the CPU is returned. */
TARN_API tarn_device tarn_device_parse(const char *text);

/* Writes the device's name ("cuda:0") into `buffer` and returns `buffer`; 32 bytes always suffice. */
TARN_API char *tarn_device_name(tarn_device device, char *buffer, size_t size);

/* True if both are the same device. */
TARN_API bool tarn_device_equal(tarn_device a, tarn_device b);

/* Name of backend number `index`; NULL past the last. First "cpu", then the released backends, also where their files
 * are missing, then every other libtarn-NAME.so in the search path, eight in all. Valid for the process. */
TARN_API const char *tarn_backend_name(int index);

/* Number of devices of a backend ("cpu", "cuda", "opencl"); 0 if the backend is missing, which is not an error. */
TARN_API int tarn_device_count(const char *backend);

/* Why a backend is missing, in one sentence; "" if it is available. Valid until the next call on this thread. */
TARN_API const char *tarn_backend_missing(const char *backend);

/* True if tarn_device_auto() would prefer a released backend, were it available, to this device: any to the CPU, and
 * one made for the device's vendor to a GPU of another backend. */
TARN_API bool tarn_backend_preferred(const char *backend, tarn_device device);

/* Fills in the properties of a device. */
TARN_API bool tarn_device_query(tarn_device device, tarn_device_info *info);

/* Waits until all work enqueued on the device has finished. Reports errors of asynchronous work. */
TARN_API bool tarn_synchronize(tarn_device device);

/* A point in a device's stream, to wait for or to time from. */
typedef struct tarn_event tarn_event;

/* Records an event on the device's stream. The caller owns the event. */
TARN_API tarn_event *tarn_event_record(tarn_device device);

/* Waits until the device has reached the event. */
TARN_API bool tarn_event_wait(tarn_event *event);

/* Microseconds between two events of one device, by the device's clock; waits for both. NaN on error. */
TARN_API double tarn_event_elapsed(tarn_event *from, tarn_event *to);

/* Frees an event. NULL is allowed; works while an error is pending. */
TARN_API void tarn_event_free(tarn_event *event);

/* The device's stream, for code that enqueues its own work in tarn's order: a cudaStream_t on CUDA devices, NULL on
 * the CPU. */
TARN_API void *tarn_native_stream(tarn_device device);

/* Returns the unused pool blocks of a device to the system. */
TARN_API bool tarn_empty_cache(tarn_device device);

/* Sets the folders, separated by ':', that are searched first for backends (libtarn-NAME.so). Call it before the
 * first use of a device other than the CPU. TARN_BACKEND_PATH in the environment does the same. */
TARN_API bool tarn_set_backend_path(const char *folders);

/* What happens when a backend lacks a kernel. */
typedef enum tarn_fallback {
    TARN_FALLBACK_WARN = 0, /* the CPU runs it, counted, with one warning per kernel (the default) */
    TARN_FALLBACK_ERROR = 1 /* an error */
} tarn_fallback;

/* Sets what happens when a backend lacks a kernel. TARN_FALLBACK=error in the environment does the same. */
TARN_API void tarn_set_fallback(tarn_fallback fallback);

/* Caches freed pool blocks for reuse (the default), or returns each to the system at once, so that memory checkers
 * see it. TARN_POOL=off in the environment does the same. */
TARN_API void tarn_set_pool(bool on);

#ifdef __cplusplus
}
#endif
#endif
