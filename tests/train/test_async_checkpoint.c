/* test_async_checkpoint.c: checkpoints that are written while training continues: the files equal those of a
 * synchronous write, and a write error ends the run with the previous checkpoint. */
#include <sys/stat.h>
#include <unistd.h>

#include "support/files.h"
#include "train/output/async_checkpoint.h"

/* An mlp on drawn digits, a line of metrics for each of 20 steps, an evaluation after 10. */
static tarn_train_options small(const char *folder)
{
    tarn_train_options options = {.model = "mlp",
                                  .data = "digits:300",
                                  .mlp_sizes = {24},
                                  .mlp_size_count = 1,
                                  .batch_size = 30,
                                  .steps = 20,
                                  .lr = 0.01,
                                  .device = "cpu",
                                  .eval_every = 10,
                                  .log_every = 1,
                                  .seed = 5};
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    return options;
}

/* ---- what the disk refuses --------------------------------------------------------------------------------------- */

typedef struct obstacle {
    tarn_trainer *trainer;
    char path[1200];  /* a folder where a file of the checkpoint would be */
    int64_t at, last; /* it is created before the checkpoint of step `at`; `last` is the last reported step */
} obstacle;

/* Steps are over before a disk has answered: each waits, so that the answer comes between two of them. */
static void put_in_the_way(const tarn_train_report *report, void *ctx)
{
    obstacle *o = ctx;
    if (report->step == o->at && report->kind == TARN_REPORT_TRAINING) {
        assert_true(tarn__async_checkpoint_wait(o->trainer->async_checkpoint)); /* the one before has its names */
        assert_int_equal(mkdir(o->path, 0777), 0);
    } else if (report->step > o->at)
        usleep(900000); /* the first of these steps is the last, where the disk has a core */
    o->last = report->step;
}

/* A run whose checkpoint fails at a step, resumed after the obstacle is removed. The caller frees it. */
static tarn_trainer *resume_after_failure(const char *folder, obstacle *o)
{
    tarn_train_options options = small(folder);
    snprintf(o->path, sizeof(o->path), "%s/model.safetensors.next", options.out);
    o->trainer = tarn_trainer_new(&options);
    assert_false(tarn_trainer_run(o->trainer, put_in_the_way, o, NULL));
    assert_error_about(TARN_ERROR_IO, "model.safetensors.next", "is a folder");
    tarn_trainer_free(o->trainer);
    assert_int_equal(rmdir(o->path), 0);
    tarn_trainer *trainer = tarn_trainer_resume(options.out, NULL);
    assert_non_null(trainer);
    return trainer;
}

static void a_checkpoint_that_cannot_be_written_ends_the_run(void **state)
{
    (void)state;
    obstacle o = {.at = 10};
    tarn_train_result result;
    tarn_trainer *trainer = resume_after_failure("async-refused", &o);
    assert_true(o.last > 10 && o.last < 20);  /* not at once, and not at the next checkpoint */
    assert_int_equal(trainer->state.step, 0); /* the checkpoint before is the one of the beginning */
    assert_true(tarn_trainer_run(trainer, NULL, NULL, &result));
    assert_int_equal(result.step, 20);
    tarn_trainer_free(trainer);
}

static void the_last_checkpoint_fails_the_run_too(void **state)
{
    (void)state;
    tarn_trainer *trainer = resume_after_failure("async-last", &(obstacle){.at = 20});
    assert_int_equal(trainer->state.step, 10);
    tarn_trainer_free(trainer);
}

/* ---- what is written --------------------------------------------------------------------------------------------- */

/* The same state once more, written without a thread. */
static void files_are_those_of_a_run_that_waits(void **state)
{
    (void)state;
    tarn_train_options options = small("async-files");
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
    snprintf(trainer->options.out, sizeof(trainer->options.out), "%s", scratch("async-files-again"));
    assert_true(tarn__folder_make("test", trainer->options.out) && tarn__checkpoint_save(trainer));
    assert_same_file(options.out, trainer->options.out, "model.safetensors");
    assert_same_file(options.out, trainer->options.out, "optimizer.safetensors");
    tarn_trainer_free(trainer);
    assert_ok();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_checkpoint_that_cannot_be_written_ends_the_run),
        in_scope(the_last_checkpoint_fails_the_run_too),
        in_scope(files_are_those_of_a_run_that_waits),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
