/* loss.c: losses. Cross entropy has its own kernels; the others are composed.
 *
 *   loss = logsumexp(logits) - logits[target], label smoothing mixes in the mean over classes;
 *   targets equal to ignore_index give loss 0, no gradient, and do not count in the mean;
 *   a soft cap is composed before: logits become softcap · tanh(logits / softcap).
 * Composed losses are ordinary recorded operations and need no backward of their own.
 *
 * Reductions divide on the device, so no loss synchronizes. */
#include <math.h>
#include <string.h>

#include "ops/op.h"

/* ---- cross entropy ----------------------------------------------------------------------------------------------- */

/* Params of the record; the kernel's scale is 1 / rows for a mean over all rows. */
typedef struct cross_entropy_record {
    tarn__cross_entropy params;
    tarn_reduction reduction;
} cross_entropy_record;

/* glogits = (softmax - target distribution) · g; for a mean, divided by the number of targets that count. */
static bool cross_entropy_backward(const tarn__backward *b)
{
    const cross_entropy_record *record = b->params;
    tarn_tensor *logits = b->saved[0], *target = b->saved[1], *lse = b->saved[2], *counted = b->saved[3],
                *g = b->grads[0];
    if (counted)
        /* if no target counts, the gradient is 0 although the mean is NaN */
        g = tarn_div(g, tarn_maximum(counted, tarn_scalar(1)));
    if (g && record->reduction != TARN_REDUCE_NONE)
        g = tarn_expand(g, tarn__shape_of(target));
    tarn_tensor *glogits = g ? tarn__result_like(b->function, (tarn_tensor *[]){logits}, 1, tarn__shape_of(logits),
                                                 tarn__grad_dtype(b, 0), tarn__device(logits))
                             : NULL;
    return glogits &&
           tarn__kernel_call(TARN__K_cross_entropy_grad, b->function, record->params, TARN__IN(logits, target, lse, g),
                             TARN__OUT(glogits)) &&
           tarn__accumulate_grad(b, 0, glogits);
}

bool tarn__check_losses(const char *function, const char *role, tarn_tensor **operand,
                        const tarn_cross_entropy_options *o)
{
    if (!tarn__check(function, operand[0], role) || !tarn__check(function, operand[1], "target") ||
        !tarn__check_dtype(function, operand[0], TARN__FLOATS, role) ||
        !tarn__check_dtype(function, operand[1], TARN__INDEXES, "target") || !tarn__unify_devices(function, operand, 2))
        return false;
    const tarn__view *x = &operand[0]->view, *target = &operand[1]->view;
    bool fits = x->rank == target->rank + 1 && !operand[1]->is_constant;
    for (int i = 0; fits && i < target->rank; i++)
        fits = x->shape[i] == target->shape[i];
    if (!fits)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: %s %s and target %s do not fit: %s is [..., C], targets [...]",
                           function, role, TARN__SHAPE_STRING(operand[0]), TARN__SHAPE_STRING(operand[1]), role);
    if (!(o->label_smoothing >= 0 && o->label_smoothing <= 1))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: label_smoothing %g is outside 0 to 1", function,
                           o->label_smoothing);
    if (!(o->softcap >= 0 && isfinite(o->softcap)))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: softcap is %g; expected a finite number, at least 0", function,
                           o->softcap);
    return (unsigned)o->reduction <= TARN_REDUCE_NONE ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: reduction is %d; expected TARN_REDUCE_MEAN, _SUM or _NONE", function,
                       (int)o->reduction);
}

/* On the device: no synchronization. */
tarn_tensor *tarn__count_targets(tarn_tensor *target, const tarn_cross_entropy_options *o, tarn_dtype dtype)
{
    if (!o->ignore_index)
        return NULL;
    tarn_tensor *counts = tarn_ne(target, tarn_scalar((double)*o->ignore_index));
    tarn_tensor *sum = counts ? tarn_sum(counts, TARN_ALL_AXES, false) : NULL;
    return sum ? tarn_cast(sum, dtype) : NULL;
}

tarn_tensor *tarn__reduce_losses(tarn_tensor *losses, tarn_tensor *counted, tarn_reduction reduction)
{
    if (reduction == TARN_REDUCE_NONE)
        return losses;
    if (reduction == TARN_REDUCE_SUM)
        return tarn_sum(losses, TARN_ALL_AXES, false);
    return counted ? tarn_div(tarn_sum(losses, TARN_ALL_AXES, false), counted)
                   : tarn_mean(losses, TARN_ALL_AXES, false);
}

/* Logits [rows, C], target [rows]. Backward needs the logsumexp of each row: saved in f64, because for large logits
 * f32 has few digits after the point, and only if something will be recorded. */
