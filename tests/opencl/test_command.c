/* test_command.c: the command on an OpenCL device. TARN_COMMAND is the binary; without it tests are skipped. The
 * program itself opens no device: it reads the command's output. */
#include "support/check.h"
#include "support/command.h"

#define NEEDS_OPENCL() \
    do { \
        run_command("info"); \
        if (strstr(command_output, "  opencl:0 ") == NULL) \
            skip(); \
        (void)state; \
    } while (0)

/* Whether opencl:0 is a CPU, by the line below its name. */
static bool is_cpu(void)
{
    run_command("info");
    const char *name = strstr(command_output, "  opencl:0 "), *detail = name ? strchr(name, '\n') : NULL;
    assert_non_null(detail);
    return strncmp(detail + strspn(detail, "\n "), "CPU by ", 7) == 0;
}

/* What a step is held against is measured, too: on a CPU at the sizes of a CPU, else it would take minutes. */
static void a_step_is_compared_with_the_roofline(void **state)
{
    NEEDS_OPENCL();
    const char *text = is_cpu() ? "of a matmul of 1024 rows" : "of a matmul of 8192 rows";
    expect_command(
        "bench train --layers 1 --heads 2 --hidden-size 16 --context 8 --vocab-size 64 --batch 2 --steps 2 --warmup 0 "
        "--device opencl",
        0, text);
}

/* Rows as well: those of a model's sizes took PoCL minutes each. */
static void operations_are_measured_at_the_device_sizes(void **state)
{
    NEEDS_OPENCL();
    const char *text = is_cpu() ? "64 MiB" : "a model's sizes";
    expect_command("bench ops --only tiny --runs 5 --device opencl", 0, text);
}

/* A notice explains the wait, where it is long. */
static void compiling_for_seconds_is_logged_once(void **state)
{
    NEEDS_OPENCL();
    const char *caches[] = {getenv("XDG_CACHE_HOME"), getenv("POCL_CACHE_DIR")};
    char *kept[2] = {caches[0] ? strdup(caches[0]) : NULL, caches[1] ? strdup(caches[1]) : NULL},
         folder[64] = "/tmp/tarn-test-command-XXXXXX", text[160];
    assert_non_null(mkdtemp(folder));
    setenv("XDG_CACHE_HOME", folder, 1);
    setenv("POCL_CACHE_DIR", folder, 1);
    snprintf(text, sizeof(text), "opencl:0: compiling kernels, once; later runs load them from %s/tarn/opencl", folder);
    const bool is_slow = is_cpu(); /* a GPU's driver may be done before */
    run_command("bench train --model lenet --batch 4 --steps 1 --warmup 0 --device opencl 2>&1");
    assert_true(!is_slow || strstr(command_output, text));
    run_command("bench train --model lenet --batch 4 --steps 1 --warmup 0 --device opencl 2>&1");
    assert_null(strstr(command_output, "compiling kernels"));
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "POCL_CACHE_DIR" : "XDG_CACHE_HOME";
        assert_int_equal(kept[i] ? setenv(name, kept[i], 1) : unsetenv(name), 0);
        free(kept[i]);
    }
    snprintf(text, sizeof(text), "rm -r '%s'", folder);
    assert_int_equal(system(text), 0);
}

/* In the warning, and in the error where fallbacks are errors. */
static void a_disabled_kernel_is_named(void **state)
{
    NEEDS_OPENCL();
    setenv("TARN_OPENCL_DISABLE", "relu", 1);
    expect_command("bench train --model mlp --batch 4 --steps 1 --warmup 0 --device opencl 2>&1", 0,
                   "opencl:0 has no kernel 'relu' for this call; the CPU runs it");
    setenv("TARN_FALLBACK", "error", 1);
    expect_command("bench train --model mlp --batch 4 --steps 1 --warmup 0 --device opencl 2>&1", 1,
                   "opencl:0 has no kernel 'relu', and fallbacks are errors");
    unsetenv("TARN_FALLBACK");
}

/* An unknown name in the list is not ignored. */
static void unknown_names_in_the_list_are_errors(void **state)
{
    NEEDS_OPENCL();
    setenv("TARN_OPENCL_DISABLE", "relu,nonsense", 1);
    expect_command("bench train --model mlp --batch 4 --steps 1 --warmup 0 --device opencl 2>&1", 1,
                   "TARN_OPENCL_DISABLE: unknown name 'nonsense'; must be a kernel");
    unsetenv("TARN_OPENCL_DISABLE");
}

