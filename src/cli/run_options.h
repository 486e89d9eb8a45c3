/* run_options.h: the options of a training run as flags: --batch-size for "batch_size". Their table is the library's,
 * which makes config files and the saved record of it too. */
#ifndef TARN__RUN_OPTIONS_H
#define TARN__RUN_OPTIONS_H

#include "cli/options.h"

/* Room for all their names. */
#define TARN__MAX_TRAIN_OPTIONS 64

/* The option that a flag names; false when the command has none of that name: `train` has all of them, `bench train`
 * those of a step. */
bool tarn__train_option_find(tarn__command command, const char *flag, size_t length, tarn_option *option);

/* All names as flags, without the dashes; returns how many. They live as long as the program. */
int tarn__train_option_names(tarn__command command, const char **names);

/* Set one from a flag's value, and many from a file. TARN__DONE, or TARN__MISUSED with a sentence on standard error. */
int tarn__train_option_set(const char *command_name, const tarn_option *option, const char *text,
                           tarn__options *options);
int tarn__train_options_file(const char *path, tarn__options *options);

/* Prints them with bounds and defaults. */
void tarn__train_options_help(tarn__command command);

#endif
