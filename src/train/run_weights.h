/* run_weights.h: finds the best or last weights of a run. The folder is only read; a run may be training in it. */
#ifndef TARN__RUN_WEIGHTS_H
#define TARN__RUN_WEIGHTS_H

#include "train/trainer.h"

/* tarn_run_weights_find() under another function's name. */
bool tarn__run_weights_find(const char *function, const char *folder, tarn_run_checkpoint checkpoint,
                            tarn_run_weights *weights);

#endif
