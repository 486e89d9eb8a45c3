/* pool_stride2.cu: pooling with stride 2 on NCHW images: 2×2 windows, and 3×3 windows with padding 1.
 *
 * A thread owns 16 bytes of columns in 2 · WINDOW_ROWS rows of the image, and the windows that begin there: the image
 * moves in whole vectors, the result in half ones. All offsets within a plane are 32-bit, and a thread's position is
 * computed once. 3×3 windows see one more row and column above and to the left; a pixel's gradient then comes from one
 * more row and column of windows below and to the right. */
#include "backends/cuda/pool/pool.cuh"

#define WINDOW_ROWS 2

/* Position of a thread's vectors. */
struct stride2_pos {
    int64_t image, channel;
    int32_t row, vec; /* first row of windows; vector of columns */
};

/* Vectors of columns vary fastest, then rows of windows. */
__device__ __forceinline__ stride2_pos stride2_pos_of(const image_order &order, uint32_t number)
{
    stride2_pos p;
    p.vec = pop_index(number, order.columns);
    p.row = pop_index(number, order.rows) * WINDOW_ROWS;
    p.channel = pop_index(number, order.channels);
    p.image = number;
    return p;
}

/* Offset of a channel's plane. */
__device__ __forceinline__ int64_t plane_of(const stride2_pos &p, const int64_t *stride)
{
    return p.image * stride[0] + p.channel * stride[1];
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Updates windows with line `i`. line[0] is the element to the left where windows see it (`has_left`: there is one). */
template <int K, int Q, typename C>
__device__ __forceinline__ void update_max(const C *line, bool has_left, int i, C *best, int32_t *at)
{
#pragma unroll
    for (int q = 0; q < Q; q++)
#pragma unroll
        for (int j = 0; j < K; j++) {
            bool inside = K == 2 || 2 * q + j > 0 || has_left, is_first = K == 2 ? i == 0 && j == 0 : at[q] < 0;
            if (inside & (is_first | is_new_max(line[2 * q + j], best[q]))) {
                best[q] = line[2 * q + j];
                at[q] = i * K + j;
            }
        }
}

/* Padding is 0. */
template <int K, int Q, typename C> __device__ __forceinline__ void update_sums(const C *line, C *sum)
{
#pragma unroll
    for (int q = 0; q < Q; q++) {
        C part = 0;
#pragma unroll
        for (int j = 0; j < K; j++)
            part += line[2 * q + j];
        sum[q] += part;
    }
}

/* Averages from the sums of row `row` of windows. */
template <int K, int Q, typename C>
__device__ __forceinline__ void divide_sums(const pool_args &a, int32_t row, int32_t column, C *sum)
{
    /* 3×3 windows at the border are smaller if padding is excluded */
    int32_t height = K == 2 ? 2 : window_length<int32_t>(a, 0, row);
#pragma unroll
    for (int q = 0; q < Q; q++)
        sum[q] /= (C)(height * (K == 2 ? 2 : window_length<int32_t>(a, 1, column + q)));
}

/* 64 bytes loaded at once per thread. */
template <typename T, int K, bool IS_MAX>
static __global__ void __launch_bounds__(THREADS) pool_kernel(const __grid_constant__ pool_args a)
{
    constexpr int P = vec_size<T>::value, Q = P / 2, EDGE = K - 2, LINES = 2 * WINDOW_ROWS + EDGE;
    uint32_t number = blockIdx.x * THREADS + threadIdx.x;
    if (number >= (uint32_t)a.order.count)
        return;
    const stride2_pos p = stride2_pos_of(a.order, number);
    const int32_t top = 2 * p.row - EDGE, left = P * p.vec, from_line = (int32_t)a.from_stride[2],
                  height = (int32_t)a.size[0];
    const T *from = (const T *)a.from + plane_of(p, a.from_stride) + left;
    vec<T, P> loaded[LINES];
    T edge[LINES];
#pragma unroll
    for (int l = 0; l < LINES; l++) { /* all loads come before the first store */
        if ((top + l < 0) | (top + l >= height))
            continue;
        loaded[l] = *(const vec<T, P> *)(from + (top + l) * from_line);
        /* the column to the left of the vector */
        if (EDGE && left > 0)
            edge[l] = from[(top + l) * from_line - 1];
    }
    T *to = (T *)a.to + plane_of(p, a.to_stride) + Q * p.vec;
    uint8_t *indices = a.indices ? (uint8_t *)a.indices + plane_of(p, a.index_stride) + Q * p.vec : NULL;
#pragma unroll
    for (int r = 0; r < WINDOW_ROWS; r++) {
        if (p.row + r >= (int32_t)a.results[0])
            break;
        compute<T> value[Q] = {}, line[P + EDGE];
        int32_t at[Q];
#pragma unroll
        for (int q = 0; q < Q; q++)
            at[q] = -1;
#pragma unroll
        for (int i = 0; i < K; i++) {
            const int l = 2 * r + i;
            if (EDGE && top + l < 0)
                continue;
            if (EDGE)
                line[0] = left > 0 ? widen(edge[l]) : (compute<T>)0;
            widen_vec(loaded[l], line + EDGE);
            if (IS_MAX)
                update_max<K, Q>(line, left > 0, i, value, at);
            else
                update_sums<K, Q>(line, value);
        }
        if (!IS_MAX)
            divide_sums<K, Q>(a, p.row + r, Q * p.vec, value);
        vec<T, Q> result;
        narrow_vec(value, result);
        *(vec<T, Q> *)(to + (p.row + r) * (int32_t)a.to_stride[2]) = result;
        if (IS_MAX && indices)
            store_indices<Q>(indices + (p.row + r) * (int32_t)a.index_stride[2], at);
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* A row of windows: what each contributes, and to which of its taps. Missing windows contribute 0 to none. */
template <typename C, int W> struct window_line {
    C grad[W];
    int32_t index[W];
};

/* One row of windows: half a vector, plus the window to the right for 3×3. */
template <typename T, int K, bool IS_MAX, int W>
__device__ __forceinline__ void fetch_windows(const pool_args &a, const T *g, const uint8_t *indices, int32_t row,
                                              int32_t column, window_line<compute<T>, W> *to)
{
    constexpr int Q = vec_size<T>::value / 2, EDGE = K - 2;
    g += row * (int32_t)a.from_stride[2] + column;
    indices += IS_MAX ? row * (int32_t)a.index_stride[2] + column : 0;
    const uint2 words = __ldg((const uint2 *)g); /* explicit, as in load_vec: one 8-byte load */
    vec<T, Q> loaded;
    memcpy(&loaded, &words, sizeof(loaded));
    widen_vec(loaded, to->grad);
    if (IS_MAX)
        load_indices<Q>(indices, to->index);
    if (EDGE && column + Q < (int32_t)a.results[1]) {
        to->grad[W - 1] = widen(g[Q]);
        if (IS_MAX)
            to->index[W - 1] = indices[Q];
    }
}

/* Averages: the gradient of each element of a window. */
template <int K, typename C, int W>
__device__ __forceinline__ void divide_grads(const pool_args &a, int32_t row, int32_t column, window_line<C, W> *line)
{
    int32_t height = K == 2 ? 2 : window_length<int32_t>(a, 0, row);
#pragma unroll
    for (int q = 0; q < W; q++)
        if (K == 2 || column + q < (int32_t)a.results[1])
            line->grad[q] /= (C)(height * (K == 2 ? 2 : window_length<int32_t>(a, 1, column + q)));
}

/* Gradients of a line of the image, the `second` of its windows' two: from the windows of `upper`, and for a second
 * line with overlap from those of `lower`, whose first line it is. Columns likewise: element b of window q's two is in
 * window q, and if b is odd and windows overlap also in window q + 1. */
template <int K, int P, bool IS_MAX, typename C, int W>
__device__ __forceinline__ void gather_line(const window_line<C, W> *upper, const window_line<C, W> *lower, int second,
                                            C *gx)
{
#pragma unroll
    for (int x = 0; x < P; x++) {
        gx[x] = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const window_line<C, W> *line = i == 0 ? upper : lower;
            if (!line)
                continue;
#pragma unroll
            for (int j = 0; j <= (K - 2) * (x % 2); j++) {
                const int number = (i == 0 ? (second + K - 2) * K : 0) + (j == 0 ? x % 2 + K - 2 : 0);
                gx[x] += !IS_MAX || line->index[x / 2 + j] == number ? line->grad[x / 2 + j] : (C)0;
            }
        }
    }
}

/* Reads WINDOW_ROWS (+ 1) rows of windows, writes twice as many rows of pixels. */
template <typename T, int K, bool IS_MAX>
static __global__ void __launch_bounds__(THREADS) pool_grad_kernel(const __grid_constant__ pool_args a)
{
    constexpr int P = vec_size<T>::value, Q = P / 2, EDGE = K - 2, W = Q + EDGE, LINES = WINDOW_ROWS + EDGE;
    uint32_t number = blockIdx.x * THREADS + threadIdx.x;
    if (number >= (uint32_t)a.order.count)
        return;
    const stride2_pos p = stride2_pos_of(a.order, number);
    const T *g = (const T *)a.from + plane_of(p, a.from_stride);
    const uint8_t *indices = IS_MAX ? (const uint8_t *)a.indices + plane_of(p, a.index_stride) : NULL;
    window_line<compute<T>, W> lines[LINES];
#pragma unroll
    for (int l = 0; l < LINES; l++) { /* all loads come before the first store */
#pragma unroll
        for (int q = 0; q < W; q++)
            lines[l].grad[q] = 0, lines[l].index[q] = -1;
        if (p.row + l < (int32_t)a.results[0])
            fetch_windows<T, K, IS_MAX>(a, g, indices, p.row + l, Q * p.vec, &lines[l]);
    }
    if (!IS_MAX)
#pragma unroll
        for (int l = 0; l < LINES; l++)
            if (p.row + l < (int32_t)a.results[0])
                divide_grads<K>(a, p.row + l, Q * p.vec, &lines[l]);
    T *to = (T *)a.to + plane_of(p, a.to_stride) + P * p.vec;
#pragma unroll
    for (int r = 0; r < 2 * WINDOW_ROWS; r++) {
        int32_t row = 2 * p.row + r;
        if (row >= (int32_t)a.size[0])
            break;
        compute<T> gx[P];
        /* odd rows of 3×3 windows get a second row of windows */
        gather_line<K, P, IS_MAX>(&lines[r / 2], EDGE && r % 2 ? &lines[(r + EDGE) / 2] : NULL, r % 2, gx);
        vec<T, P> result;
        narrow_vec(gx, result);
        *(vec<T, P> *)(to + row * (int32_t)a.to_stride[2]) = result;
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* The kernel size, 2 or 3, if this call is supported; else 0. */
static int supported_kernel(const pool_args *a, bool is_backward)
{
    if (a->from_dtype != a->to_dtype || a->from_dtype == TARN_F64)
        return 0;
    const size_t bytes = tarn__dtype_bytes(a->from_dtype);
    const int width = (int)(16 / bytes);
    for (int i = 0; i < 2; i++)
        if (a->kernel[i] != a->kernel[0] || a->step[i] != 2 || a->dilation[i] != 1 ||
            a->padding[i] != a->kernel[0] - 2 || a->size[i] != 2 * a->results[i])
            return 0;
    /* every row is whole vectors */
    if ((a->kernel[0] != 2 && a->kernel[0] != 3) || a->size[1] % width != 0)
        return 0;
    bool vectorized = is_vectorizable(a->from, bytes, a->from_stride, 3, is_backward ? width / 2 : width) &&
                      is_vectorizable(a->to, bytes, a->to_stride, 3, is_backward ? width : width / 2) &&
                      (!a->indices || is_vectorizable(a->indices, 1, a->index_stride, 3, width / 2));
    return vectorized ? (int)a->kernel[0] : 0;
}

/* Grid: 256 threads per block, a vector of columns in 2 · WINDOW_ROWS rows of the image each: 64 bytes in flight per
 * thread. Bytes: forward the image read, result and indices written; backward gradients and indices read, the image's
 * gradient written, each once. One-byte indices add 1/16 of the image's bytes in f32 and 1/8 in 16 bits to the 1.25
 * that must move: at most 0.95 and 0.91 of a copy's speed. */
template <typename T, int K, bool IS_MAX>
static void launch(const tarn__call *call, const pool_args &a, bool is_backward)
{
    unsigned blocks = blocks_for(a.order.count, THREADS);
    if (is_backward)
        pool_grad_kernel<T, K, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else
        pool_kernel<T, K, IS_MAX><<<blocks, THREADS, 0, stream_of(call)>>>(a);
}

template <typename T>
static void launch_typed(const tarn__call *call, const pool_args &a, bool is_max, bool is_backward, int kernel)
{
    if (kernel == 2)
        is_max ? launch<T, 2, true>(call, a, is_backward) : launch<T, 2, false>(call, a, is_backward);
    else
        is_max ? launch<T, 3, true>(call, a, is_backward) : launch<T, 3, false>(call, a, is_backward);
}

/* False if sizes, layout or alignment do not fit. */
bool tarn__cuda_pool_stride2(const tarn__call *call, pool_args a, bool is_max, bool is_backward)
{
    int kernel = supported_kernel(&a, is_backward);
    if (!kernel)
        return false;
    int width = (int)(16 / tarn__dtype_bytes(a.from_dtype));
    a.order = order_of(false, a.images, a.channels, (a.results[0] + WINDOW_ROWS - 1) / WINDOW_ROWS, a.size[1] / width);
    /* thread indices must fit 32 bits */
    if (!a.order.is_small)
        return false;
    if (a.from_dtype == TARN_F32)
        launch_typed<float>(call, a, is_max, is_backward, kernel);
    else if (a.from_dtype == TARN_BF16)
        launch_typed<bf16>(call, a, is_max, is_backward, kernel);
    else
        launch_typed<f16>(call, a, is_max, is_backward, kernel);
    return true;
}
