/* quant_matmul.c: y = x · weightᵀ + bias with a quantized weight.
 *
 * Up to FEW_ROWS rows of x are multiplied straight from the weight's bytes, since the kernel is bound by reading them.
 * For more, rows of the weight are dequantized in scratch, a tile at a time, and multiplied by a GEMM: to f32, or on
 * devices with tensor cores to the 16-bit dtype of x. x is never rounded. */
#include <stdio.h>

#include "backends/opencl/matmul/gemm.h"

#define FEW_ROWS 8                     /* max rows of x for which the weight is not dequantized */
#define GROUP 64                       /* work-items per group on a GPU */
#define TILE_BYTES (INT64_C(64) << 20) /* of the weight in scratch at a time */

/* The struct `quant_sizes` of quant_matmul.cl. */
typedef struct quant_sizes {
    int64_t rows, in, out;           /* x (rows, in), weight (out, in), y (rows, out) */
    int64_t row_bytes, x_row_stride; /* bytes of a weight row; elements of x */
    int64_t y_row_stride, y_col_stride, bias_stride;
} quant_sizes;

/* A call described for launch. */
typedef struct job {
    quant_sizes sizes;
    bool is_empty;
    bool copies;                    /* few rows: x is copied to contiguous f32 rows, at the start of scratch */
    size_t items;                   /* few rows: work-items per work-group */
    int64_t tile;                   /* rows of the weight in scratch; 0: none */
    tarn_dtype dtype;               /* of the dequantized weight */
    bool in_eights;                 /* eight elements per work-item, not 32 */
    int64_t tile_bytes;             /* aligned to 256; scratch of the GEMM follows */
    const tarn__cl_kernel *kernel;  /* of few rows; else dequantizes */
    tarn__cl_gemm_plan last, whole; /* of the last tile, and of those before */
} job;

