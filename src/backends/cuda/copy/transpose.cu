/* transpose.cu: copies between layouts that are contiguous along different axes, in tiles through shared memory.
 *
 * Both sides move in 16 bytes if aligned. A tile has the target's layout in shared memory: rows of 16 groups of 16
 * bytes. Elements narrower than 4 bytes are first joined in registers to words of adjacent elements in the target's
 * direction, so that shared memory is written in whole banks and read back in whole groups. Group g of row r is at g ^
 * (r / N) % 8, with N elements in 16 bytes: the 8 lanes that write N rows each, and the 8 that read one row, hit 32
 * different banks. */
#include "backends/cuda/copy/copy.cuh"

/* Matrices (rows, columns), batched over the outer axes. */
struct transpose_args {
    void *to;
    const void *from;
    int64_t rows, columns;       /* the target is contiguous along columns, the source along rows */
    int64_t to_row, from_column; /* strides */
    uint32_t row_tiles, column_tiles;
    bool is_aligned;
    offset_calc<2> outer;
};

template <int BYTES> struct element_of {
    typedef uint8_t type;
};
template <> struct element_of<2> {
    typedef uint16_t type;
};
template <> struct element_of<4> {
    typedef uint32_t type;
};
template <> struct element_of<8> {
    typedef uint64_t type;
};

/* A tile: target rows are 256 bytes of columns; source columns 128 bytes of rows, or 256 for large elements. */
template <int BYTES> struct tile_of {
    typedef typename element_of<BYTES>::type B;
    static constexpr int N = 16 / BYTES;                          /* elements per vector */
    static constexpr int JOINED = BYTES < 4 ? 4 / BYTES : 1;      /* elements per word */
    static constexpr int HALVES = BYTES < 4 ? 1 : 2;              /* of 8 vectors, along a source column */
    static constexpr int ROWS = HALVES * 8 * N, COLUMNS = 16 * N; /* of the tile */
    /* passes to load it: JOINED vectors per thread in each */
    static constexpr int PASSES = HALVES * (COLUMNS / JOINED) / (THREADS / 8);
};

/* Element i of each of the vectors, as one word. */
template <int BYTES> __device__ __forceinline__ auto join(const uint4 *x, int i)
{
    uint32_t word[tile_of<BYTES>::JOINED];
#pragma unroll
    for (int k = 0; k < tile_of<BYTES>::JOINED; k++)
        word[k] = ((const uint32_t *)&x[k])[i * BYTES / 4];
    if constexpr (BYTES == 8) {
        return ((const uint64_t *)x)[i];
    } else if constexpr (BYTES == 4) {
        return word[0];
    } else if constexpr (BYTES == 2) {
        return __byte_perm(word[0], word[1], i % 2 ? 0x7632 : 0x5410);
    } else {
        uint32_t selector = (uint32_t)(i % 4 | (i % 4 + 4) << 4);
        return __byte_perm(__byte_perm(word[0], word[1], selector), __byte_perm(word[2], word[3], selector), 0x5410);
    }
}

/* `left` of the vector's elements exist. */
template <int BYTES>
__device__ __forceinline__ uint4 load_vec(const typename tile_of<BYTES>::B *from, int left, bool is_aligned)
{
    typedef typename tile_of<BYTES>::B B;
    constexpr int N = tile_of<BYTES>::N;
    if (is_aligned && left >= N)
        return *(const uint4 *)from;
    vec<B, N> x;
#pragma unroll
    for (int i = 0; i < N; i++)
        x.at[i] = i < left ? from[i] : (B)0;
    return *(const uint4 *)&x;
}

/* From shared memory. */
template <int BYTES>
__device__ __forceinline__ void store_vec(typename tile_of<BYTES>::B *to, const uint4 *from, int left, bool is_aligned)
{
    constexpr int N = tile_of<BYTES>::N;
    if (is_aligned && left >= N) {
        *(uint4 *)to = *from;
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < left)
            to[i] = ((const typename tile_of<BYTES>::B *)from)[i];
}