static tarn_tensor *cross_entropy_rows(tarn_tensor *logits, tarn_tensor *target, const tarn_cross_entropy_options *o)
{
    tarn_dtype wide = tarn__acc_dtype(logits->view.dtype);
    int64_t rows = logits->view.shape[0];
    cross_entropy_record record = {.params = {.smoothing = o->label_smoothing,
                                              .scale = 1,
                                              .has_ignore = o->ignore_index != NULL,
                                              .ignore = o->ignore_index ? *o->ignore_index : 0},
                                   .reduction = o->reduction};
    tarn_tensor *losses = tarn__tensor_new("cross_entropy", TARN_SHAPE(rows), wide, tarn__device(logits)), *lse = NULL;
    if (!losses || (tarn__recording_needed(&logits, 1) &&
                    !(lse = tarn__tensor_new("cross_entropy", TARN_SHAPE(rows), TARN_F64, tarn__device(logits)))))
        return NULL;
    if (!tarn__kernel_call(TARN__K_cross_entropy, "cross_entropy", record.params, TARN__IN(logits, target),
                           TARN__OUT(losses, lse)))
        return NULL;
    tarn_tensor *counted = o->reduction == TARN_REDUCE_MEAN ? tarn__count_targets(target, o, wide) : NULL;
    if (tarn_failed())
        return NULL;
    if (o->reduction == TARN_REDUCE_MEAN && !counted)
        record.params.scale = 1 / (double)rows;
    tarn_tensor *y = tarn__reduce_losses(losses, counted, o->reduction);
    return y && tarn__finish("cross_entropy", cross_entropy_backward, record, TARN__INPUTS(logits), TARN__OUTPUTS(y),
                             TARN__SAVED(logits, target, lse, counted))
               ? y
               : NULL;
}

/* cap · tanh(logits / cap). */
static tarn_tensor *capped(tarn_tensor *logits, double cap)
{
    tarn_tensor *y = tarn_mul(logits, tarn_scalar(1 / cap));
    y = y ? tarn_tanh(y) : NULL;
    return y ? tarn_mul(y, tarn_scalar(cap)) : NULL;
}

/* logits […, C], i32 or i64 target […] -> a scalar, or […] without a reduction. Higher ranks are flattened to rows. */
tarn_tensor *tarn_cross_entropy_sized(tarn_tensor *logits, tarn_tensor *target,
                                      const tarn_cross_entropy_options *options, size_t options_size)
{
    tarn_cross_entropy_options o = {0};
    tarn_tensor *operand[] = {logits, target};
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    if (!tarn__check_losses("cross_entropy", "logits", operand, &o))
        return NULL;
    logits = o.softcap > 0 ? capped(operand[0], o.softcap) : operand[0], target = operand[1];
    if (!logits)
        return NULL;
    tarn_shape shape = tarn__shape_of(target);
    int64_t rows = tarn__view_count(&target->view);
    if (shape.rank != 1) {
        logits = tarn_reshape(logits, TARN_SHAPE(rows, logits->view.shape[shape.rank]));
        target = tarn_reshape(target, TARN_SHAPE(rows));
    }
    tarn_tensor *y = logits && target ? cross_entropy_rows(logits, target, &o) : NULL;
    return y && o.reduction == TARN_REDUCE_NONE && shape.rank != 1 ? tarn_reshape(y, shape) : y;
}

bool tarn__apply_cross_entropy(const tarn__invocation *v, tarn_tensor **out)
{
    int64_t ignore = tarn__attribute_int(v, "ignore_index", INT64_MIN);
    tarn_cross_entropy_options o = {.label_smoothing = tarn__attribute_real(v, "label_smoothing", 0),
                                    .ignore_index = ignore == INT64_MIN ? NULL : &ignore,
                                    .reduction = (tarn_reduction)tarn__attribute_int(v, "reduction", TARN_REDUCE_MEAN),
                                    .softcap = tarn__attribute_real(v, "softcap", 0)};
    return (out[0] = tarn_cross_entropy(v->in[0], v->in[1], &o)) != NULL;
}

/* ---- composed losses --------------------------------------------------------------------------------------------- */

static const char *const roles[] = {"the prediction", "the target"};

/* Checks of all composed losses, so that errors name the loss, not an operation inside it. */
static bool check_pair(const char *function, tarn_tensor **operand)
{
    tarn_shape shape;
    return tarn__unify_operands(function, operand, roles, 2) &&
           tarn__check_dtype(function, operand[0], TARN__FLOATS, roles[0]) &&
           tarn__check_dtype(function, operand[1], TARN__FLOATS, roles[1]) &&
           tarn__broadcast(function, operand, 2, &shape);
}

/* Runs a composed loss in its own scope, so that temporaries are freed at once. 16-bit operands are computed in f32,
 * because rounding each step, differences above all, would lose precision. Where gradients cancel (`cancels`), f32
 * is computed in f64 for the same reason. */
typedef tarn_tensor *(*loss_fn)(tarn_tensor *prediction, tarn_tensor *target, double parameter);

