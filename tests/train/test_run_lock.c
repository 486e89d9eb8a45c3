/* test_run_lock.c: a run's folder belongs to one trainer at a time: two that write checkpoints there would mix them. */
#include <sys/wait.h>
#include <unistd.h>

#include "support/files.h"

static tarn_train_options small(const char *folder)
{
    tarn_train_options options = {.model = "mlp",
                                  .data = "digits:100",
                                  .mlp_sizes = {8},
                                  .mlp_size_count = 1,
                                  .batch_size = 20,
                                  .epochs = 4,
                                  .device = "cpu",
                                  .log_every = 2};
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    return options;
}

static void assert_in_use(tarn_trainer *trainer)
{
    assert_null(trainer);
    assert_int_equal(tarn_error_code(), TARN_ERROR_IO);
    assert_non_null(strstr(tarn_error(), "is in use"));
    tarn_clear_error();
}

static void assert_same_model(const char *folder, const char *other)
{
    char path[2][1200];
    size_t count[2];
    snprintf(path[0], sizeof(path[0]), "%s/model.safetensors", folder);
    snprintf(path[1], sizeof(path[1]), "%s/model.safetensors", other);
    char *a = get_file(path[0], &count[0]), *b = get_file(path[1], &count[1]);
    assert_int_equal(count[0], count[1]);
    assert_memory_equal(a, b, count[0]);
    free(a);
    free(b);
}

static void intrude(const tarn_train_report *report, void *ctx)
{
    const char *folder = ctx;
    (void)report;
    assert_in_use(tarn_trainer_resume(folder, NULL));
    assert_in_use(tarn_trainer_dry_run(folder, NULL));
}

static void a_run_in_progress_cannot_be_resumed(void **state)
{
    (void)state;
    tarn_train_options whole = small("whole"), disturbed = small("disturbed");
    tarn_trainer *trainer = tarn_trainer_new(&whole);
    assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
    tarn_trainer_free(trainer);
    trainer = tarn_trainer_new(&disturbed);
    assert_true(tarn_trainer_run(trainer, intrude, disturbed.out, NULL));
    assert_same_model(whole.out, disturbed.out);
    /* its run is over, though it is there */
    tarn_trainer *other = tarn_trainer_resume(disturbed.out, &(tarn_train_options){.epochs = 5});
    assert_non_null(other);
    tarn_trainer_free(trainer);
    tarn_trainer_free(other);
    assert_ok();
}

static void a_resumed_run_is_locked(void **state)
{
    (void)state;
    tarn_train_options options = small("read");
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
    tarn_trainer_free(trainer);
    const tarn_train_options more = {.epochs = 6};
    trainer = tarn_trainer_resume(options.out, &more);
    assert_non_null(trainer);
    assert_in_use(tarn_trainer_resume(options.out, &more));
    tarn_trainer_free(trainer);
    trainer = tarn_trainer_resume(options.out, &more);
    assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
    tarn_trainer_free(trainer);
    assert_ok();
}

static void a_program_that_ended_holds_no_lock(void **state)
{
    (void)state;
    tarn_train_options options = small("ended");
    pid_t child = fork();
    if (child == 0) {
        tarn_trainer *trainer = tarn_trainer_new(&options);
        tarn_trainer_run(trainer, NULL, NULL, NULL);
        tarn_trainer_free(trainer);
        _exit(tarn_trainer_resume(options.out, NULL) ? 0 : 1); /* never freed */
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    tarn_trainer *trainer = tarn_trainer_resume(options.out, NULL);
    assert_non_null(trainer);
    tarn_trainer_free(trainer);
    assert_ok();
}

/* Each kill may leave as much as a checkpoint. */
static void temp_files_of_a_killed_run_are_removed_on_resume(void **state)
{
    (void)state;
    tarn_train_options options = small("killed");
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
    tarn_trainer_free(trainer);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    char name[64];
    snprintf(name, sizeof(name), "killed/model.safetensors.next.%ld-7.tmp", (long)child);
    write_text(name, "half of a");
    tarn_trainer_free(tarn_trainer_dry_run(options.out, NULL)); /* which only looks */
    assert_int_equal(access(scratch(name), F_OK), 0);
    tarn_trainer_free(tarn_trainer_resume(options.out, NULL));
    assert_int_equal(access(scratch(name), F_OK), -1);
    assert_ok();
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(a_program_that_ended_holds_no_lock),
                                       in_scope(a_run_in_progress_cannot_be_resumed), in_scope(a_resumed_run_is_locked),
                                       in_scope(temp_files_of_a_killed_run_are_removed_on_resume)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
