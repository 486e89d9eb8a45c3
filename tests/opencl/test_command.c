/* test_command.c: the command on an OpenCL device. TARN_COMMAND names the binary; without it tests are skipped. */
#include "support/command.h"
#include "support/opencl.h"

/* What a step is held against is measured, too: on a CPU at the sizes of a CPU, else it would take minutes. */
static void a_step_is_held_against_what_the_device_can(void **state)
{
    NEEDS_OPENCL();
    tarn_device_info info;
    assert_true(tarn_device_query(opencl, &info));
    expect_command("bench train --layers 1 --heads 2 --width 16 --context 8 --vocab 64 --batch 2 --steps 2 --warmup 0 --device opencl", 0,
                   strcmp(info.type, "cpu") == 0 ? "of a product of 1024 rows" : "of a product of 8192 rows");
}

/* By its name in the warning, and in the error where fallbacks are errors. */
static void a_kernel_that_is_lost_is_named(void **state)
{
    NEEDS_OPENCL();
    setenv("TARN_OPENCL_WITHOUT", "relu", 1);
    expect_command("bench train --model mlp --batch 4 --steps 1 --warmup 0 --device opencl 2>&1", 0, "opencl:0 has no kernel 'relu' for this call; the CPU runs it");
    setenv("TARN_FALLBACK", "error", 1);
    expect_command("bench train --model mlp --batch 4 --steps 1 --warmup 0 --device opencl 2>&1", 1, "opencl:0 has no kernel 'relu', and fallbacks are errors");
    unsetenv("TARN_FALLBACK");
}

/* A word that names nothing is told, not passed over. */
static void what_is_to_be_left_out_has_to_be_there(void **state)
{
    NEEDS_OPENCL();
    setenv("TARN_OPENCL_WITHOUT", "relu,nonsense", 1);
    expect_command("bench train --model mlp --batch 4 --steps 1 --warmup 0 --device opencl 2>&1", 1, "TARN_OPENCL_WITHOUT names 'nonsense', which is neither a kernel");
    unsetenv("TARN_OPENCL_WITHOUT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_OPENCL(a_step_is_held_against_what_the_device_can),
        ON_OPENCL(a_kernel_that_is_lost_is_named),
        ON_OPENCL(what_is_to_be_left_out_has_to_be_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
