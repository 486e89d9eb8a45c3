/* test_ema.c: the exponential moving average of parameters: its formula, with and without warm-up, of master weights
 * and of running statistics; applied and restored bit for bit; saved and loaded; and calls in the wrong order. */
#include "support/check.h"
#include "support/scratch.h"
#include "tarn_features.h"

enum { SIZE = 70, STEPS = 9 };

static tarn_device cpu;

/* A parameter of SIZE elements, another of 3, and a batchnorm of 4 channels. */
static tarn_module *module_of(tarn_dtype dtype)
{
    tarn_module *module = tarn_module_new("two", unchanged, NULL, NULL);
    tarn_module_add_parameter(module, "matrix", tarn_cast(tarn_full(TARN_SHAPE(7, 10), 0.7, TARN_F32, cpu), dtype));
    tarn_module_add_parameter(module, "vector", tarn_cast(tarn_full(TARN_SHAPE(3), -0.3, TARN_F32, cpu), dtype));
    tarn_module_add_child(module, "norm", tarn_batchnorm2d(4, cpu));
    assert_ok();
    return module;
}

/* Another step for every parameter; the running mean changes too. */
static void train(tarn_module *module, tarn_optimizer *optimizer, int step)
{
    tarn_scope *scope = tarn_scope_open();
    for (int k = 0; k < tarn_module_parameter_count(module); k++) {
        tarn_tensor *parameter = tarn_module_parameter(module, k);
        tarn_tensor *g = tarn_sin(
            tarn_add(tarn_arange(0, (double)tarn_count(parameter), 1, TARN_F32, cpu), tarn_scalar(0.7 * step + k)));
        tarn_backward_from(parameter, tarn_cast(tarn_reshape(g, tarn_shape_of(parameter)), tarn_dtype_of(parameter)),
                           NULL);
    }
    assert_true(tarn_optimizer_step(optimizer));
    assert_true(tarn_copy(tarn_module_buffer(module, 0), tarn_full(TARN_SHAPE(4), 0.1 * step, TARN_F32, cpu)));
    tarn_scope_close(scope);
    assert_ok();
}

static tarn_optimizer *optimizer_of(tarn_module *module)
{
    return tarn_adamw(module, &(tarn_adamw_options){.lr = 0.05f});
}

/* The average of what was there after each step, in f64. */
static void follow(double *average, const tarn_tensor *now, double decay)
{
    double *values = values_of(now);
    for (int64_t i = 0; i < tarn_count(now); i++)
        average[i] = decay * average[i] + (1 - decay) * values[i];
    free(values);
}

static void assert_near(const tarn_tensor *tensor, const double *expected, double tolerance)
{
    double *values = values_of(tensor);
    for (int64_t i = 0; i < tarn_count(tensor); i++)
        if (!(fabs(values[i] - expected[i]) <= tolerance * (1 + fabs(expected[i]))))
            fail_msg("element %lld is %.9g, not %.9g", (long long)i, values[i], expected[i]);
    free(values);
}

static void check_formula(tarn_dtype dtype, bool warmup, double tolerance)
{
    tarn_module *module = module_of(dtype);
    tarn_optimizer *optimizer = optimizer_of(module);
    double weights[SIZE], mean[4] = {0}, *start = values_of(tarn_module_parameter(module, 0));
    memcpy(weights, start, sizeof(weights));
    free(start);
    tarn_ema *ema = tarn_ema_new(module, optimizer, &(tarn_ema_options){.decay = 0.6, .warmup = warmup});
    assert_non_null(ema);
    for (int step = 0; step < STEPS; step++) {
        double rising = (2.0 + step) / (11.0 + step), decay = warmup && rising < 0.6 ? rising : 0.6;
        train(module, optimizer, step);
        assert_true(tarn_ema_update(ema));
        follow(weights, tarn_module_parameter(module, 0), decay);
        follow(mean, tarn_module_buffer(module, 0), decay);
    }
    assert_int_equal(tarn_ema_updates(ema), STEPS);
    assert_true(tarn_ema_apply(ema));
    assert_near(tarn_module_parameter(module, 0), weights, tolerance);
    assert_near(tarn_module_buffer(module, 0), mean, 1e-6);
    assert_true(tarn_ema_restore(ema));
    tarn_ema_free(ema);
    tarn_optimizer_free(optimizer);
    tarn_module_free(module);
    assert_ok();
}

