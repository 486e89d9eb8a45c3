/* dequantize.cu: quantized tensors to f32, and embedding rows of a quantized table. */
#include "backends/cuda/quant/dot.cuh"

#define ELEMENTS 4 /* per thread, 256 apart: adjacent threads write adjacent elements */

/* The view may have any strides of whole rows. */
struct dequantize_args {
    const char *from;
    float *to;
    tarn_dtype dtype;
    int64_t count;
    int64_t first; /* index of the view's first element, counted from `from` */
    offset_calc<2> offsets;
};

/* One element of a row, as element_at() of dequantize.cuh. */
typedef float element_fn(const char *from, tarn_dtype dtype, int64_t at);

/* One block of 1,024 elements per thread block. */
template <element_fn *element>
static __global__ void __launch_bounds__(THREADS) dequantize_kernel(const __grid_constant__ dequantize_args a)
{
    int64_t first = (int64_t)blockIdx.x * (THREADS * ELEMENTS) + threadIdx.x, offset[2];
#pragma unroll
    for (int u = 0; u < ELEMENTS; u++) {
        int64_t at = first + u * THREADS;
        if (at < a.count) {
            locate(a.offsets, at, offset);
            a.to[offset[0]] = element(a.from, a.dtype, a.first + offset[1]);
        }
    }
}

/* Grid: 4 elements per thread, 1,024 per thread block. Bytes: the quant blocks once, 4 bytes written per element. A
 * flipped axis would count down from the first element: the base moves to the lowest row instead. */
static void kernel_dequantize(const tarn__call *call)
{
    tarn__view blocks = *call->in[0];
    int64_t first = 0;
    for (int i = 0; i < blocks.rank; i++)
        /* distance from the lowest row to the first */
        if (blocks.stride[i] < 0 && blocks.shape[i] > 0)
            first -= (blocks.shape[i] - 1) * blocks.stride[i];
    const tarn__view *views[2] = {call->out[0], &blocks};
    tarn__nest nest;
    tarn__nest_make(&nest, 2, views);
    if (nest.count == 0)
        return;
    dequantize_args a = {(const char *)tarn__view_at(&blocks) - tarn__bytes_of(blocks.dtype, first),
                         data_of<float>(call->out[0]),
                         blocks.dtype,
                         nest.count,
                         first,
                         offset_calc_of<2>(&nest)};
    unsigned grid = blocks_for(nest.count, THREADS * ELEMENTS);
    if (is_described(a.dtype))
        dequantize_kernel<other_element_at><<<grid, THREADS, 0, stream_of(call)>>>(a);
    else
        dequantize_kernel<element_at><<<grid, THREADS, 0, stream_of(call)>>>(a);
}

/* A quantized table (rows, length) and its row indices. */
struct rows_args {
    const char *from;
    int64_t pitch, rows, length, count; /* row stride in bytes; rows of x; elements per row, and of y */
    tarn_dtype dtype, y_dtype;
    const void *index;
    int64_t index_stride;
    int is_long;
    void *y;
    fault_slot fault;
};

/* An index out of range reads as 0 and raises a fault. */
template <element_fn *element>
static __global__ void __launch_bounds__(THREADS) rows_kernel(const __grid_constant__ rows_args a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, number = at / a.length, column = at - number * a.length;
    if (at >= a.count)
        return;
    int64_t row = index_at(a.index, a.is_long, number * a.index_stride);
    bool is_valid = row >= 0 && row < a.rows;
    if (!is_valid && column == 0)
        report_fault(a.fault, row, a.rows);
    store_float(a.y, a.y_dtype, at, is_valid ? element(a.from + row * a.pitch, a.dtype, column) : 0);
}

/* Grid: one element per thread. */
static void kernel_dequantize_rows(const tarn__call *call)
{
    const tarn__view *x = call->in[0], *index = call->in[1], *y = call->out[0];
    int64_t down = x->stride[0];
    rows_args a = {(const char *)tarn__view_at(x),
                   down < 0 ? -tarn__bytes_of(x->dtype, -down) : tarn__bytes_of(x->dtype, down),
                   x->shape[0],
                   x->shape[1],
                   tarn__view_count(y),
                   x->dtype,
                   y->dtype,
                   tarn__view_at(index),
                   index->stride[0],
                   index->dtype == TARN_I64,
                   tarn__view_at(y),
                   faults_of(call)};
    if (a.count == 0)
        return;
    if (is_described(a.dtype))
        rows_kernel<other_element_at><<<blocks_for(a.count, THREADS), THREADS, 0, stream_of(call)>>>(a);
    else
        rows_kernel<element_at><<<blocks_for(a.count, THREADS), THREADS, 0, stream_of(call)>>>(a);
}

void tarn__cuda_register_dequantize(tarn__kernel_row *rows)
{
    rows[TARN__K_dequantize_rows] = {kernel_dequantize_rows, TARN__QUANTIZED, NULL};
    rows[TARN__K_dequantize] = {kernel_dequantize, TARN__QUANTIZED, NULL};
}
