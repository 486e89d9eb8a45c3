/* batchnorm.c: batchnorm over all axes but the second, alone and fused with a residual sum and relu; groupnorm. Mean
 * and 1 / std are saved in f64, and only if something will be recorded: with a mean much larger than the std, f32
 * would lose too much precision.
 *
 * In training the kernel also updates the running statistics in place: running = (1 - momentum) · running + momentum
 * · batch. Gradients flow into x, weight, bias and the residual, never into the statistics.
 *
 * Shapes: x [N, C, …]; vectors [C]; groupnorm's statistics [N, groups]. */
#include <string.h>

#include "ops/op.h"

/* ---- shared with groupnorm ------------------------------------------------------------------------------------- */

/* A vector of x's dtype, or f32 beside 16-bit x: [C]. */
static bool check_vector(const char *function, const tarn_tensor *x, const tarn_tensor *vector, const char *name)
{
    tarn_dtype dtype = x->view.dtype, given = vector->view.dtype;
    if (given != dtype && given != tarn__acc_dtype(dtype))
        return tarn__raise(TARN_ERROR_DTYPE, "%s: x is %s and %s is %s; convert one with tarn_cast()", function,
                           tarn_dtype_name(dtype), name, tarn_dtype_name(given));
    return (vector->view.rank == 1 && vector->view.shape[0] == x->view.shape[1]) ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: %s %s does not fit x %s: it must be [%lld]", function, name,
                       TARN__SHAPE_STRING(vector), TARN__SHAPE_STRING(x), (long long)x->view.shape[1]);
}

/* Checks x [N, C, …], `vectors` operands after it, each NULL or [C], of x's dtype or f32 with 16-bit x, and epsilon. */
static bool check_channels(const char *function, tarn_tensor **operand, const char *const *names, int vectors,
                           double epsilon)
{
    tarn_tensor *x = operand[0];
    if (!tarn__check(function, x, "x") || !tarn__check_dtype(function, x, TARN__FLOATS, "x"))
        return false;
    if (x->view.rank < 2)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: x %s has no channels: it must be [N, C, ...]", function,
                           TARN__SHAPE_STRING(x));
    if (!(epsilon >= 0))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: epsilon %g is negative", function, epsilon);
    for (int i = 1; i <= vectors; i++)
        if (operand[i] && !check_vector(function, x, operand[i], names[i - 1]))
            return false;
    return tarn__unify_devices(function, operand, vectors + 1);
}

/* A buffer for the gradient of a vector; *to is NULL where none is needed. */
static bool grad_buffer(const tarn__backward *b, int i, tarn_tensor **to)
{
    *to = NULL;
    return !tarn__needs_grad(b, i) || (*to = tarn__grad_buffer(b, i, tarn__grad_dtype(b, i))) != NULL;
}

/* The same for input i of x's shape, in x's layout. */
static bool grad_like(const tarn__backward *b, int i, tarn_tensor *x, tarn_tensor **to)
{
    *to = NULL;
    return !tarn__needs_grad(b, i) || (*to = tarn__result_like(b->function, (tarn_tensor *[]){x}, 1, tarn__shape_of(x),
                                                               tarn__grad_dtype(b, i), tarn__device(x))) != NULL;
}

/* Backward of batchnorm and groupnorm: x, weight or NULL, mean, rstd are saved; the params are the kernel's. */
static bool channels_backward(const tarn__backward *b, tarn__kernel kernel, size_t params_bytes)
{
    tarn_tensor *x = b->saved[0], *weight = b->saved[1], *mean = b->saved[2], *rstd = b->saved[3], *g = b->grads[0];
    tarn_tensor *gx, *gweight, *gbias;
    if (!grad_buffer(b, 1, &gweight) || !grad_buffer(b, 2, &gbias) || !grad_like(b, 0, x, &gx))
        return false;
    return tarn__run(&(tarn__launch){.kernel = kernel,
                                     .function = b->function,
                                     .params = b->params,
                                     .params_bytes = params_bytes,
                                     TARN__IN(x, weight, mean, rstd, g),
                                     TARN__OUT(gx, gweight, gbias)}) &&
           tarn__accumulate_grad(b, 0, gx) && tarn__accumulate_grad(b, 1, gweight) &&
           tarn__accumulate_grad(b, 2, gbias);
}

/* ---- checks ---------------------------------------------------------------------------------------------------- */

/* Operands in the order of the kernels' inputs. */
enum { X, WEIGHT, BIAS, RUNNING_MEAN, RUNNING_VAR, RESIDUAL, OPERANDS };
static const char *const names[] = {"x", "weight", "bias", "running_mean", "running_var", "residual"};

/* Running statistics are written in place: no gradient flows into them, no elements share memory, and they are not
 * moved. */
