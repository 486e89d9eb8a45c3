/* pool_stride2.cu: pooling that halves an image whose columns lie next to each other: windows of 2 x 2, and of 3 x 3
 * with padding 1, 2 apart.
 *
 * A thread owns 16 bytes of columns in 2 · WINDOW_ROWS rows of the image and the windows that begin there: the image is
 * read or written in whole packs, the result in half ones. All offsets inside a plane are 32-bit, and a thread's place
 * is worked out once. Windows of 3 see one more row and column above and to the left; an element's gradient then comes
 * from one more row and column of windows below and to the right. */
#include "backends/cuda/pool/pool.cuh"

#define WINDOW_ROWS 2

/* Where a thread's packs lie. */
struct half_place {
    int64_t image, channel;
    int32_t row, pack; /* first row of windows; which pack of columns */
};

__device__ __forceinline__ half_place half_place_of(const image_order &order, uint32_t number)
{
    half_place p;
    p.pack = take_digit(number, order.columns);
    p.row = take_digit(number, order.rows) * WINDOW_ROWS;
    p.channel = take_digit(number, order.channels);
    p.image = number;
    return p;
}

__device__ __forceinline__ int64_t plane_of(const half_place &p, const int64_t *stride)
{
    return p.image * stride[0] + p.channel * stride[1];
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Takes line `i` of windows into them. line[0] is the element to the left where windows see it (`has_left`: there is
 * one). */
template <int K, int Q, typename C>
__device__ __forceinline__ void take_largest(const C *line, bool has_left, int i, C *best, int32_t *at)
{
#pragma unroll
    for (int q = 0; q < Q; q++)
#pragma unroll
        for (int j = 0; j < K; j++) {
            bool inside = K == 2 || 2 * q + j > 0 || has_left, is_first = K == 2 ? i == 0 && j == 0 : at[q] < 0;
            if (inside & (is_first | takes_over(line[2 * q + j], best[q]))) {
                best[q] = line[2 * q + j];
                at[q] = i * K + j;
            }
        }
}

/* What lies outside is 0. */
template <int K, int Q, typename C> __device__ __forceinline__ void take_sums(const C *line, C *sum)
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
    int32_t high = K == 2 ? 2 : window_length<int32_t>(a, 0, row);
#pragma unroll
    for (int q = 0; q < Q; q++)
        sum[q] /= (C)(high * (K == 2 ? 2 : window_length<int32_t>(a, 1, column + q)));
}