static void the_average_is_that_of_the_formula(void **state)
{
    (void)state;
    for (int warmup = 0; warmup < 2; warmup++) {
        check_formula(TARN_F32, warmup, 2e-7 * STEPS);
        check_formula(TARN_F64, warmup, 1e-15 * STEPS);
        check_formula(TARN_BF16, warmup, 0x1p-8); /* averaged in f32, and rounded to bf16 to be applied */
    }
}

/* An increment of a thousandth of a bf16's distance to the next is lost in bf16, and not in the master weights. */
static void the_average_of_16_bit_parameters_is_in_f32(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_module *module = tarn_module_new("one", unchanged, NULL, NULL);
    tarn_module_add_parameter(module, "weight", tarn_cast(tarn_full(TARN_SHAPE(3), 1, TARN_F32, cpu), TARN_BF16));
    tarn_optimizer *optimizer = tarn_sgd(module, &(tarn_sgd_options){.lr = 1e-5f});
    tarn_ema *ema = tarn_ema_new(module, optimizer, &(tarn_ema_options){.decay = 0.5});
    tarn_tensor *weight = tarn_module_parameter(module, 0);
    tarn_backward_from(weight, tarn_cast(tarn_full(TARN_SHAPE(3), -1, TARN_F32, cpu), TARN_BF16), NULL);
    assert_true(tarn_optimizer_step(optimizer) && tarn_ema_update(ema));
    assert_true(tarn_ema_save(ema, scratch("one.safetensors")));
    assert_values(tarn_cast(weight, TARN_F32), 0, 1, 1, 1);
    tarn_safetensors *file = tarn_safetensors_open(scratch("one.safetensors"));
    tarn_tensor *average = tarn_safetensors_read(file, "weight", cpu);
    assert_int_equal(tarn_dtype_of(average), TARN_F32);
    assert_values(average, 1e-7, 1.000005, 1.000005, 1.000005);
    tarn_safetensors_close(file);
    tarn_ema_free(ema);
    tarn_optimizer_free(optimizer);
    tarn_module_free(module);
}

/* More elements than are exchanged at once. */
static void restoring_is_bitwise_identical(void **state)
{
    (void)state;
    uint64_t seed = test_seed(5);
    tarn_seed(seed);
    for (int k = 0; k < 2; k++) {
        tarn_module *module = tarn_linear(1200, 1000, cpu);
        if (k == 1) {
            tarn_module_free(module);
            module = module_of(TARN_BF16);
        }
        tarn_optimizer *optimizer = optimizer_of(module);
        tarn_ema *ema = tarn_ema_new(module, optimizer, &(tarn_ema_options){.decay = 0.5});
        tarn_tensor *weight = tarn_module_parameter(module, 0), *start = tarn_clone(weight);
        tarn_backward_from(weight, tarn_full(tarn_shape_of(weight), 1, tarn_dtype_of(weight), cpu), NULL);
        assert_true(tarn_optimizer_step(optimizer) && tarn_ema_update(ema));
        tarn_tensor *trained = tarn_clone(weight);
        for (int again = 0; again < 2; again++) {
            assert_true(tarn_ema_apply(ema));
            if (k == 0)
                assert_close(weight, tarn_mul(tarn_add(start, trained), tarn_scalar(0.5)), 1e-7);
            assert_true(memcmp(tarn_data(weight), tarn_data(trained), (size_t)tarn_bytes(weight)) != 0);
            assert_true(tarn_ema_restore(ema));
            assert_memory_equal(tarn_data(weight), tarn_data(trained), (size_t)tarn_bytes(weight));
        }
        tarn_ema_free(ema);
        tarn_optimizer_free(optimizer);
        tarn_module_free(module);
    }
}

