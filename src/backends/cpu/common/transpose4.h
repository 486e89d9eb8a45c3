/* transpose4.h: transposes of 4 × 4 f32 or 2 × 2 f64: to[p · ld + i] = row[i][at + p]. Data contiguous along one
 * axis and needed along another passes through these. */
#ifndef TARN__CPU_TRANSPOSE4_H
#define TARN__CPU_TRANSPOSE4_H

#include <stdint.h>
#include <string.h>

typedef float vec4 __attribute__((vector_size(16)));
typedef double vec2 __attribute__((vector_size(16)));
#if defined(__clang__)
#define SHUFFLE4(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#define SHUFFLE2(a, b, i, j) __builtin_shufflevector(a, b, i, j)
#else
typedef int32_t vec4_index __attribute__((vector_size(16)));
typedef int64_t vec2_index __attribute__((vector_size(16)));
#define SHUFFLE4(a, b, i, j, k, l) __builtin_shuffle(a, b, (vec4_index){i, j, k, l})
#define SHUFFLE2(a, b, i, j) __builtin_shuffle(a, b, (vec2_index){i, j})
#endif

static inline void transpose4_f32(const float *const *row, int64_t at, float *to, int64_t ld)
{
    vec4 r[4];
    for (int i = 0; i < 4; i++)
        memcpy(&r[i], row[i] + at, sizeof(vec4));
    vec4 low = SHUFFLE4(r[0], r[1], 0, 4, 1, 5), low2 = SHUFFLE4(r[2], r[3], 0, 4, 1, 5);
    vec4 high = SHUFFLE4(r[0], r[1], 2, 6, 3, 7), high2 = SHUFFLE4(r[2], r[3], 2, 6, 3, 7);
    vec4 transposed[4] = {SHUFFLE4(low, low2, 0, 1, 4, 5), SHUFFLE4(low, low2, 2, 3, 6, 7),
                          SHUFFLE4(high, high2, 0, 1, 4, 5), SHUFFLE4(high, high2, 2, 3, 6, 7)};
    for (int i = 0; i < 4; i++)
        memcpy(to + i * ld, &transposed[i], sizeof(vec4));
}

static inline void transpose4_f64(const double *const *row, int64_t at, double *to, int64_t ld)
{
    vec2 a, b;
    memcpy(&a, row[0] + at, sizeof(vec2));
    memcpy(&b, row[1] + at, sizeof(vec2));
    vec2 first = SHUFFLE2(a, b, 0, 2), second = SHUFFLE2(a, b, 1, 3);
    memcpy(to, &first, sizeof(vec2));
    memcpy(to + ld, &second, sizeof(vec2));
}

#endif
