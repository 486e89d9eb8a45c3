/* mlp.c: two linear layers with an activation between them as one operation: bias and GELU are part of the first
 * GEMM's epilogue, GELU's derivative part of the gradient's, and bias gradients part of those of the weights; other
 * activations are kernels of their own. With selective recompute, the activation's result is recomputed from its
 * argument in backward. Tensors needed only for gradients of frozen weights are not stored.
 *
 *   h = act(x @ upᵀ + up_bias)      y = h @ downᵀ + down_bias
 * Saved: x, up, down, z (the activation's argument) and h; with selective recompute h is omitted. FLOPs: 4 · rows · in
 * · hidden forward, twice that backward.
 *
 * Weights may be [in, out] (GPT-2's Conv1D); the GEMMs then read them transposed, without a copy. */
#include "ops/internal.h"

/* Inputs. */
enum { X, UP, DOWN, UP_BIAS, DOWN_BIAS };

/* Params of the record. */
typedef struct mlp_params {
    bool in_out; /* up is [in, hidden], down [hidden, out] */
    const tarn__act_row *act;
} mlp_params;

/* h = act(z), z = rows @ right + bias. */
static bool activate(tarn_tensor *rows, tarn_tensor *right, tarn_tensor *bias, const tarn__act_row *act, tarn_tensor *h,
                     tarn_tensor *z)
{
    tarn__matmul params = {.alpha = 1, .tf32 = tarn__tf32(), .batch_invariant = tarn__batch_invariant()};
    tarn__elementwise none = {0};
    if (act->act == TARN__ACT_GELU)
        return tarn__kernel_call(TARN__K_matmul_gelu, "mlp", params, TARN__IN(rows, right, bias), TARN__OUT(h, z));
    return tarn__gemm("mlp", rows, right, bias, 0, z) &&
           tarn__kernel_call(act->value, "mlp", none, TARN__IN(z), TARN__OUT(h));
}

/* dz = (g @ down) · act'(z); with GELU also the column sums of dz, unless `sums` is NULL. */
static bool activate_backward(tarn_tensor *g, tarn_tensor *down, tarn_tensor *z, const tarn__act_row *act,
                              tarn_tensor *dz, tarn_tensor *sums)
{
    tarn__matmul params = {.alpha = 1, .tf32 = tarn__tf32(), .batch_invariant = tarn__batch_invariant()};
    tarn__elementwise none = {0};
    if (act->act == TARN__ACT_GELU)
        return tarn__kernel_call(TARN__K_matmul_gelu_grad, "mlp", params, TARN__IN(g, down, z), TARN__OUT(dz, sums));
    return tarn__gemm("mlp", g, down, NULL, 0, dz) &&
           tarn__kernel_call(act->grad, "mlp", none, TARN__IN(z, dz), TARN__OUT(dz), .reads_output = 1);
}

/* True if GELU's derivative also computes the bias gradient: where that would otherwise be a pass of its own. Elsewhere
 * tarn__weight_backward() computes it in the matmul of the weight's gradient, which is no slower with it if that
 * gradient is wider than high. */
static bool sums_with_gelu(const tarn__backward *b, const mlp_params *how, const tarn_tensor *dz)
{
    const tarn_tensor *x = b->saved[0];
    return how->act->act == TARN__ACT_GELU && UP_BIAS < b->node->inputs && tarn__needs_grad(b, UP_BIAS) &&
           (how->in_out || !x || dz->view.shape[1] >= x->view.shape[x->view.rank - 1]);
}

/* With h = act(z): gdown = gᵀ @ h, gz = (g @ down) · act'(z), gup = gzᵀ @ x, gx = gz @ up; bias gradients are sums
 * over rows. */
static bool mlp_backward(const tarn__backward *b)
{
    const mlp_params *how = b->params;
    bool in_out = how->in_out;
    tarn_tensor *x = b->saved[0], *up = tarn__transposed_if(b->saved[1], in_out),
                *down = tarn__transposed_if(b->saved[2], in_out), *z = b->saved[3], *h = b->saved[4];
    tarn_tensor *g = tarn__rows_of("mlp", b->grads[0]), *recomputed = NULL; /* (rows, out) */
    if (!h && tarn__needs_grad(b, DOWN))
        h = recomputed = how->act->apply(z);
    if (!g || !up || !down || !tarn__weight_backward(b, DOWN, DOWN_BIAS, g, h, in_out))
        return false;
    tarn_free(recomputed);
    if (!tarn__needs_grad(b, X) && !tarn__needs_grad(b, UP) &&
        !(b->node->inputs > UP_BIAS && tarn__needs_grad(b, UP_BIAS)))
        return true;
    tarn_tensor *dz = tarn__tensor_new("mlp", tarn__shape_of(z), z->view.dtype, tarn__device(z)), *sums = NULL;
    bool has_sums = dz && sums_with_gelu(b, how, dz);
    if (has_sums)
        sums = tarn__grad_buffer(b, UP_BIAS, tarn__grad_dtype(b, UP_BIAS));
    if (!dz || (has_sums && !sums) || !activate_backward(g, down, z, how->act, dz, sums) ||
        (sums && !tarn__accumulate_grad(b, UP_BIAS, sums)) ||
        !tarn__weight_backward(b, UP, sums ? b->node->inputs : UP_BIAS, dz, x ? tarn__rows_of("mlp", x) : NULL, in_out))
        return false;
    tarn__grad_acc acc;
    return !tarn__needs_grad(b, X) || (tarn__grad_acc_open(b, X, &acc) &&
                                       tarn__gemm("mlp", dz, up, NULL, acc.beta, tarn__rows_of("mlp", acc.tensor)) &&
                                       tarn__grad_acc_close(b, X, &acc));
}

