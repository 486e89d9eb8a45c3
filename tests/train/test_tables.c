/* test_tables.c: runs on tables: classification and regression, resumed, evaluated, and predicting the rows of a file.
 */
#include <math.h>
#include <stdlib.h>

#include "support/files.h"

#define CPU tarn_device_cpu()

enum { ROWS = 300 };

/* price = 2 · area + 30 (south) + noise, with missing values, words, and decimal commas. */
static const char *houses(void)
{
    static char text[1 << 15];
    uint64_t random = 7;
    size_t used = (size_t)sprintf(text, "id;area;side;price\n");
    for (int i = 0; i < ROWS; i++) {
        int area = (int)random_below(&random, 100), south = (int)random_below(&random, 2),
            noise = (int)random_below(&random, 9);
        char shown[16] = "NA";
        if (i % 25)
            sprintf(shown, "%d", area);
        used += (size_t)sprintf(text + used, "%d;%s;%s;%d,%d\n", i, shown, south ? "south" : "north",
                                2 * area + 30 * south, noise);
    }
    return write_text("houses.csv", text);
}

static tarn_train_options options_of(const char *out)
{
    tarn_train_options options = {.epochs = 20,
                                  .lr = 0.01,
                                  .batch_size = 30,
                                  .device = "cpu",
                                  .drop = "id",
                                  .schedule = "constant",
                                  .mlp_sizes = {16},
                                  .mlp_size_count = 1};
    snprintf(options.data, sizeof(options.data), "%s", houses());
    snprintf(options.out, sizeof(options.out), "%s", scratch(out));
    return options;
}

static void train(const tarn_train_options *options, const char *resumed, tarn_train_result *result)
{
    tarn_trainer *trainer = resumed ? tarn_trainer_resume(resumed, options) : tarn_trainer_new(options);
    if (!trainer || !tarn_trainer_run(trainer, NULL, NULL, result))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
}

/* ---- output of a prediction -------------------------------------------------------------------------------------- */

typedef struct output {
    char text[1 << 16];
    size_t count;
} output;

static bool keep(const void *from, size_t count, void *ctx)
{
    output *o = ctx;
    assert_true(o->count + count < sizeof(o->text));
    memcpy(o->text + o->count, from, count);
    o->text[o->count += count] = 0;
    return true;
}

static bool predict(tarn_run *run, const char *path, output *out, int64_t *rows)
{
    out->count = 0;
    return tarn_run_predict_table(run, path, keep, out, rows);
}

