/* table.h: using runs that were trained on tables: errors of a regression, and predictions for the rows of a file.
 *
 * Tables themselves and their encoders are in <tarn/data.h>, training in <tarn/train.h>. */
#ifndef TARN_TABLE_H
#define TARN_TABLE_H

#include <tarn/train.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Evaluation of a regression. */
typedef struct tarn_regression_evaluation {
    int64_t samples;
    double loss, rmse, mae; /* mean squared error of the normalized target; errors in units of the target */
    double r2;              /* coefficient of determination; NaN: the target is constant */
} tarn_regression_evaluation;

/* Evaluates a regression on a table; NULL: the run's validation set. */
TARN_API bool tarn_run_evaluate_regression(tarn_run *run, const char *data, int64_t batch_size,
                                           tarn_regression_evaluation *evaluation);

/* The encoder of a run that was trained on a table, borrowed from the run; NULL, without an error, for others. */
TARN_API const tarn_table_encoder *tarn_run_encoder(const tarn_run *run);

/* Writes bytes of an output; false on failure. */
typedef bool (*tarn_write_fn)(const void *bytes, size_t count, void *ctx);

/* Predicts the rows of a CSV or TSV file and writes them in its dialect: its columns, then "prediction" and, of a
 * classifier, "probability". Columns are found by name; missing ones are an error that names them all, others are
 * copied. A broken row is an error. Memory does not grow with the file. `rows` (may be NULL): rows written. */
TARN_API bool tarn_run_predict_table(tarn_run *run, const char *path, tarn_write_fn write, void *ctx, int64_t *rows);

#ifdef __cplusplus
}
#endif
#endif
