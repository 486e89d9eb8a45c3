/* options.h: the table of a run's options, for the rest of train/. */
#ifndef TARN__TRAIN_OPTIONS_H
#define TARN__TRAIN_OPTIONS_H

#include <tarn/train.h>

#include "formats/json_file.h"

/* Checks every field against the table: what a caller put into the struct is no better than what is typed. False with
 * an error. */
bool tarn__train_options_check(const char *function, const tarn_train_options *options);

/* Puts defaults where nothing was said. */
void tarn__train_options_complete(tarn_train_options *options);

/* Puts what the precision auto means here: bf16 for a language model where products of bf16 are fast, else f32. */
void tarn__precision_resolve(tarn_train_options *options, tarn_device device, bool is_text);

/* Takes the fields of `changes` that are set. One that may not be changed on resume is an error. */
bool tarn__train_options_change(const char *function, tarn_train_options *options, const tarn_train_options *changes);

/* All options into the object "train" of a document, and back. */
bool tarn__train_options_write(const tarn_train_options *options, tarn__json_file *document);
bool tarn__train_options_read(const char *function, tarn_train_options *options, const tarn__json_file *document,
                              const char *key);

#endif
