/* images.cuh: indexing of image kernels (N, C, H, W): which element a thread takes.
 *
 * Threads count along W in NCHW and along C in NHWC, so that adjacent threads access adjacent memory in both layouts.
 * The kernels themselves only know strides. */
#ifndef TARN__CUDA_IMAGES_CUH
#define TARN__CUDA_IMAGES_CUH

#include "backends/cuda/common/kernel.cuh"

/* Extents that a thread's index is split by: images, channels, rows, columns; or images, rows, columns, channels. */
struct image_order {
    int64_t count;
    bool is_small; /* count below 2^31: 32-bit division */
    bool is_nhwc_order;
    divider channels, rows, columns;
};

struct image_pos {
    int64_t image, channel, row, column;
};

/* True for channels last: channels are adjacent and columns are not. */
static inline bool is_nhwc(const tarn__view *view)
{
    return view->shape[1] > 1 && view->stride[1] == 1 && (view->shape[3] == 1 || view->stride[3] != 1);
}

/* Extents of a kernel's threads, in either layout's order. */
static inline image_order order_of(bool is_nhwc_order, int64_t images, int64_t channels, int64_t rows, int64_t columns)
{
    image_order o = {images * channels * rows * columns};
    o.is_small = o.count < ((int64_t)1 << 31);
    o.is_nhwc_order = is_nhwc_order;
    o.channels = divider_of(channels);
    o.rows = divider_of(rows);
    o.columns = divider_of(columns);
    return o;
}

/* Splits the fastest-varying index off `rest`. */
__device__ __forceinline__ int64_t pop_index(uint64_t &rest, const divider &size, bool is_small)
{
    uint64_t next = is_small ? divide_small((uint32_t)rest, size) : divide_large(rest, size.by),
             digit = rest - next * size.by;
    rest = next;
    return (int64_t)digit;
}

/* Inverse of the linear thread index. */
__device__ __forceinline__ image_pos position_of(const image_order &o, int64_t at)
{
    image_pos p;
    uint64_t rest = (uint64_t)at;
    if (o.is_nhwc_order)
        p.channel = pop_index(rest, o.channels, o.is_small);
    p.column = pop_index(rest, o.columns, o.is_small);
    p.row = pop_index(rest, o.rows, o.is_small);
    if (!o.is_nhwc_order)
        p.channel = pop_index(rest, o.channels, o.is_small);
    p.image = (int64_t)rest;
    return p;
}

#endif
