/* layernorm.c: layernorm and rmsnorm over the last axis, alone and after a residual sum. Mean and 1 / std of each
 * row are saved in f32 (f64 for f64), and only if something will be recorded. With selective recompute, a rule that
 * saves the result gets it recomputed: the norm of a sum is computed from the rounded sum, so both are bitwise
 * identical.
 *
 * Saved per row: mean and rstd, 8 bytes, instead of the normalized row. All gradients of a norm come from one
 * kernel; those of weight and bias are sums over rows in a fixed order, so they are deterministic.
 *
 * Rows are independent: results do not depend on the batch size or the number of threads. */
#include <math.h>

#include "core/tensor/random.h"
#include "ops/internal.h"

/* Operands in order: x, weight or NULL, bias or NULL. */
static bool check_norm(const char *function, tarn_tensor **operand, double epsilon)
{
    static const char *const names[] = {"x", "weight", "bias"};
    for (int i = 0; i < 3; i++)
        if ((i == 0 || operand[i]) && (!tarn__check(function, operand[i], names[i]) ||
                                       !tarn__check_dtype(function, operand[i], TARN__FLOATS, names[i])))
            return false;
    const tarn_tensor *x = operand[0];
    if (x->view.rank == 0)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: x has rank 0, but must have an axis to normalise", function);
    if (!(epsilon >= 0))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: epsilon %g is negative", function, epsilon);
    int64_t length = x->view.shape[x->view.rank - 1];
    for (int i = 1; i < 3; i++) {
        if (!operand[i])
            continue;
        if (operand[i]->view.dtype != x->view.dtype)
            return tarn__raise(TARN_ERROR_DTYPE, "%s: x is %s and %s is %s; convert one with tarn_cast()", function,
                               tarn_dtype_name(x->view.dtype), names[i], tarn_dtype_name(operand[i]->view.dtype));
        if (operand[i]->view.rank != 1 || operand[i]->view.shape[0] != length)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: %s %s does not fit x %s: it must be [%lld]", function, names[i],
                               TARN__SHAPE_STRING(operand[i]), TARN__SHAPE_STRING(x), (long long)length);
    }
    return tarn__unify_devices(function, operand, 3);
}

/* A tensor of one value per row: x's shape with a last axis of 1. */
static tarn_tensor *per_row(const char *function, tarn_tensor *x)
{
    tarn_shape shape = tarn__shape_of(x);
    shape.size[shape.rank - 1] = 1;
    return tarn__tensor_new(function, shape, tarn__acc_dtype(x->view.dtype), tarn__device(x));
}

/* A buffer for the gradient of input i; *to is NULL where none is needed. */
static bool grad_buffer(const tarn__backward *b, int i, tarn_dtype dtype, tarn_tensor **to)
{
    *to = NULL;
    return !tarn__needs_grad(b, i) || (*to = tarn__grad_buffer(b, i, dtype)) != NULL;
}

/* ---- layernorm --------------------------------------------------------------------------------------------------- */

/* One kernel for all three gradients; those of weight and bias are f32 for 16-bit x. */
static bool layernorm_backward(const tarn__backward *b)
{
    tarn_tensor *x = b->saved[0], *weight = b->saved[1], *mean = b->saved[2], *rstd = b->saved[3], *g = b->grads[0];
    tarn_tensor *gx, *gweight, *gbias;
    if (!grad_buffer(b, 0, x->view.dtype, &gx) || !grad_buffer(b, 1, rstd->view.dtype, &gweight) ||
        !grad_buffer(b, 2, rstd->view.dtype, &gbias))
        return false;
    return tarn__run(&(tarn__launch){.kernel = TARN__K_layernorm_grad,
                                     .function = b->function,
                                     .params = b->params,
                                     .params_bytes = sizeof(tarn__norm),
                                     TARN__IN(x, weight, mean, rstd, g),
                                     TARN__OUT(gx, gweight, gbias)}) &&
           tarn__accumulate_grad(b, 0, gx) && tarn__accumulate_grad(b, 1, gweight) &&
           tarn__accumulate_grad(b, 2, gbias);
}

/* The bias is saved only while recompute is on: backward itself does not need it. */
static tarn_tensor *recompute_layernorm(const tarn__backward *b)
{
    return tarn_layernorm(b->saved[0], b->saved[1], b->saved[4], ((const tarn__norm *)b->params)->epsilon);
}

/* y = (x - mean) / sqrt(var + epsilon) · weight + bias per row. Saves x, weight, mean and rstd; the bias only for
 * recompute. */
