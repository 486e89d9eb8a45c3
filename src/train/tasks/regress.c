/* regress.c: the task of predicting a number, the target of a table: data, model, step, and evaluation with RMSE, MAE
 * and R².
 *
 * Targets are normalized by the encoder, so the loss is the mean squared error in units of the target's variance in
 * training: 1 for a model that always gives the mean. Metrics are in the target's own units. In an evaluation, sums
 * stay on the device, in f64, and are read once at the end.
 *
 * Much is the classifier's: both read samples with one label through the same loader, and differ in the output and
 * the loss. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "nn/module.h"
#include "train/batch_sums.h"
#include "train/data/table_source.h"
#include "train/tasks/regress.h"
#include "train/tasks/task.h"

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

/* Sums over the samples so far, in normalized units. */
enum { SQUARED_ERROR, ABSOLUTE_ERROR, TARGET, SQUARED_TARGET, SUMS };

/* The output of the model, [B, 1], as f64 [B]. */
static tarn_tensor *predict(tarn_module *model, tarn_tensor *input)
{
    tarn_tensor *y = tarn_forward(model, tarn__batch_input(model, input));
    return y ? tarn_reshape(y, TARN_SHAPE(tarn_shape_of(y).size[0])) : NULL;
}

static bool add_batch(tarn_module *model, tarn_tensor *const *fields, tarn__batch_sums *sums)
{
    tarn_tensor *y = tarn_cast(fields[1], TARN_F64),
                *error = tarn_sub(tarn_cast(predict(model, fields[0]), TARN_F64), y);
    tarn_tensor *values[SUMS] = {
        [SQUARED_ERROR] = tarn_sum(tarn_mul(error, error), TARN_ALL_AXES, false),
        [ABSOLUTE_ERROR] = tarn_sum(tarn_abs(error), TARN_ALL_AXES, false),
        [TARGET] = tarn_sum(y, TARN_ALL_AXES, false),
        [SQUARED_TARGET] = tarn_sum(tarn_mul(y, y), TARN_ALL_AXES, false),
    };
    return tarn__batch_sums_add(sums, values);
}

static bool add_batches(tarn_module *model, tarn_loader *loader, tarn__batch_sums *sums)
{
    bool good = true;
    while (good) {
        tarn_tensor *fields[TARN_MAX_FIELDS] = {0};
        tarn_scope *scope = tarn_scope_open();
        good = scope && tarn_loader_next(loader, fields) && add_batch(model, fields, sums);
        tarn_scope_close(scope);
    }
    return !tarn_failed();
}

/* R² is NaN where all targets are equal: there is nothing to explain. The spread is a difference of sums, so it
 * counts as zero up to rounding. */
static tarn_regression_evaluation evaluation_of(const double *sum, int64_t samples, double std)
{
    double n = (double)samples, loss = sum[SQUARED_ERROR] / n,
           spread = sum[SQUARED_TARGET] - sum[TARGET] * sum[TARGET] / n;
    return (tarn_regression_evaluation){.samples = samples,
                                        .loss = loss,
                                        .rmse = sqrt(loss) * std,
                                        .mae = sum[ABSOLUTE_ERROR] / n * std,
                                        .r2 = spread > 1e-12 * n ? 1 - sum[SQUARED_ERROR] / spread : (double)NAN};
}

bool tarn__regression_evaluate(const char *function, const tarn__ranks *ranks, tarn_module *model,
                               tarn_dataset *dataset, double std, const tarn_loader_options *options,
                               tarn_regression_evaluation *result)
{
    bool was_training = tarn_module_is_training(model);
    tarn_loader *loader = tarn_loader_new(dataset, options);
    tarn_scope *scope = tarn_scope_open();
    tarn__batch_sums sums;
    double sum[SUMS] = {0};
    tarn_module_train(model, false);
    tarn_no_grad_open();
    if (loader && tarn__batch_sums_open(&sums, ranks, loader, SUMS, options->device) &&
        add_batches(model, loader, &sums))
        tarn__batch_sums_read(&sums, sum);
    tarn_no_grad_close();
    tarn_scope_close(scope);
    tarn_loader_free(loader);
    tarn__error_record error; /* the mode is restored after a failure too, without losing the error */
    tarn__error_save(&error);
    tarn_module_train(model, was_training);
    tarn__error_restore(&error);
    *result = evaluation_of(sum, tarn_dataset_count(dataset), std);
    return !tarn_failed() || tarn__raise_within(function);
}

/* ---- data and model ---------------------------------------------------------------------------------------------- */

/* A new run arrives here by classify.c, which opens tables: the target tells the task. */
static bool open_new(const char *function, tarn_trainer *t)
{
    return tarn__task_classify.open(function, t);
}

