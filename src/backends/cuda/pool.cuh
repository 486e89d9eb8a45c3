/* pool.cuh: what the kernels of pooling share: what a call asks for, and how long windows are.
 *
 * pool.cu has kernels for every window and layout; before it, pool_halves.cu takes windows that halve images whose columns lie next to each other,
 * and pool_packs.cu those whose channels do. */
#ifndef TARN__POOL_CUH
#define TARN__POOL_CUH

#include "backends/cuda/element.cuh"
#include "backends/cuda/images.cuh"

struct pool_args {
    const void *from;
    void *to;
    int32_t *places; /* of the largest elements; NULL: not wanted, or averages */
    tarn_dtype from_dtype, to_dtype;
    image_order order; /* of what is written, in the units that threads of a kernel take */
    int64_t from_stride[4], to_stride[4], place_stride[4];
    int64_t images, channels;
    int64_t size[2], results[2]; /* of the image and of the result */
    int64_t kernel[2], step[2], padding[2], dilation[2];
    divider by_step[2];
    int32_t exclude_padding;
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
template <typename I> __device__ __forceinline__ void windows_over(const pool_args &a, int axis, I at, I *first, I *last)
{
    I far = at + (I)a.padding[axis], near = far - (I)((a.kernel[axis] - 1) * a.dilation[axis]), most = (I)a.results[axis] - 1;
    *first = near <= 0 ? 0 : divide_by(near - 1, a.by_step[axis]) + 1;
    *last = divide_by(far, a.by_step[axis]);
    *last = *last < most ? *last : most;
}

/* What decides between a window's largest element so far and the next one: the first of equal ones stays, the last NaN counts. */
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
bool tarn__cuda_pool_halves(const tarn__call *call, pool_args a, bool is_largest, bool is_backward);
bool tarn__cuda_pool_packs(const tarn__call *call, pool_args a, bool is_largest, bool is_backward);

#endif
