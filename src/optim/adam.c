/* adam.c: Adam, as torch.optim.Adam, and AdamW, with decoupled weight decay, as torch.optim.AdamW. At step t of a
 * parameter:
 *
 *   g ← g + decay · p (Adam), or p ← p · (1 - lr · decay) (AdamW)
 *   m ← beta1 · m + (1 - beta1) · g
 *   v ← beta2 · v + (1 - beta2) · g²
 *   p ← p - lr / (1 - beta1^t) · m / (sqrt(v / (1 - beta2^t)) + epsilon)
 *
 * State: first_moment m and second_moment v, in f32 (f64 for f64 parameters). An option of 0 means its default. */
#include <math.h>
#include <string.h>

#include "optim/optimizer.h"

static double or_default(float value, double default_value)
{
    return value != 0 ? (double)value : default_value;
}

/* Both have the same options; AdamW alone exempts vectors (biases, norms) from decay, unless .decay_all. */
static tarn_optimizer *create(const char *name, bool decoupled, tarn_module *module, const tarn_adamw_options *o)
{
    tarn__method method = {.name = name,
                           .kernel = TARN__K_adamw,
                           .states = 2,
                           .state_name = {"first_moment", "second_moment"},
                           .counts_steps = true,
                           .decoupled = decoupled,
                           .decay_all = o->decay_all || !decoupled};
    tarn__optimizer_step *rates = &method.rates;
    *rates = (tarn__optimizer_step){.now.lr = (double)o->lr,
                                    .beta1 = or_default(o->beta1, 0.9),
                                    .beta2 = or_default(o->beta2, 0.999),
                                    .epsilon = or_default(o->epsilon, 1e-8),
                                    .decay = (double)o->weight_decay};
    if (!tarn__check_lr(name, rates->now.lr) || !tarn__check_rate(name, "beta1", rates->beta1, 0, 1) ||
        !tarn__check_rate(name, "beta2", rates->beta2, 0, 1) ||
        !tarn__check_rate(name, "epsilon", rates->epsilon, 0, (double)INFINITY) ||
        !tarn__check_rate(name, "weight_decay", rates->decay, 0, (double)INFINITY))
        return NULL;
    return tarn__optimizer_new(&method, module, o->groups, o->group_count, o->comm);
}

tarn_optimizer *tarn_adamw_sized(tarn_module *module, const tarn_adamw_options *options, size_t options_size)
{
    tarn_adamw_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    return create("adamw", true, module, &chosen);
}

tarn_optimizer *tarn_adam_sized(tarn_module *module, const tarn_adam_options *options, size_t options_size)
{
    tarn_adam_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    return create("adam", false, module,
                  &(tarn_adamw_options){.lr = chosen.lr,
                                        .beta1 = chosen.beta1,
                                        .beta2 = chosen.beta2,
                                        .epsilon = chosen.epsilon,
                                        .weight_decay = chosen.weight_decay,
                                        .groups = chosen.groups,
                                        .group_count = chosen.group_count,
                                        .comm = chosen.comm});
}
