/* im2col.cu: im2col and col2im kernels.
 *
 * One thread per element of a channel (of a window, or of the image), which visits the kernel taps in order; only
 * strides tell the two matrix layouts apart. col2im gathers, never scatters: the order of a sum depends on the kernel
 * size alone. */
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/images.cuh"
#include "backends/cuda/conv/im2col.h"

/* Arguments of both kernels. */
struct im2col_args {
    void *image, *columns; /* the image's first element; im2col writes the matrix, col2im the image */
    tarn_dtype image_dtype;
    image_order order;
    int64_t image_stride[4];
    /* strides of the im2col matrix */
    int64_t along_image, along_row, along_column, along_group, along_channel, along_tap;
    divider channels; /* channels per group */
    int64_t size[2];  /* of the image */
    int64_t step[2], padding[2], dilation[2], kernel[2];
    divider by_step[2];
    int64_t row, rows, result_columns, image_row; /* as in im2col.h */
};

/* Offset of a channel of an image in the matrix, at tap 0 of window 0. */
__device__ __forceinline__ int64_t matrix_offset(const im2col_args &a, const image_pos &p)
{
    int64_t group = a.order.is_small ? divide_small((uint32_t)p.channel, a.channels)
                                     : divide_large((uint64_t)p.channel, a.channels.by);
    return p.image * a.along_image + group * a.along_group +
           (p.channel - group * (int64_t)a.channels.by) * a.along_channel;
}

/* ---- im2col ------------------------------------------------------------------------------------------------------ */

/* B: the bits moved at once, one element or 16 bytes of channels. K: kernel size if compiled in (3), or 0. Bytes: the
 * matrix written; the image read once from memory, taps hit the cache. */
template <typename B, int K>
static __global__ void __launch_bounds__(THREADS) im2col_kernel(const __grid_constant__ im2col_args a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= a.order.count)
        return;
    image_pos p = position_of(a.order, at);
    const B *__restrict__ from = (const B *)a.image + p.image * a.image_stride[0] + p.channel * a.image_stride[1];
    B *__restrict__ to = (B *)a.columns + matrix_offset(a, p) + p.row * a.along_row + p.column * a.along_column;
    int64_t row = (a.row + p.row) * a.step[0] - a.padding[0], column = p.column * a.step[1] - a.padding[1];
    const int64_t high = K ? K : a.kernel[0], wide = K ? K : a.kernel[1];
#pragma unroll
    for (int64_t i = 0; i < high; i++, row += a.dilation[0]) {
        bool is_row = (uint64_t)row < (uint64_t)a.size[0];
#pragma unroll
        for (int64_t j = 0; j < wide; j++, to += a.along_tap) {
            int64_t here = column + j * a.dilation[1];
            B x = {};
            if (is_row && (uint64_t)here < (uint64_t)a.size[1])
                x = from[row * a.image_stride[2] + here * a.image_stride[3]];
            *to = x;
        }
    }
}

/* ---- col2im ------------------------------------------------------------------------------------------------------ */

/* Index of the window that has the pixel at `distance` from the first window's start, or -1 if none begins there. */
__device__ __forceinline__ int64_t window_at(int64_t distance, const divider &step)
{
    if (distance < 0)
        return -1;
    uint64_t x = (uint64_t)distance,
             result = (x | step.by) >> 31 ? divide_large(x, step.by) : divide_small((uint32_t)x, step);
    return result * step.by == x ? (int64_t)result : -1;
}

/* One pixel per thread. Reads every matrix element once, writes the image once. */
template <typename C>
static __global__ void __launch_bounds__(THREADS) col2im_kernel(const __grid_constant__ im2col_args a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= a.order.count)
        return;
    image_pos p = position_of(a.order, at);
    const C *from = (const C *)a.columns + matrix_offset(a, p);
    int64_t padded_row = a.image_row + p.row + a.padding[0], padded_column = p.column + a.padding[1];
    C sum = 0;
    for (int64_t i = 0; i < a.kernel[0]; i++) {
        int64_t row = window_at(padded_row - i * a.dilation[0], a.by_step[0]) - a.row;
        if (row < 0 || row >= a.rows)
            continue;
        C line = 0; /* sum rows first: less rounding error for large kernels */
        for (int64_t j = 0; j < a.kernel[1]; j++) {
            int64_t column = window_at(padded_column - j * a.dilation[1], a.by_step[1]);
            if (column >= 0 && column < a.result_columns)
                line += from[row * a.along_row + column * a.along_column + (i * a.kernel[1] + j) * a.along_tap];
        }
        sum += line;
    }
    int64_t to = p.image * a.image_stride[0] + p.channel * a.image_stride[1] + p.row * a.image_stride[2] +
                 p.column * a.image_stride[3];
    store_any(a.image, a.image_dtype, to, sum);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Strides of the matrix for its layout, and the image at the chunk's first row. */
