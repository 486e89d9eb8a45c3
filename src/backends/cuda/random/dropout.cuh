/* dropout.cuh: dropout of elements, alone (random.cu) or in another kernel. Element i, counted row-major, takes word
 * i % 4 of Philox counter offset + i / 4. */
#ifndef TARN__CUDA_DROPOUT_CUH
#define TARN__CUDA_DROPOUT_CUH

#include "backends/cuda/common/philox.cuh"

/* Factors: 0 for numbers below the probability p, compared as 24-bit integers, which is exact; else 1 / (1 - p), which
 * keeps the expectation. */
struct dropout {
    uint32_t limit;
    float scale;

    static dropout of(const tarn__random *r)
    {
        double p = r->a;
        return dropout{(uint32_t)ceil(p * 0x1p24), p < 1 ? (float)(1 / (1 - p)) : 0};
    }
    __device__ __forceinline__ void generate(const uint32_t *word, float *value) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            value[i] = word[i] >> 8 < limit ? 0 : scale;
    }
};

/* n elements times their factors, as f32 values that round to T as the exact products would; a factor of 0 gives 0
 * whatever the element is. Never fused. For 16-bit elements the product is truncated to 24 bits with a sticky last bit
 * (round to odd), so that rounding again is correct; f64, whose conversions are slow, handles what is out of range. */
template <typename T, int N> __device__ __forceinline__ void drop_f32(const float *x, const float *factor, float *y)
{
    bool is_extreme = false;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float cut = __fmul_rz(x[i], factor[i]), size = fabsf(cut);
        is_extreme |= !(size > 0x1p-100f && size < 0x1p126f) && x[i] != 0 && factor[i] != 0;
        y[i] = __fmaf_rn(x[i], factor[i], -cut) != 0 ? __int_as_float(__float_as_int(cut) | 1) : cut;
        y[i] = factor[i] == 0 ? 0.0f : y[i];
    }
    if (is_extreme)
        for (int i = 0; i < N; i++)
            if (factor[i] != 0)
                y[i] = widen(narrow<T>(__dmul_rn((double)x[i], (double)factor[i])));
}

/* One element; f32 and f64 multiply exactly rounded. */
template <typename T> __device__ __forceinline__ T drop(T x, float factor)
{
    float x32 = widen(x), y;
    drop_f32<T, 1>(&x32, &factor, &y);
    return narrow<T>(y);
}
template <> __device__ __forceinline__ float drop<float>(float x, float factor)
{
    return factor == 0 ? 0.0f : __fmul_rn(x, factor);
}
template <> __device__ __forceinline__ double drop<double>(double x, float factor)
{
    return factor == 0 ? 0.0 : __dmul_rn(x, (double)factor);
}

/* A vector times its factors. */
template <typename T, int N> __device__ __forceinline__ void scale_vec(vec<T, N> &x, const float *factor)
{
    if constexpr (N == 1 || sizeof(T) != 2) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x.at[i] = drop<T>(x.at[i], factor[i]);
    } else {
        float x32[N], y[N];
        widen_vec(x, x32);
        drop_f32<T, N>(x32, factor, y);
        narrow_vec(y, x);
    }
}

/* random.cu: writes dropout of `from` to `to`, of the same shape and dtype, with the draws of `random`. */
void tarn__cuda_dropout(const tarn__call *call, const tarn__random *random, const tarn__view *from,
                        const tarn__view *to);

/* Two 16-bit elements times a factor, each rounded once. */
__device__ __forceinline__ uint32_t scale_pair(uint32_t x, bf16 factor)
{
    __nv_bfloat162 two;
    memcpy(&two, &x, sizeof(two));
    two = __hmul2(two, __bfloat162bfloat162(factor));
    memcpy(&x, &two, sizeof(x));
    return x;
}
__device__ __forceinline__ uint32_t scale_pair(uint32_t x, f16 factor)
{
    __half2 two;
    memcpy(&two, &x, sizeof(two));
    two = __hmul2(two, __half2half2(factor));
    memcpy(&x, &two, sizeof(x));
    return x;
}

/* Dropout of a vector whose first element has the index `first`, a multiple of 4. Pairs of 16-bit elements are
 * multiplied at once if the scale is exact in their dtype, as for probabilities of 1/5 and 1/2. */
template <typename T, int N>
__device__ __forceinline__ void drop_vec(const dropout &d, const source &rng, uint64_t first, vec<T, N> &x)
{
    uint32_t word[N];
#pragma unroll
    for (int i = 0; i < N; i += 4)
        philox(rng, first / 4 + i / 4, word + i);
    if constexpr (sizeof(T) == 2) {
        const T factor = narrow<T>(d.scale);
        if (d.limit < 1u << 24 && widen(factor) == d.scale) {
            const uint32_t least = d.limit << 8;
            uint32_t two[N / 2];
            memcpy(two, &x, sizeof(x));
#pragma unroll
            for (int i = 0; i < N; i += 2)
                two[i / 2] = scale_pair(two[i / 2], factor) &
                             ((word[i] < least ? 0u : 0xffffu) | (word[i + 1] < least ? 0u : 0xffff0000u));
            memcpy(&x, two, sizeof(x));
            return;
        }
    }
    float value[N];
#pragma unroll
    for (int i = 0; i < N; i += 4)
        d.generate(word + i, value + i);
    scale_vec(x, value);
}

#endif
