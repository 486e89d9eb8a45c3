/* run_open.h: an opened run, for the files of train/ that use its model. */
#ifndef TARN__RUN_OPEN_H
#define TARN__RUN_OPEN_H

#include "train/tasks/task.h"

struct tarn_run {
    tarn_train_options options;
    tarn__data_spec data_spec;
    tarn_device device;
    const tarn__task *task;
    tarn_module *model;
    tarn_tokenizer *tokenizer; /* of a language model; else NULL */
    char folder[1024];         /* of a language model */
    bool is_given_template;    /* by the caller of tarn_run_open_with() */
    tarn__ranks ranks;         /* that share evaluations */
};

/* Raises, on all ranks, unless they evaluate the same number of samples in the same batches. */
bool tarn__run_compare(const char *function, const tarn_run *run, const tarn_dataset *dataset, int64_t batch_size);

/* The validation set of a run on a table, or all rows of another table. The caller frees it. NULL with an error. */
tarn_dataset *tarn__run_table_data(const char *function, const tarn_run *run, const char *data);

#endif
