/* test_train.c: runs: their loss falls, they write their files, can be stopped and resumed at any step, and are bitwise
 * identical however they are run. */
#include <sys/stat.h>
#include <tarn/profile.h>

#include "support/files.h"

#define CPU tarn_device_cpu()

/* A small run: an mlp on 300 drawn digits, 30 samples in a step, 10 steps in an epoch. */
static tarn_train_options small(const char *folder)
{
    tarn_train_options options = {.model = "mlp",
                                  .data = "digits:300",
                                  .mlp_sizes = {24},
                                  .mlp_size_count = 1,
                                  .batch_size = 30,
                                  .epochs = 3,
                                  .lr = 0.01,
                                  .device = "cpu",
                                  .eval_every = 7,
                                  .log_every = 4,
                                  .seed = 5};
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    return options;
}

typedef struct story {
    tarn_trainer *trainer;
    int64_t stop_at; /* 0: never */
    int trainings, evaluations;
    double first_loss, last_loss;
} story;

static void listen(const tarn_train_report *report, void *ctx)
{
    story *s = ctx;
    s->evaluations += report->kind == TARN_REPORT_EVALUATION;
    s->trainings += report->kind == TARN_REPORT_TRAINING;
    assert_string_equal(report->task, "classify");
    assert_string_equal(report->metrics[1].name, "accuracy");
    assert_float_equal(report->metrics[1].value, report->accuracy, 0);
    if (report->kind == TARN_REPORT_TRAINING) {
        s->first_loss = s->trainings == 1 ? report->loss : s->first_loss;
        s->last_loss = report->loss;
    }
    if (s->stop_at && report->step >= s->stop_at)
        tarn_trainer_stop(s->trainer);
}

/* Runs a trainer and frees it. */
static story run(tarn_trainer *trainer, int64_t stop_at, tarn_train_result *result)
{
    story s = {.trainer = trainer, .stop_at = stop_at};
    if (!trainer || !tarn_trainer_run(trainer, listen, &s, result))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
    assert_ok();
    return s;
}

static bool is_there(const char *folder, const char *name)
{
    char path[1200];
    struct stat about;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return stat(path, &about) == 0;
}

static void assert_same_run(const char *folder, const char *other)
{
    assert_same_file(folder, other, "model.safetensors");
    assert_same_file(folder, other, "optimizer.safetensors");
    assert_same_file(folder, other, "best.safetensors");
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static void a_run_learns_and_leaves_its_files(void **state)
{
    (void)state;
    static const char *const names[] = {
        "config.json",  "model.safetensors", "best.safetensors", "optimizer.safetensors",
        "trainer.json", "metrics.jsonl",     "report.html"};
    tarn_train_options options = small("learns");
    options.epochs = 6;
    tarn_train_result result;
    story s = run(tarn_trainer_new(&options), 0, &result);
    assert_int_equal(result.end, TARN_TRAIN_FINISHED);
    assert_int_equal(result.step, 60);
    assert_int_equal(s.evaluations, 9); /* after steps 7, 14 … 56, and at the end */
    assert_true(s.last_loss < 0.5 * s.first_loss);
    assert_true(result.best_accuracy > 0.5);
    assert_int_equal(result.best_count, 2);
    assert_float_equal(result.best[1].value, result.best_accuracy, 0);
    assert_true(result.best[1].higher_is_better && !result.best[0].higher_is_better);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!is_there(options.out, names[i]))
            fail_msg("%s is missing", names[i]);
    assert_false(is_there(options.out, "model.safetensors.next"));

    assert_null(tarn_trainer_new(&options)); /* the folder is there now */
    assert_error_about(TARN_ERROR_IO, "learns", "already exists");
}

