/* attention_simt.cuh: attention tiles without tensor cores, for every dtype, layout and D.
 *
 * 256 threads, 16 × 16, own a tile of SIDE × SIDE weights, M × M adjacent ones each. Products over D go through shared
 * memory 16 columns at a time. Results (SIDE, D) are computed in windows of W columns, one per block; each window
 * recomputes the weights. */
#ifndef TARN__CUDA_ATTENTION_SIMT_CUH
#define TARN__CUDA_ATTENTION_SIMT_CUH

#include "backends/cuda/attention/attention_documents.cuh"

#define ACROSS 16 /* threads along a row of the tile */
#define STEP 16   /* columns, or rows, staged at a time */

template <typename C> struct tile_of {
    static constexpr int M = sizeof(C) == 8 ? 2 : 4;
    static constexpr int SIDE = ACROSS * M;
    /* row pitch in shared memory: whole vectors, rows on different banks */
    static constexpr int LINE = SIDE + 4;
    static constexpr int STAGE = 2 * STEP * LINE;
};

/* Stages (STEP columns, SIDE rows) of x; 0 outside `rows` and D. */
template <typename C>
__device__ __forceinline__ void stage_columns(C *to, const head_matrix &x, int64_t row, int64_t rows, int64_t column,
                                              int64_t head_dim)
{
    typedef tile_of<C> tile;
    const int j = threadIdx.x % STEP;
#pragma unroll
    for (int i = threadIdx.x / STEP; i < tile::SIDE; i += THREADS / STEP) {
        bool is_there = row + i < rows && column + j < head_dim;
        to[j * tile::LINE + i] =
            is_there ? load_any<C>(x.base, x.dtype, (row + i) * x.row + (column + j) * x.column) : (C)0;
    }
}

/* Stages (STEP rows, W columns) of x. */
template <typename C, int W>
__device__ __forceinline__ void stage_rows(C *to, const head_matrix &x, int64_t row, int64_t rows, int64_t column,
                                           int64_t head_dim)
{
#pragma unroll
    for (int at = threadIdx.x; at < STEP * W; at += THREADS) {
        int i = at / W, j = at % W;
        bool is_there = row + i < rows && column + j < head_dim;
        to[i * W + j] = is_there ? load_any<C>(x.base, x.dtype, (row + i) * x.row + (column + j) * x.column) : (C)0;
    }
}

/* sum = x · yᵀ over all of D, for SIDE rows of each. */
template <typename C>
__device__ __forceinline__ void gemm_tile_nt(C (*sum)[tile_of<C>::M], C *stage, const head_matrix &x, int64_t x_row,
                                             int64_t x_rows, const head_matrix &y, int64_t y_row, int64_t y_rows,
                                             int64_t head_dim)
{
    typedef tile_of<C> tile;
    constexpr int M = tile::M;
    const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < M; n++)
            sum[m][n] = 0;
    for (int64_t column = 0; column < head_dim; column += STEP) {
        __syncthreads();
        stage_columns(stage, x, x_row, x_rows, column, head_dim);
        stage_columns(stage + STEP * tile::LINE, y, y_row, y_rows, column, head_dim);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < STEP; d++) {
            vec<C, M> left = *(const vec<C, M> *)(stage + d * tile::LINE + ty * M);
            vec<C, M> right = *(const vec<C, M> *)(stage + (STEP + d) * tile::LINE + tx * M);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < M; n++)
                    sum[m][n] += left.at[m] * right.at[n];
        }
    }
}

/* sum += wᵀ · x for a tile of weights w (SIDE, SIDE) in shared memory, and W columns of SIDE rows of x. */
template <typename C, int W>
__device__ __forceinline__ void gemm_tile_tn(C (*sum)[W / ACROSS], const C *weights, C *stage, const head_matrix &x,
                                             int64_t row, int64_t rows, int64_t column, int64_t head_dim)
{
    typedef tile_of<C> tile;
    constexpr int M = tile::M;
    const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
    for (int part = 0; part < tile::SIDE; part += STEP) {
        __syncthreads();
        stage_rows<C, W>(stage, x, row + part, rows, column, head_dim);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < STEP; d++) {
            vec<C, M> left = *(const vec<C, M> *)(weights + (part + d) * tile::LINE + ty * M);
#pragma unroll
            for (int n = 0; n < W / ACROSS; n++) {
                C right = stage[d * W + n * ACROSS + tx];
#pragma unroll
                for (int m = 0; m < M; m++)
                    sum[m][n] += left.at[m] * right;
            }
        }
    }
}

/* Writes the thread's part of W columns of SIDE rows, each scaled by its factor. */
template <typename C, int W>
__device__ __forceinline__ void write_rows(const head_matrix &to, C (*sum)[W / ACROSS], const C *factor, int64_t row,
                                           int64_t rows, int64_t column, int64_t head_dim)
{
    constexpr int M = tile_of<C>::M;
    const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < W / ACROSS; n++) {
            int64_t i = row + ty * M + m, j = column + n * ACROSS + tx;
            if (i < rows && j < head_dim)
                store_any(to.base, to.dtype, i * to.row + j * to.column, sum[m][n] * factor[m]);
        }
}

/* A score to base 2, and the derivative of its soft cap. */
template <typename C> struct capped_score {
    C score, grad;
};

/* With x = score · scale: x, or cap · tanh(x / cap). All are to base 2: log2(e) cancels in x / cap. */
template <typename C, bool is_capped>
__device__ __forceinline__ capped_score<C> cap_score(const attention_args &a, C score, C scale)
{
    if constexpr (is_capped) {
        const C cap = (C)a.cap, share = tanh_of(score * scale / cap);
        return {cap * share, 1 - share * share};
    } else {
        return {score * scale, (C)1};
    }
}

/* Runs `...` with C and W for the dtype and D: windows of 64 columns, or of 128 if D is larger and not f64. */
#define FOR_SIMT(a, ...) \
    if ((a).q.dtype == TARN_F64) { \
        typedef double C; \
        constexpr int W = 64; \
        __VA_ARGS__; \
    } else if ((a).head_dim <= 64) { \
        typedef float C; \
        constexpr int W = 64; \
        __VA_ARGS__; \
    } else { \
        typedef float C; \
        constexpr int W = 128; \
        __VA_ARGS__; \
    }

#endif
