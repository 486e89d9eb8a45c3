/* vec.h: vectors of floats and what functions written by hand need of them, where there are fused operations and
 * permutations: AVX2, AVX-512 and AArch64. TARN__PACK is the number of floats, 0 on other levels, which keep the plain
 * forms of vmath.h.
 *
 * AVX2 and AVX-512 do the same arithmetic on each float, so results have the same bits. +, -, * and / are the
 * compiler's own on vectors.
 *
 * PACKS_AT_ONCE: how many a loop takes, so that one can be worked on while another waits; PACKS_OF_MUCH where one needs
 * many registers. */
#ifndef TARN__PACKS_H
#define TARN__PACKS_H

#include <float.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define TARN__PACK 16
#define PACKS_AT_ONCE 1
#define PACKS_OF_MUCH 1
typedef __m512 pack;
typedef __mmask16 pack_mask;
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define TARN__PACK 8
#define PACKS_AT_ONCE 1
#define PACKS_OF_MUCH 1
typedef __m256 pack;
typedef __m256 pack_mask; /* all bits of a lane, or none */
#elif defined(__aarch64__)
#include <arm_neon.h>
#define TARN__PACK 4
#define PACKS_AT_ONCE 4
#define PACKS_OF_MUCH 2
typedef float32x4_t pack;
typedef uint32x4_t pack_mask; /* as with AVX2 */
#else
#define TARN__PACK 0
#endif

#if TARN__PACK

#define PACK_INLINE __attribute__((always_inline)) static inline

#if TARN__PACK == 16

PACK_INLINE pack pack_all(float c)
{
    return _mm512_set1_ps(c);
}
PACK_INLINE pack pack_load(const float *x)
{
    return _mm512_loadu_ps(x);
}
PACK_INLINE void pack_store(float *y, pack v)
{
    _mm512_storeu_ps(y, v);
}
PACK_INLINE pack pack_load_some(const float *x, int64_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), x);
}
PACK_INLINE void pack_store_some(float *y, pack v, int64_t n)
{
    _mm512_mask_storeu_ps(y, (__mmask16)((1u << n) - 1u), v);
}

PACK_INLINE pack pack_fma(pack a, pack b, pack c)
{
    return _mm512_fmadd_ps(a, b, c);
}
PACK_INLINE pack pack_fma_minus(pack a, pack b, pack c)
{
    return _mm512_fmsub_ps(a, b, c);
}
PACK_INLINE pack pack_size(pack x)
{
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
}
PACK_INLINE pack pack_least(pack limit, pack x)
{
    return _mm512_min_ps(limit, x);
} /* NaN in x stays */
PACK_INLINE pack pack_most(pack limit, pack x)
{
    return _mm512_max_ps(limit, x);
}
PACK_INLINE pack pack_smaller_size(pack a, pack x)
{
    return _mm512_range_ps(a, x, 10);
} /* of |a| and |x|; NaN may be dropped */
PACK_INLINE pack pack_with_sign(pack size, pack sign)
{
    return _mm512_or_ps(size, _mm512_and_ps(_mm512_set1_ps(-0.0f), sign));
}

/* x with its sign turned where the integer in the low bits of `rounded` is odd. */
PACK_INLINE pack pack_turned(pack x, pack rounded)
{
    return _mm512_xor_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(rounded), 31)));
}

PACK_INLINE pack pack_choose(pack_mask mask, pack yes, pack no)
{
    return _mm512_mask_blend_ps(mask, no, yes);
}
PACK_INLINE pack_mask pack_below(pack a, pack b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
PACK_INLINE pack_mask pack_not_within(pack a, pack limit)
{
    return _mm512_cmp_ps_mask(a, limit, _CMP_NLE_UQ);
} /* or NaN */
PACK_INLINE pack_mask pack_beyond(pack a, pack limit)
{
    return pack_not_within(pack_size(a), limit);
}
PACK_INLINE pack_mask pack_not_normal(pack x)
{
    return _mm512_fpclass_ps_mask(x, 0xff);
} /* all but positive normal numbers */
PACK_INLINE pack_mask pack_either(pack_mask a, pack_mask b)
{
    return a | b;
}
PACK_INLINE int pack_any(pack_mask mask)
{
    return mask != 0;
}

/* The element of 16 that the low four bits of each lane of `rounded` name. */
PACK_INLINE pack pack_look_up(const float *table, pack rounded)
{
    return _mm512_permutexvar_ps(_mm512_castps_si512(rounded), _mm512_load_ps(table));
}

/* Bits as integers: x + (by << shift), x - y, x & y, x >> shift with its sign, and as a float. */
PACK_INLINE pack pack_bits_add_shifted(pack x, pack by, int shift)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(by), (unsigned)shift)));
}
PACK_INLINE pack pack_bits_minus(pack x, pack y)
{
    return _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_castps_si512(x), _mm512_castps_si512(y)));
}
PACK_INLINE pack pack_bits_and(pack x, pack y)
{
    return _mm512_and_ps(x, y);
}
PACK_INLINE pack pack_bits_all(uint32_t u)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32((int)u));
}
PACK_INLINE pack pack_exponent(pack x)
{
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_castps_si512(x), 23));
}

