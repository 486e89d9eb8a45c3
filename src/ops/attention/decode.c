/* decode.c: the operations of a decode step: linear layers with norm and residual, attention of one token, greedy
 * argmax.
 *
 * The composed forms define the results; a fused kernel differs only in what it does not round in between. A kernel
 * supports few rows of x and weights of one dtype with 16-byte aligned rows; weights of several dtypes get a call
 * each.
 *
 * Why fused: a decode step reads each weight once for few rows, so it is bound by memory and by launch overhead;
 * norm, GEMV, activation and residual in one kernel save launches and round trips. Nothing is recorded
 * here; with gradients the composed form runs. */
#include <math.h>

#include "ops/internal.h"

#define MAX_ROW 8192 /* max elements of x in shared memory as f32: 99 KiB, the smallest limit of the supported GPUs */
#define MAX_BYTE_ROW 16384 /* as bytes, for quantized weights */
#define MAX_HEADS 4096     /* heads of all sequences together */
#define MAX_HEAD_DIM 256
#define VEC_BYTES 16 /* bytes of a vector load */

/* ---- what the fused kernels support ---------------------------------------------------------------------------- */

/* True when the last axis is contiguous and every row is 16-byte aligned, for vector loads. */
static bool is_aligned(const tarn_tensor *x)
{
    const tarn__view *view = &x->view;
    int last = view->rank - 1;
    bool good = view->stride[last] == 1 && (uintptr_t)tarn__view_at(view) % VEC_BYTES == 0;
    for (int i = 0; good && i < last; i++)
        good = view->shape[i] == 1 ||
               tarn__bytes_of(view->dtype, view->stride[i] < 0 ? -view->stride[i] : view->stride[i]) % VEC_BYTES == 0;
    return good;
}

/* At most TARN__MAX_DECODE_ROWS rows, `in` a multiple of 8, and a norm weight that matches. */
static bool x_fits(tarn__kernel kernel, const tarn_tensor *x, const tarn_tensor *norm)
{
    const tarn__view *view = &x->view;
    if (x->is_constant || view->rank < 1 || !tarn__has_kernel(tarn__device(x), kernel, view->dtype))
        return false;
    int64_t in = view->shape[view->rank - 1];
    bool is_few = in > 0 && in % 8 == 0 && tarn__view_count(view) <= TARN__MAX_DECODE_ROWS * in;
    return is_few && (!norm || (norm->view.dtype == view->dtype && norm->view.rank == 1 && norm->view.shape[0] == in &&
                                is_aligned(norm)));
}

/* A weight [out, in] of x's dtype or narrower, whose rows fit in shared memory. */
static bool weight_fits(tarn__kernel kernel, const tarn_tensor *x, const tarn_tensor *weight)
{
    const tarn__view *view = &weight->view;
    int64_t in = x->view.shape[x->view.rank - 1];
    bool is_quantized = tarn__is_quantized(view->dtype);
    return (view->dtype == x->view.dtype || tarn__is_narrow(x, weight)) && !weight->is_constant && view->rank == 2 &&
           view->shape[1] == in && tarn__has_kernel(tarn__device(x), kernel, view->dtype) &&
           tarn__same_device(tarn__device(x), tarn__device(weight)) && in <= (is_quantized ? MAX_BYTE_ROW : MAX_ROW) &&
           (is_quantized || is_aligned(weight));
}

/* A bias [out] of x's dtype, or any float but f64 with a narrow weight. */
static bool bias_fits(const tarn_tensor *x, const tarn_tensor *weight, const tarn_tensor *bias)
{
    return !bias ||
           ((bias->view.dtype == x->view.dtype || tarn__is_narrow(x, weight)) && !bias->is_constant &&
            bias->view.rank == 1 && bias->view.shape[0] == weight->view.shape[0] && tarn__is_float(bias->view.dtype) &&
            bias->view.dtype != TARN_F64 && tarn__same_device(tarn__device(weight), tarn__device(bias)));
}

/* x as aligned (rows, in); NULL without an error where that is impossible. */
static tarn_tensor *aligned_rows(const char *function, tarn_tensor *x)
{
    tarn_tensor *rows = tarn__rows_of(function, x);
    return rows && is_aligned(rows) ? rows : NULL;
}

/* A new result [..., out] for x [..., in]. */
static tarn_tensor *result_for(const char *function, const tarn_tensor *x, const tarn_tensor *weight)
{
    tarn_shape shape = tarn__shape_of(x);
    shape.size[shape.rank - 1] = weight->view.shape[0];
    return tarn__tensor_new(function, shape, x->view.dtype, tarn__device(x));
}

