/* regress.h: evaluation of a regression, for runs in training and runs that were opened. */
#ifndef TARN__REGRESS_H
#define TARN__REGRESS_H

#include <tarn/table.h>

#include "train/ranks.h"

/* Evaluates a model on a dataset of normalized targets; `std` is that of the targets in training. Ranks share the
 * batches; `ranks` may be NULL. False with an error. */
bool tarn__regression_evaluate(const char *function, const tarn__ranks *ranks, tarn_module *model,
                               tarn_dataset *dataset, double std, const tarn_loader_options *options,
                               tarn_regression_evaluation *result);

#endif
