/* simd_f32.h: the type `vec`, the level's widest register of f32, with load, store, FMA, min, max, compare, select and
 * lookup as intrinsics. For hand-vectorized kernels, on levels with FMA and permutes: AVX2, AVX-512 and AArch64.
 * TARN__VEC_LANES is the number of lanes; 0 on other levels, which use the scalar functions of scalar_math.h. Functions
 * like exp on a vec are in simd_f32_math.h; vectors of any element type without intrinsics in vector_ext.h.
 *
 * AVX2 and AVX-512 perform the same arithmetic per lane: results are bitwise identical. +, -, * and / are the
 * compiler's own operators on vectors.
 *
 * VECS_PER_STEP: vectors per loop iteration, to hide latencies; VECS_PER_LONG_STEP for functions that need many
 * registers. */
#ifndef TARN__CPU_SIMD_F32_H
#define TARN__CPU_SIMD_F32_H

#include <float.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define TARN__VEC_LANES 16
#define VECS_PER_STEP 1
#define VECS_PER_LONG_STEP 1
typedef __m512 vec;
typedef __mmask16 vec_mask;
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define TARN__VEC_LANES 8
#define VECS_PER_STEP 1
#define VECS_PER_LONG_STEP 1
typedef __m256 vec;
typedef __m256 vec_mask; /* all bits of a lane, or none */
#elif defined(__aarch64__)
#include <arm_neon.h>
#define TARN__VEC_LANES 4
#define VECS_PER_STEP 4
#define VECS_PER_LONG_STEP 2
typedef float32x4_t vec;
typedef uint32x4_t vec_mask; /* as on AVX2 */
#else
#define TARN__VEC_LANES 0
#endif

#if TARN__VEC_LANES

#define VEC_INLINE __attribute__((always_inline)) static inline

#if TARN__VEC_LANES == 16

VEC_INLINE vec vec_set(float c)
{
    return _mm512_set1_ps(c);
}
VEC_INLINE vec vec_load(const float *x)
{
    return _mm512_loadu_ps(x);
}
VEC_INLINE void vec_store(float *y, vec v)
{
    _mm512_storeu_ps(y, v);
}
/* The first n lanes (n < 16) through a mask; the others are 0. */
VEC_INLINE vec vec_load_n(const float *x, int64_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), x);
}
VEC_INLINE void vec_store_n(float *y, vec v, int64_t n)
{
    _mm512_mask_storeu_ps(y, (__mmask16)((1u << n) - 1u), v);
}

VEC_INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
VEC_INLINE vec vec_fms(vec a, vec b, vec c)
{
    return _mm512_fmsub_ps(a, b, c);
}
VEC_INLINE vec vec_abs(vec x)
{
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
}
VEC_INLINE vec vec_min(vec limit, vec x)
{
    return _mm512_min_ps(limit, x);
} /* keeps NaN in x */
VEC_INLINE vec vec_max(vec limit, vec x)
{
    return _mm512_max_ps(limit, x);
}
VEC_INLINE vec vec_min_abs(vec a, vec x)
{
    return _mm512_range_ps(a, x, 10);
} /* min(|a|, |x|); may drop NaN */
VEC_INLINE vec vec_copysign(vec size, vec sign)
{
    return _mm512_or_ps(size, _mm512_and_ps(_mm512_set1_ps(-0.0f), sign));
}

/* x negated where the integer in the low bits of `rounded` is odd. */
VEC_INLINE vec vec_negate_odd(vec x, vec rounded)
{
    return _mm512_xor_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(rounded), 31)));
}

