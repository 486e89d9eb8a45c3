/* thread.h: the one way to run in parallel. Work is cut into chunks by size, never by the number of threads, so that
 * results have the same bits with any number of them. */
#ifndef TARN__THREAD_H
#define TARN__THREAD_H

#include <stdint.h>

typedef void (*tarn__range_fn)(int64_t begin, int64_t end, void *ctx);

/* Calls fn(begin, end, ctx) for every chunk [k · grain, min(n, (k + 1) · grain)) of [0, n), each exactly once, in any
 * order, on this thread and the pool's. Returns when all are done. Inside a chunk, and while another thread uses the
 * pool, it runs on the caller alone. */
void tarn__parallel_for(int64_t n, int64_t grain, tarn__range_fn fn, void *ctx);

#endif