/* Nor is an invalid value. */
static void invalid_values_of_variables_are_errors(void **state)
{
    NEEDS_OPENCL();
    static const char *const wrong[][3] = {
        {"TARN_OPENCL_CACHE", "of", "'off' or 'on'"},
        {"TARN_OPENCL_FP64", "no", "'0' or '1'"},
        {"TARN_OPENCL_FP16", "2", "'0' or '1'"},
        {"TARN_OPENCL_SUBGROUPS", "-1", "'0' or '1'"},
        {"TARN_OPENCL_MMA", "off", "'0' or '1'"},
        {"TARN_OPENCL_LOCAL_MEM", "yes", "'1' or '0'"},
        {"TARN_OPENCL_MEMORY", "2G", "an integer, at least 1"},
        {"TARN_OPENCL_WORKGROUP", "0", "an integer, at least 1"},
        {"TARN_OPENCL_LOCAL_BYTES", "-4", "an integer, at least 1"},
        {"TARN_OPENCL_TILE", "large", "an integer, at least 0"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char text[160];
        snprintf(text, sizeof(text), "%s is '%s'; must be %s", wrong[i][0], wrong[i][1], wrong[i][2]);
        setenv(wrong[i][0], wrong[i][1], 1);
        expect_command("train --data digits --device opencl --dry-run 2>&1", 1, text);
        setenv(wrong[i][0], "", 1);
        expect_command("info", 0, "  opencl:0 ");
        unsetenv(wrong[i][0]);
    }
}

/* Variables of earlier versions still work: errors name them as they were set, and the current name wins. */
static void old_names_of_variables_still_work(void **state)
{
    NEEDS_OPENCL();
    static const char *const old[][3] = {
        {"TARN_OPENCL_LOCAL", "yes", "TARN_OPENCL_LOCAL_MEM"},
        {"TARN_OPENCL_GROUP", "0", "TARN_OPENCL_WORKGROUP"},
        {"TARN_OPENCL_GROUP_MEMORY", "-4", "TARN_OPENCL_LOCAL_BYTES"},
    };
    for (size_t i = 0; i < sizeof(old) / sizeof(old[0]); i++) {
        char text[160];
        snprintf(text, sizeof(text), "%s is '%s'; must be ", old[i][0], old[i][1]);
        setenv(old[i][0], old[i][1], 1);
        expect_command("train --data digits --device opencl --dry-run 2>&1", 1, text);
        setenv(old[i][2], "1", 1);
        expect_command("info", 0, "  opencl:0 ");
        unsetenv(old[i][0]);
        unsetenv(old[i][2]);
    }
    setenv("TARN_OPENCL_WITHOUT", "relu", 1);
    expect_command("bench train --model mlp --batch 4 --steps 1 --warmup 0 --device opencl 2>&1", 0,
                   "opencl:0 has no kernel 'relu' for this call; the CPU runs it");
    unsetenv("TARN_OPENCL_WITHOUT");
}

/* The cause is named: here that there is no driver, and that PoCL has no cache folder. */
static void a_missing_driver_is_explained(void **state)
{
    NEEDS_OPENCL();
    if (!is_cpu())
        skip();
    setenv("OCL_ICD_VENDORS", "/nonexistent", 1);
    expect_command("info", 0, "no OpenCL driver found");
    expect_command("train --data digits --device opencl --dry-run 2>&1", 1, "'opencl' is not available: ");
    unsetenv("OCL_ICD_VENDORS");
    setenv("POCL_CACHE_DIR", "/dev/null/here", 1);
    expect_command(
        "info", 0,
        "no device with a compiler found; OpenCL drivers: Portable Computing Language; PoCL needs a writable "
        "folder");
    unsetenv("POCL_CACHE_DIR");
    expect_command("train --data digits --device opencl:9 --dry-run 2>&1", 1,
                   "device opencl:9 not found; available: opencl:0 (");
}

/* Nothing here computes in TF32: a run that said it did would be one of f32. */
static void tf32_is_refused(void **state)
{
    NEEDS_OPENCL();
    expect_command("train --data digits --precision tf32 --device opencl --dry-run 2>&1", 2,
                   "precision tf32 is not supported on opencl");
    expect_command("bench train --model mlp --precision tf32 --device opencl 2>&1", 2,
                   "precision tf32 is not supported on");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_compared_with_the_roofline),
        cmocka_unit_test(operations_are_measured_at_the_device_sizes),
        cmocka_unit_test(compiling_for_seconds_is_logged_once),
        cmocka_unit_test(a_disabled_kernel_is_named),
        cmocka_unit_test(unknown_names_in_the_list_are_errors),
        cmocka_unit_test(invalid_values_of_variables_are_errors),
        cmocka_unit_test(old_names_of_variables_still_work),
        cmocka_unit_test(a_missing_driver_is_explained),
        cmocka_unit_test(tf32_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