tarn_tensor *tarn_layernorm(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, double epsilon)
{
    tarn_tensor *operand[] = {x, weight, bias}, *mean = NULL, *rstd = NULL;
    if (!check_norm("layernorm", operand, epsilon))
        return NULL;
    x = operand[0], weight = operand[1], bias = operand[2];
    tarn__norm params = {.epsilon = epsilon};
    if (tarn__recording_needed(operand, 3) && (!(mean = per_row("layernorm", x)) || !(rstd = per_row("layernorm", x))))
        return NULL;
    tarn_tensor *y =
        tarn__result_like("layernorm", (tarn_tensor *[]){x}, 1, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    if (!y ||
        !tarn__kernel_call(TARN__K_layernorm, "layernorm", params, TARN__IN(x, weight, bias), TARN__OUT(y, mean, rstd)))
        return NULL;
    bool good = tarn__finish("layernorm", layernorm_backward, params, TARN__INPUTS(x, weight, bias), TARN__OUTPUTS(y),
                             TARN__SAVED(x, weight, mean, rstd, tarn__is_recomputing() ? bias : NULL),
                             .recompute = recompute_layernorm);
    return good ? y : NULL;
}

bool tarn__apply_layernorm(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_layernorm(v->in[0], v->in[1], v->in[2], tarn__attribute_real(v, "epsilon", 1e-5))) != NULL;
}

/* ---- rmsnorm ----------------------------------------------------------------------------------------------------- */

/* gx and gweight in one kernel. */
static bool rmsnorm_backward(const tarn__backward *b)
{
    tarn_tensor *x = b->saved[0], *weight = b->saved[1], *rstd = b->saved[2], *g = b->grads[0];
    tarn_tensor *gx, *gweight;
    if (!grad_buffer(b, 0, x->view.dtype, &gx) || !grad_buffer(b, 1, rstd->view.dtype, &gweight))
        return false;
    return tarn__run(&(tarn__launch){.kernel = TARN__K_rmsnorm_grad,
                                     .function = b->function,
                                     .params = b->params,
                                     .params_bytes = sizeof(tarn__norm),
                                     TARN__IN(x, weight, rstd, g),
                                     TARN__OUT(gx, gweight)}) &&
           tarn__accumulate_grad(b, 0, gx) && tarn__accumulate_grad(b, 1, gweight);
}

/* From the saved x, hence bitwise identical to y. */
static tarn_tensor *recompute_rmsnorm(const tarn__backward *b)
{
    const tarn__norm *params = b->params;
    return tarn_rmsnorm_offset(b->saved[0], b->saved[1], params->offset, params->epsilon);
}

static bool check_offset(const char *function, double offset)
{
    return isfinite(offset) || tarn__raise(TARN_ERROR_ARGUMENT, "%s: offset %g is not finite", function, offset);
}

/* y = x / sqrt(mean(x²) + epsilon) · (offset + weight) per row. Saves x, weight and rstd. */
static tarn_tensor *rmsnorm(const char *function, tarn_tensor *x, tarn_tensor *weight, double offset, double epsilon)
{
    tarn_tensor *operand[] = {x, weight, NULL}, *rstd = NULL;
    if (!check_norm(function, operand, epsilon) || !check_offset(function, offset))
        return NULL;
    x = operand[0], weight = operand[1];
    tarn__norm params = {.epsilon = epsilon, .offset = offset};
    if (tarn__recording_needed(operand, 2) && !(rstd = per_row("rmsnorm", x)))
        return NULL;
    tarn_tensor *y =
        tarn__result_like("rmsnorm", (tarn_tensor *[]){x}, 1, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    if (!y || !tarn__kernel_call(TARN__K_rmsnorm, "rmsnorm", params, TARN__IN(x, weight), TARN__OUT(y, rstd)))
        return NULL;
    bool good = tarn__finish("rmsnorm", rmsnorm_backward, params, TARN__INPUTS(x, weight), TARN__OUTPUTS(y),
                             TARN__SAVED(x, weight, rstd), .recompute = recompute_rmsnorm);
    return good ? y : NULL;
}

tarn_tensor *tarn_rmsnorm(tarn_tensor *x, tarn_tensor *weight, double epsilon)
{
    return rmsnorm("rmsnorm", x, weight, 0, epsilon);
}

tarn_tensor *tarn_rmsnorm_offset(tarn_tensor *x, tarn_tensor *weight, double offset, double epsilon)
{
    return rmsnorm("rmsnorm_offset", x, weight, offset, epsilon);
}

bool tarn__apply_rmsnorm(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = rmsnorm("rmsnorm", v->in[0], v->in[1], tarn__attribute_real(v, "offset", 0),
                             tarn__attribute_real(v, "epsilon", 1e-5))) != NULL;
}

