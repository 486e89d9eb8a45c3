/* backend.h: the contract of a backend: a table of functions for devices, memory and streams, and a table of
 * kernels.
 *
 * A backend outside the library is a shared object libtarn-NAME.so that exports one symbol, tarn_backend_entry. It
 * gets the host's services and returns its table, or NULL with the reason in `why`. A backend without a device
 * returns its table as well, with a device count of 0 and the reason: its kernels can still be listed. An empty row
 * of the kernel table is the only way to say "not supported", for dispatch, for `tarn ops` and for the tests alike.
 *
 * Threads: all functions may be called from any thread; the work of one device is ordered by its one stream.
 * Functions return false or NULL on failure and keep the reason per thread for `failure`; they never raise errors. */
#ifndef TARN__BACKEND_H
#define TARN__BACKEND_H

#include <tarn/device.h>

#include "base/kernel/kernels.h"
#include "base/kernel/plan.h"

#define TARN__INLINE_WRITE_BYTES 1024

typedef void (*tarn__kernel_fn)(const tarn__call *call);

/* One way to run a kernel. A kernel may have several rows, best first, chained by `next`: the first that supports the
 * call's dtypes, fits and is ready runs. */
typedef struct tarn__kernel_row {
    tarn__kernel_fn run; /* NULL: not supported */
    /* mask; of the first input, or of the first output where there is no input */
    uint32_t dtypes;
    /* Shapes, strides, alignment and limits of the device; NULL: every call of these dtypes. Has no side effects and
     * reads no memory, so it works on meta devices. Outputs may be missing: an operation that can be composed asks
     * before it allocates them. */
    bool (*fits)(const tarn__call *call);
    /* Describes the call once, before scratch is allocated; run() finds the result in call->plan. May tune, except in a
     * capture and where call->is_meta: then no device may be touched, and what is not known yet is the largest that it
     * may become. NULL: run() needs no plan. */
    tarn__plan_status (*prepare)(const tarn__call *call, tarn__plan *plan);
    const char *variant;                 /* shown by profiles and `tarn ops --variants`; NULL: unnamed */
    const struct tarn__kernel_row *next; /* tried where this row does not fit; NULL: none */
} tarn__kernel_row;

/* A row for every call of these dtypes, without a plan. */
static inline tarn__kernel_row tarn__row(tarn__kernel_fn run_fn, uint32_t dtypes)
{
    tarn__kernel_row row = {run_fn, dtypes, NULL, NULL, NULL, NULL};
    return row;
}

/* A row that describes its calls once. */
static inline tarn__kernel_row tarn__row_planned(tarn__plan_status (*prepare_fn)(const tarn__call *, tarn__plan *),
                                                 tarn__kernel_fn run_fn, uint32_t dtypes)
{
    tarn__kernel_row row = {run_fn, dtypes, NULL, prepare_fn, NULL, NULL};
    return row;
}

/* The same row with a name, for kernels of several rows. */
static inline tarn__kernel_row tarn__row_named(tarn__kernel_row row, const char *variant)
{
    row.variant = variant;
    return row;
}

/* The same row for the calls that fit. */
static inline tarn__kernel_row tarn__row_fits(tarn__kernel_row row, bool (*fits_fn)(const tarn__call *))
{
    row.fits = fits_fn;
    return row;
}

/* The first row, from `row` on, that supports the call; NULL: none. */
const tarn__kernel_row *tarn__find_row(const tarn__kernel_row *row, const tarn__call *call);

/* The first row, from `row` on, that supports the call and is ready, with its plan; NULL: none (DECLINED). A row with
 * FAILED is returned as well, for messages. */
const tarn__kernel_row *tarn__prepare(const tarn__kernel_row *row, const tarn__call *call, tarn__plan *plan,
                                      tarn__plan_status *status);

/* Puts a row ahead of those of a kernel; `storage` keeps the old first row and must live as long as the table. */
void tarn__push_row(tarn__kernel_row *rows, tarn__kernel kernel, tarn__kernel_row row, tarn__kernel_row *storage);

/* scripts/backend-doc writes docs/internals/adding-a-backend.md from this struct: a `----` line begins a section, a
 * comment of its own introduces it, and the comment of a member begins with "Required" or "Optional", with a condition
 * where there is one. An optional member may be NULL, false or 0. */
