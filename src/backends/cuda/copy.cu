/* copy.cu: copies with any strides and dtypes.
 *
 * Copies within one dtype move bits, by the first of these that fits the collapsed nest (operand 0 the target, 1 the source):
 *   flat        both lie in one piece: the driver's copy;
 *   units       rows that are dense on both sides, or repeated, and lie alike: in units of up to 16 bytes, as wide as their alignment allows;
 *   transposed  each side is dense along another axis: square tiles through shared memory, both sides moved in 16 bytes where they are aligned;
 *   chunks      the target lies in one piece: a thread writes 16 bytes of it and gathers them one by one, stepping along the source's row;
 *   single      whatever is left.
 * All move 2 · bytes an element. Copies that convert are packed where both sides are flat floats, else one by one. */
#include "backends/cuda/element.cuh"

template <int BYTES> struct bits_of;
template <> struct bits_of<1> {
    typedef uint8_t type;
};
template <> struct bits_of<2> {
    typedef uint16_t type;
};
template <> struct bits_of<4> {
    typedef uint32_t type;
};
template <> struct bits_of<8> {
    typedef uint64_t type;
};
template <> struct bits_of<16> {
    typedef uint4 type;
};
template <int BYTES> using bits = typename bits_of<BYTES>::type;

/* ---- units ----------------------------------------------------------------------------------------------------------------- */

#define UNITS 4 /* a thread: all loaded before the first is stored */

struct copy_args {
    void *to;
    const void *from;
    int64_t count;
    places<2> places;
};

template <typename B> static __global__ void __launch_bounds__(THREADS) units_kernel(const __grid_constant__ copy_args a)
{
    int64_t first = (int64_t)blockIdx.x * (THREADS * UNITS) + threadIdx.x, to[UNITS];
    B x[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        int64_t at = first + u * THREADS, offset[2];
        if (at < a.count) {
            locate(a.places, at, offset);
            to[u] = offset[0];
            x[u] = ((const B *)a.from)[offset[1]];
        }
    }
#pragma unroll
    for (int u = 0; u < UNITS; u++)
        if (first + u * THREADS < a.count)
            ((B *)a.to)[to[u]] = x[u];
}

/* The widest unit, in bytes, in which the rows of both sides can be moved. */
static int widest_unit(const tarn__nest *nest, const void *to, const void *from, int size)
{
    int last = nest->rank - 1;
    int unit = 16;
    for (; unit > size; unit /= 2) {
        bool fits = nest->shape[last] * size % unit == 0 && is_aligned(to, (size_t)unit) && is_aligned(from, (size_t)unit);
        for (int i = 0; fits && i < last; i++)
            fits = nest->stride[0][i] * size % unit == 0 && nest->stride[1][i] * size % unit == 0;
        if (fits)
            break;
    }
    return unit;
}

/* Sizes and strides counted in units. */
static void count_in_units(tarn__nest *nest, int per_unit)
{
    int last = nest->rank - 1;
    for (int i = 0; i < last; i++) {
        nest->stride[0][i] /= per_unit;
        nest->stride[1][i] /= per_unit;
    }
    nest->shape[last] /= per_unit;
    nest->count /= per_unit;
}

static void launch_units(const tarn__call *call, const tarn__nest *nest, int unit)
{
    copy_args a = {tarn__view_at(call->out[0]), tarn__view_at(call->in[0]), nest->count, places_of<2>(nest)};
    unsigned blocks = blocks_for(nest->count, THREADS * UNITS);
    switch (unit) {
    case 16: units_kernel<bits<16>><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    case 8: units_kernel<bits<8>><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    case 4: units_kernel<bits<4>><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    case 2: units_kernel<bits<2>><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    default: units_kernel<bits<1>><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    }
}

/* ---- transposed ------------------------------------------------------------------------------------------------------------ */

#define TILE 64

struct transpose_args {
    void *to;
    const void *from;
    int64_t rows, columns;      /* the target is dense along columns, the source along rows */
    int64_t to_row, from_column; /* strides */
    uint32_t row_tiles, column_tiles;
    bool is_aligned;
    places<2> outer;
};

