/* lines.cuh: elements for kernels along one axis (indexing, sorting, scans): dtype known at compile time, or at run
 * time (`mixed`). */
#ifndef TARN__CUDA_LINES_CUH
#define TARN__CUDA_LINES_CUH

#include "backends/cuda/common/element.cuh"

/* Template argument for a dtype chosen at run time. */
struct mixed {
};

/* N adjacent elements as loaded, converted to C when read. */
template <typename T, int N, typename C> struct raw {
    vec<T, N> value;
    __device__ __forceinline__ void load(const void *base, tarn_dtype, int64_t at)
    {
        value = *(const vec<T, N> *)((const T *)base + at);
    }
    __device__ __forceinline__ C get(int i) const
    {
        return (C)widen(value.at[i]);
    }
};
/* 16-bit floats stay packed in words: one by one, each would take a register. */
template <typename T, typename C> struct raw_words {
    uint32_t word[4];
    __device__ __forceinline__ void load(const void *base, tarn_dtype, int64_t at)
    {
        const uint4 all = *(const uint4 *)((const T *)base + at);
        word[0] = all.x, word[1] = all.y, word[2] = all.z, word[3] = all.w;
    }
};
template <typename C> struct raw<bf16, 8, C> : raw_words<bf16, C> {
    __device__ __forceinline__ C get(int i) const
    {
        return (C)__uint_as_float(i % 2 ? this->word[i / 2] & 0xffff0000u : this->word[i / 2] << 16);
    }
};
template <typename C> struct raw<f16, 8, C> : raw_words<f16, C> {
    __device__ __forceinline__ C get(int i) const
    {
        return (C)__half2float(__ushort_as_half((unsigned short)(this->word[i / 2] >> (i % 2 * 16))));
    }
};
template <int N, typename C> struct raw<mixed, N, C> {
    C value;
    __device__ __forceinline__ void load(const void *base, tarn_dtype dtype, int64_t at)
    {
        value = load_any<C>(base, dtype, at);
    }
    __device__ __forceinline__ C get(int) const
    {
        return value;
    }
};

/* Narrows and stores N values. */
template <typename T, int N, typename C> struct put {
    static __device__ __forceinline__ void at(void *base, tarn_dtype, int64_t at, const C *x)
    {
        vec<T, N> out;
#pragma unroll
        for (int i = 0; i < N; i++)
            out.at[i] = narrow<T>(x[i]);
        store_vec((T *)base + at, out);
    }
};
template <int N, typename C> struct put<mixed, N, C> {
    static __device__ __forceinline__ void at(void *base, tarn_dtype dtype, int64_t at, const C *x)
    {
        store_any(base, dtype, at, x[0]);
    }
};

/* True if operand k of the nest can move in vectors of n elements of `size` bytes along the last axis. */
static inline bool can_vectorize_axis(const tarn__nest *nest, int k, const void *address, size_t size, int n)
{
    int last = nest->rank - 1;
    if (last < 0 || nest->stride[k][last] != 1 || nest->shape[last] % n != 0 || !is_aligned(address, size * (size_t)n))
        return false;
    for (int i = 0; i < last; i++)
        if (nest->stride[k][i] % n != 0)
            return false;
    return true;
}

#endif
