/* backend.h: what a backend is: a table of functions for devices, memory and streams, and a table of kernels.
 *
 * A backend outside the library is a shared object libtarn-NAME.so that exports one symbol, tarn_backend_entry. It is
 * given the host's services and returns its table, or NULL with the reason written to `why`. A backend that finds no
 * device returns its table, too, counts none and writes the reason: its kernels can then be listed. An empty row of the
 * kernel table is the one and only way to say "not here": for dispatch, for `tarn ops` and for the tests alike. */
#ifndef TARN__BACKEND_H
#define TARN__BACKEND_H

#include <tarn/device.h>

#include "base/kernel/kernels.h"

#define TARN__INLINE_WRITE_BYTES 1024

typedef void (*tarn__kernel_fn)(const tarn__call *call);

typedef struct tarn__kernel_row {
    tarn__kernel_fn run; /* NULL: not here */
    /* of the first input, or of the first output where there is no input */
    uint32_t dtypes;
    size_t (*scratch)(const tarn__call *call); /* bytes the call needs beside its operands; NULL: none */
} tarn__kernel_row;

typedef struct tarn__backend {
    uint64_t kernels_hash; /* tarn__kernels_hash() of the list it was built against */
    const char *name;      /* "cuda": device names begin with it */
    const char *version;
    bool plain_addresses;  /* memory is a plain address on the device */
    bool on_host;          /* the host may read and write it directly: only the CPU */
    bool has_tf32;         /* products of f32 that may be made in TF32 are */
    bool scratch_by_shape; /* the kernels' scratch() looks at shapes alone: it can be asked where there is no memory */

    int (*device_count)(void);
    bool (*device_query)(int index, tarn_device_info *info);
    /* Why a device cannot run these kernels at all (a processor that they were not compiled for), as the end of a
     * sentence; NULL: it can. NULL function: all can. */
    const char *(*unusable)(int index);
    void *(*alloc)(int index, size_t bytes); /* NULL when there is none left; no error is raised */
    void (*release)(int index, void *memory, size_t bytes);
    /* Copies between host and device, and from one device of this backend to another. False: see `failure`. */
    bool (*upload)(int index, void *memory, int64_t offset, const void *host, size_t bytes, void *stream);
    bool (*download)(int index, const void *memory, int64_t offset, void *host, size_t bytes, void *stream);
    bool (*peer)(int to_index, void *to, int64_t to_offset, int from_index, const void *from, int64_t from_offset,
                 size_t bytes, void *stream);
    void *(*stream)(int index); /* the device's stream, in whose order everything runs; NULL function: synchronous */
    bool (*synchronize)(int index);
    /* For asynchronous devices (else NULL): what has come up since the last call. False: the device failed, see
     * `failure`; a fault that a kernel found is handed over and forgotten. Never waits. */
    bool (*poll)(int index, tarn__fault *fault);

    /* For devices that compile kernels when they are first asked for (else NULL): true when the last call of a kernel
     * by this thread did nothing, because this device cannot run it, and forgets it. The call is then one for the CPU,
     * as if the row were empty. */
    bool (*declined)(int index);

    /* Points in a device's stream. NULL functions: the host's clock serves. */
    void *(*event_new)(int index);
    void (*event_free)(int index, void *event);
    bool (*event_record)(int index, void *event, void *stream);
    bool (*event_wait)(int index, void *event);                                   /* the host waits */
    bool (*event_elapsed)(int index, void *from, void *to, double *microseconds); /* both have passed */

    /* Recording of what is enqueued, to be enqueued again as one. NULL functions: not here. `poke` writes a few bytes,
     * at most TARN__INLINE_WRITE_BYTES, from the host's stack in stream order and is no transfer: the values travel
     * with the command. */
    bool (*capture_begin)(int index);
    void *(*capture_end)(int index); /* NULL: see `failure` */
    bool (*graph_launch)(int index, void *graph, void *stream);
    void (*graph_free)(int index, void *graph);
    bool (*write_inline)(int index, void *memory, int64_t offset, const void *bytes, size_t count, void *stream);

    /* A lane: host memory that the device can read by itself, and copies from it that run beside the device's other
     * work. NULL functions: not here, `upload` serves. What was sent is on the device for work that is enqueued after
     * `lane_join`; the memory may be written again after `lane_wait`, which any thread may call. */
    void *(*pinned_new)(int index, size_t bytes, void **host); /* NULL: see `failure` */
    void (*pinned_free)(int index, void *lane);                /* nothing is under way */
    /* after what is enqueued so far */
    bool (*pinned_upload)(int index, void *lane, size_t from, void *memory, int64_t offset, size_t bytes);
    bool (*pinned_join)(int index, void *lane);
    bool (*pinned_wait)(int index, void *lane); /* the host waits */
    /* the next copy is sent between these two events; NULL: not here */
    void (*pinned_set_events)(int index, void *lane, void *from, void *to);

    /* What was chosen by measuring, where other choices would give other bits (else NULL). `choices_tell` hands on what
     * this process has used, each as a line of text. `choices_take` has such a line hold for what is chosen from now
     * on; one of another device or version is passed over. */
    void (*tuning_export)(int index, void (*take)(void *ctx, const char *line), void *ctx);
    void (*tuning_import)(int index, const char *line);

    const char *(*failure)(void); /* why the last call of this thread failed */

    const tarn__kernel_row *kernels; /* TARN__KERNEL_COUNT rows */
} tarn__backend;

/* What the library lends a backend. */
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
