/* nt_store.h: non-temporal stores: the processor does not read a line before overwriting it, which saves a third of
 * the traffic of an addition and half of a fill. Call tarn__nt_fence() after the last store, before other threads
 * may read. */
#ifndef TARN__CPU_NT_STORE_H
#define TARN__CPU_NT_STORE_H

#include <stdint.h>
#include <string.h>

#include "backends/cpu/common/convert.h"

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Results of at least this many bytes use non-temporal stores: no cache could hold them. AArch64 detects full-line
 * writes itself. */
#if defined(__aarch64__)
#define TARN__NT_STORE_MIN INT64_MAX
#else
#define TARN__NT_STORE_MIN ((int64_t)32 << 20)
#endif

/* `to` is 64-byte aligned. */
TARN__UNUSED static void tarn__nt_store(char *to, const char *from, int64_t bytes)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 64 <= bytes; i += 64)
        _mm512_stream_si512((__m512i *)(void *)(to + i), _mm512_loadu_si512((const void *)(from + i)));
#elif defined(__AVX__)
    for (; i + 32 <= bytes; i += 32)
        _mm256_stream_si256((__m256i *)(void *)(to + i), _mm256_loadu_si256((const __m256i *)(const void *)(from + i)));
#elif defined(__SSE2__)
    for (; i + 16 <= bytes; i += 16)
        _mm_stream_si128((__m128i *)(void *)(to + i), _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
#endif
    memcpy(to + i, from + i, (size_t)(bytes - i));
}

/* Repeats one 64-byte line; `to` is aligned as above. */
TARN__UNUSED static void tarn__nt_fill(char *to, const char *line, int64_t bytes)
{
    for (; bytes >= 64; bytes -= 64, to += 64)
        tarn__nt_store(to, line, 64);
    memcpy(to, line, (size_t)bytes);
}

/* Orders non-temporal stores before later ones: they bypass the usual store order of x86. */
TARN__UNUSED static void tarn__nt_fence(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

#endif
