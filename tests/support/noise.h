/* noise.h: random models that prefer some tokens: with their initial weights all are alike. */
#ifndef TESTS_NOISE_H
#define TESTS_NOISE_H

#include "tarn/tarn.h"

/* Adds noise to every parameter, on its device, from the seed 4. Returns the model; errors stay pending, since servers
 * create models on threads of their own. */
tarn_module *add_noise(tarn_module *model);

#endif
