/* checkpoint.h: --checkpoint: which weights of a run a command uses. */
#ifndef TARN__CLI_CHECKPOINT_H
#define TARN__CLI_CHECKPOINT_H

#include "cli/cli.h"

/* Finds the weights of the first word, a run's folder or another model. TARN__DONE, or a status with a sentence on
 * standard error: a model that is no run has no --checkpoint. */
int tarn__checkpoint_find(const char *command, const tarn__options *options, tarn_run_weights *weights);

/* The same, and prints which weights of a run they are: on standard error, but for --json and --quiet. */
int tarn__checkpoint_use(const char *command, const tarn__options *options, tarn_run_weights *weights);

/* Adds "checkpoint" and "checkpoint_step"; nothing for a model that is no run. */
void tarn__checkpoint_json(tarn__json *json, const tarn__options *options);

#endif