static tarn_tensor *mean_loss(const char *function, loss_fn loss, bool cancels, tarn_tensor *prediction,
                              tarn_tensor *target, double parameter)
{
    tarn_tensor *operand[] = {prediction, target};
    if (!check_pair(function, operand))
        return NULL;
    tarn_scope *scope = tarn_scope_open();
    tarn_dtype dtype = operand[operand[0]->is_constant]->view.dtype, wide = cancels ? TARN_F64 : tarn__acc_dtype(dtype);
    for (int i = 0; scope && i < 2; i++)
        if (!operand[i]->is_constant)
            operand[i] = tarn_cast(operand[i], wide);
    tarn_tensor *each = scope && !tarn_failed() ? loss(operand[0], operand[1], parameter) : NULL;
    tarn_tensor *y = each ? tarn_mean(each, TARN_ALL_AXES, false) : NULL;
    y = y ? tarn_cast(y, dtype) : NULL;
    if (y)
        tarn_scope_return(scope, y);
    tarn_scope_close(scope);
    return y;
}

static tarn_tensor *squared(tarn_tensor *prediction, tarn_tensor *target, double parameter)
{
    (void)parameter;
    tarn_tensor *difference = tarn_sub(prediction, target);
    return difference ? tarn_square(difference) : NULL;
}

/* mean((prediction - target)²), operands broadcast. */
tarn_tensor *tarn_mse_loss(tarn_tensor *prediction, tarn_tensor *target)
{
    return mean_loss("mse_loss", squared, false, prediction, target, 0);
}

static tarn_tensor *absolute(tarn_tensor *prediction, tarn_tensor *target, double parameter)
{
    (void)parameter;
    tarn_tensor *difference = tarn_sub(prediction, target);
    return difference ? tarn_abs(difference) : NULL;
}

/* mean(|prediction - target|). */
tarn_tensor *tarn_l1_loss(tarn_tensor *prediction, tarn_tensor *target)
{
    return mean_loss("l1_loss", absolute, false, prediction, target, 0);
}

/* With q = min(d, delta): q · (d - q / 2), which is d² / 2 up to delta and linear beyond. */
static tarn_tensor *huber(tarn_tensor *prediction, tarn_tensor *target, double delta)
{
    tarn_tensor *d = absolute(prediction, target, 0);
    tarn_tensor *q = d ? tarn_minimum(d, tarn_scalar(delta)) : NULL;
    tarn_tensor *half = q ? tarn_mul(q, tarn_scalar(0.5)) : NULL;
    tarn_tensor *rest = half ? tarn_sub(d, half) : NULL;
    return rest ? tarn_mul(q, rest) : NULL;
}

/* Quadratic up to delta, linear beyond. */
tarn_tensor *tarn_huber_loss(tarn_tensor *prediction, tarn_tensor *target, double delta)
{
    if (!tarn_failed() && !(delta > 0)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "huber_loss: delta %g is not positive", delta);
        return NULL;
    }
    return mean_loss("huber_loss", huber, false, prediction, target, delta);
}

/* -t log σ(x) - (1 - t) log(1 - σ(x)) = t · softplus(-x) + (1 - t) · softplus(x): no term is negative, and the
 * gradient of a logit, (1 - t) · σ(x) - t · σ(-x), keeps its precision for predictions that are almost certain and
 * correct. */
static tarn_tensor *binary_cross_entropy(tarn_tensor *logits, tarn_tensor *target, double parameter)
{
    (void)parameter;
    tarn_tensor *rest = tarn_sub(tarn_scalar(1), target), *soft = rest ? tarn_softplus(logits) : NULL;
    tarn_tensor *negative = soft ? tarn_mul(rest, soft) : NULL, *negated = negative ? tarn_neg(logits) : NULL;
    soft = negated ? tarn_softplus(negated) : NULL;
    tarn_tensor *positive = soft ? tarn_mul(target, soft) : NULL;
    return positive ? tarn_add(negative, positive) : NULL;
}

/* mean of binary cross entropy of sigmoid(logits); targets are probabilities. */
tarn_tensor *tarn_bce_with_logits_loss(tarn_tensor *logits, tarn_tensor *target)
{
    return mean_loss("bce_with_logits_loss", binary_cross_entropy, true, logits, target, 0);
}

bool tarn__apply_mse_loss(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_mse_loss(v->in[0], v->in[1])) != NULL;
}

bool tarn__apply_l1_loss(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_l1_loss(v->in[0], v->in[1])) != NULL;
}

bool tarn__apply_huber_loss(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_huber_loss(v->in[0], v->in[1], tarn__attribute_real(v, "delta", 1))) != NULL;
}

bool tarn__apply_bce_with_logits_loss(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_bce_with_logits_loss(v->in[0], v->in[1])) != NULL;
}
