/* batchnorm.c: batchnorm over all axes but the second. What backward needs of each channel, its mean and 1 / deviation, is kept in f64, and only
 * where something will be recorded: a mean much larger than the deviation leaves few digits in f32. */
#include <string.h>

#include "ops/channels.h"

/* ---- what groupnorm uses too ------------------------------------------------------------------------------------------------ */

static bool check_vector(const char *function, const tarn_tensor *x, const tarn_tensor *vector, const char *name)
{
    tarn_dtype dtype = x->view.dtype, given = vector->view.dtype;
    if (given != dtype && given != tarn__wide_dtype(dtype))
        return tarn__raise(TARN_ERROR_DTYPE, "%s: x is %s and %s is %s; convert one with tarn_cast()", function, tarn_dtype_name(dtype),
                           name, tarn_dtype_name(given));
    return (vector->view.rank == 1 && vector->view.shape[0] == x->view.shape[1]) ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: %s %s does not fit x %s: it must be [%lld]", function, name, TARN__SHAPE_TEXT(vector),
                       TARN__SHAPE_TEXT(x), (long long)x->view.shape[1]);
}

bool tarn__check_channels(const char *function, tarn_tensor **operand, const char *const *names, int vectors, double epsilon)
{
    tarn_tensor *x = operand[0];
    if (!tarn__check(function, x, "x") || !tarn__check_dtype(function, x, TARN__FLOATS, "x"))
        return false;
    if (x->view.rank < 2)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: x %s has no channels: it must be [N, C, ...]", function, TARN__SHAPE_TEXT(x));
    if (!(epsilon >= 0))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: epsilon %g is negative", function, epsilon);
    for (int i = 1; i <= vectors; i++)
        if (operand[i] && !check_vector(function, x, operand[i], names[i - 1]))
            return false;
    return tarn__same_place(function, operand, vectors + 1);
}

/* A place for the gradient of a vector, in x's wide dtype; *to stays NULL where none is wanted. */
static bool place_for(const tarn__backward *b, int i, tarn_dtype dtype, tarn_tensor **to)
{
    *to = NULL;
    return !tarn__wants(b, i) || (*to = tarn__grad_place(b, i, tarn__wide_dtype(dtype))) != NULL;
}

bool tarn__channels_backward(const tarn__backward *b, tarn__kernel kernel, size_t params_bytes)
{
    tarn_tensor *x = b->saved[0], *weight = b->saved[1], *mean = b->saved[2], *rstd = b->saved[3], *g = b->grads[0];
    tarn_tensor *gx = NULL, *gweight, *gbias;
    if (!place_for(b, 1, x->view.dtype, &gweight) || !place_for(b, 2, x->view.dtype, &gbias))
        return false;
    if (tarn__wants(b, 0) &&
        !(gx = tarn__result_like(b->function, (tarn_tensor *[]){x}, 1, tarn__shape_of(x), tarn__grad_dtype(b, 0), tarn__device(x))))
        return false;
    return tarn__run(&(tarn__launch){.kernel = kernel,
                                     .function = b->function,
                                     .params = b->params,
                                     .params_bytes = params_bytes,
                                     TARN__IN(x, weight, mean, rstd, g),
                                     TARN__OUT(gx, gweight, gbias)}) &&
           tarn__put(b, 0, gx) && tarn__put(b, 1, gweight) && tarn__put(b, 2, gbias);
}

/* ---- batchnorm -------------------------------------------------------------------------------------------------------------- */

static bool batchnorm_backward(const tarn__backward *b)
{
    return tarn__channels_backward(b, TARN__K_batchnorm_grad, sizeof(tarn__batchnorm));
}

static const char *const names[] = {"weight", "bias", "running_mean", "running_var"};

/* Statistics that are written in place: no gradient flows into them, no element shares its place, and they are not moved copies. */
static bool check_running(tarn_tensor *const *operand, bool training)
{
    for (int i = 3; i <= 4; i++) {
        const tarn_tensor *running = operand[i];
        if (!running)
            continue;
        if (running->requires_grad || running->history)
            return tarn__raise(TARN_ERROR_ARGUMENT, "batchnorm: %s needs a gradient, but none flows into it", names[i - 1]);
        if (training && running->view.shape[0] > 1 && running->view.stride[0] == 0)
            return tarn__raise(TARN_ERROR_SHAPE, "batchnorm: %s is expanded, its elements share one place; clone it first", names[i - 1]);
        if (training && !tarn__same_device(tarn__device(running), tarn__device(operand[0])))
            return tarn__raise(TARN_ERROR_DEVICE, "batchnorm: %s lies on another device than x; move it with tarn_to()", names[i - 1]);
    }
    return true;
}