/* A tile of 64 × 64 elements for each block of 256 threads: 16 bytes a thread and turn on both sides. A row of the tile is padded by one 4-byte
 * bank (two elements of 2 bytes, one of 4), so that a column crosses all banks. */
template <int BYTES> static __global__ void __launch_bounds__(THREADS) transpose_kernel(const __grid_constant__ transpose_args a)
{
    typedef bits<BYTES> B;
    constexpr int N = 16 / BYTES, LANES = TILE / N, PAD = BYTES < 4 ? 4 / BYTES : 1;
    __shared__ B tile[TILE][TILE + PAD]; /* [column][row] */
    uint32_t within = blockIdx.x % (a.row_tiles * a.column_tiles), batch = blockIdx.x / (a.row_tiles * a.column_tiles);
    int64_t row = (int64_t)(within % a.row_tiles) * TILE, column = (int64_t)(within / a.row_tiles) * TILE, offset[2];
    locate(a.outer, batch, offset);
    const B *from = (const B *)a.from + offset[1] + column * a.from_column + row;
    B *to = (B *)a.to + offset[0] + row * a.to_row + column;
    int rows = (int)(a.rows - row < TILE ? a.rows - row : TILE), columns = (int)(a.columns - column < TILE ? a.columns - column : TILE);
    int lane = (int)threadIdx.x % LANES * N;
#pragma unroll
    for (int c = (int)threadIdx.x / LANES; c < TILE; c += THREADS / LANES) {
        if (c >= columns)
            break;
        pack<B, N> x;
        if (a.is_aligned && lane + N <= rows) {
            x = *(const pack<B, N> *)(from + c * a.from_column + lane);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                x.at[i] = lane + i < rows ? from[c * a.from_column + lane + i] : B{};
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            tile[c][lane + i] = x.at[i];
    }
    __syncthreads();
#pragma unroll
    for (int r = (int)threadIdx.x / LANES; r < TILE; r += THREADS / LANES) {
        if (r >= rows)
            break;
        pack<B, N> x;
#pragma unroll
        for (int i = 0; i < N; i++)
            x.at[i] = lane + i < columns ? tile[lane + i][r] : B{};
        if (a.is_aligned && lane + N <= columns) {
            *(pack<B, N> *)(to + r * a.to_row + lane) = x;
        } else {
            for (int i = 0; i < N && lane + i < columns; i++)
                to[r * a.to_row + lane + i] = x.at[i];
        }
    }
}

/* The axis, other than the last, along which the source is dense; -1 when there is none worth a tile. */
static int dense_axis(const tarn__nest *nest)
{
    int last = nest->rank - 1;
    if (nest->rank < 2 || nest->stride[0][last] != 1 || nest->shape[last] < 8)
        return -1;
    for (int i = 0; i < last; i++)
        if (nest->stride[1][i] == 1 && nest->shape[i] >= 8)
            return i;
    return -1;
}

static bool launch_transposed(const tarn__call *call, const tarn__nest *nest, int size)
{
    int row = dense_axis(nest), last = nest->rank - 1;
    if (row < 0 || nest->stride[1][last] == 0)
        return false;
    transpose_args a = {tarn__view_at(call->out[0]), tarn__view_at(call->in[0]), nest->shape[row], nest->shape[last], nest->stride[0][row],
                        nest->stride[1][last]};
    tarn__nest outer = *nest;
    outer.rank = 0;
    outer.count = 1;
    bool even = is_aligned(a.to, 16) && is_aligned(a.from, 16) && a.to_row * size % 16 == 0 && a.from_column * size % 16 == 0;
    for (int i = 0; i < last; i++) {
        if (i == row)
            continue;
        outer.shape[outer.rank] = nest->shape[i];
        for (int k = 0; k < 2; k++) {
            outer.stride[k][outer.rank] = nest->stride[k][i];
            even = even && nest->stride[k][i] * size % 16 == 0;
        }
        outer.rank++;
        outer.count *= nest->shape[i];
    }
    int64_t row_tiles = (a.rows + TILE - 1) / TILE, column_tiles = (a.columns + TILE - 1) / TILE;
    if (row_tiles * column_tiles * outer.count >= ((int64_t)1 << 31))
        return false;
    a.row_tiles = (uint32_t)row_tiles;
    a.column_tiles = (uint32_t)column_tiles;
    a.is_aligned = even;
    a.outer = places_of<2>(&outer);
    unsigned blocks = (unsigned)(row_tiles * column_tiles * outer.count);
    switch (size) {
    case 1: transpose_kernel<1><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    case 2: transpose_kernel<2><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    case 4: transpose_kernel<4><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    default: transpose_kernel<8><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    }
    return true;
}

/* ---- chunks ---------------------------------------------------------------------------------------------------------------- */

struct chunk_args {
    void *to;
    const void *from;
    int64_t count; /* elements */
    int64_t inner, along; /* the last axis: its size, and the source's stride */
    places<1> places;     /* of the source */
};

/* 16 bytes of the target a thread. The place in the source is worked out once, and again only where a row ends. */
template <int BYTES> static __global__ void __launch_bounds__(THREADS) chunks_kernel(const __grid_constant__ chunk_args a)
{
    typedef bits<BYTES> B;
    constexpr int N = 16 / BYTES;
    int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N, offset[1];
    if (first >= a.count)
        return;
    const B *from = (const B *)a.from;
    B *to = (B *)a.to + first;
    int64_t row = a.places.is_small ? divide_small((uint32_t)first, a.places.size[a.places.rank - 1]) : (int64_t)divide_large((uint64_t)first, (uint64_t)a.inner);
    int64_t left = a.inner - (first - row * a.inner); /* in this row */
    int n = (int)(a.count - first < N ? a.count - first : N);
    locate(a.places, first, offset);
    pack<B, N> x;
    if (left >= N && n == N) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x.at[i] = from[offset[0] + i * a.along];
        *(pack<B, N> *)to = x;
        return;
    }
    for (int i = 0; i < n; i++) {
        if (left == 0) {
            locate(a.places, first + i, offset);
            left = a.inner;
        }
        to[i] = from[offset[0]];
        offset[0] += a.along;
        left--;
    }
}