static void the_plan_says_what_will_be_done(void **state)
{
    (void)state;
    tarn_train_plan plan;
    tarn_trainer *trainer =
        tarn_trainer_new(&(tarn_train_options){.data = "digits:300", .device = "cpu", .batch_size = 1000});
    assert_ok();
    assert_true(tarn_trainer_plan(trainer, &plan));
    assert_string_equal(plan.options.model, "lenet");
    assert_string_equal(plan.folder, "runs/lenet-digits-1x28x28-cpu");
    assert_string_equal(plan.device, "cpu");
    assert_int_equal(plan.steps_in_epoch, 1); /* a batch is all there is */
    assert_int_equal(plan.steps, 5);
    assert_int_equal(plan.training_samples, 300);
    assert_int_equal(plan.validation_samples, 60);
    assert_int_equal(plan.trained, tarn_module_element_count(tarn_trainer_model(trainer)));
    assert_int_equal(plan.frozen, 0);
    assert_true(plan.memory_needed > plan.trained * 16);
    tarn_trainer_free(trainer);
    assert_false(is_there("runs", "lenet-digits-1x28x28-cpu")); /* nothing is written before it runs */
}

static void the_callers_random_numbers_stay_its_own(void **state)
{
    (void)state;
    tarn_seed(99);
    tarn_tensor *expected = good(tarn_uniform(TARN_SHAPE(4), 0, 1, TARN_F32, CPU));
    tarn_seed(99);
    tarn_train_options options = small("random");
    options.epochs = 1;
    run(tarn_trainer_new(&options), 0, NULL);
    assert_close(good(tarn_uniform(TARN_SHAPE(4), 0, 1, TARN_F32, CPU)), expected, 0);
}

/* ---- bitwise identical  ------------------------------------------------------------------------------------------ */

static void a_stopped_run_resumes_bitwise_identically(void **state)
{
    (void)state;
    tarn_train_result result;
    tarn_train_options whole = small("whole");
    run(tarn_trainer_new(&whole), 0, &result);
    for (int64_t at = 1; at < 30; at += 9) {
        char name[32];
        snprintf(name, sizeof(name), "stopped%lld", (long long)at);
        tarn_train_options options = small(name);
        run(tarn_trainer_new(&options), at, &result);
        assert_int_equal(result.end, TARN_TRAIN_STOPPED);
        assert_true(result.step >= at && result.step < 30);
        run(tarn_trainer_resume(options.out, NULL), result.step + 2, &result); /* and stopped once more */
        run(tarn_trainer_resume(options.out, &(tarn_train_options){.workers = 2}), 0, &result);
        assert_int_equal(result.end, TARN_TRAIN_FINISHED);
        assert_same_run(whole.out, options.out);
    }
    run(tarn_trainer_resume(whole.out, NULL), 0, &result); /* nothing is left to do */
    assert_int_equal(result.step, 30);
}

/* Only what says nothing of the result differs: when it was. */
static void a_run_is_bitwise_identical_with_any_number_of_threads(void **state)
{
    (void)state;
    const char *folders[3];
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"one", "two", "again"};
        tarn_set_threads(i == 0 ? 1 : 2);
        tarn_train_options options = small(names[i]);
        snprintf(options.model, sizeof(options.model), "lenet");
        options.mlp_size_count = 0;
        options.mlp_sizes[0] = 0;
        options.epochs = 1;
        options.augment = true;
        options.clip_norm = 1;
        options.label_smoothing = 0.1;
        options.workers = i;
        run(tarn_trainer_new(&options), 0, NULL);
        folders[i] = scratch(names[i]);
        assert_same_run(folders[0], folders[i]);
    }
}

static void a_run_can_be_made_longer(void **state)
{
    (void)state;
    tarn_train_result result;
    tarn_train_options options = small("longer");
    options.epochs = 1;
    run(tarn_trainer_new(&options), 0, &result);
    assert_int_equal(result.step, 10);
    run(tarn_trainer_resume(options.out, &(tarn_train_options){.epochs = 2}), 0, &result);
    assert_int_equal(result.step, 20);
    /* as it was */
    run(tarn_trainer_resume(options.out, &(tarn_train_options){.lr = 0.01, .batch_size = 30}), 0, &result);
    assert_null(tarn_trainer_resume(options.out, &(tarn_train_options){.steps = 5}));
    assert_error(TARN_ERROR_ARGUMENT, "is already at step 20");
    assert_null(tarn_trainer_resume(options.out, &(tarn_train_options){.lr = 1}));
    assert_error(TARN_ERROR_ARGUMENT, "lr cannot be changed");
}

