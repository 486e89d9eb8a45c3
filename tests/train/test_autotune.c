/* test_autotune.c: autotuning results of a device are stored in a run's checkpoints, and restored when the run is
 * resumed. */
#include <stdlib.h>
#include <tarn/train.h>

#include "support/files.h"

static void run(tarn_trainer *trainer)
{
    tarn_train_result result;
    assert_non_null(trainer);
    assert_true(tarn_trainer_run(trainer, NULL, NULL, &result));
    tarn_trainer_free(trainer);
}

static tarn_train_options small(const char *folder, const char *device)
{
    tarn_train_options options = {
        .model = "mlp", .data = "digits:60", .mlp_sizes = {8}, .mlp_size_count = 1, .batch_size = 20, .steps = 3};
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    snprintf(options.device, sizeof(options.device), "%s", device);
    return options;
}

static const char *place_of(const char *folder)
{
    static char path[1200];
    snprintf(path, sizeof(path), "%s/trainer.json", scratch(folder));
    return path;
}

/* Whether trainer.json has a text; and puts another of the same length in its place. */
static bool has(const char *folder, const char *text, const char *other)
{
    size_t length;
    if (other)
        drop_checksums(place_of(folder));
    char *place = get_file(place_of(folder), &length), *found = strstr(place, text);
    bool is_there = found != NULL;
    if (found && other) {
        memcpy(found, other, strlen(text));
        put_file(place_of(folder), place, length);
    }
    free(place);
    return is_there;
}

static void tuning_results_are_saved_and_loaded(void **state)
{
    (void)state;
    tarn_train_options options = small("chosen", "mirror:0");
    run(tarn_trainer_new(&options));
    assert_true(has("chosen", "\"mirror 1\"", "\"mirror 7\""));
    run(tarn_trainer_resume(options.out, &(tarn_train_options){.steps = 6}));
    assert_true(has("chosen", "\"mirror 7\"", NULL)); /* the mirror exports what it has imported */
    assert_false(has("chosen", "\"mirror 1\"", NULL));
    run(tarn_trainer_resume(options.out, &(tarn_train_options){.steps = 9, .device = "cpu"})); /* which has none */
    assert_false(has("chosen", "autotune", NULL));
}

static void a_run_without_autotune_results_resumes(void **state)
{
    (void)state;
    tarn_train_options options = small("plain", "cpu");
    run(tarn_trainer_new(&options));
    assert_false(has("plain", "autotune", NULL));
    run(tarn_trainer_resume(options.out, &(tarn_train_options){.steps = 6, .device = "mirror:1"}));
    assert_true(has("plain", "\"autotune\": [", NULL));
}

static void autotune_results_that_are_no_strings_are_errors(void **state)
{
    (void)state;
    tarn_train_options options = small("wrong", "mirror:0");
    run(tarn_trainer_new(&options));
    assert_true(has("wrong", "\"mirror 7\"", "1234567890"));
    assert_null(tarn_trainer_resume(options.out, NULL));
    assert_error_about(TARN_ERROR_FORMAT, "trainer.json", "autotune");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(tuning_results_are_saved_and_loaded),
        in_scope(a_run_without_autotune_results_resumes),
        in_scope(autotune_results_that_are_no_strings_are_errors),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
