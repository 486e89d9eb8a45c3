/* gemm.h: batched GEMM, c = alpha · a · b + beta · c + bias, for matmul, convolutions and quantized weights.
 *
 * Five algorithms, selected by device and sizes (gemm.c):
 *   gemm_panels  without local memory (PoCL): operands are packed into panels in scratch, a work-item computes a tile
 *   gemm_tiled   with local memory (GPUs): a work-group computes a tile straight from the operands
 *   gemm_mma     16-bit operands with contiguous terms, on the tensor cores of NVIDIA GPUs
 *   gemm_skinny  up to 4 rows or columns (GEMV): the large operand is read once, in place
 *   gemm_naive   integers, k = 0, and devices for which no tile fits: a work-item per element
 *
 * Sums are f32, or f64 for f64 operands; 16-bit results are rounded once. Terms of an element are added in an order
 * given by shape and device alone: tuning the tile changes no bit. */
#ifndef TARN__OPENCL_GEMM_H
#define TARN__OPENCL_GEMM_H

#include "backends/opencl/runtime/opencl.h"

/* The struct `sizes` of gemm.cl. a (m, k), b (k, n), c (m, n); all strides in elements. */
typedef struct tarn__cl_gemm_sizes {
    int64_t m, n, k;
    int64_t first;        /* first batch of the nest in this launch */
    int64_t splits, part; /* split-K: number of parts, and terms per part */
    int64_t c_row_stride, c_col_stride, a_row_stride, a_col_stride, b_row_stride, b_col_stride;
    int64_t a_batch_stride, b_batch_stride; /* of packed operands; 0: all batches share one */
    int64_t bias_row_stride, bias_col_stride;
} tarn__cl_gemm_sizes;

/* A tile of c: computed by one work-item from panels, or by one work-group on a GPU. */
typedef struct tarn__cl_gemm_tile {
    int rows, width; /* of the whole tile */
    int lanes;       /* of a vector; panels only */
    /* GPUs: work-items per work-group across n and down m, columns and rows of each, and terms per stage */
    int across, down, across_each, down_each, depth;
    int registers; /* limit per work-item on NVIDIA GPUs; 0: left to the compiler */
} tarn__cl_gemm_tile;

/* A batched GEMM. Views are copies, memory is borrowed from the call. */
typedef struct tarn__cl_gemm {
    tarn__cl_gemm_sizes sizes; /* read by tarn__cl_gemm_prepare() alone */
    tarn__nest batches;        /* operands c, a, b, bias */
    tarn__view a, b, c;        /* memory, offset and dtype; shapes and strides are in sizes */
    tarn__view bias;           /* memory NULL: none */
    tarn__cl_gemm_tile tile;   /* rows 0: chosen by size; read by prepare alone */
    bool b_is_packed;          /* b is in panels of the tile's width already, b_batch_stride apart */
    bool is_trial;             /* measures this tile: no fallback to another */
    double alpha, beta;
} tarn__cl_gemm;

/* The struct `packing` of gemm_pack.cl: an operand of `lines` rows (of a) or columns (of b) and `depth` terms. */
typedef struct tarn__cl_gemm_packing {
    int64_t lines, depth, first;
    int64_t line_stride, term_stride;
    int64_t batch_stride;
    int32_t width, operand;
} tarn__cl_gemm_packing;

/* Elements of one packed operand: lines are rounded up to whole panels. */
int64_t tarn__cl_gemm_packed_count(int64_t lines, int64_t depth, int64_t width);

/* The tile for `batches` times (m, k) · (k, n) with sums in f32 or f64. Depends on device and sizes; the first large
 * f32 GEMM of a process may measure, once. A meta device does not: until then it gets a tile that no scratch exceeds.
 */
tarn__cl_gemm_tile tarn__cl_gemm_tile_of(const tarn__call *call, tarn_dtype sums, int64_t m, int64_t n, int64_t k,
                                         int64_t batches);

/* Advances to the next GPU tile that fits the device, with at most `max_items` work-items per work-group (0: any).
 * False: none is left. */
