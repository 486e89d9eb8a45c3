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

/* Training tasks (tasks/task.h) as bits: the table has the set of tasks that an option applies to. */
typedef unsigned tarn__task_set;
enum {
    TARN__TASK_CLASSIFY = 1,
    TARN__TASK_LM = 2,
    TARN__TASK_CHAT = 4,
    TARN__TASK_REGRESS = 8,
    TARN__TASKS_SAMPLES = TARN__TASK_CLASSIFY | TARN__TASK_REGRESS,
    TARN__TASKS_LANGUAGE = TARN__TASK_LM | TARN__TASK_CHAT,
    TARN__TASKS_ALL = TARN__TASKS_SAMPLES | TARN__TASKS_LANGUAGE
};

/* Raises an error for a given option that does not apply to the task. */
bool tarn__train_options_apply(const char *function, const tarn_train_options *options, tarn__task_set task);

/* Name of the first given option that applies to whole runs alone, not to steps that are measured; NULL: none. */
const char *tarn__train_options_of_run(const tarn_train_options *options);

/* True when the option of that name applies to the task. */
bool tarn__train_option_applies(const char *name, tarn__task_set task);

/* Copies the fields of `changes` that are set. One that is not resumable is an error. */
bool tarn__train_options_change(const char *function, tarn_train_options *options, const tarn_train_options *changes);

/* Writes all options to the object "train" of a JSON file, and reads the object `key`. False with an error. */
bool tarn__train_options_write(const tarn_train_options *options, tarn__json_file *document);
bool tarn__train_options_read(const char *function, tarn_train_options *options, const tarn__json_file *document,
                              const char *key);

/* ---- default sizes (default_sizes.c) ----------------------------------------------------------------------------- */

/* Default sizes of a new language model, for a run that gives none. Given sizes are never changed, and the choice
 * depends on the options, the type of device and the amount of text only. */

/* True when sizes must be chosen: the model is an architecture without sizes of its own, and not all of layers, heads,
 * hidden size and context are given. */
bool tarn__default_sizes_needed(const tarn_train_options *options);

/* Chooses the sizes that were not given: heads alone, or several, then also batch size and length; `chosen` describes
 * the latter. `known_tokens`: of the training data; -1: not counted yet. The trainer must have its device, model name
 * and vocabulary. False with an error. */
bool tarn__default_sizes_choose(const char *function, tarn_trainer *trainer, int64_t known_tokens);

/* A hash of the options that the ranks of a run must share: all but paths and those of a machine. */
uint64_t tarn__train_options_hash(const tarn_train_options *options);

#endif