template <typename T, int K, bool IS_LARGEST>
static __global__ void __launch_bounds__(THREADS) halve(const __grid_constant__ pool_args a)
{
    constexpr int P = pack_size<T>::value, Q = P / 2, EDGE = K - 2, LINES = 2 * WINDOW_ROWS + EDGE;
    uint32_t number = blockIdx.x * THREADS + threadIdx.x;
    if (number >= (uint32_t)a.order.count)
        return;
    const half_place p = half_place_of(a.order, number);
    const int32_t top = 2 * p.row - EDGE, left = P * p.pack, from_line = (int32_t)a.from_stride[2],
                  height = (int32_t)a.size[0];
    const T *from = (const T *)a.from + plane_of(p, a.from_stride) + left;
    pack<T, P> held[LINES];
    T edge[LINES];
#pragma unroll
    for (int l = 0; l < LINES; l++) { /* all is loaded before the first result is stored */
        if ((top + l < 0) | (top + l >= height))
            continue;
        held[l] = *(const pack<T, P> *)(from + (top + l) * from_line);
        if (EDGE && left > 0)
            edge[l] = from[(top + l) * from_line - 1];
    }
    T *to = (T *)a.to + plane_of(p, a.to_stride) + Q * p.pack;
    uint8_t *places = a.places ? (uint8_t *)a.places + plane_of(p, a.place_stride) + Q * p.pack : NULL;
#pragma unroll
    for (int r = 0; r < WINDOW_ROWS; r++) {
        if (p.row + r >= (int32_t)a.results[0])
            break;
        wide<T> value[Q] = {}, line[P + EDGE];
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
                line[0] = left > 0 ? widen(edge[l]) : (wide<T>)0;
            widen_pack(held[l], line + EDGE);
            if (IS_LARGEST)
                take_largest<K, Q>(line, left > 0, i, value, at);
            else
                take_sums<K, Q>(line, value);
        }
        if (!IS_LARGEST)
            divide_sums<K, Q>(a, p.row + r, Q * p.pack, value);
        pack<T, Q> result;
        narrow_pack(value, result);
        *(pack<T, Q> *)(to + (p.row + r) * (int32_t)a.to_stride[2]) = result;
        if (IS_LARGEST && places)
            store_bytes<Q>(places + (p.row + r) * (int32_t)a.place_stride[2], at);
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* A row of windows: what each gives, and to which of its elements. Windows that are not there give 0 to none. */
template <typename C, int W> struct window_line {
    C given[W];
    int32_t place[W];
};

template <typename T, int K, bool IS_LARGEST, int W>
__device__ __forceinline__ void fetch_windows(const pool_args &a, const T *g, const uint8_t *places, int32_t row,
                                              int32_t column, window_line<wide<T>, W> *to)
{
    constexpr int Q = pack_size<T>::value / 2, EDGE = K - 2;
    g += row * (int32_t)a.from_stride[2] + column;
    places += IS_LARGEST ? row * (int32_t)a.place_stride[2] + column : 0;
    const uint2 words = __ldg((const uint2 *)g); /* said outright, as load_pack does: one load of 8 bytes */
    pack<T, Q> held;
    memcpy(&held, &words, sizeof(held));
    widen_pack(held, to->given);
    if (IS_LARGEST)
        fetch_bytes<Q>(places, to->place);
    if (EDGE && column + Q < (int32_t)a.results[1]) {
        to->given[W - 1] = widen(g[Q]);
        if (IS_LARGEST)
            to->place[W - 1] = places[Q];
    }
}

/* Averages: what each element of a window is given. */
template <int K, typename C, int W>
__device__ __forceinline__ void share_out(const pool_args &a, int32_t row, int32_t column, window_line<C, W> *line)
{
    int32_t high = K == 2 ? 2 : window_length<int32_t>(a, 0, row);
#pragma unroll
    for (int q = 0; q < W; q++)
        if (K == 2 || column + q < (int32_t)a.results[1])
            line->given[q] /= (C)(high * (K == 2 ? 2 : window_length<int32_t>(a, 1, column + q)));
}

/* The gradients of a line of the image, the `second` of its windows' two: from the windows of `upper`, and for a second
 * line where windows overlap from those of `lower`, whose first line it is. Columns likewise: element b of window q's
 * two lies in window q, and where b is odd and windows overlap in window q + 1. */
template <int K, int P, bool IS_LARGEST, typename C, int W>
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
                gx[x] += !IS_LARGEST || line->place[x / 2 + j] == number ? line->given[x / 2 + j] : (C)0;
            }
        }
    }
}

template <typename T, int K, bool IS_LARGEST>
static __global__ void __launch_bounds__(THREADS) halve_grad(const __grid_constant__ pool_args a)
{
    constexpr int P = pack_size<T>::value, Q = P / 2, EDGE = K - 2, W = Q + EDGE, LINES = WINDOW_ROWS + EDGE;
    uint32_t number = blockIdx.x * THREADS + threadIdx.x;
    if (number >= (uint32_t)a.order.count)
        return;
    const half_place p = half_place_of(a.order, number);
    const T *g = (const T *)a.from + plane_of(p, a.from_stride);
    const uint8_t *places = IS_LARGEST ? (const uint8_t *)a.places + plane_of(p, a.place_stride) : NULL;
    window_line<wide<T>, W> lines[LINES];
#pragma unroll
    for (int l = 0; l < LINES; l++) { /* all is loaded before the first gradient is stored */
#pragma unroll
        for (int q = 0; q < W; q++)
            lines[l].given[q] = 0, lines[l].place[q] = -1;
        if (p.row + l < (int32_t)a.results[0])
            fetch_windows<T, K, IS_LARGEST>(a, g, places, p.row + l, Q * p.pack, &lines[l]);
    }
    if (!IS_LARGEST)
#pragma unroll
        for (int l = 0; l < LINES; l++)
            if (p.row + l < (int32_t)a.results[0])
                share_out<K>(a, p.row + l, Q * p.pack, &lines[l]);
    T *to = (T *)a.to + plane_of(p, a.to_stride) + P * p.pack;
#pragma unroll
    for (int r = 0; r < 2 * WINDOW_ROWS; r++) {
        int32_t row = 2 * p.row + r;
        if (row >= (int32_t)a.size[0])
            break;
        wide<T> gx[P];
        gather_line<K, P, IS_LARGEST>(&lines[r / 2], EDGE && r % 2 ? &lines[(r + EDGE) / 2] : NULL, r % 2, gx);
        pack<T, P> result;
        narrow_pack(gx, result);
        *(pack<T, P> *)(to + row * (int32_t)a.to_stride[2]) = result;
    }
}

