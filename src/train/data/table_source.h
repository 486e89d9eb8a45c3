/* table_source.h: tables (FILE.csv, FILE.tsv, csv:FILE) as the data of a run, and their encoder in config.json.
 *
 * A run of an earlier version on "csv:FILE" has no encoder in its config.json; data_source.c opens its data. */
#ifndef TARN__TABLE_SOURCE_H
#define TARN__TABLE_SOURCE_H

#include "train/data/data_source.h"

/* True for the name of a table: "csv:FILE", or a name that ends in .csv or .tsv, also with .gz, and has no other
 * prefix. */
bool tarn__data_is_table(const char *name);

/* Raises an error for options of tables if the data is none. */
bool tarn__table_options_check(const char *function, const tarn_train_options *options);

/* Opens the table of a new run, fits its encoder, and creates both splits and the data spec, which owns the encoder.
 * Sentences about what was found go to `notes`, one per line. The caller frees everything, after a failure too. */
bool tarn__table_data_open(const char *function, const tarn_train_options *options, tarn__data_spec *spec,
                           tarn_dataset **training, tarn_dataset **validation, char *notes, size_t size);

/* The splits of a run's table, by the encoder of its data spec. */
bool tarn__table_data_reopen(const char *function, const tarn_train_options *options, const tarn__data_spec *spec,
                             tarn_dataset **training, tarn_dataset **validation);

/* All rows of a table that have a target, by the encoder of a run. NULL with an error. */
tarn_dataset *tarn__table_data_all(const char *function, const char *data, const tarn_train_options *options,
                                   const tarn__data_spec *spec);

/* Options for opening a table, with the columns of an encoder. */
tarn_table_options tarn__table_options_of(const tarn_train_options *options, const tarn_table_encoder *like);

/* The path in the name of a table. */
const char *tarn__table_path(const char *name);

/* Writes an encoder to the object "data.table" of config.json, and reads it. The caller owns the result. */
bool tarn__encoder_write(const tarn_table_encoder *encoder, tarn__json_file *document);
tarn_table_encoder *tarn__encoder_read(const tarn__json_file *document);

#endif
