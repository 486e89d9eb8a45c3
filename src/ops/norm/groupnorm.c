/* groupnorm.c: groupnorm: the channels of a group, with all that lies behind them, are normalised together, in each
 * part of the batch. What backward needs of each group is kept in f64, as batchnorm's. */
#include "ops/channels.h"

static bool groupnorm_backward(const tarn__backward *b)
{
    return tarn__channels_backward(b, TARN__K_groupnorm_grad, sizeof(tarn__groupnorm));
}

static bool check_groupnorm(tarn_tensor **operand, int64_t groups, double epsilon)
{
    static const char *const names[] = {"weight", "bias"};
    if (!tarn__check_channels("groupnorm", operand, names, 2, epsilon))
        return false;
    int64_t channels = operand[0]->view.shape[1];
    return (groups > 0 && channels % groups == 0) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "groupnorm: %lld groups do not divide the %lld channels of x %s",
                       (long long)groups, (long long)channels, TARN__SHAPE_STRING(operand[0]));
}

tarn_tensor *tarn_groupnorm(tarn_tensor *x, int64_t groups, tarn_tensor *weight, tarn_tensor *bias, double epsilon)
{
    tarn_tensor *operand[] = {x, weight, bias}, *mean = NULL, *rstd = NULL;
    if (!check_groupnorm(operand, groups, epsilon))
        return NULL;
    x = operand[0], weight = operand[1], bias = operand[2];
    tarn__groupnorm tail = {.epsilon = epsilon, .groups = groups};
    tarn_shape shape = TARN_SHAPE(x->view.shape[0], groups);
    if (tarn__recording_needed(operand, 3) &&
        (!(mean = tarn__tensor_new("groupnorm", shape, TARN_F64, tarn__device(x))) ||
         !(rstd = tarn__tensor_new("groupnorm", shape, TARN_F64, tarn__device(x)))))
        return NULL;
    tarn_tensor *y =
        tarn__result_like("groupnorm", (tarn_tensor *[]){x}, 1, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    if (!y ||
        !tarn__kernel_call(TARN__K_groupnorm, "groupnorm", tail, TARN__IN(x, weight, bias), TARN__OUT(y, mean, rstd)))
        return NULL;
    bool good = tarn__finish("groupnorm", groupnorm_backward, tail, TARN__INPUTS(x, weight, bias), TARN__OUTPUTS(y),
                             TARN__SAVED(x, weight, mean, rstd));
    return good ? y : NULL;
}

bool tarn__apply_groupnorm(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_groupnorm(v->in[0], tarn__attribute_int(v, "groups", 1), v->in[1], v->in[2],
                                    tarn__attribute_real(v, "epsilon", 1e-5))) != NULL;
}
