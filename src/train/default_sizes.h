/* default_sizes.h: default sizes of a new language model, for a run that gives none. Given sizes are never changed, and
 * the choice depends on the options, the type of device and the amount of text only. */
#ifndef TARN__DEFAULT_SIZES_H
#define TARN__DEFAULT_SIZES_H

#include "train/trainer.h"

/* True when sizes must be chosen: the model is an architecture without sizes of its own, and not all of layers, heads,
 * hidden size and context are given. */
bool tarn__default_sizes_needed(const tarn_train_options *options);

/* Chooses the sizes that were not given: heads alone, or several, then also batch size and length; `chosen` describes
 * the latter. `known_tokens`: of the training data; -1: not counted yet. The trainer must have its device, model name
 * and vocabulary. False with an error. */
bool tarn__default_sizes_choose(const char *function, tarn_trainer *trainer, int64_t known_tokens);

#endif
