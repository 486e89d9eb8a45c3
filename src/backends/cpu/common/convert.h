/* convert.h: conversion between storage dtypes and compute types.
 *
 * Kernels compute on short contiguous tiles of float, double or int64_t. A loader brings n elements of any dtype and
 * stride into such a tile, a storer writes them back; tarn__load and tarn__store hold them by [dtype][compute]. So
 * dtypes and strides are handled here and nowhere else.
 *
 * Rules, the same on every processor:
 *
 *   1. A result is rounded once, to nearest, ties to even, also from f64 or i64 to f16 or bf16. Overflow gives
 *      infinity; subnormals are kept.
 *   2. NaN stays NaN with its sign and leading bits, and becomes quiet.
 *   3. Float to integer truncates. i32 and i64 saturate, NaN becomes 0; u8 is the low byte of the i32.
 *   4. Integer to a narrower integer keeps the low bits. To bool is x != 0, so NaN is true.
 *
 * Scalar forms (those between f32 and 16-bit floats are in base/half.h) are branch-free and vectorize from SSE2 on.
 * They are static: the header is compiled at every instruction level. Loaders and storers are compiled once per
 * level, in convert.c and convert_f64.c; contiguous f16 and bf16 have hand-written vector loops. */
#ifndef TARN__CPU_CONVERT_H
#define TARN__CPU_CONVERT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backends/cpu/runtime/level.h"
#include "base/half.h"

#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__GNUC__)
#define TARN__UNUSED __attribute__((unused))
#else
#define TARN__UNUSED
#endif

/* ---- scalars ----------------------------------------------------------------------------------------------------- */

/* x truncated to 24 significant bits, the last of which is set if anything was lost ("round to odd"): a later
 * rounding to fewer bits then still sees on which side of a tie x was. (low + mask) carries into that bit exactly
 * when low is not 0. */
static inline double tarn__round_odd_f64(double x)
{
    const uint64_t mask = 0x1fffffffu;
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    u = (u | ((u & mask) + mask)) & ~mask;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* f16's subnormals are normal in f32: the intermediate f32 is exact wherever it matters. */
static inline uint16_t tarn__f64_to_f16(double x)
{
    return tarn__f32_to_f16((float)tarn__round_odd_f64(x));
}

/* bf16's subnormals are f32's, where the conversion would round a second time: they are rounded to their last bit,
 * 2^-133, by adding and subtracting a value that leaves no smaller bits. */
static inline uint16_t tarn__f64_to_bf16(double x)
{
    double a = fabs(x);
    double small = copysign((a + 0x1.8p-81) - 0x1.8p-81, x);
    return tarn__f32_to_bf16((float)(a < 0x1p-126 ? small : tarn__round_odd_f64(x)));
}

/* Saturating; NaN becomes 0. 2^31 is exact in f32, INT32_MAX is not: hence >= on one side. */
static inline int32_t tarn__f32_to_i32(float x)
{
    return x != x ? 0 : x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : (int32_t)x;
}

static inline int32_t tarn__f64_to_i32(double x)
{
    return x != x ? 0 : x >= 0x1p31 ? INT32_MAX : x <= -0x1p31 ? INT32_MIN : (int32_t)x;
}

static inline int64_t tarn__f32_to_i64(float x)
{
    return x != x ? 0 : x >= 0x1p63f ? INT64_MAX : x < -0x1p63f ? INT64_MIN : (int64_t)x;
}

static inline int64_t tarn__f64_to_i64(double x)
{
    return x != x ? 0 : x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : (int64_t)x;
}

/* Keeps the low bits; written without implementation-defined conversions. */
static inline int32_t tarn__i64_to_i32(int64_t x)
{
    uint32_t u = (uint32_t)(uint64_t)x;
    int32_t y;
    memcpy(&y, &u, sizeof y);
    return y;
}

/* Beyond 2^53 an integer is rounded to odd at a multiple of 2^11, which f64 represents, and only then to 16 bits. */
static inline double tarn__i64_to_f64_odd(int64_t x)
{
    uint64_t u = (uint64_t)x;
    uint64_t cut = (u | ((u & 0x7ffu) + 0x7ffu)) & ~(uint64_t)0x7ff;
    int64_t y;
    memcpy(&y, &cut, sizeof y);
    return (double)(x > (INT64_C(1) << 53) || x < -(INT64_C(1) << 53) ? y : x);
}

static inline uint16_t tarn__i64_to_bf16(int64_t x)
{
    return tarn__f64_to_bf16(tarn__i64_to_f64_odd(x));
}

static inline uint16_t tarn__i64_to_f16(int64_t x)
{
    return tarn__f64_to_f16(tarn__i64_to_f64_odd(x));
}

/* Prefetch distance, a tile of 16-bit elements: the code after a conversion works in cache, and memory would idle. */
#define TARN__PREFETCH_BYTES 2048

/* ---- contiguous f16 ---------------------------------------------------------------------------------------------- */

/* Hardware conversion where the level has it (F16C, AVX-512); scalar code for the remainder, with the same results. */
TARN__UNUSED static void tarn__f16_to_f32_dense(const uint16_t *restrict x, float *restrict y, int64_t n)
{
    int64_t whole = 0;
#if defined(__AVX512F__)
    whole = n & ~(int64_t)15;
    for (int64_t i = 0; i < whole; i += 16) {
        __builtin_prefetch((const char *)(x + i) + TARN__PREFETCH_BYTES);
        _mm512_storeu_ps(y + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(x + i))));
    }
