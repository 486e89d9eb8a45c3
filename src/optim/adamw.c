/* adamw.c: Adam with decoupled weight decay, as torch.optim.AdamW. At a parameter's step number t:
 *
 *   p ← p · (1 - lr · decay)
 *   m ← beta1 · m + (1 - beta1) · g
 *   v ← beta2 · v + (1 - beta2) · g²
 *   p ← p - lr / (1 - beta1^t) · m / (sqrt(v / (1 - beta2^t)) + epsilon) */
#include <math.h>
#include <string.h>

#include "optim/optimizer.h"

static double or_default(float value, double otherwise)
{
    return value != 0 ? (double)value : otherwise;
}

tarn_optimizer *tarn_adamw_sized(tarn_module *module, const tarn_adamw_options *options, size_t options_size)
{
    tarn_adamw_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    tarn__method method = {.name = "adamw", .kernel = TARN__K_adamw, .states = 2, .counts_steps = true, .decay_all = chosen.decay_all};
    tarn__optimizer_step *rates = &method.rates;
    *rates = (tarn__optimizer_step){.now.lr = (double)chosen.lr,
                                    .beta1 = or_default(chosen.beta1, 0.9),
                                    .beta2 = or_default(chosen.beta2, 0.999),
                                    .epsilon = or_default(chosen.epsilon, 1e-8),
                                    .decay = (double)chosen.weight_decay};
    if (!tarn__check_lr("adamw", rates->now.lr) || !tarn__check_rate("adamw", "beta1", rates->beta1, 0, 1) ||
        !tarn__check_rate("adamw", "beta2", rates->beta2, 0, 1) ||
        !tarn__check_rate("adamw", "epsilon", rates->epsilon, 0, (double)INFINITY) ||
        !tarn__check_rate("adamw", "weight_decay", rates->decay, 0, (double)INFINITY))
        return NULL;
    return tarn__optimizer_new(&method, module);
}
