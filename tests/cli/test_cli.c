/* test_cli.c: the command end to end: output, streams and exit status. TARN_COMMAND names the binary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tarn/tarn.h>
#include <unistd.h>

#include "support/command.h"

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void help_explains_every_command(void **state)
{
    (void)state;
    expect_command("help", 0, "tarn bench matmul");
    expect_command("--help", 0, "usage: tarn COMMAND");
    expect_command("-h", 0, "usage: tarn COMMAND");
    expect_command("help info", 0, "--json");
    expect_command("info --help", 0, "usage: tarn info");
    expect_command("ops -h", 0, "usage: tarn ops");
    expect_command("help bench", 0, "tarn bench ops");
    expect_command("bench --help", 0, "tarn bench ops");
    expect_command("help bench ops", 0, "4KiB,1MiB,64MiB");
    expect_command("bench weights --help", 0, "quantized types, bf16 or f32");
    expect_command("bench weights --only q9_0 2>&1", 2, "'q9_0' must be a quantized type");
    expect_command("bench matmul --help", 0, "128,256,512,1024,2048,4096");
    expect_command("bench ops --help --nonsense", 0, "--only");
}

static void version_is_the_library_s(void **state)
{
    (void)state;
    expect_command("version", 0, tarn_version());
    expect_command("--version", 0, tarn_version());
    expect_command("version now 2>&1", 2, "unexpected argument");
}

static void wrong_calls_end_with_2_and_say_so_on_standard_error(void **state)
{
    (void)state;
    expect_command("2>&1 >/dev/null", 2, "usage: tarn COMMAND");
    expect_command("inof 2>&1 >/dev/null", 2, "did you mean 'info'?");
    expect_command("bench 2>&1 >/dev/null", 2, "bench matmul");
    expect_command("bench opps 2>&1 >/dev/null", 2, "did you mean 'bench ops'?");
    expect_command("help nothing-like-it 2>&1 >/dev/null", 2, "see tarn help");
    expect_command("info --jsn 2>&1 >/dev/null", 2, "did you mean --json?");
    expect_command("info --quux 2>&1 >/dev/null", 2, "unknown option --quux");
    expect_command("info --sizes 4 2>&1 >/dev/null", 2, "--sizes is not an option of this command");
    expect_command("ops --device cpu 2>&1 >/dev/null", 2, "--device is not an option of this command");
    expect_command("info more 2>&1 >/dev/null", 2, "unexpected argument 'more'");
    expect_command("info --json=yes 2>&1 >/dev/null", 2, "takes no value: 'yes'");
    assert_int_equal(run_command("info --jsn 2>/dev/null"), 2);
    assert_string_equal(command_output, "");
}

static void what_was_meant_is_suggested_and_never_a_guess(void **state)
{
    (void)state;
    expect_command("help version", 0, "usage: tarn version");
    expect_command("help help", 0, "usage: tarn help [COMMAND]");
    expect_command("version --help", 0, "usage: tarn version");
    expect_command("-v 2>&1", 2, "unknown option '-v'; did you mean 'tarn version'?");
    expect_command("trian 2>&1", 2, "did you mean 'train'?");
    expect_command("finetune 2>&1", 2, "did you mean 'train'?");
    expect_command("evaluate 2>&1", 2, "did you mean 'eval'?");
    expect_command("download 2>&1", 2, "unknown command 'download'; tarn pull ORG/NAME downloads a model");
    assert_null(strstr(command_output, "did you mean"));
    expect_command("xyzzy 2>&1", 2, "see tarn help");
    expect_command("generate model --max_new_tokens 3 2>&1", 2, "did you mean --max-tokens?");
    expect_command("generate model -n 3 2>&1", 2, "unknown option -n; did you mean --n?");
    expect_command("generate model --temp 1 2>&1", 2, "did you mean --temperature?");
    expect_command("generate model --repetition_penalty 1 2>&1", 2, "did you mean --repeat-penalty?");
    expect_command("generate model --prompt x 2>&1", 2, "unknown option --prompt; give it without a flag");
    expect_command("generate model --lr 1 2>&1", 2, "--lr is not an option of this command");
    expect_command("chat model --ctx-size 9 2>&1", 2, "did you mean --context?");
}

static void errors_name_no_function_of_the_library(void **state)
{
    (void)state;
    static const char *const calls[] = {"generate /nosuch x",
                                        "chat /nosuch",
                                        "eval /nosuch",
                                        "predict /nosuch x.png",
                                        "inspect /nosuch",
                                        "convert /nosuch x.gguf",
                                        "quantize /nosuch x.gguf --type q8_0",
                                        "tokenize --tokenizer /nosuch --text x",
                                        "runs /nosuch",
                                        "train --resume /nosuch",
                                        "train --data digits:3 --dry-run",
                                        "train --data text:/nosuch --dry-run",
                                        "train --model /nosuch --data text:/nosuch --dry-run",
                                        "bench decode --model nosuch",
                                        "bench train --model nosuch",
                                        "info --threads 300",
                                        "data /nosuch --model /nosuch",
                                        "bench matmul --device nowhere"};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        char line[256];
        snprintf(line, sizeof(line), "%s 2>&1", calls[i]);
        assert_int_not_equal(run_command(line), 0);
        for (const char *at = strstr(command_output, ": "); at; at = strstr(at + 2, ": ")) {
            size_t length = strspn(at + 2, "abcdefghijklmnopqrstuvwxyz_0123456789");
            if (length > 0 && memchr(at + 2, '_', length) && at[2 + length] == ':')
                fail_msg("tarn %s names a function: %s", calls[i], command_output);
        }
    }
    expect_command("train --schedule step --lr-step 2 --lr-step-epochs 2 --data digits:50 --dry-run 2>&1", 2,
                   "--lr-step or --lr-step-epochs, not both");
}

static void a_name_from_a_hub_is_pulled_first(void **state)
{
    (void)state;
    expect_command("generate some-org/some-model hello 2>&1", 1, "folder 'some-org/some-model' not found");
    assert_non_null(strstr(command_output, "download it first: tarn pull some-org/some-model"));
    expect_command("tokenize --tokenizer some-org/some-model --text x 2>&1", 1, "tarn pull some-org/some-model");
    expect_command("generate https://example.org/model hello 2>&1", 1, "is a URL; give a folder or .gguf file");
    expect_command("convert some-org/some-model x.gguf 2>&1", 1, "tarn pull some-org/some-model");
    expect_command("eval some-org/some-model 2>&1", 1, "tarn pull some-org/some-model");
    expect_command("predict some-org/some-model x.png 2>&1", 1, "tarn pull some-org/some-model");
    expect_command("generate /nosuch hello 2>&1", 1, "'/nosuch' not found; a model's folder or .gguf file is expected");
}

static void values_out_of_bounds_are_refused(void **state)
{
    (void)state;
    expect_command("info --threads 257 2>&1", 2, "'257' is out of range; must be from 0 to 256");
    expect_command("info --threads=-1 2>&1", 2, "'-1' is out of range; must be from 0 to 256");
    expect_command("info --threads 99999999999999999999 2>&1", 2, "is out of range; must be from 0 to 256");
    expect_command("info --threads two 2>&1", 2, "'two' is not an integer");
    expect_command("info --threads 2>&1", 2, "--threads needs a value");
    expect_command("info --threads '' 2>&1", 2, "is empty");
    expect_command("bench matmul --sizes 0 2>&1", 2, "'0' is out of range; must be from 1 to 32768");
    expect_command("bench matmul --sizes 64,,128 2>&1", 2, "is not an integer");
    expect_command("bench matmul --dtype i32 2>&1", 2, "must be f32, f64, bf16 or f16");
    expect_command("bench matmul --dtype f32,f64 2>&1", 2, "has several element types");
    expect_command("bench matmul --runs 4 2>&1", 2, "'4' is out of range; must be from 5 to 1000");
    expect_command("bench ops --sizes 4KB 2>&1", 2, "is not a size");
    expect_command("bench ops --sizes 9GiB 2>&1", 2, "is out of range; must be from 256 to");
    expect_command("bench ops --sizes modle 2>&1", 2, "expected 4096, 4KiB, 64MiB or model");
    expect_command("bench ops --dtypes tf16 2>&1", 2, "must be f32, f64, bf16, f16 or tf32");
    expect_command("bench matmul --dtype tf32 2>&1", 2, "must be f32, f64, bf16 or f16");
    expect_command("bench matmul --sizes model 2>&1", 2, "'model' is not an integer");
    expect_command("bench ops --only tahn 2>&1", 2, "did you mean 'tanh'?");
}

static void a_device_that_is_not_there_is_a_failure_that_says_why(void **state)
{
    (void)state;
    expect_command("bench matmul --sizes 8 --device nowhere:0 2>&1 >/dev/null", 1,
                   "unknown device 'nowhere'; must be auto, cpu, cuda, opencl or mirror, with an index as in cuda:1");
    expect_command("bench matmul --sizes 8 --device cpu:5 2>&1 >/dev/null", 1, "cpu:5");
    expect_command("bench matmul --sizes 8 --device=3 2>&1 >/dev/null", 1, "--device");
    expect_command("bench ops --device cpu,nowhere 2>&1 >/dev/null", 1, "unknown device 'nowhere'");
}

static void devices_that_cannot_be_compared_are_refused(void **state)
{
    (void)state;
    expect_command("bench ops --device cpu,cpu 2>&1 >/dev/null", 2, "'cpu' is given twice");
    expect_command("bench ops --device cpu,mirror:0,mirror:1 2>&1 >/dev/null", 2, "names more than two devices");
    expect_command("bench matmul --sizes 8 --device cpu,mirror 2>&1 >/dev/null", 2, "names several devices");
    expect_command("bench ops --device cpu,mirror --sizes 4KiB 2>&1 >/dev/null", 2, "--sizes needs one device");
    expect_command("bench ops --device cpu,mirror --only tiny 2>&1 >/dev/null", 2, "'tiny' not found");
}

static void info_tells_devices_and_what_is_missing(void **state)
{
    (void)state;
    expect_command("info", 0, "auto");
    expect_command("info", 0, "kernels");
    expect_command("info --threads 3", 0, "threads  3");
    assert_int_equal(command_objects("info --json"), 1);
    assert_non_null(strstr(command_output, "\"version\": \""));
    assert_non_null(strstr(command_output, "\"features\": {"));
    assert_non_null(strstr(command_output, "\"devices\": [{\"name\": \"cpu\""));
    assert_non_null(strstr(command_output, "\"missing\": {"));
}

static void ops_lists_the_variants_of_every_kernel(void **state)
{
    (void)state;
    expect_command("ops --variants", 0,
                   "kernel                       backend  order    variant    calls      dtypes\n");
    assert_non_null(
        strstr(command_output, "\nsoftmax                      cpu      1 of 1   -          all        f32 "));
    expect_command("ops --variants --json", 0,
                   "{\"kernel\": \"softmax\", \"backend\": \"cpu\", \"number\": 1, \"count\": 1, \"variant\": null, "
                   "\"fits_all\": true, \"dtypes\": [\"f32\", ");
    assert_true(command_objects("ops --variants --json") >= tarn_kernel_count() / 2);
}

static void ops_lists_every_operation(void **state)
{
    (void)state;
    expect_command("ops", 0, "softmax");
    assert_int_equal(command_objects("ops --json"), tarn_op_count());
    for (int i = 0; i < tarn_op_count(); i++) {
        tarn_op_info info;
        char text[128];
        assert_true(tarn_op_at(i, &info));
        snprintf(text, sizeof(text), "{\"name\": \"%s\", \"differentiable\": %s, \"cpu\": true, ", info.name,
                 info.differentiable ? "true" : "false");
        if (!strstr(command_output, text))
            fail_msg("tarn ops --json has no line that begins with %s", text);
    }
}

/* The mirror backend instead of CUDA, in a search path of its own; false without TARN_COMMAND. */
static char fake_folder[32], fake_file[64], path_before[512], names_before[128];

