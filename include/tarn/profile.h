/* profile.h: what the library did, counted: kernels, transfers, fallbacks, allocations, memory by name. */
#ifndef TARN_PROFILE_H
#define TARN_PROFILE_H

#include <tarn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counters since the program started or since tarn_stats_reset(), over all threads. */
typedef struct tarn_counters {
    int64_t kernels;          /* kernels run, on all backends */
    int64_t kernels_on[8];    /* by backend slot: tarn_device.backend */
    int64_t fallbacks;        /* kernels that a backend lacks and the CPU ran instead */
    int64_t uploads;          /* copies host to device */
    int64_t downloads;        /* copies device to host */
    int64_t peer_copies;      /* copies between two devices */
    int64_t upload_bytes;
    int64_t download_bytes;
    int64_t peer_bytes;
    int64_t layout_copies;    /* operands made dense because a kernel family needs it */
    int64_t allocations;      /* blocks asked from the pools */
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

/* A pool's memory by what it is for, in bytes. The first three are what optimizers hold now; the others are those of the moment at which the most
 * was used since the start or tarn_stats_reset(). */
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

/* Floating-point operations a second that a device's maker states for matrix products, without sparsity; `precision` is "f32", "tf32" or "bf16". 0: not
 * known here. */
TARN_API double tarn_peak_of(tarn_device device, const char *precision);

/* Writes a table of who holds how much memory on a device, by name, the largest first, into `buffer`, always terminated. Returns the
 * length the whole text has. */
TARN_API size_t tarn_memory_table(tarn_device device, char *buffer, size_t size);

#ifdef __cplusplus
}
#endif
#endif