VEC_INLINE vec vec_select(vec_mask mask, vec yes, vec no)
{
    return _mm512_mask_blend_ps(mask, no, yes);
}
VEC_INLINE vec_mask vec_lt(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
VEC_INLINE vec_mask vec_not_le(vec a, vec limit)
{
    return _mm512_cmp_ps_mask(a, limit, _CMP_NLE_UQ);
} /* true for NaN */
VEC_INLINE vec_mask vec_abs_not_le(vec a, vec limit)
{
    return vec_not_le(vec_abs(a), limit);
}
VEC_INLINE vec_mask vec_not_normal(vec x)
{
    return _mm512_fpclass_ps_mask(x, 0xff);
} /* all but positive normal numbers */
VEC_INLINE vec_mask vec_mask_or(vec_mask a, vec_mask b)
{
    return a | b;
}
VEC_INLINE int vec_any(vec_mask mask)
{
    return mask != 0;
}

/* Looks up 16 elements by the low four bits of each lane of `rounded`. */
VEC_INLINE vec vec_lookup(const float *table, vec rounded)
{
    return _mm512_permutexvar_ps(_mm512_castps_si512(rounded), _mm512_load_ps(table));
}

/* Integer operations on the bits: x + (by << shift), x - y, x & y, the exponent as a float. */
VEC_INLINE vec vec_bits_add_shifted(vec x, vec by, int shift)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(by), (unsigned)shift)));
}
VEC_INLINE vec vec_bits_sub(vec x, vec y)
{
    return _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_castps_si512(x), _mm512_castps_si512(y)));
}
VEC_INLINE vec vec_bits_and(vec x, vec y)
{
    return _mm512_and_ps(x, y);
}
VEC_INLINE vec vec_bits_set(uint32_t u)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32((int)u));
}
VEC_INLINE vec vec_exponent(vec x)
{
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_castps_si512(x), 23));
}

#elif TARN__VEC_LANES == 8

VEC_INLINE vec vec_set(float c)
{
    return _mm256_set1_ps(c);
}
VEC_INLINE vec vec_load(const float *x)
{
    return _mm256_loadu_ps(x);
}
VEC_INLINE void vec_store(float *y, vec v)
{
    _mm256_storeu_ps(y, v);
}

/* The first n lanes through a zeroed copy: never reads past them. */
VEC_INLINE vec vec_load_n(const float *x, int64_t n)
{
    float lanes[8] = {0};
    memcpy(lanes, x, (size_t)n * sizeof(float));
    return _mm256_loadu_ps(lanes);
}

VEC_INLINE void vec_store_n(float *y, vec v, int64_t n)
{
    float lanes[8];
    _mm256_storeu_ps(lanes, v);
    memcpy(y, lanes, (size_t)n * sizeof(float));
}

VEC_INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
VEC_INLINE vec vec_fms(vec a, vec b, vec c)
{
    return _mm256_fmsub_ps(a, b, c);
}
VEC_INLINE vec vec_abs(vec x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
VEC_INLINE vec vec_min(vec limit, vec x)
{
    return _mm256_min_ps(limit, x);
} /* keeps NaN in x */
VEC_INLINE vec vec_max(vec limit, vec x)
{
    return _mm256_max_ps(limit, x);
}
VEC_INLINE vec vec_min_abs(vec a, vec x)
{
    return _mm256_min_ps(vec_abs(a), vec_abs(x));
}
VEC_INLINE vec vec_copysign(vec size, vec sign)
{
    return _mm256_or_ps(size, _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
}

/* x negated where the integer in the low bits of `rounded` is odd. */
VEC_INLINE vec vec_negate_odd(vec x, vec rounded)
{
    return _mm256_xor_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(rounded), 31)));
}

VEC_INLINE vec vec_select(vec_mask mask, vec yes, vec no)
{
    return _mm256_blendv_ps(no, yes, mask);
}
VEC_INLINE vec_mask vec_lt(vec a, vec b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
VEC_INLINE vec_mask vec_not_le(vec a, vec limit)
{
    return _mm256_cmp_ps(a, limit, _CMP_NLE_UQ);
} /* true for NaN */
VEC_INLINE vec_mask vec_abs_not_le(vec a, vec limit)
{
    return vec_not_le(vec_abs(a), limit);
}
VEC_INLINE vec_mask vec_not_normal(vec x)
{ /* all but positive normal numbers */
    return _mm256_or_ps(_mm256_cmp_ps(x, _mm256_set1_ps(FLT_MAX), _CMP_NLE_UQ),
                        _mm256_cmp_ps(x, _mm256_set1_ps(FLT_MIN), _CMP_LT_OQ));
}
VEC_INLINE vec_mask vec_mask_or(vec_mask a, vec_mask b)
{
    return _mm256_or_ps(a, b);
}
VEC_INLINE int vec_any(vec_mask mask)
{
    return _mm256_movemask_ps(mask) != 0;
}

/* Looks up 16 elements by the low four bits of each lane of `rounded`; the fourth bit selects one of two halves. */
VEC_INLINE vec vec_lookup(const float *table, vec rounded)
{
    __m256i at = _mm256_castps_si256(rounded);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(_mm256_load_ps(table), at),
                            _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8), at),
                            _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
}

