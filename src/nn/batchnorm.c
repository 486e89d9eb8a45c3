/* batchnorm.c: the batch normalization layer over (N, C, H, W), alone or fused with the addition and the relu after it.
 *
 * In training mode statistics are those of the batch, and running_mean, running_var and num_batches_tracked (buffers
 * with PyTorch's names) are updated in place; in evaluation the running statistics are used. */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "core/tensor/tensor.h"
#include "nn/module.h"

/* ctx of the layer; 0 means the operation's default. */
typedef struct settings {
    double momentum, epsilon;
} settings;

/* batchnorm(x), or with has_relu: relu(batchnorm(x) + residual), residual may be NULL. */
static tarn_tensor *apply(tarn_module *module, tarn_tensor *x, tarn_tensor *residual, bool has_relu)
{
    const settings *s = module->ctx;
    tarn_tensor *weight = tarn__module_own(module, "weight"), *bias = tarn__module_own(module, "bias");
    tarn_tensor *mean = tarn__module_own(module, "running_mean"), *variance = tarn__module_own(module, "running_var");
    tarn_tensor *batches = tarn__module_own(module, "num_batches_tracked");
    bool training = module->training || !mean; /* without running statistics there are only the batch's */
    tarn_batchnorm_options o = {.training = training, .momentum = s->momentum, .epsilon = s->epsilon};
    tarn_tensor *y = has_relu ? tarn_batchnorm_relu(x, residual, weight, bias, mean, variance, &o)
                              : tarn_batchnorm(x, weight, bias, mean, variance, &o);
    return y && (!module->training || !batches || tarn_add_inplace(batches, tarn_scalar(1))) ? y : NULL;
}

static tarn_tensor *forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return apply(module, x, NULL, false);
}

bool tarn__is_batchnorm(const tarn_module *module)
{
    return module->forward == forward;
}

/* The fused kernel adds a residual of x's shape and dtype; one that broadcasts is composed. */
tarn_tensor *tarn__batchnorm_relu(tarn_module *module, tarn_tensor *x, tarn_tensor *residual)
{
    if (!residual || (!residual->is_constant && residual->view.dtype == x->view.dtype &&
                      tarn__same_shape(&residual->view, &x->view)))
        return apply(module, x, residual, true);
    tarn_tensor *y = apply(module, x, NULL, false);
    return y ? tarn_relu(tarn_add(y, residual)) : NULL;
}

/* Statistics of 16-bit layers are f32: an update of momentum 0.1 would be lost in the 8 significant bits of bf16. */
static bool add_statistics(tarn_module *module, int64_t channels, tarn_device device, tarn_dtype dtype)
{
    tarn_dtype wide = tarn__acc_dtype(dtype);
    return tarn_module_add_buffer(module, "running_mean", tarn_zeros(TARN_SHAPE(channels), wide, device)) &&
           tarn_module_add_buffer(module, "running_var", tarn_ones(TARN_SHAPE(channels), wide, device)) &&
           tarn_module_add_buffer(module, "num_batches_tracked", tarn_zeros(TARN_SCALAR, TARN_I64, device));
}

tarn_module *tarn_batchnorm2d_with_sized(int64_t channels, tarn_device device, const tarn_batchnorm2d_options *options,
                                         size_t options_size)
{
    tarn_batchnorm2d_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    tarn_norm_options norm = {.epsilon = chosen.epsilon, .no_affine = chosen.no_affine, .dtype = chosen.dtype};
    if (!tarn__check_norm("batchnorm2d", channels, &norm))
        return NULL;
    if (!(chosen.momentum >= 0 && chosen.momentum <= 1)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "batchnorm2d: .momentum is %g; must be from 0 (default, 0.1) to 1",
                    chosen.momentum);
        return NULL;
    }
    settings s = {chosen.momentum, chosen.epsilon};
    tarn_module *module = tarn__module_new_with("batchnorm2d", "batchnorm2d", forward, &s, sizeof(s));
    if (module && tarn__add_affine(module, channels, device, &norm) &&
        (chosen.no_tracking || add_statistics(module, channels, device, chosen.dtype)))
        return module;
    tarn__raise_within("batchnorm2d");
    tarn_module_free(module);
    return NULL;
}

tarn_module *tarn_batchnorm2d(int64_t channels, tarn_device device)
{
    return tarn_batchnorm2d_with(channels, device, NULL);
}