static void assert_same_state(tarn_module *a, tarn_module *b)
{
    for (int k = 0; k < tarn_module_parameter_count(a); k++) {
        tarn_tensor *x = tarn_module_parameter(a, k), *y = tarn_module_parameter(b, k);
        assert_memory_equal(tarn_data(x), tarn_data(y), (size_t)tarn_bytes(x));
    }
    tarn_tensor *x = tarn_module_buffer(a, 0), *y = tarn_module_buffer(b, 0);
    assert_memory_equal(tarn_data(x), tarn_data(y), (size_t)tarn_bytes(x));
}

/* Applied averages do not get into the master weights: steps after an evaluation are bitwise identical. */
static void a_resumed_average_is_bitwise_identical(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    for (tarn_dtype dtype = TARN_F32; dtype <= TARN_F16; dtype++) {
        tarn_module *whole = module_of(dtype), *again = module_of(dtype);
        tarn_optimizer *first = optimizer_of(whole), *second = optimizer_of(again);
        tarn_ema_options options = {.decay = 0.9, .warmup = true};
        tarn_ema *average = tarn_ema_new(whole, first, &options), *other = tarn_ema_new(again, second, &options);
        for (int step = 0; step < STEPS; step++) {
            if (step == 4) {
                assert_true(tarn_ema_save(average, scratch("ema")) && tarn_optimizer_save(first, scratch("optimizer")));
                assert_true(tarn_module_save(whole, scratch("module")));
                train(again, second, 99);
                assert_true(tarn_ema_update(other)); /* a state that must go */
                assert_true(tarn_module_load(again, scratch("module"), NULL));
                assert_true(tarn_optimizer_load(second, scratch("optimizer")) && tarn_ema_load(other, scratch("ema")));
            }
            train(whole, first, step);
            assert_true(tarn_ema_update(average));
            if (step >= 4) {
                train(again, second, step);
                assert_true(tarn_ema_apply(other) && tarn_ema_restore(other));
                assert_true(tarn_ema_update(other));
            }
        }
        assert_same_state(whole, again);
        assert_true(tarn_ema_apply(average) && tarn_ema_apply(other));
        assert_same_state(whole, again);
        assert_true(tarn_ema_restore(average) && tarn_ema_restore(other));
        tarn_ema_free(average);
        tarn_ema_free(other);
        tarn_optimizer_free(first);
        tarn_optimizer_free(second);
        tarn_module_free(whole);
        tarn_module_free(again);
        assert_ok();
    }
}

/* Of two averages over one optimizer only the one that is applied can be restored; one that is freed leaves its values
 * to training. */
static void averages_do_not_mix(void **state)
{
    (void)state;
    for (tarn_dtype dtype = TARN_F32; dtype <= TARN_F16; dtype++) {
        tarn_module *module = module_of(dtype), *other = tarn_linear(3, 2, cpu);
        tarn_optimizer *optimizer = optimizer_of(module);
        tarn_ema_options options = {.decay = 0.5};
        tarn_ema *one = tarn_ema_new(module, optimizer, &options), *two = tarn_ema_new(module, optimizer, &options);
        train(module, optimizer, 0);
        assert_true(tarn_ema_update(one) && tarn_ema_apply(one));
        assert_false(tarn_ema_restore(two));
        assert_error(TARN_ERROR_ARGUMENT, "ema_restore: the averages of another one are applied");
        assert_null(tarn_ema_new(module, optimizer, &options));
        assert_error(TARN_ERROR_ARGUMENT, "ema_new: averages are applied");
        assert_null(tarn_ema_new(other, optimizer, &options));
        assert_error(TARN_ERROR_ARGUMENT, "ema_new: the module has 0 of the ");

        tarn_tensor *weight = tarn_module_parameter(module, 0), *kept = tarn_clone(weight);
        tarn_ema_free(one);
        tarn_ema *three = tarn_ema_new(module, optimizer, &options); /* begins with the master weights */
        assert_true(tarn_ema_apply(three));
        assert_memory_equal(tarn_data(weight), tarn_data(kept), (size_t)tarn_bytes(kept));
        assert_true(tarn_ema_restore(three));
        train(module, optimizer, 1);
        tarn_ema_free(three);
        tarn_ema_free(two);
        tarn_optimizer_free(optimizer);
        tarn_module_free(module);
        tarn_module_free(other);
        assert_ok();
    }
}