#elif TARN__PACK == 8

PACK_INLINE pack pack_all(float c)
{
    return _mm256_set1_ps(c);
}
PACK_INLINE pack pack_load(const float *x)
{
    return _mm256_loadu_ps(x);
}
PACK_INLINE void pack_store(float *y, pack v)
{
    _mm256_storeu_ps(y, v);
}

PACK_INLINE pack pack_load_some(const float *x, int64_t n)
{
    float held[8] = {0};
    memcpy(held, x, (size_t)n * sizeof(float));
    return _mm256_loadu_ps(held);
}

PACK_INLINE void pack_store_some(float *y, pack v, int64_t n)
{
    float held[8];
    _mm256_storeu_ps(held, v);
    memcpy(y, held, (size_t)n * sizeof(float));
}

PACK_INLINE pack pack_fma(pack a, pack b, pack c)
{
    return _mm256_fmadd_ps(a, b, c);
}
PACK_INLINE pack pack_fma_minus(pack a, pack b, pack c)
{
    return _mm256_fmsub_ps(a, b, c);
}
PACK_INLINE pack pack_size(pack x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
PACK_INLINE pack pack_least(pack limit, pack x)
{
    return _mm256_min_ps(limit, x);
} /* NaN in x stays */
PACK_INLINE pack pack_most(pack limit, pack x)
{
    return _mm256_max_ps(limit, x);
}
PACK_INLINE pack pack_smaller_size(pack a, pack x)
{
    return _mm256_min_ps(pack_size(a), pack_size(x));
}
PACK_INLINE pack pack_with_sign(pack size, pack sign)
{
    return _mm256_or_ps(size, _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
}

/* x with its sign turned where the integer in the low bits of `rounded` is odd. */
PACK_INLINE pack pack_turned(pack x, pack rounded)
{
    return _mm256_xor_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(rounded), 31)));
}

PACK_INLINE pack pack_choose(pack_mask mask, pack yes, pack no)
{
    return _mm256_blendv_ps(no, yes, mask);
}
PACK_INLINE pack_mask pack_below(pack a, pack b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
PACK_INLINE pack_mask pack_not_within(pack a, pack limit)
{
    return _mm256_cmp_ps(a, limit, _CMP_NLE_UQ);
} /* or NaN */
PACK_INLINE pack_mask pack_beyond(pack a, pack limit)
{
    return pack_not_within(pack_size(a), limit);
}
PACK_INLINE pack_mask pack_not_normal(pack x)
{ /* all but positive normal numbers */
    return _mm256_or_ps(_mm256_cmp_ps(x, _mm256_set1_ps(FLT_MAX), _CMP_NLE_UQ),
                        _mm256_cmp_ps(x, _mm256_set1_ps(FLT_MIN), _CMP_LT_OQ));
}
PACK_INLINE pack_mask pack_either(pack_mask a, pack_mask b)
{
    return _mm256_or_ps(a, b);
}
PACK_INLINE int pack_any(pack_mask mask)
{
    return _mm256_movemask_ps(mask) != 0;
}

/* The element of 16 that the low four bits of each lane of `rounded` name; the fourth bit chooses between two halves.
 */
PACK_INLINE pack pack_look_up(const float *table, pack rounded)
{
    __m256i at = _mm256_castps_si256(rounded);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(_mm256_load_ps(table), at),
                            _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8), at),
                            _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
}

