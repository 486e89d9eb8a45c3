/* dropout.c: dropout. The mask is never stored: it is a function of the Philox counter and the element's position,
 * so backward recomputes it.
 *
 * Counters are reserved in the order of calls. In a captured step the counter's base is read from device memory, so
 * every run draws a new mask. */
#include "core/tensor/random.h"
#include "ops/internal.h"

tarn_tensor *tarn__dropout_with(tarn_tensor *x, const tarn__random *random)
{
    tarn_tensor *y =
        tarn__result_like("dropout", (tarn_tensor *[]){x}, 1, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    return y && tarn__kernel_call(TARN__K_dropout, "dropout", *random, TARN__IN(x), TARN__OUT(y)) ? y : NULL;
}

/* Dropout of the gradient with the same counters: the same mask and scale. */
static bool dropout_backward(const tarn__backward *b)
{
    return tarn__accumulate_grad(b, 0, tarn__dropout_with(b->grads[0], b->params));
}

/* x · mask / (1 - p). p = 0 returns x itself; one Philox counter per four elements is reserved. */
tarn_tensor *tarn_dropout(tarn_tensor *x, double p)
{
    if (!tarn__check("dropout", x, "x") || !tarn__check_dtype("dropout", x, TARN__FLOATS, "x"))
        return NULL;
    if (!(p >= 0 && p <= 1)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "dropout: probability %g is outside 0 to 1", p);
        return NULL;
    }
    if (p == 0)
        return x;
    if (!(x = tarn__materialize("dropout", x, x->view.dtype, tarn__device(x))))
        return NULL;
    tarn__random random = tarn__random_reserve(tarn__device(x), tarn__view_count(&x->view));
    random.a = p;
    tarn_tensor *y = tarn__dropout_with(x, &random);
    return y && tarn__finish("dropout", dropout_backward, random, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

bool tarn__apply_dropout(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_dropout(v->in[0], tarn__attribute_real(v, "p", 0.5))) != NULL;
}
