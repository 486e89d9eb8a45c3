/* pool.cuh: shared by the pooling kernels: arguments, window lengths, and the indices of maxima.
 *
 * pool.cu handles every window and layout; before it, pool_stride2.cu takes windows of stride 2 on NCHW images, and
 * pool_nhwc.cu those on NHWC. */
#ifndef TARN__CUDA_POOL_CUH
#define TARN__CUDA_POOL_CUH

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/images.cuh"

/* Kernel arguments of all pooling kernels. from: x or the gradient of y; to: y or the gradient of x. */
struct pool_args {
    const void *from;
    void *to;
    void *indices; /* of the maxima: u8 (`are_bytes`) or i32; NULL: not needed, or averages */
    tarn_dtype from_dtype, to_dtype;
    image_order order; /* of the output, in the units that a kernel's threads take */
    int64_t from_stride[4], to_stride[4], index_stride[4];
    int64_t images, channels;
    int64_t size[2], results[2]; /* of the image and of the result */
    int64_t kernel[2], step[2], padding[2], dilation[2];
    divider by_step[2], by_dilation[2];
    int32_t exclude_padding, are_bytes;
};

/* Length of a window along an axis, with or without padding. */
template <typename I> __device__ __forceinline__ I window_length(const pool_args &a, int axis, I at)
{
    I begin = at * (I)a.step[axis] - (I)a.padding[axis], size = (I)a.size[axis], end = begin + (I)a.kernel[axis];
    I limit = a.exclude_padding ? size : size + (I)a.padding[axis];
    end = end < limit ? end : limit;
    if (a.exclude_padding)
        begin = begin > 0 ? begin : 0;
    return a.exclude_padding && end - begin < 1 ? 1 : end - begin;
}

/* Operands are not negative. */
__device__ __forceinline__ int32_t divide_by(int32_t x, const divider &by)
{
    return (int32_t)divide_small((uint32_t)x, by);
}
__device__ __forceinline__ int64_t divide_by(int64_t x, const divider &by)
{
    return (int64_t)divide_large((uint64_t)x, by.by);
}

/* First and last window that can contain an element. */
template <typename I> __device__ __forceinline__ void windows_of(const pool_args &a, int axis, I at, I *first, I *last)
{
    I distance = at + (I)a.padding[axis], nearest = distance - (I)((a.kernel[axis] - 1) * a.dilation[axis]),
      last_window = (I)a.results[axis] - 1;
    *first = nearest <= 0 ? 0 : divide_by(nearest - 1, a.by_step[axis]) + 1;
    *last = divide_by(distance, a.by_step[axis]);
    *last = *last < last_window ? *last : last_window;
}

/* indices: a tap's number in its window, row by row; a window without a pixel has 255 in u8, -1 in i32, which no tap
 * has */

#define NO_TAP (-2) /* a pixel that a dilated window skips */

/* The window's tap along an axis at element `at`, or NO_TAP. The window's extent covers it. */
template <typename I> __device__ __forceinline__ I tap_along(const pool_args &a, int axis, I at, I window)
{
    I distance = at + (I)a.padding[axis] - window * (I)a.step[axis];
    /* a small division is cheaper than a branch between loads */
    if (sizeof(I) > sizeof(int32_t) && a.dilation[axis] == 1)
        return distance;
    I tap = divide_by(distance, a.by_dilation[axis]);
    return tap * (I)a.dilation[axis] == distance ? tap : (I)NO_TAP;
}

/* The tap's number in its window; NO_TAP if either coordinate has none. */
template <typename I> __device__ __forceinline__ int32_t tap_of(const pool_args &a, I row, I column)
{
    return (row < 0) | (column < 0) ? NO_TAP : (int32_t)(row * (I)a.kernel[1] + column);
}

/* One index, u8 or i32. */
__device__ __forceinline__ int32_t load_index(const pool_args &a, int64_t at)
{
    return a.are_bytes ? (int32_t)((const uint8_t *)a.indices)[at] : ((const int32_t *)a.indices)[at];
}

/* One index, u8 or i32. */
__device__ __forceinline__ void store_index(const pool_args &a, int64_t at, int32_t tap)
{
    if (a.are_bytes)
        ((uint8_t *)a.indices)[at] = (uint8_t)tap;
    else
        ((int32_t *)a.indices)[at] = tap;
}

/* 2, 4 or 8 one-byte indices move as one word. */
template <int N> struct index_word;
template <> struct index_word<2> {
    typedef unsigned short type;
};
template <> struct index_word<4> {
    typedef unsigned int type;
};
template <> struct index_word<8> {
    typedef unsigned long long type;
};

/* One load for all N. */
template <int N> __device__ __forceinline__ void load_indices(const uint8_t *from, int32_t *at)
{
    typedef typename index_word<N>::type word;
    const word all = __ldg((const word *)from);
#pragma unroll
    for (int k = 0; k < N; k++)
        at[k] = (int32_t)((all >> (8 * k)) & 255);
}

/* One store for all N. */
template <int N> __device__ __forceinline__ void store_indices(uint8_t *to, const int32_t *at)
{
    typedef typename index_word<N>::type word;
    word all = 0;
#pragma unroll
    for (int k = 0; k < N; k++)
        all = (word)(all | (word)(at[k] & 255) << (8 * k));
    *(word *)to = all;
}

/* ---- comparisons and indexing */

/* Whether a value replaces the window's max: the first of equal ones stays, the last NaN wins. */
template <typename C> __device__ __forceinline__ bool is_new_max(C value, C best)
{
    return (value > best) | (value != value);
}

/* Splits the fastest-varying index off `rest`. */
__device__ __forceinline__ int32_t pop_index(uint32_t &rest, const divider &size)
{
    uint32_t next = divide_small(rest, size), digit = rest - next * (uint32_t)size.by;
    rest = next;
    return (int32_t)digit;
}

/* True if vectors of `width` elements along `axis` are whole and aligned at every index. */
static inline bool is_vectorizable(const void *base, size_t bytes, const int64_t *stride, int axis, int width)
{
    if (stride[axis] != 1 || !is_aligned(base, bytes * (size_t)width))
        return false;
    for (int i = 0; i < 4; i++)
        if (i != axis && stride[i] % width != 0)
            return false;
    return true;
}

/* Each launches its kernel and returns true if it supports the call. `a` is indexed within a plane in 32 bits. */
bool tarn__cuda_pool_stride2(const tarn__call *call, pool_args a, bool is_max, bool is_backward);
bool tarn__cuda_pool_nhwc(const tarn__call *call, pool_args a, bool is_max, bool is_backward);

#endif
