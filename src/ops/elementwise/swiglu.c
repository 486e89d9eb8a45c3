/* swiglu.c: silu(gate) · up, what stands between the layers of a gated mlp, in one pass, and both gradients in one. In
 * a thrifty section whoever needs the result in backward has it made again. */
#include "ops/swiglu.h"

static bool check_swiglu(tarn_tensor **o)
{
    static const char *const roles[] = {"gate", "up"};
    if (!tarn__unify_operands("swiglu", o, roles, 2) || !tarn__check_dtype("swiglu", o[0], TARN__FLOATS, "gate"))
        return false;
    return (tarn__same_shape(&o[0]->view, &o[1]->view) && !o[0]->is_constant && !o[1]->is_constant) ||
           tarn__raise(TARN_ERROR_SHAPE, "swiglu: gate %s and up %s must have one shape", TARN__SHAPE_STRING(o[0]),
                       TARN__SHAPE_STRING(o[1]));
}

static bool swiglu_backward(const tarn__backward *b)
{
    tarn_tensor *gate = b->saved[0], *up = b->saved[1], *to[2];
    tarn__elementwise none = {0};
    for (int i = 0; i < 2; i++)
        if (!(to[i] = tarn__result_like(b->function, &gate, 1, tarn__shape_of(gate), tarn__grad_dtype(b, i),
                                        tarn__device(gate))))
            return false;
    return tarn__kernel_call(TARN__K_swiglu_grad, b->function, none, TARN__IN(gate, up, b->grads[0]),
                             TARN__OUT(to[0], to[1])) &&
           tarn__accumulate_grad(b, 0, to[0]) && tarn__accumulate_grad(b, 1, to[1]);
}

static tarn_tensor *swiglu_again(const tarn__backward *b)
{
    return tarn_swiglu(b->saved[0], b->saved[1]);
}

tarn_tensor *tarn_swiglu(tarn_tensor *gate, tarn_tensor *up)
{
    tarn_tensor *o[] = {gate, up};
    tarn__elementwise none = {0};
    if (!check_swiglu(o))
        return NULL;
    tarn_tensor *y = tarn__result_like("swiglu", o, 2, tarn__shape_of(o[0]), o[0]->view.dtype, tarn__device(o[0]));
    bool good = y && tarn__kernel_call(TARN__K_swiglu, "swiglu", none, TARN__IN(o[0], o[1]), TARN__OUT(y)) &&
                tarn__finish("swiglu", swiglu_backward, none, TARN__INPUTS(o[0], o[1]), TARN__OUTPUTS(y),
                             TARN__SAVED(o[0], o[1]), .recompute = swiglu_again);
    return good ? y : NULL;
}

bool tarn__swiglu_inplace(tarn_tensor *gate, tarn_tensor *up)
{
    tarn_tensor *o[] = {gate, up};
    tarn__elementwise none = {0};
    if (!gate || !up || !check_swiglu(o))
        return false;
    tarn__bump_version(gate);
    return tarn__kernel_call(TARN__K_swiglu, "swiglu", none, TARN__IN(gate, o[1]), TARN__OUT(gate), .reads_output = 1);
}

bool tarn__apply_swiglu(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_swiglu(v->in[0], v->in[1])) != NULL;
}