/* ---- norm and linear layers ------------------------------------------------------------------------------------ */

/* x with its norm, or x itself. */
static tarn_tensor *normed(tarn_tensor *x, const tarn__decode_norm *norm)
{
    return norm->weight ? tarn_rmsnorm(x, norm->weight, norm->epsilon) : x;
}

/* Nothing may be recorded: the fused kernels have no backward. */
static bool all_fit(tarn__kernel kernel, tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *const *weights,
                    tarn_tensor *const *biases, int count)
{
    if (!x || tarn__recording_needed((tarn_tensor *[]){x, norm->weight}, 2) || !x_fits(kernel, x, norm->weight))
        return false;
    bool good = true;
    for (int i = 0; good && i < count; i++)
        good = weights[i] && !tarn__recording_needed((tarn_tensor *[]){weights[i], biases ? biases[i] : NULL}, 2) &&
               weight_fits(kernel, x, weights[i]) && bias_fits(x, weights[i], biases ? biases[i] : NULL);
    return good;
}

/* One kernel call for `count` weights of one dtype. */
static bool call_norm_linear(tarn_tensor *rows, tarn_tensor *x, const tarn__decode_norm *norm,
                             tarn_tensor *const *weights, tarn_tensor *const *biases, int count, tarn_tensor **y)
{
    tarn_tensor *w[3] = {0}, *b[3] = {0}, *to[3] = {0};
    tarn__norm params = {.epsilon = norm->epsilon};
    for (int i = 0; i < count; i++) {
        w[i] = weights[i], b[i] = biases ? biases[i] : NULL;
        if (!(y[i] = result_for("norm_linear", x, weights[i])) || !(to[i] = tarn__rows_of("norm_linear", y[i])))
            return false;
    }
    return tarn__kernel_call(TARN__K_norm_linear, "norm_linear", params,
                             TARN__IN(rows, norm->weight, w[0], w[1], w[2], b[0], b[1], b[2]),
                             TARN__OUT(to[0], to[1], to[2]));
}

/* Consecutive weights of one dtype share a call (q, k and v). */
bool tarn__norm_linear(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *const *weights,
                       tarn_tensor *const *biases, int count, tarn_tensor **y)
{
    tarn_tensor *rows =
        all_fit(TARN__K_norm_linear, x, norm, weights, biases, count) ? aligned_rows("norm_linear", x) : NULL;
    bool good = !tarn_failed();
    if (!rows) {
        tarn_tensor *h = normed(x, norm);
        for (int i = 0; good && i < count; i++)
            good = h && (y[i] = tarn_linear_apply(h, weights[i], biases ? biases[i] : NULL)) != NULL;
        return good;
    }
    for (int i = 0, end; good && i < count; i = end) {
        for (end = i + 1; end < count && weights[end]->view.dtype == weights[i]->view.dtype;)
            end++;
        good = call_norm_linear(rows, x, norm, weights + i, biases ? biases + i : NULL, end - i, y + i);
    }
    return good;
}

/* Both projections and the activation in one kernel: the hidden activation is never written before it is gated. */
tarn_tensor *tarn__norm_gate_up(tarn_tensor *x, const tarn__decode_norm *norm, tarn_tensor *gate, tarn_tensor *up)
{
    tarn_tensor *weights[] = {gate, up};
    bool fits = all_fit(TARN__K_norm_gate_up, x, norm, weights, NULL, 2) && tarn__same_shape(&gate->view, &up->view) &&
                gate->view.dtype == up->view.dtype;
    tarn_tensor *rows = fits ? aligned_rows("norm_gate_up", x) : NULL;
    if (!rows) {
        tarn_tensor *h = normed(x, norm), *gated = h ? tarn_linear_apply(h, gate, NULL) : NULL,
                    *y = gated ? tarn_linear_apply(h, up, NULL) : NULL;
        return y ? tarn_mul(tarn_silu(gated), y) : NULL;
    }
    tarn__norm params = {.epsilon = norm->epsilon};
    tarn_tensor *y = result_for("norm_gate_up", x, gate), *to = y ? tarn__rows_of("norm_gate_up", y) : NULL;
    return to && tarn__kernel_call(TARN__K_norm_gate_up, "norm_gate_up", params, TARN__IN(rows, norm->weight, gate, up),
                                   TARN__OUT(to))
               ? y
               : NULL;
}