/* ---- residual norm --------------------------------------------------------------------------------------------- */

/* Buffers for the gradients: gx, also used for delta; weight's; bias'; delta's own with dropout. */
static bool new_grads(const tarn__backward *b, tarn_tensor *sum, bool drops, tarn_tensor **to)
{
    tarn_shape shape = tarn__shape_of(sum);
    tarn_dtype dtype = sum->view.dtype, wide = tarn__acc_dtype(dtype);
    to[0] = to[3] = NULL;
    if ((tarn__needs_grad(b, 0) || tarn__needs_grad(b, 1)) &&
        !(to[0] = tarn__tensor_new(b->function, shape, dtype, tarn__device(sum))))
        return false;
    if (drops && tarn__needs_grad(b, 1) && !(to[3] = tarn__tensor_new(b->function, shape, dtype, tarn__device(sum))))
        return false;
    return grad_buffer(b, 2, wide, &to[1]) && grad_buffer(b, 3, wide, &to[2]);
}

/* Either output may have no gradient. x and delta get the same one, except with dropout of delta. */
static bool residual_norm_backward(const tarn__backward *b)
{
    const tarn__residual_norm *params = b->params;
    tarn_tensor *sum = b->saved[0], *weight = b->saved[1], *mean = b->saved[2], *rstd = b->saved[3], *g = b->grads[0],
                *through = b->grads[1], *to[4];
    bool drops = params->random.a > 0;
    /* g is the gradient of the norm, `through` that of the sum, from the rest of the residual stream. The kernel with
     * dropout reads both contiguous. */
    if (drops && ((g && !(g = tarn__contiguous(b->function, g))) ||
                  (through && !(through = tarn__contiguous(b->function, through)))))
        return false;
    /* The norm was not used: the sum passes its gradient on. */
    if (!g)
        return tarn__accumulate_grad(b, 0, through) &&
               (!tarn__needs_grad(b, 1) ||
                tarn__accumulate_grad(b, 1, drops ? tarn__dropout_with(through, &params->random) : through));
    return new_grads(b, sum, drops, to) &&
           tarn__run(&(tarn__launch){.kernel = drops ? TARN__K_dropout_residual_norm_grad : TARN__K_residual_norm_grad,
                                     .function = b->function,
                                     .params = params,
                                     .params_bytes = sizeof(*params),
                                     TARN__IN(sum, weight, mean, rstd, g, through),
                                     TARN__OUT(to[0], to[1], to[2], to[3])}) &&
           tarn__accumulate_grad(b, 0, to[0]) && tarn__accumulate_grad(b, 1, to[3] ? to[3] : to[0]) &&
           tarn__accumulate_grad(b, 2, to[1]) && tarn__accumulate_grad(b, 3, to[2]);
}

/* From the saved sum, not from x and delta. */
static tarn_tensor *recompute_residual_norm(const tarn__backward *b)
{
    const tarn__residual_norm *params = b->params;
    tarn_tensor *sum = b->saved[0], *weight = b->saved[1], *bias = b->saved[4];
    return params->rms ? tarn_rmsnorm_offset(sum, weight, params->offset, params->epsilon)
                       : tarn_layernorm(sum, weight, bias, params->epsilon);
}

/* Operands x, delta, weight, bias. */
static bool check_residual_norm(const char *function, tarn_tensor **operand, bool rms, double offset, double epsilon,
                                tarn_tensor **sum)
{
    static const char *const names[] = {"x", "delta"};
    tarn_tensor *normed[] = {operand[0], operand[2], operand[3]};
    if (!tarn__unify_operands(function, operand, names, 2))
        return false;
    if (!sum)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: sum is NULL; it receives the sum", function);
    if (rms && operand[3])
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: rmsnorm has no bias", function);
    if (!check_offset(function, offset))
        return false;
    if (!rms && offset != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: offset is %g; layernorm has none", function, offset);
    if (!tarn__same_shape(&operand[0]->view, &operand[1]->view) || operand[0]->is_constant || operand[1]->is_constant)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: x %s and delta %s must have one shape", function,
                           TARN__SHAPE_STRING(operand[0]), TARN__SHAPE_STRING(operand[1]));
    return check_norm(function, normed, epsilon) && tarn__unify_devices(function, operand, 4);
}

