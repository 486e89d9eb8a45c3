/* optimizer.h: what all optimizers share: parameters, gradients and state in flat buffers.
 *
 * The parameters of one dtype on one device form a flat group. Each of its buffers (parameters, gradients, master
 * weights, state) is one storage, in which every parameter has its segment at the same element offset, a multiple of
 * 256 bytes in all of them; parameters of the same rates are neighbours, those that decay come before those that do
 * not. What lies between segments is zero and stays zero, so that one kernel can run over any number of neighbours. The
 * parameter tensors themselves stand on parts of the flat storage, and so do their gradients: backward accumulates
 * there. 16-bit parameters have f32 master weights, which the kernel updates and from which they are rounded. */
#ifndef TARN__OPTIMIZER_H
#define TARN__OPTIMIZER_H

#include <tarn/optim.h>

#include "nn/module.h"

/* What is special in one optimizer. */
typedef struct tarn__method {
    const char *name; /* "adamw" */
    tarn__kernel kernel;
    int states;                /* state buffers, 0 to 2 */
    const char *state_name[2]; /* in files */
    bool counts_steps; /* the update depends on how many steps came before, not only on whether there were any */
    bool decay_all;    /* weight decay touches vectors too */
    bool decoupled;    /* weight decay shrinks the parameter instead of adding to the gradient */
    tarn__optimizer_step rates;
} tarn__method;

/* Flattens the module's parameters that are not frozen. Borrows all; the caller owns the optimizer. NULL with an error
 * raised. */
tarn_optimizer *tarn__optimizer_new(const tarn__method *method, const tarn_module *module,
                                    const tarn_parameter_group *groups, int group_count);

/* Raises unless the learning rate is a positive number. */
bool tarn__check_lr(const char *function, double lr);

/* Raises unless low <= value < high. `what` is the option's name. */
bool tarn__check_rate(const char *function, const char *what, double value, double low, double high);

#endif