static bool fake_cuda(void)
{
    const char *path = getenv("TARN_BACKEND_PATH"), *names = getenv("TARN_BACKENDS");
    char from[600];
    if (!path || !getenv("TARN_COMMAND"))
        return false;
    snprintf(path_before, sizeof(path_before), "%s", path);
    snprintf(names_before, sizeof(names_before), "%s", names ? names : "");
    snprintf(fake_folder, sizeof(fake_folder), "/tmp/tarn-test-XXXXXX");
    assert_non_null(mkdtemp(fake_folder));
    snprintf(from, sizeof(from), "%.*s/libtarn-mirror.so", (int)strcspn(path_before, ":"), path_before);
    snprintf(fake_file, sizeof(fake_file), "%s/libtarn-cuda.so", fake_folder);
    assert_int_equal(symlink(from, fake_file), 0);
    setenv("TARN_BACKEND_PATH", fake_folder, 1);
    setenv("TARN_BACKENDS", "cuda", 1);
    return true;
}

static void remove_fake_cuda(void)
{
    setenv("TARN_BACKENDS", names_before, 1);
    setenv("TARN_BACKEND_PATH", path_before, 1);
    remove(fake_file);
    rmdir(fake_folder);
}

/* Listed without a device, and with a device it cannot run on. */
static void a_backend_without_a_usable_device_is_listed_with_the_reason(void **state)
{
    (void)state;
    if (!fake_cuda())
        skip();
    setenv("TARN_MIRROR_DEVICELESS", "no GPU is plugged in", 1);
    expect_command("ops --json", 0,
                   "{\"name\": \"softmax\", \"differentiable\": true, \"cpu\": true, \"cuda\": true, ");
    expect_command("ops", 0, "cuda: built, but no device can be used: ");
    assert_non_null(strstr(command_output, "no GPU is plugged in"));
    expect_command("info", 0, "no GPU is plugged in");
    expect_command("bench matmul --sizes 8 --device cuda 2>&1", 1, "no GPU is plugged in");
    unsetenv("TARN_MIRROR_DEVICELESS");
    setenv("TARN_MIRROR_UNUSABLE", "1", 1);
    setenv("TARN_MIRROR_GPU", "1", 1);
    expect_command("info", 0, "cuda:0   cuda:0 cannot be used: it is of another kind than this build has code for");
    assert_non_null(strstr(command_output, "takes cuda:1"));
    expect_command("info --json", 0, "{\"name\": \"cuda:0\", \"unusable\": \"cuda:0 cannot be used: ");
    expect_command("bench matmul --sizes 8 --device cuda:0 2>&1", 1,
                   "--device: cuda:0 cannot be used: it is of another kind");
    unsetenv("TARN_MIRROR_UNUSABLE");
    unsetenv("TARN_MIRROR_GPU");
    remove_fake_cuda();
}