/* ---- interrupted writes ------------------------------------------------------------------------------------------ */

static void copy(const char *folder, const char *from, const char *to)
{
    char path[2][1200];
    size_t count;
    snprintf(path[0], sizeof(path[0]), "%s/%s", folder, from);
    snprintf(path[1], sizeof(path[1]), "%s/%s", folder, to);
    char *bytes_read = get_file(path[0], &count);
    put_file(path[1], bytes_read, count);
    free(bytes_read);
}

/* Every state that a checkpoint's files can be in when the program is stopped: the old one counts until
 * trainer.json.next is there, then the new. */
static void a_checkpoint_is_whole_whenever_its_writing_was_interrupted(void **state)
{
    (void)state;
    tarn_train_result result;
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "trainer.json"};
    for (int done = 0; done < 3; done++) { /* renames that came before the stop */
        char name[32], next[64];
        snprintf(name, sizeof(name), "renames%d", done);
        tarn_train_options options = small(name);
        run(tarn_trainer_new(&options), 14, &result);
        for (int i = done; i < 3; i++) { /* the rest still has its other name, and old files theirs */
            snprintf(next, sizeof(next), "%s.next", files[i]);
            copy(options.out, files[i], next);
            char path[1200];
            snprintf(path, sizeof(path), "%s/%s", options.out, files[i]);
            put_file(path, "old", 3);
        }
        run(tarn_trainer_resume(options.out, NULL), 0, &result);
        assert_same_run(scratch("whole"), options.out);
    }
    tarn_train_options options = small("early");
    run(tarn_trainer_new(&options), 14, &result);
    char path[1200];
    snprintf(path, sizeof(path), "%s/model.safetensors.next", options.out);
    put_file(path, "half", 4); /* stopped before the new checkpoint was whole */
    run(tarn_trainer_resume(options.out, NULL), 0, &result);
    assert_same_run(scratch("whole"), options.out);
    assert_false(is_there(options.out, "model.safetensors.next"));
}

static void files_that_do_not_belong_together_are_refused(void **state)
{
    (void)state;
    tarn_train_result result;
    tarn_train_options a = small("mixed_a"), b = small("mixed_b");
    run(tarn_trainer_new(&a), 7, &result);
    run(tarn_trainer_new(&b), 14, &result);
    char path[1200];
    size_t count;
    snprintf(path, sizeof(path), "%s/optimizer.safetensors", b.out);
    char *bytes_read = get_file(path, &count);
    snprintf(path, sizeof(path), "%s/optimizer.safetensors", a.out);
    put_file(path, bytes_read, count);
    free(bytes_read);
    assert_null(tarn_trainer_resume(a.out, NULL));
    assert_error(TARN_ERROR_FORMAT, "not a complete checkpoint");
}

/* Lines of metrics that came after the last checkpoint are written anew: each step has one. */
static void metrics_that_did_not_last_are_dropped(void **state)
{
    (void)state;
    tarn_train_result result;
    tarn_train_options options = small("metrics");
    run(tarn_trainer_new(&options), 14, &result);
    char path[1200];
    size_t count, before;
    snprintf(path, sizeof(path), "%s/metrics.jsonl", options.out);
    char *text = get_file(path, &before), *longer = calloc(1, before + 100);
    memcpy(longer, text, before);
    strcat(longer, "{\"step\": 999, \"loss\": 1}\n{\"step\": 10");
    put_file(path, longer, strlen(longer));
    run(tarn_trainer_resume(options.out, &(tarn_train_options){.steps = result.step}), 0, &result);
    char *after = get_file(path, &count);
    assert_int_equal(count, before);
    assert_memory_equal(after, text, before);
    free(text);
    free(longer);
    free(after);
}

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

