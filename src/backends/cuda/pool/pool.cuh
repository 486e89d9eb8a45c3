/* pool.cuh: what the kernels of pooling share: what a call asks for, how long windows are, and the places of their
 * largest elements.
 *
 * pool.cu has kernels for every window and layout; before it, pool_stride2.cu takes windows that halve images whose
 * columns lie next to each other, and pool_nhwc.cu those whose channels do. */
#ifndef TARN__POOL_CUH
#define TARN__POOL_CUH

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/images.cuh"

struct pool_args {
    const void *from;
    void *to;
    void *places; /* of the largest elements: u8 (`has_bytes`) or i32; NULL: not wanted, or averages */
    tarn_dtype from_dtype, to_dtype;
    image_order order; /* of what is written, in the units that threads of a kernel take */
    int64_t from_stride[4], to_stride[4], place_stride[4];
    int64_t images, channels;
    int64_t size[2], results[2]; /* of the image and of the result */
    int64_t kernel[2], step[2], padding[2], dilation[2];
    divider by_step[2], by_dilation[2];
    int32_t exclude_padding, has_bytes;
};

/* How long a window is on an axis, padding counted or not. */
template <typename I> __device__ __forceinline__ I window_length(const pool_args &a, int axis, I at)
{
    I begin = at * (I)a.step[axis] - (I)a.padding[axis], size = (I)a.size[axis], end = begin + (I)a.kernel[axis];
    I limit = a.exclude_padding ? size : size + (I)a.padding[axis];
    end = end < limit ? end : limit;
    if (a.exclude_padding)
        begin = begin > 0 ? begin : 0;
    return a.exclude_padding && end - begin < 1 ? 1 : end - begin;
}

__device__ __forceinline__ int32_t divide_by(int32_t x, const divider &by)
{
    return (int32_t)divide_small((uint32_t)x, by);
}
__device__ __forceinline__ int64_t divide_by(int64_t x, const divider &by)
{
    return (int64_t)divide_large((uint64_t)x, by.by);
}

/* The windows that reach from the first to the last place an element can have in one. */
template <typename I>
__device__ __forceinline__ void windows_over(const pool_args &a, int axis, I at, I *first, I *last)
{
    I far = at + (I)a.padding[axis], near = far - (I)((a.kernel[axis] - 1) * a.dilation[axis]),
      most = (I)a.results[axis] - 1;
    *first = near <= 0 ? 0 : divide_by(near - 1, a.by_step[axis]) + 1;
    *last = divide_by(far, a.by_step[axis]);
    *last = *last < most ? *last : most;
}

/* ---- places: an element's number in its window, row by row. A window that saw nothing of the image has 255 in u8, -1
 * in i32, which no element has.  */

#define UNSEEN (-2) /* the number of an element that a window steps over: no place at all */

/* Which of a window's rows or columns element `at` is, or UNSEEN. The window reaches over it. */
template <typename I> __device__ __forceinline__ I number_along(const pool_args &a, int axis, I at, I window)
{
    I distance = at + (I)a.padding[axis] - window * (I)a.step[axis];
    /* small divisions take less than a branch between loads */
    if (sizeof(I) > sizeof(int32_t) && a.dilation[axis] == 1)
        return distance;
    I number = divide_by(distance, a.by_dilation[axis]);
    return number * (I)a.dilation[axis] == distance ? number : (I)UNSEEN;
}

template <typename I> __device__ __forceinline__ int32_t number_in(const pool_args &a, I row, I column)
{
    return (row < 0) | (column < 0) ? UNSEEN : (int32_t)(row * (I)a.kernel[1] + column);
}

__device__ __forceinline__ int32_t fetch_place(const pool_args &a, int64_t at)
{
    return a.has_bytes ? (int32_t)((const uint8_t *)a.places)[at] : ((const int32_t *)a.places)[at];
}

__device__ __forceinline__ void store_place(const pool_args &a, int64_t at, int32_t number)
{
    if (a.has_bytes)
        ((uint8_t *)a.places)[at] = (uint8_t)number;
    else
        ((int32_t *)a.places)[at] = number;
}

/* 2, 4 or 8 places of one byte move as one word. */
template <int N> struct place_word;
template <> struct place_word<2> {
    typedef unsigned short type;
};
template <> struct place_word<4> {
    typedef unsigned int type;
};
template <> struct place_word<8> {
    typedef unsigned long long type;
};

template <int N> __device__ __forceinline__ void fetch_bytes(const uint8_t *from, int32_t *at)
{
    typedef typename place_word<N>::type word;
    const word all = __ldg((const word *)from);
#pragma unroll
    for (int k = 0; k < N; k++)
        at[k] = (int32_t)((all >> (8 * k)) & 255);
}

template <int N> __device__ __forceinline__ void store_bytes(uint8_t *to, const int32_t *at)
{
    typedef typename place_word<N>::type word;
    word all = 0;
#pragma unroll
    for (int k = 0; k < N; k++)
        all = (word)(all | (word)(at[k] & 255) << (8 * k));
    *(word *)to = all;
}

/* -------------------------------------------------------------------------------------------------------------------------------
 */

/* What decides between a window's largest element so far and the next one: the first of equal ones stays, the last NaN
 * counts. */
template <typename C> __device__ __forceinline__ bool takes_over(C value, C best)
{
    return (value > best) | (value != value);
}

/* One digit of a thread's number, the last one first. */
__device__ __forceinline__ int32_t take_digit(uint32_t &rest, const divider &size)
{
    uint32_t next = divide_small(rest, size), digit = rest - next * (uint32_t)size.by;
    rest = next;
    return (int32_t)digit;
}

/* True where packs of `width` elements along `axis` are whole and aligned wherever a thread's numbers can point. */
static inline bool lies_in_packs(const void *base, size_t bytes, const int64_t *stride, int axis, int width)
{
    if (stride[axis] != 1 || !is_aligned(base, bytes * (size_t)width))
        return false;
    for (int i = 0; i < 4; i++)
        if (i != axis && stride[i] % width != 0)
            return false;
    return true;
}

/* Each starts its kernel where it fits the call, or says false. `a` counts inside a plane in 32 bits. */
bool tarn__cuda_pool_stride2(const tarn__call *call, pool_args a, bool is_largest, bool is_backward);
bool tarn__cuda_pool_nhwc(const tarn__call *call, pool_args a, bool is_largest, bool is_backward);

#endif
