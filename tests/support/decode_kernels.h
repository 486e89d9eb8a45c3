/* decode_kernels.h: kernels of a decode step on a device, compared with the CPU: attention of a token to a KV cache,
 * argmax. */
#ifndef TESTS_DECODE_KERNELS_H
#define TESTS_DECODE_KERNELS_H

#include <tarn/ops.h>

#include "core/launch/stats.h"

/* Launches of a kernel since tarn_stats_reset(), on all backends. */
int64_t runs_of(tarn__kernel kernel);

/* A KV cache with `length` tokens, 4 fewer in every other sequence of a long one. All zero: no window, no soft cap. */
typedef struct past {
    int64_t batch, heads, kv_heads, depth, length;
    tarn_dtype dtype, stored; /* of queries; of the cache, TARN_U8: quantized */
    int64_t window;
    double softcap;
} past;

/* One more token per sequence attends to the cache, and another one at the full capacity, as in a captured step. */
void tokens_attend(const past *p, const tarn_rope_options *rope, tarn_device device);

/* The argmax of rows of n elements: random, with NaN, with infinity, and equal ones, of which the first counts. */
void argmax_matches(int64_t n, tarn_dtype dtype, tarn_device device);

#endif
