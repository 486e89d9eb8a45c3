/* pool_nhwc.cu: pooling of images whose channels lie next to each other ("channels last"), for any window.
 *
 * A thread owns 16 bytes of channels: windows and places are worked out once for all of them, and everything moves in
 * whole packs. Forward it takes one window; backward it takes the same column of ROWS rows of the image, whose windows
 * are mostly the same ones, or, where windows of 2 by 2 or 3 by 3 lie side by side over all of the image, one window
 * again. */
#include "backends/cuda/pool/pool.cuh"

#define ROWS 2 /* of the image a thread, backward */

struct pack_place {
    int64_t image, channel;
    int32_t row, column;
};

template <int P> __device__ __forceinline__ pack_place pack_place_of(const image_order &order, uint32_t number)
{
    pack_place p;
    p.channel = (int64_t)take_digit(number, order.channels) * P;
    p.column = take_digit(number, order.columns);
    p.row = take_digit(number, order.rows);
    p.image = number;
    return p;
}

__device__ __forceinline__ int64_t plane_of(const pack_place &p, const int64_t *stride)
{
    return p.image * stride[0] + p.channel;
}

/* Of a window, where a thread has one. */
__device__ __forceinline__ int64_t place_in(const pack_place &p, const int64_t *stride)
{
    return plane_of(p, stride) + p.row * (int32_t)stride[2] + p.column * (int32_t)stride[3];
}

/* Places of all channels of a pack. Those of 4 bytes move in packs of 4; kernels made for small windows (IS_SMALL) have
 * none. */
template <int P, bool IS_SMALL>
__device__ __forceinline__ void store_places(const pool_args &a, int64_t to, const int32_t *at)
{
    if (IS_SMALL || a.has_bytes) {
        store_bytes<P>((uint8_t *)a.places + to, at);
    } else {
#pragma unroll
        for (int k = 0; k < P; k += 4)
            __stwb((int4 *)((int32_t *)a.places + to + k), make_int4(at[k], at[k + 1], at[k + 2], at[k + 3]));
    }
}

