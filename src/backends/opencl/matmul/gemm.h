/* gemm.h: a batched matrix product as the kernels of products see it, and the ways it is made: for matmul, convolutions
 * and whatever else is a product.
 *
 * On a device whose groups have no fast memory of their own, operands are packed in panels in scratch and a work-item
 * makes a tile of the result (gemm_panels.cl). On a GPU a group makes a tile straight from the operands
 * (gemm_tiled.cl). A few rows are multiplied as they lie (gemm_skinny.cl), integers, and what no tile fits, one by one
 * (gemm_naive.cl). */
#ifndef TARN__OPENCL_GEMM_H
#define TARN__OPENCL_GEMM_H

#include "backends/opencl/runtime/opencl.h"

/* `sizes` of gemm.cl. */
typedef struct tarn__cl_gemm_sizes {
    int64_t m, n, k;
    int64_t first;        /* of the nest's batches */
    int64_t splits, part; /* of k: each sums up this many terms */
    int64_t c_row_stride, c_col_stride, a_row_stride, a_col_stride, b_row_stride, b_col_stride;
    int64_t a_batch_stride, b_batch_stride; /* packed: elements from one batch to the next; 0: all have one */
    int64_t bias_row_stride, bias_col_stride;
} tarn__cl_gemm_sizes;

/* A tile of the result: one work-item's on a processor, one group's on a GPU. */
typedef struct tarn__cl_gemm_tile {
    int rows, width; /* of the whole tile */
    int lanes;       /* of a vector, on a processor */
    /* on a GPU: items of a group in each direction, what each of them has, and terms of a stage */
    int across, down, across_each, down_each, depth;
    int registers; /* on NVIDIA's GPUs: that a work-item has at most; 0: as many as the compiler likes */
} tarn__cl_gemm_tile;

typedef struct tarn__cl_gemm {
    tarn__cl_gemm_sizes sizes;
    tarn__nest batches;      /* operands c, a, b, bias */
    tarn__view a, b, c;      /* of each: memory, place, dtype; strides are above */
    tarn__view bias;         /* memory NULL: none */
    tarn__cl_gemm_tile tile; /* rows 0: that of its sizes */
    bool b_is_packed;        /* in panels of the tile's width; b_room says how far batches are apart */
    bool is_trial;           /* of the tile: no other will do */
    double alpha, beta;
} tarn__cl_gemm;

/* Operands packed in panels: `packing` of gemm_pack.cl. */
typedef struct tarn__cl_gemm_packing {
    int64_t lines, depth, first;
    int64_t line_stride, term_stride;
    int64_t room;
    int32_t width, operand;
} tarn__cl_gemm_packing;

/* Elements of one packed operand. */
int64_t tarn__cl_gemm_packed_count(int64_t lines, int64_t depth, int64_t width);

/* The tile of a product of `batches` times (m, k) by (k, n), whose sums are f32 or f64. It is given by device and sizes
 * alone; the first large product of f32 measures. The tile changes no bit of a result. */
tarn__cl_gemm_tile tarn__cl_gemm_tile_of(tarn__cl_device *device, tarn_dtype sums, int64_t m, int64_t n, int64_t k,
                                         int64_t batches);

/* The first tile of groups after this one that fits, with groups of `most_items` work-items or fewer, 0 for any; false
 * where there is none. */
bool tarn__cl_gemm_next_tile(const tarn__cl_device *device, tarn_dtype sums, size_t max_items,
                             tarn__cl_gemm_tile *tile);

/* Parts of k where the result has too few tiles to keep the device busy: their number depends on the shape and the
 * device alone, not on the tile. */
void tarn__cl_gemm_choose_splits(const tarn__cl_device *device, const tarn__cl_gemm *product,
                                 tarn__cl_gemm_sizes *sizes);

/* f32, or f64 for operands of that: what sums are made in. */
tarn_dtype tarn__cl_accum_dtype(tarn_dtype dtype);

/* What lies `bytes` into the call's scratch, which is a multiple of the dtype's size. */
tarn__view tarn__cl_scratch_view(const tarn__call *call, int64_t bytes, tarn_dtype dtype);

/* Bytes of scratch that a product needs; and the product, with them `scratch` bytes into the call's. */
size_t tarn__cl_gemm_scratch(const tarn__call *call, const tarn__cl_gemm *product);
void tarn__cl_gemm_run(const tarn__call *call, const tarn__cl_gemm *product, int64_t scratch);

/* ---- shared by gemm.c and gemm_panels.c -------------------------------------------------------------------------- */

/* A program of a product; `options` begins with what gemm.cl wants. */
typedef struct tarn__cl_gemm_program {
    const char *source, *kernel;
    char options[320];
} tarn__cl_gemm_program;

/* Of sums that are parts, or of the result. */
tarn__cl_gemm_program tarn__cl_gemm_program_of(const tarn__cl_gemm *product, const char *source, const char *kernel,
                                               bool are_parts);

/* A launch of a program with operands a and b; then c, bias, batches, sizes, alpha and beta: the last arguments of all
 * of them. */
tarn__cl_launch tarn__cl_gemm_begin(const tarn__call *call, const tarn__cl_gemm_program *program, const tarn__view *a,
                                    const tarn__view *b);
void tarn__cl_gemm_arg_result(tarn__cl_launch *launch, const tarn__cl_gemm *product, const tarn__view *c,
                              const tarn__cl_gemm_sizes *sizes, bool are_parts);

/* The parts that lie at `parts`, added up. */
void tarn__cl_gemm_add_splits(const tarn__call *call, const tarn__cl_gemm *product, const tarn__cl_gemm_sizes *sizes,
                              const tarn__view *parts);

/* A product by panels: its scratch, and it. The tile is given. */
size_t tarn__cl_gemm_panels_scratch(const tarn__cl_device *device, const tarn__cl_gemm *product);
void tarn__cl_gemm_panels_run(const tarn__call *call, const tarn__cl_device *device, const tarn__cl_gemm *product,
                              int64_t scratch);

#endif
