/* gated.c: gated activations, act(gate) · up, in one pass: the middle of a gated MLP (SwiGLU, GeGLU, ReGLU).
 *
 * Saved are gate and up; both gradients come from one kernel, which recomputes the activation. */
#include "ops/internal.h"

static const tarn__act_row acts[] = {
    {TARN_RELU, TARN__ACT_RELU, TARN__K_relu, TARN__K_relu_grad, tarn_relu},
    {TARN_GELU, TARN__ACT_GELU, TARN__K_gelu, TARN__K_gelu_grad, tarn_gelu},
    {TARN_GELU_ERF, TARN__ACT_GELU_ERF, TARN__K_gelu_erf, TARN__K_gelu_erf_grad, tarn_gelu_erf},
    {TARN_SILU, TARN__ACT_SILU, TARN__K_silu, TARN__K_silu_grad, tarn_silu},
};

const tarn__act_row *tarn__act_row_of(const char *function, tarn_activation_kind kind)
{
    for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++)
        if (acts[i].kind == kind)
            return &acts[i];
    tarn__raise(TARN_ERROR_ARGUMENT, "%s: activation is %d; it must be TARN_RELU, _GELU, _GELU_ERF or _SILU", function,
                (int)kind);
    return NULL;
}

/* gate and up of one shape and float dtype. */
static bool check_gated(const char *function, tarn_tensor **o)
{
    static const char *const roles[] = {"gate", "up"};
    if (!tarn__unify_operands(function, o, roles, 2) || !tarn__check_dtype(function, o[0], TARN__FLOATS, "gate"))
        return false;
    return (tarn__same_shape(&o[0]->view, &o[1]->view) && !o[0]->is_constant && !o[1]->is_constant) ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: gate %s and up %s must have one shape", function,
                       TARN__SHAPE_STRING(o[0]), TARN__SHAPE_STRING(o[1]));
}

/* Both gradients in one pass: ggate = g · up · act'(gate), gup = g · act(gate). */
static bool gated_backward(const tarn__backward *b)
{
    tarn_tensor *gate = b->saved[0], *up = b->saved[1], *to[2];
    for (int i = 0; i < 2; i++)
        if (!(to[i] = tarn__result_like(b->function, &gate, 1, tarn__shape_of(gate), tarn__grad_dtype(b, i),
                                        tarn__device(gate))))
            return false;
    return tarn__run(&(tarn__launch){.kernel = TARN__K_gated_grad,
                                     .function = b->function,
                                     .params = b->params,
                                     .params_bytes = sizeof(tarn__elementwise),
                                     TARN__IN(gate, up, b->grads[0]),
                                     TARN__OUT(to[0], to[1])}) &&
           tarn__accumulate_grad(b, 0, to[0]) && tarn__accumulate_grad(b, 1, to[1]);
}

static tarn_tensor *gated(const char *function, tarn_tensor **o, const tarn__elementwise *params);

/* For selective recompute: y again, bitwise identical, from what backward has saved anyway. */
static tarn_tensor *recompute_gated(const tarn__backward *b)
{
    return gated(b->function, (tarn_tensor *[]){b->saved[0], b->saved[1]}, b->params);
}

/* 3 · n elements moved instead of 5 · n for the two operations. */
static tarn_tensor *gated(const char *function, tarn_tensor **o, const tarn__elementwise *params)
{
    if (!check_gated(function, o))
        return NULL;
    tarn_tensor *y = tarn__result_like(function, o, 2, tarn__shape_of(o[0]), o[0]->view.dtype, tarn__device(o[0]));
    bool good = y && tarn__kernel_call(TARN__K_gated, function, *params, TARN__IN(o[0], o[1]), TARN__OUT(y)) &&
                tarn__finish(function, gated_backward, *params, TARN__INPUTS(o[0], o[1]), TARN__OUTPUTS(y),
                             TARN__SAVED(o[0], o[1]), .recompute = recompute_gated);
    return good ? y : NULL;
}

tarn_tensor *tarn_gated(tarn_tensor *gate, tarn_tensor *up, tarn_activation_kind activation)
{
    const tarn__act_row *act = tarn__act_row_of("gated", activation);
    return act ? gated("gated", (tarn_tensor *[]){gate, up}, &(tarn__elementwise){.act = act->act}) : NULL;
}

tarn_tensor *tarn_swiglu(tarn_tensor *gate, tarn_tensor *up)
{
    return gated("swiglu", (tarn_tensor *[]){gate, up}, &(tarn__elementwise){.act = TARN__ACT_SILU});
}

/* For inference: saves the memory of one activation. */
bool tarn__gated_inplace(tarn_tensor *gate, tarn_tensor *up, tarn_activation_kind activation)
{
    const tarn__act_row *act = tarn__act_row_of("gated", activation);
    tarn_tensor *o[] = {gate, up};
    if (!act || !gate || !up || !check_gated("gated", o))
        return false;
    tarn__elementwise params = {.act = act->act};
    tarn__bump_version(gate);
    return tarn__kernel_call(TARN__K_gated, "gated", params, TARN__IN(gate, o[1]), TARN__OUT(gate), .reads_output = 1);
}

bool tarn__apply_gated(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_activation_kind kind = (tarn_activation_kind)tarn__attribute_int_clamped(v, "activation", TARN_SILU);
    return (out[0] = tarn_gated(v->in[0], v->in[1], kind)) != NULL;
}

bool tarn__apply_swiglu(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_swiglu(v->in[0], v->in[1])) != NULL;
}
