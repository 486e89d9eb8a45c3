/* test_data_paths.c: runs that are resumed elsewhere: from another folder, with other instructions. */
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <tarn/train.h>
#include <unistd.h>

#include "support/files.h"

static char before[PATH_MAX];

static int enter_scratch(void **state)
{
    return open_test(state) == 0 && getcwd(before, sizeof(before)) && chdir(scratch(".")) == 0 ? 0 : -1;
}

static int leave_scratch(void **state)
{
    return chdir(before) == 0 ? close_test(state) : -1;
}

static void write_text_data(const char *name)
{
    char text[601];
    for (int i = 0; i < 600; i++)
        text[i] = "to be, or not to be.\n"[i % 21];
    text[600] = 0;
    write_text(name, text);
}

static void train(tarn_trainer *trainer)
{
    if (!trainer || !tarn_trainer_run(trainer, NULL, NULL, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
}

static void a_run_finds_its_data_from_another_folder(void **state)
{
    (void)state;
    mkdir("there", 0700);
    mkdir("here", 0700);
    write_text_data("there/text.txt");
    char rows[900] = "";
    for (int i = 0; i < 60; i++)
        snprintf(rows + strlen(rows), sizeof(rows) - strlen(rows), "%d,%d,%d\n", i % 7, i % 5, i % 2);
    write_text("there/rows.csv", rows);
    assert_int_equal(chdir("there"), 0);
    train(tarn_trainer_new(&(tarn_train_options){.data = "text:text.txt",
                                                 .out = "text",
                                                 .layers = 1,
                                                 .heads = 1,
                                                 .hidden_size = 8,
                                                 .context = 8,
                                                 .batch_size = 4,
                                                 .steps = 3,
                                                 .eval_every = 3,
                                                 .device = "cpu"}));
    train(tarn_trainer_new(
        &(tarn_train_options){.data = "csv:rows.csv", .out = "rows", .batch_size = 10, .steps = 2, .device = "cpu"}));
    assert_int_equal(chdir("../here"), 0);
    for (int64_t steps = 5; steps < 7; steps++) { /* the second time from what the first has written */
        train(tarn_trainer_resume("../there/text", &(tarn_train_options){.steps = steps}));
        train(tarn_trainer_resume("../there/rows", &(tarn_train_options){.steps = steps}));
    }
    tarn_text_evaluation evaluation;
    tarn_run *run = tarn_run_open("../there/text", tarn_device_cpu());
    assert_true(tarn_run_evaluate_text(run, NULL, 4, &evaluation));
    tarn_run_close(run);
    /* Data that is nowhere is asked for; the same elsewhere is taken, other data is not. */
    assert_int_equal(rename("../there/text.txt", "../there/moved.txt"), 0);
    assert_null(tarn_trainer_resume("../there/text", &(tarn_train_options){.steps = 8}));
    assert_error_about(TARN_ERROR_IO, "text.txt', was not found", "give its new path with .data");
    train(tarn_trainer_resume("../there/text", &(tarn_train_options){.steps = 8, .data = "text:../there/moved.txt"}));
    write_text("here/other.txt",
               "be not to be, or to be not to be or to, be to be or be not to be, to be or not to be, be to be.\n");
    assert_null(tarn_trainer_resume("../there/text", &(tarn_train_options){.steps = 9, .data = "text:other.txt"}));
    assert_error(TARN_ERROR_FORMAT, "is not the text that the run was started with");
    assert_int_equal(chdir(".."), 0);
}

static char warning[1000];

static void note(tarn_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == TARN_LOG_WARNING)
        snprintf(warning, sizeof(warning), "%s", text);
}

static void other_instructions_are_warned_of(void **state)
{
    (void)state;
    size_t count;
    tarn_train_options options = {
        .model = "mlp", .data = "digits:60", .out = "level", .batch_size = 20, .steps = 2, .device = "cpu"};
    train(tarn_trainer_new(&options));
    tarn_set_log(note, NULL);
    tarn_trainer_free(tarn_trainer_resume("level", NULL));
    assert_ok();
    assert_string_equal(warning, "");
    drop_checksums("level/trainer.json");
    char *text = get_file("level/trainer.json", &count), *found = strstr(text, "\"instructions\": \"");
    assert_non_null(found);
    found[strlen("\"instructions\": \"")] = 'y';
    put_file("level/trainer.json", text, count);
    free(text);
    tarn_trainer_free(tarn_trainer_resume("level", NULL));
    tarn_set_log(tarn_log_stderr, NULL);
    assert_ok();
    assert_contains(warning, "was started at the instruction level y");
    assert_contains(warning, "will not be bitwise identical");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_run_finds_its_data_from_another_folder, enter_scratch, leave_scratch),
        cmocka_unit_test_setup_teardown(other_instructions_are_warned_of, enter_scratch, leave_scratch),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
