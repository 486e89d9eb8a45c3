/* element.cuh: one element of any dtype, chosen at run time: for strided layouts and dtype mixtures too rare to compile
 * one by one. */
#ifndef TARN__CUDA_ELEMENT_CUH
#define TARN__CUDA_ELEMENT_CUH

#include "backends/cuda/common/kernel.cuh"

/* fill.cu: the bits of one element repeated over 16 bytes; 16-bit floats are rounded from f32. */
uint4 tarn__cuda_bits_of(tarn_dtype dtype, const tarn__scalar *value);

/* conversions, same as on the CPU: NaN to integer is 0, out of range saturates, i64 to a narrower integer wraps */

__device__ __forceinline__ int64_t to_integer(double x)
{
    return x != x ? 0 : x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : (int64_t)x;
}
__device__ __forceinline__ int64_t to_integer(float x)
{
    return to_integer((double)x);
}
__device__ __forceinline__ int64_t to_integer(int64_t x)
{
    return x;
}

/* i32 saturates floats but wraps i64, like the CPU's conversions. */
__device__ __forceinline__ int32_t to_int32(double x)
{
    return x != x ? 0 : x >= 0x1p31 ? INT32_MAX : x < -0x1p31 ? INT32_MIN : (int32_t)x;
}
__device__ __forceinline__ int32_t to_int32(float x)
{
    return to_int32((double)x);
}
__device__ __forceinline__ int32_t to_int32(int64_t x)
{
    return (int32_t)(uint32_t)(uint64_t)x;
}

/* i64 to f64 with round-to-odd, so that the next rounding, to 16 bits, is correct: the bits that f64 drops are
 * collected in its last bit. */
__device__ __forceinline__ double to_double_odd(int64_t x)
{
    uint64_t size = x < 0 ? (uint64_t)0 - (uint64_t)x : (uint64_t)x;
    if (size >> 53)
        size = (size & ~(uint64_t)0x7ff) | ((size & 0x7ff) != 0 ? 0x800 : 0);
    return x < 0 ? -(double)size : (double)size;
}

/* Element `at`, converted to C. The switch is uniform over the warp, so it costs a few instructions and no
 * divergence. */
template <typename C> __device__ __forceinline__ C load_any(const void *base, tarn_dtype dtype, int64_t at)
{
    switch (dtype) {
    case TARN_F32: return (C)((const float *)base)[at];
    case TARN_F64: return (C)((const double *)base)[at];
    case TARN_BF16: return (C)__bfloat162float(((const bf16 *)base)[at]);
    case TARN_F16: return (C)__half2float(((const f16 *)base)[at]);
    case TARN_I32: return (C)((const int32_t *)base)[at];
    case TARN_I64: return (C)((const int64_t *)base)[at];
    case TARN_U8: return (C)((const uint8_t *)base)[at];
    default: return (C)(((const uint8_t *)base)[at] != 0);
    }
}
/* Integers: floats are converted with saturation. */
template <> __device__ __forceinline__ int64_t load_any<int64_t>(const void *base, tarn_dtype dtype, int64_t at)
{
    switch (dtype) {
    case TARN_F32: return to_integer(((const float *)base)[at]);
    case TARN_F64: return to_integer(((const double *)base)[at]);
    case TARN_BF16: return to_integer(__bfloat162float(((const bf16 *)base)[at]));
    case TARN_F16: return to_integer(__half2float(((const f16 *)base)[at]));
    case TARN_I32: return ((const int32_t *)base)[at];
    case TARN_I64: return ((const int64_t *)base)[at];
    case TARN_U8: return ((const uint8_t *)base)[at];
    default: return ((const uint8_t *)base)[at] != 0;
    }
}

__device__ __forceinline__ bf16 to_bf16(float x)
{
    return __float2bfloat16_rn(x);
}
__device__ __forceinline__ bf16 to_bf16(double x)
{
    return __double2bfloat16(x);
}
__device__ __forceinline__ bf16 to_bf16(int64_t x)
{
    return __double2bfloat16(to_double_odd(x));
}
__device__ __forceinline__ f16 to_f16(float x)
{
    return __float2half_rn(x);
}
__device__ __forceinline__ f16 to_f16(double x)
{
    return __double2half(x);
}
__device__ __forceinline__ f16 to_f16(int64_t x)
{
    return __double2half(to_double_odd(x));
}

/* Converts once, directly from C to the element's dtype. */
template <typename C> __device__ __forceinline__ void store_any(void *base, tarn_dtype dtype, int64_t at, C x)
{
    switch (dtype) {
    case TARN_F32: ((float *)base)[at] = (float)x; break;
    case TARN_F64: ((double *)base)[at] = (double)x; break;
    case TARN_BF16: ((bf16 *)base)[at] = to_bf16(x); break;
    case TARN_F16: ((f16 *)base)[at] = to_f16(x); break;
    case TARN_I32: ((int32_t *)base)[at] = to_int32(x); break;
    case TARN_I64: ((int64_t *)base)[at] = to_integer(x); break;
    case TARN_U8: ((uint8_t *)base)[at] = (uint8_t)to_int32(x); break;
    default: ((uint8_t *)base)[at] = x != 0; break;
    }
}

#endif