static bool check_running(const char *function, tarn_tensor *const *operand, bool training)
{
    for (int i = RUNNING_MEAN; i <= RUNNING_VAR; i++) {
        const tarn_tensor *running = operand[i];
        if (!running)
            continue;
        if (running->origin->requires_grad || running->origin->grad_fn)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s needs a gradient, but none flows into it", function,
                               names[i]);
        if (training && running->view.shape[0] > 1 && running->view.stride[0] == 0)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: %s is expanded: its elements share memory; clone it first",
                               function, names[i]);
        if (training && !tarn__same_device(tarn__device(running), tarn__device(operand[X])))
            return tarn__raise(TARN_ERROR_DEVICE, "%s: %s is on another device than x; move it with tarn_to()",
                               function, names[i]);
    }
    return true;
}

/* x was checked before. */
static bool check_residual(const char *function, tarn_tensor **operand)
{
    const tarn_tensor *x = operand[X], *residual = operand[RESIDUAL];
    if (!residual)
        return true;
    if (residual->view.dtype != x->view.dtype)
        return tarn__raise(TARN_ERROR_DTYPE, "%s: x is %s and residual is %s; convert one with tarn_cast()", function,
                           tarn_dtype_name(x->view.dtype), tarn_dtype_name(residual->view.dtype));
    if (residual->is_constant || !tarn__same_shape(&x->view, &residual->view))
        return tarn__raise(TARN_ERROR_SHAPE, "%s: x %s and residual %s must have one shape", function,
                           TARN__SHAPE_STRING(x), TARN__SHAPE_STRING(residual));
    return tarn__unify_devices(function, operand, OPERANDS);
}

/* Running statistics come in pairs; without training they are required; training needs at least two values per
 * channel. */
static bool check_batchnorm(const char *function, tarn_tensor **operand, const tarn_batchnorm_options *o)
{
    for (int i = 0; i < OPERANDS; i++)
        if ((i == X || operand[i]) && !tarn__check(function, operand[i], names[i]))
            return false;
    if (!(o->momentum >= 0 && o->momentum <= 1))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: momentum %g is outside 0 to 1", function, o->momentum);
    if (!operand[RUNNING_MEAN] != !operand[RUNNING_VAR])
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s is NULL and %s is not; give both or none", function,
                           names[operand[RUNNING_MEAN] ? RUNNING_VAR : RUNNING_MEAN],
                           names[operand[RUNNING_MEAN] ? RUNNING_MEAN : RUNNING_VAR]);
    if (!o->training && !operand[RUNNING_MEAN])
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: without .training it needs running_mean and running_var",
                           function);
    if (!check_running(function, operand, o->training) ||
        !check_channels(function, operand, names + 1, 4, o->epsilon) || !check_residual(function, operand))
        return false;
    const tarn__view *x = &operand[X]->view;
    /* x without channels has nothing to normalize and is no error. */
    int64_t values = x->shape[1] > 0 ? tarn__view_count(x) / x->shape[1] : 2;
    return !o->training || values > 1 ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: x %s has %lld value%s per channel; training needs at least 2", function,
                       TARN__SHAPE_STRING(operand[X]), (long long)values, values == 1 ? "" : "s");
}