/* One message for all shape errors, with the two operands that disagree. */
static bool raise_misfit(const char *function, const tarn_tensor *a, const char *a_role, const tarn_tensor *b,
                         const char *b_role)
{
    return tarn__raise(TARN_ERROR_SHAPE,
                       "%s: %s %s and %s %s do not fit: up is [hidden, in], down [out, hidden], x ends in `in`, "
                       "biases are [hidden] and [out]",
                       function, a_role, TARN__SHAPE_STRING(a), b_role, TARN__SHAPE_STRING(b));
}

/* Unifies the operands that are given; biases may be NULL. Moved operands are replaced in the list. */
static bool check_mlp(const char *function, tarn_tensor **operand, bool in_out)
{
    static const char *const roles[] = {"x", "up", "down", "up_bias", "down_bias"};
    tarn_tensor *given[5];
    const char *given_roles[5];
    int count = 0;
    for (int i = 0; i < 5; i++)
        if (i < UP_BIAS || operand[i])
            given_roles[count] = roles[i], given[count++] = operand[i];
    if (!tarn__unify_operands(function, given, given_roles, count) ||
        !tarn__check_dtype(function, given[0], TARN__FLOATS, "x"))
        return false;
    for (int i = 0, k = 0; i < 5; i++)
        operand[i] = i < UP_BIAS || operand[i] ? given[k++] : NULL;
    const tarn_tensor *x = operand[X], *up = operand[UP], *down = operand[DOWN];
    int out = in_out, in = !in_out; /* axes of the weights */
    if (x->view.rank < 1 || up->view.rank != 2 || x->view.shape[x->view.rank - 1] != up->view.shape[in])
        return raise_misfit(function, x, "x", up, "up");
    if (down->view.rank != 2 || down->view.shape[in] != up->view.shape[out])
        return raise_misfit(function, up, "up", down, "down");
    for (int i = 0; i < 2; i++) {
        const tarn_tensor *bias = operand[UP_BIAS + i], *weight = operand[UP + i];
        if (bias && (bias->view.rank != 1 || bias->view.shape[0] != weight->view.shape[out]))
            return raise_misfit(function, weight, roles[UP + i], bias, roles[UP_BIAS + i]);
    }
    return true;
}

/* `o`: the operands as given; replaced where they are moved. */
static tarn_tensor *apply_mlp(const char *function, tarn_tensor **o, bool in_out, tarn_activation_kind activation)
{
    mlp_params how = {in_out, tarn__act_row_of(function, activation)};
    if (!how.act || !check_mlp(function, o, in_out))
        return NULL;
    tarn_shape shape = tarn__shape_of(o[X]);
    shape.size[shape.rank - 1] = o[DOWN]->view.shape[in_out];
    tarn_tensor *rows = tarn__rows_of("mlp", o[X]),
                *y = tarn__tensor_new("mlp", shape, o[X]->view.dtype, tarn__device(o[X]));
    if (!rows || !y)
        return NULL;
    tarn_shape hidden = TARN_SHAPE(rows->view.shape[0], o[UP]->view.shape[in_out]);
    tarn_tensor *z = tarn__tensor_new("mlp", hidden, o[X]->view.dtype, tarn__device(o[X]));
    tarn_tensor *h = tarn__tensor_new("mlp", hidden, o[X]->view.dtype, tarn__device(o[X])),
                *right = tarn__transposed_if(o[UP], !in_out);
    if (!z || !h || !right || !activate(rows, right, o[UP_BIAS], how.act, h, z) ||
        !tarn__gemm("mlp", h, tarn__transposed_if(o[DOWN], !in_out), o[DOWN_BIAS], 0, tarn__rows_of("mlp", y)))
        return NULL;
    /* nothing is stored for gradients of frozen weights */
    bool of_up = tarn_needs_grad(o[UP]), of_down = tarn_needs_grad(o[DOWN]);
    return tarn__finish(
               "mlp", mlp_backward, how, TARN__INPUTS(o[X], o[UP], o[DOWN], o[UP_BIAS], o[DOWN_BIAS]), TARN__OUTPUTS(y),
               TARN__SAVED(of_up ? o[X] : NULL, o[UP], o[DOWN], z, of_down && !tarn__is_recomputing() ? h : NULL))
               ? y
               : NULL;
}

tarn_tensor *tarn_mlp(tarn_tensor *x, tarn_tensor *up, tarn_tensor *down, tarn_tensor *up_bias, tarn_tensor *down_bias)
{
    return apply_mlp("mlp", (tarn_tensor *[]){x, up, down, up_bias, down_bias}, false, TARN_GELU);
}

tarn_tensor *tarn_mlp_with(tarn_tensor *x, tarn_tensor *up, tarn_tensor *down, tarn_tensor *up_bias,
                           tarn_tensor *down_bias, tarn_activation_kind activation)
{
    return apply_mlp("mlp_with", (tarn_tensor *[]){x, up, down, up_bias, down_bias}, false, activation);
}

tarn_tensor *tarn__mlp_in_out(tarn_tensor *x, tarn_tensor *up, tarn_tensor *down, tarn_tensor *up_bias,
                              tarn_tensor *down_bias, tarn_activation_kind activation)
{
    return apply_mlp("mlp", (tarn_tensor *[]){x, up, down, up_bias, down_bias}, true, activation);
}

bool tarn__apply_mlp(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_activation_kind kind = (tarn_activation_kind)tarn__attribute_int_clamped(v, "activation", TARN_GELU);
    tarn_tensor *o[] = {v->in[0], v->in[1], v->in[2], v->in[3], v->in[4]};
    return (out[0] = apply_mlp("mlp", o, false, kind)) != NULL;
}