template <int P, bool IS_SMALL>
__device__ __forceinline__ void fetch_places(const pool_args &a, int64_t from, int32_t *at)
{
    if (IS_SMALL || a.has_bytes) {
        fetch_bytes<P>((const uint8_t *)a.places + from, at);
    } else {
#pragma unroll
        for (int k = 0; k < P; k += 4) {
            int4 four = __ldg((const int4 *)((const int32_t *)a.places + from + k));
            at[k] = four.x, at[k + 1] = four.y, at[k + 2] = four.z, at[k + 3] = four.w;
        }
    }
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Element (i, j) of a window that begins at (top, left): where it lies in the image. */
struct window_at {
    int32_t y, x;
    bool inside;
};

__device__ __forceinline__ window_at in_window(const pool_args &a, int32_t top, int32_t left, int32_t i, int32_t j)
{
    int32_t y = top + i * (int32_t)a.dilation[0], x = left + j * (int32_t)a.dilation[1];
    bool inside = (y >= 0) & (y < (int32_t)a.size[0]) & (x >= 0) & (x < (int32_t)a.size[1]);
    return window_at{y, x, inside};
}

template <typename T, int P>
__device__ __forceinline__ pack<T, P> fetch_at(const pool_args &a, const T *from, const window_at &w)
{
    return load_pack<T, P>(from + (w.y * (int32_t)a.from_stride[2] + w.x * (int32_t)a.from_stride[3]));
}

/* The largest of each channel, or the sum, made row by row of the window. K is the kernel's size where it is compiled
 * in, so that all of a window is loaded at once, or 0. */
template <typename T, int K, bool IS_LARGEST, int P>
__device__ __forceinline__ void over_window(const pool_args &a, const T *from, int32_t top, int32_t left,
                                            wide<T> *value, int32_t *at)
{
    const int32_t high = K ? K : (int32_t)a.kernel[0], broad = K ? K : (int32_t)a.kernel[1];
    pack<T, P> held[K ? K * K : 1];
#pragma unroll
    for (int32_t n = 0; n < K * K; n++) {
        window_at w = in_window(a, top, left, n / (K ? K : 1), n % (K ? K : 1));
        if (w.inside)
            held[n] = fetch_at<T, P>(a, from, w);
    }
    bool is_first = true;
#pragma unroll
    for (int32_t i = 0; i < high; i++) {
        wide<T> line[P] = {};
#pragma unroll
        for (int32_t j = 0; j < broad; j++) {
            window_at w = in_window(a, top, left, i, j);
            if (!w.inside)
                continue;
            wide<T> here[P];
            widen_pack(K ? held[i * K + j] : fetch_at<T, P>(a, from, w), here);
#pragma unroll
            for (int k = 0; k < P; k++) {
                line[k] += IS_LARGEST ? 0 : here[k];
                if (IS_LARGEST && (is_first | takes_over(here[k], value[k]))) {
                    value[k] = here[k];
                    at[k] = i * broad + j;
                }
            }
            is_first = false;
        }
#pragma unroll
        for (int k = 0; k < P; k++)
            value[k] += IS_LARGEST ? 0 : line[k];
    }
}

template <typename T, int K, bool IS_LARGEST>
static __global__ void __launch_bounds__(THREADS) pool_packs(const __grid_constant__ pool_args a)
{
    constexpr int P = pack_size<T>::value;
    uint32_t number = blockIdx.x * THREADS + threadIdx.x;
    if (number >= (uint32_t)a.order.count)
        return;
    const pack_place p = pack_place_of<P>(a.order, number);
    wide<T> value[P];
    int32_t at[P];
#pragma unroll
    for (int k = 0; k < P; k++) { /* what stays where a window sees nothing of the image */
        value[k] = IS_LARGEST ? -(wide<T>)CUDART_INF : (wide<T>)0;
        at[k] = -1;
    }
    over_window<T, K, IS_LARGEST, P>(a, (const T *)a.from + plane_of(p, a.from_stride),
                                     p.row * (int32_t)a.step[0] - (int32_t)a.padding[0],
                                     p.column * (int32_t)a.step[1] - (int32_t)a.padding[1], value, at);
    if (!IS_LARGEST) {
        wide<T> count =
            (wide<T>)((int64_t)window_length<int32_t>(a, 0, p.row) * window_length<int32_t>(a, 1, p.column));
#pragma unroll
        for (int k = 0; k < P; k++)
            value[k] /= count;
    }
    pack<T, P> result;
    narrow_pack(value, result);
    store_pack((T *)a.to + place_in(p, a.to_stride), result);
    if (IS_LARGEST && a.places)
        store_places<P, K != 0>(a, place_in(p, a.place_stride), at);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* What element (row, column) of each channel is given by the windows top to bottom, left to right. W is how many there
 * are at most on an axis where that is compiled in and places are bytes, or 0. */
template <typename T, int W, bool IS_LARGEST, int P>
__device__ __forceinline__ void given_to_packs(const pool_args &a, const T *g, int64_t places, int32_t row,
                                               int32_t column, wide<T> *sum)
{
    int32_t top, bottom, left, right;
    windows_over<int32_t>(a, 0, row, &top, &bottom);
    windows_over<int32_t>(a, 1, column, &left, &right);
    const int32_t high = W ? W : bottom - top + 1, broad = W ? W : right - left + 1;
#pragma unroll
    for (int32_t i = 0; i < high; i++)
#pragma unroll
        for (int32_t j = 0; j < broad; j++) {
            int32_t y = top + i, x = left + j, number = 0, at[P];
            if ((y > bottom) | (x > right))
                continue;
            wide<T> value[P], count = 1;
            widen_pack(load_pack<T, P>(g + (y * (int32_t)a.from_stride[2] + x * (int32_t)a.from_stride[3])), value);
            if (IS_LARGEST) {
                fetch_places<P, W != 0>(a, places + (y * (int32_t)a.place_stride[2] + x * (int32_t)a.place_stride[3]),
                                        at);
                number =
                    number_in<int32_t>(a, number_along<int32_t>(a, 0, row, y), number_along<int32_t>(a, 1, column, x));
            } else
                count = (wide<T>)((int64_t)window_length<int32_t>(a, 0, y) * window_length<int32_t>(a, 1, x));
#pragma unroll
            for (int k = 0; k < P; k++)
                if (IS_LARGEST)
                    sum[k] += at[k] == number ? value[k] : 0;
                else
                    sum[k] += value[k] / count;
        }
}

template <typename T, int W, bool IS_LARGEST>
static __global__ void __launch_bounds__(THREADS) pool_packs_grad(const __grid_constant__ pool_args a)
{
    constexpr int P = pack_size<T>::value;
    uint32_t number = blockIdx.x * THREADS + threadIdx.x;
    if (number >= (uint32_t)a.order.count)
        return;
    const pack_place p = pack_place_of<P>(a.order, number);
    const T *g = (const T *)a.from + plane_of(p, a.from_stride);
    const int64_t places = plane_of(p, a.place_stride);
    T *to = (T *)a.to + plane_of(p, a.to_stride) + p.column * (int32_t)a.to_stride[3];
    wide<T> sum[ROWS][P] = {};
#pragma unroll
    for (int u = 0; u < ROWS; u++)
        if (p.row * ROWS + u < (int32_t)a.size[0])
            given_to_packs<T, W, IS_LARGEST, P>(a, g, places, p.row * ROWS + u, p.column, sum[u]);
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        if (p.row * ROWS + u >= (int32_t)a.size[0])
            break;
        pack<T, P> result;
        narrow_pack(sum[u], result);
        store_pack(to + (p.row * ROWS + u) * (int32_t)a.to_stride[2], result);
    }
}

/* Every element of the image lies in one window of K by K: its gradient and places are read once, and all of its
 * elements are written. */
template <typename T, int K, bool IS_LARGEST>
static __global__ void __launch_bounds__(THREADS) pool_packs_spread(const __grid_constant__ pool_args a)
{
    constexpr int P = pack_size<T>::value;
    uint32_t number = blockIdx.x * THREADS + threadIdx.x;
    if (number >= (uint32_t)a.order.count)
        return;
    const pack_place p = pack_place_of<P>(a.order, number);
    pack<T, P> g = load_pack<T, P>((const T *)a.from + place_in(p, a.from_stride));
    int32_t at[P];
    if (IS_LARGEST) {
        fetch_places<P, true>(a, place_in(p, a.place_stride), at);
    } else {
        wide<T> value[P];
        widen_pack(g, value);
#pragma unroll
        for (int k = 0; k < P; k++)
            value[k] /= (wide<T>)(K * K);
        narrow_pack(value, g);
    }
    T *to = (T *)a.to + plane_of(p, a.to_stride) + p.row * K * (int32_t)a.to_stride[2] +
            p.column * K * (int32_t)a.to_stride[3];
#pragma unroll
    for (int n = 0; n < K * K; n++) {
        pack<T, P> result = g;
#pragma unroll
        for (int k = 0; k < P; k++)
            if (IS_LARGEST && at[k] != n)
                result.at[k] = narrow<T>((wide<T>)0);
        store_pack(to + (n / K * (int32_t)a.to_stride[2] + n % K * (int32_t)a.to_stride[3]), result);
    }
}

/* ---- starting them ----------------------------------------------------------------------------------------------- */

static bool moves_in_packs(const pool_args *a)
{
    if (a->from_dtype != a->to_dtype || a->from_dtype == TARN_F64)
        return false;
    const size_t bytes = tarn__dtype_bytes(a->from_dtype);
    const int width = (int)(16 / bytes);
    return a->channels % width == 0 && lies_in_packs(a->from, bytes, a->from_stride, 1, width) &&
           lies_in_packs(a->to, bytes, a->to_stride, 1, width) &&
           (!a->places || (a->has_bytes ? lies_in_packs(a->places, 1, a->place_stride, 1, width)
                                        : lies_in_packs(a->places, 4, a->place_stride, 1, 4)));
}

/* True where windows of 2 by 2 or 3 by 3 take all of the image, each element once. */
static bool lies_side_by_side(const pool_args *a)
{
    const int64_t side = a->kernel[0];
    for (int i = 0; i < 2; i++)
        if (a->kernel[i] != side || a->step[i] != side || a->dilation[i] != 1 || a->padding[i] != 0 ||
            a->results[i] * side != a->size[i])
            return false;
    return side == 2 || side == 3;
}

/* 256 threads a block, a pack of channels of one window each. Bytes: the image read, the result and its places written.
 */
template <typename T, bool IS_LARGEST> static void launch_forward(const tarn__call *call, const pool_args &a)
{
    unsigned blocks = blocks_for(a.order.count, THREADS);
    bool is_square = a.kernel[0] == a.kernel[1];
    if (is_square && a.kernel[0] == 2)
        pool_packs<T, 2, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else if (is_square && a.kernel[0] == 3)
        pool_packs<T, 3, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else
        pool_packs<T, 0, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
}

/* The same over the image, ROWS rows a thread, or over windows. Bytes: gradients and places read, the image's gradient
 * written; what neighbours read again comes from the caches. */
template <typename T, bool IS_LARGEST> static void launch_backward(const tarn__call *call, const pool_args &a)
{
    unsigned blocks = blocks_for(a.order.count, THREADS);
    if (lies_side_by_side(&a)) {
        if (a.kernel[0] == 2)
            pool_packs_spread<T, 2, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
        else
            pool_packs_spread<T, 3, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
        return;
    }
    int64_t rows = (a.kernel[0] - 1) * a.dilation[0] / a.step[0] + 1,
            columns = (a.kernel[1] - 1) * a.dilation[1] / a.step[1] + 1;
    int64_t windows = rows > columns ? rows : columns;
    bool has_words = IS_LARGEST && !a.has_bytes;
    if (windows == 1 && !has_words)
        pool_packs_grad<T, 1, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else if (windows == 2 && !has_words)
        pool_packs_grad<T, 2, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else
        pool_packs_grad<T, 0, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
}

template <typename T>
static void launch_typed(const tarn__call *call, const pool_args &a, bool is_largest, bool is_backward)
{
    if (is_backward)
        is_largest ? launch_backward<T, true>(call, a) : launch_backward<T, false>(call, a);
    else
        is_largest ? launch_forward<T, true>(call, a) : launch_forward<T, false>(call, a);
}

bool tarn__cuda_pool_nhwc(const tarn__call *call, pool_args a, bool is_largest, bool is_backward)
{
    if (!moves_in_packs(&a))
        return false;
    int64_t packs = a.channels / (int64_t)(16 / tarn__dtype_bytes(a.from_dtype));
    if (is_backward && !lies_side_by_side(&a))
        a.order = order_of(true, a.images, packs, (a.size[0] + ROWS - 1) / ROWS, a.size[1]);
    else
        a.order = order_of(true, a.images, packs, a.results[0], a.results[1]);
    if (!a.order.is_small)
        return false;
    if (a.from_dtype == TARN_F32)
        launch_typed<float>(call, a, is_largest, is_backward);
    else if (a.from_dtype == TARN_BF16)
        launch_typed<bf16>(call, a, is_largest, is_backward);
    else
        launch_typed<f16>(call, a, is_largest, is_backward);
    return true;
}