typedef struct tarn__backend {
    /* ---- identity ------------------------------------------------------------------------------------------------ */

    uint64_t kernels_hash; /* Required: tarn__kernels_hash() of the headers it was compiled with. */
    const char *name;      /* Required: the first part of device names, and NAME of libtarn-NAME.so. */
    const char *version;   /* Required: its version, for messages; host->version where both are released together. */

    /* ---- properties ---------------------------------------------------------------------------------------------- */

    bool plain_addresses; /* Optional: memory is a device address; false: a handle with a byte offset. */
    bool on_host;         /* Optional: the host may access memory directly; only the CPU. */
    bool has_tf32;        /* Optional: f32 matmuls run in TF32 where the caller allows it. */
    bool has_bf16;        /* Optional: bf16 matmuls are faster than f32: `--precision auto` chooses bf16 for text. */
    int dlpack_memory; /* Optional: DLPack's device type, to share memory with other libraries; 0: it is not shared. */
    /* Optional: rank for the device `auto`, which selects the GPU of the highest; 0: never selected. Released
     * backends: core/device/backends.def. */
    int auto_priority;

    /* ---- devices ------------------------------------------------------------------------------------------------- */

    int (*device_count)(void);                               /* Required: number of devices. */
    bool (*device_query)(int index, tarn_device_info *info); /* Required: everything but the name and has_tf32. */
    /* Optional: why a device cannot run these kernels at all (compiled for other hardware), as the end of a sentence;
     * NULL: it can. Without the function all devices can. */
    const char *(*unusable)(int index);
    /* Optional: peak FLOP/s of dense matmuls in "f32", "tf32" or "bf16", for MFU; 0: unknown. */
    double (*peak_flops)(int index, const char *precision);
    const char *(*failure)(void); /* Required: why the last call of this thread failed. */

    /* ---- memory -------------------------------------------------------------------------------------------------- */

    void *(*alloc)(int index, size_t bytes);                /* Required: NULL when out of memory, without an error. */
    void (*release)(int index, void *memory, size_t bytes); /* Required: frees memory of alloc(). */
    /* Required: copies from host to device. False: see `failure`. */
    bool (*upload)(int index, void *memory, int64_t offset, const void *host, size_t bytes, void *stream);
    /* Required: copies from device to host; returns when the bytes have arrived. */
    bool (*download)(int index, const void *memory, int64_t offset, void *host, size_t bytes, void *stream);
    /* Optional: copies from one device of this backend to another; else the bytes go through the host. */
    bool (*peer)(int to_index, void *to, int64_t to_offset, int from_index, const void *from, int64_t from_offset,
                 size_t bytes, void *stream);

    /* ---- order of work ------------------------------------------------------------------------------------------- */

    void *(*stream)(int index);     /* Optional: the device's only stream; else the device is synchronous. */
    bool (*synchronize)(int index); /* Required: waits for all work of the device. */
    /* Optional, for asynchronous devices: reports errors since the last call. False: the device failed, see `failure`.
     * A fault found by a kernel is returned once and cleared. Never waits. */
    bool (*poll)(int index, tarn__fault *fault);
    /* Optional, for drivers that refuse a kernel only when it is enqueued, which prepare() cannot know: true when this
     * thread's last kernel call did nothing for that reason; clears the flag. The call then falls back to the CPU, as
     * if prepare() had declined it. Rows without prepare() may so report a kernel that does not compile, too. */
    bool (*declined)(int index);

    /* ---- events -------------------------------------------------------------------------------------------------- */

    /* Points in the device's stream, which they need. All five or none: without them the host's clock is used. */

    void *(*event_new)(int index);                                                /* Optional: NULL: see `failure`. */
    void (*event_free)(int index, void *event);                                   /* Optional: frees an event. */
    bool (*event_record)(int index, void *event, void *stream);                   /* Optional: the stream's end. */
    bool (*event_wait)(int index, void *event);                                   /* Optional: the host waits. */
    bool (*event_elapsed)(int index, void *from, void *to, double *microseconds); /* Optional: both have completed. */

    /* ---- graph capture ------------------------------------------------------------------------------------------- */

    /* Work enqueued between begin and end is recorded and can be launched again as one. All five or none: without them
     * captured steps run eagerly. */

    bool (*capture_begin)(int index);                           /* Optional: begins recording. */
    void *(*capture_end)(int index);                            /* Optional: the graph; NULL: see `failure`. */
    bool (*graph_launch)(int index, void *graph, void *stream); /* Optional: enqueues the recorded work. */
    void (*graph_free)(int index, void *graph);                 /* Optional: frees a graph. */
    /* Optional: writes up to TARN__INLINE_WRITE_BYTES bytes in stream order. The bytes are part of the command, so the
     * host buffer may be reused at once and no transfer is needed. */
    bool (*write_inline)(int index, void *memory, int64_t offset, const void *bytes, size_t count, void *stream);

    /* ---- pinned buffers ------------------------------------------------------------------------------------------ */

    /* Host memory the device reads by DMA, with copies that overlap its other work. The first five or none: without
     * them `upload` is used. Uploaded data is visible to work enqueued after `pinned_join`; the buffer may be written
     * again after `pinned_wait`, which any thread may call. */

    void *(*pinned_new)(int index, size_t bytes, void **host); /* Optional: NULL: see `failure`. */
    void (*pinned_free)(int index, void *pinned);              /* Optional: no copy is in flight. */
    /* Optional: copies to the device, ordered after the work enqueued so far. */
    bool (*pinned_upload)(int index, void *pinned, size_t from, void *memory, int64_t offset, size_t bytes);
    bool (*pinned_join)(int index, void *pinned); /* Optional: later work waits for the copies. */
    bool (*pinned_wait)(int index, void *pinned); /* Optional: the host waits for the copies. */
    /* Optional: records these events around the next copy, for profiles. */
    void (*pinned_set_events)(int index, void *pinned, void *from, void *to);

    /* ---- autotuning ---------------------------------------------------------------------------------------------- */

    /* For backends where another tuning result would give other bits. A resumed run imports the lines of the run
     * before, to stay bitwise identical. */

    /* Optional: passes each result this process has used to `take` as one line of text. */
    void (*tuning_export)(int index, void (*take)(void *ctx, const char *line), void *ctx);
    /* Optional: fixes the result of such a line for later calls; a line of another device or version is ignored. */
    void (*tuning_import)(int index, const char *line);

    /* ---- kernels ------------------------------------------------------------------------------------------------- */

    const tarn__kernel_row *kernels; /* Required: TARN__KERNEL_COUNT rows; an empty row falls back to the CPU. */
} tarn__backend;

/* Services of the library for a backend. */
typedef struct tarn__host {
    uint64_t kernels_hash;
    const char *version;
    const tarn__kernel_row *cpu_kernels;
    void (*log)(tarn_log_level level, const char *format, ...);
} tarn__host;

#define TARN__BACKEND_SYMBOL "tarn_backend_entry"
typedef const tarn__backend *(*tarn__backend_entry_fn)(const tarn__host *host, char *why, size_t why_size);

/* The CPU's own table, linked in. */
const tarn__backend *tarn__cpu_backend(void);

#endif
