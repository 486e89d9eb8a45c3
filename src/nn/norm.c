/* norm.c: layers that normalize: LayerNorm, RMSNorm, GroupNorm and InstanceNorm, each sample by itself, and BatchNorm.
 *
 * All share the checks and the affine parameters. An epsilon of 0 means the layer's default: 1e-5,
 * or 1e-6 for RMSNorm as in Llama. */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "core/tensor/tensor.h"
#include "nn/module.h"
#include "nn/sync_batchnorm.h"

typedef struct settings {
    double epsilon;
    int64_t groups; /* of GroupNorm */
} settings;

/* Forward functions: tarn__module_own() gives NULL for parameters that .no_affine or .no_bias left out. */
static tarn_tensor *layernorm(tarn_module *module, tarn_tensor *x, void *ctx)
{
    return tarn_layernorm(x, tarn__module_own(module, "weight"), tarn__module_own(module, "bias"),
                          ((settings *)ctx)->epsilon);
}

static tarn_tensor *rmsnorm(tarn_module *module, tarn_tensor *x, void *ctx)
{
    return tarn_rmsnorm(x, tarn__module_own(module, "weight"), ((settings *)ctx)->epsilon);
}

static tarn_tensor *groupnorm(tarn_module *module, tarn_tensor *x, void *ctx)
{
    const settings *s = ctx;
    return tarn_groupnorm(x, s->groups, tarn__module_own(module, "weight"), tarn__module_own(module, "bias"),
                          s->epsilon);
}

/* Raises unless size and options are valid. */
static bool check_norm(const char *function, int64_t size, const tarn_norm_options *options)
{
    if (tarn_failed())
        return false;
    if (size < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: %lld features; must be at least 1", function, (long long)size);
    if (!(options->epsilon >= 0) || !isfinite(options->epsilon))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .epsilon is %g; must be a finite number, at least 0", function,
                           options->epsilon);
    return tarn__check_parameter_dtype(function, options->dtype);
}

/* Adds "weight" (ones) and "bias" (zeros) as the options ask: the identity at first. */
static bool add_affine(tarn_module *module, int64_t size, tarn_device device, const tarn_norm_options *options)
{
    return options->no_affine ||
           (tarn_module_add_parameter(module, "weight", tarn_ones(TARN_SHAPE(size), options->dtype, device)) &&
            (options->no_bias ||
             tarn_module_add_parameter(module, "bias", tarn_zeros(TARN_SHAPE(size), options->dtype, device))));
}

/* `epsilon` is the default of the kind. */
static tarn_module *create(const char *function, const char *kind, tarn_forward_fn forward, int64_t size,
                           tarn_device device, const tarn_norm_options *options, double epsilon, int64_t groups)
{
    if (!check_norm(function, size, options))
        return NULL;
    settings s = {options->epsilon > 0 ? options->epsilon : epsilon, groups};
    tarn_module *module = tarn__module_new_with(function, kind, forward, &s, sizeof(s));
    if (module && add_affine(module, size, device, options))
        return module;
    tarn__raise_within(function);
    tarn_module_free(module);
    return NULL;
}

tarn_module *tarn_layernorm_layer_with_sized(int64_t size, tarn_device device, const tarn_norm_options *options,
                                             size_t options_size)
{
    tarn_norm_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    return create("layernorm_layer", "layernorm", layernorm, size, device, &chosen, 1e-5, 0);
}

tarn_module *tarn_rmsnorm_layer_with_sized(int64_t size, tarn_device device, const tarn_norm_options *options,
                                           size_t options_size)
{
    tarn_norm_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    chosen.no_bias = true; /* rmsnorm has no shift */
    return create("rmsnorm_layer", "rmsnorm", rmsnorm, size, device, &chosen, 1e-6, 0);
}

/* Groups must divide the channels: each has channels / groups of them. */
tarn_module *tarn_groupnorm_layer_with_sized(int64_t groups, int64_t channels, tarn_device device,
                                             const tarn_norm_options *options, size_t options_size)
{
    tarn_norm_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed())
        return NULL;
    if (groups < 1 || channels % groups) {
        tarn__raise(TARN_ERROR_SHAPE, "groupnorm_layer: %lld groups do not divide %lld channels", (long long)groups,
                    (long long)channels);
        return NULL;
    }
    return create("groupnorm_layer", "groupnorm", groupnorm, channels, device, &chosen, 1e-5, groups);
}

tarn_module *tarn_groupnorm_layer(int64_t groups, int64_t channels, tarn_device device)
{
    return tarn_groupnorm_layer_with(groups, channels, device, NULL);
}

/* A group per channel. */
tarn_module *tarn_instancenorm_layer_with_sized(int64_t channels, tarn_device device,
                                                const tarn_instancenorm_options *options, size_t options_size)
{
    tarn_instancenorm_options o = {0};
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    tarn_norm_options chosen = {.epsilon = o.epsilon, .no_affine = !o.affine, .dtype = o.dtype};
    return create("instancenorm_layer", "instancenorm", groupnorm, channels, device, &chosen, 1e-5, channels);
}