#elif defined(__F16C__)
    whole = n & ~(int64_t)7;
    for (int64_t i = 0; i < whole; i += 8) {
        __builtin_prefetch((const char *)(x + i) + TARN__PREFETCH_BYTES);
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x + i))));
    }
#endif
    for (int64_t i = whole; i < n; i++)
        y[i] = tarn__f16_to_f32(x[i]);
}

TARN__UNUSED static void tarn__f32_to_f16_dense(const float *restrict x, uint16_t *restrict y, int64_t n)
{
    int64_t whole = 0;
#if defined(__AVX512F__)
    whole = n & ~(int64_t)15;
    for (int64_t i = 0; i < whole; i += 16)
        _mm256_storeu_si256((__m256i *)(void *)(y + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    whole = n & ~(int64_t)7;
    for (int64_t i = 0; i < whole; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(y + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (int64_t i = whole; i < n; i++)
        y[i] = tarn__f32_to_f16(x[i]);
}

/* ---- contiguous bf16: the scalar forms on whole vectors, for which compilers emit many more steps ---------------- */

TARN__UNUSED static void tarn__bf16_to_f32_dense(const uint16_t *restrict x, float *restrict y, int64_t n)
{
    int64_t whole = 0;
#if defined(__AVX512F__)
    const __m512i quiet = _mm512_set1_epi32(0x00400000);
    whole = n & ~(int64_t)15;
    for (int64_t i = 0; i < whole; i += 16) {
        __builtin_prefetch((const char *)(x + i) + TARN__PREFETCH_BYTES);
        __m512i u =
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(x + i))), 16);
        __m512 v = _mm512_castsi512_ps(u);
        _mm512_storeu_si512(y + i, _mm512_mask_or_epi32(u, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u, quiet));
    }
#elif defined(__AVX2__)
    const __m256i quiet = _mm256_set1_epi32(0x00400000);
    whole = n & ~(int64_t)7;
    for (int64_t i = 0; i < whole; i += 8) {
        __builtin_prefetch((const char *)(x + i) + TARN__PREFETCH_BYTES);
        __m256i u =
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(x + i))), 16);
        __m256 v = _mm256_castsi256_ps(u);
        __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        _mm256_storeu_si256((__m256i *)(void *)(y + i), _mm256_or_si256(u, _mm256_and_si256(is_nan, quiet)));
    }
#endif
    for (int64_t i = whole; i < n; i++)
        y[i] = tarn__bf16_to_f32(x[i]);
}