static void a_file_of_another_module_changes_nothing(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_module *module = module_of(TARN_F32), *other = tarn_linear(3, 2, cpu);
    tarn_optimizer *optimizer = optimizer_of(module), *second = optimizer_of(other);
    tarn_ema *ema = tarn_ema_new(module, optimizer, &(tarn_ema_options){.decay = 0.9}),
             *another = tarn_ema_new(other, second, &(tarn_ema_options){.decay = 0.9});
    assert_true(tarn_ema_update(ema) && tarn_ema_save(another, scratch("other")));
    assert_false(tarn_ema_load(ema, scratch("other")));
    assert_error(TARN_ERROR_FORMAT, "ema_load: ");
    assert_true(tarn_optimizer_save(optimizer, scratch("optimizer")));
    assert_false(tarn_ema_load(ema, scratch("optimizer")));
    assert_error(TARN_ERROR_FORMAT, "is not a file of tarn_ema_save()");
    assert_false(tarn_ema_load(ema, scratch("nothing")));
    assert_error(TARN_ERROR_IO, "ema_load: ");
    assert_int_equal(tarn_ema_updates(ema), 1);
    tarn_ema_free(ema);
    tarn_ema_free(another);
    tarn_optimizer_free(optimizer);
    tarn_optimizer_free(second);
    tarn_module_free(module);
    tarn_module_free(other);
}

/* With averages in the parameters a step would train those, and an update average them with themselves. */
static void applied_averages_are_not_trained(void **state)
{
    (void)state;
    tarn_module *module = module_of(TARN_F32);
    tarn_optimizer *optimizer = optimizer_of(module);
    tarn_ema *ema = tarn_ema_new(module, optimizer, &(tarn_ema_options){.decay = 0.9});
    assert_false(tarn_ema_restore(ema));
    assert_error(TARN_ERROR_ARGUMENT, "ema_restore: the averages are not applied");
    assert_true(tarn_ema_apply(ema));
    assert_false(tarn_ema_apply(ema));
    assert_error(TARN_ERROR_ARGUMENT, "ema_apply: ");
    assert_false(tarn_ema_update(ema));
    assert_error(TARN_ERROR_ARGUMENT, "ema_update: ");
    assert_false(tarn_optimizer_step(optimizer));
    assert_error(TARN_ERROR_ARGUMENT, "optimizer_step: the parameters are averages");
    assert_false(tarn_ema_save(ema, scratch("applied")));
    assert_error(TARN_ERROR_ARGUMENT, "ema_save: ");
    assert_true(tarn_ema_restore(ema));
    tarn_ema_free(ema);
    tarn_optimizer_free(optimizer);
    tarn_module_free(module);
}

static void a_module_that_was_moved_is_an_error(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    tarn_device there = tarn_device_parse("mirror:0");
    tarn_module *module = module_of(TARN_F32);
    tarn_optimizer *optimizer = optimizer_of(module);
    tarn_ema *ema = tarn_ema_new(module, optimizer, &(tarn_ema_options){.decay = 0.9});
    assert_true(tarn_module_to(module, there));
    assert_false(tarn_ema_update(ema));
    assert_error(TARN_ERROR_DEVICE, "ema_update: the module was moved");
    tarn_ema_free(ema);
    tarn_optimizer_free(optimizer);
    tarn_module_free(module);
    tarn_empty_cache(there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(the_average_is_that_of_the_formula),       in_scope(the_average_of_16_bit_parameters_is_in_f32),
        in_scope(restoring_is_bitwise_identical),           in_scope(a_resumed_average_is_bitwise_identical),
        in_scope(a_file_of_another_module_changes_nothing), in_scope(applied_averages_are_not_trained),
        in_scope(a_module_that_was_moved_is_an_error),      in_scope(averages_do_not_mix),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