static void a_loss_that_is_not_finite_names_step_and_layer_and_leaves_a_good_state(void **state)
{
    (void)state;
    tarn_train_options options = small("nonfinite");
    snprintf(options.optimizer, sizeof(options.optimizer), "sgd");
    options.lr = 1000;
    options.weight_decay = 1000; /* weights grow a millionfold in each step */
    options.log_every = 9;
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_ok();
    assert_false(tarn_trainer_run(trainer, NULL, NULL, NULL));
    print_message("%s\n", tarn_error());
    assert_true(strstr(tarn_error(), "layer '") || strstr(tarn_error(), "gradient of '") ||
                strstr(tarn_error(), "the loss"));
    assert_error(TARN_ERROR_ARGUMENT, "is not finite");
    tarn_trainer_free(trainer);

    trainer = tarn_trainer_resume(options.out, NULL); /* the state before: every weight is a number */
    assert_ok();
    tarn_module *model = tarn_trainer_model(trainer);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *weight = tarn_detach(tarn_module_parameter(model, i));
        assert_true(isfinite(tarn_item(tarn_sum(tarn_mul(weight, tarn_scalar(0)), TARN_ALL_AXES, false))));
    }
    tarn_trainer_free(trainer);
}

/* The step's own loss was finite: it was that of the weights before. */
static void a_validation_loss_that_is_not_finite_is_no_best_and_ends_the_run(void **state)
{
    (void)state;
    tarn_train_options options = small("unevaluated");
    snprintf(options.optimizer, sizeof(options.optimizer), "sgd");
    for (options.mlp_size_count = 0; options.mlp_size_count < 6; options.mlp_size_count++)
        options.mlp_sizes[options.mlp_size_count] = 24;
    options.lr = 1e6;
    options.eval_every = 1;
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_ok();
    assert_false(tarn_trainer_run(trainer, NULL, NULL, NULL));
    print_message("%s\n", tarn_error());
    assert_non_null(strstr(tarn_error(), "the output of layer '"));
    assert_error(TARN_ERROR_ARGUMENT, "the validation loss is not finite");
    tarn_trainer_free(trainer);
    trainer = tarn_trainer_resume(options.out, NULL);
    assert_ok();
    tarn_trainer_free(trainer);
}