#if defined(__AVX512BW__)
/* bf16 of 16 elements, each in the low half of 32 bits: round to nearest even, NaN made quiet. */
static inline __m512i tarn__bf16_of_16(const float *x)
{
    __m512 v = _mm512_loadu_ps(x);
    __m512i u = _mm512_castps_si512(v), high = _mm512_srli_epi32(u, 16);
    __m512i rounded =
        _mm512_add_epi32(u, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(high, _mm512_set1_epi32(1))));
    return _mm512_mask_or_epi32(_mm512_srli_epi32(rounded, 16), _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), high,
                                _mm512_set1_epi32(0x40));
}
#elif defined(__AVX2__)
static inline __m256i tarn__bf16_of_8(const float *x)
{
    __m256 v = _mm256_loadu_ps(x);
    __m256i u = _mm256_castps_si256(v), high = _mm256_srli_epi32(u, 16);
    __m256i rounded =
        _mm256_add_epi32(u, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(high, _mm256_set1_epi32(1))));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), _mm256_or_si256(high, _mm256_set1_epi32(0x40)), is_nan);
}
#endif

/* Packing interleaves the quarters of its operands; the permutation restores their order. */
TARN__UNUSED static void tarn__f32_to_bf16_dense(const float *restrict x, uint16_t *restrict y, int64_t n)
{
    int64_t whole = 0;
#if defined(__AVX512BW__)
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    whole = n & ~(int64_t)31;
    for (int64_t i = 0; i < whole; i += 32)
        _mm512_storeu_si512(y + i, _mm512_permutexvar_epi64(order, _mm512_packus_epi32(tarn__bf16_of_16(x + i),
                                                                                       tarn__bf16_of_16(x + i + 16))));
#elif defined(__AVX2__)
    whole = n & ~(int64_t)15;
    for (int64_t i = 0; i < whole; i += 16)
        _mm256_storeu_si256(
            (__m256i *)(void *)(y + i),
            _mm256_permute4x64_epi64(_mm256_packus_epi32(tarn__bf16_of_8(x + i), tarn__bf16_of_8(x + i + 8)), 0xd8));
#endif
    for (int64_t i = whole; i < n; i++)
        y[i] = tarn__f32_to_bf16(x[i]);
}

/* ---- loaders ----
 *
 * load_<storage>_<compute>(src, stride, dst, n): dst[i] = src[i * stride] for i < n. Strides count elements and may
 * be negative; 0 repeats one element. src and dst are borrowed and do not overlap. */

typedef void (*tarn__load_fn)(const void *src, int64_t stride, void *dst, int64_t n);
typedef void (*tarn__store_fn)(const void *src, void *dst, int64_t stride, int64_t n);

/* The tables, one per instruction level (convert.c): [dtype][compute], compute f32, f64, i64. */
#define tarn__load TARN__AT_LEVEL(tarn__loaders)
#define tarn__store TARN__AT_LEVEL(tarn__storers)
extern const tarn__load_fn tarn__load[8][3];
extern const tarn__store_fn tarn__store[8][3];

/* Loaders into f64 and i64 tiles, and storers: compiled in convert_f64.c at the level that provides f64 (level.h). */
#define TARN__F64_LOADER(storage, compute) TARN__AT_F64_LEVEL(tarn__load_##storage##_##compute)
#define TARN__F64_STORER(compute, storage) TARN__AT_F64_LEVEL(tarn__store_##compute##_##storage)
#define TARN__F64_PAIR(storage, compute) \
    void TARN__F64_LOADER(storage, compute)(const void *src, int64_t stride, void *dst, int64_t n); \
    void TARN__F64_STORER(compute, storage)(const void *src, void *dst, int64_t stride, int64_t n);
#define TARN__F64_ALL(compute) \
    TARN__F64_PAIR(f32, compute) \
    TARN__F64_PAIR(f64, compute) \
    TARN__F64_PAIR(bf16, compute) \
    TARN__F64_PAIR(f16, compute) \
    TARN__F64_PAIR(i32, compute) \
    TARN__F64_PAIR(i64, compute) TARN__F64_PAIR(u8, compute) TARN__F64_PAIR(truth, compute)
TARN__F64_ALL(f64)
TARN__F64_ALL(i64)
#undef TARN__F64_ALL
#undef TARN__F64_PAIR

#endif
