/* device.h: the registry of backends, device faults, and meta devices. A backend slot, once filled, never changes,
 * so a device's backend can be read without a lock. */
#ifndef TARN__CORE_DEVICE_H
#define TARN__CORE_DEVICE_H

#include "base/kernel/backend.h"

#define TARN__BACKENDS 8
#define TARN__MAX_BACKENDS (2 * TARN__BACKENDS) /* the meta backend of slot i is slot i + TARN__BACKENDS */
#define TARN__CPU_SLOT 0

/* A meta device: shapes without storage, see below. */
static inline bool tarn__is_meta(tarn_device device)
{
    return device.backend >= TARN__BACKENDS;
}

/* The CPU or its meta device. */
static inline bool tarn__is_cpu(tarn_device device)
{
    return device.backend % TARN__BACKENDS == TARN__CPU_SLOT;
}

/* The backend of an existing device; NULL with an error naming `function` otherwise. Borrowed, valid for the
 * process. */
const tarn__backend *tarn__backend_of(tarn_device device, const char *function);

/* The loaded backend in a slot, NULL if there is none. Never loads one. */
const tarn__backend *tarn__backend_at(int slot);

/* The meta backend of a slot, NULL before its first use. */
const tarn__backend *tarn__meta_backend_at(int slot);

/* The backend of that name, loaded if possible; NULL without an error. */
const tarn__backend *tarn__backend_named(const char *name);

/* The path of libtarn-NAME.so, next to libtarn or in TARN_BACKEND_PATH. False when there is no such file. */
bool tarn__plugin_find(const char *name, char *path, size_t size);

/* The kernel table of a backend, even without a device; NULL when it is not installed or cannot be loaded. */
const tarn__kernel_row *tarn__backend_kernels(const char *name);

static inline bool tarn__same_device(tarn_device a, tarn_device b)
{
    return a.backend == b.backend && a.index == b.index;
}

/* Raises the fault a kernel found, if any. True when there was none. */
bool tarn__fault_check(const tarn__fault *fault);

/* Polls an asynchronous device and raises its fault or failure, naming the function whose kernel found it. */
bool tarn__device_poll(tarn_device device, const char *function);

/* True when a missing kernel is an error (TARN_FALLBACK=error) instead of running on the CPU. */
bool tarn__fallback_is_error(void);

/* ---- meta devices ------------------------------------------------------------------------------------------------ */

/* The meta device of a device (torch's `meta`): it has the device's kernel table but no memory. Tensors have shapes
 * and count in its pool; no kernel runs, writes are dropped, reads give 0. A model larger than any memory can be
 * built, run and measured this way, with the same decisions the operations would make on the real device. A meta
 * device is its own; one that does not exist is returned unchanged, with an error. */
tarn_device tarn__meta_device_of(tarn_device device);

#endif
