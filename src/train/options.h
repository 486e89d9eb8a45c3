/* options.h: the table of a run's options, for the rest of train/. Options are plain values; all functions borrow
 * them. */
#ifndef TARN__TRAIN_OPTIONS_H
#define TARN__TRAIN_OPTIONS_H

#include <tarn/train.h>

#include "formats/json_file.h"

/* Checks every field against the table: fields set in C are checked like typed options. False with an error. */
bool tarn__train_options_check(const char *function, const tarn_train_options *options);

/* Sets the defaults of fields that are not given. Cannot fail: the table's defaults are valid. */
void tarn__train_options_complete(tarn_train_options *options);

/* Resolves the precision auto: bf16 for a language model on a device with fast bf16 matmuls, else f32. */
void tarn__precision_resolve(tarn_train_options *options, tarn_device device, bool is_text);

/* Copies the fields of `changes` that are set. One that is not resumable is an error. */
bool tarn__train_options_change(const char *function, tarn_train_options *options, const tarn_train_options *changes);

/* Writes all options to the object "train" of a JSON file, and reads the object `key`. False with an error. */
bool tarn__train_options_write(const tarn_train_options *options, tarn__json_file *document);
bool tarn__train_options_read(const char *function, tarn_train_options *options, const tarn__json_file *document,
                              const char *key);

#endif