static void expect_start(const output *o, const char *text)
{
    if (strncmp(o->text, text, strlen(text)) != 0)
        fail_msg("expected '%s' at the front of '%.200s'", text, o->text);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void a_regression_is_trained_and_resumed_bitwise(void **state)
{
    (void)state;
    tarn_train_options options = options_of("whole");
    tarn_train_result result;
    tarn_trainer *planned = tarn_trainer_dry_run(NULL, &options);
    tarn_train_plan plan;
    assert_true(tarn_trainer_plan(planned, &plan));
    assert_string_equal(plan.task, "regress");
    assert_int_equal(plan.classes, 0);
    assert_non_null(strstr(plan.notes, "semicolons between fields, decimal commas, with a header"));
    assert_non_null(strstr(plan.notes, "target 'price' (the last column"));
    assert_non_null(strstr(plan.notes, "regression: "));
    tarn_trainer_free(planned);
    train(&options, NULL, &result);
    assert_int_equal(result.best_count, 4);
    assert_string_equal(result.best[3].name, "r2");
    assert_true(result.best[3].value > 0.8); /* one row in 25 has no area */

    tarn_train_options half = options_of("half");
    half.epochs = 9;
    train(&half, NULL, NULL);
    train(&(tarn_train_options){.epochs = 20}, half.out, NULL);
    assert_same_file(options.out, half.out, "model.safetensors");
    assert_same_file(options.out, half.out, "best.safetensors");
}

/* RMSE, MAE and R² from the predictions that were written. */
static void metrics_agree_with_the_predictions(void **state)
{
    (void)state;
    static output out;
    int64_t rows;
    tarn_run *run = tarn_run_open(scratch("whole"), CPU);
    assert_ok();
    assert_string_equal(tarn_run_task(run), "regress");
    assert_int_equal(tarn_run_classes(run), -1);
    assert_error(TARN_ERROR_ARGUMENT, "is a regression, not a classifier");
    tarn_regression_evaluation e;
    assert_true(tarn_run_evaluate_regression(run, houses(), 7, &e));
    assert_int_equal(e.samples, ROWS);
    assert_true(predict(run, houses(), &out, &rows));
    assert_int_equal(rows, ROWS);
    expect_start(&out, "id;area;side;price;prediction\n");
    double squares = 0, absolute = 0, sum = 0, sum_squares = 0;
    char *line = strchr(out.text, '\n') + 1;
    for (int i = 0; i < ROWS; i++, line = strchr(line, '\n') + 1) {
        char *price = line, *prediction;
        for (int k = 0; k < 3; k++)
            price = strchr(price, ';') + 1;
        prediction = strchr(price, ';') + 1;
        for (char *c = price; *c != '\n'; c++)
            *c = *c == ',' ? '.' : *c;
        double y = atof(price), error = atof(prediction) - y;
        squares += error * error, absolute += fabs(error), sum += y, sum_squares += y * y;
    }
    assert_float_equal(e.rmse, sqrt(squares / ROWS), 1e-4 * e.rmse);
    assert_float_equal(e.mae, absolute / ROWS, 1e-4 * e.mae);
    assert_float_equal(e.r2, 1 - squares / (sum_squares - sum * sum / ROWS), 1e-5);
    tarn_run_close(run);
}

static void columns_of_other_files_are_found_by_name(void **state)
{
    (void)state;
    static output out, other;
    int64_t rows;
    tarn_run *run = tarn_run_open(scratch("whole"), CPU);
    assert_true(predict(run, write_text("a.csv", "id;area;side\n1;20;south\n2;?;west\n"), &out, &rows));
    assert_int_equal(rows, 2);
    assert_true(predict(run, write_text("b.csv", "side,\"a,b\",area\nsouth,\"x\n\"\"y\"\"\",20\n"), &other, &rows));
    expect_start(&other, "side,\"a,b\",area,prediction\nsouth,\"x\n\"\"y\"\"\",20,");
    assert_float_equal(atof(strrchr(other.text, ',') + 1), atof(strstr(out.text, "south;") + 6), 1e-6);
    assert_true(predict(run, write_text("b.csv", "prediction,area,side\n1,20,south\n"), &other, &rows));
    expect_start(&other, "prediction,area,side,prediction_2\n");
    static const char *const bad[][2] = {{"side\nsouth\n", "missing columns: 'area'"},
                                         {"x,y\n1,2\n", "missing columns: 'area', 'side'"},
                                         {"area,side\nbig,south\n", "line 2, column 1 ('area'): 'big' is not a number"},
                                         {"area,side\n1,south\n2\n", "line 3: 1 fields; the first line has 2"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_false(predict(run, write_text("bad.csv", bad[i][0]), &out, &rows));
        assert_error(TARN_ERROR_FORMAT, bad[i][1]);
    }
    tarn_run_close(run);
}

static void a_target_of_words_is_classified(void **state)
{
    (void)state;
    static output out;
    int64_t rows;
    tarn_train_options options = options_of("classes");
    snprintf(options.target, sizeof(options.target), "side");
    tarn_train_result result;
    train(&options, NULL, &result);
    tarn_run *run = tarn_run_open(options.out, CPU);
    assert_string_equal(tarn_run_task(run), "classify");
    assert_int_equal(tarn_run_classes(run), 2);
    assert_string_equal(tarn_run_class_name(run, 1), "south");
    tarn_evaluation evaluation;
    assert_true(tarn_run_evaluate(run, NULL, 64, &evaluation, NULL, NULL));
    assert_int_equal(evaluation.samples, 30);
    assert_float_equal(evaluation.accuracy, result.best_accuracy, 1e-12);
    assert_true(result.best_accuracy > 0.85);
    assert_true(predict(run, write_text("c.csv", "area,price\n10,50\n10,20\n"), &out, &rows));
    expect_start(&out, "area,price,prediction,probability\n10,50,south,");
    tarn_regression_evaluation e;
    assert_false(tarn_run_evaluate_regression(run, NULL, 64, &e));
    assert_error(TARN_ERROR_ARGUMENT, "is no regression");
    tarn_run_close(run);
}

static void options_of_tables_need_a_table(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *data, *part;
    } cases[] = {{"target", "x", "digits", "target applies to tables (FILE.csv) only"},
                 {"drop", "x", "digits", "drop applies to tables"},
                 {"task", "regress", "digits", "task applies to tables"},
                 {"decimal", "comma", "digits", "decimal applies to tables"},
                 {"val_fraction", "0.5", "digits", "val_fraction applies to tables (FILE.csv), images:FOLDER and"},
                 {"target", "x", "text:none", "target applies to classifiers and regressions only"},
                 {"target", "cost", NULL, "no column 'cost'"},
                 {"target", "prise", NULL, "did you mean 'price'?"},
                 {"drop", "areas", NULL, "did you mean 'area'?"},
                 {"task", "classify", NULL, "every row has its own class"},
                 {"label_smoothing", "0.1", NULL, "label_smoothing applies to classifiers only"},
                 {"delimiter", "tab", NULL, "target"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tarn_train_options options = {.device = "cpu"};
        char rows[512] = "area,price\n";
        for (int k = 0; k < 30; k++)
            sprintf(rows + strlen(rows), "%d,%d\n", k, 3 * k);
        snprintf(options.data, sizeof(options.data), "%s",
                 cases[i].data ? cases[i].data : write_text("small.csv", rows));
        assert_true(tarn_train_options_set(&options, cases[i].name, cases[i].value));
        assert_null(tarn_trainer_new(&options));
        if (!strstr(tarn_error(), cases[i].part))
            print_error("case %zu: %s\n", i, tarn_error());
        assert_non_null(strstr(tarn_error(), cases[i].part));
        tarn_clear_error();
    }
    tarn_train_options options = {0};
    assert_true(tarn_train_options_set(&options, "delimiter", ";"));
    assert_string_equal(options.delimiter, "semicolon");
    assert_false(tarn_train_options_set(&options, "delimiter", "|"));
    assert_error(TARN_ERROR_ARGUMENT, "must be one of auto|comma|semicolon|tab");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_regression_is_trained_and_resumed_bitwise),
        in_scope(metrics_agree_with_the_predictions),
        in_scope(columns_of_other_files_are_found_by_name),
        in_scope(a_target_of_words_is_classified),
        in_scope(options_of_tables_need_a_table),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
