/* optim.h: optimizers. One keeps what it trains in flat buffers, so that a step is one kernel. */
#ifndef TARN_OPTIM_H
#define TARN_OPTIM_H

#include <tarn/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_optimizer tarn_optimizer;

/* Options of tarn_sgd(). `lr` is required; zero is every other field's default. */
typedef struct tarn_sgd_options {
    float lr;
    float momentum;
    float dampening;
    float weight_decay;
    bool nesterov;
} tarn_sgd_options;

/* Options of tarn_adamw(). `lr` is required; zero is every other field's default. */
typedef struct tarn_adamw_options {
    float lr;
    float beta1;        /* default 0.9 */
    float beta2;        /* default 0.999 */
    float epsilon;      /* default 1e-8 */
    float weight_decay; /* default 0: no decay */
    bool decay_all;     /* decay vectors (biases, norms) too; default: parameters of rank 2 and up only */
} tarn_adamw_options;

/* Stochastic gradient descent, as torch.optim.SGD, over the module's parameters that are not frozen. Borrows the module, which must live
 * until the optimizer is freed. The caller owns the optimizer. `...` is a const tarn_sgd_options *. */
TARN_API tarn_optimizer *tarn_sgd_sized(tarn_module *module, const tarn_sgd_options *options, size_t options_size);
#define tarn_sgd(module, ...) tarn_sgd_sized(module, __VA_ARGS__, sizeof(tarn_sgd_options))

/* AdamW, as torch.optim.AdamW, over the module's parameters that are not frozen. Borrows the module, which must live until the optimizer
 * is freed. The caller owns the optimizer. `...` is a const tarn_adamw_options *. */
TARN_API tarn_optimizer *tarn_adamw_sized(tarn_module *module, const tarn_adamw_options *options, size_t options_size);
#define tarn_adamw(module, ...) tarn_adamw_sized(module, __VA_ARGS__, sizeof(tarn_adamw_options))

/* Updates the parameters from their gradients and clears the gradients. A parameter without a gradient is skipped. */
TARN_API bool tarn_optimizer_step(tarn_optimizer *optimizer);

/* Clears the gradients without a step. */
TARN_API void tarn_optimizer_zero_grad(tarn_optimizer *optimizer);

/* Changes the learning rate from the next step on. */
TARN_API bool tarn_optimizer_set_lr(tarn_optimizer *optimizer, double lr);
/* The learning rate; NaN on error. */
TARN_API double tarn_optimizer_lr(const tarn_optimizer *optimizer);

/* Frees an optimizer; the parameters stay where they are. NULL is allowed; works while an error is pending. */
TARN_API void tarn_optimizer_free(tarn_optimizer *optimizer);

#ifdef __cplusplus
}
#endif
#endif
