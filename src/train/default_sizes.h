/* default_sizes.h: sizes of a new language model for a run that gives none. */
#ifndef TARN__TRAIN_SIZES_H
#define TARN__TRAIN_SIZES_H

#include "train/trainer.h"

/* True when sizes are to be chosen: the model is an architecture without a size of its own, and not all of layers,
 * heads, width and context are given. */
bool tarn__default_sizes_needed(const tarn_train_options *options);

/* Chooses what was not given: heads alone, or with other sizes also batch size and length, which `chosen` says then.
 * Borrows the trainer, which has its device, its model's name, its vocabulary and, but for chats, its text. False with
 * an error. */
bool tarn__default_sizes_choose(const char *function, tarn_trainer *trainer);

#endif
