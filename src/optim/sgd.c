/* sgd.c: stochastic gradient descent with momentum, as torch.optim.SGD:
 *
 *   g ← g + decay · p
 *   m ← g at a parameter's first step, then momentum · m + (1 - dampening) · g
 *   g ← g + momentum · m (Nesterov), or m
 *   p ← p - lr · g
 *
 * State: momentum m, absent where .momentum is 0. The kernel's beta1 is the momentum. */
#include <math.h>
#include <string.h>

#include "optim/optimizer.h"

static bool check(const tarn_sgd_options *o)
{
    if (!tarn__check_lr("sgd", (double)o->lr) ||
        !tarn__check_rate("sgd", "momentum", (double)o->momentum, 0, (double)INFINITY) ||
        !tarn__check_rate("sgd", "weight_decay", (double)o->weight_decay, 0, (double)INFINITY) ||
        !tarn__check_rate("sgd", "dampening", (double)o->dampening, -(double)INFINITY, (double)INFINITY))
        return false;
    return !o->nesterov || (o->momentum > 0 && o->dampening == 0) ||
           tarn__raise(
               TARN_ERROR_ARGUMENT,
               "sgd: .nesterov with .momentum %g and .dampening %g; it needs a momentum above 0 and no dampening",
               (double)o->momentum, (double)o->dampening);
}

tarn_optimizer *tarn_sgd_sized(tarn_module *module, const tarn_sgd_options *options, size_t options_size)
{
    tarn_sgd_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (!check(&chosen))
        return NULL;
    tarn__method method = {.name = "sgd",
                           .kernel = TARN__K_sgd,
                           .states = chosen.momentum != 0,
                           .state_name = {"momentum"},
                           .decay_all = true};
    method.rates = (tarn__optimizer_step){.now.lr = (double)chosen.lr,
                                          .beta1 = (double)chosen.momentum,
                                          .decay = (double)chosen.weight_decay,
                                          .dampening = (double)chosen.dampening,
                                          .nesterov = chosen.nesterov};
    return tarn__optimizer_new(&method, module, chosen.groups, chosen.group_count, chosen.comm);
}
