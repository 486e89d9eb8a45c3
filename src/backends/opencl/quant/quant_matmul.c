/* quant_matmul.c: y = x · weightᵀ + bias with a quantized weight.
 *
 * Up to FEW_ROWS rows of x are multiplied straight from the weight's bytes, since the kernel is bound by reading them.
 * For more, rows of the weight are dequantized to f32 in scratch, a tile at a time, and multiplied by a GEMM. x is
 * never rounded. */
#include <stdio.h>

#include "backends/opencl/matmul/gemm.h"

#define FEW_ROWS 8               /* for which the weight is not dequantized */
#define GROUP 64                 /* work-items per group on a GPU */
#define TILE (INT64_C(16) << 20) /* elements of the weight in scratch at a time */

/* The struct `quant_sizes` of quant_matmul.cl. */
typedef struct quant_sizes {
    int64_t rows, in, out;           /* x (rows, in), weight (out, in), y (rows, out) */
    int64_t row_bytes, x_row_stride; /* bytes of a weight row; elements of x */
    int64_t y_row_stride, y_col_stride, bias_stride;
} quant_sizes;

/* A call described for launch. Borrows the views. */
typedef struct job {
    const tarn__view *x, *weight, *bias, *y;
    quant_sizes sizes;
    bool copies;  /* x is copied to contiguous f32 rows */
    int64_t tile; /* rows of the weight in scratch; 0: none */
    int64_t x_bytes;
} job;

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static job describe(const tarn__call *call)
{
    job j = {.x = call->in[0], .weight = call->in[1], .bias = call->inputs > 2 ? call->in[2] : NULL, .y = call->out[0]};
    j.sizes = (quant_sizes){.rows = j.x->shape[0],
                            .in = j.x->shape[1],
                            .out = j.weight->shape[0],
                            .row_bytes = tarn__bytes_of(j.weight->dtype, j.weight->stride[0]),
                            .x_row_stride = j.x->stride[0],
                            .y_row_stride = j.y->stride[0],
                            .y_col_stride = j.y->stride[1],
                            .bias_stride = j.bias ? j.bias->stride[0] : 0};
    bool few = j.sizes.rows <= FEW_ROWS;
    j.copies = few && (j.x->dtype != TARN_F32 || j.x->stride[1] != 1);
    j.x_bytes = j.copies ? (j.sizes.rows * j.sizes.in * 4 + 255) / 256 * 256 : 0;
    j.tile = few ? 0 : min_i64(j.sizes.out, 1 + TILE / (j.sizes.in + 1));
    return j;
}

/* In the order of tarn_dtype. */
static const char *format_name(const tarn__view *weight)
{
    static const char *const names[] = {"q8_0", "q4_0", "q4_k", "q6_k"};
    return names[weight->dtype - TARN_Q8_0];
}

/* ---- a few rows -------------------------------------------------------------------------------------------------- */

/* x as contiguous f32 rows: itself, or a copy at the start of scratch. */
static tarn__view contiguous_x(const tarn__call *call, job *j)
{
    static const tarn__fill none = {0};
    if (!j->copies)
        return *j->x;
    tarn__view space = tarn__cl_scratch_view(call, 0, TARN_F32), packed = *j->x;
    packed.memory = space.memory, packed.offset = space.offset, packed.dtype = TARN_F32;
    tarn__view_set_row_major(&packed);
    tarn__call part = *call;
    part.inputs = part.outputs = 1;
    part.in[0] = j->x;
    part.out[0] = &packed;
    part.params = &none;
    part.params_bytes = sizeof(none);
    tarn__cl_kernel_table()[TARN__K_copy].run(&part);
    j->sizes.x_row_stride = packed.stride[0];
    return packed;
}

/* 1 work-item per group: the variant for CPUs. */
static tarn__cl_launch try_few(const tarn__call *call, const job *j, size_t items)
{
    char options[128];
    snprintf(options, sizeof(options), "-DFORMAT=%s -DT_C=%s -DT_BIAS=%s -DROWS=%d -DITEMS=%zu", format_name(j->weight),
             tarn__cl_dtype_name(j->y->dtype), tarn__cl_dtype_name(j->bias ? j->bias->dtype : TARN_F32),
             j->sizes.rows == 1 ? 1 : FEW_ROWS, items);
    return items > 1 ? tarn__cl_try(call, "quant_matmul", "multiply", options, items)
                     : tarn__cl_begin(call, "quant_matmul", "multiply", options);
}