/* Integer operations on the bits: x + (by << shift), x - y, x & y, the exponent as a float. */
VEC_INLINE vec vec_bits_add_shifted(vec x, vec by, int shift)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(by), shift)));
}
VEC_INLINE vec vec_bits_sub(vec x, vec y)
{
    return _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_castps_si256(x), _mm256_castps_si256(y)));
}
VEC_INLINE vec vec_bits_and(vec x, vec y)
{
    return _mm256_and_ps(x, y);
}
VEC_INLINE vec vec_bits_set(uint32_t u)
{
    return _mm256_castsi256_ps(_mm256_set1_epi32((int)u));
}
VEC_INLINE vec vec_exponent(vec x)
{
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_castps_si256(x), 23));
}

#else

VEC_INLINE vec vec_set(float c)
{
    return vdupq_n_f32(c);
}
VEC_INLINE vec vec_load(const float *x)
{
    return vld1q_f32(x);
}
VEC_INLINE void vec_store(float *y, vec v)
{
    vst1q_f32(y, v);
}

VEC_INLINE vec vec_load_n(const float *x, int64_t n)
{
    float lanes[4] = {0};
    memcpy(lanes, x, (size_t)n * sizeof(float));
    return vld1q_f32(lanes);
}

VEC_INLINE void vec_store_n(float *y, vec v, int64_t n)
{
    float lanes[4];
    vst1q_f32(lanes, v);
    memcpy(y, lanes, (size_t)n * sizeof(float));
}

VEC_INLINE vec vec_fma(vec a, vec b, vec c)
{
    return vfmaq_f32(c, a, b);
}
VEC_INLINE vec vec_abs(vec x)
{
    return vabsq_f32(x);
}
VEC_INLINE vec vec_select(vec_mask mask, vec yes, vec no)
{
    return vbslq_f32(mask, yes, no);
}
VEC_INLINE vec vec_min(vec limit, vec x)
{
    return vminq_f32(limit, x);
} /* keeps NaN in x */
VEC_INLINE vec vec_max(vec limit, vec x)
{
    return vec_select(vcgtq_f32(limit, x), limit, x);
}
VEC_INLINE vec vec_copysign(vec size, vec sign)
{
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, size);
}

/* x negated where the integer in the low bits of `rounded` is odd. */
VEC_INLINE vec vec_negate_odd(vec x, vec rounded)
{
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), vshlq_n_u32(vreinterpretq_u32_f32(rounded), 31)));
}

VEC_INLINE vec_mask vec_lt(vec a, vec b)
{
    return vcltq_f32(a, b);
}
VEC_INLINE vec_mask vec_not_le(vec a, vec limit)
{
    return vmvnq_u32(vcleq_f32(a, limit));
} /* true for NaN */
VEC_INLINE vec_mask vec_abs_not_le(vec a, vec limit)
{
    return vmvnq_u32(vcaleq_f32(a, limit));
}
VEC_INLINE vec_mask vec_not_normal(vec x)
{ /* all but positive normal numbers */
    return vcgeq_u32(vsubq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x00800000u)), vdupq_n_u32(0x7f000000u));
}
VEC_INLINE vec_mask vec_mask_or(vec_mask a, vec_mask b)
{
    return vorrq_u32(a, b);
}
VEC_INLINE int vec_any(vec_mask mask)
{
    return vmaxvq_u32(mask) != 0;
}

/* Integer operations on the bits: x + (by << shift), x - y, x & y, the exponent as a float. */
VEC_INLINE vec vec_bits_add_shifted(vec x, vec by, int shift)
{
    return vreinterpretq_f32_u32(vreinterpretq_u32_f32(x) + (vreinterpretq_u32_f32(by) << shift));
}
VEC_INLINE vec vec_bits_sub(vec x, vec y)
{
    return vreinterpretq_f32_u32(vsubq_u32(vreinterpretq_u32_f32(x), vreinterpretq_u32_f32(y)));
}
VEC_INLINE vec vec_bits_and(vec x, vec y)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vreinterpretq_u32_f32(y)));
}
VEC_INLINE vec vec_bits_set(uint32_t u)
{
    return vreinterpretq_f32_u32(vdupq_n_u32(u));
}
VEC_INLINE vec vec_exponent(vec x)
{
    return vcvtq_f32_s32(vshrq_n_s32(vreinterpretq_s32_f32(x), 23));
}

#endif

#endif

#endif
