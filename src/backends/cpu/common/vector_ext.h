/* vector_ext.h: vectors of any element type, as wide as the level's registers, by the vector extension of gcc and clang
 * (__attribute__((vector_size))): every level has them, unlike the f32 intrinsics of simd_f32.h. For reductions: a
 * compiler must not reorder float additions, so lanes are explicit. Never passed between functions: the calling
 * convention would depend on the level. */
#ifndef TARN__CPU_VECTOR_EXT_H
#define TARN__CPU_VECTOR_EXT_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "backends/cpu/common/convert.h"
#include "backends/cpu/runtime/level.h"

/* Independent accumulators of a sum along memory. AArch64 adds four vectors per cycle and has 32 registers. */
#if defined(__aarch64__)
#define TARN__ACCUMULATORS 8
#else
#define TARN__ACCUMULATORS 4
#endif

typedef float tarn__f32v __attribute__((vector_size(VECTOR_BYTES)));
typedef double tarn__f64v __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t tarn__i32v __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t tarn__i64v __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t tarn__u32v __attribute__((vector_size(VECTOR_BYTES)));
typedef float tarn__f32half __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint16_t tarn__u16half __attribute__((vector_size(VECTOR_BYTES / 2)));

/* a where mask bits are set, b elsewhere. */
#define TARN__SELECT(vector, mask_vector, mask, a, b) \
    ((vector)(((mask_vector)(a) & (mask)) | ((mask_vector)(b) & ~(mask))))

/* max(a, x) or min(a, x), where NaN in x wins. One instruction on AArch64, which orders -0 before 0. */
#define TARN__SELECT_MAX(V, M, a, x) TARN__SELECT(V, M, (M)((x) > (a)) | (M)((x) != (x)), x, a)
#define TARN__SELECT_MIN(V, M, a, x) TARN__SELECT(V, M, (M)((x) < (a)) | (M)((x) != (x)), x, a)
#if defined(__aarch64__)
#define TARN__VEC_MAX_tarn__f32v(M, a, x) ((tarn__f32v)vmaxq_f32((float32x4_t)(a), (float32x4_t)(x)))
#define TARN__VEC_MAX_tarn__f64v(M, a, x) ((tarn__f64v)vmaxq_f64((float64x2_t)(a), (float64x2_t)(x)))
#define TARN__VEC_MIN_tarn__f32v(M, a, x) ((tarn__f32v)vminq_f32((float32x4_t)(a), (float32x4_t)(x)))
#define TARN__VEC_MIN_tarn__f64v(M, a, x) ((tarn__f64v)vminq_f64((float64x2_t)(a), (float64x2_t)(x)))
#else
#define TARN__VEC_MAX_tarn__f32v(M, a, x) TARN__SELECT_MAX(tarn__f32v, M, a, x)
#define TARN__VEC_MAX_tarn__f64v(M, a, x) TARN__SELECT_MAX(tarn__f64v, M, a, x)
#define TARN__VEC_MIN_tarn__f32v(M, a, x) TARN__SELECT_MIN(tarn__f32v, M, a, x)
#define TARN__VEC_MIN_tarn__f64v(M, a, x) TARN__SELECT_MIN(tarn__f64v, M, a, x)
#endif
#define TARN__VEC_MAX_tarn__i64v(M, a, x) TARN__SELECT_MAX(tarn__i64v, M, a, x)
#define TARN__VEC_MIN_tarn__i64v(M, a, x) TARN__SELECT_MIN(tarn__i64v, M, a, x)

/* Unaligned vector loads: as stored, f32 from bf16, f64 from f32. Intrinsics where the compiler would widen in
 * halves. */
#define TARN__VEC_LOAD(vector, to, from) memcpy(&(to), (from), sizeof(vector))
#if defined(__AVX512F__)
#define TARN__VEC_LOAD_BF16(vector, to, from) \
    ((to) = (vector)_mm512_slli_epi32( \
         _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(from))), 16))
#define TARN__VEC_LOAD_F32(vector, to, from) ((to) = (vector)_mm512_cvtps_pd(_mm256_loadu_ps(from)))
#elif defined(__AVX2__)
#define TARN__VEC_LOAD_BF16(vector, to, from) \
    ((to) = \
         (vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(from))), 16))
#define TARN__VEC_LOAD_F32(vector, to, from) ((to) = (vector)_mm256_cvtps_pd(_mm_loadu_ps(from)))
#elif defined(__aarch64__)
#define TARN__VEC_LOAD_BF16(vector, to, from) ((to) = (vector)vshll_n_u16(vld1_u16(from), 16))
#define TARN__VEC_LOAD_F32(vector, to, from) ((to) = (vector)vcvt_f64_f32(vld1_f32(from)))
#else
#define TARN__VEC_LOAD_BF16(vector, to, from) \
    do { \
        tarn__u16half half_; \
        memcpy(&half_, (from), sizeof(half_)); \
        (to) = (vector)(__builtin_convertvector(half_, tarn__u32v) << 16); \
    } while (0)
#define TARN__VEC_LOAD_F32(vector, to, from) \
    do { \
        tarn__f32half half_; \
        memcpy(&half_, (from), sizeof(half_)); \
        (to) = __builtin_convertvector(half_, vector); \
    } while (0)
#endif

/* Merges TARN__ACCUMULATORS vectors into the first by step(V, M, a, x), pairwise. */
#if TARN__ACCUMULATORS == 8
#define TARN__MERGE_ACCUMULATORS_HIGH(V, M, v, step) \
    step(V, M, (v)[4], (v)[5]); \
    step(V, M, (v)[6], (v)[7]); \
    step(V, M, (v)[4], (v)[6]); \
    step(V, M, (v)[0], (v)[4]);
#else
#define TARN__MERGE_ACCUMULATORS_HIGH(V, M, v, step)
#endif
#define TARN__MERGE_ACCUMULATORS(V, M, v, step) \
    do { \
        step(V, M, (v)[0], (v)[1]); \
        step(V, M, (v)[2], (v)[3]); \
        step(V, M, (v)[0], (v)[2]); \
        TARN__MERGE_ACCUMULATORS_HIGH(V, M, v, step) \
    } while (0)

/* One bf16 element. A signaling NaN becomes quiet, or is kept, by the operation that follows. */
#define TARN__FROM_BF16(x) tarn__float_from((uint32_t)(x) << 16)

/* Reduces all lanes by step(a, b), in halves. Loops of constant length, which become narrower vectors. */
#define TARN__VEC_REDUCE(type, vector, to, v, step) \
    do { \
        enum { LANES_ = sizeof(vector) / sizeof(type) }; \
        type lane_[16]; \
        memcpy(lane_, &(v), sizeof(v)); \
        for (int j_ = 0; LANES_ == 16 && j_ < 8; j_++) \
            lane_[j_] = step(lane_[j_], lane_[j_ + 8]); \
        for (int j_ = 0; LANES_ >= 8 && j_ < 4; j_++) \
            lane_[j_] = step(lane_[j_], lane_[j_ + 4]); \
        for (int j_ = 0; LANES_ >= 4 && j_ < 2; j_++) \
            lane_[j_] = step(lane_[j_], lane_[j_ + 2]); \
        (to) = step(lane_[0], lane_[1]); \
    } while (0)

#endif