/* One tile per block of 256 threads. */
template <int BYTES>
static __global__ void __launch_bounds__(THREADS) transpose_kernel(const __grid_constant__ transpose_args a)
{
    typedef tile_of<BYTES> shape;
    typedef typename shape::B B;
    constexpr int N = shape::N, JOINED = shape::JOINED;
    __shared__ uint4 tile[shape::ROWS][16];
    uint32_t tile_index = blockIdx.x % (a.row_tiles * a.column_tiles),
             batch = blockIdx.x / (a.row_tiles * a.column_tiles);
    int64_t row = (int64_t)(tile_index % a.row_tiles) * shape::ROWS,
            column = (int64_t)(tile_index / a.row_tiles) * shape::COLUMNS, offset[2];
    locate(a.outer, batch, offset);
    const B *from = (const B *)a.from + offset[1] + column * a.from_column + row;
    B *to = (B *)a.to + offset[0] + row * a.to_row + column;
    int rows = (int)(a.rows - row < shape::ROWS ? a.rows - row : shape::ROWS);
    int columns = (int)(a.columns - column < shape::COLUMNS ? a.columns - column : shape::COLUMNS);
    int thread = (int)threadIdx.x, lane = thread % 8;
    uint4 x[shape::PASSES][JOINED];
#pragma unroll
    for (int pass = 0; pass < shape::PASSES; pass++)
#pragma unroll
        for (int k = 0; k < JOINED; k++) {
            int first = (pass % shape::HALVES * 8 + lane) * N,
                c = (pass / shape::HALVES * (THREADS / 8) + thread / 8) * JOINED + k;
            x[pass][k] =
                load_vec<BYTES>(from + c * a.from_column + first, c < columns ? rows - first : 0, a.is_aligned);
        }
#pragma unroll
    for (int pass = 0; pass < shape::PASSES; pass++) {
        int first = (pass % shape::HALVES * 8 + lane) * N, word = pass / shape::HALVES * (THREADS / 8) + thread / 8;
#pragma unroll
        for (int i = 0; i < N; i++) {
            auto joined = join<BYTES>(x[pass], i);
            constexpr int WORDS = 16 / (int)sizeof(joined); /* per group */
            ((decltype(joined) *)&tile[first + i][(word / WORDS) ^ lane])[word % WORDS] = joined;
        }
    }
    __syncthreads();
    int group = thread % 16;
#pragma unroll
    for (int r = thread / 16; r < shape::ROWS; r += THREADS / 16)
        if (r < rows)
            store_vec<BYTES>(to + r * a.to_row + group * N, &tile[r][group ^ (r / N % 8)], columns - group * N,
                             a.is_aligned);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* The axis, other than the last, along which the source is contiguous; -1 if none is worth a tile. */
static int dense_axis(const tarn__nest *nest)
{
    int last = nest->rank - 1;
    if (nest->rank < 2 || nest->stride[0][last] != 1 || nest->shape[last] < 16 || nest->stride[1][last] == 0)
        return -1;
    for (int i = 0; i < last; i++)
        if (nest->stride[1][i] == 1 && nest->shape[i] >= 16)
            return i;
    return -1;
}

/* Grid: a block of 256 threads per tile; blocks walk the source's contiguous axis first. Bytes: 2 · bytes per
 * element. */
template <int BYTES> static bool launch(const tarn__call *call, transpose_args a, int64_t batches)
{
    typedef tile_of<BYTES> shape;
    int64_t row_tiles = (a.rows + shape::ROWS - 1) / shape::ROWS,
            column_tiles = (a.columns + shape::COLUMNS - 1) / shape::COLUMNS;
    if (row_tiles * column_tiles * batches >= ((int64_t)1 << 31))
        return false;
    a.row_tiles = (uint32_t)row_tiles;
    a.column_tiles = (uint32_t)column_tiles;
    transpose_kernel<BYTES><<<(unsigned)(row_tiles * column_tiles * batches), THREADS, 0, stream_of(call)>>>(a);
    return true;
}

/* All other axes are batches: one more factor of the grid. */
bool tarn__cuda_transpose(const tarn__call *call, const tarn__nest *nest, int bytes)
{
    int row = dense_axis(nest), last = nest->rank - 1;
    if (row < 0)
        return false;
    transpose_args a = {tarn__view_at(call->out[0]), tarn__view_at(call->in[0]), nest->shape[row],
                        nest->shape[last],           nest->stride[0][row],       nest->stride[1][last]};
    tarn__nest outer = *nest;
    outer.rank = 0;
    outer.count = 1;
    a.is_aligned =
        is_aligned(a.to, 16) && is_aligned(a.from, 16) && a.to_row * bytes % 16 == 0 && a.from_column * bytes % 16 == 0;
    for (int i = 0; i < last; i++) {
        if (i == row)
            continue;
        outer.shape[outer.rank] = nest->shape[i];
        for (int k = 0; k < 2; k++) {
            outer.stride[k][outer.rank] = nest->stride[k][i];
            a.is_aligned = a.is_aligned && nest->stride[k][i] * bytes % 16 == 0;
        }
        outer.rank++;
        outer.count *= nest->shape[i];
    }
    a.outer = offset_calc_of<2>(&outer);
    switch (bytes) {
    case 1: return launch<1>(call, a, outer.count);
    case 2: return launch<2>(call, a, outer.count);
    case 4: return launch<4>(call, a, outer.count);
    default: return launch<8>(call, a, outer.count);
    }
}
