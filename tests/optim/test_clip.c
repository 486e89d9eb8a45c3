/* Clipping: the norm of all gradients, the factor that steps take from the device, bounds on elements, and which
 * gradient is not finite. */
#include "base/memory.h"
#include "support/check.h"

static tarn_device cpu;

enum { WIDE = 40000 }; /* more than one chunk of a sum */

static double gradient(int64_t i, int which)
{
    return sin(0.37 * (double)i + which) * (1 + which);
}

/* Three parameters: a large matrix, a vector, one without elements. */
static tarn_module *module_on(tarn_device device, tarn_dtype dtype)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_module *module = tarn_module_new("three", unchanged, NULL, NULL);
    tarn_module_add_parameter(module, "large",
                              tarn_cast(tarn_ones(TARN_SHAPE(WIDE / 100, 100), TARN_F32, device), dtype));
    tarn_module_add_parameter(module, "nothing", tarn_ones(TARN_SHAPE(0, 3), dtype, device));
    tarn_module_add_parameter(module, "small", tarn_ones(TARN_SHAPE(7), dtype, device));
    tarn_scope_close(scope);
    assert_ok();
    return module;
}

static void give(tarn_module *module, const char *name, int which)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *parameter = tarn_module_find(module, name);
    int64_t count = tarn_count(parameter);
    double *values = malloc(sizeof(double) * (size_t)(count + 1));
    for (int64_t i = 0; i < count; i++)
        values[i] = gradient(i, which);
    tarn_tensor *from = tarn_cast(tarn_from_f64(values, tarn_shape_of(parameter), cpu), tarn_dtype_of(parameter));
    tarn_backward_from(parameter, tarn_to(from, tarn_device_of(parameter)), NULL);
    free(values);
    tarn_scope_close(scope);
    assert_ok();
}

static void give_all(tarn_module *module)
{
    give(module, "large", 1);
    give(module, "nothing", 0);
    give(module, "small", 2);
}

static double squares(int64_t count, int which)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += gradient(i, which) * gradient(i, which);
    return sum;
}

static double norm_of_all(void)
{
    return sqrt(squares(WIDE, 1) + squares(7, 2));
}

static void the_norm_is_that_of_all_gradients_together(void **state)
{
    (void)state;
    static const double tolerance[] = {1e-6, 1e-13, 1e-2, 1e-3};
    for (tarn_dtype dtype = TARN_F32; dtype <= TARN_F16; dtype++) {
        tarn_module *module = module_on(cpu, dtype);
        tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 1});
        assert_true(tarn_item(good(tarn_optimizer_clip_norm(sgd, INFINITY))) == 0);
        tarn_optimizer_zero_grad(sgd);
        give_all(module);
        tarn_tensor *norm = good(tarn_optimizer_clip_norm(sgd, INFINITY));
        assert_int_equal(tarn_rank(norm), 0);
        assert_int_equal(tarn_dtype_of(norm), dtype == TARN_F64 ? TARN_F64 : TARN_F32);
        assert_true(fabs(tarn_item(norm) - norm_of_all()) <= tolerance[dtype] * norm_of_all());
        tarn_optimizer_free(sgd);
        tarn_module_free(module);
    }
}

static void only_gradients_that_are_there_count(void **state)
{
    (void)state;
    tarn_module *module = module_on(cpu, TARN_F64);
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 1});
    give_all(module);
    tarn_optimizer_step(sgd); /* what it leaves in the buffers does not count */
    give(module, "small", 2);
    assert_true(fabs(tarn_item(good(tarn_optimizer_clip_norm(sgd, INFINITY))) - sqrt(squares(7, 2))) < 1e-12);
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
}

/* What a step of SGD with rate 1 took from an element of "small". */
static double moved(tarn_module *module, double before, int64_t i)
{
    return before - tarn_item_at(tarn_module_find(module, "small"), TARN_SHAPE(i));
}