static void launch_chunks(const tarn__call *call, const tarn__nest *nest, int size)
{
    tarn__nest source = *nest;
    for (int i = 0; i < nest->rank; i++)
        source.stride[0][i] = nest->stride[1][i];
    int last = nest->rank - 1;
    chunk_args a = {tarn__view_at(call->out[0]), tarn__view_at(call->in[0]), nest->count, nest->shape[last], nest->stride[1][last], places_of<1>(&source)};
    unsigned blocks = blocks_for(nest->count, THREADS * 16 / size);
    switch (size) {
    case 1: chunks_kernel<1><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    case 2: chunks_kernel<2><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    case 4: chunks_kernel<4><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    default: chunks_kernel<8><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    }
}

/* True when operand k's elements lie in one piece, in the nest's order. */
static bool is_piece(const tarn__nest *nest, int k)
{
    int64_t expected = 1;
    for (int i = nest->rank - 1; i >= 0; i--) {
        if (nest->stride[k][i] != expected)
            return false;
        expected *= nest->shape[i];
    }
    return true;
}

static void move_bits(const tarn__call *call, const tarn__nest *nest, int size)
{
    void *to = tarn__view_at(call->out[0]);
    const void *from = tarn__view_at(call->in[0]);
    if (is_piece(nest, 0) && is_piece(nest, 1)) {
        cudaMemcpyAsync(to, from, (size_t)(nest->count * size), cudaMemcpyDeviceToDevice, stream_of(call));
        return;
    }
    int last = nest->rank - 1;
    bool has_rows = nest->rank > 0 && nest->stride[0][last] == 1 && nest->stride[1][last] == 1;
    int unit = has_rows ? widest_unit(nest, to, from, size) : size;
    if (unit == 16 || (unit == 8 && size == 4)) {
        tarn__nest units = *nest;
        count_in_units(&units, unit / size);
        launch_units(call, &units, unit);
    } else if (has_rows || !launch_transposed(call, nest, size)) {
        if (is_piece(nest, 0) && is_aligned(to, 16))
            launch_chunks(call, nest, size);
        else
            launch_units(call, nest, size);
    }
}