static bool check_batchnorm(tarn_tensor **operand, const tarn_batchnorm_options *o)
{
    for (int i = 0; i < 5; i++)
        if ((i == 0 || operand[i]) && !tarn__check("batchnorm", operand[i], i ? names[i - 1] : "x"))
            return false;
    if (!(o->momentum >= 0 && o->momentum <= 1))
        return tarn__raise(TARN_ERROR_ARGUMENT, "batchnorm: momentum %g is outside 0 to 1", o->momentum);
    if (!operand[3] != !operand[4])
        return tarn__raise(TARN_ERROR_ARGUMENT, "batchnorm: %s is NULL and %s is not; give both or none", names[operand[3] ? 3 : 2],
                           names[operand[3] ? 2 : 3]);
    if (!o->training && !operand[3])
        return tarn__raise(TARN_ERROR_ARGUMENT, "batchnorm: without .training it needs running_mean and running_var");
    if (!check_running(operand, o->training) || !tarn__check_channels("batchnorm", operand, names, 4, o->epsilon))
        return false;
    const tarn__view *x = &operand[0]->view;
    int64_t values = x->shape[1] > 0 ? tarn__view_count(x) / x->shape[1] : 2;
    return !o->training || values > 1 ||
           tarn__raise(TARN_ERROR_SHAPE, "batchnorm: x %s has %lld value%s a channel; training needs two and more",
                       TARN__SHAPE_TEXT(operand[0]), (long long)values, values == 1 ? "" : "s");
}

/* One number for each channel, in f64, where backward will need it. */
static bool keep_numbers(tarn_tensor *const *operand, tarn_tensor **mean, tarn_tensor **rstd)
{
    tarn_shape shape = TARN_SHAPE(operand[0]->view.shape[1]);
    if (!tarn__recording_needed(operand, 3))
        return true;
    *mean = tarn__tensor_new("batchnorm", shape, TARN_F64, tarn__device(operand[0]));
    *rstd = *mean ? tarn__tensor_new("batchnorm", shape, TARN_F64, tarn__device(operand[0])) : NULL;
    return *rstd != NULL;
}

tarn_tensor *tarn_batchnorm_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, tarn_tensor *running_mean,
                                  tarn_tensor *running_var, const tarn_batchnorm_options *options, size_t options_size)
{
    tarn_batchnorm_options o = {0};
    tarn_tensor *operand[] = {x, weight, bias, running_mean, running_var}, *mean = NULL, *rstd = NULL;
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    o.momentum = o.momentum != 0 ? o.momentum : 0.1;
    o.epsilon = o.epsilon != 0 ? o.epsilon : 1e-5;
    if (!check_batchnorm(operand, &o) || !keep_numbers(operand, &mean, &rstd))
        return NULL;
    x = operand[0], weight = operand[1], bias = operand[2];
    tarn_tensor *fixed[2] = {o.training ? NULL : operand[3], o.training ? NULL : operand[4]};
    tarn_tensor *moved[2] = {o.training ? operand[3] : NULL, o.training ? operand[4] : NULL};
    tarn__batchnorm tail = {.epsilon = o.epsilon, .momentum = o.momentum, .training = o.training};
    tarn_tensor *y = tarn__result_like("batchnorm", (tarn_tensor *[]){x}, 1, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    if (!y || !tarn__kernel_call(TARN__K_batchnorm, "batchnorm", tail, TARN__IN(x, weight, bias, fixed[0], fixed[1]),
                                 TARN__OUT(y, mean, rstd, moved[0], moved[1]), .reads_output = 8 | 16))
        return NULL;
    for (int i = 0; i < 2; i++)
        if (moved[i])
            tarn__touch(moved[i]);
    bool good = tarn__finish("batchnorm", batchnorm_backward, tail, TARN__INPUTS(x, weight, bias), TARN__OUTPUTS(y),
                             TARN__SAVED(x, weight, mean, rstd));
    return good ? y : NULL;
}

bool tarn__apply_batchnorm(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_batchnorm_options o = {.training = tarn__attribute_int(v, "training", 0) != 0,
                                .momentum = tarn__attribute_real(v, "momentum", 0),
                                .epsilon = tarn__attribute_real(v, "epsilon", 0)};
    return (out[0] = tarn_batchnorm(v->in[0], v->in[1], v->in[2], v->in[3], v->in[4], &o)) != NULL;
}
