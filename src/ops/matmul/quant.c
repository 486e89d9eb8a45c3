/* quant.c: quantized weights in operations: quantize, linear, embedding; 16-bit weights with f32 x.
 *
 * A quantized weight gets no gradient; it stays as it is. Where a device has no matmul_quant, and in backward, a few
 * rows of the weight at a time are dequantized, so that the whole never exists in floats.
 *
 * Range: quantizing raises an error for NaN, infinities and values whose scale would overflow f16. Nothing here is
 * differentiable with respect to the quantized operand; x and bias of a linear layer are. */
#include "ops/internal.h"

/* Elements of a weight dequantized at a time: few next to the whole weight, enough to occupy any device. */
#define TILE ((int64_t)4 << 20)

/* ---- cast -------------------------------------------------------------------------------------------------------- */

/* Scales are f16, so elements of 2^18 and more may overflow them. Scaled so that those become infinite, they are
 * counted together with the non-finite ones in one kernel. */
#define TOO_LARGE 0x1p18
static bool check_range(tarn_tensor *x, tarn_dtype dtype)
{
    tarn__fill none = {0};
    tarn_tensor *scaled = tarn_mul(x, tarn_scalar(0x1p128 / TOO_LARGE));
    tarn_tensor *count = scaled ? tarn__tensor_new("cast", TARN_SCALAR, TARN_I64, tarn__device(x)) : NULL;
    if (!count || !tarn__kernel_call(TARN__K_count_nonfinite, "cast", none, TARN__IN(scaled), TARN__OUT(count)))
        return false;
    double bad = tarn_item(count);
    return bad == 0 ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "cast: %.0f elements of x are not finite, or %.0f and beyond, which %s cannot represent", bad,
                       TOO_LARGE, tarn_dtype_name(dtype));
}

static tarn_tensor *quantize(tarn_tensor *x, tarn_dtype dtype)
{
    tarn__fill none = {0};
    tarn_tensor *f32 = tarn__contiguous("cast", tarn_cast(tarn_detach(x), TARN_F32));
    tarn_tensor *y =
        f32 && check_range(f32, dtype) ? tarn__tensor_new("cast", tarn__shape_of(x), dtype, tarn__device(x)) : NULL;
    return y && tarn__kernel_call(TARN__K_quantize, "cast", none, TARN__IN(f32), TARN__OUT(y)) ? y : NULL;
}

/* Quantizing moves 4 bytes per element in and the block bytes out; the range check is one more pass. */
tarn_tensor *tarn__cast_to_quantized(tarn_tensor *x, tarn_dtype dtype)
{
    if (x->is_constant || (!tarn__is_float(x->view.dtype) && !tarn__is_quantized(x->view.dtype))) {
        tarn__raise(TARN_ERROR_DTYPE, "cast: x is %s; only floats can be quantized to %s",
                    x->is_constant ? "a tarn_scalar()" : tarn_dtype_name(x->view.dtype), tarn_dtype_name(dtype));
        return NULL;
    }
    if (!tarn__check_shape("cast", tarn__shape_of(x), dtype))
        return NULL;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *y = scope ? quantize(x, dtype) : NULL;
    if (y)
        tarn_scope_return(scope, y);
    tarn_scope_close(scope);
    return y;
}

/* ---- gathering rows ---------------------------------------------------------------------------------------------- */

/* Copies whole rows as bytes: blocks are never unpacked. */
tarn_tensor *tarn__index_select_quantized(const char *function, tarn_tensor *x, int axis, tarn_tensor *index)
{
    if ((axis = tarn__check_axis(function, axis, x->view.rank)) < 0)
        return NULL;
    if (axis == x->view.rank - 1) {
        tarn__raise(
            TARN_ERROR_SHAPE,
            "%s: the last axis of x holds quant blocks of %s, which cannot be split; convert it with tarn_cast() first",
            function, tarn_dtype_name(x->view.dtype));
        return NULL;
    }
    if (index->view.rank != 1) {
        tarn__raise(TARN_ERROR_SHAPE, "%s: the index %s has rank %d, not 1", function, TARN__SHAPE_STRING(index),
                    index->view.rank);
        return NULL;
    }
    tarn_tensor *operand[] = {x, index};
    if (!tarn__unify_devices(function, operand, 2))
        return NULL;
    tarn_shape shape = tarn__shape_of(x);
    shape.size[axis] = index->view.shape[0];
    tarn__along along = {.axis = axis};
    tarn_tensor *y = tarn__tensor_new(function, shape, x->view.dtype, tarn__device(operand[0]));
    tarn_tensor *from = y ? tarn__quant_bytes(operand[0]) : NULL, *to = from ? tarn__quant_bytes(y) : NULL;
    return to && tarn__kernel_call(TARN__K_index_select, function, along, TARN__IN(from, operand[1]), TARN__OUT(to))
               ? y
               : NULL;
}