static void a_step_takes_the_gradients_times_the_factor(void **state)
{
    (void)state;
    tarn_module *module = module_on(cpu, TARN_F64);
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 1});
    double norm = norm_of_all(), factor = 3 / (norm + 1e-6);
    give_all(module);
    assert_true(fabs(tarn_item(good(tarn_optimizer_clip_norm(sgd, 3))) - norm) < 1e-10);
    assert_true(fabs(tarn_item_at(tarn_grad(tarn_module_find(module, "small")), TARN_SHAPE(5)) - gradient(5, 2)) <
                1e-12);
    assert_true(tarn_optimizer_step(sgd));
    assert_true(fabs(moved(module, 1, 5) - factor * gradient(5, 2)) < 1e-12);
    double before = tarn_item_at(tarn_module_find(module, "small"), TARN_SHAPE(5));
    give_all(module); /* the next step is not clipped unless asked for */
    assert_true(tarn_optimizer_step(sgd));
    assert_true(fabs(moved(module, before, 5) - gradient(5, 2)) < 1e-12);
    before = tarn_item_at(tarn_module_find(module, "small"), TARN_SHAPE(5));
    give_all(module); /* a norm below the bound changes no bit */
    good(tarn_optimizer_clip_norm(sgd, 2 * norm));
    assert_true(tarn_optimizer_step(sgd));
    assert_true(fabs(moved(module, before, 5) - gradient(5, 2)) < 1e-12);
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
}

static void clipping_twice_is_clipping_what_is_clipped(void **state)
{
    (void)state;
    tarn_module *module = module_on(cpu, TARN_F64);
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 1});
    give_all(module);
    good(tarn_optimizer_clip_norm(sgd, 10));
    assert_true(fabs(tarn_item(good(tarn_optimizer_clip_norm(sgd, 2))) - 10) < 1e-5);
    assert_true(tarn_optimizer_clip_value(sgd, 0.01)); /* of the scaled gradients */
    assert_true(fabs(tarn_item(good(tarn_optimizer_clip_norm(sgd, INFINITY)))) < 2.1);
    double scaled = 2 / norm_of_all() * gradient(5, 2), held = fmin(fmax(scaled, -0.01), 0.01);
    assert_true(tarn_optimizer_step(sgd));
    assert_true(fabs(moved(module, 1, 5) - held) < 1e-7);
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
}

static void elements_are_held_within_a_limit(void **state)
{
    (void)state;
    tarn_module *module = module_on(cpu, TARN_F32);
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 1});
    give_all(module);
    assert_true(tarn_optimizer_clip_value(sgd, 0.5));
    double *values = values_of(good(tarn_grad(tarn_module_find(module, "large"))));
    for (int i = 0; i < WIDE; i++)
        assert_true(fabs(values[i] - fmin(fmax(gradient(i, 1), -0.5), 0.5)) < 1e-6);
    free(values);
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
}

static void a_gradient_that_changes_after_clipping_is_an_error(void **state)
{
    (void)state;
    tarn_module *module = module_on(cpu, TARN_F32);
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 1});
    give_all(module);
    good(tarn_optimizer_clip_norm(sgd, 1));
    give(module, "small", 3);
    assert_false(tarn_optimizer_step(sgd));
    assert_error_about(TARN_ERROR_ARGUMENT, "optimizer_step", "'small' has changed since tarn_optimizer_clip_norm()");
    assert_true(tarn_item_at(tarn_module_find(module, "small"), TARN_SHAPE(0)) == 1);
    tarn_optimizer_zero_grad(sgd);
    give_all(module);
    assert_true(tarn_optimizer_step(sgd));
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
}