/* TARN_BACKENDS keeps `auto` from a GPU. */
static void a_hidden_backend_is_not_used(void **state)
{
    (void)state;
    if (!fake_cuda())
        skip();
    setenv("TARN_MIRROR_GPU", "1", 1);
    expect_command("info", 0, "  auto     takes cuda:0");
    setenv("TARN_BACKENDS", "cpu,mirror", 1);
    expect_command("info", 0, "  cuda     not here: hidden, since TARN_BACKENDS is 'cpu,mirror'\n");
    assert_non_null(strstr(command_output, "  auto     takes cpu"));
    expect_command("ops", 0, "cuda: not available: hidden, since");
    expect_command("bench matmul --sizes 8 --device cuda 2>&1", 1,
                   "--device: 'cuda' is not available: hidden, since TARN_BACKENDS is 'cpu,mirror'");
    expect_command("train --data digits --dry-run 2>&1", 0, "chosen by auto (cuda, opencl missing)");
    unsetenv("TARN_MIRROR_GPU");
    remove_fake_cuda();
}

static void bench_matmul_measures(void **state)
{
    (void)state;
    assert_int_equal(command_objects("bench matmul --sizes 16,24 --runs 5 --threads 2 --json"), 2);
    assert_non_null(
        strstr(command_output,
               "\"op\": \"matmul\", \"dtype\": \"f32\", \"shape\": [16, 16, 16], \"threads\": 2, \"fwd_us\": "));
    assert_int_equal(command_objects("bench matmul --sizes 16 --runs 5 --dtype bf16 --device cpu --json"), 1);
    assert_non_null(strstr(command_output, "\"blas_us\": null"));
    expect_command("bench matmul --sizes 16 --runs 5 --dtype=f64", 0, "tarn/BLAS");
}