/* Dequantizes the listed rows: in one kernel where the device has it, else index_select of bytes, then a cast. */
static tarn_tensor *gather_rows(tarn_tensor *weight, tarn_tensor *list, tarn_dtype dtype)
{
    tarn__fill none = {0};
    tarn_tensor *operand[] = {weight, list};
    if (!tarn__unify_devices("embedding", operand, 2))
        return NULL;
    if (dtype == TARN_F64 || !tarn__has_kernel(tarn__device(operand[0]), TARN__K_dequantize_rows, weight->view.dtype)) {
        tarn_tensor *rows = tarn__index_select_quantized("embedding", operand[0], 0, operand[1]),
                    *y = rows ? tarn_cast(rows, TARN_F32) : NULL;
        return y && dtype != TARN_F32 ? tarn_cast(y, dtype) : y;
    }
    tarn_tensor *y = tarn__tensor_new("embedding", TARN_SHAPE(list->view.shape[0], weight->view.shape[1]), dtype,
                                      tarn__device(operand[0]));
    return y && tarn__kernel_call(TARN__K_dequantize_rows, "embedding", none, TARN__IN(operand[0], operand[1]),
                                  TARN__OUT(y))
               ? y
               : NULL;
}

/* index […] -> […, C]: only the rows used are dequantized. */
tarn_tensor *tarn__embedding_quantized(tarn_tensor *weight, tarn_tensor *index, tarn_dtype dtype)
{
    tarn_shape shape = tarn__shape_of(index);
    shape.size[shape.rank++] = weight->view.shape[1];
    tarn_tensor *list = tarn_reshape(index, TARN_SHAPE(tarn__view_count(&index->view)));
    tarn_tensor *rows = list ? gather_rows(weight, list, dtype) : NULL;
    return rows ? tarn_reshape(rows, shape) : NULL;
}

/* ---- linear, tile by tile -------------------------------------------------------------------------------------- */

/* Rows `begin` to `end` of the weight, converted to `dtype`. */
static tarn_tensor *dequantized(tarn_tensor *weight, int64_t begin, int64_t end, tarn_dtype dtype)
{
    return tarn_cast(tarn_slice(weight, 0, begin, end), dtype);
}

/* Rows of the weight in a tile; the + 1 avoids a division by 0. */
static int64_t tile_rows(const tarn_tensor *weight)
{
    int64_t rows = TILE / (weight->view.shape[1] + 1);
    return rows > 0 ? rows : 1;
}

/* y = x @ weightᵀ + bias; x and y are (rows, in) and (rows, out). */
static bool multiply_tiles(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, tarn_tensor *y)
{
    int64_t out = weight->view.shape[0], step = tile_rows(weight);
    bool good = true;
    tarn_tensor *same = bias ? tarn_cast(bias, x->view.dtype) : NULL;
    for (int64_t begin = 0; good && begin < out; begin += step) {
        int64_t end = begin + step < out ? begin + step : out;
        tarn_scope *scope = tarn_scope_open();
        good = scope && tarn__gemm("linear_apply", x, tarn__transposed(dequantized(weight, begin, end, x->view.dtype)),
                                   same ? tarn_slice(same, 0, begin, end) : NULL, 0, tarn_slice(y, 1, begin, end));
        tarn_scope_close(scope);
    }
    return good && !tarn_failed();
}

/* gx = g @ weight, accumulated in f32. */
static tarn_tensor *gradient_of_x(tarn_tensor *g, tarn_tensor *weight)
{
    int64_t out = weight->view.shape[0], step = tile_rows(weight);
    tarn_tensor *wide = tarn_cast(g, TARN_F32);
    tarn_tensor *to = wide ? tarn__tensor_new("linear_apply", TARN_SHAPE(g->view.shape[0], weight->view.shape[1]),
                                              TARN_F32, tarn__device(g))
                           : NULL;
    bool good = to && (out > 0 || tarn__fill_with("linear_apply", to, 0));
    for (int64_t begin = 0; good && begin < out; begin += step) {
        int64_t end = begin + step < out ? begin + step : out;
        tarn_scope *scope = tarn_scope_open();
        good = scope && tarn__gemm("linear_apply", tarn_slice(wide, 1, begin, end),
                                   dequantized(weight, begin, end, TARN_F32), NULL, begin > 0, to);
        tarn_scope_close(scope);
    }
    return good ? to : NULL;
}

/* Only x and the bias get gradients; the weight is dequantized again, tile by tile. */
static bool linear_backward(const tarn__backward *b)
{
    tarn_tensor *g = tarn__rows_of("linear_apply", b->grads[0]);
    if (!g)
        return false;
    if (tarn__needs_grad(b, 0)) {
        tarn_tensor *of_x = gradient_of_x(g, b->saved[0]);
        if (!of_x || !tarn__accumulate_grad(b, 0, tarn_reshape(of_x, tarn__input_spec(b, 0)->shape)))
            return false;
    }
    return b->node->inputs < 3 || !tarn__needs_grad(b, 2) || tarn__accumulate_grad(b, 2, g);
}