tarn_module *tarn_instancenorm_layer(int64_t channels, tarn_device device)
{
    return tarn_instancenorm_layer_with(channels, device, NULL);
}

tarn_module *tarn_layernorm_layer(int64_t size, tarn_device device)
{
    return tarn_layernorm_layer_with(size, device, NULL);
}

tarn_module *tarn_rmsnorm_layer(int64_t size, tarn_device device)
{
    return tarn_rmsnorm_layer_with(size, device, NULL);
}

/* ---- batch normalization ----------------------------------------------------------------------------------------- */

/* The batch normalization layer over (N, C, H, W), alone or fused with the addition and the relu after it.
 *
 * In training mode statistics are those of the batch, and running_mean, running_var and num_batches_tracked (buffers
 * with PyTorch's names) are updated in place; in evaluation the running statistics are used. */

/* ctx of the layer; 0 means the operation's default. */
typedef struct batchnorm_settings {
    double momentum, epsilon;
    tarn_comm *comm; /* statistics are of the batches of its ranks, in training; borrowed; NULL: of the own batch */
} batchnorm_settings;

/* batchnorm(x), or with has_relu: relu(batchnorm(x) + residual), residual may be NULL. */
static tarn_tensor *apply_batchnorm(tarn_module *module, tarn_tensor *x, tarn_tensor *residual, bool has_relu)
{
    const batchnorm_settings *s = module->ctx;
    tarn_tensor *weight = tarn__module_own(module, "weight"), *bias = tarn__module_own(module, "bias");
    tarn_tensor *mean = tarn__module_own(module, "running_mean"), *variance = tarn__module_own(module, "running_var");
    tarn_tensor *batches = tarn__module_own(module, "num_batches_tracked");
    bool training = module->training || !mean; /* without running statistics there are only the batch's */
    tarn_batchnorm_options o = {.training = training, .momentum = s->momentum, .epsilon = s->epsilon};
    tarn_tensor *y;
    if (s->comm && module->training) {
        const tarn__sync_batchnorm b = {s->comm, weight, bias, mean, variance, s->momentum, s->epsilon};
        y = tarn__sync_batchnorm_apply(&b, x);
        y = y && residual ? tarn_add(y, residual) : y;
        y = y && has_relu ? tarn_relu(y) : y;
    } else {
        y = has_relu ? tarn_batchnorm_relu(x, residual, weight, bias, mean, variance, &o)
                     : tarn_batchnorm(x, weight, bias, mean, variance, &o);
    }
    return y && (!module->training || !batches || tarn_add_inplace(batches, tarn_scalar(1))) ? y : NULL;
}

static tarn_tensor *batchnorm(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return apply_batchnorm(module, x, NULL, false);
}

bool tarn__is_batchnorm(const tarn_module *module)
{
    return module->forward == batchnorm;
}

/* The fused kernel adds a residual of x's shape and dtype; one that broadcasts is composed. */
tarn_tensor *tarn__batchnorm_relu(tarn_module *module, tarn_tensor *x, tarn_tensor *residual)
{
    if (!residual || (!residual->is_constant && residual->view.dtype == x->view.dtype &&
                      tarn__same_shape(&residual->view, &x->view)))
        return apply_batchnorm(module, x, residual, true);
    tarn_tensor *y = apply_batchnorm(module, x, NULL, false);
    return y ? tarn_relu(tarn_add(y, residual)) : NULL;
}

static int set_comm(tarn_module *module, tarn_comm *comm)
{
    int count = tarn__is_batchnorm(module);
    if (count)
        ((batchnorm_settings *)module->ctx)->comm = comm;
    for (int i = 0; i < module->children; i++)
        count += set_comm(module->child[i], comm);
    return count;
}

bool tarn_batchnorm_sync(tarn_module *module, tarn_comm *comm)
{
    if (tarn_failed() || !tarn__check_module("batchnorm_sync", module))
        return false;
    return set_comm(module, comm && tarn_comm_size(comm) > 1 ? comm : NULL) > 0 ||
           tarn__raise(TARN_ERROR_ARGUMENT, "batchnorm_sync: the module has no batchnorms");
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
    if (!check_norm("batchnorm2d", channels, &norm))
        return NULL;
    if (!(chosen.momentum >= 0 && chosen.momentum <= 1)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "batchnorm2d: .momentum is %g; must be from 0 (default, 0.1) to 1",
                    chosen.momentum);
        return NULL;
    }
    batchnorm_settings s = {chosen.momentum, chosen.epsilon, NULL};
    tarn_module *module = tarn__module_new_with("batchnorm2d", "batchnorm2d", batchnorm, &s, sizeof(s));
    if (module && add_affine(module, channels, device, &norm) &&
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
