/* quant_matmul.h: shared by matmul with quantized weights on all levels and the bf16 GEMM of AArch64: operands, and
 * how results and bias are stored. */
#ifndef TARN__CPU_QUANT_MATMUL_H
#define TARN__CPU_QUANT_MATMUL_H

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/int_math.h"
#include "backends/cpu/common/scratch.h"
#include "backends/cpu/runtime/level.h"
#include "base/quant/quant.h"

#define ROW_TILE 128                  /* rows of x quantized at a time: they stay in L2 */
#define MIN_BYTES ((int64_t)64 << 10) /* bytes of the weight per task, at least */
#define MAX_COLUMNS 32                /* results per store_results(), at most */

/* y (rows, out) = x (rows, in) · wᵀ + bias, w (out, in) in blocks of 32 or 256 elements along `in`. */
typedef struct gemm_args {
    const tarn__view *x, *w, *bias, *y; /* set by bind_matmul(): a plan has none */
    int64_t rows, in, out;
    int64_t first, count; /* rows of x in the current tile */
    int type;             /* dtype - TARN_Q8_0 */
} gemm_args;

static inline gemm_args describe_matmul(const tarn__call *call)
{
    const tarn__view *x = call->in[0], *w = call->in[1];
    return (gemm_args){.rows = x->shape[0], .in = x->shape[1], .out = w->shape[0], .type = (int)w->dtype - TARN_Q8_0};
}

static inline void bind_matmul(gemm_args *p, const tarn__call *call)
{
    p->x = call->in[0];
    p->w = call->in[1];
    p->bias = call->inputs > 2 ? call->in[2] : NULL;
    p->y = call->out[0];
}

/* Whether a min, times the sum of x, is part of the product. */
static inline bool has_min(tarn_dtype dtype)
{
    return (TARN__BIT(dtype) & (TARN__BIT(TARN_Q4_1) | TARN__BIT(TARN_Q5_1) | TARN__BIT(TARN_Q2_K) |
                                TARN__BIT(TARN_Q4_K) | TARN__BIT(TARN_Q5_K))) != 0;
}

/* Address of a row; strides of quantized views count elements, tarn__bytes_of() converts. */
static inline char *row_of(const tarn__view *view, int64_t row)
{
    return (char *)tarn__view_at(view) + tarn__bytes_of(view->dtype, row * view->stride[0]);
}

/* n elements of a row of x from `column`, as f32. */
static inline void load_x(const gemm_args *p, int64_t row, int64_t column, float *to, int64_t n)
{
    int64_t size = (int64_t)tarn__dtype_bytes(p->x->dtype);
    tarn__load[p->x->dtype][COMPUTE_F32](row_of(p->x, row) + column * p->x->stride[1] * size, p->x->stride[1], to, n);
}

/* Adds the bias to n results of one row from `column` and stores them in y's dtype. Overwrites `values`. */
static inline void store_results(const gemm_args *p, int64_t row, int64_t column, float *values, int64_t n)
{
    if (p->bias) {
        float bias[MAX_COLUMNS];
        tarn__load[p->bias->dtype][COMPUTE_F32](row_of(p->bias, column), p->bias->stride[0], bias, n);
        for (int64_t i = 0; i < n; i++)
            values[i] += bias[i];
    }
    char *to = row_of(p->y, row) + column * p->y->stride[1] * (int64_t)tarn__dtype_bytes(p->y->dtype);
    tarn__store[p->y->dtype][COMPUTE_F32](values, to, p->y->stride[1], n);
}

#endif
