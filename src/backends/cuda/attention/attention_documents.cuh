/* attention_documents.cuh: rows that attend to no key before a start of their own, such as those of documents beside
 * each other.
 *
 * Starts may lie in any order. A block leaves out the tiles before the first start of its rows, and those behind the
 * last row that begins at or before one of its keys: of documents, whose starts never fall, that is every tile that has
 * no weight. */
#ifndef TARN__ATTENTION_STARTS_CUH
#define TARN__ATTENTION_STARTS_CUH

#include "backends/cuda/attention/attention.cuh"

struct the_least {
    static __device__ __forceinline__ int64_t of(int64_t a, int64_t b)
    {
        return a < b ? a : b;
    }
};
struct the_most {
    static __device__ __forceinline__ int64_t of(int64_t a, int64_t b)
    {
        return a > b ? a : b;
    }
};

/* The first key that a row attends to. What is not a start counts as the nearest one, and forward reports it. */
__device__ __forceinline__ int64_t start_of(const attention_args &a, int64_t batch, int64_t row)
{
    if (!a.starts)
        return 0;
    int64_t start = index_at(a.starts, a.are_starts_long, batch * a.start_stride[0] + row * a.start_stride[1]);
    return start < 0 ? 0 : start > a.keys ? a.keys : start;
}

/* A block's rows, from `first` to `last`. */
__device__ __forceinline__ void check_starts(const attention_args &a, int64_t batch, int64_t first, int64_t last)
{
    for (int64_t row = first + threadIdx.x; a.starts && row <= last; row += blockDim.x) {
        int64_t start = index_at(a.starts, a.are_starts_long, batch * a.start_stride[0] + row * a.start_stride[1]);
        if (start < 0 || start > a.keys)
            report_fault(a.fault, start, a.keys);
    }
}

/* The first tile of `side` keys that one of these rows attends to: its first key. All threads of a block call it;
 * `space` as over_block() has it. */
__device__ __forceinline__ int64_t first_tile_of(const attention_args &a, int64_t batch, int64_t first, int64_t last,
                                                 int side, int64_t *space)
{
    int64_t least = a.keys;
    if (!a.starts)
        return 0;
    for (int64_t row = first + threadIdx.x; row <= last; row += blockDim.x)
        least = the_least::of(least, start_of(a, batch, row));
    return over_block<the_least>(least, space, a.keys) / side * side;
}

/* Of the rows from `begin` on: behind the last one that begins at `key` or before. All threads of a block call it. */
__device__ __forceinline__ int64_t end_of_rows(const attention_args &a, int64_t batch, int64_t begin, int64_t key,
                                               int64_t *space)
{
    int64_t end = begin;
    if (!a.starts)
        return a.rows;
    for (int64_t row = begin + threadIdx.x; row < a.rows; row += blockDim.x)
        end = start_of(a, batch, row) <= key ? row + 1 : end;
    return over_block<the_most>(end, space, begin);
}

#endif
