/* transpose8.h: 8 × 8 tiles transposed in vectors: one load and one store per 8 elements instead of 16 scalar ones.
 * For elements of 4 and 2 bytes, on AVX2; other levels have no tiles. copy.c includes it. */
#ifndef TARN__CPU_TRANSPOSE8_H
#define TARN__CPU_TRANSPOSE8_H

#include <stdint.h>

#define TILE_SIDE 8 /* rows and columns of a tile */

#if defined(__AVX2__)
#include <immintrin.h>
#define TARN__HAS_TRANSPOSE8 1

/* The low halves of two vectors, and the high halves. */
#define LOW_HALVES(a, b) _mm256_permute2f128_ps(a, b, 0x20)
#define HIGH_HALVES(a, b) _mm256_permute2f128_ps(a, b, 0x31)

/* Interleaves pairs of rows, then pairs of pairs, then exchanges halves: 24 shuffles per 64 elements. Strides in
 * elements. */
static inline void transpose8_u32(uint32_t *to, int64_t to_row, const uint32_t *from, int64_t from_column)
{
    __m256 row[TILE_SIDE], pair[TILE_SIDE], four[TILE_SIDE];
    for (int i = 0; i < TILE_SIDE; i++)
        row[i] = _mm256_loadu_ps((const float *)(const void *)(from + i * from_column));
    for (int i = 0; i < TILE_SIDE; i += 2) {
        pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
    }
    for (int i = 0; i < TILE_SIDE; i += 4)
        for (int k = 0; k < 2; k++) {
            four[i + 2 * k] = _mm256_shuffle_ps(pair[i + k], pair[i + 2 + k], 0x44);
            four[i + 2 * k + 1] = _mm256_shuffle_ps(pair[i + k], pair[i + 2 + k], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps((float *)(void *)(to + i * to_row), LOW_HALVES(four[i], four[i + 4]));
        _mm256_storeu_ps((float *)(void *)(to + (i + 4) * to_row), HIGH_HALVES(four[i], four[i + 4]));
    }
}

/* The same for elements of 2 bytes, in 16-byte vectors. */
static inline void transpose8_u16(uint16_t *to, int64_t to_row, const uint16_t *from, int64_t from_column)
{
    __m128i row[TILE_SIDE], pair[TILE_SIDE], four[TILE_SIDE];
    for (int i = 0; i < TILE_SIDE; i++)
        row[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + i * from_column));
    for (int i = 0; i < TILE_SIDE; i += 2) {
        pair[i] = _mm_unpacklo_epi16(row[i], row[i + 1]);
        pair[i + 1] = _mm_unpackhi_epi16(row[i], row[i + 1]);
    }
    for (int i = 0; i < TILE_SIDE; i += 4)
        for (int k = 0; k < 2; k++) {
            four[i + 2 * k] = _mm_unpacklo_epi32(pair[i + k], pair[i + 2 + k]);
            four[i + 2 * k + 1] = _mm_unpackhi_epi32(pair[i + k], pair[i + 2 + k]);
        }
    for (int i = 0; i < 4; i++) {
        _mm_storeu_si128((__m128i *)(void *)(to + 2 * i * to_row), _mm_unpacklo_epi64(four[i], four[i + 4]));
        _mm_storeu_si128((__m128i *)(void *)(to + (2 * i + 1) * to_row), _mm_unpackhi_epi64(four[i], four[i + 4]));
    }
}

#undef LOW_HALVES
#undef HIGH_HALVES

#else
#define TARN__HAS_TRANSPOSE8 0
#endif

#endif
