/* test_fallback.c: kernels that a driver does not compile run on the CPU, counted and warned about once; the others
 * stay on the device. */
#include "support/opencl.h"

#include <tarn/profile.h>

static int warnings;
static char last_warning[256], last_note[1024];

static void listen(tarn_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    warnings += level == TARN_LOG_WARNING;
    snprintf(level == TARN_LOG_WARNING ? last_warning : last_note,
             level == TARN_LOG_WARNING ? sizeof(last_warning) : sizeof(last_note), "%s", text);
}

static void a_kernel_that_does_not_compile_runs_on_the_cpu(void **state)
{
    NEEDS_OPENCL();
    tarn_set_log(listen, NULL);
    tarn_tensor *x = good(tarn_from_f32((const float[]){0, 1}, TARN_SHAPE(2), opencl));
    tarn_stats_reset();
    tarn_tensor *y = good(tarn_tanh(x));
    assert_true(tarn_device_equal(tarn_device_of(y), opencl));
    assert_int_equal(tarn_stats().fallbacks, 1);
    assert_int_equal(warnings, 1);
    assert_contains(last_warning, "opencl:0 has no kernel 'tanh'");
    assert_contains(last_note, "disabled by TARN_OPENCL_DISABLE"); /* the driver's own words */
    assert_values(y, 1e-6, 0, 0.7615941559557649);
    last_note[0] = 0;
    good(tarn_tanh(x));
    assert_int_equal(warnings, 1);
    assert_int_equal(tarn_stats().fallbacks, 2);
    assert_string_equal(last_note, ""); /* it was not tried again */
    tarn_set_log(NULL, NULL);
}

static void other_kernels_stay_on_the_device(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = good(tarn_from_f32((const float[]){0, 1}, TARN_SHAPE(2), opencl));
    tarn_stats_reset();
    assert_values(tarn_exp(x), 1e-6, 1, 2.718281828459045);
    assert_int_equal(tarn_stats().fallbacks, 0);
}

/* A product and its gradients, whose results are added to what is there. */
static void a_disabled_matmul_gives_the_right_values(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *a =
        good(tarn_requires_grad(tarn_from_f32((const float[]){1, 2, 3, 4}, TARN_SHAPE(2, 2), opencl), true));
    tarn_stats_reset();
    for (int i = 0; i < 2; i++)
        assert_true(tarn_backward(tarn_sum(tarn_matmul(a, a), TARN_ALL_AXES, false)));
    assert_true(tarn_stats().fallbacks > 0);
    assert_values(tarn_grad(a), 1e-6, 14, 22, 18, 26);
}

/* By the name of a file: the kernels that it holds. */
static void a_disabled_file_disables_its_kernels(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = good(tarn_from_f32((const float[]){1, 3, -2, 2}, TARN_SHAPE(2, 2), opencl));
    tarn_stats_reset();
    assert_values(tarn_rmsnorm(x, NULL, 0), 1e-6, 0.4472135955, 1.3416407865, -1, 1);
    assert_int_equal(tarn_stats().fallbacks, 1);
}

static void the_error_names_the_kernel_where_fallbacks_are_errors(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(2), TARN_F32, opencl));
    tarn_set_fallback(TARN_FALLBACK_ERROR);
    assert_null(tarn_tanh(x));
    assert_error(TARN_ERROR_UNSUPPORTED, "tanh: opencl:0 has no kernel 'tanh', and fallbacks are errors");
    tarn_set_fallback(TARN_FALLBACK_WARN);
    assert_values(tarn_add(x, x), 0, 2, 2);
}

int main(void)
{
    setenv("TARN_OPENCL_DISABLE", "tanh,matmul,layernorm", 1);
    const struct CMUnitTest tests[] = {
        ON_OPENCL(a_kernel_that_does_not_compile_runs_on_the_cpu),
        ON_OPENCL(other_kernels_stay_on_the_device),
        ON_OPENCL(a_disabled_matmul_gives_the_right_values),
        ON_OPENCL(a_disabled_file_disables_its_kernels),
        ON_OPENCL(the_error_names_the_kernel_where_fallbacks_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
