/* lanes.h: vectors as wide as the instruction level's, in the compilers' common extension. Reductions need them: a compiler must not
 * reorder a sum of floats, so the lanes are written down. They are never passed to functions: that would depend on the level. */
#ifndef TARN__LANES_H
#define TARN__LANES_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "backends/cpu/convert.h"

#if defined(__AVX512F__)
#define TARN__VECTOR 64
#elif defined(__AVX__)
#define TARN__VECTOR 32
#else
#define TARN__VECTOR 16
#endif

typedef float tarn__f32v __attribute__((vector_size(TARN__VECTOR)));
typedef double tarn__f64v __attribute__((vector_size(TARN__VECTOR)));
typedef int32_t tarn__i32v __attribute__((vector_size(TARN__VECTOR)));
typedef int64_t tarn__i64v __attribute__((vector_size(TARN__VECTOR)));
typedef uint32_t tarn__u32v __attribute__((vector_size(TARN__VECTOR)));
typedef float tarn__f32half __attribute__((vector_size(TARN__VECTOR / 2)));
typedef uint16_t tarn__u16half __attribute__((vector_size(TARN__VECTOR / 2)));

/* a where the mask's bits are set, b elsewhere. */
#define TARN__SELECT(vector, mask_vector, mask, a, b) ((vector)(((mask_vector)(a) & (mask)) | ((mask_vector)(b) & ~(mask))))

/* A vector from memory, aligned or not: as it lies there, f32 from bf16, f64 from f32. Where the compiler would widen in halves, the one
 * instruction is named. */
#define TARN__LANES_LOAD(vector, to, from) memcpy(&(to), (from), sizeof(vector))
#if defined(__AVX512F__)
#define TARN__LANES_LOAD_BF16(vector, to, from)                                                                                           \
    ((to) = (vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(from))), 16))
#define TARN__LANES_LOAD_F32(vector, to, from) ((to) = (vector)_mm512_cvtps_pd(_mm256_loadu_ps(from)))
#elif defined(__AVX2__)
#define TARN__LANES_LOAD_BF16(vector, to, from)                                                                                           \
    ((to) = (vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(from))), 16))
#define TARN__LANES_LOAD_F32(vector, to, from) ((to) = (vector)_mm256_cvtps_pd(_mm_loadu_ps(from)))
#else
#define TARN__LANES_LOAD_BF16(vector, to, from)                                                                                           \
    do {                                                                                                                                  \
        tarn__u16half half_;                                                                                                              \
        memcpy(&half_, (from), sizeof(half_));                                                                                            \
        (to) = (vector)(__builtin_convertvector(half_, tarn__u32v) << 16);                                                                \
    } while (0)
#define TARN__LANES_LOAD_F32(vector, to, from)                                                                                            \
    do {                                                                                                                                  \
        tarn__f32half half_;                                                                                                              \
        memcpy(&half_, (from), sizeof(half_));                                                                                            \
        (to) = __builtin_convertvector(half_, vector);                                                                                    \
    } while (0)
#endif

/* One bf16 element; the step that follows makes a NaN quiet, or keeps it as it is. */
#define TARN__FROM_BF16(x) tarn__float_from((uint32_t)(x) << 16)

/* All lanes into one by step(a, b), in halves. Loops of known length, which become narrower vectors. */
#define TARN__LANES_FOLD(type, vector, to, v, step)                                                                                       \
    do {                                                                                                                                  \
        enum { LANES_ = sizeof(vector) / sizeof(type) };                                                                                  \
        type lane_[16];                                                                                                                   \
        memcpy(lane_, &(v), sizeof(v));                                                                                                   \
        for (int j_ = 0; LANES_ == 16 && j_ < 8; j_++)                                                                                    \
            lane_[j_] = step(lane_[j_], lane_[j_ + 8]);                                                                                   \
        for (int j_ = 0; LANES_ >= 8 && j_ < 4; j_++)                                                                                     \
            lane_[j_] = step(lane_[j_], lane_[j_ + 4]);                                                                                   \
        for (int j_ = 0; LANES_ >= 4 && j_ < 2; j_++)                                                                                     \
            lane_[j_] = step(lane_[j_], lane_[j_ + 2]);                                                                                   \
        (to) = step(lane_[0], lane_[1]);                                                                                                  \
    } while (0)

#endif
