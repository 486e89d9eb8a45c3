/* images.cuh: what kernels over images (N, C, H, W) share: which element a thread takes.
 *
 * Threads count along columns where these lie next to each other, along channels where those do, so that neighbouring
 * threads read and write neighbours in either layout; the kernels themselves only know strides. */
#ifndef TARN__IMAGES_CUH
#define TARN__IMAGES_CUH

#include "backends/cuda/common/kernel.cuh"

/* Sizes that a thread's number is made of: images, then channels, rows, columns; or images, then rows, columns,
 * channels. */
struct image_order {
    int64_t count;
    bool is_small; /* the count is below 2^31 */
    bool by_channel;
    divider channels, rows, columns;
};

struct image_place {
    int64_t image, channel, row, column;
};

/* Channels lie next to each other and columns do not. */
static inline bool lies_by_channel(const tarn__view *view)
{
    return view->shape[1] > 1 && view->stride[1] == 1 && (view->shape[3] == 1 || view->stride[3] != 1);
}

static inline image_order order_of(bool by_channel, int64_t images, int64_t channels, int64_t rows, int64_t columns)
{
    image_order o = {images * channels * rows * columns};
    o.is_small = o.count < ((int64_t)1 << 31);
    o.by_channel = by_channel;
    o.channels = divider_of(channels);
    o.rows = divider_of(rows);
    o.columns = divider_of(columns);
    return o;
}

/* Takes the last digit off a number. */
__device__ __forceinline__ int64_t last_digit(uint64_t &rest, const divider &size, bool is_small)
{
    uint64_t next = is_small ? divide_small((uint32_t)rest, size) : divide_large(rest, size.by),
             digit = rest - next * size.by;
    rest = next;
    return (int64_t)digit;
}

__device__ __forceinline__ image_place place_of(const image_order &o, int64_t at)
{
    image_place p;
    uint64_t rest = (uint64_t)at;
    if (o.by_channel)
        p.channel = last_digit(rest, o.channels, o.is_small);
    p.column = last_digit(rest, o.columns, o.is_small);
    p.row = last_digit(rest, o.rows, o.is_small);
    if (!o.by_channel)
        p.channel = last_digit(rest, o.channels, o.is_small);
    p.image = (int64_t)rest;
    return p;
}

#endif
