/* pool.cu: pooling of images: the largest element or the average of each window, and their gradients.
 *
 * The largest element of a window is the first of equal ones; NaN is larger than everything, and the last NaN counts;
 * what lies outside the image does not. Gradients are gathered: an element of the image visits the windows that can
 * have seen it, in order, so that nothing is added with atomics. A thread takes a few rows of one column of a channel:
 * its place is worked out once for all of them. These kernels take every window and layout; the usual ones go to
 * pool_stride2.cu and pool_nhwc.cu, which say in pool.cuh whether they fit. */
#include "backends/cuda/pool/pool.cuh"

#define TURNS 4 /* rows a thread */

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* I counts inside a plane; K is the kernel's size where it is compiled in, so that all of a window is loaded at once,
 * or 0. */
template <typename T, typename I, int K>
__device__ __forceinline__ wide<T> largest_of(const pool_args &a, const T *plane, I row, I column, int32_t *at)
{
    const I high = K ? K : (I)a.kernel[0], broad = K ? K : (I)a.kernel[1];
    wide<T> best = -(wide<T>)CUDART_INF;
    *at = -1;
#pragma unroll
    for (I i = 0; i < high; i++) {
        I y = row + i * (I)a.dilation[0];
#pragma unroll
        for (I j = 0; j < broad; j++) {
            I x = column + j * (I)a.dilation[1];
            bool inside = (y >= 0) & (y < (I)a.size[0]) & (x >= 0) & (x < (I)a.size[1]);
            wide<T> value = -(wide<T>)CUDART_INF;
            if (inside)
                value = widen(plane[y * (I)a.from_stride[2] + x * (I)a.from_stride[3]]);
            if (inside & ((*at < 0) | takes_over(value, best))) {
                best = value;
                *at = (int32_t)(i * broad + j);
            }
        }
    }
    return best;
}

template <typename T, typename I, int K>
__device__ __forceinline__ wide<T> sum_of(const pool_args &a, const T *plane, I row, I column)
{
    const I high = K ? K : (I)a.kernel[0], broad = K ? K : (I)a.kernel[1];
    wide<T> sum = 0;
#pragma unroll
    for (I i = 0; i < high; i++) {
        I y = row + i;
        wide<T> line = 0; /* sums of rows first: large windows lose fewer digits so */
#pragma unroll
        for (I j = 0; j < broad; j++) {
            I x = column + j;
            if ((y >= 0) & (y < (I)a.size[0]) & (x >= 0) & (x < (I)a.size[1]))
                line += widen(plane[y * (I)a.from_stride[2] + x * (I)a.from_stride[3]]);
        }
        sum += line;
    }
    return sum;
}