static void bench_ops_measures(void **state)
{
    (void)state;
    int rows = command_objects("bench ops --sizes 1KiB,4KiB --dtypes f32,bf16 --only "
                               "add,cmplt,sum-last,softmax,embedding,tiny --runs 5 --device cpu --json");
    assert_int_equal(rows, 2 * 2 * 6 + 1); /* add has a broadcast row too */
    assert_non_null(strstr(command_output, "\"device\": \"cpu\""));
    assert_non_null(strstr(command_output, "\"both_us\": "));
    assert_non_null(strstr(command_output, "\"op\": \"add-broadcast-row\", \"dtype\": \"bf16\", \"shape\": [["));
    assert_non_null(strstr(command_output, "\"fwd_of_copy\": "));
    assert_non_null(strstr(command_output, "\"bwd_of_copy\": "));
    expect_command("bench ops --sizes 1KiB --only tanh --runs 5 --dtypes f32", 0, "backward");
    assert_null(strchr(command_output, '\033'));                                      /* no colours in a pipe */
    expect_command("bench ops --sizes 4KiB --only copy 2>&1", 2, "'copy' not found"); /* only at model sizes */
}

/* Bytes of an addition's gradients: none where the gradient is passed on; a broadcast row's have the operand's
 * dtype. */
static void bench_ops_counts_the_bytes_of_gradients_in_their_operand_s_dtype(void **state)
{
    (void)state;
    /* mul has a broadcast row */
    assert_int_equal(
        command_objects(
            "bench ops --sizes 4KiB --dtypes bf16 --only add-broadcast-row,mul,clone --runs 5 --json --device cpu"),
        4);
    assert_non_null(strstr(command_output, "\"bwd_bytes\": 20480")); /* mul: 5 × 4 KiB */
    assert_non_null(strstr(command_output, "\"bwd_bytes\": 4096"));  /* broadcast row: the gradient is read */
    const char *clone = strstr(command_output, "\"op\": \"clone\"");
    assert_non_null(clone);
    assert_non_null(strstr(clone, "\"bwd_us\": "));
    assert_null(strstr(clone, "bwd_bytes"));
}

