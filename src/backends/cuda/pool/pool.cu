/* pool.cu: max and average pooling of images, and their gradients.
 *
 * The max of a window is the first of equal ones; NaN is larger than everything, and the last NaN wins; padding does
 * not count. Gradients are gathered: a pixel visits the windows that can contain it, in order, so nothing needs
 * atomics. A thread takes a few rows of one column of a channel: its offsets are computed once. These kernels handle
 * every window and layout; the common ones go to pool_stride2.cu and pool_nhwc.cu. */
#include "backends/cuda/pool/pool.cuh"

#define ROWS_PER_THREAD 4 /* rows per thread */

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* I: index type within a plane. K: kernel size if compiled in, so that a whole window is loaded at once, or 0. */
template <typename T, typename I, int K>
__device__ __forceinline__ compute<T> max_of(const pool_args &a, const T *plane, I row, I column, int32_t *at)
{
    const I height = K ? K : (I)a.kernel[0], width = K ? K : (I)a.kernel[1];
    compute<T> best = -(compute<T>)CUDART_INF;
    *at = -1;
#pragma unroll
    for (I i = 0; i < height; i++) {
        I y = row + i * (I)a.dilation[0];
#pragma unroll
        for (I j = 0; j < width; j++) {
            I x = column + j * (I)a.dilation[1];
            bool is_inside = (y >= 0) & (y < (I)a.size[0]) & (x >= 0) & (x < (I)a.size[1]);
            compute<T> value = -(compute<T>)CUDART_INF;
            if (is_inside)
                value = widen(plane[y * (I)a.from_stride[2] + x * (I)a.from_stride[3]]);
            if (is_inside & ((*at < 0) | is_new_max(value, best))) {
                best = value;
                *at = (int32_t)(i * width + j);
            }
        }
    }
    return best;
}

/* Sum of a window; padding adds nothing. Average pooling has no dilation. */
template <typename T, typename I, int K>
__device__ __forceinline__ compute<T> sum_of(const pool_args &a, const T *plane, I row, I column)
{
    const I height = K ? K : (I)a.kernel[0], width = K ? K : (I)a.kernel[1];
    compute<T> sum = 0;
#pragma unroll
    for (I i = 0; i < height; i++) {
        I y = row + i;
        compute<T> line = 0; /* sum rows first: less rounding error for large windows */
#pragma unroll
        for (I j = 0; j < width; j++) {
            I x = column + j;
            if ((y >= 0) & (y < (I)a.size[0]) & (x >= 0) & (x < (I)a.size[1]))
                line += widen(plane[y * (I)a.from_stride[2] + x * (I)a.from_stride[3]]);
        }
        sum += line;
    }
    return sum;
}