/* The residual is read in the layout of x's rows; else linear and add run separately. */
tarn_tensor *tarn__linear_residual(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, tarn_tensor *sum)
{
    const tarn__decode_norm none = {0};
    tarn_tensor *rows = NULL, *from = NULL;
    if (sum && !sum->is_constant && all_fit(TARN__K_linear_residual, x, &none, &weight, &bias, 1) &&
        !tarn__recording_needed(&sum, 1) && sum->view.dtype == x->view.dtype &&
        tarn__same_device(tarn__device(x), tarn__device(sum)) && sum->view.rank == x->view.rank &&
        tarn__view_count(&sum->view) / weight->view.shape[0] * weight->view.shape[1] == tarn__view_count(&x->view) &&
        sum->view.shape[sum->view.rank - 1] == weight->view.shape[0]) {
        rows = aligned_rows("linear_residual", x);
        from = rows ? tarn__rows_of("linear_residual", sum) : NULL;
        from = from && from->view.stride[1] == 1 ? from : NULL;
    }
    if (!from) {
        tarn_tensor *y = tarn_linear_apply(x, weight, bias);
        return y ? tarn_add(sum, y) : NULL;
    }
    tarn__norm params = {0};
    tarn_tensor *y = result_for("linear_residual", x, weight), *to = y ? tarn__rows_of("linear_residual", y) : NULL;
    return to && tarn__kernel_call(TARN__K_linear_residual, "linear_residual", params,
                                   TARN__IN(rows, weight, bias, from), TARN__OUT(to))
               ? y
               : NULL;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* head_dim a multiple of 8 up to MAX_HEAD_DIM, aligned caches, nothing recorded. */
bool tarn__attention_decode_fits(tarn_tensor *q, const tarn__decode_kv *keys, const tarn_rope_options *rope)
{
    const tarn__view *a = &q->view, *k = &keys->rows->view;
    tarn_device device = tarn__device(q);
    return tarn__has_kernel(device, TARN__K_attention_decode, a->dtype) &&
           tarn__has_kernel(device, TARN__K_attention_decode, k->dtype) && a->dtype != TARN_U8 && a->rank == 4 &&
           a->shape[1] == 1 && a->stride[3] == 1 && a->shape[3] % 8 == 0 && a->shape[3] <= MAX_HEAD_DIM &&
           a->shape[0] * a->shape[2] <= MAX_HEADS && rope->dims % 2 == 0 && rope->dims <= a->shape[3] && k->rank == 4 &&
           k->shape[2] > 0 && k->stride[3] == 1 && (uintptr_t)tarn__view_at(k) % VEC_BYTES == 0 &&
           !tarn__recording_needed(&q, 1);
}

/* All operands are used in place; caches and scales are outputs that are also read. */
tarn_tensor *tarn__decode_attention(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v, tarn_tensor *position,
                                    const tarn_rope_options *rope, double scale, const tarn__decode_kv *keys,
                                    const tarn__decode_kv *values)
{
    tarn__attention_decode params = {.scale = scale != 0 ? scale : 1 / sqrt((double)q->view.shape[3]),
                                     .rope = tarn__rope_params(rope, q->view.shape[3])};
    tarn_tensor *y = tarn__tensor_new("attention", tarn__shape_of(q), q->view.dtype, tarn__device(q));
    bool good = y && tarn__kernel_call(TARN__K_attention_decode, "attention", params, TARN__IN(q, k, v, position),
                                       TARN__OUT(y, keys->rows, values->rows, keys->scale, values->scale),
                                       .reads_output = 0x1e);
    return good ? y : NULL;
}

/* ---- greedy sampling ------------------------------------------------------------------------------------------- */

/* The kernel, or max, argmax and where: a maximum that is not finite must not pick a token. */
tarn_tensor *tarn__argmax_finite(tarn_tensor *x)
{
    const tarn__view *view = &x->view;
    tarn__along along = {.axis = 1};
    if (tarn__has_kernel(tarn__device(x), TARN__K_argmax_finite, view->dtype) && view->rank == 2 &&
        view->shape[0] <= MAX_HEADS && view->shape[1] < INT32_MAX / 2) {
        tarn_tensor *y = tarn__tensor_new("argmax_finite", TARN_SHAPE(view->shape[0], 1), TARN_I64, tarn__device(x));
        return y && tarn__kernel_call(TARN__K_argmax_finite, "argmax_finite", along, TARN__IN(x), TARN__OUT(y)) ? y
                                                                                                                : NULL;
    }
    /* max - max: 0, or NaN where the maximum is not finite */
    tarn_tensor *largest = tarn_max(x, TARN_AXES(1), true), *gap = tarn_sub(largest, largest);
    return tarn_where(tarn_eq(gap, tarn_scalar(0)), tarn_argmax(x, 1, true), tarn_scalar(-1));
}