static void patience_ends_a_run_that_does_not_get_better(void **state)
{
    (void)state;
    tarn_train_result result;
    tarn_train_options options = small("patience");
    options.lr = 1e-12; /* nothing moves */
    options.patience = 2;
    story s = run(tarn_trainer_new(&options), 0, &result);
    assert_int_equal(result.end, TARN_TRAIN_PATIENCE);
    assert_int_equal(s.evaluations, 3);
    assert_int_equal(result.best_step, 7);
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

typedef struct meter {
    tarn_counters last;
    int64_t last_step;
    int intervals;
} meter;

/* Between two lines of metrics: two tensors up for each step, and the two tensors of metrics down, once. */
static void measure(const tarn_train_report *report, void *ctx)
{
    meter *m = ctx;
    tarn_counters now = tarn_stats();
    if (report->kind == TARN_REPORT_TRAINING && m->last_step > 0) {
        assert_int_equal(now.uploads - m->last.uploads, 2 * (report->step - m->last_step));
        assert_int_equal(now.downloads - m->last.downloads, 2);
        assert_int_equal(now.peer_copies, m->last.peer_copies);
        m->intervals++;
    }
    m->last = tarn_stats();
    m->last_step = report->kind == TARN_REPORT_TRAINING ? report->step : 0;
}

static void nothing_crosses_to_the_device_in_a_step_but_the_batch(void **state)
{
    (void)state;
    meter m = {.intervals = 0};
    tarn_train_options options = small("mirror");
    snprintf(options.device, sizeof(options.device), "mirror:0");
    options.clip_norm = 1;
    options.eval_every = 30;
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_ok();
    if (!tarn_trainer_run(trainer, measure, &m, NULL))
        fail_msg("%s", tarn_error());
    assert_true(m.intervals >= 5);
    tarn_trainer_free(trainer);
}

/* ---- data and use ------------------------------------------------------------------------------------------------ */

/* Two numbers; the class is which of them is larger. */
static const char *comparisons(const char *name, int rows)
{
    static char text[1 << 16];
    size_t used = (size_t)snprintf(text, sizeof(text), "a,b,larger\n");
    uint64_t random = 17;
    for (int i = 0; i < rows; i++) {
        int64_t a = random_below(&random, 1000), b = random_below(&random, 1000);
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%lld,%lld,%d\n", (long long)a, (long long)b, a > b);
    }
    return write_text(name, text);
}

static void a_table_trains_a_perceptron_and_the_run_can_be_used(void **state)
{
    (void)state;
    tarn_train_options options = {.epochs = 20, .lr = 0.02, .device = "cpu", .batch_size = 20};
    snprintf(options.data, sizeof(options.data), "csv:%s", comparisons("larger.csv", 400));
    snprintf(options.out, sizeof(options.out), "%s", scratch("table"));
    tarn_train_result result;
    run(tarn_trainer_new(&options), 0, &result);

    tarn_run *used = tarn_run_open(options.out, CPU);
    assert_ok();
    tarn_shape input;
    assert_true(tarn_run_input(used, &input));
    assert_int_equal(input.rank, 1);
    assert_int_equal(input.size[0], 2);
    assert_string_equal(tarn_run_kind(used), "mlp");
    assert_string_equal(tarn_run_data(used), options.data);
    assert_int_equal(tarn_run_classes(used), 2);
    assert_string_equal(tarn_run_class_name(used, 1), "1");
    assert_false(tarn_module_is_training(tarn_run_model(used)));

    tarn_evaluation own, all;
    int64_t samples[2], correct[2];
    assert_true(tarn_run_evaluate(used, NULL, 7, &own, NULL, NULL)); /* the tenth that was held back */
    assert_int_equal(own.samples, 40);
    assert_float_equal(own.accuracy, result.best_accuracy, 1e-12);
    assert_true(tarn_run_evaluate(used, options.data, 64, &all, samples, correct));
    assert_int_equal(all.samples, 400);
    assert_int_equal(samples[0] + samples[1], 400);
    assert_float_equal(all.accuracy, (double)(correct[0] + correct[1]) / 400, 1e-12);
    assert_true(all.accuracy > 0.9);

    double probabilities[2];
    float pair[] = {900, 100};
    assert_true(
        tarn_run_predict(used, &(tarn_array){.data = pair, .dtype = TARN_F32, .shape = TARN_SHAPE(2)}, probabilities));
    assert_true(probabilities[1] > 0.9 && fabs(probabilities[0] + probabilities[1] - 1) < 1e-6);
    assert_false(
        tarn_run_predict(used, &(tarn_array){.data = pair, .dtype = TARN_F32, .shape = TARN_SHAPE(1)}, probabilities));
    assert_error(TARN_ERROR_SHAPE, "the model takes");
    assert_false(tarn_run_evaluate(used, "digits:20", 8, &all, NULL, NULL));
    assert_error(TARN_ERROR_SHAPE, "was trained on [2]");
    tarn_run_close(used);
}

/* A .npy file, version 1.0, of little-endian elements. */
static const char *write_npy(const char *name, const char *type, const char *shape, const void *elements, size_t count)
{
    static char file[1 << 17];
    int head = snprintf(file + 10, 200, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", type, shape);
    memset(file + 10 + head, ' ', (size_t)(118 - head));
    file[127] = '\n';
    memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10);
    memcpy(file + 128, elements, count);
    return write_file(name, file, 128 + count);
}

/* Images [6, 8] without channels, labels in u8: which of two halves is brighter. */
static void images_without_channels_and_labels_of_other_dtypes_are_accepted(void **state)
{
    (void)state;
    enum { COUNT = 200, PIXELS = 48 };
    static float images[COUNT][PIXELS];
    static uint8_t labels[COUNT];
    uint64_t random = 3;
    for (int i = 0; i < COUNT; i++) {
        labels[i] = (uint8_t)random_below(&random, 2);
        for (int k = 0; k < PIXELS; k++)
            images[i][k] = (float)random_below(&random, 100) + (k / 24 == labels[i] ? 60 : 0);
    }
    tarn_train_options options = {.model = "lenet", .epochs = 3, .batch_size = 10, .device = "cpu"};
    snprintf(options.data, sizeof(options.data), "npy:%s,%s",
             write_npy("x.npy", "<f4", "200, 6, 8", images, sizeof(images)),
             write_npy("y.npy", "|u1", "200,", labels, sizeof(labels)));
    snprintf(options.out, sizeof(options.out), "%s", scratch("halves"));
    tarn_train_result result;
    run(tarn_trainer_new(&options), 0, &result);
    assert_true(result.best_accuracy > 0.9);
    tarn_run *used = tarn_run_open(options.out, CPU);
    tarn_evaluation all;
    assert_true(tarn_run_evaluate(used, options.data, 64, &all, NULL, NULL));
    assert_int_equal(all.samples, COUNT);
    tarn_run_close(used);
}

/* One by one or in batches, the model gives the same answers. */
static void predictions_agree_with_the_evaluation(void **state)
{
    (void)state;
    enum { DIGITS = 60 };
    tarn_run *used = tarn_run_open(scratch("learns"), CPU);
    tarn_dataset *digits = tarn_dataset_digits(DIGITS, 2); /* the validation set of "digits:300" */
    tarn_evaluation evaluation;
    assert_true(tarn_run_evaluate(used, NULL, 16, &evaluation, NULL, NULL));
    int correct = 0;
    double loss = 0;
    for (int64_t i = 0; i < DIGITS; i++) {
        uint8_t pixels[784];
        int64_t label, best = 0;
        double probability[10];
        assert_true(tarn_dataset_read(digits, i, (void *const[]){pixels, &label}));
        assert_true(tarn_run_predict(
            used, &(tarn_array){.data = pixels, .dtype = TARN_U8, .shape = TARN_SHAPE(1, 28, 28)}, probability));
        for (int64_t k = 1; k < 10; k++)
            best = probability[k] > probability[best] ? k : best;
        correct += best == label;
        loss -= log(probability[label]) / DIGITS;
    }
    assert_int_equal(evaluation.samples, DIGITS);
    assert_float_equal(evaluation.accuracy, (double)correct / DIGITS, 1e-12);
    assert_float_equal(evaluation.loss, loss, 1e-5);
    tarn_dataset_free(digits);
    tarn_run_close(used);
}

static void data_that_cannot_be_classes_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
        tarn_code code;
    } cases[] = {{"1,2,0\n3,4,0\n5,6,0\n", "fewer than 2 different values", TARN_ERROR_FORMAT},
                 {"1,2,0\n", "fewer than 2 different values", TARN_ERROR_FORMAT},
                 {"1,2,0.5\n", "1 rows have a target; training needs at least 2", TARN_ERROR_FORMAT}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tarn_train_options options = {.device = "cpu"};
        snprintf(options.data, sizeof(options.data), "csv:%s", write_text("bad.csv", cases[i].text));
        assert_null(tarn_trainer_new(&options));
        assert_error(cases[i].code, cases[i].part);
    }
    static const struct {
        int64_t label[3];
        const char *part;
    } arrays[] = {{{-1, 0, 1}, "label -1"}, {{0, 0, 0}, "two classes"}, {{70000, 1, 0}, "label 70000"}};
    static const float inputs[6] = {1, 2, 3, 4, 5, 6};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        tarn_train_options options = {.device = "cpu"};
        snprintf(options.data, sizeof(options.data), "npy:%s,%s",
                 write_npy("bad_x.npy", "<f4", "3, 2", inputs, sizeof(inputs)),
                 write_npy("bad_y.npy", "<i8", "3,", arrays[i].label, sizeof(arrays[i].label)));
        assert_null(tarn_trainer_new(&options));
        assert_error(TARN_ERROR_FORMAT, arrays[i].part);
    }
    static const char *const names[] = {"nothing", "mnist",    "csv:",     "idx:a",
                                        "npy:,b",  "digits:3", "digits:x", "digits:99999999999"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        tarn_train_options options = {.device = "cpu"};
        snprintf(options.data, sizeof(options.data), "%s", names[i]);
        assert_null(tarn_trainer_new(&options));
        assert_error(TARN_ERROR_ARGUMENT, "trainer_new");
    }
}

