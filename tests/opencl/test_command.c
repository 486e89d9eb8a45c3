/* test_command.c: the command on an OpenCL device. TARN_COMMAND names the binary; without it tests are skipped. This
 * program itself asks for no device: what there is the command says. */
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
static void a_step_is_held_against_what_the_device_can(void **state)
{
    NEEDS_OPENCL();
    const char *text = is_cpu() ? "of a product of 1024 rows" : "of a product of 8192 rows";
    expect_command("bench train --layers 1 --heads 2 --width 16 --context 8 --vocab 64 --batch 2 --steps 2 --warmup 0 "
                   "--device opencl",
                   0, text);
}

/* Rows as well: those of a model's sizes took PoCL minutes each. */
static void operations_are_measured_at_sizes_for_the_device(void **state)
{
    NEEDS_OPENCL();
    const char *text = is_cpu() ? "64 MiB" : "a model's sizes";
    expect_command("bench ops --only tiny --runs 5 --device opencl", 0, text);
}

/* Somebody who waits is told what for, where it takes long. */
static void what_is_compiled_at_first_is_told(void **state)
{
    NEEDS_OPENCL();
    const char *caches[] = {getenv("XDG_CACHE_HOME"), getenv("POCL_CACHE_DIR")};
    char *kept[2] = {caches[0] ? strdup(caches[0]) : NULL, caches[1] ? strdup(caches[1]) : NULL},
         folder[64] = "/tmp/tarn-test-command-XXXXXX", text[160];
    assert_non_null(mkdtemp(folder));
    setenv("XDG_CACHE_HOME", folder, 1);
    setenv("POCL_CACHE_DIR", folder, 1);
    snprintf(text, sizeof(text),
             "opencl:0 compiles its kernels, which takes a while; later runs find them in %s/tarn/opencl", folder);
    const bool is_slow = is_cpu(); /* a GPU's driver may be done before */
    run_command("bench train --model lenet --batch 4 --steps 1 --warmup 0 --device opencl 2>&1");
    assert_true(!is_slow || strstr(command_output, text));
    run_command("bench train --model lenet --batch 4 --steps 1 --warmup 0 --device opencl 2>&1");
    assert_null(strstr(command_output, "compiles its kernels"));
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "POCL_CACHE_DIR" : "XDG_CACHE_HOME";
        assert_int_equal(kept[i] ? setenv(name, kept[i], 1) : unsetenv(name), 0);
        free(kept[i]);
    }
    snprintf(text, sizeof(text), "rm -r '%s'", folder);
    assert_int_equal(system(text), 0);
}

/* By its name in the warning, and in the error where fallbacks are errors. */
static void a_kernel_that_is_lost_is_named(void **state)
{
    NEEDS_OPENCL();
    setenv("TARN_OPENCL_WITHOUT", "relu", 1);
    expect_command("bench train --model mlp --batch 4 --steps 1 --warmup 0 --device opencl 2>&1", 0,
                   "opencl:0 has no kernel 'relu' for this call; the CPU runs it");
    setenv("TARN_FALLBACK", "error", 1);
    expect_command("bench train --model mlp --batch 4 --steps 1 --warmup 0 --device opencl 2>&1", 1,
                   "opencl:0 has no kernel 'relu', and fallbacks are errors");
    unsetenv("TARN_FALLBACK");
}

/* A word that names nothing is told, not passed over. */
static void what_is_to_be_left_out_has_to_be_there(void **state)
{
    NEEDS_OPENCL();
    setenv("TARN_OPENCL_WITHOUT", "relu,nonsense", 1);
    expect_command("bench train --model mlp --batch 4 --steps 1 --warmup 0 --device opencl 2>&1", 1,
                   "TARN_OPENCL_WITHOUT names 'nonsense', which is neither a kernel");
    unsetenv("TARN_OPENCL_WITHOUT");
}

/* Nor is a variable that says what it may not. */
static void variables_say_what_they_may(void **state)
{
    NEEDS_OPENCL();
    static const char *const wrong[][3] = {
        {"TARN_OPENCL_CACHE", "of", "'off' or 'on'"},
        {"TARN_OPENCL_FP64", "no", "'0' or '1'"},
        {"TARN_OPENCL_FP16", "2", "'0' or '1'"},
        {"TARN_OPENCL_SUBGROUPS", "-1", "'0' or '1'"},
        {"TARN_OPENCL_LOCAL", "yes", "'1' or '0'"},
        {"TARN_OPENCL_MEMORY", "2G", "a whole number from 1 on"},
        {"TARN_OPENCL_GROUP", "0", "a whole number from 1 on"},
        {"TARN_OPENCL_GROUP_MEMORY", "-4", "a whole number from 1 on"},
        {"TARN_OPENCL_TILE", "large", "a whole number from 0 on"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char text[160];
        snprintf(text, sizeof(text), "%s is '%s'; it may be %s", wrong[i][0], wrong[i][1], wrong[i][2]);
        setenv(wrong[i][0], wrong[i][1], 1);
        expect_command("train --data digits --device opencl --dry-run 2>&1", 1, text);
        setenv(wrong[i][0], "", 1);
        expect_command("info", 0, "  opencl:0 ");
        unsetenv(wrong[i][0]);
    }
}

/* What keeps a driver from working is named: here that there is none, and that PoCL has no folder. */
static void a_driver_that_is_missing_is_told(void **state)
{
    NEEDS_OPENCL();
    if (!is_cpu())
        skip();
    setenv("OCL_ICD_VENDORS", "/nonexistent", 1);
    expect_command("info", 0, "OpenCL's loader finds no driver");
    expect_command("train --data digits --device opencl --dry-run 2>&1", 1, "'opencl' is not there: ");
    unsetenv("OCL_ICD_VENDORS");
    setenv("POCL_CACHE_DIR", "/dev/null/here", 1);
    expect_command("info", 0,
                   "OpenCL's drivers (Portable Computing Language) offer no device that compiles kernels; PoCL needs a "
                   "folder of its own");
    unsetenv("POCL_CACHE_DIR");
    expect_command("train --data digits --device opencl:9 --dry-run 2>&1", 1,
                   "there is no opencl:9; there is opencl:0 (");
}

/* Nothing here computes in TF32: a run that said it did would be one of f32. */
static void tf32_is_refused(void **state)
{
    NEEDS_OPENCL();
    expect_command("train --data digits --precision tf32 --device opencl --dry-run 2>&1", 2,
                   "precision tf32 is for GPUs that have it; the device is opencl");
    expect_command("bench train --model mlp --precision tf32 --device opencl 2>&1", 2,
                   "precision tf32 is for GPUs that have it");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_held_against_what_the_device_can),
        cmocka_unit_test(operations_are_measured_at_sizes_for_the_device),
        cmocka_unit_test(what_is_compiled_at_first_is_told),
        cmocka_unit_test(a_kernel_that_is_lost_is_named),
        cmocka_unit_test(what_is_to_be_left_out_has_to_be_there),
        cmocka_unit_test(variables_say_what_they_may),
        cmocka_unit_test(a_driver_that_is_missing_is_told),
        cmocka_unit_test(tf32_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