/* True when the device has the fused kernel; else dropout runs on its own, with the same mask. */
static bool has_fused_dropout(const tarn_tensor *x, const tarn_tensor *delta)
{
    return tarn__has_kernel(tarn__device(x), TARN__K_dropout_residual_norm, x->view.dtype) &&
           tarn__view_is_contiguous(&x->view) && tarn__view_is_contiguous(&delta->view);
}

/* Operands x, delta, weight, bias, checked. */
static tarn_tensor *residual_norm(tarn_tensor **o, const tarn__residual_norm *params, tarn_tensor **sum)
{
    tarn_tensor *mean = NULL, *rstd = NULL;
    if (tarn__recording_needed(o, 4) &&
        ((!params->rms && !(mean = per_row("residual_norm", o[0]))) || !(rstd = per_row("residual_norm", o[0]))))
        return NULL;
    tarn_tensor *total =
        tarn__result_like("residual_norm", o, 2, tarn__shape_of(o[0]), o[0]->view.dtype, tarn__device(o[0]));
    tarn_tensor *y = total ? tarn__result_like("residual_norm", &total, 1, tarn__shape_of(total), total->view.dtype,
                                               tarn__device(total))
                           : NULL;
    /* The norm is taken of the rounded sum, so that it can be recomputed from it. */
    tarn__kernel kernel = params->random.a > 0 ? TARN__K_dropout_residual_norm : TARN__K_residual_norm;
    if (!y ||
        !tarn__kernel_call(kernel, "residual_norm", *params, TARN__IN(o[0], o[1], o[2], o[3]),
                           TARN__OUT(total, y, mean, rstd)) ||
        !tarn__finish("residual_norm", residual_norm_backward, *params, TARN__INPUTS(o[0], o[1], o[2], o[3]),
                      TARN__OUTPUTS(y, total),
                      TARN__SAVED(total, o[2], mean, rstd, tarn__is_recomputing() ? o[3] : NULL),
                      .recompute = recompute_residual_norm))
        return NULL;
    *sum = total;
    return y;
}

/* With the fused kernel counters are reserved as tarn_dropout() would, so both ways draw the same mask. */
static tarn_tensor *drop_add_norm(const char *function, tarn_tensor **o, double p, tarn__residual_norm *params,
                                  tarn_tensor **sum)
{
    if (!check_residual_norm(function, o, params->rms, params->offset, params->epsilon, sum))
        return NULL;
    if (p > 0 && has_fused_dropout(o[0], o[1])) {
        params->random = tarn__random_reserve(tarn__device(o[0]), tarn__view_count(&o[1]->view));
        params->random.a = p;
    } else if (p > 0 && !(o[1] = tarn_dropout(o[1], p))) {
        return NULL;
    }
    return residual_norm(o, params, sum);
}

tarn_tensor *tarn__dropout_residual_norm(tarn_tensor *x, tarn_tensor *delta, double p, tarn_tensor *weight,
                                         tarn_tensor *bias, bool rms, double offset, double epsilon, tarn_tensor **sum)
{
    return drop_add_norm("residual_norm", (tarn_tensor *[]){x, delta, weight, bias}, p,
                         &(tarn__residual_norm){.epsilon = epsilon, .offset = offset, .rms = rms}, sum);
}

/* A step of a pre-norm transformer: *sum continues as the residual stream, y enters the next layer. */
tarn_tensor *tarn_residual_norm(tarn_tensor *x, tarn_tensor *delta, tarn_tensor *weight, tarn_tensor *bias, bool rms,
                                double epsilon, tarn_tensor **sum)
{
    return tarn__dropout_residual_norm(x, delta, 0, weight, bias, rms, 0, epsilon, sum);
}

tarn_tensor *tarn_residual_rmsnorm(tarn_tensor *x, tarn_tensor *delta, tarn_tensor *weight, double offset,
                                   double epsilon, tarn_tensor **sum)
{
    return drop_add_norm("residual_rmsnorm", (tarn_tensor *[]){x, delta, weight, NULL}, 0,
                         &(tarn__residual_norm){.epsilon = epsilon, .offset = offset, .rms = true}, sum);
}

bool tarn__apply_residual_norm(const tarn__invocation *v, tarn_tensor **out)
{
    bool rms = tarn__attribute_int(v, "rms", 0) != 0;
    out[0] = tarn__dropout_residual_norm(v->in[0], v->in[1], 0, v->in[2], v->in[3], rms,
                                         tarn__attribute_real(v, "offset", 0), tarn__attribute_real(v, "epsilon", 1e-5),
                                         &out[1]);
    return out[0] != NULL;
}