/* Options with defaults: momentum 0.1, epsilon 1e-5. */
static tarn_batchnorm_options options_from(const tarn_batchnorm_options *options, size_t options_size)
{
    tarn_batchnorm_options o = {0};
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    o.momentum = o.momentum != 0 ? o.momentum : 0.1;
    o.epsilon = o.epsilon != 0 ? o.epsilon : 1e-5;
    return o;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* A batchnorm in progress: operands, moved if needed, result, and saved statistics. */
typedef struct batchnorm_state {
    tarn_tensor *operand[OPERANDS];
    tarn_tensor *y, *mean, *rstd; /* mean and rstd are NULL if nothing is recorded */
    tarn__batchnorm params;
} batchnorm_state;

/* Allocates mean and rstd (C) in f64 if backward will need them. */
static bool new_statistics(const char *function, batchnorm_state *n)
{
    tarn_tensor *x = n->operand[X], *recorded[] = {x, n->operand[WEIGHT], n->operand[BIAS], n->operand[RESIDUAL]};
    if (!tarn__recording_needed(recorded, 4))
        return true;
    n->mean = tarn__tensor_new(function, TARN_SHAPE(x->view.shape[1]), TARN_F64, tarn__device(x));
    n->rstd = n->mean ? tarn__tensor_new(function, TARN_SHAPE(x->view.shape[1]), TARN_F64, tarn__device(x)) : NULL;
    return n->rstd != NULL;
}

/* Checks and runs the kernel; only batchnorm_relu has the residual as an input. */
static bool run_batchnorm(const char *function, tarn__kernel kernel, const tarn_batchnorm_options *o,
                          batchnorm_state *n)
{
    tarn_tensor **in = n->operand;
    if (!check_batchnorm(function, in, o) || !new_statistics(function, n))
        return false;
    tarn_tensor *x = in[X], *mean = in[RUNNING_MEAN], *var = in[RUNNING_VAR];
    n->params = (tarn__batchnorm){.epsilon = o->epsilon, .momentum = o->momentum, .training = o->training};
    n->y = tarn__result_like(function, (tarn_tensor *[]){x}, 1, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    /* Running statistics are inputs in evaluation, outputs 3 and 4 in training, where the kernel also reads them. */
    tarn__launch launch = {
        .kernel = kernel,
        .function = function,
        .params = &n->params,
        .params_bytes = sizeof(n->params),
        TARN__IN(x, in[WEIGHT], in[BIAS], o->training ? NULL : mean, o->training ? NULL : var, in[RESIDUAL]),
        TARN__OUT(n->y, n->mean, n->rstd, o->training ? mean : NULL, o->training ? var : NULL),
        .reads_output = 8 | 16};
    /* The residual is the last input; plain batchnorm ends before it. */
    launch.inputs = kernel == TARN__K_batchnorm ? RESIDUAL : OPERANDS;
    if (!n->y || !tarn__run(&launch))
        return false;
    /* A computation that has saved the old statistics must notice. */
    for (int i = RUNNING_MEAN; o->training && mean && i <= RUNNING_VAR; i++)
        tarn__bump_version(in[i]);
    return true;
}

/* In training the batch's statistics take part in the gradient. */
static bool batchnorm_backward(const tarn__backward *b)
{
    return channels_backward(b, TARN__K_batchnorm_grad, sizeof(tarn__batchnorm));
}

/* Saves x, weight, mean and rstd. */
tarn_tensor *tarn_batchnorm_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, tarn_tensor *running_mean,
                                  tarn_tensor *running_var, const tarn_batchnorm_options *options, size_t options_size)
{
    tarn_batchnorm_options o = options_from(options, options_size);
    batchnorm_state n = {.operand = {x, weight, bias, running_mean, running_var}};
    if (!run_batchnorm("batchnorm", TARN__K_batchnorm, &o, &n))
        return NULL;
    tarn_tensor **in = n.operand;
    bool good = tarn__finish("batchnorm", batchnorm_backward, n.params, TARN__INPUTS(in[X], in[WEIGHT], in[BIAS]),
                             TARN__OUTPUTS(n.y), TARN__SAVED(in[X], in[WEIGHT], n.mean, n.rstd));
    return good ? n.y : NULL;
}

/* A momentum or epsilon of 0 stands for its default, as in the options. */
bool tarn__apply_batchnorm(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_batchnorm_options o = {.training = tarn__attribute_int(v, "training", 0) != 0,
                                .momentum = tarn__attribute_real(v, "momentum", 0),
                                .epsilon = tarn__attribute_real(v, "epsilon", 0)};
    return (out[0] = tarn_batchnorm(v->in[0], v->in[1], v->in[2], v->in[3], v->in[4], &o)) != NULL;
}

/* ---- with relu --------------------------------------------------------------------------------------------------- */

/* Saved: x, weight, mean, rstd, bias, and y if there was a residual; else relu's mask is recomputed from x. */
static bool batchnorm_relu_backward(const tarn__backward *b)
{
    tarn_tensor *x = b->saved[0], *weight = b->saved[1], *mean = b->saved[2], *rstd = b->saved[3], *bias = b->saved[4],
                *y = b->saved[5];
    tarn_tensor *g = b->grads[0], *gx, *gweight, *gbias, *gresidual;
    if (!grad_buffer(b, 1, &gweight) || !grad_buffer(b, 2, &gbias) || !grad_like(b, 0, x, &gx) ||
        !grad_like(b, 3, x, &gresidual))
        return false;
    return tarn__run(&(tarn__launch){.kernel = TARN__K_batchnorm_relu_grad,
                                     .function = b->function,
                                     .params = b->params,
                                     .params_bytes = sizeof(tarn__batchnorm),
                                     TARN__IN(x, weight, mean, rstd, g, bias, y),
                                     TARN__OUT(gx, gweight, gbias, gresidual)}) &&
           tarn__accumulate_grad(b, 0, gx) && tarn__accumulate_grad(b, 1, gweight) &&
           tarn__accumulate_grad(b, 2, gbias) && tarn__accumulate_grad(b, 3, gresidual);
}

/* relu(batchnorm(x) + residual) in one pass; the residual may be NULL. */
tarn_tensor *tarn_batchnorm_relu_sized(tarn_tensor *x, tarn_tensor *residual, tarn_tensor *weight, tarn_tensor *bias,
                                       tarn_tensor *running_mean, tarn_tensor *running_var,
                                       const tarn_batchnorm_options *options, size_t options_size)
{
    tarn_batchnorm_options o = options_from(options, options_size);
    batchnorm_state n = {.operand = {x, weight, bias, running_mean, running_var, residual}};
    if (!run_batchnorm("batchnorm_relu", TARN__K_batchnorm_relu, &o, &n))
        return NULL;
    tarn_tensor **in = n.operand;
    bool good = tarn__finish("batchnorm_relu", batchnorm_relu_backward, n.params,
                             TARN__INPUTS(in[X], in[WEIGHT], in[BIAS], in[RESIDUAL]), TARN__OUTPUTS(n.y),
                             TARN__SAVED(in[X], in[WEIGHT], n.mean, n.rstd, in[BIAS], in[RESIDUAL] ? n.y : NULL));
    return good ? n.y : NULL;
}

/* By name, the residual is the last input. */
bool tarn__apply_batchnorm_relu(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_tensor *in[OPERANDS] = {0}, *residual = NULL;
    int count = v->inputs;
    if (tarn__attribute_int(v, "residual", 0) != 0 && count > 1)
        residual = v->in[--count];
    if (count > RESIDUAL || (!residual && tarn__attribute_int(v, "residual", 0) != 0))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "batchnorm_relu: %d inputs given; expected x, weight, bias, running_mean, running_var and, "
                           "with the attribute residual, the residual last",
                           v->inputs);
    memcpy(in, v->in, sizeof(in[0]) * (size_t)count);
    tarn_batchnorm_options o = {.training = tarn__attribute_int(v, "training", 0) != 0,
                                .momentum = tarn__attribute_real(v, "momentum", 0),
                                .epsilon = tarn__attribute_real(v, "epsilon", 0)};
    return (out[0] = tarn_batchnorm_relu(in[X], residual, in[WEIGHT], in[BIAS], in[RUNNING_MEAN], in[RUNNING_VAR],
                                         &o)) != NULL;
}

