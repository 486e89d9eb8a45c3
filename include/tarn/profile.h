/* profile.h: counters (kernels, transfers, fallbacks, allocations, memory by name) and the profiler. */
#ifndef TARN_PROFILE_H
#define TARN_PROFILE_H

#include <tarn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counters since program start or tarn_stats_reset(), over all threads. */
typedef struct tarn_counters {
    int64_t kernels;       /* kernels run, on all backends */
    int64_t kernels_on[8]; /* per backend slot: tarn_device.backend */
    int64_t fallbacks;     /* kernels that a backend lacks, run by the CPU instead */
    int64_t uploads;       /* host to device */
    int64_t downloads;     /* device to host */
    int64_t peer_copies;   /* between two devices */
    int64_t upload_bytes;
    int64_t download_bytes;
    int64_t peer_bytes;
    int64_t layout_copies;      /* operands copied to a contiguous layout for a kernel */
    int64_t allocations;        /* pool blocks requested */
    int64_t system_allocations; /* of these, taken from the system rather than the cache */
} tarn_counters;

/* Reads the counters. */
TARN_API tarn_counters tarn_stats(void);

/* Sets the counters to zero. */
TARN_API void tarn_stats_reset(void);

/* Memory of a pool, in bytes. */
typedef struct tarn_memory {
    int64_t used;      /* in pool blocks owned by tensors */
    int64_t cached;    /* in free pool blocks */
    int64_t peak_used; /* maximum of `used` since program start or tarn_stats_reset() */
    int64_t blocks;    /* number of pool blocks owned by tensors */
} tarn_memory;

/* Reads a device's pool. */
TARN_API tarn_memory tarn_memory_of(tarn_device device);

/* Memory of a pool by purpose, in bytes. The first three are what optimizers own now; the others are those at the
 * peak since program start or tarn_stats_reset(). */
typedef struct tarn_memory_kinds {
    int64_t parameters;
    int64_t gradients;
    int64_t state;       /* of optimizers: moments and master weights */
    int64_t workspace;   /* of kernels */
    int64_t activations; /* all other tensors */
    int64_t peak;        /* total */
} tarn_memory_kinds;

/* Reads a device's memory by purpose. */
TARN_API tarn_memory_kinds tarn_memory_kinds_of(tarn_device device);

/* Peak FLOP/s of matmuls by the vendor's data sheet, without sparsity; `precision` is "f32", "tf32" or "bf16". 0:
 * unknown. */
TARN_API double tarn_device_peak_flops(tarn_device device, const char *precision);

/* Writes a table of the memory of a device by tensor name, largest first, into `buffer`, always terminated. Returns
 * the length of the whole text. */
TARN_API size_t tarn_memory_table(tarn_device device, char *buffer, size_t size);

/* ---- the profiler ------------------------------------------------------------------------------------------------ */

/* Kind of a record. */
typedef enum tarn_profile_kind {
    TARN_PROFILE_MATMUL = 0,
    TARN_PROFILE_CONVOLUTION,
    TARN_PROFILE_ATTENTION,
    TARN_PROFILE_KERNEL,      /* any other kernel */
    TARN_PROFILE_GRAPH,       /* a captured graph */
    TARN_PROFILE_COPY,        /* transfer, in stream order */
    TARN_PROFILE_LOADER_COPY, /* upload of a loader's batch, which may overlap other work */
    TARN_PROFILE_WAIT,        /* the host waits for a device, or for a batch */
    TARN_PROFILE_SPAN,        /* named span of host time */
    TARN_PROFILE_KINDS
} tarn_profile_kind;

/* One record. Times are microseconds since tarn_profile_start(). Strings live as long as the program, except names
 * of spans, which the caller owns. */
typedef struct tarn_profile_record {
    tarn_profile_kind kind;
    const char *name;                /* kernel, "upload", or span */
    const char *function;            /* the operation it belongs to; NULL: none */
    bool is_backward;                /* inside tarn_backward() */
    bool is_fallback;                /* a kernel that the device lacks, run by the CPU */
    tarn_device device;              /* that ran it */
    int thread;                      /* 0: the thread of tarn_profile_start(); others in order of appearance */
    double host_start, host_end;     /* time of the launch, or of host work */
    double device_start, device_end; /* time on the device; NaN: not on a device, or not timed */
    tarn_dtype dtype;                /* of the first result */
    tarn_shape shape;                /* of the first result */
    double bytes;                    /* of all operands, each element once; of a copy */
    double flops;                    /* of matmuls, convolutions and attention; else 0 */
    const char *variant;             /* which of the device's implementations ran: "bf16"; NULL: its only one */
} tarn_profile_record;

/* Starts recording on all threads and drops earlier records. Waits for the device, whose clock is used if it has
 * one. A record costs 1 to 2 microseconds; while nothing is recorded, the profiler costs next to nothing. */
TARN_API bool tarn_profile_start(tarn_device device);

/* Stops recording: waits for the device and reads its timestamps. Works while an error is pending. */
TARN_API bool tarn_profile_stop(void);

/* True while recording. */
TARN_API bool tarn_profile_is_on(void);

/* Frees the records of a finished profile. Works while an error is pending. */
TARN_API void tarn_profile_clear(void);

/* Names a span of this thread's time. Spans nest, at most 16 deep; the name must live until the records have been
 * read. No-ops while nothing is recorded. */
TARN_API void tarn_profile_span_open(const char *name);
TARN_API void tarn_profile_span_close(void);

/* Number of records after tarn_profile_stop(), in the order of their end on the host, and record number `index`. */
TARN_API int64_t tarn_profile_count(void);
TARN_API bool tarn_profile_get(int64_t index, tarn_profile_record *record);

/* Breakdown of the time. Each moment counts once: for device work; else for a transfer; else for a host wait; else
 * for the host. */
typedef enum tarn_profile_part {
    TARN_PART_MATMUL = 0,
    TARN_PART_CONVOLUTION,
    TARN_PART_ATTENTION,
    TARN_PART_KERNELS, /* all others */
    TARN_PART_GRAPHS,
    TARN_PART_TRANSFERS,
    TARN_PART_WAITING,
    TARN_PART_HOST,
    TARN_PARTS
} tarn_profile_part;

/* Name of a part: "matmul", "other kernels". NULL, with an error, for an invalid value. */
TARN_API const char *tarn_profile_part_name(tarn_profile_part part);

/* Totals of a profile. */
typedef struct tarn_profile_summary {
    double microseconds;     /* from start to stop */
    double part[TARN_PARTS]; /* fractions of that; they add up to 1 */
    double utilization;      /* fraction in which the device ran kernels */
    double flops;            /* of all records */
    int64_t records, lost;   /* lost: dropped for lack of memory */
    int64_t rows;            /* number of rows */
} tarn_profile_summary;

/* All records of one kernel and variant, for one operation, in one direction. */
typedef struct tarn_profile_row {
    tarn_profile_kind kind;
    const char *name, *function;
    const char *variant; /* which of the device's implementations; NULL: its only one */
    bool is_backward;
    int64_t calls;
    double device_microseconds, host_microseconds;
    double bytes, flops;
} tarn_profile_row;

/* Sums up the records. `rows` (may be NULL) has capacity for `capacity` rows, sorted by device time, longest first. */
TARN_API bool tarn_profile_summarize(tarn_profile_summary *summary, tarn_profile_row *rows, int64_t capacity);

/* Writes a trace for chrome://tracing and Perfetto: a track per host thread, one for device work, and one for loader
 * copies. Atomic write. */
TARN_API bool tarn_profile_write_trace(const char *path);

#ifdef __cplusplus
}
#endif
#endif
