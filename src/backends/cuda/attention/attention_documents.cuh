/* attention_documents.cuh: rows that attend to no key before a start of their own: packed documents.
 *
 * Starts may be in any order. A block skips the tiles before the first start of its rows, and those after the last row
 * that starts at or before one of its keys. For documents, whose starts never decrease, these are all tiles without a
 * weight. */
#ifndef TARN__CUDA_ATTENTION_DOCUMENTS_CUH
#define TARN__CUDA_ATTENTION_DOCUMENTS_CUH

#include "backends/cuda/attention/attention.cuh"

struct min_op {
    static __device__ __forceinline__ int64_t of(int64_t a, int64_t b)
    {
        return a < b ? a : b;
    }
};
struct max_op {
    static __device__ __forceinline__ int64_t of(int64_t a, int64_t b)
    {
        return a > b ? a : b;
    }
};

/* First key of a row. A start out of range is clamped; the forward pass reports it. */
__device__ __forceinline__ int64_t start_of(const attention_args &a, int64_t batch, int64_t row)
{
    if (!a.document_starts)
        return 0;
    int64_t start = index_at(a.document_starts, a.are_starts_i64, batch * a.start_stride[0] + row * a.start_stride[1]);
    return clamp_to_keys(a, start);
}

/* Checks the block's rows `first` … `last`. */
__device__ __forceinline__ void check_starts(const attention_args &a, int64_t batch, int64_t first, int64_t last)
{
    for (int64_t row = first + threadIdx.x; a.document_starts && row <= last; row += blockDim.x) {
        int64_t start =
            index_at(a.document_starts, a.are_starts_i64, batch * a.start_stride[0] + row * a.start_stride[1]);
        if (!is_within_keys(a, start))
            report_fault(a.fault, start, a.keys);
    }
}

/* First key of the first tile of `side` keys that one of these rows attends to. All threads of the block call it;
 * `space` as for block_reduce(). */
__device__ __forceinline__ int64_t first_tile_of(const attention_args &a, int64_t batch, int64_t first, int64_t last,
                                                 int side, int64_t *space)
{
    int64_t first_key = a.keys;
    if (!a.document_starts)
        return 0;
    for (int64_t row = first + threadIdx.x; row <= last; row += blockDim.x)
        first_key = min_op::of(first_key, start_of(a, batch, row));
    return block_reduce<min_op>(first_key, space, a.keys) / side * side;
}

/* One past the last row, from `begin` on, that starts at `key` or before. All threads of the block call it. */
__device__ __forceinline__ int64_t end_of_rows(const attention_args &a, int64_t batch, int64_t begin, int64_t key,
                                               int64_t *space)
{
    int64_t end = begin;
    if (!a.document_starts)
        return a.rows;
    for (int64_t row = begin + threadIdx.x; row < a.rows; row += blockDim.x)
        end = start_of(a, batch, row) <= key ? row + 1 : end;
    return block_reduce<max_op>(end, space, begin);
}

#endif
