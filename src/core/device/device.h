/* device.h: the registry of backends. */
#ifndef TARN__CORE_DEVICE_H
#define TARN__CORE_DEVICE_H

#include "base/kernel/backend.h"

#define TARN__BACKENDS 8
#define TARN__MAX_BACKENDS (2 * TARN__BACKENDS) /* behind each backend its shadow, see shadow.h */
#define TARN__CPU_SLOT 0

/* A device whose kernels do nothing. */
static inline bool tarn__is_meta(tarn_device device)
{
    return device.backend >= TARN__BACKENDS;
}

/* The CPU, or its shadow. */
static inline bool tarn__is_cpu(tarn_device device)
{
    return device.backend % TARN__BACKENDS == TARN__CPU_SLOT;
}

/* The backend of a device that exists; NULL, with an error naming `function`, for one that does not. */
const tarn__backend *tarn__backend_of(tarn_device device, const char *function);

/* The loaded backend in a slot, NULL if there is none. Loads nothing. */
const tarn__backend *tarn__backend_at(int slot);

/* The shadow of the backend in a slot, NULL until one was asked for. */
const tarn__backend *tarn__meta_backend_at(int slot);

/* The backend of that name, loaded if it can be; NULL without an error. */
const tarn__backend *tarn__backend_named(const char *name);

/* The kernels of a backend, also where it has no device; NULL when it is not built, or cannot be opened. */
const tarn__kernel_row *tarn__backend_kernels(const char *name);

static inline bool tarn__same_device(tarn_device a, tarn_device b)
{
    return a.backend == b.backend && a.index == b.index;
}

/* Raises the fault that a kernel found, if it found one. True when there was none. */
bool tarn__fault_check(const tarn__fault *fault);

/* Raises what has come up on a device that works asynchronously: a kernel's fault, or a failure, with the last function
 * asked for. */
bool tarn__device_poll(tarn_device device, const char *function);

/* What to do when a backend lacks a kernel: true if that is an error. */
bool tarn__fallback_is_error(void);

/* ---- meta devices ------------------------------------------------------------------------------------------------ */

/* The shadow of a device; of a shadow itself. One that does not exist is given back, with an error. */
tarn_device tarn__meta_device_of(tarn_device device);

#endif