/* ---- linear ------------------------------------------------------------------------------------------------------ */

bool tarn__is_narrow(const tarn_tensor *x, const tarn_tensor *weight)
{
    if (!weight || weight->is_constant)
        return false;
    bool is_short = weight->view.dtype == TARN_BF16 || weight->view.dtype == TARN_F16;
    return tarn__is_quantized(weight->view.dtype) ||
           (is_short && x && !x->is_constant && x->view.dtype == TARN_F32 && !tarn_needs_grad(weight));
}

/* x […, in], f32 or 16-bit; weight [out, in]; bias [out] or NULL, of any such dtype. */
static bool check_linear(tarn_tensor **operand)
{
    const uint32_t takes = TARN__FLOATS & ~TARN__BIT(TARN_F64);
    tarn_tensor *x = operand[0], *weight = operand[1], *bias = operand[2];
    if (!tarn__check("linear_apply", x, "x") || !tarn__check_dtype("linear_apply", x, takes, "x"))
        return false;
    if (x->is_constant || x->view.rank < 1 || weight->view.rank != 2 ||
        x->view.shape[x->view.rank - 1] != weight->view.shape[1])
        return tarn__raise(TARN_ERROR_SHAPE,
                           "linear_apply: x %s and weight %s do not fit: weight is [out, in], and x ends in `in`",
                           TARN__SHAPE_STRING(x), TARN__SHAPE_STRING(weight));
    if (!bias)
        return tarn__unify_devices("linear_apply", operand, 2);
    if (!tarn__check("linear_apply", bias, "bias") || !tarn__check_dtype("linear_apply", bias, takes, "bias"))
        return false;
    if (bias->is_constant || bias->view.rank != 1 || bias->view.shape[0] != weight->view.shape[0])
        return tarn__raise(TARN_ERROR_SHAPE, "linear_apply: bias %s and weight %s do not fit: bias is [%lld]",
                           TARN__SHAPE_STRING(bias), TARN__SHAPE_STRING(weight), (long long)weight->view.shape[0]);
    return tarn__unify_devices("linear_apply", operand, 3);
}

/* True when the device has matmul_quant for these dtypes. */
static bool has_matmul_quant(const tarn_tensor *x, const tarn_tensor *weight)
{
    tarn_device device = tarn__device(x);
    return tarn__has_kernel(device, TARN__K_matmul_quant, x->view.dtype) &&
           tarn__has_kernel(device, TARN__K_matmul_quant, weight->view.dtype);
}

/* matmul_quant where the device has it, a mixed-dtype GEMM on the CPU for 16-bit weights, else tiles. */
static bool multiply(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, tarn_tensor *y)
{
    tarn__fill none = {0};
    tarn_tensor *rows = tarn__rows_of("linear_apply", x), *to = rows ? tarn__rows_of("linear_apply", y) : NULL;
    if (!to)
        return false;
    if (tarn__is_quantized(weight->view.dtype) && has_matmul_quant(x, weight))
        return tarn__kernel_call(TARN__K_matmul_quant, "linear_apply", none, TARN__IN(rows, weight, bias),
                                 TARN__OUT(to));
    /* its GEMM supports mixed dtypes and converts b while packing it */
    if (!tarn__is_quantized(weight->view.dtype) && tarn__is_cpu(tarn__device(x)))
        return tarn__gemm("linear_apply", rows, tarn__transposed(weight), bias, 0, to);
    return multiply_tiles(rows, weight, bias, to);
}

/* The weight is saved only if x needs a gradient. */
tarn_tensor *tarn__linear_narrow(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias)
{
    tarn_tensor *operand[] = {x, weight, bias};
    if (!check_linear(operand))
        return NULL;
    x = operand[0], weight = operand[1], bias = operand[2];
    tarn_shape shape = tarn__shape_of(x);
    shape.size[shape.rank - 1] = weight->view.shape[0];
    tarn_tensor *y = tarn__tensor_new("linear_apply", shape, x->view.dtype, tarn__device(x));
    tarn_scope *scope = y ? tarn_scope_open() : NULL;
    bool good = scope && multiply(tarn_detach(x), weight, bias ? tarn_detach(bias) : NULL, y);
    tarn_scope_close(scope);
    int none = 0;
    tarn_tensor *saved = tarn_needs_grad(x) ? weight : NULL;
    return good && tarn__finish("linear_apply", linear_backward, none, TARN__INPUTS(x, weight, bias), TARN__OUTPUTS(y),
                                TARN__SAVED(saved))
               ? y
               : NULL;
}
