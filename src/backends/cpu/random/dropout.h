/* dropout.h: dropout masks, for the dropout kernel and for kernels with fused dropout: all draw the same mask for
 * the same element number. */
#ifndef TARN__CPU_DROPOUT_H
#define TARN__CPU_DROPOUT_H

#include "backends/cpu/common/convert.h"
#include "base/philox.h"

#define DROPOUT_TILE 256

/* One factor per random word: 0 where its uniform value is below the drop probability, else 1 / (1 - p). */
TARN__UNUSED static void dropout_factors(const tarn__random *random, const uint32_t *word, float *factor, int n)
{
    double p = random->a;
    float scale = p < 1 ? (float)(1 / (1 - p)) : 0;
    for (int i = 0; i < n; i++)
        factor[i] = (double)tarn__unit_f32(word[i]) < p ? 0 : scale;
}

/* Multiplies n contiguous elements, at most a tile, by their factors, rounded once. A factor of 0 gives 0, also for
 * infinity and NaN. Through f64: every dtype's product rounds once. */
TARN__UNUSED static void dropout_tile(tarn_dtype dtype, const char *from, char *to, const float *factor, int n)
{
    double x[DROPOUT_TILE];
    tarn__load[dtype][COMPUTE_F64](from, 1, x, n);
    for (int i = 0; i < n; i++)
        x[i] = factor[i] == 0 ? 0 : x[i] * (double)factor[i];
    tarn__store[dtype][COMPUTE_F64](x, to, 1, n);
}

/* The same for n contiguous elements of which the first has row-major number `first` in its tensor. */
TARN__UNUSED static void dropout_elements(const tarn__random *random, int64_t first, tarn_dtype dtype, const char *from,
                                          char *to, int64_t n)
{
    uint32_t word[DROPOUT_TILE + 8];
    float factor[DROPOUT_TILE];
    int64_t size = (int64_t)tarn__dtype_bytes(dtype);
    for (int64_t at = 0; at < n; at += DROPOUT_TILE) {
        int count = (int)(n - at < DROPOUT_TILE ? n - at : DROPOUT_TILE), skipped = (int)((first + at) % 4);
        for (int i = 0; i < skipped + count; i += 4)
            tarn__philox(random->seed, random->offset + (uint64_t)(first + at - skipped + i) / 4, word + i);
        dropout_factors(random, word + skipped, factor, count);
        dropout_tile(dtype, from + at * size, to + at * size, factor, count);
    }
}

#endif