bool tarn__cl_gemm_next_tile(const tarn__cl_device *device, tarn_dtype sums, size_t max_items,
                             tarn__cl_gemm_tile *tile);

/* Chooses split-K where c has too few tiles to fill the device. The number of splits depends on shape and device, not
 * on the tile, so that tuning keeps results bitwise identical. */
void tarn__cl_gemm_choose_splits(const tarn__cl_device *device, const tarn__cl_gemm *gemm, tarn__cl_gemm_sizes *sizes);

/* Dtype of sums: f64 for f64, f32 for other floats, i64 for integers. */
tarn_dtype tarn__cl_accum_dtype(tarn_dtype dtype);

/* A view of the call's scratch from `bytes` on, a multiple of the dtype's size. */
tarn__view tarn__cl_scratch_view(const tarn__call *call, int64_t bytes, tarn_dtype dtype);

/* A GEMM described for launch: plain data of a plan. */
typedef struct tarn__cl_gemm_plan {
    int algorithm;             /* of gemm.c */
    tarn__cl_gemm_sizes sizes; /* with splits, and strides of packed operands */
    tarn__cl_gemm_tile tile;
    size_t scratch_bytes;
    bool is_transposed;            /* skinny: cᵀ is computed */
    size_t items;                  /* skinny: work-items per work-group */
    int64_t a_bytes, b_bytes;      /* panels: packed operands in scratch; partial sums follow */
    int64_t columns, batches;      /* panels: per piece */
    bool a_is_shared, b_is_shared; /* panels: by all batches */
    const tarn__cl_kernel *multiply, *pack_a, *pack_b, *add_splits;
} tarn__cl_gemm_plan;

/* Describes a GEMM and finds its kernels; of the views dtypes and the alignment of offsets matter. Then runs it with
 * scratch from position `scratch` on, a multiple of 256. */
tarn__plan_status tarn__cl_gemm_prepare(const tarn__call *call, const tarn__cl_gemm *gemm, tarn__cl_gemm_plan *plan);
void tarn__cl_gemm_run(const tarn__call *call, const tarn__cl_gemm *gemm, const tarn__cl_gemm_plan *plan,
                       int64_t scratch);

/* ---- shared by gemm.c and gemm_panels.c -------------------------------------------------------------------------- */

/* A kernel and its options, which begin with those of gemm.cl. */
typedef struct tarn__cl_gemm_program {
    const char *source, *kernel;
    char options[320];
} tarn__cl_gemm_program;

/* `is_split`: c is the array of partial sums, not the result. */
tarn__cl_gemm_program tarn__cl_gemm_program_of(const tarn__cl_gemm *gemm, const char *source, const char *kernel,
                                               bool is_split);

const tarn__cl_kernel *tarn__cl_gemm_find(const tarn__call *call, const tarn__cl_gemm_program *program);

/* Begins a launch with operands a and b; then the arguments that end all GEMM kernels: c, bias, batches, sizes, alpha,
 * beta. */
tarn__cl_launch tarn__cl_gemm_begin(const tarn__call *call, const tarn__cl_kernel *kernel, const tarn__view *a,
                                    const tarn__view *b);
void tarn__cl_gemm_arg_result(tarn__cl_launch *launch, const tarn__cl_gemm *gemm, const tarn__view *c,
                              const tarn__cl_gemm_sizes *sizes, bool is_split);

/* Adds up the partial sums (splits, m, n) of each batch into c. */
void tarn__cl_gemm_add_splits(const tarn__call *call, const tarn__cl_gemm *gemm, const tarn__cl_gemm_plan *plan,
                              const tarn__view *parts);

/* The panel algorithm: its description for the plan's tile, its kernels, and the GEMM. */
void tarn__cl_gemm_panels_describe(const tarn__cl_gemm *gemm, tarn__cl_gemm_plan *plan);
bool tarn__cl_gemm_panels_find(const tarn__call *call, const tarn__cl_gemm *gemm, tarn__cl_gemm_plan *plan);
void tarn__cl_gemm_panels_run(const tarn__call *call, const tarn__cl_gemm *gemm, const tarn__cl_gemm_plan *plan,
                              int64_t scratch);

#endif
