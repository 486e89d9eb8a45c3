/* test_folder.c: folders of runs: their names, runs that replace others and nothing else, and checkpoints that are
 * whole or not there. */
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <tarn/train.h>
#include <unistd.h>

#include "support/files.h"
#include "train/run_folder.h"

static tarn_train_options small(int64_t steps)
{
    return (tarn_train_options){.model = "mlp",
                                .data = "digits:60",
                                .mlp_sizes = {8},
                                .mlp_size_count = 1,
                                .batch_size = 20,
                                .steps = steps,
                                .eval_every = 2,
                                .device = "cpu"};
}

static bool is_there(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0;
}

static const char *in(const char *folder, const char *name)
{
    static char paths[4][1400];
    static int next;
    char *path = paths[next++ % 4], joined[1400];
    snprintf(joined, sizeof(joined), "%s/%s", folder, name);
    return strcpy(path, joined);
}

static void train(const tarn_train_options *options)
{
    tarn_trainer *trainer = tarn_trainer_new(options);
    if (!trainer || !tarn_trainer_run(trainer, NULL, NULL, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
}

static void folder_of(const tarn_train_options *options, char *folder)
{
    tarn_train_plan plan;
    tarn_trainer *trainer = tarn_trainer_new(options);
    assert_ok();
    assert_true(tarn_trainer_plan(trainer, &plan));
    snprintf(folder, sizeof(plan.folder), "%s", plan.folder);
    tarn_trainer_free(trainer);
}

/* Runs without a folder's name go below the working folder. */
static void runs_get_the_next_free_name(void **state)
{
    (void)state;
    char before[PATH_MAX], folder[1100];
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir(scratch(".")), 0);
    tarn_train_options options = small(2);
    static const char *const names[] = {"runs/mlp-digits-1x28x28-cpu", "runs/mlp-digits-1x28x28-cpu-2",
                                        "runs/mlp-digits-1x28x28-cpu-3"};
    for (int i = 0; i < 3; i++) {
        folder_of(&options, folder);
        assert_string_equal(folder, names[i]);
        train(&options);
        assert_true(is_there(in(names[i], "trainer.json")));
    }
    options.overwrite = true; /* the first of them */
    folder_of(&options, folder);
    assert_string_equal(folder, names[0]);
    char text[900] = "a,b,label\n";
    for (int i = 0; i < 60; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%d,%d,%d\n", i % 7, i % 5, i % 2);
    write_text("my flowers.v2.csv", text);
    tarn_train_options other = {.data = "csv:./my flowers.v2.csv", .device = "cpu", .batch_size = 10, .steps = 2};
    folder_of(&other, folder);
    assert_string_equal(folder, "runs/mlp-my-flowers-2-cpu");
    assert_int_equal(chdir(before), 0);
}

static void a_run_replaces_another_one(void **state)
{
    (void)state;
    tarn_train_options options = small(2);
    snprintf(options.out, sizeof(options.out), "%s", scratch("replaced"));
    train(&options);
    assert_null(tarn_trainer_new(&options));
    assert_error_about(TARN_ERROR_IO, "already exists", ".overwrite");
    options.overwrite = true;
    options.seed = 7;
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_ok();
    size_t count;
    char *text = get_file(in(options.out, "config.json"), &count); /* nothing was changed before it runs */
    assert_non_null(strstr(text, "\"seed\": 0"));
    free(text);
    assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
    tarn_trainer_free(trainer);
    text = get_file(in(options.out, "config.json"), &count);
    assert_non_null(strstr(text, "\"seed\": 7"));
    assert_non_null(strstr(text, "\"overwrite\": false"));
    free(text);
    char aside[1200];
    snprintf(aside, sizeof(aside), "%s.replaced", options.out);
    assert_false(is_there(aside));
}

static void nothing_but_a_run_is_replaced(void **state)
{
    (void)state;
    tarn_train_options options = small(2);
    options.overwrite = true;
    snprintf(options.out, sizeof(options.out), "%s", scratch("data"));
    assert_int_equal(mkdir(options.out, 0700), 0);
    put_file(in(options.out, "thesis.txt"), "words", 5);
    assert_null(tarn_trainer_new(&options));
    assert_error_about(TARN_ERROR_IO, "is not a run folder", "overwrite");

    snprintf(options.out, sizeof(options.out), "%s", scratch("with-notes"));
    train(&options);
    static const char *const names[] = {"notes.txt", "model.safetensors.bak", "best.txt", "notes.tmp"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        put_file(in(options.out, names[i]), "mine", 4);
        assert_null(tarn_trainer_new(&options));
        assert_error_about(TARN_ERROR_IO, names[i], "is not a file of a run");
        assert_true(is_there(in(options.out, names[i])));
        assert_int_equal(remove(in(options.out, names[i])), 0);
    }
    assert_int_equal(mkdir(in(options.out, "pictures"), 0700), 0);
    assert_null(tarn_trainer_new(&options));
    assert_error_about(TARN_ERROR_IO, "pictures", "is not a file of a run");
    assert_int_equal(rmdir(in(options.out, "pictures")), 0);

    tarn_trainer *busy = tarn_trainer_resume(options.out, NULL); /* a run that is under way */
    assert_ok();
    assert_null(tarn_trainer_new(&options));
    assert_error(TARN_ERROR_IO, "is in use");
    tarn_trainer_free(busy);
    assert_null(tarn_trainer_resume(options.out, &(tarn_train_options){.overwrite = true}));
    assert_error_about(TARN_ERROR_ARGUMENT, "overwrite", "cannot be changed");
    train(&options);
}

/* A folder that cannot be written leaves the old run where it was. */
static void a_run_that_cannot_begin_puts_the_old_one_back(void **state)
{
    (void)state;
    tarn_train_options options = small(2);
    snprintf(options.out, sizeof(options.out), "%s", scratch("back"));
    train(&options);
    options.overwrite = true;
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_ok();
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, limit.rlim_max}), 0);
    bool began = tarn_trainer_run(trainer, NULL, NULL, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_false(began);
    assert_error(TARN_ERROR_IO, "could not be written");
    tarn_trainer_free(trainer);
    tarn_trainer *old = tarn_trainer_resume(options.out, NULL);
    assert_ok();
    tarn_train_plan plan;
    assert_true(tarn_trainer_plan(old, &plan));
    assert_int_equal(plan.first_step, 2);
    tarn_trainer_free(old);
}

