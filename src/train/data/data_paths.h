/* data_paths.h: relative paths of a run, resolved from another working directory. Paths in config.json stay as typed;
 * only the options in memory are changed. */
#ifndef TARN__DATA_PATHS_H
#define TARN__DATA_PATHS_H

#include <tarn/train.h>

#include "formats/json_file.h"

/* Writes the working directory to config.json: relative paths start there. */
bool tarn__data_paths_write(tarn__json_file *document);

/* Replaces relative paths in the options that do not exist from here, but do from the directory in config.json. False
 * with an error. */
bool tarn__data_paths_read(const tarn__json_file *document, tarn_train_options *options);

/* After a failure to open a resumed run's data: an I/O error becomes one that names the option for a new path; others
 * are unchanged. Returns false. */
bool tarn__data_paths_hint(const char *function, const char *data);

#endif
