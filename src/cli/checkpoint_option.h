/* checkpoint_option.h: --checkpoint: which weights of a run a command uses. */
#ifndef TARN__CHECKPOINT_OPTION_H
#define TARN__CHECKPOINT_OPTION_H

#include "cli/cli.h"

/* Finds the weights of the first argument, a run folder or another model. TARN__DONE, or an exit status with a message
 * on standard error: --checkpoint is an error for a model that is not a run. */
int tarn__checkpoint_find(const char *command, const tarn__options *options, tarn_run_weights *weights);

/* Same, and prints which weights of a run are used to standard error, unless --json or --quiet is given. */
int tarn__checkpoint_use(const char *command, const tarn__options *options, tarn_run_weights *weights);

/* Writes the members "checkpoint" and "checkpoint_step"; nothing for a model that is not a run. */
void tarn__checkpoint_json(tarn__json *json, const tarn__options *options);

#endif