/* Bytes: the weight once, quantized; bound by it. */
static void run_few(const tarn__call *call, const tarn__cl_device *device, job *j)
{
    size_t items = device->has_local_memory ? GROUP : 1;
    tarn__view x = contiguous_x(call, j);
    tarn__cl_launch l = try_few(call, j, items);
    while (!l.good && items > 1) {
        items = tarn__cl_max_group(&l);
        l = try_few(call, j, items);
    }
    tarn__cl_arg_view(&l, &x);
    tarn__cl_arg_view(&l, j->weight);
    tarn__cl_arg_view(&l, j->bias);
    tarn__cl_arg_view(&l, j->y);
    tarn__cl_arg_value(&l, &j->sizes, sizeof(j->sizes));
    tarn__cl_enqueue(&l, 1, (size_t[]){items * (size_t)j->sizes.out}, (size_t[]){items});
}

/* ---- many rows --------------------------------------------------------------------------------------------------- */

/* `rows` rows of the weight from `first` to f32 at `to`. */
static void dequantize(const tarn__call *call, const job *j, int64_t first, int64_t rows, const tarn__view *to)
{
    char options[32];
    tarn__view from = *j->weight;
    from.offset += first * from.stride[0];
    snprintf(options, sizeof(options), "-DFORMAT=%s", format_name(j->weight));
    tarn__cl_launch l = tarn__cl_begin(call, "quant_matmul", "dequantize", options);
    tarn__cl_arg_view(&l, &from);
    tarn__cl_arg_view(&l, to);
    tarn__cl_arg_value(&l, &j->sizes, sizeof(j->sizes));
    tarn__cl_enqueue_independent(&l, 2, (size_t[]){(size_t)((j->sizes.in + 31) / 32), (size_t)rows}, 16);
}

/* The GEMM with `rows` rows of the weight from `first`, dequantized at `weight`. */
static tarn__cl_gemm describe_gemm(const job *j, const tarn__view *weight, int64_t first, int64_t rows)
{
    tarn__cl_gemm p = {.a = *j->x, .b = *weight, .c = *j->y, .alpha = 1, .batches = {.operands = 4, .count = 1}};
    p.sizes = (tarn__cl_gemm_sizes){.m = j->sizes.rows,
                                    .n = rows,
                                    .k = j->sizes.in,
                                    .splits = 1,
                                    .part = j->sizes.in,
                                    .c_row_stride = j->sizes.y_row_stride,
                                    .c_col_stride = j->sizes.y_col_stride,
                                    .a_row_stride = j->x->stride[0],
                                    .a_col_stride = j->x->stride[1],
                                    .b_row_stride = 1,
                                    .b_col_stride = j->sizes.in,
                                    .bias_col_stride = j->sizes.bias_stride};
    p.c.offset += first * j->sizes.y_col_stride;
    if (j->bias) {
        p.bias = *j->bias;
        p.bias.offset += first * j->sizes.bias_stride;
    }
    return p;
}

/* Scratch of a tile, aligned to 256 bytes; the GEMM's follows. */
static int64_t tile_bytes(const job *j)
{
    return (j->tile * j->sizes.in * 4 + 255) / 256 * 256;
}

/* Tile by tile: dequantize, then multiply; the queue keeps the order, so one tile of scratch serves all. */
static void run_many(const tarn__call *call, const job *j)
{
    tarn__view weight = tarn__cl_scratch_view(call, 0, TARN_F32);
    for (int64_t first = 0; first < j->sizes.out; first += j->tile) {
        int64_t rows = min_i64(j->tile, j->sizes.out - first);
        tarn__cl_gemm p = describe_gemm(j, &weight, first, rows);
        dequantize(call, j, first, rows, &weight);
        tarn__cl_gemm_run(call, &p, tile_bytes(j));
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Few rows: x alone. Else a dequantized tile of the weight, and what its GEMM needs, full or last. */
static size_t matmul_quant_scratch(const tarn__call *call)
{
    job j = describe(call);
    if (tarn__view_count(j.y) == 0)
        return 0;
    if (j.tile == 0)
        return (size_t)j.x_bytes;
    tarn__view weight = {.dtype = TARN_F32};
    tarn__cl_gemm whole = describe_gemm(&j, &weight, 0, j.tile),
                  last = describe_gemm(&j, &weight, 0, (j.sizes.out - 1) % j.tile + 1);
    size_t first = tarn__cl_gemm_scratch(call, &whole), second = tarn__cl_gemm_scratch(call, &last);
    return (size_t)tile_bytes(&j) + (first > second ? first : second);
}

/* Decode multiplies quant blocks as they are read; prefill dequantizes tiles for the GEMM. */
static void kernel_matmul_quant(const tarn__call *call)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    job j = describe(call);
    if (!device || tarn__view_count(j.y) == 0)
        return;
    if (j.tile == 0)
        run_few(call, device, &j);
    else
        run_many(call, &j);
}

void tarn__cl_register_quant_matmul(tarn__kernel_row *rows)
{
    rows[TARN__K_matmul_quant] =
        tarn__row(kernel_matmul_quant, (TARN__FLOATS & ~TARN__BIT(TARN_F64)) | TARN__QUANTIZED, matmul_quant_scratch);
}