/* Operands. */
static const tarn__view *bias_of(const tarn__call *call)
{
    return call->inputs > 2 ? call->in[2] : NULL;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Rows of the weight per tile, such that tiles are about equal. */
static int64_t tile_of(int64_t out, int64_t in, tarn_dtype dtype)
{
    const int64_t most = 1 + TILE_BYTES / (int64_t)tarn__dtype_bytes(dtype) / (in + 1), tiles = (out + most - 1) / most,
                  even = tiles > 0 ? (out + tiles - 1) / tiles : 0;
    return min_i64(out, (even + 63) / 64 * 64);
}

/* True if all quant blocks, of 144 bytes, begin at multiples of 16. */
static bool begins_at_16(const tarn__view *weight)
{
    return (weight->base + tarn__bytes_of(weight->dtype, weight->offset)) % 16 == 0;
}

static void describe(job *j, const tarn__call *call)
{
    const tarn__view *x = call->in[0], *weight = call->in[1], *bias = bias_of(call), *y = call->out[0];
    *j = (job){.is_empty = tarn__view_count(y) == 0};
    j->sizes = (quant_sizes){.rows = x->shape[0],
                             .in = x->shape[1],
                             .out = weight->shape[0],
                             .row_bytes = tarn__bytes_of(weight->dtype, weight->stride[0]),
                             .x_row_stride = x->stride[0],
                             .y_row_stride = y->stride[0],
                             .y_col_stride = y->stride[1],
                             .bias_stride = bias ? bias->stride[0] : 0};
    bool few = j->sizes.rows <= FEW_ROWS;
    j->copies = few && (x->dtype != TARN_F32 || x->stride[1] != 1);
    if (j->copies)
        j->sizes.x_row_stride = j->sizes.in;
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    j->dtype = device && device->has_mma && x->dtype != TARN_F32 ? x->dtype : TARN_F32;
    j->in_eights = (weight->dtype == TARN_Q8_0 || (weight->dtype == TARN_Q4_K && begins_at_16(weight))) && device &&
                   device->in_lockstep;
    j->tile = few ? 0 : tile_of(j->sizes.out, j->sizes.in, j->dtype);
    j->tile_bytes = (j->tile * j->sizes.in * (int64_t)tarn__dtype_bytes(j->dtype) + 255) / 256 * 256;
}

/* ---- a few rows -------------------------------------------------------------------------------------------------- */

/* x as contiguous f32 rows: itself, or a copy at the start of scratch. */
static tarn__view contiguous_x(const tarn__call *call, const job *j)
{
    static const tarn__fill none = {0};
    if (!j->copies)
        return *call->in[0];
    tarn__view space = tarn__cl_scratch_view(call, 0, TARN_F32), packed = *call->in[0];
    packed.memory = space.memory, packed.offset = space.offset, packed.dtype = TARN_F32;
    tarn__view_set_row_major(&packed);
    tarn__call part = *call;
    part.inputs = part.outputs = 1;
    part.in[0] = call->in[0];
    part.out[0] = &packed;
    part.params = &none;
    part.params_bytes = sizeof(none);
    tarn__cl_kernel_table()[TARN__K_copy].run(&part);
    return packed;
}

/* Shrinks the work-group where the driver limits the kernel. 1 work-item per group: the variant for CPUs. */
static bool find_few(const tarn__call *call, job *j)
{
    const tarn__view *bias = bias_of(call);
    char options[128];
    for (j->items = tarn__cl_device_at(call->device)->has_local_memory ? GROUP : 1;;) {
        snprintf(options, sizeof(options), "-DFORMAT=%s -DT_C=%s -DT_BIAS=%s -DROWS=%d -DITEMS=%zu",
                 tarn__dtypes[call->in[1]->dtype].name, tarn__cl_dtype_name(call->out[0]->dtype),
                 tarn__cl_dtype_name(bias ? bias->dtype : TARN_F32), j->sizes.rows == 1 ? 1 : FEW_ROWS, j->items);
        j->kernel = tarn__cl_find(call, "quant_matmul", "multiply", options);
        if (j->items == 1 || tarn__cl_allows(j->kernel, j->items))
            return tarn__cl_allows(j->kernel, 1);
        j->items = tarn__cl_group_of(j->kernel);
    }
}

/* Bytes: the weight once, quantized; bound by it. */
static void run_few(const tarn__call *call, const job *j)
{
    tarn__view x = contiguous_x(call, j);
    tarn__cl_launch l = tarn__cl_begin_kernel(call, j->kernel);
    tarn__cl_arg_view(&l, &x);
    tarn__cl_arg_view(&l, call->in[1]);
    tarn__cl_arg_view(&l, bias_of(call));
    tarn__cl_arg_view(&l, call->out[0]);
    tarn__cl_arg_value(&l, &j->sizes, sizeof(j->sizes));
    tarn__cl_enqueue(&l, 1, (size_t[]){j->items * (size_t)j->sizes.out}, (size_t[]){j->items});
}

/* ---- many rows --------------------------------------------------------------------------------------------------- */

/* Dequantizes `rows` rows of the weight from `first` on to `to`. */
static void dequantize(const tarn__call *call, const job *j, int64_t first, int64_t rows, const tarn__view *to)
{
    tarn__view from = *call->in[1];
    from.offset += first * from.stride[0];
    tarn__cl_launch l = tarn__cl_begin_kernel(call, j->kernel);
    tarn__cl_arg_view(&l, &from);
    tarn__cl_arg_view(&l, to);
    tarn__cl_arg_value(&l, &j->sizes, sizeof(j->sizes));
    const int64_t each = j->in_eights ? 8 : 32;
    tarn__cl_enqueue_independent(&l, 2, (size_t[]){(size_t)((j->sizes.in + each - 1) / each), (size_t)rows},
                                 j->in_eights ? 64 : 16);
}

/* The GEMM with `rows` rows of the weight from `first`, dequantized at the start of scratch. */
static tarn__cl_gemm gemm_of(const tarn__call *call, const job *j, int64_t first, int64_t rows)
{
    const tarn__view *x = call->in[0], *bias = bias_of(call);
    tarn__cl_gemm p = {.a = *x,
                       .b = tarn__cl_scratch_view(call, 0, j->dtype),
                       .c = *call->out[0],
                       .alpha = 1,
                       .batches = {.operands = 4, .count = 1}};
    p.sizes = (tarn__cl_gemm_sizes){.m = j->sizes.rows,
                                    .n = rows,
                                    .k = j->sizes.in,
                                    .splits = 1,
                                    .part = j->sizes.in,
                                    .c_row_stride = j->sizes.y_row_stride,
                                    .c_col_stride = j->sizes.y_col_stride,
                                    .a_row_stride = x->stride[0],
                                    .a_col_stride = x->stride[1],
                                    .b_row_stride = 1,
                                    .b_col_stride = j->sizes.in,
                                    .bias_col_stride = j->sizes.bias_stride};
    p.c.offset += first * j->sizes.y_col_stride;
    if (bias) {
        p.bias = *bias;
        p.bias.offset += first * j->sizes.bias_stride;
    }
    return p;
}

/* All tiles before the last share a plan, whose y begins at an offset that is aligned only where those of all are. */
static tarn__plan_status prepare_many(const tarn__call *call, job *j)
{
    const int64_t tile = j->tile, out = j->sizes.out, rest = (out - 1) % tile + 1;
    const char *format = tarn__dtypes[call->in[1]->dtype].name;
    char options[96];
    const tarn__cl_gemm last = gemm_of(call, j, out - rest, rest);
    snprintf(options, sizeof(options), "-DFORMAT=%s -DT_TO=%s%s%s", format, tarn__cl_dtype_name(j->dtype),
             j->in_eights ? " -DEIGHTS -DIS_" : "", j->in_eights ? format : "");
    j->kernel = tarn__cl_find(call, "quant_matmul", "dequantize", options);
    tarn__plan_status status = tarn__cl_gemm_prepare(call, &last, &j->last);
    if (status == TARN__PLAN_READY && out > tile) {
        tarn__cl_gemm whole = gemm_of(call, j, 0, tile);
        whole.c.offset |= out > 2 * tile ? tile * j->sizes.y_col_stride : 0;
        status = tarn__cl_gemm_prepare(call, &whole, &j->whole);
    }
    return status == TARN__PLAN_READY ? tarn__cl_ready(call, tarn__cl_allows(j->kernel, 1)) : status;
}

/* Tile by tile: dequantize, then multiply; the queue keeps the order, so one tile of scratch serves all. */
static void run_many(const tarn__call *call, const job *j)
{
    for (int64_t first = 0; first < j->sizes.out; first += j->tile) {
        int64_t rows = min_i64(j->tile, j->sizes.out - first);
        const tarn__cl_gemm p = gemm_of(call, j, first, rows);
        dequantize(call, j, first, rows, &p.b);
        tarn__cl_gemm_run(call, &p, first + j->tile < j->sizes.out ? &j->whole : &j->last, j->tile_bytes);
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Scratch of few rows: x alone. Else a dequantized tile of the weight, and what its GEMM needs, full or last. */
static tarn__plan_status prepare_matmul_quant(const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    describe(j, call);
    if (j->is_empty)
        return TARN__PLAN_READY;
    if (j->tile == 0) {
        plan->scratch_bytes = j->copies ? (size_t)(j->sizes.rows * j->sizes.in * 4 + 255) / 256 * 256 : 0;
        return call->is_meta ? TARN__PLAN_READY : tarn__cl_ready(call, find_few(call, j));
    }
    tarn__plan_status status = prepare_many(call, j);
    size_t whole = j->whole.scratch_bytes, last = j->last.scratch_bytes;
    plan->scratch_bytes = (size_t)j->tile_bytes + (whole > last ? whole : last);
    return status;
}

/* Decode multiplies quant blocks as they are read; prefill dequantizes tiles for the GEMM. */
static void kernel_matmul_quant(const tarn__call *call)
{
    const job *j = tarn__plan_job(call->plan);
    if (j->is_empty)
        return;
    if (j->tile == 0)
        run_few(call, j);
    else
        run_many(call, j);
}

void tarn__cl_register_quant_matmul(tarn__kernel_row *rows)
{
    rows[TARN__K_matmul_quant] = tarn__row_planned(prepare_matmul_quant, kernel_matmul_quant,
                                                   (TARN__FLOATS & ~TARN__BIT(TARN_F64)) | TARN__QUANTIZED);
}
