/* stats.c: counters as relaxed atomics: sums are exact, order is not defined. Meta devices do not count.
 *
 * Counters are global and cheap enough to be always on; tests use them to prove that no hidden copy or fallback
 * happened. */
#include "core/launch/stats.h"

#include "core/device/device.h"
#include "core/memory/pool.h"

static _Atomic int64_t counters[TARN__COUNTERS];
static _Atomic int64_t runs[TARN__MAX_BACKENDS][TARN__KERNEL_COUNT];

void tarn__count(tarn__counter counter, int64_t amount)
{
    atomic_fetch_add_explicit(&counters[counter], amount, memory_order_relaxed);
}

void tarn__count_kernel(int backend, tarn__kernel kernel)
{
    atomic_fetch_add_explicit(&runs[backend][kernel], 1, memory_order_relaxed);
}

int64_t tarn__kernel_runs(int backend, tarn__kernel kernel)
{
    return atomic_load_explicit(&runs[backend][kernel], memory_order_relaxed);
}

static int64_t value(tarn__counter counter)
{
    return atomic_load_explicit(&counters[counter], memory_order_relaxed);
}

/* A snapshot; counters may advance while it is taken. */
tarn_counters tarn_stats(void)
{
    tarn_counters stats = {
        .fallbacks = value(TARN__FALLBACKS),
        .uploads = value(TARN__UPLOADS),
        .downloads = value(TARN__DOWNLOADS),
        .peer_copies = value(TARN__PEERS),
        .upload_bytes = value(TARN__UPLOAD_BYTES),
        .download_bytes = value(TARN__DOWNLOAD_BYTES),
        .peer_bytes = value(TARN__PEER_BYTES),
        .layout_copies = value(TARN__LAYOUT_COPIES),
        .allocations = value(TARN__ALLOCATIONS),
        .system_allocations = value(TARN__SYSTEM_ALLOCATIONS),
    };
    for (int slot = 0; slot < TARN__BACKENDS; slot++) {
        for (int kernel = 0; kernel < TARN__KERNEL_COUNT; kernel++)
            stats.kernels_on[slot] += tarn__kernel_runs(slot, (tarn__kernel)kernel);
        stats.kernels += stats.kernels_on[slot];
    }
    return stats;
}

void tarn_stats_reset(void)
{
    for (int i = 0; i < TARN__COUNTERS; i++)
        atomic_store_explicit(&counters[i], 0, memory_order_relaxed);
    for (int slot = 0; slot < TARN__MAX_BACKENDS; slot++)
        for (int kernel = 0; kernel < TARN__KERNEL_COUNT; kernel++)
            atomic_store_explicit(&runs[slot][kernel], 0, memory_order_relaxed);
    tarn__pool_reset_peaks();
}