static void the_parameter_that_is_not_finite_is_named(void **state)
{
    (void)state;
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
        tarn_module *module = module_on(cpu, TARN_F32);
        tarn_optimizer *adam = tarn_adamw(module, &(tarn_adamw_options){.lr = 1, .weight_decay = 0.1f});
        assert_null(tarn_optimizer_nonfinite(adam));
        give_all(module);
        assert_null(tarn_optimizer_nonfinite(adam));
        float values[7] = {1, 2, (float)bad[k], 4, 5, 6, 7};
        tarn_backward_from(tarn_module_find(module, "small"), tarn_from_f32(values, TARN_SHAPE(7), cpu), NULL);
        assert_string_equal(tarn_optimizer_nonfinite(adam), "small");
        assert_false(isfinite(tarn_item(good(tarn_optimizer_clip_norm(adam, 1)))));
        assert_true(tarn_optimizer_step(adam));
        assert_string_equal(tarn_optimizer_nonfinite(adam), "small"); /* what the last norm was made of */
        give_all(module);
        assert_null(tarn_optimizer_nonfinite(adam));
        assert_ok();
        tarn_optimizer_free(adam);
        tarn_module_free(module);
    }
}

static void large_f32_gradients_do_not_leave_the_range(void **state)
{
    (void)state;
    tarn_module *module = module_on(cpu, TARN_F32);
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 1});
    float values[7] = {3e30f, 0, 4e30f, 0, 0, 0, 0};
    tarn_backward_from(tarn_module_find(module, "small"), tarn_from_f32(values, TARN_SHAPE(7), cpu), NULL);
    assert_true(fabs(tarn_item(good(tarn_optimizer_clip_norm(sgd, 1))) / 5e30 - 1) < 1e-6);
    assert_true(tarn_optimizer_step(sgd));
    assert_true(fabs(tarn_item_at(tarn_module_find(module, "small"), TARN_SHAPE(2)) - 0.2) < 1e-6);
    assert_null(tarn_optimizer_nonfinite(sgd));
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
}

static void clipping_on_a_device_makes_no_transfer(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 2)
        skip();
    tarn_device device = tarn_device_parse("mirror:0");
    tarn_module *module = module_on(device, TARN_F32);
    tarn_optimizer *adam = tarn_adamw(module, &(tarn_adamw_options){.lr = 0.1f, .weight_decay = 0.1f});
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *up[] = {tarn_ones_like(tarn_module_find(module, "large")),
                         tarn_ones_like(tarn_module_find(module, "small"))};
    for (int i = 0; i < 3; i++) {
        tarn_backward_from(tarn_module_find(module, "large"), up[0], NULL);
        tarn_backward_from(tarn_module_find(module, "small"), up[1], NULL);
        if (i == 1) /* the first one tells the device where the chunks lie */
            tarn_stats_reset();
        tarn_tensor *norm = good(tarn_optimizer_clip_norm(adam, 1));
        assert_true(tarn_device_equal(tarn_device_of(norm), device));
        assert_true(tarn_optimizer_step(adam));
    }
    tarn_counters counters = tarn_stats();
    assert_int_equal(counters.uploads + counters.downloads + counters.peer_copies + counters.fallbacks, 0);
    assert_int_equal(counters.kernels_on[0], 0);
    tarn_scope_close(scope);
    tarn_optimizer_free(adam);
    tarn_module_free(module);
    tarn_empty_cache(device);
}

static void moving_a_module_keeps_a_clipping_that_is_pending(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 2)
        skip();
    tarn_device device = tarn_device_parse("mirror:1");
    tarn_module *module = module_on(cpu, TARN_F64);
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 1});
    give_all(module);
    good(tarn_optimizer_clip_norm(sgd, 3));
    assert_true(tarn_module_to(module, device));
    assert_true(tarn_optimizer_step(sgd));
    assert_true(fabs(moved(module, 1, 5) - 3 / (norm_of_all() + 1e-6) * gradient(5, 2)) < 1e-12);
    give_all(module);
    assert_true(fabs(tarn_item(good(tarn_optimizer_clip_norm(sgd, 3))) - norm_of_all()) < 1e-10);
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
    tarn_empty_cache(device);
}

