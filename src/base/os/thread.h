/* thread.h: the library's only way to run in parallel.
 *
 * Determinism: work is split into chunks by size, never by the number of threads, so results are bitwise identical
 * with any number of threads. */
#ifndef TARN__THREAD_H
#define TARN__THREAD_H

#include <stdint.h>

typedef void (*tarn__range_fn)(int64_t begin, int64_t end, void *ctx);

/* Calls fn(begin, end, ctx) once for every chunk [k · grain, min(n, (k + 1) · grain)) of [0, n), in any order, on
 * the caller and the pool's threads. Returns when all are done. Inside a chunk, and while another thread uses the
 * pool, the caller runs all chunks alone. */
void tarn__parallel_for(int64_t n, int64_t grain, tarn__range_fn fn, void *ctx);

#endif