/* Bits as integers: x + (by << shift), x - y, x & y, x >> shift with its sign, and as a float. */
PACK_INLINE pack pack_bits_add_shifted(pack x, pack by, int shift)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(by), shift)));
}
PACK_INLINE pack pack_bits_minus(pack x, pack y)
{
    return _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_castps_si256(x), _mm256_castps_si256(y)));
}
PACK_INLINE pack pack_bits_and(pack x, pack y)
{
    return _mm256_and_ps(x, y);
}
PACK_INLINE pack pack_bits_all(uint32_t u)
{
    return _mm256_castsi256_ps(_mm256_set1_epi32((int)u));
}
PACK_INLINE pack pack_exponent(pack x)
{
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_castps_si256(x), 23));
}

#else

PACK_INLINE pack pack_all(float c)
{
    return vdupq_n_f32(c);
}
PACK_INLINE pack pack_load(const float *x)
{
    return vld1q_f32(x);
}
PACK_INLINE void pack_store(float *y, pack v)
{
    vst1q_f32(y, v);
}

PACK_INLINE pack pack_load_some(const float *x, int64_t n)
{
    float held[4] = {0};
    memcpy(held, x, (size_t)n * sizeof(float));
    return vld1q_f32(held);
}

PACK_INLINE void pack_store_some(float *y, pack v, int64_t n)
{
    float held[4];
    vst1q_f32(held, v);
    memcpy(y, held, (size_t)n * sizeof(float));
}

PACK_INLINE pack pack_fma(pack a, pack b, pack c)
{
    return vfmaq_f32(c, a, b);
}
PACK_INLINE pack pack_size(pack x)
{
    return vabsq_f32(x);
}
PACK_INLINE pack pack_choose(pack_mask mask, pack yes, pack no)
{
    return vbslq_f32(mask, yes, no);
}
PACK_INLINE pack pack_least(pack limit, pack x)
{
    return vminq_f32(limit, x);
} /* NaN in x stays */
PACK_INLINE pack pack_most(pack limit, pack x)
{
    return pack_choose(vcgtq_f32(limit, x), limit, x);
}
PACK_INLINE pack pack_with_sign(pack size, pack sign)
{
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, size);
}

/* x with its sign turned where the integer in the low bits of `rounded` is odd. */
PACK_INLINE pack pack_turned(pack x, pack rounded)
{
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), vshlq_n_u32(vreinterpretq_u32_f32(rounded), 31)));
}

PACK_INLINE pack_mask pack_below(pack a, pack b)
{
    return vcltq_f32(a, b);
}
PACK_INLINE pack_mask pack_not_within(pack a, pack limit)
{
    return vmvnq_u32(vcleq_f32(a, limit));
} /* or NaN */
PACK_INLINE pack_mask pack_beyond(pack a, pack limit)
{
    return vmvnq_u32(vcaleq_f32(a, limit));
}
PACK_INLINE pack_mask pack_not_normal(pack x)
{ /* all but positive normal numbers */
    return vcgeq_u32(vsubq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x00800000u)), vdupq_n_u32(0x7f000000u));
}
PACK_INLINE pack_mask pack_either(pack_mask a, pack_mask b)
{
    return vorrq_u32(a, b);
}
PACK_INLINE int pack_any(pack_mask mask)
{
    return vmaxvq_u32(mask) != 0;
}

/* Bits as integers: x + (by << shift), x - y, x & y, x >> shift with its sign, and as a float. */
PACK_INLINE pack pack_bits_add_shifted(pack x, pack by, int shift)
{
    return vreinterpretq_f32_u32(vreinterpretq_u32_f32(x) + (vreinterpretq_u32_f32(by) << shift));
}
PACK_INLINE pack pack_bits_minus(pack x, pack y)
{
    return vreinterpretq_f32_u32(vsubq_u32(vreinterpretq_u32_f32(x), vreinterpretq_u32_f32(y)));
}
PACK_INLINE pack pack_bits_and(pack x, pack y)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vreinterpretq_u32_f32(y)));
}
PACK_INLINE pack pack_bits_all(uint32_t u)
{
    return vreinterpretq_f32_u32(vdupq_n_u32(u));
}
PACK_INLINE pack pack_exponent(pack x)
{
    return vcvtq_f32_s32(vshrq_n_s32(vreinterpretq_s32_f32(x), 23));
}

#endif

#endif

#endif
