/* pool_nhwc.cu: pooling of NHWC images, for any window.
 *
 * A thread owns 16 bytes of channels: windows and offsets are computed once for all of them, and everything moves in
 * whole vectors. Forward it takes one window. Backward it takes one column of ROWS rows of the image, whose windows are
 * mostly the same; or, where 2×2 or 3×3 windows tile the image, one window again. */
#include "backends/cuda/pool/pool.cuh"

#define ROWS 2 /* of the image per thread, backward */

/* Position of a thread: image, first channel, row, column. */
struct vec_pos {
    int64_t image, channel;
    int32_t row, column;
};

/* Channels vary fastest: adjacent threads access adjacent vectors. */
template <int P> __device__ __forceinline__ vec_pos vec_pos_of(const image_order &order, uint32_t number)
{
    vec_pos p;
    p.channel = (int64_t)pop_index(number, order.channels) * P;
    p.column = pop_index(number, order.columns);
    p.row = pop_index(number, order.rows);
    p.image = number;
    return p;
}

/* Offset of an image's vector of channels at pixel 0. */
__device__ __forceinline__ int64_t plane_of(const vec_pos &p, const int64_t *stride)
{
    return p.image * stride[0] + p.channel;
}

/* Offset of a window. */
__device__ __forceinline__ int64_t window_offset(const vec_pos &p, const int64_t *stride)
{
    return plane_of(p, stride) + p.row * (int32_t)stride[2] + p.column * (int32_t)stride[3];
}

/* Indices of all channels of a vector. i32 ones move in vectors of 4; kernels for small windows (IS_SMALL) have
 * none. */
template <int P, bool IS_SMALL>
__device__ __forceinline__ void store_vec_indices(const pool_args &a, int64_t to, const int32_t *at)
{
    if (IS_SMALL || a.are_bytes) {
        store_indices<P>((uint8_t *)a.indices + to, at);
    } else {
#pragma unroll
        for (int k = 0; k < P; k += 4)
            __stwb((int4 *)((int32_t *)a.indices + to + k), make_int4(at[k], at[k + 1], at[k + 2], at[k + 3]));
    }
}