static void mnist_is_trained_on_where_present(void **state)
{
    (void)state;
    const char *folder = real_data("mnist");
    if (!folder || getenv("TARN_TEST_QUICK")) /* minutes under the thread sanitizer; a lenet is trained above, too */
        skip();
    tarn_train_options options = {.model = "lenet", .steps = 60, .batch_size = 32, .device = "cpu", .eval_every = 1000};
    snprintf(options.data, sizeof(options.data), "mnist:%s", folder);
    snprintf(options.out, sizeof(options.out), "%s", scratch("mnist"));
    tarn_train_result result;
    run(tarn_trainer_new(&options), 0, &result);
    print_message("%.2f %% of MNIST's test images correct after 60 steps\n", 100 * result.best_accuracy);
    assert_true(result.best_accuracy > 0.85);
}

/* ---- without memory ---------------------------------------------------------------------------------------------- */

/* Makes a trainer, runs it, and uses the run; false when memory ran out somewhere. */
static bool use_everything(const char *folder)
{
    tarn_train_options options = {
        .model = "mlp", .data = "digits:10", .mlp_sizes = {2}, .mlp_size_count = 1, .steps = 1, .device = "cpu"};
    tarn_evaluation evaluation;
    snprintf(options.out, sizeof(options.out), "%s", folder);
    tarn_trainer *trainer = tarn_trainer_new(&options);
    bool good = trainer && tarn_trainer_run(trainer, NULL, NULL, NULL);
    tarn_trainer_free(trainer);
    tarn_run *used = good ? tarn_run_open(folder, CPU) : NULL;
    good = used && tarn_run_evaluate(used, NULL, 1, &evaluation, NULL, NULL);
    tarn_run_close(used);
    return good;
}

