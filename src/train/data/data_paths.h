/* data_paths.h: the files that a run reads, found again from another folder. */
#ifndef TARN__TRAIN_PLACES_H
#define TARN__TRAIN_PLACES_H

#include <tarn/train.h>

#include "formats/json_file.h"

/* Notes in config.json where relative paths begin: the folder that the program runs in. */
bool tarn__data_paths_write(tarn__json_file *document);

/* Relative paths in the options that lead nowhere from here, but did from the folder that config.json notes, begin
 * there from now on. */
bool tarn__data_paths_read(const tarn__json_file *document, tarn_train_options *options);

/* Says of data that a resumed run does not find how to name its new place; other errors stay as they are. Is false. */
bool tarn__data_paths_hint(const char *function, const char *data);

#endif