/* ---- starting them ----------------------------------------------------------------------------------------------- */

/* The kernel's size, 2 or 3, where this call halves an image in packs; else 0. */
static int halving(const pool_args *a, bool is_backward)
{
    if (a->from_dtype != a->to_dtype || a->from_dtype == TARN_F64)
        return 0;
    const size_t bytes = tarn__dtype_bytes(a->from_dtype);
    const int width = (int)(16 / bytes);
    for (int i = 0; i < 2; i++)
        if (a->kernel[i] != a->kernel[0] || a->step[i] != 2 || a->dilation[i] != 1 ||
            a->padding[i] != a->kernel[0] - 2 || a->size[i] != 2 * a->results[i])
            return 0;
    if ((a->kernel[0] != 2 && a->kernel[0] != 3) || a->size[1] % width != 0)
        return 0;
    bool in_packs = lies_in_packs(a->from, bytes, a->from_stride, 3, is_backward ? width / 2 : width) &&
                    lies_in_packs(a->to, bytes, a->to_stride, 3, is_backward ? width : width / 2) &&
                    (!a->places || lies_in_packs(a->places, 1, a->place_stride, 3, width / 2));
    return in_packs ? (int)a->kernel[0] : 0;
}

/* 256 threads a block, a pack of columns in 2 · WINDOW_ROWS rows of the image each: 64 bytes read at once by a thread.
 * Bytes: forward the image read, the result and its places written; backward gradients and places read, the image's
 * gradient written, each once. Places of one byte add 1/16 of the image's bytes in f32 and 1/8 in 16 bits to the 1.25
 * that must move: at most 0.95 and 0.91 of a copy of those. */
template <typename T, int K, bool IS_LARGEST>
static void launch(const tarn__call *call, const pool_args &a, bool is_backward)
{
    unsigned blocks = blocks_for(a.order.count, THREADS);
    if (is_backward)
        halve_grad<T, K, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else
        halve<T, K, IS_LARGEST><<<blocks, THREADS, 0, stream_of(call)>>>(a);
}

template <typename T>
static void launch_typed(const tarn__call *call, const pool_args &a, bool is_largest, bool is_backward, int kernel)
{
    if (kernel == 2)
        is_largest ? launch<T, 2, true>(call, a, is_backward) : launch<T, 2, false>(call, a, is_backward);
    else
        is_largest ? launch<T, 3, true>(call, a, is_backward) : launch<T, 3, false>(call, a, is_backward);
}

bool tarn__cuda_pool_stride2(const tarn__call *call, pool_args a, bool is_largest, bool is_backward)
{
    int kernel = halving(&a, is_backward);
    if (!kernel)
        return false;
    int width = (int)(16 / tarn__dtype_bytes(a.from_dtype));
    a.order = order_of(false, a.images, a.channels, (a.results[0] + WINDOW_ROWS - 1) / WINDOW_ROWS, a.size[1] / width);
    if (!a.order.is_small)
        return false;
    if (a.from_dtype == TARN_F32)
        launch_typed<float>(call, a, is_largest, is_backward, kernel);
    else if (a.from_dtype == TARN_BF16)
        launch_typed<bf16>(call, a, is_largest, is_backward, kernel);
    else
        launch_typed<f16>(call, a, is_largest, is_backward, kernel);
    return true;
}
