/* transpose4.h: transposes of 4 × 4 f32 or 2 × 2 f64: to[p · ld + i] = line[i][at + p]. Data contiguous along one
 * axis and needed along another passes through these. */
#ifndef TARN__CPU_TRANSPOSE4_H
#define TARN__CPU_TRANSPOSE4_H

#include <stdint.h>
#include <string.h>

typedef float four __attribute__((vector_size(16)));
typedef double two __attribute__((vector_size(16)));
#if defined(__clang__)
#define FOUR(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#define TWO(a, b, i, j) __builtin_shufflevector(a, b, i, j)
#else
typedef int32_t four_places __attribute__((vector_size(16)));
typedef int64_t two_places __attribute__((vector_size(16)));
#define FOUR(a, b, i, j, k, l) __builtin_shuffle(a, b, (four_places){i, j, k, l})
#define TWO(a, b, i, j) __builtin_shuffle(a, b, (two_places){i, j})
#endif

static inline void transpose4_f32(const float *const *line, int64_t at, float *to, int64_t ld)
{
    four r[4];
    for (int i = 0; i < 4; i++)
        memcpy(&r[i], line[i] + at, sizeof(four));
    four low = FOUR(r[0], r[1], 0, 4, 1, 5), low2 = FOUR(r[2], r[3], 0, 4, 1, 5);
    four high = FOUR(r[0], r[1], 2, 6, 3, 7), high2 = FOUR(r[2], r[3], 2, 6, 3, 7);
    four transposed[4] = {FOUR(low, low2, 0, 1, 4, 5), FOUR(low, low2, 2, 3, 6, 7), FOUR(high, high2, 0, 1, 4, 5),
                          FOUR(high, high2, 2, 3, 6, 7)};
    for (int i = 0; i < 4; i++)
        memcpy(to + i * ld, &transposed[i], sizeof(four));
}

static inline void transpose4_f64(const double *const *line, int64_t at, double *to, int64_t ld)
{
    two a, b;
    memcpy(&a, line[0] + at, sizeof(two));
    memcpy(&b, line[1] + at, sizeof(two));
    two first = TWO(a, b, 0, 2), second = TWO(a, b, 1, 3);
    memcpy(to, &first, sizeof(two));
    memcpy(to + ld, &second, sizeof(two));
}

#endif