/* Bytes: the image once from memory, windows overlap in the cache; the result written once. */
template <typename T, typename I, int K, bool IS_MAX>
static __global__ void __launch_bounds__(THREADS) pool_kernel(const __grid_constant__ pool_args a)
{
    int64_t number = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (number >= a.order.count)
        return;
    image_pos p = position_of(a.order, number);
    const T *plane = (const T *)a.from + p.image * a.from_stride[0] + p.channel * a.from_stride[1];
    T *to = (T *)a.to + p.image * a.to_stride[0] + p.channel * a.to_stride[1] + p.column * a.to_stride[3];
    const int64_t indices = p.image * a.index_stride[0] + p.channel * a.index_stride[1] + p.column * a.index_stride[3];
    I first = (I)(p.row * ROWS_PER_THREAD), column = (I)p.column, left = column * (I)a.step[1] - (I)a.padding[1];
    compute<T> value[ROWS_PER_THREAD];
    int32_t at[ROWS_PER_THREAD];
#pragma unroll
    for (int u = 0; u < ROWS_PER_THREAD; u++) { /* all are loaded before the first is stored */
        I row = first + u, begin = row * (I)a.step[0] - (I)a.padding[0];
        if (row >= (I)a.results[0])
            continue;
        if (IS_MAX)
            value[u] = max_of<T, I, K>(a, plane, begin, left, &at[u]);
        else
            value[u] = sum_of<T, I, K>(a, plane, begin, left) /
                       (compute<T>)((int64_t)window_length<I>(a, 0, row) * window_length<I>(a, 1, column));
    }
#pragma unroll
    for (int u = 0; u < ROWS_PER_THREAD; u++) {
        I row = first + u;
        if (row >= (I)a.results[0])
            continue;
        to[row * (I)a.to_stride[2]] = narrow<T>(value[u]);
        if (IS_MAX && a.indices)
            store_index(a, indices + row * (I)a.index_stride[2], at[u]);
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Gradient of pixel (row, column) from its windows, top to bottom, left to right. W: windows per axis at most if
 * compiled in, so that all are loaded at once, or 0. */
template <typename T, typename I, int W, bool IS_MAX>
__device__ __forceinline__ compute<T> grad_of(const pool_args &a, const T *g, int64_t indices, I row, I column, I left,
                                              I right)
{
    I top, bottom;
    windows_of<I>(a, 0, row, &top, &bottom);
    const I height = W ? W : bottom - top + 1, width = W ? W : right - left + 1;
    compute<T> sum = 0;
#pragma unroll
    for (I i = 0; i < height; i++)
#pragma unroll
        for (I j = 0; j < width; j++) {
            I y = top + i, x = left + j;
            if ((y > bottom) | (x > right))
                continue;
            compute<T> value = widen(g[y * (I)a.from_stride[2] + x * (I)a.from_stride[3]]);
            if (!IS_MAX)
                sum += value / (compute<T>)((int64_t)window_length<I>(a, 0, y) * window_length<I>(a, 1, x));
            else
                sum += load_index(a, indices + y * (I)a.index_stride[2] + x * (I)a.index_stride[3]) ==
                               tap_of<I>(a, tap_along<I>(a, 0, row, y), tap_along<I>(a, 1, column, x))
                           ? value
                           : 0;
        }
    return sum;
}

/* ROWS_PER_THREAD pixels of one column per thread; gradients of overlapping windows are added in window order. */
template <typename T, typename I, int W, bool IS_MAX>
static __global__ void __launch_bounds__(THREADS) pool_grad_kernel(const __grid_constant__ pool_args a)
{
    int64_t number = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (number >= a.order.count)
        return;
    image_pos p = position_of(a.order, number);
    const T *g = (const T *)a.from + p.image * a.from_stride[0] + p.channel * a.from_stride[1];
    const int64_t indices = p.image * a.index_stride[0] + p.channel * a.index_stride[1];
    int64_t to = p.image * a.to_stride[0] + p.channel * a.to_stride[1] + p.column * a.to_stride[3];
    I first = (I)(p.row * ROWS_PER_THREAD), column = (I)p.column, left, right;
    /* the same columns of windows for all rows of the thread */
    windows_of<I>(a, 1, column, &left, &right);
    compute<T> sum[ROWS_PER_THREAD];
#pragma unroll
    for (int u = 0; u < ROWS_PER_THREAD; u++) {
        I row = first + u;
        if (row >= (I)a.size[0])
            continue;
        sum[u] = grad_of<T, I, W, IS_MAX>(a, g, indices, row, column, left, right);
    }
#pragma unroll
    for (int u = 0; u < ROWS_PER_THREAD; u++)
        if (first + u < (I)a.size[0])
            store_any(a.to, a.to_dtype, to + (first + u) * a.to_stride[2], sum[u]);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* `image` is x or its gradient, `result` y or its gradient; `order` is that of the tensor written. */
static pool_args describe(const tarn__call *call, const tarn__view *image, const tarn__view *result,
                          const tarn__view *indices)
{
    const tarn__pool2d *params = (const tarn__pool2d *)call->params;
    const tarn__view *to = call->out[0], *from = call->in[0];
    pool_args a = {tarn__view_at(from), tarn__view_at(to), indices ? tarn__view_at(indices) : NULL, from->dtype,
                   to->dtype};
    a.images = to->shape[0], a.channels = to->shape[1];
    a.order = order_of(is_nhwc(image), to->shape[0], to->shape[1],
                       (to->shape[2] + ROWS_PER_THREAD - 1) / ROWS_PER_THREAD, to->shape[3]);
    for (int i = 0; i < 4; i++) {
        a.from_stride[i] = from->stride[i];
        a.to_stride[i] = to->stride[i];
        a.index_stride[i] = indices ? indices->stride[i] : 0;
    }
    for (int i = 0; i < 2; i++) {
        a.size[i] = image->shape[2 + i], a.results[i] = result->shape[2 + i];
        a.kernel[i] = params->kernel[i], a.step[i] = params->stride[i];
        a.padding[i] = params->padding[i], a.dilation[i] = params->dilation[i];
        a.by_step[i] = divider_of(a.step[i]), a.by_dilation[i] = divider_of(a.dilation[i]);
    }
    a.exclude_padding = params->exclude_padding;
    a.are_bytes = indices && indices->dtype == TARN_U8;
    return a;
}

#define SMALL ((int64_t)1 << 28) /* sums of a few such values fit 32 bits */

/* True if everything within a plane fits 32-bit indices. */
static bool is_small(const pool_args *a)
{
    const int64_t *strides[] = {a->from_stride, a->to_stride, a->index_stride};
    int64_t longest[2];
    for (int i = 0; i < 2; i++) {
        if (a->size[i] >= SMALL || a->results[i] >= SMALL || a->step[i] >= SMALL || a->padding[i] >= SMALL ||
            a->kernel[i] * a->dilation[i] >= SMALL)
            return false;
        longest[i] = a->size[i] > a->results[i] ? a->size[i] : a->results[i];
    }
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 2; i++)
            if (magnitude(strides[k][2 + i]) >= 4 * SMALL / longest[i])
                return false;
    return a->size[0] * a->size[1] < 4 * SMALL;
}

/* Grid: 256 threads per block, ROWS_PER_THREAD rows of one column each. Bytes: the image read once, the result written,
 * and indices if needed, one byte each for windows of up to 255 elements. */
template <typename T, bool IS_MAX> static void launch_forward(const tarn__call *call, const pool_args &a)
{
    unsigned blocks = blocks_for(a.order.count, THREADS);
    /* 2×2 and 3×3 windows are unrolled */
    bool is_square = a.kernel[0] == a.kernel[1];
    if (!is_small(&a))
        pool_kernel<T, int64_t, 0, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else if (is_square && a.kernel[0] == 2)
        pool_kernel<T, int32_t, 2, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else if (is_square && a.kernel[0] == 3)
        pool_kernel<T, int32_t, 3, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else
        pool_kernel<T, int32_t, 0, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
}

/* Windows that can contain a pixel, on the axis with more of them. */
static int64_t windows_at_once(const pool_args *a)
{
    int64_t rows = (a->kernel[0] - 1) * a->dilation[0] / a->step[0] + 1,
            columns = (a->kernel[1] - 1) * a->dilation[1] / a->step[1] + 1;
    return rows > columns ? rows : columns;
}

/* The same grid over the image. Bytes: gradients and indices read once, the image's gradient written. */
template <typename T, bool IS_MAX> static void launch_backward(const tarn__call *call, const pool_args &a)
{
    unsigned blocks = blocks_for(a.order.count, THREADS);
    /* one or two windows per axis are unrolled */
    int64_t windows = windows_at_once(&a);
    if (!is_small(&a))
        pool_grad_kernel<T, int64_t, 0, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else if (windows == 1)
        pool_grad_kernel<T, int32_t, 1, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else if (windows == 2)
        pool_grad_kernel<T, int32_t, 2, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else
        pool_grad_kernel<T, int32_t, 0, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
}

/* The fastest kernel that supports the call. Nothing is launched for empty images. */
template <bool IS_MAX, bool IS_BACKWARD> static void dispatch(const tarn__call *call, const pool_args &a)
{
    if (a.order.count == 0)
        return;
    /* the special kernels index a plane in 32 bits */
    if (is_small(&a) &&
        (tarn__cuda_pool_stride2(call, a, IS_MAX, IS_BACKWARD) || tarn__cuda_pool_nhwc(call, a, IS_MAX, IS_BACKWARD)))
        return;
    if (IS_BACKWARD)
        FOR_FLOAT(call->in[0]->dtype, launch_backward<T, IS_MAX>(call, a))
    else
        FOR_FLOAT(call->in[0]->dtype, launch_forward<T, IS_MAX>(call, a))
}

/* Inputs x; outputs y and, for backward, the indices of the maxima. */
static void kernel_max_pool2d(const tarn__call *call)
{
    dispatch<true, false>(call, describe(call, call->in[0], call->out[0], call->outputs > 1 ? call->out[1] : NULL));
}

/* No indices: every element of a window has the same gradient. */
static void kernel_avg_pool2d(const tarn__call *call)
{
    dispatch<false, false>(call, describe(call, call->in[0], call->out[0], NULL));
}

/* Inputs g and the indices. */
static void kernel_max_pool2d_grad(const tarn__call *call)
{
    dispatch<true, true>(call, describe(call, call->out[0], call->in[0], call->in[1]));
}

static void kernel_avg_pool2d_grad(const tarn__call *call)
{
    dispatch<false, true>(call, describe(call, call->out[0], call->in[0], NULL));
}

void tarn__cuda_register_pool(tarn__kernel_row *rows)
{
    rows[TARN__K_max_pool2d] = tarn__row(kernel_max_pool2d, TARN__FLOATS);
    rows[TARN__K_max_pool2d_grad] = tarn__row(kernel_max_pool2d_grad, TARN__FLOATS);
    rows[TARN__K_avg_pool2d] = tarn__row(kernel_avg_pool2d, TARN__FLOATS);
    rows[TARN__K_avg_pool2d_grad] = tarn__row(kernel_avg_pool2d_grad, TARN__FLOATS);
}