static void bench_ops_measures_products_in_tf32_and_nothing_else(void **state)
{
    (void)state;
    assert_int_equal(
        command_objects(
            "bench ops --sizes 4KiB --dtypes f32,tf32 --only matmul,linear,exp --runs 5 --json --device cpu"),
        4 + 1 + 4);
    assert_non_null(strstr(command_output, "\"op\": \"linear\", \"dtype\": \"tf32\", \"shape\": [32, 32, 32], "));
    assert_null(strstr(command_output, "\"op\": \"exp\", \"dtype\": \"tf32\""));
}

static void bench_ops_compares_two_devices(void **state)
{
    (void)state;
    assert_int_equal(command_objects("bench ops --device cpu,mirror --only add,argmax --runs 5 --json"), 3 * 3);
    assert_non_null(strstr(command_output, "{\"devices\": [\"cpu\", \"mirror:0\"], \"op\": \"add\", \"dtype\": "
                                           "\"f32\", \"shape\": [16, 1024], \"fwd_us\": ["));
    assert_non_null(strstr(command_output, "\"shape\": [1024, 1024]"));
    assert_non_null(strstr(command_output, "\"bwd_us\": [null, null]")); /* of argmax */
    expect_command("bench ops --device mirror,cpu --only sum-last --runs 5 --dtypes bf16", 0, "128 rows of 1024");
}

/* Devices other than the CPU are measured at model sizes. */
static void bench_ops_measures_at_the_sizes_of_a_model(void **state)
{
    (void)state;
    assert_int_equal(
        command_objects("bench ops --device mirror --only rmsnorm,tiny --dtypes bf16,tf32 --runs 5 --json"), 2);
    assert_non_null(strstr(command_output, "\"op\": \"rmsnorm\", \"dtype\": \"bf16\", \"shape\": [32768, 768], "));
    assert_non_null(strstr(command_output, "\"bwd_bytes\": 150994944"));
    assert_non_null(strstr(command_output, "\"bwd_copy_us\": "));
    expect_command("bench ops --device mirror --only tiny", 0, "a model's sizes");
}

static void output_that_cannot_be_written_is_a_failure(void **state)
{
    (void)state;
    if (access("/dev/full", W_OK) != 0)
        skip();
    expect_command("ops 2>&1 >/dev/full", 1, "cannot write the output");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_explains_every_command),
        cmocka_unit_test(version_is_the_library_s),
        cmocka_unit_test(wrong_calls_end_with_2_and_say_so_on_standard_error),
        cmocka_unit_test(what_was_meant_is_suggested_and_never_a_guess),
        cmocka_unit_test(errors_name_no_function_of_the_library),
        cmocka_unit_test(a_name_from_a_hub_is_pulled_first),
        cmocka_unit_test(values_out_of_bounds_are_refused),
        cmocka_unit_test(a_device_that_is_not_there_is_a_failure_that_says_why),
        cmocka_unit_test(devices_that_cannot_be_compared_are_refused),
        cmocka_unit_test(info_tells_devices_and_what_is_missing),
        cmocka_unit_test(ops_lists_every_operation),
        cmocka_unit_test(ops_lists_the_variants_of_every_kernel),
        cmocka_unit_test(a_backend_without_a_usable_device_is_listed_with_the_reason),
        cmocka_unit_test(a_hidden_backend_is_not_used),
        cmocka_unit_test(bench_matmul_measures),
        cmocka_unit_test(bench_ops_measures),
        cmocka_unit_test(bench_ops_counts_the_bytes_of_gradients_in_their_operand_s_dtype),
        cmocka_unit_test(bench_ops_measures_products_in_tf32_and_nothing_else),
        cmocka_unit_test(bench_ops_compares_two_devices),
        cmocka_unit_test(bench_ops_measures_at_the_sizes_of_a_model),
        cmocka_unit_test(output_that_cannot_be_written_is_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
