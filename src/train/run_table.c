/* run_table.c: a run that was trained on a table: predictions for the rows of a file, and evaluation of a regression.
 *
 * Rows are read, predicted and written in chunks, so that memory does not grow with the file. A broken row is an error
 * and nothing more is written: a prediction that is missing in the middle would be taken for that of another row. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tarn/table.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/number_format.h"
#include "data/table/table.h"
#include "train/data/table_source.h"
#include "train/run_open.h"
#include "train/tasks/regress.h"

/* rows per forward pass, and bytes of their text from which a pass is not made larger */
enum { CHUNK_ROWS = 256, CHUNK_BYTES = 1 << 22 };

const tarn_table_encoder *tarn_run_encoder(const tarn_run *run)
{
    if (tarn_failed())
        return NULL;
    if (!run)
        tarn__raise(TARN_ERROR_ARGUMENT, "run_encoder: the run is NULL");
    return run ? run->data_spec.table : NULL;
}

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

tarn_dataset *tarn__run_table_data(const char *function, const tarn_run *run, const char *data)
{
    tarn_dataset *training, *validation;
    if (data)
        return tarn__table_data_all(function, data, &run->options, &run->data_spec);
    if (!tarn__table_data_reopen(function, &run->options, &run->data_spec, &training, &validation)) {
        tarn_dataset_free(training);
        return NULL;
    }
    tarn_dataset_free(training);
    return validation;
}

bool tarn_run_evaluate_regression(tarn_run *run, const char *data, int64_t batch_size,
                                  tarn_regression_evaluation *evaluation)
{
    const char *function = "run_evaluate_regression";
    if (tarn_failed())
        return false;
    if (!run || !evaluation || batch_size < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           !run          ? "the run is NULL"
                           : !evaluation ? "the result is NULL"
                                         : "batch_size must be at least 1");
    if (!tarn__data_spec_is_regression(&run->data_spec))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the run is no regression; its task is '%s'", function,
                           run->task->name);
    tarn_dataset *dataset = tarn__run_table_data(function, run, data);
    tarn_loader_options options = tarn__data_spec_loader_options(&run->data_spec, batch_size, run->device);
    bool good = dataset && tarn__run_compare(function, run, dataset, batch_size) &&
                tarn__regression_evaluate(function, &run->ranks, run->model, dataset, run->data_spec.table->std,
                                          &options, evaluation);
    tarn_dataset_free(dataset);
    return good;
}

/* ---- prediction -------------------------------------------------------------------------------------------------- */

/* State of a prediction. */
typedef struct predictor {
    tarn_run *run;
    tarn__rows *rows;
    tarn__row_encoder encoder;
    float *x;           /* [CHUNK_ROWS, features] */
    double *y;          /* [CHUNK_ROWS, classes]: probabilities, or normalized numbers */
    tarn__buffer input; /* text of the chunk's rows, all fields of a row, each terminated */
    tarn__buffer line;  /* a row of output */
    int count;          /* rows of the chunk */
    tarn_write_fn write;
    void *ctx;
} predictor;

/* A field, quoted where it must be. */
static bool add_field(predictor *p, const char *text, bool is_first)
{
    tarn__buffer *to = &p->line;
    const char special[] = {p->rows->delimiter, '"', '\n', '\r', 0};
    bool needs_quotes = text[strcspn(text, special)] != 0, good = is_first || tarn__buffer_add(to, special, 1, 1);
    if (!needs_quotes)
        return good && tarn__buffer_add(to, text, strlen(text), 1);
    good = good && tarn__buffer_add(to, "\"", 1, 1);
    for (; good && *text; text++)
        good = tarn__buffer_add(to, *text == '"' ? "\"\"" : text, *text == '"' ? 2 : 1, 1);
    return good && tarn__buffer_add(to, "\"", 1, 1);
}

/* A number with the decimal point of the file. */
static bool add_number(predictor *p, double value, int digits)
{
    char text[64], *point;
    if (digits)
        snprintf(text, sizeof(text), "%.*f", digits, value);
    else
        snprintf(text, sizeof(text), "%.9g", value);
    point = text + strcspn(text, ".,");
    if (*point)
        *point = p->rows->point;
    return add_field(p, text, false);
}

static bool end_line(predictor *p)
{
    bool good = tarn__buffer_add(&p->line, "\n", 1, 1) && p->write(p->line.data, p->line.count, p->ctx);
    p->line.count = 0;
    return good || tarn_failed() ? good : tarn__raise(TARN_ERROR_IO, "run_predict_table: the output cannot be written");
}

