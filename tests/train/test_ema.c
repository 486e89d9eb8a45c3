/* test_ema.c: runs with averaged weights: evaluations, best weights and predictions are of the average, the last
 * weights are not, a resumed run is bitwise identical, and one without its average is an error. */
#include <unistd.h>

#include "support/files.h"
#include "tarn_features.h"

/* A batchnorm network on drawn digits, 12 steps, evaluated after every fourth. */
static tarn_train_options small(const char *folder)
{
    tarn_train_options options = {.model = "resnet20",
                                  .data = "digits:60",
                                  .batch_size = 6,
                                  .steps = 12,
                                  .schedule = "constant",
                                  .device = "cpu",
                                  .eval_every = 4,
                                  .log_every = 2,
                                  .seed = 3,
                                  .ema = 0.7};
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    return options;
}

typedef struct story {
    tarn_trainer *trainer;
    int64_t stop_at; /* 0: never */
    double val_loss; /* of the last evaluation */
} story;

static void listen(const tarn_train_report *report, void *ctx)
{
    story *s = ctx;
    if (report->kind == TARN_REPORT_EVALUATION)
        s->val_loss = report->loss;
    if (s->stop_at && report->step >= s->stop_at)
        tarn_trainer_stop(s->trainer);
}

static story run(tarn_trainer *trainer, int64_t stop_at)
{
    story s = {.trainer = trainer, .stop_at = stop_at};
    if (!trainer || !tarn_trainer_run(trainer, listen, &s, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
    assert_ok();
    return s;
}

/* The tensor of that name in a file of a run. */
static tarn_tensor *read_from(const char *folder, const char *name, const char *tensor)
{
    char path[1200];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    tarn_safetensors *file = tarn_safetensors_open(path);
    tarn_tensor *values = good(tarn_safetensors_read(file, tensor, tarn_device_cpu()));
    tarn_safetensors_close(file);
    return values;
}

static bool is_same(const tarn_tensor *a, const tarn_tensor *b)
{
    return memcmp(tarn_data(a), tarn_data(b), (size_t)tarn_bytes(a)) == 0;
}

/* One evaluation, so that the best step is the last one. */
static void evaluations_and_best_weights_are_of_the_average(void **state)
{
    (void)state;
    static const char *const names[] = {"conv1.weight", "bn1.weight", "bn1.running_mean"};
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_train_options options = small("averaged");
    options.eval_every = 12;
    story s = run(tarn_trainer_new(&options), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        tarn_tensor *best = read_from(options.out, "best.safetensors", names[i]);
        assert_true(is_same(best, read_from(options.out, "ema.safetensors", names[i])));
        assert_false(is_same(best, read_from(options.out, "model.safetensors", names[i])));
    }
    tarn_run_weights weights;
    assert_true(tarn_run_weights_find(options.out, TARN_RUN_BEST, &weights));
    assert_true(weights.ema == 0.7);
    assert_true(tarn_run_weights_find(options.out, TARN_RUN_LAST, &weights));
    assert_true(weights.ema == 0);
    tarn_evaluation found;
    tarn_run *opened = tarn_run_open(options.out, tarn_device_cpu());
    assert_true(tarn_run_evaluate(opened, NULL, 6, &found, NULL, NULL));
    assert_true(found.loss == s.val_loss);
    tarn_run_close(opened);
}

/* The average changes no step: the last weights are those of a run without one. */
static void training_itself_does_not_change(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_train_options options = small("with"), plain = small("without");
    plain.ema = 0;
    run(tarn_trainer_new(&options), 0);
    run(tarn_trainer_new(&plain), 0);
    assert_same_file(options.out, plain.out, "model.safetensors");
    assert_same_file(options.out, plain.out, "optimizer.safetensors");
}

static void a_resumed_run_is_bitwise_identical(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "ema.safetensors",
                                        "best.safetensors"};
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_train_options options = small("whole"), stopped = small("stopped");
    run(tarn_trainer_new(&options), 0);
    run(tarn_trainer_new(&stopped), 2);
    run(tarn_trainer_resume(stopped.out, NULL), 6);
    run(tarn_trainer_resume(stopped.out, NULL), 0);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        assert_same_file(options.out, stopped.out, files[i]);
}

static void a_run_without_its_average_is_not_resumed(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    char path[1200];
    tarn_train_options options = small("lost"), other = small("earlier");
    run(tarn_trainer_new(&options), 8);
    run(tarn_trainer_new(&other), 4);
    char *from = strdup(scratch("earlier/ema.safetensors"));
    snprintf(path, sizeof(path), "%s/ema.safetensors", options.out);
    assert_int_equal(rename(from, path), 0);
    free(from);
    assert_null(tarn_trainer_resume(options.out, NULL));
    assert_error(TARN_ERROR_FORMAT, "trainer.json is at step 8, ema.safetensors at step 4");
    assert_int_equal(unlink(path), 0);
    assert_null(tarn_trainer_resume(options.out, NULL));
    assert_error(TARN_ERROR_IO, "has no ema.safetensors with the averaged weights");
    assert_null(tarn_trainer_resume(options.out, &(tarn_train_options){.ema = 0.5}));
    assert_error(TARN_ERROR_ARGUMENT, "ema");
}

/* An average takes 4 bytes per parameter and running statistic; blocks of memory are multiples of 256 bytes. */
static void the_plan_counts_the_average(void **state)
{
    (void)state;
    tarn_train_plan with, without;
    tarn_train_options options = small("plan");
    tarn_trainer *trainer = tarn_trainer_dry_run(NULL, &options);
    assert_true(tarn_trainer_plan(trainer, &with));
    tarn_trainer_free(trainer);
    options.ema = 0;
    trainer = tarn_trainer_dry_run(NULL, &options);
    assert_true(tarn_trainer_plan(trainer, &without));
    tarn_trainer_free(trainer);
    int64_t extra = with.state_bytes - without.state_bytes;
    assert_in_range(extra, 4 * with.trained, 4 * with.trained + 4 * with.trained / 20);
    assert_in_range(with.memory_min - without.memory_min, extra, extra + 60 * 256);
    assert_true(with.memory_needed >= without.memory_needed);
}

static void a_decay_out_of_range_is_refused(void **state)
{
    (void)state;
    tarn_train_options options = small("refused");
    options.ema = 1;
    assert_null(tarn_trainer_new(&options));
    assert_error(TARN_ERROR_ARGUMENT, "ema");
    options.ema = -0.1;
    assert_null(tarn_trainer_new(&options));
    assert_error(TARN_ERROR_ARGUMENT, "ema");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(evaluations_and_best_weights_are_of_the_average),
        in_scope(training_itself_does_not_change),
        in_scope(a_resumed_run_is_bitwise_identical),
        in_scope(a_run_without_its_average_is_not_resumed),
        in_scope(the_plan_counts_the_average),
        in_scope(a_decay_out_of_range_is_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
