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

/* What is known of one device. Texts live as long as the program. */
typedef struct tarn_device_info {
    char name[32];         /* "cpu", "cuda:0" */
    char description[128]; /* the maker's name for it */
    char detail[128];      /* what is accelerated: instruction level, compute capability, driver */
    int64_t memory_total;  /* bytes, 0 if unknown */
    int64_t memory_free;   /* bytes, 0 if unknown */
    char type[16];         /* "cpu", "gpu" or "accelerator": OpenCL offers CPUs, too */
    char vendor[64];       /* "" if unknown */
} tarn_device_info;

/* The CPU. */
TARN_API tarn_device tarn_device_cpu(void);

/* The best device there is: a CUDA GPU, else an OpenCL GPU, else the CPU. GPUs that this build has no code for are
 * passed over. Never a CPU by way of OpenCL: the CPU's own kernels are faster. */
TARN_API tarn_device tarn_device_auto(void);

/* The device a text names: "cpu", "auto", "cuda", "cuda:1". A device that is not there, or that this build has no code
 * for, is an error that says so; then the CPU is returned. */
TARN_API tarn_device tarn_device_parse(const char *text);

/* Writes the device's name ("cuda:0") into `buffer` and returns `buffer`; 32 bytes always suffice. */
TARN_API char *tarn_device_name(tarn_device device, char *buffer, size_t size);

/* True when both are the same device. */
TARN_API bool tarn_device_equal(tarn_device a, tarn_device b);

/* How many devices a backend ("cpu", "cuda", "opencl") has here; 0 when the backend is not there. Never an error for a
 * missing one. */
TARN_API int tarn_device_count(const char *backend);

/* Why a backend is not there ("" when it is), in one sentence. Valid until the next call on this thread. */
TARN_API const char *tarn_backend_missing(const char *backend);

/* Fills in what is known of a device. */
TARN_API bool tarn_device_query(tarn_device device, tarn_device_info *info);

/* Waits until everything enqueued on the device has finished; errors of asynchronous work surface here. */
TARN_API bool tarn_synchronize(tarn_device device);

/* A point in a device's work, to wait for or to measure from. */
typedef struct tarn_event tarn_event;

/* Marks this point in the device's work. The caller owns the event. */
TARN_API tarn_event *tarn_event_record(tarn_device device);

/* Waits until the device has passed the event. */
TARN_API bool tarn_event_wait(tarn_event *event);

/* Microseconds between two events of one device, measured by the device; waits for both. NaN on error. */
TARN_API double tarn_event_elapsed(tarn_event *from, tarn_event *to);

/* Frees an event. NULL is allowed; works while an error is pending. */
TARN_API void tarn_event_free(tarn_event *event);

/* The device's own stream, for code that enqueues its work in tarn's order: a cudaStream_t on CUDA devices, NULL on the
 * CPU. */
TARN_API void *tarn_native_stream(tarn_device device);

/* Gives the pool's unused blocks of a device back to the system. */
TARN_API bool tarn_empty_cache(tarn_device device);

/* Looks for backends (libtarn-NAME.so) in these folders first, separated by ':'; before the first use of a device other
 * than the CPU. The environment variable TARN_BACKEND_PATH says the same. */
TARN_API bool tarn_set_backend_path(const char *folders);

/* What happens when a backend lacks a kernel. */
typedef enum tarn_fallback {
    TARN_FALLBACK_WARN = 0, /* the CPU runs it, counted, with one warning for each kernel (the default) */
    TARN_FALLBACK_ERROR = 1 /* an error */
} tarn_fallback;

/* Says what happens when a backend lacks a kernel. TARN_FALLBACK=error in the environment says the same. */
TARN_API void tarn_set_fallback(tarn_fallback fallback);

/* Keeps freed blocks for later use (the default), or gives each back to the system at once, so that memory checkers see
 * it. TARN_POOL=off in the environment says the same. */
TARN_API void tarn_set_pool(bool on);

#ifdef __cplusplus
}
#endif
#endif
