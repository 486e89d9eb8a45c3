/* test_mirror_fallback.c: a kernel that a backend lacks runs on the CPU: counted, warned about once, and correct for
 * any layout. */
#include <tarn/profile.h>

#include "support/check.h"

static int warnings;
static char last_warning[256];

static void listen(tarn_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    warnings += level == TARN_LOG_WARNING;
    snprintf(last_warning, sizeof(last_warning), "%s", text);
}

static tarn_device mirror(void)
{
    return tarn_device_parse("mirror:0");
}

/* This program's first call: nothing has touched the CPU before. */
static void the_first_kernel_may_be_a_fallback(void **state)
{
    (void)state;
    tarn_set_log(listen, NULL);
    tarn_tensor *x = good(tarn_from_f32((const float[]){0, 1}, TARN_SHAPE(2), mirror()));
    tarn_stats_reset();
    tarn_tensor *y = good(tarn_tanh(x));
    assert_true(tarn_device_equal(tarn_device_of(y), mirror()));
    tarn_counters counters = tarn_stats();
    assert_int_equal(counters.fallbacks, 1);
    assert_int_equal(counters.kernels_on[0], 1);
    assert_int_equal(counters.uploads, 1);
    assert_true(counters.downloads >= 1);
    assert_int_equal(warnings, 1);
    assert_contains(last_warning, "mirror:0 has no kernel 'tanh'");
    assert_values(y, 1e-6, 0, 0.7615941559557649);
    good(tarn_tanh(x));
    assert_int_equal(warnings, 1);
    assert_int_equal(tarn_stats().fallbacks, 2);
}

static void another_kernel_warns_again(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_from_f32((const float[]){0, 1}, TARN_SHAPE(2), mirror()));
    assert_values(tarn_add(x, x), 0, 0, 2);
    assert_int_equal(warnings, 2);
    assert_contains(last_warning, "'add'");
}

static void any_layout_falls_back(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_reshape(tarn_arange(0, 12, 1, TARN_F32, mirror()), TARN_SHAPE(3, 4)));
    /* [[7 11] [6 10] [5 9] [4 8]] */
    tarn_tensor *part = good(tarn_slice(tarn_flip(tarn_transpose(x, 0, 1), TARN_AXES(0)), 1, 1, 3));
    assert_values(tarn_add(part, part), 0, 14, 22, 12, 20, 10, 18, 8, 16);
    assert_values(tarn_add(part, tarn_expand(tarn_slice(part, 0, 0, 1), TARN_SHAPE(4, 2))), 0, 14, 22, 13, 21, 12, 20,
                  11, 19);
    assert_values(tarn_add(x, tarn_scalar(1)), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12);
    assert_ptr_equal(tarn_add_inplace(part, part), part); /* only these elements of x change */
    assert_values(x, 0, 0, 1, 2, 3, 8, 10, 12, 14, 16, 18, 20, 22);
    assert_int_equal(tarn_count(good(tarn_add(tarn_zeros(TARN_SHAPE(0, 3), TARN_F32, mirror()), tarn_scalar(1)))), 0);
    assert_values(tarn_tanh(tarn_zeros(TARN_SCALAR, TARN_F32, mirror())), 0, 0);
}

/* Gradients of q, k and v are packed in one tensor: each is computed without overwriting the others. */
static void packed_gradients(tarn_device device, const float *values, float *gradients)
{
    tarn_tensor *x = good(tarn_requires_grad(tarn_from_f32(values, TARN_SHAPE(2, 5, 12), device), true));
    tarn_tensor *y = good(tarn_attention_packed(x, 1, 1, (&(tarn_attention_options){.causal = true})));
    assert_true(tarn_backward(tarn_sum(tarn_square(y), TARN_AXES(0, 1, 2), false)));
    assert_true(tarn_read_f32(tarn_grad(x), gradients, 120));
}

static void results_in_one_storage_fall_back_together(void **state)
{
    (void)state;
    float values[120], expected[120], found[120];
    for (int i = 0; i < 120; i++)
        values[i] = (float)(i * 7 % 13) / 6 - 1;
    packed_gradients(tarn_device_cpu(), values, expected);
    tarn_stats_reset();
    packed_gradients(mirror(), values, found);
    assert_true(tarn_stats().fallbacks >= 1);
    assert_memory_equal(found, expected, sizeof(found));
}

static void gradients_fall_back_too(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(tarn_zeros(TARN_SHAPE(2), TARN_F32, mirror()), true));
    tarn_tensor *y = good(tarn_add(tarn_tanh(x), x));
    assert_true(tarn_backward_from(y, tarn_ones_like(y), NULL));
    assert_values(tarn_grad(x), 1e-6, 2, 2);
}

static void a_fallback_can_be_an_error(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(2), TARN_F32, mirror()));
    tarn_set_fallback(TARN_FALLBACK_ERROR);
    assert_null(tarn_tanh(x));
    assert_contains(tarn_error(), "mirror:0 has no kernel 'tanh'");
    assert_error(TARN_ERROR_UNSUPPORTED, "tanh: ");
    assert_values(tarn_mul(x, x), 0, 1, 1); /* the others go on */
    tarn_set_fallback(TARN_FALLBACK_WARN);
    good(tarn_tanh(x));
}

static void what_a_backend_lacks_can_be_asked(void **state)
{
    (void)state;
    assert_false(tarn_op_on(tarn_op_find("tanh"), "mirror", false));
    assert_true(tarn_op_on(tarn_op_find("tanh"), "cpu", false));
    assert_true(tarn_op_on(tarn_op_find("mul"), "mirror", false));
    assert_false(tarn_op_on(tarn_op_find("tanh"), "nosuch", false));
}

int main(void)
{
    setenv("TARN_MIRROR_DISABLE", "tanh,add,attention_grad,nosuchkernel", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_kernel_may_be_a_fallback),
        in_scope(another_kernel_warns_again),
        in_scope(any_layout_falls_back),
        in_scope(gradients_fall_back_too),
        in_scope(results_in_one_storage_fall_back_together),
        in_scope(a_fallback_can_be_an_error),
        in_scope(what_a_backend_lacks_can_be_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
