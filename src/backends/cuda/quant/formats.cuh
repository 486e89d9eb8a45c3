/* formats.cuh: quant block formats as descriptions that every kernel shares: four adjacent quants of a block, and the
 * scale and min of their group. A format is a description here and a line in with_format().
 *
 * Q8_0, Q4_0, Q4_K and Q6_K have none: kernels unpack them by code of their own (dequantize.cuh, dot.cuh, decode/). */
#ifndef TARN__CUDA_FORMATS_CUH
#define TARN__CUDA_FORMATS_CUH

#include "backends/cuda/common/kernel.cuh"

extern "C" {
#include "base/quant/quant.h"
}

__device__ __forceinline__ float scale_of(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

#define QUANT_FN __device__ __forceinline__
#define QUANT_SPACE
#define QUANT_MUL(a, b) __fmul_rn(a, b)
#define F16_TO_F32(bits) scale_of(bits)
#include "base/quant/dequantize.inc"
#undef QUANT_FN
#undef QUANT_SPACE
#undef QUANT_MUL
#undef F16_TO_F32

/* ---- words of a block -------------------------------------------------------------------------------------------- */

/* Where a block is. Of one in global memory its own bytes alone are read. In shared memory up to four after it are read
 * as well: it begins at any even address, at a multiple of four, or two bytes after one. */
enum block_memory { GLOBAL, SHARED, SHARED_AT_0, SHARED_AT_2 };

/* Four bytes of a block from a multiple of `alignment`, 2 or 4. Blocks are adjacent, so their size decides; fields have
 * even offsets. */
template <block_memory M, int alignment> __device__ __forceinline__ uint32_t word_at(const char *block, int offset)
{
    const char *from = block + offset;
    if (M == GLOBAL && alignment == 2)
        return ((const uint16_t *)from)[0] | (uint32_t)((const uint16_t *)from)[1] << 16;
    if (M == SHARED && alignment == 2) {
        const int shift = (int)((uintptr_t)from & 3);
        const uint32_t *words = (const uint32_t *)(from - shift);
        return __funnelshift_r(words[0], words[1], (uint32_t)shift * 8);
    }
    if (alignment == 2 && (offset + (M == SHARED_AT_2 ? 2 : 0)) % 4 != 0)
        return __byte_perm(*(const uint32_t *)(from - 2), *(const uint32_t *)(from + 2), 0x5432);
    return *(const uint32_t *)from;
}

__device__ __forceinline__ float half_at(const char *from)
{
    return scale_of(*(const uint16_t *)from);
}

/* Nibbles as in Q4_0: of elements 0 to 15 of a group in the low halves, of 16 to 31 in the high ones. */
__device__ __forceinline__ uint32_t nibbles_of(uint32_t word, int at)
{
    return word >> at % 32 / 16 * 4 & 0x0f0f0f0fu;
}

/* Bits `at` to `at` + 3, each as bit 4 of a byte: the products of a bit with the factor's do not overlap there. */
__device__ __forceinline__ uint32_t fifth_bits(uint32_t bits, int at)
{
    return (bits >> at & 15) * 0x02040810u & 0x10101010u;
}

/* Values of IQ4_NL for four nibbles: byte permutations look up four of eight bytes by three bits of an index; the
 * fourth bit selects one of two such results. Both halves of the bytes are looked up at once, eight nibbles in order,
 * since a unit needs both. */
__device__ __forceinline__ uint32_t values_of(uint32_t word, int at)
{
    const uint32_t index = word & 0x77777777u, select = 0x32103210u | (word & 0x88888888u) >> 1;
    const uint32_t first = __byte_perm(__byte_perm(0xbfad9881u, 0xf6eaddcfu, index),
                                       __byte_perm(0x26190d01u, 0x71594535u, index), select),
                   second = __byte_perm(__byte_perm(0xbfad9881u, 0xf6eaddcfu, index >> 16),
                                        __byte_perm(0x26190d01u, 0x71594535u, index >> 16), select >> 16);
    return __byte_perm(first, second, at % 32 < 16 ? 0x6420 : 0x7531);
}

/* ---- descriptions ------------------------------------------------------------------------------------------------ */

/* value = scale · (q - bias) - min.
 *
 *   elements, bytes      of a block
 *   group                elements that share scale and min: 32, or 16
 *   bias, has_min        min is 0 without has_min
 *   quants<M>(block, at) four quants from element `at`, a multiple of four, as signed bytes
 *   scales(block, at)    scale and min of the group of element `at`, as base/quant rounds them */
template <tarn_dtype Q> struct quant_format;

template <> struct quant_format<TARN_Q4_1> {
    enum { elements = 32, bytes = sizeof(tarn__q4_1), group = 32, bias = 0, has_min = 1 };

    template <block_memory M> static __device__ __forceinline__ uint32_t quants(const char *block, int at)
    {
        return nibbles_of(word_at<M, 4>(block, 4 + at % 16), at);
    }
    static __device__ __forceinline__ float2 scales(const char *block, int)
    {
        return make_float2(half_at(block), -half_at(block + 2));
    }
};

template <> struct quant_format<TARN_Q5_0> {
    enum { elements = 32, bytes = sizeof(tarn__q5_0), group = 32, bias = 16, has_min = 0 };

    template <block_memory M> static __device__ __forceinline__ uint32_t quants(const char *block, int at)
    {
        return nibbles_of(word_at<M, 2>(block, 6 + at % 16), at) | fifth_bits(word_at<M, 2>(block, 2), at);
    }
    static __device__ __forceinline__ float2 scales(const char *block, int)
    {
        return make_float2(half_at(block), 0);
    }
};

template <> struct quant_format<TARN_Q5_1> {
    enum { elements = 32, bytes = sizeof(tarn__q5_1), group = 32, bias = 0, has_min = 1 };

    template <block_memory M> static __device__ __forceinline__ uint32_t quants(const char *block, int at)
    {
        return nibbles_of(word_at<M, 4>(block, 8 + at % 16), at) | fifth_bits(word_at<M, 4>(block, 4), at);
    }
    static __device__ __forceinline__ float2 scales(const char *block, int)
    {
        return make_float2(half_at(block), -half_at(block + 2));
    }
};

/* Offsets: codes of the groups 0, quants 16, scale 80, min 82. */
template <> struct quant_format<TARN_Q2_K> {
    enum { elements = 256, bytes = sizeof(tarn__q2_k), group = 16, bias = 0, has_min = 1 };

    template <block_memory M> static __device__ __forceinline__ uint32_t quants(const char *block, int at)
    {
        return word_at<M, 4>(block, 16 + at / 128 * 32 + at % 32) >> at / 32 % 4 * 2 & 0x03030303u;
    }
    static __device__ __forceinline__ float2 scales(const char *block, int at)
    {
        const int codes = (uint8_t)block[at / 16];
        return make_float2(__fmul_rn(half_at(block + 80), (float)(codes & 15)),
                           __fmul_rn(half_at(block + 82), (float)(codes >> 4)));
    }
};

/* Offsets: third bits 0, quants 32, codes of the groups 96, scale 108. */
template <> struct quant_format<TARN_Q3_K> {
    enum { elements = 256, bytes = sizeof(tarn__q3_k), group = 16, bias = 4, has_min = 0 };

    template <block_memory M> static __device__ __forceinline__ uint32_t quants(const char *block, int at)
    {
        const uint32_t low = word_at<M, 2>(block, 32 + at / 128 * 32 + at % 32) >> at / 32 % 4 * 2 & 0x03030303u,
                       high = word_at<M, 2>(block, at % 32) >> at / 32 & 0x01010101u;
        return low | high << 2;
    }
    static __device__ __forceinline__ float2 scales(const char *block, int at)
    {
        const int code = q3_k_scale((const uint8_t *)block + 96, at / 16);
        return make_float2(__fmul_rn(half_at(block + 108), (float)code), 0);
    }
};

/* Offsets: scale 0, min 2, codes of the groups 4, fifth bits 16, quants 48. */
template <> struct quant_format<TARN_Q5_K> {
    enum { elements = 256, bytes = sizeof(tarn__q5_k), group = 32, bias = 0, has_min = 1 };

    template <block_memory M> static __device__ __forceinline__ uint32_t quants(const char *block, int at)
    {
        const uint32_t low = word_at<M, 4>(block, 48 + at / 64 * 32 + at % 32) >> at / 32 % 2 * 4 & 0x0f0f0f0fu,
                       high = word_at<M, 4>(block, 16 + at % 32) >> at / 32 & 0x01010101u;
        return low | high << 4;
    }
    static __device__ __forceinline__ float2 scales(const char *block, int at)
    {
        int scale, min;
        q4_k_scales((const uint8_t *)block + 4, at / 32, &scale, &min);
        return make_float2(__fmul_rn(half_at(block), (float)scale), __fmul_rn(half_at(block + 2), (float)min));
    }
};

template <> struct quant_format<TARN_IQ4_NL> {
    enum { elements = 32, bytes = sizeof(tarn__iq4_nl), group = 32, bias = 0, has_min = 0 };

    template <block_memory M> static __device__ __forceinline__ uint32_t quants(const char *block, int at)
    {
        return values_of(word_at<M, 2>(block, 2 + at % 16), at);
    }
    static __device__ __forceinline__ float2 scales(const char *block, int)
    {
        return make_float2(half_at(block), 0);
    }
};

/* Offsets: scale 0, codes of the groups 2 and 4, quants 8. */
template <> struct quant_format<TARN_IQ4_XS> {
    enum { elements = 256, bytes = sizeof(tarn__iq4_xs), group = 32, bias = 0, has_min = 0 };

    template <block_memory M> static __device__ __forceinline__ uint32_t quants(const char *block, int at)
    {
        return values_of(word_at<M, 4>(block, 8 + at / 32 * 16 + at % 16), at);
    }
    static __device__ __forceinline__ float2 scales(const char *block, int at)
    {
        const int code = iq4_xs_scale((const tarn__iq4_xs *)block, at / 32);
        return make_float2(__fmul_rn(half_at(block), (float)code), 0);
    }
};

/* Whether a dtype has a description. */
static constexpr bool is_described(tarn_dtype dtype)
{
    return dtype != TARN_Q8_0 && dtype != TARN_Q4_0 && dtype != TARN_Q4_K && dtype != TARN_Q6_K;
}

/* ---- dtypes at run time ------------------------------------------------------------------------------------------ */

template <tarn_dtype Q> struct format_tag {
    static constexpr tarn_dtype dtype = Q;
};

/* Calls launch(format_tag<dtype>()) on the host. */
template <typename F> static void with_format(tarn_dtype dtype, F launch)
{
    switch (dtype) {
    case TARN_Q8_0: launch(format_tag<TARN_Q8_0>()); break;
    case TARN_Q4_0: launch(format_tag<TARN_Q4_0>()); break;
    case TARN_Q4_1: launch(format_tag<TARN_Q4_1>()); break;
    case TARN_Q5_0: launch(format_tag<TARN_Q5_0>()); break;
    case TARN_Q5_1: launch(format_tag<TARN_Q5_1>()); break;
    case TARN_Q2_K: launch(format_tag<TARN_Q2_K>()); break;
    case TARN_Q3_K: launch(format_tag<TARN_Q3_K>()); break;
    case TARN_Q4_K: launch(format_tag<TARN_Q4_K>()); break;
    case TARN_Q5_K: launch(format_tag<TARN_Q5_K>()); break;
    case TARN_Q6_K: launch(format_tag<TARN_Q6_K>()); break;
    case TARN_IQ4_NL: launch(format_tag<TARN_IQ4_NL>()); break;
    default: launch(format_tag<TARN_IQ4_XS>()); break;
    }
}

#endif
