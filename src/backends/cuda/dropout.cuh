/* dropout.cuh: elements kept or zeroed at random, for dropout's own kernel and for those that have it inside: all draw the same masks. */
#ifndef TARN__CUDA_DROPOUT_CUH
#define TARN__CUDA_DROPOUT_CUH

#include "backends/cuda/philox.cuh"

/* Factors: 0 where a number is below the probability, compared as integers of 24 bits, which is exact. */
struct dropout {
    uint32_t limit;
    float scale;

    static dropout of(const tarn__random *r)
    {
        double p = r->a;
        return dropout{(uint32_t)ceil(p * 0x1p24), p < 1 ? (float)(1 / (1 - p)) : 0};
    }
    __device__ __forceinline__ void make(const uint32_t *word, float *value) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            value[i] = word[i] >> 8 < limit ? 0 : scale;
    }
};

/* x times its factor as an f32 that rounds to T as the product would; a factor of 0 gives 0 whatever x is. Products are never part of a fused multiply-add.
 * Of 16-bit elements the product is cut to 24 bits, and its last one set where something was cut off, so that rounding again cannot go wrong; f64, whose
 * conversions are slow, is left for what is outside the range where that holds. */
template <typename T> __device__ __forceinline__ float drop_wide(float x, float factor)
{
    float cut = __fmul_rz(x, factor), size = fabsf(cut);
    if (factor == 0)
        return 0;
    if (size == 0 || (size > 0x1p-100f && size < 0x1p126f))
        return __fmaf_rn(x, factor, -cut) != 0 ? __int_as_float(__float_as_int(cut) | 1) : cut;
    return widen(narrow<T>(__dmul_rn((double)x, (double)factor)));
}
template <> __device__ __forceinline__ float drop_wide<float>(float x, float factor)
{
    return factor == 0 ? 0.0f : __fmul_rn(x, factor);
}

/* The product itself. */
template <typename T> __device__ __forceinline__ T drop(T x, float factor)
{
    return narrow<T>(drop_wide<T>(widen(x), factor));
}
template <> __device__ __forceinline__ double drop<double>(double x, float factor)
{
    return factor == 0 ? 0.0 : __dmul_rn(x, (double)factor);
}

/* Elements of a tensor, numbered row-major. */
struct drop_args {
    source source;
    dropout draw;
};

static inline drop_args drop_args_of(const tarn__random *random)
{
    return drop_args{source{random->seed, random->offset, random->live}, dropout::of(random)};
}

/* The same for a kernel that draws often: what a captured step reads is read once. */
__device__ __forceinline__ drop_args settled(const drop_args &a)
{
    const uint64_t *live = a.source.live;
    return live ? drop_args{source{live[0], a.source.offset + live[1], NULL}, a.draw} : a;
}

/* A pack whose first element has number `first`: a multiple of 4 where the pack has four elements or more. */
template <typename T, int N> __device__ __forceinline__ void drop_pack(const drop_args &a, int64_t first, pack<T, N> &x)
{
    uint32_t word[4];
    float factor[4], y[N];
    static_assert(N == 1 || N % 4 == 0, "a pack is one element, or some fours of them");
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        philox(a.source, (uint64_t)(first + i) / 4, word);
        a.draw.make(word, factor);
        if (N == 1) {
            int k = (int)(first & 3);
            y[0] = drop_wide<T>(widen(x.at[0]), k == 0 ? factor[0] : k == 1 ? factor[1] : k == 2 ? factor[2] : factor[3]);
        }
#pragma unroll
        for (int k = 0; N > 1 && k < 4; k++)
            y[i + k] = drop_wide<T>(widen(x.at[i + k]), factor[k]);
    }
    if constexpr (N == 1)
        x.at[0] = narrow<T>(y[0]);
    else
        narrow_pack(y, x);
}

#endif