static bool create_batch(const tarn_trainer *t, int64_t count, tarn_tensor **fields)
{
    fields[0] = tarn_zeros(TARN_SHAPE(count, t->data_spec.input.size[0]), TARN_F32, t->device);
    fields[1] = tarn_zeros(TARN_SHAPE(count), TARN_F32, t->device);
    return !tarn_failed();
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* The loss is computed in f32, whatever the precision of the model. */
static bool gradients(const tarn__step_ctx *s, tarn_tensor *const *fields, tarn__step_metrics *metrics)
{
    *metrics = (tarn__step_metrics){0};
    tarn__step_phase(s, TARN__PHASE_FORWARD);
    metrics->loss = tarn_mse_loss(tarn_cast(predict(s->model, fields[0]), TARN_F32), fields[1]);
    if (s->all_micro_batches > 1)
        metrics->loss = tarn_mul(metrics->loss, tarn_scalar(1 / (double)s->all_micro_batches));
    tarn__step_phase(s, TARN__PHASE_BACKWARD);
    return tarn_backward(metrics->loss);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static bool evaluate_run(tarn_trainer *t, tarn__evaluation *result)
{
    tarn_regression_evaluation r;
    tarn_table_encoder_info info;
    tarn_loader_options options = tarn__data_spec_loader_options(&t->data_spec, tarn__evaluation_batch(t), t->device);
    options.workers = (int)t->options.workers;
    if (!tarn_table_encoder_query(t->data_spec.table, &info) ||
        !tarn__regression_evaluate("trainer_run", &t->ranks, t->model, t->validation, info.std, &options, &r))
        return false;
    *result = (tarn__evaluation){.samples = r.samples, .loss = r.loss, .rmse = r.rmse, .mae = r.mae, .r2 = r.r2};
    return true;
}

static void describe(const tarn_trainer *t, tarn_train_plan *plan)
{
    (void)t, (void)plan;
}

/* ---- the row ----------------------------------------------------------------------------------------------------- */

static const tarn__metric training_lines[] = {
    TARN__METRIC_LOSS, TARN__METRIC_LR, TARN__METRIC_SPEED(images_per_second), {.key = NULL}};

#define METRIC(field_name, text, digits_shown, is_higher_better) \
    { \
        .key = "val_" #field_name, .tag = #field_name "/validation", \
        .offset = offsetof(tarn_train_report, field_name), .digits = 9, .shown = { \
            .name = #field_name, \
            .label = text, \
            .decimals = digits_shown, \
            .json_decimals = 6, \
            .rank = 1, \
            .higher_is_better = is_higher_better \
        } \
    }

static const tarn__metric evaluation_lines[] = {TARN__METRIC_VAL_LOSS,
                                                METRIC(rmse, "RMSE", -5, false),
                                                METRIC(mae, "MAE", -5, false),
                                                METRIC(r2, "R2", 4, true),
                                                {.key = NULL}};

static bool reopen(const char *function, tarn_trainer *t, const char *folder)
{
    return tarn__task_classify.reopen(function, t, folder);
}

static bool resize(const char *function, tarn_trainer *t)
{
    return tarn__task_classify.resize(function, t);
}

static tarn_module *create_model(const char *function, const tarn_trainer *t)
{
    return tarn__classifier_create(function, &t->options, &t->data_spec, t->device);
}

static tarn_loader *create_loader(const tarn_trainer *t)
{
    return tarn__task_classify.create_loader(t);
}

static bool save_best(const tarn_trainer *t)
{
    return tarn__task_classify.save_best(t);
}

static bool write_model(const char *function, const tarn_trainer *t, tarn__json_file *document)
{
    return tarn__task_classify.write_model(function, t, document);
}

static const char *unit(const tarn_trainer *t)
{
    (void)t;
    return "rows";
}

static void set_speed(const tarn_trainer *t, double samples_per_second, tarn_train_report *report)
{
    (void)t;
    report->images_per_second = samples_per_second;
}

const tarn__task tarn__task_regress = {.name = "regress",
                                       .bit = TARN__TASK_REGRESS,
                                       .sample_name = "sample",
                                       .random_data = "",
                                       .training_lines = training_lines,
                                       .evaluation_lines = evaluation_lines,
                                       .open = open_new,
                                       .reopen = reopen,
                                       .resize = resize,
                                       .create_model = create_model,
                                       .create_loader = create_loader,
                                       .next_batch = tarn__loader_batch,
                                       .create_batch = create_batch,
                                       .gradients = gradients,
                                       .evaluate = evaluate_run,
                                       .save_best = save_best,
                                       .write_model = write_model,
                                       .describe = describe,
                                       .unit = unit,
                                       .set_speed = set_speed};
