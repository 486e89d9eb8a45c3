/* test_backend_by_name.c: the command with a backend that no table names: libtarn-mirror.so, found by its file name.
 * TARN_COMMAND names the binary. */
#include "support/command.h"
#include "support/files.h"
#include "tarn_features.h"

static bool has_mirror(void)
{
    return tarn_device_count("mirror") > 0;
}

static void info_and_ops_list_it(void **state)
{
    (void)state;
    if (!has_mirror())
        skip();
    expect_command("info", 0, "  mirror:0 mirror of the CPU, number 0\n");
    assert_non_null(strstr(command_output, "  auto     takes cpu"));
    expect_command("info --json", 0, "{\"name\": \"mirror:1\", \"description\": \"mirror of the CPU, number 1\"");
    expect_command("ops", 0, "opencl   mirror\n");
    setenv("TARN_MIRROR_DISABLE", "softmax_grad", 1);
    expect_command("ops --json", 0, "\"opencl\": false, \"mirror\": true}");
    const char *row = strstr(command_output, "{\"name\": \"softmax\",");
    assert_non_null(row);
    const char *end = strstr(row, "\"mirror\": ");
    assert_true(end && strncmp(end, "\"mirror\": false}", 16) == 0);
    unsetenv("TARN_MIRROR_DISABLE");
}

/* By its priority, which it has as a GPU only. */
static void auto_selects_it_by_priority(void **state)
{
    (void)state;
    if (!has_mirror())
        skip();
    setenv("TARN_MIRROR_GPU", "1", 1);
    expect_command("info", 0, "  auto     takes mirror:0");
    setenv("TARN_MIRROR_UNUSABLE", "1", 1);
    expect_command("info", 0, "  auto     takes mirror:1");
    unsetenv("TARN_MIRROR_UNUSABLE");
    expect_command("bench ops --device mirror --only matmul --runs 5 --sizes 4KiB --json", 0, "\"dtype\": \"tf32\"");
    unsetenv("TARN_MIRROR_GPU");
    assert_int_equal(command_objects("bench ops --device mirror --only add --runs 5 --sizes 4KiB --json"), 2 * 2);
    assert_null(strstr(command_output, "tf32"));
}

static void it_benchmarks_trains_and_generates(void **state)
{
    (void)state;
    char text[4096] = "", trained[4096];
    if (!has_mirror() || !TARN__HAVE_JANSSON)
        skip();
    assert_int_equal(command_objects("bench matmul --sizes 16 --runs 5 --device mirror --json"), 1);
    for (int i = 0; i < 100; i++)
        strcat(text, "the cat sat on the mat. ");
    const char *data = write_text("text.txt", text);
    static const char *const devices[] = {"cpu", "mirror:1"};
    for (int i = 0; i < 2; i++) {
        expect_command(command_line("train --data text:%s --tokenizer bytes --layers 1 --heads 2 --hidden-size 16 "
                                    "--context 12 --batch-size 4 --steps 5 --device %s --out %s",
                                    data, devices[i], scratch(i ? "mirror" : "cpu")),
                       0, "");
        expect_command(command_line("generate %s \"the \" --max-tokens 8 --temperature 0 --device %s",
                                    scratch(i ? "mirror" : "cpu"), devices[i]),
                       0, "");
        if (i)
            assert_string_equal(command_output, trained);
        snprintf(trained, sizeof(trained), "%s", command_output);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(info_and_ops_list_it),
        cmocka_unit_test(auto_selects_it_by_priority),
        in_scope(it_benchmarks_trains_and_generates),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