static void a_failed_allocation_anywhere_leaks_nothing(void **state)
{
    (void)state;
    tarn_empty_cache(CPU);
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    bool done = false;
    for (int room = 0; !done && room < 20000; room += 1 + room / 40) {
        char name[32];
        snprintf(name, sizeof(name), "scarce%d", room);
        allocations_left = room;
        done = use_everything(scratch(name));
        tarn_code code = tarn_error_code();
        allocations_left = 1000000;
        tarn_clear_error();
        assert_true(done || code == TARN_ERROR_MEMORY);
        tarn_empty_cache(CPU);
    }
    assert_true(done);
    if (!tarn_set_allocator(NULL)) /* which it refuses while memory is out */
        fail_msg("%s", tarn_error());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_failed_allocation_anywhere_leaks_nothing,
                               clear_error), /* first: nothing holds memory yet */
        in_scope(a_run_learns_and_leaves_its_files),
        in_scope(the_plan_says_what_will_be_done),
        in_scope(the_callers_random_numbers_stay_its_own),
        in_scope(a_stopped_run_resumes_bitwise_identically),
        in_scope(a_run_is_bitwise_identical_with_any_number_of_threads),
        in_scope(a_run_can_be_made_longer),
        in_scope(a_checkpoint_is_whole_whenever_its_writing_was_interrupted),
        in_scope(files_that_do_not_belong_together_are_refused),
        in_scope(metrics_that_did_not_last_are_dropped),
        in_scope(a_loss_that_is_not_finite_names_step_and_layer_and_leaves_a_good_state),
        in_scope(a_validation_loss_that_is_not_finite_is_no_best_and_ends_the_run),
        in_scope(patience_ends_a_run_that_does_not_get_better),
        in_scope(nothing_crosses_to_the_device_in_a_step_but_the_batch),
        in_scope(a_table_trains_a_perceptron_and_the_run_can_be_used),
        in_scope(images_without_channels_and_labels_of_other_dtypes_are_accepted),
        in_scope(predictions_agree_with_the_evaluation),
        in_scope(data_that_cannot_be_classes_is_refused),
        in_scope(mnist_is_trained_on_where_present),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