/* A name for a column of the output that the file does not have: "prediction", "prediction_2", … */
static bool add_name(predictor *p, const char *name)
{
    char text[64];
    snprintf(text, sizeof(text), "%s", name);
    for (int i = 2; tarn__rows_find(p->rows, text) >= 0; i++)
        snprintf(text, sizeof(text), "%s_%d", name, i);
    return add_field(p, text, false);
}

/* A file without a header gives one without: its columns have no names. */
static bool write_header(predictor *p)
{
    bool good = true;
    if (!p->rows->has_header)
        return true;
    for (int i = 0; good && i < p->rows->columns; i++)
        good = add_field(p, p->rows->column[i].name, i == 0);
    return good && add_name(p, "prediction") &&
           (p->run->data_spec.table->is_regression || add_name(p, "probability")) && end_line(p);
}

/* The model's outputs for the chunk. */
static bool compute(predictor *p)
{
    const tarn__data_spec *d = &p->run->data_spec;
    tarn_scope *scope = tarn_scope_open();
    tarn_no_grad_open();
    tarn_tensor *x = tarn_from_f32(p->x, TARN_SHAPE(p->count, d->table->features), p->run->device),
                *y = tarn_forward(p->run->model, tarn__batch_input(p->run->model, x));
    bool good = tarn_read_f64(d->table->is_regression ? y : tarn_softmax(y, 1), p->y, p->count * d->classes);
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return good;
}

static bool write_prediction(predictor *p, const double *y)
{
    const tarn_table_encoder *e = p->run->data_spec.table;
    int best = 0;
    if (e->is_regression)
        return add_number(p, y[0] * e->std + e->mean, 0);
    for (int i = 1; i < e->classes.count; i++)
        best = y[i] > y[best] ? i : best;
    return add_field(p, e->classes.word[best], false) && add_number(p, y[best], 6);
}

static bool write_chunk(predictor *p)
{
    if (!p->count)
        return true;
    bool good = compute(p);
    const char *text = p->input.data;
    for (int row = 0; good && row < p->count; row++) {
        for (int i = 0; good && i < p->rows->columns; i++, text += strlen(text) + 1)
            good = add_field(p, text, i == 0);
        good = good && write_prediction(p, p->y + row * p->run->data_spec.classes) && end_line(p);
    }
    p->count = 0;
    p->input.count = 0;
    return good;
}

static bool predict_rows(predictor *p, int64_t *count)
{
    tarn__rows *r = p->rows;
    if (!write_header(p) || !tarn__rows_begin(r))
        return false;
    while (tarn__rows_next(r)) {
        if (!tarn__row_encode(&p->encoder, r, p->x + p->count * p->run->data_spec.table->features) ||
            !tarn__buffer_add(&p->input, r->text.data, r->text.count, 1))
            return false;
        ++*count;
        if ((++p->count == CHUNK_ROWS || p->input.count > CHUNK_BYTES) && !write_chunk(p))
            return false;
    }
    return !tarn_failed() && write_chunk(p);
}

static bool predict(predictor *p, const char *path, int64_t *count)
{
    const tarn__data_spec *d = &p->run->data_spec;
    size_t x_bytes = sizeof(float) * CHUNK_ROWS * (size_t)d->table->features,
           y_bytes = sizeof(double) * CHUNK_ROWS * (size_t)d->classes;
    p->x = tarn__alloc(x_bytes);
    p->y = tarn__alloc(y_bytes);
    bool good = p->x && p->y &&
                tarn__rows_open(p->rows, "run_predict_table", path, &(tarn_table_options){.like = d->table}, true) &&
                tarn__row_encoder_init(&p->encoder, p->rows, d->table) && predict_rows(p, count);
    tarn__row_encoder_free(&p->encoder);
    tarn__rows_close(p->rows);
    tarn__buffer_free(&p->input, 1);
    tarn__buffer_free(&p->line, 1);
    tarn__release(p->x, x_bytes);
    tarn__release(p->y, y_bytes);
    return good;
}

bool tarn_run_predict_table(tarn_run *run, const char *path, tarn_write_fn write, void *ctx, int64_t *rows)
{
    const char *function = "run_predict_table";
    int64_t count = 0;
    if (tarn_failed())
        return false;
    if (!run || !path || !write)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s is NULL", function,
                           !run    ? "run"
                           : !path ? "path"
                                   : "write function");
    if (!run->data_spec.table)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the run was not trained on a table; its data is '%.200s'",
                           function, run->options.data);
    predictor p = {.run = run, .rows = tarn__alloc(sizeof(tarn__rows)), .write = write, .ctx = ctx};
    bool good = p.rows && predict(&p, path, &count);
    tarn__release(p.rows, sizeof(*p.rows));
    if (rows)
        *rows = count;
    return good;
}