static im2col_args describe(const tarn__cuda_im2col_args *c, const tarn__view *image, int64_t image_row)
{
    im2col_args a = {};
    int64_t channels = image->shape[1] / c->params->groups, taps = c->kernel[0] * c->kernel[1],
            windows = c->images * c->rows * c->size[1];
    int64_t pixel = c->is_nhwc ? image->shape[1] * taps : 1;
    a.image = (char *)tarn__view_at(image) +
              (c->image * image->stride[0] + image_row * image->stride[2]) * (int64_t)tarn__dtype_bytes(image->dtype);
    a.columns = c->at;
    a.image_dtype = image->dtype;
    a.channels = divider_of(channels);
    a.along_column = pixel;
    a.along_row = pixel * c->size[1];
    a.along_image = a.along_row * c->rows;
    a.along_tap = c->is_nhwc ? channels : windows;
    a.along_channel = c->is_nhwc ? 1 : taps * windows;
    a.along_group = c->is_nhwc ? channels * taps : channels * taps * windows;
    a.row = c->row, a.rows = c->rows, a.result_columns = c->size[1], a.image_row = image_row;
    for (int i = 0; i < 4; i++)
        a.image_stride[i] = image->stride[i];
    for (int i = 0; i < 2; i++) {
        a.size[i] = image->shape[2 + i], a.kernel[i] = c->kernel[i];
        a.step[i] = c->params->stride[i], a.padding[i] = c->params->padding[i], a.dilation[i] = c->params->dilation[i];
        a.by_step[i] = divider_of(a.step[i]);
    }
    return a;
}

/* Channels of one pixel that form 16 aligned bytes on both sides; 1 if they do not. */
static int channels_at_once(const im2col_args *a, int bytes)
{
    int n = 16 / bytes;
    bool fits = a->order.is_nhwc_order && a->image_stride[1] == 1 && (int64_t)a->channels.by % n == 0 &&
                is_aligned(a->image, 16) && a->image_stride[0] % n == 0 && a->image_stride[2] % n == 0 &&
                a->image_stride[3] % n == 0;
    return fits ? n : 1;
}

/* Strides and channels in units of n channels. */
static void scale_to_vecs(im2col_args *a, int n, const tarn__cuda_im2col_args *c, int64_t channels)
{
    a->image_stride[0] /= n, a->image_stride[2] /= n, a->image_stride[3] /= n;
    a->along_image /= n, a->along_row /= n, a->along_column /= n, a->along_group /= n, a->along_tap /= n;
    a->channels = divider_of((int64_t)a->channels.by / n);
    a->order = order_of(true, c->images, channels / n, c->rows, c->size[1]);
}

/* 3×3 kernels are unrolled: all nine loads are in flight. */
template <typename B> static void launch_im2col(const tarn__call *call, const im2col_args &a)
{
    unsigned blocks = blocks_for(a.order.count, THREADS);
    if (a.kernel[0] == 3 && a.kernel[1] == 3)
        im2col_kernel<B, 3><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else
        im2col_kernel<B, 0><<<blocks, THREADS, 0, stream_of(call)>>>(a);
}

/* Grid: 256 threads per block; a thread takes all taps of one channel of a window, or of 16 bytes of channels. Bytes:
 * matrix written, image read once. */
void tarn__cuda_im2col(const tarn__call *call, const tarn__view *x, const tarn__cuda_im2col_args *to)
{
    im2col_args a = describe(to, x, 0);
    int bytes = (int)tarn__dtype_bytes(x->dtype);
    a.order = order_of(to->is_nhwc, to->images, x->shape[1], to->rows, to->size[1]);
    if (a.order.count == 0)
        return;
    int n = channels_at_once(&a, bytes);
    if (n > 1) {
        scale_to_vecs(&a, n, to, x->shape[1]);
        launch_im2col<uint4>(call, a);
    } else if (bytes == 2) {
        launch_im2col<uint16_t>(call, a);
    } else if (bytes == 4) {
        launch_im2col<uint32_t>(call, a);
    } else {
        launch_im2col<uint64_t>(call, a);
    }
}

/* Grid: 256 threads per block, one pixel each. Bytes: matrix read once, image written. */
void tarn__cuda_col2im(const tarn__call *call, const tarn__cuda_im2col_args *from, const tarn__view *gx)
{
    im2col_args a = describe(from, gx, from->image_row);
    a.order = order_of(from->is_nhwc, from->images, gx->shape[1], from->image_rows, gx->shape[3]);
    if (a.order.count == 0)
        return;
    unsigned blocks = blocks_for(a.order.count, THREADS);
    if (from->dtype == TARN_F64)
        col2im_kernel<double><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else
        col2im_kernel<float><<<blocks, THREADS, 0, stream_of(call)>>>(a);
}