template <typename T, typename I, int K, bool IS_LARGEST>
static __global__ void __launch_bounds__(THREADS) pool_kernel(const __grid_constant__ pool_args a)
{
    int64_t number = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (number >= a.order.count)
        return;
    image_place p = place_of(a.order, number);
    const T *plane = (const T *)a.from + p.image * a.from_stride[0] + p.channel * a.from_stride[1];
    T *to = (T *)a.to + p.image * a.to_stride[0] + p.channel * a.to_stride[1] + p.column * a.to_stride[3];
    const int64_t places = p.image * a.place_stride[0] + p.channel * a.place_stride[1] + p.column * a.place_stride[3];
    I first = (I)(p.row * TURNS), column = (I)p.column, left = column * (I)a.step[1] - (I)a.padding[1];
    wide<T> value[TURNS];
    int32_t at[TURNS];
#pragma unroll
    for (int u = 0; u < TURNS; u++) { /* all are loaded before the first is stored */
        I row = first + u, begin = row * (I)a.step[0] - (I)a.padding[0];
        if (row >= (I)a.results[0])
            continue;
        if (IS_LARGEST)
            value[u] = largest_of<T, I, K>(a, plane, begin, left, &at[u]);
        else
            value[u] = sum_of<T, I, K>(a, plane, begin, left) /
                       (wide<T>)((int64_t)window_length<I>(a, 0, row) * window_length<I>(a, 1, column));
    }
#pragma unroll
    for (int u = 0; u < TURNS; u++) {
        I row = first + u;
        if (row >= (I)a.results[0])
            continue;
        to[row * (I)a.to_stride[2]] = narrow<T>(value[u]);
        if (IS_LARGEST && a.places)
            store_place(a, places + row * (I)a.place_stride[2], at[u]);
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* What element (row, column) is given by the windows top to bottom, left to right. W is how many there are at most on
 * an axis where that is compiled in, so that all are loaded at once, or 0. */
template <typename T, typename I, int W, bool IS_LARGEST>
__device__ __forceinline__ wide<T> given_to(const pool_args &a, const T *g, int64_t places, I row, I column, I left,
                                            I right)
{
    I top, bottom;
    windows_over<I>(a, 0, row, &top, &bottom);
    const I high = W ? W : bottom - top + 1, broad = W ? W : right - left + 1;
    wide<T> sum = 0;
#pragma unroll
    for (I i = 0; i < high; i++)
#pragma unroll
        for (I j = 0; j < broad; j++) {
            I y = top + i, x = left + j;
            if ((y > bottom) | (x > right))
                continue;
            wide<T> value = widen(g[y * (I)a.from_stride[2] + x * (I)a.from_stride[3]]);
            if (!IS_LARGEST)
                sum += value / (wide<T>)((int64_t)window_length<I>(a, 0, y) * window_length<I>(a, 1, x));
            else
                sum += fetch_place(a, places + y * (I)a.place_stride[2] + x * (I)a.place_stride[3]) ==
                               number_in<I>(a, number_along<I>(a, 0, row, y), number_along<I>(a, 1, column, x))
                           ? value
                           : 0;
        }
    return sum;
}

template <typename T, typename I, int W, bool IS_LARGEST>
static __global__ void __launch_bounds__(THREADS) pool_grad_kernel(const __grid_constant__ pool_args a)
{
    int64_t number = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (number >= a.order.count)
        return;
    image_place p = place_of(a.order, number);
    const T *g = (const T *)a.from + p.image * a.from_stride[0] + p.channel * a.from_stride[1];
    const int64_t places = p.image * a.place_stride[0] + p.channel * a.place_stride[1];
    int64_t to = p.image * a.to_stride[0] + p.channel * a.to_stride[1] + p.column * a.to_stride[3];
    I first = (I)(p.row * TURNS), column = (I)p.column, left, right;
    windows_over<I>(a, 1, column, &left, &right);
    wide<T> sum[TURNS];
#pragma unroll
    for (int u = 0; u < TURNS; u++) {
        I row = first + u;
        if (row >= (I)a.size[0])
            continue;
        sum[u] = given_to<T, I, W, IS_LARGEST>(a, g, places, row, column, left, right);
    }
#pragma unroll
    for (int u = 0; u < TURNS; u++)
        if (first + u < (I)a.size[0])
            store_any(a.to, a.to_dtype, to + (first + u) * a.to_stride[2], sum[u]);
}

/* ---- starting them ----------------------------------------------------------------------------------------------- */

static pool_args describe(const tarn__call *call, const tarn__view *image, const tarn__view *result,
                          const tarn__view *places)
{
    const tarn__pool2d *params = (const tarn__pool2d *)call->params;
    const tarn__view *to = call->out[0], *from = call->in[0];
    pool_args a = {tarn__view_at(from), tarn__view_at(to), places ? tarn__view_at(places) : NULL, from->dtype,
                   to->dtype};
    a.images = to->shape[0], a.channels = to->shape[1];
    a.order =
        order_of(lies_by_channel(image), to->shape[0], to->shape[1], (to->shape[2] + TURNS - 1) / TURNS, to->shape[3]);
    for (int i = 0; i < 4; i++) {
        a.from_stride[i] = from->stride[i];
        a.to_stride[i] = to->stride[i];
        a.place_stride[i] = places ? places->stride[i] : 0;
    }
    for (int i = 0; i < 2; i++) {
        a.size[i] = image->shape[2 + i], a.results[i] = result->shape[2 + i];
        a.kernel[i] = params->kernel[i], a.step[i] = params->stride[i];
        a.padding[i] = params->padding[i], a.dilation[i] = params->dilation[i];
        a.by_step[i] = divider_of(a.step[i]), a.by_dilation[i] = divider_of(a.dilation[i]);
    }
    a.exclude_padding = params->exclude_padding;
    a.has_bytes = places && places->dtype == TARN_U8;
    return a;
}

#define SMALL ((int64_t)1 << 28) /* a few such numbers may be added up in 32 bits */

static int64_t magnitude(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

/* True when everything inside a plane can be counted in 32 bits. */
static bool is_small(const pool_args *a)
{
    const int64_t *strides[] = {a->from_stride, a->to_stride, a->place_stride};
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

/* 256 threads a block, TURNS rows of one column each. Reads the image once from memory, writes the result, and places
 * where they are wanted, of one byte each but for windows of more than 255 elements. */
template <typename T, bool IS_LARGEST> static void launch_forward(const tarn__call *call, const pool_args &a)
{
    unsigned blocks = blocks_for(a.order.count, THREADS);
    bool is_square = a.kernel[0] == a.kernel[1];
    if (!is_small(&a))
        pool_kernel<T, int64_t, 0, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else if (is_square && a.kernel[0] == 2)
        pool_kernel<T, int32_t, 2, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else if (is_square && a.kernel[0] == 3)
        pool_kernel<T, int32_t, 3, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else
        pool_kernel<T, int32_t, 0, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
}

/* Windows that an element can lie in, on the axis with more of them. */
static int64_t windows_at_once(const pool_args *a)
{
    int64_t rows = (a->kernel[0] - 1) * a->dilation[0] / a->step[0] + 1,
            columns = (a->kernel[1] - 1) * a->dilation[1] / a->step[1] + 1;
    return rows > columns ? rows : columns;
}

/* The same shape over the image. Reads gradients and places once from memory, writes the image's gradient. */
template <typename T, bool IS_LARGEST> static void launch_backward(const tarn__call *call, const pool_args &a)
{
    unsigned blocks = blocks_for(a.order.count, THREADS);
    int64_t windows = windows_at_once(&a);
    if (!is_small(&a))
        pool_grad_kernel<T, int64_t, 0, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else if (windows == 1)
        pool_grad_kernel<T, int32_t, 1, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else if (windows == 2)
        pool_grad_kernel<T, int32_t, 2, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else
        pool_grad_kernel<T, int32_t, 0, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
}

/* By the fastest kernels that fit. Nothing is started for images without elements. */
template <bool IS_LARGEST, bool IS_BACKWARD> static void start(const tarn__call *call, const pool_args &a)
{
    if (a.order.count == 0)
        return;
    if (is_small(&a) && (tarn__cuda_pool_stride2(call, a, IS_LARGEST, IS_BACKWARD) ||
                         tarn__cuda_pool_nhwc(call, a, IS_LARGEST, IS_BACKWARD)))
        return;
    if (IS_BACKWARD)
        FOR_FLOAT(call->in[0]->dtype, launch_backward<T, IS_LARGEST>(call, a))
    else
        FOR_FLOAT(call->in[0]->dtype, launch_forward<T, IS_LARGEST>(call, a))
}

static void kernel_max_pool2d(const tarn__call *call)
{
    start<true, false>(call, describe(call, call->in[0], call->out[0], call->outputs > 1 ? call->out[1] : NULL));
}

static void kernel_avg_pool2d(const tarn__call *call)
{
    start<false, false>(call, describe(call, call->in[0], call->out[0], NULL));
}

static void kernel_max_pool2d_grad(const tarn__call *call)
{
    start<true, true>(call, describe(call, call->out[0], call->in[0], call->in[1]));
}

static void kernel_avg_pool2d_grad(const tarn__call *call)
{
    start<false, true>(call, describe(call, call->out[0], call->in[0], NULL));
}

void tarn__cuda_pool(tarn__kernel_row *rows)
{
    rows[TARN__K_max_pool2d] = tarn__kernel_row{kernel_max_pool2d, TARN__FLOATS, NULL};
    rows[TARN__K_max_pool2d_grad] = tarn__kernel_row{kernel_max_pool2d_grad, TARN__FLOATS, NULL};
    rows[TARN__K_avg_pool2d] = tarn__kernel_row{kernel_avg_pool2d, TARN__FLOATS, NULL};
    rows[TARN__K_avg_pool2d_grad] = tarn__kernel_row{kernel_avg_pool2d_grad, TARN__FLOATS, NULL};
}
