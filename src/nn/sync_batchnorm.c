/* sync_batchnorm.c: batchnorm in training with the statistics of all ranks' batches, composed of operations.
 *
 * Sums per channel are added over the ranks in two passes, first of x, then of the squares of x - mean. That addition
 * is an operation whose gradient is itself: each rank's sum is in the result of every rank, so the gradient of a sum is
 * the sum of the ranks' gradients. All ranks run the same layers in the same order, forward and backward, on batches of
 * one size. The gradients of weight and bias are those of the own batch, as for any parameter of a data-parallel step.
 */
#include "nn/sync_batchnorm.h"

#include <tarn/autograd.h>
#include <tarn/ops.h>

#include "base/error.h"
#include "core/device/device.h"
#include "core/tensor/tensor.h"

/* ---- sums over ranks --------------------------------------------------------------------------------------------- */

/* Unrecorded. On a meta device there is nothing to exchange. */
static tarn_tensor *sum_now(tarn_comm *comm, tarn_tensor *part)
{
    tarn_tensor *sum = part ? tarn_clone(part) : NULL;
    bool good = sum && (tarn__is_meta(tarn_device_of(sum)) || tarn_comm_sum(comm, &sum, 1, sum));
    return good ? sum : NULL;
}

static bool sum_backward(tarn_tensor *const *output_grads, tarn_tensor **input_grads, void *ctx)
{
    input_grads[0] = sum_now(ctx, tarn_contiguous(output_grads[0]));
    return input_grads[0] != NULL;
}

/* The sum of all ranks' parts, f32, recorded. */
static tarn_tensor *sum_ranks(tarn_comm *comm, tarn_tensor *part)
{
    tarn_no_grad_open();
    tarn_tensor *sum = sum_now(comm, part);
    tarn_no_grad_close();
    return sum && tarn_function(&part, 1, &sum, 1, sum_backward, comm, NULL) ? sum : NULL;
}

/* ---- the layer --------------------------------------------------------------------------------------------------- */

/* [C] as [1, C, 1, …] of x's rank. */
static tarn_tensor *along_channels(tarn_tensor *vector, const tarn_tensor *x)
{
    tarn_shape shape = {.rank = x->view.rank};
    for (int i = 0; i < shape.rank; i++)
        shape.size[i] = i == 1 ? tarn_count(vector) : 1;
    return tarn_reshape(vector, shape);
}

/* Sums over all axes but the channels', [1, C, 1, …]. */
static tarn_tensor *sum_channels(tarn_tensor *x)
{
    tarn_axes axes = {0};
    for (int i = 0; i < x->view.rank; i++)
        if (i != 1)
            axes.axis[axes.count++] = i;
    return tarn_sum(x, axes, true);
}

/* running = (1 - momentum) · running + momentum · now. */
static bool update(tarn_tensor *running, tarn_tensor *now, double momentum)
{
    tarn_tensor *values = tarn_reshape(tarn_detach(now), TARN_SHAPE(tarn_count(now)));
    return tarn_copy(running,
                     tarn_add(tarn_mul(running, tarn_scalar(1 - momentum)), tarn_mul(values, tarn_scalar(momentum))));
}

/* The running variance is that of a sample: divided by n - 1. */
static bool update_running(const tarn__sync_batchnorm *b, tarn_tensor *mean, tarn_tensor *variance, double n)
{
    double momentum = b->momentum != 0 ? b->momentum : 0.1;
    if (!b->running_mean)
        return true;
    tarn_no_grad_open();
    bool good = update(b->running_mean, mean, momentum) &&
                update(b->running_var, tarn_mul(variance, tarn_scalar(n / (n - 1))), momentum);
    tarn_no_grad_close();
    return good;
}

static bool check(const tarn_tensor *x)
{
    if (!x || tarn_failed())
        return false;
    if (x->view.rank < 2 || tarn_count(x) == 0)
        return tarn__raise(TARN_ERROR_SHAPE, "batchnorm: x %s has no channels, or no values in them",
                           TARN__SHAPE_STRING(x));
    return x->view.dtype != TARN_F64 ||
           tarn__raise(TARN_ERROR_DTYPE, "batchnorm: x is f64; statistics over ranks are f32");
}

tarn_tensor *tarn__sync_batchnorm_apply(const tarn__sync_batchnorm *b, tarn_tensor *x)
{
    if (!check(x))
        return NULL;
    double n = (double)(tarn_count(x) / x->view.shape[1]) * tarn_comm_size(b->comm);
    tarn_tensor *wide = tarn_cast(x, TARN_F32);
    tarn_tensor *total = wide ? sum_ranks(b->comm, sum_channels(wide)) : NULL;
    tarn_tensor *mean = total ? tarn_mul(total, tarn_scalar(1 / n)) : NULL;
    tarn_tensor *centered = mean ? tarn_sub(wide, mean) : NULL;
    tarn_tensor *squares = centered ? sum_ranks(b->comm, sum_channels(tarn_mul(centered, centered))) : NULL;
    tarn_tensor *variance = squares ? tarn_mul(squares, tarn_scalar(1 / n)) : NULL;
    if (!variance || !update_running(b, mean, variance, n))
        return NULL;
    tarn_tensor *y =
        tarn_mul(centered, tarn_rsqrt(tarn_add(variance, tarn_scalar(b->epsilon != 0 ? b->epsilon : 1e-5))));
    if (b->weight)
        y = tarn_add(tarn_mul(y, tarn_cast(along_channels(b->weight, x), TARN_F32)),
                     tarn_cast(along_channels(b->bias, x), TARN_F32));
    return tarn_cast(y, x->view.dtype);
}
