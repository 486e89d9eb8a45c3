/* softmax.c: softmax and log_softmax along an axis.
 *
 * Both subtract the maximum before exp, so no finite input overflows. Saved: the result, or x for 16-bit dtypes. */
#include "ops/op.h"

/* Saved: y, or x with from_x. One kernel, 3 · n elements moved. */
static bool along_backward(const tarn__backward *b, tarn__kernel kernel)
{
    tarn_tensor *saved = b->saved[0], *g = b->grads[0];
    tarn_tensor *gx = tarn__result_like(b->function, (tarn_tensor *[]){saved}, 1, tarn__shape_of(saved),
                                        tarn__grad_dtype(b, 0), tarn__device(saved));
    return gx &&
           tarn__run(&(tarn__launch){.kernel = kernel,
                                     .function = b->function,
                                     .params = b->params,
                                     .params_bytes = sizeof(tarn__along),
                                     TARN__IN(saved, g),
                                     TARN__OUT(gx)}) &&
           tarn__accumulate_grad(b, 0, gx);
}

/* gx = y · (g - Σ g y). */
static bool softmax_backward(const tarn__backward *b)
{
    return along_backward(b, TARN__K_softmax_grad);
}

/* gx = g - exp(y) · Σ g. */
static bool log_softmax_backward(const tarn__backward *b)
{
    return along_backward(b, TARN__K_log_softmax_grad);
}

/* Backward uses the saved result; a 16-bit result would cost the gradient too much precision, so x is saved instead
 * and y recomputed. */
static tarn_tensor *along_axis(const char *function, tarn__kernel kernel, tarn__rule rule, tarn_tensor *x, int axis)
{
    if (!tarn__check(function, x, "x") || !tarn__check_dtype(function, x, TARN__FLOATS, "x"))
        return NULL;
    tarn__along params = {.axis = tarn__check_axis(function, axis, x->view.rank),
                          .from_x = tarn__acc_dtype(x->view.dtype) != x->view.dtype};
    if (params.axis < 0 || !(x = tarn__materialize(function, x, x->view.dtype, tarn__device(x))))
        return NULL;
    tarn_tensor *y =
        tarn__result_like(function, (tarn_tensor *[]){x}, 1, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    if (!y || !tarn__kernel_call(kernel, function, params, TARN__IN(x), TARN__OUT(y)))
        return NULL;
    return tarn__finish(function, rule, params, TARN__INPUTS(x), TARN__OUTPUTS(y), TARN__SAVED(params.from_x ? x : y))
               ? y
               : NULL;
}

tarn_tensor *tarn_softmax(tarn_tensor *x, int axis)
{
    return along_axis("softmax", TARN__K_softmax, softmax_backward, x, axis);
}

tarn_tensor *tarn_log_softmax(tarn_tensor *x, int axis)
{
    return along_axis("log_softmax", TARN__K_log_softmax, log_softmax_backward, x, axis);
}

bool tarn__apply_softmax(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_softmax(v->in[0], tarn__attribute_int_clamped(v, "axis", -1))) != NULL;
}

bool tarn__apply_log_softmax(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_log_softmax(v->in[0], tarn__attribute_int_clamped(v, "axis", -1))) != NULL;
}