/* ---- conversions ----------------------------------------------------------------------------------------------------------- */

template <typename C> struct convert_args {
    void *to;
    const void *from;
    tarn_dtype to_dtype, from_dtype;
    int64_t count;
    places<2> places;
};

template <typename C> static __global__ void __launch_bounds__(THREADS) convert_kernel(const __grid_constant__ convert_args<C> a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[2];
    if (at >= a.count)
        return;
    locate(a.places, at, offset);
    store_any(a.to, a.to_dtype, offset[0], load_any<C>(a.from, a.from_dtype, offset[1]));
}

/* Eight elements a thread: 16 bytes on the 16-bit side. */
template <typename T, typename O> static __global__ void __launch_bounds__(THREADS) convert_packed_kernel(const T *from, O *to, int64_t count)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
    if (at + 8 <= count) {
        constexpr int N = pack_size<T>::value < 8 ? pack_size<T>::value : 8, M = pack_size<O>::value < 8 ? pack_size<O>::value : 8;
        pack<T, N> x[8 / N];
        pack<O, M> y[8 / M];
#pragma unroll
        for (int i = 0; i < 8 / N; i++)
            x[i] = ((const pack<T, N> *)(from + at))[i];
#pragma unroll
        for (int i = 0; i < 8; i++)
            y[i / M].at[i % M] = narrow<O>(widen(x[i / N].at[i % N]));
#pragma unroll
        for (int i = 0; i < 8 / M; i++)
            ((pack<O, M> *)(to + at))[i] = y[i];
    } else {
        for (; at < count; at++)
            to[at] = narrow<O>(widen(from[at]));
    }
}

template <typename T, typename O> static bool convert_packed(const tarn__call *call, int64_t count)
{
    const T *from = (const T *)tarn__view_at(call->in[0]);
    O *to = (O *)tarn__view_at(call->out[0]);
    if (!is_aligned(from, 16) || !is_aligned(to, 16))
        return false;
    convert_packed_kernel<T, O><<<blocks_for(count, THREADS * 8), THREADS, 0, stream_of(call)>>>(from, to, count);
    return true;
}

static bool convert_flat(const tarn__call *call, int64_t count)
{
    tarn_dtype from = call->in[0]->dtype, to = call->out[0]->dtype;
    if (from == TARN_F32 && to == TARN_BF16)
        return convert_packed<float, bf16>(call, count);
    if (from == TARN_BF16 && to == TARN_F32)
        return convert_packed<bf16, float>(call, count);
    if (from == TARN_F32 && to == TARN_F16)
        return convert_packed<float, f16>(call, count);
    return from == TARN_F16 && to == TARN_F32 && convert_packed<f16, float>(call, count);
}

template <typename C> static void convert_single(const tarn__call *call, const tarn__nest *nest)
{
    convert_args<C> a = {tarn__view_at(call->out[0]), tarn__view_at(call->in[0]), call->out[0]->dtype, call->in[0]->dtype, nest->count, places_of<2>(nest)};
    convert_kernel<C><<<blocks_for(nest->count, THREADS), THREADS, 0, stream_of(call)>>>(a);
}

static void kernel_copy(const tarn__call *call)
{
    const tarn__view *views[] = {call->out[0], call->in[0]};
    tarn_dtype from = call->in[0]->dtype;
    tarn__nest nest;
    tarn__nest_make(&nest, 2, views);
    if (nest.count == 0)
        return;
    if (from == call->out[0]->dtype)
        move_bits(call, &nest, (int)tarn__dtype_bytes(from));
    else if (is_piece(&nest, 0) && is_piece(&nest, 1) && convert_flat(call, nest.count))
        return;
    else if (from == TARN_F64)
        convert_single<double>(call, &nest);
    else if (tarn__is_float(from))
        convert_single<float>(call, &nest);
    else
        convert_single<int64_t>(call, &nest);
}

void tarn__cuda_copy(tarn__kernel_row *rows)
{
    rows[TARN__K_copy] = tarn__kernel_row{kernel_copy, TARN__ALL, NULL};
}
