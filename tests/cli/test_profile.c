/* test_profile.c: `tarn bench train` and `tarn train --profile`, end to end. */
#include <sys/stat.h>

#include "formats/json_file.h"
#include "support/command.h"
#include "support/files.h"
#include "support/trace.h"
#include "tarn_features.h"

#define SMALL "--layers 1 --heads 2 --hidden-size 16 --context 8 --device cpu "

static void bench_train_tells_the_parts_of_a_step(void **state)
{
    (void)state;
    static const char *const parts[] = {"step", "batch",       "forward",        "backward",           "update",
                                        "host", "utilization", "of a matmul of", "at most: parameters"};
    assert_int_equal(run_command("bench train --vocab-size 64 --batch 2 --steps 2 --warmup 1 " SMALL), 0);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (!strstr(command_output, parts[i]))
            fail_msg("there is no '%s' in %s", parts[i], command_output);
    expect_command("bench train --model mlp --batch 4 --steps 2 --warmup 0 --device cpu", 0, "images/s");
}

static void bench_train_prints_one_object(void **state)
{
    (void)state;
    static const char *const keys[] = {"step_ms",     "min_step_ms", "tokens_per_second", "batch_ms",    "forward_ms",
                                       "backward_ms", "update_ms",   "host_ms",           "utilization", "tflops",
                                       "of_matmul",   "mfu",         "activations",       "workspace"};
    assert_int_equal(command_objects("bench train --json --vocab-size 64 --batch 4 --micro-batch 2 --steps 2 --warmup "
                                     "1 --precision bf16 " SMALL),
                     1);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char key[40];
        snprintf(key, sizeof(key), "\"%s\": ", keys[i]);
        if (!strstr(command_output, key))
            fail_msg("there is no %s in %s", key, command_output);
    }
    assert_non_null(strstr(command_output, "\"model\": \"gpt2-124m\""));
    assert_non_null(strstr(command_output, "\"micro_batch\": 2"));
}

static void bench_train_refuses_what_is_not_of_a_step(void **state)
{
    (void)state;
    expect_command("help bench train", 0, "--recompute");
    expect_command("help bench", 0, "tarn bench train");
    expect_command("bench train --data digits 2>&1", 2, "--data is not an option of this command");
    expect_command("bench train --epochs 3 2>&1", 2, "--epochs is not an option of this command");
    expect_command("bench train --batch 0 2>&1", 2, "'0' is out of range; must be from 1 to 65536");
    expect_command("bench train --steps 0 2>&1", 2, "'0' is out of range; must be from 1 to 100000");
    expect_command("bench train --model gpt3 2>&1", 2, "tarn bench train: --model");
    expect_command("bench train --precison bf16 2>&1", 2, "did you mean --precision?");
    expect_command("bench train --model mlp --context 8 --device cpu 2>&1", 2, "context applies to language models");
    expect_command("bench train --model mlp --device nowhere 2>&1", 1, "unknown device 'nowhere'");
    expect_command("bench train words 2>&1", 2, "unexpected argument 'words'");
}

static double number_of(const tarn__json_file *document, const char *key)
{
    double value;
    if (!tarn__json_file_real(document, key, &value))
        fail_msg("%s", tarn_error());
    return value;
}

static void a_profile_is_printed_and_written(void **state)
{
    (void)state;
    static const char *const parts[] = {"matmul",         "convolution", "attention", "other kernels",
                                        "captured steps", "transfers",   "waiting",   "host"};
    char arguments[2048], path[1200];
    if (!TARN__HAVE_JANSSON)
        skip();
    snprintf(arguments, sizeof(arguments),
             "train --data digits:200 --model lenet --batch-size 10 --steps 14 --device cpu --out %s --profile "
             "--profile-steps 3",
             scratch("run"));
    expect_command(arguments, 0, "profile of 3 steps");
    assert_non_null(strstr(command_output, "conv2d"));
    assert_non_null(strstr(command_output, "backward"));
    assert_non_null(strstr(command_output, "roofline"));
    assert_non_null(strstr(command_output, "trace.json"));
    snprintf(path, sizeof(path), "%s/profile.json", scratch("run"));
    tarn__json_file *document = tarn__json_file_open("test", path);
    if (!document)
        fail_msg("%s", tarn_error());
    double all = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        char key[40];
        snprintf(key, sizeof(key), "parts.%s", parts[i]);
        all += number_of(document, key);
    }
    assert_true(all > 1 - 1e-6 && all < 1 + 1e-6);
    assert_true(number_of(document, "steps") == 3 && number_of(document, "step_ms") > 0 &&
                number_of(document, "memory.peak") > 0);
    tarn__json_file_free(document);
    snprintf(path, sizeof(path), "%s/trace.json", scratch("run"));
    trace t = read_trace(path);
    assert_int_equal(count_events(&t, TRACE_HOST, "step"), 3);
    assert_nested(&t);
    free_trace(&t);
}

static void a_profile_may_be_quiet_and_is_refused_elsewhere(void **state)
{
    (void)state;
    struct stat file;
    char arguments[2048], path[1200];
    if (!TARN__HAVE_JANSSON)
        skip();
    snprintf(arguments, sizeof(arguments),
             "train --data digits:200 --model mlp --batch-size 10 --steps 3 --device cpu --out %s --profile --quiet",
             scratch("quiet"));
    assert_int_equal(run_command(arguments), 0);
    assert_string_equal(command_output, "");
    snprintf(path, sizeof(path), "%s/profile.json", scratch("quiet"));
    assert_int_equal(stat(path, &file), 0);
    expect_command("train --profile=yes 2>&1", 2, "takes no value: 'yes'");
    expect_command("train --profile-steps 10 2>&1", 2, "--profile-steps needs --profile");
    expect_command("train --profile-steps 0 2>&1", 2, "'0' is out of range; must be from 1 to 10000");
    expect_command("eval x --profile 2>&1", 2, "--profile is not an option of this command");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bench_train_tells_the_parts_of_a_step),
        cmocka_unit_test(bench_train_prints_one_object),
        cmocka_unit_test(bench_train_refuses_what_is_not_of_a_step),
        cmocka_unit_test(a_profile_is_printed_and_written),
        cmocka_unit_test(a_profile_may_be_quiet_and_is_refused_elsewhere),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