/* ---- groupnorm --------------------------------------------------------------------------------------------------- */

/* One kernel for gx, gweight and gbias; the statistics always take part. */
static bool groupnorm_backward(const tarn__backward *b)
{
    return channels_backward(b, TARN__K_groupnorm_grad, sizeof(tarn__groupnorm));
}

/* groups must divide C. */
static bool check_groupnorm(tarn_tensor **operand, int64_t groups, double epsilon)
{
    if (!check_channels("groupnorm", operand, names + 1, 2, epsilon))
        return false;
    int64_t channels = operand[0]->view.shape[1];
    return (groups > 0 && channels % groups == 0) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "groupnorm: %lld groups do not divide the %lld channels of x %s",
                       (long long)groups, (long long)channels, TARN__SHAPE_STRING(operand[0]));
}

/* Normalizes each image's channels in groups over C / groups · H · W elements; the statistics are [N, groups]. */
tarn_tensor *tarn_groupnorm(tarn_tensor *x, int64_t groups, tarn_tensor *weight, tarn_tensor *bias, double epsilon)
{
    tarn_tensor *operand[] = {x, weight, bias}, *mean = NULL, *rstd = NULL;
    if (!check_groupnorm(operand, groups, epsilon))
        return NULL;
    x = operand[0], weight = operand[1], bias = operand[2];
    tarn__groupnorm params = {.epsilon = epsilon, .groups = groups};
    tarn_shape shape = TARN_SHAPE(x->view.shape[0], groups);
    if (tarn__recording_needed(operand, 3) &&
        (!(mean = tarn__tensor_new("groupnorm", shape, TARN_F64, tarn__device(x))) ||
         !(rstd = tarn__tensor_new("groupnorm", shape, TARN_F64, tarn__device(x)))))
        return NULL;
    tarn_tensor *y =
        tarn__result_like("groupnorm", (tarn_tensor *[]){x}, 1, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    if (!y ||
        !tarn__kernel_call(TARN__K_groupnorm, "groupnorm", params, TARN__IN(x, weight, bias), TARN__OUT(y, mean, rstd)))
        return NULL;
    bool good = tarn__finish("groupnorm", groupnorm_backward, params, TARN__INPUTS(x, weight, bias), TARN__OUTPUTS(y),
                             TARN__SAVED(x, weight, mean, rstd));
    return good ? y : NULL;
}

bool tarn__apply_groupnorm(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_groupnorm(v->in[0], tarn__attribute_int(v, "groups", 1), v->in[1], v->in[2],
                                    tarn__attribute_real(v, "epsilon", 1e-5))) != NULL;
}