template <int P, bool IS_SMALL>
__device__ __forceinline__ void load_vec_indices(const pool_args &a, int64_t from, int32_t *at)
{
    if (IS_SMALL || a.are_bytes) {
        load_indices<P>((const uint8_t *)a.indices + from, at);
    } else {
#pragma unroll
        for (int k = 0; k < P; k += 4) {
            int4 four = __ldg((const int4 *)((const int32_t *)a.indices + from + k));
            at[k] = four.x, at[k + 1] = four.y, at[k + 2] = four.z, at[k + 3] = four.w;
        }
    }
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Position of element (i, j) of a window that begins at (top, left). */
struct window_at {
    int32_t y, x;
    bool is_inside;
};

__device__ __forceinline__ window_at in_window(const pool_args &a, int32_t top, int32_t left, int32_t i, int32_t j)
{
    int32_t y = top + i * (int32_t)a.dilation[0], x = left + j * (int32_t)a.dilation[1];
    bool is_inside = (y >= 0) & (y < (int32_t)a.size[0]) & (x >= 0) & (x < (int32_t)a.size[1]);
    return window_at{y, x, is_inside};
}

template <typename T, int P>
__device__ __forceinline__ vec<T, P> fetch_at(const pool_args &a, const T *from, const window_at &w)
{
    return load_vec<T, P>(from + (w.y * (int32_t)a.from_stride[2] + w.x * (int32_t)a.from_stride[3]));
}

/* Max or sum of each channel, row by row of the window. K: kernel size if compiled in, so that a whole window is loaded
 * at once, or 0. */
template <typename T, int K, bool IS_MAX, int P>
__device__ __forceinline__ void reduce_window(const pool_args &a, const T *from, int32_t top, int32_t left,
                                              compute<T> *value, int32_t *at)
{
    const int32_t height = K ? K : (int32_t)a.kernel[0], width = K ? K : (int32_t)a.kernel[1];
    vec<T, P> loaded[K ? K * K : 1];
#pragma unroll
    for (int32_t n = 0; n < K * K; n++) {
        window_at w = in_window(a, top, left, n / (K ? K : 1), n % (K ? K : 1));
        if (w.is_inside)
            loaded[n] = fetch_at<T, P>(a, from, w);
    }
    /* the first pixel wins against the initial -infinity, even if it is -infinity itself */
    bool is_first = true;
#pragma unroll
    for (int32_t i = 0; i < height; i++) {
        compute<T> line[P] = {};
#pragma unroll
        for (int32_t j = 0; j < width; j++) {
            window_at w = in_window(a, top, left, i, j);
            if (!w.is_inside)
                continue;
            compute<T> here[P];
            widen_vec(K ? loaded[i * K + j] : fetch_at<T, P>(a, from, w), here);
#pragma unroll
            for (int k = 0; k < P; k++) {
                line[k] += IS_MAX ? 0 : here[k];
                if (IS_MAX && (is_first | is_new_max(here[k], value[k]))) {
                    value[k] = here[k];
                    at[k] = i * width + j;
                }
            }
            is_first = false;
        }
#pragma unroll
        for (int k = 0; k < P; k++)
            value[k] += IS_MAX ? 0 : line[k];
    }
}

/* One window of a vector of channels per thread. */
template <typename T, int K, bool IS_MAX>
static __global__ void __launch_bounds__(THREADS) pool_kernel(const __grid_constant__ pool_args a)
{
    constexpr int P = vec_size<T>::value;
    uint32_t number = blockIdx.x * THREADS + threadIdx.x;
    if (number >= (uint32_t)a.order.count)
        return;
    const vec_pos p = vec_pos_of<P>(a.order, number);
    compute<T> value[P];
    int32_t at[P];
#pragma unroll
    for (int k = 0; k < P; k++) { /* the result of a window without a pixel */
        value[k] = IS_MAX ? -(compute<T>)CUDART_INF : (compute<T>)0;
        at[k] = -1;
    }
    reduce_window<T, K, IS_MAX, P>(a, (const T *)a.from + plane_of(p, a.from_stride),
                                   p.row * (int32_t)a.step[0] - (int32_t)a.padding[0],
                                   p.column * (int32_t)a.step[1] - (int32_t)a.padding[1], value, at);
    if (!IS_MAX) {
        compute<T> count =
            (compute<T>)((int64_t)window_length<int32_t>(a, 0, p.row) * window_length<int32_t>(a, 1, p.column));
#pragma unroll
        for (int k = 0; k < P; k++)
            value[k] /= count;
    }
    vec<T, P> result;
    narrow_vec(value, result);
    store_vec((T *)a.to + window_offset(p, a.to_stride), result);
    if (IS_MAX && a.indices)
        store_vec_indices<P, K != 0>(a, window_offset(p, a.index_stride), at);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Gradient of pixel (row, column) of each channel from its windows, top to bottom, left to right. W: windows per axis
 * at most if compiled in and indices are bytes, or 0. */
template <typename T, int W, bool IS_MAX, int P>
__device__ __forceinline__ void grad_of_vec(const pool_args &a, const T *g, int64_t indices, int32_t row,
                                            int32_t column, compute<T> *sum)
{
    int32_t top, bottom, left, right;
    windows_of<int32_t>(a, 0, row, &top, &bottom);
    windows_of<int32_t>(a, 1, column, &left, &right);
    const int32_t height = W ? W : bottom - top + 1, width = W ? W : right - left + 1;
#pragma unroll
    for (int32_t i = 0; i < height; i++)
#pragma unroll
        for (int32_t j = 0; j < width; j++) {
            int32_t y = top + i, x = left + j, tap = 0, at[P];
            if ((y > bottom) | (x > right))
                continue;
            compute<T> value[P], count = 1;
            widen_vec(load_vec<T, P>(g + (y * (int32_t)a.from_stride[2] + x * (int32_t)a.from_stride[3])), value);
            if (IS_MAX) {
                load_vec_indices<P, W != 0>(
                    a, indices + (y * (int32_t)a.index_stride[2] + x * (int32_t)a.index_stride[3]), at);
                tap = tap_of<int32_t>(a, tap_along<int32_t>(a, 0, row, y), tap_along<int32_t>(a, 1, column, x));
            } else
                count = (compute<T>)((int64_t)window_length<int32_t>(a, 0, y) * window_length<int32_t>(a, 1, x));
#pragma unroll
            for (int k = 0; k < P; k++)
                if (IS_MAX)
                    sum[k] += at[k] == tap ? value[k] : 0;
                else
                    sum[k] += value[k] / count;
        }
}

/* ROWS pixels of one column per thread: their windows mostly overlap. */
template <typename T, int W, bool IS_MAX>
static __global__ void __launch_bounds__(THREADS) pool_grad_kernel(const __grid_constant__ pool_args a)
{
    constexpr int P = vec_size<T>::value;
    uint32_t number = blockIdx.x * THREADS + threadIdx.x;
    if (number >= (uint32_t)a.order.count)
        return;
    const vec_pos p = vec_pos_of<P>(a.order, number);
    const T *g = (const T *)a.from + plane_of(p, a.from_stride);
    const int64_t indices = plane_of(p, a.index_stride);
    T *to = (T *)a.to + plane_of(p, a.to_stride) + p.column * (int32_t)a.to_stride[3];
    compute<T> sum[ROWS][P] = {};
#pragma unroll
    for (int u = 0; u < ROWS; u++)
        if (p.row * ROWS + u < (int32_t)a.size[0])
            grad_of_vec<T, W, IS_MAX, P>(a, g, indices, p.row * ROWS + u, p.column, sum[u]);
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        if (p.row * ROWS + u >= (int32_t)a.size[0])
            break;
        vec<T, P> result;
        narrow_vec(sum[u], result);
        store_vec(to + (p.row * ROWS + u) * (int32_t)a.to_stride[2], result);
    }
}

/* Windows of K×K tile the image: each gradient and index is read once, and all elements of the window are written. */
template <typename T, int K, bool IS_MAX>
static __global__ void __launch_bounds__(THREADS) pool_scatter_kernel(const __grid_constant__ pool_args a)
{
    constexpr int P = vec_size<T>::value;
    uint32_t number = blockIdx.x * THREADS + threadIdx.x;
    if (number >= (uint32_t)a.order.count)
        return;
    const vec_pos p = vec_pos_of<P>(a.order, number);
    vec<T, P> g = load_vec<T, P>((const T *)a.from + window_offset(p, a.from_stride));
    int32_t at[P];
    if (IS_MAX) {
        load_vec_indices<P, true>(a, window_offset(p, a.index_stride), at);
    } else {
        compute<T> value[P];
        widen_vec(g, value);
#pragma unroll
        for (int k = 0; k < P; k++)
            value[k] /= (compute<T>)(K * K);
        narrow_vec(value, g);
    }
    T *to = (T *)a.to + plane_of(p, a.to_stride) + p.row * K * (int32_t)a.to_stride[2] +
            p.column * K * (int32_t)a.to_stride[3];
#pragma unroll
    for (int n = 0; n < K * K; n++) {
        vec<T, P> result = g;
#pragma unroll
        for (int k = 0; k < P; k++)
            if (IS_MAX && at[k] != n)
                result.at[k] = narrow<T>((compute<T>)0);
        store_vec(to + (n / K * (int32_t)a.to_stride[2] + n % K * (int32_t)a.to_stride[3]), result);
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Channels a multiple of the vector width, contiguous and aligned on both sides. */
static bool can_vectorize(const pool_args *a)
{
    if (a->from_dtype != a->to_dtype || a->from_dtype == TARN_F64)
        return false;
    const size_t bytes = tarn__dtype_bytes(a->from_dtype);
    const int width = (int)(16 / bytes);
    return a->channels % width == 0 && is_vectorizable(a->from, bytes, a->from_stride, 1, width) &&
           is_vectorizable(a->to, bytes, a->to_stride, 1, width) &&
           (!a->indices || (a->are_bytes ? is_vectorizable(a->indices, 1, a->index_stride, 1, width)
                                         : is_vectorizable(a->indices, 4, a->index_stride, 1, 4)));
}

/* True if 2×2 or 3×3 windows tile the image: each pixel is in exactly one. */
static bool tiles_image(const pool_args *a)
{
    /* stride = kernel size, no padding or dilation, no remainder */
    const int64_t side = a->kernel[0];
    for (int i = 0; i < 2; i++)
        if (a->kernel[i] != side || a->step[i] != side || a->dilation[i] != 1 || a->padding[i] != 0 ||
            a->results[i] * side != a->size[i])
            return false;
    return side == 2 || side == 3;
}

/* Grid: 256 threads per block, a vector of channels of one window each. Bytes: the image read, result and indices
 * written. */
template <typename T, bool IS_MAX> static void launch_forward(const tarn__call *call, const pool_args &a)
{
    unsigned blocks = blocks_for(a.order.count, THREADS);
    /* 2×2 and 3×3 windows are unrolled */
    bool is_square = a.kernel[0] == a.kernel[1];
    if (is_square && a.kernel[0] == 2)
        pool_kernel<T, 2, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else if (is_square && a.kernel[0] == 3)
        pool_kernel<T, 3, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else
        pool_kernel<T, 0, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
}

/* The same over the image, ROWS rows per thread, or over windows. Bytes: gradients and indices read, the image's
 * gradient written; rereads by adjacent threads hit the cache. */
template <typename T, bool IS_MAX> static void launch_backward(const tarn__call *call, const pool_args &a)
{
    unsigned blocks = blocks_for(a.order.count, THREADS);
    if (tiles_image(&a)) {
        if (a.kernel[0] == 2)
            pool_scatter_kernel<T, 2, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
        else
            pool_scatter_kernel<T, 3, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
        return;
    }
    int64_t rows = (a.kernel[0] - 1) * a.dilation[0] / a.step[0] + 1,
            columns = (a.kernel[1] - 1) * a.dilation[1] / a.step[1] + 1;
    int64_t windows = rows > columns ? rows : columns;
    bool has_i32_indices = IS_MAX && !a.are_bytes;
    if (windows == 1 && !has_i32_indices)
        pool_grad_kernel<T, 1, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else if (windows == 2 && !has_i32_indices)
        pool_grad_kernel<T, 2, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else
        pool_grad_kernel<T, 0, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
}

template <typename T>
static void launch_typed(const tarn__call *call, const pool_args &a, bool is_max, bool is_backward)
{
    if (is_backward)
        is_max ? launch_backward<T, true>(call, a) : launch_backward<T, false>(call, a);
    else
        is_max ? launch_forward<T, true>(call, a) : launch_forward<T, false>(call, a);
}

/* The grid is over windows forward and for tiling windows, else over pixels. */
bool tarn__cuda_pool_nhwc(const tarn__call *call, pool_args a, bool is_max, bool is_backward)
{
    if (!can_vectorize(&a))
        return false;
    int64_t vecs = a.channels / (int64_t)(16 / tarn__dtype_bytes(a.from_dtype));
    if (is_backward && !tiles_image(&a))
        a.order = order_of(true, a.images, vecs, (a.size[0] + ROWS - 1) / ROWS, a.size[1]);
    else
        a.order = order_of(true, a.images, vecs, a.results[0], a.results[1]);
    /* thread indices must fit 32 bits */
    if (!a.order.is_small)
        return false;
    if (a.from_dtype == TARN_F32)
        launch_typed<float>(call, a, is_max, is_backward);
    else if (a.from_dtype == TARN_BF16)
        launch_typed<bf16>(call, a, is_max, is_backward);
    else
        launch_typed<f16>(call, a, is_max, is_backward);
    return true;
}
