/* stats.h: counters of the library's work, behind tarn_stats(). */
#ifndef TARN__STATS_H
#define TARN__STATS_H

#include <stdatomic.h>
#include <tarn/profile.h>

#include "base/kernel/kernels.h"

typedef enum tarn__counter {
    TARN__FALLBACKS,
    TARN__UPLOADS,
    TARN__DOWNLOADS,
    TARN__PEERS,
    TARN__UPLOAD_BYTES,
    TARN__DOWNLOAD_BYTES,
    TARN__PEER_BYTES,
    TARN__LAYOUT_COPIES,
    TARN__ALLOCATIONS,
    TARN__SYSTEM_ALLOCATIONS,
    TARN__COUNTERS
} tarn__counter;

void tarn__count(tarn__counter counter, int64_t amount);
void tarn__count_kernel(int backend, tarn__kernel kernel);

/* Runs of a kernel on a backend since the last reset: tests check operations against the kernels they list. */
int64_t tarn__kernel_runs(int backend, tarn__kernel kernel);

#endif