static void parameters_on_two_devices_are_clipped_together(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 2)
        skip();
    tarn_device device = tarn_device_parse("mirror:0");
    tarn_scope *scope = tarn_scope_open();
    tarn_module *module = tarn_module_new("two", unchanged, NULL, NULL);
    tarn_tensor *a = tarn_module_add_parameter(module, "a", tarn_ones(TARN_SHAPE(2), TARN_F64, cpu));
    tarn_tensor *b = tarn_module_add_parameter(module, "b", tarn_ones(TARN_SHAPE(2), TARN_F32, device));
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 1});
    tarn_backward_from(a, tarn_full(TARN_SHAPE(2), 3 / sqrt(2), TARN_F64, cpu), NULL);
    tarn_backward_from(b, tarn_full(TARN_SHAPE(2), 4 / sqrt(2), TARN_F32, device), NULL);
    assert_true(fabs(tarn_item(good(tarn_optimizer_clip_norm(sgd, 1))) - 5) < 1e-6);
    assert_true(tarn_optimizer_step(sgd));
    assert_true(fabs(tarn_item_at(a, TARN_SHAPE(1)) - (1 - 3 / sqrt(2) / 5)) < 1e-6);
    assert_true(fabs(tarn_item_at(b, TARN_SHAPE(1)) - (1 - 4 / sqrt(2) / 5)) < 1e-6);
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
    tarn_scope_close(scope);
    tarn_empty_cache(device);
}

static void the_norm_is_bitwise_identical_with_any_number_of_threads(void **state)
{
    (void)state;
    int before = tarn_threads();
    double first = 0;
    for (int threads = 1; threads <= 4; threads *= 2) {
        tarn_set_threads(threads);
        tarn_module *module = module_on(cpu, TARN_F64);
        tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 1});
        give_all(module);
        double norm = tarn_item(good(tarn_optimizer_clip_norm(sgd, 1)));
        assert_true(threads == 1 || norm == first);
        first = norm;
        tarn_optimizer_free(sgd);
        tarn_module_free(module);
    }
    tarn_set_threads(before);
}

static void a_failed_allocation_anywhere_leaves_nothing_behind(void **state)
{
    (void)state;
    tarn_empty_cache(cpu);
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    bool done = false;
    for (int room = 0; !done && room < 1000; room++) {
        allocations_left = 1000000;
        tarn_scope *scope = tarn_scope_open();
        tarn_module *module = module_on(cpu, TARN_F32);
        tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 1});
        give_all(module);
        allocations_left = room;
        done = tarn_optimizer_clip_norm(sgd, 1) && tarn_optimizer_clip_value(sgd, 1) && tarn_optimizer_step(sgd);
        allocations_left = 1000000;
        assert_true(done || tarn_error_code() == TARN_ERROR_MEMORY);
        tarn_clear_error();
        tarn_optimizer_free(sgd);
        tarn_module_free(module);
        tarn_scope_close(scope);
        tarn_empty_cache(cpu);
        if (tarn__memory_in_use() != 0)
            fail_msg("%lld bytes are left after failing at allocation %d", (long long)tarn__memory_in_use(), room);
    }
    assert_true(done);
    assert_true(tarn_set_allocator(NULL));
}

int main(void)
{
    cpu = tarn_device_cpu();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_failed_allocation_anywhere_leaves_nothing_behind,
                               clear_error), /* first: nothing holds memory yet */
        in_scope(the_norm_is_that_of_all_gradients_together),
        in_scope(only_gradients_that_are_there_count),
        in_scope(a_step_takes_the_gradients_times_the_factor),
        in_scope(clipping_twice_is_clipping_what_is_clipped),
        in_scope(elements_are_held_within_a_limit),
        in_scope(a_gradient_that_changes_after_clipping_is_an_error),
        in_scope(the_parameter_that_is_not_finite_is_named),
        in_scope(large_f32_gradients_do_not_leave_the_range),
        in_scope(clipping_on_a_device_makes_no_transfer),
        in_scope(moving_a_module_keeps_a_clipping_that_is_pending),
        in_scope(parameters_on_two_devices_are_clipped_together),
        in_scope(the_norm_is_bitwise_identical_with_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