/* What a killed program left of checkpoints that it wrote or removed goes at the next start; a file of the user's
 * stays. */
static void parts_of_kept_checkpoints_never_look_like_one(void **state)
{
    (void)state;
    tarn_train_options options = small(2);
    snprintf(options.out, sizeof(options.out), "%s", scratch("parts"));
    train(&options);
    static const char *const folders[] = {"step-7.dropped", "step-14.new", "step-3"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mkdir(in(options.out, folders[i]), 0700), 0);
        put_file(in(in(options.out, folders[i]), "config.json"), "{}", 2);
        put_file(in(in(options.out, folders[i]), "model.safetensors.next"), "x", 1);
    }
    put_file(in(in(options.out, "step-3"), "mine.txt"), "x", 1);
    tarn__run_folder_drop(options.out, "step-3"); /* which cannot be removed whole */
    assert_ok();
    assert_false(is_there(in(options.out, "step-3")));
    assert_true(is_there(in(options.out, "step-3.dropped/mine.txt")));
    assert_false(is_there(in(options.out, "step-3.dropped/config.json")));
    tarn_trainer *trainer = tarn_trainer_resume(options.out, NULL);
    assert_ok();
    tarn_trainer_free(trainer);
    assert_false(is_there(in(options.out, "step-7.dropped")));
    assert_false(is_there(in(options.out, "step-14.new")));
    assert_true(is_there(in(options.out, "step-3.dropped/mine.txt")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(runs_get_the_next_free_name),
        in_scope(a_run_replaces_another_one),
        in_scope(nothing_but_a_run_is_replaced),
        in_scope(a_run_that_cannot_begin_puts_the_old_one_back),
        in_scope(parts_of_kept_checkpoints_never_look_like_one),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
