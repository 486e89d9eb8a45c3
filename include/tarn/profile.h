/* profile.h: what the library did, counted (kernels, transfers, fallbacks, allocations, memory by name) and timed: the
 * profiler. */
#ifndef TARN_PROFILE_H
#define TARN_PROFILE_H

#include <tarn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counters since the program started or since tarn_stats_reset(), over all threads. */
typedef struct tarn_counters {
    int64_t kernels;       /* kernels run, on all backends */
    int64_t kernels_on[8]; /* by backend slot: tarn_device.backend */
    int64_t fallbacks;     /* kernels that a backend lacks and the CPU ran instead */
    int64_t uploads;       /* copies host to device */
    int64_t downloads;     /* copies device to host */
    int64_t peer_copies;   /* copies between two devices */
    int64_t upload_bytes;
    int64_t download_bytes;
    int64_t peer_bytes;
    int64_t layout_copies;      /* operands made dense because a kernel family needs it */
    int64_t allocations;        /* blocks asked from the pools */
    int64_t system_allocations; /* of these, taken from the system rather than from the cache */
} tarn_counters;

/* Reads the counters. */
TARN_API tarn_counters tarn_stats(void);

/* Sets the counters to zero. */
TARN_API void tarn_stats_reset(void);

/* A pool's memory, in bytes. */
typedef struct tarn_memory {
    int64_t used;      /* in blocks that tensors hold */
    int64_t cached;    /* in blocks kept for later use */
    int64_t peak_used; /* the largest `used` since the start or tarn_stats_reset() */
    int64_t blocks;    /* how many blocks tensors hold */
} tarn_memory;

/* Reads a device's pool. */
TARN_API tarn_memory tarn_memory_of(tarn_device device);

/* A pool's memory by what it is for, in bytes. The first three are what optimizers hold now; the others are those of
 * the moment at which the most was used since the start or tarn_stats_reset(). */
typedef struct tarn_memory_kinds {
    int64_t parameters;
    int64_t gradients;
    int64_t state;       /* of optimizers: moments and master weights */
    int64_t workspace;   /* of kernels */
    int64_t activations; /* all other tensors */
    int64_t peak;        /* all together */
} tarn_memory_kinds;

/* Reads what a device's memory is used for. */
TARN_API tarn_memory_kinds tarn_memory_kinds_of(tarn_device device);

/* Floating-point operations a second that a device's maker states for matrix products, without sparsity; `precision` is
 * "f32", "tf32" or "bf16". 0: not known here. */
TARN_API double tarn_device_peak_flops(tarn_device device, const char *precision);

/* Writes a table of who holds how much memory on a device, by name, the largest first, into `buffer`, always
 * terminated. Returns the length the whole text has. */
TARN_API size_t tarn_memory_table(tarn_device device, char *buffer, size_t size);

/* ---- the profiler ------------------------------------------------------------------------------------------------ */

/* What a record is about. */
typedef enum tarn_profile_kind {
    TARN_PROFILE_MATMUL = 0,
    TARN_PROFILE_CONVOLUTION,
    TARN_PROFILE_ATTENTION,
    TARN_PROFILE_KERNEL,      /* any other kernel */
    TARN_PROFILE_GRAPH,       /* a captured step, run as one */
    TARN_PROFILE_COPY,        /* between the host and a device, or two devices, in the order of other work */
    TARN_PROFILE_LOADER_COPY, /* of a batch that a loader sends, which a device may do beside other work */
    TARN_PROFILE_WAIT,        /* the host waits for a device, or for a batch */
    TARN_PROFILE_SPAN,        /* a stretch of the host's time that was given a name */
    TARN_PROFILE_KINDS
} tarn_profile_kind;

/* One piece of work. Times are microseconds since tarn_profile_start(). Texts live as long as the program, but for
 * those of spans, which are the caller's. */
typedef struct tarn_profile_record {
    tarn_profile_kind kind;
    const char *name;     /* the kernel's, "upload", or the span's */
    const char *function; /* the operation that it was for; NULL: none */
    bool is_backward;     /* inside tarn_backward() */
    bool is_fallback;     /* a kernel that the device lacks: the CPU ran it */
    tarn_device device;   /* that did it */
    /* 0: the one that called tarn_profile_start(); others in the order in which they came */
    int thread;
    double host_start, host_end; /* the host handed it over, or did it */
    /* the device did it; NaN: no device had to do with it, or its clock was not asked */
    double device_start, device_end;
    tarn_dtype dtype; /* of the first result */
    tarn_shape shape; /* of the first result */
    double bytes;     /* of all operands, each element once; of a copy */
    double flops;     /* floating-point ones, of products, convolutions and attention; 0 for others */
} tarn_profile_record;

/* Begins to record what happens, on all threads; what was recorded before is forgotten. Waits for the device, whose own
 * clock is asked where it has one. Each record then costs a microsecond or two; while nothing is recorded, the profiler
 * costs next to nothing. */
TARN_API bool tarn_profile_start(tarn_device device);

/* Ends the recording: waits for the device, and reads its clock's answers. Works while an error is pending. */
TARN_API bool tarn_profile_stop(void);

/* True between the two. */
TARN_API bool tarn_profile_is_on(void);

/* Forgets the records of a profile that is over, and gives their memory back. Works while an error is pending. */
TARN_API void tarn_profile_clear(void);

/* Gives a name to a stretch of this thread's time. Spans of a thread lie within each other, 16 deep at most; the name
 * must live until the records have been read. Does nothing while nothing is recorded. */
TARN_API void tarn_profile_span_open(const char *name);
TARN_API void tarn_profile_span_close(void);

/* How many records there are after tarn_profile_stop(), in the order in which the host was done with them, and record
 * number `index`. */
TARN_API int64_t tarn_profile_count(void);
TARN_API bool tarn_profile_get(int64_t index, tarn_profile_record *record);

/* Where the time went. Each moment counts once: for what the device worked on; else for a copy that was under way; else
 * for the host's waiting; else for the host. */
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

/* The part's name: "matmul", "other kernels". NULL, with an error, for one that is none. */
TARN_API const char *tarn_profile_part_name(tarn_profile_part part);

/* What was recorded, in sum. */
typedef struct tarn_profile_summary {
    double microseconds;     /* from start to stop */
    double part[TARN_PARTS]; /* shares of that; together 1 */
    double utilization;      /* the share in which the device ran kernels */
    double flops;            /* of all records */
    int64_t records, lost;   /* lost: there was no room for them */
    int64_t rows;            /* that there are */
} tarn_profile_summary;

/* All records of one kernel, for one operation, in one direction. */
typedef struct tarn_profile_row {
    tarn_profile_kind kind;
    const char *name, *function;
    bool is_backward;
    int64_t calls;
    double device_microseconds, host_microseconds;
    double bytes, flops;
} tarn_profile_row;

/* Sums the records up. `rows` (may be NULL) has room for `room` rows; those that took the device longest come first. */
TARN_API bool tarn_profile_summarize(tarn_profile_summary *summary, tarn_profile_row *rows, int64_t room);

/* Writes the records as a trace that Chrome (chrome://tracing) and Perfetto show: a row for each thread of the host,
 * one for the device's work, and one for copies of batches. The file appears whole or not at all. */
TARN_API bool tarn_profile_write_trace(const char *path);

#ifdef __cplusplus
}
#endif
#endif
