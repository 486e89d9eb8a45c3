/* product.h: a batched matrix product as the kernels of products see it, and the ways it is made: for matmul, convolutions and whatever else is a product.
 *
 * On a device whose groups have no fast memory of their own, operands are packed in panels in scratch and a work-item makes a tile of the result (panels.cl). On a GPU
 * a group makes a tile straight from the operands (tiles.cl). A few rows are multiplied as they lie (thin.cl), integers one by one (plain.cl). */
#ifndef TARN__OPENCL_PRODUCT_H
#define TARN__OPENCL_PRODUCT_H

#include "backends/opencl/opencl.h"

/* `sizes` of product.cl. */
typedef struct tarn__cl_sizes {
    int64_t m, n, k;
    int64_t first;        /* of the nest's batches */
    int64_t splits, part; /* of k: each sums up this many terms */
    int64_t c_down, c_across, a_down, a_across, b_down, b_across;
    int64_t a_room, b_room; /* packed: elements from one batch to the next; 0: all have one */
    int64_t bias_down, bias_across;
} tarn__cl_sizes;

typedef struct tarn__cl_product {
    tarn__cl_sizes sizes;
    tarn__nest batches;            /* operands c, a, b, bias */
    tarn__view a, b, c;            /* of each: memory, place, dtype; strides are above */
    tarn__view bias;               /* memory NULL: none */
    bool b_is_packed;              /* in panels of tarn__cl_tile_of().width lines; b_room says how far batches are apart */
    double alpha, beta;
} tarn__cl_product;

/* Operands packed in panels: `packing` of pack.cl. */
typedef struct tarn__cl_packing {
    int64_t lines, depth, first;
    int64_t line_stride, term_stride;
    int64_t room;
    int32_t width, operand;
} tarn__cl_packing;

/* Tiles of the result: one work-item's on a processor, one group's on a GPU. */
typedef struct tarn__cl_tile {
    int rows, width; /* of the whole tile */
    int lanes;       /* of a vector, on a processor */
    int across, down_each, across_each, depth; /* on a GPU: items of a group in each direction, and what each of them has */
} tarn__cl_tile;

/* Elements of one packed operand. */
int64_t tarn__cl_packed_count(int64_t lines, int64_t depth, int64_t width);

/* The tile of products whose sums are f32 or f64, on a device. */
tarn__cl_tile tarn__cl_tile_of(const tarn__cl_device *device, tarn_dtype sums, const tarn__cl_sizes *sizes);

/* f32, or f64 for operands of that: what sums are made in. */
tarn_dtype tarn__cl_sums_of(tarn_dtype dtype);

/* What lies `bytes` into the call's scratch, which is a multiple of the dtype's size. */
tarn__view tarn__cl_scratch_view(const tarn__call *call, int64_t bytes, tarn_dtype dtype);

/* Lays an operand `x` into panels at `to`. */
void tarn__cl_pack(const tarn__call *call, const tarn__view *x, const tarn__view *to, const tarn__nest *batches, const tarn__cl_packing *packing,
                   int64_t batch_count);

/* Bytes of scratch that a product needs; and the product, with them `scratch` bytes into the call's. */
size_t tarn__cl_product_scratch(const tarn__call *call, const tarn__cl_product *product);
void tarn__cl_product_run(const tarn__call *call, const tarn__cl_product *product, int64_t scratch);

#endif
