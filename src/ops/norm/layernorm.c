/* layernorm.c: layernorm and rmsnorm over the last axis, alone and after a sum. What backward needs of each row, its
 * mean and 1 / deviation, is kept in f32 (f64 for f64), and only where something will be recorded. In a thrifty section
 * whoever needs the result in backward has it made again: the norm of a sum is that of the sum as it was rounded, so
 * both have the same bits. */
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

/* One number for each row: x's shape with a last axis of 1. */
static tarn_tensor *one_a_row(const char *function, tarn_tensor *x)
{
    tarn_shape shape = tarn__shape_of(x);
    shape.size[shape.rank - 1] = 1;
    return tarn__tensor_new(function, shape, tarn__acc_dtype(x->view.dtype), tarn__device(x));
}

/* A place for the gradient of input i, in its wide dtype; *to stays NULL where none is wanted. */
static bool place_for(const tarn__backward *b, int i, tarn_dtype dtype, tarn_tensor **to)
{
    *to = NULL;
    return !tarn__needs_grad(b, i) || (*to = tarn__grad_buffer(b, i, dtype)) != NULL;
}

/* ---- layernorm --------------------------------------------------------------------------------------------------- */

static bool layernorm_backward(const tarn__backward *b)
{
    tarn_tensor *x = b->saved[0], *weight = b->saved[1], *mean = b->saved[2], *rstd = b->saved[3], *g = b->grads[0];
    tarn_tensor *gx, *gweight, *gbias;
    if (!place_for(b, 0, x->view.dtype, &gx) || !place_for(b, 1, rstd->view.dtype, &gweight) ||
        !place_for(b, 2, rstd->view.dtype, &gbias))
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

static tarn_tensor *layernorm_again(const tarn__backward *b)
{
    return tarn_layernorm(b->saved[0], b->saved[1], b->saved[4], ((const tarn__norm *)b->params)->epsilon);
}

tarn_tensor *tarn_layernorm(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, double epsilon)
{
    tarn_tensor *operand[] = {x, weight, bias}, *mean = NULL, *rstd = NULL;
    if (!check_norm("layernorm", operand, epsilon))
        return NULL;
    x = operand[0], weight = operand[1], bias = operand[2];
    tarn__norm tail = {.epsilon = epsilon};
    if (tarn__recording_needed(operand, 3) &&
        (!(mean = one_a_row("layernorm", x)) || !(rstd = one_a_row("layernorm", x))))
        return NULL;
    tarn_tensor *y =
        tarn__result_like("layernorm", (tarn_tensor *[]){x}, 1, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    if (!y ||
        !tarn__kernel_call(TARN__K_layernorm, "layernorm", tail, TARN__IN(x, weight, bias), TARN__OUT(y, mean, rstd)))
        return NULL;
    bool good = tarn__finish("layernorm", layernorm_backward, tail, TARN__INPUTS(x, weight, bias), TARN__OUTPUTS(y),
                             TARN__SAVED(x, weight, mean, rstd, tarn__is_recomputing() ? bias : NULL),
                             .recompute = layernorm_again);
    return good ? y : NULL;
}

bool tarn__apply_layernorm(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_layernorm(v->in[0], v->in[1], v->in[2], tarn__attribute_real(v, "epsilon", 1e-5))) != NULL;
}

/* ---- rmsnorm ----------------------------------------------------------------------------------------------------- */

static bool rmsnorm_backward(const tarn__backward *b)
{
    tarn_tensor *x = b->saved[0], *weight = b->saved[1], *rstd = b->saved[2], *g = b->grads[0];
    tarn_tensor *gx, *gweight;
    if (!place_for(b, 0, x->view.dtype, &gx) || !place_for(b, 1, rstd->view.dtype, &gweight))
        return false;
    return tarn__run(&(tarn__launch){.kernel = TARN__K_rmsnorm_grad,
                                     .function = b->function,
                                     .params = b->params,
                                     .params_bytes = sizeof(tarn__norm),
                                     TARN__IN(x, weight, rstd, g),
                                     TARN__OUT(gx, gweight)}) &&
           tarn__accumulate_grad(b, 0, gx) && tarn__accumulate_grad(b, 1, gweight);
}

static tarn_tensor *rmsnorm_again(const tarn__backward *b)
{
    return tarn_rmsnorm(b->saved[0], b->saved[1], ((const tarn__norm *)b->params)->epsilon);
}

tarn_tensor *tarn_rmsnorm(tarn_tensor *x, tarn_tensor *weight, double epsilon)
{
    tarn_tensor *operand[] = {x, weight, NULL}, *rstd = NULL;
    if (!check_norm("rmsnorm", operand, epsilon))
        return NULL;
    x = operand[0], weight = operand[1];
    tarn__norm tail = {.epsilon = epsilon};
    if (tarn__recording_needed(operand, 2) && !(rstd = one_a_row("rmsnorm", x)))
        return NULL;
    tarn_tensor *y =
        tarn__result_like("rmsnorm", (tarn_tensor *[]){x}, 1, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    if (!y || !tarn__kernel_call(TARN__K_rmsnorm, "rmsnorm", tail, TARN__IN(x, weight), TARN__OUT(y, rstd)))
        return NULL;
    bool good = tarn__finish("rmsnorm", rmsnorm_backward, tail, TARN__INPUTS(x, weight), TARN__OUTPUTS(y),
                             TARN__SAVED(x, weight, rstd), .recompute = rmsnorm_again);
    return good ? y : NULL;
}

bool tarn__apply_rmsnorm(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_rmsnorm(v->in[0], v->in[1], tarn__attribute_real(v, "epsilon", 1e-5))) != NULL;
}

/* ---- the norm of a sum ------------------------------------------------------------------------------------------- */

/* Places for the gradients: gx, which is made for delta, too; weight's, bias'; and delta's where it is not gx. */
static bool place_slopes(const tarn__backward *b, tarn_tensor *sum, bool drops, tarn_tensor **to)
{
    tarn_shape shape = tarn__shape_of(sum);
    tarn_dtype dtype = sum->view.dtype, wide = tarn__acc_dtype(dtype);
    to[0] = to[3] = NULL;
    if ((tarn__needs_grad(b, 0) || tarn__needs_grad(b, 1)) &&
        !(to[0] = tarn__tensor_new(b->function, shape, dtype, tarn__device(sum))))
        return false;
    if (drops && tarn__needs_grad(b, 1) && !(to[3] = tarn__tensor_new(b->function, shape, dtype, tarn__device(sum))))
        return false;
    return place_for(b, 2, wide, &to[1]) && place_for(b, 3, wide, &to[2]);
}

/* Either gradient may not have come; x and delta get the same one, unless delta was dropped out. */
static bool residual_norm_backward(const tarn__backward *b)
{
    const tarn__residual_norm *tail = b->params;
    tarn_tensor *sum = b->saved[0], *weight = b->saved[1], *mean = b->saved[2], *rstd = b->saved[3], *g = b->grads[0],
                *through = b->grads[1], *to[4];
    bool drops = tail->random.a > 0;
    if (drops && ((g && !(g = tarn__contiguous(b->function, g))) ||
                  (through && !(through = tarn__contiguous(b->function, through)))))
        return false;
    if (!g)
        return tarn__accumulate_grad(b, 0, through) &&
               (!tarn__needs_grad(b, 1) ||
                tarn__accumulate_grad(b, 1, drops ? tarn__dropout_with(through, &tail->random) : through));
    return place_slopes(b, sum, drops, to) &&
           tarn__run(&(tarn__launch){.kernel = drops ? TARN__K_dropout_residual_norm_grad : TARN__K_residual_norm_grad,
                                     .function = b->function,
                                     .params = tail,
                                     .params_bytes = sizeof(*tail),
                                     TARN__IN(sum, weight, mean, rstd, g, through),
                                     TARN__OUT(to[0], to[1], to[2], to[3])}) &&
           tarn__accumulate_grad(b, 0, to[0]) && tarn__accumulate_grad(b, 1, to[3] ? to[3] : to[0]) &&
           tarn__accumulate_grad(b, 2, to[1]) && tarn__accumulate_grad(b, 3, to[2]);
}

static tarn_tensor *residual_norm_again(const tarn__backward *b)
{
    const tarn__residual_norm *params = b->params;
    tarn_tensor *sum = b->saved[0], *weight = b->saved[1], *bias = b->saved[4];
    return params->rms ? tarn_rmsnorm(sum, weight, params->epsilon)
                       : tarn_layernorm(sum, weight, bias, params->epsilon);
}

/* Operands x, delta, weight, bias. */
static bool check_residual_norm(tarn_tensor **operand, bool rms, double epsilon, tarn_tensor **sum)
{
    static const char *const names[] = {"x", "delta"};
    tarn_tensor *normed[] = {operand[0], operand[2], operand[3]};
    if (!tarn__unify_operands("residual_norm", operand, names, 2))
        return false;
    if (!sum)
        return tarn__raise(TARN_ERROR_ARGUMENT, "residual_norm: sum is NULL: it is where the sum goes");
    if (rms && operand[3])
        return tarn__raise(TARN_ERROR_ARGUMENT, "residual_norm: rmsnorm has no bias");
    if (!tarn__same_shape(&operand[0]->view, &operand[1]->view) || operand[0]->is_constant || operand[1]->is_constant)
        return tarn__raise(TARN_ERROR_SHAPE, "residual_norm: x %s and delta %s must have one shape",
                           TARN__SHAPE_STRING(operand[0]), TARN__SHAPE_STRING(operand[1]));
    return check_norm("residual_norm", normed, epsilon) && tarn__unify_devices("residual_norm", operand, 4);
}

/* True when a kernel drops delta out by itself; else dropout does, with the same numbers. */
static bool drops_inside(const tarn_tensor *x, const tarn_tensor *delta)
{
    return tarn__has_kernel(tarn__device(x), TARN__K_dropout_residual_norm, x->view.dtype) &&
           tarn__view_is_contiguous(&x->view) && tarn__view_is_contiguous(&delta->view);
}

/* Operands x, delta, weight, bias, which fit. */
static tarn_tensor *residual_norm(tarn_tensor **o, const tarn__residual_norm *tail, tarn_tensor **sum)
{
    tarn_tensor *mean = NULL, *rstd = NULL;
    if (tarn__recording_needed(o, 4) &&
        ((!tail->rms && !(mean = one_a_row("residual_norm", o[0]))) || !(rstd = one_a_row("residual_norm", o[0]))))
        return NULL;
    tarn_tensor *total =
        tarn__result_like("residual_norm", o, 2, tarn__shape_of(o[0]), o[0]->view.dtype, tarn__device(o[0]));
    tarn_tensor *y = total ? tarn__result_like("residual_norm", &total, 1, tarn__shape_of(total), total->view.dtype,
                                               tarn__device(total))
                           : NULL;
    tarn__kernel kernel = tail->random.a > 0 ? TARN__K_dropout_residual_norm : TARN__K_residual_norm;
    if (!y ||
        !tarn__kernel_call(kernel, "residual_norm", *tail, TARN__IN(o[0], o[1], o[2], o[3]),
                           TARN__OUT(total, y, mean, rstd)) ||
        !tarn__finish("residual_norm", residual_norm_backward, *tail, TARN__INPUTS(o[0], o[1], o[2], o[3]),
                      TARN__OUTPUTS(y, total),
                      TARN__SAVED(total, o[2], mean, rstd, tarn__is_recomputing() ? o[3] : NULL),
                      .recompute = residual_norm_again))
        return NULL;
    *sum = total;
    return y;
}

tarn_tensor *tarn__dropout_residual_norm(tarn_tensor *x, tarn_tensor *delta, double p, tarn_tensor *weight,
                                         tarn_tensor *bias, bool rms, double epsilon, tarn_tensor **sum)
{
    tarn_tensor *o[] = {x, delta, weight, bias};
    tarn__residual_norm tail = {.epsilon = epsilon, .rms = rms};
    if (!check_residual_norm(o, rms, epsilon, sum))
        return NULL;
    if (p > 0 && drops_inside(o[0], o[1])) {
        tail.random = tarn__random_reserve(tarn__device(o[0]), tarn__view_count(&o[1]->view));
        tail.random.a = p;
    } else if (p > 0 && !(o[1] = tarn_dropout(o[1], p))) {
        return NULL;
    }
    return residual_norm(o, &tail, sum);
}

tarn_tensor *tarn_residual_norm(tarn_tensor *x, tarn_tensor *delta, tarn_tensor *weight, tarn_tensor *bias, bool rms,
                                double epsilon, tarn_tensor **sum)
{
    return tarn__dropout_residual_norm(x, delta, 0, weight, bias, rms, epsilon, sum);
}

bool tarn__apply_residual_norm(const tarn__invocation *v, tarn_tensor **out)
{
    out[0] = tarn_residual_norm(v->in[0], v->in[1], v->in[2], v->in[3], tarn__attribute_int(v, "rms", 0) != 0,
                                tarn__attribute_real(v, "epsilon", 1e-5), &out[1]);
    return out[0] != NULL;
}
